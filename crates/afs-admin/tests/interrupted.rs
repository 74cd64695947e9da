//! Operations that are to stop, at each of their calls in turn: they end what they have begun, and remove what they have made. The servers are
//! scripted, in virtual time.

use crate::support::{SERVER, Script};
use afs_admin::Error;
use afs_admin::clone::{CloneFailure, Source, make_clone};
use afs_admin::convert::{self, convert};
use afs_admin::entry::{Entry, Kind, Site};
use afs_admin::release::{self, release};
use afs_admin::transfer::copy::{self, copy};
use afs_admin::transfer::relocate::{self, move_volume};
use afs_admin::transfer::{Place, TransferFailure};
use afs_admin::volumes::NewClone;
use afs_wire::abort::{VL_NOENT, VNOVOL};
use afs_wire::afsvol::{Clone, ConvertROtoRWvolume, CreateVolume, DeleteVolume, ReClone, TransCreate};
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{CreateEntryN, EntryFlags, GetEntryByIDN, ReleaseLock, ReplaceEntryN, SetLock, SiteFlags};
use rxgen::Rpc;
use rxgen::xdr::{Decoder, Xdr};

const VOLUME: VolumeId = VolumeId(500);
const READ_ONLY: VolumeId = VolumeId(501);
const COPY: VolumeId = VolumeId(600);
const FROM: Place = Place { server: SERVER, partition: PartitionId(0) };
const TO: Place = Place { server: SERVER, partition: PartitionId(1) };

/// An entry with these sites.
fn entry(sites: &[(PartitionId, SiteFlags)], flags: EntryFlags) -> Entry {
    let site = |(partition, flags): &(PartitionId, SiteFlags)| Site {
        server: SERVER,
        partition: *partition,
        flags: *flags,
    };
    Entry {
        name: "user.alice".to_owned(),
        sites: sites.iter().map(site).collect(),
        ids: [VOLUME, READ_ONLY, VolumeId(0)],
        clone_id: VolumeId(0),
        flags,
    }
}

/// Servers that have the volume with this entry, and at the other place what `there` says.
fn script(entry: &Entry, there: Option<VolumeId>) -> Script {
    let mut script = Script::default();
    script.has_volume(entry, VOLUME);
    let made = script.requests.clone();
    // A volume that nobody has made is not there.
    script.hook = Some(std::sync::Arc::new(move |_, name, args| {
        let mut answer = None;
        if name == TransCreate::NAME {
            let TransCreate { volume, partition, .. } = TransCreate::decode(&mut Decoder::new(args)).unwrap();
            let is_made = made.lock().unwrap().contains_key(CreateVolume::NAME);
            let is_there = partition == FROM.partition || there == Some(volume) || is_made;
            answer = (!is_there).then_some(Err(VNOVOL));
        }
        (std::time::Duration::ZERO, answer)
    }));
    script
}

/// The calls of an operation that is not disturbed, and what they come to when it is to stop at each of them in turn: whether it did.
fn at_each_call(run: impl Fn(Script) -> (bool, Vec<&'static str>), script: impl Fn() -> Script) {
    let (is_done, all) = run(script());
    assert!(is_done, "{all:?}");
    let mut stopped = 0;
    for (at, call) in all.iter().enumerate() {
        let script = Script { cancelled_at_call: Some(at), ..script() };
        let open = script.open.clone();
        let (is_done, asked) = run(script);
        let when = format!("cancelled at call {at}, {call}: {asked:?}");
        assert_eq!(*open.lock().unwrap(), 0, "transactions are left, {when}");
        let is_locked = asked.contains(&SetLock::NAME);
        let unlocked = [ReleaseLock::NAME, ReplaceEntryN::NAME];
        assert!(!is_locked || asked.iter().any(|name| unlocked.contains(name)), "a lock is left, {when}");
        stopped += usize::from(!is_done);
    }
    assert!(stopped > 0, "{all:?}");
}

/// True if it was done; if it was not, as it was to stop.
fn is_done<T>(result: Result<T, Error>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::Cancelled) => false,
        Err(error) => panic!("{error}"),
    }
}

fn copied(order: copy::Order<'static>, script: Script) -> (bool, Vec<&'static str>) {
    let cancel = script.cancel.clone();
    let (result, asked) =
        script.run(move |vldb, volumes| async move { copy(&vldb, &volumes, order, &cancel, |_| {}).await });
    let count = |name: &str| asked.iter().filter(|asked| **asked == name).count();
    let made = count(Clone::NAME) + count(CreateVolume::NAME);
    let result = result.map_err(|failure: TransferFailure| {
        assert!(failure.left.is_empty(), "{failure}, {asked:?}");
        assert!(count(DeleteVolume::NAME) >= made, "{failure}, {asked:?}");
        assert_eq!(count(CreateEntryN::NAME), 0, "{failure}, {asked:?}");
        failure.error
    });
    (is_done(result), asked)
}

/// A copy, or a shadow whose id is given.
fn order(id: Option<VolumeId>, is_live: bool, is_incremental: bool) -> copy::Order<'static> {
    copy::Order {
        volume: VOLUME,
        from: FROM,
        to: TO,
        name: "copy",
        id,
        kind: Kind::ReadWrite,
        stays_offline: false,
        is_live,
        has_entry: id.is_none(),
        is_incremental,
        may_lose_level: false,
    }
}

#[test]
fn a_copy_that_is_interrupted_leaves_nothing_behind() {
    let here = entry(&[(FROM.partition, SiteFlags::RW_VOL)], EntryFlags::RW_EXISTS);
    for is_live in [false, true] {
        at_each_call(|script| copied(order(None, is_live, false), script), || script(&here, None));
    }
}

