//! Volumes, sent to other servers: `Forward` and `ForwardMultiple`. This server calls `Restore` there as the cell itself (Volume service
//! notes 5). The volume is read once for all destinations, so the slowest sets the pace; one that fails is left out, and the others go on.
//! One that has a part already, since an earlier attempt broke off, gets a stream of its own with the rest.
//!
//! Unlike for a dump, clients do not go on before the transaction ends: what moves may not change behind what was sent.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use afs_dump::{ARRIVALS_MAX, Arrival};
use afs_volume::{Frozen, VolumeState};
use afs_wire::afsvol::{
    ArrivedFlags, EndTrans, Forward, ForwardMultiple, GetArrived, Replica, Restore, RestoreCookie,
    RestoreFlags, RestoreRest, SetForwarding, SnapshotForward, reply,
};
use afs_wire::ids::{AfsTime, SecurityLevel, TransId, VnodeNumber, VolumeId, VolumeType};
use bytes::Bytes;
use futures_util::future::{Either, join, join_all, select};
use rx::{CallError, ClientCall, Connection, RpcError};
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Failure, Rpc, Serve, ServerCall};

use super::dump::{PIECE_BYTES, fill};
use super::level::knows_levels;
use super::order::{self, Caller};
use super::{InUse, Peers, VolumeService, log, refused};
use crate::codes;
use crate::dump::{Arrived, Dump, Wanted};
use crate::transactions::End;
use rx::blocking::on_a_thread;

impl Serve<Forward> for VolumeService {
    async fn serve(&self, mut call: ServerCall<'_, Forward>, args: Forward) -> Result<reply::Forward, Abort> {
        let Forward { from_trans, from_date, destination, dest_trans, cookie } = args;
        let to = [Replica { trans: dest_trans, server: destination }];
        self.send_on(&mut call, from_trans, Since::Date(from_date), &to, cookie, |codes| match codes[..] {
            [] | [0] => Ok(reply::Forward {}),
            [code, ..] => Err(Abort(code)),
        })
        .await
    }
}

impl Serve<SnapshotForward> for VolumeService {
    async fn serve(
        &self,
        mut call: ServerCall<'_, SnapshotForward>,
        args: SnapshotForward,
    ) -> Result<reply::SnapshotForward, Abort> {
        let SnapshotForward { from_trans, base, destination, dest_trans, cookie } = args;
        let to = [Replica { trans: dest_trans, server: destination }];
        self.send_on(&mut call, from_trans, Since::Snapshot(base), &to, cookie, |codes| match codes[..] {
            [] | [0] => Ok(reply::SnapshotForward {}),
            [code, ..] => Err(Abort(code)),
        })
        .await
    }
}

