//! The data of files, and files that are open: which version of a file the cache has ([`files`]), fetching what is
//! missing ([`fetch`]), the streams of data from and to servers ([`streams`]), reading ([`read`]), writing ([`mod@write`]) and storing what was written ([`write_back`]), handles
//! ([`open_file`]), which files are open and keep living without a name ([`open_files`]), and locks ([`locks`]).
//!
//! How bytes lie on the disk is left to the crate `afs-cache`; how they travel, to `servers`.

pub(crate) mod fetch;
pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod open_file;
pub(crate) mod open_files;
pub(crate) mod read;
pub mod streams;
mod write;
mod write_back;
