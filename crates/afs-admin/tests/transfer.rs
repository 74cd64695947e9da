//! Moving and releasing a volume: which calls they take, what each failure undoes, and what the entry says then. The servers are scripted,
//! in virtual time.

use std::net::Ipv4Addr;

use crate::support::{Fate, SERVER, Script, listed, words};
use afs_admin::Error;
use afs_admin::entry::{Entry, Kind, Site};
use afs_admin::release::{self, ReleaseFailure, SiteEvent, release};
use afs_admin::transfer::copy::{self, copy};
use afs_admin::transfer::relocate::{Moved, Order, has_moved, move_volume};
use afs_admin::transfer::{Left, Place, Step, TransferFailure};
use afs_wire::abort::{VL_IDEXIST, VOLSERBADOP, VOLSERFAILEDOP};
use afs_wire::afsvol::{
    Clone, CreateVolume, DeleteVolume, EndTrans, Forward, ForwardMultiple, GetName, GetStatus, ListOneVolume,
    MayLoseLevel, ReClone, SetFlags, SetIdsTypes, SnapshotList, TransCreate,
};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{
    CreateEntryN, EntryFlags, GetEntryByIDN, GetNewVolumeId, ReleaseLock, ReleaseType, ReplaceEntryN,
    SetLock, SiteFlags,
};
use rxgen::xdr::{Decoder, Xdr};
use rxgen::{Abort, Rpc};

const VOLUME: VolumeId = VolumeId(500);
const FROM: Place = Place { server: SERVER, partition: PartitionId(0) };
const TO: Place = Place { server: SERVER, partition: PartitionId(1) };

/// What removes a volume.
const REMOVE: [&str; 4] = [TransCreate::NAME, SetFlags::NAME, DeleteVolume::NAME, EndTrans::NAME];

fn entry(sites: &[(PartitionId, SiteFlags)]) -> Entry {
    let site = |(partition, flags): &(PartitionId, SiteFlags)| Site {
        server: SERVER,
        partition: *partition,
        flags: *flags,
    };
    Entry {
        name: "user.alice".to_owned(),
        sites: sites.iter().map(site).collect(),
        ids: [VOLUME, VolumeId(501), VolumeId(0)],
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    }
}

/// Servers that have the volume online, with this entry.
fn script(entry: &Entry) -> Script {
    let mut script = Script::refusing(&[]);
    script.has_volume(entry, VOLUME);
    script
}

impl Script {
    fn replaced(&self) -> (Entry, ReleaseType) {
        let requests = self.requests.lock().unwrap();
        let order = ReplaceEntryN::decode(&mut Decoder::new(&requests[ReplaceEntryN::NAME])).unwrap();
        (Entry::from_wire(&order.entry), order.release)
    }
}

fn moved(script: &Script, is_live: bool) -> (Result<Moved, TransferFailure>, Vec<&'static str>) {
    let cancel = script.cancel.clone();
    script.clone().run(move |vldb, volumes| async move {
        let order = Order { volume: VOLUME, from: FROM, to: TO, is_live, may_lose_level: false };
        move_volume(&vldb, &volumes, order, &cancel, |_| {}).await
    })
}

fn here() -> Entry {
    entry(&[(FROM.partition, SiteFlags::RW_VOL)])
}

#[test]
fn a_volume_moves_by_the_calls_that_a_stock_server_expects() {
    let script = script(&here());
    let (result, asked) = moved(&script, false);
    assert_eq!(result.unwrap(), Moved::Here { has_replicas: false });
    let locked = [GetEntryByIDN::NAME, SetLock::NAME, GetEntryByIDN::NAME];
    let looked = [ListOneVolume::NAME];
    let cloned = [TransCreate::NAME, GetNewVolumeId::NAME, Clone::NAME, GetName::NAME, EndTrans::NAME];
    let opened = [TransCreate::NAME, SetFlags::NAME, GetStatus::NAME];
    let sent = [CreateVolume::NAME, SetFlags::NAME, SnapshotList::NAME, Forward::NAME, EndTrans::NAME];
    let again = [TransCreate::NAME, Forward::NAME, SetFlags::NAME, SetFlags::NAME, EndTrans::NAME];
    let committed = [ReplaceEntryN::NAME, SnapshotList::NAME, DeleteVolume::NAME, EndTrans::NAME];
    let parts = [&locked[..], &looked, &cloned, &opened, &REMOVE, &sent, &again, &committed, &REMOVE];
    assert_eq!(asked, parts.concat());
    let (entry, release) = script.replaced();
    assert_eq!((entry.sites[0].partition, release), (TO.partition, ReleaseType::ALL));
}

