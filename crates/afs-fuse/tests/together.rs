//! Several mounts of one cell: what one has changed and closed, the others see; and a server that comes back.

use crate::cell::{Cell, at};
use crate::kernel::{Kernel, Told};

fn two_mounts() -> (Cell, Kernel, Kernel) {
    let mut cell = Cell::new();
    let (one, two) = (cell.mount(), cell.mount());
    (cell, one, two)
}

#[test]
fn a_file_of_another_client_is_read() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"some text").unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"some text"[..]));
}

#[test]
fn a_longer_version_is_read_to_its_end() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"short").unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"short"[..]));
    one.write_all(&at("f"), b"a longer text").unwrap();
    assert_eq!(two.stat(&at("f")).unwrap().size, 13);
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"a longer text"[..]));
}

#[test]
fn a_shorter_version_ends_where_it_ends() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"a longer text").unwrap();
    assert_eq!(two.read_all(&at("f")).unwrap().len(), 13);
    one.write_all(&at("f"), b"short").unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"short"[..]));
}

#[test]
fn the_kernel_is_told_to_forget_data_that_another_has_changed() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), &[1; 10_000]).unwrap();
    two.read_all(&at("f")).unwrap();
    let node = two.walk(&at("f")).unwrap();
    two.take_told();
    one.write_all(&at("f"), &[2; 10_000]).unwrap();
    two.is_told(&Told::Data(node));
    assert_eq!(two.read_all(&at("f")).unwrap(), [2; 10_000]);
}

#[test]
fn the_kernel_is_told_to_forget_a_name_that_another_has_removed() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"text").unwrap();
    two.stat(&at("f")).unwrap();
    let dir = two.walk(&at("")).unwrap();
    two.take_told();
    one.unlink(&at("f")).unwrap();
    two.is_told(&Told::Name(dir, b"f".to_vec()));
    assert_eq!(two.stat(&at("f")), Err(libc::ENOENT));
}

#[test]
fn a_name_that_was_not_there_is_found_once_another_has_made_it() {
    let (_cell, one, two) = two_mounts();
    assert_eq!(two.stat(&at("f")), Err(libc::ENOENT));
    one.write_all(&at("f"), b"text").unwrap();
    assert_eq!(two.stat(&at("f")).unwrap().size, 4);
}

#[test]
fn a_rename_by_another_is_followed() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("a"), b"text").unwrap();
    let inode = two.stat(&at("a")).unwrap().inode;
    one.rename(&at("a"), &at("b"), 0).unwrap();
    assert_eq!(two.stat(&at("a")), Err(libc::ENOENT));
    assert_eq!(two.stat(&at("b")).unwrap().inode, inode);
}

#[test]
fn a_rename_over_a_file_by_another_shows_the_new_one() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("a"), b"new").unwrap();
    one.write_all(&at("b"), b"old").unwrap();
    assert_eq!(two.read_all(&at("b")).as_deref(), Ok(&b"old"[..]));
    one.rename(&at("a"), &at("b"), 0).unwrap();
    assert_eq!(two.read_all(&at("b")).as_deref(), Ok(&b"new"[..]));
}

#[test]
fn a_listing_has_what_another_has_made_and_removed() {
    let (_cell, one, two) = two_mounts();
    one.make_directory(&at("d"), 0o755).unwrap();
    assert_eq!(two.list(&at("d")), Ok(Vec::new()));
    for number in 0..100 {
        one.write_all(&at(&format!("d/{number:02}")), b"").unwrap();
    }
    assert_eq!(two.list(&at("d")).unwrap().len(), 100);
    one.unlink(&at("d/50")).unwrap();
    assert!(!two.list(&at("d")).unwrap().contains(&"50".to_owned()));
}

#[test]
fn a_mode_that_another_has_changed_is_shown() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"text").unwrap();
    assert_eq!(two.stat(&at("f")).unwrap().mode & 0o777, 0o644);
    one.change_mode(&at("f"), libc::S_IFREG | 0o600).unwrap();
    assert_eq!(two.stat(&at("f")).unwrap().mode & 0o777, 0o600);
}

