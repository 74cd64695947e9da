//! Names: what is made, renamed and removed, and what errors say.

use crate::cell::{Cell, at};
use crate::kernel::Kernel;

fn mounted() -> (Cell, Kernel) {
    let mut cell = Cell::new();
    let kernel = cell.mount();
    (cell, kernel)
}

const NO_REPLACE: u32 = libc::RENAME_NOREPLACE;
const EXCHANGE: u32 = libc::RENAME_EXCHANGE;

#[test]
fn a_new_directory_is_empty_and_listed() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    assert_eq!(kernel.list(&at("d")), Ok(Vec::new()));
    assert_eq!(kernel.list(&at("")), Ok(vec!["d".to_owned()]));
    assert_eq!(kernel.stat(&at("d")).unwrap().mode, libc::S_IFDIR | 0o755);
}

#[test]
fn a_name_that_is_not_there_is_enoent() {
    let (_cell, kernel) = mounted();
    assert_eq!(kernel.stat(&at("a")), Err(libc::ENOENT));
    assert_eq!(kernel.open(&at("a"), libc::O_RDONLY).map(drop), Err(libc::ENOENT));
    assert_eq!(kernel.unlink(&at("a")), Err(libc::ENOENT));
}

#[test]
fn a_cell_that_is_not_there_is_enoent() {
    let (_cell, kernel) = mounted();
    assert_eq!(kernel.stat("two.test"), Err(libc::ENOENT));
}

#[test]
fn the_root_lists_the_cell_and_its_read_write_path() {
    let (_cell, kernel) = mounted();
    assert_eq!(kernel.list(""), Ok(vec![".one.test".to_owned(), "one.test".to_owned()]));
}

#[test]
fn a_directory_that_is_there_is_not_made_again() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    assert_eq!(kernel.make_directory(&at("d"), 0o755), Err(libc::EEXIST));
}

#[test]
fn a_directory_with_a_file_is_not_removed() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    kernel.write_all(&at("d/f"), b"").unwrap();
    assert_eq!(kernel.remove_directory(&at("d")), Err(libc::ENOTEMPTY));
    kernel.unlink(&at("d/f")).unwrap();
    kernel.remove_directory(&at("d")).unwrap();
    assert_eq!(kernel.stat(&at("d")), Err(libc::ENOENT));
}

#[test]
fn a_removed_file_is_gone() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    kernel.unlink(&at("f")).unwrap();
    assert_eq!(kernel.stat(&at("f")), Err(libc::ENOENT));
    assert_eq!(kernel.list(&at("")), Ok(Vec::new()));
}

#[test]
fn a_name_may_be_made_again_with_other_contents() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"first").unwrap();
    let first = kernel.stat(&at("f")).unwrap().inode;
    kernel.unlink(&at("f")).unwrap();
    kernel.write_all(&at("f"), b"second").unwrap();
    assert_ne!(kernel.stat(&at("f")).unwrap().inode, first);
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"second"[..]));
}

#[test]
fn a_renamed_file_keeps_data_and_inode() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"text").unwrap();
    let inode = kernel.stat(&at("a")).unwrap().inode;
    kernel.rename(&at("a"), &at("b"), 0).unwrap();
    assert_eq!(kernel.stat(&at("a")), Err(libc::ENOENT));
    assert_eq!(kernel.stat(&at("b")).unwrap().inode, inode);
    assert_eq!(kernel.read_all(&at("b")).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn a_rename_replaces_a_file() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"new").unwrap();
    kernel.write_all(&at("b"), b"old").unwrap();
    kernel.rename(&at("a"), &at("b"), 0).unwrap();
    assert_eq!(kernel.read_all(&at("b")).as_deref(), Ok(&b"new"[..]));
    assert_eq!(kernel.list(&at("")), Ok(vec!["b".to_owned()]));
}

#[test]
fn a_rename_that_may_not_replace_is_eexist() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"a").unwrap();
    kernel.write_all(&at("b"), b"b").unwrap();
    assert_eq!(kernel.rename(&at("a"), &at("b"), NO_REPLACE), Err(libc::EEXIST));
    assert_eq!(kernel.read_all(&at("b")).as_deref(), Ok(&b"b"[..]));
}

#[test]
fn an_exchange_of_two_names_is_refused_and_changes_nothing() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"a").unwrap();
    kernel.write_all(&at("b"), b"b").unwrap();
    assert_eq!(kernel.rename(&at("a"), &at("b"), EXCHANGE), Err(libc::EINVAL));
    assert_eq!(kernel.read_all(&at("a")).as_deref(), Ok(&b"a"[..]));
}