impl Serve<ForwardMultiple> for VolumeService {
    async fn serve(
        &self,
        mut call: ServerCall<'_, ForwardMultiple>,
        args: ForwardMultiple,
    ) -> Result<reply::ForwardMultiple, Abort> {
        let ForwardMultiple { from_trans, from_date, destinations, cookie, .. } = args;
        let to = destinations.into_vec();
        self.send_on(&mut call, from_trans, Since::Date(from_date), &to, cookie, |codes| {
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
        let about = self.in_transaction(args.trans, "has moved");
        self.audited(call, about, async move {
            let volume = self
                .within(args.trans, "SetForwarding", |in_use, _, volume| {
                    volume.set_state(VolumeState::Moved);
                    in_use.transaction.end = End::HasMoved;
                    let (id, name) = (volume.id(), volume.name());
                    tracing::info!(target: order::OF_VOLUMES, "Volume {id} ({name}) has moved to another server: its callbacks end");
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
    /// Sends a transaction's volume to transactions of other servers, and writes it to the logs. If the caller vanishes meanwhile, all these
    /// transactions end, which are its own, so that the next attempt can begin at once.
    async fn send_on<R: Rpc, T>(
        &self,
        call: &mut ServerCall<'_, R>,
        id: TransId,
        since: Since,
        to: &[Replica],
        cookie: RestoreCookie,
        result_of: impl FnOnce(Vec<i32>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let caller = Caller::of(call);
        let there =
            to.iter().map(|replica| format!("{}, transaction {} there", address_of(*replica), replica.trans));
        let there = there.collect::<Vec<_>>().join("; ");
        let about = self.in_transaction(id, format!("{since} to {there}"));
        let result = match self.must_be_superuser(caller.name()) {
            Ok(()) => {
                let sent = Box::pin(self.forward(id, since, to, cookie, R::NAME, call.is_encrypted()));
                match select(sent, pin!(call.failure())).await {
                    Either::Left((codes, _)) => codes.and_then(result_of),
                    Either::Right((failure, sent)) => {
                        drop(sent);
                        if failure == Failure::CallerIsGone {
                            join(self.end_for_gone(id), self.end_there(to)).await;
                        }
                        Err(codes::CALL_DEAD)
                    }
                }
            }
            Err(code) => Err(code),
        };
        about.tell(R::NAME, &caller, result.as_ref().err().map_or(0, |abort| abort.0));
        result
    }

    /// Ends transactions of other servers, whose caller is gone.
    async fn end_there(&self, to: &[Replica]) {
        let ended = to.iter().map(async |replica| {
            let at = address_of(*replica);
            let ended = match self.shared.peers.connect(at, true, SecurityLevel::CLEAR).await {
                Ok(connection) => connection.rpc(&EndTrans { trans: replica.trans }).await.map(drop),
                Err(why) => return tracing::warn!(to = %at, why, "a transaction was not ended"),
            };
            if let Err(error) = ended {
                // It ends by itself after some minutes.
                tracing::warn!(to = %at, %error, "a transaction was not ended");
            }
        });
        join_all(ended).await;
    }

    /// Sends a transaction's volume to transactions of other servers. The code for each; 0 is that it has all.
    async fn forward(
        &self,
        id: TransId,
        since: Since,
        to: &[Replica],
        cookie: RestoreCookie,
        procedure: &'static str,
        is_encrypted: bool,
    ) -> Result<Vec<i32>, Abort> {
        let shared = Arc::clone(&self.shared);
        let transaction = shared.transactions().take(shared.now(), id, procedure).map_err(refused)?;
        let mut in_use = InUse { shared, transaction, is_over: false };
        let moved = in_use.transaction.moved.clone();
        let result = self.shared.unless_ended(&moved, send(&in_use, since, to, cookie, is_encrypted)).await;
        if let Err(code) = &result {
            in_use.note_failure(*code);
        }
        result
    }
}

/// The state that the destinations of a volume have.
#[derive(Debug, Clone, Copy)]
enum Since {
    /// All that was changed before this date; none if that is 0.
    Date(AfsTime),
    /// That of this snapshot of the volume; none if that is 0. Dates do not tell what has changed if a dump was restored over the volume.
    Snapshot(VolumeId),
}

impl std::fmt::Display for Since {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Date(from) => f.write_str(&order::changed_since(*from)),
            Self::Snapshot(VolumeId(0)) => f.write_str(&order::changed_since(AfsTime(0))),
            Self::Snapshot(base) => write!(f, "what differs from snapshot {base}"),
        }
    }
}

impl Since {
    /// The date from which a dump is, and the snapshot that it is to be compared with.
    async fn resolve(self, in_use: &InUse) -> Result<(AfsTime, Option<Frozen>), Abort> {
        let base = match self {
            Self::Date(from) => return Ok((from, None)),
            Self::Snapshot(VolumeId(0)) => return Ok((AfsTime(0), None)),
            Self::Snapshot(base) => base,
        };
        let (partition, volume) = in_use.volume()?;
        on_a_thread(move || {
            let base = partition.volume(base).map_err(|error| log(&error, base))?;
            if base.snapshot_of() != Some(volume.header().info.parent) {
                return Err(codes::EINVAL);
            }
            let from = base.header().info.creation_date.max(AfsTime(1));
            let frozen = base.freeze().map_err(|error| log(&error, base.id()))?;
            Ok((from, Some(frozen)))
        })
        .await
    }
}

async fn send(
    in_use: &InUse,
    since: Since,
    to: &[Replica],
    cookie: RestoreCookie,
    is_encrypted: bool,
) -> Result<Vec<i32>, Abort> {
    let (from, base) = since.resolve(in_use).await?;
    // Also of what has changed a replica may have a part. The second dump of a move goes into what the first has brought, which is whole.
    let may_have_some = from.0 == 0 || cookie.kind == VolumeType::READ_ONLY;
    let level = in_use.volume()?.1.level();
    let may_lose_level = in_use.transaction.may_lose_level;
    let connected = to.iter().map(async |replica| {
        let peers = &*in_use.shared.peers;
        let mut destination = Destination::new(peers, *replica, from, is_encrypted, level).await;
        let knows_level = destination.knows(level, may_lose_level).await;
        let (destination, arrived) = connect(destination, replica.trans, may_have_some).await;
        (destination, arrived, knows_level)
    });
    let (mut together, mut alone) = (Vec::new(), Vec::new());
    let mut omits_level = false;
    for (index, (destination, arrived, knows_level)) in join_all(connected).await.into_iter().enumerate() {
        // What is sent to several at once keeps it: who knows no levels refuses it then.
        omits_level |= !knows_level && to.len() == 1;
        match arrived {
            None => together.push((index, destination)),
            Some(arrived) => alone.push((index, destination, arrived)),
        }
    }
    let wanted = Wanted { from, omits_directories: true, omits_level };
    let all = async {
        if together.is_empty() {
            return Ok(Vec::new());
        }
        let dump = Dump::new(freeze(in_use).await?, wanted).against(base);
        stream(in_use, dump, together, &cookie).await
    };
    let rests = alone.into_iter().map(async |(index, destination, arrived)| {
        let (to, vnodes) = (destination.at, arrived.len());
        tracing::info!(volume = %in_use.transaction.volume, %to, vnodes, "goes on with a volume of which a part has come");
        let frozen = freeze(in_use).await?;
        let dump = on_a_thread(move || Dump::of_the_rest(frozen, wanted, arrived)).await;
        let dump = dump.map_err(|error| {
            tracing::error!(%error, "a volume could not be dumped");
            codes::DUMP_ERROR
        })?;
        stream(in_use, dump, vec![(index, destination)], &cookie).await
    });
    let (all, rests) = join(all, join_all(rests)).await;
    let mut codes = vec![codes::DUMP_ERROR.0; to.len()];
    for (index, code) in [all].into_iter().chain(rests).collect::<Result<Vec<_>, Abort>>()?.concat() {
        codes[index] = code;
    }
    Ok(codes)
}

async fn freeze(in_use: &InUse) -> Result<Frozen, Abort> {
    let (_, volume) = in_use.volume()?;
    on_a_thread(move || volume.freeze().map_err(|error| log(&error, volume.id()))).await
}

/// Sends a dump to those destinations. The code for each.
async fn stream(
    in_use: &InUse,
    dump: Dump,
    to: Vec<(usize, Destination)>,
    cookie: &RestoreCookie,
) -> Result<Vec<(usize, i32)>, Abort> {
    let (indices, mut destinations): (Vec<usize>, Vec<Destination>) = to.into_iter().unzip();
    join_all(destinations.iter_mut().map(|destination| destination.begin(&dump, cookie))).await;
    let mut next = fill(dump, Vec::new()).await?;
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
    let codes = join_all(destinations.into_iter().map(Destination::finish)).await;
    Ok(indices.into_iter().zip(codes).collect())
}

/// A destination, and what it has already if an earlier attempt broke off.
async fn connect(
    destination: Destination,
    trans: TransId,
    may_have_some: bool,
) -> (Destination, Option<Arrived>) {
    let Some(connection) = destination.connection.as_ref().filter(|_| may_have_some) else {
        return (destination, None);
    };
    // A server that does not know what is asked of it gets everything, and so does one of which nothing can be learned.
    let arrived = ask(connection, trans).await.ok().filter(|arrived| !arrived.is_empty());
    (destination, arrived)
}

async fn ask(connection: &Connection, trans: TransId) -> Result<Arrived, CallError> {
    let mut call = connection.call().await?;
    let order = GetArrived { trans, flags: ArrivedFlags::NONE };
    if let Err(RpcError::Call { source, .. }) = call.send_request(&order).await {
        return Err(source);
    }
    call.finish()?;
    let mut arrived = Arrived::default();
    let mut rest = Vec::new();
    while let Some(bytes) = call.recv().await? {
        rest.extend_from_slice(&bytes);
        let mut arrivals = rest.chunks_exact(Arrival::BYTES);
        for arrival in &mut arrivals {
            if let Ok(arrival) = arrival.try_into()
                && arrived.len() < ARRIVALS_MAX
            {
                arrived.note(Arrival::from_bytes(arrival));
            }
        }
        rest = arrivals.remainder().to_vec();
    }
    Ok(arrived)
}

/// The address of a destination; port 0 stands for a number that is none.
fn address_of(to: Replica) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(to.server.host.ip()), u16::try_from(to.server.port).unwrap_or(0))
}

/// A server that the volume is sent to.
struct Destination {
    at: SocketAddr,
    trans: TransId,
    flags: RestoreFlags,
    connection: Option<Connection>,
    /// `None`: it has failed, or not begun.
    call: Option<ClientCall>,
    /// True if it gets the rest of what has come.
    gets_rest: bool,
    code: i32,
}

impl Destination {
    async fn new(
        peers: &dyn Peers,
        to: Replica,
        from: AfsTime,
        is_encrypted: bool,
        level: SecurityLevel,
    ) -> Self {
        let at = address_of(to);
        let flags = if from.0 == 0 { RestoreFlags::NONE } else { RestoreFlags::INCREMENTAL };
        let (connection, call) = (None, None);
        let mut destination =
            Self { at, trans: to.trans, flags, connection, call, gets_rest: false, code: 0 };
        if at.port() == 0 {
            destination.fail(codes::EINVAL.0, &"it has no such port");
            return destination;
        }
        match peers.connect(destination.at, is_encrypted, level).await {
            Ok(connection) => destination.connection = Some(connection),
            Err(why) => destination.fail(codes::ENOTCONN.0, &why),
        }
        destination
    }

    /// Says whether the server can be told the volume's level. One that knows no levels would serve the volume at any, and gets nothing
    /// unless the volume may lose its level.
    async fn knows(&mut self, level: SecurityLevel, may_lose_level: bool) -> bool {
        let Some(connection) = self.connection.as_ref().filter(|_| level != SecurityLevel::CLEAR) else {
            return true;
        };
        match knows_levels(connection).await {
            Ok(false) if may_lose_level => return false,
            Ok(true) => return true,
            Ok(false) => {
                self.fail(codes::BAD_OP.0, &"the volume has a level, and that server knows no levels")
            }
            Err(error) => self.fail(error.code().0, &error),
        }
        self.connection = None;
        true
    }

    async fn begin(&mut self, dump: &Dump, cookie: &RestoreCookie) {
        let Some(connection) = &self.connection else { return };
        let (trans, flags, cookie) = (self.trans, self.flags, cookie.clone());
        let mut call = match connection.call().await {
            Ok(call) => call,
            Err(error) => return self.fail(error.code().0, &error),
        };
        let sent = if dump.is_of_the_rest() {
            self.gets_rest = true;
            let (vnode, bytes) = dump.rest().unwrap_or((VnodeNumber(0), 0));
            call.send_request(&RestoreRest { trans, cookie, vnode, bytes }).await
        } else {
            call.send_request(&Restore { trans, flags, cookie }).await
        };
        match sent {
            Ok(()) => self.call = Some(call),
            Err(error) => self.fail(error.code().0, &error),
        }
    }

    async fn send(&mut self, piece: Bytes) {
        let Some(mut call) = self.call.take() else { return };
        match call.send(piece).await {
            Ok(()) => self.call = Some(call),
            // It has ended the call before it had everything, and its answer says why.
            Err(CallError::NotSending { .. }) => match reply(call, self.gets_rest).await {
                Ok(()) => self.fail(codes::DUMP_ERROR.0, &"it did not want everything"),
                Err(error) => self.fail(error.code().0, &error),
            },
            Err(error) => self.fail(error.code().0, &error),
        }
    }

    /// Waits until all that was sent is there for good.
    async fn finish(mut self) -> i32 {
        if let Some(call) = self.call.take()
            && let Err(error) = reply(call, self.gets_rest).await
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

/// Waits until the other server has said how it went.
async fn reply(call: ClientCall, gets_rest: bool) -> Result<(), RpcError> {
    match gets_rest {
        true => call.reply::<RestoreRest>().await.map(drop),
        false => call.reply::<Restore>().await.map(drop),
    }
}
