//! Talking to clients: who are you, forget what you have, this has changed. The waiting part around
//! [`hosts`](crate::hosts) and [`callbacks`](crate::callbacks), which decide what is said to whom.
//!
//! Messages go from the server's own port to where a client called from last (File service notes 7.3): what a client is to forget, by the security class
//! that it has asked for, if it has, and everything else without security. Those
//! about a change go to all holders at the same time, and whoever changed something waits for them no longer than
//! [`Config::break_wait`]; what was not answered by then is remembered and told later.

mod calls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, VolumeId};
use afs_wire::status::{AfsCallBack, CallBackType};
use lru::LruCache;
use rx::{Connection, Runtime, WeakEndpoint};
use rx_proto::ids::Epoch;
use rx_proto::security::SecurityClass;
use rx_proto::time::Instant;
use tokio::sync::{Notify, mpsc};

use crate::callbacks::{Callbacks, Kind, Totals};
use crate::config::Config;
use crate::hosts::{Admission, Admitted, Delivery, HostId, Hosts, Identity, Message, Outcome};
use crate::remembered::{Due, Holder, Remembered};

/// Connections to clients kept at once, some 1000 bytes each. Beyond it those that were not used for longest are let go, and made again as they are needed.
const MAX_CONNECTIONS: NonZeroUsize = NonZeroUsize::new(8192).unwrap();

/// The longest time between two looks through the tables, if nothing is due before.
const LOOK_AT_LEAST: Duration = Duration::from_secs(60);

/// The clients of a server.
pub(crate) struct Clients {
    endpoint: WeakEndpoint,
    runtime: Arc<dyn Runtime>,
    uuid: Uuid,
    break_wait: Duration,
    introduction_wait: Duration,
    tables: Mutex<Tables>,
    remembered: Option<Mutex<Remembered>>,
    connections: Mutex<Connections>,
    /// What clients have asked to be told with.
    classes: Mutex<LruCache<SocketAddr, MakeClass>>,
    /// The clients that are being told of changes right now, with a number for each message.
    being_told: Mutex<BTreeMap<u64, Delivery>>,
    /// Somebody who was asked or told something has been.
    somebody_introduced: Notify,
    /// There is something new to be told.
    due: Notify,
}

/// Connections to clients, with what they were made by.
type Connections = LruCache<(SocketAddr, Protection), (Option<MakeClass>, Connection)>;

/// Makes a client's end of a connection for calling back.
pub(crate) type MakeClass = Arc<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync>;

/// Whether a message has effect at the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Protection {
    /// It is a question.
    Open,
    /// The client is to forget something.
    Keyed,
}

struct Tables {
    hosts: Hosts,
    callbacks: Callbacks,
}

/// A promise that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promised {
    /// The time for which it lasts, from now.
    pub(crate) life: Duration,
    /// True if the client had none for it before.
    pub(crate) is_new: bool,
}

/// The numbers of hosts and promises, for statistics.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClientCounts {
    pub(crate) hosts: usize,
    pub(crate) active_hosts: usize,
    pub(crate) promises: usize,
    pub(crate) promised_files: usize,
    /// Promises since the start.
    pub(crate) totals: Totals,
}

impl Clients {
    pub(crate) fn new(
        config: &Config,
        endpoint: WeakEndpoint,
        runtime: Arc<dyn Runtime>,
    ) -> std::io::Result<Self> {
        let mut tables =
            Tables { hosts: Hosts::new(config.hosts), callbacks: Callbacks::new(config.max_promises) };
        let mut remembered = None;
        if let Some(disk) = &config.promises {
            let (mut file, before) = Remembered::open(Arc::clone(disk))?;
            let now = runtime.now();
            for (holder, volumes) in before {
                if let Some(host) = tables.hosts.restore(now, holder.uuid, holder.address, volumes.clone()) {
                    file.adopt(host, holder, volumes);
                }
            }
            if let Err(error) = file.write_anew(now) {
                tell_unwritten(&error);
            }
            remembered = Some(Mutex::new(file));
        }
        Ok(Self {
            endpoint,
            runtime,
            uuid: config.uuid,
            break_wait: config.break_wait,
            introduction_wait: config.introduction_wait,
            tables: Mutex::new(tables),
            remembered,
            connections: Mutex::new(LruCache::new(MAX_CONNECTIONS)),
            classes: Mutex::new(LruCache::new(MAX_CONNECTIONS)),
            being_told: Mutex::default(),
            somebody_introduced: Notify::new(),
            due: Notify::new(),
        })
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        self.runtime.now()
    }

