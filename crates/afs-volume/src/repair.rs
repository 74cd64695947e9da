//! Repairs what is only bookkeeping on a partition that no server has open: numbers, link counts, names that lead nowhere, things that
//! no directory names. What was there before goes to an [`Undo`] first, from which [`undo()`] takes it back. What cannot be read stays as it
//! is. [`salvage`] shows what can be read of a volume, and is for a [`crate::disk::ScratchDisk`]: it leaves out what is lost.
//!
//! Each batch of rows that is written brings the partition nearer to what [`fsck::check`] expects, so a repair that was killed is ended by
//! another one.

mod data;
mod files;
mod names;
mod numbers;
mod rows;
mod tree;
mod undo;

use crate::disk::Disk;
use crate::fsck::{self, FINDINGS_MAX, Finding, Report};
use crate::{Config, Frozen, Partition, Stamp, Volume, VolumeError};
use afs_store::{Batch, Store};
use afs_wire::ids::{VnodeNumber, VolumeId};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use undo::{Undo, UndoError, Undone, undo};

/// How far a repair goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Only what loses nothing.
    Bookkeeping,
    /// Goes on until all that is left can be read: what cannot be read goes.
    Readable,
}

/// The result of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The repairs, at most [`FINDINGS_MAX`]: `why` says what was done.
    pub repairs: Vec<Finding>,
    /// The number of further ones.
    pub more_repairs: u64,
    /// What is wrong afterwards.
    pub left: Report,
}

/// A volume of which everything can be read.
#[derive(Debug)]
pub struct Salvaged {
    /// The partition that it is on.
    pub partition: Partition,
    /// The volume. Data of files may still be found unreadable.
    pub volume: Frozen,
    /// The bookkeeping that was repaired, and things that could not be read, at most [`FINDINGS_MAX`] each.
    pub repairs: Vec<Finding>,
    /// See `repairs`.
    pub lost: Vec<Finding>,
    /// The number of further lost things.
    pub more_lost: u64,
}

/// The path of a vnode in a volume as far as it can be told, for people.
#[must_use]
pub fn path(volume: &Volume, vnode: VnodeNumber) -> String {
    tree::path(volume, vnode)
}

/// The reason why a volume cannot be salvaged.
#[derive(Debug, Clone)]
pub enum SalvageError {
    /// The partition cannot be read, or not the volume.
    Volume(VolumeError),
    /// There is no volume of this name or number.
    NotThere,
    /// Several volumes have this name.
    Ambiguous(Vec<VolumeId>),
}

impl fmt::Display for SalvageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume(error) => error.fmt(f),
            Self::NotThere => f.write_str("the partition has no such volume"),
            Self::Ambiguous(ids) => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                write!(f, "the volumes {} have this name: say which number", ids.join(", "))
            }
        }
    }
}

impl std::error::Error for SalvageError {}

impl From<VolumeError> for SalvageError {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

/// What was done, and where that is written down.
struct Ledger<'u> {
    undo: Option<&'u mut dyn Undo>,
    depth: Depth,
    repairs: Vec<Finding>,
    more_repairs: u64,
    lost: Vec<Finding>,
    more_lost: u64,
}

impl<'u> Ledger<'u> {
    fn new(undo: Option<&'u mut dyn Undo>, depth: Depth) -> Self {
        let (repairs, lost) = Default::default();
        Self { undo, depth, repairs, more_repairs: 0, lost, more_lost: 0 }
    }

    /// Notes a repair.
    fn say(&mut self, volume: Option<VolumeId>, what: impl Into<String>, why: impl Into<String>) {
        push(&mut self.repairs, &mut self.more_repairs, volume, what.into(), why.into());
    }

    /// Notes that something cannot be read.
    fn lose(&mut self, volume: Option<VolumeId>, what: impl Into<String>, why: impl Into<String>) {
        push(&mut self.lost, &mut self.more_lost, volume, what.into(), why.into());
    }

    fn is_salvage(&self) -> bool {
        self.depth == Depth::Readable
    }

