//! Files of keys: KeyFileExt, KeyFile and a keytab, by the first byte. What is read writes back to the same keys.

use crate::shape::Shape;
use rx_security::keys::{KeyFileError, KeySet, KeyType};

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let Some((mode, bytes)) = input.split_first() else { return Shape::EMPTY.feature() };
    let parsed = match mode % 3 {
        0 => KeySet::parse_key_file_ext(bytes),
        1 => KeySet::parse_key_file(bytes),
        _ => KeySet::parse_keytab(bytes),
    };
    let shape = Shape::EMPTY.with(u64::from(mode % 3));
    match parsed {
        Ok(keys) => {
            let count = keys.iter().count();
            let mut again =
                KeySet::parse_key_file_ext(&keys.to_key_file_ext()).expect("we read what we write");
            if let Ok(file) = keys.to_key_file() {
                let des = KeySet::parse_key_file(&file).expect("we read what we write");
                des.iter().for_each(|key| again.insert(key.clone()).expect("it was in a set before"));
                assert_eq!(again.iter().count(), count);
            }
            assert!(again.iter().all(|key| keys.get(key.kind, key.kvno, key.subtype) == Some(key)));
            drop(format!("{keys:?}"));
            let has = |kind| u64::from(keys.newest(kind).is_some());
            shape
                .with(100)
                .with_count(count)
                .with(has(KeyType::RXKAD))
                .with(has(KeyType::RXKAD_KRB5))
                .feature()
        }
        Err(error) => {
            let kind = match &error {
                KeyFileError::BadFile { what } => what.len() as u64,
                KeyFileError::BadKeyLength { found, .. } => 1000 + (*found).min(40) as u64,
                KeyFileError::TooManyKeys => 2000,
                _ => 3000,
            };
            drop(error.to_string());
            shape.with(kind).feature()
        }
    }
}
