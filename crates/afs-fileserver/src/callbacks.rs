//! Promises to call back: the hosts that may trust their copy of a file, and until when each may.
//!
//! A state machine: time is an argument, nothing is sent from here. A change of a file gives the hosts to be told; whoever
//! holds this sends the messages (`clients.rs`), and keeps those that a host did not take ([`hosts`](crate::hosts)).
//! File service notes 7.1 and 7.2 have the lifetimes and what breaks what.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use afs_wire::ids::{AfsFid, VolumeId};
use rx_proto::time::Instant;

use crate::hosts::HostId;

/// Promises end at multiples of this, so that their ends are worked through in lumps; stock servers use the same.
const ROUND: Duration = Duration::from_secs(128);

/// A promise is kept for so much longer than the client was told: clocks drift, and the reply took its time. As stock servers
/// do, "a few minutes".
const GRACE: Duration = Duration::from_secs(300);

/// The time that a promise for a read-only volume lasts: the whole volume changes at once, and seldom.
const READ_ONLY_LIFE: Duration = Duration::from_secs(2 * 3600);

/// A client that asks for many statuses at once will not look at most of them: its promises are counted as if there were
/// so many holders more.
const BULK_HOLDERS: usize = 22;

/// Lifetimes by the number of holders: many readers of a file that changes cost many messages, so they have to ask again
/// more often.
const LIVES: &[(usize, Duration)] = &[
    (8, Duration::from_secs(4 * 3600)),
    (16, Duration::from_secs(3600)),
    (24, Duration::from_secs(30 * 60)),
    (40, Duration::from_secs(15 * 60)),
    (64, Duration::from_secs(10 * 60)),
    (usize::MAX, Duration::from_secs(7 * 60)),
];

/// Beyond the limit, so much of it is made free, as finding who is to give up something takes a look at all hosts.
const MORE_ROOM: usize = 256;

/// The purpose for which a promise is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One file, because of its status or data.
    Single,
    /// One of many files whose statuses were asked for at once.
    Bulk,
    /// A file of a volume that cannot be written: the promise is for the volume.
    ReadOnly,
}

/// The promises of a server.
#[derive(Debug)]
pub struct Callbacks {
    /// Most promises at once.
    limit: usize,
    count: usize,
    /// Holders by file, in the order of volumes, so that those of a volume are together.
    files: BTreeMap<AfsFid, Vec<Promise>>,
    by_host: HashMap<HostId, HashSet<AfsFid>>,
    /// Files with a promise that may end then, by the number of the round. Entries are not taken out when a promise is, so
    /// there may be some for nothing.
    ends: BTreeMap<u64, Vec<AfsFid>>,
    /// Entries in `ends`.
    end_entries: usize,
    totals: Totals,
}

/// The promises of a server since its start, by what became of them. They wrap around, as on the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Promises that were made, and not only made longer.
    pub made: u32,
    /// Those that a change ended.
    pub broken: u32,
    /// Files that are gone, with all their promises.
    pub files_gone: u32,
    /// Those that their client gave up.
    pub given_up: u32,
    /// Clients that lost all at once: they are gone, or have forgotten everything.
    pub clients_gone: u32,
    /// Those whose time has passed.
    pub timed_out: u32,
    /// The number of times that there were too many.
    pub was_full: u32,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    host: HostId,
    /// The round at whose end it may be forgotten.
    round: u64,
}

