//! One call of a load generator, of rxperf's or a file server's: makes it, counts what it carries as it goes, and watches for how
//! long it stands still. When to call and what for is the generator's.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use afs_wire::ids::AfsFid;
use afs_wire::rxafs::{FetchData64, StoreData64};
use afs_wire::status::AfsStoreStatus;
use bytes::Bytes;
use rx::{CallError, Peer};
use rxperf::{MAGIC, Request};
use tokio::time::Sleep;

/// The time between two looks at a call that waits: a stall is measured that exactly.
const TICK: Duration = Duration::from_millis(10);
/// Bytes of a write, ours and the server's.
const PIECE: usize = 64 << 10;

static ZEROES: [u8; PIECE] = [0; PIECE];

/// The progress of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    started: Instant,
    moved: Instant,
    from: Instant,
    longest: Duration,
    bytes: u64,
}

impl Watch {
    /// Watches a call that begins now, with an eye on what happens from a time on.
    pub(super) fn new(now: Instant, from: Instant) -> Watch {
        Watch { started: now, moved: now, from, longest: Duration::ZERO, bytes: 0 }
    }

    /// The time for which nothing has come by now, of the time that counts.
    fn stands(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved.max(self.from))
    }

    /// The call has carried so many bytes in all; returns how many of them are new.
    fn reach(&mut self, now: Instant, bytes: u64) -> u64 {
        let new = bytes.saturating_sub(self.bytes);
        if new > 0 {
            self.longest = self.longest.max(self.stands(now));
            (self.moved, self.bytes) = (now, bytes);
        }
        new
    }

    /// The longest time without progress of a call that ends now: a gap that still lasts counts.
    pub(super) fn longest_stall(&self, now: Instant) -> Duration {
        self.longest.max(self.stands(now))
    }

    /// The time that it has taken by now.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now - self.started
    }
}

/// The server that is called.
#[derive(Clone, Debug)]
pub(super) struct Callee {
    pub(super) peer: Peer,
    pub(super) service: Service,
}

/// The use that a service makes of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// rxperf: takes and makes them.
    Rxperf,
    /// A file server: they are this file's, from its beginning on; what is sent is all of it.
    File(AfsFid),
}

impl Service {
    /// The call by which so many bytes are sent or received.
    fn exchange(self, is_sender: bool, size: u32) -> Exchange {
        let (send, receive) = if is_sender { (u64::from(size), 0) } else { (0, u64::from(size)) };
        let (opening, lead, is_reply): (_, _, IsReply) = match self {
            Service::Rxperf => {
                let request = if is_sender { Request::Send(size) } else { Request::Receive(size) };
                let is_reply: IsReply = |_, reply| reply == MAGIC.to_be_bytes();
                (request.encode((PIECE as u32, PIECE as u32)), 0, is_reply)
            }
            Service::File(fid) if is_sender => {
                let status = AfsStoreStatus::default();
                let request = StoreData64 { fid, status, pos: 0, length: send, file_length: send };
                let is_reply: IsReply = |_, reply| rxgen::decode_reply::<StoreData64>(reply).is_ok();
                (rxgen::encode_request(&request), 0, is_reply)
            }
            Service::File(fid) => {
                let request = FetchData64 { fid, pos: 0, length: i64::from(size) };
                // Before the data their number, the high word first.
                let is_reply: IsReply = |exchange, reply| {
                    exchange.led == exchange.receive.to_be_bytes()
                        && rxgen::decode_reply::<FetchData64>(reply).is_ok()
                };
                (rxgen::encode_request(&request), LEAD_OF_FETCH, is_reply)
            }
        };
        Exchange {
            opening: opening.into(),
            send,
            lead,
            receive,
            is_reply,
            led: Vec::new(),
            reply: Vec::new(),
            got: 0,
        }
    }
}

/// True if this is how such a call ends.
type IsReply = fn(&Exchange, &[u8]) -> bool;

/// The data that go to and fro in a call.
struct Exchange {
    opening: Bytes,
    /// Bytes sent behind it.
    send: u64,
    /// Bytes that come before those that are wanted.
    lead: usize,
    receive: u64,
    is_reply: IsReply,
    /// The bytes that have come: those before the wanted ones, the wanted ones, and those behind them.
    led: Vec<u8>,
    got: u64,
    reply: Vec<u8>,
}

impl Exchange {
    /// Takes what has come.
    fn take(&mut self, bytes: &[u8]) {
        let (lead, rest) = bytes.split_at(bytes.len().min(self.lead - self.led.len()));
        self.led.extend_from_slice(lead);
        let (wanted, reply) = rest.split_at((self.receive - self.got).min(rest.len() as u64) as usize);
        self.got += wanted.len() as u64;
        let room = LONGEST_REPLY.saturating_sub(self.reply.len());
        self.reply.extend(reply.iter().take(room));
    }
}

