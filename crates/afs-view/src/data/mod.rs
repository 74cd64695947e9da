//! The data of files, and files that are open: which version of a file the cache has ([`files`]), fetching what is
//! missing ([`fetch`]), the streams of data from and to servers ([`streams`]), reading ([`read`]), writing ([`mod@write`]) and storing what was written ([`write_back`]), after a
//! close that does not wait for it too ([`write_behind`], where [`store_behind`] says so, [`fsync`](mod@fsync), with the room that volumes have left in `room.rs`), and whose a store was whose answer never came (`settle.rs`), handles
//! ([`open_file`]), what outlasts the client of what is known of volumes and vnodes ([`known`]), which files are open and keep living without a name ([`open_files`]), and locks ([`locks`]).
//!
//! How bytes lie on the disk is left to the crate `afs-cache`; how a server is reached, to `afs-reach`.

pub mod fetch;
pub mod files;
pub mod fsync;
pub mod known;
pub mod locks;
pub mod open_file;
pub mod open_files;
pub mod read;
mod room;
mod settle;
pub mod store_behind;
pub mod streams;
pub(crate) mod write;
mod write_back;
pub mod write_behind;
