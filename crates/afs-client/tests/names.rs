//! Names, status and directories, against our own servers: what is seen, what is kept, and what others' changes do to it.

use std::time::Duration;

use crate::support::data::READ;
use crate::support::{
    ALICE, BOB, CELL, Cell, NOBODY, ROOT_CELL, ROOT_CELL_RO, USER_VOLUME, cell_root, content, names, put,
};
use afs_client::{Error, Kind, SetStatus};
use afs_volume::VolumeState;
use afs_wire::Errno;
use afs_wire::ids::{AfsTime, ViceId};
use afs_wire::rights::Rights;
use afs_wire::vl::SiteFlags;

/// `rm -r` said that a directory is not empty: the kernel gives a file back a moment after the program that has closed it has gone on, and until
/// then it has a hidden name.
#[test]
fn a_directory_is_removed_though_the_kernel_has_not_given_back_a_file_that_was_closed() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        let second = |runtime: &dyn rx::Runtime| runtime.now() + Duration::from_secs(1);
        for (is_closed, expected) in [(true, Ok(())), (false, Err(Errno::ENOTEMPTY))] {
            let dir = client.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
            let fid = client.create(NOBODY, dir, b"file", 0o644).await.unwrap().fid;
            let open = client.open(NOBODY, fid, READ).await.unwrap();
            if is_closed {
                open.note_closing();
            }
            client.remove(NOBODY, dir, b"file").await.unwrap();
            let later = std::sync::Arc::clone(client.runtime());
            let runtime = std::sync::Arc::clone(&later);
            runtime.spawn(Box::pin(async move {
                later.sleep_until(second(&*later)).await;
                drop(open);
            }));
            let removed = client.remove_dir(NOBODY, root, b"dir").await;
            assert_eq!(removed.map_err(|error| error.errno()), expected, "closed: {is_closed}");
        }
    });
}

/// An open file is removed by giving it a hidden name, for which there is no room: so it is removed for good.
#[test]
fn an_open_file_is_removed_from_a_full_directory() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        let fid = client.create(NOBODY, root, b"open", 0o644).await.unwrap().fid;
        let open = client.open(NOBODY, fid, READ).await.unwrap();
        let linked = client.create(NOBODY, root, b"linked", 0o644).await.unwrap().fid;
        // Names of many lengths, the longest first, so that at last there is room for none.
        let mut number = 0;
        for length in [250, 100, 12] {
            loop {
                let name = format!("{number:0length$}");
                number += 1;
                match client.link(NOBODY, linked, root, name.as_bytes()).await {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::EFBIG, "{error}");
                        break;
                    }
                }
            }
        }
        client.remove(NOBODY, root, b"open").await.unwrap();
        assert_eq!(client.lookup(NOBODY, root, b"open").await.unwrap_err().errno(), Errno::ENOENT);
        drop(open);
    });
}

#[test]
fn a_file_is_made_found_written_read_and_removed() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        assert_eq!(names(&client, NOBODY, root).await, [""; 0]);
        let made = client.create(NOBODY, root, b"file", 0o640).await.unwrap();
        assert_eq!((made.status.kind, made.status.mode, made.status.length), (Kind::File, 0o640, 0));
        put(&client, NOBODY, made.fid, b"some text").await;
        let found = client.lookup(NOBODY, root, b"file").await.unwrap();
        assert_eq!((found.fid, found.status.length), (made.fid, 9));
        assert_eq!(content(&client, NOBODY, made.fid).await, b"some text");
        assert_eq!(names(&client, NOBODY, root).await, ["file"]);
        let again = client.create(NOBODY, root, b"file", 0o644).await.unwrap_err();
        assert_eq!(again.errno(), Errno::EEXIST);
        client.remove(NOBODY, root, b"file").await.unwrap();
        assert_eq!(names(&client, NOBODY, root).await, [""; 0]);
        assert_eq!(client.lookup(NOBODY, root, b"file").await.unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(client.status(NOBODY, made.fid).await.unwrap_err().errno(), Errno::ENOENT);
        client.shut_down().await;
    });
}

