//! Power losses and deaths at any moment, on the disk in memory: what was acknowledged, or synced, is there; all fits
//! together; and no data version ever stands for two contents.

use super::reference::{
    Operation, Tree, What, assert_same, choose, expect, is_same, made_by, new_tree, read_tree, run,
};
use super::{assert_whole, config, finish, new_clone, open, settle, volume};
use crate::disk::{Cut, Disk, SimulatedDisk};
use crate::tests::stamp;
use crate::{Partition, SyncPolicy, VnodeId, Volume};
use afs_wire::ids::VolumeId;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const ID: u32 = 100;

/// The content of each version of each vnode: clients' caches rely on its being the same for all who see it.
#[derive(Default)]
struct Versions(BTreeMap<(VnodeId, u64), What>);

impl Versions {
    fn note(&mut self, tree: &Tree, when: &str) {
        for (id, node) in tree {
            let what = self.0.entry((*id, node.version)).or_insert_with(|| node.what.clone());
            assert!(*what == node.what, "{when}: {id:?} has version {} for two contents", node.version);
        }
    }
}

/// Runs operations until one fails because the disk is gone, and keeps what the volume was after each, and when
/// everything was synced last.
struct Run {
    /// After each operation that was acknowledged, from the beginning.
    states: Vec<Tree>,
    /// The last of them that was synced.
    synced: usize,
    /// The operation in whose midst the disk died.
    cut_off: Option<Operation>,
}

fn operate(
    partition: &Partition,
    rng: &mut StdRng,
    run_: &mut Run,
    steps: u32,
    versions: &mut Versions,
    always: bool,
) {
    let Ok(volume) = partition.volume(VolumeId(ID)) else { return };
    for step in 0..steps {
        if rng.random_ratio(1, 12) {
            let now = run_.states.len() - 1;
            if partition.maintain().is_err() {
                return;
            }
            run_.synced = now;
        }
        let mut tree = run_.states.last().unwrap().clone();
        let operation = choose(rng, &tree);
        let result = run(&volume, &operation, step);
        if matches!(&result, Err(error) if error == "Io" || error == "Damaged" || error == "DiskFull") {
            run_.cut_off = Some(operation);
            return;
        }
        let expected = expect(&mut tree, &operation, result.as_ref().copied().unwrap_or(None));
        assert_eq!(result.map(|_| ()), expected, "{operation:?}");
        if expected.is_ok() {
            run_.states.push(tree);
            if always {
                run_.synced = run_.states.len() - 1;
            }
            // Whoever looks now may keep what he sees for ever.
            if rng.random_ratio(1, 4) {
                let seen = read_tree(&volume);
                versions.note(&seen, "while running");
            }
        }
    }
}

/// Several crashes in a row, each at a moment of chance, in the midst of an operation of the disk.
fn crashes(seed: u64, losses_in_four: u32, always: bool) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut disk = SimulatedDisk::new(1 << 30);
    let open_with = |disk: &SimulatedDisk| {
        let mut config = config();
        if always {
            config.sync = SyncPolicy::Always;
        }
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        Partition::open_on(disk, Path::new("test"), config)
    };
    let partition = open_with(&disk).unwrap();
    volume(&partition, ID);
    partition.sync().unwrap();
    drop(partition);
    let mut carried = vec![new_tree()];
    let mut versions = Versions::default();
    for round in 0..5 {
        let when = format!("seed {seed}, round {round}");
        let mut run_ = Run { states: carried, synced: 0, cut_off: None };
        disk.set_cut(Some(Cut::After(rng.random_range(1..800))));
        // It may die while it opens, too.
        if let Ok(partition) = open_with(&disk) {
            operate(&partition, &mut rng, &mut run_, 300, &mut versions, always);
        }
        let operations = disk.operations();
        let is_power_loss = rng.random_ratio(losses_in_four, 4);
        disk = if is_power_loss { disk.after_power_loss(rng.random()) } else { disk.after_kill() };
        // After a death the next run may die too before it has synced what this one had not: then look at a copy.
        let is_unsynced = !is_power_loss && losses_in_four > 0;
        let looked_at = if is_unsynced { disk.after_kill() } else { disk.clone() };
        let partition =
            open_with(&looked_at).unwrap_or_else(|error| panic!("{when}, after {operations}: {error}"));
        assert_whole(&partition, &when);
        let found = read_tree(&partition.volume(VolumeId(ID)).unwrap());
        let same = |tree: &Tree| is_same(tree, &found);
        // The state after some operation, not older than what was promised. One more may have been done and not
        // acknowledged.
        let oldest = if is_power_loss { run_.synced } else { run_.states.len() - 1 };
        let mut known: Vec<Tree> = run_.states[oldest..].to_vec();
        if let Some(operation) = &run_.cut_off {
            let mut one_more = run_.states.last().unwrap().clone();
            if expect(&mut one_more, operation, made_by(operation, &found)).is_ok() {
                known.push(one_more);
            }
        }
        if !known.iter().any(same) {
            let age = run_.states[..oldest].iter().rposition(same);
            let last = run_.states.len() - 1;
            panic!(
                "{when}: {:?} is left; {oldest} to {last}, or {:?} after it, were promised",
                age, run_.cut_off
            );
        }
        versions.note(&found, &when);
        settle(&partition);
        assert_whole(&partition, &format!("{when}, settled"));
        let again = read_tree(&partition.volume(VolumeId(ID)).unwrap());
        assert_same(&again, &found, &when);
        carried = if is_unsynced { run_.states.split_off(run_.synced) } else { Vec::new() };
        carried.push(found);
    }
}

