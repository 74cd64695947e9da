//! The level of a volume: how well a connection has to be protected over which its contents are told. Servers of ours know it (Volume service
//! notes 5.6).

use std::net::Ipv4Addr;

use afs_wire::afsvol;
use afs_wire::ids::{PartitionId, SecurityLevel, VolumeId};
use rxgen::Abort;

use super::{Transaction, VolumeServers};
use crate::error::Error;

impl VolumeServers {
    /// Sets the level of a transaction's volume, which is a read-write one.
    ///
    /// # Errors
    ///
    /// The server's; that it knows no levels.
    pub async fn set_level(&self, transaction: Transaction, level: SecurityLevel) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        match self.call(server, afsvol::SetLevel { trans, level }).await {
            Err(error) if error.code() == Abort::OPCODE => {
                let what = format!(
                    "the volume server on {server} knows no levels: it is OpenAFS's, or an older one of ours"
                );
                Err(Error::Local { what, code: Abort::OPCODE })
            }
            set => set.map(drop),
        }
    }

    /// The level of a volume; `None` if its server knows no levels.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn level(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<Option<SecurityLevel>, Error> {
        match self.call(server, afsvol::GetLevel { partition, volid }).await {
            Err(error) if error.code() == Abort::OPCODE => Ok(None),
            answer => answer.map(|reply| Some(reply.level)),
        }
    }

    /// Tells whether a server knows levels.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub(crate) async fn knows_levels(&self, server: Ipv4Addr) -> Result<bool, Error> {
        match self.level(server, PartitionId(0), VolumeId(0)).await {
            Err(error) if error.code().0 > 0 => Ok(true),
            answer => answer.map(|level| level.is_some()),
        }
    }

    /// Lets a transaction's volume be sent to servers that know no levels. A server that knows none itself sends it in any case.
    ///
    /// # Errors
    ///
    /// The server's.
    pub(crate) async fn may_lose_level(&self, transaction: Transaction) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        match self.call(server, afsvol::MayLoseLevel { trans }).await {
            Err(error) if error.code() == Abort::OPCODE => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// What is said of a volume with a level that another server would not keep.
pub(crate) fn would_lose_level(to: Ipv4Addr, what_to_do: &str) -> String {
    format!(
        "the volume has a security level, and the server {to}, which knows no levels, would serve it at any: {what_to_do}"
    )
}
