//! Backups and prunes at once, and those that are killed.

use crate::lab::Lab;
use afs_lab::caller::AccessList;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::Duration;

/// What restic and we find in a repository in the end.
fn check(lab: &Lab, volumes: &[&str]) {
    for volume in volumes {
        lab.backup(&["run", volume]);
    }
    lab.backup(&["verify"]);
    // Locks of those that were killed.
    let locks = fs::read_dir(lab.repository().join("locks")).into_iter().flatten().flatten();
    locks.for_each(|lock| fs::remove_file(lock.path()).expect("it is ours"));
    lab.restic(&["check", "--read-data"]);
    for volume in volumes {
        let restored = lab.restored(volume, &format!("{volume}-restored")).join(volume);
        let text = fs::read_to_string(restored.join("file")).expect("it was restored");
        assert_eq!(text, text_of(volume, 9));
        assert_eq!(fs::read_dir(restored).expect("it is a folder").count(), 11);
    }
}

/// The text of a file of a volume after so many changes: some of it is that of all volumes.
fn text_of(volume: &str, change: u32) -> String {
    format!("{}{}", "common to all ".repeat(1000), format!("{volume} {change} ").repeat(1000))
}

fn fill(lab: &Lab, volume: &str) -> impl Fn(u32) {
    let root = lab.volume(volume);
    let list = AccessList::granting([("system:administrators", AccessList::ALL)]);
    lab.run(lab.files.set_access_list(root, &list));
    for n in 0..10 {
        lab.file(root, &format!("file {n}"), text_of(volume, n).as_bytes());
    }
    let file = lab.file(root, "file", b"");
    let volume = volume.to_owned();
    move |change| lab.store(file, text_of(&volume, change).as_bytes())
}

#[test]
fn two_backups_and_a_prune_at_once_lose_nothing() {
    let lab = Lab::new("backup-together");
    let (change_a, change_b) = (fill(&lab, "a"), fill(&lab, "b"));
    thread::scope(|scope| {
        let work = |volume: &'static str| {
            let lab = &lab;
            move || (0..4).for_each(|_| drop(lab.backup(&["run", volume])))
        };
        let runs = [scope.spawn(work("a")), scope.spawn(work("b"))];
        let prunes = scope.spawn(|| (0..3).for_each(|_| drop(lab.backup(&["prune", "--keep-last", "1"]))));
        for change in 0..10 {
            change_a(change);
            change_b(change);
        }
        assert!(runs.into_iter().all(|run| run.join().is_ok()));
        assert!(prunes.join().is_ok());
    });
    check(&lab, &["a", "b"]);
}

#[test]
fn a_backup_that_is_killed_leaves_a_repository_that_is_whole() {
    let lab = Lab::new("backup-killed");
    let change = fill(&lab, "data");
    let mut killed = 0;
    // As many points as the test has time for: AFAR_KILLS says how many.
    let kills: u32 = std::env::var("AFAR_KILLS").map_or(8, |text| text.parse().expect("it is a number"));
    for n in 0..kills {
        change(n % 10);
        let mut run = lab.command(&["run", "data"]).spawn().expect("it is built");
        // Not a wait for anything: a point of the run.
        thread::sleep(Duration::from_millis(u64::from(n * 37 % 400)));
        run.kill().expect("it is ours");
        killed += u32::from(run.wait().expect("it ends").signal().is_some());
    }
    assert!(killed > 0, "all of {kills} runs were faster");
    change(9);
    check(&lab, &["data"]);
}
