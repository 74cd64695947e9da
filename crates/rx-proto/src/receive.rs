//! The receiving half of a call: puts packets in order, keeps the window, and decides when to acknowledge. To stock peers
//! by OpenAFS's rule (Rx notes 7.4), to peers of our own less often. What an ACK says of the stream is
//! in `answer`, what is offered while room is short in `grants`; what an ACK says of the path is not its business.

mod answer;
mod grants;

use crate::ack::AckReason;
use crate::ids::{Seq, Serial};
use crate::packet::{Flags, Header};
use crate::ranges::Ranges;
use crate::time::Instant;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

pub(crate) use answer::AckForm;

/// Packets after which a stock peer gets an ACK at once.
const STOCK_EVERY: u32 = 2;
/// The longest time for which an ACK to a stock peer may wait (Rx notes 7.4).
const STOCK_DELAY: Duration = Duration::from_millis(100);
/// Packets after which a peer of our own gets an ACK.
const OWN_EVERY: u32 = 4;
/// The longest time for which an ACK to a peer of our own may wait. It also waits for a quarter of the round trip at most, except
/// at the end of a short stream: what the peer does next does not wait for it.
const OWN_DELAY: Duration = Duration::from_millis(5);
/// With a window or flight this small every packet is acknowledged at once: the sender may be waiting for it.
const SMALL_FLIGHT: u32 = 8;
/// The window, as a multiple of what the application took in the last round trip: the sender doubles each round, and learns of the
/// window a round late.
const WINDOW_HEADROOM: u32 = 4;

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Received {
    /// It is new and in order: there is more to read.
    Readable,
    /// It is new and something before it is missing.
    Held,
    Duplicate,
    /// Beyond the window, or after the end: dropped.
    Refused,
}

/// An ACK that is due.
#[derive(Clone, Copy, Debug)]
struct Due {
    reason: AckReason,
    serial: Serial,
    /// The peer asked for it: it may be long.
    full: bool,
}

/// The path's facts that matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathView {
    pub(crate) is_own: bool,
    /// The peer reads ranges.
    pub(crate) takes_ranges: bool,
    pub(crate) rtt: Duration,
}

/// The receiving half of a call.
#[derive(Debug)]
pub(crate) struct Receive {
    /// In order and unread.
    ready: VecDeque<Bytes>,
    /// The next packet in order; packets behind it, by their distance.
    next: Seq,
    later: VecDeque<Option<Bytes>>,
    later_count: u32,
    /// The packets among them that have arrived.
    beyond: Ranges,
    last: Option<Seq>,
    highest: Seq,
    /// Memory for so many packets from the first unread one on.
    window: u32,
    /// The last packet that ACKs allow. Moves with the window, or by grants alone if it is gated.
    granted: Seq,
    is_gated: bool,
    /// Packets that have not come and that nobody offered while the window was gated, the last of them before this one: the
    /// peer goes by an older offer, or by what it was offered in the call before.
    uninvited: u32,
    uninvited_to: Seq,
    /// The last packet that was ever allowed: it may come though it is not offered any more.
    accepts: Seq,
    /// The end of what the last ACK allowed.
    told: Seq,
    unacked: u32,
    newest_serial: Serial,
    due: Option<Due>,
    deadline: Option<Instant>,
    /// Packets the application took since `measured_from`.
    taken: u32,
    measured_from: Instant,
    bytes: u64,
    /// Bytes that are here and not read, in order or not.
    unread: u64,
}

impl Receive {
    pub(crate) fn new(now: Instant, window: u32) -> Self {
        Self {
            ready: VecDeque::new(),
            next: Seq::FIRST,
            later: VecDeque::new(),
            later_count: 0,
            beyond: Ranges::default(),
            last: None,
            highest: Seq(0),
            window,
            granted: Seq(window),
            is_gated: false,
            uninvited: 0,
            uninvited_to: Seq(0),
            accepts: Seq(window),
            told: Seq(0),
            unacked: 0,
            newest_serial: Serial::NONE,
            due: None,
            deadline: None,
            taken: 0,
            measured_from: now,
            bytes: 0,
            unread: 0,
        }
    }