    pub(crate) fn counts(&self) -> ClientCounts {
        const ACTIVE: Duration = Duration::from_secs(15 * 60);
        let tables = self.tables();
        ClientCounts {
            hosts: tables.hosts.len(),
            active_hosts: tables.hosts.active_since(self.now() - ACTIVE),
            promises: tables.callbacks.len(),
            promised_files: tables.callbacks.file_count(),
            totals: tables.callbacks.totals(),
        }
    }

    // ---- a call comes

    /// Lets a call in: asks a client that is not known who it is, and tells it what is due to it first.
    pub(crate) async fn admit(&self, address: SocketAddr, epoch: Epoch) -> Admitted {
        let mut admission = self.tables().hosts.handle_call(self.now(), address, epoch);
        loop {
            match admission {
                Admission::Ready(admitted) => return admitted,
                Admission::Wait => {
                    let mut introduced = std::pin::pin!(self.somebody_introduced.notified());
                    introduced.as_mut().enable();
                    // It may have ended before the line above.
                    admission = self.tables().hosts.handle_call(self.now(), address, epoch);
                    if admission == Admission::Wait {
                        introduced.await;
                        admission = self.tables().hosts.handle_call(self.now(), address, epoch);
                    }
                }
                Admission::Ask => {
                    let guard = Introduction { clients: self, address };
                    // In a box, as each call would have the room for what few need.
                    let identity = Box::pin(self.ask(address)).await;
                    admission = self.introduced(address, epoch, identity);
                    guard.done();
                }
                Admission::Deliver(delivery) => {
                    let guard = Introduction { clients: self, address };
                    let outcome = Box::pin(self.tell(&delivery, self.introduction_wait)).await;
                    let admitted = self.delivered(&delivery, outcome);
                    guard.done();
                    if let Some(admitted) = admitted {
                        return admitted;
                    }
                    admission = self.tables().hosts.handle_call(self.now(), address, epoch);
                }
            }
        }
    }

    /// See [`Hosts::is_alive`].
    pub(crate) fn is_alive(&self, address: SocketAddr, epoch: Epoch) -> bool {
        self.tables().hosts.is_alive(address, epoch)
    }

    /// See [`Hosts::note_alive`].
    pub(crate) fn note_alive(&self, address: SocketAddr, epoch: Epoch) {
        self.tables().hosts.note_alive(address, epoch);
    }

    /// A client has said who it is, or nothing.
    fn introduced(&self, address: SocketAddr, epoch: Epoch, identity: Option<Identity>) -> Admission {
        let now = self.now();
        let mut tables = self.tables();
        let tables = &mut *tables;
        let admission = tables.hosts.handle_identity(now, address, epoch, identity);
        // Before any change can come between.
        for (from, to) in tables.hosts.poll_moved() {
            let Some((uuid, address)) = tables.hosts.whereabouts(to) else { continue };
            let holder = Holder { uuid, address };
            let volumes = tables.callbacks.volumes_of(from);
            let is_written = volumes.into_iter().all(|volume| self.remember(now, to, &holder, volume));
            tables.callbacks.give_the_same(from, to);
            if !is_written {
                // What it took along must not outlive a crash that it is not told of.
                tables.hosts.set_reset_pending(now, to);
            }
            self.make_room(tables, now, to);
        }
        self.end_forgotten(tables);
        // Another host may have to be asked or told something now.
        self.due.notify_one();
        admission
    }

    /// Makes room after a host got promises: hosts that have to give up theirs for want of room are told to forget.
    fn make_room(&self, tables: &mut Tables, now: Instant, newest: HostId) {
        let hosts = &tables.hosts;
        let resets =
            tables.callbacks.make_room(newest, |host| hosts.whereabouts(host).map(|(_, at)| at.ip()));
        for host in resets {
            tables.hosts.set_reset_pending(now, host);
            self.due.notify_one();
        }
    }

