//! Data of files: what is written, cut and read.

use crate::cell::{Cell, at};
use crate::kernel::Kernel;

fn mounted() -> (Cell, Kernel) {
    let mut cell = Cell::new();
    let kernel = cell.mount();
    (cell, kernel)
}

const READ_WRITE: i32 = libc::O_RDWR | libc::O_CREAT;

#[test]
fn what_is_written_is_read() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"some text").unwrap();
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"some text"[..]));
}

#[test]
fn an_empty_file_reads_as_nothing() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"").unwrap();
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b""[..]));
    assert_eq!(kernel.stat(&at("f")).unwrap().size, 0);
}

#[test]
fn what_is_written_is_there_before_the_close() {
    let (_cell, kernel) = mounted();
    let file = kernel.open(&at("f"), READ_WRITE).unwrap();
    assert_eq!(kernel.write(&file, 0, b"some text"), Ok(9));
    assert_eq!(kernel.stat(&at("f")).unwrap().size, 9);
    assert_eq!(kernel.read(&file, 5, 100).as_deref(), Ok(&b"text"[..]));
    kernel.close(file).unwrap();
}

#[test]
fn one_open_reads_what_another_has_written() {
    let (_cell, kernel) = mounted();
    let writes = kernel.open(&at("f"), READ_WRITE).unwrap();
    let reads = kernel.open(&at("f"), libc::O_RDONLY).unwrap();
    kernel.write(&writes, 0, b"text").unwrap();
    assert_eq!(kernel.read(&reads, 0, 100).as_deref(), Ok(&b"text"[..]));
    kernel.close(writes).unwrap();
    assert_eq!(kernel.read(&reads, 0, 100).as_deref(), Ok(&b"text"[..]));
    kernel.close(reads).unwrap();
}

#[test]
fn a_hole_reads_as_zeros() {
    let (_cell, kernel) = mounted();
    let file = kernel.open(&at("f"), READ_WRITE).unwrap();
    kernel.write(&file, 10_000, b"end").unwrap();
    kernel.close(file).unwrap();
    let read = kernel.read_all(&at("f")).unwrap();
    assert!(read.len() == 10_003 && read[..10_000].iter().all(|byte| *byte == 0) && read.ends_with(b"end"));
}

#[test]
fn a_piece_in_the_middle_is_changed_alone() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), &[b'a'; 20_000]).unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.write(&file, 9_000, b"bbb").unwrap();
    kernel.close(file).unwrap();
    let read = kernel.read_all(&at("f")).unwrap();
    assert!(read.len() == 20_000 && &read[8_999..9_004] == b"abbba");
}

#[test]
fn a_file_grows_by_what_is_appended() {
    let (_cell, kernel) = mounted();
    for number in 0..10u8 {
        let file = kernel.open(&at("log"), libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND).unwrap();
        let end = kernel.end_of(&file).unwrap();
        assert_eq!(end, u64::from(number) * 3);
        kernel.write(&file, end, &[b'a' + number; 3]).unwrap();
        kernel.close(file).unwrap();
    }
    assert_eq!(kernel.read_all(&at("log")).as_deref(), Ok(&b"aaabbbcccdddeeefffggghhhiiijjj"[..]));
}

#[test]
fn a_file_is_cut_and_made_longer_with_zeros() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"some text").unwrap();
    assert_eq!(kernel.truncate(&at("f"), 4).unwrap().size, 4);
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"some"[..]));
    assert_eq!(kernel.truncate(&at("f"), 7).unwrap().size, 7);
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"some\0\0\0"[..]));
}

#[test]
fn an_open_that_truncates_leaves_nothing_of_before() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"a long text").unwrap();
    kernel.write_all(&at("f"), b"short").unwrap();
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"short"[..]));
}

/// Editors and git write a file anew by an open that truncates, of which the kernel makes a change of attributes.
#[test]
fn a_file_is_written_anew_without_the_server_with_write_behind() {
    let mut cell = Cell::new();
    let kernel = cell.mount_with_write_behind();
    kernel.write_all(&at("file"), b"before").unwrap();
    let file = kernel.open(&at("file"), libc::O_RDWR).unwrap();
    kernel.sync(&file).unwrap();
    kernel.close(file).unwrap();
    cell.kill();
    kernel.write_all(&at("file"), b"anew").unwrap();
    assert_eq!(kernel.read_all(&at("file")).unwrap(), b"anew");
    cell.start();
    let file = kernel.open(&at("file"), libc::O_RDWR).unwrap();
    afs_lab::until!(kernel.sync(&file).is_ok(), "the server is there again");
    kernel.close(file).unwrap();
    assert_eq!(cell.mount().read_all(&at("file")).unwrap(), b"anew");
}

#[test]
fn an_open_that_has_to_make_the_file_is_eexist_where_it_is() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    assert_eq!(kernel.open(&at("f"), flags).map(drop), Err(libc::EEXIST));
    kernel.close(kernel.open(&at("g"), flags).unwrap()).unwrap();
}

