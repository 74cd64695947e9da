//! Limits on what a server keeps for callers without a name: those are anybody who can reach the port, behind an address
//! that has answered a ping at most. Counted are data that wait for a challenge's response, data that the service has not
//! read, room for what is missing before them, and connections. Those of authenticated users are not counted here, and do not go for a stranger's sake. Callers
//! whose address has shown nothing are in `reach`.
//!
//! A host may hold as many bytes as it leaves free, so one alone has half of [`Config::strangers_memory`], and whoever
//! comes next finds room. What is not kept the client sends again.
//!
//! [`Config::strangers_memory`]: crate::config::Config::strangers_memory

use super::{ChannelRef, Endpoint};
use crate::fair::Owner;
use crate::ids::Seq;
use crate::time::Instant;
use crate::totals::{Share, Total};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// A host that has less than this part of what is free may keep whole first flights until it has shown who it is; with more
/// only [`FEW_HELD`] packets a connection.
const GENEROUS_PART: u64 = 32;
/// Packets held for a connection of a host that makes many: the arguments of most calls are in the first.
pub(super) const FEW_HELD: usize = 2;
/// This part of [`Config::max_connections`](crate::config::Config::max_connections) each endpoint of a port may have in any case.
const FOR_EACH: u64 = 64;
/// The number of entries that a search for a connection that can go looks at. Most entries are connections that still exist.
const LOOK_AT: usize = 32;

/// The data and connections that count for a host.
#[derive(Debug, Default)]
struct Host {
    bytes: u64,
    connections: usize,
    /// Those connections with their generations, oldest first, and some that are gone.
    order: VecDeque<(usize, u32)>,
}

/// The bytes that all of them have.
#[derive(Debug)]
pub(super) struct Strangers {
    bytes: Share,
    hosts: HashMap<Owner, Host>,
    /// Hosts with connections, by how many.
    by_count: BTreeSet<(usize, Owner)>,
}

impl Strangers {
    pub(super) fn of(total: &Total) -> Self {
        Self { bytes: Share::of(total), hosts: HashMap::new(), by_count: BTreeSet::new() }
    }

    /// Bytes held for them here.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes.own()
    }

    fn bytes_of(&self, host: Owner) -> u64 {
        self.hosts.get(&host).map_or(0, |h| h.bytes)
    }

    /// True if a host may have so many bytes more, of a budget for all.
    pub(super) fn may_hold(&self, host: Owner, more: u64, budget: u64) -> bool {
        self.bytes_of(host) + more <= budget.saturating_sub(self.bytes.all() + more)
    }

    /// True if a host has little.
    pub(super) fn has_little(&self, host: Owner, budget: u64) -> bool {
        self.bytes_of(host) <= budget.saturating_sub(self.bytes.all()) / GENEROUS_PART
    }

    /// A host holds `now` bytes where it held `before`.
    pub(super) fn count(&mut self, host: Owner, before: u64, now: u64) {
        if before == now {
            return;
        }
        self.bytes.add(now);
        self.bytes.remove(before);
        let entry = self.hosts.entry(host).or_default();
        entry.bytes = entry.bytes - before + now;
        self.forget_if_nothing(host);
    }

    fn add_connection(&mut self, host: Owner, index: usize, generation: u32) {
        let entry = self.hosts.entry(host).or_default();
        self.by_count.remove(&(entry.connections, host));
        entry.connections += 1;
        entry.order.push_back((index, generation));
        self.by_count.insert((entry.connections, host));
    }

    fn remove_connection(&mut self, host: Owner) {
        let Some(entry) = self.hosts.get_mut(&host) else { return };
        self.by_count.remove(&(entry.connections, host));
        entry.connections -= 1;
        if entry.connections > 0 {
            self.by_count.insert((entry.connections, host));
        }
        self.forget_if_nothing(host);
    }

    fn forget_if_nothing(&mut self, host: Owner) {
        if self.hosts.get(&host).is_some_and(|h| h.connections == 0 && h.bytes == 0) {
            self.hosts.remove(&host);
        }
    }
}

