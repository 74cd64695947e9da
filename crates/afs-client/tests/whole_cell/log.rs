//! What is written down of a run: each datagram and each step with its time, and how often what happened.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use rx_proto::time::Instant;

/// The owner of a disk, with what it has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A file server's, with volumes.
    Partition,
    /// A file server's, with the list of those who may hold callback promises.
    Promises,
    Databases,
    /// A client's.
    Cache,
}

/// How a disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// It is dead in the midst of what its owner does, who dies soon after.
    Cut,
    /// One write or sync fails.
    OneError,
    /// All writes and syncs fail for a while.
    Errors,
    /// It has no room for a while.
    Full,
    /// For a while it cannot be read from some place of each file on.
    Unreadable,
}

/// What happens in a run. A fault counts when an operation of the disk's owner has met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Rewrite,
    Read,
    ChangeOfNames,
    ChangeOfDatabases,
    Move,
    /// Datagrams are lost for a while.
    Loss,
    /// A client and a server do not reach each other for a while.
    Parting,
    ClientKilled,
    ClientLosesPower,
    ServerKilled,
    ServerLosesPower,
    DatabasesKilled,
    DatabasesLosePower,
    Disk(Owner, Fault),
}

impl Event {
    /// All that a number of runs together must have had.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let disks = [Owner::Partition, Owner::Promises, Owner::Databases, Owner::Cache];
        let faults = [Fault::Cut, Fault::OneError, Fault::Errors, Fault::Full, Fault::Unreadable];
        let disks = disks.into_iter().flat_map(move |owner| faults.map(|fault| Self::Disk(owner, fault)));
        // The databases' file begins with more room than what is put into it in a run.
        let disks = disks.filter(|event| *event != Self::Disk(Owner::Databases, Fault::Full));
        [
            Self::Rewrite,
            Self::Read,
            Self::ChangeOfNames,
            Self::ChangeOfDatabases,
            Self::Move,
            Self::Loss,
            Self::Parting,
            Self::ClientKilled,
            Self::ClientLosesPower,
            Self::ServerKilled,
            Self::ServerLosesPower,
            Self::DatabasesKilled,
            Self::DatabasesLosePower,
        ]
        .into_iter()
        .chain(disks)
    }
}

/// How often what happened.
pub(crate) type Counts = BTreeMap<Event, u64>;

/// The log of a run. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    text: String,
    counts: Counts,
}

impl Log {
    pub(crate) fn note(&self, now: Instant, what: &str) {
        writeln!(self.0.lock().unwrap().text, "{} {what}", now.as_nanos()).unwrap();
    }

    pub(crate) fn count(&self, event: Event) {
        *self.0.lock().unwrap().counts.entry(event).or_default() += 1;
    }

    /// What was done last, the newest first, without the datagrams.
    pub(crate) fn end(&self) -> String {
        let written = self.0.lock().unwrap();
        let steps = written.text.lines().filter(|line| !line.contains(" > "));
        steps.rev().take(40).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().text.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().unwrap().counts.clone()
    }
}

/// FNV-1a, which is the same everywhere.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
