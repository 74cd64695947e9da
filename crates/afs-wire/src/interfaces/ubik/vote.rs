//! VOTE, how database servers elect the one that writes, and what they tell `udebug` (VLDB notes 9).

use super::{UbikDebug, UbikDebugOld, UbikSDebug, UbikSDebugOld, UbikTid, UbikVersion};
use crate::ids::AfsTime;
use rxgen::interface;

interface! {
    /// The votes of database servers.
    Vote on service 50 port 7003 {
        /// A candidate asks for a vote.
        10000 Beacon (state: i32, vote_start: AfsTime, version: UbikVersion, tid: UbikTid);
        /// State of the server, without its addresses.
        10001 DebugOld () -> (db: UbikDebugOld);
        /// State of another server, by index, without its other addresses.
        10002 SDebugOld (which: i32) -> (db: UbikSDebugOld);
        /// Means nothing: gives back no site. Not in OpenAFS after 1.8.
        10003 GetSyncSite (site: i32);
        /// State of the server.
        10004 Debug () -> (db: UbikDebug);
        /// State of another server, by index.
        10005 SDebug (which: i32) -> (db: UbikSDebug);
        /// State of the server, and whether it has no vote.
        10006 XDebug () -> (db: UbikDebug, is_clone: i32);
        /// State of another server, by index, and whether it has no vote.
        10007 XSDebug (which: i32) -> (db: UbikSDebug, is_clone: i32);
    }
}
