//! What a cache manager adds to its answer for a file server: who both are, and how the file server may call back (rxgk notes 4.4).

use super::response::{opaque, put_opaque};
use super::{Dialect, Fault};
use crate::keys::EncType;
use rxgen::xdr::Uuid;
use rxgen::{DecodeError, Decoder, Xdr};
use std::fmt;
use zeroize::Zeroizing;

/// Most words of capabilities: one is in use.
const CAPABILITIES_MAX: usize = 196;
/// Longest key and token for calling back, in bytes.
const KEY_MAX: usize = 64;
const TOKEN_MAX: usize = 4096;

/// What a cache manager adds to its answer for a file server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppData {
    /// The cache manager.
    pub client: Uuid,
    /// The file server, as the cache manager knows it.
    pub server: Uuid,
    /// The cache manager's capabilities, which only [`Dialect::Yfs`] tells.
    pub capabilities: Vec<u32>,
    /// What the file server may call back with.
    pub callback: Option<Callback>,
}

/// A token for calls to a cache manager. The key is overwritten when it is dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Callback {
    /// The enctype of the key: any, as it is the cache manager's choice.
    pub kind: EncType,
    /// The key.
    pub key: Zeroizing<Vec<u8>>,
    /// The token, which the cache manager can open.
    pub token: Vec<u8>,
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callback").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl AppData {
    /// The bytes in an authenticator.
    pub fn to_bytes(&self, dialect: Dialect) -> Zeroizing<Vec<u8>> {
        // Room for all, so that no copy of the key is left behind.
        let mut out = Zeroizing::new(Vec::with_capacity(512 + TOKEN_MAX));
        let (kind, key, token) = match &self.callback {
            Some(callback) => (callback.kind.0, &callback.key[..], &callback.token[..]),
            None => (0, &[][..], &[][..]),
        };
        match dialect {
            Dialect::Rxgk => {
                self.client.encode(&mut out);
                put_opaque(&mut out, token);
                put_opaque(&mut out, key);
                kind.encode(&mut out);
                self.server.encode(&mut out);
            }
            Dialect::Yfs => {
                out.extend_from_slice(&self.client.to_bytes());
                out.extend_from_slice(&self.server.to_bytes());
                (self.capabilities.len() as u32).encode(&mut out);
                self.capabilities.iter().for_each(|word| word.encode(&mut out));
                kind.encode(&mut out);
                put_opaque(&mut out, key);
                put_opaque(&mut out, token);
            }
        }
        out
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn parse(dialect: Dialect, bytes: &[u8]) -> Result<Self, Fault> {
        let read = |fields: &mut Decoder<'_>| {
            let (client, server, capabilities, kind, key, token);
            match dialect {
                Dialect::Rxgk => {
                    client = Uuid::decode(fields)?;
                    token = opaque(fields, TOKEN_MAX, "callback token")?;
                    key = opaque(fields, KEY_MAX, "callback key")?;
                    kind = i32::decode(fields)?;
                    server = Uuid::decode(fields)?;
                    capabilities = Vec::new();
                }
                Dialect::Yfs => {
                    client = raw_uuid(fields)?;
                    server = raw_uuid(fields)?;
                    let count = fields.count(CAPABILITIES_MAX, 4, "capabilities")?;
                    capabilities =
                        (0..count).map(|_| fields.word("capability")).collect::<Result<Vec<u32>, _>>()?;
                    kind = i32::decode(fields)?;
                    key = opaque(fields, KEY_MAX, "callback key")?;
                    token = opaque(fields, TOKEN_MAX, "callback token")?;
                }
            }
            fields.finish()?;
            let callback = (!key.is_empty() || !token.is_empty()).then(|| Callback {
                kind: EncType(kind),
                key: Zeroizing::new(key.to_vec()),
                token: token.to_vec(),
            });
            Ok::<_, DecodeError>(Self { client, server, capabilities, callback })
        };
        read(&mut Decoder::new(bytes)).map_err(|_| Fault::SealedIncon)
    }
}

/// A UUID in 16 bytes.
fn raw_uuid(fields: &mut Decoder<'_>) -> Result<Uuid, DecodeError> {
    let bytes = fields.take(16, "UUID")?;
    Ok(Uuid::from_bytes(bytes.try_into().expect("so many bytes were taken")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_reads_back_and_has_the_length_that_peers_expect() {
        let token = vec![7; 12 + 108];
        let callback = Callback { kind: EncType::AES128, key: Zeroizing::new(vec![5; 16]), token };
        let data = AppData {
            client: Uuid::from_bytes([0xa1; 16]),
            server: Uuid::from_bytes([0xb2; 16]),
            capabilities: vec![1],
            callback: Some(callback),
        };
        // As Linux makes it.
        assert_eq!(data.to_bytes(Dialect::Yfs).len(), 188);
        assert_eq!(AppData::parse(Dialect::Yfs, &data.to_bytes(Dialect::Yfs)), Ok(data.clone()));
        let plain = AppData { capabilities: Vec::new(), ..data.clone() };
        assert_eq!(AppData::parse(Dialect::Rxgk, &data.to_bytes(Dialect::Rxgk)), Ok(plain));
        let bare = AppData { capabilities: Vec::new(), callback: None, ..data.clone() };
        for dialect in Dialect::ALL {
            let bytes = bare.to_bytes(dialect);
            assert_eq!(AppData::parse(dialect, &bytes), Ok(bare.clone()));
            for len in 0..bytes.len() {
                assert_eq!(AppData::parse(dialect, &bytes[..len]), Err(Fault::SealedIncon), "{len}");
            }
        }
        assert!(!format!("{data:?}").contains("5, 5"));
    }
}
