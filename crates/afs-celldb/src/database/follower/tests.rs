//! Servers over a store in memory that several of them share: what they tell of while it is silent, while somebody fills it, and while it
//! has more than they know.

use std::sync::Mutex;

use tokio::sync::watch;

use super::*;
use crate::database::tests::Words;
use crate::database::{ChangeError, Database, NoQuorum, Options};
use crate::fill::{Existing, begin};
use crate::store::memory::MemoryStore;
use crate::store::{CellStore, Changes, Outcome, Page, RowChange, StoreFuture};
use crate::testing::now;

/// How long it may take until something is there that was to come.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Rows that several servers share, and the transactions that made them.
#[derive(Debug, Default)]
struct Shared {
    rows: MemoryStore,
    history: watch::Sender<History>,
    /// Held while a transaction is made.
    turn: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct History {
    made: Vec<Vec<RowChange>>,
    /// How often it was replaced by an older one.
    restores: usize,
}

impl History {
    /// The rows at a moment.
    fn at(&self, at: Position) -> Result<MemoryStore, StoreError> {
        let future = || StoreError::new("reading", "this is in the future").with(Known::Forgotten);
        let (made, rows) = (self.made.get(..at.0 as usize).ok_or_else(future)?, MemoryStore::new());
        for changes in made.iter().cloned() {
            now(rows.commit(Transaction { changes, ..Transaction::default() }))?;
        }
        Ok(rows)
    }
}

impl Shared {
    fn position(&self) -> Position {
        Position(self.history.borrow().made.len() as u64)
    }

    fn page(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Position>,
    ) -> Result<Page, StoreError> {
        let _turn = self.turn.lock().unwrap();
        let position = at.unwrap_or_else(|| self.position());
        let page = match at {
            Some(at) => now(self.history.borrow().at(at)?.scan(prefix, after, limit, None))?,
            None => now(self.rows.scan(prefix, after, limit, None))?,
        };
        Ok(Page { position, ..page })
    }

    /// What was made since is lost, and watches end.
    fn restore(&self, snapshot: Position) {
        let _turn = self.turn.lock().unwrap();
        let then = self.history.borrow().at(snapshot).unwrap().rows();
        let gone = self.rows.rows().into_keys().map(|key| (key, None));
        let changes = gone.chain(then.into_iter().map(|(key, value)| (key, Some(value)))).collect();
        now(self.rows.commit(Transaction { changes, ..Transaction::default() })).unwrap();
        self.history.send_modify(|history| {
            history.made.truncate(snapshot.0 as usize);
            history.restores += 1;
        });
    }
}

/// A server's way to them.
#[derive(Debug)]
struct Way {
    shared: Arc<Shared>,
    /// Whether there are answers, and whether changes are told of.
    answers: watch::Sender<bool>,
    tells: watch::Sender<bool>,
    /// How long a watch takes for the first changes that it tells of.
    slow: watch::Sender<Duration>,
}

impl Way {
    fn to(shared: &Arc<Shared>) -> Arc<Self> {
        let open = || watch::Sender::new(true);
        let slow = watch::Sender::new(Duration::ZERO);
        Arc::new(Self { shared: Arc::clone(shared), answers: open(), tells: open(), slow })
    }

    async fn answer(&self) {
        self.answers.subscribe().wait_for(|answers| *answers).await.unwrap();
    }

    fn make(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let _turn = self.shared.turn.lock().unwrap();
        let rows = transaction.changes.clone();
        let outcome = now(self.shared.rows.commit(transaction))?;
        if outcome == Outcome::Committed {
            self.shared.history.send_modify(|history| history.made.push(rows));
        }
        Ok(outcome)
    }
}

impl CellStore for Way {
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.answer().await;
            self.shared.rows.read(key).await
        })
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
        at: Option<Position>,
    ) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            self.answer().await;
            let slow = *self.slow.borrow();
            sleep(slow).await;
            self.shared.page(prefix, after, limit, at)
        })
    }

    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome> {
        Box::pin(async move {
            self.answer().await;
            self.make(transaction)
        })
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }
}

impl SharedStore for Way {
    fn watch<'a>(&'a self, prefix: &'a [u8], after: Position) -> StoreFuture<'a, Box<dyn Changes>> {
        Box::pin(async move {
            self.answer().await;
            let (history, tells) = (self.shared.history.subscribe(), self.tells.subscribe());
            let (prefix, slow) = (prefix.to_vec(), *self.slow.borrow());
            let restores = history.borrow().restores;
            let changes = SimulatedChanges { prefix, history, restores, tells, slow, at: after.0 as usize };
            Ok(Box::new(changes) as Box<dyn Changes>)
        })
    }

