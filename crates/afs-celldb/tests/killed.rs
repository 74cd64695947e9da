//! What the embedded store has reported is there after the process was killed, again and again.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use afs_celldb::Database;
use afs_celldb::store::embedded::EmbeddedStore;
use afs_celldb::store::{CellStore, Outcome, Transaction};
use afs_celldb::vldb::{NewEntry, NewSite, VlError, Vldb};
use afs_lab::real::folder::Folder;

/// Names the file in a process that is to be killed.
const FILE: &str = "AFAR_TEST_CELLDB_FILE";

/// How often the process is killed, and what it has reported before that.
const KILLS: usize = 10;
const REPORTS: usize = 20;

async fn open(file: &Path) -> Database<Vldb> {
    let store: Arc<dyn CellStore> = Arc::new(EmbeddedStore::open(file).unwrap());
    Database::open(store).await.unwrap()
}

/// Takes ids and makes volumes of them, and says so, until it is killed.
async fn write(file: &Path) {
    let vldb = open(file).await;
    loop {
        let id = vldb.change(1, move |vldb, rows| vldb.take_ids(1, rows)).await.unwrap();
        println!("took {id}");
        let sites = vec![NewSite { address: 1, partition: 0, flags: 4 }; 13];
        let name = format!("v{id}").into_bytes();
        let new = NewEntry { name, site_count: 1, sites, ids: [id, 0, 0], clone_id: 0, flags: 0x1000 };
        vldb.change::<_, VlError>(1, move |vldb, rows| vldb.create(&new, rows)).await.unwrap();
        println!("made {id}");
    }
}

#[tokio::test]
async fn a_killed_process_has_what_it_reported_and_gives_no_id_twice() {
    if let Some(file) = std::env::var_os(FILE) {
        return write(Path::new(&file)).await;
    }
    let folder = Folder::new("killed");
    let file = folder.join("cell.redb");
    let (mut taken, mut made) = (Vec::<u32>::new(), Vec::<u32>::new());
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "killed::a_killed_process_has_what_it_reported_and_gives_no_id_twice",
                "--nocapture",
            ])
            .env(FILE, &file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        for (count, line) in lines.enumerate() {
            if let Some(id) = line.strip_prefix("took ") {
                taken.push(id.parse().unwrap());
            } else if let Some(id) = line.strip_prefix("made ") {
                made.push(id.parse().unwrap());
            }
            if count == REPORTS + kill {
                // SIGKILL; what it says until it is dead is read too.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let vldb = open(&file).await;
        vldb.read(|vldb| {
            for id in &made {
                let found = vldb.find_name(format!("v{id}").as_bytes());
                assert!(found.is_some() && vldb.find_id(*id, None).is_some(), "kill {kill}: {id} is lost");
            }
        });
    }
    assert!(made.len() >= KILLS * 5, "{} volumes were made", made.len());
    assert!(taken.is_sorted_by(|a, b| a < b), "an id was given twice: {taken:?}");
}

#[tokio::test]
async fn transactions_hold_whole_or_not_at_all_and_scans_are_in_order() {
    let folder = Folder::new("rows");
    let file = folder.join("cell.redb");
    let store = EmbeddedStore::open(&file).unwrap();
    let row = |key: &str, value: Option<&str>| {
        (key.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))
    };
    let first = Transaction {
        expected: vec![row("a/1", None)],
        changes: vec![
            row("a/1", Some("x")),
            row("a/2", Some("y")),
            row("b", Some("z")),
            row("a/3", Some("")),
        ],
        witness: None,
    };
    assert_eq!(store.commit(first.clone()).await, Ok(Outcome::Committed));
    assert_eq!(store.commit(first).await, Ok(Outcome::Conflict));
    let second = Transaction {
        expected: vec![row("a/1", Some("x")), row("a/2", Some("wrong"))],
        changes: vec![row("a/1", None)],
        witness: None,
    };
    assert_eq!(store.commit(second).await, Ok(Outcome::Conflict));
    let third = Transaction {
        expected: vec![row("a/2", Some("y"))],
        changes: vec![row("a/2", None)],
        ..Transaction::default()
    };
    assert_eq!(store.commit(third).await, Ok(Outcome::Committed));
    assert!(EmbeddedStore::open(&file).is_err(), "two processes do not write to one file");
    drop(store);
    let store = EmbeddedStore::open(&file).unwrap();
    assert_eq!(store.read(b"a/1").await, Ok(Some(b"x".to_vec())));
    assert_eq!(store.read(b"a/2").await, Ok(None));
    let keys = |rows: Vec<(Vec<u8>, Vec<u8>)>| rows.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys(store.scan(b"a/", None, 10, None).await.unwrap().rows), [b"a/1", b"a/3"]);
    assert_eq!(keys(store.scan(b"a/", None, 1, None).await.unwrap().rows), [b"a/1"]);
    assert_eq!(keys(store.scan(b"a/", Some(b"a/1"), 10, None).await.unwrap().rows), [b"a/3"]);
    assert_eq!(keys(store.scan(b"", None, 10, None).await.unwrap().rows).len(), 3);
}
