//! Databases in an etcd that the test starts on loopback: what servers see of each other's changes, and what they do while etcd, or the
//! way to it, fails.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_celldb::store::etcd::{Config, EtcdStore, Password, Tls};
use afs_celldb::store::{CellStore, Known, Outcome, Position, SharedStore, Transaction, check_changes};
use afs_celldb::vldb::{NewEntry, NewSite, VlError, Vldb};
use afs_celldb::{Database, NoQuorum, Options};
use afs_testclient::etcd::{Etcd, available, skip};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

/// Which process of a cell's a database thinks that it is in.
static WRITERS: AtomicU64 = AtomicU64::new(1);

/// How long it may take until something is there that was to come.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How long a busy machine may take for what comes at once.
const SOON: Duration = Duration::from_secs(10);

fn is_here(test: &str) -> bool {
    match available() {
        Ok(()) => true,
        Err(reason) => {
            skip(test, &reason);
            false
        }
    }
}

fn store(endpoints: Vec<String>, prefix: &str) -> Arc<EtcdStore> {
    let config = Config { endpoints, prefix: prefix.to_owned(), tls: None, password: None };
    Arc::new(EtcdStore::new(config).unwrap())
}

async fn open_with(store: Arc<dyn CellStore>, memory_limit: Duration) -> Database<Vldb> {
    let options = Options { writer: WRITERS.fetch_add(1, Ordering::Relaxed), memory_limit };
    Database::open_with(store, options).await.unwrap()
}

async fn open(etcd: &Etcd) -> Database<Vldb> {
    open_with(store(etcd.endpoints(), "/afar/a.cell/"), Duration::from_secs(3600)).await
}

async fn take(vldb: &Database<Vldb>) -> Result<u32, VlError> {
    vldb.change(1000, move |vldb, rows| vldb.take_ids(1, rows)).await
}

async fn make(vldb: &Database<Vldb>, id: u32) -> Result<(), VlError> {
    let sites = vec![NewSite { address: 1, partition: 0, flags: 4 }; 13];
    let name = format!("v{id}").into_bytes();
    let new = NewEntry { name, site_count: 1, sites, ids: [id, 0, 0], clone_id: 0, flags: 0x1000 };
    vldb.change(1000, move |vldb, rows| vldb.create(&new, rows)).await
}

/// As [`take`], on a machine that may be busy: a change to which etcd has answered too late was refused, and is tried again.
async fn taken(vldb: &Database<Vldb>) -> u32 {
    let begun = Instant::now();
    loop {
        match take(vldb).await {
            Err(VlError::NoQuorum) if begun.elapsed() < TIMEOUT => sleep(Duration::from_millis(20)).await,
            result => return result.unwrap(),
        }
    }
}

/// The same for [`make`].
async fn made(vldb: &Database<Vldb>, id: u32) {
    let begun = Instant::now();
    loop {
        match make(vldb, id).await {
            Err(VlError::NoQuorum) if begun.elapsed() < TIMEOUT => sleep(Duration::from_millis(20)).await,
            result => return result.unwrap(),
        }
    }
}

/// Whether a volume is there, in the first answer that a caller gets.
async fn has(vldb: &Database<Vldb>, id: u32) -> bool {
    within(SOON, "look-ups are answered", async || vldb.catch_up().await.is_ok()).await;
    vldb.read(|vldb| vldb.find_id(id, None).is_some())
}

/// Waits until something holds.
async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    within(TIMEOUT, what, holds).await;
}

