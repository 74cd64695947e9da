//! Cells that no file knows and the DNS does: who asks for them and when, who waits, and how long answers count.
//!
//! What is asked and what answers mean is left to `afs_dns`; what a cell is, to `cells`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_config::CellName;
use afs_dns::{CellServers, NoAnswer, NotFound, Resolver, Service, look_up};
use lru::LruCache;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rx::Runtime;
use rx_proto::time::Instant;
use tokio::sync::Notify;

use crate::cells::{Cell, Cells};
use crate::closing::Closing;
use crate::error::Error;
use crate::table::Servers;
use crate::told::Told;
use crate::wait;

/// The longest time of a look-up.
const LOOK_UP_MAX: Duration = Duration::from_secs(5);

/// The longest time for which a program that stats a name waits, also when there are many look-ups.
const WAIT_MAX: Duration = Duration::from_secs(6);

/// The time for which the client believes that there is no such cell, or that the DNS does not answer: programs look for the same name
/// again and again.
const NEGATIVE_LIFE: Duration = Duration::from_secs(30);

/// Names that are known not to be cells; with more, those not asked for of late go.
const NEGATIVES_MAX: NonZeroUsize = NonZeroUsize::new(1000).unwrap();

/// Look-ups on their way at once. Others wait, so that a program that goes through many names does not flood a name server.
const LOOK_UPS_MAX: usize = 16;

/// Ends of names that programs look for in any directory, and that are no top-level domains: `autorun.inf`, `desktop.ini`.
const FILE_ENDS: [&str; 17] = [
    "bat", "cfg", "conf", "db", "dll", "exe", "html", "inf", "ini", "json", "lnk", "lock", "log", "php",
    "tmp", "txt", "xml",
];

/// The look-ups, and what came of those that found nothing. The cells that are found are added to [`Cells`].
#[derive(Debug)]
pub struct DnsCells {
    /// The resolver that is asked; without one, the client does not use the DNS.
    resolver: Option<Arc<dyn Resolver>>,
    table: Mutex<Table>,
    /// Told when a look-up has ended.
    done: Notify,
    runtime: Arc<dyn Runtime>,
    cells: Arc<Cells>,
    servers: Arc<Servers>,
    told: Arc<dyn Told>,
    closing: Closing,
}

#[derive(Debug)]
struct Table {
    chance: SmallRng,
    asking: HashSet<CellName>,
    negative: LruCache<CellName, (Instant, NotFound)>,
}

/// The state of a name.
enum State {
    Negative(NotFound),
    /// Somebody asks, or too many others are asked for.
    Asking,
    /// The caller is to ask.
    Yours,
}

/// The cell that a name in the root may be one of. Names without a dot, names that begin with one and names of files are none that the
/// DNS is asked for: programs look for `.Trash`, `.git` and `autorun.inf` in any directory.
pub(crate) fn cell_name(name: &str) -> Option<CellName> {
    let (_, end) = name.rsplit_once('.')?;
    let is_domain = !end.is_empty() && !end.bytes().all(|byte| byte.is_ascii_digit());
    let is_file = FILE_ENDS.iter().any(|known| end.eq_ignore_ascii_case(known));
    CellName::new(name).filter(|_| is_domain && !is_file && !name.contains(".."))
}

