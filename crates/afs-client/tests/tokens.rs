//! Tokens that servers refuse: what becomes of what their owners do meanwhile. Here nobody may do everything too, so that only the
//! client keeps a user's data from being sent as nobody's, which is in the clear.

use crate::support;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::support::data::{WRITE, make, with_folder};
use crate::support::{ALICE, BOB, CELL, Cell, NOBODY, USER_VOLUME, cell_root, content, names};
use afs_client::streams::{InMemory, StoreRange};
use afs_client::users::Holder;
use afs_client::{Client, Fid, SetStatus, User};
use afs_wire::Errno;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_security::keys::{EncType, Key};
use rx_security::{Identity, KeySet, Token, UnixTime, ticket};

/// A user who logs in.
const CAROL: User = User::of(1003);

/// A token of alice's that a server takes who has these keys.
fn token(client: &Client, keys: &KeySet, seed: u64) -> Token {
    token_of("alice", client, keys, seed)
}

/// The same of anybody's.
fn token_of(name: &str, client: &Client, keys: &KeySet, seed: u64) -> Token {
    let now = UnixTime::of(client.runtime().wall_clock());
    let times = (now, now.plus(Duration::from_secs(10 * 3600)));
    let who = Identity::parse(name).unwrap();
    ticket::for_user(keys, &who, CELL, times, &mut StdRng::seed_from_u64(seed)).unwrap()
}

/// Keys that no server has.
fn other_keys() -> KeySet {
    KeySet::of([Key::rxkad_krb5(9, EncType::AES256, &[8; 32])]).unwrap()
}

fn log_in(client: &Client, token: Token) {
    log_in_as("alice", client, token);
}

fn log_in_as(name: &str, client: &Client, token: Token) {
    let holder = Holder { name: name.to_owned(), id: None };
    client.log_in(CAROL, CELL, holder, token, false).unwrap();
}

async fn sleep(client: &Client, seconds: u64) {
    client.runtime().sleep_until(client.now() + Duration::from_secs(seconds)).await;
}

#[test]
fn what_is_stored_when_a_token_is_refused_is_not_sent_as_nobodys() {
    let world = Cell::new();
    let (client, elsewhere) = (world.client(1), world.client(2));
    world.run(async move {
        let fid = make(&client, "file").await.fid();
        support::put(&client, NOBODY, fid, b"before").await;
        log_in(&client, token(&client, &other_keys(), 1));
        // The store is the first that a server hears of the token.
        let range =
            StoreRange { pos: 0, length: 6, file_length: 6, modified: None, sync: false, is_hasty: false };
        let source = InMemory { pos: 0, bytes: Bytes::from_static(b"secret") };
        let error = client.store(CAROL, fid, range, &source).await.unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES, "{error}");
        let said = error.to_string();
        assert!(said.contains("aklog"), "{said}");
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"before");
        // Nor are names changed by nobody; reading goes on.
        let root = cell_root(&client).await;
        let error = client.remove(CAROL, root, b"file").await.unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES, "{error}");
        assert!(names(&client, CAROL, root).await.contains(&"file".to_owned()));
        assert_eq!(content(&client, CAROL, fid).await, b"before");
    });
}

#[test]
fn what_was_written_when_a_token_was_refused_waits_for_the_next_one() {
    let world = Cell::new();
    let (client, elsewhere, keys) = (world.client(1), world.client(2), world.keys().clone());
    world.run(async move {
        let fid = make(&client, "file").await.fid();
        support::put(&client, NOBODY, fid, b"before").await;
        log_in(&client, token(&client, &other_keys(), 1));
        let file = client.open(CAROL, fid, WRITE).await.unwrap();
        file.write(0, Bytes::from_static(b"secret")).await.unwrap();
        let error = file.flush().await.unwrap_err();
        assert_eq!(error.errno(), Errno::EACCES, "{error}");
        drop(file);
        sleep(&client, 600).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"before");
        assert!(client.dirty_bytes() > 0 && client.conflicts().is_empty(), "it is kept");
        assert_eq!(client.waiting_for_a_token(CAROL), (1, client.dirty_bytes()));
        assert_eq!(client.waiting_for_a_token(NOBODY), (0, 0));
        log_in(&client, token(&client, &keys, 2));
        sleep(&client, 5).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"secret");
        assert_eq!((client.dirty_bytes(), client.waiting_for_a_token(CAROL)), (0, (0, 0)));
    });
}