#[test]
fn a_file_of_some_mebibytes_is_read_back() {
    let (_cell, kernel) = mounted();
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 7 % 251) as u8).collect();
    kernel.write_all(&at("f"), &data).unwrap();
    assert!(kernel.read_all(&at("f")).unwrap() == data);
}

#[test]
fn pages_that_are_there_are_not_read_again() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), &[7; 40_000]).unwrap();
    kernel.read_all(&at("f")).unwrap();
    let [.., reads] = kernel.asked();
    for _ in 0..5 {
        assert_eq!(kernel.read_all(&at("f")).unwrap(), [7; 40_000]);
    }
    assert_eq!(
        kernel.asked()[2],
        reads,
        "the kernel keeps pages over opens while the server promises to tell"
    );
}

#[test]
fn reading_behind_the_end_gives_nothing() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDONLY).unwrap();
    assert_eq!(kernel.read(&file, 4, 10).as_deref(), Ok(&b""[..]));
    assert_eq!(kernel.read(&file, 4_000_000, 10).as_deref(), Ok(&b""[..]));
    assert_eq!(kernel.read(&file, 3, 10).as_deref(), Ok(&b"t"[..]));
    kernel.close(file).unwrap();
}

#[test]
fn many_small_writes_make_the_file() {
    let (_cell, kernel) = mounted();
    let file = kernel.open(&at("f"), READ_WRITE).unwrap();
    let mut whole = Vec::new();
    for number in 0..500u32 {
        let line = format!("line {number}\n");
        kernel.write(&file, whole.len() as u64, line.as_bytes()).unwrap();
        whole.extend(line.into_bytes());
    }
    kernel.close(file).unwrap();
    assert_eq!(kernel.read_all(&at("f")), Ok(whole));
}

#[test]
fn writes_from_the_end_to_the_beginning_make_the_file() {
    let (_cell, kernel) = mounted();
    let file = kernel.open(&at("f"), READ_WRITE).unwrap();
    for number in (0..50u8).rev() {
        kernel.write(&file, u64::from(number) * 1000, &[number; 1000]).unwrap();
    }
    kernel.close(file).unwrap();
    let read = kernel.read_all(&at("f")).unwrap();
    assert!(read.chunks(1000).enumerate().all(|(number, part)| part == [number as u8; 1000]));
}

#[test]
fn a_sync_is_answered_when_the_server_has_it() {
    let mut cell = Cell::new();
    let (one, two) = (cell.mount(), cell.mount());
    let file = one.open(&at("f"), READ_WRITE).unwrap();
    one.write(&file, 0, b"text").unwrap();
    one.sync(&file).unwrap();
    assert_eq!(two.read_all(&at("f")).as_deref(), Ok(&b"text"[..]));
    one.close(file).unwrap();
}

#[test]
fn a_full_quota_is_told_by_close_and_fsync_and_what_was_stored_before_stays() {
    let (cell, kernel) = mounted();
    cell.set_quota(200);
    kernel.write_all(&at("kept"), &[1; 100_000]).unwrap();
    let write = |name: &str| {
        let file = kernel.open(&at(name), READ_WRITE).unwrap();
        kernel.write(&file, 0, &[2; 200_000]).unwrap();
        file
    };
    assert_eq!(kernel.close(write("closed")), Err(libc::EDQUOT));
    let file = write("synced");
    assert_eq!(kernel.sync(&file), Err(libc::EDQUOT));
    assert_eq!(kernel.close(file), Err(libc::EDQUOT));
    assert!(kernel.read_all(&at("kept")).unwrap() == [1; 100_000]);
    // With room there is nothing in the way any more, neither of these files nor of others.
    cell.set_quota(2000);
    for name in ["closed", "synced", "other"] {
        kernel.close(write(name)).unwrap();
        assert!(kernel.read_all(&at(name)).unwrap() == [2; 200_000], "{name}");
    }
}

#[test]
fn a_file_that_is_cut_while_it_is_open_ends_there() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"some text").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.truncate(&at("f"), 4).unwrap();
    assert_eq!(kernel.read(&file, 0, 100).as_deref(), Ok(&b"some"[..]));
    kernel.write(&file, 4, b"!").unwrap();
    kernel.close(file).unwrap();
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"some!"[..]));
}

#[test]
fn the_time_of_change_follows_the_writes() {
    let (_cell, kernel) = mounted();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    kernel.write_all(&at("f"), b"text").unwrap();
    let mtime = kernel.stat(&at("f")).unwrap().mtime;
    assert!((now..now + 60).contains(&mtime), "{now} {mtime}");
}

#[test]
fn a_lock_keeps_another_owner_of_the_same_machine_out() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.lock(&file, 1, 1).unwrap();
    assert_eq!(kernel.lock(&file, 2, 1), Err(libc::EAGAIN));
    assert_eq!(kernel.in_the_way(&file, 2, 0), Ok(1), "a lock to write");
    kernel.lock(&file, 1, 2).unwrap();
    kernel.lock(&file, 2, 1).unwrap();
    kernel.close(file).unwrap();
}

