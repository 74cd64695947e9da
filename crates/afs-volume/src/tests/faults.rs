//! Disks that are full or fail: an error to the caller, nothing half-done, offline where memory and disk may differ,
//! and back after repair.

use super::reference::{assert_same, choose, expect, is_same, made_by, new_tree, read_tree, run};
use super::{assert_whole, config, open, settle, volume};
use crate::disk::{Cut, Disk as _, SimulatedDisk};
use crate::tests::stamp;
use crate::{Config, Partition, SetStatus, StoreRange, VnodeId, VolumeError, VolumeState};
use afs_wire::ids::VolumeId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::Arc;

const ID: u32 = 100;

#[test]
fn a_full_disk_is_an_error_and_nothing_else() {
    for seed in 0..15 {
        let mut rng = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let writable = volume(&partition, ID);
        let mut tree = new_tree();
        let mut refused = 0;
        for step in 0..400 {
            if step == 100 {
                settle(&partition);
                let (total, free) = crate::disk::Disk::space(&disk).unwrap();
                disk.set_capacity(total - free + rng.random_range(0..200_000));
            }
            let operation = choose(&mut rng, &tree);
            let result = run(&writable, &operation, step);
            if matches!(&result, Err(error) if error == "DiskFull") {
                refused += 1;
                continue;
            }
            let expected = expect(&mut tree, &operation, result.as_ref().copied().unwrap_or(None));
            assert_eq!(result.map(|_| ()), expected, "seed {seed}, step {step}: {operation:?}");
            if step % 50 == 0 {
                // Maintenance may find no room either; it is tried again.
                let _ = partition.maintain();
            }
        }
        assert!(refused > 0, "seed {seed}: the disk was full");
        let when = format!("seed {seed}");
        if partition.failure().is_some() {
            disk.set_capacity(1 << 30);
            partition.reopen().unwrap();
        }
        disk.set_capacity(1 << 30);
        let writable = partition.volume(VolumeId(ID)).unwrap();
        assert_same(&read_tree(&writable), &tree, &when);
        writable.create_file(VnodeId::ROOT, b"there is room", &SetStatus::default(), stamp(1)).unwrap();
        settle(&partition);
        assert_whole(&partition, &when);
    }
}

