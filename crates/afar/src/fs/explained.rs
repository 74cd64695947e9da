//! Verbs about what a client that is no kernel module does not have, or does by itself: they are understood, and say so. Those
//! that change nothing because nothing needs to be changed succeed; those that ask for something that is not done fail.

use super::{FAILURE, Fs};
use crate::classic::Given;
use crate::printer::{complain, say};

/// `fs bypassthreshold`: everything goes through the cache, which holds no more of a file than was read.
pub(super) fn bypass_threshold(fs: &Fs, given: &Given) -> u8 {
    if given.has("size") {
        return refuse(fs, "no file bypasses the cache, which keeps of a large file only what was read");
    }
    say!(fs.printer, "Cache bypass threshold -1 (disabled)\n");
    0
}

/// `fs discon`.
pub(super) fn discon(fs: &Fs, _: &Given) -> u8 {
    refuse(fs, "this client is always online: while a server is away, what is cached can be read")
}

/// `fs exportafs`, in the words of a client without that translator.
pub(super) fn export(fs: &Fs, given: &Given) -> u8 {
    match given.word("type") {
        Some("nfs") => complain!(
            fs.printer,
            "Sorry, the nfs-exporter type is currently not supported on this AFS client\n"
        ),
        other => complain!(
            fs.printer,
            "Invalid exporter type, '{}', Only the 'nfs' exporter is currently supported\n",
            other.unwrap_or_default()
        ),
    }
    FAILURE
}

/// `fs messages`.
pub(super) fn messages(fs: &Fs, given: &Given) -> u8 {
    let known = ["user", "console", "all", "none"];
    match given.word("show") {
        Some(other) if !known.iter().any(|name| name.eq_ignore_ascii_case(other)) => {
            complain!(fs.printer, "unrecognized flag {other}: must be in {{user,console,all,none}}\n");
            FAILURE
        }
        Some(_) | None => needless(fs, "the client writes to its log, and to nobody's terminal"),
    }
}

/// `fs nukenfscreds`.
pub(super) fn nfs_credentials(fs: &Fs, _: &Given) -> u8 {
    refuse(fs, "there is no NFS translator, and no credentials of its clients")
}

/// `fs precache`.
pub(super) fn precache(fs: &Fs, given: &Given) -> u8 {
    match given.word("blocks").map(crate::numbers::parse_i32) {
        Some(Ok(_)) => needless(fs, "how much is read ahead follows from the reader and the network"),
        Some(Err(_)) => {
            complain!(fs.printer, "fs: bad integer specified for precache size.\n");
            FAILURE
        }
        None => {
            complain!(fs.printer, "fs: syntax error in precache cmd.\n");
            FAILURE
        }
    }
}

/// `fs rxstatproc`, `fs rxstatpeer`.
pub(super) fn rx_statistics(fs: &Fs, given: &Given) -> u8 {
    if !["enable", "disable", "clear"].iter().any(|option| given.has(option)) {
        complain!(fs.printer, "You must specify at least one argument\n");
        return FAILURE;
    }
    needless(fs, "calls are always counted; 'afar rxdebug' shows them")
}

/// `fs setcbaddr`.
pub(super) fn callback_address(fs: &Fs, _: &Given) -> u8 {
    refuse(fs, "servers call back over the addresses that the client calls from")
}

/// `fs setclientaddrs`.
pub(super) fn client_addresses(fs: &Fs, _: &Given) -> u8 {
    refuse(fs, "servers are told all addresses of this machine; NetInfo and NetRestrict choose among them")
}

/// `fs uuid`.
pub(super) fn uuid(fs: &Fs, _: &Given) -> u8 {
    refuse(fs, "the client makes its UUID when it is started with an empty cache folder")
}

fn needless(fs: &Fs, why: &str) -> u8 {
    complain!(fs.printer, "fs: nothing to be done: {why}\n");
    0
}

pub(super) fn refuse(fs: &Fs, why: &str) -> u8 {
    complain!(fs.printer, "fs: not done: {why}\n");
    FAILURE
}