#[test]
fn what_is_promised_is_answered_from_memory() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        let made = client.create(NOBODY, root, b"file", 0o644).await.unwrap();
        client.read_dir(NOBODY, root).await.unwrap();
        let status = client.cached_status(NOBODY, made.fid).unwrap().unwrap();
        assert_eq!(status.fid, made.fid);
        assert!(status.valid_until > client.now());
        let found = client.cached_lookup(NOBODY, root, b"file").unwrap().unwrap();
        assert_eq!(found.fid, made.fid);
        let none = client.cached_lookup(NOBODY, root, b"other").unwrap().unwrap_err();
        assert!(matches!(none, Error::NoEntry { .. }));
        assert!(client.cached_status(ALICE, made.fid).is_none(), "what Alice may is not known");
        client.status(ALICE, made.fid).await.unwrap();
        assert!(client.cached_status(ALICE, made.fid).is_some());
    });
}

#[test]
fn directories_are_edited_here_and_are_what_the_server_has() {
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&client).await;
        client.read_dir(NOBODY, root).await.unwrap();
        let (a, b) = (b"a".as_slice(), b"b".as_slice());
        let dir = client.make_dir(NOBODY, root, b"dir", 0o755).await.unwrap().fid;
        client.read_dir(NOBODY, dir).await.unwrap();
        let file = client.create(NOBODY, root, a, 0o644).await.unwrap().fid;
        client.link(NOBODY, file, root, b"a2").await.unwrap();
        assert_eq!(client.status(NOBODY, file).await.unwrap().links, 2);
        client.symlink(NOBODY, root, b"link", b"some/target").await.unwrap();
        client.rename(NOBODY, (root, a), (root, b), false).await.unwrap();
        client.remove(NOBODY, root, b"a2").await.unwrap();
        client.rename(NOBODY, (root, b), (dir, b), false).await.unwrap();
        client.create(NOBODY, root, b"over", 0o644).await.unwrap();
        client.create(NOBODY, root, b"victim", 0o644).await.unwrap();
        client.rename(NOBODY, (root, b"over"), (root, b"victim"), false).await.unwrap();
        client.make_dir(NOBODY, root, b"gone", 0o755).await.unwrap();
        client.remove_dir(NOBODY, root, b"gone").await.unwrap();
        // All of it is known without asking, and as others see it.
        for (dir, expected) in [(root, vec!["dir", "link", "victim"]), (dir, vec!["b"])] {
            let listing = client.cached_read_dir(NOBODY, dir).expect("edited here").unwrap();
            assert_eq!(names(&client, NOBODY, dir).await, expected);
            assert_eq!(names(&other, NOBODY, dir).await, expected);
            for entry in listing.entries_from(0).filter(|entry| !entry.name.starts_with(b".")) {
                let theirs = other.lookup(NOBODY, dir, entry.name).await.unwrap();
                assert_eq!(theirs.fid, entry.fid, "{:?}", entry.name);
            }
        }
        let dir_status = client.status(NOBODY, root).await.unwrap();
        assert_eq!(dir_status.links, 3, "one directory is left");
        assert_eq!(
            client.readlink(NOBODY, client.lookup(NOBODY, root, b"link").await.unwrap().fid).await.unwrap(),
            "some/target"
        );
    });
}