/// A power loss may leave a segment whose predecessor lost its end. The next run goes on behind that end, in a segment of a higher
/// number. A run that read the log after another loss stopped at the first of the two, and all that had been synced was gone.
#[test]
fn what_was_synced_behind_a_gap_in_the_log_is_there_after_another_power_loss() {
    let set = crate::SetStatus::default();
    for seed in 0..40 {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let writable = volume(&partition, ID);
        partition.sync().unwrap();
        for n in 0..60 {
            let file =
                writable.create_file(VnodeId::ROOT, format!("{n}").as_bytes(), &set, stamp(1)).unwrap();
            let range = crate::StoreRange { position: 0, length: 1000, file_length: 1000 };
            let mut store = writable.begin_store(file.vnode.id, range).unwrap();
            store.write(&[7; 1000]).unwrap();
            store.commit(&set, stamp(1), false).unwrap();
        }
        let segments = disk.list("").unwrap().iter().filter(|name| name.starts_with("log.")).count();
        assert!(segments > 2, "{segments} segments");
        let disk = disk.after_power_loss(seed);
        let again = open(&disk);
        let volume = again.volume(VolumeId(ID)).unwrap();
        volume.create_file(VnodeId::ROOT, b"synced", &set, stamp(2)).unwrap();
        again.sync().unwrap();
        let disk = disk.after_power_loss(seed + 1000);
        drop((volume, again));
        let last = open(&disk);
        let volume = last.volume(VolumeId(ID)).unwrap();
        assert!(volume.lookup(VnodeId::ROOT, b"synced").is_ok(), "seed {seed}");
        assert_whole(&last, &format!("seed {seed}"));
    }
}

/// redb makes a file in steps, and takes none that was left in between: a first start that was killed there left a partition that
/// could not be opened ever after.
#[test]
fn a_start_that_ends_while_the_rows_are_made_is_made_up_for_by_the_next() {
    for bytes in [1, 8, 4096, 100_000] {
        let disk = SimulatedDisk::new(1 << 30);
        disk.create("rows.redb").unwrap().write_at(0, &vec![0; bytes]).unwrap();
        let partition = open(&disk);
        volume(&partition, ID);
        assert_whole(&partition, "made at the second start");
        drop(partition);
        // With a log beside it it was one. Its first bytes are with the checksums too, and without these it is damaged.
        disk.open("rows.redb").unwrap().write_at(0, &[0; 9]).unwrap();
        assert!(open(&disk.after_kill()).volume(VolumeId(ID)).is_ok());
        disk.remove("rows.sums").unwrap();
        let disk: Arc<dyn Disk> = Arc::new(disk);
        assert!(Partition::open_on(disk, Path::new("test"), config()).is_err());
    }
}

#[test]
fn a_power_loss_leaves_a_state_that_was_and_no_version_twice() {
    for seed in 0..40 {
        crashes(seed, 4, false);
    }
}

#[test]
fn what_is_synced_always_is_there_after_a_power_loss() {
    for seed in 0..12 {
        crashes(5000 + seed, 4, true);
    }
}

#[test]
fn the_death_of_the_process_loses_nothing_that_was_acknowledged() {
    for seed in 0..20 {
        crashes(9000 + seed, 0, false);
    }
}

/// Data that a killed run had not synced are not synced because another run began.
#[test]
fn a_power_loss_soon_after_a_death_is_one_like_others() {
    for seed in 0..30 {
        crashes(30_000 + seed, 2, false);
    }
}

