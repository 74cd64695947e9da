//! Restoring a volume: which calls it takes, and what is left behind when each of them fails. The servers are scripted, in virtual time.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::{Fate, SERVER, Script, words};
use afs_admin::Error;
use afs_admin::entry::{Entry, Kind, Site};
use afs_admin::restore::{DateOf, Dump, Event, Left, Order, RestoreFailure, Step, restore};
use afs_admin::volumes::StreamError;
use afs_wire::abort::{VL_IDEXIST, VL_NOENT, VNOVOL};
use afs_wire::afsvol::{
    CreateVolume, DeleteVolume, EndTrans, GetArrived, GetLevel, GetStatus, ListHalves, Restore, SetDate,
    SetFlags, SetIdsTypes, SetInfo, TransCreate,
};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use afs_wire::vl::{
    CreateEntryN, EntryFlags, GetEntryByIDN, GetEntryByNameN, GetNewVolumeId, ReleaseLock, ReplaceEntryN,
    SetLock, SiteFlags,
};
use bytes::Bytes;
use rxgen::xdr::{Decoder, Xdr};
use rxgen::{Abort, Rpc};

const DUMP: &[u8] = include_bytes!("../../afs-dump/tests/samples/empty.dump");
const HERE: PartitionId = PartitionId(0);
const ID: VolumeId = VolumeId(500);
const NOW: AfsTime = AfsTime(1_700_000_000);

/// What sets a volume that has the dump.
const SETTLE: [&str; 5] = [GetStatus::NAME, SetIdsTypes::NAME, SetDate::NAME, SetInfo::NAME, SetFlags::NAME];

/// The order for a volume that is replaced if it is there.
const FULL: Order<'static> = Order {
    server: SERVER,
    partition: HERE,
    name: "user.alice",
    kind: Kind::ReadWrite,
    id: Some(ID),
    parent: Some(ID),
    is_full: true,
    stays_offline: false,
    creation: DateOf::Now,
    last_update: DateOf::Dump,
    now: NOW,
    keeps_previous: false,
    may_lose_level: false,
};

/// What came of a restore.
struct Restored {
    result: Result<VolumeId, RestoreFailure>,
    told: Vec<String>,
    asked: Vec<&'static str>,
    script: Script,
}

impl Restored {
    fn request<R: Rpc>(&self) -> R {
        let requests = self.script.requests.lock().unwrap();
        R::decode(&mut Decoder::new(&requests[R::NAME])).unwrap()
    }
}

fn run(script: &Script, order: Order<'static>, dump: &'static [u8]) -> Restored {
    let cancel = script.cancel.clone();
    let kept = script.clone();
    let ((result, told), asked) = script.clone().run(move |vldb, volumes| async move {
        let mut rest = Bytes::from_static(dump);
        let source = move || -> io::Result<Bytes> { Ok(rest.split_to(rest.len().min(1000))) };
        let mut dump = Dump::begin(source).unwrap();
        let mut told = Vec::new();
        let tell = |event: Event<'_>| {
            told.push(match event {
                Event::Begins { name, id } => format!("{name} {id}"),
                Event::Replaces(_) => "replaces".to_owned(),
                Event::HasPrevious(_) => "has previous".to_owned(),
                Event::IsReady(_) => "ready".to_owned(),
                Event::MakesEntry => "makes entry".to_owned(),
                Event::ChangesEntry(_) => "changes entry".to_owned(),
                Event::KeepsPrevious(..) => "keeps previous".to_owned(),
                Event::RemovesPrevious(_, _, partition) => format!("removes from {partition}"),
                Event::PreviousIsRemoved => "removed".to_owned(),
                Event::HasEntry(entry) => format!("entry {}", entry.name),
            });
        };
        (restore(&vldb, &volumes, &order, &mut dump, &cancel, tell).await, told)
    });
    Restored { result, told, asked, script: kept }
}

/// Neither the partition nor the database has the volume.
fn nowhere() -> Script {
    let absent =
        [(GetEntryByNameN::NAME, VL_NOENT), (GetEntryByIDN::NAME, VL_NOENT), (TransCreate::NAME, VNOVOL)];
    Script::refusing(&absent).with_status(ID, 0, [0; 2], [0; 2])
}

