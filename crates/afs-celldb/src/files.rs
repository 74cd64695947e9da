//! The files in which OpenAFS's servers keep these databases, `vldb.DB0` and `prdb.DB0` (Database file notes are
//! docs/notes/database-files.md): read from bytes into what a database here is made of, and written.
//!
//! A file may be damaged, or come from tools that have left something behind. Everything that can be kept is kept, and what is
//! odd is told ([`Oddities`]). Every chain is followed once and every address checked, so a file costs memory and time in
//! proportion to its length. Files are read and written elsewhere.

mod bytes;
mod oddities;
mod prdb;
mod prdb_read;
mod prdb_write;
#[cfg(test)]
mod tests;
mod ubik;
mod vldb;
mod vldb_read;
mod vldb_write;

pub use oddities::{Oddities, Oddity};
pub use prdb::PrdbContents;
pub use prdb_read::read_prdb;
pub use prdb_write::write_prdb;
pub use vldb::VldbContents;
pub use vldb_read::read_vldb;
pub use vldb_write::write_vldb;

/// Longest file: addresses in it are positive numbers of 32 bits, and a header is before them.
pub const MAX_FILE_BYTES: u64 = i32::MAX as u64 + ubik::HEADER_BYTES as u64;

/// The reason why a file cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The first bytes are not those of a database of Ubik.
    #[error("it is no database of OpenAFS's servers: it does not begin as one")]
    NotUbik,
    /// The database was being copied from another server.
    #[error(
        "its server was still copying it from another one (its version is 0): take the file of another server"
    )]
    Incomplete,
    /// The server has made the file, and nothing in it yet.
    #[error("nothing has ever been written to this database")]
    Empty,
    /// It ends within what every file has.
    #[error("it ends after {length} bytes, within its header: take another copy")]
    Short {
        /// Bytes that the file has.
        length: usize,
    },
    /// Its version, or the length of its header, is of no known server.
    #[error("it has version {version}, or a header, that this program does not know")]
    Version {
        /// The version that it says.
        version: u32,
    },
    /// The log beside it is damaged behind the end of a transaction.
    #[error(
        "the log beside it (.DBSYS1) leads far out of the file: start OpenAFS's server once, which applies it, and stop it"
    )]
    Log,
    /// There is more than such a file can have.
    #[error("there are more {what} than such a file can have, which is {limit}")]
    TooMuch {
        /// The things of which there are too many.
        what: &'static str,
        /// The most that there may be.
        limit: usize,
    },
}
