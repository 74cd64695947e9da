//! The history of a cell of three database servers over an etcd of three members, while members and servers die, hang, are slow and do
//! not reach each other: what clients asked for and were told, and when, is given to a checker of linearizability, which is not ours (`todc-utils`, the algorithm of
//! Wing, Gong and Lowe).
//!
//! Each name of a user or volume is an object of its own, since linearizability of all follows from that of each. Of what changes the database the
//! history has to be linearizable as a whole. A look-up, and a change that was refused, has to fit in with all changes; that two look-ups
//! within 20 ms at different servers fit to each other while a change is not acknowledged yet is not promised (docs/decisions/0008-etcd.md).
//! When all faults are over, every name is looked up at every server once more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::etcd_cell::faults::{Apart, number};
use crate::etcd_cell::{EtcdCell, is_here, volume_entry};
use crate::mounted::skip;
use afs_lab::caller::{Client, Credentials, Server};
use afs_wire::abort::{PREXIST, PRNOENT, VL_NAMEEXIST, VL_NOENT};
use afs_wire::ids::{ViceId, VolumeId, VolumeType};
use afs_wire::pt::{Delete, NameToID, NewEntry, PRUSER};
use afs_wire::vl::{CreateEntryN, DeleteEntry, GetEntryByNameN, GetNewVolumeId, VlName};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rxgen::xdr::{CharVec, XdrArray, XdrString};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;
use tokio::time::timeout;

const CLIENTS: u64 = 10;

/// Names that are used at a time, and for how long: then others are, so that no history becomes long.
const NAMES: u64 = 6;
const NAME_LIFE: Duration = Duration::from_secs(2);

/// A line of the configuration: a server that does not reach etcd says so.
const NO_MEMORY: &str = "memory_seconds = 0\n";

/// How long a client waits for a server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);

/// How long it may take until all is well when the faults are over.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls and answers without which faults mean nothing: the faults go on until there are so many.
const LEAST_EVENTS: usize = 2000;

/// UNOQUORUM: nothing was changed.
const NO_QUORUM: i32 = 5376;

/// What a server says when a name is taken, and when there is no such thing: of users, and of volumes.
const EXISTS: [i32; 2] = [PREXIST.0, VL_NAMEEXIST.0];
const MISSING: [i32; 2] = [PRNOENT.0, VL_NOENT.0];

/// What was asked for, and what it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Nobody knows yet.
    Asked,
    Created(i32),
    Exists,
    Deleted(i32),
    /// What has this id was not there to be deleted.
    Missing(i32),
    Found(Option<i32>),
    /// What may or may not have been made.
    MaybeCreated,
    MaybeDeleted(i32),
}

impl Operation {
    /// True if it changed something, as far as anybody knows.
    fn is_change(self) -> bool {
        matches!(self, Self::Created(_) | Self::Deleted(_) | Self::MaybeCreated | Self::MaybeDeleted(_))
    }
}

/// A name: whether something has it, and which id that has, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Absent,
    Present(Option<i32>),
}

/// What one server alone would do, that makes one thing after the other.
struct OneServer;

impl Specification for OneServer {
    type State = State;
    type Operation = Operation;

    fn init() -> State {
        State::Absent
    }

    fn apply(operation: &Operation, state: &State) -> (bool, State) {
        let may_be =
            |id: i32| matches!(state, State::Present(known) if known.is_none_or(|known| known == id));
        let is_it = |id: i32| *state == State::Present(Some(id));
        match *operation {
            Operation::Asked => (false, *state),
            Operation::Created(id) => (*state == State::Absent, State::Present(Some(id))),
            Operation::Exists => (*state != State::Absent, *state),
            Operation::Deleted(id) => (may_be(id), State::Absent),
            Operation::Missing(id) => (!is_it(id), *state),
            Operation::Found(None) => (*state == State::Absent, *state),
            Operation::Found(Some(id)) => (may_be(id), State::Present(Some(id))),
            // As these may come at the very end, where nobody sees them, they may as well not have come.
            Operation::MaybeCreated => match *state {
                State::Absent => (true, State::Present(None)),
                State::Present(_) => (true, *state),
            },
            Operation::MaybeDeleted(id) => (true, if may_be(id) { State::Absent } else { *state }),
        }
    }
}

