//! A table of limited size: what has not been used for longest goes when it is full.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// The part of a full table that goes at once, as finding it takes a look at all of it.
const PART: usize = 16;

/// The table.
#[derive(Debug)]
pub(crate) struct Lru<K, V> {
    limit: usize,
    uses: u64,
    entries: HashMap<K, (u64, V)>,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    /// An empty one, for so many entries at most.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), uses: 0, entries: HashMap::new() }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// An entry, which is thereby used.
    pub(crate) fn get_mut<Q: ?Sized + Hash + Eq>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (used, value) = self.entries.get_mut(key)?;
        self.uses += 1;
        *used = self.uses;
        Some(value)
    }

    /// Puts an entry in; returns the value that the key had.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.entries.len() >= self.limit && !self.entries.contains_key(&key) {
            self.make_room();
        }
        self.uses += 1;
        self.entries.insert(key, (self.uses, value)).map(|(_, old)| old)
    }

    pub(crate) fn remove<Q: ?Sized + Hash + Eq>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key).map(|(_, value)| value)
    }

    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&K, &V) -> bool) {
        self.entries.retain(|key, (_, value)| stays(key, value));
    }

    fn make_room(&mut self) {
        let mut uses: Vec<u64> = self.entries.values().map(|(used, _)| *used).collect();
        let last = self.limit.div_ceil(PART) - 1;
        let (_, last, _) = uses.select_nth_unstable(last);
        let last = *last;
        self.entries.retain(|_, (used, _)| *used > last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_however_much_comes() {
        for limit in [1, 2, 15, 16, 17, 100] {
            let mut table = Lru::new(limit);
            table.insert("used".to_owned(), 0);
            for n in 0..1000 {
                table.insert(format!("new {n}"), n);
                assert!(table.len() <= limit, "{limit}");
                assert_eq!(table.get_mut(&*format!("new {n}")), Some(&mut { n }));
                assert!(limit == 1 || table.get_mut("used").is_some(), "{limit} {n}");
            }
            assert!(limit < 16 || table.len() > limit / 2);
        }
    }

    #[test]
    fn a_full_table_takes_a_new_value_for_an_old_key_without_losing_one() {
        let mut table = Lru::new(3);
        for n in 0..3 {
            table.insert(n, n);
        }
        assert_eq!(table.insert(1, 9), Some(1));
        assert_eq!(table.len(), 3);
        table.retain(|key, _| *key != 0);
        assert_eq!((table.remove(&1), table.remove(&0), table.len()), (Some(9), None, 1));
    }
}
