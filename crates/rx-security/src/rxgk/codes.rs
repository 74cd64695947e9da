//! The codes that rxgk ends connections with. The two dialects number them differently (rxgk notes 6).

use super::Dialect;
use rx_proto::abort::AbortCode;
use std::fmt;

/// The code of the first; the others follow.
const BASE: i32 = 1_233_242_880;
/// A code of Kerberos's: the type of a key is not supported.
const KEY_TYPE: AbortCode = AbortCode(-1_765_328_233);
/// A code of rxgen's: the server cannot read the arguments.
const UNMARSHAL: AbortCode = AbortCode(-453);

macro_rules! faults {
    ($($name:ident $rxgk:expr, $yfs:expr, $symbol:literal $text:literal;)*) => {
        /// What is wrong with a packet, a token or an answer.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Fault {
            $(#[doc = $text] $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code in a dialect.
            pub const fn code(self, dialect: Dialect) -> AbortCode {
                match (self, dialect) {
                    $((Self::$name, Dialect::Rxgk) => $rxgk,
                    (Self::$name, Dialect::Yfs) => $yfs,)*
                }
            }

            /// The name in OpenAFS, with what it means.
            pub const fn name(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$name => (concat!("RXGK_", $symbol), $text),)*
                }
            }
        }
    };
}

const fn at(offset: i32) -> AbortCode {
    AbortCode(BASE + offset)
}

// Where AuriStor has no number for a fault, it has that of Linux's server.
faults! {
    Inconsistency at(0), at(0), "INCONSISTENCY" "the security class contradicts itself";
    PacketShort at(1), at(1), "PACKETSHORT" "a packet is too short";
    BadChallenge at(2), at(2), "BADCHALLENGE" "the answer is to another challenge";
    BadEtype at(3), KEY_TYPE, "BADETYPE" "the enctype is none of those that rxgk has here";
    BadLevel at(4), at(6), "BADLEVEL" "the level is below the one that the server demands";
    BadKeyNo at(5), at(7), "BADKEYNO" "there is no key of this number";
    Expired at(6), at(5), "EXPIRED" "the token has expired";
    NotAuth at(7), at(4), "NOTAUTH" "the token is not good for this";
    SealedIncon at(9), at(3), "SEALED_INCON" "a packet is not what its sender sealed";
    BadToken at(8), at(3), "BAD_TOKEN" "the token cannot be read";
    DataLen at(10), at(1), "DATA_LEN" "a packet says to be longer than it is";
    BadQop at(11), at(10), "BAD_QOP" "the protection of the negotiation is too weak";
    Unreadable UNMARSHAL, at(1), "UNMARSHAL" "the answer to a challenge cannot be read";
}

/// The fault that a code tells of, in a dialect. Where a code tells of several, the first.
pub fn fault(dialect: Dialect, code: AbortCode) -> Option<Fault> {
    Fault::ALL.iter().copied().find(|fault| fault.code(dialect) == code)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text) = self.name();
        write!(f, "{name}: {text}")
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_its_numbers() {
        assert_eq!(Fault::SealedIncon.code(Dialect::Rxgk), AbortCode(1_233_242_889));
        assert_eq!(Fault::SealedIncon.code(Dialect::Yfs), AbortCode(1_233_242_883));
        assert_eq!(fault(Dialect::Rxgk, AbortCode(1_233_242_886)), Some(Fault::Expired));
        assert_eq!(fault(Dialect::Yfs, AbortCode(1_233_242_886)), Some(Fault::BadLevel));
        assert_eq!(fault(Dialect::Yfs, AbortCode(1_233_242_885)), Some(Fault::Expired));
        assert_eq!(fault(Dialect::Yfs, AbortCode(0)), None);
        assert_eq!(Fault::BadToken.to_string(), "RXGK_BAD_TOKEN: the token cannot be read");
        let codes: std::collections::HashSet<_> =
            Fault::ALL.iter().map(|fault| fault.code(Dialect::Rxgk)).collect();
        assert_eq!(codes.len(), Fault::ALL.len());
    }
}