/// Times are whole seconds, and OpenAFS's servers look at one only after they have begun.
#[test]
fn a_move_sends_behind_its_clone_also_what_was_changed_just_before_it() {
    let script = script(&here());
    moved(&script, false).0.unwrap();
    let requests = script.requests.lock().unwrap();
    let last = Forward::decode(&mut Decoder::new(&requests[Forward::NAME])).unwrap();
    assert_eq!(last.from_date, AfsTime(1000 - 2), "the clone was made at 1000");
}

#[test]
fn whichever_call_of_a_move_fails_the_volume_stays_where_its_entry_says_and_is_not_locked() {
    for is_live in [false, true] {
        for refused in
            [GetNewVolumeId::NAME, Clone::NAME, CreateVolume::NAME, Forward::NAME, ReplaceEntryN::NAME]
        {
            let script = script(&here()).and_refusing(refused);
            let (result, asked) = moved(&script, is_live);
            if is_live && [GetNewVolumeId::NAME, Clone::NAME].contains(&refused) {
                assert!(result.is_ok(), "{refused}");
                continue;
            }
            let failure = result.unwrap_err();
            assert_eq!((&failure.left[..], failure.not_unlocked), (&[][..], None), "{refused}");
            assert_eq!(asked.last(), Some(&ReleaseLock::NAME), "{refused}");
            if refused == ReplaceEntryN::NAME {
                let after = asked.iter().position(|name| *name == refused).unwrap();
                // It is removed at the new place before it is online at the old one.
                let first = asked[after..].iter().position(|name| *name == DeleteVolume::NAME);
                let removed = first.unwrap();
                assert!(asked[after + removed..].contains(&SetFlags::NAME));
            }
        }
    }
    let failure = moved(&script(&here()).and_refusing(SetLock::NAME), false).0.unwrap_err();
    assert_eq!(failure.step, Step::Lock(VOLUME));
}

/// A server does not know whether etcd has made the change of the entry, and no other takes changes. The volume was removed at the new
/// place, and then etcd made the change.
#[test]
fn a_move_removes_nothing_while_nobody_knows_which_place_the_entry_names() {
    let there = entry(&[(TO.partition, SiteFlags::RW_VOL)]);
    let in_doubt = |fate| moved(&script(&here()).with_doubt(ReplaceEntryN::NAME, fate, &there), false);
    let removed_after = |asked: &[&'static str]| {
        let changed = asked.iter().position(|name| *name == ReplaceEntryN::NAME).unwrap();
        asked[changed..].contains(&DeleteVolume::NAME)
    };
    let (result, asked) = in_doubt(Fate::Open);
    assert_eq!(result.unwrap_err().left, [Left::Either(FROM, TO, VOLUME)]);
    assert!(!removed_after(&asked), "{asked:?}");
    let (result, _) = in_doubt(Fate::Made(None));
    assert_eq!(result.unwrap(), Moved::Here { has_replicas: false });
    let (result, asked) = in_doubt(Fate::NotMade);
    assert_eq!(result.unwrap_err().left, []);
    assert!(removed_after(&asked), "{asked:?}");
}

#[test]
fn a_copy_stays_if_it_has_its_entry_or_nobody_knows_whether_it_has() {
    let copied = |fate| {
        let made = Entry { name: "copy".to_owned(), ..entry(&[(TO.partition, SiteFlags::RW_VOL)]) };
        let script = script(&here()).with_doubt(CreateEntryN::NAME, fate, &made);
        let cancel = script.cancel.clone();
        script.run(move |vldb, volumes| async move {
            let order = copy::Order {
                volume: VOLUME,
                from: FROM,
                to: TO,
                name: "copy",
                id: None,
                kind: Kind::ReadWrite,
                stays_offline: false,
                is_live: true,
                has_entry: true,
                is_incremental: false,
                may_lose_level: false,
            };
            copy(&vldb, &volumes, order, &cancel, |_| {}).await
        })
    };
    let (result, asked) = copied(Fate::Open);
    let failure = result.unwrap_err();
    assert!(matches!(failure.left[..], [Left::Unrecorded(TO, _)]), "{failure}");
    assert!(!asked.contains(&DeleteVolume::NAME), "{asked:?}");
    for said in [None, Some(VL_IDEXIST)] {
        let (result, asked) = copied(Fate::Made(said));
        assert!(result.is_ok() && !asked.contains(&DeleteVolume::NAME), "{asked:?}");
    }
    let (result, asked) = copied(Fate::NotMade);
    assert_eq!(result.unwrap_err().left, []);
    assert!(asked.contains(&DeleteVolume::NAME), "{asked:?}");
}