/// What one wrote with a token that has ended since went to the server as written by whoever the same user became next, or as written by
/// nobody.
#[test]
fn what_was_written_before_a_token_ended_is_not_stored_as_the_next_persons() {
    let world = Cell::new();
    let (client, elsewhere, keys) = (world.client(1), world.client(2), world.keys().clone());
    world.run(async move {
        let fid = write_in_vain(&client).await;
        log_in_as("bob", &client, token_of("bob", &client, &keys, 2));
        sleep(&client, 600).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"before", "it is not bob's to store");
        assert!(client.dirty_bytes() > 0 && client.conflicts().is_empty(), "it is kept");
        log_in(&client, token(&client, &keys, 3));
        sleep(&client, 5).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"secret");
        assert_eq!(client.dirty_bytes(), 0);
    });
}

#[test]
fn what_was_written_is_put_aside_after_unlog_and_not_stored_as_nobodys() {
    let world = Cell::new();
    let (client, elsewhere) = (world.client(1), world.client(2));
    world.run(async move {
        let fid = write_in_vain(&client).await;
        assert_eq!(client.log_out(CAROL, None), 1);
        sleep(&client, 600).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"before");
        assert_eq!(client.conflicts().len(), 1);
        assert_eq!(client.dirty_bytes(), 0);
    });
}

#[test]
fn the_next_person_who_writes_the_file_stores_nothing_of_the_last() {
    let world = Cell::new();
    let (client, elsewhere, keys) = (world.client(1), world.client(2), world.keys().clone());
    world.run(async move {
        let fid = write_in_vain(&client).await;
        log_in_as("bob", &client, token_of("bob", &client, &keys, 2));
        let file = client.open(CAROL, fid, WRITE).await.unwrap();
        file.write(5, Bytes::from_static(b"E!")).await.unwrap();
        file.flush().await.unwrap();
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"beforE!");
        assert_eq!(client.conflicts().len(), 1, "what alice wrote is kept");
    });
}

#[test]
fn what_was_left_dirty_at_a_restart_waits_for_the_person_who_wrote_it() {
    let mut world = Cell::new();
    let folder = world.folder("cache");
    let (keys, elsewhere) = (world.keys().clone(), world.client(2));
    let client = world.client_with(with_folder(&world, 1, &folder));
    let (fid, file) = {
        let (client, keys) = (client.clone(), keys.clone());
        world.run(async move {
            let fid = make(&client, "file").await.fid();
            support::put(&client, NOBODY, fid, b"before").await;
            log_in(&client, token(&client, &keys, 1));
            (fid, client.open(CAROL, fid, WRITE).await.unwrap())
        })
    };
    world.kill(0);
    world.run(async move {
        file.write(0, Bytes::from_static(b"secret")).await.unwrap();
        drop(file);
        client.shut_down().await;
    });
    world.start(0);
    let client = world.client_with(with_folder(&world, 1, &folder));
    world.run(async move {
        sleep(&client, 600).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"before", "it is not nobody's to store");
        log_in_as("bob", &client, token_of("bob", &client, &keys, 2));
        sleep(&client, 600).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"before", "nor bob's");
        assert!(client.dirty_bytes() > 0 && client.conflicts().is_empty(), "it is kept");
        log_in(&client, token(&client, &keys, 3));
        sleep(&client, 5).await;
        assert_eq!(content(&elsewhere, NOBODY, fid).await, b"secret");
        assert_eq!(client.dirty_bytes(), 0);
    });
}