#[test]
fn a_file_moves_into_another_directory() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    kernel.write_all(&at("f"), b"text").unwrap();
    kernel.rename(&at("f"), &at("d/g"), 0).unwrap();
    assert_eq!(kernel.list(&at("")), Ok(vec!["d".to_owned()]));
    assert_eq!(kernel.read_all(&at("d/g")).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn a_directory_moves_with_what_is_in_it() {
    let (_cell, kernel) = mounted();
    for dir in ["a", "b"] {
        kernel.make_directory(&at(dir), 0o755).unwrap();
    }
    kernel.write_all(&at("a/f"), b"text").unwrap();
    kernel.rename(&at("a"), &at("b/c"), 0).unwrap();
    assert_eq!(kernel.read_all(&at("b/c/f")).as_deref(), Ok(&b"text"[..]));
    assert_eq!(kernel.stat(&at("a")), Err(libc::ENOENT));
}

#[test]
fn a_directory_does_not_replace_one_that_is_not_empty() {
    let (_cell, kernel) = mounted();
    for dir in ["a", "b"] {
        kernel.make_directory(&at(dir), 0o755).unwrap();
    }
    kernel.write_all(&at("b/f"), b"text").unwrap();
    assert_eq!(kernel.rename(&at("a"), &at("b"), 0), Err(libc::ENOTEMPTY));
}

#[test]
fn a_symbolic_link_has_its_target() {
    let (_cell, kernel) = mounted();
    kernel.symlink("some/where", &at("l")).unwrap();
    assert_eq!(kernel.read_link(&at("l")).as_deref(), Ok("some/where"));
    assert_eq!(kernel.stat(&at("l")).unwrap().mode & libc::S_IFMT, libc::S_IFLNK);
    assert_eq!(kernel.stat(&at("l")).unwrap().size, 10);
}

#[test]
fn a_second_name_is_the_same_file() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"text").unwrap();
    kernel.link(&at("a"), &at("b")).unwrap();
    let (a, b) = (kernel.stat(&at("a")).unwrap(), kernel.stat(&at("b")).unwrap());
    assert_eq!((a.inode, a.links, b.links), (b.inode, 2, 2));
    kernel.unlink(&at("a")).unwrap();
    assert_eq!(kernel.stat(&at("b")).unwrap().links, 1);
    assert_eq!(kernel.read_all(&at("b")).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn a_second_name_in_another_directory_is_exdev() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    kernel.write_all(&at("a"), b"text").unwrap();
    assert_eq!(kernel.link(&at("a"), &at("d/b")), Err(libc::EXDEV));
}

#[test]
fn names_have_255_bytes_at_most() {
    let (_cell, kernel) = mounted();
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    kernel.write_all(&at(&longest), b"text").unwrap();
    assert_eq!(kernel.list(&at("")), Ok(vec![longest]));
    assert_eq!(kernel.write_all(&at(&longer), b"text"), Err(libc::ENAMETOOLONG));
    assert_eq!(kernel.space().unwrap().2, 255);
}

#[test]
fn new_modes_and_changed_ones_are_shown() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    assert_eq!(kernel.stat(&at("f")).unwrap().mode, libc::S_IFREG | 0o644);
    assert_eq!(kernel.change_mode(&at("f"), libc::S_IFREG | 0o600).unwrap().mode, libc::S_IFREG | 0o600);
    assert_eq!(kernel.stat(&at("f")).unwrap().mode, libc::S_IFREG | 0o600);
}

#[test]
fn a_listing_of_many_names_has_each_once() {
    let (_cell, kernel) = mounted();
    let names: Vec<_> = (0..300).map(|number| format!("file {number:03}")).collect();
    for name in &names {
        kernel.write_all(&at(name), b"").unwrap();
    }
    assert_eq!(kernel.list(&at("")), Ok(names));
}

#[test]
fn what_the_kernel_has_let_go_of_is_found_again() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let before = kernel.stat(&at("f")).unwrap();
    kernel.forget(kernel.walk(&at("f")).unwrap());
    assert_eq!(kernel.stat(&at("f")).map(|after| after.inode), Ok(before.inode));
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn a_file_tells_its_cell_and_fid() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    assert_eq!(kernel.get_attribute(&at("f"), "afs.cell").as_deref(), Ok("one.test"));
    assert!(kernel.get_attribute(&at("f"), "afs.fid").unwrap().starts_with("20000000:"));
    assert_eq!(kernel.get_attribute(&at("f"), "user.no"), Err(libc::ENODATA));
}

#[test]
fn what_is_known_is_not_asked_for_again() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    kernel.stat(&at("f")).unwrap();
    let asked = kernel.asked();
    for _ in 0..10 {
        kernel.stat(&at("f")).unwrap();
    }
    assert_eq!(kernel.asked(), asked, "no GETATTR and no LOOKUP while the server promises to tell");
}

#[test]
fn a_directory_counts_its_subdirectories() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    let before = kernel.stat(&at("d")).unwrap().links;
    kernel.make_directory(&at("d/e"), 0o755).unwrap();
    assert_eq!(kernel.stat(&at("d")).unwrap().links, before + 1);
    kernel.remove_directory(&at("d/e")).unwrap();
    assert_eq!(kernel.stat(&at("d")).unwrap().links, before);
}

#[test]
fn each_file_has_an_inode_number_of_its_own() {
    let (_cell, kernel) = mounted();
    let mut inodes: Vec<_> = (0..20)
        .map(|number| {
            let path = at(&format!("f{number}"));
            kernel.write_all(&path, b"").unwrap();
            kernel.stat(&path).unwrap().inode
        })
        .collect();
    inodes.sort_unstable();
    inodes.dedup();
    assert_eq!(inodes.len(), 20);
}

