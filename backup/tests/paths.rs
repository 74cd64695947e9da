//! One file or folder of a backup, by its path.

use crate::lab::{Lab, contents};
use afs_lab::real::afar::words;
use std::fs;
use std::path::Path;

#[test]
fn a_file_or_folder_is_found_and_restored_by_its_path() {
    let lab = Lab::new("backup-path");
    let root = lab.volume("data");
    let docs = lab.run(lab.files.make_dir(root, "docs")).fid;
    let letters = lab.run(lab.files.make_dir(docs, "letters")).fid;
    lab.file(root, "other", b"other");
    let letter = lab.file(letters, "letter", b"first");
    lab.backup(&["run", "data"]);
    lab.store(letter, b"second text");
    lab.store(lab.file(root, "more", b""), b"more");
    lab.backup(&["run", "data"]);
    lab.run(lab.files.remove_file(letters, "letter"));
    lab.backup(&["run", "data"]);
    let backups = lab.backups();

    let listed = lab.backup(&["list", "data", "--path", "docs/letters/letter"]);
    let sizes: Vec<&str> = listed.lines().filter_map(|line| line.split("  ").nth(4)).collect();
    assert!(sizes[0].starts_with("5 bytes of ") && sizes[1].starts_with("11 bytes of "), "{listed}");
    assert_eq!(listed.lines().count(), 2, "the third has it no more: {listed}");
    assert_eq!(lab.backup(&["list", "--path", "docs/none"]), "");
    let differences = lab.backup(&["diff", &backups[0], &backups[1], "--path", "docs"]);
    assert_eq!(differences, "M data/docs/letters/letter\n");

    let restore = |backup: &str, path: &str, name: &str| {
        let to = lab.folder.join(name);
        lab.backup(&["restore", backup, "--path", path, "--to", to.to_str().expect("it is text")]);
        contents(&to)
    };
    let folder = restore(&backups[0], "/docs/letters/", "folder");
    let names: Vec<_> = folder.keys().map(|path| path.to_str().expect("it is text")).collect();
    assert_eq!(names, ["data", "data/docs", "data/docs/letters", "data/docs/letters/letter"]);
    assert!(folder[Path::new("data/docs/letters")].contains("rlidwka"), "its access list");
    let file = restore(&backups[1], "docs/letters/letter", "file");
    assert!(file[Path::new("data/docs/letters/letter")].ends_with(&format!("{:?}", b"second text")));
    assert_eq!(file.len(), 4);
    let to = lab.folder.join("none");
    let refused =
        lab.try_backup(&["restore", "data", "--path", "docs/none", "--to", to.to_str().expect("text")]);
    assert!(!refused.status.success() && words(&refused).contains("has no docs/none"), "{}", words(&refused));
}

/// root wrote through a link that an earlier restore had left.
#[test]
fn a_link_of_an_earlier_restore_leads_a_later_one_nowhere() {
    let lab = Lab::new("backup-linked");
    let root = lab.volume("data");
    lab.volume("other");
    let outside = lab.folder.join("outside");
    fs::create_dir(&outside).expect("there is room");
    lab.run(lab.files.symlink(root, "name", outside.to_str().expect("it is text")));
    lab.backup(&["run", "data", "other"]);
    lab.restored("data", "to");
    lab.run(lab.files.remove_file(root, "name"));
    let folder = lab.run(lab.files.make_dir(root, "name")).fid;
    lab.file(folder, "passwd", b"text");
    lab.backup(&["run", "data"]);
    let to = lab.folder.join("to");
    let again = lab.try_backup(&["restore", "data", "--to", to.to_str().expect("it is text")]);
    assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 0);
    assert!(!again.status.success() && words(&again).contains("data is there"), "{}", words(&again));
    // Another volume may be restored beside.
    lab.restored("other", "to");
}
