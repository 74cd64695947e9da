//! Clones a volume on its partition, or brings an existing clone up to date: what `vos backup` and `vos clone` have in
//! common, and the first step of every release. The clone stays offline. The volume location database is left as it is.

use std::fmt;
use std::net::Ipv4Addr;

use afs_wire::abort::VNOVOL;
use afs_wire::afsvol::AttachFlags;
use afs_wire::ids::{PartitionId, VolumeId};

use crate::cancel::Cancel;
use crate::error::Error;
use crate::volumes::{NewClone, VolumeServers};

/// The volume that is to be cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The server that has the volume.
    pub server: Ipv4Addr,
    /// The partition on which it is, and the clone will be.
    pub partition: PartitionId,
    /// The volume.
    pub volume: VolumeId,
}

/// An event while a volume is cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// There is no clone yet: the server begins to make it.
    Cloning,
    /// There is one: the server begins to renew it.
    Recloning,
    /// The clone is there. Only the transaction has to be ended.
    Done,
}

/// A step of cloning a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Looking whether there is a clone.
    Look,
    /// Letting go of the clone that there is.
    EndLook,
    /// Beginning a transaction on the volume.
    Begin,
    /// Making the clone.
    Clone,
    /// Renewing the clone.
    Reclone,
    /// Ending the transaction. The clone is there.
    End,
}

/// The reason why a volume was not cloned.
#[derive(Debug)]
pub struct CloneFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: Error,
    /// The reason why the transaction could not be ended after that. It ends by itself after some minutes; until then the
    /// volume is busy.
    pub not_ended: Option<Error>,
}

impl fmt::Display for CloneFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.error;
        match self.step {
            Step::Look | Step::EndLook => write!(f, "the clone cannot be had: {error}"),
            Step::Begin => write!(f, "the volume cannot be had: {error}"),
            Step::Clone | Step::Reclone => write!(f, "the volume was not cloned: {error}"),
            Step::End => write!(f, "the volume is cloned, but its transaction was not ended: {error}"),
        }
    }
}

impl std::error::Error for CloneFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Clones a volume, or renews its clone, and tells of what happens. May be repeated after any failure. A wish to stop counts until the server
/// has begun; after that the clone is made.
///
/// # Errors
///
/// The step that failed.
pub async fn make_clone(
    servers: &VolumeServers,
    source: Source,
    new: NewClone<'_>,
    cancel: &Cancel,
    mut tell: impl FnMut(Event),
) -> Result<(), CloneFailure> {
    let failed = |step, error| CloneFailure { step, error, not_ended: None };
    let Source { server, partition, volume } = source;
    cancel.check().map_err(|error| failed(Step::Look, error))?;
    let exists = match servers.begin(server, partition, new.id, AttachFlags::OFFLINE).await {
        Ok(transaction) => {
            servers.end_well(transaction).await.map_err(|error| failed(Step::EndLook, error))?;
            true
        }
        Err(error) if error.code() == VNOVOL => false,
        Err(error) => return Err(failed(Step::Look, error)),
    };
    cancel.check().map_err(|error| failed(Step::Begin, error))?;
    let begun = servers.begin(server, partition, volume, AttachFlags::BUSY).await;
    let transaction = begun.map_err(|error| failed(Step::Begin, error))?;
    let (step, event) = match exists {
        true => (Step::Reclone, Event::Recloning),
        false => (Step::Clone, Event::Cloning),
    };
    let cloned = async {
        cancel.check()?;
        tell(event);
        match exists {
            true => servers.reclone(transaction, new.id).await,
            false => servers.clone_volume(transaction, new).await,
        }
    }
    .await;
    if cloned.is_ok() {
        tell(Event::Done);
    }
    let ended = servers.end_well(transaction).await;
    match (cloned, ended) {
        (Ok(()), ended) => ended.map_err(|error| failed(Step::End, error)),
        (Err(error), ended) => Err(CloneFailure { not_ended: ended.err(), ..failed(step, error) }),
    }
}