/// An operation on a name: its calls and answers are in the order in which they were.
#[derive(Clone, Copy, Debug)]
enum Event {
    Call { number: usize, name: u64 },
    Answer { number: usize, operation: Operation },
}

#[derive(Default)]
struct Log {
    events: Mutex<Vec<Event>>,
    count: AtomicUsize,
    is_over: AtomicBool,
}

impl Log {
    fn call(&self, name: u64) -> usize {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.events.lock().unwrap().push(Event::Call { number, name });
        number
    }

    fn answer(&self, number: usize, operation: Operation) {
        self.events.lock().unwrap().push(Event::Answer { number, operation });
    }
}

/// What a call came to: its answer or a code; `None` if nobody knows.
async fn said<T>(call: impl Future<Output = Result<T, afs_lab::caller::Error>>) -> Option<Result<T, i32>> {
    match timeout(SERVER_TIMEOUT, call).await.ok()? {
        Ok(answer) => Some(Ok(answer)),
        Err(error) => error.code().map(Err),
    }
}

/// A server, as a client sees it. Names of odd numbers are those of volumes, the others those of users.
struct Asked {
    pt: Server,
    vl: Server,
}

impl Asked {
    fn all(client: &Client, addresses: &[Ipv4Addr], who: &Credentials) -> Vec<Self> {
        let asked = |address: &Ipv4Addr| Self {
            pt: client.protection_server(*address, who),
            vl: client.location_server(*address, who),
        };
        addresses.iter().map(asked).collect()
    }

    async fn create(&self, name: u64) -> Option<Operation> {
        let made = if is_volume(name) {
            let id = match said(self.vl.rpc(&GetNewVolumeId { bump_count: 1 })).await {
                Some(Ok(reply)) => reply.new_volid,
                // No name was asked for yet.
                _ => return None,
            };
            let entry = volume_entry(&text(name), id);
            said(self.vl.rpc(&CreateEntryN { entry })).await.map(|made| made.map(|_| id.0 as i32))
        } else {
            let name = XdrString::new(text(name).into_bytes()).unwrap();
            let made = said(self.pt.rpc(&NewEntry { name, flag: PRUSER, owner: ViceId(0) })).await;
            made.map(|made| made.map(|reply| reply.id.0))
        };
        match made {
            Some(Ok(id)) => Some(Operation::Created(id)),
            Some(Err(code)) if EXISTS.contains(&code) => Some(Operation::Exists),
            Some(Err(NO_QUORUM)) => None,
            _ => Some(Operation::MaybeCreated),
        }
    }

    async fn delete(&self, name: u64, id: i32) -> Option<Operation> {
        let deleted = if is_volume(name) {
            let volume = DeleteEntry { volid: VolumeId(id as u32), kind: VolumeType(-1) };
            said(self.vl.rpc(&volume)).await.map(|deleted| deleted.map(drop))
        } else {
            said(self.pt.rpc(&Delete { id: ViceId(id) })).await.map(|deleted| deleted.map(drop))
        };
        match deleted {
            Some(Ok(())) => Some(Operation::Deleted(id)),
            Some(Err(code)) if MISSING.contains(&code) => Some(Operation::Missing(id)),
            Some(Err(NO_QUORUM)) => None,
            _ => Some(Operation::MaybeDeleted(id)),
        }
    }

    async fn look_up(&self, name: u64) -> Option<Operation> {
        if is_volume(name) {
            let name = VlName::new(text(name).into_bytes()).unwrap();
            return match said(self.vl.rpc(&GetEntryByNameN { name })).await {
                Some(Ok(reply)) => Some(Operation::Found(Some(reply.entry.volume_id[0].0 as i32))),
                Some(Err(code)) if MISSING.contains(&code) => Some(Operation::Found(None)),
                _ => None,
            };
        }
        let names = XdrArray::new(vec![CharVec::from_text(text(name)).unwrap()]).unwrap();
        match said(self.pt.rpc(&NameToID { names })).await {
            Some(Ok(reply)) => {
                let found = Some(reply.ids[0]).filter(|id| *id != ViceId::ANONYMOUS).map(|id| id.0);
                Some(Operation::Found(found))
            }
            _ => None,
        }
    }
}

fn is_volume(name: u64) -> bool {
    name % 2 == 1
}

fn text(name: u64) -> String {
    format!("h{name}")
}