    fn machines(&self) -> usize {
        3
    }
}

struct SimulatedChanges {
    prefix: Vec<u8>,
    history: watch::Receiver<History>,
    /// That were before it began.
    restores: usize,
    tells: watch::Receiver<bool>,
    slow: Duration,
    at: usize,
}

impl Changes for SimulatedChanges {
    fn next(&mut self) -> StoreFuture<'_, Changed> {
        Box::pin(async move {
            let (at, before) = (self.at, self.restores);
            // As etcd, it waits for a moment in the future.
            let is_news = |history: &History| history.restores != before || history.made.len() > at;
            let History { made, restores } = self.history.wait_for(is_news).await.unwrap().clone();
            if restores != before {
                return Err(StoreError::new("watching", "the store has ended it"));
            }
            self.tells.wait_for(|tells| *tells).await.unwrap();
            sleep(std::mem::take(&mut self.slow)).await;
            self.at = made.len();
            let own = |rows: &Vec<RowChange>| {
                rows.iter().filter(|(key, _)| key.starts_with(&self.prefix)).cloned().collect()
            };
            let transactions: Vec<Vec<RowChange>> = made[at..].iter().map(own).collect();
            Ok(Changed { transactions, position: Position(made.len() as u64) })
        })
    }
}

async fn open(way: &Arc<Way>, writer: u64, memory_limit: Duration) -> Database<Words> {
    let options = Options { writer, memory_limit };
    Database::open_with(Arc::clone(way) as Arc<dyn CellStore>, options).await.unwrap()
}

async fn put(words: &Database<Words>, key: &str) -> Result<(), ChangeError> {
    let key = key.to_owned();
    let plan = move |_: &Words, rows: &mut crate::database::Rows| {
        rows.put(key.clone().into(), b"x".to_vec());
        Ok(())
    };
    words.change(1000, plan).await
}

