//! For the fuzz targets: the rows of the index as functions of bytes. What is read is written and read again as the same. No part of what the crate
//! offers.

use crate::changes::{Change, NewKind, Place, What};
use crate::conflict::{self, Conflict};
use crate::known::{KnownSite, KnownVnode, KnownVolume};
use crate::records::{self, FileRow, Writer};
use crate::{CellNumber, FileKey};
use std::fmt::Debug;

/// The kinds of rows.
pub const KINDS: u8 = 6;

/// Reads a row of a kind (the remainder by [`KINDS`]), without its checksum. Returns what it is: 0 if it is none.
pub fn row(kind: u8, bytes: &[u8]) -> u8 {
    fn same<T: PartialEq + Debug>(read: Option<T>, again: impl FnOnce(&T) -> Option<T>) -> Option<T> {
        if let Some(value) = &read {
            assert_eq!(again(value).as_ref(), read.as_ref(), "what is read is written as it was");
        }
        read
    }
    match kind % KINDS {
        0 => {
            let again = |row: &FileRow| FileRow::decode(&row.encode()).ok();
            // Of very many ranges not all are written.
            let row = FileRow::decode(bytes).ok();
            u8::from(row.is_some_and(|row| row.present.count() > 100 || same(Some(row), again).is_some()))
        }
        1 => {
            let key = records::conflict(7);
            let found = conflict::decode(&key, bytes).filter(|found| found.why.chars().count() < 1000);
            let found = same(found, |found| conflict::decode(&key, &found.encode()));
            u8::from(found.is_some_and(|found| {
                let _ = (found.text(), found.data_name(), found.written());
                true
            }))
        }
        2 => {
            let change = same(Change::decode(bytes).ok(), |change| Change::decode(&change.encode()).ok());
            match change.map(|change| change.what) {
                None => 0,
                Some(What::Make { kind: NewKind::File, .. }) => 1,
                Some(What::Make { kind: NewKind::Directory, .. }) => 2,
                Some(What::Make { kind: NewKind::Symlink(_), .. }) => 3,
                Some(What::Link { .. }) => 4,
                Some(What::Remove { .. }) => 5,
                Some(What::Rename { .. }) => 6,
                Some(What::Set { .. }) => 7,
                Some(What::Sync { .. }) => 8,
            }
        }
        4 => {
            let known = KnownVolume::decode(bytes).ok();
            let known = same(known, |known| KnownVolume::decode(&known.encode()).ok());
            known.map_or(0, |known| 1 + u8::try_from(known.sites.len()).unwrap_or(u8::MAX - 1))
        }
        5 => {
            let known = KnownVnode::decode(bytes).ok();
            let known = same(known, |known| KnownVnode::decode(&known.encode()).ok());
            known.map_or(0, |known| {
                let has =
                    [known.is_pinned, known.parent.is_some(), known.link.is_some(), known.pages.is_some()];
                has.into_iter().fold(1, |all, has| 2 * all + u8::from(has))
                    + 32 * known.rights.len().min(6) as u8
            })
        }
        _ => {
            let again = |pieces: &Vec<_>| records::decode_pieces(&records::data_row(pieces));
            let pieces = same(records::decode_pieces(bytes), again);
            pieces.map_or(0, |pieces| 1 + u8::try_from(pieces.len()).unwrap_or(u8::MAX - 1))
        }
    }
}

/// Rows with their kinds, to start from.
#[must_use]
pub fn samples() -> Vec<(u8, Vec<u8>)> {
    let key = |vnode| FileKey { cell: CellNumber(1), volume: 2, vnode, unique: 4 };
    let place = |name: &str| Place { dir: key(1), name: name.as_bytes().to_vec() };
    let make = |kind| What::Make { place: place("made"), made: key(2), kind, mode: 0o644, modified: 7 };
    let rename =
        |replaced| What::Rename { from: place("a"), to: place("b"), of: key(2), replaced, is_barrier: false };
    let changes = [
        make(NewKind::File),
        make(NewKind::Directory),
        make(NewKind::Symlink(b"target".to_vec())),
        What::Link { place: place("link"), of: key(2) },
        What::Remove { place: place("gone"), of: key(2), is_last: true },
        rename(None),
        rename(Some(key(4))),
        What::Set { of: key(2), mode: Some(0o600), modified: Some(9) },
        What::Sync { of: key(2) },
    ];
    let writer = Writer::new(1000, "alice".into());
    let changes = changes.map(|what| (2, Change { writer: writer.clone(), time: 9, what }.encode()));
    let file = FileRow {
        number: 7,
        version: 9,
        server_length: 5000,
        length: 6000,
        truncated_to: u64::MAX,
        writer: writer.clone(),
        is_promised: true,
        present: [0..5, 7..6000].into_iter().collect(),
        ..FileRow::default()
    };
    let aside = Conflict {
        number: 7,
        cell: "afar.local".into(),
        volume: 2,
        vnode: 3,
        unique: 4,
        version: 9,
        writer: 1000,
        length: 6000,
        ranges: vec![0..5, 7..6000],
        why: "somebody else has changed it".into(),
    };
    let data = records::data_row(&[(0, b"text".to_vec()), (4096, vec![7; 20])]);
    let site = |uuid| KnownSite {
        uuid,
        flags: 1,
        addresses: vec![([192, 0, 2, 1], 7000), ([198, 51, 100, 1], 7000)],
    };
    let volume = KnownVolume {
        name: "user.alice".into(),
        ids: [2, 3, 0],
        flags: 0x3000,
        sites: vec![site(Some([7; 16])), site(None)],
        noted: 1_700_000_000,
        age: 60,
    };
    let vnode = KnownVnode {
        is_pinned: true,
        status: vec![1; 84],
        parent: Some((1, 1)),
        link: Some(b"target".to_vec()),
        pages: Some(vec![0; 64]),
        rights: vec![(writer.clone(), 7), (Writer::new(0, "".into()), 1)],
    };
    let least = KnownVnode {
        status: vec![1; 84],
        is_pinned: false,
        parent: None,
        link: None,
        pages: None,
        rights: Vec::new(),
    };
    let known = [(4, volume.encode()), (5, vnode.encode()), (5, least.encode())];
    let rows = [(0, file.encode()), (0, FileRow::default().encode()), (1, aside.encode()), (3, data)];
    rows.into_iter().chain(known).chain(changes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_every_change_of_a_byte_is_survived() {
        for (kind, sample) in samples() {
            assert_ne!(row(kind, &sample), 0, "kind {kind}");
            for at in 0..sample.len() {
                for value in [0, 1, 0x7f, 0xff, sample[at] ^ 0x80] {
                    let mut changed = sample.clone();
                    changed[at] = value;
                    row(kind, &changed);
                }
                // Those that are lists to their end may be cut off between two entries.
                assert!(kind >= 3 || row(kind, &sample[..at]) == 0, "kind {kind} cut off at {at}");
            }
        }
    }
}
