//! The kernel's side of a file system in user space: the device /dev/fuse, its requests as values, the answers to them, the
//! notices by which the kernel forgets, and mounting. What a file system does with a request is left to its [`Handler`].
//!
//! It is of Linux, protocol 7.31 to 7.45, and knows nothing of AFS. Why it is not a crate from elsewhere is in
//! docs/decisions/0004-fuse-device.md. Facts about the protocol are from the kernel's header fuse.h and from what was
//! measured; "FUSE notes" is docs/notes/fuse.md.
//!
//! # What to open for a change
//!
//! - A request: [`operation`], `src/operation/parse.rs`. An answer: [`answer`]. A notice: [`notice`].
//! - How a file system is mounted: [`mount`]. Tests on a real mount: `tests/mounted.rs`.

#![deny(unsafe_code)]

mod answer;
mod device;
mod entries;
mod fields;
pub mod mount;
mod mounts;
mod negotiate;
mod notice;
mod operation;
mod session;
mod sys;

pub use answer::{Attributes, Entry, FileSystemSpace, KernelLock, Kind, OpenFlags, Reply};
pub use device::{Backing, Device};
pub use entries::{Entries, PlusEntries};
pub use fields::Malformed;
pub use mount::{MountError, MountOptions, Mounted};
pub use mounts::{MountPoint, StateOf, mount_points, state_of};
pub use negotiate::{Features, Offer, Settings};
pub use notice::Notifier;
pub use operation::{
    Access, Caller, Forgets, Handle, Lock, LockKind, LockRange, NodeId, Operation, Request, SetAttributes,
    SetTime, Unique,
};
pub use session::{Handler, Session};
