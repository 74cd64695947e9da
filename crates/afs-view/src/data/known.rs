//! What is known of volumes and of what is in them outlasts the client, with write-behind and of what is pinned: rows in the cache say it ([`afs_cache::Known`]), so that
//! a start without servers shows what the last run showed. The rows follow the table of vnodes: what changes there is written within two
//! seconds, and what leaves it is removed, so there are never more than the table has.
//!
//! A start takes them over as promises that have ended (`vnodes/vnode/earlier.rs`): they count while the volume's servers are known to be away, for as
//! long as the time that is set allows since a server last answered. That time is told by the clock of the day, noted now and then; what
//! passes while the client runs is added up by a clock that does not jump.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_cache::{CellNumber, FileKey, Known, KnownSite, KnownVnode, KnownVolume, Writer};
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid};
use afs_reach::location::{Place, PlaceSite};
use afs_reach::volumes::Volume;
use afs_reach::wait::within;
use afs_wire::Uuid;
use afs_wire::directory::Directory;
use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::status::{AfsFetchStatus, FileType};
use afs_wire::vl::{EntryFlags, SiteFlags};
use rx_proto::time::Instant;
use rxgen::{Decoder, Xdr};

use crate::data::files::{Files, local};
use crate::data::store_behind::DEPTH_MAX;
use crate::vnodes::local_ids::is_local;
use crate::vnodes::vnode::{Earlier, Sites, ToKeep, Vnode};

/// The time between a change of what is known and its row, so that one row tells of many changes.
const KEPT_AFTER: Duration = Duration::from_secs(1);

/// The time between two notes that servers answer, or for how long they have not.
const NOTED_EVERY: Duration = Duration::from_secs(600);

/// Seconds by which the clock of the day may be behind the one that was noted last: clocks are set right by some. If it is further behind, nobody
/// knows how old things are, and they are forgotten.
const BEHIND_MAX: u32 = 600;

/// Bytes of rows that are written at a time. The rest waits for a second.
const ROWS_BYTES: usize = 1 << 20;

/// What is written.
#[derive(Debug, Default)]
pub(super) struct Written {
    volumes: BTreeMap<(CellIndex, VolumeId), OfVolume>,
    noted_at: Option<Instant>,
    /// Volumes whose rows are to be removed.
    gone: BTreeSet<(CellNumber, u32)>,
    /// Counts the times that rows of whole volumes were removed: sums from before do not tell what is there.
    removals: u64,
}

/// What is written of a volume.
#[derive(Debug)]
struct OfVolume {
    place: Place,
    /// Those of the volume when its rows were written.
    breaks: u64,
    /// The time of day of the last note, the same by a clock that does not jump, and how long ago a server had answered.
    noted: u32,
    at: Instant,
    age: u32,
}

/// What the last run has left, of the vnodes whose volumes are known.
#[derive(Debug, Default)]
pub struct Left(Vec<(FileKey, KnownVnode, CellIndex, Arc<Sites>)>);

type Rows = Vec<(FileKey, Option<Vec<u8>>)>;

impl Files {
    /// True if what is known of a volume is for the next run too.
    fn is_to_outlast(&self, volume: &Volume) -> bool {
        self.vnodes.keeping.is_on() && (Self::outlasts_whole(volume) || volume.has_pinned())
    }

    /// True if that is not only what is pinned of it.
    fn outlasts_whole(volume: &Volume) -> bool {
        volume.is_read_only() || !volume.offline_max().is_zero()
    }

    /// Keeps what is known for as long as there is a client.
    pub async fn keep_on(me: Weak<Self>) {
        let mut has_failed = false;
        while let Some(files) = me.upgrade().filter(|files| !files.calls.closing.has_begun()) {
            let (keeping, runtime) = (Arc::clone(&files.vnodes.keeping), Arc::clone(&files.calls.runtime));
            drop(files);
            match keeping.is_on() {
                true => _ = within(&runtime, NOTED_EVERY, keeping.wake.notified()).await,
                false => keeping.wake.notified().await,
            }
            runtime.sleep_until(runtime.now() + KEPT_AFTER).await;
            let Some(files) = me.upgrade().filter(|files| !files.calls.closing.has_begun()) else { return };
            let kept = files.keep_known(false).await;
            if let Some(error) = kept.as_ref().err().filter(|_| !has_failed) {
                tracing::warn!(%error, "what is known is not kept for the next start");
            }
            has_failed = kept.is_err();
        }
    }

