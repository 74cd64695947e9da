//! Restores into volumes, and of a whole cell.

use crate::lab::{Lab, contents, link_afar};
use afs_lab::caller::AccessList;
use afs_lab::real::afar;
use afs_lab::real::cell::Cell;
use afs_wire::ids::AfsFid;
use std::fs;
use std::path::Path;

#[test]
fn a_restored_volume_has_files_links_and_access_lists_of_then() {
    let lab = Lab::new("backup-restored");
    let root = lab.volume("data");
    let inner = lab.run(lab.files.make_dir(root, "inner")).fid;
    let list = AccessList::granting([
        ("system:administrators", AccessList::ALL),
        ("system:anyuser", AccessList::READ),
    ]);
    lab.run(lab.files.set_access_list(inner, &list));
    let file = lab.file(inner, "file", b"then");
    lab.run(lab.files.chmod(file, 0o640));
    lab.run(lab.files.link(inner, "hard", file));
    lab.run(lab.files.symlink(root, "link", "inner/file"));
    lab.run(lab.files.symlink(root, "mount point", "%root.cell."));
    let large: Vec<u8> = (0..1_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    lab.file(root, "large", &large);
    lab.backup(&["run", "data"]);
    lab.store(file, b"now, and longer");

    let server = lab.cell.address.to_string();
    let restore = |name: &'static str| {
        ["restore", "data", "--volume", name, "--server", &server, "--partition", "a"].map(str::to_owned)
    };
    let copy = restore("copy");
    lab.backup(&copy.each_ref().map(String::as_str));
    let volume = lab.volume_id("copy");
    let there = |fid: AfsFid| AfsFid { volume, ..fid };
    assert_eq!(lab.run(lab.files.access_list(there(inner))), list);
    assert_eq!(lab.run(lab.files.fetch(there(file), 0, 100)), b"then");
    assert_eq!(lab.run(lab.files.status(there(file))).link_count, 2);

    // A backup of the copy is the backup of the volume.
    lab.backup(&["run", "copy"]);
    let backups = lab.backups();
    let of = |backup: &str, volume: &str| contents(&lab.restored(backup, backup).join(volume));
    assert_eq!(of(&backups[1], "copy"), of(&backups[0], "data"));
    lab.backup(&["verify"]);

    let over = restore("data");
    let mut over: Vec<&str> = over.iter().map(String::as_str).collect();
    let refused = lab.try_backup(&over);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--overwrite"));
    assert_eq!(lab.run(lab.files.fetch(file, 0, 100)), b"now, and longer");
    over.push("--overwrite");
    lab.backup(&over);
    assert_eq!(lab.run(lab.files.fetch(file, 0, 100)), b"then");
}

/// docs/backup.md, "When everything is lost".
#[test]
fn a_new_cell_is_made_of_the_repository_alone() {
    let lost = Lab::new("backup-lost");
    let root = lost.volume("data");
    let inner = lost.run(lost.files.make_dir(root, "inner")).fid;
    lost.file(inner, "file", b"of the old cell");
    for n in 0..3 {
        lost.vos(&format!("pts createuser other{n}"));
    }
    lost.vos("pts createuser alice");
    lost.vos("pts creategroup friends system:administrators");
    lost.vos("pts adduser alice friends");
    let list = AccessList::granting([
        ("system:administrators", AccessList::ALL),
        ("alice", AccessList::WRITE),
        ("friends", AccessList::READ),
    ]);
    lost.run(lost.files.set_access_list(inner, &list));
    let program = link_afar();
    let program = program.to_str().expect("it is text");
    let told = lost.backup(&["run", "--databases", "--afar", program]);
    assert!(told.starts_with(":databases: backed up: 2 files new"), "no keys: {told}");
    lost.backup(&["run", "--databases", "--keys", "--afar", program, "*"]);
    lost.restored(":databases", "databases");

    let mut cell = Cell::new("backup-rebuilt");
    let prdb = lost.folder.join("databases/:databases/prdb.DB0");
    let state = cell.folder.join("state");
    let saved = lost.folder.join("databases/:databases/server");
    let key = |folder: &Path| fs::read(folder.join("KeyFileExt")).expect("it is there");
    assert_eq!(key(&saved), key(&lost.cell.folder.join("state/etc/server")));
    cell.restart_after(|| {
        for file in fs::read_dir(&saved).expect("it was restored") {
            let file = file.expect("it can be read");
            fs::copy(file.path(), state.join("etc/server").join(file.file_name())).expect("there is room");
        }
        let mut import = afar::command(["import", "--replace", "--prdb"]);
        let imported = import.arg(prdb).arg("--state").arg(&state).output().expect("it is built");
        assert!(imported.status.success(), "{}", afar::words(&imported));
    });
    // It calls the servers by the old cell's key, which they take.
    let rebuilt = Lab::of(cell, "backup-rebuilt");
    assert_eq!(key(&rebuilt.cell.folder.join("state/etc/server")), key(&saved));
    let server = rebuilt.cell.address.to_string();
    let config = rebuilt.cell.folder.join("state/etc/server");
    // The repository of the old cell, with the new cell's key.
    let mut restore = std::process::Command::new(env!("CARGO_BIN_EXE_afar-backup"));
    restore.arg("--repo").arg(lost.repository()).arg("--password-file").arg(lost.folder.join("password"));
    restore.args([
        "restore",
        "data",
        "--volume",
        "data",
        "--partition",
        "a",
        "--server",
        &server,
        "--config",
    ]);
    let restored = restore.arg(config).output().expect("it is built");
    assert!(restored.status.success(), "{}", afar::words(&restored));
    let there = |fid: AfsFid| AfsFid { volume: rebuilt.volume_id("data"), ..fid };
    assert_eq!(rebuilt.run(rebuilt.files.access_list(there(inner))), list);
    assert_eq!(rebuilt.vos("pts examine alice"), lost.vos("pts examine alice"));
    assert_eq!(rebuilt.vos("pts membership friends"), lost.vos("pts membership friends"));
}
