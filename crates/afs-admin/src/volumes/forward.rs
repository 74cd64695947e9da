//! Volumes that servers send to each other, and what is said of a volume that has gone.

use std::net::Ipv4Addr;

use afs_wire::abort::{VOLSERBADOP, VOLSERFAILEDOP};
use afs_wire::afsvol::{self, AfsVol, DestServer, Replica, RestoreCookie};
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, VolumeId};
use rxgen::xdr::{CharVec, XdrArray};
use rxgen::{Abort, Interface};

use super::streams::too_long;
use super::{Identity, Transaction, VolumeServers, would_lose_level};
use crate::error::Error;

impl VolumeServers {
    /// Has a server send what has changed in a transaction's volume since then, 0 for everything, into a transaction's volume of another
    /// server, which gets this name and kind. Takes as long as the data do.
    ///
    /// # Errors
    ///
    /// The sending server's, or what the other one told it; that the volume has a level and the other server knows no levels.
    pub async fn forward(
        &self,
        from: Transaction,
        since: AfsTime,
        to: Transaction,
        identity: Identity<'_>,
    ) -> Result<(), Error> {
        let order = afsvol::Forward {
            from_trans: from.id,
            from_date: since,
            destination: destination(to.server),
            dest_trans: to.id,
            cookie: cookie(identity)?,
        };
        self.call(from.server, order).await.map(drop).map_err(|error| explained(error, to.server))
    }

    /// The same of what differs from a snapshot of the volume, as which the other server has it; of everything if there is none. Servers of ours
    /// know it.
    ///
    /// # Errors
    ///
    /// As [`Self::forward`].
    pub(crate) async fn forward_against(
        &self,
        from: Transaction,
        base: Option<VolumeId>,
        to: Transaction,
        identity: Identity<'_>,
    ) -> Result<(), Error> {
        let order = afsvol::SnapshotForward {
            from_trans: from.id,
            base: base.unwrap_or(VolumeId(0)),
            destination: destination(to.server),
            dest_trans: to.id,
            cookie: cookie(identity)?,
        };
        self.call(from.server, order).await.map(drop).map_err(|error| explained(error, to.server))
    }

    /// The same to several servers at once. Says for each what has become of it. A server of long ago sends to one after the other.
    ///
    /// # Errors
    ///
    /// The sending server's, if nobody has got anything.
    pub async fn forward_to_all(
        &self,
        from: Transaction,
        since: AfsTime,
        to: &[Transaction],
        identity: Identity<'_>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let replica = |to: &Transaction| Replica { trans: to.id, server: destination(to.server) };
        let destinations = XdrArray::new(to.iter().map(replica).collect()).map_err(|_| Error::Local {
            what: format!("{} servers are more than a volume can be sent to at once", to.len()),
            code: VOLSERFAILEDOP,
        })?;
        let order = afsvol::ForwardMultiple {
            from_trans: from.id,
            from_date: since,
            destinations,
            spare: 0,
            cookie: cookie(identity)?,
        };
        match self.call(from.server, order).await {
            Err(error) if error.code() == Abort::OPCODE => {
                let mut results = Vec::new();
                for to in to {
                    results.push(self.forward(from, since, *to, identity).await);
                }
                Ok(results)
            }
            Err(error) => Err(error),
            Ok(reply) => {
                let mut codes = reply.results.into_iter();
                let result = |to: &Transaction| match codes.next() {
                    Some(0) => Ok(()),
                    Some(code) if Abort(code) == VOLSERBADOP => {
                        let what = would_lose_level(to.server, "remove this site, or the level");
                        Err(Error::Local { what, code: VOLSERBADOP })
                    }
                    code => {
                        let code = code.map_or(VOLSERFAILEDOP, Abort);
                        let what =
                            format!("{} could not send the volume to {}: {code}", from.server, to.server);
                        Err(Error::Local { what, code })
                    }
                };
                Ok(to.iter().map(result).collect())
            }
        }
    }

    /// Has a server say to clients that a transaction's volume has moved to another one.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_forwarding(&self, transaction: Transaction, to: Ipv4Addr) -> Result<(), Error> {
        let new_site = i32::from_ne_bytes(to.octets());
        self.call(transaction.server, afsvol::SetForwarding { trans: transaction.id, new_site })
            .await
            .map(drop)
    }

    /// Makes a read-only volume the read-write one of its family.
    ///
    /// # Errors
    ///
    /// The server's. OpenAFS's of before 1.8.10 say a small number that means nothing when they have done it.
    pub async fn convert_to_read_write(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        read_only: VolumeId,
    ) -> Result<(), Error> {
        self.call(server, afsvol::ConvertROtoRWvolume { partition, volid: read_only }).await.map(drop)
    }
}

fn destination(server: Ipv4Addr) -> DestServer {
    DestServer { host: HostAddr::from(server), port: i32::from(AfsVol::PORT), ssid: 1 }
}

pub(super) fn cookie(identity: Identity<'_>) -> Result<RestoreCookie, Error> {
    Ok(RestoreCookie {
        name: CharVec::from_text(identity.name).map_err(|_| too_long(identity.name))?,
        kind: identity.kind.on_wire(),
        clone: identity.clone,
        parent: identity.parent,
    })
}

fn explained(error: Error, to: Ipv4Addr) -> Error {
    match error.code() {
        code @ VOLSERBADOP => {
            let what = would_lose_level(to, "give -force to have it there without one");
            Error::Local { what, code }
        }
        _ => error,
    }
}
