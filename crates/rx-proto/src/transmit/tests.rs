//! Tests of the sending half by itself.

use super::*;
use crate::ack::{AckFields, AckReason};

const MS: Duration = Duration::from_millis(1);

fn at(ms: u32) -> Instant {
    Instant::ORIGIN + MS * ms
}

fn rtt() -> Rtt {
    let mut rtt = Rtt::new();
    (0..3).for_each(|_| rtt.handle_sample(at(0), MS * 10));
    rtt
}

/// Sends all that may go at `now`, one serial after another.
fn send_all(t: &mut Transmit, now: Instant, serial: &mut u32) -> Vec<u32> {
    let mut sent = Vec::new();
    while let Some(next) = t.peek(1000) {
        *serial += 1;
        t.handle_sent(next.seq, Serial(*serial), next.len + 28, Stamp { sent_at: now, ..Stamp::default() });
        sent.push(next.seq.0);
    }
    sent
}

fn fields(first: u32, previous: u32, serial: u32, reason: AckReason) -> AckFields {
    AckFields {
        first: Seq(first),
        previous: Seq(previous),
        serial: Serial(serial),
        reason,
        window: 32,
        max_packet_len: 1444,
        natural_packet_len: 1444,
    }
}

fn ack(t: &mut Transmit, now: Instant, first: u32, serial: u32, table: &[u8]) -> Option<AckOutcome> {
    let fields = fields(first, first + table.len() as u32, serial, AckReason::REQUESTED);
    let mut body = Vec::new();
    fields.encode(table.iter().map(|&b| b == 1), true, &mut body);
    t.handle_ack(now, &Ack::parse(&body, false).unwrap(), &rtt(), &mut Reordering::new(), false, None)
}

/// An ACK with ranges, of a peer of our own.
#[derive(Clone, Copy)]
struct Ranged<'a> {
    first: u32,
    serial: u32,
    reason: AckReason,
    ranges: &'a [(u32, u32)],
    limit: usize,
    /// The window that it announces.
    window: Option<u32>,
}

impl<'a> Ranged<'a> {
    const fn new(first: u32, serial: u32, ranges: &'a [(u32, u32)]) -> Self {
        Self { first, serial, reason: AckReason::OUT_OF_SEQUENCE, ranges, limit: 32, window: None }
    }

    fn give(self, t: &mut Transmit, now: Instant, reordering: &mut Reordering) -> AckOutcome {
        let previous = self.ranges.last().map_or(self.first - 1, |r| r.1);
        let ranges = self.ranges.iter().map(|&(s, e)| Seq(s)..Seq(e + 1));
        let mut body = Vec::new();
        fields(self.first, previous, self.serial, self.reason).encode_ranges(ranges, self.limit, &mut body);
        let ack = Ack::parse(&body, false).unwrap();
        let out = t.handle_ack(now, &ack, &rtt(), reordering, true, None).unwrap();
        self.window.into_iter().for_each(|packets| t.set_window(packets));
        out
    }
}

fn stream(packets: usize) -> Transmit {
    let mut t = Transmit::new(at(0), 32);
    t.write(Bytes::from(vec![7; packets * 1000]));
    t.finish();
    t
}

#[test]
fn a_stream_is_cut_joined_and_ended() {
    let mut t = Transmit::new(at(0), 32);
    (0..5).for_each(|i| t.write(Bytes::from(vec![i; 450])));
    let mut serial = 0;
    assert_eq!(send_all(&mut t, at(0), &mut serial), [1, 2]);
    t.finish();
    assert_eq!(send_all(&mut t, at(0), &mut serial), [3]);
    assert_eq!(&t.payload(Seq(2))[..450], [[2u8; 350].as_slice(), &[3; 100]].concat());
    assert_eq!(t.payload(Seq(3)).len(), 250);
    assert_eq!(t.in_flight(), 2250 + 3 * 28);
}

#[test]
fn an_empty_stream_is_one_empty_last_packet() {
    let mut t = Transmit::new(at(0), 32);
    assert!(t.peek(1000).is_none());
    t.finish();
    let next = t.peek(1000).unwrap();
    assert_eq!((next.len, next.last), (0, true));
}

