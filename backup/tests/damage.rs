//! Repositories that are damaged, and those that are pruned.

use crate::lab::Lab;
use afs_lab::real::afar::words;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The files of a repository's data.
fn packs(folder: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(folder.join("data")).expect("it is a repository");
    let files =
        folders.flat_map(|folder| fs::read_dir(folder.expect("it is there").path()).expect("it is one"));
    files.map(|file| file.expect("it is there").path()).collect()
}

#[test]
fn a_flipped_bit_and_a_lost_pack_are_found() {
    let lab = Lab::new("backup-damage");
    let root = lab.volume("data");
    lab.file(root, "file", &b"contents".repeat(100));
    lab.backup(&["run", "data"]);
    lab.backup(&["verify"]);
    for pack in packs(&lab.repository()) {
        let whole = fs::read(&pack).expect("it is there");
        let mut flipped = whole.clone();
        flipped[20] ^= 4;
        fs::set_permissions(&pack, PermissionsExt::from_mode(0o600)).expect("it is ours");
        fs::write(&pack, flipped).expect("there is room");
        assert!(!lab.try_backup(&["verify"]).status.success(), "{}", pack.display());
        fs::remove_file(&pack).expect("it is ours");
        assert!(!lab.try_backup(&["verify"]).status.success(), "{}", pack.display());
        fs::write(&pack, whole).expect("there is room");
    }
    lab.backup(&["verify"]);
}

/// What docs/backup.md says of damage.
#[test]
fn what_a_repository_has_lost_a_full_run_stores_again() {
    let lab = Lab::new("backup-repaired");
    let root = lab.volume("data");
    lab.file(root, "file", &b"contents".repeat(100));
    lab.backup(&["run", "data"]);
    packs(&lab.repository()).iter().for_each(|pack| fs::remove_file(pack).expect("it is ours"));
    assert!(!lab.try_backup(&["run", "data"]).status.success());
    let Some(_) = lab.restic(&["rebuild-index"]) else { return };
    lab.backup(&["run", "--full", "data"]);
    // The volume's header of then is nowhere.
    let first = lab.backups().swap_remove(0);
    assert!(!lab.try_backup(&["verify"]).status.success());
    lab.restic(&["forget", &first]);
    lab.backup(&["verify"]);
    let restored = lab.restored("data", "restored").join("data/file");
    assert_eq!(fs::read(restored).expect("it was restored"), b"contents".repeat(100));
}

#[test]
fn what_is_pruned_leaves_the_backups_that_stay() {
    let lab = Lab::new("backup-pruned");
    let root = lab.volume("data");
    let file = lab.file(root, "file", b"0");
    for text in ["1", "2", "3"] {
        lab.store(file, text.repeat(1000).as_bytes());
        lab.backup(&["run", "data"]);
    }
    let kept = lab.backups().split_off(1);
    assert!(!lab.try_backup(&["prune"]).status.success(), "it needs a rule");
    assert_eq!(lab.backup(&["prune", "--keep-last", "2"]), "kept 2 backups and forgot 1\n");
    assert_eq!(lab.backups(), kept);
    lab.backup(&["verify"]);
    lab.restic(&["check", "--read-data"]);
    let restored = lab.restored("data", "restored").join("data/file");
    assert_eq!(fs::read_to_string(restored).expect("it was restored"), "3".repeat(1000));
}

#[test]
fn a_repository_that_cannot_be_written_fails_the_run() {
    let lab = Lab::new("backup-full");
    let root = lab.volume("data");
    lab.file(root, "file", b"text");
    let data = lab.repository().join("data");
    fs::rename(&data, lab.folder.join("aside")).expect("it is ours");
    fs::write(&data, "no folder").expect("there is room");
    let output = lab.try_backup(&["run", "data"]);
    let told = words(&output);
    assert!(!output.status.success() && told.contains(&data.display().to_string()), "{told}");
    fs::remove_file(&data).expect("it is ours");
    fs::rename(lab.folder.join("aside"), &data).expect("it is ours");
    lab.backup(&["run", "data"]);
    lab.backup(&["verify"]);
    let restored = lab.restored("data", "restored").join("data/file");
    assert_eq!(fs::read_to_string(restored).expect("it was restored"), "text");
}