/// What one had written and not stored was stored as the next one's who wrote into the same file, or as nobody's, in the clear.
#[test]
fn what_one_person_has_written_is_stored_as_theirs_before_the_next_writes() {
    let world = Cell::new();
    let (client, elsewhere) = (world.client(1), world.client(2));
    world.run(async move {
        let fid = make(&client, "file").await.fid();
        support::put(&client, NOBODY, fid, b"before").await;
        let mut files = Vec::new();
        for user in [ALICE, BOB, NOBODY, User::of(7)] {
            files.push(client.open(user, fid, WRITE).await.unwrap());
        }
        let author = async || elsewhere.status(NOBODY, fid).await.unwrap().author.0;
        files[0].write(0, Bytes::from_static(b"A")).await.unwrap();
        assert!(files[1].cached_write(1, b"B").is_none(), "alice's has to be stored first");
        files[1].write(1, Bytes::from_static(b"B")).await.unwrap();
        assert_eq!((&*content(&elsewhere, NOBODY, fid).await, author().await), (&b"Aefore"[..], 1001));
        files[2].append(Bytes::from_static(b"-")).await.unwrap();
        assert_eq!((&*content(&elsewhere, NOBODY, fid).await, author().await), (&b"ABfore"[..], 1002));
        // To the cell, all who are nobody are one.
        assert!(files[3].cached_append(b"-").is_some());
        files[0].truncate(7).await.unwrap();
        assert_eq!(
            (&*content(&elsewhere, NOBODY, fid).await, author().await),
            (&b"ABfore--"[..], ViceId::ANONYMOUS.0)
        );
        files[1].flush().await.unwrap();
        assert_eq!((&*content(&elsewhere, NOBODY, fid).await, author().await), (&b"ABfore-"[..], 1001));
    });
}

#[test]
fn one_who_writes_all_the_time_does_not_keep_another_from_writing() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let fid = make(&client, "file").await.fid();
        let (hers, his) =
            (client.open(ALICE, fid, WRITE).await.unwrap(), client.open(BOB, fid, WRITE).await.unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        let (writer, until) = (client.clone(), Arc::clone(&ends));
        client.runtime().spawn(Box::pin(async move {
            while !until.load(Ordering::Relaxed) {
                hers.write(0, Bytes::from_static(b"A")).await.unwrap();
                writer.runtime().sleep_until(writer.now() + Duration::from_micros(10)).await;
            }
        }));
        let begin = client.now();
        for _ in 0..10 {
            his.write(1, Bytes::from_static(b"B")).await.unwrap();
            sleep(&client, 1).await;
        }
        ends.store(true, Ordering::Relaxed);
        assert!(client.now().since(begin) < Duration::from_secs(60));
    });
}

