//! Bytes: fetching and storing them.
//!
//! Data are read as they were when the call came, however slowly the client takes them, and without a copy between the file and
//! the call. What is stored is seen by nobody before all of it has come.

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use afs_volume::{Reader, SetStatus, Store, StoreRange, VnodeStatus, Volume};
use afs_wire::ids::AfsFid;
use afs_wire::rxafs::{self, reply};
use afs_wire::status::{AfsCallBack, AfsFetchStatus, AfsStoreStatus, AfsVolSync, FileType, StoreMask};
use bytes::Bytes;
use rx::{BoxFuture, CallError, ServerCall};
use rxgen::collect::Rest;
use rxgen::serve::{MAX_ARGUMENT_BYTES, receive_arguments};
use rxgen::{Abort, Rpc, Serve, StreamsIn, StreamsOut};

use super::{Outcome, Session, fid_of};
use crate::access::{self, SET_ID};
use crate::callbacks::Kind;
use crate::failure::Failure;
use crate::vnode_locks::VnodeLock;
use rx::blocking::on_a_thread;

/// The bytes that are read or written at once. This is large, so that few system calls and changes of threads are needed; with
/// 1024 calls that all move data, buffers take 256 MiB.
const PIECE_BYTES: usize = 256 << 10;

/// The bytes that a call is given at once: it takes a piece as a whole or not at all.
const SEND_BYTES: usize = 64 << 10;

/// Buffers kept for the next call. New memory has to be cleared and mapped first, which costs more than reading into it.
const MAX_BUFFERS: usize = 64;

/// A store whose data have not come for so long gives way to others that wait for the file, and its client is told VBUSY:
/// it stores again a little later, all of it. As long as a client needs that has lost some packets; one that recovers from
/// an outage needs more, and has it while nobody waits.
const GIVE_WAY_AFTER: Duration = Duration::from_secs(10);

/// The time after that within which a store notices that somebody waits.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The code for a client whose data end before the length that it announced.
const ENDED_EARLY: Failure = Failure::Code(-31);

/// A fetch, in either form.
struct Fetch {
    fid: AfsFid,
    pos: i64,
    length: i64,
    /// True if the length in front of the data has 64 bits.
    is_wide: bool,
}

/// A store, in either form.
struct StoreArgs {
    fid: AfsFid,
    status: AfsStoreStatus,
    range: StoreRange,
}

/// The receiver of fetched data.
trait Sink: Send {
    fn send(&mut self, bytes: Bytes) -> impl Future<Output = Result<(), Abort>> + Send;
}

/// The source of data to be stored.
trait Source: Send {
    /// The checks have passed: stock servers say so in the status byte of their packets (File service notes 6.2).
    fn accepted(&mut self) {}

    /// The next bytes; `None` at their end.
    fn receive(&mut self) -> impl Future<Output = Result<Option<Bytes>, Abort>> + Send;
}

// ---- the calls

/// Answers a fetch on a call whose opcode has been read.
pub(super) async fn answer_fetch<R: FetchRpc>(session: &Session, call: &mut ServerCall) -> Result<(), Abort> {
    let (args, _) = receive_arguments::<R>(call, MAX_ARGUMENT_BYTES).await?;
    let result = session.fetch(args.fetch(), call).await;
    let reply = session.finish_data::<R>(result)?;
    send_reply(call, &reply).await
}

/// Answers a store on a call whose opcode has been read.
pub(super) async fn answer_store<R: StoreRpc>(session: &Session, call: &mut ServerCall) -> Result<(), Abort> {
    let (args, early) = receive_arguments::<R>(call, MAX_ARGUMENT_BYTES).await?;
    let what = session.to_audit(&args);
    let mut source = CallSource { call, early };
    let result = session.store(args.store(), &mut source).await;
    let result = session.finish_data::<R>(result);
    session.audit::<R>(what, result.as_ref().err());
    send_reply(call, &result?).await
}

async fn send_reply<T: rxgen::Xdr>(call: &mut ServerCall, reply: &T) -> Result<(), Abort> {
    Sink::send(call, Bytes::from(rxgen::xdr::to_bytes(reply))).await
}

/// The two forms of FetchData.
pub(super) trait FetchRpc: Rpc<Reply: From<Fetched>> {
    #[expect(private_interfaces, reason = "the forms differ in their arguments only")]
    fn fetch(&self) -> Fetch;
}

/// The two forms of StoreData.
pub(super) trait StoreRpc: Rpc<Reply: From<Stored>> + Debug {
    #[expect(private_interfaces, reason = "the forms differ in their arguments only")]
    fn store(&self) -> StoreArgs;
}