    fn delivered(&self, delivery: &Delivery, outcome: Outcome) -> Option<Admitted> {
        let is_reset = outcome == Outcome::Delivered && delivery.message == Message::Reset;
        let mut tables = self.tables();
        if is_reset {
            tables.callbacks.host_gone(delivery.host);
            self.forget_remembered(delivery.host);
        }
        let admitted = tables.hosts.handle_delivery(self.now(), delivery, outcome);
        self.end_forgotten(&mut tables);
        // What is to be told next may be due before `run` looks again: at once, or when this is tried again.
        self.due.notify_one();
        admitted
    }

    /// The client gives up these promises.
    pub(crate) fn gave_up(&self, host: HostId, fids: &[AfsFid]) {
        let mut tables = self.tables();
        for fid in fids {
            tables.callbacks.gave_up(host, *fid);
        }
    }

    /// The client gives up all promises.
    pub(crate) fn farewell(&self, host: HostId) {
        let whereabouts = {
            let mut tables = self.tables();
            let whereabouts = tables.hosts.whereabouts(host);
            tables.hosts.handle_farewell(host);
            self.end_forgotten(&mut tables);
            whereabouts
        };
        if let Some((_, address)) = whereabouts {
            let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
            for protection in [Protection::Open, Protection::Keyed] {
                connections.pop(&(address, protection));
            }
        }
    }