#[test]
fn what_one_client_changes_the_others_next_question_sees() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        for round in 0..20 {
            let (writer, reader) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
            let name = format!("file{round}");
            names(reader, NOBODY, root).await;
            let fid = writer.create(NOBODY, root, name.as_bytes(), 0o644).await.unwrap().fid;
            let found = reader.lookup(NOBODY, root, name.as_bytes()).await.unwrap();
            assert_eq!((found.fid, found.status.length), (fid, 0));
            put(writer, NOBODY, fid, b"text").await;
            assert_eq!(reader.status(NOBODY, fid).await.unwrap().length, 4);
            let set = SetStatus { mode: Some(0o600), ..SetStatus::default() };
            writer.set_status(NOBODY, fid, set).await.unwrap();
            assert_eq!(reader.status(NOBODY, fid).await.unwrap().mode, 0o600);
            let set = SetStatus { length: Some(2), modified: Some(AfsTime(99)), ..SetStatus::default() };
            let status = writer.set_status(NOBODY, fid, set).await.unwrap();
            assert_eq!((status.length, status.modified), (2, AfsTime(99)));
            assert_eq!(reader.status(NOBODY, fid).await.unwrap().length, 2);
            writer.remove(NOBODY, root, name.as_bytes()).await.unwrap();
            assert!(reader.lookup(NOBODY, root, name.as_bytes()).await.is_err());
        }
    });
}

#[test]
fn breaks_are_told_to_who_keeps_copies_before_the_writer_goes_on() {
    let world = Cell::new();
    let (reader, writer) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&reader).await;
        let fid = writer.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
        reader.status(NOBODY, fid).await.unwrap();
        let mut notices = reader.notices(afs_client::Audience::Anybody);
        put(&writer, NOBODY, fid, b"new").await;
        let notice = notices.next().await.unwrap();
        assert_eq!(notice.changed.fid, fid);
        assert!(reader.cached_status(NOBODY, fid).is_none());
        // A break of the root is told of its mount points too: the kernel knows it by them.
        let mount = reader.lookup(NOBODY, reader.root(), format!(".{CELL}").as_bytes()).await.unwrap().fid;
        reader.read_dir(NOBODY, mount).await.unwrap();
        drop(notice);
        writer.create(NOBODY, root, b"another", 0o644).await.unwrap();
        let mut told = Vec::new();
        for _ in 0..2 {
            told.push(notices.next().await.unwrap().changed.fid);
        }
        assert!(told.contains(&root) && told.contains(&mount), "{told:?}");
    });
}

#[test]
fn nobody_sees_or_does_what_the_access_list_does_not_grant() {
    let world = Cell::new();
    let list = [(ViceId(1001), Rights::ALL), (ViceId(1002), Rights::LOOKUP)];
    world.grant(0, USER_VOLUME, &list);
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&client).await;
        client.make_mount(NOBODY, root, b"user", "#user.").await.unwrap();
        let user = client.lookup(NOBODY, root, b"user").await.unwrap().fid;
        let fid = client.create(ALICE, user, b"secret", 0o644).await.unwrap().fid;
        put(&client, ALICE, fid, b"for Alice").await;
        // Alice has filled the memory; the others get what is theirs all the same.
        for _ in 0..2 {
            assert_eq!(content(&client, ALICE, fid).await, b"for Alice");
            assert_eq!(client.read_dir(NOBODY, user).await.unwrap_err().errno(), Errno::EACCES);
            assert_eq!(client.lookup(NOBODY, user, b"secret").await.unwrap_err().errno(), Errno::EACCES);
            assert_eq!(client.status(NOBODY, fid).await.unwrap_err().errno(), Errno::EACCES);
            assert!(client.cached_lookup(NOBODY, user, b"secret").is_none_or(|found| found.is_err()));
            assert_eq!(names(&client, BOB, user).await, ["secret"]);
            assert_eq!(client.fetch(BOB, fid, 0, 10).await.unwrap_err().errno(), Errno::EACCES);
            let made = client.create(BOB, user, b"bobs", 0o644).await.unwrap_err();
            assert_eq!(made.errno(), Errno::EACCES);
            assert!(client.status(ALICE, fid).await.unwrap().rights.contains(Rights::WRITE));
        }
        // When the list changes, so does what is known of rights.
        client.set_access_list(ALICE, user, b"2\n0\nalice\t127\nbob\t9\n").await.unwrap();
        assert_eq!(content(&client, BOB, fid).await, b"for Alice");
        assert!(client.status(BOB, fid).await.unwrap().may_read());
        let (text, rights) = client.access_list(BOB, user).await.unwrap();
        assert_eq!(&text[..], b"2\n0\nalice\t127\nbob\t9\n");
        assert_eq!(rights, Rights(9));
        // Also when it is changed elsewhere, and somebody else has asked first.
        other.set_access_list(ALICE, user, b"2\n0\nalice\t127\nbob\t8\n").await.unwrap();
        client.status(ALICE, user).await.unwrap();
        assert!(!client.status(BOB, fid).await.is_ok_and(|status| status.may_read()));
    });
}