    /// Writes what has changed of what is known. As the client ends, it writes all, and notes which servers answer.
    ///
    /// # Errors
    ///
    /// The cache's; what was not written is tried again the next time.
    pub async fn keep_known(&self, is_end: bool) -> Result<(), Error> {
        if !self.vnodes.keeping.is_on() {
            return Ok(());
        }
        let mut written = self.known.lock().await;
        loop {
            let queued = self.vnodes.keeping.take();
            let left = self.keep_some(&mut written, queued, is_end).await?;
            let is_all = left.is_empty();
            self.vnodes.keeping.put_back(left);
            if is_all || !is_end {
                return Ok(());
            }
        }
    }

    /// Writes what has changed of some vnodes. Returns those that are left.
    async fn keep_some(
        &self,
        written: &mut Written,
        queued: Vec<Fid>,
        is_end: bool,
    ) -> Result<Vec<Fid>, Error> {
        let (mut rows, mut bytes) = (Rows::new(), 0);
        let Written { volumes, gone, .. } = written;
        volumes.retain(|&(cell, id), of| {
            let volume = self.vnodes.volumes.get_or_add(cell, id);
            let stays = volume.breaks() == of.breaks && self.is_to_outlast(&volume);
            if !stays {
                gone.extend(self.key(Fid::root_of(cell, id)).ok().map(|key| (key.cell, key.volume)));
            }
            stays
        });
        written.removals += u64::from(!gone.is_empty());
        let is_due = |at: Instant| self.now().since(at) >= NOTED_EVERY;
        if is_end || written.noted_at.is_none_or(is_due) {
            written.noted_at = Some(self.now());
            for &(cell, id) in &written.volumes.keys().copied().collect::<Vec<_>>() {
                self.note_volume(written, (cell, id), true, &mut rows)?;
            }
        }
        let mut done: Vec<(Arc<Vnode>, u64)> = Vec::new();
        let mut next = queued.iter();
        while bytes < ROWS_BYTES
            && let Some(&fid) = next.next()
        {
            let vnode = self.vnodes.peek(fid);
            if let Some(vnode) = &vnode {
                vnode.kept.begin();
            }
            let real = self.vnodes.local_ids.real_or_own(fid);
            if !fid.cell.has_volumes() || is_local(real) {
                continue;
            }
            let row = match vnode.as_ref().map_or(ToKeep::Nothing, |vnode| vnode.to_keep()) {
                ToKeep::Before => continue,
                ToKeep::This(earlier)
                    if (earlier.is_pinned
                        || Self::outlasts_whole(&self.vnodes.volumes.get_or_add(fid.cell, fid.volume)))
                        && self.note_volume(written, (fid.cell, fid.volume), false, &mut rows)? =>
                {
                    Some(self.row_of(fid, *earlier).encode())
                }
                ToKeep::This(_) | ToKeep::Nothing => None,
            };
            let sum = row.as_ref().map_or(0, |row| sum_of(row, written.removals));
            if let Some(vnode) = vnode {
                if sum != 0 && vnode.kept.sum() == sum {
                    continue;
                }
                done.push((vnode, sum));
            }
            bytes += row.as_ref().map_or(0, Vec::len);
            rows.push((self.key(real)?, row));
        }
        let left: Vec<_> = next.copied().collect();
        let (cache, gone) = (self.cache.clone(), written.gone.clone());
        let kept = rx::blocking::on_a_thread(move || {
            gone.into_iter().try_for_each(|volume| cache.forget_known(Some(volume)))?;
            if rows.is_empty() { Ok(()) } else { cache.keep_known(rows) }
        });
        if let Err(error) = kept.await {
            // Which rows are there, nobody knows.
            written.removals += 1;
            written.noted_at = None;
            self.vnodes.keeping.put_back(queued);
            return Err(local(error));
        }
        written.gone.clear();
        done.iter().for_each(|(vnode, sum)| vnode.kept.set_sum(*sum));
        Ok(left)
    }

