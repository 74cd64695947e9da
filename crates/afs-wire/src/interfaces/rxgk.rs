//! RXGK, the negotiation of tokens for the security class rxgk (rxgk notes 7). It is served on the port of the volume location database.

use rxgen::xdr::{Opaque, Uuid, XdrArray};
use rxgen::{interface, wire_enum, wire_struct};

/// Longest opaque datum, in bytes: a token, or a message of GSS-API.
pub const RXGK_DATA_MAX: usize = 1_048_576;
/// Tokens and messages of GSS-API.
pub type RxgkData = Opaque<RXGK_DATA_MAX>;
/// Most enctypes to choose from.
pub const RXGK_ENCTYPES_MAX: usize = 255;
/// Enctypes, by their numbers, the preferred one first.
pub type RxgkEnctypes = XdrArray<i32, RXGK_ENCTYPES_MAX>;
/// Most levels to choose from.
pub const RXGK_LEVELS_MAX: usize = 255;
/// Levels, the preferred one first.
pub type RxgkLevels = XdrArray<RxgkLevel, RXGK_LEVELS_MAX>;
/// Longest nonce and longest signature, in bytes.
pub const RXGK_NONCE_MAX: usize = 1024;
/// Random bytes.
pub type RxgkNonce = Opaque<RXGK_NONCE_MAX>;

wire_enum! {
    /// The protection of packets.
    enum RxgkLevel: u32 {
        /// No protection.
        0 CLEAR;
        /// A checksum.
        1 AUTH;
        /// Encryption.
        2 CRYPT;
    }
}

wire_struct! {
    /// What a client wants of a token.
    struct RxgkStartParams {
        /// Enctypes of its secret.
        enctypes: RxgkEnctypes,
        /// Levels of its connections.
        levels: RxgkLevels,
        /// Seconds for which a transport key is used; 0 for ever.
        lifetime: u32,
        /// Bytes for which a transport key is used, as a power of two; 0 for any number.
        bytelife: u32,
        /// The client's part of what the secret is made of.
        client_nonce: RxgkNonce,
    }

    /// What a client gets: sealed by GSS-API.
    struct RxgkClientInfo {
        /// The code of an error, or 0. With an error, nothing else means anything.
        error_code: i32,
        /// The enctype of the secret.
        enctype: i32,
        /// The level.
        level: RxgkLevel,
        /// As wanted, or less.
        lifetime: u32,
        /// As wanted, or less.
        bytelife: u32,
        /// The token's end, in steps of 100 ns since 1970; 0 for none.
        expiration: i64,
        /// The server's signature of what the client wants, as it has read it.
        mic: Opaque<RXGK_NONCE_MAX>,
        /// The token.
        token: RxgkData,
        /// The server's part of what the secret is made of.
        server_nonce: RxgkNonce,
    }

    /// What may be chosen for a token that is made of others.
    struct RxgkCombineOptions {
        /// Enctypes of its secret.
        enctypes: RxgkEnctypes,
        /// Levels of its connections.
        levels: RxgkLevels,
    }

    /// What was chosen. All is 0 for no token.
    #[derive(Copy)]
    struct RxgkTokenInfo {
        /// The enctype of the secret.
        enctype: i32,
        /// The level.
        level: RxgkLevel,
        /// Seconds for which a transport key is used.
        lifetime: u32,
        /// Bytes for which it is used, as a power of two.
        bytelife: u32,
        /// The token's end.
        expiration: i64,
    }
}

interface! {
    /// Procedures of the service that makes tokens.
    Rxgk on service 34567 port 7003 {
        /// A token for who shows a ticket of Kerberos by GSS-API. What GSS-API says against it is in the status words.
        1 GSSNegotiate (client_start: RxgkStartParams, input_token_buffer: RxgkData, opaque_in: RxgkData)
          -> (output_token_buffer: RxgkData, opaque_out: RxgkData, gss_major_status: u32, gss_minor_status: u32,
              rxgk_info: RxgkData);
        /// A token for one file server, of a user's and perhaps a cache manager's. An empty one says that the server has no rxgk.
        3 AFSCombineTokens (user_tok: RxgkData, cm_tok: RxgkData, options: RxgkCombineOptions, destination: Uuid)
          -> (new_token: RxgkData, token_info: RxgkTokenInfo);
    }
}

impl AFSCombineTokens {
    /// The question for the token for a file server, by a user's token: its enctypes, the preferred one first, and the number of its level.
    /// `None` if one of them is too long.
    pub fn for_server(user: &[u8], enctypes: &[i32], level: u32, destination: Uuid) -> Option<Self> {
        let options = RxgkCombineOptions {
            enctypes: RxgkEnctypes::new(enctypes.to_vec()).ok()?,
            levels: RxgkLevels::new(vec![RxgkLevel(level)]).ok()?,
        };
        let user_tok = RxgkData::new(user.to_vec()).ok()?;
        Some(Self { user_tok, cm_tok: RxgkData::default(), options, destination })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxgen::xdr::{from_bytes, to_bytes};

    /// The lengths are those that a signature is made over, so that both ends must agree on each byte.
    #[test]
    fn what_a_client_wants_and_gets_reads_back_from_its_bytes() {
        let start = RxgkStartParams {
            enctypes: RxgkEnctypes::new(vec![18, 17]).unwrap(),
            levels: RxgkLevels::new(vec![RxgkLevel::CRYPT]).unwrap(),
            lifetime: 36_000,
            bytelife: 30,
            client_nonce: RxgkNonce::new(vec![7; 20]).unwrap(),
        };
        let words = [2u32, 18, 17, 1, 2, 36_000, 30, 20].map(u32::to_be_bytes).concat();
        let bytes = [words, vec![7; 20]].concat();
        assert_eq!(to_bytes(&start), bytes);
        assert_eq!(from_bytes(&bytes), Ok(start));
        let info = RxgkClientInfo {
            error_code: 0,
            enctype: 18,
            level: RxgkLevel::CRYPT,
            lifetime: 36_000,
            bytelife: 30,
            expiration: 0x0102_0304_0506_0708,
            mic: Opaque::new(vec![1; 28]).unwrap(),
            token: RxgkData::new(vec![2; 5]).unwrap(),
            server_nonce: RxgkNonce::new(vec![3; 32]).unwrap(),
        };
        let bytes = to_bytes(&info);
        assert_eq!(bytes.len(), 5 * 4 + 8 + 4 + 28 + 4 + 8 + 4 + 32);
        assert_eq!(from_bytes(&bytes), Ok(info));
    }
}
