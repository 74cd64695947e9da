//! The clients of a file server, as hosts: who is at which address, whether it answers, and what it still has to be told.
//!
//! A state machine: time is an argument, and nothing is sent from here. What a client's call needs first is an
//! [`Admission`]; what a host has to be told is a [`Delivery`]. Who was promised what is in [`callbacks`](crate::callbacks),
//! who goes when the table is full in `hosts/eviction.rs`, what a change of a file means for hosts in `hosts/breaks.rs`, which start of a client
//! may change something in `hosts/alive.rs`. File service notes 7.4 have the rules.
//!
//! A host is an address. Its UUID only tells whether another client lives there now: anybody may ask a client for its
//! UUID, and a cloned machine has that of the first. So a client that comes with a known UUID from another address
//! takes nothing away from the one that was there: it is a host of its own, with promises of its own, and is told to
//! forget first. A client that has moved is known by its UUID and its Rx epoch, which says that it is the same process:
//! it keeps its promises, and so does its old address until it is found silent. Then a reset is pending for the old address, in
//! case its client is still there and only could not be reached.
//!
//! ```text
//!              first call from an address, or from a new epoch there
//!                                 |
//!                              (asked: who are you?)
//!                                 |
//!   unknown, restored or restarted: a reset is       known or moved: nothing is
//!   pending                                          pending
//!                                 |                       |
//!    +-----> PENDING --told-----> UP <--------------------+
//!    |                             |
//!    |      not answered           | a message not answered
//!    +---------- DOWN <------------+      (its break is remembered)
//!                 | calls, or it is time to try again: told what was remembered
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, VolumeId};
use rx_proto::ids::Epoch;
use rx_proto::time::Instant;

use crate::remembered::ALL_VOLUMES;
use host::{ASKED_MAX, Down, Host};

mod alive;
mod breaks;
mod eviction;
mod host;

/// A client, for as long as the server remembers it. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

/// Limits of the host table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// Most hosts. Default 65,536: a host takes some 500 bytes. Every short-lived program that calls is one. When it is nearly
    /// reached, hosts are told to forget everything and then forgotten: first those of machines with more than
    /// [`same_machine`](Self::same_machine), then those without promises, then those not heard of for longest.
    pub hosts: usize,
    /// Hosts of one IP address that count as much as others when the table is full; those beyond go before all others, so that one
    /// machine cannot push out the rest. Default 64: a machine has one cache manager, and a few programs that call.
    pub same_machine: usize,
    /// Most breaks remembered for a host that does not answer; beyond it the host will be told to forget everything. Default
    /// 256, five messages of 50.
    pub delayed_breaks: usize,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self { hosts: 65_536, same_machine: 64, delayed_breaks: 256 }
    }
}

/// The pause after a message that was not answered: the first pause, and the last, up to which it doubles. So a host learns of what it
/// missed about as long after a failure of the network as the failure took.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// A call of the host brings the next try at once, if the last was so long ago. It waits for that, so a host that calls and cannot be
/// called, as behind many a firewall, is not tried with each; one that has never said who it is not sooner either.
const RETRY_ON_CALL: Duration = Duration::from_secs(15);

/// Epochs by which a host is known; the oldest goes. A client has one, a machine behind a translator of addresses may have more.
const EPOCHS_MAX: usize = 4;

/// Hosts of a UUID that are looked through for the one that has moved: the newest. Cloned machines may be many.
const SAME_UUID_LOOKED_AT: usize = 16;

/// A host that has been silent for so long is asked whether it is still there: as stock servers, so that it is known to be gone
/// before somebody waits for it.
const PROBE_AFTER: Duration = Duration::from_secs(15 * 60);

/// A host that has been silent for so long is forgotten: the longest promise has ended by then.
const FORGET_AFTER: Duration = Duration::from_secs(5 * 3600);

/// Messages that are due are given out for so many hosts at once, so that thousands that are down do not cost all memory.
const MOST_AT_ONCE: usize = 64;

/// A client's word on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `None` for clients so old that they have none.
    pub uuid: Option<Uuid>,
    /// The first word of its capabilities.
    pub capabilities: u32,
}