    /// Has a volume's row say where the volume is; with `is_due` also how long ago a server has answered. False if the volume is not to be kept.
    fn note_volume(
        &self,
        written: &mut Written,
        (cell, id): (CellIndex, VolumeId),
        is_due: bool,
        rows: &mut Rows,
    ) -> Result<bool, Error> {
        let volume = self.vnodes.volumes.get_or_add(cell, id);
        if !self.is_to_outlast(&volume) {
            return Ok(false);
        }
        let before = written.volumes.get(&(cell, id));
        let place = self.calls.locations.place(cell, id);
        let Some(place) = place.or_else(|| before.map(|of| of.place.clone())) else { return Ok(false) };
        if !is_due && before.is_some_and(|of| of.place == place) {
            return Ok(true);
        }
        let (noted, at) = (self.time().0, self.calls.runtime.boot_time());
        let age = match before {
            Some(of) if !self.calls.locations.is_answered(cell, id) => {
                let by_clock = noted.saturating_sub(of.noted);
                of.age.saturating_add(
                    by_clock.max(u32::try_from(at.since(of.at).as_secs()).unwrap_or(u32::MAX)),
                )
            }
            Some(_) | None => 0,
        };
        let of = OfVolume { place, breaks: volume.breaks(), noted, at, age };
        let key = FileKey { vnode: 0, unique: 0, ..self.key(Fid::root_of(cell, id))? };
        rows.push((key, Some(of.row().encode())));
        written.volumes.insert((cell, id), of);
        Ok(true)
    }

    /// A vnode's row. What was made here has the server's numbers in it; what the server has not made yet is missing: the next run adds it.
    fn row_of(&self, fid: Fid, earlier: Earlier) -> KnownVnode {
        let real = |local: LocalFid| self.vnodes.local_ids.real_or_own(fid.sibling(local));
        let mut status = Vec::new();
        earlier.status.encode(&mut status);
        let directory = earlier.directory.map(|mut directory| {
            let ours = directory.entries().filter(|entry| is_local(fid.sibling(entry.fid)));
            let ours: Vec<_> = ours.map(|entry| (entry.name.to_vec(), real(entry.fid))).collect();
            for (name, fid) in ours {
                let directory = Arc::make_mut(&mut directory);
                let _ = match is_local(fid) {
                    true => directory.remove(&name),
                    false => directory.replace(&name, fid.in_volume()),
                };
            }
            directory.bytes().to_vec()
        });
        let rights = earlier.rights.iter().flat_map(|(who, rights)| {
            let persons = self.users.persons(*who).into_iter();
            persons.map(|(uid, name)| (Writer::new(uid, name), rights.0))
        });
        let parent = earlier.parent.map(|parent| real(parent).in_volume());
        KnownVnode {
            status,
            is_pinned: earlier.is_pinned,
            parent: parent.map(|parent| (parent.vnode.0, parent.unique.0)),
            link: earlier.link.map(Vec::from),
            pages: directory,
            rights: rights.collect(),
        }
    }

