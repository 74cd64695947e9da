//! The state that the volumes of a partition share: the store, numbers that are given out once, files with data and
//! when they may go.

use crate::group::GroupHandle;
use crate::keys::{self, FileId, GroupId, VnodeKey};
use crate::records::{self, PartitionRecord, file_name};
use crate::{Config, SyncPolicy, VolumeError};
use afs_store::{Batch, Seq, Store, StoreError, lock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// Numbers of files and volume groups that are reserved at once; each block costs a sync of the log.
const BLOCK: u64 = 4096;
/// Files removed in one batch of the maintenance.
const GARBAGE_AT_ONCE: usize = 512;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) config: Config,
    /// Counts the starts before which something may have been taken back (Volume format 6).
    epoch: u32,
    /// True if what was replaced until now may not be noted: a program of a version before had the partition.
    pub(crate) lacks_notes: bool,
    numbers: Mutex<Numbers>,
    pub(crate) groups: Mutex<BTreeMap<GroupId, Arc<GroupHandle>>>,
    /// Readers that are open, by the last batch that they may see.
    pins: Mutex<BTreeMap<Seq, usize>>,
    garbage: Mutex<VecDeque<Garbage>>,
}

/// Numbers that are never used twice: of files and volume groups.
#[derive(Debug, Default)]
struct Numbers {
    next: [u64; 2],
    reserved: [u64; 2],
    /// Files that were begun, and that no row names yet.
    begun: BTreeSet<FileId>,
    /// The value of `begun` in the partition's row.
    noted: u64,
}

/// A file that no row names, and the batch since when.
#[derive(Debug)]
struct Garbage {
    since: Seq,
    file: FileId,
    name: String,
}

/// Keeps the files that a reader may need.
#[derive(Debug)]
pub(crate) struct Pin {
    shared: Arc<Shared>,
    at: Seq,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = lock(&self.shared.pins);
        if let Some(count) = pins.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.at);
            }
        }
    }
}

impl Shared {
    /// Takes over a store that was just opened. After an unclean end, removes the files that stores had begun. [`Shared::note_start`]
    /// is to follow.
    pub(crate) fn new(store: Store, config: Config) -> Result<Self, VolumeError> {
        let PartitionRecord { mut epoch, low_file: mut low, boot } = match store.get(&keys::partition())? {
            Some(row) => PartitionRecord::decode(&row)?,
            None => PartitionRecord::default(),
        };
        let mut reserved = match store.get(&keys::partition_reservation())? {
            Some(row) => records::decode_reservation(&row)?,
            None => [0, 1],
        };
        let lost = lost(&store);
        let lacks_notes = store.version()? < records::VERSION;
        let mut garbage = VecDeque::new();
        store.scan::<VolumeError>(&keys::all_garbage(), |key, row| {
            let name = String::from_utf8(row.to_vec()).ok().filter(|name| name.starts_with("data/"));
            // One that is damaged costs the space of a file, and is for fsck to find.
            if let (Some(file), Some(name)) = (keys::garbage_of(key), name) {
                garbage.push_back(Garbage { since: 0, file, name });
            }
            Ok(())
        })?;
        if lost > 0 {
            // What was given out with a change that is lost is not known. Files without a row may be of that, and stay.
            raise(&mut reserved, lost);
            (epoch, low) = (epoch + 1, reserved[0]);
        } else if store.was_unclean {
            remove_orphans(&store, low, reserved[0])?;
            low = reserved[0];
        }
        // Where only the process died, all that anybody was told is there. The log's own word is not enough: a start that ended
        // early has left its header, and had not raised anything yet.
        if lost == 0 && store.was_unclean && boot != store.boot() {
            epoch += 1;
        }
        let numbers = Numbers { next: reserved, reserved, begun: BTreeSet::new(), noted: low };
        Ok(Self {
            store,
            config,
            epoch,
            lacks_notes,
            numbers: Mutex::new(numbers),
            groups: Mutex::default(),
            pins: Mutex::default(),
            garbage: Mutex::new(garbage),
        })
    }

