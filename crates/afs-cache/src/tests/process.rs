//! The death of a real process: what it said to have written is there.

use super::config;
use super::start::key;
use crate::Cache;
use afs_lab::real::folder::Folder;
use afs_lab::skipped::skip;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program that writes, beside this one.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().expect("a test has a file");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join("afs-cache-load")
}

#[test]
fn what_a_killed_process_said_to_have_written_is_there() {
    let program = program();
    if !program.exists() {
        return skip("what_a_killed_process_said_to_have_written_is_there", "afs-cache-load is not built");
    }
    let folder = Folder::new("killed");
    for round in 0..5u64 {
        let mut child = Command::new(&program)
            .arg(&folder)
            .arg(round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let mut said = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut last = None;
        for _ in 0..200 + 371 * round {
            let mut line = String::new();
            said.read_line(&mut line).expect("it writes");
            last = Some(line.trim().parse::<u64>().expect("a number a line"));
        }
        child.kill().expect("it runs");
        child.wait().expect("it was started");
        // Of what it said after that nobody has heard; it may be there too.
        let last = last.expect("it has written");
        let cache = Cache::open(&folder, config()).unwrap();
        let file = cache.held(key(2 * round as u32 + 2)).unwrap().expect("it was written to");
        for n in 0..=last {
            let mut out = [0; 100];
            let read = file.read_at(n * 150, &mut out).expect("it is there").unwrap();
            assert_eq!(out[..read], [n as u8 ^ 0x5a; 100], "write {n} of round {round}");
            assert!(
                file.dirty_ranges().iter().any(|r| r.start <= n * 150 && n * 150 + 100 <= r.end),
                "write {n}"
            );
        }
        assert_eq!(cache.dirty_files().len() as u64, round + 1);
    }
}