#[test]
fn a_cut_by_another_is_seen() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"some text").unwrap();
    two.read_all(&at("f")).unwrap();
    one.truncate(&at("f"), 4).unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"some"[..]));
}

#[test]
fn a_second_name_made_by_another_is_counted() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("a"), b"text").unwrap();
    assert_eq!(two.stat(&at("a")).unwrap().links, 1);
    one.link(&at("a"), &at("b")).unwrap();
    assert_eq!(two.stat(&at("a")).unwrap().links, 2);
}

#[test]
fn lines_that_two_append_in_turn_are_all_there() {
    let (_cell, one, two) = two_mounts();
    let mut whole = Vec::new();
    for number in 0..20u8 {
        let kernel = if number % 2 == 0 { &one } else { &two };
        let file = kernel.open(&at("log"), libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND).unwrap();
        let end = kernel.end_of(&file).unwrap();
        assert_eq!(end, whole.len() as u64, "round {number}");
        kernel.write(&file, end, &[b'a' + number, b'\n']).unwrap();
        kernel.close(file).unwrap();
        whole.extend([b'a' + number, b'\n']);
    }
    assert_eq!(one.read_all(&at("log")), Ok(whole.clone()));
    assert_eq!(two.read_all(&at("log")), Ok(whole));
}

#[test]
fn a_file_that_stays_open_shows_one_version_or_the_other() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), &[1; 9_000]).unwrap();
    let open = two.open(&at("f"), libc::O_RDONLY).unwrap();
    assert_eq!(two.read(&open, 0, 9_000).unwrap(), [1; 9_000]);
    one.write_all(&at("f"), &[2; 5_000]).unwrap();
    let read = two.read(&open, 0, 9_000).unwrap();
    assert!(
        read == [1; 9_000] || read == [2; 5_000],
        "{} bytes, the first is {:?}",
        read.len(),
        read.first()
    );
    two.close(open).unwrap();
    assert_eq!(two.read_all(&at("f")).unwrap(), [2; 5_000]);
}

#[test]
fn a_lock_keeps_another_machine_out() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"text").unwrap();
    let (here, there) =
        (one.open(&at("f"), libc::O_RDWR).unwrap(), two.open(&at("f"), libc::O_RDWR).unwrap());
    one.lock(&here, 1, 1).unwrap();
    assert_eq!(two.lock(&there, 1, 1), Err(libc::EAGAIN));
    one.lock(&here, 1, 2).unwrap();
    two.lock(&there, 1, 1).unwrap();
    one.close(here).unwrap();
    two.close(there).unwrap();
}

#[test]
fn under_a_lock_the_newest_length_and_data_are_there() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"old").unwrap();
    let there = two.open(&at("f"), libc::O_RDWR).unwrap();
    two.read(&there, 0, 100).unwrap();
    one.write_all(&at("f"), b"a new text").unwrap();
    two.lock(&there, 1, 1).unwrap();
    assert_eq!(two.end_of(&there), Ok(10));
    assert_eq!(two.read(&there, 0, 100).as_deref(), Ok(&b"a new text"[..]));
    two.close(there).unwrap();
}