/// A packet a millisecond from `from_ms` on.
fn send_one_each_ms(t: &mut Transmit, from_ms: u32, count: u32, serial: &mut u32) {
    for ms in from_ms..from_ms + count {
        *serial += 1;
        let next = t.peek(1000).unwrap();
        t.handle_sent(
            next.seq,
            Serial(*serial),
            next.len + 28,
            Stamp { sent_at: at(ms), ..Stamp::default() },
        );
    }
}

#[test]
fn a_hole_is_sent_again_once_three_later_packets_arrived() {
    let (mut t, mut serial) = (stream(6), 0);
    send_all(&mut t, at(0), &mut serial);
    let out = ack(&mut t, at(10), 2, 4, &[0, 1, 1]).unwrap();
    assert_eq!(out.lost.bytes, 0, "overtaken by two, which were sent at the same time: it may come yet");
    let out = ack(&mut t, at(10), 2, 5, &[0, 1, 1, 1]).unwrap();
    assert_eq!(out.lost, Lost { bytes: 1028, largest: 1028 });
    assert_eq!(send_all(&mut t, at(10), &mut serial), [2]);
    ack(&mut t, at(20), 7, 7, &[]).unwrap();
    assert!(t.is_complete());
}

#[test]
fn a_hole_before_few_packets_is_sent_again_when_its_time_is_up() {
    let (mut t, mut serial) = (stream(4), 0);
    send_all(&mut t, at(0), &mut serial);
    ack(&mut t, at(10), 2, 4, &[0, 1, 1]).unwrap();
    let due = t.deadline(&rtt(), Duration::ZERO).unwrap();
    assert_eq!(due, at(10) + MS * 10 / 4);
    let lost = Lost { bytes: 1028, largest: 1028 };
    assert_eq!(
        t.handle_timer(due, &rtt(), &Reordering::new(), Duration::ZERO),
        TimerAction::Lost { lost, left: 0 }
    );
}

#[test]
fn a_path_that_reorders_gets_patience() {
    let (mut t, mut serial, mut reordering) = (stream(20), 0, Reordering::new());
    send_all(&mut t, at(0), &mut serial);
    // Too early: packet 2 is given up, and sent again, and comes after all.
    let out = Ranged::new(2, 6, &[(3, 6)]).give(&mut t, at(10), &mut reordering);
    assert_eq!(out.lost.bytes, 1028);
    assert_eq!(send_all(&mut t, at(10), &mut serial), [2]);
    let out = Ranged::new(7, 2, &[]).give(&mut t, at(11), &mut reordering);
    assert_eq!((out.spurious, out.spurious_bytes, out.acked), (1, 1028, 1028));
    // The next one is waited for, a quarter of the round trip.
    let out = Ranged::new(8, 14, &[(9, 14)]).give(&mut t, at(12), &mut reordering);
    assert_eq!(out.lost.bytes, 0);
    let out = Ranged::new(15, 8, &[]).give(&mut t, at(12), &mut reordering);
    assert_eq!((out.spurious, out.lost.bytes, out.acked), (0, 0, 1028));
}

#[test]
fn a_repetition_answered_as_a_duplicate_was_not_needed_and_counts_once() {
    let (mut t, mut serial, mut reordering) = (stream(9), 0, Reordering::new());
    send_all(&mut t, at(0), &mut serial);
    Ranged::new(2, 6, &[(3, 6)]).give(&mut t, at(10), &mut reordering);
    assert_eq!(send_all(&mut t, at(10), &mut serial), [2]);
    // Late enough that it might be the second one; that it was not shows when that comes.
    assert_eq!(Ranged::new(7, 6, &[]).give(&mut t, at(21), &mut reordering).spurious, 0);
    let duplicate = Ranged { reason: AckReason::DUPLICATE, ..Ranged::new(7, 10, &[]) };
    let out = duplicate.give(&mut t, at(22), &mut reordering);
    assert_eq!((out.spurious, out.spurious_bytes), (1, 1028));
    assert_eq!(duplicate.give(&mut t, at(23), &mut reordering).spurious, 0);
}