#[test]
fn a_move_that_is_interrupted_leaves_the_volume_where_its_entry_says_and_nothing_else() {
    let cancelled = |at, is_live| moved(&Script { cancelled_at: Some(at), ..script(&here()) }, is_live);
    for is_live in [false, true] {
        for at in [SetLock::NAME, Clone::NAME, CreateVolume::NAME, Forward::NAME] {
            if is_live && at == Clone::NAME {
                continue;
            }
            let (result, asked) = cancelled(at, is_live);
            let failure = result.unwrap_err();
            assert!(matches!(failure.error, Error::Cancelled), "{at}: {failure}");
            assert_eq!((&failure.left[..], failure.not_unlocked), (&[][..], None), "{at}");
            assert_eq!(asked.last(), Some(&ReleaseLock::NAME), "{at}");
            let count = |wanted: &str| asked.iter().filter(|name| **name == wanted).count();
            // The clone and the volume at the new place, and what was there before.
            let made = count(Clone::NAME) + count(CreateVolume::NAME);
            assert!(count(DeleteVolume::NAME) >= made, "{at}: {asked:?}");
            assert_eq!(count(ReplaceEntryN::NAME), 0, "{at}");
        }
        let (result, asked) = cancelled(ReplaceEntryN::NAME, is_live);
        assert_eq!(
            result.unwrap(),
            Moved::Here { has_replicas: false },
            "what is recorded is brought to its end"
        );
        assert!(asked.ends_with(&[DeleteVolume::NAME, EndTrans::NAME]), "{asked:?}");
    }
}

#[test]
fn what_is_left_after_a_move_is_named() {
    let script = script(&here()).and_refusing(DeleteVolume::NAME).and_refusing(Forward::NAME);
    // What is at the target already cannot be removed either, so nothing is made there.
    let failure = moved(&script, false).0.unwrap_err();
    assert_eq!(failure.step, Step::RemoveExisting(VOLUME));
    assert!(matches!(failure.left[..], [Left::Clone(FROM, _)]), "{:?}", failure.left);
    assert!(failure.to_string().contains("vos zap"), "{failure}");
}

#[test]
fn a_volume_that_has_moved_already_is_cleaned_up_behind() {
    let script = script(&entry(&[(TO.partition, SiteFlags::RW_VOL)]));
    let (result, asked) = moved(&script, false);
    assert_eq!(result.unwrap(), Moved::Before);
    assert_eq!(asked[asked.len() - 5..], [&REMOVE[..], &[ReleaseLock::NAME]].concat());
    let elsewhere = entry(&[(PartitionId(7), SiteFlags::RW_VOL)]);
    let (result, asked) = moved(&self::script(&elsewhere), false);
    assert!(matches!(result.unwrap(), Moved::Elsewhere(_)) && !asked.contains(&DeleteVolume::NAME));
}

#[test]
fn the_old_copy_is_not_removed_while_the_new_one_is_not_there_or_not_served() {
    let (read_write, read_only) = (VolumeType::READ_WRITE, VolumeType::READ_ONLY);
    for there in
        [Vec::new(), listed(VOLUME, read_only, VOLUME, true), listed(VOLUME, read_write, VOLUME, false)]
    {
        let mut script = script(&entry(&[(TO.partition, SiteFlags::RW_VOL)]));
        script.listed.insert((TO.partition, VOLUME), there);
        let (result, asked) = moved(&script, false);
        let failure = result.unwrap_err();
        assert_eq!(failure.step, Step::RemoveLeftover(VOLUME));
        let said = failure.to_string();
        assert!(said.starts_with("volume 500 was not removed from 10.0.0.1 /vicepa"), "{said}");
        assert!(!asked.contains(&DeleteVolume::NAME), "{asked:?}");
        assert_eq!(asked.last(), Some(&ReleaseLock::NAME));
    }
}