#[test]
fn mount_points_are_crossed_both_ways_and_named_by_their_place() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        for (name, text) in [("a", "#user."), ("b", "%user."), ("gone", "#no.such.")] {
            client.make_mount(NOBODY, root, name.as_bytes(), text).await.unwrap();
        }
        let a = client.lookup(NOBODY, root, b"a").await.unwrap();
        let b = client.lookup(NOBODY, root, b"b").await.unwrap();
        assert_eq!((a.status.kind, a.status.is_volume_root), (Kind::Directory, true));
        assert_ne!(a.fid, b.fid, "two places are two directories");
        assert_eq!(client.target(NOBODY, a.fid).await.unwrap(), client.target(NOBODY, b.fid).await.unwrap());
        client.create(NOBODY, a.fid, b"file", 0o644).await.unwrap();
        assert_eq!(names(&client, NOBODY, b.fid).await, ["file"]);
        let up = client.lookup(NOBODY, a.fid, b"..").await.unwrap();
        assert_eq!(up.fid, root);
        assert_eq!(client.mount_text(NOBODY, root, b"a").await.unwrap(), "#user.");
        assert_eq!(client.lookup(NOBODY, root, b"gone").await.unwrap_err().errno(), Errno::ENODEV);
        assert_eq!(names(&client, NOBODY, root).await, ["a", "b", "gone"], "it is there nevertheless");
        client.remove(NOBODY, root, b"gone").await.unwrap();
        let across = client.rename(NOBODY, (a.fid, b"file"), (root, b"file"), false).await;
        assert_eq!(across.unwrap_err().errno(), Errno::EXDEV);
    });
}

#[test]
fn a_path_from_read_only_volumes_stays_in_them() {
    let world = Cell::new();
    let writer = world.client(1);
    world.run({
        let writer = writer.clone();
        async move {
            let root = cell_root(&writer).await;
            writer.make_mount(NOBODY, root, b"again", "#root.cell.").await.unwrap();
            writer.make_mount(NOBODY, root, b"rw", "%root.cell.").await.unwrap();
            writer.make_mount(NOBODY, root, b"user", "#user.").await.unwrap();
            writer.create(NOBODY, root, b"old", 0o644).await.unwrap();
        }
    });
    world.release(0, "root.cell", ROOT_CELL);
    world.set_entry("root.cell", ROOT_CELL, &[(0, SiteFlags::RW_VOL), (0, SiteFlags::RO_VOL)]);
    let client = world.client(2);
    world.run(async move {
        let cell = client.lookup(NOBODY, client.root(), CELL.as_bytes()).await.unwrap().fid;
        let real = client.target(NOBODY, cell).await.unwrap();
        assert_eq!(real.volume, ROOT_CELL_RO);
        for (name, volume) in [("again", ROOT_CELL_RO), ("rw", ROOT_CELL), ("user", USER_VOLUME)] {
            let found = client.lookup(NOBODY, cell, name.as_bytes()).await.unwrap();
            assert_eq!(client.target(NOBODY, found.fid).await.unwrap().volume, volume, "{name}");
        }
        let status = client.status(NOBODY, cell).await.unwrap();
        assert!(status.is_read_only);
        let refused = client.create(NOBODY, cell, b"x", 0o644).await.unwrap_err();
        assert_eq!(refused.errno(), Errno::EROFS);
        let writing = client.lookup(NOBODY, client.root(), format!(".{CELL}").as_bytes()).await.unwrap().fid;
        assert_eq!(client.target(NOBODY, writing).await.unwrap().volume, ROOT_CELL);
    });
}

