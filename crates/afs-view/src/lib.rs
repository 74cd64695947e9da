//! What a client of AFS shows of files: vnodes and what servers have promised of them, directories and names, data in the cache, locks. It
//! asks servers through `afs-reach`, and leaves how data lie on the disk to `afs-cache`.
//!
//! - [`vnodes`] is the table of what is known. A status counts while the server's promise to call back has neither expired nor been
//!   broken, and the user's rights are known. A reply's promise counts only if none was broken while the reply was on its way (counters
//!   of breaks tell).
//! - [`names`] looks up names. The directory's pages come from `names::directory`, which fetches them once and keeps them, edited here
//!   after changes of our own. `names::mount_point` crosses into other volumes.
//! - [`data`] keeps the data of files in the cache, and fetches and stores them through its streams.
//! - [`journal`] keeps changes of names that were made here and sends them to servers, with write-behind.
//! - [`pins`] keeps what users have pinned: it fetches trees, and fetches again what others change, so that they are here without the server.
//! - [`events`] tells those who keep copies what has changed. [`dependents`] hears from `afs-reach` of volumes that have moved.
//!
//! # What to open for a change
//!
//! - How long a status is valid, and for which user: [`vnodes::vnode`]. Tests: `src/vnodes/vnode/tests.rs`.
//! - How a change of names edits the copy of a directory: [`names::changes`], `src/names/changes/ends.rs`,
//!   [`names::directory`].
//! - A change of names that does not wait for the server: `src/names/changes/here.rs`, [`journal`]; what shows of it: `src/vnodes/vnode/ahead.rs`. When it is sent: [`journal`], `src/pause.rs`.
//! - Mount points, the dynamic root, `@sys`: [`names::mount_point`], [`names::dynroot`], [`names::lookup`],
//!   [`names::links`].
//! - `.snapshots`: [`names::snapshots`]. Tests: `crates/afs-client/tests/snapshots.rs`.
//! - Which version of a file is read: [`data::files`]; `may_be_mixed` in [`data::fetch`] keeps a read from mixing two releases of a
//!   volume. How many calls fetch: [`data::fetch`], [`data::fetch::pace`], [`data::fetch::readahead`], [`data::fetch::prefetch`].
//! - How written data are kept and stored: `src/data/write.rs`, `src/data/write_back.rs`, after a close that does not wait: [`data::write_behind`]; where that is so: [`data::store_behind`]; what `fsync` means then: [`mod@data::fsync`]; how they travel: [`data::streams`]. Locks:
//!   [`data::locks`]; `crates/afs-client/tests/locks.rs`.
//! - What counts without the server: `src/vnodes/vnode/offline.rs`; what is pinned: [`pins`], `crates/afs-client/tests/pin.rs`.
//! - What a start without servers shows: [`data::known`], `src/vnodes/vnode/earlier.rs`. Tests: `crates/afs-client/tests/offline_start.rs`.
//! - Who is told of a change, and who waits for that: [`events`].

#![forbid(unsafe_code)]

pub mod data;
pub mod dependents;
pub mod events;
pub mod journal;
pub mod names;
mod pause;
pub mod pins;
pub mod vnodes;
