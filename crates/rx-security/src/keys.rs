//! The keys of a cell, and the files of OpenAFS's server configuration folder that hold them (Security notes 3.4): KeyFileExt,
//! the older KeyFile for DES keys, and rxkad.keytab. What the keys open is in [`crate::ticket`].

mod files;
mod keytab;

use crate::rxgk::ENCTYPES;
use std::fmt;
use zeroize::Zeroizing;

pub use files::{KEY_FILE, KEY_FILE_EXT, KEYTAB, KeyFileError, NEGOTIATION_KEYTAB};

/// Most keys that a set takes: a cell has one or two, and some while they are exchanged.
pub const KEYS_MAX: usize = 1024;
/// Longest key, in bytes: no kind of today has more than 32.
pub const KEY_LEN_MAX: usize = 256;

/// The use of a key, as KeyFileExt numbers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyType(pub i32);

impl KeyType {
    /// A DES key for rxkad, 8 bytes; the subtype is 0.
    pub const RXKAD: Self = Self(1);
    /// A Kerberos 5 key for rxkad; the subtype is its [`EncType`].
    pub const RXKAD_KRB5: Self = Self(2);
    /// A key for rxgk; the subtype is its [`EncType`].
    pub const RXGK: Self = Self(3);
    /// A Kerberos 5 key of the service with which tokens of rxgk are negotiated; the subtype is its [`EncType`]. The number is ours, and in no
    /// file.
    pub const NEGOTIATION: Self = Self(-1);
}

macro_rules! enctypes {
    ($($number:literal $name:ident $text:literal, $key_len:literal bytes;)*) => {
        /// A kind of Kerberos 5 encryption, by its number. An open set.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct EncType(pub i32);

        impl EncType {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// The name that Kerberos gives it, if it is one that tickets are opened with here.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            /// The length of its keys in bytes, if it is one that tickets are opened with here.
            pub const fn key_len(self) -> Option<usize> {
                match self.0 {
                    $($number => Some($key_len),)*
                    _ => None,
                }
            }
        }
    };
}

enctypes! {
    1 DES_CBC_CRC "des-cbc-crc", 8 bytes;
    3 DES_CBC_MD5 "des-cbc-md5", 8 bytes;
    16 DES3 "des3-cbc-sha1-kd", 24 bytes;
    17 AES128 "aes128-cts-hmac-sha1-96", 16 bytes;
    18 AES256 "aes256-cts-hmac-sha1-96", 32 bytes;
    19 AES128_SHA256 "aes128-cts-hmac-sha256-128", 16 bytes;
    20 AES256_SHA384 "aes256-cts-hmac-sha384-192", 32 bytes;
    23 RC4 "arcfour-hmac", 16 bytes;
}

/// The kinds of key that make a ticket, best first: a kind that OpenAFS 1.8 surely opens comes before the rest.
const PREFERENCE: [EncType; 6] = [
    EncType::AES256,
    EncType::AES128,
    EncType::AES256_SHA384,
    EncType::AES128_SHA256,
    EncType::DES3,
    EncType::RC4,
];

/// A key, with the names by which it is found.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// The use of the key.
    pub kind: KeyType,
    /// Its version: higher is newer.
    pub kvno: i32,
    /// For Kerberos keys, the [`EncType`].
    pub subtype: i32,
    /// The key.
    pub secret: Zeroizing<Vec<u8>>,
}

impl Key {
    /// A Kerberos 5 key for rxkad.
    pub fn rxkad_krb5(kvno: i32, kind: EncType, secret: &[u8]) -> Self {
        let secret = Zeroizing::new(secret.to_vec());
        Self { kind: KeyType::RXKAD_KRB5, kvno, subtype: kind.0, secret }
    }

    /// A key for rxgk.
    pub fn rxgk(kvno: i32, kind: EncType, secret: &[u8]) -> Self {
        Self { kind: KeyType::RXGK, ..Self::rxkad_krb5(kvno, kind, secret) }
    }

    /// A DES key for rxkad.
    pub fn rxkad(kvno: i32, secret: [u8; 8]) -> Self {
        Self { kind: KeyType::RXKAD, kvno, subtype: 0, secret: Zeroizing::new(secret.to_vec()) }
    }

    fn name(&self) -> (KeyType, i32, i32) {
        (self.kind, self.kvno, self.subtype)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (KeyType(kind), kvno, subtype) = self.name();
        write!(f, "Key {{ type {kind}, kvno {kvno}, subtype {subtype} }}")
    }
}

/// The keys of a cell. No two have the same type, version and subtype.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct KeySet {
    keys: Vec<Key>,
}