/// The thing that a call has to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Nothing.
    Ready(Admitted),
    /// Its address has to be asked who it is: [`Hosts::handle_identity`] wants the answer. Other calls from there wait.
    Ask,
    /// Its host has to be told something first: [`Hosts::handle_delivery`] wants the outcome. Other calls from there wait.
    Deliver(Delivery),
    /// Another call sees to one of these: try again when it has.
    Wait,
}

/// A call that may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Its host.
    pub host: HostId,
    /// True if it may get promises: not if it does not answer, or has not been told to forget the old ones.
    pub gets_promises: bool,
    /// The first word of its capabilities.
    pub capabilities: u32,
}

/// A message that a host has to get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The host.
    pub host: HostId,
    /// The address where it was heard of last.
    pub address: SocketAddr,
    /// Its UUID.
    pub uuid: Option<Uuid>,
    /// The message.
    pub message: Message,
    /// True if calls of the host wait until its outcome is there, and nothing else is sent meanwhile.
    pub is_waited_for: bool,
}

/// A message to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Forget everything that you have from here (`InitCallBackState3`).
    Reset,
    /// These have changed (`CallBack`).
    Break(Vec<AfsFid>),
    /// Asks whether it is still the same client (`ProbeUuid`).
    Probe,
}

/// The outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Delivered,
    /// It was not.
    NoAnswer,
    /// Somebody else is at the address now.
    SomebodyElse,
}

/// The hosts of a server.
#[derive(Debug)]
pub struct Hosts {
    limits: HostLimits,
    next: u64,
    hosts: BTreeMap<HostId, Host>,
    by_address: HashMap<SocketAddr, HostId>,
    by_uuid: BTreeSet<(Uuid, HostId)>,
    /// Addresses that are being asked who they are.
    asking: HashSet<SocketAddr>,
    /// The times at which hosts are to be looked at again.
    agenda: BTreeSet<(Instant, HostId)>,
    /// Hosts from before the server was started that have not been told yet.
    restored: BTreeSet<HostId>,
    /// Hosts that were forgotten, whose promises are to end.
    forgotten: Vec<HostId>,
    /// Hosts for which a reset of all their promises is pending.
    dropped: Vec<HostId>,
    /// Hosts whose promises the second ones are to have too.
    moved: Vec<(HostId, HostId)>,
    /// Hosts that may still come before the table is looked through for those that can go.
    until_look: usize,
}

impl Hosts {
    /// Makes a table without hosts.
    pub fn new(limits: HostLimits) -> Self {
        Self {
            limits,
            next: 1,
            hosts: BTreeMap::new(),
            by_address: HashMap::new(),
            by_uuid: BTreeSet::new(),
            asking: HashSet::new(),
            agenda: BTreeSet::new(),
            restored: BTreeSet::new(),
            forgotten: Vec::new(),
            dropped: Vec::new(),
            moved: Vec::new(),
            until_look: 0,
        }
    }

    // ---- facts

    /// The number of hosts.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The number of hosts that were heard of since then.
    pub fn active_since(&self, since: Instant) -> usize {
        self.hosts.values().filter(|host| host.last_heard >= since).count()
    }

    /// The host's UUID and the address where it was heard of last.
    pub fn whereabouts(&self, host: HostId) -> Option<(Option<Uuid>, SocketAddr)> {
        self.hosts.get(&host).map(|host| (host.uuid, host.address))
    }

    /// True if messages to the host are known not to be answered.
    pub fn is_down(&self, host: HostId) -> bool {
        self.hosts.get(&host).is_some_and(|host| host.down.is_some())
    }

    /// Hosts from before the server was started that may have promises for the volume and were not told yet.
    pub fn held_before(&self, volume: VolumeId) -> Vec<HostId> {
        let concerns = |held: &VolumeId| *held == volume || *held == ALL_VOLUMES;
        let may = |id: &&HostId| self.hosts.get(id).is_some_and(|host| host.held_before.iter().any(concerns));
        self.restored.iter().filter(may).copied().collect()
    }

    // ---- a client calls

