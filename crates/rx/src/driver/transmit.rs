//! Sending what a shard has to send, by whichever thread is at hand, in order.
//!
//! Whoever changed something that may have to be sent calls [`Driver::transmit`]. It raises `tx_wanted`, then tries to take
//! the `tx` lock. Who gets it lowers the flag and sends until the protocol has nothing more, again while the flag is up,
//! lets go of the lock, and looks at the flag once more: who failed to take the lock meanwhile has raised the flag before.
//! So for each change there is somebody who looks for things to send after it:
//!
//! - Either the one who made it gets the lock.
//! - Or the lock was held then, by somebody who looks at the flag after having let it go. "Flag up, then lock seen taken" on
//!   one side and "lock free, then flag seen down" on the other cannot both happen: the fences order each side's two steps.
//!
//! Handing over to the worker instead would cost a wake-up of another core, 20 to 40 µs, for each write.
//!
//! When several callers are woken at once, each goes on to make its next call, and a system call for each would cost more than
//! all else. What they send is gathered: the one who woke them starts a task behind them, and nobody of them sends until it has
//! run. Their replies may have come from different servers; who sends for another reason meanwhile sends theirs too.
//!
//! An application's thread sends a bounded amount before it leaves the rest to the worker, so that a short call is not kept
//! busy with the data of others.

use std::net::IpAddr;
use std::sync::atomic::{Ordering, fence};
use std::sync::{PoisonError, TryLockError};

use rx_proto::endpoint::Transmission;

use super::Driver;
use crate::metrics::add;
use crate::shard::{Outcome, Shard};
use crate::socket::{SendError, Transmit};

/// Bundles made under one lock: about 30 µs at 16 packets each.
const BUNDLES_PER_LOCK: usize = 8;

/// Locks, hence eight bundles each, after which the worker goes on: about 6 MB.
const ROUNDS_PER_TURN: usize = 32;

/// Bytes after which it does so already if something has come meanwhile: an ACK or a request that waits behind megabytes of others'
/// data makes a round trip long that the network has not made so. ACKs that are sent are too short to reach it.
const TURN_BESIDE_ARRIVALS: usize = 512 << 10;

/// Bundles between the protocol and the socket.
#[derive(Debug, Default)]
pub(crate) struct TxBuffer {
    bundles: [Vec<u8>; BUNDLES_PER_LOCK],
    heads: Vec<(Transmission, Option<IpAddr>)>,
}

/// The end of one turn of sending.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Done,
    MoreToSend,
}

impl Driver {
    /// Sends what there is, or has the thread that is sending do so.
    pub(super) fn transmit(&self, shard: &Shard) {
        shard.tx_wanted.store(true, Ordering::SeqCst);
        loop {
            fence(Ordering::SeqCst);
            let mut tx = match shard.tx.try_lock() {
                Ok(tx) => tx,
                Err(TryLockError::Poisoned(error)) => PoisonError::into_inner(error),
                Err(TryLockError::WouldBlock) => return,
            };
            let mut turn = Turn::Done;
            while turn == Turn::Done && shard.tx_wanted.swap(false, Ordering::SeqCst) {
                turn = self.send_turn(shard, &mut tx);
            }
            drop(tx);
            if turn == Turn::MoreToSend {
                // The worker always calls this before it sleeps.
                return self.wake(shard);
            }
            fence(Ordering::SeqCst);
            if !shard.tx_wanted.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// As [`Self::transmit`], unless others are about to send too: then the task does it that stands behind all of them.
    pub(super) fn transmit_with_others(&self, shard: &Shard) {
        // Who ends the gathering transmits after it: a change that was made before is seen by then.
        if !shard.is_gathering.load(Ordering::SeqCst) {
            self.transmit(shard);
        }
    }

    /// Returns whether it was not gathered already.
    pub(super) fn begin_gathering(&self, shard: &Shard) -> bool {
        !shard.is_gathering.swap(true, Ordering::SeqCst)
    }

    /// Has what is gathered sent by a task. Tasks that are woken from outside of their runtime run about in the order in which
    /// they were woken.
    pub(super) fn end_gathering_after_others(&self, shard: &Shard) {
        let (me, index) = (self.me.clone(), shard.index);
        self.runtime.spawn(Box::pin(async move {
            if let Some(driver) = me.upgrade() {
                let shard = &driver.shards[index];
                shard.is_gathering.store(false, Ordering::SeqCst);
                driver.transmit(shard);
            }
        }));
    }

    fn send_turn(&self, shard: &Shard, tx: &mut TxBuffer) -> Turn {
        let mut sent = 0;
        for _ in 0..ROUNDS_PER_TURN {
            let is_last = self.fill(shard, tx);
            for (bundle, &(head, src_ip)) in tx.bundles.iter().zip(&tx.heads) {
                self.send(shard, bundle, head, src_ip);
                sent += bundle.len();
            }
            if is_last {
                return Turn::Done;
            }
            if sent >= TURN_BESIDE_ARRIVALS && self.has_arrivals(shard) {
                break;
            }
        }
        Turn::MoreToSend
    }

    /// True if something has come that is not worked through: for the worker, or still in the socket, where the receiving thread
    /// itself sends.
    fn has_arrivals(&self, shard: &Shard) -> bool {
        !shard.lock_queue().datagrams.is_empty() || self.port.queued_bytes() > 0
    }

    /// Has the protocol make some bundles; returns whether it has no more.
    fn fill(&self, shard: &Shard, tx: &mut TxBuffer) -> bool {
        tx.heads.clear();
        let mut state = shard.lock();
        let now = self.runtime.now();
        let mut is_last = false;
        for bundle in &mut tx.bundles {
            let Some(head) = state.endpoint.poll_transmit(now, bundle) else {
                is_last = true;
                break;
            };
            tx.heads.push((head, state.local_ip(head.to)));
        }
        let outcome = state.take_outcome();
        let wants_earlier = is_last && shard.wants_earlier(&state);
        drop(state);
        self.settle_wakes(outcome);
        if wants_earlier {
            self.wake(shard);
        }
        is_last
    }

    fn settle_wakes(&self, outcome: Outcome) {
        debug_assert!(outcome.incoming.is_empty(), "calls come in by packets, not by sending");
        outcome.wakers.into_iter().for_each(std::task::Waker::wake);
    }

    fn send(&self, shard: &Shard, contents: &[u8], head: Transmission, src_ip: Option<IpAddr>) {
        let transmit = Transmit { to: head.to, src_ip, segment_size: Some(head.segment_len), contents };
        match self.port.send(&transmit, head.dont_fragment) {
            Ok(()) => {
                add(&self.counters.bundles_sent, 1);
                add(&self.counters.bytes_sent, contents.len() as u64);
            }
            Err(SendError::TooLarge { to, bytes }) => {
                add(&self.counters.send_too_large, 1);
                shard.lock().endpoint.handle_too_large(to, bytes);
                // What it has become too large for may be cut smaller now.
                shard.tx_wanted.store(true, Ordering::SeqCst);
            }
            // As if lost in the network.
            Err(SendError::Full { .. }) => add(&self.counters.send_full, 1),
            Err(error @ (SendError::Unreachable { .. } | SendError::Io { .. })) => {
                add(&self.counters.send_failed, 1);
                tracing::debug!(%error, "a packet was not sent");
            }
        }
    }
}