#[test]
fn a_directory_that_became_a_file_elsewhere_is_a_file() {
    let (_cell, one, two) = two_mounts();
    one.make_directory(&at("x"), 0o755).unwrap();
    assert_eq!(two.list(&at("x")), Ok(Vec::new()));
    one.remove_directory(&at("x")).unwrap();
    one.write_all(&at("x"), b"text").unwrap();
    assert_eq!(two.read_all(&at("x")).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn a_tree_that_another_removes_is_gone() {
    let (_cell, one, two) = two_mounts();
    for dir in ["a", "a/b", "a/b/c"] {
        one.make_directory(&at(dir), 0o755).unwrap();
    }
    one.write_all(&at("a/b/c/f"), b"text").unwrap();
    two.read_all(&at("a/b/c/f")).unwrap();
    one.unlink(&at("a/b/c/f")).unwrap();
    for dir in ["a/b/c", "a/b", "a"] {
        one.remove_directory(&at(dir)).unwrap();
    }
    assert_eq!(two.stat(&at("a/b/c/f")), Err(libc::ENOENT));
    assert_eq!(two.list(&at("")), Ok(Vec::new()));
}

#[test]
fn making_what_another_has_made_is_eexist() {
    let (_cell, one, two) = two_mounts();
    assert_eq!(two.stat(&at("d")), Err(libc::ENOENT));
    one.make_directory(&at("d"), 0o755).unwrap();
    assert_eq!(two.make_directory(&at("d"), 0o755), Err(libc::EEXIST));
}

#[test]
fn removing_what_another_has_removed_is_enoent() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"text").unwrap();
    two.stat(&at("f")).unwrap();
    one.unlink(&at("f")).unwrap();
    assert_eq!(two.unlink(&at("f")), Err(libc::ENOENT));
}

#[test]
fn a_link_of_another_is_read_and_replaced() {
    let (_cell, one, two) = two_mounts();
    one.symlink("first", &at("l")).unwrap();
    assert_eq!(two.read_link(&at("l")).as_deref(), Ok("first"));
    one.unlink(&at("l")).unwrap();
    one.symlink("second", &at("l")).unwrap();
    assert_eq!(two.read_link(&at("l")).as_deref(), Ok("second"));
}

#[test]
fn three_mounts_see_the_same() {
    let mut cell = Cell::new();
    let kernels = [cell.mount(), cell.mount(), cell.mount()];
    for (number, kernel) in kernels.iter().enumerate() {
        kernel.write_all(&at("f"), &vec![number as u8; 100 * (number + 1)]).unwrap();
        for other in &kernels {
            assert_eq!(other.read_all(&at("f")).unwrap(), vec![number as u8; 100 * (number + 1)]);
        }
    }
}

#[test]
fn a_server_that_was_started_again_goes_on() {
    let (mut cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"before").unwrap();
    two.read_all(&at("f")).unwrap();
    cell.kill();
    cell.start();
    one.write_all(&at("f"), b"after").unwrap();
    assert_eq!(one.read_all(&at("f")).as_deref(), Ok(&b"after"[..]));
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"after"[..]));
}

#[test]
fn files_that_are_open_over_a_restart_of_the_server_are_stored() {
    let (mut cell, one, two) = two_mounts();
    let file = one.open(&at("f"), libc::O_RDWR | libc::O_CREAT).unwrap();
    one.write(&file, 0, b"some ").unwrap();
    cell.kill();
    cell.start();
    one.write(&file, 5, b"text").unwrap();
    one.close(file).unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"some text"[..]));
}

#[test]
fn both_may_write_different_files_of_a_directory() {
    let (_cell, one, two) = two_mounts();
    std::thread::scope(|scope| {
        for (kernel, name) in [(&one, "a"), (&two, "b")] {
            scope.spawn(move || {
                for number in 0..50 {
                    kernel.write_all(&at(&format!("{name}{number:02}")), name.as_bytes()).unwrap();
                }
            });
        }
    });
    assert_eq!(one.list(&at("")).unwrap().len(), 100);
    assert_eq!(one.list(&at("")), two.list(&at("")));
}

/// `fsync` is of a file, not of a descriptor: programs sync by name what another process has open to be written.
#[test]
fn a_sync_of_a_file_that_is_open_to_read_stores_what_another_has_written() {
    let (_cell, one, two) = two_mounts();
    let writer = one.open(&at("f"), libc::O_WRONLY | libc::O_CREAT).unwrap();
    one.write(&writer, 0, b"written").unwrap();
    let reader = one.open(&at("f"), libc::O_RDONLY).unwrap();
    one.sync(&reader).unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"written"[..]));
    one.close(reader).unwrap();
    one.close(writer).unwrap();
}

