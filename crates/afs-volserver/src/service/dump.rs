//! Dumps, sent to the caller: `Dump` and `DumpV2`. The volume is read as it was at the call, so clients go on meanwhile, and the disk
//! works on the next piece while the last one is sent.

use afs_wire::afsvol::{AttachFlags, Dump, DumpFlags, DumpV2, reply};
use afs_wire::ids::{SecurityLevel, TransId};
use futures_util::future::join;
use rxgen::{Abort, Serve, ServerCall, StreamsOut};

use super::order::{self, Caller};
use super::{InUse, VolumeService, log, refused, settle};
use crate::codes;
use crate::dump::{self, DumpFailed, Wanted};
use rx::blocking::on_a_thread;

/// The bytes that are read at once. Two of these are in memory for each dump: one is filled while the other is sent.
pub(super) const PIECE_BYTES: usize = 256 << 10;

impl Serve<Dump> for VolumeService {
    async fn serve(&self, mut call: ServerCall<'_, Dump>, args: Dump) -> Result<reply::Dump, Abort> {
        let Dump { from_trans, from_date } = args;
        let wanted = Wanted { from: from_date, ..Wanted::default() };
        self.dump(&mut call, from_trans, wanted, "Dump").await?;
        Ok(reply::Dump {})
    }
}

impl Serve<DumpV2> for VolumeService {
    async fn serve(&self, mut call: ServerCall<'_, DumpV2>, args: DumpV2) -> Result<reply::DumpV2, Abort> {
        let DumpV2 { from_trans, from_date, flags } = args;
        let omits_directories = flags.contains(DumpFlags::OMIT_DIRS);
        let wanted = Wanted { from: from_date, omits_directories, ..Wanted::default() };
        self.dump(&mut call, from_trans, wanted, "DumpV2").await?;
        Ok(reply::DumpV2 {})
    }
}

impl VolumeService {
    async fn dump<R: StreamsOut>(
        &self,
        call: &mut ServerCall<'_, R>,
        id: TransId,
        wanted: Wanted,
        procedure: &'static str,
    ) -> Result<(), Abort> {
        let caller = Caller::of(call);
        let about = self.in_transaction(id, order::changed_since(wanted.from));
        let result = match self.must_be_superuser(caller.name()) {
            Ok(()) => {
                let result = self.send_dump(call, id, wanted, procedure).await;
                if result.is_err() && call.caller_is_gone() {
                    self.end_for_gone(id).await;
                }
                result
            }
            Err(code) => Err(code),
        };
        about.tell(R::NAME, &caller, result.err().map_or(0, |abort| abort.0));
        result
    }

    async fn send_dump<R: StreamsOut>(
        &self,
        call: &mut ServerCall<'_, R>,
        id: TransId,
        wanted: Wanted,
        procedure: &'static str,
    ) -> Result<(), Abort> {
        let shared = std::sync::Arc::clone(&self.shared);
        let transaction = shared.transactions().take(shared.now(), id, procedure).map_err(refused)?;
        let mut in_use = InUse { shared, transaction, is_over: false };
        let moved = in_use.transaction.moved.clone();
        let result = self.shared.unless_ended(&moved, send(call, &in_use, wanted)).await;
        if let Err(code) = &result {
            in_use.transaction.return_code = code.0;
        }
        result
    }
}

async fn send<R: StreamsOut>(
    call: &mut ServerCall<'_, R>,
    in_use: &InUse,
    wanted: Wanted,
) -> Result<(), Abort> {
    let (_, volume) = in_use.volume()?;
    volume.check_level(SecurityLevel(call.level().into())).map_err(|error| log(&error, volume.id()))?;
    let is_busy = in_use.transaction.attach.contains(AttachFlags::BUSY);
    let frozen = on_a_thread(move || {
        let frozen = volume.freeze().map_err(|error| log(&error, volume.id()))?;
        if is_busy {
            // What they change from now on is not in the dump, so clients need not wait for its end.
            settle(&volume);
        }
        Ok(frozen)
    })
    .await?;
    let mut next = fill(dump::Dump::new(frozen, wanted), Vec::new()).await?;
    loop {
        let (dump, piece) = next;
        if piece.is_empty() {
            return Ok(());
        }
        let (filled, sent) = join(fill(dump, Vec::with_capacity(PIECE_BYTES)), call.send_data(&piece)).await;
        sent?;
        in_use.transaction.moved.add_sent(piece.len());
        next = filled?;
    }
}

/// The next piece; an empty one at the end.
pub(super) async fn fill(mut dump: dump::Dump, mut piece: Vec<u8>) -> Result<(dump::Dump, Vec<u8>), Abort> {
    on_a_thread(move || match dump.fill(&mut piece, PIECE_BYTES) {
        Ok(()) => Ok((dump, piece)),
        Err(error) => {
            tracing::error!(%error, "a volume could not be dumped");
            Err(match error {
                DumpFailed::Volume(_) | DumpFailed::Write(_) | DumpFailed::Short(_) => codes::DUMP_ERROR,
            })
        }
    })
    .await
}
