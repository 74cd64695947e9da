//! `.snapshots`, a name that each directory of a volume has and none lists: a directory that the client makes up, with an entry for each
//! snapshot of the volume in which the directory is. The entry is the directory as it was then, with the snapshot's volume in its fid. So
//! `NAME` is found as `.snapshots/2026-11-28T030000Z/NAME`, and programs that go through a tree never come there.
//!
//! Which snapshots there are, the file server tells, to who may look up the directory. That is kept for some seconds; nothing is asked before
//! somebody looks. Who may see what in a snapshot is the server's to decide, as in each volume (File service notes 6.9).

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, VolumeId};
use afs_wire::rxafs::GetSnapshots;
use jiff::Timestamp;
use lru::LruCache;
use rx_proto::time::Instant;
use rxgen::{Abort, Rpc};

use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::Pages;
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::remote::{Asked, Calls};
use afs_reach::table::Server;
use afs_reach::users::IdentityIndex;

/// The name. An entry of this name that somebody has made is found in its place.
pub(crate) const NAME: &[u8] = b".snapshots";

/// The time for which a server's word counts: programs look up many names below one snapshot, and a snapshot that was just made is to be there.
const LIFE: Duration = Duration::from_secs(10);

/// Directories whose snapshots are kept, each of at most some hundred KiB.
const LISTS_MAX: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// The names of a directory's snapshots, and the server that has these.
#[derive(Debug)]
struct List {
    pages: Pages,
    server: Arc<Server>,
}

/// What a server has said: nothing, if it knows no snapshots of the volume.
#[derive(Debug, Clone)]
struct Told {
    list: Option<Arc<List>>,
    until: Instant,
}

/// The directories of snapshots.
#[derive(Debug)]
pub struct Snapshots {
    calls: Arc<Calls>,
    vnodes: Arc<Vnodes>,
    /// What servers have said, by directory and who has asked.
    told: Mutex<LruCache<(Fid, IdentityIndex), Told>>,
}

impl Snapshots {
    pub(crate) fn new(calls: &Arc<Calls>, vnodes: &Arc<Vnodes>) -> Self {
        let told = Mutex::new(LruCache::new(LISTS_MAX));
        Self { calls: Arc::clone(calls), vnodes: Arc::clone(vnodes), told }
    }

    /// What is known of a directory's snapshots.
    fn known(&self, user: User, dir: Fid) -> Option<Told> {
        let who = self.calls.users.who(user, dir.cell);
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.get(&(dir, who)).filter(|told| self.calls.runtime.now() < told.until).cloned()
    }

    /// True if a directory of a volume has a directory of snapshots, if that is known.
    pub(crate) fn are_known(&self, user: User, dir: Fid) -> Option<bool> {
        self.known(user, dir).map(|told| told.list.is_some())
    }

    /// True if a directory of a volume has a directory of snapshots: its server knows snapshots, and it is in none itself.
    pub(crate) async fn are_told(&self, user: User, dir: Fid) -> Result<bool, Error> {
        Ok(self.list(user, dir).await?.is_some())
    }

    /// The pages of the directory of snapshots of a directory, in which the user has been found to have the right to look names up.
    pub(crate) async fn pages(&self, user: User, dir: Fid) -> Result<Pages, Error> {
        let list = self.list(user, dir).await?;
        list.map(|list| list.pages.clone()).ok_or(Error::Gone { fid: dir.snapshots() })
    }