/// As loggers do that keep their file open.
#[test]
fn what_is_appended_goes_behind_what_another_has_closed_wherever_the_kernel_had_the_end() {
    const APPEND: i32 = libc::O_WRONLY | libc::O_APPEND;
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("log"), b"one\n").unwrap();
    let kept = two.open(&at("log"), APPEND).unwrap();
    let end = two.end_of(&kept).unwrap();
    let file = one.open(&at("log"), APPEND).unwrap();
    one.write(&file, end, b"more\n").unwrap();
    one.close(file).unwrap();
    two.write(&kept, end, b"two\n").unwrap();
    two.close(kept).unwrap();
    for kernel in [&one, &two] {
        assert_eq!(kernel.read_all(&at("log")).as_deref(), Ok(&b"one\nmore\ntwo\n"[..]));
    }
}

/// The kernel says that a file is closed a moment after the program has gone on. Until then the client took the file for one that is open,
/// and left what was cut by its name to a close that was over.
#[test]
fn a_file_that_is_cut_by_its_name_is_cut_for_others_though_somebody_has_it_open() {
    let (_cell, one, two) = two_mounts();
    let open = one.open(&at("f"), libc::O_WRONLY | libc::O_CREAT).unwrap();
    for length in [4692, 403, 0, 70_000] {
        one.truncate(&at("f"), length).unwrap();
        for kernel in [&one, &two] {
            assert_eq!(kernel.stat(&at("f")).unwrap().size, length);
        }
    }
    one.close(open).unwrap();
}

/// The kernel goes on using a name whose removal was refused, so it has to hear what others do to it.
#[test]
fn what_was_refused_to_be_removed_or_made_here_is_seen_to_be_changed_elsewhere() {
    let (_cell, one, two) = two_mounts();
    one.make_directory(&at("d"), 0o755).unwrap();
    one.make_directory(&at("d/s"), 0o755).unwrap();
    assert_eq!(one.remove_directory(&at("d")), Err(libc::ENOTEMPTY));
    two.remove_directory(&at("d/s")).unwrap();
    two.remove_directory(&at("d")).unwrap();
    assert_eq!(one.stat(&at("d")), Err(libc::ENOENT));
    // A link to what is in another folder is refused after the kernel has learned that there is no such name.
    one.make_directory(&at("e"), 0o755).unwrap();
    one.write_all(&at("e/file"), b"").unwrap();
    assert_eq!(one.stat(&at("made")), Err(libc::ENOENT));
    assert_eq!(one.link(&at("e/file"), &at("made")), Err(libc::EXDEV));
    two.write_all(&at("made"), b"there").unwrap();
    assert_eq!(one.read_all(&at("made")).as_deref(), Ok(&b"there"[..]));
}

#[test]
fn two_that_change_one_directory_at_once_see_what_the_other_has_done() {
    let (_cell, one, two) = two_mounts();
    std::thread::scope(|scope| {
        for (kernel, name) in [(&one, "one"), (&two, "two")] {
            scope.spawn(move || {
                let path = |what: &str| at(&format!("{name}-{what}"));
                for round in 0..20 {
                    let file = path(&round.to_string());
                    kernel.write_all(&file, b"first").unwrap();
                    kernel.write_all(&path("new"), name.as_bytes()).unwrap();
                    kernel.rename(&path("new"), &file, 0).unwrap();
                    kernel.make_directory(&path("folder"), 0o755).unwrap();
                    kernel.link(&file, &path("linked")).unwrap();
                    kernel.unlink(&path("linked")).unwrap();
                    kernel.rename(&path("folder"), &path("moved"), 0).unwrap();
                    kernel.remove_directory(&path("moved")).unwrap();
                    assert_eq!(kernel.read_all(&file).as_deref(), Ok(name.as_bytes()));
                }
            });
        }
    });
    let names = one.list(&at("")).unwrap();
    assert_eq!((names.len(), &names), (40, &two.list(&at("")).unwrap()));
    for name in &names {
        assert_eq!(two.read_all(&at(name)).as_deref(), Ok(&name.as_bytes()[..3]));
    }
}

