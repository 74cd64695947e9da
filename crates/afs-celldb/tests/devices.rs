//! Invitations that are used, used twice, too late, stolen and guessed, and devices that are revoked; over a store in memory.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use afs_celldb::Database;
use afs_celldb::database::{ChangeError, Image, Rows};
use afs_celldb::devices::{Admitted, Denied, DeviceError, Devices, NewDevice, NewInvitation, Target};
use afs_celldb::store::CellStore;
use afs_celldb::store::memory::{Failure, MemoryStore};
use afs_join::{Chance, KeyPair, PublicKey};

const TODAY: u32 = 1_700_000_000;
const DAY: u32 = 24 * 3600;

/// A refusal of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum No {
    Denied(Denied),
    Refused(DeviceError),
}

impl From<ChangeError> for No {
    fn from(error: ChangeError) -> Self {
        Self::Refused(error.into())
    }
}

/// The result of a future that does not wait, as none does over the memory store.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

fn open(store: &Arc<MemoryStore>) -> Database<Devices> {
    now(Database::open(Arc::clone(store) as Arc<dyn CellStore>)).unwrap()
}

fn a_cell() -> Database<Devices> {
    open(&Arc::new(MemoryStore::new()))
}

fn key(number: u8) -> PublicKey {
    KeyPair::generate(Chance::new([number; 32])).public()
}

fn invitation(number: u8, user: &str) -> NewInvitation {
    let (user, by) = (user.to_owned(), "admin".to_owned());
    NewInvitation { digest: [number; 32], user, flags: 0, by, expires: TODAY + 7 * DAY }
}

fn invite(cell: &Database<Devices>, number: u8, user: &str) -> Result<PublicKey, No> {
    let (new, spare) = (invitation(number, user), KeyPair::generate(Chance::new([100; 32])));
    now(cell
        .change(TODAY, move |devices, rows| devices.invite(&new, &spare, TODAY, rows).map_err(No::Refused)))
}

fn device(invitation: u8, key: PublicKey, from: &str) -> NewDevice {
    NewDevice { digest: [invitation; 32], key, name: "laptop".to_owned(), from: from.to_owned() }
}

fn join_at(cell: &Database<Devices>, new: &NewDevice, time: u32) -> Result<Admitted, No> {
    let new = new.clone();
    now(cell.change(time, move |devices, rows| devices.join(&new, time, rows).map_err(No::Denied)))
}

fn join(cell: &Database<Devices>, invitation: u8, key: PublicKey) -> Result<Admitted, No> {
    join_at(cell, &device(invitation, key, "192.0.2.9"), TODAY)
}

fn renew(cell: &Database<Devices>, key: PublicKey, time: u32) -> Result<Admitted, No> {
    now(cell.change(time, move |devices, rows| devices.renew(&key, time, rows).map_err(No::Denied)))
}

fn revoke(cell: &Database<Devices>, target: Target) -> Result<(u32, u32), No> {
    now(cell.change(TODAY, move |devices, rows| devices.revoke(&target, TODAY, rows).map_err(No::Refused)))
}

fn admitted(number: u32, user: &str) -> Result<Admitted, No> {
    Ok(Admitted { number, user: user.to_owned(), waits: false })
}

const fn denied(why: Denied) -> Result<Admitted, No> {
    Err(No::Denied(why))
}

#[test]
fn a_device_joins_by_an_invitation_and_is_known_from_then_on() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    assert_eq!(renew(&cell, key(1), TODAY), denied(Denied::UnknownDevice));
    let of_cell = invite(&cell, 1, "alice").unwrap();
    assert_eq!(invite(&cell, 2, "bob").unwrap(), of_cell, "the cell keeps its key");
    assert_eq!(join(&cell, 1, key(1)), admitted(1, "alice"));
    assert_eq!(join(&cell, 2, key(2)), admitted(2, "bob"));
    for cell in [cell, open(&store)] {
        assert_eq!(renew(&cell, key(1), TODAY), admitted(1, "alice"));
        assert_eq!(renew(&cell, key(2), TODAY), admitted(2, "bob"));
        let alices = cell.read(|devices| devices.device(1).unwrap().clone());
        assert_eq!((&alices.from[..], &alices.by[..], &alices.name[..]), ("192.0.2.9", "admin", "laptop"));
    }
}

