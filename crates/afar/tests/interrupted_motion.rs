//! Ctrl-C in the middle of short commands of `vos` in a cell of two servers: no entry stays locked, no transaction stays open, and the database
//! and the partitions say one thing. The server of the volume stands still when the signal comes, so that it comes in the middle of a call.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::mounted::signal;
use crate::two_servers::{TwoServers, fill, words};

/// How often each command is interrupted, each time later in what it does.
const ROUNDS: u32 = 6;

/// Has Ctrl-C end a command that runs.
fn interrupt(cell: &TwoServers, child: &Child, server: usize) {
    signal(cell.pid(server), "STOP");
    sleep(Duration::from_millis(10));
    signal(child.id(), "INT");
    sleep(Duration::from_millis(10));
    signal(cell.pid(server), "CONT");
}

/// Runs a command and presses Ctrl-C after `round` of [`ROUNDS`] parts of `took`, the time that it is expected to take. Returns what the command
/// said, and whether it was done. If it was, and took less time, `took` becomes shorter.
fn interrupted_in(cell: &TwoServers, line: &str, took: &mut Duration, round: u32) -> (String, bool) {
    let begun = Instant::now();
    let (said, is_done) = interrupted(cell, line, *took * round / ROUNDS);
    if is_done {
        *took = begun.elapsed().min(*took);
    }
    (said, is_done)
}

/// The same after a time.
fn interrupted(cell: &TwoServers, line: &str, after: Duration) -> (String, bool) {
    let child = cell.vos(line).spawn().unwrap();
    sleep(after);
    interrupt(cell, &child, 0);
    let output = child.wait_with_output().unwrap();
    (format!("{line}, Ctrl-C after {after:?}: {}", words(&output)), output.status.success())
}

fn time(cell: &TwoServers, line: &str) -> Duration {
    let begun = Instant::now();
    cell.does(line);
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn short_commands_that_ctrl_c_ends_lock_nothing_and_leave_no_transaction() {
    let mut cell = TwoServers::new("interrupted-short");
    let volume = cell.create("ONE", "v");
    fill(&cell.files(0), volume, &[1, 5000]).await;
    cell.create("ONE", "w");
    let mut stopped = 0;
    for line in ["backup v", "size v -dump", "backupsys -prefix v w", "syncvldb ONE"] {
        let mut took = time(&cell, line);
        for round in 0..ROUNDS {
            let (said, is_done) = interrupted_in(&cell, line, &mut took, round);
            stopped += u32::from(!is_done);
            cell.agree(&said);
        }
    }
    for round in 0..ROUNDS {
        let [old, new] = if cell.vos("examine v").output().unwrap().status.success() {
            ["v", "renamed"]
        } else {
            ["renamed", "v"]
        };
        let (said, is_done) =
            interrupted(&cell, &format!("rename {old} {new}"), Duration::from_millis(8) * round);
        cell.agree(&said);
        // The database and the server call it the same.
        let name = if is_done { new } else { old };
        let listed = cell.does("listvol ONE");
        assert!(listed.contains(&format!("\n{name} ")) && cell.sites(name).len() == 1, "{said}: {listed}");
    }
    for round in 0..ROUNDS {
        let line = format!("clone {volume} ONE a clone{round} -readonly");
        let (said, is_done) = interrupted(&cell, &line, Duration::from_millis(8) * round);
        cell.nobody_waits(&said);
        let listed = cell.does("listvol ONE");
        let clone = listed.lines().find(|line| line.starts_with(&format!("clone{round} ")));
        assert_eq!(clone.is_some(), is_done, "{said}: {listed}");
        if clone.is_some_and(|line| !line.contains("On-line")) {
            panic!("{said}: {listed}");
        }
        if is_done {
            let id = clone.unwrap().split_whitespace().nth(1).unwrap().to_owned();
            let (said, _) = interrupted(&cell, &format!("zap ONE a {id}"), Duration::from_millis(8) * round);
            cell.nobody_waits(&said);
            let listed = cell.does("listvol ONE");
            assert!(!listed.contains(&id) || listed.contains("On-line"), "{said}: {listed}");
            cell.vos(&format!("zap ONE a {id}")).output().unwrap();
        }
    }
    assert!(stopped > ROUNDS, "{stopped} commands were stopped");
    cell.agree("after all");
    cell.check("after interrupted commands");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_brings_a_volume_back_that_is_offline_for_a_while() {
    let cell = TwoServers::new("interrupted-offline");
    cell.create("ONE", "v");
    let begun = Instant::now();
    let child = cell.vos("offline ONE a v -sleep 120").spawn().unwrap();
    while cell.json("status ONE").as_array().unwrap().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no transaction");
    }
    interrupt(&cell, &child, 0);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success() && words(&output).contains("vos: interrupted"), "{}", words(&output));
    assert!(begun.elapsed() < Duration::from_secs(110), "it sleeps to its end");
    cell.agree("after Ctrl-C");
}
