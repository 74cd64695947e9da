//! Faults of a dump, and their places in the stream.

use afs_wire::acl::AclError;
use afs_wire::ids::{LocalFid, VnodeNumber};
use std::fmt;

/// A stream that is no dump, or is damaged. Everything that came of it before is to be dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpError {
    /// The place in the stream, in bytes from its beginning: the tag, record or page that is wrong; for a stream that ends early, its
    /// length.
    pub offset: u64,
    /// The fault.
    pub fault: Fault,
}

/// A fault of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin as a dump does.
    NotADump,
    /// A dump of another format.
    Version(u32),
    /// It ends in the middle of something.
    Ends {
        /// The item that was being read.
        within: &'static str,
    },
    /// There are bytes behind its end.
    Continues,
    /// Its end is marked by other bytes than a dump's end.
    BadEnd,
    /// A section that is none, or that may not stand here.
    OutOfPlace {
        /// The section's tag.
        tag: u8,
    },
    /// A tag that must not be passed over and that nobody here knows.
    UnknownTag {
        /// The tag.
        tag: u8,
        /// True if the stream says that it must be understood.
        is_critical: bool,
    },
    /// A length that no reader can have: its bytes do not fit into 64 bits.
    BadLength,
    /// The dump's header does not say something that it has to say.
    MissingInHeader(&'static str),
    /// More dates in the dump's header than a dump has, or no pairs of them.
    BadRanges(u16),
    /// A text that is longer than that may be.
    TooLong {
        /// The text.
        what: &'static str,
        /// Bytes that it may have.
        limit: usize,
    },
    /// A vnode that cannot be.
    BadVnode {
        /// The vnode.
        fid: LocalFid,
        /// The reason.
        why: &'static str,
    },
    /// A vnode that was there already.
    Twice(VnodeNumber),
    /// A vnode that comes long after those with much higher numbers, so that nobody remembers whether it was there already.
    TooLate(VnodeNumber),
    /// A page of a directory that is none.
    BadPage {
        /// The directory.
        directory: LocalFid,
        /// The page, from 0.
        page: u32,
        /// The reason.
        why: &'static str,
    },
    /// An access list that is none.
    BadAcl {
        /// The directory.
        directory: LocalFid,
        /// The reason.
        why: AclError,
    },
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the dump: ", self.offset)?;
        match &self.fault {
            Fault::NotADump => f.write_str("this is no dump of a volume"),
            Fault::Version(version) => {
                write!(f, "the dump has version {version}, and only version 1 is known")
            }
            Fault::Ends { within } => write!(f, "the dump ends here, in the middle of {within}"),
            Fault::Continues => f.write_str("the dump has ended, and more bytes follow"),
            Fault::BadEnd => f.write_str("the mark of the dump's end is damaged"),
            Fault::OutOfPlace { tag } => write!(f, "a section with tag {tag} cannot stand here"),
            Fault::UnknownTag { tag, is_critical: true } => {
                write!(f, "tag {tag:#04x} is not known, and the dump says that it must be understood")
            }
            Fault::UnknownTag { tag, is_critical: false } => {
                write!(f, "tag {tag:#04x} is not known, nor how long it is")
            }
            Fault::BadLength => f.write_str("this length cannot be"),
            Fault::MissingInHeader(what) => write!(f, "the dump's header does not say {what}"),
            Fault::BadRanges(words) => write!(f, "the dump's header cannot have {words} dates"),
            Fault::TooLong { what, limit } => write!(f, "{what} has more than {limit} bytes"),
            Fault::BadVnode { fid, why } => write!(f, "vnode {fid} {why}"),
            Fault::Twice(vnode) => write!(f, "vnode {vnode} comes a second time"),
            Fault::TooLate(vnode) => {
                write!(f, "vnode {vnode} comes too long after vnodes with higher numbers")
            }
            Fault::BadPage { directory, page, why } => {
                write!(f, "page {page} of directory {directory} {why}")
            }
            Fault::BadAcl { directory, why } => write!(f, "the access list of directory {directory}: {why}"),
        }
    }
}

impl std::error::Error for DumpError {}
