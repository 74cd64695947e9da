//! For the fuzz targets: everything here that reads bytes from a disk, as functions of bytes. What is read must be
//! written as it was. No part of what the crate offers.

use crate::VolumeError;
use crate::keys::{Key, Replaced, VnodeKey};
use crate::pages::{Directory, PAGE};
use crate::records::{self, ChunkRecord, Counters, GroupRecord, VnodeRecord, VolumeRecord};
use crate::vnode::VnodeId;
use afs_store::log;
use afs_wire::ids::{Uniquifier, VnodeNumber};

/// Reads a row of a kind (the remainder by the number of kinds); says whether it is one.
pub fn row(kind: u8, bytes: &[u8]) -> bool {
    fn same<T>(
        bytes: &[u8],
        read: Result<Option<T>, VolumeError>,
        write: impl FnOnce(&T) -> Vec<u8>,
    ) -> bool {
        match read {
            Ok(Some(value)) => {
                assert_eq!(write(&value), bytes, "what is read is written as it was");
                true
            }
            Ok(None) => bytes.is_empty(),
            Err(error) => {
                drop(error.to_string());
                false
            }
        }
    }
    match kind % 8 {
        0 => VnodeRecord::decode(VnodeNumber(1), bytes).is_ok(),
        1 => same(bytes, VnodeRecord::decode(VnodeNumber(2), bytes), VnodeRecord::encode),
        2 => same(bytes, ChunkRecord::decode(bytes), |chunk| chunk.encode()),
        // Its flags are one byte each, of which any but 0 is true.
        3 => VolumeRecord::decode(bytes).map(|record| drop(record.encode())).is_ok(),
        4 => same(bytes, Counters::decode(bytes).map(Some), |counters| counters.encode()),
        5 => GroupRecord::decode(bytes).map(|record| drop(record.encode())).is_ok(),
        6 => {
            same(bytes, records::decode_reservation(bytes).map(Some), |two| records::encode_reservation(*two))
        }
        _ => {
            let key = VnodeKey::parse(&Key(bytes.to_vec()));
            if let Some(note) = Replaced::parse(&Key(bytes.to_vec())) {
                assert_eq!(note.key().0, bytes, "what is read is written as it was");
            }
            let name = String::from_utf8_lossy(bytes);
            if let Some((file, key)) = records::parse_file_name(&name) {
                let crate::keys::Part::Chunk(n) = key.part else { panic!("files are of chunks") };
                drop(records::file_name(file, &key, n));
            }
            key.is_some_and(|key| {
                assert_eq!(key.key().0, bytes, "what is read is written as it was");
                true
            })
        }
    }
}

/// Reads records of the log, and says how many there are.
pub fn log_records(bytes: &[u8]) -> u64 {
    log::count_records(bytes)
}

/// Reads bytes as a directory's pages, looks for names and changes some. Says how many names there are, if it is whole.
pub fn directory(bytes: &[u8]) -> Option<usize> {
    let length = bytes.len().div_ceil(PAGE).max(1) * PAGE;
    let mut padded = bytes.to_vec();
    padded.resize(length, 0);
    let load = |n: u32| Ok(padded[n as usize * PAGE..][..PAGE].to_vec());
    let whole = afs_wire::directory::Directory::parse(&padded[..]);
    let is_whole = whole.is_ok_and(|whole| whole.check().is_empty());
    let mut directory = Directory::open(VnodeNumber(1), length as u64, load).ok()?;
    let names = directory.entries();
    let id = VnodeId { vnode: VnodeNumber(2), unique: Uniquifier(3) };
    let _ = directory.is_empty();
    let _ = directory.lookup(b"name");
    if directory.insert(b"a name of some length, over two slots", id).is_ok() && is_whole && names.is_ok() {
        let found = directory.lookup(b"a name of some length, over two slots");
        assert_eq!(found.expect("it was whole"), Some(id));
    }
    let _ = directory.remove(b"..");
    let _ = directory.replace(b".", id);
    names.ok().filter(|_| is_whole).map(|names| names.len())
}

/// A directory with so many names, to start from.
///
/// # Errors
///
/// It is full.
pub fn make_directory(names: u32) -> Result<Vec<u8>, VolumeError> {
    let mut directory = Directory::new(VnodeId::ROOT, VnodeId::ROOT)?;
    for n in 0..names {
        directory.insert(format!("name {n}{}", "x".repeat(n as usize % 60)).as_bytes(), VnodeId::ROOT)?;
    }
    Ok(directory.into_changed().into_iter().flat_map(|(_, page)| page).collect())
}

/// Rows of each kind, with their kinds, and the bytes of a few records of the log: to start from.
#[must_use]
pub fn samples() -> Vec<(u8, Vec<u8>)> {
    use crate::{Kind, VnodeStatus};
    use afs_store::log::Record;
    use afs_wire::acl::Acl;
    use afs_wire::ids::{AfsTime, DataVersion, ViceId};
    let status = |kind, vnode| VnodeStatus {
        id: VnodeId { vnode: VnodeNumber(vnode), unique: Uniquifier(7) },
        kind,
        link_count: 2,
        length: 2048,
        data_version: DataVersion(9),
        author: ViceId(1),
        owner: ViceId(1),
        group: ViceId(-204),
        mode: 0o755,
        parent: VnodeId::ROOT,
        client_mod_time: AfsTime(1),
        server_mod_time: AfsTime(2),
    };
    let directory = VnodeRecord {
        status: status(Kind::Directory, 1),
        layout: records::Layout::Pages,
        acl: Acl::administrators(),
    };
    let vnode = |kind, layout| VnodeRecord { status: status(kind, 2), layout, acl: Acl::default() };
    let mut log_bytes = Vec::new();
    let key = Key(vec![1]);
    Record::Rows(&[(key.clone(), Some(vec![1, 2, 3].into())), (Key(vec![2]), None)].into()).encode(
        1,
        0,
        &mut log_bytes,
    );
    Record::Mark { upto: 1, is_last: false }.encode(2, 0, &mut log_bytes);
    let chunk = ChunkRecord { file: crate::keys::FileId(77), length: 4096 };
    vec![
        (0, directory.encode()),
        (1, vnode(Kind::File, records::Layout::Chunks).encode()),
        (1, vnode(Kind::Symlink, records::Layout::Inline).encode()),
        (2, chunk.encode()),
        (4, Counters::default().encode()),
        (5, crate::group::GroupState::new(1).record.encode()),
        (6, records::encode_reservation([1, 2])),
        (7, crate::keys::vnode_prefix(crate::keys::GroupId(1), VnodeNumber(2))),
        (7, b"0000000000000400.1.2.0.1".to_vec()),
        (8, log_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_every_change_of_a_byte_is_survived() {
        for (kind, sample) in samples() {
            let read = |bytes: &[u8]| if kind == 8 { log_records(bytes) == 2 } else { row(kind, bytes) };
            assert!(kind == 7 || read(&sample), "kind {kind}");
            for at in 0..sample.len() {
                for value in [0, 1, 0x7f, 0xff, sample[at] ^ 0x80] {
                    let mut changed = sample.clone();
                    changed[at] = value;
                    let is_read = read(&changed);
                    assert!(kind != 8 || !is_read || changed == sample, "the checksum finds it");
                }
                // Without its last field a group's row is one of the older form.
                let is_older = kind == 5 && at == sample.len() - 4;
                assert!(
                    kind == 7 || is_older || !read(&sample[..at]) || at == 0,
                    "kind {kind} cut off at {at}"
                );
            }
        }
    }
}
