//! The codes that Rx itself ends calls with (Rx notes 13). Positive codes belong to applications and are not listed here.

use std::fmt;

macro_rules! codes {
    ($($number:literal $name:ident $text:literal)*) => {
        /// The reason why a call ended early: the signed code of an ABORT. An open set.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct AbortCode(pub i32);

        impl AbortCode {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// The meaning of the code, for Rx's own codes.
            pub const fn meaning(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            /// The code's name in the Rx notes, for Rx's own codes.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    -1 CALL_DEAD "the peer does not answer"
    -2 INVALID_OPERATION "no such service or security class on this port"
    -3 CALL_TIMEOUT "the call took too long"
    -4 EOF "the stream ended early"
    -5 PROTOCOL_ERROR "a malformed packet"
    -6 USER_ABORT "the caller gave the call up"
    -7 ADDRESS_IN_USE "the port is in use"
    -8 MESSAGE_SIZE "a packet is too large for the path"
    -100 RESTARTING "the server is starting up"
    -450 CLIENT_MARSHAL "the client could not encode the arguments"
    -451 CLIENT_UNMARSHAL "the client could not decode the reply"
    -452 SERVER_MARSHAL "the server could not encode the reply"
    -453 SERVER_UNMARSHAL "the server could not decode the arguments"
    -454 DECODE "the opcode could not be read"
    -455 OPCODE "the server does not know the operation"
}

impl fmt::Display for AbortCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(text) => write!(f, "{text} ({})", self.0),
            None => write!(f, "code {}", self.0),
        }
    }
}

impl fmt::Debug for AbortCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}({})", self.0),
            None => write!(f, "AbortCode({})", self.0),
        }
    }
}