    /// A client at this address has asked to be called back so from now on. May be called by the endpoint itself.
    pub(crate) fn call_back_by(&self, client: SocketAddr, class: MakeClass) {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner).put(client, class);
    }

    /// Ends the promises of hosts that were forgotten, or are to be told to forget: before they may be given new ones.
    fn end_forgotten(&self, tables: &mut Tables) {
        for host in tables.hosts.poll_dropped() {
            tables.callbacks.host_gone(host);
        }
        for host in tables.hosts.poll_forgotten() {
            tables.callbacks.host_gone(host);
            self.forget_remembered(host);
        }
    }

    // ---- promises

    /// Promises a client to call back, before the file is looked at. `None` if it gets no promises.
    pub(crate) fn promise(&self, host: Admitted, fid: AfsFid, kind: Kind) -> Option<Promised> {
        if !host.gets_promises {
            return None;
        }
        let now = self.now();
        let mut tables = self.tables();
        let tables = &mut *tables;
        if !tables.hosts.note_promise(host.host) {
            return None;
        }
        if self.remembered.is_some() {
            let (uuid, address) = tables.hosts.whereabouts(host.host)?;
            // Before the promise, so that it cannot outlive a crash that nobody is told of.
            if !self.remember(now, host.host, &Holder { uuid, address }, fid.volume) {
                return None;
            }
        }
        let is_new = !tables.callbacks.holds(host.host, fid);
        let life = tables.callbacks.promise(now, host.host, fid, kind);
        self.make_room(tables, now, host.host);
        Some(Promised { life, is_new })
    }

    /// True if no change has ended the promise since.
    pub(crate) fn still_promised(&self, host: HostId, fid: AfsFid) -> bool {
        self.tables().callbacks.holds(host, fid)
    }

    /// Writes down that the host may hold promises. Whether it is written down.
    fn remember(&self, now: Instant, host: HostId, holder: &Holder, volume: VolumeId) -> bool {
        let Some(mut remembered) = self.remembered() else { return true };
        let (before, had_failed) = (remembered.poll_timeout(), remembered.has_failed());
        let outcome = remembered.note(now, host, holder, volume);
        if before.is_none() && remembered.poll_timeout().is_some() {
            self.due.notify_one();
        }
        if let (Err(error), false) = (&outcome, had_failed) {
            tell_unwritten(error);
        }
        outcome.is_ok()
    }

    fn forget_remembered(&self, host: HostId) {
        let Some(mut remembered) = self.remembered() else { return };
        let (before, had_failed) = (remembered.poll_timeout(), remembered.has_failed());
        if let (Err(error), false) = (remembered.gone(self.now(), host), had_failed) {
            tell_unwritten(&error);
        }
        if before.is_none() && remembered.poll_timeout().is_some() {
            self.due.notify_one();
        }
    }

    fn remembered(&self) -> Option<MutexGuard<'_, Remembered>> {
        let remembered = self.remembered.as_ref()?;
        Some(remembered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    // ---- something changes

    /// The file has changed: tells all who hold a promise for it but `except`, and waits until they have answered, or `until`.
    pub(crate) async fn changed(self: &Arc<Self>, fid: AfsFid, except: Option<HostId>, until: Instant) {
        let deliveries = {
            let mut tables = self.tables();
            let mut hosts = tables.callbacks.changed(fid, except);
            hosts.extend(tables.hosts.held_before(fid.volume).into_iter().filter(|h| Some(*h) != except));
            if hosts.is_empty() {
                return;
            }
            tables.hosts.breaks(&hosts, fid)
        };
        self.tell_all(deliveries, until).await;
    }

    /// Anything in the volume may have changed, or it is no longer here.
    pub(crate) async fn volume_changed(self: &Arc<Self>, volume: VolumeId, until: Instant) {
        let deliveries = {
            let mut tables = self.tables();
            let mut hosts = tables.callbacks.volume_changed(volume);
            hosts.extend(tables.hosts.held_before(volume));
            tables.hosts.breaks(&hosts, AfsFid::whole_volume(volume))
        };
        self.tell_all(deliveries, until).await;
    }

    /// The file is gone: its promises end without a word.
    pub(crate) fn removed(&self, fid: AfsFid) {
        self.tables().callbacks.removed(fid);
    }

    /// The clients that are being told of a change of the file and have not answered.
    pub(crate) fn being_told(&self, fid: AfsFid) -> Vec<SocketAddr> {
        let being_told = self.being_told.lock().unwrap_or_else(PoisonError::into_inner);
        let of_file = |delivery: &&Delivery| match &delivery.message {
            Message::Break(fids) => fids.contains(&fid),
            Message::Reset => true,
            Message::Probe => false,
        };
        being_told.values().filter(of_file).map(|delivery| delivery.address).collect()
    }

    /// The time when a change that is made now stops waiting.
    pub(crate) fn break_deadline(&self) -> Instant {
        self.now() + self.break_wait
    }

    /// Tells all of them at the same time. Each has its full time, also if `until` is nearer: who is late is told in the
    /// background.
    async fn tell_all(self: &Arc<Self>, deliveries: Vec<Delivery>, until: Instant) {
        let Some(count) = std::num::NonZero::new(deliveries.len()) else { return };
        let (told, mut all_told) = mpsc::channel::<()>(count.get());
        for delivery in deliveries {
            let (clients, told) = (Arc::clone(self), told.clone());
            self.runtime.spawn(Box::pin(async move {
                let outcome = {
                    let _telling = Telling::begin(&clients, &delivery);
                    clients.tell(&delivery, clients.break_wait).await
                };
                let is_more_due = {
                    let mut tables = clients.tables();
                    tables.hosts.handle_break(clients.now(), &delivery, outcome);
                    if outcome == Outcome::Delivered && delivery.message == Message::Reset {
                        clients.forget_remembered(delivery.host);
                    }
                    clients.end_forgotten(&mut tables);
                    tables.hosts.poll_timeout().is_some_and(|at| at <= clients.now())
                };
                if outcome == Outcome::NoAnswer {
                    tracing::info!(client = %delivery.address, "a client did not answer: it will be told later");
                }
                if outcome == Outcome::NoAnswer || is_more_due {
                    clients.due.notify_one();
                }
                drop(told);
            }));
        }
        drop(told);
        // Nothing is ever sent: the end of all senders is what is waited for.
        let _ = rx::in_time(&*self.runtime, until, all_told.recv()).await;
    }

    // ---- in the background

    /// Runs what is due, for as long as the server runs.
    pub(crate) async fn run(self: Arc<Self>) {
        while self.endpoint.upgrade().is_some() {
            let now = self.now();
            let (deliveries, next) = {
                let mut tables = self.tables();
                tables.callbacks.handle_timeout(now);
                let deliveries = tables.hosts.poll_deliveries(now);
                self.end_forgotten(&mut tables);
                (deliveries, tables.hosts.poll_timeout())
            };
            for delivery in deliveries {
                let clients = Arc::clone(&self);
                self.runtime.spawn(Box::pin(async move {
                    let guard = Introduction { clients: &clients, address: delivery.address };
                    let outcome = clients.tell(&delivery, clients.break_wait).await;
                    clients.delivered(&delivery, outcome);
                    guard.done();
                }));
            }
            let next = next.into_iter().chain(self.sync_remembered(now)).min();
            let at_latest = now + LOOK_AT_LEAST;
            let mut timer = self.runtime.sleep_until(next.unwrap_or(at_latest).min(at_latest).max(now));
            let mut due = std::pin::pin!(self.due.notified());
            std::future::poll_fn(|cx| {
                if due.as_mut().poll(cx).is_ready() {
                    std::task::Poll::Ready(())
                } else {
                    timer.as_mut().poll(cx)
                }
            })
            .await;
        }
    }

    /// Starts the work that is due for the list of promises. Returns when more will be due.
    fn sync_remembered(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let (due, next) = {
            let mut remembered = self.remembered()?;
            (remembered.poll_due(now), remembered.poll_timeout())
        };
        if let Some(due) = due {
            let clients = Arc::clone(self);
            rx::blocking::in_background(move || clients.bring_to_disk(due));
        }
        next
    }

    /// Waits for the disk, while others get at the list.
    fn bring_to_disk(&self, due: Due) {
        let done = due.run();
        let Some(mut remembered) = self.remembered() else { return };
        let had_failed = remembered.has_failed();
        let outcome = remembered.handle_done(self.now(), done);
        match (outcome, had_failed, remembered.has_failed()) {
            (Ok(()), true, false) => tracing::info!("the list of callback promises is written again"),
            (Ok(()), ..) => {}
            (Err(error), false, true) => tell_unwritten(&error),
            (Err(error), false, false) => {
                tracing::warn!(%error, "the list of callback promises cannot be written anew, and grows");
            }
            // It was told before.
            (Err(error), true, _) => {
                tracing::debug!(%error, "the list of callback promises still cannot be written");
            }
        }
        if remembered.poll_timeout().is_some() {
            self.due.notify_one();
        }
    }
}

