//! Volumes that were put aside half-made: what came of a restore, move or release that broke off. A sender asks what came (`GetArrived`) and
//! sends the rest; what nobody asks for in a day is removed, sooner when the disk fills up. These procedures are ours (Volume service
//! notes 5.5): a sender that does not know them sends everything.

use std::time::Duration;

use afs_dump::{ARRIVALS_MAX, Arrival, VnodeDigest};
use afs_volume::{Arrived, Half, Partition, VnodeStatus, Volume, VolumeError};
use afs_wire::acl::Acl;
use afs_wire::afsvol::{ArrivedFlags, GetArrived, HALVES_MAX, HalfVolume, ListHalves, VolName, reply};
use afs_wire::ids::{PartitionId, VnodeNumber};
use rxgen::xdr::XdrArray;
use rxgen::{Abort, Serve, ServerCall};

use super::{InUse, Shared, VolumeService, log, refused, type_of};
use crate::codes;
use crate::dump::record;
use rx::blocking::on_a_thread;

/// Vnodes that are told of at once.
const AT_ONCE: usize = 1024;
/// Bytes that are read at once for a digest.
const READ_AT_ONCE: usize = 256 << 10;
/// A partition with less than one part in so many free keeps nothing aside.
const FREE_PART: u64 = 20;

impl Serve<GetArrived> for VolumeService {
    async fn serve(
        &self,
        mut call: ServerCall<'_, GetArrived>,
        args: GetArrived,
    ) -> Result<reply::GetArrived, Abort> {
        self.must_be_superuser(call.security())?;
        let shared = std::sync::Arc::clone(&self.shared);
        let transaction =
            shared.transactions().take(shared.now(), args.trans, "GetArrived").map_err(refused)?;
        let in_use = InUse { shared, transaction, is_over: false };
        let moved = in_use.transaction.moved.clone();
        let told = tell(&mut call, in_use, args.flags.contains(ArrivedFlags::WITH_DATA));
        self.shared.unless_ended(&moved, told).await?;
        Ok(reply::GetArrived {})
    }
}

impl Serve<ListHalves> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, ListHalves>,
        args: ListHalves,
    ) -> Result<reply::ListHalves, Abort> {
        self.may_query(call.security())?;
        let partition = self.partition(args.partition).ok_or(codes::ILLEGAL_PARTITION)?;
        let now = self.shared.time();
        let halves = on_a_thread(move || partition.halves(now)).await;
        let halves = halves.map_err(|error| codes::of(&error))?.into_iter().take(HALVES_MAX);
        let halves = halves.filter_map(|half| {
            let Half { volume, name, kind, parent, since } = half;
            let name = VolName::try_from(&*name).ok()?;
            Some(HalfVolume { volume, name, kind: type_of(kind), parent, since })
        });
        let halves = XdrArray::new(halves.collect()).map_err(|_| codes::EINVAL)?;
        Ok(reply::ListHalves { halves })
    }
}

/// Sends an arrival for each vnode, and nothing when nothing came, or into a volume that neither is new nor shows what it had.
async fn tell(call: &mut ServerCall<'_, GetArrived>, in_use: InUse, with_data: bool) -> Result<(), Abort> {
    let (partition, volume) = in_use.volume()?;
    let is_new = volume.is_writable() && volume.header().info.destroy_me;
    // From a file such a volume gets everything: what the file names alone it cannot send if that has come otherwise.
    let rests = volume.has_rest() && !with_data;
    if !is_new && !rests {
        return Ok(());
    }
    let id = volume.id();
    let arrived = on_a_thread(move || partition.arrived(id)).await.map_err(|error| log(&error, id))?;
    let Some(arrived) = arrived else { return Ok(()) };
    let mut telling =
        Telling { arrived, with_data, is_directory: true, next: VnodeNumber(0), left: ARRIVALS_MAX };
    loop {
        let told = on_a_thread(move || telling.next_piece().map(|piece| (piece, telling))).await;
        let (piece, rest) = told.map_err(|error| log(&error, id))?;
        let Some(piece) = piece else { return Ok(()) };
        call.send_data(&piece).await?;
        telling = rest;
    }
}

/// The vnodes that are still to be told.
struct Telling {
    arrived: Arrived,
    with_data: bool,
    is_directory: bool,
    next: VnodeNumber,
    left: usize,
}

impl Telling {
    /// Arrivals; `None` is the end.
    fn next_piece(&mut self) -> Result<Option<Vec<u8>>, VolumeError> {
        loop {
            let most = AT_ONCE.min(self.left);
            let found = self.arrived.vnodes_of_class(self.is_directory, self.next, most)?;
            let Some((last, _)) = found.last() else {
                if self.is_directory && self.left > 0 {
                    (self.is_directory, self.next) = (false, VnodeNumber(0));
                    continue;
                }
                return self.partial();
            };
            (self.is_directory, self.next) = match last.id.vnode.0.checked_add(1) {
                Some(next) => (self.is_directory, VnodeNumber(next)),
                // The last number is odd, so a directory's: files come next.
                None => (false, VnodeNumber(0)),
            };
            self.left -= found.len();
            let mut piece = Vec::with_capacity(found.len() * Arrival::BYTES);
            for (status, acl) in found {
                let Some(digest) = self.digest(&status, acl)? else { continue };
                let arrival = Arrival { vnode: status.id.vnode, bytes: None, digest };
                piece.extend_from_slice(&arrival.to_bytes());
            }
            return Ok(Some(piece));
        }
    }