#[test]
fn two_owners_may_both_read() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.lock(&file, 1, 0).unwrap();
    kernel.lock(&file, 2, 0).unwrap();
    assert_eq!(kernel.lock(&file, 3, 1), Err(libc::EAGAIN));
    kernel.close(file).unwrap();
}

/// POSIX has it so: any close of a descriptor of the file ends the program's locks on it, also of those that only read.
#[test]
fn a_lock_for_reading_ends_when_its_owner_closes_any_descriptor_of_the_file() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let [one, two] = [0; 2].map(|_| kernel.open(&at("f"), libc::O_RDONLY).unwrap());
    let others = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.lock(&one, 1, 0).unwrap();
    kernel.flush(&two, 3).unwrap();
    assert_eq!(kernel.in_the_way(&others, 2, 1), Ok(0), "somebody else has closed it");
    kernel.flush(&two, 1).unwrap();
    assert_eq!(kernel.in_the_way(&others, 2, 1), Ok(2), "nothing");
    for file in [one, two, others] {
        kernel.close(file).unwrap();
    }
}

/// Zeros take room and time to get to the server, but behind a hole that ends the file is nothing to be kept.
#[test]
fn a_large_hole_is_punched_at_once_or_refused() {
    const PUNCH: u32 = 3;
    let mut cell = Cell::new();
    let (kernel, there) = (cell.mount(), cell.mount());
    kernel.write_all(&at("f"), b"some data at the start").unwrap();
    kernel.truncate(&at("f"), 1 << 30).unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    assert_eq!(kernel.allocate(&file, PUNCH, 5, 900 << 20), Err(libc::EOPNOTSUPP), "in the middle");
    kernel.allocate(&file, PUNCH, 5, 4).unwrap();
    kernel.allocate(&file, PUNCH, 12, 1 << 30).unwrap();
    assert_eq!(kernel.end_of(&file), Ok(1 << 30));
    let right = b"some \0\0\0\0 at\0\0\0\0\0\0\0\0";
    assert_eq!(kernel.read(&file, 0, 20).as_deref(), Ok(&right[..]));
    kernel.close(file).unwrap();
    // The server does not go on with what it had there.
    let elsewhere = there.open(&at("f"), libc::O_RDONLY).unwrap();
    assert_eq!(there.read(&elsewhere, 0, 20).as_deref(), Ok(&right[..]));
    there.close(elsewhere).unwrap();
}

/// Space cannot be reserved at a server, but lengths and zeros can be had.
#[test]
fn what_programs_rely_on_of_fallocate_is_done_and_the_rest_refused() {
    const KEEP_SIZE: u32 = 1;
    const COLLAPSE: u32 = 8;
    const ZERO: u32 = 16;
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"some text").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.allocate(&file, 0, 0, 20).unwrap();
    assert_eq!(kernel.read(&file, 0, 100).as_deref(), Ok(&b"some text\0\0\0\0\0\0\0\0\0\0\0"[..]));
    kernel.allocate(&file, KEEP_SIZE, 0, 30).unwrap();
    assert_eq!(kernel.end_of(&file), Ok(20));
    kernel.allocate(&file, ZERO | KEEP_SIZE, 1, 3).unwrap();
    assert_eq!(kernel.read(&file, 0, 9).as_deref(), Ok(&b"s\0\0\0 text"[..]));
    assert_eq!(kernel.allocate(&file, COLLAPSE, 0, 4096), Err(libc::EOPNOTSUPP));
    kernel.close(file).unwrap();
}

#[test]
fn a_file_that_is_removed_while_it_is_open_is_read_and_written_on() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"text").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDWR).unwrap();
    kernel.unlink(&at("f")).unwrap();
    assert_eq!(kernel.stat(&at("f")), Err(libc::ENOENT));
    assert_eq!(kernel.read(&file, 0, 100).as_deref(), Ok(&b"text"[..]));
    kernel.write(&file, 4, b" and more").unwrap();
    assert_eq!(kernel.read(&file, 0, 100).as_deref(), Ok(&b"text and more"[..]));
    assert_eq!(kernel.attributes(file.node).unwrap().links, 0);
    kernel.close(file).unwrap();
}

#[test]
fn a_file_that_is_replaced_while_it_is_open_is_read_on() {
    let (_cell, kernel) = mounted();
    kernel.write_all(&at("f"), b"old").unwrap();
    kernel.write_all(&at("new"), b"newer").unwrap();
    let file = kernel.open(&at("f"), libc::O_RDONLY).unwrap();
    kernel.rename(&at("new"), &at("f"), 0).unwrap();
    assert_eq!(kernel.read_all(&at("f")).as_deref(), Ok(&b"newer"[..]));
    assert_eq!(kernel.read(&file, 0, 100).as_deref(), Ok(&b"old"[..]));
    kernel.close(file).unwrap();
}
