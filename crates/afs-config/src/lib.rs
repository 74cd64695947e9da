//! The configuration files of OpenAFS, read as they are (configuration notes): which cell this is and where its database
//! servers are, who its superusers are, which addresses count, which realms are local, what a `BosConfig` starts, and
//! what the client's startup script says.
//!
//! Each file has a type with `parse` (text, and the name for errors) and `read` (a file). Keys are left to the crate of
//! the security classes, and what the values mean to the servers and the client. All errors are a [`ConfigError`], which
//! names file, line and what is wrong.
//!
//! # What to open for a change
//!
//! Each kind of file has a module: [`cells`] (CellServDB, ThisCell), [`users`] (UserList), [`realms`], [`network`]
//! (NetInfo, NetRestrict), [`bos_config`], [`afs_conf`] (the client's startup script), [`cacheinfo`].
#![forbid(unsafe_code)]

mod afs_conf;
mod bos_config;
mod cacheinfo;
mod cells;
mod error;
mod folder;
pub mod memory;
mod network;
mod realms;
mod text;
mod users;

pub use afs_conf::{AfsConf, AfsdOptions};
pub use bos_config::{Bnode, BosConfig, Command, KTime};
pub use cacheinfo::CacheInfo;
pub use cells::{
    Cell, CellAlias, CellAliases, CellName, CellServDb, DbServer, MAX_CELL_NAME_BYTES, ThisCell,
};
pub use error::{ConfigError, Problem};
pub use folder::{ClientFolder, ServerFolder};
pub use network::{AddressRule, AddressRules};
pub use realms::RealmFiles;
pub use text::MAX_FILE_BYTES;
pub use users::{Superuser, UserList};
