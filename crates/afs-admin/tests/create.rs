//! Making a volume: which calls it takes, what is told meanwhile, and what is left behind when one of them fails. The servers are
//! scripted, in virtual time.

use crate::support::{Fate, SERVER, Script};
use afs_admin::Error;
use afs_admin::create::{CreateFailure, Event, Ids, NewVolume, Step, create};
use afs_admin::entry::{Entry, Site};
use afs_wire::abort::{VL_IDEXIST, VL_NAMEEXIST, VL_NOENT, VOLSERFAILEDOP};
use afs_wire::afsvol::{CreateVolume, DeleteVolume, EndTrans, SetFlags, SetInfo, VolName};
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{CreateEntryN, EntryFlags, GetEntryByIDN, GetNewVolumeId, SiteFlags};
use rxgen::Rpc;
use rxgen::xdr::{Decoder, Xdr};

/// The calls that make a volume whose ids come from the database.
const ALL: [&str; 8] = [
    GetNewVolumeId::NAME,
    GetNewVolumeId::NAME,
    GetNewVolumeId::NAME,
    CreateVolume::NAME,
    SetInfo::NAME,
    SetFlags::NAME,
    CreateEntryN::NAME,
    EndTrans::NAME,
];

/// What came of making a volume.
struct Made {
    result: Result<Ids, CreateFailure>,
    told: Vec<String>,
    asked: Vec<&'static str>,
    /// The name that the server was told.
    name: Option<VolName>,
}

/// Makes a volume, with an id if one is given.
fn make(script: Script, id: Option<u32>) -> Made {
    let (cancel, requests) = (script.cancel.clone(), script.requests.clone());
    let ((result, told), asked) = script.run(move |vldb, volumes| async move {
        let new = NewVolume {
            name: "user.alice",
            server: SERVER,
            partition: PartitionId(0),
            quota_kib: 5000,
            id: id.map(VolumeId),
            read_only_id: None,
        };
        let mut told = Vec::new();
        let tell = |event: Event<'_>| {
            told.push(match event {
                Event::IdIsFree(id) => format!("{id} is free"),
                Event::NoQuota(error) => format!("no quota: {}", error.code().0),
                Event::IsOnline(id) => format!("{id} is online"),
                Event::HasEntry(id) => format!("{id} has its entry"),
            });
        };
        (create(&vldb, &volumes, new, &cancel, tell).await, told)
    });
    let order = requests.lock().unwrap().remove(CreateVolume::NAME);
    let name = order.map(|order| CreateVolume::decode(&mut Decoder::new(&order)).unwrap().name);
    Made { result, told, asked, name }
}

#[test]
fn a_volume_is_online_before_it_has_an_entry() {
    let made = make(Script::default(), None);
    let ids = made.result.unwrap();
    assert_eq!([ids.read_write, ids.read_only, ids.backup], [101, 102, 103].map(VolumeId));
    assert_eq!(made.asked, ALL);
    assert_eq!(made.told, ["101 is online", "101 has its entry"]);
    assert_eq!(made.name, Some(VolName::try_from("user.alice").unwrap()));
}

#[test]
fn a_volume_without_an_entry_is_removed_again() {
    let made = make(Script::refusing(&[(CreateEntryN::NAME, VL_NAMEEXIST)]), None);
    let failure = made.result.unwrap_err();
    assert_eq!((failure.step, failure.error.code()), (Step::MakeEntry(VolumeId(101)), VL_NAMEEXIST));
    assert_eq!(failure.left, None, "{failure}");
    assert_eq!(made.asked[6..], [CreateEntryN::NAME, DeleteVolume::NAME, EndTrans::NAME]);
}

/// The entry of a volume of this name.
fn entry_of(name: &str) -> Entry {
    let partition = PartitionId(0);
    Entry {
        name: name.to_owned(),
        sites: vec![Site { server: SERVER, partition, flags: SiteFlags::RW_VOL }],
        ids: [101, 102, 103].map(VolumeId),
        clone_id: VolumeId(0),
        flags: EntryFlags::RW_EXISTS,
    }
}

/// A server of the database makes the entry and dies before it answers. The next one says that there is one, and the volume was deleted,
/// while its entry stayed.
#[test]
fn a_volume_stays_if_its_entry_was_made_by_a_server_that_did_not_answer() {
    for said in [Some(VL_IDEXIST), Some(VL_NAMEEXIST), None] {
        let script = Script::refusing(&[]);
        let made =
            make(script.with_doubt(CreateEntryN::NAME, Fate::Made(said), &entry_of("user.alice")), None);
        assert!(!made.asked.contains(&DeleteVolume::NAME), "{said:?}: {:?}", made.asked);
        assert_eq!(made.result.unwrap().read_write, VolumeId(101), "{said:?}");
        assert_eq!(made.told[1], "101 has its entry");
    }
}

