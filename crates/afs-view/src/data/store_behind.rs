//! Where write-behind is on: the mount's default, and what is set for volumes and directories on this client, which the cache keeps over restarts.
//! The setting of the nearest directory above counts, then that of the volume, then the mount's; none goes over a mount point.
//!
//! A directory that is not known any more may hide a setting: below it everything waits for the server.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use afs_cache::{CellNumber, FileKey};
use afs_wire::Errno;
use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber, VolumeId};

use crate::data::files::{Files, local};
use crate::data::write_behind::WriteBehind;
use crate::vnodes::table::Vnodes;
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid};

/// Directories and volumes that something is set for at most: each takes memory for as long as the client runs.
const SETTINGS_MAX: usize = 10_000;

/// Directories above one another that are looked at: a path cannot have more, as it has 4,095 bytes at most.
pub const DEPTH_MAX: usize = 2048;

/// The pause before the DNS is asked again for a cell in which changes wait, or something is set.
pub(crate) const DNS_AGAIN: Duration = Duration::from_secs(30);

/// A volume's own key, where a directory has its vnode.
const WHOLE: LocalFid = LocalFid { vnode: VnodeNumber(0), unique: Uniquifier(0) };

/// What may be set for a directory or a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Closes and changes wait for the server, whatever is set above.
    Off,
    /// They do not.
    On(WriteBehind),
}

impl Setting {
    /// As the cache keeps it.
    const BYTES: [(Self, u8); 3] =
        [(Self::Off, 0), (Self::On(WriteBehind::Always), 1), (Self::On(WriteBehind::Second), 2)];

    fn mode(self) -> Option<WriteBehind> {
        match self {
            Self::Off => None,
            Self::On(mode) => Some(mode),
        }
    }

    fn to_byte(self) -> u8 {
        Self::BYTES.iter().find(|(setting, _)| *setting == self).map_or(0, |(_, byte)| *byte)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::BYTES.iter().find(|(_, theirs)| *theirs == byte).map(|(setting, _)| *setting)
    }
}

/// What is set for a directory, and what counts there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BehindOf {
    /// For the directory itself.
    pub own: Option<Setting>,
    /// For its volume.
    pub volume: Option<Setting>,
    /// What counts in it; `None` if closes and changes wait for the server.
    pub counts: Option<WriteBehind>,
}

#[derive(Debug, Default)]
struct OfVolume {
    whole: Option<Setting>,
    directories: HashMap<LocalFid, Setting>,
}

impl OfVolume {
    fn count(&self) -> usize {
        self.directories.len() + usize::from(self.whole.is_some())
    }
}

/// All settings.
#[derive(Debug)]
pub(super) struct Settings {
    default: Option<WriteBehind>,
    /// False as long as nothing is set: then the default is all that there is to know.
    are_there: AtomicBool,
    volumes: RwLock<HashMap<(CellIndex, VolumeId), OfVolume>>,
}

impl Settings {
    pub(super) fn new(default: Option<WriteBehind>) -> Self {
        Self { default, are_there: AtomicBool::new(false), volumes: RwLock::default() }
    }

    /// What counts for a vnode.
    fn of(&self, vnodes: &Vnodes, fid: Fid) -> Option<WriteBehind> {
        if !self.are_there.load(Ordering::Acquire) {
            return self.default;
        }
        let volumes = self.volumes.read().unwrap_or_else(PoisonError::into_inner);
        let Some(of) = volumes.get(&(fid.cell, fid.volume)) else { return self.default };
        let whole = of.whole.map_or(self.default, Setting::mode);
        if of.directories.is_empty() {
            return whole;
        }
        let mut at = fid;
        for _ in 0..DEPTH_MAX {
            if let Some(setting) = of.directories.get(&vnodes.local_ids.real_or_own(at).in_volume()) {
                return setting.mode();
            }
            if at.is_root() {
                return whole;
            }
            at = vnodes.get(at).and_then(|vnode| vnodes.parent_of(&vnode))?;
        }
        None
    }

    /// Notes what is set for a directory, or for a volume. Returns whether anything in the volume has write-behind now.
    fn note(&self, (cell, volume, place): (CellIndex, VolumeId, LocalFid), setting: Option<Setting>) -> bool {
        let mut volumes = self.volumes.write().unwrap_or_else(PoisonError::into_inner);
        let of = volumes.entry((cell, volume)).or_default();
        match (place == WHOLE, setting) {
            (true, _) => of.whole = setting,
            (false, Some(setting)) => drop(of.directories.insert(place, setting)),
            (false, None) => drop(of.directories.remove(&place)),
        }
        let is_on = of.whole.map_or(self.default, Setting::mode).is_some()
            || of.directories.values().any(|setting| setting.mode().is_some());
        if of.count() == 0 {
            volumes.remove(&(cell, volume));
        }
        self.are_there.store(!volumes.is_empty(), Ordering::Release);
        is_on
    }