/// The end of a fetch.
pub(super) struct Fetched {
    status: AfsFetchStatus,
    callback: AfsCallBack,
    sync: AfsVolSync,
}

/// The end of a store.
pub(super) struct Stored {
    status: AfsFetchStatus,
    sync: AfsVolSync,
}

macro_rules! forms {
    ($( fetch $fetch:ident $is_wide:literal; )* $( store $store:ident; )*) => {
        $(
            impl FetchRpc for rxafs::$fetch {
                #[expect(private_interfaces, reason = "the forms differ in their arguments only")]
                fn fetch(&self) -> Fetch {
                    let (pos, length) = (i64::from(self.pos), i64::from(self.length));
                    Fetch { fid: self.fid, pos, length, is_wide: $is_wide }
                }
            }

            impl From<Fetched> for reply::$fetch {
                fn from(Fetched { status, callback, sync }: Fetched) -> Self {
                    Self { status, callback, sync }
                }
            }

            impl Serve<rxafs::$fetch> for Session {
                async fn serve(
                    &self,
                    mut call: rxgen::ServerCall<'_, rxafs::$fetch>,
                    args: rxafs::$fetch,
                ) -> Result<reply::$fetch, Abort> {
                    let result = self.fetch(args.fetch(), &mut call).await;
                    self.finish_data::<rxafs::$fetch>(result)
                }
            }
        )*
        $(
            impl StoreRpc for rxafs::$store {
                #[expect(private_interfaces, reason = "the forms differ in their arguments only")]
                fn store(&self) -> StoreArgs {
                    let range = StoreRange {
                        position: u64::from(self.pos),
                        length: u64::from(self.length),
                        file_length: u64::from(self.file_length),
                    };
                    StoreArgs { fid: self.fid, status: self.status, range }
                }
            }

            impl From<Stored> for reply::$store {
                fn from(Stored { status, sync }: Stored) -> Self {
                    Self { status, sync }
                }
            }

            impl Serve<rxafs::$store> for Session {
                async fn serve(
                    &self,
                    mut call: rxgen::ServerCall<'_, rxafs::$store>,
                    args: rxafs::$store,
                ) -> Result<reply::$store, Abort> {
                    let what = self.to_audit(&args);
                    let result = self.store(args.store(), &mut call).await;
                    let result = self.finish_data::<rxafs::$store>(result);
                    self.audit::<rxafs::$store>(what, result.as_ref().err());
                    result
                }
            }
        )*
    };
}

forms! {
    fetch FetchData false;
    fetch FetchData64 true;
    store StoreData;
    store StoreData64;
}