#[test]
fn a_path_through_a_file_is_enotdir() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    assert_eq!(kernel.stat(&at("f/g")), Err(libc::ENOTDIR));
}

#[test]
fn a_long_target_of_a_link_is_kept_whole() {
    let (_cell, kernel) = mounted();
    let target = "t/".repeat(500);
    kernel.symlink(&target, &at("l")).unwrap();
    assert_eq!(kernel.read_link(&at("l")), Ok(target));
}

/// Installers and file managers look whether there is room before they copy anything.
#[test]
fn the_folder_of_cells_has_room() {
    let (_cell, kernel) = mounted();
    let (blocks, available, _) = kernel.space().unwrap();
    assert!(blocks > 1 << 30 && available == blocks, "{available} of {blocks}");
}

#[test]
fn numbers_of_files_are_those_of_listings_and_fit_into_a_floating_point_number() {
    let (_cell, kernel) = mounted();
    for name in ["a", "b"] {
        kernel.write_all(&at(name), name.as_bytes()).unwrap();
    }
    kernel.make_directory(&at("d"), 0o755).unwrap();
    let directory = kernel.open_directory(&at("")).unwrap();
    let entries = kernel.entries(&directory).unwrap();
    kernel.close_directory(directory).unwrap();
    assert_eq!(entries.len(), 3);
    for (name, inode) in entries {
        assert_eq!(kernel.stat(&at(&name)).unwrap().inode, inode, "{name}");
        assert!(inode < 1 << 53, "{name}: {inode}");
    }
}

#[test]
fn a_directory_that_is_read_again_from_its_beginning_shows_what_was_made_since() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    let directory = kernel.open_directory(&at("d")).unwrap();
    let names = || kernel.entries(&directory).unwrap().into_iter().map(|(name, _)| name).collect::<String>();
    assert_eq!(names(), "");
    kernel.write_all(&at("d/1"), b"").unwrap();
    assert_eq!(names(), "1");
    kernel.write_all(&at("d/2"), b"").unwrap();
    kernel.unlink(&at("d/1")).unwrap();
    assert_eq!(names(), "2");
    kernel.close_directory(directory).unwrap();
}

#[test]
fn an_open_directory_that_was_removed_or_replaced_has_no_links() {
    let (_cell, kernel) = mounted();
    for name in ["removed", "replaced"] {
        kernel.make_directory(&at(name), 0o755).unwrap();
        let directory = kernel.open_directory(&at(name)).unwrap();
        let before = kernel.attributes(directory.node).unwrap();
        if name == "removed" {
            kernel.remove_directory(&at(name)).unwrap();
        } else {
            kernel.make_directory(&at("new"), 0o755).unwrap();
            kernel.rename(&at("new"), &at(name), 0).unwrap();
            assert_ne!(kernel.stat(&at(name)).unwrap().inode, before.inode);
        }
        kernel.no_attributes(directory.node);
        let after = kernel.attributes(directory.node).unwrap();
        assert_eq!((after.links, after.inode, after.mode), (0, before.inode, before.mode), "{name}");
        kernel.close_directory(directory).unwrap();
    }
}

#[test]
fn a_rename_to_the_same_name_changes_nothing() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"text").unwrap();
    kernel.rename(&at("a"), &at("a"), 0).unwrap();
    assert_eq!(kernel.read_all(&at("a")).as_deref(), Ok(&b"text"[..]));
}

/// As POSIX has it.
#[test]
fn a_rename_to_another_name_of_the_file_leaves_both() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("a"), b"text").unwrap();
    kernel.link(&at("a"), &at("b")).unwrap();
    kernel.rename(&at("a"), &at("b"), 0).unwrap();
    assert_eq!(kernel.list(&at("")), Ok(vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn a_directory_is_not_removed_as_a_file_nor_a_file_as_a_directory() {
    let (_cell, kernel) = mounted();
    kernel.make_directory(&at("d"), 0o755).unwrap();
    kernel.write_all(&at("f"), b"text").unwrap();
    assert_eq!(kernel.unlink(&at("d")), Err(libc::EISDIR));
    assert_eq!(kernel.remove_directory(&at("f")), Err(libc::ENOTDIR));
    assert_eq!(kernel.list(&at("")), Ok(vec!["d".to_owned(), "f".to_owned()]));
}

#[test]
fn a_file_tells_the_name_of_its_volume() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"").unwrap();
    assert_eq!(kernel.get_attribute(&at("f"), "afs.volume").as_deref(), Ok("root.cell"));
}

#[test]
fn names_are_bytes_and_stay_as_they_are() {
    let (_cell, kernel) = mounted();
    let mut names = ["a b", "\u{e4}\u{f6}", "A\u{308}", "-", "back\\slash", "line\nbreak"].map(str::to_owned);
    for name in &names {
        kernel.write_all(&at(name), name.as_bytes()).unwrap();
    }
    names.sort();
    assert_eq!(kernel.list(&at("")).unwrap(), names);
    for name in &names {
        assert_eq!(kernel.read_all(&at(name)).as_deref(), Ok(name.as_bytes()));
    }
}