    fn is_full(&self) -> bool {
        let volumes = self.volumes.read().unwrap_or_else(PoisonError::into_inner);
        volumes.values().map(OfVolume::count).sum::<usize>() >= SETTINGS_MAX
    }
}

/// What a start has found and cannot use yet, as its cell is not known.
type Left = Vec<(FileKey, Setting)>;

impl Files {
    /// The kind of write-behind that counts for a vnode; `None` if what is done to it waits for the server.
    pub(crate) fn behind_at(&self, fid: Fid) -> Option<WriteBehind> {
        self.behind.settings.of(&self.vnodes, fid)
    }

    /// What is set for a directory, and what counts there.
    pub fn behind_of(&self, dir: Fid) -> BehindOf {
        let counts = self.behind_at(dir);
        let volumes = self.behind.settings.volumes.read().unwrap_or_else(PoisonError::into_inner);
        let of = volumes.get(&(dir.cell, dir.volume));
        let real = self.vnodes.local_ids.real_or_own(dir).in_volume();
        BehindOf {
            own: of.and_then(|of| of.directories.get(&real).copied()),
            volume: of.and_then(|of| of.whole),
            counts,
        }
    }

    /// Sets write-behind for a directory and what is below it, or for the directory's volume. `None`: what is set above counts. What waits for a
    /// server goes on to be sent.
    ///
    /// # Errors
    ///
    /// The cache's; too much is set. The directory is not at its server yet, and that fails.
    pub async fn set_behind(&self, dir: Fid, is_volume: bool, setting: Option<Setting>) -> Result<(), Error> {
        if setting.is_some() && self.behind.settings.is_full() {
            let what = format!("setting write-behind for more than {SETTINGS_MAX} directories");
            return Err(Error::local(what, io::Error::from_raw_os_error(Errno::ENOSPC.0)));
        }
        let real = self.vnodes.local_ids.at_server(dir).await?;
        let place = if is_volume { WHOLE } else { real.in_volume() };
        let kept = real.sibling(place);
        let (cache, key) = (self.cache.clone(), self.key(kept)?);
        let keep = move || cache.keep_setting(key, setting.map(Setting::to_byte));
        rx::blocking::on_a_thread(keep).await.map_err(local)?;
        self.note_setting(kept, setting);
        Ok(())
    }

    fn note_setting(&self, place: Fid, setting: Option<Setting>) {
        let Fid { cell, volume, .. } = place;
        let is_on = self.behind.settings.note((cell, volume, place.in_volume()), setting);
        let offline_max = if is_on { self.behind.offline_max } else { Duration::ZERO };
        self.vnodes.volumes.get_or_add(cell, volume).set_offline_max(offline_max);
        if is_on {
            self.cache.sync_each_second();
            self.vnodes.begin_keeping();
        }
    }

    /// Takes over what was set before the client began.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub async fn load_settings(self: &Arc<Self>) -> Result<(), Error> {
        let kept = self.cache.settings().map_err(local)?;
        let known = kept.into_iter().filter_map(|(key, byte)| Some((key, Setting::from_byte(byte)?)));
        let mut left = self.take_over_settings(known.collect()).await;
        if left.is_empty() {
            return Ok(());
        }
        let (me, runtime) = (Arc::downgrade(self), Arc::clone(&self.calls.runtime));
        self.calls.runtime.spawn(Box::pin(async move {
            while !left.is_empty() {
                runtime.sleep_until(runtime.now() + DNS_AGAIN).await;
                let Some(files) = me.upgrade().filter(|files| !files.calls.closing.has_begun()) else {
                    return;
                };
                left = files.take_over_settings(left).await;
            }
        }));
        Ok(())
    }

    /// The same of the cells that are known. Returns the rest.
    async fn take_over_settings(&self, left: Left) -> Left {
        let mut cells: BTreeMap<CellNumber, Option<CellIndex>> = BTreeMap::new();
        let mut later = Left::new();
        for (key, setting) in left {
            if let (false, Some(name)) = (cells.contains_key(&key.cell), self.cache.cell_name(key.cell)) {
                let cell = self.calls.dns.cell_named(&name).await.ok().map(|cell| cell.index);
                cells.insert(key.cell, cell);
            }
            match cells.get(&key.cell) {
                Some(&Some(cell)) => {
                    let (vnode, unique) = (VnodeNumber(key.vnode), Uniquifier(key.unique));
                    let place = Fid { cell, volume: VolumeId(key.volume), vnode, unique };
                    self.note_setting(place, Some(setting));
                }
                Some(None) => later.push((key, setting)),
                // Nobody knows what the number stands for.
                None => {}
            }
        }
        later
    }
}