fn entry(server: Ipv4Addr, partition: PartitionId) -> Entry {
    Entry {
        name: "user.alice".to_owned(),
        sites: vec![Site { server, partition, flags: SiteFlags::RW_VOL }],
        ids: [ID, VolumeId(501), VolumeId(502)],
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    }
}

/// The server has the volume, and the database says that it is on this partition.
fn there(partition: PartitionId) -> Script {
    let mut wire = Vec::new();
    entry(SERVER, partition).to_wire().unwrap().encode(&mut wire);
    let mut script = Script::default();
    script.replies.insert(GetEntryByIDN::NAME, wire);
    script.with_status(ID, 0, [11, 12], [1000, 2000])
}

impl Script {
    /// What the server says of its volume.
    fn with_status(
        mut self,
        parent: VolumeId,
        kind: u32,
        [clone, backup]: [u32; 2],
        [created, updated]: [u32; 2],
    ) -> Self {
        let words = [ID.0, 0, kind, parent.0, clone, backup, 0, 0, 0, 0, created, 0, updated, 0, 0, 0];
        self.replies
            .insert(GetStatus::NAME, words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect());
        self
    }
}

/// A dump of what has changed since a time.
fn incremental() -> &'static [u8] {
    let mut dump = DUMP.to_vec();
    let name_end = 15 + dump[15..].iter().position(|&byte| byte == 0).unwrap();
    assert_eq!(&dump[name_end + 1..name_end + 4], b"t\0\x02");
    dump[name_end + 7] = 9;
    Vec::leak(dump)
}

#[test]
fn a_volume_that_is_nowhere_is_made_and_gets_its_entry() {
    let restored = run(&nowhere(), Order { id: None, parent: None, ..FULL }, DUMP);
    let made = [TransCreate::NAME, CreateVolume::NAME, GetArrived::NAME, Restore::NAME];
    let recorded = [GetEntryByIDN::NAME, CreateEntryN::NAME, EndTrans::NAME];
    let all =
        [&[GetEntryByNameN::NAME, ListHalves::NAME, GetNewVolumeId::NAME], &made[..], &SETTLE, &recorded]
            .concat();
    assert_eq!(restored.asked, all);
    let id = VolumeId(103);
    assert_eq!(restored.told, ["user.alice 103", "replaces", "ready", "makes entry", "entry user.alice"]);
    assert_eq!(*restored.result.as_ref().unwrap(), id);
    let made = restored.request::<CreateVolume>();
    assert_eq!((made.volid, made.parent), (id, id), "no root directory of its own");
    let entry = Entry::from_wire(&restored.request::<CreateEntryN>().entry);
    assert_eq!(entry.ids, [id, VolumeId(0), VolumeId(0)]);
    assert_eq!(entry.sites, [Site { server: SERVER, partition: HERE, flags: SiteFlags::RW_VOL }]);
    assert!(entry.has(Kind::ReadWrite) && !entry.has(Kind::ReadOnly));
}

#[test]
fn whichever_call_fails_a_volume_without_an_entry_is_not_left() {
    let order = Order { id: None, parent: None, ..FULL };
    for refused in [GetNewVolumeId::NAME, CreateVolume::NAME] {
        let restored = run(&nowhere().and_refusing(refused), order, DUMP);
        assert_eq!(restored.result.unwrap_err().left, Left::Nothing, "{refused}");
        assert_eq!(restored.asked.last(), Some(&refused));
    }
    let later = [Restore::NAME].into_iter().chain(SETTLE).chain([GetEntryByIDN::NAME, CreateEntryN::NAME]);
    for refused in later {
        let restored = run(&nowhere().and_refusing(refused), order, DUMP);
        let failure = restored.result.unwrap_err();
        assert_eq!(failure.left, Left::Nothing, "{refused}");
        assert_eq!(
            restored.asked[restored.asked.len() - 2..],
            [DeleteVolume::NAME, EndTrans::NAME],
            "{refused}"
        );
        let failure = run(&nowhere().and_refusing(refused).and_refusing(DeleteVolume::NAME), order, DUMP);
        let failure = failure.result.unwrap_err();
        assert_eq!(failure.left, Left::Volume(VolumeId(103)), "{refused}");
        assert!(failure.to_string().contains("remove it with vos zap"), "{failure}");
    }
    let failure = run(&nowhere().and_refusing(EndTrans::NAME), order, DUMP).result.unwrap_err();
    assert_eq!((failure.step, failure.left), (Step::End(VolumeId(103)), Left::All(VolumeId(103))));
}

