//! A call: the stream that this end sends, the one that it receives, and the waiting for both. What differs between the two
//! ends is in `client` and `server`.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::{CallHandle, CallStats, Read};
use rx_proto::ids::ServiceId;
use rx_proto::path::PeerKind;
use rx_proto::time::{Instant, STOOD_STILL};
use rx_proto::trace::Trace;

use crate::driver::Driver;
use crate::error::CallError;
use crate::in_time::{CATCH_UP, STANDSTILLS};
use crate::metrics::{CallResult, Ending, Measured};
use crate::runtime::BoxFuture;
use crate::shard::{Shard, State};

/// The bytes that a read takes from the protocol at once, to be handed out without its lock. A slow reader holds so much beyond
/// the receive window.
const READ_AT_ONCE_BYTES: usize = 128 << 10;

/// Bytes copied into one piece of a stream: large enough that few packets are cut across two pieces.
const COPY_BYTES: usize = 128 << 10;

/// One end of a call. A task has it alone: reading and writing wait one after the other, as the request comes before the
/// reply. What was sent fills whole packets until the stream is ended or flushed.
///
/// All waiting can be cancelled and repeated: what `send` has not taken is still the caller's, and what `recv` has not
/// returned is still in the call.
pub struct Call {
    pub(crate) driver: Arc<Driver>,
    pub(crate) shard: usize,
    pub(crate) handle: CallHandle,
    peer: SocketAddr,
    service: ServiceId,
    is_client: bool,
    /// Received, in order, and not given out.
    received: VecDeque<Bytes>,
    receive_ended: bool,
    send_ended: bool,
    /// Something was written since the last flush.
    unflushed: bool,
    error: Option<CallError>,
    deadline: Option<Deadline>,
    measured: Measured,
}

struct Deadline {
    at: Instant,
    timer: Option<BoxFuture>,
    /// The number of times that it was put off because this process had stood still.
    standstills: u32,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("peer", &self.peer).field("handle", &self.handle).finish_non_exhaustive()
    }
}

/// Changes a call. What callers send may go out with what others send; a server's reply does not wait.
fn with<T>(
    driver: &Driver,
    shard: &Shard,
    is_client: bool,
    verb: impl FnOnce(&mut State, Instant) -> T,
) -> T {
    if is_client { driver.with_others(shard, verb) } else { driver.with(shard, verb) }
}

impl Call {
    pub(crate) fn new(
        driver: Arc<Driver>,
        shard: usize,
        handle: CallHandle,
        peer: SocketAddr,
        service: ServiceId,
        is_client: bool,
        measured: Measured,
    ) -> Self {
        Self {
            driver,
            shard,
            handle,
            peer,
            service,
            is_client,
            received: VecDeque::new(),
            receive_ended: false,
            send_ended: false,
            unflushed: false,
            error: None,
            deadline: None,
            measured,
        }
    }

    fn with<T>(&self, verb: impl FnOnce(&mut State, Instant) -> T) -> T {
        with(&self.driver, self.shard(), self.is_client, verb)
    }

    fn shard(&self) -> &Shard {
        &self.driver.shards[self.shard]
    }

    // ---- facts

    /// The address of the other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The service that is called, as it was asked for.
    pub fn service(&self) -> ServiceId {
        self.service
    }

    /// Figures of the call; zeros once it is gone.
    pub fn stats(&self) -> CallStats {
        self.shard().lock().endpoint.call_stats(self.handle).unwrap_or_default()
    }

    /// The smoothed and the smallest round-trip time to the peer, as far as known.
    pub fn rtt(&self) -> Option<(Duration, Duration)> {
        let state = self.shard().lock();
        let rtt = state.endpoint.path_of(self.handle)?.rtt();
        rtt.is_known().then(|| (rtt.smoothed(), rtt.min()))
    }

    /// Tells whether the peer has announced itself as one of our own (docs/rx-extensions.md): then one call carries all that
    /// the path does, and else at most 32 packets, or 255, at a time. `None` before the peer has said anything of itself.
    pub fn peer_is_own(&self) -> Option<bool> {
        let state = self.shard().lock();
        match state.endpoint.path_of(self.handle)?.peer_kind() {
            PeerKind::Unknown => None,
            PeerKind::Stock => Some(false),
            PeerKind::Own => Some(true),
        }
    }