#[test]
fn a_volume_is_removed_again_if_another_has_the_name_whatever_became_of_the_first_attempt() {
    let script = Script::refusing(&[]);
    let fate = Fate::Made(Some(VL_NAMEEXIST));
    let made = make(script.with_doubt(CreateEntryN::NAME, fate, &entry_of("user.bob")), None);
    let failure = made.result.unwrap_err();
    assert_eq!((failure.error.code(), failure.left), (VL_NAMEEXIST, None), "{failure}");
    assert!(made.asked.contains(&DeleteVolume::NAME));
}

#[test]
fn a_volume_is_removed_again_once_it_is_certain_that_it_has_no_entry() {
    let script = Script::refusing(&[(GetEntryByIDN::NAME, VL_NOENT)]);
    let made = make(script.with_doubt(CreateEntryN::NAME, Fate::NotMade, &entry_of("user.alice")), None);
    assert_eq!(made.result.unwrap_err().left, None);
    let after = [GetNewVolumeId::NAME, GetEntryByIDN::NAME, DeleteVolume::NAME, EndTrans::NAME];
    assert_eq!(made.asked[7..], after, "a change that is acknowledged comes before the look");
}

/// While etcd is silent, a server answers from memory that there is no entry. etcd makes it later.
#[test]
fn a_volume_stays_if_nobody_knows_whether_it_has_an_entry() {
    let script = Script::refusing(&[(GetEntryByIDN::NAME, VL_NOENT)]);
    let made = make(script.with_doubt(CreateEntryN::NAME, Fate::Open, &entry_of("user.alice")), None);
    assert!(!made.asked.contains(&DeleteVolume::NAME), "{:?}", made.asked);
    let failure = made.result.unwrap_err();
    assert_eq!((failure.left, failure.may_have_entry), (Some(VolumeId(101)), true));
    assert!(failure.to_string().contains("not known whether volume 101 got its entry"), "{failure}");
}

#[test]
fn a_volume_that_cannot_be_removed_is_named() {
    let refused = [(CreateEntryN::NAME, VL_NAMEEXIST), (DeleteVolume::NAME, VOLSERFAILEDOP)];
    let failure = make(Script::refusing(&refused), None).result.unwrap_err();
    assert_eq!(failure.left, Some(VolumeId(101)));
    assert_eq!(failure.error.code(), VL_NAMEEXIST, "the first failure counts");
    let text = failure.to_string();
    assert!(text.contains("keeps volume 101") && text.contains("vos zap"), "{text}");
}

#[test]
fn a_volume_that_stays_offline_gets_no_entry() {
    let made = make(Script::refusing(&[(SetFlags::NAME, VOLSERFAILEDOP)]), None);
    let failure = made.result.unwrap_err();
    assert_eq!((failure.step, failure.left), (Step::BringOnline(VolumeId(101)), Some(VolumeId(101))));
    assert!(!made.asked.contains(&CreateEntryN::NAME));
    assert_eq!(made.asked.last(), Some(&EndTrans::NAME), "nobody else has to wait for it");
}

#[test]
fn a_quota_that_is_refused_is_told_of_and_the_volume_made() {
    let made = make(Script::refusing(&[(SetInfo::NAME, VOLSERFAILEDOP)]), None);
    assert!(made.result.is_ok());
    assert_eq!(made.told[0], format!("no quota: {}", VOLSERFAILEDOP.0));
}

#[test]
fn a_transaction_that_cannot_be_ended_leaves_the_volume() {
    let failure = make(Script::refusing(&[(EndTrans::NAME, VOLSERFAILEDOP)]), None).result.unwrap_err();
    assert_eq!((failure.step, failure.left), (Step::End(VolumeId(101)), Some(VolumeId(101))));
}

#[test]
fn an_id_that_is_given_must_be_free_and_its_clones_follow_it() {
    let made = make(Script::refusing(&[(GetEntryByIDN::NAME, VL_NOENT)]), Some(500));
    let ids = made.result.unwrap();
    assert_eq!([ids.read_write, ids.read_only, ids.backup], [500, 501, 502].map(VolumeId));
    assert_eq!(made.told[0], "500 is free");
    assert_eq!(made.asked[..2], [GetEntryByIDN::NAME, CreateVolume::NAME]);
}

#[test]
fn a_volume_that_nobody_wants_any_more_is_removed_unless_it_has_its_entry() {
    let cancelled = |at| make(Script { cancelled_at: Some(at), ..Script::default() }, None);
    for at in [CreateVolume::NAME, SetInfo::NAME, SetFlags::NAME] {
        let made = cancelled(at);
        let failure = made.result.unwrap_err();
        assert!(matches!(failure.error, Error::Cancelled), "{at}: {failure}");
        assert_eq!(failure.left, None, "{at}");
        assert_eq!(made.asked[made.asked.len() - 2..], [DeleteVolume::NAME, EndTrans::NAME], "{at}");
        assert!(!made.asked.contains(&CreateEntryN::NAME), "{at}");
    }
    let made = cancelled(GetNewVolumeId::NAME);
    assert!(made.result.is_err() && !made.asked.contains(&CreateVolume::NAME));
    assert!(cancelled(CreateEntryN::NAME).result.is_ok());
}
