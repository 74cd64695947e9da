//! Trains: packets sent back to back, whose spread on arrival shows the rate of the path's narrowest link long before that
//! rate is reached (docs/decisions/0001). Which of a path's packets belong to one, and what their ACKs say. When one is
//! wanted the congestion controller says.

use crate::packet::MAX_PACKET_LEN;
use crate::time::Instant;

/// Rounds after which a train whose ACKs do not all come is given up.
const TIMEOUT_ROUNDS: u32 = 3;

/// The train under way, or the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Train {
    id: u32,
    /// The bytes of it that are still to be sent.
    budget: u64,
    allowance: u64,
    /// Rounds that have begun since it was sent.
    rounds: u32,
    sent: u64,
    started: Instant,
    ended: Instant,
    acked: u64,
    first_acked: u64,
    first_acked_at: Instant,
}

impl Train {
    /// The bytes by which the flight may exceed its window: else ACKs would trickle the train out.
    pub(crate) const fn allowance(&self) -> u64 {
        self.allowance
    }

    /// A packet of `len` bytes goes out for the first time. Returns the train that it belongs to, or 0.
    pub(crate) fn handle_sent(&mut self, now: Instant, len: u64) -> u32 {
        if self.budget < len {
            return 0;
        }
        self.budget -= len;
        if self.sent == 0 {
            self.started = now;
        }
        self.sent += len;
        self.ended = now;
        self.id
    }

    /// A round of the path has begun, or not; `wanted` is the length of train that the controller would have. Returns whether
    /// a new train may leave now. There is one a round at most, and the one before must have arrived: its ACKs open the next
    /// round.
    pub(crate) fn handle_round(&mut self, round_started: bool, wanted: u64) -> bool {
        self.rounds += u32::from(round_started);
        let is_under_way = self.acked < self.sent && self.rounds < TIMEOUT_ROUNDS;
        if self.rounds == 0 || is_under_way {
            return false;
        }
        if wanted == 0 {
            self.allowance = 0;
            return false;
        }
        *self = Self { id: self.id % u32::MAX + 1, budget: wanted, allowance: wanted, ..Self::default() };
        true
    }

    /// Notes that so many bytes of train `id` arrived. Once all of it did, returns the rate of the narrowest link, in bytes a
    /// second.
    pub(crate) fn handle_acked(&mut self, now: Instant, (id, bytes): (u32, u64)) -> Option<u64> {
        if id == 0 || id != self.id || bytes == 0 {
            return None;
        }
        if self.acked == 0 {
            (self.first_acked, self.first_acked_at) = (bytes, now);
        }
        self.acked += bytes;
        if self.acked < self.sent || self.budget > 2 * MAX_PACKET_LEN as u64 {
            return None;
        }
        let spread = now.since(self.first_acked_at);
        let sending = self.ended.since(self.started);
        let after_first = self.acked - self.first_acked;
        // A train that we were slow to send, or that came as one piece, shows nothing.
        if spread < sending + sending / 2 || after_first < self.acked / 2 {
            return None;
        }
        Some((u128::from(after_first) * 1_000_000_000 / spread.as_nanos().max(1)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PACKET: u64 = 1444;

    fn at(us: u64) -> Instant {
        Instant::ORIGIN + Duration::from_micros(us)
    }

    /// Sends a train of 128 packets, `send_us` apart, and has them acknowledged by fours, `ack_us` apart.
    fn run(send_us: u64, ack_us: u64) -> Option<u64> {
        let mut train = Train::default();
        assert!(train.handle_round(true, 128 * PACKET));
        let ids: Vec<u32> = (0..130).map(|i| train.handle_sent(at(i * send_us), PACKET)).collect();
        assert_eq!(ids.iter().filter(|id| **id == 1).count(), 128);
        assert!(!train.handle_round(true, 128 * PACKET), "the first is under way");
        (0..32).filter_map(|i| train.handle_acked(at(20_000 + i * ack_us), (1, 4 * PACKET))).last()
    }

    #[test]
    fn the_spread_of_a_train_is_the_rate_of_the_link() {
        // Four packets each 47 us are 983 Mbit/s.
        assert_eq!(run(0, 47).map(|rate| rate * 8 / 1_000_000), Some(983));
    }

    #[test]
    fn a_train_sent_slowly_or_come_as_one_piece_shows_nothing() {
        assert_eq!(run(12, 47), None);
        let mut train = Train::default();
        train.handle_round(true, 128 * PACKET);
        (0..128).for_each(|_| assert_eq!(train.handle_sent(at(0), PACKET), 1));
        assert_eq!(train.handle_acked(at(20_000), (1, 128 * PACKET)), None);
    }

    #[test]
    fn a_lost_train_is_given_up_after_three_rounds() {
        let mut train = Train::default();
        train.handle_round(true, 128 * PACKET);
        (0..128).for_each(|_| assert_eq!(train.handle_sent(at(0), PACKET), 1));
        let next: Vec<bool> = (0..3).map(|_| train.handle_round(true, 128 * PACKET)).collect();
        assert_eq!(next, [false, false, true]);
    }
}
