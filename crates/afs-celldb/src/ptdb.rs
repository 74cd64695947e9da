//! The protection database: users, groups, who is in which, and who may see and change that.

mod access;
mod change;
mod create;
mod errors;
mod image;
mod membership;
mod read;
mod records;
mod service;
#[cfg(test)]
mod tests;

pub use access::{CallerEntry, Rules};
pub use change::{FieldChange, Renaming};
pub use create::{Administrator, NewPrincipal, initialize};
pub use errors::PtError;
pub use image::Ptdb;
pub(crate) use image::{HEADER_KEY, entry_key};
pub use read::{Dump, Kinds, Page};
pub use records::{Entry, Flags};
pub(crate) use records::{Header, MAX_NAME};
pub use service::PtService;