    /// Reads what the last run knew, and takes over where volumes are. What is too old goes, and all of it if write-behind is on nowhere and nothing
    /// is pinned.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub async fn load_known(&self) -> Result<Left, Error> {
        let has_pins = !self.cache.pins().map_err(local)?.is_empty();
        if has_pins {
            self.vnodes.begin_keeping();
        }
        if !self.vnodes.keeping.is_on() {
            self.cache.forget_known(None).map_err(local)?;
            return Ok(Left::default());
        }
        let (mut volumes, mut vnodes) = (BTreeMap::new(), Vec::new());
        let read = self.cache.known(|key, known| match known {
            Known::Volume(known) => drop(volumes.insert((key.cell, key.volume), known)),
            Known::Vnode(known) => {
                let is_pinned = known.is_pinned && has_pins;
                vnodes.push((key, KnownVnode { is_pinned, ..known }));
            }
        });
        read.map_err(local)?;
        let pinned = vnodes.iter().filter(|(_, known)| known.is_pinned);
        let pinned: BTreeSet<_> = pinned.map(|(key, _)| (key.cell, key.volume)).collect();
        let mut written = self.known.lock().await;
        let mut asked: BTreeMap<CellIndex, BTreeMap<u32, _>> = BTreeMap::new();
        let mut found = BTreeMap::new();
        for (&(cell, id), known) in &volumes {
            let is_pinned = pinned.contains(&(cell, id));
            let restored = self.restore_volume(&mut written, (cell, VolumeId(id)), known, is_pinned);
            if let Some((cell, sites)) = &restored {
                let servers = sites.servers.iter().map(|server| (server.id, Arc::clone(server)));
                asked.entry(*cell).or_default().extend(servers);
            }
            found.insert((cell, id), restored);
        }
        let mut left = Vec::new();
        for (key, known) in vnodes {
            if let Some((cell, sites)) = found.entry((key.cell, key.volume)).or_default() {
                left.push((key, known, *cell, Arc::clone(sites)));
            }
        }
        let unused: BTreeSet<_> =
            found.iter().filter(|(_, found)| found.is_none()).map(|(key, _)| *key).collect();
        unused.into_iter().try_for_each(|key| self.cache.forget_known(Some(key))).map_err(local)?;
        for (cell, servers) in asked {
            if let Some(cell) = self.calls.cells.get(cell) {
                self.calls.ask_who_answers(&cell, &servers.into_values().collect::<Vec<_>>());
            }
        }
        Ok(Left(left))
    }

    /// Takes over where a volume is, if its cell is known and what is known of it counts yet.
    fn restore_volume(
        &self,
        written: &mut Written,
        (cell, id): (CellNumber, VolumeId),
        known: &KnownVolume,
        is_pinned: bool,
    ) -> Option<(CellIndex, Arc<Sites>)> {
        // A cell that only the DNS tells of is not asked for: it would not be needed then.
        let cell = self.calls.cells.named(&self.cache.cell_name(cell)?)?;
        let volume = self.vnodes.volumes.get_or_add(cell.index, id);
        if volume.offline_max().is_zero() && !is_pinned {
            if known.ids[0] == id.0 {
                return None;
            }
            // It is on the way to one with write-behind.
            volume.set_offline_max(self.behind.offline_max);
        }
        let (noted, at) = (self.time().0, self.calls.runtime.boot_time());
        if noted.saturating_add(BEHIND_MAX) < known.noted {
            tracing::warn!(
                volume = id.0,
                "the clock is behind the time at which this volume was last known: nothing of that is shown"
            );
            return None;
        }
        let age = known.age.saturating_add(noted.saturating_sub(known.noted));
        let counts_for = if is_pinned { self.behind.offline_max } else { volume.offline_max() };
        let rest = counts_for.checked_sub(Duration::from_secs(age.into()))?;
        let place = place_of(known);
        let servers = self.calls.locations.restore(&*self.calls, &cell, id, place.clone());
        if servers.is_empty() {
            return None;
        }
        written.volumes.insert((cell.index, id), OfVolume { place, breaks: volume.breaks(), noted, at, age });
        Some((cell.index, Arc::new(Sites { servers, until: self.now() + rest })))
    }

    /// Takes over what was known of vnodes, after the changes that wait: these show in it. Returns those that are pinned.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub async fn restore_known(&self, left: Left) -> Result<Vec<Fid>, Error> {
        let mut pinned = Vec::new();
        let removals = self.known.lock().await.removals;
        let mut unused = Rows::new();
        for (key, known, cell, sites) in left.0 {
            let told = LocalFid { vnode: VnodeNumber(key.vnode), unique: Uniquifier(key.unique) };
            let fid = Fid::root_of(cell, VolumeId(key.volume)).sibling(told);
            let sum = sum_of(&known.encode(), removals);
            match self.earlier(fid, known) {
                Some(earlier) => {
                    let shown = self.vnodes.local_ids.shown(fid);
                    pinned.extend(earlier.is_pinned.then_some(shown));
                    self.vnodes.restore(shown, earlier, &sites, sum);
                }
                None => unused.push((key, None)),
            }
        }
        if !unused.is_empty() {
            tracing::warn!(rows = unused.len(), "rows of what was known make no sense and are dropped");
            self.cache.keep_known(unused).map_err(local)?;
        }
        for made in self.vnodes.all().iter().filter(|vnode| vnode.is_here_only()) {
            let mut at = Some(Arc::clone(made)).filter(|made| made.fid.vnode.is_directory());
            for _ in 0..DEPTH_MAX {
                at = at.filter(|vnode| vnode.is_here_only());
                let above = at.as_ref().and_then(|vnode| self.vnodes.get(self.vnodes.parent_of(vnode)?));
                let Some(above) = above else { break };
                if !above.is_here_only() {
                    made.set_earlier_rights(above.all_rights());
                    break;
                }
                at = Some(above);
            }
        }
        Ok(pinned)
    }

    /// What a row says of a vnode; `None` if it makes no sense.
    fn earlier(&self, fid: Fid, known: KnownVnode) -> Option<Earlier> {
        let mut decoder = Decoder::new(&known.status);
        let status = AfsFetchStatus::decode(&mut decoder).ok()?;
        let is_directory = status.file_type == FileType::DIRECTORY;
        if is_directory != fid.vnode.is_directory() {
            return None;
        }
        let directory = match known.pages.filter(|_| is_directory) {
            Some(pages) => Some(Arc::new(Directory::parse(pages).ok()?)),
            None => None,
        };
        let local = |(vnode, unique)| LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(unique) };
        let parent = known.parent.map(local).map(|parent| self.vnodes.local_ids.shown(fid.sibling(parent)));
        let rights = known.rights.into_iter().map(|(Writer { user, holder }, rights)| {
            (self.users.earlier_person(fid.cell, user, holder.unwrap_or_default()), Rights(rights))
        });
        Some(Earlier {
            status,
            is_pinned: known.is_pinned,
            parent: parent.map(Fid::in_volume),
            link: known.link.map(Into::into),
            directory,
            rights: rights.collect(),
        })
    }
}

