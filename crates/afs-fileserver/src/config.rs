//! The configuration of a file server.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use afs_volume::disk::Disk;
use afs_wire::Uuid;
use afs_wire::ids::AfsTime;
use afs_wire::rights::Rights;

use crate::access::{IMPLICIT_ADMIN, Writers};
use crate::hosts::HostLimits;
use crate::locations::Locations;

/// The configuration of a file server.
#[derive(Debug, Clone)]
pub struct Config {
    /// The id by which clients know the server, whatever its addresses: it stays the same for as long as the server's
    /// volumes do.
    pub uuid: Uuid,
    /// The longest that a change waits for clients to be told of it. Default 1.9 s, so that its caller has an answer
    /// within two: those that did not answer by then are told later. Less gives up on clients that are merely slow;
    /// with more, one that vanished holds up the next writer.
    pub break_wait: Duration,
    /// The longest that the first call of a client waits for the client to say who it is. Default 3 s.
    pub introduction_wait: Duration,
    /// Most promises to call back, some 100 bytes each. Default 1,000,000.
    pub max_promises: usize,
    /// Limits of the table of clients.
    pub hosts: HostLimits,
    /// The time for which groups and names are believed before the protection database is asked again. Default 5
    /// minutes: so long somebody taken out of a group keeps the rights that it gave, unless `FlushCPS` is called.
    pub membership_life: Duration,
    /// The disk on which to write down who may hold promises, in a [file](crate::remembered::NAME), so that clients are told after
    /// a restart of the server. Default `None`: not at all, and clients are told when they call next.
    pub promises: Option<Arc<dyn Disk>>,
    /// The volume location database, for clients that ask the file server where volumes are (`GetVolumeInfo`). Default `None`:
    /// they are told that there is no such volume.
    pub locations: Option<Arc<dyn Locations>>,
    /// The users who may change anything through this server. Default everybody who has the rights.
    pub writers: Writers,
    /// The rights of members of `system:administrators` everywhere. Default [`IMPLICIT_ADMIN`]. They may change access lists
    /// and status in any case.
    pub implicit_rights: Rights,
    /// True if the access lists that clients before 2018 send are taken, too. Default yes: others cannot store any.
    pub takes_old_acls: bool,
    /// Calls served at once; the others wait. Default 1024.
    pub max_calls: usize,
    /// Calls that wait; the others are answered VBUSY. Default 4096.
    pub max_waiting: usize,
    /// The time of day.
    pub clock: WallClock,
}

impl Config {
    /// The defaults, for a server of this UUID.
    pub fn new(uuid: Uuid) -> Self {
        Self {
            uuid,
            break_wait: Duration::from_millis(1900),
            introduction_wait: Duration::from_secs(3),
            max_promises: 1_000_000,
            hosts: HostLimits::default(),
            membership_life: Duration::from_secs(300),
            promises: None,
            locations: None,
            writers: Writers::Everybody,
            implicit_rights: IMPLICIT_ADMIN,
            takes_old_acls: true,
            max_calls: 1024,
            max_waiting: 4096,
            clock: WallClock::system(),
        }
    }
}

/// The source of the time of day, since 1970.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl WallClock {
    /// The operating system's.
    pub fn system() -> Self {
        Self::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }

    /// One of the caller's choice.
    pub fn new(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(clock))
    }

    /// The time since 1970.
    pub fn since_1970(&self) -> Duration {
        (self.0)()
    }

    /// The time in seconds, as the protocol has it until 2106.
    pub fn now(&self) -> AfsTime {
        AfsTime(self.since_1970().as_secs() as u32)
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallClock({:?})", self.since_1970())
    }
}
