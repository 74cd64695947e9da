//! Listing the entries of a cell: all of them are told, whatever the server gives at once. The servers are scripted, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Hook, SERVER, Script};
use afs_admin::entry::{Entry, Site};
use afs_admin::vldb::Wanted;
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, ListAttributesN, ListAttributesN2, NBulkEntries, SiteFlags, reply};
use rxgen::xdr::{Decoder, Xdr};
use rxgen::{Abort, Rpc};

/// An entry with a volume of this id.
fn entry(id: u32) -> Entry {
    Entry {
        name: format!("user.{id}"),
        sites: vec![Site { server: SERVER, partition: PartitionId(0), flags: SiteFlags::RW_VOL }],
        ids: [VolumeId(id), VolumeId(0), VolumeId(0)],
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    }
}

/// The names that are listed by servers that have volumes 1, 2 and 3, and the calls for that.
fn listed(knows_parts: bool) -> (Vec<String>, Vec<&'static str>) {
    let hook: Hook = Arc::new(move |_, name, args| {
        let some = |ids: &[u32]| {
            NBulkEntries::new(ids.iter().map(|id| entry(*id).to_wire().unwrap()).collect()).unwrap()
        };
        let mut wire = Vec::new();
        let answer = match name {
            ListAttributesN2::NAME if knows_parts => {
                let asked = ListAttributesN2::decode(&mut Decoder::new(args)).unwrap();
                let (ids, next_start_index): (&[u32], i32) = match asked.start_index {
                    0 => (&[1, 2][..], 2),
                    2 => (&[3][..], -1),
                    other => panic!("{other} was not told"),
                };
                let (n_entries, entries) = (ids.len() as i32, some(ids));
                reply::ListAttributesN2 { n_entries, entries, next_start_index }.encode(&mut wire);
                Ok(wire)
            }
            ListAttributesN2::NAME => Err(Abort::OPCODE),
            _ => {
                reply::ListAttributesN { n_entries: 3, entries: some(&[1, 2, 3]) }.encode(&mut wire);
                Ok(wire)
            }
        };
        (Duration::ZERO, Some(answer))
    });
    Script { hook: Some(hook), ..Script::default() }.run(|vldb, _| async move {
        let (mut names, mut next) = (Vec::new(), Some(0));
        while let Some(start) = next {
            let (part, following) = vldb.entries(Wanted::default(), start).await.unwrap();
            names.extend(part.into_iter().map(|entry| entry.name));
            next = following;
        }
        names
    })
}

#[test]
fn all_entries_are_listed_also_by_servers_that_know_no_parts() {
    let all = ["user.1", "user.2", "user.3"].map(str::to_owned).to_vec();
    assert_eq!(listed(true), (all.clone(), vec![ListAttributesN2::NAME; 2]));
    assert_eq!(listed(false), (all, vec![ListAttributesN2::NAME, ListAttributesN::NAME]));
}