/// The reason why a call that moves data ends early: the service's decision, or the end of the call itself.
enum Ended {
    Failed(Failure),
    Gone(Abort),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Session {
    fn finish_data<R: Rpc>(&self, result: Result<impl Into<R::Reply>, Ended>) -> Result<R::Reply, Abort> {
        match result {
            Ok(reply) => self.finish::<R>(Ok(reply.into())),
            Err(Ended::Failed(failure)) => self.finish::<R>(Err(failure)),
            Err(Ended::Gone(abort)) => {
                self.note_call(R::OPCODE, Some(Failure::IO));
                Err(abort)
            }
        }
    }

    // ---- fetching

    async fn fetch(&self, args: Fetch, sink: &mut impl Sink) -> Result<Fetched, Ended> {
        let Fetch { fid, pos, length, is_wide } = args;
        let (Ok(pos), Ok(length)) = (u64::try_from(pos), u64::try_from(length)) else {
            return Err(Failure::TOO_BIG.into());
        };
        // The old form has 31 bits for a length in any case, as its argument has.
        let volume = self.volume(fid)?;
        let open = || self.open_to_read(&volume, fid, pos, length);
        let ((reader, status), callback) = self.promised(&volume, fid, Kind::Single, open)?;
        let length = length.min(status.length.saturating_sub(pos));
        let prefix =
            if is_wide { length.to_be_bytes().to_vec() } else { (length as u32).to_be_bytes().to_vec() };
        sink.send(prefix.into()).await.map_err(Ended::Gone)?;
        self.send_data(&volume, Arc::new(reader), pos, length, sink).await?;
        self.moved.fetched.fetch_add(length, Ordering::Relaxed);
        self.server.statistics.note_fetched(length, self.took());
        Ok(Fetched { status, callback, sync: Self::sync(&volume) })
    }

    /// Opens a vnode for a caller who may read it, and says what it was then.
    fn open_to_read(
        &self,
        volume: &Arc<Volume>,
        fid: AfsFid,
        pos: u64,
        length: u64,
    ) -> Outcome<(Reader, AfsFetchStatus)> {
        let seen = self.look(volume, fid)?;
        access::fetch_data(&self.caller(), &seen.subject, || self.volume_owner(volume))?;
        let reader = volume.open((&fid).into(), pos, length).map_err(|error| self.failed(volume, error))?;
        let status = self.fetch_status(fid, reader.status(), seen.granted);
        Ok((reader, status))
    }

    async fn send_data(
        &self,
        volume: &Arc<Volume>,
        reader: Arc<Reader>,
        mut pos: u64,
        mut left: u64,
        sink: &mut impl Sink,
    ) -> Result<(), Ended> {
        while left > 0 {
            let length = left.min(PIECE_BYTES as u64) as usize;
            let mut buffer = self.server.buffers.take(length);
            let source = Arc::clone(&reader);
            let is_in_memory = reader.is_in_memory();
            let read = move || {
                let read = source.read_at(pos, &mut buffer.bytes[..length]);
                (read, buffer)
            };
            let (read, buffer) = if is_in_memory {
                read()
            } else if length <= SEND_BYTES {
                // Most often it is in the system's memory, and the way to a thread costs more than the copy.
                self.server.inline.run(&*self.server.runtime, read).await
            } else {
                on_a_thread(read).await
            };
            let read = read.map_err(|error| self.failed(volume, error))?;
            if read < length {
                // The status says that there is more.
                tracing::error!(
                    volume = volume.id().0,
                    pos,
                    length,
                    read,
                    "a file has less data than it should"
                );
                return Err(Failure::IO.into());
            }
            let mut bytes = Bytes::from_owner(Filled { buffer, length });
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(SEND_BYTES));
                sink.send(piece).await.map_err(Ended::Gone)?;
            }
            pos += length as u64;
            left -= length as u64;
        }
        Ok(())
    }

    // ---- storing

    async fn store(&self, args: StoreArgs, source: &mut impl Source) -> Result<Stored, Ended> {
        let StoreArgs { fid, status, range } = args;
        let volume = self.writable(fid)?;
        let lock = self.lock_vnode(fid).await;
        let seen = self.look(&volume, fid)?;
        if seen.subject.file_type != FileType::FILE {
            return Err(Failure::IS_DIRECTORY.into());
        }
        let caller = self.caller();
        access::store_data(&caller, &seen.subject, &status)?;
        if range.position.checked_add(range.length).is_none() {
            return Err(Failure::TOO_BIG.into());
        }
        let mut set = self.to_set(&status);
        if set.mode.is_none() && seen.subject.mode & SET_ID != 0 {
            set.mode = Some(access::stored_mode(&caller, seen.subject.mode) as u16);
        }
        source.accepted();
        // It reads rows, as all that looks at a vnode does, and nothing more: no thread is worth that.
        let store = volume.begin_store((&fid).into(), range).map_err(|error| self.failed(&volume, error))?;
        let store = self.receive_data(&volume, &lock, store, range.length, source).await?;
        let is_synced = status.mask.contains(StoreMask::FSYNC);
        let stored = self.commit(&volume, store, set, is_synced).await?;
        drop(lock);
        self.moved.stored.fetch_add(range.length, Ordering::Relaxed);
        self.server.statistics.note_stored(range.length, self.took());
        self.tell_others(fid_of(volume.id(), stored.id), self.break_deadline()).await;
        Ok(Stored { status: self.fetch_status(fid, &stored, seen.granted), sync: Self::sync(&volume) })
    }

    /// Receives exactly as much as was announced. What comes in packets is gathered to large pieces, as each piece written
    /// costs a system call.
    async fn receive_data(
        &self,
        volume: &Arc<Volume>,
        lock: &VnodeLock,
        mut store: Store,
        mut left: u64,
        source: &mut impl Source,
    ) -> Result<Store, Ended> {
        let mut rest = Bytes::new();
        while store.is_in_memory() && left > 0 {
            let next = self.receive(lock, source).await?;
            let mut next = next.ok_or(Ended::Failed(ENDED_EARLY))?;
            next.truncate(usize::try_from(left).map_or(next.len(), |left| left.min(next.len())));
            store.write(&next).map_err(|error| self.failed(volume, error))?;
            left -= next.len() as u64;
        }
        while left > 0 {
            let length = left.min(PIECE_BYTES as u64) as usize;
            let mut buffer = self.server.buffers.take(length);
            let mut filled = 0;
            while filled < length {
                if rest.is_empty() {
                    let next = self.receive(lock, source).await?;
                    rest = next.ok_or(Ended::Failed(ENDED_EARLY))?;
                }
                let part = rest.split_to(rest.len().min(length - filled));
                buffer.bytes[filled..filled + part.len()].copy_from_slice(&part);
                filled += part.len();
            }
            let written;
            (written, store) = on_a_thread(move || {
                let written = store.write(&buffer.bytes[..length]);
                (written, store)
            })
            .await;
            written.map_err(|error| self.failed(volume, error))?;
            left -= length as u64;
        }
        Ok(store)
    }

    /// The next bytes of a store; see [`GIVE_WAY_AFTER`].
    async fn receive(&self, lock: &VnodeLock, source: &mut impl Source) -> Result<Option<Bytes>, Ended> {
        let mut receive = pin!(source.receive());
        let mut alarm: Option<BoxFuture> = None;
        poll_fn(move |cx| {
            if let Poll::Ready(received) = receive.as_mut().poll(cx) {
                return Poll::Ready(received.map_err(Ended::Gone));
            }
            loop {
                // Most often the bytes are there: only who waits sets the alarm.
                let runtime = &self.server.runtime;
                let alarm = alarm.get_or_insert_with(|| runtime.sleep_until(runtime.now() + GIVE_WAY_AFTER));
                ready!(alarm.as_mut().poll(cx));
                if lock.is_wanted() {
                    return Poll::Ready(Err(Failure::BUSY.into()));
                }
                *alarm = runtime.sleep_until(runtime.now() + LOOK_AGAIN);
            }
        })
        .await
    }

    async fn commit(
        &self,
        volume: &Arc<Volume>,
        store: Store,
        set: SetStatus,
        is_synced: bool,
    ) -> Outcome<VnodeStatus> {
        let stamp = self.stamp();
        self.change(volume, move |_| store.commit(&set, stamp, is_synced)).await
    }
}

