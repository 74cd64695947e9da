//! A server that is killed while snapshots of its volumes are made, expire and are removed. AFAR_SNAPSHOT_KILLS sets another number of kills.

use super::reference::{Tree, assert_same, choose, expect, new_tree, read_tree, run};
use super::{assert_whole, config, new_clone, open, settle, stamp, volume};
use crate::disk::{Cut, Disk, SimulatedDisk};
use crate::{Frozen, Partition, SnapshotKind, VolumeError, VolumeKind};
use afs_wire::ids::VolumeId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const RW: VolumeId = VolumeId(1);
const RO: VolumeId = VolumeId(2);
/// Snapshots that the schedule keeps.
const KEPT: usize = 6;
/// Kills of one partition.
const SERIES: u64 = 25;

/// What snapshots show. None: it was being made, or removed, when the server was killed.
type Shown = BTreeMap<u32, Option<Tree>>;

/// Works until the disk is gone. The volume has what is in `tree`.
fn work(
    partition: &Partition,
    rng: &mut StdRng,
    mut tree: Tree,
    shown: &mut Shown,
    next: &mut u32,
) -> Result<(), VolumeError> {
    let writable = partition.volume(RW)?;
    let mut dump: Option<Frozen> = None;
    for step in 0.. {
        match rng.random_range(0..30) {
            0..4 => {
                let id = *next;
                *next += 1;
                shown.insert(id, None);
                partition.make_snapshot(RW, VolumeId(id), rng.random_ratio(3, 4), stamp(id))?;
                shown.insert(id, Some(tree.clone()));
                let there = partition.snapshots_of(RW);
                let scheduled: Vec<u32> = there
                    .iter()
                    .filter(|snapshot| {
                        snapshot.header().info.kind == VolumeKind::Snapshot(SnapshotKind::Scheduled)
                    })
                    .map(|snapshot| snapshot.id().0)
                    .collect();
                for &id in scheduled.iter().rev().skip(KEPT) {
                    remove(partition, shown, id)?;
                }
            }
            4 if shown.len() > 3 => {
                let id = *shown.keys().nth(rng.random_range(0..shown.len())).unwrap();
                remove(partition, shown, id)?;
            }
            5 => match partition.volume(RO) {
                Ok(_) => drop(partition.reclone_volume(RW, RO, stamp(step))?),
                Err(_) => finish_clone(partition)?,
            },
            6 => dump = Some(writable.freeze()?),
            7 => dump = None,
            8..14 => drop(partition.maintain()?),
            _ => {
                let operation = choose(rng, &tree);
                match run(&writable, &operation, step) {
                    Err(error) if ["Io", "Damaged", "DiskFull"].contains(&&*error) => break,
                    result => _ = expect(&mut tree, &operation, result.unwrap_or(None)),
                }
            }
        }
    }
    drop(dump);
    Ok(())
}

fn finish_clone(partition: &Partition) -> Result<(), VolumeError> {
    let clone = partition.clone_volume(RW, &new_clone(RO.0), stamp(1))?;
    clone.change_info(|info| (info.in_service, info.destroy_me) = (true, false))
}

fn remove(partition: &Partition, shown: &mut Shown, id: u32) -> Result<(), VolumeError> {
    let before = shown.insert(id, None);
    assert!(before.is_some(), "{id} is not known");
    partition.delete_volume(VolumeId(id))?;
    shown.remove(&id);
    Ok(())
}

#[test]
fn fsck_finds_nothing_after_kills_while_snapshots_are_made_and_removed() {
    let kills =
        std::env::var("AFAR_SNAPSHOT_KILLS").map_or(2 * SERIES, |text| text.parse().expect("a number"));
    (0..kills.div_ceil(SERIES)).for_each(series);
}

fn series(seed: u64) {
    let mut rng = StdRng::seed_from_u64(4800 + seed);
    let mut disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    volume(&partition, RW.0);
    drop(partition);
    let (mut tree, mut shown, mut next) = (new_tree(), Shown::new(), 10);
    for kill in 0..SERIES {
        let when = format!("seed {seed}, kill {kill}");
        disk.set_cut(Some(Cut::After(rng.random_range(1..400))));
        let opened: Arc<dyn Disk> = Arc::new(disk.clone());
        // It may be killed while it starts, too.
        if let Ok(partition) = Partition::open_on(opened, Path::new("test"), config()) {
            let _ = work(&partition, &mut rng, tree, &mut shown, &mut next);
        }
        disk = disk.after_kill();
        let partition = open(&disk);
        assert_whole(&partition, &when);
        tree = read_tree(&partition.volume(RW).unwrap());
        // Sometimes the next kill comes before anything is swept.
        if rng.random() {
            settle(&partition);
            assert_whole(&partition, &format!("{when}, settled"));
        }
        let there = partition.snapshots_of(RW);
        for snapshot in &there {
            let id = snapshot.id().0;
            let found = read_tree(snapshot);
            if let Some(expected) = &shown[&id] {
                assert_same(&found, expected, &format!("{when}, snapshot {id}"));
            }
            shown.insert(id, Some(found));
        }
        let there: Vec<u32> = there.iter().map(|snapshot| snapshot.id().0).collect();
        let lost: Vec<_> = shown.iter().filter(|(id, tree)| tree.is_some() && !there.contains(id)).collect();
        assert!(lost.is_empty(), "{when}: {:?} are lost", lost.iter().map(|(id, _)| id).collect::<Vec<_>>());
        shown.retain(|id, _| there.contains(id));
    }
    assert!(next - 10 > 50, "only {} snapshots were made", next - 10);
    let partition = open(&disk);
    partition.volumes().iter().for_each(|volume| partition.delete_volume(volume.id()).unwrap());
    settle(&partition);
    assert_eq!(super::replaced::rows(&partition), (0, 0), "all space came back");
    assert_eq!(crate::fsck::check(&partition).unwrap().data_files, 0);
}