#[test]
fn holes_are_found_however_far_behind_they_are() {
    let mut t = Transmit::new(at(0), 60_000);
    t.write(Bytes::from(vec![0; 40_000_000]));
    let mut serial = 0;
    assert_eq!(send_all(&mut t, at(0), &mut serial).len(), 40_000);
    let mut reordering = Reordering::new();
    // Every hundredth is missing, and an ACK comes for each fourth.
    let (mut ranges, mut lost, mut acked) = (Vec::new(), 0, 0);
    for seq in 2..=40_000 {
        match ranges.last_mut() {
            _ if seq % 100 == 1 => continue,
            Some((_, end)) if *end + 1 == seq => *end = seq,
            _ => ranges.push((seq, seq)),
        }
        if seq % 4 == 0 {
            let out = Ranged::new(1, seq, &ranges).give(&mut t, at(10), &mut reordering);
            (lost, acked) = (lost + out.lost.bytes, acked + out.acked);
            assert_eq!((out.left, out.spurious), (0, 0));
        }
    }
    assert_eq!((lost, acked), (400 * 1028, 39_600 * 1028));
    assert_eq!(t.in_flight_packets(), 0);
    assert_eq!(send_all(&mut t, at(10), &mut serial).len(), 400);
}

#[test]
fn what_an_ack_does_not_speak_of_is_unknown_until_one_does() {
    let mut t = Transmit::new(at(0), 1000);
    t.write(Bytes::from(vec![0; 600_000]));
    let (mut serial, mut reordering) = (0, Reordering::new());
    send_one_each_ms(&mut t, 0, 600, &mut serial);
    // Every tenth is missing; of sixty ranges the ACK has the four oldest and the four newest.
    let ranges: Vec<(u32, u32)> = (0..60).map(|i| (10 * i + 2, 10 * i + 10)).collect();
    let short = Ranged { limit: 8, ..Ranged::new(1, 600, &ranges) };
    let out = short.give(&mut t, at(600), &mut reordering);
    assert_eq!(out.acked, 8 * 9 * 1028);
    assert_eq!(out.lost.bytes, 7 * 1028, "four below the oldest ranges, three between the newest");
    assert_eq!(out.left, (600 - 72 - 7) * 1028, "sent long before one that arrived");
    let again: Vec<u32> = send_all(&mut t, at(600), &mut serial);
    assert_eq!(again, [1, 11, 21, 31, 571, 581, 591]);
    let out = Ranged { limit: 100, ..short }.give(&mut t, at(601), &mut reordering);
    assert_eq!((out.acked, out.spurious), (52 * 9 * 1028, 0));
    assert_eq!(send_all(&mut t, at(601), &mut serial).len(), 53);
}

/// A call that begins may send more than it is offered then. The peer's refusal names the packet that it threw away, and that was taken for
/// received: a call of several that read ahead over 200 ms stood still for ever, the server sure that all had come.
#[test]
fn what_was_refused_as_beyond_the_window_goes_again() {
    let mut t = stream(20);
    let (mut serial, mut reordering) = (0, Reordering::new());
    assert_eq!(send_all(&mut t, at(0), &mut serial).len(), 20);
    // 15 is lost, 17 was refused before the window grew.
    Ranged::new(15, 16, &[(16, 16)]).give(&mut t, at(10), &mut reordering);
    let of_two = Ranged { window: Some(2), ..Ranged::new(15, 17, &[(16, 16)]) };
    Ranged { reason: AckReason::EXCEEDS_WINDOW, ..of_two }.give(&mut t, at(11), &mut reordering);
    Ranged { serial: 20, ranges: &[(16, 16), (18, 20)], ..of_two }.give(&mut t, at(12), &mut reordering);
    assert_eq!(send_all(&mut t, at(12), &mut serial), [15]);
    // It has come and nobody reads, so the window stays where it is.
    let unread = Ranged { serial: 21, ranges: &[(15, 16), (18, 20)], ..of_two };
    unread.give(&mut t, at(22), &mut reordering);
    assert_eq!(send_all(&mut t, at(22), &mut serial), [0; 0]);
    assert!(!t.is_complete(), "17 is not there");
    // Nothing is under way: the peer is asked, and says what it takes.
    let due = t.deadline(&rtt(), Duration::ZERO).expect("an answer is awaited");
    assert_eq!(t.handle_timer(due, &rtt(), &reordering, Duration::ZERO), TimerAction::Probe);
    let mut body = Vec::new();
    let answer = fields(17, 20, 0, AckReason::PING_RESPONSE);
    answer.encode_ranges([Seq(18)..Seq(21)].into_iter(), 32, &mut body);
    let answer = Ack::parse(&body, false).unwrap();
    t.handle_ack(due + MS, &answer, &rtt(), &mut reordering, true, Some(due)).unwrap();
    t.set_window(answer.trailer.window.unwrap());
    assert_eq!(send_all(&mut t, due + MS, &mut serial), [17]);
    Ranged::new(21, 22, &[]).give(&mut t, due + 2 * MS, &mut reordering);
    assert!(t.is_complete());
}

