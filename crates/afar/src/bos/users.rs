//! `bos listusers`, `adduser`, `removeuser`: who may administer a machine's servers.

use super::{Bos, FAILURE, LIST_MAX, argument, status_of, tell_if_cut, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::bos::{AddSUser, DeleteSUser, ListSUsers};
use serde_json::json;

/// The code that ends a list of superusers.
const NO_MORE: Code = Code(1);

pub(super) fn list(bos: &Bos, _given: &Given) -> u8 {
    let mut users = Vec::new();
    for index in 0..LIST_MAX {
        match bos.call(&ListSUsers { index }) {
            Ok(reply) => users.push(harmless(&reply.name.to_string())),
            Err(NO_MORE) => break,
            Err(code) => {
                complain!(bos.printer, "bos: failed to retrieve super-user list ({})\n", words(code));
                return status_of(code);
            }
        }
    }
    tell_if_cut(bos, users.len());
    if bos.json {
        bos.printer.say_json(&json!({ "superusers": users }));
    } else {
        let names: String = users.iter().map(|user| format!("{user} ")).collect();
        say!(bos.printer, "SUsers are: {names}\n");
    }
    0
}

pub(super) fn add(bos: &Bos, given: &Given) -> u8 {
    let mut status = 0;
    for user in given.words("user") {
        if let Err(code) = argument(user).and_then(|name| bos.call(&AddSUser { name })) {
            complain!(bos.printer, "bos: failed to add user '{user}' ({})\n", words(code));
            status = FAILURE;
        }
    }
    status
}

pub(super) fn remove(bos: &Bos, given: &Given) -> u8 {
    let mut status = 0;
    for user in given.words("user") {
        if let Err(code) = argument(user).and_then(|name| bos.call(&DeleteSUser { name })) {
            let words = if code == Code::ENOENT { "no such user".to_owned() } else { words(code) };
            complain!(bos.printer, "bos: failed to delete user '{user}', ({words})\n");
            status = FAILURE;
        }
    }
    status
}
