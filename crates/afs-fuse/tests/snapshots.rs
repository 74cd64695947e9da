//! `.snapshots` as the kernel and programs meet it.

use crate::cell::{Cell, at};

const THEN: &str = ".snapshots/2026-11-28T030000Z";

#[test]
fn a_file_is_read_in_a_snapshot_as_another_file_that_nobody_changes() {
    let mut cell = Cell::new();
    let kernel = cell.mount();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    kernel.write_all(&at("d/f"), b"then").unwrap();
    cell.make_snapshot();
    kernel.write_all(&at("d/f"), b"and now").unwrap();

    let then = at(&format!("d/{THEN}/f"));
    assert_eq!(kernel.read_all(&then).as_deref(), Ok(&b"then"[..]));
    assert_eq!(kernel.read_all(&at("d/f")).as_deref(), Ok(&b"and now"[..]));
    assert_ne!(kernel.stat(&then).unwrap().inode, kernel.stat(&at("d/f")).unwrap().inode);
    let [dir, snapshots] = ["d", "d/.snapshots"].map(|name| kernel.stat(&at(name)).unwrap().inode);
    assert_ne!(dir, snapshots);
    // The same file on the way from the volume's root.
    let other = at(&format!("{THEN}/d/f"));
    assert_eq!(kernel.stat(&other).unwrap().inode, kernel.stat(&then).unwrap().inode);
    assert_eq!(kernel.read_all(&then).as_deref(), Ok(&b"then"[..]));

    assert_eq!(kernel.open(&then, libc::O_WRONLY).map(drop), Err(libc::EROFS));
    assert_eq!(kernel.unlink(&then), Err(libc::EROFS));
    assert_eq!(kernel.make_directory(&at(&format!("d/{THEN}/new")), 0o755), Err(libc::EROFS));
    assert_eq!(kernel.make_directory(&at("d/.snapshots/new"), 0o755), Err(libc::EROFS));
}

#[test]
fn programs_that_go_through_a_tree_do_not_meet_snapshots_and_who_asks_for_them_does() {
    let mut cell = Cell::new();
    let kernel = cell.mount();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    cell.make_snapshot();
    assert_eq!(kernel.stat(&at("d/.snapshots")).unwrap().mode & libc::S_IFMT, libc::S_IFDIR);
    assert_eq!(kernel.list(&at("")), Ok(vec!["d".to_owned()]));
    assert_eq!(kernel.list(&at("d")), Ok(Vec::new()));
    for dir in [".snapshots", "d/.snapshots"] {
        assert_eq!(kernel.list(&at(dir)), Ok(vec!["2026-11-28T030000Z".to_owned()]));
    }
    assert_eq!(kernel.list(&at(THEN)), Ok(vec!["d".to_owned()]));
}