#[test]
fn clones_snapshots_and_deletions_survive_power_losses() {
    for seed in 0..20 {
        let mut rng = StdRng::seed_from_u64(20_000 + seed);
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let writable = volume(&partition, ID);
        let mut tree = new_tree();
        let mut clones = BTreeMap::new();
        for step in 0..150 {
            let operation = choose(&mut rng, &tree);
            let result = run(&writable, &operation, step);
            let _ = expect(&mut tree, &operation, result.unwrap_or(None));
            if step % 40 == 20 {
                let clone =
                    partition.clone_volume(VolumeId(ID), &new_clone(200 + step), stamp(step)).unwrap();
                finish(&clone);
                clones.insert(200 + step, tree.clone());
            }
            if step % 20 == 5 {
                partition.make_snapshot(VolumeId(ID), VolumeId(400 + step), false, stamp(step)).unwrap();
                clones.insert(400 + step, tree.clone());
            }
        }
        partition.sync().unwrap();
        let gone = [220, 405, 445];
        for id in gone {
            partition.delete_volume(VolumeId(id)).unwrap();
        }
        disk.set_cut(Some(Cut::After(rng.random_range(0..60))));
        let _ = partition.maintain();
        let _ = partition.maintain();
        let disk = disk.after_power_loss(rng.random());
        let partition = open(&disk);
        let when = format!("seed {seed}");
        assert_whole(&partition, &when);
        settle(&partition);
        assert_whole(&partition, &when);
        assert_same(&read_tree(&partition.volume(VolumeId(ID)).unwrap()), &tree, &when);
        for (&id, tree) in clones.iter().filter(|(id, _)| !gone.contains(id)) {
            assert_same(&read_tree(&partition.volume(VolumeId(id)).unwrap()), tree, &when);
        }
    }
}

/// Stores a file anew, and says which version it has then.
fn store(volume: &Arc<Volume>, file: VnodeId, seed: u8) -> u64 {
    let range = crate::StoreRange { position: 0, length: 100, file_length: 100 };
    let mut store = volume.begin_store(file, range).unwrap();
    store.write(&super::reference::bytes_of(range, seed)).unwrap();
    store.commit(&crate::SetStatus::default(), stamp(2), false).unwrap().data_version.0
}

fn version(volume: &Volume, id: VnodeId) -> u64 {
    volume.status(id).unwrap().data_version.0
}

/// A kernel client takes the version after its own store for somebody else's change, unless it is the one it was told plus one.
fn assert_next_is_one_more(partition: &Partition, known: &[VnodeId], when: &str) {
    let volume = partition.volume(VolumeId(ID)).unwrap();
    for &file in known {
        let told = version(&volume, file);
        assert_eq!(store(&volume, file, 77), told + 1, "{when}: {file:?}");
    }
    let set = crate::SetStatus::default();
    let told = version(&volume, VnodeId::ROOT);
    let name = format!("{when}, new");
    let made = volume.create_file(VnodeId::ROOT, name.as_bytes(), &set, stamp(5)).unwrap();
    assert_eq!(made.directory.data_version.0, told + 1, "{when}: the directory");
    assert_eq!(version(&volume, made.vnode.id), made.vnode.data_version.0, "{when}: a new file");
    assert_eq!(store(&volume, made.vnode.id, 78), made.vnode.data_version.0 + 1, "{when}: a new file");
    let made = volume.make_dir(VnodeId::ROOT, format!("{name} folder").as_bytes(), &set, stamp(5)).unwrap();
    let inside = volume.create_file(made.vnode.id, b"inside", &set, stamp(5)).unwrap();
    assert_eq!(inside.directory.data_version.0, made.vnode.data_version.0 + 1, "{when}: a new directory");
}

/// A volume with some files, each stored a few times.
fn with_files(partition: &Partition) -> Vec<VnodeId> {
    let volume = volume(partition, ID);
    let make = |n: u8| {
        let set = crate::SetStatus::default();
        let made = volume.create_file(VnodeId::ROOT, format!("file {n}").as_bytes(), &set, stamp(1)).unwrap();
        (0..n).for_each(|seed| _ = store(&volume, made.vnode.id, seed));
        made.vnode.id
    };
    (0..4).map(make).collect()
}