#[test]
fn a_shadow_that_is_interrupted_leaves_the_one_that_was_there_or_nothing() {
    let here = entry(&[(FROM.partition, SiteFlags::RW_VOL)], EntryFlags::RW_EXISTS);
    for is_live in [false, true] {
        let new = || {
            let mut script = script(&here, None);
            script.refused.insert(GetEntryByIDN::NAME, VL_NOENT);
            script.listed.insert((TO.partition, COPY), Vec::new());
            script
        };
        at_each_call(|script| copied(order(Some(COPY), is_live, false), script), new);
        let there = || {
            let mut script = script(&here, Some(COPY));
            script.refused.insert(GetEntryByIDN::NAME, VL_NOENT);
            script
        };
        let updated = |script| {
            let (is_done, asked) = copied(order(Some(COPY), is_live, true), script);
            let removed = asked.iter().filter(|name| **name == DeleteVolume::NAME).count();
            let clones = asked.iter().filter(|name| **name == Clone::NAME).count();
            assert_eq!(removed, clones, "the shadow that was there stays: {asked:?}");
            (is_done, asked)
        };
        at_each_call(updated, there);
    }
}

#[test]
fn a_move_that_is_interrupted_ends_what_it_has_begun() {
    let here = entry(&[(FROM.partition, SiteFlags::RW_VOL)], EntryFlags::RW_EXISTS);
    for is_live in [false, true] {
        let run = |script: Script| {
            let cancel = script.cancel.clone();
            let (result, asked) = script.run(move |vldb, volumes| async move {
                let order =
                    relocate::Order { volume: VOLUME, from: FROM, to: TO, is_live, may_lose_level: false };
                move_volume(&vldb, &volumes, order, &cancel, |_| {}).await
            });
            let result = result.map_err(|failure| {
                assert!(failure.left.is_empty(), "{failure}, {asked:?}");
                let is_locked = asked.contains(&SetLock::NAME);
                assert!(!is_locked || asked.last() == Some(&ReleaseLock::NAME), "{failure}");
                failure.error
            });
            (is_done(result), asked)
        };
        at_each_call(run, || script(&here, None));
    }
}

#[test]
fn a_release_that_is_interrupted_ends_what_it_has_begun() {
    let (here, there) = (FROM.partition, TO.partition);
    let flags = EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS;
    let replicated =
        entry(&[(here, SiteFlags::RW_VOL), (here, SiteFlags::RO_VOL), (there, SiteFlags::RO_VOL)], flags);
    let elsewhere = entry(&[(here, SiteFlags::RW_VOL), (there, SiteFlags::RO_VOL)], flags);
    let clones = [(&replicated, None), (&replicated, Some(READ_ONLY)), (&elsewhere, Some(READ_ONLY))];
    for (entry, at_site) in clones {
        let run = |script: Script| {
            let cancel = script.cancel.clone();
            let (result, asked) = script.run(move |vldb, volumes| async move {
                let order = release::Order { volume: VOLUME, is_recloned: false, is_full: false };
                release(&vldb, &volumes, order, &cancel, |_| {}).await
            });
            let result = result.map_err(|failure| {
                assert!(failure.not_unlocked.is_none(), "{failure}");
                assert_eq!(asked.last(), Some(&ReleaseLock::NAME), "{failure}");
                let count = |wanted: &str| asked.iter().filter(|name| **name == wanted).count();
                if count(ReplaceEntryN::NAME) == 0 {
                    let made = count(Clone::NAME) + count(CreateVolume::NAME);
                    assert!(count(DeleteVolume::NAME) >= made, "{failure}: {asked:?}");
                    assert_eq!(count(ReClone::NAME), 0, "a replica is left offline: {asked:?}");
                }
                failure.error
            });
            (is_done(result), asked)
        };
        let servers = || {
            let mut script = script(entry, at_site);
            if entry == &elsewhere {
                script.listed.insert((here, READ_ONLY), Vec::new());
            }
            script
        };
        at_each_call(run, servers);
    }
}

#[test]
fn a_clone_that_is_interrupted_is_not_begun() {
    let here = entry(&[(FROM.partition, SiteFlags::RW_VOL)], EntryFlags::RW_EXISTS);
    let run = |script: Script| {
        let cancel = script.cancel.clone();
        let (result, asked) = script.run(move |_, volumes| async move {
            let source = Source { server: SERVER, partition: FROM.partition, volume: VOLUME };
            let new = NewClone { id: VolumeId(502), kind: Kind::Backup, name: "user.alice.backup" };
            make_clone(&volumes, source, new, &cancel, |_| {}).await
        });
        let result = result.map_err(|failure: CloneFailure| {
            assert!(failure.not_ended.is_none(), "{failure}");
            assert!(!asked.contains(&ReClone::NAME), "what is begun is brought to its end: {asked:?}");
            failure.error
        });
        (is_done(result), asked)
    };
    at_each_call(run, || script(&here, None));
}

#[test]
fn a_conversion_that_is_interrupted_is_not_begun() {
    let lost = entry(&[(FROM.partition, SiteFlags::RO_VOL)], EntryFlags::RO_EXISTS);
    let run = |script: Script| {
        let (cancel, entry) = (script.cancel.clone(), lost.clone());
        let (result, asked) = script.run(move |vldb, volumes| async move {
            let order = convert::Order { place: FROM, entry: &entry, keeps_read_only: false };
            convert(&vldb, &volumes, order, &cancel).await
        });
        let result = result.map_err(|failure| {
            assert!(!asked.contains(&ConvertROtoRWvolume::NAME), "{asked:?}");
            failure.error
        });
        (is_done(result), asked)
    };
    at_each_call(run, || script(&lost, None));
}
