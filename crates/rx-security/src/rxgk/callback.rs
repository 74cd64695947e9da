//! Keyed callbacks: a cache manager gives each file server that it calls by rxgk a token for calling back ([`AppData`], rxgk notes 4.4), and knows by it
//! who calls. It alone opens such tokens, with a key that ends with it, so that it keeps nothing of them.

use super::token::{BYTELIFE, Content, LIFETIME, random};
use super::{AppData, AuthName, Callback, Dialect, RxgkTime, Secret, Server, Token, seal};
use crate::Level;
use crate::keys::{EncType, Key, KeySet};
use crate::time::Clock;
use rand::CryptoRng;
use rxgen::xdr::Uuid;
use zeroize::Zeroizing;

/// The enctype of the cache manager's key, and of what it gives to file servers.
const KIND: EncType = EncType::AES256;
const KEY_LEN: usize = 32;

/// What a cache manager's tokens for calling back are made with.
#[derive(Clone, Debug)]
pub struct CallbackKeys {
    client: Uuid,
    keys: KeySet,
}

impl CallbackKeys {
    /// Those of the cache manager with this UUID, from now until it ends.
    pub fn new(client: Uuid, rng: &mut impl CryptoRng) -> Self {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        rng.fill_bytes(&mut *key);
        let keys =
            KeySet::of([Key::rxgk(1, KIND, &*key)]).expect("the key is as long as those of its enctype");
        Self { client, keys }
    }

    /// What a file server gets: `number` is the cache manager's own for it, which [`file_server`] finds in the identity of who calls by it.
    ///
    /// # Panics
    /// Never: there is a key, of an enctype that there is.
    pub fn app_data(&self, server: Uuid, number: u32, rng: &mut impl CryptoRng) -> AppData {
        let secret = random(KIND, rng).expect("there is this enctype");
        let content = Content {
            secret: secret.clone(),
            level: Level::Crypt,
            start: RxgkTime::NONE,
            lifetime: LIFETIME,
            bytelife: BYTELIFE,
            end: RxgkTime::NONE,
            names: vec![AuthName::of_file_server(number)],
        };
        let key = self.keys.iter().next().expect("there is one key");
        let token = seal(key, Dialect::OURS, &content, rng).expect("there is this enctype");
        let key = Zeroizing::new(secret.bytes().to_vec());
        let callback = Some(Callback { kind: KIND, key, token });
        AppData { client: self.client, server, capabilities: Vec::new(), callback }
    }

    /// The class by which file servers call back with these tokens.
    pub fn server(&self, clock: Clock, seed: [u8; 32]) -> Server {
        Server::of_cache_manager(self.keys.clone(), clock, seed)
    }
}

impl Callback {
    /// The token as the file server shows it. `None` if the key is none that rxgk has here.
    pub(super) fn to_token(&self) -> Option<Token> {
        Some(Token {
            dialect: Dialect::OURS,
            secret: Secret::new(self.kind, &self.key)?,
            level: Level::Crypt,
            lifetime: LIFETIME,
            bytelife: BYTELIFE,
            end: RxgkTime::NONE,
            token: self.token.clone(),
        })
    }
}

/// The number of the file server that calls back by a token of a [`CallbackKeys`]; `None` for everybody else.
pub fn file_server(identity: &str) -> Option<u32> {
    identity.strip_prefix(super::names::FILE_SERVER)?.parse().ok()
}
