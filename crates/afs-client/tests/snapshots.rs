//! `.snapshots`: what was in a directory is found by name, by those who might see it then and may see it now, and by nobody else on the same client.

use std::time::Duration;

use crate::support::{ALICE, BOB, Cell, NOBODY, ROOT_CELL, ROOT_CELL_RO, cell_root, content, names};
use afs_client::{Client, Error, Fid, Kind, User};
use afs_lab::sim::stamp;
use afs_volume::{Partition, Stamp};
use afs_wire::Errno;
use afs_wire::ids::{AfsTime, VolumeId};
use afs_wire::rxafs::GetSnapshots;
use afs_wire::vl::SiteFlags;
use rxgen::Rpc;

/// The names of the snapshots that [`snapshot`] makes.
const TIMES: [&str; 3] = ["2026-11-28T030000Z", "2026-11-28T040000Z", "2026-11-28T050000Z"];

const fn volume_of(number: u32) -> VolumeId {
    VolumeId(0x2000_0100 + number)
}

/// Makes a snapshot of the cell's root volume.
fn snapshot(partition: &Partition, number: u32) {
    let now = AfsTime(1_795_834_800 + 3600 * number);
    partition.make_snapshot(ROOT_CELL, volume_of(number), false, Stamp { now, ..stamp() }).unwrap();
}

/// Goes by names from a directory.
async fn walk(client: &Client, user: User, mut dir: Fid, path: &str) -> Result<Fid, Error> {
    for name in path.split('/') {
        dir = client.lookup(user, dir, name.as_bytes()).await?.fid;
    }
    Ok(dir)
}

async fn errno(client: &Client, user: User, dir: Fid, path: &str) -> Errno {
    walk(client, user, dir, path).await.expect_err(path).errno()
}

/// Makes a directory with a file in it.
async fn make(client: &Client, name: &str, text: &'static [u8]) -> Fid {
    let root = cell_root(client).await;
    let dir = client.make_dir(NOBODY, root, name.as_bytes(), 0o755).await.unwrap().fid;
    let file = client.create(NOBODY, dir, b"file", 0o644).await.unwrap().fid;
    crate::support::put(client, NOBODY, file, text).await;
    dir
}

