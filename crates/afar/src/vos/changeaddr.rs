//! `vos changeaddr`: gives a file server another address in the volume location database, or removes the server from it.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::hosts;
use crate::printer::{complain, say};
use afs_admin::vldb::ServerKey;
use serde_json::json;
use std::net::Ipv4Addr;

/// The address to change from that stands for removing the one to change to. So a database server of long ago, which
/// cannot remove, changes nothing.
const REMOVE: Ipv4Addr = Ipv4Addr::BROADCAST;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let old_name = given.word("oldaddr").unwrap_or_default();
    let old = address(vos, old_name)?;
    let new_name = given.word("newaddr");
    if new_name.is_some() == given.has("remove") {
        complain!(vos.printer, "vos: Must specify either '-newaddr <addr>' or '-remove' flag\n");
        return Err(Stop::RETURNED);
    }
    let Some(new_name) = new_name else { return remove(vos, old, old_name) };
    let new = address(vos, new_name)?;
    if !given.has("force") {
        match vos.server_addresses(ServerKey::Address(old)) {
            Err(Code::VL_NOENT) => {}
            Ok((uuid, _)) => {
                complain!(
                    vos.printer,
                    "vos: Refusing to change address in multi-homed server entry.\n     -oldaddr address is registered to file server UUID {uuid}\n     Please restart the file server or use vos setaddrs.\n"
                );
                return Err(Stop::RETURNED);
            }
            Err(code) => {
                complain!(vos.printer, "vos: could not list the server addresses\n");
                vos.print_error(code);
                return Err(Stop::RETURNED);
            }
        }
    }
    vos.change_address(old, new).map_err(|code| {
        complain!(vos.printer, "Could not change server {old} to server {new}\n");
        vos.print_error(code);
        Stop::RETURNED
    })?;
    say!(vos.printer, "Changed server {old_name} to server {new_name}\n");
    if vos.json {
        vos.printer.say_json(&json!({ "changed": old.to_string(), "to": new.to_string() }));
    }
    Ok(())
}

fn remove(vos: &Vos, address: Ipv4Addr, name: &str) -> Done {
    vos.change_address(REMOVE, address).map_err(|code| {
        complain!(vos.printer, "Could not remove server {address} from the VLDB\n");
        if code == Code::VL_NOENT {
            complain!(vos.printer, "vlserver does not support the remove flag or ");
        }
        vos.print_error(code);
        Stop::RETURNED
    })?;
    say!(vos.printer, "Removed server {name} from the VLDB\n");
    if vos.json {
        vos.printer.say_json(&json!({ "removed": address.to_string() }));
    }
    Ok(())
}

fn address(vos: &Vos, name: &str) -> Result<Ipv4Addr, Stop> {
    let found = if vos.noresolve { name.parse().ok() } else { hosts::find_server(name) };
    found.ok_or_else(|| {
        complain!(vos.printer, "vos: invalid host address\n");
        Stop::RETURNED
    })
}
