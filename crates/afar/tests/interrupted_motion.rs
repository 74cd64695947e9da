//! Ctrl-C in the middle of what `vos` does with the volumes of two servers: no entry stays locked, no transaction stays open, and the database
//! and the partitions say one thing. The server of the volume stands still when the signal comes, so that it comes in the middle of a call.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::mounted::signal;
use crate::two_servers::{TwoServers, fill, has, words};

/// How often each command is interrupted, each time later in what it does.
const ROUNDS: u32 = 12;

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
async fn a_move_that_ctrl_c_ends_leaves_the_volume_where_its_entry_says_and_nobody_waits() {
    let mut cell = TwoServers::new("interrupted-move");
    let volume = cell.create("ONE", "v");
    let written = fill(&cell.files(0), volume, &[1, 5000, 20_000_000]).await;
    let there = "move v ONE a TWO a";
    let mut took = time(&cell, there);
    let mut stopped = 0;
    for round in 0..ROUNDS {
        if cell.sites("v")[0].starts_with("TWO") {
            cell.does("move v TWO a ONE a");
        }
        let (said, is_done) = interrupted_in(&cell, there, &mut took, round);
        stopped += u32::from(!is_done);
        cell.agree(&said);
        assert_eq!(is_done, cell.sites("v")[0].starts_with("TWO"), "{said}");
        let server = usize::from(is_done);
        has(&cell.files(server), volume, &written, &said).await;
    }
    assert!(stopped > ROUNDS / 3, "{stopped} of {ROUNDS} were stopped");
    cell.check("after interrupted moves");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_ctrl_c_ends_leaves_whole_replicas_and_the_next_one_reaches_all() {
    let mut cell = TwoServers::new("interrupted-release");
    // With a replica beside the volume, and with a clone that is only for the release.
    for (name, sites) in [("v", &["ONE", "TWO"][..]), ("w", &["TWO"])] {
        let volume = cell.create("ONE", name);
        let files = cell.files(0);
        let written = fill(&files, volume, &[1, 5000, 20_000_000]).await;
        for site in sites {
            cell.does(&format!("addsite {site} a {name}"));
        }
        let line = format!("release {name} -force");
        let mut took = time(&cell, &line);
        let mut stopped = 0;
        for round in 0..ROUNDS {
            let (said, is_done) = interrupted_in(&cell, &line, &mut took, round);
            stopped += u32::from(!is_done);
            cell.nobody_waits(&said);
            if !is_done {
                cell.does(&format!("release {name}"));
            }
            cell.agree(&said);
            let entry = cell.json(&format!("listvldb -name {name}"));
            let replica = afs_wire::ids::VolumeId(entry[0]["ro_id"].as_u64().unwrap() as u32);
            has(&cell.files(1), replica, &written, &said).await;
        }
        assert!(stopped > ROUNDS / 3, "{stopped} of {ROUNDS} were stopped");
    }
    cell.check("after interrupted releases");
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