/// A name that was just found may be asked for again while another removes it.
#[test]
fn a_name_that_was_just_found_is_not_found_when_another_has_removed_it() {
    let (_cell, one, two) = two_mounts();
    for round in 0..100 {
        two.write_all(&at("name"), b"").unwrap();
        for _ in 0..2 {
            assert!(one.stat(&at("name")).is_ok(), "round {round}: it was made");
            two.write_all(&at("beside"), b"").unwrap();
            assert!(one.stat(&at("name")).is_ok(), "round {round}: another was made");
            two.unlink(&at("beside")).unwrap();
        }
        two.unlink(&at("name")).unwrap();
        assert_eq!(one.stat(&at("name")), Err(libc::ENOENT), "round {round}: it was removed");
    }
}

#[test]
fn what_is_written_is_seen_elsewhere_when_it_is_closed() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"old").unwrap();
    let file = one.open(&at("f"), libc::O_WRONLY).unwrap();
    one.write(&file, 0, b"new").unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"old"[..]));
    one.close(file).unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"new"[..]));
}

/// As always in AFS.
#[test]
fn of_two_that_write_one_file_the_last_to_close_wins() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"text").unwrap();
    let [first, last] = [&one, &two].map(|kernel| kernel.open(&at("f"), libc::O_WRONLY).unwrap());
    one.write(&first, 0, b"ones").unwrap();
    two.write(&last, 0, b"twos").unwrap();
    one.close(first).unwrap();
    two.close(last).unwrap();
    for kernel in [&one, &two] {
        assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"twos"[..]));
    }
}

#[test]
fn a_lock_to_read_is_shared_with_another_machine() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"text").unwrap();
    let [here, there] = [&one, &two].map(|kernel| kernel.open(&at("f"), libc::O_RDWR).unwrap());
    one.lock(&here, 1, 0).unwrap();
    two.lock(&there, 1, 0).unwrap();
    assert_eq!(two.lock(&there, 1, 1), Err(libc::EAGAIN));
    one.close(here).unwrap();
    two.close(there).unwrap();
}

#[test]
fn a_directory_that_another_has_moved_is_found_where_it_is() {
    let (_cell, one, two) = two_mounts();
    one.make_directory(&at("d"), 0o755).unwrap();
    one.make_directory(&at("to"), 0o755).unwrap();
    one.write_all(&at("d/f"), b"text").unwrap();
    two.read_all(&at("d/f")).unwrap();
    one.rename(&at("d"), &at("to/e"), 0).unwrap();
    assert_eq!(two.stat(&at("d/f")), Err(libc::ENOENT));
    assert_eq!(two.read_all(&at("to/e/f")).as_deref(), Ok(&b"text"[..]));
}

#[test]
fn a_file_that_another_has_removed_and_made_again_is_the_new_one() {
    let (_cell, one, two) = two_mounts();
    one.write_all(&at("f"), b"old").unwrap();
    let before = two.stat(&at("f")).unwrap().inode;
    one.unlink(&at("f")).unwrap();
    one.write_all(&at("f"), b"new").unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"new"[..]));
    assert_ne!(two.stat(&at("f")).unwrap().inode, before);
}

#[test]
fn each_of_many_files_that_another_changes_is_seen_to_change() {
    let (_cell, one, two) = two_mounts();
    for text in ["old", "newer"] {
        for number in 0..30 {
            one.write_all(&at(&number.to_string()), text.as_bytes()).unwrap();
        }
        for number in 0..30 {
            assert_eq!(two.read_all(&at(&number.to_string())).as_deref(), Ok(text.as_bytes()), "{number}");
        }
    }
}