/// A thief who has seen the line joins before alice does. She is told, and the administrator sees where the thief was.
#[test]
fn an_invitation_is_good_once_and_the_second_is_told_who_was_first() {
    let cell = a_cell();
    invite(&cell, 1, "alice").unwrap();
    join_at(&cell, &device(1, key(66), "203.0.113.66"), TODAY).unwrap();
    assert_eq!(join(&cell, 1, key(1)), denied(Denied::Used(1)));
    assert_eq!(cell.read(|devices| devices.device(1).unwrap().from.clone()), "203.0.113.66");
    revoke(&cell, Target::Device(1)).unwrap();
    assert_eq!(join(&cell, 1, key(1)), denied(Denied::Used(1)), "it does not come back");
    assert_eq!(join(&cell, 1, key(66)), denied(Denied::Revoked(1)));
}

/// It waits over a restart too. A program that does not know of waiting devices would give one a token: it cannot read the row.
#[test]
fn a_device_of_an_administrators_invitation_waits_until_it_is_approved() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    let (mut new, spare) = (invitation(1, "alice"), KeyPair::generate(Chance::new([100; 32])));
    new.flags = 1;
    let invited = move |devices: &Devices, rows: &mut Rows| devices.invite(&new, &spare, TODAY, rows);
    now(cell.change(TODAY, move |devices, rows| invited(devices, rows).map_err(No::Refused))).unwrap();
    let waiting = Ok(Admitted { number: 1, user: "alice".to_owned(), waits: true });
    assert_eq!(join(&cell, 1, key(1)), waiting);
    let cell = open(&store);
    assert_eq!(join(&cell, 1, key(1)), waiting);
    assert_eq!(renew(&cell, key(1), TODAY + DAY), waiting, "it was seen, and waits still");
    let approve = |number| {
        now(cell.change(TODAY, move |devices, rows| devices.approve(number, rows).map_err(No::Refused)))
    };
    assert_eq!(approve(2), Err(No::Refused(DeviceError::NoEntry)));
    assert_eq!(approve(1), Ok("alice".to_owned()));
    assert_eq!(approve(1), Ok("alice".to_owned()), "once more does no harm");
    assert_eq!(renew(&cell, key(1), TODAY), admitted(1, "alice"));
    assert_eq!(renew(&open(&store), key(1), TODAY), admitted(1, "alice"));
    revoke(&cell, Target::Device(1)).unwrap();
    assert_eq!(approve(1), Err(No::Refused(DeviceError::NoEntry)), "a revoked one is none");
}

#[test]
fn of_two_joins_at_two_servers_one_wins() {
    let store = Arc::new(MemoryStore::new());
    let ours = open(&store);
    invite(&ours, 1, "alice").unwrap();
    let theirs = open(&store);
    assert_eq!(join(&theirs, 1, key(1)), admitted(1, "alice"));
    // Our image does not know of it yet: the transaction fails, and the plan is made anew on what the store has.
    assert!(ours.read(|devices| devices.device(1).is_none()));
    assert_eq!(join(&ours, 1, key(2)), denied(Denied::Used(1)));
    assert!(ours.read(|devices| devices.device(1).is_some() && devices.device(2).is_none()));
}

#[test]
fn a_device_whose_answer_was_lost_tries_again_and_is_the_same() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    invite(&cell, 1, "alice").unwrap();
    store.fail_next(Failure::Unanswered);
    assert_eq!(join(&cell, 1, key(1)), Err(No::Refused(DeviceError::Failed)));
    for _ in 0..3 {
        assert_eq!(join(&cell, 1, key(1)), admitted(1, "alice"));
    }
    assert_eq!(cell.read(Devices::device_count), 1);
    assert_eq!(join(&cell, 1, key(2)), denied(Denied::Used(1)));
}

#[test]
fn a_join_that_the_store_lost_leaves_the_invitation_open() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    invite(&cell, 1, "alice").unwrap();
    store.fail_next(Failure::Lost);
    assert_eq!(join(&cell, 1, key(1)), Err(No::Refused(DeviceError::Failed)));
    assert_eq!(join(&cell, 1, key(2)), admitted(1, "alice"));
}