impl Endpoint {
    /// A host makes a connection: room is made for it if there is none, by the end of the oldest idle one of the
    /// host, or, where the table is full, of the host that has the most. Returns whether there is room.
    pub(super) fn make_room_for_stranger(&mut self, now: Instant, host: Owner) -> bool {
        let count = self.strangers.hosts.get(&host).map_or(0, |h| h.connections);
        if count >= self.config.max_connections_of_host && !self.end_idle_stranger(now, host) {
            return false;
        }
        // An endpoint makes room by its own connections only; so each may have some, however many the others of its port have.
        let max = self.config.max_connections as u64;
        if self.counted.all() < max || self.counted.own() < max / FOR_EACH || self.evict_unverified(now) {
            return true;
        }
        let most = self.strangers.by_count.last().map(|(_, host)| *host);
        most.is_some_and(|host| self.end_idle_stranger(now, host))
    }

    /// Ends the oldest connection of a host on which no call runs.
    fn end_idle_stranger(&mut self, now: Instant, host: Owner) -> bool {
        for _ in 0..LOOK_AT {
            let Some(entry) = self.strangers.hosts.get_mut(&host) else { return false };
            let Some((index, generation)) = entry.order.pop_front() else { return false };
            let there = self.connections.get(index);
            let Some(connection) = there.filter(|c| c.generation == generation && c.host() == Some(host))
            else {
                continue;
            };
            if !connection.is_idle() {
                entry.order.push_back((index, generation));
                continue;
            }
            self.stats.evicted += 1;
            let path = connection.path;
            self.remove_connection(now, index);
            // What its path has learnt is kept for others, but not for each port of such a host.
            if self.paths.get(path).is_some_and(|p| p.connections == 0) {
                self.remove_path(path);
            }
            return true;
        }
        false
    }

    /// A server's connection was made for a host that has not shown a name.
    pub(super) fn add_stranger(&mut self, index: usize, host: Owner) {
        self.connections[index].set_strangers(host, true);
        self.strangers.add_connection(host, index, self.connections[index].generation);
        let Some(entry) = self.strangers.hosts.get_mut(&host) else { return };
        if entry.order.len() > 2 * entry.connections + LOOK_AT {
            let connections = &self.connections;
            let is_there = |(index, generation): &(usize, u32)| {
                connections.get(*index).is_some_and(|c| c.generation == *generation && c.host() == Some(host))
            };
            entry.order.retain(is_there);
        }
    }

    /// A connection is no stranger's any more: it has a name, or is gone. What is held for it is the user's from now on.
    pub(super) fn remove_stranger(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let Some(host) = connection.host() else { return };
        connection.set_strangers(host, false);
        let held: u64 = connection.held.iter().map(|(_, payload)| payload.len() as u64).sum();
        let calls = connection.slots.iter_mut().filter_map(|slot| slot.call.as_deref_mut());
        let unread: u64 = calls.map(|call| std::mem::take(&mut call.counted)).sum();
        self.strangers.count(host, held + unread, 0);
        self.strangers.remove_connection(host);
    }

    /// True if a stranger's packet of a call is kept. The next one is, if nothing in order waits for the reader, so that each call
    /// goes on. One beyond those that came is kept only with room for all before it, and those then are: a hole could else be
    /// filled no faster than a packet a round trip, as what came meanwhile from far behind it would take the room.
    pub(super) fn may_keep_data(&self, at: ChannelRef, seq: Seq, len: usize) -> bool {
        let connection = &self.connections[at.connection];
        let (Some(host), Some(call)) = (connection.host(), connection.call(at.channel)) else { return true };
        let is_next = seq == call.rx.next() && !call.rx.is_readable();
        let (len, each) = (len as u64, self.paths[connection.path].longest_received() as u64);
        let more = match seq.after(call.rx.newest().plus(1)) {
            Some(missing) => u64::from(missing) * each + len,
            None => len.saturating_sub(each), // the rest is counted with the hole
        };
        is_next || self.strangers.may_hold(host, more, self.config.strangers_memory)
    }

    /// Counts anew what a call holds that has not been read, and what is missing in between.
    pub(super) fn count_unread(&mut self, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let Some(host) = connection.host() else { return };
        let each = self.paths[connection.path].longest_received() as u64;
        let Some(call) = connection.call_mut(at.channel) else { return };
        let holds = call.rx.unread_bytes() + u64::from(call.rx.holes()) * each;
        let before = std::mem::replace(&mut call.counted, holds);
        self.strangers.count(host, before, holds);
    }
}
