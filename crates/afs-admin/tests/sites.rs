//! Releasing a volume to sites whose transactions end before they get it. The servers are scripted, in virtual time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Hook, SERVER, Script, listed, words};
use afs_admin::entry::{Entry, Kind, Site};
use afs_admin::release::{Order, ReleaseFailure, release};
use afs_wire::abort::VNOVOL;
use afs_wire::afsvol::{
    Clone, CreateVolume, DeleteVolume, ForwardMultiple, GetLevel, GetStatus, HalfVolume, ListHalves,
    ListOneVolume, ReClone, TransCreate, VolName,
};
use afs_wire::ids::{AfsTime, PartitionId, TransId, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, GetEntryByIDN, SiteFlags};
use rxgen::xdr::{Decoder, Xdr};
use rxgen::{Abort, Rpc};

const VOLUME: VolumeId = VolumeId(500);
const READ_ONLY: VolumeId = VolumeId(501);
const HERE: PartitionId = PartitionId(0);
/// The word of a listed volume that says when it was made; the second behind it says when it was changed.
const CREATION_DATE: usize = 43;
/// What a server says that has no such transaction.
const ENOENT: Abort = Abort(2);

/// The status of a volume that was made and changed at this time.
fn status(volume: VolumeId, at: u32) -> Vec<u8> {
    words(&[volume.0, 0, 0, VOLUME.0, 0, 0, 0, 0, 0, 0, at, 0, at, 0, 0, 0])
}

/// Releases to these partitions beside that of the volume, which has a replica too.
fn released(others: &[PartitionId], hook: Hook) -> (Result<Entry, ReleaseFailure>, Vec<&'static str>) {
    let site = |partition, flags| Site { server: SERVER, partition, flags };
    let mut sites = vec![site(HERE, SiteFlags::RW_VOL), site(HERE, SiteFlags::RO_VOL)];
    sites.extend(others.iter().map(|partition| site(*partition, SiteFlags::RO_VOL)));
    released_as(sites, VolumeId(0), hook)
}

/// The same with these sites, and a clone that an earlier release has left.
fn released_as(
    sites: Vec<Site>,
    clone_id: VolumeId,
    hook: Hook,
) -> (Result<Entry, ReleaseFailure>, Vec<&'static str>) {
    let entry = Entry {
        name: "user.alice".to_owned(),
        sites,
        ids: [VOLUME, READ_ONLY, VolumeId(0)],
        clone_id,
        flags: EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS,
    };
    assert!(entry.has(Kind::ReadOnly));
    let mut script = Script::refusing(&[]);
    let mut wire = Vec::new();
    entry.to_wire().unwrap().encode(&mut wire);
    script.replies.insert(GetEntryByIDN::NAME, wire);
    script.replies.insert(Clone::NAME, words(&[700]));
    script.replies.insert(GetStatus::NAME, status(VOLUME, 1000));
    let there = listed(VOLUME, VolumeType::READ_WRITE, VOLUME, true);
    script.replies.insert(ListOneVolume::NAME, words(&there));
    script.replies.insert(ForwardMultiple::NAME, words(&[1, 0]));
    script.replies.insert(GetLevel::NAME, words(&[0]));
    script.hook = Some(hook);
    let cancel = script.cancel.clone();
    script.run(move |vldb, volumes| async move {
        let order = Order { volume: VOLUME, is_recloned: false, is_full: false };
        release(&vldb, &volumes, order, &cancel, |_| {}).await
    })
}

fn decoded<T: Xdr>(request: &[u8]) -> T {
    T::decode(&mut Decoder::new(request)).unwrap()
}

#[test]
fn a_replica_that_was_made_and_got_nothing_gets_everything_the_next_time() {
    const THERE: PartitionId = PartitionId(1);
    // Whether the replica is there, from which dates it was sent, and whether its first transaction was used after its end.
    let state = Arc::new(Mutex::new((false, Vec::new(), false)));
    let seen = Arc::clone(&state);
    let hook: Hook = Arc::new(move |_, name, request| {
        let mut state = seen.lock().unwrap();
        let answer = match name {
            TransCreate::NAME if decoded::<TransCreate>(request).partition == THERE && !state.0 => {
                Some(Err(VNOVOL))
            }
            TransCreate::NAME if decoded::<TransCreate>(request).partition == THERE => Some(Ok(words(&[20]))),
            // It was made at that time, empty.
            GetStatus::NAME if decoded::<GetStatus>(request).trans == TransId(20) => {
                Some(Ok(status(READ_ONLY, 5000)))
            }
            CreateVolume::NAME => {
                state.0 = true;
                None
            }
            DeleteVolume::NAME if !state.2 => {
                state.2 = true;
                Some(Err(ENOENT))
            }
            DeleteVolume::NAME => {
                state.0 = false;
                None
            }
            ForwardMultiple::NAME => {
                state.1.push(decoded::<ForwardMultiple>(request).from_date.0);
                // The transaction of the first time has ended.
                Some(Ok(words(&[1, if state.1.len() == 1 { ENOENT.0 as u32 } else { 0 }])))
            }
            _ => None,
        };
        (Duration::ZERO, answer)
    });
    released(&[THERE], hook).0.unwrap();
    assert_eq!(state.lock().unwrap().1, [0, 0]);
}

