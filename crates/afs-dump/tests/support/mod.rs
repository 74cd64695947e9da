//! What the tests of dumps share: the samples, events that own their data, and a small dump of our own.

use afs_dump::{
    DumpError, DumpHeader, DumpRange, Event, Reader, VnodeAttributes, VnodeKind, VnodeRecord, VolumeHeader,
    Writer,
};
use afs_wire::acl::Acl;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, ViceId, VnodeNumber, VolumeId};

pub(crate) const SAMPLES: [(&str, &[u8]); 3] = [
    ("demo", include_bytes!("../samples/demo.dump")),
    ("empty", include_bytes!("../samples/empty.dump")),
    ("readonly", include_bytes!("../samples/readonly.dump")),
];

/// An event that owns what it has; pieces of data are one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owned {
    Dump(DumpHeader),
    Volume(VolumeHeader),
    Vnode(VnodeRecord, Vec<u8>),
    End,
}

/// Reads a stream that comes in pieces of so many bytes.
pub(crate) fn read(stream: &[u8], piece: usize) -> Result<Vec<Owned>, DumpError> {
    let mut reader = Reader::new();
    let mut events = Vec::new();
    for mut input in stream.chunks(piece) {
        while let Some(event) = reader.next(&mut input)? {
            match event {
                Event::Dump(header) => events.push(Owned::Dump(header.clone())),
                Event::Volume(header) => events.push(Owned::Volume(header.clone())),
                Event::Vnode(record) => events.push(Owned::Vnode(record.clone(), Vec::new())),
                Event::Data(data) => match events.last_mut() {
                    Some(Owned::Vnode(_, all)) => all.extend_from_slice(data),
                    other => panic!("data behind {other:?}"),
                },
                Event::End => events.push(Owned::End),
            }
        }
        assert!(input.is_empty(), "the reader takes all that it is given");
    }
    reader.finish()?;
    Ok(events)
}

pub(crate) fn fid(vnode: u32, unique: u32) -> LocalFid {
    LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(unique) }
}

pub(crate) fn attributes(kind: VnodeKind, length: Option<u64>) -> VnodeAttributes {
    VnodeAttributes {
        kind,
        link_count: 1,
        data_version: DataVersion(7),
        client_mod_time: AfsTime(1000),
        author: ViceId(5),
        owner: ViceId(6),
        group: ViceId(0),
        mode: 0o644,
        parent: VnodeNumber(1),
        server_mod_time: AfsTime(1001),
        acl: (kind == VnodeKind::Directory).then(Acl::administrators),
        length,
    }
}

/// Both headers of a dump, and the writer for what follows.
pub(crate) fn begin(out: &mut Vec<u8>) -> Writer {
    let ranges = vec![DumpRange { from: AfsTime(500), to: AfsTime(2000) }];
    let dump = DumpHeader { volume: VolumeId(9), name: b"v".to_vec(), ranges };
    let volume = VolumeHeader { id: VolumeId(9), version: 1, name: b"v".to_vec(), ..VolumeHeader::default() };
    Writer::new(&dump, &volume, out).unwrap()
}

/// A root directory, a file, an unchanged one, one without data, a link.
pub(crate) fn small() -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = begin(&mut out);
    let mut add = |vnode, attributes, data: &[u8]| {
        writer.vnode(&VnodeRecord { fid: fid(vnode, vnode + 10), attributes }, &mut out).unwrap();
        writer.data(data, &mut out);
    };
    let pages = Directory::new(fid(1, 11), fid(1, 11)).into_bytes();
    add(1, Some(attributes(VnodeKind::Directory, Some(pages.len() as u64))), &pages);
    add(2, Some(VnodeAttributes { group: ViceId(3), ..attributes(VnodeKind::File, Some(5)) }), b"hello");
    add(4, None, b"");
    add(6, Some(attributes(VnodeKind::File, None)), b"");
    add(8, Some(attributes(VnodeKind::File, Some(0))), b"");
    add(10, Some(attributes(VnodeKind::Symlink, Some(4))), b"#a:.");
    writer.end(&mut out);
    out
}
