//! How few calls and round trips bring the statuses of many files, and of trees that are gone through.

use crate::support::{Cell, NOBODY, cell_root};
use afs_client::Kind;

#[test]
fn many_statuses_come_with_few_calls() {
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&client).await;
        for number in 0..120 {
            other.create(NOBODY, root, format!("file{number:03}").as_bytes(), 0o644).await.unwrap();
        }
        other.make_mount(NOBODY, root, b"user", "#user.").await.unwrap();
        let listing = client.read_dir(NOBODY, root).await.unwrap();
        let fids: Vec<_> =
            listing.entries_from(0).filter(|e| !e.name.starts_with(b".")).map(|entry| entry.fid).collect();
        let before = client.now();
        let statuses = client.statuses(NOBODY, &fids).await;
        assert_eq!(statuses.len(), 121);
        for (fid, status) in fids.iter().zip(&statuses) {
            assert_eq!(status.as_ref().unwrap().fid, *fid);
        }
        let took = client.now().since(before);
        // A round trip is 10 ms: one for all files at once, and some for what is mounted.
        assert!(took.as_millis() < 120, "{took:?}");
        let directories = statuses.iter().flatten().filter(|status| status.kind == Kind::Directory).count();
        assert_eq!(directories, 1, "the mount point shows what is mounted");
    });
}

/// Ten thousand files read one after the other took two round trips each from the twentieth second on.
#[test]
fn the_files_of_a_listed_directory_are_looked_at_in_few_calls_however_long_that_takes() {
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&other).await;
        let files: Vec<_> = (0..400).map(|number| format!("file{number:03}").into_bytes()).collect();
        for name in &files {
            other.create(NOBODY, root, name, 0o644).await.unwrap();
        }
        let root = cell_root(&client).await;
        client.read_dir(NOBODY, root).await.unwrap();
        let mut waited = 0;
        for name in &files {
            let before = client.now();
            client.lookup(NOBODY, root, name).await.unwrap();
            waited += u32::from(client.now() > before);
            client.runtime().sleep_until(before + std::time::Duration::from_millis(100)).await;
        }
        assert!((4..20).contains(&waited), "{waited} of 400 were waited for");
    });
}

/// `ls -lR` of thirty directories with a hundred files each: the round trips count, and there must not be
/// many more of them than directories.
#[test]
fn a_tree_is_gone_through_in_few_round_trips() {
    let world = Cell::new();
    let (client, other) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&other).await;
        for dir in 0..30 {
            let dir =
                other.make_dir(NOBODY, root, format!("dir{dir:02}").as_bytes(), 0o755).await.unwrap().fid;
            for file in 0..100 {
                other.create(NOBODY, dir, format!("file{file:02}").as_bytes(), 0o644).await.unwrap();
            }
        }
        let root = cell_root(&client).await;
        let begin = client.now();
        let mut seen = 0;
        let listing = client.read_dir(NOBODY, root).await.unwrap();
        let mut dirs: Vec<_> = listing
            .entries_from(0)
            .filter(|entry| !entry.name.starts_with(b"."))
            .map(|e| (e.name, e.fid))
            .collect();
        dirs.sort_unstable();
        for (_, dir) in dirs {
            let listing = client.read_dir(NOBODY, dir).await.unwrap();
            let fids: Vec<_> = listing
                .entries_from(0)
                .filter(|entry| !entry.name.starts_with(b"."))
                .map(|e| e.fid)
                .collect();
            let statuses = client.statuses(NOBODY, &fids).await;
            seen += statuses.iter().flatten().count();
        }
        assert_eq!(seen, 30 * 100);
        let trips = client.now().since(begin).as_secs_f64() / 0.010;
        // Two each without what is fetched ahead: the names, then the statuses.
        assert!(trips < 1.5 * 30.0, "{trips} round trips for 30 directories");
    });
}

/// Each listing used to fetch the next directories that were not here yet, and so went further ahead of the reader each time.
#[test]
fn who_walks_through_a_tree_has_the_next_directories_fetched_and_not_all() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let top = one.make_dir(NOBODY, cell_root(&one).await, b"top", 0o755).await.unwrap().fid;
        for n in 0..60 {
            one.make_dir(NOBODY, top, format!("d{n:02}").as_bytes(), 0o755).await.unwrap();
        }
        let top = two.lookup(NOBODY, cell_root(&two).await, b"top").await.unwrap().fid;
        let listing = two.read_dir(NOBODY, top).await.unwrap();
        let dirs: Vec<_> = (0..60).map(|n| listing.find(format!("d{n:02}").as_bytes()).unwrap()).collect();
        for &dir in &dirs[..10] {
            two.read_dir(NOBODY, dir).await.unwrap();
            two.runtime().sleep_until(two.now() + std::time::Duration::from_millis(100)).await;
        }
        assert!(two.cached_read_dir(NOBODY, dirs[10]).is_some(), "it comes next");
        for (n, &dir) in dirs.iter().enumerate().skip(20) {
            assert!(two.cached_read_dir(NOBODY, dir).is_none(), "d{n} is far ahead");
        }
    });
}