#[test]
fn a_restored_volume_stays_if_it_has_its_entry_or_nobody_knows_whether_it_has() {
    let order = Order { id: None, parent: None, ..FULL };
    let restored = |fate| {
        let mut script = nowhere();
        script.refused.remove(GetEntryByIDN::NAME);
        script.hook = Some(std::sync::Arc::new(|_, name, _| {
            (Duration::ZERO, (name == GetEntryByIDN::NAME).then_some(Err(VL_NOENT)))
        }));
        run(&script.with_doubt(CreateEntryN::NAME, fate, &entry(SERVER, HERE)), order, DUMP)
    };
    let open = restored(Fate::Open);
    let failure = open.result.unwrap_err();
    assert!(matches!(failure.left, Left::Unrecorded(_)), "{failure}");
    assert!(!open.asked.contains(&DeleteVolume::NAME), "{:?}", open.asked);
    for said in [None, Some(VL_IDEXIST)] {
        let made = restored(Fate::Made(said));
        assert!(made.result.is_ok() && !made.asked.contains(&DeleteVolume::NAME), "{:?}", made.asked);
    }
    let not_made = restored(Fate::NotMade);
    assert_eq!(not_made.result.unwrap_err().left, Left::Nothing);
    assert!(not_made.asked.contains(&DeleteVolume::NAME));
}

#[test]
fn a_volume_that_is_there_is_filled_in_its_place() {
    let restored = run(&there(HERE), FULL, DUMP);
    let begun = [TransCreate::NAME, GetStatus::NAME, Restore::NAME];
    let recorded = [GetEntryByIDN::NAME, SetLock::NAME, ReplaceEntryN::NAME, EndTrans::NAME];
    assert_eq!(restored.asked, [&begun[..], &SETTLE, &recorded].concat());
    assert_eq!(restored.told[1..4], ["replaces", "has previous", "ready"]);
    let identity = restored.request::<SetIdsTypes>();
    assert_eq!((identity.clone_id, identity.backup_id), (VolumeId(11), VolumeId(12)), "its clones stay");
    let replaced = restored.request::<ReplaceEntryN>();
    assert_eq!(Entry::from_wire(&replaced.entry), entry(SERVER, HERE));
}

#[test]
fn whichever_call_fails_a_volume_that_was_there_is_not_removed_nor_its_entry_left_locked() {
    let early = [TransCreate::NAME, GetStatus::NAME, Restore::NAME];
    let late = [SetIdsTypes::NAME, SetDate::NAME, SetInfo::NAME, SetFlags::NAME];
    let entry = [GetEntryByIDN::NAME, SetLock::NAME, ReplaceEntryN::NAME];
    for refused in early.into_iter().chain(late).chain(entry) {
        let restored = run(&there(HERE).and_refusing(refused), FULL, DUMP);
        let failure = restored.result.unwrap_err();
        let left = match refused {
            TransCreate::NAME | GetStatus::NAME => Left::Nothing,
            Restore::NAME => Left::Previous(ID),
            _ => Left::Restored(ID),
        };
        assert_eq!(failure.left, left, "{refused}");
        assert!(!restored.asked.contains(&DeleteVolume::NAME), "{refused}");
        assert_eq!(restored.asked.contains(&EndTrans::NAME), refused != TransCreate::NAME, "{refused}");
        assert_eq!(restored.asked.contains(&ReleaseLock::NAME), refused == ReplaceEntryN::NAME, "{refused}");
    }
}

/// An entry that stays as it was looks the same where it was not replaced: then it stayed locked, and nobody said so.
#[test]
fn no_entry_stays_locked_though_nobody_knows_whether_it_was_replaced() {
    for place in [HERE, PartitionId(1)] {
        let script = there(place).with_doubt(ReplaceEntryN::NAME, Fate::Made(None), &entry(SERVER, HERE));
        let restored = run(&script, FULL, DUMP);
        restored.result.as_ref().unwrap();
        // Where it has changed, the lock went with that, and another may have been set since.
        assert_eq!(restored.asked.contains(&ReleaseLock::NAME), place == HERE, "{:?}", restored.asked);
    }
}

