//! An `afar server` of our program as it was built for these tests.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use crate::mounted::{Afar, Built};
pub(crate) use afs_lab::real::address::own_address;
pub(crate) use afs_lab::real::afar::words;
pub(crate) use afs_lab::real::folder::Folder;
pub(crate) use afs_lab::real::machines::run;

pub(crate) type ServerProcess = afs_lab::real::machines::Server<Built>;
pub(crate) type Machines = afs_lab::real::machines::Machines<Built>;

/// See [`Afar::suite`].
pub(crate) fn suite(state: &Path, line: &str, names: &[(&str, Ipv4Addr)], rights: &str) -> Command {
    Built::suite(state, line, names, rights)
}

/// The command, with its log at warnings.
pub(crate) fn command(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    Built::server(args)
}