#[test]
fn a_guess_finds_nothing_and_changes_nothing() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    invite(&cell, 1, "alice").unwrap();
    let rows = store.rows();
    for bit in 0..256 {
        let mut guess = device(1, key(66), "203.0.113.66");
        guess.digest[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(join_at(&cell, &guess, TODAY), denied(Denied::UnknownInvitation));
    }
    assert_eq!(store.rows(), rows);
}

#[test]
fn an_invitation_ends_and_is_told_from_one_that_never_was_for_three_months() {
    let cell = a_cell();
    invite(&cell, 1, "alice").unwrap();
    invite(&cell, 2, "bob").unwrap();
    let late = |time| join_at(&cell, &device(1, key(1), "192.0.2.9"), time);
    assert_eq!(late(TODAY + 7 * DAY), denied(Denied::Expired));
    assert_eq!(join_at(&cell, &device(2, key(2), "192.0.2.9"), TODAY + 7 * DAY - 1), admitted(1, "bob"));
    let much_later = TODAY + 7 * DAY + 90 * DAY;
    let new = NewInvitation { expires: much_later + DAY, ..invitation(3, "carol") };
    let spare = KeyPair::generate(Chance::new([100; 32]));
    now(cell.change(much_later, move |devices, rows| devices.invite(&new, &spare, much_later, rows)))
        .unwrap();
    assert_eq!(late(much_later), denied(Denied::UnknownInvitation));
    assert_eq!(cell.read(Devices::invitation_count), 1);
    assert_eq!(renew(&cell, key(2), much_later), admitted(1, "bob"), "devices stay");
}

#[test]
fn an_invitation_has_an_end_that_is_to_come_and_a_secret_of_its_own() {
    let cell = a_cell();
    invite(&cell, 1, "alice").unwrap();
    assert_eq!(invite(&cell, 1, "bob"), Err(No::Refused(DeviceError::Exists)));
    for expires in [0, TODAY - 1, TODAY, TODAY + 367 * DAY, u32::MAX] {
        let new = NewInvitation { expires, ..invitation(2, "bob") };
        let spare = KeyPair::generate(Chance::new([100; 32]));
        let invited = now(cell.change(TODAY, move |devices, rows| devices.invite(&new, &spare, TODAY, rows)));
        assert_eq!(invited, Err(DeviceError::BadArgument), "{expires}");
    }
}

#[test]
fn what_is_revoked_is_refused_and_listed_with_a_version() {
    let cell = a_cell();
    for (number, user) in [(1, "alice"), (2, "alice"), (3, "bob")] {
        invite(&cell, number, user).unwrap();
        join(&cell, number, key(number)).unwrap();
    }
    for (number, user) in [(4, "alice"), (5, "bob")] {
        invite(&cell, number, user).unwrap();
    }
    assert_eq!(cell.read(Devices::revoked), (0, vec![]));
    assert_eq!(revoke(&cell, Target::Device(7)), Err(No::Refused(DeviceError::NoEntry)));
    assert_eq!(revoke(&cell, Target::Device(1)), Ok((1, 0)));
    assert_eq!(renew(&cell, key(1), TODAY), denied(Denied::Revoked(1)));
    assert_eq!(renew(&cell, key(2), TODAY), admitted(2, "alice"));
    assert_eq!(cell.read(Devices::revoked), (1, vec![1]));
    assert_eq!(revoke(&cell, Target::Device(1)), Ok((0, 0)), "once more");
    assert_eq!(cell.read(Devices::revoked), (1, vec![1]));
    assert_eq!(revoke(&cell, Target::User("alice".into())), Ok((1, 1)));
    assert_eq!(cell.read(Devices::revoked), (2, vec![1, 2]));
    assert_eq!(join(&cell, 4, key(4)), denied(Denied::UnknownInvitation), "hers is withdrawn");
    assert_eq!(revoke(&cell, Target::Invitations), Ok((0, 1)));
    assert_eq!(join(&cell, 5, key(5)), denied(Denied::UnknownInvitation));
    assert_eq!(revoke(&cell, Target::All), Ok((1, 0)));
    assert_eq!(cell.read(Devices::revoked), (3, vec![1, 2, 3]));
    invite(&cell, 6, "alice").unwrap();
    assert_eq!(join(&cell, 6, key(6)), admitted(4, "alice"), "numbers are not given out again");
}