impl DnsCells {
    /// Makes the table. Nobody is asked yet. Cells that are found are added to `cells`, and their database servers to `servers`.
    pub(crate) fn new(
        resolver: Option<Arc<dyn Resolver>>,
        seed: [u8; 32],
        runtime: Arc<dyn Runtime>,
        cells: Arc<Cells>,
        servers: Arc<Servers>,
        told: Arc<dyn Told>,
        closing: Closing,
    ) -> Self {
        let mut negative = LruCache::unbounded();
        negative.resize(NEGATIVES_MAX);
        let table = Table { chance: SmallRng::from_seed(seed), asking: HashSet::new(), negative };
        let (table, done) = (Mutex::new(table), Notify::new());
        Self { resolver, table, done, runtime, cells, servers, told, closing }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cell to ask for where nothing of this name is known, if the DNS is asked at all.
    pub fn asks_for(&self, name: &str) -> Option<CellName> {
        self.resolver.as_ref()?;
        cell_name(name)
    }

    /// The error for a name that is no known cell, if it was asked for of late.
    pub fn known(&self, name: &CellName) -> Option<Error> {
        let now = self.runtime.now();
        let mut table = self.lock();
        let (until, why) = table.negative.get(name)?;
        (now < *until).then(|| error_of(name, why))
    }

    fn begin(&self, name: &CellName) -> State {
        let now = self.runtime.now();
        let mut table = self.lock();
        match table.negative.get(name) {
            Some((until, why)) if now < *until => return State::Negative(why.clone()),
            Some(_) | None => {}
        }
        if table.asking.contains(name) || table.asking.len() >= LOOK_UPS_MAX {
            return State::Asking;
        }
        table.asking.insert(name.clone());
        State::Yours
    }

    fn end(&self, name: &CellName, why: Option<NotFound>) {
        let now = self.runtime.now();
        let mut table = self.lock();
        table.asking.remove(name);
        match why {
            Some(why) => drop(table.negative.put(name.clone(), (now + NEGATIVE_LIFE, why))),
            None => drop(table.negative.pop(name)),
        }
        drop(table);
        self.done.notify_waiters();
    }

    /// The cell of a name: one that is known, else the DNS's.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`]; [`Error::DnsSilent`].
    pub async fn cell_named(self: &Arc<Self>, name: &str) -> Result<Arc<Cell>, Error> {
        if let Some(cell) = self.cells.named(name) {
            return Ok(cell);
        }
        match self.asks_for(name) {
            Some(wanted) => {
                self.ask_dns(&wanted, None).await?;
                self.cells.find(name)
            }
            None => self.cells.find(name),
        }
    }

    /// A cell with servers that still count: those of a cell from the DNS are asked for again when their time is over. The old ones stay
    /// if the DNS does not tell any.
    pub(crate) async fn refreshed(self: &Arc<Self>, cell: &Cell) -> Option<Arc<Cell>> {
        cell.until?;
        let now = self.cells.get(cell.index)?;
        if now.until.is_some_and(|until| self.runtime.now() >= until)
            && let Err(error) = self.ask_dns(&now.name, now.until).await
        {
            tracing::debug!(%error, "the servers of a cell are used for longer than the DNS has said");
        }
        self.cells.get(cell.index)
    }

    /// Has the DNS asked for a cell, or waits for who asks already, until its servers are other ones than those that count `until` then.
    async fn ask_dns(self: &Arc<Self>, name: &CellName, until: Option<Instant>) -> Result<(), Error> {
        let asked = wait::within(&self.runtime, WAIT_MAX, self.ask_dns_or_wait(name, until)).await;
        asked.unwrap_or_else(|| {
            let problem = "too many cells are asked for at once".to_owned();
            Err(error_of(name, &NotFound::Silent(NoAnswer(problem))))
        })
    }

    async fn ask_dns_or_wait(self: &Arc<Self>, name: &CellName, until: Option<Instant>) -> Result<(), Error> {
        loop {
            // From here on the end of no look-up is missed.
            let mut done = pin!(self.done.notified());
            done.as_mut().enable();
            if self.cells.named(name.as_str()).is_some_and(|cell| until.is_none() || cell.until != until) {
                return Ok(());
            }
            match self.begin(name) {
                State::Negative(why) => return Err(error_of(name, &why)),
                State::Asking => {}
                State::Yours => {
                    // In a task of its own: others wait for it, whatever becomes of who asked first.
                    let (this, name) = (Arc::clone(self), name.clone());
                    self.runtime.spawn(Box::pin(async move { this.look_up_cell(name).await }));
                }
            }
            if self.closing.has_begun() {
                return Err(Error::Closing);
            }
            done.await;
        }
    }

    async fn look_up_cell(&self, name: CellName) {
        let Some(resolver) = self.resolver.clone() else { return };
        let mut chance = SmallRng::from_rng(&mut self.lock().chance);
        let port = self.cells.location_port();
        let mut below = |bound: u32| chance.random_range(0..bound.max(1));
        let asked = look_up(&*resolver, name.as_str(), (Service::Location, port), &mut below);
        let found = wait::within(&self.runtime, LOOK_UP_MAX, asked).await;
        let found = found.unwrap_or_else(|| {
            let problem = format!("no answer within {} s", LOOK_UP_MAX.as_secs());
            Err(NotFound::Silent(NoAnswer(problem)))
        });
        let why = match found {
            Ok(servers) => self.note_cell(&name, &servers),
            Err(why) => Some(why),
        };
        if let Some(why) = &why {
            tracing::debug!(cell = %name, why = %error_of(&name, why), "the DNS was asked");
        }
        self.end(&name, why);
    }

    /// Keeps the servers of a cell; why it cannot.
    fn note_cell(&self, name: &CellName, found: &CellServers) -> Option<NotFound> {
        let is_new = self.cells.named(name.as_str()).is_none();
        let servers: Vec<_> =
            found.servers.iter().map(|server| (SocketAddr::V4(server.socket), server.place)).collect();
        let until = self.runtime.now() + found.life;
        if self.cells.set_found(name, &servers, until, &self.servers).is_none() {
            return Some(NotFound::Silent(NoAnswer("too many cells are known".to_owned())));
        }
        if is_new {
            tracing::info!(cell = %name, servers = servers.len(), "a cell was found in the DNS");
            self.told.cells_changed();
        }
        None
    }
}

fn error_of(name: &CellName, why: &NotFound) -> Error {
    match why {
        NotFound::Missing => Error::NoCell { cell: name.to_string() },
        NotFound::Silent(NoAnswer(problem)) => {
            Error::DnsSilent { cell: name.to_string(), problem: problem.clone() }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fid::CellIndex;
    use afs_config::CellServDb;
    use afs_dns::{Answer, Asking, Question, Record};
    use afs_sim::Sim;
    use afs_wire::ids::VolumeId;
    use futures_util::future::join_all;
    use std::net::Ipv4Addr;
    use std::path::Path;

    /// Knows the address of the database server of any cell under `test`, and needs 100 ms for an answer.
    #[derive(Debug)]
    struct Dns {
        sim: Sim,
        asked: Mutex<Vec<String>>,
    }

    impl Resolver for Dns {
        fn ask(&self, question: Question) -> Asking<'_> {
            self.asked.lock().unwrap().push(question.to_string());
            Box::pin(async move {
                self.sim.sleep_until(self.sim.now() + Duration::from_millis(100)).await;
                let records = match question.kind {
                    afs_dns::Kind::Srv if question.name.ends_with(".test") => {
                        vec![Record::Srv { priority: 0, weight: 0, port: 7003, target: "db.test".to_owned() }]
                    }
                    afs_dns::Kind::Address => vec![Record::Address(Ipv4Addr::new(192, 0, 2, 1))],
                    afs_dns::Kind::Srv | afs_dns::Kind::Afsdb => Vec::new(),
                };
                Ok(Answer { records, ttl_seconds: 600 })
            })
        }
    }

    /// Nobody keeps what depends on what is found.
    #[derive(Debug)]
    pub(crate) struct Nobody;

    impl Told for Nobody {
        fn volume_moved(&self, _: CellIndex, _: VolumeId) {}

        fn volume_gone(&self, _: CellIndex, _: VolumeId) {}

        fn cells_changed(&self) {}
    }

    /// Look-ups in virtual time, without a client.
    fn look_ups() -> (Sim, Arc<Dns>, Arc<DnsCells>, Closing) {
        let sim = Sim::new(Duration::ZERO);
        let dns = Arc::new(Dns { sim: sim.clone(), asked: Mutex::default() });
        let runtime: Arc<dyn Runtime> = Arc::new(sim.clone());
        let (servers, closing) = (Arc::<Servers>::default(), Closing::default());
        let none = CellServDb::parse("", Path::new("CellServDB")).unwrap();
        let cells = Arc::new(Cells::new(&none, 7003, &servers));
        let resolver: Arc<dyn Resolver> = dns.clone();
        let (seed, ending) = ([7; 32], closing.clone());
        let cells = DnsCells::new(Some(resolver), seed, runtime, cells, servers, Arc::new(Nobody), ending);
        (sim, dns, Arc::new(cells), closing)
    }

    #[test]
    fn the_dns_is_asked_once_for_all_who_want_a_cell_and_not_again_while_its_answer_counts() {
        let (sim, dns, cells, _) = look_ups();
        sim.clone().block_on(async move {
            let found = join_all((0..20).map(|_| cells.cell_named("far.test"))).await;
            assert!(found.iter().all(|cell| cell.as_ref().unwrap().location_servers.len() == 1));
            assert_eq!(dns.asked.lock().unwrap().len(), 2, "its servers, and the address of the one");
            sim.sleep_until(sim.now() + Duration::from_secs(599)).await;
            cells.refreshed(&cells.cell_named("far.test").await.unwrap()).await.unwrap();
            assert_eq!(dns.asked.lock().unwrap().len(), 2);
            sim.sleep_until(sim.now() + Duration::from_secs(2)).await;
            cells.refreshed(&cells.cell_named("far.test").await.unwrap()).await.unwrap();
            assert_eq!(dns.asked.lock().unwrap().len(), 4);
        });
    }

    #[test]
    fn a_name_that_is_no_cell_is_not_asked_for_again_for_a_while() {
        let (sim, dns, cells, _) = look_ups();
        sim.clone().block_on(async move {
            let name = cell_name("nothing.example").unwrap();
            for _ in 0..3 {
                assert!(matches!(cells.cell_named("nothing.example").await, Err(Error::NoCell { .. })));
            }
            let asked = dns.asked.lock().unwrap().len();
            assert!(cells.known(&name).is_some());
            sim.sleep_until(sim.now() + NEGATIVE_LIFE).await;
            assert!(cells.known(&name).is_none());
            cells.cell_named("nothing.example").await.unwrap_err();
            assert_eq!(dns.asked.lock().unwrap().len(), 2 * asked);
        });
    }

    #[test]
    fn nobody_waits_for_the_dns_when_the_client_ends() {
        let (sim, _, cells, closing) = look_ups();
        closing.begin();
        sim.block_on(async move {
            assert!(matches!(cells.cell_named("far.test").await, Err(Error::Closing)));
        });
    }

    #[test]
    fn names_that_programs_look_for_everywhere_are_not_asked_for() {
        for name in [
            ".Trash",
            ".Trash-1000",
            ".git",
            ".hidden",
            ".one.test",
            "lib",
            "autorun.inf",
            "Desktop.INI",
            "AUTORUN.INF",
            "Thumbs.db",
            "one.",
            "one..test",
            "127.0.0.1",
            "a b.test",
            "",
        ] {
            assert_eq!(cell_name(name), None, "{name:?}");
        }
        for name in ["one.test", "cs.One.test", "my-cell.example.org"] {
            assert_eq!(cell_name(name).unwrap().as_str(), name.to_ascii_lowercase());
        }
    }
}