    /// A call has come. `Ready` is to be trusted for this call alone.
    pub fn handle_call(&mut self, now: Instant, address: SocketAddr, epoch: Epoch) -> Admission {
        if let Some(id) = self.by_address.get(&address).copied() {
            let host = self.hosts.get_mut(&id).expect("an address has a host that is there");
            if host.epochs.contains(&epoch) {
                host.heard_of(now);
                return self.admit(now, id);
            }
            // It did not say who it is a moment ago: its calls are not to wait each time. Another client that begins there is asked.
            if host.down.as_ref().is_some_and(|down| now < down.retry_at && down.was_asked(epoch)) {
                host.heard_of(now);
                return Admission::Ready(host.admitted(id));
            }
        }
        if self.asking.insert(address) { Admission::Ask } else { Admission::Wait }
    }

    /// An address that [`Admission::Ask`] was given for has said who it is, or nothing. [`poll_moved`](Self::poll_moved) is to be
    /// asked before anything else happens.
    pub fn handle_identity(
        &mut self,
        now: Instant,
        address: SocketAddr,
        epoch: Epoch,
        identity: Option<Identity>,
    ) -> Admission {
        self.asking.remove(&address);
        let at_address = self.by_address.get(&address).copied();
        let Some(identity) = identity else {
            // A port that cannot be reached does not bar service; what it still has from here is not known.
            let id = at_address.unwrap_or_else(|| self.add(now, address, None));
            self.note_silence(now, id);
            let host = self.hosts.get_mut(&id).expect("found or made above");
            host.heard_of(now);
            if let Some(down) = &mut host.down {
                down.asked.push(epoch);
            }
            return Admission::Ready(host.admitted(id));
        };
        let same = at_address.filter(|id| self.hosts[id].uuid == identity.uuid);
        if let Some(other) = at_address.filter(|_| same.is_none()) {
            // The one that was there is there no more.
            self.forget(other);
        }
        let id = same.unwrap_or_else(|| {
            let id = self.add(now, address, identity.uuid);
            self.look_for_the_same_elsewhere(now, id, epoch);
            id
        });
        let host = self.hosts.get_mut(&id).expect("found or made above");
        host.heard_of(now);
        host.capabilities = identity.capabilities;
        host.down = None;
        if !host.epochs.is_empty() && !host.epochs.contains(&epoch) {
            // Started anew, or another machine with the same UUID behind the same translator of addresses.
            host.reset_pending = true;
            host.delayed.clear();
        }
        host.epochs.retain(|known| *known != epoch);
        host.epochs.push(epoch);
        if host.epochs.len() > EPOCHS_MAX {
            host.epochs.remove(0);
        }
        self.admit(now, id)
    }

    /// A new host has the UUID of others: of the same process it takes over what it was promised and what is pending for it. The one that
    /// had the UUID last is asked whether it is still where it was, before somebody waits for it in vain.
    fn look_for_the_same_elsewhere(&mut self, now: Instant, id: HostId, epoch: Epoch) {
        let Some(uuid) = self.hosts[&id].uuid else { return };
        let all = (uuid, HostId(0))..(uuid, id);
        let others: Vec<HostId> =
            self.by_uuid.range(all).rev().map(|(_, other)| *other).take(SAME_UUID_LOOKED_AT).collect();
        let is_the_same = |other: &&HostId| {
            let other = &self.hosts[other];
            !other.has_moved && other.epochs.contains(&epoch)
        };
        let moved = others.iter().find(is_the_same).copied();
        if let Some(from) = moved {
            let old = self.hosts.get_mut(&from).expect("it was found above");
            old.has_moved = true;
            let (reset_pending, delayed, may_hold) =
                (old.reset_pending, old.delayed.clone(), old.may_hold_promises);
            let new = self.hosts.get_mut(&id).expect("the caller has it");
            (new.reset_pending, new.delayed, new.may_hold_promises) = (reset_pending, delayed, may_hold);
            self.moved.push((from, id));
        }
        if let Some(other) = moved.or(others.first().copied()) {
            self.doubt(now, other);
        }
    }

    /// The host is asked soon whether it is still there; for one that does not answer anyway a reset is pending at once if it has moved.
    fn doubt(&mut self, now: Instant, id: HostId) {
        let Some(host) = self.hosts.get_mut(&id) else { return };
        if host.down.is_some() {
            if host.has_moved {
                self.drop_promises(id);
            }
        } else if !host.is_doubted {
            host.is_doubted = true;
            self.schedule(id, now);
        }
    }

