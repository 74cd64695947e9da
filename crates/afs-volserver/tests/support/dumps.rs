//! Volumes with something in them, and their dumps.

use std::collections::BTreeMap;
use std::sync::Arc;

use afs_dump::{Event, Reader, VnodeRecord};
use afs_volume::{SetStatus, Stamp, StoreRange, VnodeId, Volume, fsck};
use afs_wire::afsvol::{AttachFlags, CreateVolume, Dump, RestoreCookie, SetFlags, VolumeFlags};
use afs_wire::ids::{AfsTime, TransId, ViceId, VnodeNumber, VolumeId, VolumeType};
use rx::Connection;
use rx_proto::abort::AbortCode;
use rxgen::Rpc;
use rxgen::xdr::CharVec;

use super::{A, Lab, RW, text};

pub(crate) const FULL: AfsTime = AfsTime(0);

pub(crate) fn stamp(now: u32) -> Stamp {
    Stamp { who: ViceId(7), now: AfsTime(now) }
}

pub(crate) fn store(volume: &Arc<Volume>, file: VnodeId, bytes: &[u8], now: u32) {
    let range = StoreRange { position: 0, length: bytes.len() as u64, file_length: 0 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(bytes).unwrap();
    store.commit(&SetStatus::default(), stamp(now), false).unwrap();
}

/// A volume with a directory, a long file at time 10, a short one at time 20, a link.
pub(crate) async fn filled(lab: &Lab) -> Arc<Volume> {
    lab.create(RW, "user.x").await;
    let volume = lab.partitions.find(RW).unwrap().1;
    let set = SetStatus::default();
    let mode = SetStatus { mode: Some(0o4755), group: Some(ViceId(9)), ..set };
    let directory = volume.make_dir(VnodeId::ROOT, b"d", &set, stamp(10)).unwrap().vnode.id;
    let long = volume.create_file(directory, b"long", &mode, stamp(10)).unwrap().vnode.id;
    store(&volume, long, &vec![b'l'; 3 << 20], 10);
    let short = volume.create_file(directory, b"short", &set, stamp(20)).unwrap().vnode.id;
    store(&volume, short, b"short", 20);
    volume.create_file(directory, b"empty", &set, stamp(20)).unwrap();
    volume.symlink(VnodeId::ROOT, b"link", b"#root.cell.", &set, stamp(10)).unwrap();
    volume
}

/// The stream that a procedure sends over a connection.
pub(crate) async fn stream_on<R: Rpc>(connection: &Connection, args: R) -> Result<Vec<u8>, AbortCode> {
    let mut call = connection.call().await.unwrap();
    call.send_request(&args).await.unwrap();
    call.finish().unwrap();
    call.read_to_end(1 << 30).await.map_err(|error| error.code())
}

impl Lab {
    /// The stream that a procedure sends.
    pub(crate) async fn stream<R: Rpc>(&self, args: R) -> Result<Vec<u8>, AbortCode> {
        stream_on(&self.connection, args).await
    }

    /// A full dump of a volume.
    pub(crate) async fn dump(&self, volume: VolumeId) -> Vec<u8> {
        let trans = self.begin(volume, AttachFlags::BUSY).await;
        let stream = self.stream(Dump { from_trans: trans, from_date: FULL }).await.unwrap();
        self.end(trans).await;
        stream
    }

    pub(crate) async fn dumped(&self, volume: VolumeId) -> Read {
        read(&self.dump(volume).await)
    }

    /// A volume that is to be filled, as `vos move` begins.
    pub(crate) async fn begin_copy(&self) -> TransId {
        let kind = VolumeType::READ_WRITE;
        let order = CreateVolume { partition: A, name: text("user.x"), kind, parent: RW, volid: RW };
        self.call(order).await.unwrap().trans
    }

    /// Brings a transaction's volume online.
    pub(crate) async fn settle(&self, trans: TransId) {
        self.call(SetFlags { trans, flags: VolumeFlags::NONE }).await.unwrap();
        assert_eq!(self.end(trans).await, 0);
    }

    pub(crate) fn assert_whole(&self, when: &str) {
        let report = fsck::check(self.partitions.get(A).unwrap()).unwrap();
        assert!(report.is_clean(), "{when}: {:?}", report.findings);
    }
}

/// What is said of the volume that [`Lab::begin_copy`] begins.
pub(crate) fn cookie() -> RestoreCookie {
    let name = CharVec::from_text("user.x").unwrap();
    RestoreCookie { name, kind: VolumeType::READ_WRITE, clone: VolumeId(0), parent: RW }
}

pub(crate) struct Read {
    pub(crate) kind: VolumeType,
    pub(crate) ids: [VolumeId; 2],
    pub(crate) vnodes: BTreeMap<VnodeNumber, (VnodeRecord, Vec<u8>)>,
}

pub(crate) fn read(stream: &[u8]) -> Read {
    let (mut reader, mut input) = (Reader::new(), stream);
    let mut found = Read { kind: VolumeType::ANY, ids: [VolumeId(0); 2], vnodes: BTreeMap::new() };
    let mut last = VnodeNumber(0);
    while let Some(event) = reader.next(&mut input).unwrap() {
        match event {
            Event::Dump(header) => found.ids[0] = header.volume,
            Event::Volume(header) => (found.ids[1], found.kind) = (header.id, header.kind),
            Event::Vnode(record) => {
                last = record.fid.vnode;
                found.vnodes.insert(last, (record.clone(), Vec::new()));
            }
            Event::Data(data) => found.vnodes.get_mut(&last).unwrap().1.extend_from_slice(data),
            Event::End => {}
        }
    }
    reader.finish().unwrap();
    found
}
