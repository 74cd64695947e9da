//! A cache of what the B-tree has answered of late: ranges of keys that have no row up to one that is known. A lookup in the B-tree takes
//! some microseconds, most of them come again and again, and those for what is new end in the gap behind all that is there.
//!
//! Nothing here is true any longer once the B-tree has taken rows: then all of it goes.

use super::{Key, Row};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// Bytes of keys and rows that are remembered; beyond them it begins anew.
const MAX_BYTES: usize = 8 << 20;
/// Bytes that a range takes besides.
const OVERHEAD: usize = 128;

/// Answers of the B-tree.
#[derive(Debug, Default)]
pub(super) struct RangeCache {
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The row that follows each key: no row is between the two. `None` if no row follows at all.
    until: BTreeMap<Key, Option<Row>>,
    bytes: usize,
    /// The number of times that everything was forgotten.
    times: u64,
}

/// The token with which an answer has to be remembered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked(u64);

impl RangeCache {
    /// The first row from a key on, `None` if there is none; or else what is to be said with the answer of the B-tree, which is to be
    /// asked now.
    pub(super) fn first(&self, from: &Key) -> Result<Option<Row>, Asked> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.until.range(..=from).next_back() {
            Some((_, None)) => Ok(None),
            Some((_, Some(row))) if row.0 >= *from => Ok(Some(row.clone())),
            _ => Err(Asked(known.times)),
        }
    }

    /// Remembers what the B-tree has answered, unless it has taken rows since it was asked.
    pub(super) fn remember(&self, asked: Asked, from: &Key, row: Option<Row>) {
        let mut before = None;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.times != asked.0 {
            return;
        }
        let size = from.0.len() + row.as_ref().map_or(0, |(key, value)| key.0.len() + value.len()) + OVERHEAD;
        if known.bytes + size > MAX_BYTES {
            before = Some(std::mem::take(&mut known.until));
            known.bytes = 0;
        }
        if known.until.insert(from.clone(), row).is_none() {
            known.bytes += size;
        }
        // To free thousands of rows takes a while, which nobody is to wait for.
        drop(known);
        drop(before);
    }

    /// The B-tree has taken rows.
    pub(super) fn forget(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let times = known.times + 1;
        let before = std::mem::replace(&mut *known, Known { times, ..Known::default() });
        drop(known);
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key(text.as_bytes().to_vec())
    }

    fn row(text: &str) -> Option<Row> {
        Some((key(text), text.as_bytes().into()))
    }

    #[test]
    fn a_range_answers_for_each_key_in_it() {
        let cache = RangeCache::default();
        let asked = cache.first(&key("b")).unwrap_err();
        cache.remember(asked, &key("b"), row("m"));
        for from in ["b", "c", "m"] {
            assert_eq!(cache.first(&key(from)).ok(), Some(row("m")), "{from}");
        }
        for from in ["a", "ma", "z"] {
            assert!(cache.first(&key(from)).is_err(), "{from}");
        }
        cache.remember(asked, &key("p"), None);
        assert_eq!(cache.first(&key("z")).ok(), Some(None));
        assert_eq!(cache.first(&key("c")).ok(), Some(row("m")));
    }

    #[test]
    fn what_was_asked_before_rows_were_taken_is_not_remembered_after_it() {
        let cache = RangeCache::default();
        let asked = cache.first(&key("b")).unwrap_err();
        cache.remember(asked, &key("b"), row("m"));
        cache.forget();
        assert!(cache.first(&key("b")).is_err());
        cache.remember(asked, &key("b"), row("m"));
        assert!(cache.first(&key("b")).is_err());
    }

    #[test]
    fn it_takes_no_more_memory_than_it_may() {
        let cache = RangeCache::default();
        for n in 0..100_000u32 {
            let from = Key(n.to_be_bytes().to_vec());
            if let Err(asked) = cache.first(&from) {
                cache.remember(asked, &from, Some((from.clone(), vec![0; 200].into())));
            }
            let known = cache.known.read().unwrap();
            assert!(known.bytes <= MAX_BYTES && known.until.len() * (200 + OVERHEAD) <= MAX_BYTES);
        }
    }
}
