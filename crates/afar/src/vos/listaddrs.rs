//! `vos listaddrs`: the addresses of the file servers that the volume location database knows.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::hosts;
use crate::printer::{complain, say};
use afs_admin::vldb::{SERVERS_MAX, ServerKey};
use rxgen::xdr::Uuid;
use serde_json::{Value, json};
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (uuid, host) = (given.word("uuid"), given.word("host"));
    if uuid.is_some() && host.is_some() {
        complain!(vos.printer, "vos: Can't use the -uuid and -host flags together\n");
        return Err(Stop::RETURNED);
    }
    let key = if let Some(text) = uuid {
        Some(ServerKey::Uuid(uuid_given(vos, text)?))
    } else if let Some(name) = host {
        Some(ServerKey::Address(hosts::find(name).ok_or_else(|| {
            complain!(vos.printer, "vos: Can't get host info for '{name}'\n");
            Stop::RETURNED
        })?))
    } else {
        None
    };
    let mut servers = Servers { vos, prints_uuid: given.has("printuuid"), shown: Vec::new() };
    let count = vos.server_count().map_err(|code| failed(vos, code))?;
    match key {
        Some(key) if count != 0 => list_one(&mut servers, key, given)?,
        Some(_) => {}
        None => list_all(&mut servers, count)?,
    }
    if vos.json {
        vos.printer.say_json(&Value::Array(servers.shown));
    }
    Ok(())
}

fn failed(vos: &Vos, code: Code) -> Stop {
    complain!(vos.printer, "vos: could not list the server addresses\n");
    vos.print_error(code);
    Stop::RETURNED
}

/// Shows servers as they are found.
struct Servers<'a> {
    vos: &'a Vos,
    prints_uuid: bool,
    shown: Vec<Value>,
}

impl Servers<'_> {
    fn show(&mut self, uuid: &Uuid, addresses: &[Ipv4Addr]) {
        let vos = self.vos;
        if vos.json {
            let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            let hosts: Vec<String> = addresses.iter().map(|address| vos.host(*address)).collect();
            self.shown.push(json!({ "uuid": uuid.to_string(), "addresses": texts, "hosts": hosts }));
            return;
        }
        if self.prints_uuid {
            say!(vos.printer, "UUID: {uuid}\n");
        }
        for address in addresses {
            say!(vos.printer, "{}\n", vos.host(*address));
        }
        if self.prints_uuid {
            say!(vos.printer, "\n");
        }
    }
}

fn list_one(servers: &mut Servers<'_>, key: ServerKey, given: &Given) -> Done {
    let vos = servers.vos;
    match vos.server_addresses(key) {
        Ok((uuid, addresses)) => {
            servers.show(&uuid, &addresses);
            Ok(())
        }
        Err(Code::VL_INDEXERANGE) => Ok(()),
        Err(Code::VL_NOENT) => {
            match key {
                ServerKey::Address(address) => complain!(
                    vos.printer,
                    "vos: no entry for host '{}' [0x{:08x}] found in VLDB\n",
                    given.word("host").unwrap_or_default(),
                    address.to_bits()
                ),
                ServerKey::Uuid(_) | ServerKey::Index(_) => complain!(
                    vos.printer,
                    "vos: no entry for UUID '{}' found in VLDB\n",
                    given.word("uuid").unwrap_or_default()
                ),
            }
            Err(Stop::RETURNED)
        }
        Err(code) => Err(failed(vos, code)),
    }
}

fn list_all(servers: &mut Servers<'_>, count: i32) -> Done {
    let vos = servers.vos;
    let mut left = count;
    for index in 1..=SERVERS_MAX {
        if left == 0 {
            break;
        }
        match vos.server_addresses(ServerKey::Index(index)) {
            Ok((uuid, addresses)) => {
                servers.show(&uuid, &addresses);
                left -= 1;
            }
            // A place that is free.
            Err(Code::VL_NOENT) => {}
            Err(Code::VL_INDEXERANGE) => break,
            Err(code) => return Err(failed(vos, code)),
        }
    }
    Ok(())
}

/// Reads a UUID of the command line. Complains if it is none.
pub(super) fn uuid_given(vos: &Vos, text: &str) -> Result<Uuid, Stop> {
    text.parse().map_err(|_| {
        complain!(vos.printer, "vos: invalid UUID '{text}'\n");
        Stop::RETURNED
    })
}
