//! The codes that rxkad ends connections with (Security notes 3.5).

use rx_proto::abort::AbortCode;

/// The code of the first; the others follow.
const BASE: i32 = 19_270_400;

macro_rules! codes {
    ($($offset:literal $name:ident $text:literal)*) => {
        $(#[doc = $text] pub const $name: AbortCode = AbortCode(BASE + $offset);)*

        /// The name of a code in OpenAFS, with what it means, if it is one of rxkad's.
        pub fn name(code: AbortCode) -> Option<(&'static str, &'static str)> {
            match code.0.wrapping_sub(BASE) {
                $($offset => Some((concat!("RXKAD", stringify!($name)), $text)),)*
                _ => None,
            }
        }
    };
}

codes! {
    0 INCONSISTENCY "the security class contradicts itself"
    1 PACKETSHORT "a packet is too short"
    2 LEVELFAIL "the level is below the one that the server demands"
    3 TICKETLEN "the ticket is too short or too long"
    4 OUTOFSEQUENCE "the answer is to another challenge"
    5 NOAUTH "the ticket is not yet valid"
    6 BADKEY "a bad key"
    7 BADTICKET "the ticket cannot be read"
    8 UNKNOWNKEY "the ticket is for a key that the server does not have"
    9 EXPIRED "the ticket has expired"
    10 SEALEDINCON "a packet is not what its sender sealed"
    11 DATALEN "a packet says to be longer than it is"
    12 ILLEGALLEVEL "there is no such level"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_names() {
        assert_eq!(name(AbortCode(19_270_407)).unwrap().0, "RXKADBADTICKET");
        assert_eq!(name(SEALEDINCON).unwrap().0, "RXKADSEALEDINCON");
        assert_eq!(name(AbortCode(19_270_413)), None);
        assert_eq!(name(AbortCode(i32::MIN)), None);
    }
}