#[test]
fn a_directory_that_was_removed_is_found_in_a_snapshot_by_its_name_and_read_but_not_changed() {
    let world = Cell::new();
    let (client, partition) = (world.client(1), world.sites[0].partition.clone());
    world.run(async move {
        let root = cell_root(&client).await;
        let dir = make(&client, "dir", b"then").await;
        snapshot(&partition, 0);
        client.remove(NOBODY, dir, b"file").await.unwrap();
        client.remove_dir(NOBODY, root, b"dir").await.unwrap();

        assert_eq!(names(&client, NOBODY, root).await, Vec::<String>::new(), "nothing lists it");
        let found = client.lookup(NOBODY, root, b".snapshots").await.unwrap();
        assert_eq!(found.status.kind, Kind::Directory);
        assert_eq!(client.cached_lookup(NOBODY, root, b".snapshots").unwrap().unwrap().fid, found.fid);
        assert_eq!(names(&client, NOBODY, found.fid).await, [TIMES[0]]);
        assert_eq!(client.lookup(NOBODY, found.fid, b"..").await.unwrap().fid, root);
        let then = walk(&client, NOBODY, found.fid, TIMES[0]).await.unwrap();
        assert_eq!(then, Fid { volume: volume_of(0), ..root });
        assert_eq!(names(&client, NOBODY, then).await, ["dir"]);
        let file = walk(&client, NOBODY, then, "dir/file").await.unwrap();
        assert_eq!(content(&client, NOBODY, file).await, b"then");

        for dir in [found.fid, then] {
            let made = client.create(NOBODY, dir, b"new", 0o644).await;
            assert_eq!(made.unwrap_err().errno(), Errno::EROFS);
        }
        assert_eq!(client.remove(NOBODY, then, b"dir").await.unwrap_err().errno(), Errno::EROFS);
        let removed = client.remove_dir(NOBODY, root, b".snapshots").await;
        assert_eq!(removed.unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(errno(&client, NOBODY, found.fid, "2026-11-28T030001Z").await, Errno::ENOENT);
        assert_eq!(errno(&client, NOBODY, then, ".snapshots").await, Errno::ENOENT, "in a snapshot are none");
    });
}

#[test]
fn each_directory_shows_the_snapshots_in_which_it_is_by_whatever_name() {
    let world = Cell::new();
    let (client, partition) = (world.client(1), world.sites[0].partition.clone());
    world.run(async move {
        let root = cell_root(&client).await;
        snapshot(&partition, 0);
        let dir = make(&client, "old", b"text").await;
        snapshot(&partition, 1);
        client.rename(NOBODY, (root, b"old"), (root, b"new"), true).await.unwrap();
        let snapshots = client.lookup(NOBODY, dir, b".snapshots").await.unwrap().fid;
        assert_eq!(names(&client, NOBODY, snapshots).await, [TIMES[1]]);
        assert_eq!(errno(&client, NOBODY, snapshots, TIMES[0]).await, Errno::ENOENT);
        let then = walk(&client, NOBODY, root, "new/.snapshots/2026-11-28T040000Z/file").await.unwrap();
        assert_eq!(then.volume, volume_of(1));
        let same = walk(&client, NOBODY, root, ".snapshots/2026-11-28T040000Z/old/file").await.unwrap();
        assert_eq!(same, then);
        // One that is made later is there soon, and one that is removed soon is not.
        snapshot(&partition, 2);
        partition.delete_volume(volume_of(1)).unwrap();
        client.runtime().sleep_until(client.now() + Duration::from_secs(10)).await;
        assert_eq!(names(&client, NOBODY, snapshots).await, [TIMES[2]]);
        assert_eq!(errno(&client, NOBODY, snapshots, TIMES[1]).await, Errno::ENOENT);
    });
}

#[test]
fn an_entry_that_somebody_has_called_snapshots_is_found_in_their_place() {
    let world = Cell::new();
    let (client, partition) = (world.client(1), world.sites[0].partition.clone());
    world.run(async move {
        let root = cell_root(&client).await;
        snapshot(&partition, 0);
        assert!(walk(&client, NOBODY, root, ".snapshots").await.unwrap().is_snapshots());
        let made = client.create(NOBODY, root, b".snapshots", 0o644).await.unwrap().fid;
        assert_eq!(walk(&client, NOBODY, root, ".snapshots").await.unwrap(), made);
        client.remove(NOBODY, root, b".snapshots").await.unwrap();
        assert!(walk(&client, NOBODY, root, ".snapshots").await.unwrap().is_snapshots());
    });
}

#[test]
fn a_server_that_knows_no_snapshots_has_no_such_name() {
    let world = Cell::new();
    let client = world.client(1);
    world.refuse(0, GetSnapshots::OPCODE);
    world.run(async move {
        let root = cell_root(&client).await;
        assert_eq!(errno(&client, NOBODY, root, ".snapshots").await, Errno::ENOENT);
        let known = client.cached_lookup(NOBODY, root, b".snapshots").unwrap();
        assert_eq!(known.unwrap_err().errno(), Errno::ENOENT, "and it is not asked again at once");
    });
}

#[test]
fn a_client_that_is_set_so_lists_snapshots_in_the_root_directories_of_volumes_alone() {
    let world = Cell::new();
    let mut config = world.config(1);
    config.shows_snapshots = true;
    let client = world.client_with(config);
    let partition = world.sites[0].partition.clone();
    world.run_with(&client, |client| async move {
        let root = cell_root(&client).await;
        let dir = make(&client, "dir", b"text").await;
        snapshot(&partition, 0);
        assert_eq!(names(&client, NOBODY, root).await, [".snapshots", "dir"]);
        let known = client.cached_read_dir(NOBODY, root).unwrap().unwrap();
        let last = known.entries_from(0).last().unwrap();
        assert_eq!((last.name, last.fid), (&b".snapshots"[..], root.snapshots()));
        assert_eq!(known.entries_from(last.next).count(), 0);
        assert_eq!(names(&client, NOBODY, dir).await, ["file"]);
        let then = walk(&client, NOBODY, root, ".snapshots/2026-11-28T030000Z").await.unwrap();
        assert_eq!(names(&client, NOBODY, then).await, ["dir"], "a snapshot has none");
        client.create(NOBODY, root, b".snapshots", 0o644).await.unwrap();
        assert_eq!(names(&client, NOBODY, root).await, [".snapshots", "dir"], "it is one name");
        client.remove(NOBODY, root, b".snapshots").await.unwrap();
    });
    world.refuse(0, GetSnapshots::OPCODE);
    world.run(async move {
        client.runtime().sleep_until(client.now() + Duration::from_secs(10)).await;
        let root = cell_root(&client).await;
        assert_eq!(names(&client, NOBODY, root).await, ["dir"]);
    });
}

#[test]
fn in_a_replica_the_snapshots_are_those_of_its_volume() {
    let world = Cell::new();
    let (client, partition) = (world.client(1), world.sites[0].partition.clone());
    world.run(async move {
        make(&client, "dir", b"then").await;
        snapshot(&partition, 0);
    });
    world.release(0, "root.cell", ROOT_CELL);
    world.set_entry("root.cell", ROOT_CELL, &[(0, SiteFlags::RW_VOL | SiteFlags::RO_VOL)]);
    let client = world.client(2);
    world.run(async move {
        let root = Fid { volume: ROOT_CELL_RO, ..cell_root(&client).await };
        let file = walk(&client, NOBODY, root, ".snapshots/2026-11-28T030000Z/dir/file").await.unwrap();
        assert_eq!(content(&client, NOBODY, file).await, b"then");
    });
}

/// Reads the file in the snapshot, as programs do: by name, from what the client keeps where that counts.
async fn read(client: &Client, user: User, dir: Fid) -> Result<Vec<u8>, Errno> {
    let read = async {
        let file = walk(client, user, dir, ".snapshots/2026-11-28T030000Z/file").await?;
        let open = client.open(user, file, crate::support::data::READ).await?;
        crate::support::data::try_read_all(&open).await
    };
    read.await.map_err(|error| error.errno())
}

#[test]
fn what_one_user_has_read_in_a_snapshot_the_client_shows_to_no_other() {
    let world = Cell::new();
    let (client, partition) = (world.client(1), world.sites[0].partition.clone());
    let denied = Err(Errno::EACCES);
    world.run(async move {
        let dir = make(&client, "dir", b"secret").await;
        client.set_access_list(NOBODY, dir, b"2\n0\nalice\t127\nbob\t8\n").await.unwrap();
        snapshot(&partition, 0);
        assert_eq!(read(&client, ALICE, dir).await, Ok(b"secret".to_vec()));
        assert_eq!(read(&client, BOB, dir).await, denied, "who may only list");
        assert_eq!(read(&client, NOBODY, dir).await, denied, "who may nothing");
        assert_eq!(errno(&client, NOBODY, dir, ".snapshots").await, Errno::EACCES);
        // What is granted now was not granted then.
        client.set_access_list(ALICE, dir, b"2\n0\nalice\t127\nbob\t9\n").await.unwrap();
        assert_eq!(read(&client, ALICE, dir).await, Ok(b"secret".to_vec()));
        assert_eq!(read(&client, BOB, dir).await, denied);
    });
}

/// Another client takes a right away and gives it back.
#[test]
fn a_right_that_is_taken_away_counts_at_once_in_what_was_read_in_a_snapshot_and_counts_again_when_it_is_back()
{
    let world = Cell::new();
    let (client, other, partition) = (world.client(1), world.client(2), world.sites[0].partition.clone());
    world.run(async move {
        let dir = make(&client, "dir", b"then").await;
        client.set_access_list(NOBODY, dir, b"2\n0\nalice\t127\nbob\t9\n").await.unwrap();
        snapshot(&partition, 0);
        assert_eq!(read(&client, BOB, dir).await, Ok(b"then".to_vec()));
        let file = walk(&client, BOB, dir, ".snapshots/2026-11-28T030000Z/file").await.unwrap();
        for _ in 0..2 {
            other.set_access_list(ALICE, dir, b"1\n0\nalice\t127\n").await.unwrap();
            assert_eq!(read(&client, BOB, dir).await, Err(Errno::EACCES));
            assert_eq!(client.status(BOB, file).await.unwrap_err().errno(), Errno::EACCES, "nor by its fid");
            let open = client.open(BOB, file, crate::support::data::READ).await;
            assert_eq!(open.unwrap_err().errno(), Errno::EACCES);
            assert_eq!(read(&client, ALICE, dir).await, Ok(b"then".to_vec()));
            other.set_access_list(ALICE, dir, b"2\n0\nalice\t127\nbob\t9\n").await.unwrap();
            assert_eq!(read(&client, BOB, dir).await, Ok(b"then".to_vec()));
        }
    });
}