// ---- streams

impl Sink for ServerCall {
    async fn send(&mut self, bytes: Bytes) -> Result<(), Abort> {
        (**self).send(bytes).await.map_err(abort_of)
    }
}

impl<R: StreamsOut> Sink for rxgen::ServerCall<'_, R> {
    async fn send(&mut self, bytes: Bytes) -> Result<(), Abort> {
        self.send_data(&bytes).await
    }
}

/// A call's data: first what came along with the arguments.
struct CallSource<'a> {
    call: &'a mut ServerCall,
    early: Rest,
}

impl Source for CallSource<'_> {
    fn accepted(&mut self) {
        self.call.set_status(1);
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, Abort> {
        if !self.early.is_empty() {
            return Ok(Some(early(&mut self.early)));
        }
        self.call.recv().await.map_err(abort_of)
    }
}

/// Reads what came in the packet of the arguments: at most a few kilobytes.
fn early(rest: &mut Rest) -> Bytes {
    let mut bytes = vec![0; 4096];
    let length = rest.read(&mut bytes);
    bytes.truncate(length);
    bytes.into()
}

impl<R: StreamsIn> Source for rxgen::ServerCall<'_, R> {
    async fn receive(&mut self) -> Result<Option<Bytes>, Abort> {
        let mut bytes = vec![0; 16 << 10];
        let length = self.receive_data(&mut bytes).await?;
        bytes.truncate(length);
        Ok((length > 0).then(|| bytes.into()))
    }
}

fn abort_of(error: CallError) -> Abort {
    Abort(error.code().0)
}

// ---- buffers

/// Buffers of [`PIECE_BYTES`] that were used before.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A buffer, given back when it is dropped.
struct Buffer {
    bytes: Vec<u8>,
    free: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The part of a buffer that was filled.
struct Filled {
    buffer: Buffer,
    length: usize,
}

impl Buffers {
    /// A buffer for so many bytes. Small ones are made as they are needed.
    fn take(&self, length: usize) -> Buffer {
        let used = || self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = if length < PIECE_BYTES {
            vec![0; length]
        } else {
            used().unwrap_or_else(|| vec![0; PIECE_BYTES])
        };
        Buffer { bytes, free: Arc::clone(&self.free) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bytes.len() == PIECE_BYTES && free.len() < MAX_BUFFERS {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_when_the_last_piece_of_it_was_sent() {
        let buffers = Buffers::default();
        let count = || buffers.free.lock().unwrap().len();
        let mut bytes = Bytes::from_owner(Filled { buffer: buffers.take(PIECE_BYTES), length: PIECE_BYTES });
        let first = bytes.split_to(10);
        drop(bytes);
        assert_eq!(count(), 0);
        drop(first);
        assert_eq!(count(), 1);
        drop(buffers.take(100));
        assert_eq!(count(), 1, "small ones are not kept");
        let many: Vec<Buffer> = (0..2 * MAX_BUFFERS).map(|_| buffers.take(PIECE_BYTES)).collect();
        assert_eq!(count(), 0);
        drop(many);
        assert_eq!(count(), MAX_BUFFERS);
    }
}