/// The same server has both places, and would serve two volumes of one id.
#[test]
fn the_source_stays_offline_while_its_server_serves_the_volume_from_the_other_partition() {
    let mut script = script(&here()).and_refusing(ReplaceEntryN::NAME);
    script.refused_after = Some((ReplaceEntryN::NAME, DeleteVolume::NAME, VOLSERFAILEDOP));
    let failure = moved(&script, true).0.unwrap_err();
    assert_eq!(failure.step, Step::ReplaceEntry(VOLUME));
    assert_eq!(failure.left, [Left::Offline(FROM, VOLUME), Left::Target(TO, VOLUME)]);
}

/// The source's server has asked the other one, which knows no levels.
#[test]
fn a_volume_with_a_level_goes_to_a_server_that_knows_none_by_order_alone() {
    let mut script = script(&here());
    script.refused.insert(Forward::NAME, VOLSERBADOP);
    let (result, asked) = moved(&script, false);
    let failure = result.unwrap_err();
    let what = failure.to_string();
    assert!(what.contains("the volume has a security level, and the server 10.0.0.1"), "{what}");
    assert!(what.contains("give -force") && failure.left.is_empty(), "{what}");
    assert!(!asked.contains(&MayLoseLevel::NAME));
    let orders = |refused: &[(&'static str, Abort)]| {
        let mut script = self::script(&here());
        script.refused.extend(refused.iter().copied());
        let cancel = script.cancel.clone();
        let (result, asked) = script.run(move |vldb, volumes| async move {
            let order = Order { volume: VOLUME, from: FROM, to: TO, is_live: false, may_lose_level: true };
            move_volume(&vldb, &volumes, order, &cancel, |_| {}).await
        });
        assert_eq!(result.unwrap(), Moved::Here { has_replicas: false });
        asked
            .into_iter()
            .filter(|name| [MayLoseLevel::NAME, Forward::NAME].contains(name))
            .collect::<Vec<_>>()
    };
    let sent = [MayLoseLevel::NAME, Forward::NAME, MayLoseLevel::NAME, Forward::NAME];
    assert_eq!(orders(&[]), sent);
    assert_eq!(orders(&[(MayLoseLevel::NAME, Abort::OPCODE)]), sent, "a source that knows none has none");
}

// ---- releases

const REPLICA: SiteFlags = SiteFlags::RO_VOL;

/// What comes of a release, and which calls it makes.
type Released = (Result<Entry, ReleaseFailure>, Vec<&'static str>);

fn released(script: &Script) -> Released {
    released_telling(script).0
}

/// The same, and what is told of sites that fail.
fn released_telling(script: &Script) -> (Released, Vec<String>) {
    let cancel = script.cancel.clone();
    let ((result, told), asked) = script.clone().run(move |vldb, volumes| async move {
        let order = release::Order { volume: VOLUME, is_recloned: false, is_full: false };
        let mut told = Vec::new();
        let tell = |event: release::Event<'_>| {
            if let release::Event::Site(SiteEvent::HasFailed(_, _, error)) = event {
                told.push(error.to_string());
            }
        };
        (release(&vldb, &volumes, order, &cancel, tell).await, told)
    });
    ((result, asked), told)
}

fn replicated() -> Entry {
    let here = FROM.partition;
    let mut entry = entry(&[(here, SiteFlags::RW_VOL), (here, REPLICA), (TO.partition, REPLICA)]);
    entry.set_exists(Kind::ReadOnly, true);
    entry
}

#[test]
fn a_release_renews_the_clone_and_sends_it_to_the_other_site() {
    let script = script(&replicated());
    let (result, asked) = released(&script);
    let entry = result.unwrap();
    assert_eq!(
        entry.sites.iter().map(|site| site.flags).collect::<Vec<_>>(),
        [SiteFlags::RW_VOL, REPLICA, REPLICA]
    );
    let begun = [SetLock::NAME, GetEntryByIDN::NAME, ListOneVolume::NAME];
    let cloned = [TransCreate::NAME, ReClone::NAME, GetStatus::NAME, EndTrans::NAME];
    let online = [TransCreate::NAME, SetFlags::NAME, EndTrans::NAME, ReplaceEntryN::NAME];
    let opened = [TransCreate::NAME, GetStatus::NAME, TransCreate::NAME, GetStatus::NAME];
    let sent =
        [ForwardMultiple::NAME, SetIdsTypes::NAME, SetFlags::NAME, EndTrans::NAME, ReplaceEntryN::NAME];
    let ended = [EndTrans::NAME, ReplaceEntryN::NAME, ReleaseLock::NAME];
    assert_eq!(asked, [&begun[..], &cloned, &online, &opened, &sent, &ended].concat());
    assert_eq!(script.replaced().1, ReleaseType::ALL);
}

#[test]
fn a_release_that_is_interrupted_unlocks_the_entry_which_says_what_each_site_has() {
    for at in [SetLock::NAME, ReClone::NAME, GetStatus::NAME] {
        let script = Script { cancelled_at: Some(at), ..script(&replicated()) };
        let (result, asked) = released(&script);
        let failure = result.unwrap_err();
        assert!(matches!(failure.error, Error::Cancelled), "{at}: {failure}");
        assert_eq!(asked.last(), Some(&ReleaseLock::NAME), "{at}: {asked:?}");
        assert!(!asked.contains(&ForwardMultiple::NAME), "{at}: {asked:?}");
    }
}

#[test]
fn a_site_that_fails_keeps_the_old_release_and_the_entry_says_so() {
    let script = script(&replicated()).and_refusing(ForwardMultiple::NAME);
    let (result, asked) = released(&script);
    let failure = result.unwrap_err();
    let at: Vec<(Ipv4Addr, PartitionId)> =
        failure.missing.iter().map(|site| (site.server, site.partition)).collect();
    assert_eq!(at, [(SERVER, TO.partition)]);
    let (entry, release) = script.replaced();
    let new = SiteFlags::NEW_REP_SITE;
    assert_eq!(
        entry.sites.iter().map(|site| site.flags).collect::<Vec<_>>(),
        [SiteFlags::RW_VOL | new, REPLICA | new, REPLICA | SiteFlags::DONT_USE]
    );
    assert_eq!((entry.clone_id, release), (VolumeId(501), ReleaseType::TIMESTAMP));
    assert_eq!(asked.last(), Some(&ReleaseLock::NAME));

    // Nobody has got anything: all sites have the last release still.
    let mut only = replicated();
    only.sites.remove(1);
    let script = self::script(&only).and_refusing(ForwardMultiple::NAME);
    let (result, asked) = released(&script);
    assert_eq!(result.unwrap_err().missing.len(), 1);
    assert!(!asked.contains(&ReplaceEntryN::NAME), "{asked:?}");
    assert_eq!(asked.last(), Some(&ReleaseLock::NAME));
}

#[test]
fn a_site_that_knows_no_levels_is_named_with_what_to_do() {
    let mut script = script(&replicated());
    script.replies.insert(ForwardMultiple::NAME, words(&[1, VOLSERBADOP.0.cast_unsigned()]));
    let ((result, _), told) = released_telling(&script);
    assert_eq!(result.unwrap_err().missing.len(), 1);
    let [what] = &told[..] else { panic!("{told:?}") };
    assert!(what.contains("10.0.0.1, which knows no levels"), "{what}");
    assert!(what.ends_with("remove this site, or the level"), "{what}");
}

/// A server of ours cannot fill a clone that has a later snapshot beside it.
#[test]
fn a_replica_that_cannot_be_filled_is_removed_and_made_anew_once() {
    let mut script = script(&replicated());
    script.replies.insert(ForwardMultiple::NAME, words(&[1, 30]));
    let ((result, asked), told) = released_telling(&script);
    assert_eq!((result.unwrap_err().missing.len(), told.len()), (1, 1));
    let sent: Vec<usize> = (0..asked.len()).filter(|at| asked[*at] == ForwardMultiple::NAME).collect();
    let [first, second] = sent[..] else { panic!("{asked:?}") };
    assert!(!asked[..first].contains(&DeleteVolume::NAME), "{asked:?}");
    assert!(asked[first..second].windows(REMOVE.len()).any(|calls| calls == REMOVE), "{asked:?}");
}

/// A vos was killed after the last change and before its last line. The same command was refused then, as the old place lacks the volume.
#[test]
fn a_move_that_was_made_is_known_when_it_is_ordered_again() {
    let there = entry(&[(TO.partition, SiteFlags::RW_VOL)]);
    for (entry, is_left, expected) in [(&there, false, true), (&there, true, false), (&here(), false, false)]
    {
        let mut script = script(entry);
        if !is_left {
            script.listed.insert((FROM.partition, VOLUME), Vec::new());
        }
        let order = Order { volume: VOLUME, from: FROM, to: TO, is_live: false, may_lose_level: false };
        let (moved, _) =
            script.run(move |vldb, volumes| async move { has_moved(&vldb, &volumes, order).await });
        assert_eq!(moved, expected, "is left: {is_left}");
    }
}
