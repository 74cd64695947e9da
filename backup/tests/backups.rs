//! Backups of volumes, read by restic and by us.

use crate::lab::{Lab, contents, next_second};
use afs_lab::caller::AccessList;
use afs_lab::real::afar::words;
use afs_wire::ids::AfsFid;
use std::fs;
use std::process::Command;

/// A tree with everything that a volume can have.
pub(crate) fn fill(lab: &Lab, name: &str) -> AfsFid {
    let root = lab.volume(name);
    lab.run(lab.files.set_access_list(
        root,
        &AccessList::granting([
            ("system:administrators", AccessList::ALL),
            ("system:anyuser", AccessList::READ),
        ]),
    ));
    let inner = lab.run(lab.files.make_dir(root, "inner")).fid;
    let list = AccessList::granting([
        ("system:administrators", AccessList::ALL),
        ("system:authuser", AccessList::WRITE),
    ]);
    lab.run(lab.files.set_access_list(inner, &list));
    lab.file(root, "empty", b"");
    let small = lab.file(root, "small", b"some text");
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    lab.file(inner, "large", &large);
    lab.file(inner, "a \"name\"\\with\nall", b"odd");
    lab.file(inner, "\u{fc}ber", b"letters");
    let private = lab.file(inner, "private", b"mine");
    lab.run(lab.files.chmod(private, 0o4600));
    lab.run(lab.files.link(root, "second name", small));
    lab.run(lab.files.symlink(root, "link", "inner/large"));
    lab.run(lab.files.symlink(root, "mount point", "#root.cell."));
    let deep = (0..20).fold(inner, |folder, n| lab.run(lab.files.make_dir(folder, &format!("{n}"))).fid);
    lab.file(deep, "deep", b"below");
    root
}

#[test]
fn restic_restores_what_was_backed_up_file_by_file() {
    let lab = Lab::new("backup-restic");
    fill(&lab, "data");
    lab.backup(&["run", "data"]);
    let ours = contents(&lab.restored("data", "ours"));
    let large = fs::metadata(lab.folder.join("ours/data/inner/large")).expect("it was restored");
    assert_eq!(large.len(), 3_000_000);
    let text =
        |path: &str| ours.get(std::path::Path::new(path)).unwrap_or_else(|| panic!("no {path}")).clone();
    assert_eq!(text("data/mount point"), "link to #root.cell.");
    assert_eq!(text("data/link"), "link to inner/large");
    assert!(text("data/inner").contains("-204 rlidwka\\n-102 rlidwk\\n"), "{}", text("data/inner"));
    assert!(text("data/inner/private").starts_with("file 4600 "), "{}", text("data/inner/private"));
    assert_eq!(text("data/small").replace("small", ""), text("data/second name"));
    assert!(ours.contains_key(std::path::Path::new("data.header")));
    assert_eq!(ours.len(), 33, "{:?}", ours.keys());
    let to = lab.folder.join("restic");
    let Some(_) = lab.restic(&["check", "--read-data"]) else { return };
    lab.restic(&["restore", "latest", "--target", to.to_str().expect("it is text")]);
    assert_eq!(contents(&to), ours);
}

/// rustic finds changes by size and times, and the times of AFS are whole seconds.
#[test]
fn two_changes_of_equal_length_within_a_second_are_both_backed_up() {
    let lab = Lab::new("backup-second");
    let root = lab.volume("data");
    let file = lab.file(root, "file", b"text 0");
    let texts = ["text 1", "text 2", "text 3"];
    for text in texts {
        lab.store(file, text.as_bytes());
        // The same time as all others.
        lab.set_time(file, 1_700_000_000);
        lab.backup(&["run", "data"]);
    }
    for (backup, text) in lab.backups().iter().zip(texts) {
        let restored = lab.restored(backup, text).join("data/file");
        assert_eq!(fs::read_to_string(restored).expect("it was restored"), text);
    }
    assert_eq!(lab.backups().len(), 3);
}

