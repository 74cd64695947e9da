//! Converting a read-only volume: which calls an order makes that is given again. The servers are scripted, in virtual time.

use crate::support::{SERVER, Script, listed};
use afs_admin::convert::{ConvertFailure, Order, Step, convert};
use afs_admin::entry::{Entry, Kind, Site};
use afs_admin::transfer::Place;
use afs_wire::afsvol::{Clone, ConvertROtoRWvolume};
use afs_wire::ids::{PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, GetEntryByIDN, ReplaceEntryN, SiteFlags};
use rxgen::xdr::Xdr;
use rxgen::{Abort, Rpc};

const READ_WRITE: VolumeId = VolumeId(500);
const READ_ONLY: VolumeId = VolumeId(501);
const HERE: Place = Place { server: SERVER, partition: PartitionId(0) };
/// What a server says that has the read-write volume already.
const EXDEV: Abort = Abort(18);

/// Converts, at a server that refuses it, and has a read-write volume and this read-only one.
fn converted(
    read_only: Vec<u32>,
    keeps_read_only: bool,
) -> (Result<Entry, ConvertFailure>, Vec<&'static str>) {
    let mut script = Script::refusing(&[(ConvertROtoRWvolume::NAME, EXDEV)]);
    let entry = Entry {
        name: "user.alice".to_owned(),
        sites: vec![Site { server: SERVER, partition: HERE.partition, flags: SiteFlags::RO_VOL }],
        ids: [READ_WRITE, READ_ONLY, VolumeId(0)],
        clone_id: VolumeId(0),
        flags: EntryFlags::RO_EXISTS,
    };
    let mut wire = Vec::new();
    entry.to_wire().unwrap().encode(&mut wire);
    script.replies.insert(GetEntryByIDN::NAME, wire);
    script.replies.insert(Clone::NAME, READ_ONLY.0.to_be_bytes().to_vec());
    let read_write = listed(READ_WRITE, VolumeType::READ_WRITE, READ_WRITE, true);
    script.listed.insert((HERE.partition, READ_WRITE), read_write);
    script.listed.insert((HERE.partition, READ_ONLY), read_only);
    let cancel = script.cancel.clone();
    script.run(move |vldb, volumes| async move {
        convert(&vldb, &volumes, Order { place: HERE, entry: &entry, keeps_read_only }, &cancel).await
    })
}

#[test]
fn an_order_that_was_broken_off_goes_on_where_it_was() {
    let clone = listed(READ_ONLY, VolumeType::READ_ONLY, READ_WRITE, true);
    for (read_only, is_cloned) in [(clone, false), (Vec::new(), true)] {
        let (result, asked) = converted(read_only, true);
        let entry = result.unwrap();
        assert!(entry.has(Kind::ReadWrite) && entry.has(Kind::ReadOnly));
        assert_eq!(entry.sites.len(), 2);
        assert_eq!(asked.contains(&Clone::NAME), is_cloned, "{asked:?}");
    }
}

#[test]
fn a_server_that_has_both_volumes_otherwise_is_believed_that_it_converts_none() {
    let clone = listed(READ_ONLY, VolumeType::READ_ONLY, READ_WRITE, true);
    let of_another = listed(READ_ONLY, VolumeType::READ_ONLY, VolumeId(7), true);
    let mut newer = clone.clone();
    // Of the thirteen words at the end it is the third.
    newer[33 + 10 + 2] = 1_700_000_000;
    for (read_only, keeps_read_only) in [(clone, false), (of_another, true), (newer, true)] {
        let (result, asked) = converted(read_only, keeps_read_only);
        assert_eq!(result.unwrap_err().step, Step::Convert);
        assert!(!asked.contains(&ReplaceEntryN::NAME), "{asked:?}");
    }
}
