//! Random operations against the reference: also with clones, snapshots, deletions, and starts in between.

use super::reference::{Tree, assert_same, choose, expect, header, new_tree, read_tree, run};
use super::{assert_whole, finish, new_clone, open, settle, volume};
use crate::disk::SimulatedDisk;
use crate::tests::stamp;
use crate::{Partition, VolumeError};
use afs_wire::ids::VolumeId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const WRITABLE: u32 = 100;

fn check_all(partition: &Partition, trees: &BTreeMap<u32, Tree>, when: &str) {
    let ids: Vec<u32> = partition.volumes().iter().map(|volume| volume.id().0).collect();
    assert_eq!(ids, trees.keys().copied().collect::<Vec<_>>(), "{when}");
    for (&id, tree) in trees {
        let volume = partition.volume(VolumeId(id)).unwrap();
        assert_same(&read_tree(&volume), tree, &format!("{when}, volume {id}"));
    }
    assert_whole(partition, when);
}

/// One history from a seed.
fn history(seed: u64, steps: u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut disk = SimulatedDisk::new(1 << 30);
    let mut partition = open(&disk);
    volume(&partition, WRITABLE);
    let mut trees = BTreeMap::from([(WRITABLE, new_tree())]);
    let mut next_clone = WRITABLE + 1;
    for step in 0..steps {
        let when = format!("seed {seed}, step {step}");
        if trees.is_empty() {
            break;
        }
        match rng.random_range(0..200) {
            0..4 if trees.len() < 5 => {
                let from = *trees.keys().nth(rng.random_range(0..trees.len())).unwrap();
                let clone =
                    partition.clone_volume(VolumeId(from), &new_clone(next_clone), stamp(step)).unwrap();
                finish(&clone);
                trees.insert(next_clone, trees[&from].clone());
                next_clone += 1;
            }
            4..6 => {
                let clone = *trees.keys().last().unwrap();
                if clone != WRITABLE && trees.contains_key(&WRITABLE) {
                    let is_snapshot = partition.volume(VolumeId(clone)).unwrap().is_snapshot();
                    let made = partition.reclone_volume(VolumeId(WRITABLE), VolumeId(clone), stamp(step));
                    if is_snapshot {
                        assert!(matches!(made, Err(VolumeError::ReadOnly(_))), "{when}");
                    } else {
                        made.unwrap();
                        trees.insert(clone, trees[&WRITABLE].clone());
                    }
                }
            }
            6..9 => {
                // The one that can be changed only seldom, as little can happen after it.
                let id = *trees.keys().nth(rng.random_range(0..trees.len())).unwrap();
                if id != WRITABLE || rng.random_ratio(1, 20) && trees.len() > 1 {
                    partition.delete_volume(VolumeId(id)).unwrap();
                    trees.remove(&id);
                }
            }
            9..11 => {
                drop(partition);
                partition = open(&disk);
                check_all(&partition, &trees, &when);
            }
            11 => {
                let after = disk.after_kill();
                drop(partition);
                disk = after;
                partition = open(&disk);
                check_all(&partition, &trees, &when);
            }
            12..16 => {
                partition.maintain().unwrap();
            }
            16 => {
                settle(&partition);
                check_all(&partition, &trees, &when);
            }
            17..20 if trees.len() < 8 && trees.contains_key(&WRITABLE) => {
                let id = VolumeId(next_clone);
                partition.make_snapshot(VolumeId(WRITABLE), id, step % 2 == 0, stamp(step)).unwrap();
                trees.insert(next_clone, trees[&WRITABLE].clone());
                next_clone += 1;
            }
            _ => {
                let Some(tree) = trees.get_mut(&WRITABLE) else { continue };
                let volume = partition.volume(VolumeId(WRITABLE)).unwrap();
                let operation = choose(&mut rng, tree);
                let result = run(&volume, &operation, step);
                let expected = expect(tree, &operation, result.as_ref().copied().unwrap_or(None));
                assert_eq!(result.map(|_| ()), expected, "{when}: {operation:?}");
            }
        }
    }
    check_all(&partition, &trees, &format!("seed {seed}, end"));
    if let Some(&clone) = trees.keys().find(|&&id| id != WRITABLE) {
        let clone = partition.volume(VolumeId(clone)).unwrap();
        let result = clone.create_file(crate::VnodeId::ROOT, b"new", &crate::SetStatus::default(), stamp(1));
        assert!(matches!(result, Err(VolumeError::ReadOnly(_))));
    }
    for &id in trees.keys() {
        assert!(header(&partition, VolumeId(id)).used_kib > 0);
        partition.delete_volume(VolumeId(id)).unwrap();
    }
    settle(&partition);
    check_all(&partition, &BTreeMap::new(), &format!("seed {seed}, all deleted"));
    let files = crate::fsck::check(&partition).unwrap().data_files;
    assert_eq!(files, 0, "seed {seed}: all space came back");
}

#[test]
fn volumes_do_what_the_reference_does() {
    for seed in 0..25 {
        history(seed, 400);
    }
}

#[test]
fn a_long_history_too() {
    history(1000, 3000);
}