/// True if a word is there, for a caller who comes now.
async fn has(words: &Database<Words>, key: &str) -> Result<bool, NoQuorum> {
    words.catch_up().await?;
    Ok(words.read(|words| words.has(key)))
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn is_silent(words: &Database<Words>) {
    eventually("the silence is noticed", async || !words.freshness().unwrap().has_quorum).await;
}

const HOUR: Duration = Duration::from_secs(3600);

/// Each look-up waited until a question of its own had failed, a second, and each change up to four.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_store_that_is_known_to_be_silent() {
    let way = Way::to(&Arc::default());
    let (words, forgetful) = (open(&way, 1, HOUR).await, open(&way, 2, Duration::ZERO).await);
    put(&words, "a").await.unwrap();
    assert_eq!(has(&forgetful, "a").await, Ok(true));
    way.answers.send_replace(false);
    is_silent(&words).await;
    is_silent(&forgetful).await;
    let begun = Instant::now();
    for _ in 0..10 {
        assert_eq!(has(&words, "a").await, Ok(true));
        assert!(matches!(put(&words, "b").await, Err(ChangeError::NoQuorum(_))));
        assert_eq!(has(&forgetful, "a").await, Err(NoQuorum));
        assert!(matches!(put(&forgetful, "b").await, Err(ChangeError::NoQuorum(_))));
    }
    assert!(begun.elapsed() < 10 * ROUND, "{:?}", begun.elapsed());
    assert_eq!(words.freshness().unwrap().from_memory, 10, "changes are none");
    way.answers.send_replace(true);
    eventually("changes are made again", async || put(&words, "b").await.is_ok()).await;
    eventually("and seen", async || has(&forgetful, "b").await == Ok(true)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_when_the_store_is_there_again_is_seen_by_those_that_knew_of_its_silence() {
    let shared = Arc::default();
    let ways = [Way::to(&shared), Way::to(&shared)];
    let (ours, theirs) = (open(&ways[0], 1, HOUR).await, open(&ways[1], 2, HOUR).await);
    let mut missed = 0;
    for round in 0..4 {
        for way in &ways {
            way.answers.send_replace(false);
        }
        is_silent(&ours).await;
        is_silent(&theirs).await;
        assert_eq!(has(&theirs, "x").await, Ok(false));
        for way in &ways {
            way.answers.send_replace(true);
        }
        let key = format!("w{round}");
        eventually("changes are made again", async || put(&ours, &key).await.is_ok()).await;
        // On a busy machine the store's answer may come too late, which is as if it were silent still.
        missed += u32::from(has(&theirs, &key).await != Ok(true));
        eventually("it is seen", async || has(&theirs, &key).await == Ok(true)).await;
    }
    assert!(missed <= 1, "{missed} of 4 were not seen at once");
}

/// The caller was told after 20 s, and all who came behind it waited as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_way_when_the_store_falls_silent_is_not_known_and_those_behind_it_are_refused() {
    let way = Way::to(&Arc::default());
    let words = Arc::new(open(&way, 1, HOUR).await);
    put(&words, "a").await.unwrap();
    let (turn, begun) = (words.turn().lock_owned().await, Instant::now());
    let change = |key: &'static str| {
        let (words, way) = (Arc::clone(&words), Arc::clone(&way));
        tokio::spawn(async move {
            let plan = move |_: &Words, rows: &mut crate::database::Rows| {
                // It goes on its way, and the store falls silent.
                way.answers.send_replace(false);
                rows.put(key.into(), vec![b'x'; 400 << 10]);
                Ok::<_, ChangeError>(())
            };
            let result = words.change(1000, plan).await;
            (result, begun.elapsed())
        })
    };
    // Too large to be made together.
    let (first, second) = (change("b"), change("c"));
    sleep(Duration::from_millis(100)).await;
    drop(turn);
    let results = [first.await.unwrap(), second.await.unwrap()];
    let (unknown, refused): (Vec<_>, Vec<_>) =
        results.into_iter().partition(|(result, _)| matches!(result, Err(ChangeError::Store(_))));
    assert_eq!((unknown.len(), refused.len()), (1, 1), "{unknown:?} {refused:?}");
    assert!(matches!(refused[0].0, Err(ChangeError::NoQuorum(_))), "{refused:?}");
    assert!(refused[0].1 < unknown[0].1, "{refused:?} {unknown:?}");
    assert!(unknown[0].1 < Duration::from_secs(15), "{unknown:?}");
    way.answers.send_replace(true);
    eventually("changes are made again", async || put(&words, "d").await.is_ok()).await;
    assert_eq!(has(&words, "b").await, Ok(false), "nobody has made it, nor will");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_of_changes_that_it_has_not_got_says_so() {
    let shared = Arc::default();
    let ways = [Way::to(&shared), Way::to(&shared)];
    let (ours, theirs) = (open(&ways[0], 1, HOUR).await, open(&ways[1], 2, HOUR).await);
    ways[1].tells.send_replace(false);
    put(&ours, "a").await.unwrap();
    assert_eq!(has(&theirs, "a").await, Err(NoQuorum));
    assert!(matches!(put(&theirs, "b").await, Err(ChangeError::NoQuorum(_))));
    // It still knows when the store falls silent.
    ways[1].answers.send_replace(false);
    let begun = Instant::now();
    while begun.elapsed() < 2 * ROUND {
        assert_eq!(has(&theirs, "a").await, Err(NoQuorum), "after {:?} of silence", begun.elapsed());
    }
    ways[1].answers.send_replace(true);
    ways[1].tells.send_replace(true);
    eventually("it is told", async || has(&theirs, "a").await == Ok(true)).await;
}

/// The watch was begun anew each quarter of a second, and brought nothing for ever where the first changes took longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_far_behind_on_a_slow_link_gets_what_it_has_missed() {
    let shared = Arc::default();
    let ways = [Way::to(&shared), Way::to(&shared)];
    let (ours, theirs) = (open(&ways[0], 1, HOUR).await, open(&ways[1], 2, HOUR).await);
    ways[1].slow.send_replace(Duration::from_millis(1500));
    ways[1].tells.send_replace(false);
    put(&ours, "a").await.unwrap();
    assert_eq!(has(&theirs, "a").await, Err(NoQuorum));
    ways[1].tells.send_replace(true);
    eventually("it is told", async || has(&theirs, "a").await == Ok(true)).await;
    assert_eq!(theirs.freshness().unwrap().reloads, 0, "a watch that is begun anew goes on");
}