    /// Writes rows, when what they replace is safe.
    fn submit(&mut self, store: &Store, batch: Batch) -> Result<(), VolumeError> {
        if batch.rows.is_empty() {
            return Ok(());
        }
        if let Some(undo) = &mut self.undo {
            undo::keep_rows(*undo, store, &batch)?;
        }
        let seq = store.submit(batch)?;
        Ok(store.sync(seq)?)
    }
}

fn push(found: &mut Vec<Finding>, more: &mut u64, volume: Option<VolumeId>, what: String, why: String) {
    if found.len() < FINDINGS_MAX {
        found.push(Finding { volume, what, why });
    } else {
        *more += 1;
    }
}

/// Repairs what is only bookkeeping. With a [`crate::disk::ScratchDisk`] this shows what a repair would do.
///
/// # Errors
///
/// The partition cannot be read at all; the disk or `undo` failed. What was repaired until then stays repaired.
pub fn repair(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    config: &Config,
    undo: Option<&mut dyn Undo>,
    stamp: Stamp,
) -> Result<Repaired, VolumeError> {
    let mut ledger = Ledger::new(undo, Depth::Bookkeeping);
    numbers::mend(disk, config, &mut ledger)?;
    let partition = open(disk, folder, config)?;
    for volume in volumes(&partition) {
        tree::mend(&volume, &mut ledger, stamp)?;
    }
    rows::remove_unseen(&partition.shared(), &mut ledger)?;
    files::put_apart(&partition.shared(), &mut ledger)?;
    let left = fsck::check(&partition)?;
    Ok(Repaired { repairs: ledger.repairs, more_repairs: ledger.more_repairs, left })
}

/// Makes a volume whole by leaving out what cannot be read. Is for a [`crate::disk::ScratchDisk`].
///
/// # Errors
///
/// The partition cannot be read at all; the volume is not there, or nothing of it can be read.
pub fn salvage(
    disk: &Arc<dyn Disk>,
    folder: &Path,
    config: &Config,
    wanted: &str,
    stamp: Stamp,
) -> Result<Salvaged, SalvageError> {
    let mut ledger = Ledger::new(None, Depth::Readable);
    numbers::mend(disk, config, &mut ledger)?;
    let partition = open(disk, folder, config)?;
    let id = match wanted.parse() {
        Ok(id) => VolumeId(id),
        Err(_) => {
            let named = partition
                .volumes()
                .into_iter()
                .filter(|volume| !volume.is_snapshot() && volume.name() == wanted);
            match named.map(|volume| volume.id()).collect::<Vec<_>>()[..] {
                [] => return Err(SalvageError::NotThere),
                [id] => id,
                ref several => return Err(SalvageError::Ambiguous(several.to_vec())),
            }
        }
    };
    let volume = partition.volume(id).map_err(|error| match error {
        VolumeError::NoVolume(_) => SalvageError::NotThere,
        error => SalvageError::Volume(error),
    })?;
    ledger.repairs.retain(|repair| repair.volume == Some(id));
    ledger.lost.retain(|lost| lost.volume == Some(id));
    let known = tree::mend(&volume, &mut ledger, stamp)?;
    let volume = volume.freeze()?.only(known);
    let Ledger { repairs, lost, more_lost, .. } = ledger;
    Ok(Salvaged { partition, volume, repairs, lost, more_lost })
}

/// Opens the partition without a thread, which would remove files and rows.
fn open(disk: &Arc<dyn Disk>, folder: &Path, config: &Config) -> Result<Partition, VolumeError> {
    Partition::open_on(disk.clone(), folder, Config { has_thread: false, ..config.clone() })
}

/// The volumes of a partition, group by group; clones first, and the oldest of them: what changes in one is hidden from those after it.
fn volumes(partition: &Partition) -> Vec<Arc<Volume>> {
    let mut volumes = partition.volumes();
    volumes.sort_by_key(|volume| (volume.group.id, volume.view()));
    volumes
}
