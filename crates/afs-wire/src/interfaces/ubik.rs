//! Ubik, what database servers ask each other and `udebug` asks them (VLDB notes 9): the votes in [`vote`], the
//! database in [`disk`]. Both are served on the port of each database.

pub mod disk;
pub mod vote;

use crate::ids::{AfsTime, HostAddr};
use rxgen::wire_struct;

/// Addresses of one server (`UBIK_MAX_INTERFACE_ADDR`).
pub const UBIK_MAX_INTERFACE_ADDR: usize = 256;

wire_struct! {
    /// Version of a database.
    #[derive(Copy, Default)]
    struct UbikVersion {
        /// The time when the sync site was elected.
        epoch: AfsTime,
        /// Transactions since.
        counter: i32,
    }

    /// A transaction of a database.
    #[derive(Copy, Default)]
    struct UbikTid {
        /// The time when the sync site was elected.
        epoch: AfsTime,
        /// Transactions since.
        counter: i32,
    }

    /// State of a server, in the old form.
    #[derive(Copy)]
    struct UbikDebugOld {
        /// The server's clock.
        now: AfsTime,
        /// The time when it last voted yes.
        last_yes_time: AfsTime,
        /// The server that it voted for then.
        last_yes_host: HostAddr,
        /// Nonzero if that one was the sync site.
        last_yes_state: i32,
        /// The time when that vote began.
        last_yes_claim: AfsTime,
        /// The server with the lowest address.
        lowest_host: HostAddr,
        /// The time when it was heard of.
        lowest_time: AfsTime,
        /// The sync site.
        sync_host: HostAddr,
        /// The time when it was heard of.
        sync_time: AfsTime,
        /// Its database.
        sync_version: UbikVersion,
        /// Its transaction.
        sync_tid: UbikTid,
        /// Nonzero if this server is the sync site.
        am_sync_site: i32,
        /// The time until which it is.
        sync_site_until: AfsTime,
        /// Servers that vote.
        n_servers: i32,
        /// Pages locked.
        locked_pages: i32,
        /// Pages locked for writing.
        write_locked_pages: i32,
        /// The server's database.
        local_version: UbikVersion,
        /// Nonzero if a transaction that writes is active.
        active_write: i32,
        /// Its number.
        tid_counter: i32,
        /// Nonzero if there are locks.
        any_read_locks: i32,
        /// Nonzero if there are locks for writing.
        any_write_locks: i32,
        /// Bits of the recovery's state.
        recovery_state: i32,
        /// Nonzero if a transaction is active.
        current_trans: i32,
        /// Nonzero if that transaction writes.
        write_trans: i32,
        /// The time when the server was started.
        epoch_time: AfsTime,
    }

    /// State of a server.
    struct UbikDebug {
        /// All but its addresses.
        state: UbikDebugOld,
        /// Its addresses.
        interface_addr: [HostAddr; UBIK_MAX_INTERFACE_ADDR],
    }

    /// State of another server as seen from the one asked, in the old form.
    #[derive(Copy)]
    struct UbikSDebugOld {
        /// The other.
        addr: HostAddr,
        /// The time when it last voted.
        last_vote_time: AfsTime,
        /// The time when it was last asked to.
        last_beacon_sent: AfsTime,
        /// Its last vote.
        last_vote: i32,
        /// Its database.
        remote_version: UbikVersion,
        /// Nonzero if that is the newest.
        current_db: i32,
        /// Nonzero if it has been asked since it came back.
        beacon_since_down: i32,
        /// Nonzero if it is there.
        up: i32,
    }

    /// State of another server as seen from the one asked.
    struct UbikSDebug {
        /// All but its other addresses.
        state: UbikSDebugOld,
        /// Its other addresses.
        alt_addr: [HostAddr; UBIK_MAX_INTERFACE_ADDR - 1],
    }

    /// Addresses of a server.
    struct UbikInterfaceAddr {
        /// Those there are, then zeros.
        host_addr: [HostAddr; UBIK_MAX_INTERFACE_ADDR],
    }

    /// A piece of a write.
    #[derive(Copy)]
    struct UbikIovec {
        /// Number of the file: 0.
        file: i32,
        /// The place in it, in bytes.
        position: i32,
        /// The length, in bytes.
        length: i32,
    }
}
