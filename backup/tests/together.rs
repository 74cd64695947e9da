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
fn each_of_several_volumes_at_once_is_told_of_and_backed_up() {
    let lab = Lab::new("backup-jobs");
    let volumes = ["a", "b", "c", "d", "e"];
    for volume in volumes {
        fill(&lab, volume)(9);
    }
    let metrics = lab.folder.join("metrics.prom");
    let metrics = metrics.to_str().expect("it is text");
    let run = ["run", "--jobs", "3", "a", "b", "nobody", "c", "d", "e", "a", "--metrics", metrics];
    let output = lab.try_backup(&run);
    assert!(!output.status.success());
    let mut told: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    told.sort();
    assert_eq!(told.len(), 5, "{told:?}");
    for (line, volume) in told.iter().zip(volumes) {
        assert!(line.starts_with(&format!("{volume}: backed up: 12 files new")), "{line}");
    }
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(failed, "afar-backup: nobody: not backed up: the cell afar.local has no such volume\n");
    let metrics = fs::read_to_string(metrics).expect("it was written");
    let never: Vec<&str> = metrics.lines().filter(|line| line.ends_with(" 0")).collect();
    assert_eq!(never, ["afar_backup_last_good_seconds{cell=\"afar.local\",volume=\"nobody\"} 0"]);
    assert_eq!(metrics.lines().count(), 2 + 6, "{metrics}");
    lab.backup(&["verify"]);
    lab.restic(&["check", "--read-data"]);
    for volume in volumes {
        let restored = lab.restored(volume, &format!("{volume}-restored")).join(volume);
        for (name, change) in [("file", 9), ("file 0", 0), ("file 7", 7)] {
            let text = fs::read_to_string(restored.join(name)).expect("it was restored");
            assert_eq!(text, text_of(volume, change), "{volume}/{name}");
        }
    }
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