    fn digest(
        &self,
        status: &VnodeStatus,
        acl: Acl,
    ) -> Result<Option<[u8; Arrival::DIGEST_BYTES]>, VolumeError> {
        let Ok(Some(mut digest)) = VnodeDigest::of(&record(status, acl)) else { return Ok(None) };
        if self.with_data && status.length > 0 {
            let reader = self.arrived.open(status.id, 0, status.length)?;
            let mut bytes = vec![0; READ_AT_ONCE.min(usize::try_from(status.length).unwrap_or(READ_AT_ONCE))];
            let mut at = 0;
            while at < status.length {
                let read = reader.read_at(at, &mut bytes)?;
                if read == 0 {
                    return Ok(None);
                }
                digest.add(&bytes[..read]);
                at += read as u64;
            }
        }
        Ok(Some(digest.end()))
    }

    /// The file that has come in part, once, at the end.
    fn partial(&mut self) -> Result<Option<Vec<u8>>, VolumeError> {
        if std::mem::take(&mut self.is_directory) || self.next == VnodeNumber(u32::MAX) {
            return Ok(None);
        }
        self.next = VnodeNumber(u32::MAX);
        self.left = 0;
        let Some((status, bytes)) = self.arrived.partial() else { return Ok(None) };
        let Ok(Some(mut digest)) = VnodeDigest::of(&record(&status, Acl::default())) else { return Ok(None) };
        if self.with_data {
            let mut piece = vec![0; READ_AT_ONCE];
            let mut at = 0;
            while at < bytes {
                let read = self.arrived.read_partial(at, &mut piece)?;
                if read == 0 {
                    return Ok(None);
                }
                digest.add(&piece[..read]);
                at += read as u64;
            }
        }
        let arrival = Arrival { vnode: status.id.vnode, bytes: Some(bytes), digest: digest.end() };
        Ok(Some(arrival.to_bytes().to_vec()))
    }
}

/// Puts a volume aside that is only half there, when nobody works on it any more.
pub(super) fn put_aside(shared: &Shared, partition: &Partition, volume: &Volume) {
    let (id, name) = (volume.id(), volume.name());
    match partition.put_aside(id, shared.time()) {
        Ok(true) => tracing::info!(volume = %id, name, "what came of a half-made volume is kept for a while"),
        Ok(false) => {}
        // It stays where it is, and goes at the next start.
        Err(error) => tracing::warn!(volume = %id, name, %error, "a half-made volume could not be put aside"),
    }
}

/// Removes what has been aside for too long, or takes room that is needed, and what a restore's end could not remove. The transaction that a
/// volume has may be about to ask for it.
pub(super) fn remove_old(shared: &Shared) {
    for (at, partition) in shared.partitions.iter() {
        if let Err(error) = remove_old_of(shared, at, partition) {
            tracing::warn!(partition = %at, %error, "half-made volumes could not be removed");
        }
    }
}

fn remove_old_of(shared: &Shared, at: PartitionId, partition: &Partition) -> Result<(), VolumeError> {
    undo_restores(shared, at, partition);
    let now = shared.time();
    let mut halves = partition.halves(now)?;
    if halves.is_empty() {
        return Ok(());
    }
    halves.sort_by_key(|half| half.since);
    let space = partition.space()?;
    let mut is_short = space.free_kib < space.total_kib / FREE_PART;
    for Half { volume, name, since, .. } in halves {
        let age = Duration::from_secs(now.0.saturating_sub(since.0).into());
        let is_wanted = shared.transactions().of(volume, at).is_some();
        if is_wanted || (age < shared.config.half_limit && !is_short) {
            continue;
        }
        // The next one goes when this one's space is not enough.
        let because = if is_short { "the partition is nearly full" } else { "nobody went on with it" };
        is_short = false;
        if partition.remove_half(volume)? {
            tracing::info!(%volume, name, partition = %at, because, "what came of a half-made volume was removed");
        }
    }
    Ok(())
}

/// Removes what restores have left in volumes that people use, where their ends could not, as when the disk was full: such a volume shows what it
/// had, and cannot be changed until then.
fn undo_restores(shared: &Shared, at: PartitionId, partition: &Partition) {
    // What rests in a replica is kept for a while.
    let volumes = partition.volumes().into_iter();
    for volume in volumes.filter(|volume| volume.has_rest() && !volume.rests_in_place()) {
        let (id, name) = (volume.id(), volume.header().info.name);
        if shared.transactions().of(id, at).is_some() {
            continue;
        }
        match partition.forget_half(id) {
            Ok(()) => {
                tracing::info!(volume = %id, name, "what a restore has left was removed: the volume can be changed")
            }
            Err(error) => tracing::warn!(
                volume = %id, name, %error,
                "what a restore has left could not be removed: the volume cannot be changed until it is, and that is tried again"
            ),
        }
    }
}
