//! Shadows: what they may replace. The servers are scripted, in virtual time.

use crate::support::{SERVER, Script, listed};
use afs_admin::entry::{Entry, Kind, Site};
use afs_admin::transfer::copy::{Order, copy};
use afs_admin::transfer::{Place, Step, TransferFailure};
use afs_wire::abort::VL_NOENT;
use afs_wire::afsvol::{DeleteVolume, Forward, GetStatus, ListOneVolume};
use afs_wire::ids::{PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, GetEntryByIDN, SiteFlags};
use rxgen::Rpc;
use rxgen::xdr::Xdr;

const SOURCE: VolumeId = VolumeId(500);
const OTHER: VolumeId = VolumeId(600);
const FROM: Place = Place { server: SERVER, partition: PartitionId(0) };
const TO: Place = Place { server: SERVER, partition: PartitionId(1) };

/// Shadows a volume under the id of another one, whose entry names this partition.
fn shadowed(
    entry_names: Option<PartitionId>,
    is_incremental: bool,
) -> (Result<VolumeId, TransferFailure>, Vec<&'static str>) {
    let mut script = match entry_names {
        None => Script::refusing(&[(GetEntryByIDN::NAME, VL_NOENT)]),
        Some(_) => Script::default(),
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let entry = Entry {
        name: "other".to_owned(),
        sites: entry_names
            .map(|partition| Site { server: SERVER, partition, flags: SiteFlags::RW_VOL })
            .into_iter()
            .collect(),
        ids: [OTHER, VolumeId(601), VolumeId(602)],
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    };
    let mut wire = Vec::new();
    entry.to_wire().unwrap().encode(&mut wire);
    script.replies.insert(GetEntryByIDN::NAME, wire);
    script.replies.insert(ListOneVolume::NAME, words(&listed(OTHER, VolumeType::READ_WRITE, OTHER, true)));
    script
        .replies
        .insert(GetStatus::NAME, words(&[OTHER.0, 0, 0, OTHER.0, 0, 0, 0, 0, 0, 0, 1000, 0, 2000, 0, 0, 0]));
    let cancel = script.cancel.clone();
    script.run(move |vldb, volumes| async move {
        let order = Order {
            volume: SOURCE,
            from: FROM,
            to: TO,
            name: "other",
            id: Some(OTHER),
            kind: Kind::ReadWrite,
            stays_offline: false,
            is_live: true,
            has_entry: false,
            is_incremental,
            may_lose_level: false,
        };
        copy(&vldb, &volumes, order, &cancel, |_| {}).await
    })
}

#[test]
fn a_volume_that_the_database_has_at_the_place_is_not_taken_for_a_shadow() {
    for is_incremental in [false, true] {
        let (result, asked) = shadowed(Some(TO.partition), is_incremental);
        let failure = result.unwrap_err();
        assert_eq!(failure.step, Step::Compare(OTHER));
        assert!(failure.to_string().contains("volume 600 on 10.0.0.1 /vicepb is no shadow"), "{failure}");
        let changing = [DeleteVolume::NAME, Forward::NAME];
        assert!(!asked.iter().any(|name| changing.contains(name)), "{asked:?}");
    }
}

#[test]
fn a_shadow_is_replaced_and_brought_up_to_date() {
    for entry_names in [None, Some(FROM.partition)] {
        for is_incremental in [false, true] {
            let (result, asked) = shadowed(entry_names, is_incremental);
            assert_eq!(result.unwrap(), OTHER);
            assert_eq!(asked.contains(&DeleteVolume::NAME), !is_incremental);
        }
    }
}