/// Said once, until the list can be written again.
fn tell_unwritten(error: &std::io::Error) {
    tracing::error!(%error, "the list of callback promises cannot be written, and clients that are not in it get no promises: free space where the server's state is");
}

/// A call that asks or tells a client something on behalf of all the client's calls. Other calls may do it if this one ends early.
struct Introduction<'a> {
    clients: &'a Clients,
    address: SocketAddr,
}

impl Introduction<'_> {
    /// Notes that it was reported: the guard has nothing to give back.
    fn done(self) {
        self.clients.somebody_introduced.notify_waiters();
        std::mem::forget(self);
    }
}

impl Drop for Introduction<'_> {
    fn drop(&mut self) {
        self.clients.tables().hosts.abandon(self.address);
        self.clients.somebody_introduced.notify_waiters();
    }
}

/// A message about a change on its way to a client.
struct Telling<'a>(&'a Clients, u64);

impl<'a> Telling<'a> {
    fn begin(clients: &'a Clients, delivery: &Delivery) -> Self {
        let mut being_told = clients.being_told.lock().unwrap_or_else(PoisonError::into_inner);
        let number = being_told.last_key_value().map_or(0, |(last, _)| last + 1);
        being_told.insert(number, delivery.clone());
        Self(clients, number)
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.being_told.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// The callback of a promise in a reply.
pub(crate) fn told(promise: Option<Promised>) -> AfsCallBack {
    match promise {
        Some(promise) => AfsCallBack::shared(promise.life.as_secs().try_into().unwrap_or(u32::MAX)),
        None => {
            AfsCallBack { version: AfsCallBack::VERSION, expiration_seconds: 0, kind: CallBackType::DROPPED }
        }
    }
}
