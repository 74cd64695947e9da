//! Volumes, sent to other servers: `Forward` and `ForwardMultiple`. This server calls `Restore` there as the cell itself (Volume service
//! notes 5). The volume is read once for all destinations, so the slowest sets the pace; one that fails is left out, and the others go on.
//!
//! Unlike for a dump, clients do not go on before the transaction ends: what moves may not change behind what was sent.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use afs_volume::VolumeState;
use afs_wire::afsvol::{
    Forward, ForwardMultiple, Replica, Restore, RestoreCookie, RestoreFlags, SetForwarding, reply,
};
use afs_wire::ids::{AfsTime, TransId};
use bytes::Bytes;
use futures_util::future::{join, join_all};
use rx::{CallError, ClientCall};
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Serve, ServerCall};

use super::dump::{PIECE_BYTES, fill};
use super::{InUse, Peers, VolumeService, log, refused};
use crate::codes;
use crate::dump::{Dump, Wanted};
use rx::blocking::on_a_thread;

impl Serve<Forward> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, Forward>, args: Forward) -> Result<reply::Forward, Abort> {
        let what = format!("{args:?}");
        self.audited(call, what, async move {
            let Forward { from_trans, from_date, destination, dest_trans, cookie } = args;
            let to = [Replica { trans: dest_trans, server: destination }];
            match self.forward(from_trans, from_date, &to, cookie, "Forward").await?[..] {
                [] | [0] => Ok(reply::Forward {}),
                [code, ..] => Err(Abort(code)),
            }
        })
        .await
    }
}

impl Serve<ForwardMultiple> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, ForwardMultiple>,
        args: ForwardMultiple,
    ) -> Result<reply::ForwardMultiple, Abort> {
        let what = format!("{args:?}");
        self.audited(call, what, async move {
            let ForwardMultiple { from_trans, from_date, destinations, cookie, .. } = args;
            let to = destinations.into_vec();
            let codes = self.forward(from_trans, from_date, &to, cookie, "ForwardMultiple").await?;
            let results = XdrArray::new(codes).map_err(|_| codes::EINVAL)?;
            Ok(reply::ForwardMultiple { results })
        })
        .await
    }
}

/// The volume is at another server from now on. Said before it is deleted here, so that clients ask the VLDB instead of waiting.
impl Serve<SetForwarding> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, SetForwarding>,
        args: SetForwarding,
    ) -> Result<reply::SetForwarding, Abort> {
        let what = format!("{args:?}");
        self.audited(call, what, async move {
            let volume = self
                .within(args.trans, "SetForwarding", |_, _, volume| {
                    volume.set_state(VolumeState::Moved);
                    Ok(volume.id())
                })
                .await?;
            self.tell(volume).await;
            Ok(reply::SetForwarding {})
        })
        .await
    }
}

impl VolumeService {
    /// Sends a transaction's volume to transactions of other servers. The code for each; 0 is that it has all.
    async fn forward(
        &self,
        id: TransId,
        from: AfsTime,
        to: &[Replica],
        cookie: RestoreCookie,
        procedure: &'static str,
    ) -> Result<Vec<i32>, Abort> {
        let shared = Arc::clone(&self.shared);
        let transaction = shared.transactions().take(shared.now(), id, procedure).map_err(refused)?;
        let mut in_use = InUse { shared, transaction, is_over: false };
        let moved = in_use.transaction.moved.clone();
        let result = self.shared.unless_ended(&moved, send(&in_use, from, to, cookie)).await;
        if let Err(code) = &result {
            in_use.note_failure(*code);
        }
        result
    }
}

async fn send(
    in_use: &InUse,
    from: AfsTime,
    to: &[Replica],
    cookie: RestoreCookie,
) -> Result<Vec<i32>, Abort> {
    let (_, volume) = in_use.volume()?;
    let frozen = on_a_thread(move || volume.freeze().map_err(|error| log(&error, volume.id()))).await?;
    let flags = if from.0 == 0 { RestoreFlags::NONE } else { RestoreFlags::INCREMENTAL };
    let peers = &*in_use.shared.peers;
    let begun = to.iter().map(|replica| {
        let order = Restore { trans: replica.trans, flags, cookie: cookie.clone() };
        Destination::begin(peers, *replica, order)
    });
    let mut destinations = join_all(begun).await;
    let wanted = Wanted { from, omits_directories: true };
    let mut next = fill(Dump::new(frozen, wanted), Vec::new()).await?;
    loop {
        let (dump, piece) = next;
        if piece.is_empty() || destinations.iter().all(|destination| destination.call.is_none()) {
            break;
        }
        in_use.transaction.moved.add_sent(piece.len());
        let piece = Bytes::from(piece);
        let sent = join_all(destinations.iter_mut().map(|destination| destination.send(piece.clone())));
        let (filled, _) = join(fill(dump, Vec::with_capacity(PIECE_BYTES)), sent).await;
        next = filled?;
    }
    Ok(join_all(destinations.into_iter().map(Destination::finish)).await)
}

/// A server that the volume is sent to.
struct Destination {
    at: SocketAddr,
    /// `None`: it has failed.
    call: Option<ClientCall>,
    code: i32,
}

impl Destination {
    async fn begin(peers: &dyn Peers, to: Replica, order: Restore) -> Self {
        let port = u16::try_from(to.server.port).unwrap_or(0);
        let mut destination =
            Self { at: SocketAddr::new(IpAddr::V4(to.server.host.ip()), port), call: None, code: 0 };
        if port == 0 {
            destination.fail(codes::EINVAL.0, &"it has no such port");
            return destination;
        }
        let connection = match peers.connect(destination.at) {
            Ok(connection) => connection,
            Err(why) => {
                destination.fail(codes::ENOTCONN.0, &why);
                return destination;
            }
        };
        match connection.call().await {
            Ok(mut call) => match call.send_request(&order).await {
                Ok(()) => destination.call = Some(call),
                Err(error) => destination.fail(error.code().0, &error),
            },
            Err(error) => destination.fail(error.code().0, &error),
        }
        destination
    }

    async fn send(&mut self, piece: Bytes) {
        let Some(mut call) = self.call.take() else { return };
        match call.send(piece).await {
            Ok(()) => self.call = Some(call),
            // It has ended the call before it had everything, and its answer says why.
            Err(CallError::NotSending { .. }) => match call.reply::<Restore>().await {
                Ok(_) => self.fail(codes::DUMP_ERROR.0, &"it did not want everything"),
                Err(error) => self.fail(error.code().0, &error),
            },
            Err(error) => self.fail(error.code().0, &error),
        }
    }

    /// All was sent: waits until it is there for good.
    async fn finish(mut self) -> i32 {
        if let Some(call) = self.call.take()
            && let Err(error) = call.reply::<Restore>().await
        {
            self.fail(error.code().0, &error);
        }
        self.code
    }

    fn fail(&mut self, code: i32, why: &dyn std::fmt::Display) {
        tracing::warn!(to = %self.at, code, %why, "a volume was not sent to another server");
        self.code = code;
    }
}
