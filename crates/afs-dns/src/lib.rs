//! The database servers of cells that only the DNS knows: SRV records (RFC 5864), else AFSDB records (RFC 1183).
//!
//! [`Search`] is a value: it says what is to be asked next and what the answers mean. It reads no clock, and chance is an argument.
//! [`look_up`] takes it to its end with a [`Resolver`]. [`SystemResolver`] is the one of this machine, which asks the name servers of
//! /etc/resolv.conf. How long a cell's servers are kept, and who waits for them, is left to the callers.
//!
//! # What to open for a change
//!
//! - What is asked about a cell, and what the answers mean: [`search`], and [`order`] for priorities and weights.
//! - The name servers of the machine: [`system`].
//! - For which names the client asks, how long answers count, and who waits:
//!   `crates/afs-reach/src/dns.rs`.

#![forbid(unsafe_code)]

mod message;
mod order;
mod search;
mod system;

use std::fmt;
use std::net::Ipv4Addr;
use std::pin::Pin;

pub use search::{CellServers, DbSocket, NotFound, Search, Service, Step, look_up};
pub use system::{RESOLV_CONF, SystemResolver};

/// The kind of records that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The place of a service (RFC 2782).
    Srv,
    /// The database servers of a cell (RFC 1183).
    Afsdb,
    /// The IPv4 addresses of a host. AFS's structures have no room for others.
    Address,
}

/// A question to the DNS.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    /// The name, absolute, without the dot at its end.
    pub name: String,
    /// The kind of records.
    pub kind: Kind,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Srv => "SRV",
            Kind::Afsdb => "AFSDB",
            Kind::Address => "A",
        };
        write!(f, "{kind} of {}", self.name)
    }
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A host that has the service.
    Srv {
        /// Lower ones are asked first.
        priority: u16,
        /// The frequency with which it is to be chosen, relative to others of its priority.
        weight: u16,
        /// The UDP port.
        port: u16,
        /// The host; empty where the service is not to be had.
        target: String,
    },
    /// A host with the cell's databases.
    Afsdb {
        /// 1 is AFS.
        subtype: u16,
        /// The host.
        host: String,
    },
    /// An address of the host.
    Address(Ipv4Addr),
}

/// An answer: the records of the kind that was asked for. Without records, the DNS says that there are none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// The records.
    pub records: Vec<Record>,
    /// The seconds for which they may be kept: the least of theirs.
    pub ttl_seconds: u32,
}

/// The reason why the DNS did not answer, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoAnswer(pub String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoAnswer {}

/// An answer that is on its way.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Answer, NoAnswer>> + Send + 'a>>;

/// The resolver that is asked. To give a question up, drop its future.
pub trait Resolver: fmt::Debug + Send + Sync {
    /// Asks a question.
    fn ask(&self, question: Question) -> Asking<'_>;
}