#[test]
fn what_has_not_changed_is_not_dumped_even_if_its_folder_has_another_name() {
    let lab = Lab::new("backup-renamed");
    let root = lab.volume("data");
    let inner = lab.run(lab.files.make_dir(root, "inner")).fid;
    let text = |name: &str| name.repeat(20_000).into_bytes();
    lab.file(root, "stays", &text("stays"));
    lab.file(inner, "moves", &text("moves"));
    lab.run(lab.files.symlink(inner, "link", "target"));
    next_second();
    lab.file(root, "later", b"later");
    lab.backup(&["run", "data"]);
    next_second();
    lab.run(lab.files.rename((root, "inner"), (root, "outer")));
    lab.file(root, "new", b"new");
    let told = lab.backup(&["run", "data"]);
    let dumped = told.split_once("unchanged; ").and_then(|(_, rest)| rest.split(' ').next());
    let dumped: u32 = dumped.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{told}"));
    assert!(dumped < 50_000, "{told}");
    let backups = lab.backups();
    let restored = lab.restored(&backups[1], "restored").join("data");
    let read = |name: &str| fs::read(restored.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!((read("stays"), read("outer/moves")), (text("stays"), text("moves")));
    assert_eq!((read("new"), read("later")), (b"new".to_vec(), b"later".to_vec()));
    assert_eq!(fs::read_link(restored.join("outer/link")).expect("it was restored").to_str(), Some("target"));
    let differences = lab.backup(&["diff", &backups[0], &backups[1]]);
    let mut lines: Vec<&str> = differences.lines().filter(|line| !line.ends_with(".header")).collect();
    lines.sort_unstable();
    let expected =
        ["data/new", "data/outer", "data/outer/link", "data/outer/moves"].map(|path| format!("+ {path}"));
    let gone = ["data/inner", "data/inner/link", "data/inner/moves"].map(|path| format!("- {path}"));
    assert_eq!(lines, [&expected[..], &gone[..]].concat());
}

#[test]
fn an_unchanged_volume_is_saved_again_without_a_dump() {
    let lab = Lab::new("backup-unchanged");
    let root = lab.old_volume("data");
    let first = lab.backup(&["run", "data"]);
    assert!(first.starts_with("data: backed up: 3 files new"), "{first}");
    assert_eq!(lab.backup(&["run", "data"]), "data: unchanged\n");
    lab.file(root, "new", b"text");
    let third = lab.backup(&["run", "data"]);
    assert!(third.starts_with("data: backed up: 1 files new"), "{third}");
    let all: Vec<_> = lab.backups().iter().map(|backup| contents(&lab.restored(backup, backup))).collect();
    assert_eq!(all[0], all[1]);
    assert_eq!(all[2].len(), all[1].len() + 1);
    lab.restic(&["check", "--read-data"]);
}

#[test]
fn a_run_shows_how_far_it_is_on_a_terminal_and_nowhere_else() {
    let lab = Lab::new("backup-progress");
    fill(&lab, "data");
    let shown = |arguments: &[&str]| {
        let command = lab.command(arguments);
        let all: Vec<_> = [command.get_program()].into_iter().chain(command.get_args()).collect();
        let line = all.iter().map(|word| format!("'{}'", word.display())).collect::<Vec<_>>().join(" ");
        let mut script = Command::new("script");
        script.args(["-qec", &format!("stty cols 120 && exec {line}"), "/dev/null"]).env("TERM", "xterm");
        let output = script.output().expect("bsdutils is there");
        assert!(output.status.success(), "{}", words(&output));
        words(&output)
    };
    let told = shown(&["run", "data"]);
    assert!(told.contains("data dumping") && told.contains("data: backed up"), "{told:?}");
    let told = shown(&["verify"]);
    assert!(told.contains("reading pack data"), "{told:?}");
    let output = lab.try_backup(&["run", "--full", "data"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", words(&output));
}

#[test]
fn a_volume_that_is_not_there_fails_the_run_and_those_that_are_meant_are_backed_up() {
    let lab = Lab::new("backup-missing");
    for name in ["data", "data.more", "other"] {
        lab.volume(name);
    }
    let metrics = lab.folder.join("metrics.prom");
    let output = lab.try_backup(&[
        "run",
        "nobody",
        "no*",
        "data*",
        "--metrics",
        metrics.to_str().expect("it is text"),
    ]);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("nobody: not backed up: the cell afar.local has no such volume"), "{told}");
    assert!(told.contains("no*: not backed up: no volume of the cell afar.local has such a name"), "{told}");
    assert_eq!(lab.backups().len(), 2);
    let metrics = fs::read_to_string(metrics).expect("it was written");
    assert!(
        metrics.contains("afar_backup_last_good_seconds{cell=\"afar.local\",volume=\"data\"} "),
        "{metrics}"
    );
    assert!(metrics.contains("data.more") && !metrics.contains("other"), "{metrics}");
    assert!(
        metrics.contains("afar_backup_last_good_seconds{cell=\"afar.local\",volume=\"nobody\"} 0\n"),
        "{metrics}"
    );
}
