//! What callers are told when a disk is full or fails, and what is served of its volumes meanwhile and after the repair.

use crate::support::*;
use afs_volume::disk::{Cut, Disk, SimulatedDisk};
use afs_wire::abort::{self, VDISKFULL, VOFFLINE, VOVERQUOTA};
use afs_wire::errno::Errno;

/// Far more than a test writes.
const LARGE: u64 = 1 << 30;
/// More than what is kept in the metadata.
const BYTES: usize = 100_000;

fn eio() -> i32 {
    abort::from_errno(Errno(5), true).0
}

#[test]
fn a_full_disk_is_told_and_the_volume_serves_what_it_has() {
    let disk = SimulatedDisk::new(LARGE);
    let cell = Cell::on_disk(&disk);
    let client = cell.client(1);
    let partition = cell.partition.clone();
    cell.run(async move {
        let old = client.create(ROOT, "old").await.unwrap().fid;
        // Twice of what is to fit in its place: the removal needs some space for its own records.
        client.store(old, 0, &[1; 2 * BYTES], 2 * BYTES as u64).await.unwrap();
        let new = client.create(ROOT, "new").await.unwrap().fid;
        let (total, free) = disk.space().unwrap();
        disk.set_capacity(total - free);
        assert_eq!(client.store(new, 0, &[2; BYTES], BYTES as u64).await.unwrap_err(), VDISKFULL.0);
        assert_eq!(client.create(ROOT, "other").await.unwrap_err(), VDISKFULL.0);
        assert!(partition.failure().is_none(), "nothing is wrong with what is there");
        assert_eq!(client.fetch(old, 0, BYTES as i64).await.unwrap().0, [1; BYTES]);
        let status = client.status(new).await.unwrap().status;
        assert_eq!((status.length, status.data_version.0), (0, 0), "nothing of it is there");

        client.remove(ROOT, "old").await.unwrap();
        for _ in 0..20 {
            // Steps that find no room are tried again when others have made some.
            let _ = partition.maintain();
        }
        client.store(new, 0, &[3; BYTES], BYTES as u64).await.unwrap();
        assert_eq!(client.fetch(new, 0, BYTES as i64).await.unwrap().0, [3; BYTES]);
    });
}

#[test]
fn a_quota_is_told_apart_from_a_full_disk() {
    let disk = SimulatedDisk::new(LARGE);
    let cell = Cell::on_disk(&disk);
    let client = cell.client(1);
    cell.volume().change_info(|info| info.max_quota_kib = 50).unwrap();
    cell.run(async move {
        let fid = client.create(ROOT, "f").await.unwrap().fid;
        assert_eq!(client.store(fid, 0, &[1; BYTES], BYTES as u64).await.unwrap_err(), VOVERQUOTA.0);
        client.store(fid, 0, &[1; 20_000], 20_000).await.unwrap();
    });
}

/// 1024 bytes at 4 TB were a full partition, although the disk has room for them.
#[test]
fn a_quota_counts_lengths_and_the_partition_what_is_written() {
    const FAR: u64 = 4 << 40;
    let disk = SimulatedDisk::new(LARGE);
    let cell = Cell::on_disk(&disk);
    let client = cell.client(1);
    let volume = cell.volume();
    cell.run(async move {
        let fid = client.create(ROOT, "f").await.unwrap().fid;
        let status = client.store(fid, FAR, &[1; 1024], FAR + 1024).await.unwrap();
        assert_eq!(status.length, FAR + 1024);
        assert_eq!(client.fetch(fid, FAR.cast_signed() - 2, 4).await.unwrap().0, [0, 0, 1, 1]);
        client.store(fid, 0, &[], 0).await.unwrap();
        volume.change_info(|info| info.max_quota_kib = 100).unwrap();
        for far in [100 << 10, FAR, 1 << 49] {
            assert_eq!(client.store(fid, far, &[1], far + 1).await.unwrap_err(), VOVERQUOTA.0, "{far}");
        }
        let far = 1 << 62;
        assert_eq!(client.store(fid, far, &[1], far + 1).await.unwrap_err(), 49_733_402, "EFBIG");
        // A length alone lengthens nothing (File service notes 14).
        assert_eq!(client.store(fid, 0, &[1], far).await.unwrap().length, 1);
    });
}

#[test]
fn data_that_cannot_be_written_are_told_and_the_volume_goes_on() {
    let disk = SimulatedDisk::new(LARGE);
    let cell = Cell::on_disk(&disk);
    let client = cell.client(1);
    let partition = cell.partition.clone();
    cell.run(async move {
        let fid = client.create(ROOT, "f").await.unwrap().fid;
        client.store(fid, 0, &[1; BYTES], BYTES as u64).await.unwrap();
        disk.set_cut(Some(Cut::ErrorAt(0)));
        assert_eq!(client.store(fid, 0, &[2; BYTES], BYTES as u64).await.unwrap_err(), eio());
        assert!(partition.failure().is_none());
        assert_eq!(client.fetch(fid, 0, BYTES as i64).await.unwrap().0, [1; BYTES], "as it was before");
        client.store(fid, 0, &[3; BYTES], BYTES as u64).await.unwrap();
    });
}

#[test]
fn a_failed_disk_takes_its_volumes_offline_until_it_is_opened_again() {
    let disk = SimulatedDisk::new(LARGE);
    let cell = Cell::on_disk(&disk);
    let client = cell.client(1);
    let partition = cell.partition.clone();
    cell.run(async move {
        let fid = client.create(ROOT, "f").await.unwrap().fid;
        client.store(fid, 0, b"kept", 4).await.unwrap();
        // What a failed sync was to write would be lost.
        partition.sync().unwrap();
        disk.set_cut(Some(Cut::ErrorsFrom(0)));
        // The first whose record cannot be written is told so; it may be there afterwards or not.
        assert_eq!(client.create(ROOT, "g").await.unwrap_err(), eio());
        assert!(partition.failure().is_some());
        assert_eq!(client.status(fid).await.unwrap_err(), VOFFLINE.0);
        assert_eq!(client.fetch(fid, 0, 4).await.unwrap_err(), VOFFLINE.0);
        assert_eq!(client.store(fid, 0, b"lost", 4).await.unwrap_err(), VOFFLINE.0);
        assert!(partition.reopen().is_err(), "it fails still");
        disk.set_cut(None);
        partition.reopen().unwrap();
        assert_eq!(client.fetch(fid, 0, 4).await.unwrap().0, b"kept");
        client.store(fid, 0, b"new!", 4).await.unwrap();
    });
}
