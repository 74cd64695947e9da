//! `vos remaddrs`: removes the file server of a UUID, with all of its addresses, from the volume location database.

use super::listaddrs::uuid_given;
use super::setaddrs::show;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::complain;
use afs_admin::vldb::ServerKey;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let uuid = uuid_given(vos, given.word("uuid").unwrap_or_default())?;
    let (_, addresses) = vos.server_addresses(ServerKey::Uuid(uuid)).map_err(|code| {
        if code == Code::VL_NOENT {
            complain!(vos.printer, "vos: UUID not found\n");
        } else {
            complain!(vos.printer, "vos: could not list the server addresses\n");
            vos.print_error(code);
        }
        Stop::RETURNED
    })?;
    let Some(first) = addresses.first() else {
        complain!(vos.printer, "vos: no addresses found for UUID\n");
        return Err(Stop::RETURNED);
    };
    vos.tell("vos: Removing UUID with hosts:\n");
    show(vos, &uuid, &addresses);
    vos.change_address(Ipv4Addr::BROADCAST, *first).map_err(|code| {
        complain!(vos.printer, "Could not remove server entry from the VLDB.\n");
        vos.print_error(code);
        Stop::RETURNED
    })?;
    if vos.json {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        vos.printer.say_json(&json!({ "removed": uuid.to_string(), "addresses": texts }));
    }
    Ok(())
}