impl Callbacks {
    /// Makes a table without promises. It has at most `limit` of them after each [`make_room`](Self::make_room). A promise takes
    /// some 100 bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            count: 0,
            files: BTreeMap::new(),
            by_host: HashMap::new(),
            ends: BTreeMap::new(),
            end_entries: 0,
            totals: Totals::default(),
        }
    }

    // ---- facts

    /// The number of promises.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The promises since the start.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of files that have a promise.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// True if the host still has its promise for the file, or for the file's volume.
    pub fn holds(&self, host: HostId, fid: AfsFid) -> bool {
        let has = |fid| self.by_host.get(&host).is_some_and(|fids| fids.contains(&fid));
        has(fid) || has(AfsFid::whole_volume(fid.volume))
    }

    /// The volumes that the host has promises for, in order.
    pub fn volumes_of(&self, host: HostId) -> Vec<VolumeId> {
        let fids = self.by_host.get(&host).into_iter().flatten();
        let mut volumes: Vec<VolumeId> = fids.map(|fid| fid.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes
    }

    // ---- verbs

    /// Promises the host to call back when the file changes; returns for how long, from now.
    ///
    /// To be called before the file is looked at: a change that comes after the look then finds the promise. Whoever looked
    /// checks with [`holds`](Self::holds) afterwards that no change came before.
    pub fn promise(&mut self, now: Instant, host: HostId, fid: AfsFid, kind: Kind) -> Duration {
        let fid = if kind == Kind::ReadOnly { AfsFid::whole_volume(fid.volume) } else { fid };
        let holders = self.files.get(&fid).map_or(0, |holders| holders.len());
        let life = match kind {
            Kind::ReadOnly => READ_ONLY_LIFE,
            Kind::Single => life(holders),
            Kind::Bulk => life(holders + BULK_HOLDERS),
        };
        let told = round_up(now + life);
        self.hold(host, fid, round_of(told + GRACE));
        told.since(now)
    }

    /// The host holds a promise for the file until the end of the round at least.
    fn hold(&mut self, host: HostId, fid: AfsFid, round: u64) {
        let holders = self.files.entry(fid).or_default();
        match holders.iter_mut().find(|promise| promise.host == host) {
            // It has an entry in `ends`, which finds out that it is for later.
            Some(promise) => promise.round = promise.round.max(round),
            None => {
                holders.push(Promise { host, round });
                self.by_host.entry(host).or_default().insert(fid);
                self.count += 1;
                count(&mut self.totals.made, 1);
                self.ends.entry(round).or_default().push(fid);
                self.end_entries += 1;
                self.drop_stale_ends();
            }
        }
    }

    /// The second host is promised all that the first was, for as long.
    pub fn give_the_same(&mut self, from: HostId, to: HostId) {
        let fids: Vec<AfsFid> = self.by_host.get(&from).into_iter().flatten().copied().collect();
        for fid in fids {
            let Some(holders) = self.files.get(&fid) else { continue };
            let Some(promise) = holders.iter().find(|promise| promise.host == from) else { continue };
            self.hold(to, fid, promise.round);
        }
    }

    /// Has to be called after promises were made, the last of them to this host: with too many, the machine whose hosts have the most
    /// gives up those of its largest host, until there is some room; so that a machine that takes what it can get, under
    /// however many ports, pays for itself. Returns the hosts that have to be told to forget everything that they have from here.
    pub fn make_room(
        &mut self,
        newest: HostId,
        machine_of: impl Fn(HostId) -> Option<IpAddr>,
    ) -> Vec<HostId> {
        if self.count <= self.limit {
            return Vec::new();
        }
        count(&mut self.totals.was_full, 1);
        // Who has just got one is spared if another has as many.
        let mut machines: HashMap<Option<IpAddr>, (usize, BinaryHeap<_>)> = HashMap::new();
        for (host, fids) in &self.by_host {
            let (sum, hosts) = machines.entry(machine_of(*host)).or_default();
            *sum += fids.len();
            hosts.push((fids.len(), *host != newest, *host));
        }
        let mut machines: Vec<_> = machines.into_values().collect();
        let mut order: BinaryHeap<_> = machines.iter().enumerate().map(|(at, (sum, _))| (*sum, at)).collect();
        let mut gone = Vec::new();
        while self.count > self.limit - self.limit / MORE_ROOM
            && let Some((sum, at)) = order.pop()
            && let Some((count, _, host)) = machines[at].1.pop()
        {
            self.host_gone(host);
            gone.push(host);
            order.push((sum - count, at));
        }
        gone
    }

    /// The file has changed: all promises for it but that of `except` end. Returns who has to be told, in order.
    pub fn changed(&mut self, fid: AfsFid, except: Option<HostId>) -> Vec<HostId> {
        let hosts = self.end_of_file(fid, except);
        count(&mut self.totals.broken, hosts.len());
        hosts
    }

    fn end_of_file(&mut self, fid: AfsFid, except: Option<HostId>) -> Vec<HostId> {
        let Some(holders) = self.files.get_mut(&fid) else { return Vec::new() };
        let mut hosts = Vec::with_capacity(holders.len());
        holders.retain(|promise| {
            let stays = Some(promise.host) == except;
            if !stays {
                hosts.push(promise.host);
            }
            stays
        });
        if holders.is_empty() {
            self.files.remove(&fid);
        }
        for host in &hosts {
            self.forget_at_host(*host, fid);
        }
        hosts.sort_unstable();
        hosts
    }

    /// The file is gone: its promises end, and nobody need be told.
    pub fn removed(&mut self, fid: AfsFid) {
        let hosts = self.end_of_file(fid, None);
        count(&mut self.totals.files_gone, usize::from(!hosts.is_empty()));
    }

    /// Anything of the volume may have changed, or it is no longer here: all promises in it end. Returns who has to be told
    /// about the whole volume, in order.
    pub fn volume_changed(&mut self, volume: VolumeId) -> Vec<HostId> {
        let fids: Vec<AfsFid> = self
            .files
            .range((Bound::Included(AfsFid::whole_volume(volume)), Bound::Unbounded))
            .map(|(fid, _)| *fid)
            .take_while(|fid| fid.volume == volume)
            .collect();
        let mut hosts: Vec<HostId> = fids.into_iter().flat_map(|fid| self.changed(fid, None)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// The host does not want to be told about the file any longer. A fid without vnode means the promise for a read-only
    /// volume.
    pub fn gave_up(&mut self, host: HostId, fid: AfsFid) {
        if self.by_host.get(&host).is_some_and(|fids| fids.contains(&fid)) {
            self.forget_at_file(host, fid);
            self.forget_at_host(host, fid);
            count(&mut self.totals.given_up, 1);
        }
    }

    /// The host is gone, or has forgotten everything: all its promises end.
    pub fn host_gone(&mut self, host: HostId) {
        let fids = self.by_host.remove(&host);
        count(&mut self.totals.clients_gone, usize::from(fids.is_some()));
        for fid in fids.into_iter().flatten() {
            self.forget_at_file(host, fid);
            self.count -= 1;
        }
    }

    // ---- what is due

    /// The time when promises end next; nothing has to be done at that moment, only memory comes back.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ends.keys().next().map(|round| end_of(*round))
    }

    /// Forgets the promises that have ended.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(entry) = self.ends.first_entry() {
            let round = *entry.key();
            if end_of(round) > now {
                break;
            }
            let fids = entry.remove();
            self.end_entries -= fids.len();
            for fid in fids {
                self.end_promises(fid, round);
            }
        }
        self.drop_stale_ends();
    }

    // ---- inside

    /// Ends the promises for the file whose round it is; the next of those for later gets an entry again.
    fn end_promises(&mut self, fid: AfsFid, round: u64) {
        let Some(holders) = self.files.get_mut(&fid) else { return };
        let mut ended = Vec::new();
        holders.retain(|promise| {
            if promise.round <= round {
                ended.push(promise.host);
            }
            promise.round > round
        });
        // Only if there is no entry for it: each promise had one of its own, and all of them point here.
        let later: Vec<u64> = holders.iter().map(|promise| promise.round).collect();
        if holders.is_empty() {
            self.files.remove(&fid);
        }
        count(&mut self.totals.timed_out, ended.len());
        for host in ended {
            self.forget_at_host(host, fid);
        }
        if let Some(next) = later.into_iter().min() {
            self.ends.entry(next).or_default().push(fid);
            self.end_entries += 1;
        }
    }

    /// Entries for promises that ended before their time are taken out when they are more than half.
    fn drop_stale_ends(&mut self) {
        const SLACK: usize = 1024;
        if self.end_entries <= 2 * self.count + SLACK {
            return;
        }
        self.ends.clear();
        self.end_entries = self.files.len();
        for (fid, holders) in &self.files {
            let round = holders.iter().map(|promise| promise.round).min();
            self.ends.entry(round.expect("a file without holders is removed")).or_default().push(*fid);
        }
    }

    fn forget_at_file(&mut self, host: HostId, fid: AfsFid) {
        if let Some(holders) = self.files.get_mut(&fid) {
            holders.retain(|promise| promise.host != host);
            if holders.is_empty() {
                self.files.remove(&fid);
            }
        }
    }

    fn forget_at_host(&mut self, host: HostId, fid: AfsFid) {
        if let Some(fids) = self.by_host.get_mut(&host) {
            if fids.remove(&fid) {
                self.count -= 1;
            }
            if fids.is_empty() {
                self.by_host.remove(&host);
            }
        }
    }
}

fn count(total: &mut u32, more: usize) {
    *total = total.wrapping_add(more as u32);
}

fn life(holders: usize) -> Duration {
    LIVES.iter().find(|(below, _)| holders < *below).map_or(Duration::ZERO, |(_, life)| *life)
}

fn round_up(at: Instant) -> Instant {
    let round = ROUND.as_nanos() as u64;
    Instant::from_nanos(at.as_nanos().div_ceil(round).saturating_mul(round))
}

fn round_of(at: Instant) -> u64 {
    at.as_nanos().div_ceil(ROUND.as_nanos() as u64)
}

fn end_of(round: u64) -> Instant {
    Instant::from_nanos(round.saturating_mul(ROUND.as_nanos() as u64))
}

#[cfg(test)]
mod tests;