/// A call began with 255 packets allowed and 3,400 sent, where the peer's memory was short. Refused packets were sent again one in each
/// round trip, because ACKs that could not describe all packets took back only their first.
#[test]
fn all_that_was_refused_goes_again_when_the_window_covers_it() {
    let mut t = stream(30);
    let (mut serial, mut reordering) = (0, Reordering::new());
    assert_eq!(send_all(&mut t, at(0), &mut serial).len(), 30);
    // Every other one is lost up to 20, of which such an ACK tells in part.
    let ranges: Vec<(u32, u32)> = (1..=10).map(|i| (2 * i, 2 * i)).collect();
    let of_twenty = Ranged { limit: 4, window: Some(20), ..Ranged::new(1, 0, &ranges) };
    for serial in 21..=30 {
        let refusal = Ranged { reason: AckReason::EXCEEDS_WINDOW, serial, ..of_twenty };
        refusal.give(&mut t, at(10), &mut reordering);
    }
    let again = send_all(&mut t, at(10), &mut serial);
    assert!(again.iter().all(|&seq| seq <= 20), "beyond the window: {again:?}");
    // The first hole is filled, and the reader takes two.
    let grown = Ranged { serial: 31, first: 3, ranges: &ranges[1..], window: Some(24), ..of_twenty };
    grown.give(&mut t, at(20), &mut reordering);
    let again = send_all(&mut t, at(20), &mut serial);
    assert_eq!(again.into_iter().filter(|&seq| seq > 20).collect::<Vec<_>>(), (21..=26).collect::<Vec<_>>());
}

#[test]
fn the_first_packet_that_an_ack_lacks_goes_again_whatever_was_said_of_it() {
    let mut t = Transmit::new(at(0), 1000);
    t.write(Bytes::from(vec![0; 600_000]));
    let (mut serial, mut reordering) = (0, Reordering::new());
    send_one_each_ms(&mut t, 0, 600, &mut serial);
    // With so many holes that no ACK speaks of all.
    let ranges: Vec<(u32, u32)> = (0..60).map(|i| (10 * i + 2, 10 * i + 10)).collect();
    let short = Ranged { limit: 8, ..Ranged::new(1, 600, &ranges) };
    short.give(&mut t, at(600), &mut reordering);
    assert_eq!(send_all(&mut t, at(600), &mut serial)[0], 1);
    // It names the packet, and lacks it.
    Ranged { serial: 601, ..short }.give(&mut t, at(610), &mut reordering);
    assert!(send_all(&mut t, at(610), &mut serial).contains(&1));
}

#[test]
fn what_a_full_table_does_not_describe_is_neither_lost_nor_received() {
    let mut t = Transmit::new(at(0), 1000);
    t.write(Bytes::from(vec![0; 600_000]));
    let mut serial = 0;
    send_one_each_ms(&mut t, 0, 600, &mut serial);
    let mut table = [1u8; 255];
    table[0] = 0;
    let out = ack(&mut t, at(600), 1, 600, &table).unwrap();
    assert_eq!(out.lost.bytes, 1028, "only the described hole");
    assert_eq!(out.acked, 254 * 1028);
    assert_eq!(t.in_flight_packets(), 1, "what was sent before the packet that arrived has left the path");
    assert_eq!(send_all(&mut t, at(600), &mut serial), [1]);
    // The hole filled, one of the unknown ones turns out missing.
    let mut table = vec![0u8; 4];
    table[1..].fill(1);
    let out = ack(&mut t, at(610), 597, 601, &table).unwrap();
    assert_eq!(out.acked, 1028 + 341 * 1028 + 3 * 1028);
    assert_eq!(send_all(&mut t, at(610), &mut serial), [597]);
}

