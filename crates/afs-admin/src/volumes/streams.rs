//! Dumps as streams, to and from a volume server. A dump is bytes here; `afs_dump` knows what is in them.

use afs_dump::{ARRIVALS_MAX, Arrival};
use afs_wire::afsvol::{self, ArrivedFlags, DumpFlags, HalfVolume, RestoreFlags};
use afs_wire::ids::{AfsTime, PartitionId, VnodeNumber};
use bytes::Bytes;
use rx::{CallError, ClientCall, RpcError};
use rxgen::{Abort, Rpc};
use std::io;
use std::net::Ipv4Addr;

use super::forward::cookie;
use super::{Identity, Transaction, VolumeServers};
use crate::error::Error;

/// The reason why a dump has not arrived.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The server's, or that of the way to it.
    #[error("{0}")]
    Server(Error),
    /// Here the bytes could not be written, or read.
    #[error("{0}")]
    Local(io::Error),
}

impl From<Error> for StreamError {
    fn from(error: Error) -> Self {
        Self::Server(error)
    }
}

/// The content that a dump is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The time since which changes are in it; 0 for everything.
    pub since: AfsTime,
    /// True if directories that have not changed are left out too. Servers older than OpenAFS 1.4 cannot do that.
    pub omits_directories: bool,
}

fn failed<R: Rpc>(source: CallError) -> Error {
    RpcError::Call { rpc: R::NAME, source }.into()
}

impl VolumeServers {
    /// Dumps a transaction's volume into `sink`, piece by piece; says how many bytes there were. While `sink` takes its time, the server
    /// waits.
    ///
    /// # Errors
    ///
    /// The server's, or that of `sink`. What was written until then is no dump.
    pub async fn dump(
        &self,
        transaction: Transaction,
        wanted: Wanted,
        sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, StreamError> {
        let Transaction { server, id: from_trans } = transaction;
        let Wanted { since: from_date, omits_directories } = wanted;
        let call = self.server(server).await?.call().await;
        if omits_directories {
            let order = afsvol::DumpV2 { from_trans, from_date, flags: DumpFlags::OMIT_DIRS };
            receive(call.map_err(failed::<afsvol::DumpV2>)?, &order, sink).await
        } else {
            let order = afsvol::Dump { from_trans, from_date };
            receive(call.map_err(failed::<afsvol::Dump>)?, &order, sink).await
        }
    }

    /// Fills a transaction's volume from `source`, which gives the dump piece by piece, and an empty one at its end. Name, kind and clone
    /// are those of `identity`; the volume's id and parent stay.
    ///
    /// # Errors
    ///
    /// The server's, or that of `source`. A server of ours then has the volume as it was.
    pub async fn restore(
        &self,
        transaction: Transaction,
        identity: Identity<'_>,
        source: impl FnMut() -> io::Result<Bytes>,
    ) -> Result<(), StreamError> {
        let (trans, cookie) = (transaction.id, cookie(identity)?);
        let order = afsvol::Restore { trans, flags: RestoreFlags::INCREMENTAL, cookie };
        self.fill(transaction, &order, source).await
    }

    /// Does the same for a volume of which a part has come before ([`VolumeServers::arrived`]): the dump only names what came, and leaves
    /// out so many bytes of this file.
    ///
    /// # Errors
    ///
    /// As of [`VolumeServers::restore`]; a server that has not got that part refuses it.
    pub async fn restore_rest(
        &self,
        transaction: Transaction,
        identity: Identity<'_>,
        rest: Option<(VnodeNumber, u64)>,
        source: impl FnMut() -> io::Result<Bytes>,
    ) -> Result<(), StreamError> {
        let (vnode, bytes) = rest.unwrap_or((VnodeNumber(0), 0));
        let order = afsvol::RestoreRest { trans: transaction.id, cookie: cookie(identity)?, vnode, bytes };
        self.fill(transaction, &order, source).await
    }

    /// Returns what came of a volume that is new, when it was to be filled before: each vnode with a digest that covers its data. Nothing
    /// from a server that keeps nothing.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn arrived(&self, transaction: Transaction) -> Result<Vec<Arrival>, StreamError> {
        let Transaction { server, id: trans } = transaction;
        let order = afsvol::GetArrived { trans, flags: ArrivedFlags::WITH_DATA };
        let call = self.server(server).await?.call().await.map_err(failed::<afsvol::GetArrived>)?;
        let (mut arrivals, mut rest) = (Vec::new(), Vec::new());
        let take = |bytes: &[u8]| {
            rest.extend_from_slice(bytes);
            let (whole, left) = rest.as_chunks::<{ Arrival::BYTES }>();
            arrivals.extend(whole.iter().map(Arrival::from_bytes));
            if arrivals.len() > ARRIVALS_MAX + 1 {
                return Err(io::Error::other("the server tells of more vnodes than any has"));
            }
            rest = left.to_vec();
            Ok(())
        };
        match receive(call, &order, take).await {
            Err(StreamError::Server(error)) if error.code() == Abort::OPCODE => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(_) => Ok(arrivals),
        }
    }

    /// Returns the volumes of a partition of which only a part has come. A server that keeps no parts has none.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn halves(&self, server: Ipv4Addr, partition: PartitionId) -> Result<Vec<HalfVolume>, Error> {
        match self.call(server, afsvol::ListHalves { partition }).await {
            Err(error) if error.code() == Abort::OPCODE => Ok(Vec::new()),
            Err(error) => Err(error),
            Ok(reply) => Ok(reply.halves.into_vec()),
        }
    }

    async fn fill<R: Rpc>(
        &self,
        transaction: Transaction,
        order: &R,
        mut source: impl FnMut() -> io::Result<Bytes>,
    ) -> Result<(), StreamError> {
        let call = self.server(transaction.server).await?.call().await;
        let mut call = call.map_err(failed::<R>)?;
        call.send_request(order).await.map_err(Error::from)?;
        loop {
            let piece = source().map_err(StreamError::Local)?;
            if piece.is_empty() {
                break;
            }
            match call.send(piece).await {
                // The server has ended the call: the reply says why.
                Err(CallError::NotSending { .. }) => break,
                sent => sent.map_err(failed::<R>)?,
            }
        }
        call.reply::<R>().await.map_err(Error::from)?;
        Ok(())
    }
}

pub(super) fn too_long(name: &str) -> Error {
    Error::Local {
        what: format!("{name} is too long for the name of a volume"),
        code: afs_wire::abort::VOLSERBADNAME,
    }
}

async fn receive<R: Rpc>(
    mut call: ClientCall,
    order: &R,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<u64, StreamError> {
    call.send_request(order).await.map_err(Error::from)?;
    call.finish().map_err(failed::<R>)?;
    let mut length = 0;
    while let Some(bytes) = call.recv().await.map_err(failed::<R>)? {
        sink(&bytes).map_err(StreamError::Local)?;
        length += bytes.len() as u64;
    }
    Ok(length)
}