/// Its watch began with the third of the changes that were made after the restore. That one counted as the next after the two that were
/// lost, so the server took it, had the lost ones, lacked the first two, and made changes from this.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hears_late_of_a_restored_snapshot_has_none_of_the_changes_that_were_lost() {
    let shared = Arc::<Shared>::default();
    let ways: Vec<_> = (0..3).map(|_| Way::to(&shared)).collect();
    let (ours, theirs) = (open(&ways[0], 1, HOUR).await, open(&ways[1], 2, HOUR).await);
    put(&ours, "before").await.unwrap();
    let snapshot = shared.position();
    for key in ["lost-1", "lost-2"] {
        put(&ours, key).await.unwrap();
    }
    assert_eq!(has(&theirs, "lost-2").await, Ok(true));
    ways[1].answers.send_replace(false);
    shared.restore(snapshot);
    let new = open(&ways[2], 3, HOUR).await;
    for key in ["new-1", "new-2", "new-3"] {
        put(&new, key).await.unwrap();
    }
    ways[1].answers.send_replace(true);
    for (name, server) in [("new", &new), ("ours", &ours), ("theirs", &theirs)] {
        eventually("it has what is new", async || has(server, "new-3").await == Ok(true)).await;
        let words =
            ["before", "lost-1", "lost-2", "new-1", "new-2"].map(|word| server.read(|words| words.has(word)));
        assert_eq!(words, [true, false, false, true, true], "{name}");
    }
    put(&theirs, "later").await.unwrap();
    eventually("others see it", async || has(&ours, "later").await == Ok(true)).await;
}

/// Servers went on making changes while their rows were removed.
#[tokio::test(flavor = "multi_thread")]
async fn while_somebody_fills_a_database_its_servers_change_nothing_and_then_have_what_it_was_filled_with() {
    let shared = Arc::default();
    let ways: Vec<_> = (0..4).map(|_| Way::to(&shared)).collect();
    let (ours, theirs) = (open(&ways[0], 1, HOUR).await, open(&ways[1], 2, HOUR).await);
    let forgetful = open(&ways[2], 3, Duration::ZERO).await;
    put(&ours, "old").await.unwrap();
    let filling = begin::<Words>(&*ways[3], Existing::Replace, 1000, 4).await.unwrap();
    for server in [&ours, &theirs] {
        let begun = Instant::now();
        for _ in 0..10 {
            assert!(matches!(put(server, "late").await, Err(ChangeError::NoQuorum(_))));
            assert_eq!(has(server, "old").await, Ok(true));
        }
        assert!(begun.elapsed() < 5 * ROUND, "{:?}", begun.elapsed());
    }
    assert_eq!(has(&forgetful, "old").await, Err(NoQuorum));
    assert!(matches!(put(&forgetful, "late").await, Err(ChangeError::NoQuorum(_))));
    let rows = [(b"new".to_vec(), b"x".to_vec())];
    // Another may have read it anew long ago, and made a change.
    ways[1].slow.send_replace(2 * ROUND);
    assert_eq!(filling.fill(rows.into_iter()).await, Ok(1));
    for _ in 0..3 {
        assert_ne!(has(&theirs, "old").await, Ok(true), "it is not told what was there before");
    }
    ways[1].slow.send_replace(Duration::ZERO);
    eventually("changes are made again", async || put(&ours, "later").await.is_ok()).await;
    for server in [&ours, &theirs, &forgetful] {
        eventually("it has what is new", async || has(server, "later").await == Ok(true)).await;
        let words = ["old", "late", "new", "later"].map(|word| server.read(|words| words.has(word)));
        assert_eq!(words, [false, false, true, true]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_servers_change_is_not_filled() {
    let shared = Arc::default();
    let ways = [Way::to(&shared), Way::to(&shared)];
    let words = Arc::new(open(&ways[0], 1, HOUR).await);
    put(&words, "a").await.unwrap();
    let busy = tokio::spawn({
        let words = Arc::clone(&words);
        async move {
            for count in 0.. {
                put(&words, &format!("b{count}")).await.unwrap();
            }
        }
    });
    let refused = begin::<Words>(&*ways[1], Existing::Replace, 1000, 4).await.map(drop);
    assert_eq!(refused, Err(crate::fill::FillError::InUse { database: "words" }));
    assert!(!busy.is_finished(), "the server goes on");
    busy.abort();
    assert_eq!(has(&words, "a").await, Ok(true));
}

#[test]
fn a_database_that_cannot_be_read_anew_is_tried_ever_less_often_and_told_of_once() {
    let mut attempts = Attempts::default();
    let pauses: Vec<_> = (0..10).map(|_| attempts.pause().as_millis()).collect();
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    let unfinished = OpenError::Unfinished { database: "VLDB" };
    assert!(attempts.is_news(&unfinished) && !attempts.is_news(&unfinished));
    let other = OpenError::Unfinished { database: "PTDB" };
    assert!(attempts.is_news(&other) && attempts.is_news(&unfinished));
}