    /// Writes down what a start has found and raised, before anything of it is shown.
    pub(crate) fn note_start(&self, mut batch: Batch) -> Result<(), VolumeError> {
        let numbers = lock(&self.numbers);
        batch.put(keys::partition(), self.record(numbers.noted).encode());
        if self.lost() > 0 {
            batch.put(keys::partition_reservation(), records::encode_reservation(numbers.reserved));
        }
        let seq = self.store.submit(batch)?;
        self.store.sync_log()?;
        if self.lacks_notes {
            // That they are to be made up for is not lost with the next power loss, when the version says that they are there.
            self.store.sync(seq)?;
            match self.store.set_version(records::VERSION) {
                // The next start does all of it again.
                Err(StoreError::DiskFull | StoreError::Damaged { .. }) => {}
                result => result?,
            }
        }
        if self.lost() > 0 {
            // What could be read of a damaged log is brought to where the damage is not.
            match self.store.checkpoint() {
                Err(StoreError::DiskFull) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Changes that were acknowledged and are lost, at most, since the log was damaged when it was read.
    pub(crate) fn lost(&self) -> u64 {
        lost(&self.store)
    }

    fn record(&self, low_file: u64) -> PartitionRecord {
        PartitionRecord { epoch: self.epoch, low_file, boot: self.store.boot().to_owned() }
    }

    /// The epoch that this is (Volume format 6).
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns when a batch will stay, as far as the settings promise.
    pub(crate) fn settle(&self, seq: Seq) -> Result<(), VolumeError> {
        match self.config.sync {
            SyncPolicy::Always => Ok(self.store.sync(seq)?),
            SyncPolicy::Every(_) => Ok(self.store.written(seq)?),
        }
    }

    fn next_number(&self, numbers: &mut Numbers, which: usize) -> Result<u64, VolumeError> {
        if numbers.next[which] >= numbers.reserved[which] {
            let mut reserved = numbers.reserved;
            reserved[which] = numbers.next[which] + BLOCK;
            let mut batch = Batch::default();
            batch.put(keys::partition_reservation(), records::encode_reservation(reserved));
            self.store.submit(batch)?;
            self.store.sync_log()?;
            numbers.reserved = reserved;
        }
        numbers.next[which] += 1;
        Ok(numbers.next[which] - 1)
    }

    /// A number for a file that is begun. It counts as begun until [`Shared::end_file`].
    pub(crate) fn begin_file(&self) -> Result<FileId, VolumeError> {
        let mut numbers = lock(&self.numbers);
        let file = FileId(self.next_number(&mut numbers, 0)?);
        numbers.begun.insert(file);
        Ok(file)
    }

    /// The file has a row now, or is gone.
    pub(crate) fn end_file(&self, file: FileId) {
        lock(&self.numbers).begun.remove(&file);
    }

    /// True if a file was begun and has no row yet.
    pub(crate) fn is_begun(&self, file: FileId) -> bool {
        lock(&self.numbers).begun.contains(&file)
    }

    /// A number for a new group.
    pub(crate) fn new_group(&self) -> Result<GroupId, VolumeError> {
        let number = self.next_number(&mut lock(&self.numbers), 1)?;
        Ok(GroupId(u32::try_from(number).map_err(|_| VolumeError::TooMany)?))
    }

    /// Checks that there is room for so many KiB more.
    pub(crate) fn check_space(&self, more_kib: u64) -> Result<(), VolumeError> {
        let (_, free) = self.store.disk().space().map_err(VolumeError::io("cannot ask for free space"))?;
        if free / 1024 < self.config.reserve_kib + more_kib { Err(VolumeError::DiskFull) } else { Ok(()) }
    }

    /// Keeps files that are named now.
    pub(crate) fn pin(self: &Arc<Self>) -> Pin {
        let mut pins = lock(&self.pins);
        let at = self.store.last();
        *pins.entry(at).or_default() += 1;
        Pin { shared: self.clone(), at }
    }

    /// Puts a file among the garbage, as a part of a batch that takes its row away.
    pub(crate) fn discard(batch: &mut Batch, file: FileId, key: &VnodeKey, chunk: u32) {
        batch.put(keys::garbage(file), file_name(file, key, chunk).into_bytes());
    }

    /// Notes the garbage of a batch that was submitted.
    pub(crate) fn note_garbage(&self, since: Seq, files: Vec<(FileId, String)>) {
        lock(&self.garbage).extend(files.into_iter().map(|(file, name)| Garbage { since, file, name }));
    }

    /// Removes files that no row names, that no reader has open, and whose disappearance is durable. Says whether it
    /// did anything. What cannot be removed stays garbage, and nothing is wrong with anything else.
    pub(crate) fn collect_garbage(&self) -> Result<bool, VolumeError> {
        let synced = self.store.synced();
        let pinned = lock(&self.pins).first_key_value().map_or(Seq::MAX, |(&at, _)| at);
        let mut gone = Batch::default();
        let mut folders = BTreeSet::new();
        let mut result = Ok(true);
        while gone.rows.len() < GARBAGE_AT_ONCE {
            let next = {
                let mut garbage = lock(&self.garbage);
                // In the order of batches, but for a few that were submitted at the same time.
                let may_go = garbage.front().is_some_and(|g| g.since <= synced && g.since <= pinned);
                if may_go { garbage.pop_front() } else { None }
            };
            let Some(garbage) = next else { break };
            if let Err(error) = remove_file(&self.store, &garbage.name) {
                lock(&self.garbage).push_front(garbage);
                result = Err(error);
                break;
            }
            folders.insert(records::file_folder(garbage.file));
            gone.delete(keys::garbage(garbage.file));
        }
        if gone.rows.is_empty() {
            return result.map(|_| false);
        }
        // Only then: a power loss brings back names whose folder was not synced.
        sync_folders(&self.store, folders)?;
        self.store.submit(gone)?;
        result
    }

    /// A file that was begun and will have no row is garbage like others.
    pub(crate) fn give_up_file(&self, file: FileId, name: String) {
        let mut batch = Batch::default();
        batch.put(keys::garbage(file), name.clone().into_bytes());
        // Without room for the row it goes on to count as begun, and is removed at the next start after a crash.
        if let Ok(seq) = self.store.submit(batch) {
            self.note_garbage(seq, vec![(file, name)]);
            self.end_file(file);
        }
    }

    /// Writes down from which file on there may be some without a row, if that has changed.
    pub(crate) fn note_begun(&self) -> Result<(), VolumeError> {
        let mut numbers = lock(&self.numbers);
        let low = numbers.begun.first().map_or(numbers.next[0], |file| file.0);
        if low == numbers.noted {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.put(keys::partition(), self.record(low).encode());
        self.store.submit(batch)?;
        numbers.noted = low;
        Ok(())
    }
}

fn lost(store: &Store) -> u64 {
    store.losses().iter().map(|loss| loss.batches).sum()
}

/// Raises reservations over what so many changes can have reserved.
pub(crate) fn raise(reserved: &mut [u64; 2], lost: u64) {
    *reserved = reserved.map(|number| number.saturating_add(lost.saturating_mul(BLOCK)));
}

fn sync_folders(store: &Store, folders: BTreeSet<String>) -> Result<(), VolumeError> {
    for folder in folders {
        match store.disk().sync_folder(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let what = format!("cannot sync the folder {folder}");
                return Err(store.fail_sync(StoreError::io(what)(error)).into());
            }
            _ => {}
        }
    }
    Ok(())
}

fn remove_file(store: &Store, name: &str) -> Result<(), VolumeError> {
    match store.disk().remove(name) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(VolumeError::from(StoreError::io(format!("cannot remove {name}"))(error)))
        }
        _ => Ok(()),
    }
}

/// Removes files with numbers from `low` to before `end` that no row names.
fn remove_orphans(store: &Store, low: u64, end: u64) -> Result<(), VolumeError> {
    let mut at = low;
    let mut folders = BTreeSet::new();
    while at < end {
        let folder = records::file_folder(FileId(at));
        let names = store.disk().list(&folder).map_err(VolumeError::io(format!("cannot list {folder}")))?;
        for name in names {
            let Some((file, key)) = records::parse_file_name(&name) else { continue };
            let named = match store.get(&key.key()) {
                // What cannot be read may name it.
                Ok(Some(row)) => records::ChunkRecord::decode(&row)
                    .map_or(true, |chunk| chunk.is_some_and(|chunk| chunk.file == file)),
                Ok(None) => false,
                Err(StoreError::Damaged { .. }) => true,
                Err(error) => return Err(error.into()),
            };
            if file.0 >= low && !named && store.get(&keys::garbage(file))?.is_none() {
                remove_file(store, &format!("{folder}/{name}"))?;
                folders.insert(folder.clone());
            }
        }
        at = (at | 0x3ff) + 1;
    }
    sync_folders(store, folders)
}