#[test]
fn the_dynamic_root_shows_the_cells_and_leaves_unvisited_ones_alone() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = client.root();
        let dotted = format!(".{CELL}");
        assert_eq!(names(&client, NOBODY, root).await, [dotted.as_str(), ".two.test", CELL, "two.test"]);
        // Nobody answers for two.test; to look at it costs nothing.
        let before = client.now();
        let two = client.lookup(NOBODY, root, b"two.test").await.unwrap();
        assert_eq!((two.status.kind, client.now()), (Kind::Directory, before));
        assert!(client.read_dir(NOBODY, two.fid).await.is_err());
        assert!(client.now() > before, "to go there does");
        assert_eq!(client.create(NOBODY, root, b"x", 0o644).await.unwrap_err().errno(), Errno::EROFS);
        assert_eq!(client.lookup(NOBODY, root, b"three.test").await.unwrap_err().errno(), Errno::ENOENT);
        let cell = client.lookup(NOBODY, root, CELL.as_bytes()).await.unwrap();
        assert_eq!(client.lookup(NOBODY, cell.fid, b"..").await.unwrap().fid, root);
    });
}

#[test]
fn a_name_with_at_sys_stands_for_the_kind_of_machine() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        client.set_sysnames(vec!["first".to_owned(), "second".to_owned()]).await;
        let root = cell_root(&client).await;
        let fid = client.make_dir(NOBODY, root, b"bin.second", 0o755).await.unwrap().fid;
        assert_eq!(client.lookup(NOBODY, root, b"bin.@sys").await.unwrap().fid, fid);
        let first = client.make_dir(NOBODY, root, b"bin.first", 0o755).await.unwrap().fid;
        assert_eq!(client.lookup(NOBODY, root, b"bin.@sys").await.unwrap().fid, first);
        assert!(client.lookup(NOBODY, root, b"lib.@sys").await.is_err());
    });
}

#[test]
fn an_open_file_that_loses_its_name_can_still_be_read() {
    let world = Cell::new();
    let client = world.client(1);
    let volume = world.volume(0, ROOT_CELL);
    assert_eq!(volume.state(), VolumeState::Online);
    world.run(async move {
        use afs_client::OpenFlags;
        let root = cell_root(&client).await;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let fid = client.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
        put(&client, NOBODY, fid, b"still here").await;
        let open = client.open(NOBODY, fid, flags).await.unwrap();
        client.remove(NOBODY, root, b"file").await.unwrap();
        assert!(client.lookup(NOBODY, root, b"file").await.is_err());
        assert_eq!(open.read(0, 100).await.unwrap(), "still here");
        drop(open);
        client.runtime().sleep_until(client.now() + std::time::Duration::from_secs(1)).await;
        assert_eq!(names(&client, NOBODY, root).await, [""; 0], "nothing is left behind");

        let old = client.create(NOBODY, root, b"old", 0o644).await.unwrap().fid;
        put(&client, NOBODY, old, b"old text").await;
        let new = client.create(NOBODY, root, b"new", 0o644).await.unwrap().fid;
        let open = client.open(NOBODY, old, flags).await.unwrap();
        client.rename(NOBODY, (root, b"new"), (root, b"old"), false).await.unwrap();
        assert_eq!(client.lookup(NOBODY, root, b"old").await.unwrap().fid, new);
        assert_eq!(open.read(0, 100).await.unwrap(), "old text");
        drop(open);
        client.runtime().sleep_until(client.now() + std::time::Duration::from_secs(1)).await;
        assert_eq!(names(&client, NOBODY, root).await, ["old"]);
    });
}

