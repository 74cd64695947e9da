//! Removes a volume from its server. The volume location database is left as it is.

use std::fmt;
use std::net::Ipv4Addr;

use afs_wire::abort::VNOVOL;
use afs_wire::afsvol::{AttachFlags, VolumeFlags};
use afs_wire::ids::{PartitionId, VolumeId};

use crate::error::Error;
use crate::volumes::{Transaction, VolumeServers};

/// A step of removing a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Beginning a transaction on it. VNOVOL says that it is not there.
    Begin,
    /// Taking it out of service for good: should the server die now, it removes the volume when it starts.
    SetFlags,
    /// Removing it.
    Delete,
    /// Ending the transaction. The volume is gone.
    End,
}

/// The reason why a volume was not removed.
#[derive(Debug)]
pub struct RemoveFailure {
    /// The step that failed.
    pub step: Step,
    /// The reason.
    pub error: Error,
    /// The reason why the transaction could not be ended after that. It ends by itself after some minutes; until then the
    /// volume is busy.
    pub not_ended: Option<Error>,
}

impl RemoveFailure {
    /// True if there was no such volume.
    pub fn is_missing(&self) -> bool {
        self.step == Step::Begin && self.error.code() == VNOVOL
    }
}

impl fmt::Display for RemoveFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = &self.error;
        match self.step {
            Step::Begin => write!(f, "the volume cannot be had: {error}"),
            Step::SetFlags | Step::Delete => {
                write!(f, "the volume was not removed, but may be offline: {error}; try again")
            }
            Step::End => write!(f, "the volume is removed, but its transaction was not ended: {error}"),
        }
    }
}

impl std::error::Error for RemoveFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Removes a volume from a partition of a server.
///
/// # Errors
///
/// The step that failed.
pub async fn remove(
    servers: &VolumeServers,
    server: Ipv4Addr,
    partition: PartitionId,
    volume: VolumeId,
) -> Result<(), RemoveFailure> {
    remove_copy(servers, server, partition, volume, None).await
}

/// The same of a copy of a volume, which itself is at another server, if one is named: then the server need not keep what the copy was.
///
/// # Errors
///
/// The step that failed.
pub(crate) async fn remove_copy(
    servers: &VolumeServers,
    server: Ipv4Addr,
    partition: PartitionId,
    volume: VolumeId,
    is_at: Option<Ipv4Addr>,
) -> Result<(), RemoveFailure> {
    let failed = |step, error| RemoveFailure { step, error, not_ended: None };
    let begun = servers.begin(server, partition, volume, AttachFlags::OFFLINE).await;
    let transaction = begun.map_err(|error| failed(Step::Begin, error))?;
    let removed = remove_in(servers, transaction, is_at).await;
    let ended = servers.end_well(transaction).await;
    match (removed, ended) {
        (Ok(()), ended) => ended.map_err(|error| failed(Step::End, error)),
        (Err((step, error)), ended) => Err(RemoveFailure { not_ended: ended.err(), ..failed(step, error) }),
    }
}

async fn remove_in(
    servers: &VolumeServers,
    transaction: Transaction,
    is_at: Option<Ipv4Addr>,
) -> Result<(), (Step, Error)> {
    let flags = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
    servers.set_flags(transaction, flags).await.map_err(|error| (Step::SetFlags, error))?;
    if let Some(to) = is_at {
        servers.set_forwarding(transaction, to).await.map_err(|error| (Step::SetFlags, error))?;
    }
    servers.delete(transaction).await.map_err(|error| (Step::Delete, error))
}
