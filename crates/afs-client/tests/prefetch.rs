//! What is fetched before anybody asks for it, and how few round trips programs wait for that read files one after the other.

use std::time::Duration;

use crate::support::data::{READ, WRITE, make, open, read_all};
use crate::support::{Cell, NOBODY, cell_root};
use afs_client::{Client, SetStatus};
use bytes::Bytes;

#[test]
fn who_reads_on_has_all_that_the_way_carries_after_some_round_trips() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "large").await;
        let piece = Bytes::from(vec![7; 1 << 20]);
        for n in 0..96 {
            file.write(n << 20, piece.clone()).await.unwrap();
        }
        file.flush().await.unwrap();
        let file = open(&two, "large", READ).await;
        let begin = two.now();
        assert_eq!(read_all(&file).await.len(), 96 << 20);
        // The way carries everything at once; a round trip takes 10 ms.
        let took = two.now().since(begin);
        println!("96 MiB took {took:?}");
        assert!(took < Duration::from_millis(200), "{took:?}");
    });
}

#[test]
fn who_reads_the_beginning_fetches_little() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let file = make(&one, "large").await;
        file.write(0, Bytes::from(vec![7; 40 << 20])).await.unwrap();
        file.flush().await.unwrap();
        let file = open(&two, "large", READ).await;
        let begin = two.now();
        assert_eq!(file.read(0, 131_072).await.unwrap().len(), 131_072);
        let took = two.now().since(begin);
        assert!(took < Duration::from_millis(45), "{took:?}");
        two.runtime().sleep_until(two.now() + Duration::from_secs(2)).await;
        let bytes = two.cache_usage().bytes;
        assert!(bytes < 1 << 20, "{bytes}");
        // Reads here and there bring what they ask for.
        for n in [30, 5, 20, 12] {
            assert_eq!(file.read(n << 20, 4096).await.unwrap().len(), 4096);
        }
        assert!(two.cache_usage().bytes < bytes + (256 << 10), "{}", two.cache_usage().bytes - bytes);
    });
}

/// Makes files of some bytes each in the root directory of the cell, and tells their names.
async fn make_files(client: &Client, count: u32, bytes: usize) -> Vec<String> {
    let names: Vec<_> = (0..count).map(|number| format!("file{number:03}")).collect();
    for name in &names {
        let file = make(client, name).await;
        file.write(0, text_of(name, bytes)).await.unwrap();
        file.flush().await.unwrap();
    }
    names
}

fn text_of(name: &str, bytes: usize) -> Bytes {
    Bytes::from(name.bytes().cycle().take(bytes).collect::<Vec<_>>())
}

/// Ten thousand small files took a round trip each, read one after the other.
#[test]
fn who_reads_one_small_file_after_the_other_waits_for_few() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let names = make_files(&one, 300, 8192).await;
        let began = two.now();
        for name in &names {
            let file = open(&two, name, READ).await;
            assert!(read_all(&file).await == text_of(name, 8192), "{name}");
        }
        let took = two.now().since(began);
        assert!(took < Duration::from_millis(400), "{took:?} at 10 ms a round trip");
    });
}

#[test]
fn who_reads_a_tree_of_small_files_waits_for_few_in_each_directory() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let root = cell_root(&one).await;
        for dir in 0..20 {
            let dir = one.make_dir(NOBODY, root, format!("dir{dir:02}").as_bytes(), 0o755).await.unwrap().fid;
            for number in 0..15 {
                let name = format!("file{number:02}");
                let place = (dir, name.as_bytes());
                let (_, file) = one.create_and_open(NOBODY, place, 0o644, WRITE, true).await.unwrap();
                file.write(0, text_of(&name, 5000)).await.unwrap();
                file.flush().await.unwrap();
            }
        }
        let root = cell_root(&two).await;
        let mut waited = 0;
        for dir in 0..20 {
            let dir = two.lookup(NOBODY, root, format!("dir{dir:02}").as_bytes()).await.unwrap().fid;
            two.read_dir(NOBODY, dir).await.unwrap();
            for number in 0..15 {
                let name = format!("file{number:02}");
                let before = two.now();
                let fid = two.lookup(NOBODY, dir, name.as_bytes()).await.unwrap().fid;
                let file = two.open(NOBODY, fid, READ).await.unwrap();
                assert!(read_all(&file).await == text_of(&name, 5000), "{name}");
                waited += u32::from(two.now() > before);
            }
        }
        assert!(waited < 20 * 4, "{waited} of 300 were waited for");
    });
}

#[test]
fn who_reads_two_of_many_small_files_fetches_few() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let names = make_files(&one, 300, 8192).await;
        for place in [0, 1, 100, 200, 50, 150] {
            read_all(&open(&two, &names[place], READ).await).await;
            two.runtime().sleep_until(two.now() + Duration::from_secs(1)).await;
        }
        let here = two.cache_usage().files;
        assert!((7..=10).contains(&here), "{here} files are here, 6 were read");
    });
}

#[test]
fn what_was_fetched_before_it_was_opened_is_what_is_there_when_it_is() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let names = make_files(&one, 40, 8192).await;
        for (place, name) in names.iter().enumerate() {
            let text = read_all(&open(&two, name, READ).await).await;
            let is_new = place % 3 == 0 && place > 0;
            assert!(text == text_of(if is_new { "new" } else { name }, 8192), "{name}");
            let Some(name) = names.get(place + 1).filter(|_| (place + 1) % 3 == 0) else { continue };
            let file = open(&one, name, WRITE).await;
            file.write(0, text_of("new", 8192)).await.unwrap();
            file.flush().await.unwrap();
        }
    });
}

#[test]
fn what_the_user_may_not_read_is_not_fetched_for_him() {
    let world = Cell::new();
    let (one, two) = (world.client(1), world.client(2));
    world.run(async move {
        let names = make_files(&one, 12, 8192).await;
        let root = cell_root(&one).await;
        for name in &names[4..] {
            let fid = one.lookup(NOBODY, root, name.as_bytes()).await.unwrap().fid;
            let set = SetStatus { mode: Some(0o200), ..SetStatus::default() };
            one.set_status(NOBODY, fid, set).await.unwrap();
        }
        for name in &names[..4] {
            read_all(&open(&two, name, READ).await).await;
        }
        two.runtime().sleep_until(two.now() + Duration::from_secs(1)).await;
        assert_eq!(two.cache_usage().files, 4);
    });
}