/// Waits for a limited time until something holds.
async fn within(limit: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < limit, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_at_one_server_is_seen_at_once_at_the_others() {
    if !is_here("a_change_at_one_server_is_seen_at_once_at_the_others") {
        return;
    }
    let etcd = Etcd::start("seen", 1);
    let servers = [open(&etcd).await, open(&etcd).await, open(&etcd).await];
    for round in 0..200 {
        let id = taken(&servers[round % 3]).await;
        made(&servers[(round + 1) % 3], id).await;
        for server in &servers {
            assert!(has(server, id).await, "{id} in round {round}");
        }
    }
    let again = open(&etcd).await;
    assert_eq!(again.version(), servers[0].version());
    assert_eq!(again.version().counter, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_change_at_the_same_time_give_out_each_id_once() {
    if !is_here("servers_that_change_at_the_same_time_give_out_each_id_once") {
        return;
    }
    let etcd = Etcd::start("race", 1);
    let servers = [Arc::new(open(&etcd).await), Arc::new(open(&etcd).await), Arc::new(open(&etcd).await)];
    let work = servers.iter().flat_map(|server| [server; 4]).map(|server| {
        let server = Arc::clone(server);
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..25 {
                ids.push(taken(&server).await);
            }
            ids
        })
    });
    let mut ids = BTreeSet::new();
    for work in work.collect::<Vec<_>>() {
        work.await.unwrap().into_iter().for_each(|id| assert!(ids.insert(id), "{id} twice"));
    }
    assert_eq!(ids.len(), 300);
    assert_eq!(ids.last().unwrap() - ids.first().unwrap(), 299, "and leave out none");
    for server in &servers {
        eventually("look-ups are answered", async || server.catch_up().await.is_ok()).await;
        assert_eq!(server.version(), servers[0].version());
        assert!(server.version().counter <= 300, "those that waited were made together");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd_look_ups_are_answered_from_memory_and_changes_refused_at_once() {
    if !is_here("without_etcd_look_ups_are_answered_from_memory_and_changes_refused_at_once") {
        return;
    }
    let mut etcd = Etcd::start("away", 1);
    let forgetful = store(etcd.endpoints(), "/afar/a.cell/");
    let forgetful = open_with(forgetful, Duration::ZERO).await;
    let vldb = open(&etcd).await;
    let id = taken(&vldb).await;
    made(&vldb, id).await;
    assert!(vldb.freshness().unwrap().has_quorum);
    etcd.kill(0);
    eventually("it is noticed", async || !vldb.freshness().unwrap().has_quorum).await;
    let begun = Instant::now();
    for _ in 0..10 {
        assert!(has(&vldb, id).await);
        assert_eq!(take(&vldb).await, Err(VlError::NoQuorum));
    }
    assert_eq!(VlError::NoQuorum.code(), 5376);
    assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for what is away");
    let freshness = vldb.freshness().unwrap();
    assert!(freshness.from_memory >= 10 && freshness.age > Duration::ZERO, "{freshness:?}");
    assert_eq!(forgetful.catch_up().await, Err(NoQuorum), "this one was told to say that it does not know");

    etcd.restart(0);
    eventually("etcd is taken again", async || take(&vldb).await.is_ok()).await;
    eventually("by both", async || forgetful.catch_up().await.is_ok()).await;
    assert!(has(&forgetful, id).await);
    assert!(vldb.freshness().unwrap().has_quorum);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_members_may_die_or_hang() {
    if !is_here("one_of_three_members_may_die_or_hang") {
        return;
    }
    let mut etcd = Etcd::start("three", 3);
    let (ours, theirs) = (open(&etcd).await, open(&etcd).await);
    // The leader first, so that there is an election.
    let mut leader = None;
    eventually("there is a leader", async || {
        leader = etcd.leader();
        leader.is_some()
    })
    .await;
    let leader = leader.unwrap();
    etcd.kill(leader);
    let mut id = 0;
    eventually("there is a new leader", async || match take(&ours).await {
        Ok(taken) => {
            id = taken;
            true
        }
        Err(_) => false,
    })
    .await;
    eventually("the other one finds it too", async || make(&theirs, id).await.is_ok()).await;
    assert!(has(&ours, id).await);
    etcd.restart(leader);
    etcd.wait_for(leader);
    for member in 0..3 {
        etcd.stop(member, true);
        let mut taken = Err(VlError::NoQuorum);
        eventually("two members are enough", async || {
            taken = take(&ours).await;
            taken.is_ok()
        })
        .await;
        let id = taken.unwrap();
        eventually("for the other one too", async || make(&theirs, id).await.is_ok()).await;
        assert!(has(&ours, id).await && has(&theirs, id).await, "member {member}");
        etcd.stop(member, false);
    }
}

/// Each look-up took 2 s then, and each change 4 s.
#[tokio::test(flavor = "multi_thread")]
async fn while_two_of_three_members_hang_nobody_waits_for_them() {
    if !is_here("while_two_of_three_members_hang_nobody_waits_for_them") {
        return;
    }
    let etcd = Etcd::start("hang", 3);
    let forgetful = open_with(store(etcd.endpoints(), "/afar/a.cell/"), Duration::ZERO).await;
    let (ours, theirs) = (open(&etcd).await, open(&etcd).await);
    let mut id = taken(&ours).await;
    made(&ours, id).await;
    let mut missed = 0;
    for round in 0..3 {
        for member in 0..2 {
            etcd.stop((member + round) % 3, true);
        }
        for server in [&ours, &theirs, &forgetful] {
            eventually("it is noticed", async || !server.freshness().unwrap().has_quorum).await;
        }
        let begun = Instant::now();
        for _ in 0..10 {
            assert!(has(&ours, id).await && has(&theirs, id).await);
            assert_eq!(forgetful.catch_up().await, Err(NoQuorum));
            for server in [&ours, &theirs, &forgetful] {
                assert_eq!(take(server).await, Err(VlError::NoQuorum));
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        for member in 0..2 {
            etcd.stop((member + round) % 3, false);
        }
        eventually("changes are made again", async || match take(&ours).await {
            Ok(taken) => {
                id = taken;
                true
            }
            Err(_) => false,
        })
        .await;
        eventually("and entries", async || make(&ours, id).await.is_ok()).await;
        missed += u32::from(!has(&theirs, id).await);
        within(SOON, "the other one sees what was acknowledged", async || has(&theirs, id).await).await;
        eventually("the third too", async || forgetful.catch_up().await.is_ok()).await;
        assert!(has(&forgetful, id).await);
    }
    // It may where etcd comes back, and takes longer than 50 ms for the answer.
    assert!(missed <= 1, "{missed} of 3 changes were not seen at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_lost_over_a_compaction_is_no_loss() {
    if !is_here("a_watch_that_was_lost_over_a_compaction_is_no_loss") {
        return;
    }
    let etcd = Etcd::start("compacted", 1);
    let way = Way::to(etcd.port(0)).await;
    let far = open_with(store(vec![way.address()], "/afar/a.cell/"), Duration::from_secs(3600)).await;
    let near = open(&etcd).await;
    let direct = store(etcd.endpoints(), "/afar/a.cell/");
    for is_compacted in [false, true] {
        let reloads = far.freshness().unwrap().reloads;
        way.open(false);
        eventually("it is noticed", async || !far.freshness().unwrap().has_quorum).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            let id = taken(&near).await;
            made(&near, id).await;
            ids.push(id);
        }
        assert_eq!(take(&far).await, Err(VlError::NoQuorum));
        let newest = direct.scan(b"", None, 1, None).await.unwrap().position;
        if is_compacted {
            assert!(etcd.control(&["compact", &newest.0.to_string()]).0);
            let mut watch = direct.watch(b"vldb/", Position(1)).await.unwrap();
            assert_eq!(watch.next().await.unwrap_err().known, Known::Forgotten);
        }
        way.open(true);
        eventually("it comes back", async || far.freshness().unwrap().has_quorum).await;
        for id in ids {
            assert!(has(&far, id).await, "{id}");
        }
        assert_eq!(far.version(), near.version());
        assert_eq!(far.freshness().unwrap().reloads, reloads + u64::from(is_compacted));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_was_lost_is_made_once() {
    if !is_here("a_change_whose_answer_was_lost_is_made_once") {
        return;
    }
    let etcd = Etcd::start("unanswered", 1);
    let way = Arc::new(Way::to(etcd.port(0)).await);
    let vldb = open_with(store(vec![way.address()], "/afar/a.cell/"), Duration::from_secs(3600)).await;
    let cutter = Arc::clone(&way);
    let cutter = tokio::spawn(async move {
        loop {
            // Short enough that some transaction is always under way.
            sleep(Duration::from_millis(33)).await;
            cutter.open(false);
            sleep(Duration::from_millis(5)).await;
            cutter.open(true);
        }
    });
    let (mut taken, mut refused) = (Vec::new(), 0);
    while taken.len() < 60 {
        match take(&vldb).await {
            Ok(id) => taken.push(id),
            Err(VlError::NoQuorum) => refused += 1,
            Err(error) => panic!("{error:?} after {} and {refused}", taken.len()),
        }
    }
    cutter.abort();
    let span = taken.last().unwrap() - taken[0] + 1;
    assert_eq!(span as usize, taken.len(), "no id was taken twice, and none for nobody; {refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_made_of_the_rows_is_read_anew() {
    if !is_here("what_somebody_else_made_of_the_rows_is_read_anew") {
        return;
    }
    let etcd = Etcd::start("restored", 1);
    let vldb = open(&etcd).await;
    let other = store(etcd.endpoints(), "/afar/another.cell/");
    let other = open_with(other, Duration::from_secs(3600)).await;
    let first = taken(&vldb).await;
    made(&vldb, first).await;
    let id = taken(&other).await;
    made(&other, id).await;
    assert_eq!(id, first, "each cell counts for itself");
    assert!(etcd.control(&["del", "--prefix", "/afar/a.cell/vldb/"]).0);
    eventually("it is empty", async || !has(&vldb, first).await).await;
    assert_eq!(taken(&vldb).await, first, "and begins again");
    assert!(has(&other, id).await, "the other cell has nothing of it");
    assert_eq!(other.version().counter, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_hold_whole_or_not_at_all_also_those_of_thousands_of_rows() {
    if !is_here("transactions_hold_whole_or_not_at_all_also_those_of_thousands_of_rows") {
        return;
    }
    let etcd = Etcd::start("rows", 1);
    let store = store(etcd.endpoints(), "/afar/a.cell/");
    let row = |key: &str, value: Option<&str>| {
        (key.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))
    };
    let many: Vec<_> = (0..5000).map(|n| row(&format!("a/{n:05}"), Some("x"))).collect();
    let mut watch = store.watch(b"a/", Position(0)).await.unwrap();
    let first = Transaction { expected: vec![row("a/00001", None)], changes: many.clone(), witness: None };
    assert_eq!(store.commit(first.clone()).await, Ok(Outcome::Committed));
    assert_eq!(store.commit(first).await, Ok(Outcome::Conflict));
    let changed = watch.next().await.unwrap();
    assert_eq!(changed.transactions, [many], "told as one, in their order");
    let twice = vec![row("a/00001", None), row("b", Some("z")), row("a/00001", Some("y"))];
    let second = Transaction { expected: vec![row("a/00001", Some("x"))], changes: twice, witness: None };
    assert_eq!(store.commit(second.clone()).await, Ok(Outcome::Committed));
    assert_eq!(store.commit(second).await, Ok(Outcome::Conflict));
    assert_eq!(store.read(b"a/00001").await, Ok(Some(b"y".to_vec())), "the later one holds");
    assert_eq!(store.read(b"a/9").await, Ok(None));

    let page = store.scan(b"a/", None, 4096, None).await.unwrap();
    let third = Transaction { changes: vec![row("a/04999", None)], ..Transaction::default() };
    assert_eq!(store.commit(third).await, Ok(Outcome::Committed));
    let last = page.rows.last().map(|(key, _)| key.clone());
    let rest = store.scan(b"a/", last.as_deref(), 4096, Some(page.position)).await.unwrap();
    assert_eq!((page.rows.len(), rest.rows.len()), (4096, 904), "as it was when it was begun");
    assert_eq!(store.scan(b"a/", last.as_deref(), 4096, None).await.unwrap().rows.len(), 903);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_may_want_certificates_and_a_password() {
    let test = "etcd_may_want_certificates_and_a_password";
    if !is_here(test) {
        return;
    }
    if !std::path::Path::new("/usr/bin/openssl").exists() {
        return skip(test, "there is no openssl, which makes the certificates");
    }
    let etcd = Etcd::start_with_certificates("secret", 1);
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "afar:afar-secret"],
        &["role", "add", "cell"],
        &["role", "grant-permission", "cell", "readwrite", "--prefix=true", "/afar/a.cell/"],
        &["user", "grant-role", "afar", "cell"],
        &["user", "add", "reader:reader-secret"],
        &["role", "add", "looks"],
        &["role", "grant-permission", "looks", "read", "--prefix=true", "/afar/a.cell/"],
        &["user", "grant-role", "reader", "looks"],
        &["auth", "enable"],
    ] {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    }
    let file = |name: &str| std::fs::read(etcd.folder().join(name)).unwrap();
    let tls = || Tls {
        authorities: file("ca.pem"),
        identity: Some((file("client.pem"), file("client.key").into())),
    };
    let reach_as = |user: &str, tls, password: &str, prefix: &str| {
        let password = Some(Password { user: user.into(), password: password.to_owned().into() });
        let endpoints = etcd.endpoints();
        Arc::new(
            EtcdStore::new(Config { endpoints, prefix: prefix.into(), tls: Some(tls), password }).unwrap(),
        )
    };
    let reach = |tls, password: &str, prefix: &str| reach_as("afar", tls, password, prefix);
    let good = reach(tls(), "afar-secret", "/afar/a.cell/");
    let vldb = open_with(good.clone(), Duration::from_secs(3600)).await;
    let id = taken(&vldb).await;
    made(&vldb, id).await;
    assert!(has(&vldb, id).await);

    // A user that may only look is found out without a change, and one that may change changes nothing.
    let reader = reach_as("reader", tls(), "reader-secret", "/afar/a.cell/");
    let rows = good.scan(b"", None, 4096, None).await.unwrap().rows;
    check_changes(&*good).await.unwrap();
    assert_eq!(reader.scan(b"", None, 4096, None).await.unwrap().rows, rows);
    let refused = check_changes(&*reader).await.unwrap_err();
    assert!(refused.reason.contains("permission denied"), "{refused}");

    for (bad, why) in [
        (reach(tls(), "afar-secret", "/afar/b.cell/"), "permission denied"),
        (reach(tls(), "wrong", "/afar/a.cell/"), "authentication failed"),
        (reach(Tls { identity: None, ..tls() }, "afar-secret", "/afar/a.cell/"), ""),
    ] {
        // On a busy machine it may take some attempts until etcd says why.
        eventually(why, async || bad.read(b"x").await.unwrap_err().reason.contains(why)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_etcds_users_keeps_no_server_out() {
    let test = "a_change_of_etcds_users_keeps_no_server_out";
    let Some((etcd, store)) = etcd_with_passwords(test, 10, 600) else { return };
    let control = |command: &[&str]| {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    };
    let vldb = open_with(store.clone(), Duration::from_secs(3600)).await;
    taken(&vldb).await;
    for user in ["one", "two"] {
        // From now on etcd takes no token from before.
        control(&["--user", "root:secret", "user", "add", &format!("{user}:{user}")]);
        within(SOON, "look-ups are answered", async || store.read(b"x").await.is_ok()).await;
        within(SOON, "changes are taken", async || take(&vldb).await.is_ok()).await;
        control(&["--user", "root:secret", "user", "delete", user]);
        eventually("changes are taken", async || take(&vldb).await.is_ok()).await;
    }
}

/// Each question logged in for itself, and was given up after a second with its login: where a login takes longer, as when all servers
/// log in at once after an outage, no server ever came back.
#[tokio::test(flavor = "multi_thread")]
async fn logins_that_take_longer_than_a_question_do_not_keep_a_server_out() {
    let test = "logins_that_take_longer_than_a_question_do_not_keep_a_server_out";
    let Some((mut etcd, store)) = etcd_with_passwords(test, 14, 600) else { return };
    let vldb = open_with(store, Duration::from_secs(3600)).await;
    taken(&vldb).await;
    etcd.kill(0);
    eventually("changes are refused", async || take(&vldb).await.is_err()).await;
    etcd.restart(0);
    etcd.wait_for(0);
    eventually("changes are taken", async || take(&vldb).await.is_ok()).await;
}

/// The same where the token ends while the connection stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_does_not_keep_a_server_out_where_logins_take_long() {
    let test = "a_token_that_ends_does_not_keep_a_server_out_where_logins_take_long";
    let Some((_etcd, store)) = etcd_with_passwords(test, 15, 10) else { return };
    let vldb = open_with(store, Duration::from_secs(3600)).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(25) {
        let _ = take(&vldb).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eventually("changes are taken", async || take(&vldb).await.is_ok()).await;
}

/// An etcd of one member with a password, which it checks with this cost of bcrypt's (from 14 on that takes a second or longer), and with
/// tokens that are good for so many seconds.
fn etcd_with_passwords(test: &str, cost: u8, seconds: u32) -> Option<(Etcd, Arc<EtcdStore>)> {
    if !is_here(test) {
        return None;
    }
    if !std::path::Path::new("/usr/bin/openssl").exists() {
        skip(test, "there is no openssl, which makes the keys");
        return None;
    }
    let etcd = Etcd::start_with_signed_tokens(test, 1, cost, seconds);
    let control = |command: &[&str]| {
        let (is_done, said) = etcd.control(command);
        assert!(is_done, "{command:?}: {said}");
    };
    control(&["user", "add", "root:secret"]);
    control(&["user", "grant-role", "root", "root"]);
    control(&["auth", "enable"]);
    let password = Some(Password { user: "root".into(), password: "secret".to_owned().into() });
    let (endpoints, prefix) = (etcd.endpoints(), "/afar/a.cell/".to_owned());
    let store = EtcdStore::new(Config { endpoints, prefix, tls: None, password }).unwrap();
    Some((etcd, Arc::new(store)))
}

/// A way to etcd that can be cut.
struct Way {
    port: u16,
    is_open: watch::Sender<bool>,
}

impl Way {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let is_open = watch::Sender::new(true);
        let state = is_open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut state = state.clone();
                tokio::spawn(async move {
                    if !*state.borrow_and_update() {
                        return;
                    }
                    let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = state.wait_for(|is_open| !is_open) => {}
                    }
                });
            }
        });
        Self { port: own, is_open }
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }
}
