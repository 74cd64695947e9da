//! AFS as a file system of the kernel: what `afs-client` knows, told to FUSE. Each request becomes an operation of the client
//! and its outcome an answer; besides, the kernel is told for how long it may keep what, and when to forget it.
//!
//! # How a request goes through
//!
//! A thread of `fuse-dev` reads it and calls `file_system`. What the client has in memory is answered there and then:
//! no other thread is woken. Else a task goes on with it (`FileSystem::run`), and `in_flight` ends it with EINTR when
//! its caller gets a signal that means to give up.
//!
//! # What the kernel keeps
//!
//! `nodes` has what the kernel knows: nodes, look-ups, names. `attributes` says for how long something may be kept;
//! `notices` revokes it. If there are too many nodes, `node_limit` has the kernel let go of those that it has used
//! least. The table in `modes` says in which ways files may be open, and what happens to them when their data change
//! elsewhere.
//!
//! What of POSIX there is not, and why, is in docs/semantics.md.
//!
//! # What to open for a change
//!
//! - What an operation does in a mount: [`files`], [`names`], [`directories`], [`attributes`], [`status`],
//!   [`locks`].
//! - Which thread reads a cached file: `read` in [`files`].
//! - How one file may be open several times, and what a change elsewhere does to it: the table in [`modes`].
//! - How an open and a lock get the newest length into the kernel: [`newest`], [`locks`]. Tests:
//!   `crates/afar/tests/kept_open.rs`, `crates/afar/tests/together.rs`.
//! - Where an append goes, and what a READ returns while others change the file: [`kernel_length`].
//! - What the kernel may cache, for how long, and when it has to forget: [`attributes`], [`nodes`], [`notices`].
//! - What a rename finds that another client has overtaken: [`old_names`], `src/nodes/table.rs`.
//! - The numbers of files (`st_ino`): [`inodes`]. How the kernel is made to forget files: [`node_limit`].
//! - What a program sees, without a kernel: `tests/`, where a small kernel of ours asks over a pair of sockets (`tests/kernel.rs`).
//! - Which PAG a request is from: [`callers`]. Which signals end a waiting call: [`in_flight`].

#![forbid(unsafe_code)]

mod answer;
mod attributes;
mod callers;
mod data_invalidations;
mod directories;
mod file_system;
mod files;
mod handles;
mod in_flight;
mod inodes;
mod kernel_length;
mod kernel_locks;
mod lock_table;
mod locks;
mod modes;
mod mount;
mod names;
mod newest;
mod node_limit;
mod nodes;
mod notices;
mod old_names;
mod status;

pub use attributes::Owner;
pub use mount::{Error, Mount, Options, Served};