async fn run(servers: Vec<Asked>, log: Arc<Log>, seed: u64, begun: Instant) {
    let mut random = StdRng::seed_from_u64(seed);
    // Who was there when this client looked last.
    let mut known: BTreeMap<u64, i32> = BTreeMap::new();
    while !log.is_over.load(Ordering::Relaxed) {
        let epoch = begun.elapsed().as_millis() as u64 / NAME_LIFE.as_millis() as u64;
        let name = epoch * NAMES + random.random_range(0..NAMES);
        let server = &servers[random.random_range(0..servers.len())];
        let kind = random.random_range(0..10);
        let number = log.call(name);
        let operation = match (kind, known.remove(&name)) {
            (0..2, _) => server.create(name).await,
            (2..5, Some(id)) => server.delete(name, id).await,
            _ => server.look_up(name).await,
        };
        if let Some(operation) = operation {
            log.answer(number, operation);
        }
        if let Some(Operation::Created(id) | Operation::Found(Some(id))) = operation {
            known.insert(name, id);
        }
        if operation.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Looks a name up at a server until it answers.
async fn look_up_at_last(server: &Asked, log: &Log, name: u64) -> Operation {
    let until = Instant::now() + TIMEOUT;
    loop {
        let number = log.call(name);
        if let Some(operation) = server.look_up(name).await {
            log.answer(number, operation);
            return operation;
        }
        assert!(Instant::now() < until, "{} is not looked up at the end", text(name));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An operation with the places of its call and its answer.
#[derive(Clone, Copy, Debug)]
struct Done {
    called: usize,
    answered: usize,
    operation: Operation,
}

/// The operations by name. What was refused without a change is left out.
fn by_name(events: &[Event]) -> BTreeMap<u64, Vec<Done>> {
    let mut open = BTreeMap::new();
    let mut names: BTreeMap<u64, Vec<Done>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        match *event {
            Event::Call { number, name } => drop(open.insert(number, (name, at))),
            Event::Answer { number, operation } => {
                let (name, called) = open.remove(&number).expect("it was called");
                // What may have been made may yet be.
                let is_open = matches!(operation, Operation::MaybeCreated | Operation::MaybeDeleted(_));
                let answered = if is_open { usize::MAX } else { at };
                names.entry(name).or_default().push(Done { called, answered, operation });
            }
        }
    }
    names
}

fn is_linearizable(operations: &[Done]) -> bool {
    let mut actions: Vec<(usize, usize, Action<Operation>)> = Vec::new();
    for (process, done) in operations.iter().enumerate() {
        actions.push((done.called, process, Action::Call(Operation::Asked)));
        actions.push((done.answered, process, Action::Response(done.operation)));
    }
    actions.sort_by_key(|(at, ..)| *at);
    let actions = actions.into_iter().map(|(_, process, action)| (process, action)).collect();
    operations.is_empty() || WGLChecker::<OneServer>::is_linearizable(History::from_actions(actions))
}

/// Checks the history of a name.
fn check(name: u64, all: &[Done]) {
    let (changes, others): (Vec<Done>, Vec<Done>) = all.iter().partition(|done| done.operation.is_change());
    assert!(is_linearizable(&changes), "the changes of h{name}: {changes:#?}");
    for other in others {
        let with: Vec<Done> = changes.iter().copied().chain([other]).collect();
        assert!(is_linearizable(&with), "{other:?} does not fit to the changes of h{name}: {changes:#?}");
    }
}

#[test]
fn the_checker_refuses_a_look_up_that_misses_what_was_acknowledged() {
    let done = |called, answered, operation| Done { called, answered, operation };
    let created = done(0, 1, Operation::Created(5));
    check(0, &[created, done(2, 3, Operation::Found(Some(5)))]);
    assert!(!is_linearizable(&[created, done(2, 3, Operation::Found(None))]));
    assert!(!is_linearizable(&[created, done(2, 3, Operation::Created(6))]));
    let maybe = done(0, usize::MAX, Operation::MaybeCreated);
    for seen in [Some(7), None] {
        assert!(is_linearizable(&[maybe, done(2, 3, Operation::Found(seen))]));
    }
    let seen_and_gone = [done(2, 3, Operation::Found(Some(7))), done(4, 5, Operation::Found(None))];
    assert!(!is_linearizable(&[maybe, seen_and_gone[0], seen_and_gone[1]]));
    // Each alone fits.
    check(0, &[maybe, seen_and_gone[0], seen_and_gone[1]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_is_linearizable_while_members_and_servers_die_hang_and_are_slow() {
    require!(is_here());
    let seed = number("AFAR_SEED", 1);
    let length = Duration::from_secs(number("AFAR_ETCD_SECONDS", 10));
    println!("seed {seed} (AFAR_SEED), {length:?} (AFAR_ETCD_SECONDS)");
    // A server that does not reach etcd says so, as what it has in memory may be old.
    let cell = EtcdCell::start_with_ways("history", 3, 3, NO_MEMORY);
    check_history(cell, seed, length, async |cell, random| cell.fault(random).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_is_linearizable_while_members_are_cut_from_each_other_and_networks_and_disks_are_slow() {
    require!(is_here());
    let seed = number("AFAR_SEED", 1);
    let length = Duration::from_secs(number("AFAR_ETCD_SECONDS", 10));
    println!("seed {seed} (AFAR_SEED), {length:?} (AFAR_ETCD_SECONDS)");
    let cell = match EtcdCell::start_apart("apart", 3, 3, NO_MEMORY) {
        Ok(cell) => cell,
        Err(reason) => return skip(&format!("members cannot have networks of their own: {reason}")),
    };
    let is_done = |what: &str, result: Result<(), String>| {
        if let Err(reason) = &result {
            skip::<()>(&format!("slow {what}: {reason}"));
        }
        result.is_ok()
    };
    let disk = cell.etcd.slow_disk(0, Duration::from_millis(1)).map(drop);
    let network = cell.etcd.slow_network(0, Some(1000)).and_then(|()| cell.etcd.slow_network(0, None));
    let faults = Cell::new(Apart::new(is_done("networks", network), is_done("disks", disk)));
    let slow = RefCell::new(Vec::new());
    let fault = async |cell: &mut EtcdCell, random: &mut StdRng| {
        let mut kinds = faults.take();
        let syncs = cell.fault_apart(random, &mut kinds).await;
        faults.set(kinds);
        slow.borrow_mut().extend(syncs);
    };
    check_history(cell, seed, length, fault).await;
    let slow = slow.into_inner();
    assert!(slow.is_empty() || slow.iter().any(|syncs| *syncs > 0), "no disk was ever slow");
}

/// Runs clients while there are faults, and checks what they were told.
async fn check_history(
    mut cell: EtcdCell,
    seed: u64,
    length: Duration,
    fault: impl AsyncFn(&mut EtcdCell, &mut StdRng),
) {
    let mut random = StdRng::seed_from_u64(seed);
    let who: Credentials = cell.superuser();
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let log = Arc::new(Log::default());
    let begun = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let servers = Asked::all(&client, &cell.addresses, &who);
            tokio::spawn(run(servers, Arc::clone(&log), seed * 100 + n, begun))
        })
        .collect();
    let has_load = || log.events.lock().unwrap().len() > LEAST_EVENTS;
    while begun.elapsed() < length || (!has_load() && begun.elapsed() < 10 * length) {
        tokio::time::sleep(Duration::from_millis(random.random_range(200..1500))).await;
        fault(&mut cell, &mut random).await;
    }
    log.is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let names: Vec<u64> = by_name(&log.events.lock().unwrap()).into_keys().collect();
    let mut at_last = BTreeMap::new();
    for server in Asked::all(&client, &cell.addresses, &who) {
        for name in &names {
            let found = look_up_at_last(&server, &log, *name).await;
            at_last.entry(*name).or_insert_with(Vec::new).push(found);
        }
    }
    let names = by_name(&log.events.lock().unwrap());
    let mut counts = [0; 3];
    for (name, all) in &names {
        check(*name, all);
        // What nobody knows of may have been made between two of them.
        let is_known = all.iter().all(|done| done.answered != usize::MAX);
        let at_last = &at_last[name];
        assert!(
            !is_known || at_last.iter().all(|found| *found == at_last[0]),
            "{} is not the same at all servers: {at_last:?}",
            text(*name)
        );
        for done in all {
            let is_open = done.answered == usize::MAX;
            counts[if is_open { 2 } else { usize::from(done.operation.is_change()) }] += 1;
        }
    }
    let [others, changes, open] = counts;
    println!(
        "{} names, {changes} changes, {open} that nobody knows of, {others} look-ups and refusals",
        names.len()
    );
    assert!(changes > 20 && others > 100, "there was no load");
}
