//! The cells that the client knows: `listcells`, `listaliases`, `newcell`, `newalias`, `wscell`, `getcellstatus`, `setcell`.

use super::client::Client;
use super::errors::{EDOM, EEXIST, EINVAL, ENOENT, Failure};
use super::{FAILURE, Fs};
use crate::classic::Given;
use crate::hosts;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::control::{self, CellFlags, CellServerList, KnownCell};
use afs_wire::ids::{HostAddr, Name};
use rxgen::xdr::OutOfBounds;
use serde_json::{Value, json};

/// `fs listcells`.
pub(super) fn list(fs: &Fs, given: &Given) -> u8 {
    let is_numeric = given.has("numeric");
    let mut told = Vec::new();
    let listed = fs.any_client().and_then(|client| {
        every(
            |index| client.call(&control::GetCell { index }).map(|reply| reply.cell),
            |cell| {
                if given.has("json") {
                    told.push(as_json(&cell));
                    return;
                }
                say!(fs.printer, "Cell {} on hosts", shown(&cell.name));
                for server in cell.servers.iter() {
                    let name = if is_numeric { server.to_string() } else { hosts::name_of(server.ip()) };
                    say!(fs.printer, " {}", harmless(&name));
                }
                say!(fs.printer, ".\n");
            },
        )
    });
    finish(fs, given, told, listed)
}

/// `fs listaliases`.
pub(super) fn list_aliases(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let listed = fs.any_client().and_then(|client| {
        every(
            |index| client.call(&control::GetAlias { index }),
            |reply| {
                let (alias, cell) = (shown(&reply.alias), shown(&reply.cell));
                match given.has("json") {
                    true => told.push(json!({ "alias": alias, "cell": cell })),
                    false => say!(fs.printer, "Alias {alias} for cell {cell}\n"),
                }
            },
        )
    });
    finish(fs, given, told, listed)
}

/// Asks for one thing of a list after the other, up to its end.
fn every<T>(ask: impl Fn(u32) -> Result<T, Failure>, mut tell: impl FnMut(T)) -> Result<(), Failure> {
    for index in 0.. {
        match ask(index) {
            Ok(found) => tell(found),
            Err(Failure::Errno(EDOM)) => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn finish(fs: &Fs, given: &Given, told: Vec<Value>, result: Result<(), Failure>) -> u8 {
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    fs.done(result)
}

/// `fs wscell`.
pub(super) fn show_own(fs: &Fs, given: &Given) -> u8 {
    fs.done(fs.ask(&control::GetOwnCell {}).map(|reply| match given.has("json") {
        true => fs.printer.say_json(&json!({ "cell": shown(&reply.name) })),
        false => say!(fs.printer, "This workstation belongs to cell '{}'\n", shown(&reply.name)),
    }))
}

/// `fs newcell`.
pub(super) fn add(fs: &Fs, given: &Given) -> u8 {
    let mut servers: Vec<HostAddr> = Vec::new();
    for host in given.words("servers") {
        match hosts::find(host) {
            Some(address) => servers.push(address.into()),
            None => complain!(fs.printer, "fs: Host {host} not found in host table, skipping it.\n"),
        }
    }
    let order = || -> Result<control::NewCell, OutOfBounds> {
        Ok(control::NewCell {
            name: Name::try_from(given.word("name").unwrap_or_default())?,
            servers: CellServerList::new(servers)?,
            linked: Name::try_from(given.word("linkedcell").unwrap_or_default())?,
        })
    };
    let added = order().map_err(|_| Failure::Errno(EINVAL)).and_then(|order| fs.ask(&order).map(drop));
    fs.done(added)
}

/// `fs newalias`.
pub(super) fn add_alias(fs: &Fs, given: &Given) -> u8 {
    let alias = given.word("alias").unwrap_or_default();
    let order = || -> Result<control::NewAlias, OutOfBounds> {
        let cell = Name::try_from(given.word("name").unwrap_or_default())?;
        Ok(control::NewAlias { alias: Name::try_from(alias)?, cell })
    };
    match order().map_err(|_| Failure::Errno(EINVAL)).and_then(|order| fs.ask(&order)) {
        Err(Failure::Errno(EEXIST)) => {
            complain!(fs.printer, "fs: cell name `{alias}' in use by an existing cell.\n");
            FAILURE
        }
        other => fs.done(other.map(drop)),
    }
}

/// `fs getcellstatus`.
pub(super) fn show_status(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = each_cell(fs, given, |_, cell| {
        let may_suid = !cell.flags.contains(CellFlags::NO_SUID);
        match given.has("json") {
            true => told.push(json!({ "cell": shown(&cell.name), "setuid_allowed": may_suid })),
            false => {
                let setuid = if may_suid { "setuid allowed" } else { "no setuid allowed" };
                say!(fs.printer, "Cell {} status: {setuid}\n", shown(&cell.name));
            }
        }
        Ok(())
    });
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

/// `fs setcell`.
pub(super) fn set_status(fs: &Fs, given: &Given) -> u8 {
    if given.has("suid") && given.has("nosuid") {
        complain!(fs.printer, "Cannot specify both -suid and -nosuid.\n");
        return FAILURE;
    }
    let flags = if given.has("suid") { CellFlags::NONE } else { CellFlags::NO_SUID };
    each_cell(fs, given, |client, cell| {
        client.call(&control::SetCellFlags { name: cell.name, flags }).map(drop)
    })
}

fn each_cell(fs: &Fs, given: &Given, mut work: impl FnMut(&Client, KnownCell) -> Result<(), Failure>) -> u8 {
    let client = match fs.any_client() {
        Ok(client) => client,
        Err(failure) => return fs.done(Err(failure)),
    };
    let mut status = 0;
    for name in given.words("cell") {
        let Ok(cell) = fs.find_cell(&client, name) else {
            status = FAILURE;
            continue;
        };
        let name = shown(&cell.name);
        match work(&client, cell) {
            Ok(()) => {}
            Err(Failure::Errno(ENOENT)) => {
                complain!(fs.printer, "fs: the cell named '{name}' does not exist\n");
                status = FAILURE;
            }
            Err(failure) => {
                fs.complain(&failure, Some(&name));
                status = FAILURE;
            }
        }
    }
    status
}

fn shown(name: &Name) -> String {
    harmless(&name.to_string())
}

fn as_json(cell: &KnownCell) -> Value {
    let servers: Vec<_> = cell.servers.iter().map(|server| server.to_string()).collect();
    let may_suid = !cell.flags.contains(CellFlags::NO_SUID);
    json!({ "cell": shown(&cell.name), "servers": servers, "setuid_allowed": may_suid })
}
