//! DISK, how the sync site writes to the other database servers (VLDB notes 9).

use super::{UbikInterfaceAddr, UbikIovec, UbikTid, UbikVersion};
use rxgen::interface;
use rxgen::xdr::{Opaque, XdrArray};

/// Most bytes of one `Write`.
pub const BULK_DATA_MAX: usize = 20_000;
/// Most bytes of one `WriteV`.
pub const IOVEC_MAXBUF: usize = 65_536;
/// Most pieces of one `WriteV`.
pub const IOVEC_MAXWRT: usize = 64;

/// Bytes to write.
pub type BulkData = Opaque<BULK_DATA_MAX>;
/// The places where they go.
pub type IovecWrt = XdrArray<UbikIovec, IOVEC_MAXWRT>;
/// The bytes that go there.
pub type IovecBuf = Opaque<IOVEC_MAXBUF>;

interface! {
    /// The database of database servers.
    Disk on service 51 port 7003 {
        /// Begins a transaction.
        20000 Begin (tid: UbikTid);
        /// Ends it.
        20001 Commit (tid: UbikTid);
        /// Locks part of the database.
        20002 Lock (tid: UbikTid, file: i32, position: i32, length: i32, kind: i32);
        /// Writes.
        20003 Write (tid: UbikTid, file: i32, position: i32, data: BulkData);
        /// The version of the database.
        20004 GetVersion () -> (version: UbikVersion);
        /// The database: a length word and its bytes.
        20005 GetFile (file: i32) split from_server -> (version: UbikVersion);
        /// Replaces the database.
        20006 SendFile (file: i32, length: i32, version: UbikVersion) split from_client;
        /// Ends a transaction without effect.
        20007 Abort (tid: UbikTid);
        /// Unlocks.
        20008 ReleaseLocks (tid: UbikTid);
        /// Shortens the database.
        20009 Truncate (tid: UbikTid, file: i32, length: i32);
        /// Asks whether the server is there.
        20010 Probe ();
        /// Writes several pieces.
        20011 WriteV (tid: UbikTid, io_vector: IovecWrt, io_buffer: IovecBuf);
        /// Exchanges addresses.
        20012 UpdateInterfaceAddr (addr: UbikInterfaceAddr) -> (addr: UbikInterfaceAddr);
        /// Sets the version of the database.
        20013 SetVersion (tid: UbikTid, old_version: UbikVersion, new_version: UbikVersion);
    }
}
