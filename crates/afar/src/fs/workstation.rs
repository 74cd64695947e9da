//! This machine, as servers see it and as it sees itself: `sysname`, `getclientaddrs`, `getcrypt`, `setcrypt`.

use super::{FAILURE, Fs};
use crate::classic::Given;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::control::{self, SysNames};
use afs_wire::ids::Name;
use serde_json::json;

/// The status for a word that is neither on nor off: as there, the number of the error, `EINVAL`.
const NEITHER: u8 = 22;

/// `fs sysname`.
pub(super) fn sysname(fs: &Fs, given: &Given) -> u8 {
    let new = given.words("newsys");
    let plural = if new.len() > 1 { "s" } else { "" };
    let names: Option<Vec<Name>> = new.iter().map(|name| Name::try_from(*name).ok()).collect();
    let Some(new_names) = names.and_then(|names| SysNames::new(names).ok()) else {
        complain!(fs.printer, "fs: sysname{plural} too long.\n");
        return FAILURE;
    };
    let names = match fs.ask(&control::SysName { new_names }) {
        Ok(reply) => reply.names,
        Err(failure) => return fs.done(Err(failure)),
    };
    let names: Vec<String> = names.iter().map(|name| harmless(&name.to_string())).collect();
    if given.has("json") {
        fs.printer.say_json(&json!({ "sysnames": names }));
    } else if !new.is_empty() {
        say!(fs.printer, "fs: new sysname{} set.\n", if new.len() > 1 { " list" } else { "" });
    } else if names.is_empty() {
        complain!(fs.printer, "No sysname name value was found\n");
        return FAILURE;
    } else {
        let list = if names.len() > 1 { " list" } else { "" };
        let names: String = names.iter().map(|name| format!(" '{name}'")).collect();
        say!(fs.printer, "Current sysname{list} is{names}\n");
    }
    0
}

/// `fs getclientaddrs`.
pub(super) fn show_addresses(fs: &Fs, given: &Given) -> u8 {
    fs.done(fs.ask(&control::GetClientAddresses {}).map(|reply| {
        let addresses: Vec<String> = reply.addresses.iter().map(|address| address.to_string()).collect();
        match given.has("json") {
            true => fs.printer.say_json(&json!({ "addresses": addresses })),
            false => addresses.iter().for_each(|address| say!(fs.printer, "{address:<50}\n")),
        }
    }))
}

/// `fs getcrypt`.
pub(super) fn show_crypt(fs: &Fs, given: &Given) -> u8 {
    let shown = fs.ask(&control::GetCrypt {}).map(|reply| {
        let level = if reply.is_on { "crypt (data security)." } else { "clear." };
        match given.has("json") {
            true => fs.printer.say_json(&json!({ "encrypted": reply.is_on })),
            false => say!(fs.printer, "Security level is currently {level}\n"),
        }
    });
    fs.done(shown)
}

/// `fs setcrypt`.
pub(super) fn set_crypt(fs: &Fs, given: &Given) -> u8 {
    let is_on = match given.word("crypt") {
        Some("on") => true,
        Some("off") => false,
        other => {
            complain!(fs.printer, "fs: {} must be \"on\" or \"off\".\n", other.unwrap_or_default());
            return NEITHER;
        }
    };
    fs.done(fs.ask(&control::SetCrypt { is_on }).map(drop))
}