/// Found by copying a name while another program gave it to one file after the other: now and then there was no such file. Some round trips
/// lie between the look-up of a name and the open of what it named, and the file may be gone by then, which is for the caller to see
/// (`Gone`), so that he looks again; and nobody may open it between the look whether it is open and its replacement.
#[test]
fn a_name_that_is_given_to_one_file_after_the_other_always_names_one_and_it_is_whole() {
    use afs_client::OpenFlags;
    const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false };
    const ROUNDS: usize = 200;
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&client).await;
        let first = client.create(NOBODY, root, b"name", 0o644).await.unwrap().fid;
        put(&client, NOBODY, first, &[b'x'; 1000]).await;
        let (told, mut ended) = tokio::sync::watch::channel(0);
        for (reader, is_own) in [(client.clone(), true), (client.clone(), true), (other, false)] {
            let told = told.clone();
            client.runtime().spawn(Box::pin(async move {
                let mut opened = 0;
                for step in 0..4 * ROUNDS {
                    let found = reader.lookup(NOBODY, root, b"name").await.expect("it always names a file");
                    let file = reader.open(NOBODY, found.fid, READ).await;
                    let read = match &file {
                        Ok(file) => file.read(0, 100_000).await,
                        Err(error) => Err(error.clone()),
                    };
                    match read {
                        Ok(bytes) => {
                            opened += 1;
                            let expected =
                                vec![bytes[0]; if bytes[0] == b'x' { 1000 } else { usize::from(bytes[0]) }];
                            assert!(bytes == expected, "{} bytes of {}", bytes.len(), bytes[0]);
                        }
                        // Servers know nothing of the open files of other clients.
                        Err(Error::Gone { .. }) if file.is_err() => {}
                        Err(error) if !is_own && error.errno() == Errno::ENOENT => {}
                        Err(error) => panic!("step {step}: {error}"),
                    }
                    let pause = Duration::from_millis(1 + step as u64 % 7);
                    reader.runtime().sleep_until(reader.now() + pause).await;
                }
                assert!(opened > ROUNDS, "{opened}");
                told.send_modify(|count| *count += 1);
            }));
        }
        for round in 0..ROUNDS {
            let next = client.create(NOBODY, root, b"next", 0o644).await.unwrap().fid;
            // As many as the byte says.
            let byte = 1 + (round % 100) as u8;
            put(&client, NOBODY, next, Vec::leak(vec![byte; usize::from(byte)])).await;
            client.rename(NOBODY, (root, b"next"), (root, b"name"), false).await.unwrap();
        }
        ended.wait_for(|count| *count == 3).await.unwrap();
    });
}

#[test]
fn no_name_is_made_that_programs_have_no_room_for_and_others_names_of_that_length_can_be_used_and_removed() {
    let world = Cell::new();
    let client = world.client(1);
    let long = [b'n'; 256];
    let (root, fid) = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            for outcome in [
                client.create(NOBODY, root, &long, 0o644).await.err(),
                client.make_dir(NOBODY, root, &long, 0o755).await.err(),
                client.symlink(NOBODY, root, &long, b"target").await.err(),
                client.lookup(NOBODY, root, &long).await.err(),
            ] {
                assert_eq!(outcome.unwrap().errno(), Errno::ENAMETOOLONG);
            }
            let fid = client.create(NOBODY, root, &long[1..], 0o644).await.unwrap().fid;
            assert_eq!(
                client.rename(NOBODY, (root, &long[1..]), (root, &long), false).await.unwrap_err().errno(),
                Errno::ENAMETOOLONG
            );
            (root, fid)
        }
    });
    // Another client, that takes what the protocol allows.
    world.rename_at_server(0, root, &long[1..], &long);
    world.run(async move {
        client.flush(NOBODY, root).await;
        assert_eq!(client.lookup(NOBODY, root, &long).await.unwrap().fid, fid);
        client.rename(NOBODY, (root, &long), (root, b"short"), false).await.unwrap();
        assert_eq!(names(&client, NOBODY, root).await, ["short"]);
    });
}

