//! Numbered places for entries, reused last freed first: what gives entries the order in which stock servers list
//! them, in whose files a place is an offset (VLDB notes 13, PTDB notes 10).

use crate::record::{BadRow, Fields, PutFields};

/// A place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot<T> {
    /// A place with an entry.
    Used(T),
    /// A free place; `next` is the place that was freed before it.
    Free { next: Option<u32> },
}

/// The places of a database. Which of the free ones is next is in the database's header.
#[derive(Debug)]
pub(crate) struct Slots<T>(Vec<Slot<T>>);

/// First byte of a row: how it is written. 0 is a free place.
const FREE: u8 = 0;

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.len() as u32
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        match self.0.get(slot as usize) {
            Some(Slot::Used(entry)) => Some(entry),
            Some(Slot::Free { .. }) | None => None,
        }
    }

    /// The place that was freed before this free one.
    pub(crate) fn next_free(&self, slot: u32) -> Option<u32> {
        match self.0.get(slot as usize) {
            Some(Slot::Free { next }) => *next,
            Some(Slot::Used(_)) | None => None,
        }
    }

    /// Entries from a place on, with their places.
    pub(crate) fn from(&self, slot: u32) -> impl Iterator<Item = (u32, &T)> {
        let rest = self.0.get(slot as usize..).unwrap_or_default();
        (slot..).zip(rest).filter_map(|(slot, content)| match content {
            Slot::Used(entry) => Some((slot, entry)),
            Slot::Free { .. } => None,
        })
    }

    /// Sets a place, the next one after the last at most; returns what was there. `None` takes away the last place, and is
    /// returned for one that was not there: so what was returned sets all back, in the opposite order.
    pub(crate) fn set(&mut self, slot: u32, content: Option<Slot<T>>) -> Result<Option<Slot<T>>, BadRow> {
        let at = slot as usize;
        let Some(content) = content else {
            let is_last = at + 1 == self.0.len();
            return if is_last { Ok(self.0.pop()) } else { Err(BadRow("it is not the last place")) };
        };
        if at == self.0.len() {
            self.0.push(content);
            return Ok(None);
        }
        let place = self.0.get_mut(at).ok_or(BadRow("an entry before it is missing"))?;
        Ok(Some(std::mem::replace(place, content)))
    }
}

/// The row of a free place.
pub(crate) fn free_row(next: Option<u32>) -> Vec<u8> {
    let mut row = vec![FREE];
    row.put_u32(next.map_or(0, |slot| slot + 1));
    row
}

/// Parses a row, if it is that of a free place.
pub(crate) fn parse_free<T>(row: &[u8]) -> Option<Result<Slot<T>, BadRow>> {
    let mut fields = Fields::new(row);
    if fields.u8() != Ok(FREE) {
        return None;
    }
    Some(fields.u32().and_then(|next| fields.finish().map(|()| Slot::Free { next: next.checked_sub(1) })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_grow_by_one_and_keep_what_they_had_until_it_is_replaced() {
        let mut slots = Slots::new();
        assert_eq!(slots.set(0, Some(Slot::Used("a"))), Ok(None));
        assert!(slots.set(2, Some(Slot::Used("c"))).is_err(), "place 1 is missing");
        assert_eq!(slots.set(1, Some(Slot::Used("b"))), Ok(None));
        assert_eq!(slots.set(0, Some(Slot::Free { next: None })), Ok(Some(Slot::Used("a"))));
        assert_eq!(slots.from(0).collect::<Vec<_>>(), [(1, &"b")]);
        assert_eq!((slots.get(0), slots.next_free(0)), (None, None));
        assert!(slots.set(0, None).is_err(), "there is one behind it");
        assert_eq!(slots.set(1, None), Ok(Some(Slot::Used("b"))));
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn the_row_of_a_free_place_tells_the_next() {
        for next in [None, Some(0), Some(7)] {
            assert_eq!(parse_free::<()>(&free_row(next)), Some(Ok(Slot::Free { next })));
        }
        assert_eq!(parse_free::<()>(&[1, 0]), None);
        assert!(parse_free::<()>(&[0, 0]).unwrap().is_err());
    }
}
