//! The volume location database: which volumes there are, under which names and ids, on which servers and partitions.

mod change;
mod errors;
mod forms;
mod image;
mod index;
mod list;
mod pattern;
mod records;
mod servers;
mod service;
#[cfg(test)]
mod tests;

pub use change::{NewEntry, NewSite, ReplicaChange, Update};
pub use errors::VlError;
pub use image::{Found, Vldb};
pub(crate) use image::{HEADER_KEY, entry_key, server_key};
pub use list::{Attributes, Listing, Match, Progress, index_of};
pub use pattern::Pattern;
pub(crate) use records::Header;
pub use records::{Entry, Server, ServerNumber, ServerUuid, Site, VolumeType};
pub use servers::{Registration, ServerQuery};
pub use service::{RestrictedQuery, VlService};