    /// The host loses its promises, and a reset is pending for them.
    fn drop_promises(&mut self, id: HostId) {
        let Some(host) = self.hosts.get_mut(&id) else { return };
        host.reset_pending = true;
        host.delayed.clear();
        self.dropped.push(id);
    }

    /// Takes the outcome of a delivery given by [`Admission::Deliver`] or [`poll_deliveries`](Self::poll_deliveries). For the
    /// call that saw to it, the host is then ready, if only without promises.
    pub fn handle_delivery(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        outcome: Outcome,
    ) -> Option<Admitted> {
        let id = delivery.host;
        let host = self.hosts.get_mut(&id)?;
        if delivery.is_waited_for {
            host.is_being_told = false;
        }
        let was_doubted = std::mem::take(&mut host.is_doubted);
        match outcome {
            Outcome::Delivered => {
                host.down = None;
                match &delivery.message {
                    Message::Reset => {
                        host.reset_pending = false;
                        host.delayed.clear();
                        host.held_before.clear();
                        host.may_hold_promises = false;
                        let is_leaving = host.is_leaving;
                        self.restored.remove(&id);
                        if is_leaving {
                            self.forget(id);
                            return None;
                        }
                    }
                    Message::Break(fids) => {
                        for fid in fids {
                            host.delayed.remove(fid);
                        }
                    }
                    Message::Probe => {}
                }
                // What was broken while it was told waits for it: its promise is gone, so nobody else tells it.
                let has_more = self.hosts.get(&id).is_some_and(Host::has_pending);
                self.schedule(id, if has_more { now } else { now + PROBE_AFTER });
            }
            Outcome::NoAnswer => {
                let has_moved = was_doubted && host.has_moved;
                self.note_silence(now, id);
                if has_moved {
                    self.drop_promises(id);
                }
            }
            Outcome::SomebodyElse => self.forget(id),
        }
        self.hosts.get(&id).map(|host| host.admitted(id))
    }

    /// Gives back what was given out for a call that will not report on it: another one may see to it.
    pub fn abandon(&mut self, address: SocketAddr) {
        self.asking.remove(&address);
        if let Some(host) = self.by_address.get(&address).and_then(|id| self.hosts.get_mut(id)) {
            host.is_being_told = false;
        }
    }

    /// The host says that it has given up everything, which clients do when they end: it is forgotten, and asked and told all
    /// anew should it call again.
    pub fn handle_farewell(&mut self, host: HostId) {
        self.forget(host);
    }

    /// The host is about to get a promise; whether it may.
    pub fn note_promise(&mut self, host: HostId) -> bool {
        let Some(h) = self.hosts.get_mut(&host).filter(|h| h.admitted(host).gets_promises) else {
            return false;
        };
        h.may_hold_promises = true;
        true
    }

    /// The host's promises were dropped without a word: it has to be told to forget everything.
    pub fn set_reset_pending(&mut self, now: Instant, host: HostId) {
        if let Some(h) = self.hosts.get_mut(&host) {
            h.reset_pending = true;
            h.delayed.clear();
            self.schedule(host, now);
        }
    }

    /// A host from before the server was started, which had promises for these volumes: it has to be told to forget
    /// everything.
    /// Returns `None` if a host of this address is there already.
    pub fn restore(
        &mut self,
        now: Instant,
        uuid: Option<Uuid>,
        address: SocketAddr,
        volumes: Vec<VolumeId>,
    ) -> Option<HostId> {
        if self.by_address.contains_key(&address) {
            return None;
        }
        let id = self.add(now, address, uuid);
        let host = self.hosts.get_mut(&id).expect("just added");
        host.held_before = volumes;
        self.restored.insert(id);
        self.schedule(id, now);
        Some(id)
    }

    // ---- what is due