    /// Somebody goes into a snapshot by a directory: has the volume of the snapshot asked for at the server that told of it.
    pub(crate) fn enter(&self, user: User, dir: Fid, snapshot: VolumeId) {
        let who = self.calls.users.who(user, dir.cell);
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).get(&(dir, who)).cloned();
        if let Some(list) = told.and_then(|told| told.list) {
            self.calls.locations.note_snapshot(&*self.calls, dir.cell, snapshot, &list.server);
        }
    }

    async fn list(&self, user: User, dir: Fid) -> Result<Option<Arc<List>>, Error> {
        if let Some(told) = self.known(user, dir) {
            return Ok(told.list);
        }
        let who = self.calls.users.who(user, dir.cell);
        let in_cell = self.vnodes.local_ids.at_server(dir).await?.in_cell();
        let asked = Asked::Known(dir.cell, dir.volume);
        let list = match self.calls.call_about(asked, who, GetSnapshots { dir: in_cell }).await {
            Ok(answer) => {
                let found = answer.reply.snapshots.iter().map(|snapshot| (snapshot.made, snapshot.volume));
                let pages = pages(dir, found);
                Some(Arc::new(List { pages, server: answer.responder.server }))
            }
            Err(failure) => match failure.code() {
                Some(Abort::OPCODE) => None,
                Some(code) if abort::errno(code) == Some(Errno::EINVAL) => None,
                Some(_) | None => return Err(failure.of(GetSnapshots::NAME, dir)),
            },
        };
        let told = Told { list: list.clone(), until: self.calls.runtime.now() + LIFE };
        self.told.lock().unwrap_or_else(PoisonError::into_inner).put((dir, who), told);
        Ok(list)
    }
}

/// The pages of a directory of snapshots, as a server would have them.
fn pages(dir: Fid, snapshots: impl Iterator<Item = (AfsTime, VolumeId)>) -> Pages {
    let mut names: Vec<_> = snapshots.map(|(made, volume)| (name_of(made), volume)).collect();
    // A volume that came back to a server may have two of one second there.
    names.sort();
    names.dedup_by(|one, other| one.0 == other.0);
    let entries = names.iter().map(|(name, volume)| (name.as_bytes(), dir.entry_of_snapshot(*volume)));
    let own = dir.in_volume();
    // No more are told than a directory has room for.
    let directory = Directory::build(own, own, entries).unwrap_or_else(|_| Directory::new(own, own));
    Pages { directory: Arc::new(directory), version: PAGES }
}

/// The version of the pages of each directory of snapshots, and that of its status: another one, so that nobody keeps a listing of which no change
/// is told.
const PAGES: DataVersion = DataVersion(1);
pub(crate) const STATUS: DataVersion = DataVersion(0);

/// The name of a snapshot: its UTC time, as `vos snapshot` has it.
fn name_of(made: AfsTime) -> String {
    Timestamp::from_second(made.0.into())
        .map_or_else(|_| made.0.to_string(), |time| time.strftime("%Y-%m-%dT%H%M%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_reach::fid::CellIndex;
    use afs_wire::ids::{Uniquifier, VnodeNumber};

    #[test]
    fn an_entry_is_the_directory_in_the_volume_of_the_snapshot() {
        let root = Fid::root_of(CellIndex(2), VolumeId(7));
        let dir = Fid { vnode: VnodeNumber(5), unique: Uniquifier(9), ..root };
        let told = [(AfsTime(1_795_834_801), 40), (AfsTime(1_795_834_800), 41), (AfsTime(1_795_834_801), 42)];
        let pages = pages(dir, told.into_iter().map(|(made, volume)| (made, VolumeId(volume))));
        let names: Vec<_> = pages.directory.entries().filter(|entry| !entry.is_dot()).collect();
        assert_eq!(names.len(), 2, "of one second there is one name");
        let found = |name: &[u8]| pages.directory.lookup(name).map(|entry| dir.snapshots().entry(entry.fid));
        assert_eq!(found(b"2026-11-28T030000Z"), Some(Fid { volume: VolumeId(41), ..dir }));
        assert_eq!(found(b"2026-11-28T030001Z"), Some(Fid { volume: VolumeId(40), ..dir }));
        assert_eq!(found(b"2026-11-28T030002Z"), None);
    }

    #[test]
    fn a_directory_of_snapshots_is_made_up_and_says_whose_it_is() {
        let dir = Fid::root_of(CellIndex(2), VolumeId(7));
        assert!(!dir.is_made_up() && !dir.is_snapshots());
        assert!(dir.snapshots().is_made_up() && dir.snapshots().is_snapshots());
        assert_eq!(dir.snapshots().without_snapshots(), dir);
        assert!(!crate::names::dynroot::ROOT.is_snapshots());
    }
}
