//! RXSTATS, the statistics of each procedure that most servers keep when told to (Overseer notes 5).

use crate::ids::AfsTime;
use rxgen::interface;
use rxgen::xdr::XdrArray;

/// Most words of statistics: all of a server's procedures, with a hundred peers for each.
pub const STATS_MAX: usize = 1 << 20;
/// Words of statistics.
pub type RpcStats = XdrArray<u32, STATS_MAX>;

interface! {
    /// Procedures that `rxstat_get_process` and the like call on a server.
    RxStats on service 409 port 7000 {
        /// Statistics of the process.
         0 RetrieveProcessRPCStats (client_version: u32)
           -> (server_version: u32, clock_sec: AfsTime, clock_usec: u32, stat_count: u32, stats: RpcStats);
        /// Statistics by peer.
         1 RetrievePeerRPCStats (client_version: u32)
           -> (server_version: u32, clock_sec: AfsTime, clock_usec: u32, stat_count: u32, stats: RpcStats);
        /// Tells whether they are kept for the process.
         2 QueryProcessRPCStats () -> (on: i32);
        /// Tells whether they are kept by peer.
         3 QueryPeerRPCStats () -> (on: i32);
        /// Keep them for the process.
         4 EnableProcessRPCStats ();
        /// Keep them by peer.
         5 EnablePeerRPCStats ();
        /// Stop that.
         6 DisableProcessRPCStats ();
        /// Stop that.
         7 DisablePeerRPCStats ();
        /// Version of the statistics: 1.
         8 QueryRPCStatsVersion () -> (version: u32);
        /// Sets them to 0.
         9 ClearProcessRPCStats (flag: u32);
        /// Sets them to 0.
        10 ClearPeerRPCStats (flag: u32);
    }
}