/// Makes a call that sends or receives so many bytes. They are added to `counter` when they are acknowledged (sending) or read.
/// Returns whether it came to its end; false if `is_over` was set before, which breaks it off.
pub(super) async fn call(
    callee: &Callee,
    is_sender: bool,
    size: u32,
    counter: &AtomicU64,
    is_over: &AtomicBool,
    watch: &mut Watch,
) -> Result<bool, CallError> {
    let mut ticker = Ticker::new();
    let mut call = loop {
        match ticker.or_tick(callee.peer.call()).await {
            Some(call) => break call?,
            None if is_over.load(Ordering::Relaxed) => return Ok(false),
            None => (),
        }
    };
    let mut exchange = callee.service.exchange(is_sender, size);
    let opening_len = exchange.opening.len() as u64;
    let mut reach = |bytes: u64| {
        counter.fetch_add(watch.reach(Instant::now(), bytes), Ordering::Relaxed);
    };
    call.send(exchange.opening.clone()).await?;
    let mut left = exchange.send;
    while left > 0 {
        let piece = Bytes::from_static(&ZEROES[..left.min(PIECE as u64) as usize]);
        let len = piece.len() as u64;
        match ticker.or_tick(call.send(piece)).await {
            Some(Ok(())) => left -= len,
            // It refuses, and says why.
            Some(Err(CallError::NotSending { .. })) => break,
            Some(Err(error)) => return Err(error),
            None => (),
        }
        reach(call.stats().bytes_acked.saturating_sub(opening_len));
        if is_over.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    call.finish()?;
    let mut acked = 0;
    loop {
        match ticker.or_tick(call.recv()).await {
            Some(Ok(Some(bytes))) => exchange.take(&bytes),
            Some(Ok(None)) => break,
            Some(Err(error)) => return Err(error),
            None => (),
        }
        if acked < exchange.send {
            acked = call.stats().bytes_acked.saturating_sub(opening_len).min(exchange.send);
        }
        reach(acked + exchange.got);
        if is_over.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    if left > 0 || exchange.got < exchange.receive || !(exchange.is_reply)(&exchange, &exchange.reply) {
        return Err(CallError::StreamEnded { peer: call.peer() });
    }
    reach(exchange.send + exchange.receive);
    Ok(true)
}

/// Bytes before those that FetchData64 asks for: their number.
const LEAD_OF_FETCH: usize = 8;
/// More than any reply has that ends a call here: what is longer is none.
const LONGEST_REPLY: usize = 512;

/// Breaks off waits that last, so that a call is looked at while it stands still. One timer for all of a call: a new one for each
/// piece that comes was a twentieth of what a generator's process does.
struct Ticker(Pin<Box<Sleep>>);

impl Ticker {
    fn new() -> Ticker {
        Ticker(Box::pin(tokio::time::sleep(TICK)))
    }

    /// Returns the result of a wait that may be broken off and repeated; none if it is time to look.
    async fn or_tick<T>(&mut self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        poll_fn(|context| {
            if let Poll::Ready(value) = wait.as_mut().poll(context) {
                return Poll::Ready(Some(value));
            }
            ready!(self.0.as_mut().poll(context));
            self.0.as_mut().reset(tokio::time::Instant::now() + TICK);
            Poll::Ready(None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_brings_a_number_data_and_a_reply_however_they_are_cut() {
        let fid = AfsFid::root_of(afs_wire::ids::VolumeId(1));
        let stream = [&1000_u64.to_be_bytes()[..], &[7; 1000], &[9; 120]].concat();
        for cut in [1, 7, 8, 9, 1000, 1007, 1128] {
            let mut exchange = Service::File(fid).exchange(false, 1000);
            stream.chunks(cut).for_each(|piece| exchange.take(piece));
            assert_eq!(exchange.led, 1000_u64.to_be_bytes(), "cut to {cut}");
            assert_eq!((exchange.got, exchange.reply.as_slice()), (1000, &[9; 120][..]), "cut to {cut}");
            assert!((exchange.is_reply)(&exchange, &exchange.reply), "any numbers are a status");
            assert!(!(exchange.is_reply)(&exchange, &exchange.reply[..119]));
            exchange.led[7] ^= 1;
            assert!(!(exchange.is_reply)(&exchange, &exchange.reply), "of another length than was asked for");
        }
    }

    #[test]
    fn a_reply_without_end_is_not_kept() {
        let mut exchange = Service::Rxperf.exchange(true, 10);
        exchange.take(&MAGIC.to_be_bytes());
        assert!((exchange.is_reply)(&exchange, &exchange.reply));
        (0..100).for_each(|_| exchange.take(&[0; 1000]));
        assert_eq!(exchange.reply.len(), LONGEST_REPLY);
        assert!(!(exchange.is_reply)(&exchange, &exchange.reply));
    }

    #[test]
    fn a_stall_is_the_longest_time_without_new_bytes_also_at_the_end() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut watch = Watch::new(start, start);
        assert_eq!(watch.reach(at(30), 1000), 1000);
        assert_eq!(watch.reach(at(50), 1000), 0);
        assert_eq!(watch.reach(at(110), 1500), 500);
        assert_eq!(watch.longest_stall(at(120)), Duration::from_millis(80));
        assert_eq!(watch.longest_stall(at(210)), Duration::from_millis(100));
        assert_eq!(watch.age(at(210)), Duration::from_millis(210));
    }

    #[test]
    fn a_stall_counts_from_when_it_is_looked_at() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut watch = Watch::new(start, at(1000));
        assert_eq!((watch.reach(at(900), 1), watch.longest_stall(at(950))), (1, Duration::ZERO));
        assert_eq!(
            (watch.reach(at(1100), 2), watch.longest_stall(at(1110))),
            (1, Duration::from_millis(100))
        );
        assert_eq!(watch.longest_stall(at(1300)), Duration::from_millis(200));
    }
}
