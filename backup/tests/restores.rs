//! Restores into volumes.

use crate::lab::{Lab, contents};
use afs_lab::caller::AccessList;
use afs_wire::ids::AfsFid;

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
