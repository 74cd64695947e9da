//! Ctrl-C in the middle of what `vos` does: databases and partitions say one thing afterwards, and nobody has to wait.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::mounted::{Folder, ServerProcess, signal, suite, words};

/// How often a command is interrupted, each time later in what it does.
const ROUNDS: u32 = 30;

/// A command of `vos` for this server.
fn vos(server: &ServerProcess, state: &Folder, verb: &[&str]) -> Command {
    let line = format!("vos {} -server SERVER {}", verb[0], verb[1..].join(" "));
    suite(state, &line, &[("SERVER", server.address)], "-localauth")
}

#[test]
fn a_volume_that_is_being_made_at_ctrl_c_is_there_with_its_entry_or_not_at_all() {
    let state = Folder::new("interrupted");
    let server = ServerProcess::start(&state, &[]);
    let begun = Instant::now();
    let first = vos(&server, &state, &["create", "-partition", "a", "-name", "first"]).output().unwrap();
    assert!(first.status.success(), "{}", words(&first));
    let took = begun.elapsed().max(Duration::from_millis(1));

    let mut said = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("volume{round}");
        let command = vos(&server, &state, &["create", "-partition", "a", "-name", &name]);
        said.push(interrupted(command, &server, took * round / ROUNDS));
    }
    each_volume_has_its_entry(&server, &state, &said);
}

#[test]
fn a_dump_that_ctrl_c_ends_leaves_no_transaction_and_no_clone() {
    let state = Folder::new("interrupted-dump");
    let server = ServerProcess::start(&state, &[]);
    let made = vos(&server, &state, &["create", "-partition", "a", "-name", "first"]).output().unwrap();
    assert!(made.status.success(), "{}", words(&made));
    let file = state.path().join("dump").display().to_string();
    let dump =
        || vos(&server, &state, &["dump", "-partition", "a", "-id", "first", "-file", &file, "-clone"]);
    let begun = Instant::now();
    let dumped = dump().output().unwrap();
    assert!(dumped.status.success(), "{}", words(&dumped));
    let took = begun.elapsed().max(Duration::from_millis(1));
    let is_told = |said: &String| said.contains("vos: interrupted: the dump is not whole");
    let mut said: Vec<String> = Vec::new();
    // On a busy machine more are done before the signal comes, or have not begun.
    for round in 0..10 * ROUNDS {
        if round >= ROUNDS && said.iter().any(is_told) {
            break;
        }
        said.push(interrupted(dump(), &server, took * (round % ROUNDS) / ROUNDS));
    }
    assert!(said.iter().any(is_told), "{said:#?}");
    each_volume_has_its_entry(&server, &state, &said);
}

/// Runs a command, which Ctrl-C ends after a while. The server stands still when the signal comes, so that it comes in the middle of a
/// call. What the command says.
fn interrupted(mut command: Command, server: &ServerProcess, after: Duration) -> String {
    let child = command.spawn().unwrap();
    sleep(after);
    server.signal("STOP");
    sleep(Duration::from_millis(10));
    signal(child.id(), "INT");
    sleep(Duration::from_millis(10));
    server.signal("CONT");
    words(&child.wait_with_output().unwrap())
}

fn each_volume_has_its_entry(server: &ServerProcess, state: &Folder, said: &[String]) {
    let listed = |verb: &[&str]| words(&vos(server, state, verb).output().unwrap());
    let volumes = listed(&["listvol", "-fast"]);
    let on_disk: BTreeSet<u32> = volumes.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let entries = listed(&["listvldb"]);
    let id = |line: &str| line.trim().strip_prefix("RWrite:")?.split_whitespace().next()?.parse().ok();
    let in_database: BTreeSet<u32> = entries.lines().filter_map(id).collect();
    assert!(!on_disk.is_empty(), "{volumes}");
    assert_eq!(on_disk, in_database, "{said:#?}");
    assert!(listed(&["status"]).starts_with("No active transactions"), "{said:#?}");
}