#[test]
fn a_killed_server_goes_on_with_the_versions_that_clients_were_told() {
    let mut disk = SimulatedDisk::new(1 << 30);
    let mut partition = open(&disk);
    let files = with_files(&partition);
    for round in 0..4 {
        let volume = partition.volume(VolumeId(ID)).unwrap();
        let mut all = files.clone();
        all.push(VnodeId::ROOT);
        let told: Vec<u64> = all.iter().map(|&id| version(&volume, id)).collect();
        let next_unique = volume.header().next_unique;
        disk = disk.after_kill();
        partition = open(&disk);
        let volume = partition.volume(VolumeId(ID)).unwrap();
        assert_eq!(all.iter().map(|&id| version(&volume, id)).collect::<Vec<_>>(), told, "round {round}");
        assert_eq!(volume.header().next_unique, next_unique, "round {round}");
        assert_next_is_one_more(&partition, &files, &format!("round {round}"));
    }
    let volume = partition.volume(VolumeId(ID)).unwrap();
    let set = crate::SetStatus::default();
    let new = volume.create_file(VnodeId::ROOT, b"the last", &set, stamp(9)).unwrap();
    assert_eq!(new.vnode.data_version.0, 0, "no version was left out");
    assert_whole(&partition, "in the end");
}

#[test]
fn after_a_power_loss_a_store_has_one_more_than_clients_were_told_since() {
    for seed in 0..10 {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let files = with_files(&partition);
        partition.sync().unwrap();
        let volume = partition.volume(VolumeId(ID)).unwrap();
        let lost: Vec<u64> = files.iter().map(|&file| store(&volume, file, 50)).collect();
        let disk = disk.after_power_loss(seed);
        let partition = open(&disk);
        let volume = partition.volume(VolumeId(ID)).unwrap();
        let told: Vec<u64> = files.iter().map(|&file| version(&volume, file)).collect();
        assert!(told.iter().zip(&lost).all(|(told, lost)| told > lost), "{told:?} after {lost:?}");
        // Kills and proper ends after it are none.
        let disk = disk.after_kill();
        drop((volume, partition));
        drop(open(&disk));
        let partition = open(&disk);
        let volume = partition.volume(VolumeId(ID)).unwrap();
        assert_eq!(files.iter().map(|&file| version(&volume, file)).collect::<Vec<_>>(), told);
        assert_next_is_one_more(&partition, &files, &format!("seed {seed}"));
        assert_whole(&partition, &format!("seed {seed}"));
        // Nor are those after changes.
        let told: Vec<u64> = files.iter().map(|&file| version(&volume, file)).collect();
        drop((volume, partition));
        let partition = open(&disk);
        let volume = partition.volume(VolumeId(ID)).unwrap();
        assert_eq!(files.iter().map(|&file| version(&volume, file)).collect::<Vec<_>>(), told);
        assert_next_is_one_more(&partition, &files, &format!("seed {seed}, again"));
    }
}

/// Kernels with kAFS went on with what they knew from before a power loss, and did not come back from their next store.
#[test]
fn the_date_of_a_volume_in_replies_changes_with_each_power_loss_and_never_else() {
    let mut disk = SimulatedDisk::new(1 << 30);
    let mut partition = open(&disk);
    with_files(&partition);
    finish(&partition.clone_volume(VolumeId(ID), &new_clone(200), stamp(3)).unwrap());
    partition.sync().unwrap();
    let dates =
        |partition: &Partition| [ID, 200].map(|id| partition.volume(VolumeId(id)).unwrap().sync_date().0);
    let created = dates(&partition);
    for losses in 1..4 {
        disk = disk.after_power_loss(losses.into());
        partition = open(&disk);
        let lost = [created[0] + losses, created[1]];
        assert_eq!(dates(&partition), lost, "a power loss");
        disk = disk.after_kill();
        partition = open(&disk);
        assert_eq!(dates(&partition), lost, "a death of the process");
        drop(partition);
        partition = open(&disk);
        assert_eq!(dates(&partition), lost, "a proper end");
    }
    assert_eq!(
        partition.volume(VolumeId(ID)).unwrap().header().info.creation_date.0,
        created[0],
        "for administrators"
    );
}

/// The first start after a power loss may end before it has written down that there was one.
#[test]
fn a_start_after_a_power_loss_that_is_killed_leaves_no_version_to_be_used_twice() {
    for cut in 0..40 {
        let disk = SimulatedDisk::new(1 << 30);
        let partition = open(&disk);
        let files = with_files(&partition);
        partition.sync().unwrap();
        let lost = store(&partition.volume(VolumeId(ID)).unwrap(), files[1], 50);
        let disk = disk.after_power_loss(cut);
        disk.set_cut(Some(Cut::After(cut)));
        let this: Arc<dyn Disk> = Arc::new(disk.clone());
        drop(Partition::open_on(this, Path::new("test"), config()));
        let partition = open(&disk.after_kill());
        let volume = partition.volume(VolumeId(ID)).unwrap();
        assert!(version(&volume, files[1]) > lost, "cut {cut}");
        assert_next_is_one_more(&partition, &files, &format!("cut {cut}"));
    }
}