#[test]
fn a_hard_link_of_a_symbolic_link_is_not_permitted() {
    let world = Cell::new();
    let client = world.client(1);
    world.run(async move {
        let root = cell_root(&client).await;
        let link = client.symlink(NOBODY, root, b"a", b"x").await.unwrap().fid;
        assert_eq!(client.link(NOBODY, link, root, b"b").await.unwrap_err().errno(), Errno::EPERM);
    });
}

/// A new name takes the right to insert, removing a name does not.
#[test]
fn an_open_file_is_removed_by_who_may_delete_and_not_insert() {
    use afs_client::OpenFlags;
    let world = Cell::new();
    let client = world.client(1);
    let (root, fid) = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            let fid = client.create(NOBODY, root, b"file", 0o644).await.unwrap().fid;
            put(&client, NOBODY, fid, b"still here").await;
            (root, fid)
        }
    });
    let rights = Rights::READ | Rights::LOOKUP | Rights::DELETE;
    world.grant(0, ROOT_CELL, &[(ViceId::SYSTEM_ANYUSER, rights)]);
    world.run(async move {
        client.flush(NOBODY, root).await;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let open = client.open(NOBODY, fid, flags).await.unwrap();
        assert_eq!(open.read(0, 100).await.unwrap(), "still here");
        client.remove(NOBODY, root, b"file").await.unwrap();
        assert_eq!(names(&client, NOBODY, root).await, [""; 0]);
        assert_eq!(
            open.read(0, 100).await.unwrap(),
            "still here",
            "who has it open goes on with what is here"
        );
    });
}

#[test]
fn a_volume_made_anew_under_its_name_is_found_at_once() {
    let world = Cell::new();
    let client = world.client(1);
    let root = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            client.make_mount(NOBODY, root, b"home", "#user.").await.unwrap();
            let home = client.lookup(NOBODY, root, b"home").await.unwrap().fid;
            client.create(NOBODY, home, b"old", 0o644).await.unwrap();
            assert_eq!(names(&client, NOBODY, home).await, ["old"]);
            root
        }
    });
    world.sites[0].partition.delete_volume(USER_VOLUME).unwrap();
    world.remove_entry(USER_VOLUME);
    let anew = afs_wire::ids::VolumeId(USER_VOLUME.0 + 0x40);
    world.make_volume(0, "user", anew);
    world.run(async move {
        // As `fs flushvolume`, or the breaks of a server that removes a volume.
        let mount = client.lookup(NOBODY, root, b"home").await.unwrap();
        let old = client.target(NOBODY, mount.fid).await.unwrap();
        client.flush_volume(old.cell, old.volume).await;
        let begin = client.now();
        assert_eq!(names(&client, NOBODY, mount.fid).await, [""; 0]);
        assert_eq!(client.target(NOBODY, mount.fid).await.unwrap().volume, anew);
        client.create(NOBODY, mount.fid, b"new", 0o644).await.unwrap();
        assert!(client.now().since(begin) < Duration::from_secs(2), "{:?}", client.now().since(begin));
    });
}

#[test]
fn a_backup_made_of_a_volume_that_is_known_is_found_at_once() {
    let world = Cell::new();
    let client = world.client(1);
    let root = world.run({
        let client = client.clone();
        async move {
            let root = cell_root(&client).await;
            client.make_mount(NOBODY, root, b"home", "#user.").await.unwrap();
            client.make_mount(NOBODY, root, b"yesterday", "#user.backup.").await.unwrap();
            let home = client.lookup(NOBODY, root, b"home").await.unwrap().fid;
            client.create(NOBODY, home, b"file", 0o644).await.unwrap();
            root
        }
    });
    world.back_up(0, "user", USER_VOLUME);
    world.run(async move {
        let backup = client.lookup(NOBODY, root, b"yesterday").await.unwrap().fid;
        assert_eq!(names(&client, NOBODY, backup).await, ["file"]);
    });
}
