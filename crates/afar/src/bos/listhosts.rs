//! `bos listhosts`: the cell that a machine's servers are of, and its database servers.

use super::{Bos, FAILURE, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::bos::{GetCellHost, GetCellName};
use serde_json::json;

/// Database servers asked for at most: a server whose list has no end must not hold us for ever.
const HOSTS_MAX: u32 = 1000;

pub(super) fn run(bos: &Bos, _given: &Given) -> u8 {
    let cell = match bos.call(&GetCellName {}) {
        Ok(reply) => harmless(&reply.name.to_string()),
        Err(code) => {
            complain!(bos.printer, "bos: failed to get cell name ({})\n", words(code));
            return FAILURE;
        }
    };
    if !bos.json {
        say!(bos.printer, "Cell name is {cell}\n");
    }
    let mut hosts = Vec::new();
    for index in 0..HOSTS_MAX {
        match bos.call(&GetCellHost { index }) {
            Ok(reply) => {
                let host = harmless(&reply.name.to_string());
                if !bos.json {
                    say!(bos.printer, "    Host {} is {host}\n", index + 1);
                }
                hosts.push(host);
            }
            Err(Code::BZDOM) => break,
            Err(code) => {
                complain!(bos.printer, "bos: failed to get cell host {index} ({})\n", words(code));
                return FAILURE;
            }
        }
    }
    if bos.json {
        bos.printer.say_json(&json!({ "cell": cell, "hosts": hosts }));
    }
    0
}