#[test]
fn a_volume_at_another_place_is_removed_when_the_entry_names_the_new_one() {
    let elsewhere = PartitionId(1);
    let restored = run(&there(elsewhere), FULL, DUMP);
    restored.result.as_ref().unwrap();
    let removed = [TransCreate::NAME, SetFlags::NAME, DeleteVolume::NAME, EndTrans::NAME];
    assert_eq!(
        restored.asked[restored.asked.len() - 6..restored.asked.len() - 4],
        [ReplaceEntryN::NAME, EndTrans::NAME]
    );
    assert_eq!(restored.asked[restored.asked.len() - 4..], removed);
    assert_eq!(
        restored.told[restored.told.len() - 3..],
        ["removes from /vicepb", "removed", "entry user.alice"]
    );
    let kept = run(&there(elsewhere), Order { keeps_previous: true, ..FULL }, DUMP);
    assert!(!kept.asked.contains(&DeleteVolume::NAME) && kept.result.is_ok());

    let failure = run(&there(elsewhere).and_refusing(DeleteVolume::NAME), FULL, DUMP).result.unwrap_err();
    assert_eq!(failure.left, Left::Both { id: ID, server: SERVER, partition: elsewhere });
    assert!(failure.not_removed.is_some());
}

#[test]
fn a_dump_that_ends_early_is_not_sent_to_its_end_and_says_where_it_ends() {
    let cut = &DUMP[..DUMP.len() - 700];
    for (script, left, is_removed) in
        [(nowhere(), Left::Nothing, true), (there(HERE), Left::Previous(ID), false)]
    {
        let restored = run(&script, FULL, cut);
        let failure = restored.result.unwrap_err();
        assert_eq!((failure.step, failure.left), (Step::Send(ID), left));
        let text = failure.to_string();
        assert!(text.contains(&format!("byte {} of the dump: the dump ends here", cut.len())), "{text}");
        assert_eq!(restored.asked.contains(&DeleteVolume::NAME), is_removed);
        assert!(!restored.asked.contains(&SetFlags::NAME) && !restored.asked.contains(&Restore::NAME));
        assert_eq!(restored.asked.last(), Some(&EndTrans::NAME));
    }
}

#[test]
fn what_has_changed_goes_into_a_volume_that_is_there_and_replaces_none() {
    let order = Order { is_full: false, ..FULL };
    let restored = run(&there(HERE), order, incremental());
    let begun = [TransCreate::NAME, GetStatus::NAME, Restore::NAME];
    assert_eq!(restored.asked, [&begun[..], &SETTLE, &[EndTrans::NAME]].concat());
    let refused = run(&there(HERE), FULL, incremental());
    let failure = refused.result.unwrap_err();
    assert_eq!((failure.step, failure.left), (Step::Compare(ID), Left::Nothing));
    assert!(failure.to_string().contains("restore it as incremental"), "{failure}");
    assert_eq!(refused.asked, [TransCreate::NAME, GetStatus::NAME, EndTrans::NAME]);
}

#[test]
fn a_volume_of_another_kind_or_family_is_not_overwritten() {
    for (parent, kind) in [(VolumeId(7), 0), (ID, 1)] {
        let restored = run(&there(HERE).with_status(parent, kind, [0; 2], [0; 2]), FULL, DUMP);
        let failure = restored.result.unwrap_err();
        assert_eq!((failure.step, failure.left), (Step::Compare(ID), Left::Nothing));
        assert_eq!(restored.asked.last(), Some(&EndTrans::NAME));
    }
}

#[test]
fn dates_are_of_the_dump_of_the_volume_before_or_of_now() {
    let dates = |script: &Script, creation, last_update| {
        let restored = run(script, Order { creation, last_update, ..FULL }, DUMP);
        let info = restored.request::<SetInfo>().info;
        assert_eq!(restored.request::<SetDate>().new_date, info.creation_date);
        (info.creation_date.0, info.update_date.0)
    };
    // The script says the same before and after the dump.
    assert_eq!(dates(&there(HERE), DateOf::Dump, DateOf::Dump), (1000, 2000));
    assert_eq!(dates(&there(HERE), DateOf::Previous, DateOf::Previous), (1000, 2000));
    assert_eq!(dates(&there(HERE), DateOf::Now, DateOf::Now), (NOW.0, NOW.0));
    let new = nowhere().with_status(ID, 0, [0; 2], [1000, 2000]);
    assert_eq!(dates(&new, DateOf::Previous, DateOf::Previous), (NOW.0, 0));
    assert_eq!(dates(&new, DateOf::Dump, DateOf::Dump), (1000, 2000));
}