/// Its transaction would end meanwhile, without a word to the release.
#[test]
fn a_site_that_answers_late_gets_the_release_after_the_others_have_had_theirs_for_long() {
    const QUICK: PartitionId = PartitionId(1);
    const SLOW: PartitionId = PartitionId(2);
    let begun = Arc::new(Mutex::new(None));
    let sent = Arc::new(Mutex::new(0));
    let (seen, count) = (Arc::clone(&begun), Arc::clone(&sent));
    let hook: Hook = Arc::new(move |now, name, request| {
        let mut begun = seen.lock().unwrap();
        match name {
            TransCreate::NAME if decoded::<TransCreate>(request).partition == SLOW => {
                let wait = Duration::from_secs(3);
                *begun = Some(now + wait);
                (wait, Some(Ok(words(&[20]))))
            }
            GetStatus::NAME if decoded::<GetStatus>(request).trans == TransId(20) => {
                let is_over = now.since(begun.unwrap()) >= Duration::from_secs(600);
                (Duration::ZERO, is_over.then_some(Err(ENOENT)))
            }
            ForwardMultiple::NAME => {
                *count.lock().unwrap() += 1;
                (Duration::from_secs(if *count.lock().unwrap() == 1 { 700 } else { 0 }), None)
            }
            _ => (Duration::ZERO, None),
        }
    });
    released(&[QUICK, SLOW], hook).0.unwrap();
    assert_eq!(*sent.lock().unwrap(), 2);
}

#[test]
fn a_replica_into_which_a_part_of_the_release_has_come_gets_what_has_changed() {
    const THERE: PartitionId = PartitionId(1);
    for has_part in [false, true] {
        let dates = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&dates);
        let hook: Hook = Arc::new(move |_, name, request| {
            let answer = match name {
                TransCreate::NAME if decoded::<TransCreate>(request).partition == THERE => {
                    Some(Ok(words(&[20])))
                }
                GetStatus::NAME if decoded::<GetStatus>(request).trans == TransId(20) => {
                    Some(Ok(status(READ_ONLY, 5000)))
                }
                ListHalves::NAME if has_part => {
                    assert_eq!(decoded::<ListHalves>(request).partition, THERE);
                    let half = HalfVolume {
                        volume: READ_ONLY,
                        name: VolName::try_from("user.alice.readonly").unwrap(),
                        kind: VolumeType::READ_ONLY,
                        parent: VOLUME,
                        since: AfsTime(1100),
                    };
                    let mut wire = words(&[1]);
                    half.encode(&mut wire);
                    Some(Ok(wire))
                }
                ForwardMultiple::NAME => {
                    seen.lock().unwrap().push(decoded::<ForwardMultiple>(request).from_date.0);
                    None
                }
                _ => None,
            };
            (Duration::ZERO, answer)
        });
        let (new, unused) = (SiteFlags::NEW_REP_SITE, SiteFlags::DONT_USE);
        let site = |partition, flags| Site { server: SERVER, partition, flags };
        let sites = vec![
            site(HERE, SiteFlags::RW_VOL | new),
            site(HERE, SiteFlags::RO_VOL | new),
            site(THERE, SiteFlags::RO_VOL | unused),
        ];
        let (result, asked) = released_as(sites, READ_ONLY, hook);
        result.unwrap();
        assert_eq!(asked.contains(&DeleteVolume::NAME), !has_part, "{asked:?}");
        // Two seconds before its last change, or all.
        assert_eq!(dates.lock().unwrap()[..], [if has_part { 4998 } else { 0 }], "{has_part}");
    }
}

/// The released replica stays as it is if nothing has changed since, and not its level either. Times are whole seconds.
#[test]
fn a_release_to_a_new_site_brings_the_others_what_was_changed_in_the_second_of_the_last_one() {
    for (released, level, is_renewed) in [(1000, 0, true), (1002, 0, true), (1003, 0, false), (1003, 2, true)]
    {
        let hook: Hook = Arc::new(move |_, name, request| {
            let answer = match name {
                ListOneVolume::NAME => {
                    let (volume, kind, creation, update) =
                        match decoded::<ListOneVolume>(request).volid == READ_ONLY {
                            true => (READ_ONLY, VolumeType::READ_ONLY, released, 900),
                            false => (VOLUME, VolumeType::READ_WRITE, 900, 1000),
                        };
                    let mut listed = listed(volume, kind, VOLUME, true);
                    (listed[CREATION_DATE], listed[CREATION_DATE + 2]) = (creation, update);
                    Some(Ok(words(&listed)))
                }
                GetLevel::NAME if decoded::<GetLevel>(request).volid == VOLUME => Some(Ok(words(&[level]))),
                _ => None,
            };
            (Duration::ZERO, answer)
        });
        let site = |partition, flags| Site { server: SERVER, partition, flags };
        let sites = vec![
            site(HERE, SiteFlags::RW_VOL),
            site(HERE, SiteFlags::RO_VOL),
            site(PartitionId(1), SiteFlags::RO_VOL | SiteFlags::DONT_USE),
        ];
        let (_, asked) = released_as(sites, VolumeId(0), hook);
        assert_eq!(
            asked.contains(&ReClone::NAME),
            is_renewed,
            "the replica is of {released}, the level {level}"
        );
    }
}
