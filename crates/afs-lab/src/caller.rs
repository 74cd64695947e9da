//! A client of AFS servers for tests and benches. It makes calls as anybody whose ticket can be made from the cell's key,
//! hears callbacks and remembers them, and caches nothing: what it says to servers is what it is told to say, of
//! OpenAFS's and ours alike. Where a volume is, what to do when a server is busy or away, and what to cache are the real
//! client's matters.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use afs_lab::caller::{Client, Credentials};
//! use afs_wire::ids::{AfsFid, VolumeId};
//! let keys = rx_security::KeySet::load("/etc/openafs/server".as_ref())?;
//! let client = Client::bind("10.88.0.2:0".parse()?)?;
//! let server = client.file_server("10.88.0.1".parse()?, &Credentials::user("alice", "interop.test", &keys)?);
//! let made = server.create_file(AfsFid::root_of(VolumeId(536870912)), "a").await?;
//! server.store(made.fid, 0, b"text".as_slice(), 4).await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod callbacks;
mod client;
mod credentials;
mod error;
mod files;
pub mod named;
mod volumes;

pub use access::AccessList;
pub use callbacks::{HEARD_MAX, Heard};
pub use client::{Client, Server};
pub use credentials::Credentials;
pub use error::Error;
pub use files::{FileServer, MODE_DIRECTORY, MODE_FILE};
pub use volumes::VolumeServer;