#[test]
fn a_device_does_not_change_its_user_by_another_invitation() {
    let cell = a_cell();
    invite(&cell, 1, "alice").unwrap();
    invite(&cell, 2, "bob").unwrap();
    join(&cell, 1, key(1)).unwrap();
    assert_eq!(join(&cell, 2, key(1)), denied(Denied::Used(1)));
    revoke(&cell, Target::Device(1)).unwrap();
    assert_eq!(join(&cell, 2, key(1)), denied(Denied::Revoked(1)), "a revoked key does not come back");
    assert_eq!(join(&cell, 2, key(2)), admitted(2, "bob"));
}

#[test]
fn that_a_device_was_seen_is_written_once_an_hour() {
    let cell = a_cell();
    invite(&cell, 1, "alice").unwrap();
    join(&cell, 1, key(1)).unwrap();
    let seen = |time: u32| {
        renew(&cell, key(1), time).unwrap();
        (cell.read(|devices| devices.device(1).unwrap().seen), cell.version().counter)
    };
    let (at_first, changes) = seen(TODAY);
    assert_eq!(at_first, TODAY - TODAY % 3600);
    assert_eq!(seen(at_first + 3599), (at_first, changes));
    assert_eq!(seen(at_first + 3600), (at_first + 3600, changes + 1));
    assert_eq!(seen(TODAY), (at_first + 3600, changes + 1), "a clock that goes back changes nothing");
}

#[test]
fn the_cells_key_can_be_replaced_and_devices_find_the_old_one_until_it_is_removed() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    let old = invite(&cell, 1, "alice").unwrap();
    let pair = KeyPair::generate(Chance::new([101; 32]));
    let new =
        now(cell
            .change(TODAY, move |devices, rows| Ok::<_, DeviceError>(devices.add_key(&pair, TODAY, rows))));
    let new = new.unwrap();
    for cell in [&cell, &open(&store)] {
        cell.read(|devices| {
            assert_eq!(devices.newest_key().unwrap().1.pair.public(), new);
            assert_eq!(devices.key_of(old.id()).unwrap().pair.public(), old);
        });
    }
    assert_eq!(invite(&cell, 2, "bob"), Ok(new));
    let remove = |devices: &Devices, rows: &mut Rows| Ok::<_, DeviceError>(devices.remove_old_keys(rows));
    assert_eq!(now(cell.change(TODAY, remove)), Ok(1));
    assert_eq!(now(cell.change(TODAY, remove)), Ok(0));
    cell.read(|devices| assert!(devices.key_of(old.id()).is_none() && devices.key_of(new.id()).is_some()));
}

/// Rows as a damaged disk may have them.
#[test]
fn a_damaged_row_is_found_and_never_panics() {
    let store = Arc::new(MemoryStore::new());
    let cell = open(&store);
    invite(&cell, 1, "alice").unwrap();
    join(&cell, 1, key(1)).unwrap();
    let rows = store.rows();
    let parse = |key: &[u8], value: &[u8]| Devices::parse_row(key, Some(value)).map(drop);
    let mut kinds = 0;
    for (key, value) in &rows {
        let Some(key) = key.strip_prefix(b"devices/") else { continue };
        if parse(key, value).is_err() {
            continue; // The revision, which is not the image's.
        }
        kinds += 1;
        for length in 0..value.len() {
            assert!(parse(key, &value[..length]).is_err(), "{} cut to {length}", key.escape_ascii());
        }
        assert!(parse(key, &[&value[..], b"x"].concat()).is_err());
        assert!(parse(key, &[b"\x09", &value[1..]].concat()).is_err(), "of another version");
    }
    assert_eq!(kinds, 4, "header, key, invitation, device");
    for key in [&b""[..], b"z", b"d123", b"i", b"hh"] {
        assert!(parse(key, b"").is_err(), "{}", key.escape_ascii());
    }
}