    /// True if the whole stream has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| last < self.next)
    }

    /// True if the whole stream has been read.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_complete() && self.ready.is_empty()
    }

    pub(crate) const fn has_begun(&self) -> bool {
        self.highest.0 > 0
    }

    pub(crate) fn is_readable(&self) -> bool {
        !self.ready.is_empty() || self.is_complete()
    }

    /// True if packets are held that have not been read.
    pub(crate) fn has_unread(&self) -> bool {
        !self.ready.is_empty() || self.later_count > 0
    }

    /// True if that packet has come.
    pub(crate) fn has(&self, seq: Seq) -> bool {
        match seq.after(self.next) {
            None => true,
            Some(distance) => self.later.get(distance as usize).is_some_and(Option::is_some),
        }
    }

    /// Bytes that are here and have not been read.
    pub(crate) const fn unread_bytes(&self) -> u64 {
        self.unread
    }

    /// The number of packets that are missing before others that came.
    pub(crate) fn holes(&self) -> u32 {
        self.highest.after(self.next).map_or(0, |beyond| beyond + 1 - self.later_count)
    }

    /// The first packet that has not come.
    pub(crate) const fn next(&self) -> Seq {
        self.next
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    /// Bytes received in order so far.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Allows a window of at least this many packets.
    pub(crate) fn grow_window(&mut self, packets: u32) {
        self.window = self.window.max(packets);
        self.follow_reader();
    }

    /// Grants what there is memory for, unless grants are needed.
    fn follow_reader(&mut self) {
        if !self.is_gated {
            self.granted = self.granted.max(self.first_unread().plus(self.window - 1));
            self.accepts = self.accepts.max(self.granted);
        }
    }

    fn first_unread(&self) -> Seq {
        Seq(self.next.0 - self.ready.len() as u32)
    }

    /// A DATA packet came, its payload opened.
    pub(crate) fn handle_data(
        &mut self,
        now: Instant,
        header: &Header,
        payload: Bytes,
        path: PathView,
    ) -> Received {
        let asks = header.flags.contains(Flags::REQUEST_ACK);
        let last = header.flags.contains(Flags::LAST_PACKET);
        let Some(distance) = header.seq.after(self.next) else {
            self.acknowledge_now(AckReason::DUPLICATE, header.serial);
            return Received::Duplicate;
        };
        let beyond_end = self.last.is_some_and(|end| header.seq > end) || (last && header.seq < self.highest);
        if header.seq > self.accepts || beyond_end {
            // Linux 7.2 takes a refusal before anything was accepted for a sign of a moved NAT (Linux Rx notes 5.1).
            if self.has_begun() {
                self.acknowledge_now(AckReason::EXCEEDS_WINDOW, header.serial);
            }
            return Received::Refused;
        }
        if last {
            self.last = Some(header.seq);
        }
        // Under an older offer more may come than is granted now; what was sent may always be sent again.
        self.note_invitation(header.seq);
        self.newest_serial = header.serial;
        if distance > 0 {
            let index = distance as usize;
            if self.later.len() <= index {
                self.later.resize(index + 1, None);
            }
            if self.later[index].is_some() {
                self.acknowledge_now(AckReason::DUPLICATE, header.serial);
                return Received::Duplicate;
            }
            self.unread += payload.len() as u64;
            self.later[index] = Some(payload);
            self.later_count += 1;
            self.beyond.insert(header.seq..header.seq.plus(1), |_| ());
            // A peer that reads ranges hears at once of what is new: a hole, or one that is filled. Under loss there always
            // are holes, and an ACK for each packet behind them would say nothing more.
            let is_news = header.seq != self.highest.plus(1);
            self.highest = self.highest.max(header.seq);
            self.unacked += 1;
            if asks || is_news || !path.takes_ranges {
                self.acknowledge_now(AckReason::OUT_OF_SEQUENCE, header.serial);
            } else {
                self.acknowledge_by_rule(now, path, last);
            }
            self.note_asked(asks);
            return Received::Held;
        }
        self.highest = self.highest.max(header.seq);
        let filled_hole = self.later_count > 0;
        self.unread += payload.len() as u64;
        self.take_in_order(payload);
        self.unacked += 1;
        if asks || filled_hole {
            self.acknowledge_now(AckReason::REQUESTED, header.serial);
        } else {
            self.acknowledge_by_rule(now, path, last);
        }
        self.note_asked(asks);
        Received::Readable
    }

    fn take_in_order(&mut self, payload: Bytes) {
        let mut payload = Some(payload);
        while let Some(bytes) = payload {
            self.bytes += bytes.len() as u64;
            self.ready.push_back(bytes);
            self.next = self.next.plus(1);
            self.later.pop_front();
            payload = self.later.front_mut().and_then(Option::take);
            self.later_count -= u32::from(payload.is_some());
        }
        self.beyond.remove_below(self.next);
    }

    fn acknowledge_by_rule(&mut self, now: Instant, path: PathView, last: bool) {
        let every = match path.is_own {
            // The end of a request waits for the reply, which acknowledges it; a long stream's end does not.
            true if self.window < SMALL_FLIGHT || (self.next.0 <= SMALL_FLIGHT && !last) => 1,
            true if last && self.next.0 > SMALL_FLIGHT => 1,
            true => OWN_EVERY,
            false => STOCK_EVERY,
        };
        if self.unacked >= every {
            let reason = if self.later_count > 0 { AckReason::OUT_OF_SEQUENCE } else { AckReason::IDLE };
            self.acknowledge_now(reason, self.newest_serial);
        } else if self.deadline.is_none() {
            let delay = match path.is_own {
                true if last => OWN_DELAY,
                true => OWN_DELAY.min(path.rtt / 4),
                false => STOCK_DELAY,
            };
            self.deadline = Some(now + delay);
        }
    }

    fn acknowledge_now(&mut self, reason: AckReason, serial: Serial) {
        let full = self.due.is_some_and(|d| d.full);
        self.due = Some(Due { reason, serial, full });
    }

    /// The packet that the ACK due answers asked for it.
    const fn note_asked(&mut self, asks: bool) {
        if let Some(due) = &mut self.due {
            due.full |= asks;
        }
    }

    /// The reply to this request begins, and acknowledges it.
    pub(crate) fn leave_end_to_reply(&mut self) {
        if self.is_complete() {
            self.deadline = None;
        }
    }

    /// True if the peer has not been told that the whole stream is here, and the stream is so short that nothing but memory depends
    /// on it.
    pub(crate) fn may_delay_final_ack(&self) -> bool {
        self.owes_end() && self.due.is_none() && self.next.0 <= SMALL_FLIGHT
    }

    fn owes_end(&self) -> bool {
        self.told <= self.next || self.unacked > 0
    }

    /// The whole stream is read and the call about to end: the peer shall know.
    pub(crate) fn acknowledge_end(&mut self) {
        if self.owes_end() {
            self.acknowledge_now(AckReason::IDLE, self.newest_serial);
        }
    }

    /// The next piece of the stream.
    pub(crate) fn read(&mut self) -> Option<Bytes> {
        let mut bytes = Bytes::new();
        while bytes.is_empty() {
            // An empty packet is legal; its reader need not see it (Rx notes 17.17).
            bytes = self.ready.pop_front()?;
            self.unread -= bytes.len() as u64;
            self.taken += 1;
        }
        self.follow_reader();
        // The peer must hear that its window moved before it runs out of it (Rx notes 7.2).
        let news = self.granted.after(self.told).unwrap_or(0);
        if news >= (self.window / 2).max(STOCK_EVERY) && !self.is_complete() && self.due.is_none() {
            self.acknowledge_now(AckReason::DELAY, Serial::NONE);
        }
        Some(bytes)
    }

    /// Returns the window that fits what was read in the last round trip; asked after reading. `None` while the round
    /// trip lasts.
    pub(crate) fn poll_wanted_window(&mut self, now: Instant, path: PathView) -> Option<u32> {
        if now.since(self.measured_from) < path.rtt {
            // Faster than a round trip: a flight that has already filled half of the window needs no more waiting.
            return (self.taken >= self.window / 2).then(|| self.window.saturating_mul(2));
        }
        let wanted = self.taken.saturating_mul(WINDOW_HEADROOM);
        (self.taken, self.measured_from) = (0, now);
        Some(wanted)
    }

    /// True if an ACK is to go out now.
    pub(crate) const fn is_ack_due(&self) -> bool {
        self.due.is_some()
    }

    /// The time when the delayed ACK is due.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Time has passed.
    pub(crate) fn handle_timer(&mut self, now: Instant) {
        if self.deadline.is_some_and(|d| d <= now) {
            self.deadline = None;
            self.acknowledge_now(AckReason::DELAY, self.newest_serial);
        }
    }

    /// True if the ACK that is due answers a packet that asked for it, and may be long.
    pub(crate) fn is_asked(&self) -> bool {
        self.due.is_some_and(|d| d.full)
    }

    /// Reason and serial of the ACK that goes out now; it is no longer due.
    pub(crate) fn take_due(&mut self) -> (AckReason, Serial) {
        let due = self.due.take().map_or((AckReason::IDLE, Serial::NONE), |d| (d.reason, d.serial));
        (self.unacked, self.deadline) = (0, None);
        due
    }

    /// Forgets what is held; the call has ended.
    pub(crate) fn clear(&mut self) {
        self.next = Seq(self.next.0 - self.ready.len() as u32).max(Seq::FIRST);
        self.ready = VecDeque::new();
        self.later = VecDeque::new();
        (self.later_count, self.unread) = (0, 0);
        self.beyond.clear();
        (self.due, self.deadline) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const STOCK: PathView =
        PathView { is_own: false, takes_ranges: false, rtt: Duration::from_millis(20) };
    const OWN: PathView = PathView { is_own: true, takes_ranges: true, rtt: Duration::from_millis(20) };

    pub(super) fn data(seq: u32, flags: u8) -> Header {
        let mut bytes = [0u8; 28];
        bytes[12..16].copy_from_slice(&seq.to_be_bytes());
        bytes[16..20].copy_from_slice(&(seq + 100).to_be_bytes());
        (bytes[20], bytes[21]) = (1, flags);
        Header::parse(&bytes).unwrap()
    }

    /// Feeds a packet; returns the reason of the ACK that is due, if one is.
    pub(super) fn feed(r: &mut Receive, seq: u32, flags: u8, path: PathView) -> Option<AckReason> {
        r.handle_data(Instant::ORIGIN, &data(seq, flags), Bytes::from(vec![seq as u8; 10]), path);
        r.is_ack_due().then(|| r.take_due().0)
    }

    #[test]
    fn a_stock_peer_hears_every_second_packet_and_every_oddity_at_once() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        assert_eq!(feed(&mut r, 1, 0, STOCK), None);
        assert_eq!(r.deadline(), Some(Instant::ORIGIN + STOCK_DELAY));
        assert_eq!(feed(&mut r, 2, 0, STOCK), Some(AckReason::IDLE));
        assert_eq!(feed(&mut r, 3, 2, STOCK), Some(AckReason::REQUESTED));
        assert_eq!(feed(&mut r, 3, 0, STOCK), Some(AckReason::DUPLICATE));
        assert_eq!(feed(&mut r, 5, 0, STOCK), Some(AckReason::OUT_OF_SEQUENCE));
        assert_eq!(r.table().collect::<Vec<_>>(), [false, true]);
        assert_eq!(feed(&mut r, 900, 0, STOCK), Some(AckReason::EXCEEDS_WINDOW));
        assert_eq!(feed(&mut r, 4, 0, STOCK), Some(AckReason::REQUESTED));
        assert_eq!(r.next(), Seq(6));
    }

    #[test]
    fn a_peer_of_our_own_hears_every_fourth() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        let due: Vec<u32> = (1..=30).filter(|&s| feed(&mut r, s, 0, OWN).is_some()).collect();
        assert_eq!(due, [1, 2, 3, 4, 5, 6, 7, 11, 15, 19, 23, 27]);
        assert_eq!(r.deadline(), Some(Instant::ORIGIN + OWN_DELAY));
        assert!(feed(&mut r, 31, 4, OWN).is_some());
    }

    #[test]
    fn a_peer_that_reads_ranges_hears_of_holes_at_once_and_of_what_follows_them_by_the_rule() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        (1..=30).for_each(|s| _ = feed(&mut r, s, 0, OWN));
        _ = r.take_due();
        let due: Vec<u32> = (32..=45).filter(|&s| s != 40 && feed(&mut r, s, 0, OWN).is_some()).collect();
        assert_eq!(due, [32, 36, 41, 45]);
        assert_eq!(feed(&mut r, 40, 0, OWN), Some(AckReason::OUT_OF_SEQUENCE), "a hole filled");
        assert_eq!(r.ranges().collect::<Vec<_>>(), [Seq(32)..Seq(46)]);
        assert_eq!(feed(&mut r, 31, 0, OWN), Some(AckReason::REQUESTED), "the last hole filled");
        assert_eq!((r.next(), r.ranges().count()), (Seq(46), 0));
    }

    #[test]
    fn an_ack_that_was_asked_for_may_be_long() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        let path = OWN;
        r.handle_data(Instant::ORIGIN, &data(5, 2), Bytes::new(), path);
        r.handle_data(Instant::ORIGIN, &data(7, 0), Bytes::new(), path);
        assert!(r.is_asked(), "though another packet came before it went");
        _ = r.take_due();
        feed(&mut r, 9, 0, path);
        assert!(!r.is_asked());
    }

    #[test]
    fn nothing_is_refused_aloud_before_anything_was_taken() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        assert_eq!(feed(&mut r, 900, 0, STOCK), None);
    }

    #[test]
    fn an_unread_stream_closes_the_window_but_never_to_zero() {
        let mut r = Receive::new(Instant::ORIGIN, 8);
        (1..=8).for_each(|s| _ = feed(&mut r, s, 0, STOCK));
        let ack = r.fields(AckReason::IDLE, Serial::NONE, (1444, 1444));
        assert_eq!((ack.first, ack.window), (Seq(8), 1));
        assert_eq!(r.table().collect::<Vec<_>>(), [true]);
        assert_eq!(r.handle_data(Instant::ORIGIN, &data(9, 0), Bytes::new(), STOCK), Received::Refused);
        (0..4).for_each(|_| drop(r.read()));
        assert!(r.is_ack_due());
        let ack = r.fields(AckReason::IDLE, Serial::NONE, (1444, 1444));
        assert_eq!((ack.first, ack.window), (Seq(9), 4));
    }

    #[test]
    fn a_window_once_offered_is_not_taken_back() {
        let mut r = Receive::new(Instant::ORIGIN, 8);
        r.grow_window(100);
        let ack = r.fields(AckReason::IDLE, Serial::NONE, (1444, 1444));
        assert_eq!((ack.first, ack.window), (Seq(1), 100));
        assert_eq!(r.handle_data(Instant::ORIGIN, &data(100, 0), Bytes::new(), STOCK), Received::Held);
    }

    #[test]
    fn the_stream_ends_with_its_last_packet_and_no_later_one() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        feed(&mut r, 2, 4, STOCK);
        assert!(!r.is_complete());
        assert_eq!(r.handle_data(Instant::ORIGIN, &data(3, 0), Bytes::new(), STOCK), Received::Refused);
        feed(&mut r, 1, 0, STOCK);
        assert!(r.is_complete() && !r.is_drained());
        assert_eq!(r.read().unwrap()[0], 1);
        assert_eq!(r.read().unwrap()[0], 2);
        assert!(r.is_drained());
    }
}