#[test]
fn a_read_only_volume_gets_a_place_of_its_own_in_the_entry() {
    let read_only = VolumeId(501);
    let mut script = there(HERE);
    script.refused.insert(TransCreate::NAME, VNOVOL);
    let order = Order { kind: Kind::ReadOnly, id: Some(read_only), stays_offline: true, ..FULL };
    let restored = run(&script, order, DUMP);
    assert_eq!(restored.told[0], "user.alice.readonly 501");
    let made = restored.request::<CreateVolume>();
    assert_eq!((made.volid, made.parent, made.kind), (read_only, ID, Kind::ReadOnly.on_wire()));
    let entry = Entry::from_wire(&restored.request::<ReplaceEntryN>().entry);
    assert_eq!(entry.sites.len(), 2);
    assert!(entry.sites[1].is(Kind::ReadOnly) && entry.has(Kind::ReadOnly) && entry.has(Kind::ReadWrite));
    assert!(!restored.asked.contains(&DeleteVolume::NAME));
}

#[test]
fn a_volume_that_nobody_wants_any_more_is_removed_unless_it_has_its_entry() {
    let cancelled = |at| run(&Script { cancelled_at: Some(at), ..nowhere() }, FULL, DUMP);
    for at in [CreateVolume::NAME, Restore::NAME, GetStatus::NAME, SetFlags::NAME] {
        let restored = cancelled(at);
        let failure = restored.result.unwrap_err();
        assert!(matches!(failure.error, StreamError::Server(Error::Cancelled)), "{at}: {failure}");
        assert_eq!(failure.left, Left::Nothing, "{at}");
        assert_eq!(restored.asked[restored.asked.len() - 2..], [DeleteVolume::NAME, EndTrans::NAME], "{at}");
    }
    assert!(cancelled(CreateEntryN::NAME).result.is_ok());
    let code: Abort = Error::Cancelled.code();
    assert_eq!(code.0, 4);
}

/// The dump, with the level that its volume has: crypt.
fn dump_with_level() -> &'static [u8] {
    let first_vnode = b"\x03\0\0\0\x01\0\0\0\x01";
    let at = DUMP.windows(first_vnode.len()).position(|bytes| bytes == first_vnode).unwrap();
    Vec::leak([&DUMP[..at], b"\x7elafr\x02", &DUMP[at..]].concat())
}

#[test]
fn a_dump_of_a_volume_with_a_level_goes_where_levels_are_known_or_loses_it_by_order() {
    let sent = |restored: &Restored| restored.script.requests.lock().unwrap()[Restore::NAME].clone();
    let dump = dump_with_level();
    let mut knows = nowhere();
    knows.replies.insert(GetLevel::NAME, words(&[0]));
    let restored = run(&knows, FULL, dump);
    assert!(restored.result.is_ok() && sent(&restored).ends_with(dump));
    // The server has no such volume yet, and says so.
    let absent = run(&knows.clone().and_refusing(GetLevel::NAME), FULL, dump);
    assert!(absent.result.is_ok() && sent(&absent).ends_with(dump));
    let mut knows_none = nowhere();
    knows_none.refused.insert(GetLevel::NAME, Abort::OPCODE);
    let refused = run(&knows_none, FULL, dump);
    assert_eq!(refused.asked.last(), Some(&GetLevel::NAME), "nothing is made");
    let failure = refused.result.unwrap_err();
    assert!(matches!(failure.step, Step::Compare(ID)) && failure.left == Left::Nothing);
    let what = failure.to_string();
    assert!(what.contains("10.0.0.1, which knows no levels") && what.contains("give -force"), "{what}");
    let lost = run(&knows_none, Order { may_lose_level: true, ..FULL }, dump);
    assert!(lost.result.is_ok() && sent(&lost).ends_with(DUMP));
    // Nobody is asked about levels for a volume without one.
    let plain = run(&nowhere(), FULL, DUMP);
    assert!(plain.result.is_ok() && !plain.asked.contains(&GetLevel::NAME));
}
