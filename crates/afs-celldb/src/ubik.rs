//! VOTE, as far as tools ask it: `udebug` shows the state of a database server (VLDB notes 9). Nobody votes here. A server that has
//! its databases alone is its own sync site for ever. One whose databases are in etcd is a sync site as long as etcd
//! answers, like its peers, since all of them take changes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use afs_wire::ids::{AfsTime, HostAddr};
use afs_wire::ubik::vote::*;
use afs_wire::ubik::{UBIK_MAX_INTERFACE_ADDR, UbikDebug, UbikDebugOld, UbikTid, UbikVersion};
use rxgen::{Abort, Serve, ServerCall};

use crate::database::{Database, Freshness, Image};
use crate::serving::Clock;

/// UBADHOST: who asks for a vote is no server of this database.
const BAD_HOST: Abort = Abort(5385);

/// UNOQUORUM: there is no quorum for changes. Clients ask the next server.
pub const NO_QUORUM: Abort = Abort(5376);

/// What says that there are no more servers to be shown.
const NO_MORE_SERVERS: Abort = Abort(2);

/// Ubik's states of recovery, all of them reached: sync site, database found, have it, know it to be current, have sent it.
const RECOVERED: i32 = 0x1f;

/// What of them is reached without etcd: a database was found, and is there.
const ALONE: i32 = 0x6;

/// Seconds for which etcd's answer counts in what is shown: as long as Ubik's sync site stays one without votes.
const QUORUM_SECONDS: u32 = 60;

/// The time until which a server is the sync site that has no others beside it: for ever.
const FOREVER: u32 = 0x7fff_ffff;

/// Answers the calls of VOTE for one database.
pub struct VoteService<I> {
    database: Arc<Database<I>>,
    addresses: Vec<Ipv4Addr>,
    clock: Clock,
    started: u32,
}

impl<I: Image> std::fmt::Debug for VoteService<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VoteService").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl<I: Image> VoteService<I> {
    /// A service for a database whose server has these addresses; of more than 256 the rest is not shown.
    pub fn new(database: Arc<Database<I>>, addresses: Vec<Ipv4Addr>, clock: Clock) -> Self {
        Self { database, addresses, started: clock(), clock }
    }

    fn state(&self) -> UbikDebugOld {
        let (now, own) = (AfsTime((self.clock)()), self.addresses.first().copied());
        let version = self.database.version();
        let version = UbikVersion { epoch: AfsTime(version.epoch), counter: version.counter as i32 };
        let freshness = self.database.freshness();
        let has_quorum = freshness.is_none_or(|freshness| freshness.has_quorum);
        let confirmed = |freshness: Freshness| AfsTime(now.0.saturating_sub(freshness.age.as_secs() as u32));
        let until = match (has_quorum, &freshness) {
            (false, _) => 0,
            (true, None) => FOREVER,
            (true, Some(_)) => now.0.saturating_add(QUORUM_SECONDS),
        };
        UbikDebugOld {
            now,
            last_yes_time: freshness.map_or(AfsTime(0), confirmed),
            last_yes_host: HostAddr(u32::MAX),
            last_yes_state: 0,
            last_yes_claim: AfsTime(0),
            lowest_host: HostAddr(own.map_or(0, Ipv4Addr::to_bits)),
            lowest_time: now,
            sync_host: HostAddr(0),
            sync_time: AfsTime(0),
            sync_version: version,
            sync_tid: UbikTid::default(),
            am_sync_site: has_quorum.into(),
            sync_site_until: AfsTime(until),
            n_servers: freshness.map_or(1, |freshness| freshness.machines as i32),
            locked_pages: 0,
            write_locked_pages: 0,
            local_version: version,
            active_write: 0,
            tid_counter: version.counter,
            any_read_locks: 0,
            any_write_locks: 0,
            recovery_state: if has_quorum { RECOVERED } else { ALONE },
            current_trans: 0,
            write_trans: 0,
            epoch_time: AfsTime(self.started),
        }
    }

    fn state_with_addresses(&self) -> UbikDebug {
        let mut interface_addr = [HostAddr(0); UBIK_MAX_INTERFACE_ADDR];
        interface_addr.iter_mut().zip(&self.addresses).for_each(|(place, own)| *place = (*own).into());
        UbikDebug { state: self.state(), interface_addr }
    }
}

macro_rules! serves {
    ($($rpc:ident($self:ident) $body:expr;)*) => { $(
        impl<I: Image> Serve<$rpc> for VoteService<I> {
            async fn serve(&$self, _: ServerCall<'_, $rpc>, _: $rpc) -> Result<reply::$rpc, Abort> {
                $body
            }
        }
    )* };
}

serves! {
    Beacon(self) Err(BAD_HOST);
    DebugOld(self) Ok(reply::DebugOld { db: self.state() });
    SDebugOld(self) Err(NO_MORE_SERVERS);
    GetSyncSite(self) Err(Abort::OPCODE);
    Debug(self) Ok(reply::Debug { db: self.state_with_addresses() });
    SDebug(self) Err(NO_MORE_SERVERS);
    XDebug(self) Ok(reply::XDebug { db: self.state_with_addresses(), is_clone: 0 });
    XSDebug(self) Err(NO_MORE_SERVERS);
}
