//! Databases in an etcd that the test starts on loopback: what servers see of each other's changes, and what they do while etcd, or the
//! way to it, fails.

mod credentials;
mod devices;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_celldb::store::etcd::{Config, EtcdStore};
use afs_celldb::store::{CellStore, Known, Outcome, Position, SharedStore, Transaction};
use afs_celldb::vldb::{NewEntry, NewSite, VlError, Vldb};
use afs_celldb::{Database, NoQuorum, Options};
use afs_lab::peers::etcd::{Etcd, is_here};
use afs_lab::require;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

/// Which process of a cell's a database thinks that it is in.
static WRITERS: AtomicU64 = AtomicU64::new(1);

/// How long it may take until something is there that was to come.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How long a busy machine may take for what comes at once.
const SOON: Duration = Duration::from_secs(60);

fn store(endpoints: Vec<String>, prefix: &str) -> Arc<EtcdStore> {
    Arc::new(EtcdStore::new(Config::without_credentials(endpoints, prefix)).unwrap())
}

async fn open_with(store: Arc<dyn CellStore>, memory_limit: Duration) -> Database<Vldb> {
    let options = Options { writer: WRITERS.fetch_add(1, Ordering::Relaxed), memory_limit };
    let begun = Instant::now();
    loop {
        match Database::open_with(Arc::clone(&store), options).await {
            // The first connection may take a busy machine longer than a server waits before it tries again.
            Err(_) if begun.elapsed() < TIMEOUT => sleep(Duration::from_millis(20)).await,
            opened => return opened.unwrap(),
        }
    }
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

/// True if a volume is there, in the first answer that a caller gets, which may be from memory.
async fn has_at_first(vldb: &Database<Vldb>, id: u32) -> bool {
    within(SOON, "look-ups are answered", async || vldb.catch_up().await.is_ok()).await;
    vldb.read(|vldb| vldb.find_id(id, None).is_some())
}

/// The same where etcd is there: on a busy machine its answer may take so long that callers are answered from memory.
async fn has(vldb: &Database<Vldb>, id: u32) -> bool {
    let from_memory = || vldb.freshness().unwrap().from_memory;
    within(SOON, "etcd answers", async || {
        let before = from_memory();
        vldb.catch_up().await.is_ok() && from_memory() == before
    })
    .await;
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
    require!(is_here());
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
    require!(is_here());
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
    require!(is_here());
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
        assert!(has_at_first(&vldb, id).await);
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
    require!(is_here());
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
    require!(is_here());
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
        let mut took = Vec::new();
        for _ in 0..10 {
            let begun = Instant::now();
            assert!(has_at_first(&ours, id).await && has_at_first(&theirs, id).await);
            assert_eq!(forgetful.catch_up().await, Err(NoQuorum));
            for server in [&ours, &theirs, &forgetful] {
                assert_eq!(take(server).await, Err(VlError::NoQuorum));
            }
            took.push(begun.elapsed());
        }
        took.sort();
        // A machine that stands still makes some of them long, and not eight of ten.
        assert!(took[2] < Duration::from_secs(1), "{took:?}");
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
        missed += u32::from(!has_at_first(&theirs, id).await);
        within(SOON, "the other one sees what was acknowledged", async || has(&theirs, id).await).await;
        eventually("the third too", async || forgetful.catch_up().await.is_ok()).await;
        assert!(has(&forgetful, id).await);
    }
    // It may where etcd comes back, and takes longer than 50 ms for the answer.
    assert!(missed < 3, "no change was seen at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_lost_over_a_compaction_is_no_loss() {
    require!(is_here());
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
    require!(is_here());
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
    require!(is_here());
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

/// A server that was away while large groups changed often began the same watch for ever.
#[tokio::test(flavor = "multi_thread")]
async fn who_missed_more_than_a_message_holds_reads_all_anew() {
    require!(is_here());
    let etcd = Etcd::start("missed", 1);
    let store = store(etcd.endpoints(), "/afar/a.cell/");
    let before = store.scan(b"a/", None, 1, None).await.unwrap().position;
    for n in 0..70_u8 {
        let changes = vec![(b"a/row".to_vec(), Some(vec![n; 1 << 20]))];
        let change = Transaction { changes, ..Transaction::default() };
        within(TIMEOUT, "etcd takes it", async || store.commit(change.clone()).await.is_ok()).await;
    }
    let mut watch = store.watch(b"a/", before).await.unwrap();
    let error = watch.next().await.unwrap_err();
    assert_eq!(error.known, Known::Forgotten, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_hold_whole_or_not_at_all_also_those_of_thousands_of_rows() {
    require!(is_here());
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
