//! Servers that do not answer: `checkservers`.

use super::errors::{EACCES, EPERM, Failure};
use super::{FAILURE, Fs};
use crate::classic::Given;
use crate::hosts;
use crate::numbers::leading_number;
use crate::output::harmless;
use crate::printer::say;
use afs_wire::control::{self, CheckScope};
use afs_wire::ids::Name;
use serde_json::json;

/// Seconds between probes of a server that is down, at most.
const INTERVAL_MAX: i64 = 600;

/// `fs checkservers`.
pub(super) fn check(fs: &Fs, given: &Given) -> u8 {
    let client = match fs.any_client() {
        Ok(client) => client,
        Err(failure) => return fs.done(Err(failure)),
    };
    let (scope, cell) = match given.word("cell") {
        Some(cell) => match fs.find_cell(&client, cell) {
            Ok(cell) => (CheckScope::CELL, cell.name),
            Err(status) => return status,
        },
        None if given.has("all") => (CheckScope::ALL, no_name()),
        None => (CheckScope::OWN_CELL, no_name()),
    };
    if let Some(interval) = given.word("interval") {
        return set_interval(fs, interval);
    }
    let down = match client.call(&control::CheckServers { scope, cell, is_fast: given.has("fast") }) {
        Ok(reply) => reply.down,
        Err(failure) => return fs.done(Err(failure)),
    };
    let status = if down.is_empty() { 0 } else { FAILURE };
    if given.has("json") {
        let addresses: Vec<_> = down.iter().map(|server| server.to_string()).collect();
        fs.printer.say_json(&json!({ "unavailable": addresses }));
        return status;
    }
    if down.is_empty() {
        say!(fs.printer, "All servers are running.\n");
        return status;
    }
    say!(fs.printer, "These servers unavailable due to network or server problems: ");
    for server in down.iter() {
        say!(fs.printer, " {}", harmless(&hosts::name_of(server.ip())));
    }
    say!(fs.printer, ".\n");
    status
}

/// `-interval`: asks for it, or changes it; nothing is checked.
fn set_interval(fs: &Fs, text: &str) -> u8 {
    let seconds = match leading_number(text) {
        seconds if seconds < 0 => {
            say!(fs.printer, "Warning: The negative -interval is ignored; treated as an inquiry\n");
            0
        }
        seconds if seconds > INTERVAL_MAX => {
            say!(fs.printer, "Warning: The maximum -interval value is 10 mins (600 secs)\n");
            INTERVAL_MAX
        }
        seconds => seconds,
    };
    let seconds = u32::try_from(seconds).expect("it is between 0 and the most");
    match fs.ask(&control::ProbeInterval { seconds }) {
        Ok(reply) => {
            let old = reply.old_seconds;
            match seconds {
                0 => say!(fs.printer, "The current down server probe interval is {old} secs\n"),
                new => say!(
                    fs.printer,
                    "The new down server probe interval ({new} secs) is now in effect (old interval was {old} secs)\n"
                ),
            }
            0
        }
        Err(Failure::Errno(EACCES | EPERM)) if seconds > 0 => {
            say!(fs.printer, "Must be root to change -interval\n");
            FAILURE
        }
        Err(failure) => fs.done(Err(failure)),
    }
}

fn no_name() -> Name {
    Name::new("").expect("it is short")
}
