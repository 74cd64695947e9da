//! The definitions on which two AFS programs must agree: ids, structures, the interfaces of every server and of
//! the cache manager, the codes with which calls fail, rights and access lists as text, and the pages of a
//! directory.
//!
//! Nothing here does I/O, reads a clock or decides anything: what a call means is left to the servers and the client,
//! and how it travels to `rx`. Facts of the protocol are in the project's `docs/notes`; comments cite them by section.
//!
//! # What to open for a change
//!
//! - An RPC of AFS, or a structure in it: [`interfaces`], which has a file for each interface. Then write the
//!   handler: the compiler says which is missing.
//! - An abort code, its meaning or its errno: [`abort`], and [`errno`] for the `UAE` numbers.
//! - The pages of directories, and the check for damaged ones: [`directory`], [`directory::layout`].
//! - Access lists, as text and in a dump: [`acl`].
//! - What commands ask the client on their machine: [`interfaces::control`].

#![forbid(unsafe_code)]

#[macro_use]
mod newtypes;

pub mod abort;
pub mod acl;
pub mod directory;
pub mod errno;
pub mod ids;
pub mod interfaces;
pub mod rights;
pub mod status;

pub use errno::Errno;
pub use interfaces::{afsvol, bos, control, join, pt, rxafs, rxafscb, rxgk, rxstats, ubik, vl};
pub use rxgen::Abort;
pub use rxgen::xdr::Uuid;
