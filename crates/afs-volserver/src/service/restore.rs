//! Dumps, received into a volume: `Restore`, and `RestoreRest` which goes on with one that broke off. The volume is seen with all of the dump or
//! as it was. If the call ends early, all that came is removed before the transaction can be used again; of a volume that is half-made it
//! is kept instead, unseen (see `halves`).

use afs_volume::VolumeError;
use afs_wire::afsvol::{Restore, RestoreCookie, RestoreRest, reply};
use afs_wire::ids::{TransId, VnodeNumber, VolumeId};
use futures_util::future::join;
use rxgen::{Abort, Serve, ServerCall, StreamsIn};

use super::change::{kind_of, volume_name};
use super::order::{self, Caller};
use super::{InUse, VolumeService, log, refused};
use crate::codes;
use crate::restore::{Filler, Identity, RestoreFailed};
use rx::blocking::{in_background, on_a_thread};

/// The bytes that are taken from a call at once. Two of these are in memory for each restore: one goes to the disk while the other comes.
const PIECE_BYTES: usize = 256 << 10;

impl Serve<Restore> for VolumeService {
    async fn serve(&self, mut call: ServerCall<'_, Restore>, args: Restore) -> Result<reply::Restore, Abort> {
        // The flags say nothing: an incremental dump names what stays.
        self.receive_dump(&mut call, args.trans, args.cookie, Begin::Anew).await?;
        Ok(reply::Restore {})
    }
}

impl Serve<RestoreRest> for VolumeService {
    async fn serve(
        &self,
        mut call: ServerCall<'_, RestoreRest>,
        args: RestoreRest,
    ) -> Result<reply::RestoreRest, Abort> {
        let RestoreRest { trans, cookie, vnode, bytes } = args;
        let begin = Begin::WithWhatCame((bytes > 0).then_some((vnode, bytes)));
        self.receive_dump(&mut call, trans, cookie, begin).await?;
        Ok(reply::RestoreRest {})
    }
}

/// The contents of a volume at the beginning of a restore.
#[derive(Debug, Clone, Copy)]
enum Begin {
    /// The contents that it shows, or none.
    Anew,
    /// The vnodes that came before, and so many bytes of a file.
    WithWhatCame(Option<(VnodeNumber, u64)>),
}

/// A restore and its transaction, which outlasts it: what came is removed first if this is dropped.
struct Going {
    filler: Option<Filler>,
    in_use: Option<InUse>,
}

impl Drop for Going {
    fn drop(&mut self) {
        if let Some(filler) = self.filler.take() {
            let in_use = self.in_use.take();
            in_background(move || {
                drop(filler);
                drop(in_use);
            });
        }
    }
}

impl VolumeService {
    /// Fills a volume, and writes it to the logs. If the caller vanishes meanwhile, the transaction ends: what came is kept for the next attempt.
    async fn receive_dump<R: StreamsIn>(
        &self,
        call: &mut ServerCall<'_, R>,
        id: TransId,
        cookie: RestoreCookie,
        begin: Begin,
    ) -> Result<(), Abort> {
        let caller = Caller::of(call);
        let mut details = format!("as {}", order::printable(cookie.name.text()));
        if let Begin::WithWhatCame(_) = begin {
            details.push_str(", with what came before");
        }
        let about = self.in_transaction(id, details);
        let result = match self.must_be_superuser(caller.name()) {
            Ok(()) => {
                let result = self.restore(call, id, cookie, begin).await;
                if result.is_err() && call.caller_is_gone() {
                    self.end_for_gone(id).await;
                }
                result
            }
            Err(code) => Err(code),
        };
        about.tell(R::NAME, &caller, result.as_ref().err().map_or(0, |abort| abort.0));
        let volume = result?;
        self.tell(volume).await;
        Ok(())
    }

