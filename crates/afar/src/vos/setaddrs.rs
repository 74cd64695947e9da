//! `vos setaddrs`: says in the volume location database which addresses the file server of a UUID has.

use super::listaddrs::uuid_given;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::hosts;
use crate::printer::complain;
use afs_wire::abort::VL_MULTIPADDR;
use rxgen::xdr::Uuid;
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let uuid = uuid_given(vos, given.word("uuid").unwrap_or_default())?;
    let mut addresses: Vec<Ipv4Addr> = Vec::new();
    for name in given.words("host") {
        let address = hosts::find(name).ok_or_else(|| {
            complain!(vos.printer, "vos: Can't get host info for '{name}'\n");
            Stop::RETURNED
        })?;
        addresses.push(address);
    }
    vos.wait(vos.vldb.register(uuid, &addresses, false)).map_err(|code| {
        if code.0 == VL_MULTIPADDR.0 {
            complain!(
                vos.printer,
                "vos: VL_RegisterAddrs rpc failed; The IP address exists on a different server; repair it\n"
            );
        } else if code == Code::NO_SUCH_PROCEDURE {
            complain!(vos.printer, "vlserver doesn't support VL_RegisterAddrs rpc; ignored\n");
        } else {
            complain!(vos.printer, "vos: VL_RegisterAddrs rpc failed\n");
        }
        vos.print_error(code);
        Stop::RETURNED
    })?;
    if vos.json {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        vos.printer.say_json(&json!({ "changed": uuid.to_string(), "addresses": texts }));
        return Ok(());
    }
    vos.tell("vos: Changed UUID with addresses:\n");
    show(vos, &uuid, &addresses);
    Ok(())
}

/// A server and its addresses, a line each, if `-verbose` is given.
pub(super) fn show(vos: &Vos, uuid: &Uuid, addresses: &[Ipv4Addr]) {
    let lines: String = addresses.iter().map(|address| format!("{}\n", vos.host(*address))).collect();
    vos.tell(&format!("UUID: {uuid}\n{lines}\n"));
}
