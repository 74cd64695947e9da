//! Reading rows: what is new in memory goes before what the B-tree has. What there is of rows, and in which order it came, is left to
//! the parent.

use super::{Bytes, Key, Layer, Row, Store, after, read};
use crate::StoreError;
use std::ops::Bound;

/// Rows read at once by [`Store::scan`]: some hundred kilobytes at most, and a lock for less than a millisecond.
const SCAN_ROWS: usize = 256;

impl Store {
    /// A row.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn get(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        let layers = read(&self.layers);
        if let Some(value) = layers.active.get(key).or_else(|| layers.frozen.get(key)) {
            return Ok(value.clone());
        }
        self.with_btree(|btree| btree.get(key))
    }

    /// The first row from `from` on and before `end`.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn first(&self, from: &Key, end: &Key) -> Result<Option<Row>, StoreError> {
        let layers = read(&self.layers);
        let mut from = from.clone();
        loop {
            let range = (Bound::Included(&from), Bound::Excluded(end));
            let active = layers.active.range(range).next();
            let frozen = layers.frozen.range(range).next();
            let memory = match (active, frozen) {
                (Some(a), Some(f)) => Some(if a.0 <= f.0 { a } else { f }),
                (a, f) => a.or(f),
            };
            // Where memory has the very key there is nothing in the B-tree to ask for.
            if let Some((key, Some(value))) = memory
                && *key == from
            {
                return Ok(Some((from, value.clone())));
            }
            let below = self.with_btree(|btree| btree.first(&from))?.filter(|(key, _)| key < end);
            match (memory, below) {
                (None, below) => return Ok(below),
                (Some((key, _)), Some(below)) if below.0 < *key => return Ok(Some(below)),
                (Some((key, Some(value))), _) => return Ok(Some((key.clone(), value.clone()))),
                (Some((key, None)), _) => {
                    from = key.clone();
                    from.0.push(0);
                }
            }
        }
    }

    /// Some rows that begin with `prefix`, from `from` on, and where to go on from if there may be more.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn page(&self, from: &Key, prefix: &[u8]) -> Result<(Vec<Row>, Option<Key>), StoreError> {
        let layers = read(&self.layers);
        let end = after(prefix);
        let below = self.with_btree(|btree| btree.range(from, &end, SCAN_ROWS))?;
        let layers = [&*layers.frozen, &layers.active];
        // Up to where none has more than are looked at: who goes on from there would meet all of them again each time.
        let all = (Bound::Included(from), Bound::Excluded(&end));
        let in_layers = layers.iter().filter_map(|layer| Some(layer.range(all).nth(SCAN_ROWS - 1)?.0));
        let last = below.get(SCAN_ROWS - 1).map(|(key, _)| key).into_iter().chain(in_layers).min();
        let next = last.map(|last| {
            let mut key = last.clone();
            key.0.push(0);
            key
        });
        let range = (Bound::Included(from), Bound::Excluded(next.as_ref().unwrap_or(&end)));
        let mut rows: Layer = below.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for layer in layers {
            rows.extend(layer.range(range).map(|(key, value)| (key.clone(), value.clone())));
        }
        if let Some(next) = &next {
            drop(rows.split_off(next));
        }
        Ok((rows.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(), next))
    }

    /// Shows each row that begins with `prefix`, in order. What is changed meanwhile may be seen or not.
    ///
    /// # Errors
    ///
    /// The disk's, or what `each` has returned, which ends it.
    pub fn scan<E: From<StoreError>>(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&Key, &Bytes) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut from = Some(Key(prefix.to_vec()));
        while let Some(start) = from {
            let (rows, next) = self.page(&start, prefix)?;
            rows.iter().try_for_each(|(key, value)| each(key, value))?;
            from = next;
        }
        Ok(())
    }
}