    async fn restore<R: StreamsIn>(
        &self,
        call: &mut ServerCall<'_, R>,
        id: TransId,
        cookie: RestoreCookie,
        begin: Begin,
    ) -> Result<VolumeId, Abort> {
        let name = volume_name(cookie.name.text().to_vec())?.ok_or(codes::BAD_NAME)?;
        let kind = kind_of(cookie.kind).ok_or(codes::EINVAL)?;
        let identity = Identity { name, kind, clone: cookie.clone };
        let shared = std::sync::Arc::clone(&self.shared);
        let transaction = shared.transactions().take(shared.now(), id, R::NAME).map_err(refused)?;
        let mut in_use = InUse { shared, transaction, is_over: false };
        let moved = in_use.transaction.moved.clone();
        let mut going = on_a_thread(move || {
            let begun = in_use.volume().and_then(|(partition, volume)| {
                let begun = match begin {
                    Begin::Anew => partition.begin_restore(volume.id()),
                    Begin::WithWhatCame(_) => partition
                        .resume_restore(volume.id())
                        .and_then(|restore| restore.ok_or(VolumeError::NoVolume(volume.id()))),
                };
                begun.map_err(|error| log(&error, volume.id()))
            });
            let rest = match begin {
                Begin::Anew => None,
                Begin::WithWhatCame(rest) => rest,
            };
            match begun {
                Ok(restore) => {
                    Ok(Going { filler: Some(Filler::new(restore, identity, rest)), in_use: Some(in_use) })
                }
                Err(code) => {
                    in_use.note_failure(code);
                    Err(code)
                }
            }
        })
        .await?;
        let shared = &self.shared;
        let mut piece = shared.unless_ended(&moved, receive(call)).await?;
        while !piece.is_empty() {
            moved.add_received(piece.len());
            let (fed, next) = join(feed(going, piece), shared.unless_ended(&moved, receive(call))).await;
            going = fed?;
            piece = next?;
        }
        on_a_thread(move || {
            let finished = going.filler.take().map_or(Ok(()), Filler::finish);
            going.conclude(finished)
        })
        .await
    }
}

impl Going {
    /// Notes how it went.
    fn conclude(&mut self, result: Result<(), RestoreFailed>) -> Result<VolumeId, Abort> {
        let Some(in_use) = &mut self.in_use else { return Err(codes::READ_DUMP_ERROR) };
        let volume = in_use.transaction.volume;
        match result {
            Ok(()) => {
                in_use.transaction.is_changed = true;
                in_use.transaction.is_for_good = true;
                Ok(volume)
            }
            Err(error) => {
                tracing::warn!(%volume, %error, "a volume was not restored, and is as it was");
                let code = match error {
                    RestoreFailed::Volume { error: VolumeError::DiskFull, .. } => codes::VDISKFULL,
                    RestoreFailed::Volume { .. } | RestoreFailed::Dump(_) => codes::READ_DUMP_ERROR,
                };
                in_use.note_failure(code);
                Err(code)
            }
        }
    }
}

/// The next piece of the dump; an empty one at its end.
async fn receive<R: StreamsIn>(call: &mut ServerCall<'_, R>) -> Result<Vec<u8>, Abort> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut filled = 0;
    while filled < piece.len() {
        match call.receive_data(&mut piece[filled..]).await? {
            0 => break,
            length => filled += length,
        }
    }
    piece.truncate(filled);
    Ok(piece)
}

async fn feed(mut going: Going, piece: Vec<u8>) -> Result<Going, Abort> {
    on_a_thread(move || {
        let Some(filler) = &mut going.filler else { return Ok(going) };
        match filler.feed(&piece) {
            Ok(()) => Ok(going),
            Err(error) => {
                // What came is removed here, where it may take its time. It may be wrong, or the disk full.
                going.filler.take().into_iter().for_each(Filler::give_up);
                Err(going.conclude(Err(error)).err().unwrap_or(codes::READ_DUMP_ERROR))
            }
        }
    })
    .await
}