/// Tells a row from others, and 0 is none's.
fn sum_of(row: &[u8], removals: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (row, removals).hash(&mut hasher);
    hasher.finish().max(1)
}

impl OfVolume {
    fn row(&self) -> KnownVolume {
        let Place { name, ids, flags, sites } = &self.place;
        let sites = sites.iter().map(|site| {
            let addresses = site.addresses.iter().filter_map(|socket| match socket.ip() {
                IpAddr::V4(ip) => Some((ip.octets(), socket.port())),
                IpAddr::V6(_) => None,
            });
            KnownSite {
                uuid: site.uuid.map(Uuid::to_bytes),
                flags: site.flags.0.cast_unsigned(),
                addresses: addresses.collect(),
            }
        });
        KnownVolume {
            name: name.clone(),
            ids: ids.map(|id| id.0),
            flags: flags.0.cast_unsigned(),
            sites: sites.collect(),
            noted: self.noted,
            age: self.age,
        }
    }
}

/// Where a volume was.
fn place_of(known: &KnownVolume) -> Place {
    let sites = known.sites.iter().map(|site| PlaceSite {
        uuid: site.uuid.map(Uuid::from_bytes),
        flags: SiteFlags(site.flags.cast_signed()),
        addresses: site.addresses.iter().map(|socket| SocketAddr::from(*socket)).collect(),
    });
    Place {
        name: known.name.clone(),
        ids: known.ids.map(VolumeId),
        flags: EntryFlags(known.flags.cast_signed()),
        sites: sites.collect(),
    }
}
