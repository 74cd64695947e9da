//! One rxperf call of a load generator: makes it, counts what it carries as it goes, and watches for how long it stands
//! still. When to call and what for is the generator's.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rx::{CallError, Peer};
use rxperf::{MAGIC, Request};

/// How often a call that waits is looked at: a stall is measured that exactly.
const TICK: Duration = Duration::from_millis(10);
/// Bytes of a write, ours and the server's.
const PIECE: usize = 64 << 10;

static ZEROES: [u8; PIECE] = [0; PIECE];

/// How a call gets on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    started: Instant,
    moved: Instant,
    from: Instant,
    longest: Duration,
    bytes: u64,
}

impl Watch {
    /// Of a call that begins now, with an eye on what happens from a time on.
    pub(super) fn new(now: Instant, from: Instant) -> Watch {
        Watch { started: now, moved: now, from, longest: Duration::ZERO, bytes: 0 }
    }

    /// For how long nothing has come by now, of the time that counts.
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

    /// How long it takes by now.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now - self.started
    }
}

/// Makes a call. Bytes are added to `counter` when they are acknowledged (sending) or read. Returns whether it came to its
/// end; false if `is_over` was set before, which breaks it off.
pub(super) async fn call(
    peer: &Peer,
    request: &Request,
    counter: &AtomicU64,
    is_over: &AtomicBool,
    watch: &mut Watch,
) -> Result<bool, CallError> {
    let mut call = loop {
        match tick(peer.call()).await {
            Some(call) => break call?,
            None if is_over.load(Ordering::Relaxed) => return Ok(false),
            None => (),
        }
    };
    let opening = Bytes::from(request.encode((PIECE as u32, PIECE as u32)));
    let opening_len = opening.len() as u64;
    let (send, receive) = request.bytes();
    let mut reach = |bytes: u64| {
        counter.fetch_add(watch.reach(Instant::now(), bytes), Ordering::Relaxed);
    };
    call.send(opening).await?;
    let mut left = send;
    while left > 0 {
        let piece = Bytes::from_static(&ZEROES[..left.min(PIECE as u64) as usize]);
        let len = piece.len() as u64;
        if let Some(sent) = tick(call.send(piece)).await {
            sent?;
            left -= len;
        }
        reach(call.stats().bytes_acked.saturating_sub(opening_len));
        if is_over.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    call.finish()?;
    let (mut got, mut tail) = (0, Vec::<u8>::new());
    loop {
        match tick(call.recv()).await {
            Some(Ok(Some(bytes))) => {
                let data = receive.saturating_sub(got).min(bytes.len() as u64) as usize;
                tail.extend(bytes[data..].iter().take(MAGIC_LEN + 1));
                got += bytes.len() as u64;
            }
            Some(Ok(None)) => break,
            Some(Err(error)) => return Err(error),
            None => (),
        }
        let acked = call.stats().bytes_acked.saturating_sub(opening_len);
        reach(acked.min(send) + got.min(receive));
        if is_over.load(Ordering::Relaxed) {
            return Ok(false);
        }
    }
    if tail != MAGIC.to_be_bytes() {
        return Err(CallError::StreamEnded { peer: call.peer() });
    }
    reach(send + receive);
    Ok(true)
}

/// Length of what ends a reply.
const MAGIC_LEN: usize = 4;

/// What comes of a wait that may be broken off and repeated; none if it takes long.
async fn tick<T>(wait: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(TICK, wait).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
