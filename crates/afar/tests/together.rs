//! Two mounts of one cell whose users change the same directories at the same time: what one has done the other sees, and neither
//! waits for the other's kernel, which holds a directory's lock until a change of it is answered.

mod mounted;

use mounted::can_mount;
use mounted::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Barrier;

/// What a mount says when it has answered a server although its kernel had not forgotten yet, after a second.
const LATE: &str = "answered before the kernel's copies are gone";

/// Makes, replaces, moves and removes in a directory where another does the same.
fn change(shared: &Path, name: &str, rounds: usize) {
    for round in 0..rounds {
        let path = shared.join(format!("{name}-{round}"));
        let new = shared.join(format!("{name}-new"));
        fs::write(&path, b"first").unwrap();
        fs::write(&new, name).unwrap();
        fs::rename(&new, &path).unwrap();
        fs::set_permissions(shared, Permissions::from_mode(0o755 | (round as u32 % 2))).unwrap();
        let folder = shared.join(format!("{name}-folder"));
        fs::create_dir(&folder).unwrap();
        fs::hard_link(&path, shared.join(format!("{name}-linked"))).unwrap();
        fs::remove_file(shared.join(format!("{name}-linked"))).unwrap();
        fs::rename(&folder, shared.join(format!("{name}-moved"))).unwrap();
        fs::remove_dir(shared.join(format!("{name}-moved"))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name.as_bytes());
    }
}

#[test]
fn two_mounts_change_one_directory_and_neither_waits_for_the_others_kernel() {
    const NAME: &str = "two_mounts_change_one_directory_and_neither_waits_for_the_others_kernel";
    const ROUNDS: usize = 40;
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("together");
    let mounts = ["one", "two"].map(|name| cell.mount(name));
    fs::create_dir(mounts[0].1.join("shared")).unwrap();
    let shared = mounts.each_ref().map(|(_, place)| place.join("shared"));
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        for (shared, name) in shared.iter().zip(["one", "two"]) {
            let both = &both;
            scope.spawn(move || {
                both.wait();
                change(shared, name, ROUNDS);
                both.wait();
                // What the other had done when it was done.
                let names = fs::read_dir(shared).unwrap().map(|entry| entry.unwrap().file_name());
                let names: BTreeSet<_> = names.map(|name| name.into_string().unwrap()).collect();
                let expected = ["one", "two"].map(|name| (0..ROUNDS).map(move |r| format!("{name}-{r}")));
                assert_eq!(names, expected.into_iter().flatten().collect());
                for file in names {
                    assert_eq!(fs::read_to_string(shared.join(&file)).unwrap(), file[..3]);
                }
            });
        }
    });
    for name in ["one", "two"] {
        let log = cell.log(name);
        assert!(!log.contains(LATE), "{name}:\n{log}");
    }
}

/// `fsync` is of a file, not of a descriptor: programs sync by name what another process has open to be written.
#[test]
fn fsync_of_a_descriptor_open_to_read_stores_what_another_has_written() {
    const NAME: &str = "fsync_of_a_descriptor_open_to_read_stores_what_another_has_written";
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("fsync");
    let mounts = ["one", "two"].map(|name| cell.mount(name));
    let path = mounts[0].1.join("file");
    let mut writer = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    writer.write_all(b"written").unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_to_string(mounts[1].1.join("file")).unwrap(), "written");
    drop(writer);
}

/// The server tells of a file that has lost a name also the client that has taken it away.
#[test]
fn a_file_that_is_open_is_replaced_without_waiting_for_the_kernel() {
    const NAME: &str = "a_file_that_is_open_is_replaced_without_waiting_for_the_kernel";
    if !can_mount(NAME) {
        return;
    }
    let cell = Cell::new("replaced");
    let (_mount, place) = cell.mount("one");
    // Small ones the kernel has in its page cache; large ones it reads from the mount's cache where it can.
    for (name, length) in [("small", 4096), ("large", 2 << 20)] {
        let path = place.join(name);
        fs::write(&path, vec![1; length]).unwrap();
        let mut open = File::open(&path).unwrap();
        for round in 2..6 {
            let new = place.join("new");
            fs::write(&new, vec![round; length]).unwrap();
            fs::rename(&new, &path).unwrap();
            let mut before = Vec::new();
            std::io::Read::read_to_end(&mut open, &mut before).unwrap();
            assert!(before == vec![round - 1; length], "{name}, round {round}");
            open = File::open(&path).unwrap();
        }
    }
    let log = cell.log("one");
    assert!(!log.contains(LATE), "{log}");
}