    /// The time when [`poll_deliveries`](Self::poll_deliveries) has something next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// Returns the messages that are due by themselves: what is pending for hosts that did not answer or do not know of the
    /// restart, and whether the silent ones are still there. A call of such a host waits meanwhile.
    pub fn poll_deliveries(&mut self, now: Instant) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while deliveries.len() < MOST_AT_ONCE {
            let Some((at, id)) = self.agenda.first().copied().filter(|(at, _)| *at <= now) else { break };
            let host = self.hosts.get_mut(&id).expect("the agenda has hosts that are there");
            if now.since(host.last_heard) >= FORGET_AFTER {
                self.forget(id);
                continue;
            }
            debug_assert_eq!(at, host.due);
            let silent = now.since(host.last_heard);
            if host.is_being_told
                || (!host.has_pending() && host.down.is_none() && !host.is_doubted && silent < PROBE_AFTER)
            {
                let next =
                    if host.is_being_told { now + RETRY_AFTER.0 } else { host.last_heard + PROBE_AFTER };
                self.schedule(id, next);
                continue;
            }
            host.is_being_told = host.has_pending();
            deliveries.push(host.delivery(id, host.message(), host.is_being_told));
            self.schedule(id, now + PROBE_AFTER);
        }
        deliveries
    }

    /// Hosts that were forgotten since the last time: their promises are to end.
    pub fn poll_forgotten(&mut self) -> Vec<HostId> {
        std::mem::take(&mut self.forgotten)
    }

    /// Hosts whose promises were dropped since the last time: they are to end, and were not told.
    pub fn poll_dropped(&mut self) -> Vec<HostId> {
        std::mem::take(&mut self.dropped)
    }

    /// Returns pairs of hosts: the second of each pair is where the first has moved, and it is to have all promises of the first, too.
    pub fn poll_moved(&mut self) -> Vec<(HostId, HostId)> {
        std::mem::take(&mut self.moved)
    }

    // ---- inside

    /// A host that is known calls.
    fn admit(&mut self, now: Instant, id: HostId) -> Admission {
        let host = self.hosts.get_mut(&id).expect("the caller has looked");
        if host.is_being_told {
            return Admission::Wait;
        }
        let may_try = host.down.as_ref().is_none_or(|down| now >= down.retry_at);
        if (host.has_pending() || host.down.is_some()) && may_try {
            host.is_being_told = true;
            return Admission::Deliver(host.delivery(id, host.message(), true));
        }
        Admission::Ready(host.admitted(id))
    }

    fn add(&mut self, now: Instant, address: SocketAddr, uuid: Option<Uuid>) -> HostId {
        self.make_room(now);
        let id = HostId(self.next);
        self.next += 1;
        let due = now + PROBE_AFTER;
        let host = Host {
            uuid,
            address,
            epochs: Vec::new(),
            alive: Vec::new(),
            formerly_alive: Vec::new(),
            capabilities: 0,
            last_heard: now,
            due,
            down: None,
            reset_pending: true,
            delayed: BTreeSet::new(),
            is_being_told: false,
            held_before: Vec::new(),
            may_hold_promises: false,
            is_doubted: false,
            has_moved: false,
            is_leaving: false,
        };
        self.hosts.insert(id, host);
        self.by_address.insert(address, id);
        self.agenda.insert((due, id));
        self.by_uuid.extend(uuid.map(|uuid| (uuid, id)));
        id
    }

    fn note_silence(&mut self, now: Instant, id: HostId) {
        let Some(host) = self.hosts.get_mut(&id) else { return };
        let first = if host.uuid.is_some() { RETRY_AFTER.0 } else { RETRY_ON_CALL };
        let before = host.down.take();
        let backoff = before.as_ref().map_or(first, |down| down.backoff);
        let retry_at = now + backoff.min(RETRY_ON_CALL);
        let mut asked = before.map_or_else(Vec::new, |down| down.asked);
        asked.truncate(ASKED_MAX - 1);
        host.down = Some(Down { backoff: (2 * backoff).min(RETRY_AFTER.1), retry_at, asked });
        self.schedule(id, now + backoff);
    }

    fn schedule(&mut self, id: HostId, at: Instant) {
        let Some(host) = self.hosts.get_mut(&id) else { return };
        self.agenda.remove(&(host.due, id));
        host.due = at;
        self.agenda.insert((at, id));
    }

    fn forget(&mut self, id: HostId) {
        let Some(host) = self.hosts.remove(&id) else { return };
        self.agenda.remove(&(host.due, id));
        self.restored.remove(&id);
        self.by_address.remove(&host.address);
        if let Some(uuid) = host.uuid {
            self.by_uuid.remove(&(uuid, id));
        }
        self.forgotten.push(id);
    }
}

#[cfg(test)]
#[path = "hosts/tests.rs"]
mod tests;