#[test]
fn an_ack_that_claims_what_was_never_sent_acknowledges_nothing_of_it() {
    let mut t = Transmit::new(at(0), 1000);
    t.write(Bytes::from(vec![0; 20_000]));
    let (mut serial, mut reordering) = (0, Reordering::new());
    send_one_each_ms(&mut t, 0, 10, &mut serial);
    let cut = t.peek(1000).unwrap(); // the eleventh is cut and waits
    let out = Ranged::new(1, 10, &[(2, 900)]).give(&mut t, at(20), &mut reordering);
    assert_eq!(out.acked, 9 * 1028);
    assert_eq!((t.peek(1000).unwrap().seq, t.packets[10].state), (Seq(1), State::Waiting));
    assert_eq!(cut.seq, Seq(11));
}

#[test]
fn only_an_ack_asked_for_later_takes_back_what_ranges_had_said() {
    let (mut t, mut serial, mut reordering) = (stream(6), 0, Reordering::new());
    send_all(&mut t, at(0), &mut serial);
    Ranged::new(1, 6, &[(2, 3), (5, 6)]).give(&mut t, at(10), &mut reordering);
    // One that was overtaken: it knows less.
    let out = Ranged::new(1, 6, &[(6, 6)]).give(&mut t, at(11), &mut reordering);
    assert_eq!((out.lost.bytes, out.spurious), (0, 0));
    assert_eq!(send_all(&mut t, at(12), &mut serial), [1, 4]);
    // One prompted by what went later: the peer has forgotten.
    Ranged::new(1, 8, &[(4, 4), (6, 6)]).give(&mut t, at(22), &mut reordering);
    assert_eq!(send_all(&mut t, at(22), &mut serial), [1, 2, 3, 5]);
}

#[test]
fn silence_has_the_newest_packet_sent_again() {
    let (mut t, mut serial) = (stream(3), 0);
    send_all(&mut t, at(0), &mut serial);
    let due = t.deadline(&rtt(), Duration::ZERO).unwrap();
    let action = t.handle_timer(due, &rtt(), &Reordering::new(), Duration::ZERO);
    assert_eq!(action, TimerAction::ProbeTail { left: 1028 });
    assert_eq!(send_all(&mut t, due, &mut serial), [3]);
    let answer = Ranged { reason: AckReason::REQUESTED, ..Ranged::new(1, 4, &[(3, 3)]) };
    let out = answer.give(&mut t, due + MS * 10, &mut Reordering::new());
    assert_eq!((out.repaired, out.lost.bytes, out.spurious), (1028, 2 * 1028, 0), "all were lost");
    assert_eq!(send_all(&mut t, due + MS * 10, &mut serial), [1, 2]);
}

#[test]
fn a_packet_taken_back_is_sent_again() {
    let (mut t, mut serial) = (stream(3), 0);
    send_all(&mut t, at(0), &mut serial);
    ack(&mut t, at(10), 1, 3, &[1, 1, 1]).unwrap();
    assert!(t.is_complete());
    ack(&mut t, at(20), 2, 3, &[0, 1]).unwrap();
    assert!(!t.is_complete());
    assert_eq!(send_all(&mut t, at(20), &mut serial), [2]);
}

#[test]
fn overtaken_and_malformed_acks_change_nothing() {
    let (mut t, mut serial) = (stream(6), 0);
    send_all(&mut t, at(0), &mut serial);
    ack(&mut t, at(10), 4, 6, &[]).unwrap();
    assert!(ack(&mut t, at(10), 3, 6, &[]).is_none());
    assert!(ack(&mut t, at(10), 8, 6, &[]).is_none());
    assert_eq!(t.in_flight_packets(), 3);
}

#[test]
fn silence_brings_a_probe_and_then_a_timeout_that_doubles() {
    let (mut t, mut serial) = (stream(2), 0);
    send_all(&mut t, at(0), &mut serial);
    let mut now = at(0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let due = t.deadline(&rtt(), Duration::ZERO).unwrap();
        waits.push(due.since(now).as_millis());
        now = due;
        match t.handle_timer(now, &rtt(), &Reordering::new(), Duration::ZERO) {
            TimerAction::TimedOut { lost } => {
                assert_eq!(lost.bytes, 2056);
                assert_eq!(send_all(&mut t, now, &mut serial), [1, 2]);
            }
            TimerAction::ProbeTail { left } => {
                assert_eq!((left, waits.len()), (1028, 1), "only the first time");
                assert_eq!(send_all(&mut t, now, &mut serial), [2]);
            }
            action => assert_eq!(action, TimerAction::Probe),
        }
    }
    assert_eq!(waits, [25, 30, 25, 60, 25, 120]);
}