#[test]
fn after_an_error_of_the_disk_the_volume_is_offline_or_whole() {
    let (mut failures, mut losses) = (0, 0);
    for seed in 0..80 {
        let mut rng = StdRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let writable = volume(&partition, ID);
        partition.sync().unwrap();
        let boot = disk.boot().unwrap();
        // After each operation that was acknowledged; and the last of them that was synced.
        let mut states = vec![new_tree()];
        let mut synced = 0;
        let mut cut_off = None;
        for step in 0..120 {
            if step == 60 {
                let n = rng.random_range(0..60);
                disk.set_cut(Some(if seed % 2 == 0 { Cut::ErrorAt(n) } else { Cut::ErrorsFrom(n) }));
            }
            if rng.random_ratio(1, 20) && partition.maintain().is_ok() {
                synced = states.len() - 1;
            }
            let mut tree = states.last().unwrap().clone();
            let operation = choose(&mut rng, &tree);
            let result = run(&writable, &operation, step);
            if partition.failure().is_some() {
                // A failure in the maintenance before it is one of no operation.
                if let Ok(made) = result {
                    expect(&mut tree, &operation, made).unwrap();
                    states.push(tree);
                } else {
                    cut_off = Some(operation);
                }
                break;
            }
            if matches!(&result, Err(error) if error == "Io") {
                continue;
            }
            let expected = expect(&mut tree, &operation, result.as_ref().copied().unwrap_or(None));
            assert_eq!(result.map(|_| ()), expected, "seed {seed}, step {step}: {operation:?}");
            states.push(tree);
        }
        let when = format!("seed {seed}");
        disk.set_cut(None);
        if let Some(error) = partition.failure() {
            failures += 1;
            assert!(matches!(writable.state(), VolumeState::Offline(_)), "{when}");
            assert!(matches!(writable.check_online(), Err(VolumeError::Offline { .. })), "{when}");
            let refused = writable.create_file(VnodeId::ROOT, b"new", &SetStatus::default(), stamp(1));
            assert!(matches!(refused, Err(VolumeError::Io { .. })), "{when}: {error}");
            partition.reopen().unwrap();
        }
        let writable = partition.volume(VolumeId(ID)).unwrap();
        assert_eq!(writable.state(), VolumeState::Online, "{when}");
        assert_whole(&partition, &when);
        let found = read_tree(&writable);
        // After a sync that failed, as after a power loss: a state that was, and nothing older than what was synced. Otherwise all
        // that was acknowledged; and the operation that met the failure may have reached the disk, or not.
        let has_lost = disk.boot().unwrap() != boot;
        losses += u32::from(has_lost);
        let oldest = if has_lost { synced } else { states.len() - 1 };
        let mut one_more = states.last().unwrap().clone();
        let is_done = |operation| expect(&mut one_more, operation, made_by(operation, &found)).is_ok();
        if cut_off.as_ref().is_some_and(is_done) {
            states.push(one_more);
        }
        let age = states[oldest..].iter().position(|state| is_same(state, &found));
        assert!(
            age.is_some(),
            "{when}: {has_lost}, {:?} of {oldest}..{}",
            states.iter().position(|state| is_same(state, &found)),
            states.len()
        );
        writable.create_file(VnodeId::ROOT, b"it goes on", &SetStatus::default(), stamp(1)).unwrap();
        settle(&partition);
        assert_whole(&partition, &when);
        // What is said to be on the disk is there.
        let now = read_tree(&writable);
        let disk = disk.after_power_loss(rng.random());
        drop((writable, partition));
        let partition = open(&disk);
        assert_whole(&partition, &when);
        assert_same(
            &read_tree(&partition.volume(VolumeId(ID)).unwrap()),
            &now,
            &format!("{when}, after a power loss"),
        );
    }
    assert!(failures > 20, "only {failures} runs met the failure");
    assert!(losses > 5 && losses < failures, "{losses} of {failures} were of a sync");
}

/// The kernel forgets what a failed sync was to write: the next sync says that all is well. A process that was killed after such a
/// failure left a log that counted in full, and named data that were never on the disk.
#[test]
fn what_a_failed_sync_was_to_write_does_not_count_for_the_next_process() {
    let set = SetStatus::default();
    for failing in 0..12 {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let writable = volume(&partition, ID);
        let file = writable.create_file(VnodeId::ROOT, b"f", &set, stamp(1)).unwrap().vnode.id;
        settle(&partition);
        let store = |byte: u8| {
            let range = StoreRange { position: 0, length: 50_000, file_length: 50_000 };
            let mut store = writable.begin_store(file, range).unwrap();
            store.write(&[byte; 50_000]).unwrap();
            store.commit(&set, stamp(2), false).unwrap();
        };
        store(1);
        settle(&partition);
        store(2);
        disk.set_cut(Some(Cut::ErrorAt(failing)));
        let has_failed = partition.sync().is_err();
        disk.set_cut(None);
        drop(writable);
        let disk = disk.after_kill();
        let partition = open(&disk);
        assert_whole(&partition, "after the kill");
        settle(&partition);
        let seen = read_tree(&partition.volume(VolumeId(ID)).unwrap());
        let disk = disk.after_power_loss(failing);
        drop(partition);
        let partition = open(&disk);
        assert_same(&read_tree(&partition.volume(VolumeId(ID)).unwrap()), &seen, &format!("{failing}"));
        assert_whole(&partition, "after the power loss");
        assert!(has_failed || failing > 8, "a sync has more steps than {failing}");
    }
}