    /// The status byte that the peer's last packet carried; `None` once the call is gone.
    pub fn peer_status(&self) -> Option<u8> {
        self.shard().lock().endpoint.peer_status(self.handle)
    }

    /// The time of the peer's last packet of the call; `None` once the call has failed or is gone.
    pub fn heard_at(&self) -> Option<Instant> {
        self.shard().lock().endpoint.heard_at(self.handle)
    }

    /// The time of the last ping of the call that its peer has answered, which says that it was there then; `None` once the call has failed or is
    /// gone.
    pub fn answered_at(&self) -> Option<Instant> {
        self.shard().lock().endpoint.answered_at(self.handle)
    }

    /// Sets the status byte that this end's packets carry from now on.
    pub fn set_status(&mut self, status: u8) {
        self.shard().lock().endpoint.set_status(self.handle, status);
    }

    /// Gives the call until then: later its waiting ends with [`CallError::DeadlinePassed`], and it is aborted. What has come by
    /// then is still given out, and a process that stood still has a moment more to read it. Replaces an earlier deadline.
    pub fn set_deadline(&mut self, at: Instant) {
        self.deadline = Some(Deadline { at, timer: None, standstills: 0 });
    }

    /// Gives the call this long from now.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.set_deadline(self.driver.runtime.now() + timeout);
    }

    /// Sets how long the call waits for its peer from now on, in place of what its connection has.
    pub fn set_limits(&mut self, limits: CallLimits) {
        self.with(|state, _| state.endpoint.set_call_limits(self.handle, limits));
    }

    // ---- looking at it

    /// Begins to record what happens in the call from now on: see [`rx_proto::trace`].
    ///
    /// # Errors
    ///
    /// When the call is gone.
    pub fn trace(&mut self) -> Result<(), CallError> {
        let traced = self.with(|state, now| state.endpoint.trace_call(now, self.handle));
        traced.map_err(|error| CallError::of(error, self.peer, self.service))
    }

    /// Takes what was recorded and ends the recording. `None` if there was none. To be asked before the call is let go, also
    /// after it has failed.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.shard().lock().endpoint.take_trace(self.handle)
    }

    // ---- sending

    /// Sends these bytes, without copying them. Waits before taking them while the peer or the network does not keep up:
    /// what was taken and not acknowledged is limited by [`send_buffer`](rx_proto::config::Config::send_buffer) and twice
    /// the path's window, so pieces are best not much larger than some 100 kB.
    ///
    /// # Errors
    ///
    /// [`CallError::NotSending`] once a server's reply has begun, for which it need not have read all: read it. Others when
    /// the call has failed.
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), CallError> {
        let mut bytes = bytes;
        poll_fn(|cx| self.poll_send(cx, &mut bytes)).await
    }

    /// Sends a copy of these bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn write_all(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        for piece in bytes.chunks(COPY_BYTES) {
            self.send(Bytes::copy_from_slice(piece)).await?;
        }
        Ok(())
    }

    /// Takes `bytes` out if they may be sent now.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<Result<(), CallError>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = self.check_deadline(cx) {
            return Poll::Ready(Err(error));
        }
        let handle = self.handle;
        let (received, is_client) = (&mut self.received, self.is_client);
        let shard = &self.driver.shards[self.shard];
        let polled = with(&self.driver, shard, is_client, |state, now| {
            if state.is_closed {
                return Poll::Ready(Err(Refusal::Closed));
            }
            if let Some(error) = state.endpoint.call_error(handle) {
                return Poll::Ready(Err(Refusal::Failed(error)));
            }
            if !state.endpoint.takes_bytes(handle) {
                return Poll::Ready(Err(Refusal::NotSending));
            }
            if state.is_write_blocked(handle) {
                if is_client {
                    // A reply that begins early ends the request: to hear of it, wait for something to read too.
                    match state.endpoint.read(now, handle) {
                        Ok(Read::Data(bytes)) => {
                            received.push_back(bytes);
                            return Poll::Ready(Err(Refusal::NotSending));
                        }
                        Ok(Read::End) => return Poll::Ready(Err(Refusal::NotSending)),
                        Ok(Read::Blocked) => {}
                        Err(error) => return Poll::Ready(Err(Refusal::Failed(error))),
                    }
                }
                state.wait_for_call(handle, cx.waker());
                return Poll::Pending;
            }
            let goes_on = state.endpoint.write(now, handle, mem::take(bytes)).map_err(Refusal::Failed)?;
            state.set_write_blocked(handle, !goes_on);
            Poll::Ready(Ok(()))
        });
        self.unflushed |= matches!(polled, Poll::Ready(Ok(())));
        polled.map_err(|refusal| self.note(refusal))
    }

    /// Sends what was written though it fills no packet.
    ///
    /// # Errors
    ///
    /// When the call has failed.
    pub fn flush(&mut self) -> Result<(), CallError> {
        let flushed = self.with(|state, now| state.endpoint.flush(now, self.handle));
        self.unflushed = false;
        flushed.map_err(|error| self.note(Refusal::Failed(error)))
    }

    /// Ends the stream that this end sends. Does nothing the second time. The end of a server's reply is that of its
    /// handler.
    ///
    /// # Errors
    ///
    /// When the call has failed.
    pub fn finish(&mut self) -> Result<(), CallError> {
        if mem::replace(&mut self.send_ended, true) {
            return Ok(());
        }
        self.unflushed = false;
        let finished = self.with(|state, now| state.endpoint.finish(now, self.handle));
        finished.map_err(|error| self.note(Refusal::Failed(error)))
    }

    // ---- receiving

    /// The next piece of the peer's stream, usually a packet's, without copying; `None` at its end.
    ///
    /// # Errors
    ///
    /// When the call has failed. What came before is given out first.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, CallError> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// See [`Self::recv`].
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        if let Some(bytes) = self.received.pop_front() {
            return Poll::Ready(Ok(Some(bytes)));
        }
        if self.receive_ended {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = self.error {
            return Poll::Ready(Err(error));
        }
        let handle = self.handle;
        let flushes = mem::take(&mut self.unflushed);
        let (received, receive_ended) = (&mut self.received, &mut self.receive_ended);
        let shard = &self.driver.shards[self.shard];
        let failed = with(&self.driver, shard, self.is_client, |state, now| {
            if state.is_closed {
                return Some(Refusal::Closed);
            }
            if flushes {
                // The peer may wait for it before it answers.
                let _ = state.endpoint.flush(now, handle);
            }
            let mut taken = 0;
            while taken < READ_AT_ONCE_BYTES {
                match state.endpoint.read(now, handle) {
                    Ok(Read::Data(bytes)) => {
                        taken += bytes.len();
                        received.push_back(bytes);
                    }
                    Ok(Read::End) => {
                        *receive_ended = true;
                        break;
                    }
                    Ok(Read::Blocked) => {
                        if taken == 0 {
                            state.wait_for_call(handle, cx.waker());
                        }
                        break;
                    }
                    Err(error) => return Some(Refusal::Failed(error)),
                }
            }
            None
        });
        if let Some(refusal) = failed {
            self.note(refusal);
        }
        match self.received.pop_front() {
            Some(bytes) => Poll::Ready(Ok(Some(bytes))),
            None if self.receive_ended => Poll::Ready(Ok(None)),
            None => match self.error.map_or_else(|| self.check_deadline(cx), Err) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }

    /// Puts the bytes that came next at the start of `out`; 0 is the end, or an empty `out`.
    ///
    /// # Errors
    ///
    /// As [`Self::recv`].
    pub async fn read(&mut self, out: &mut [u8]) -> Result<usize, CallError> {
        poll_fn(|cx| self.poll_read(cx, out)).await
    }

    /// See [`Self::read`].
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<Result<usize, CallError>> {
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        match self.poll_recv(cx) {
            Poll::Ready(Ok(Some(mut bytes))) => {
                let length = bytes.len().min(out.len());
                bytes.copy_to_slice(&mut out[..length]);
                self.unread(bytes);
                Poll::Ready(Ok(length))
            }
            Poll::Ready(Ok(None)) => Poll::Ready(Ok(0)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Fills all of `out`.
    ///
    /// # Errors
    ///
    /// [`CallError::StreamEnded`] if the stream ends before that, and as [`Self::recv`].
    pub async fn read_exact(&mut self, out: &mut [u8]) -> Result<(), CallError> {
        let mut filled = 0;
        while filled < out.len() {
            filled += match self.read(&mut out[filled..]).await? {
                0 => return Err(CallError::StreamEnded { peer: self.peer }),
                length => length,
            };
        }
        Ok(())
    }

    /// Reads everything up to the end, if it is no more than `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`CallError::StreamTooLong`] if it is more, and as [`Self::recv`].
    pub async fn read_to_end(&mut self, limit: usize) -> Result<Vec<u8>, CallError> {
        let mut all = Vec::new();
        while let Some(bytes) = self.recv().await? {
            if all.len() + bytes.len() > limit {
                return Err(CallError::StreamTooLong { peer: self.peer, limit });
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }

    /// Becomes ready when the call has failed. What has come and was not read stays.
    pub(crate) fn poll_failure(&mut self, cx: &mut Context<'_>) -> Poll<CallError> {
        let handle = self.handle;
        let failed = self.with(|state, _| {
            if state.is_closed {
                return Some(Refusal::Closed);
            }
            let failed = state.endpoint.call_error(handle).map(Refusal::Failed);
            if failed.is_none() {
                state.wait_for_call(handle, cx.waker());
            }
            failed
        });
        failed.map_or(Poll::Pending, |refusal| Poll::Ready(self.note(refusal)))
    }

    /// Puts back what was received and not used: it comes next.
    pub fn unread(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.received.push_front(bytes);
        }
    }

    // ---- ending

    /// Ends the call with a code for the peer.
    pub fn abort(&mut self, code: AbortCode) {
        self.with(|state, now| state.endpoint.abort(now, self.handle, code));
    }

    /// A server's call has got its handler.
    pub(crate) fn note_handler_begins(&self) {
        let waited = self.driver.runtime.now().since(self.measured.started);
        self.measured.meters.note_handler_wait(waited);
    }

    /// Lets a client's call go; aborted if it is not through.
    pub(crate) fn release(&mut self) {
        let (handle, started) = (self.handle, self.measured.started);
        let ending = self.with(|state, now| {
            let ending = ending_of(&state.endpoint, handle, now.since(started), None);
            state.endpoint.release(now, handle);
            state.remove_call(handle);
            ending
        });
        self.measured.meters.note_end(&ending);
    }

    /// Looks at the deadline, and has the task woken when it passes.
    fn check_deadline(&mut self, cx: &mut Context<'_>) -> Result<(), CallError> {
        let Some(deadline) = &mut self.deadline else { return Ok(()) };
        let runtime = &self.driver.runtime;
        loop {
            let timer = deadline.timer.get_or_insert_with(|| runtime.sleep_until(deadline.at));
            let now = runtime.now();
            if now < deadline.at && timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            if now.since(deadline.at) < STOOD_STILL || deadline.standstills >= STANDSTILLS {
                break;
            }
            // The answer may wait in the socket.
            deadline.standstills += 1;
            (deadline.at, deadline.timer) = (now + CATCH_UP, None);
        }
        self.deadline = None;
        self.abort(AbortCode::CALL_TIMEOUT);
        let error = CallError::DeadlinePassed { peer: self.peer, service: self.service };
        Err(*self.error.get_or_insert(error))
    }

    /// Remembers why the call failed: the first reason is the one that is told from then on.
    fn note(&mut self, refusal: Refusal) -> CallError {
        let error = match refusal {
            Refusal::NotSending => return CallError::NotSending { peer: self.peer },
            Refusal::Closed => CallError::EndpointClosed,
            Refusal::Failed(error) => CallError::of(error, self.peer, self.service),
        };
        *self.error.get_or_insert(error)
    }
}

/// Returns what the metrics record of a call that is about to be let go. `handled` is what a server's handler came to;
/// a client's call is through when the reply has been read.
pub(crate) fn ending_of(
    endpoint: &rx_proto::endpoint::Endpoint,
    handle: CallHandle,
    duration: Duration,
    handled: Option<bool>,
) -> Ending {
    let stats = endpoint.call_stats(handle).unwrap_or_default();
    let result = match endpoint.call_error(handle) {
        Some(error) => CallResult::of_error(error),
        None if handled.unwrap_or(stats.is_read) => CallResult::Ok,
        None => CallResult::Aborted,
    };
    let rtt = endpoint.path_of(handle).map(|path| path.rtt());
    let rtt = rtt.filter(|rtt| rtt.is_known()).map(|rtt| rtt.latest());
    Ending { result, duration, send_wait: stats.send_wait, rtt }
}

/// The reason why the protocol refuses a request about a call.
enum Refusal {
    Closed,
    NotSending,
    Failed(rx_proto::CallError),
}
