//! Kills `vos`, a file server or the database server at random moments of a move, release or restore, and gives the command again. Then the database
//! and the partitions must agree, the files must be those that were written, and the partitions must be undamaged. `AFAR_KILLS` is the number of
//! kills, `AFAR_SEED` the seed.

use crate::mounted;
use afs_lab::cpu::cpu;
use std::env;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::two_servers::{DATABASES, TwoServers, fill, has, words};
use afs_wire::ids::{AfsFid, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Vos,
    Server(usize),
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// True if the entry of the volume has to be unlocked first.
fn is_locked(said: &str) -> bool {
    said.contains("vldb entry is already locked") || said.contains("last release was aborted")
}

fn id(value: &serde_json::Value) -> VolumeId {
    VolumeId(value.as_u64().unwrap() as u32)
}

/// Gives the command again, as an administrator would who reads what it says.
fn give_again(cell: &TwoServers, name: &str, line: &str) -> (bool, String) {
    let mut all = String::new();
    for attempt in 0..5 {
        let output = cell.vos(line).output().unwrap();
        let said = words(&output);
        all.push_str(&said);
        if output.status.success() {
            return (true, all);
        }
        if is_locked(&said) {
            cell.does(&format!("unlock {name}"));
        }
        // Those of a command that was killed may still hold it. At first that has to be said.
        if said.contains("volume is busy") || attempt > 0 {
            cell.end_transactions();
        }
    }
    (false, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_killed_in_the_middle_is_whole_when_the_command_was_given_again() {
    let _cpu = cpu();
    let (seed, kills) = (setting("AFAR_SEED", 1), setting("AFAR_KILLS", 5));
    println!("seed {seed}, {kills} kills");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cell = TwoServers::beside_databases("motion-killed");
    let volume = cell.create("ONE", "v");
    let mut written = fill(&cell.files(0), volume, &[0, 1, 5000, 3_000_000, 200_000]).await;
    for server in ["ONE", "TWO"] {
        cell.does(&format!("addsite {server} a v"));
    }
    let then = written.clone();
    let snapshot = id(&cell.json("snapshot create v")["snapshot_id"]);
    let folder = mounted::Folder::new("motion-dump");
    let dump = folder.path().join("v.dump").display().to_string();
    cell.does(&format!("dump v -file {dump}"));
    let restored = cell.json(&format!("restore TWO b r -file {dump}"));
    let restored = id(&restored["id"]);
    let dumped = written.clone();
    let mut took = [Duration::ZERO; 3];
    for kill in 0..kills + 3 {
        let server = usize::from(!cell.sites("v")[0].starts_with("ONE"));
        let (from, to) = [("ONE", "TWO"), ("TWO", "ONE")][server];
        let operation = (kill % 3) as usize;
        let (name, line) = [
            ("v", format!("move v {from} a {to} a")),
            ("v", "release v".to_owned()),
            ("r", format!("restore TWO b r -file {dump} -overwrite full")),
        ][operation]
            .clone();
        let files = cell.files(server);
        let new = files.create_file(AfsFid::root_of(volume), &format!("n{kill}")).await.unwrap().fid;
        let bytes = vec![kill as u8; rng.random_range(0..100_000)];
        files.store(new, 0, bytes.clone(), bytes.len() as u64).await.unwrap();
        written.push((new, bytes));

        let begun = Instant::now();
        let child = cell.vos(&line).spawn().unwrap();
        // The first of each is not disturbed, to see how long it takes.
        let mut when = format!("{line}, undisturbed");
        let mut output = None;
        if kill >= 3 {
            let after = took[operation].mul_f64(rng.random_range(0.0..1.0));
            let victims = [Victim::Vos, Victim::Server(0), Victim::Server(1), Victim::Server(DATABASES)];
            let victim = victims[rng.random_range(0..victims.len())];
            when = format!("kill {kill}: {line}, {victim:?} killed after {after:?}");
            println!("{when}");
            sleep(after);
            let mut child = child;
            match victim {
                Victim::Vos => {
                    child.kill().unwrap();
                    output = Some(child.wait_with_output().unwrap());
                    cell.end_transactions();
                }
                Victim::Server(n) => {
                    cell.restart(n);
                    output = Some(child.wait_with_output().unwrap());
                }
            }
        } else {
            assert!(child.wait_with_output().unwrap().status.success(), "{when}");
            took[operation] = begun.elapsed();
        }
        let mut said = String::new();
        if let Some(output) = output {
            said = words(&output);
            let (is_done, more) = give_again(&cell, name, &line);
            said = format!("{said}\nthen: {more}");
            let has_moved = operation == 0 && cell.sites("v")[0].starts_with(to);
            assert!(is_done || has_moved, "{when}: {said}");
        }
        let when = format!("{when}: {said}");
        // A release that was begun may have to be gone on with before entries and partitions agree.
        if operation == 0 && kill >= 3 {
            give_again(&cell, "v", "release v");
        }
        cell.agree(&when);
        cell.check_and_go_on(&when);
        cell.agree(&when);
        let server = usize::from(!cell.sites("v")[0].starts_with("ONE"));
        has(&cell.files(server), volume, &written, &when).await;
        has(&cell.files(1), restored, &dumped, &when).await;
        // The snapshot is with the volume, and nowhere else.
        let found = cell.json("snapshot list v")["snapshots"].clone();
        let home = serde_json::Value::from(cell.address(server).to_string());
        let found: Vec<_> =
            found.as_array().unwrap().iter().map(|one| (id(&one["id"]), &one["server"])).collect();
        assert_eq!(found, [(snapshot, &home)], "{when}");
        has(&cell.files(server), snapshot, &then, &when).await;
    }
    cell.check("at the end");
    drop(fs::remove_file(dump));
}
