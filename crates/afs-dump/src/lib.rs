//! The dump of a volume: the stream that `vos dump` writes to a file, and that file servers send each other when a volume is moved or
//! released (Volume service notes 5).
//!
//! [`Reader`] takes the stream in pieces of any size and gives what is in it; [`Writer`] appends what it is told to a
//! buffer. Both are values without I/O, and their memory is bounded, however large the volume is. The volume service
//! decides what a volume makes of a dump, and in which order it reads its own vnodes to write one.
//!
//! The reader accepts what OpenAFS's volserver accepts, with the tags of others passed over; the writer writes what that one writes.
//!
//! # What to open for a change
//!
//! - What the reader skips or refuses: [`reader`], and `src/reader/vnode.rs` for a vnode's record.
//! - What is written: [`writer`].
//! - Tests with dumps of OpenAFS's servers: `tests/streams.rs`.

#![forbid(unsafe_code)]

mod arrival;
mod error;
mod fields;
mod reader;
mod records;
mod seen;
mod writer;

pub use arrival::{ARRIVALS_MAX, Arrival, VnodeDigest};
pub use error::{DumpError, Fault};
pub use reader::{Event, Reader};
pub use records::{DumpHeader, DumpRange, VnodeAttributes, VnodeKind, VnodeRecord, VolumeHeader};
pub use writer::{WriteError, Writer};

/// Marks of the stream (Volume service notes 5.1).
pub(crate) mod magic {
    pub(crate) const DUMP: u32 = 0xB3A1_1322;
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const END: u32 = 0x3A21_4B6E;
}

/// The tag of a volume's level, which is ours: in the volume's header, four bytes, of which three are a mark, since others may
/// use the tag (Volume service notes 5.6).
pub(crate) mod level {
    pub(crate) const TAG: u8 = b'l';
    pub(crate) const MARK: u32 = u32::from_be_bytes(*b"\0afr");
}

/// The tag of a volume's schedule of snapshots, which is ours: in the volume's header, with its length as tags have it that others skip, a mark,
/// and four counts of two bytes (Volume service notes 5.8).
pub(crate) mod schedule {
    pub(crate) const TAG: u8 = b'S';
    pub(crate) const MARK: [u8; 4] = *b"afr\0";
    pub(crate) const LENGTH: u8 = 4 + 4 * 2;
    /// The same tag and mark with this length have the limit of what the volume's snapshots hold, in KiB (Volume service notes 5.12).
    pub(crate) const LENGTH_OF_LIMIT: u8 = 4 + 4;
}

/// The tag that says of the next one that a reader must know it (Volume service notes 5.3).
pub(crate) const CRITICAL: u8 = 0x7e;

/// The last four bytes of each dump, in network order (Volume service notes 5.1).
pub const END_MARK: u32 = magic::END;

/// The tags that begin a section (Volume service notes 5.1).
pub(crate) mod section {
    pub(crate) const DUMP: u8 = 1;
    pub(crate) const VOLUME: u8 = 2;
    pub(crate) const VNODE: u8 = 3;
    pub(crate) const END: u8 = 4;
    /// The last tag that ends a section; those that are not above are no section that anybody knows.
    pub(crate) const LAST: u8 = 20;
}