/// A user who cut the file lost the turn while its status was asked for: each time as others change the file too.
#[test]
fn one_who_writes_all_the_time_does_not_keep_another_from_cutting() {
    let world = Cell::new();
    let client = world.client(1);
    let others: Vec<_> = (2..8).map(|number| world.client(number)).collect();
    world.run(async move {
        let fid = make(&client, "file").await.fid();
        let (hers, his) =
            (client.open(ALICE, fid, WRITE).await.unwrap(), client.open(BOB, fid, WRITE).await.unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        let (writer, until) = (client.clone(), Arc::clone(&ends));
        client.runtime().spawn(Box::pin(async move {
            while !until.load(Ordering::Relaxed) {
                hers.write(0, Bytes::from_static(b"Alice")).await.unwrap();
                writer.runtime().sleep_until(writer.now() + Duration::from_micros(100)).await;
            }
        }));
        // No promise lasts.
        for other in others {
            let until = Arc::clone(&ends);
            client.runtime().spawn(Box::pin(async move {
                while !until.load(Ordering::Relaxed) {
                    let set = SetStatus { mode: Some(0o640), ..SetStatus::default() };
                    other.set_status(NOBODY, fid, set).await.unwrap();
                }
            }));
        }
        let (cuts, count) = (Arc::new(AtomicU32::new(0)), 3);
        let (cutter, cut) = (client.clone(), Arc::clone(&cuts));
        client.runtime().spawn(Box::pin(async move {
            for _ in 0..count {
                sleep(&cutter, 1).await;
                his.truncate(1).await.unwrap();
                cut.fetch_add(1, Ordering::Relaxed);
            }
        }));
        sleep(&client, 5).await;
        ends.store(true, Ordering::Relaxed);
        assert_eq!(cuts.load(Ordering::Relaxed), count);
    });
}

/// What a server told of rights that takes a token for longer than the client's clock says was shown from the cache for hours after it had
/// refused the token.
#[test]
fn nothing_is_shown_from_the_cache_after_a_server_has_refused_a_token_that_had_ended_here_before() {
    let world = Cell::new();
    world.grant(0, USER_VOLUME, &[(ViceId(1001), Rights::ALL)]);
    let (client, keys) = (world.client(1), world.keys().clone());
    world.run(async move {
        let root = cell_root(&client).await;
        client.make_mount(NOBODY, root, b"user", "#user.").await.unwrap();
        let user = client.lookup(NOBODY, root, b"user").await.unwrap().fid;
        let dirs = [&b"one"[..], b"two"];
        let mut made = Vec::new();
        for name in dirs {
            let dir = client.make_dir(ALICE, user, name, 0o755).await.unwrap().fid;
            made.push((dir, client.create(ALICE, dir, b"secret", 0o644).await.unwrap().fid));
        }
        let [(one, file), (two, _)] = made[..] else { unreachable!() };
        let now = UnixTime::of(client.runtime().wall_clock());
        let (who, seconds) = (Identity::parse("alice").unwrap(), |n| now.plus(Duration::from_secs(n)));
        let times = (now, seconds(100));
        let token = ticket::for_user(&keys, &who, CELL, times, &mut StdRng::seed_from_u64(1)).unwrap();
        // The client's clock is 5 s ahead.
        log_in(&client, Token { end: seconds(95), ..token.clone() });
        assert_eq!(names(&client, CAROL, one).await, ["secret"]);
        client.status(CAROL, file).await.unwrap();
        assert!(client.cached_status(CAROL, file).is_some());
        sleep(&client, 97).await;
        for _ in 0..2 {
            assert!(client.cached_read_dir(CAROL, one).is_none(), "the server may refuse it any time");
            assert_eq!(names(&client, CAROL, one).await, ["secret"], "it still takes the token");
            assert!(client.cached_status(CAROL, file).is_none());
            assert_eq!(client.status(CAROL, file).await.unwrap().rights, Rights::ALL);
        }
        sleep(&client, 5).await;
        // This is refused, and tells the client so.
        assert_eq!(client.read_dir(CAROL, two).await.unwrap_err().errno(), Errno::EACCES);
        sleep(&client, 1).await;
        assert!(client.cached_status(CAROL, file).is_none_or(|status| status.is_err()));
        assert_eq!(client.status(CAROL, file).await.unwrap_err().errno(), Errno::EACCES);
        assert_eq!(client.read_dir(CAROL, one).await.unwrap_err().errno(), Errno::EACCES);
        assert!(client.cached_status(CAROL, file).is_some(), "what nobody may do is cached again");
    });
}

/// A file in which the user, as alice, has written what no server takes, as the token is no good.
async fn write_in_vain(client: &Client) -> Fid {
    let fid = make(client, "file").await.fid();
    support::put(client, NOBODY, fid, b"before").await;
    log_in(client, token(client, &other_keys(), 1));
    let file = client.open(CAROL, fid, WRITE).await.unwrap();
    file.write(0, Bytes::from_static(b"secret")).await.unwrap();
    file.flush().await.unwrap_err();
    fid
}