#[test]
fn a_file_of_data_that_cannot_be_written_costs_that_store_only() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, ID);
    let file = volume.create_file(VnodeId::ROOT, b"f", &SetStatus::default(), stamp(1)).unwrap().vnode.id;
    let mut store =
        volume.begin_store(file, StoreRange { position: 0, length: 50_000, file_length: 0 }).unwrap();
    store.write(&[1; 20_000]).unwrap();
    disk.set_cut(Some(Cut::ErrorAt(0)));
    assert!(matches!(store.write(&[1; 5_000]), Err(VolumeError::Io { .. })));
    drop(store);
    assert!(partition.failure().is_none());
    assert_eq!(volume.state(), VolumeState::Online);
    assert_eq!(volume.status(file).unwrap().length, 0);
    assert_whole(&partition, "after the failure");
}

/// Others may share the file system: what the reserve keeps free is theirs to fill.
#[test]
fn a_partition_that_others_have_filled_is_opened_and_can_be_emptied() {
    filled_by_others(300_000, false);
}

/// The partition has not a byte left when the server starts again, after a kill or a proper end.
#[test]
fn a_partition_without_a_free_byte_is_opened_and_can_be_emptied() {
    filled_by_others(0, true);
    filled_by_others(0, false);
}

fn filled_by_others(left: u64, is_killed: bool) {
    let disk = SimulatedDisk::new(1 << 30);
    let config = Config { log_bytes: 4 << 20, ..config() };
    let open = |disk: &SimulatedDisk| {
        Partition::open_on(Arc::new(disk.clone()), Path::new("test"), config.clone()).unwrap()
    };
    let partition = open(&disk);
    let filled = volume(&partition, ID);
    let set = SetStatus::default();
    let name = |n: u32| format!("f{n}").into_bytes();
    for n in 0..5 {
        let file = filled.create_file(VnodeId::ROOT, &name(n), &set, stamp(1)).unwrap().vnode.id;
        let range = StoreRange { position: 0, length: 100_000, file_length: 100_000 };
        let mut store = filled.begin_store(file, range).unwrap();
        store.write(&[1; 100_000]).unwrap();
        store.commit(&set, stamp(2), false).unwrap();
    }
    let _ = partition.maintain();
    let killed = disk.after_kill();
    drop((filled, partition));
    let disk = if is_killed { killed } else { disk };
    let (total, free) = crate::disk::Disk::space(&disk).unwrap();
    disk.set_capacity(total - free + left);
    let partition = open(&disk);
    let filled = partition.volume(VolumeId(ID)).unwrap();
    assert_eq!(filled.state(), VolumeState::Online);
    for n in 0..5 {
        filled.remove_file(VnodeId::ROOT, &name(n), stamp(3)).unwrap();
    }
    for _ in 0..20 {
        // Steps that find no room are tried again when others have made some.
        let _ = partition.maintain();
    }
    filled.create_file(VnodeId::ROOT, b"there is room", &set, stamp(4)).unwrap();
    assert_whole(&partition, "after it was emptied");
}

#[test]
fn quotas_are_kept() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, ID);
    volume.change_info(|info| info.max_quota_kib = 20).unwrap();
    let set = SetStatus::default();
    let file = volume.create_file(VnodeId::ROOT, b"f", &set, stamp(1)).unwrap().vnode.id;
    // The root has 2 blocks, the file one; a file of 18 makes 20.
    let range = |length| StoreRange { position: 0, length, file_length: length };
    assert!(matches!(volume.begin_store(file, range(18 * 1024 + 1)), Err(VolumeError::OverQuota(_))));
    let mut store = volume.begin_store(file, range(18 * 1024)).unwrap();
    store.write(&vec![1; 18 * 1024]).unwrap();
    store.commit(&set, stamp(2), false).unwrap();
    assert_eq!(volume.header().used_kib, 20);
    assert!(matches!(
        volume.create_file(VnodeId::ROOT, b"g", &set, stamp(3)),
        Err(VolumeError::OverQuota(_))
    ));
    volume.remove_file(VnodeId::ROOT, b"f", stamp(4)).unwrap();
    assert_eq!(volume.header().used_kib, 2);
    volume.create_file(VnodeId::ROOT, b"g", &set, stamp(5)).unwrap();
}