/// A clone of before a power loss and one of after it have different data under different versions, though both are older than
/// what the volume shows by then.
#[test]
fn a_clone_that_is_made_anew_after_a_power_loss_shows_no_version_for_two_contents() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let files = with_files(&partition);
    let clone = partition.clone_volume(VolumeId(ID), &new_clone(200), stamp(3)).unwrap();
    finish(&clone);
    store(&partition.volume(VolumeId(ID)).unwrap(), files[2], 60);
    partition.sync().unwrap();
    let told: Vec<u64> = files.iter().map(|&file| version(&clone, file)).collect();
    let partition = open(&disk.after_power_loss(3));
    let clone = partition.volume(VolumeId(200)).unwrap();
    assert_eq!(files.iter().map(|&file| version(&clone, file)).collect::<Vec<_>>(), told, "it is as it was");
    let clone = partition.reclone_volume(VolumeId(ID), VolumeId(200), stamp(4)).unwrap();
    let volume = partition.volume(VolumeId(ID)).unwrap();
    assert_ne!(version(&clone, files[2]), told[2]);
    assert_eq!(version(&clone, files[2]), version(&volume, files[2]), "it is that of its original");
}

/// A reader was told of a change that was visible and not written yet: killed then, the server gave its version to other data.
#[test]
fn what_a_reader_was_told_outlasts_the_process() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let files = with_files(&partition);
    let volume = partition.volume(VolumeId(ID)).unwrap();
    let before = version(&volume, files[0]);
    let mut edit = crate::group::Edit::begin(&volume, stamp(8)).unwrap();
    let (snapshot, mut record) = edit.vnode(files[0]).unwrap();
    edit.touch(&mut record).unwrap();
    let kib = record.blocks_kib();
    edit.put_vnode(&record, Some((snapshot, kib)));
    edit.submit().unwrap();
    let volume_after = |disk: &SimulatedDisk| open(&disk.after_kill()).volume(VolumeId(ID)).unwrap();
    assert_eq!(version(&volume_after(&disk), files[0]), before, "nobody was told");
    assert_eq!(version(&volume, files[0]), before + 1);
    assert_eq!(version(&volume_after(&disk), files[0]), before + 1);
}

/// A store that was given up behind the end of a file, and one in the midst, leave the file as it was.
#[test]
fn a_store_that_was_given_up_changes_nothing() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, ID);
    let set = crate::SetStatus::default();
    let file = volume.create_file(VnodeId::ROOT, b"file", &set, stamp(1)).unwrap().vnode.id;
    let store = |position, length, file_length, seed, is_given_up| {
        let range = crate::StoreRange { position, length, file_length };
        let mut store = volume.begin_store(file, range).unwrap();
        let bytes = super::reference::bytes_of(range, seed);
        if is_given_up {
            store.write(&bytes[..bytes.len() / 2]).unwrap();
        } else {
            store.write(&bytes).unwrap();
            store.commit(&set, stamp(2), false).unwrap();
        }
    };
    store(0, 20_000, 20_000, 1, false);
    let before = super::reference::read_all(&volume, file);
    let reader = volume.open(file, 0, u64::MAX).unwrap();
    store(20_000, 3_000, 23_000, 2, true);
    store(5_000, 12_000, 20_000, 3, true);
    assert_eq!(super::reference::read_all(&volume, file), before);
    assert_whole(&partition, "given up");
    // And what a reader has open stays what it was.
    store(20_000, 3_000, 23_000, 4, false);
    store(0, 20_000, 20_000, 5, false);
    store(0, 0, 10_000, 6, false);
    store(10_000, 5_000, 15_000, 7, false);
    settle(&partition);
    let mut data = vec![0; 20_000];
    assert_eq!(reader.read_at(0, &mut data).unwrap(), 20_000);
    assert_eq!(data, before);
    drop(reader);
    settle(&partition);
    assert_whole(&partition, "in the end");
}

#[test]
fn two_stores_of_one_file_are_refused() {
    let disk = SimulatedDisk::new(1 << 30);
    let partition = open(&disk);
    let volume = volume(&partition, ID);
    let file =
        volume.create_file(VnodeId::ROOT, b"f", &crate::SetStatus::default(), stamp(1)).unwrap().vnode.id;
    let range = crate::StoreRange { position: 0, length: 1, file_length: 1 };
    let first = volume.begin_store(file, range).unwrap();
    assert!(matches!(volume.begin_store(file, range), Err(crate::VolumeError::StoreInProgress(_))));
    drop(first);
    let _second = volume.begin_store(file, range).unwrap();
}
