//! Changes of the location database that have failed so that nobody knows whether they were made, or will yet be: a server died before it
//! answered, or its store did. Who undoes what such a change was for has to find out first.

use afs_wire::abort::VL_NOENT;
use afs_wire::ids::VolumeId;

use crate::entry::Entry;
use crate::error::Error;
use crate::vldb::LocationDb;

/// What became of a change that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was made.
    Made,
    /// It was not made, and will not be.
    NotMade,
    /// Nobody can say: what it was for may be neither used nor undone.
    Unknown,
}

impl LocationDb {
    /// Finds out what became of a change that has failed with this error, by a look at what it would have changed.
    ///
    /// While the database is out of order, its servers may answer from memory, and the change may yet be made: that it is not seen decides
    /// nothing then. So another change is made first, which harms nobody. When that is acknowledged, the change before it is decided, as the
    /// store makes none that rests on an older state of the database (decision 8); it is the same with a write at a sync site of Ubik. The
    /// server that has acknowledged it is the one that is asked next, and its answer is not older than that.
    ///
    /// This does not hold for a server that has the change in its queue, or plans it again after a conflict, and was stopped or cut off
    /// meanwhile: it may make the change after all this.
    /// And UNOQUORUM of all servers is taken for a change that nobody has made, which Ubik does not promise.
    pub(crate) async fn fate(&self, error: &Error, look: impl Future<Output = Result<bool, Error>>) -> Fate {
        if !error.may_be_done() {
            return Fate::NotMade;
        }
        let is_decided = self.new_volume_ids(1).await.is_ok();
        match look.await {
            Ok(true) => Fate::Made,
            Ok(false) if is_decided => Fate::NotMade,
            Ok(false) | Err(_) => Fate::Unknown,
        }
    }

    /// What became of an entry that was to be made, or to replace another one.
    pub(crate) async fn fate_of_entry(&self, error: &Error, volid: VolumeId, entry: &Entry) -> Fate {
        self.fate(error, self.has_entry(volid, entry)).await
    }

    /// True if a volume's entry has this name and these sites. A server may have several addresses, and the database names one of them.
    async fn has_entry(&self, volid: VolumeId, wanted: &Entry) -> Result<bool, Error> {
        let found = match self.entry_by_id(volid, None).await {
            Err(error) if error.code() == VL_NOENT => return Ok(false),
            found => found?,
        };
        if found.name != wanted.name || found.sites.len() != wanted.sites.len() {
            return Ok(false);
        }
        for (found, wanted) in found.sites.iter().zip(&wanted.sites) {
            if found.partition != wanted.partition
                || !self.is_same_server(found.server, wanted.server).await?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