impl KeySet {
    /// Makes a set without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// These keys.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn of(keys: impl IntoIterator<Item = Key>) -> Result<Self, KeyFileError> {
        let mut set = Self::new();
        keys.into_iter().try_for_each(|key| set.insert(key))?;
        Ok(set)
    }

    /// Adds a key, in place of one of the same names.
    ///
    /// # Errors
    /// If there are too many, or the key is too long, or has not the length of its kind.
    pub fn insert(&mut self, key: Key) -> Result<(), KeyFileError> {
        let wanted = match key.kind {
            KeyType::RXKAD => Some(8),
            KeyType::RXKAD_KRB5 | KeyType::RXGK | KeyType::NEGOTIATION => EncType(key.subtype).key_len(),
            _ => None,
        };
        if key.secret.len() > KEY_LEN_MAX || wanted.is_some_and(|len| len != key.secret.len()) {
            return Err(KeyFileError::BadKeyLength { key: key.name(), found: key.secret.len() });
        }
        match self.keys.iter().position(|k| k.name() == key.name()) {
            Some(at) => self.keys[at] = key,
            None if self.keys.len() >= KEYS_MAX => return Err(KeyFileError::TooManyKeys),
            None => self.keys.push(key),
        }
        Ok(())
    }

    /// Takes out a key.
    pub fn remove(&mut self, kind: KeyType, kvno: i32, subtype: i32) -> Option<Key> {
        let at = self.keys.iter().position(|k| k.name() == (kind, kvno, subtype))?;
        Some(self.keys.remove(at))
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// True if all keys for rxkad are for DES, which anybody can break who has seen one ticket (OPENAFS-SA-2013-003). A key for rxgk beside
    /// them makes it no better: servers take tickets of either.
    #[must_use]
    pub fn has_only_des(&self) -> bool {
        let is_des = |key: &Key| match key.kind {
            KeyType::RXKAD => Some(true),
            // Kerberos's numbers of what it has for DES.
            KeyType::RXKAD_KRB5 => Some(matches!(key.subtype, 1..=3)),
            _ => None,
        };
        let mut found = self.keys.iter().filter_map(is_des).peekable();
        found.peek().is_some() && found.all(|is_des| is_des)
    }

    /// All keys, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter()
    }

    /// The key of these names.
    pub fn get(&self, kind: KeyType, kvno: i32, subtype: i32) -> Option<&Key> {
        self.keys.iter().find(|k| k.name() == (kind, kvno, subtype))
    }

    /// The newest key of a type; of several kinds of one version, the one that most peers can use. Kinds that nothing can be
    /// encrypted with here are passed over.
    pub fn newest(&self, kind: KeyType) -> Option<&Key> {
        let rank = |key: &Key| match kind {
            KeyType::RXKAD => Some(0),
            KeyType::RXGK => ENCTYPES.iter().position(|p| p.0 == key.subtype),
            _ => PREFERENCE.iter().position(|p| p.0 == key.subtype),
        };
        let usable = self.keys.iter().filter(|k| k.kind == kind).filter_map(|k| Some((k, rank(k)?)));
        usable.max_by_key(|(key, rank)| (key.kvno, std::cmp::Reverse(*rank))).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_key_is_the_best_of_the_highest_version() {
        let mut keys = KeySet::of([
            Key::rxkad_krb5(2, EncType::AES256, &[1; 32]),
            Key::rxkad_krb5(3, EncType::RC4, &[2; 16]),
            Key::rxkad_krb5(3, EncType::AES128, &[3; 16]),
            Key::rxkad(9, [4; 8]),
        ])
        .unwrap();
        keys.insert(Key { subtype: 99, ..Key::rxkad_krb5(7, EncType::AES128, &[5; 16]) }).unwrap();
        assert_eq!(keys.newest(KeyType::RXKAD_KRB5).unwrap().secret[..], [3; 16]);
        assert_eq!(keys.newest(KeyType::RXKAD).unwrap().kvno, 9);
        assert_eq!(keys.newest(KeyType::RXGK), None);
        for kind in [EncType::AES128, EncType::AES256_SHA384, EncType::AES256] {
            keys.insert(Key::rxgk(1, kind, &vec![6; kind.key_len().unwrap()])).unwrap();
        }
        keys.insert(Key::rxgk(2, EncType::RC4, &[7; 16])).unwrap();
        assert_eq!(keys.newest(KeyType::RXGK).unwrap().subtype, EncType::AES256.0);
    }

    #[test]
    fn a_key_for_rxgk_does_not_hide_that_tickets_are_of_des() {
        let rxgk = Key::rxgk(1, EncType::AES256, &[7; 32]);
        let only = |keys: &[Key]| KeySet::of(keys.iter().cloned()).unwrap().has_only_des();
        assert!(only(&[Key::rxkad(1, [1; 8]), rxgk.clone()]));
        assert!(!only(&[Key::rxkad(1, [1; 8]), Key::rxkad_krb5(1, EncType::AES128, &[7; 16]), rxgk.clone()]));
        assert!(!only(&[rxgk]));
    }

    #[test]
    fn a_key_replaces_the_one_of_its_names() {
        let mut keys = KeySet::of([Key::rxkad(1, [1; 8]), Key::rxkad(1, [2; 8])]).unwrap();
        assert_eq!(keys.iter().count(), 1);
        assert_eq!(keys.get(KeyType::RXKAD, 1, 0).unwrap().secret[..], [2; 8]);
        assert!(keys.remove(KeyType::RXKAD, 1, 0).is_some());
        assert!(keys.is_empty());
    }

    #[test]
    fn a_key_of_the_wrong_length_is_refused() {
        assert!(KeySet::of([Key::rxkad_krb5(1, EncType::AES256, &[1; 16])]).is_err());
        assert!(KeySet::of([Key::rxgk(1, EncType::AES256, &[1; 16])]).is_err());
        assert!(
            KeySet::of([Key::rxkad_krb5(1, EncType(99), &[1; 16])]).is_ok(),
            "its length is not known here"
        );
    }

    #[test]
    fn no_secret_is_in_the_debug_text() {
        let text = format!("{:?}", KeySet::of([Key::rxkad(1, [0xab; 8])]).unwrap());
        assert_eq!(text, "KeySet { keys: [Key { type 1, kvno 1, subtype 0 }] }");
    }
}
