//! The parts of a remote procedure call: the request and the reply as bytes, and the codes with which it fails.
//!
//! A request is the opcode and the arguments, a reply the results, each in the order of declaration. There is no call
//! number, no version and no status word: a call that failed is aborted with a code, one that succeeded has a
//! complete reply. Between the two, a *split* call carries raw data, whose layout is the procedure's own business.
//!
//! Declaring procedures is left to [`interface!`](crate::interface!), serving them to [`serve`](crate::serve), and
//! moving the bytes to a transport.

use crate::xdr::{DecodeError, Decoder, WireSize, Xdr, from_bytes};
use std::fmt;

/// A remote procedure. The type itself is its arguments.
pub trait Rpc: Xdr + Send + 'static {
    /// The number that identifies the procedure, together with the service it is called on.
    const OPCODE: u32;
    /// Its name, as in the protocol's specification; for logs, metrics and traces.
    const NAME: &'static str;
    /// The direction in which raw data travels between arguments and results, if any does.
    const SPLIT: Option<Split>;
    /// The results.
    type Reply: Xdr + Send + 'static;
}

/// A procedure to which the client sends raw data after the arguments.
pub trait StreamsIn: Rpc {}

/// A procedure whose server sends raw data before the results.
pub trait StreamsOut: Rpc {}

/// The direction in which the raw data of a split call travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Data after the arguments.
    FromClient,
    /// Data before the results.
    FromServer,
}

/// An interface: several procedures under one service number.
pub trait Interface: 'static {
    /// Its name, as in the protocol's specification.
    const NAME: &'static str;
    /// The service number on which its procedures are called.
    const SERVICE_ID: u16;
    /// The UDP port where such servers are found by default.
    const PORT: u16;
    /// Its procedures, in the order of declaration.
    const RPCS: &'static [RpcInfo];
}

/// One row of the table of an interface's procedures.
#[derive(Debug, Clone, Copy)]
pub struct RpcInfo {
    /// The number of the procedure.
    pub opcode: u32,
    /// Its name.
    pub name: &'static str,
    /// Names and types of its arguments.
    pub args: &'static [(&'static str, &'static str)],
    /// Names and types of its results.
    pub results: &'static [(&'static str, &'static str)],
    /// The direction of its raw data, if it carries any.
    pub split: Option<Split>,
    /// Fewest and most bytes of its arguments, without the opcode.
    pub args_size: WireSize,
    /// Fewest and most bytes of its results.
    pub results_size: WireSize,
    /// Decodes the arguments and encodes them again: for tools and tests that cover every procedure.
    pub decode_args: fn(&mut Decoder<'_>) -> Result<Vec<u8>, DecodeError>,
    /// Decodes the results and encodes them again.
    pub decode_results: fn(&mut Decoder<'_>) -> Result<Vec<u8>, DecodeError>,
}

/// The procedure with this opcode.
pub fn find(rpcs: &'static [RpcInfo], opcode: u32) -> Option<&'static RpcInfo> {
    rpcs.iter().find(|rpc| rpc.opcode == opcode)
}

/// Encodes what a client sends first: the opcode and the arguments. In a call split from the client raw data
/// follow it without padding.
pub fn encode_request<R: Rpc>(args: &R) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + R::SIZE.min);
    R::OPCODE.encode(&mut out);
    args.encode(&mut out);
    out
}

/// The results from all that a server sent, in a call split from the server all after its raw data.
///
/// # Errors
///
/// Too few bytes, bytes that are no results of this procedure, or bytes after them: a reply counts only when it is
/// decoded completely. A client reports that as [`Abort::CC_UNMARSHAL`].
pub fn decode_reply<R: Rpc>(bytes: &[u8]) -> Result<R::Reply, DecodeError> {
    from_bytes(bytes)
}

/// The code with which a call was ended instead of a reply: what the handler returned, or one of the protocol's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Abort(pub i32);

macro_rules! rxgen_codes {
    ($($number:literal $name:ident $sentence:literal)*) => {
        impl Abort {
            $( #[doc = concat!("`RXGEN_", stringify!($name), "`, ", stringify!($number), ": ", $sentence, ".")]
               pub const $name: Self = Self($number); )*

            /// Name and meaning of a code that belongs to the calls themselves; `None` for those of an interface.
            pub fn meaning(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $( $number => Some((concat!("RXGEN_", stringify!($name)), $sentence)), )*
                    _ => None,
                }
            }
        }
    };
}

rxgen_codes! {
    -450 CC_MARSHAL   "the client could not encode the arguments"
    -451 CC_UNMARSHAL "the client could not decode the reply"
    -452 SS_MARSHAL   "the server could not encode the reply"
    -453 SS_UNMARSHAL "the server could not decode the arguments"
    -454 DECODE       "the server could not decode the opcode"
    -455 OPCODE       "the server has no procedure of that opcode"
    -456 SS_XDRFREE   "the server could not free the arguments"
    -457 CC_XDRFREE   "the client could not free the results"
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some((name, sentence)) => write!(f, "{sentence} ({name}, {})", self.0),
            None => write!(f, "aborted with code {}", self.0),
        }
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some((name, _)) => write!(f, "Abort({}: {name})", self.0),
            None => write!(f, "Abort({})", self.0),
        }
    }
}

impl std::error::Error for Abort {}

/// For [`interface!`](crate::interface!) only: what [`RpcInfo`] points to.
#[doc(hidden)]
pub fn recode<T: Xdr>(decoder: &mut Decoder<'_>) -> Result<Vec<u8>, DecodeError> {
    let value = T::decode(decoder)?;
    Ok(crate::xdr::to_bytes(&value))
}

/// For [`interface!`](crate::interface!) only: fails to compile when an opcode occurs twice.
#[doc(hidden)]
pub const fn assert_distinct_opcodes(rpcs: &[RpcInfo]) {
    let mut i = 0;
    while i < rpcs.len() {
        let mut j = i + 1;
        while j < rpcs.len() {
            assert!(rpcs[i].opcode != rpcs[j].opcode, "two RPCs share an opcode");
            j += 1;
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abort_of_the_calls_own_says_what_it_means() {
        assert_eq!(
            Abort(-455).to_string(),
            "the server has no procedure of that opcode (RXGEN_OPCODE, -455)"
        );
        assert_eq!(format!("{:?}", Abort::SS_UNMARSHAL), "Abort(-453: RXGEN_SS_UNMARSHAL)");
        assert_eq!(Abort(102).to_string(), "aborted with code 102");
    }
}
