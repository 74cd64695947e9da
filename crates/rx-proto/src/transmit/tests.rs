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

fn ack(t: &mut Transmit, now: Instant, first: u32, serial: u32, table: &[u8]) -> Option<AckOutcome> {
    let fields = AckFields {
        first: Seq(first),
        previous: Seq(first + table.len() as u32),
        serial: Serial(serial),
        reason: AckReason::REQUESTED,
        window: 32,
        max_packet_len: 1444,
        natural_packet_len: 1444,
    };
    let mut body = Vec::new();
    fields.encode(table.iter().map(|&b| b == 1), true, &mut body);
    t.handle_ack(now, &Ack::parse(&body, false).unwrap(), &rtt(), &mut Reordering::new(), false, None)
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

#[test]
fn a_hole_is_sent_again_once_a_later_transmission_arrived() {
    let (mut t, mut serial) = (stream(6), 0);
    send_all(&mut t, at(0), &mut serial);
    let out = ack(&mut t, at(10), 2, 6, &[0, 1, 1, 1, 1]).unwrap();
    assert_eq!(out.lost.bytes, 0, "sent at the same time: waits for reordering");
    let due = t.deadline(&rtt(), Duration::ZERO).unwrap();
    assert!(matches!(
        t.handle_timer(due, &rtt(), &Reordering::new(), Duration::ZERO),
        TimerAction::Lost { lost: Lost { bytes: 1028, largest: 1028 }, .. }
    ));
    assert_eq!(send_all(&mut t, due, &mut serial), [2]);
    ack(&mut t, due + MS * 10, 7, 7, &[]).unwrap();
    assert!(t.is_complete());
}

#[test]
fn what_an_ack_does_not_describe_is_neither_lost_nor_received() {
    let mut t = Transmit::new(at(0), 1000);
    t.write(Bytes::from(vec![0; 600_000]));
    let mut serial = 0;
    for ms in 0..600 {
        serial += 1;
        let next = t.peek(1000).unwrap();
        t.handle_sent(next.seq, Serial(serial), 1028, Stamp { sent_at: at(ms), ..Stamp::default() });
    }
    let mut table = [1u8; 255];
    table[0] = 0;
    let out = ack(&mut t, at(600), 1, 600, &table).unwrap();
    assert_eq!(out.lost.bytes, 1028, "only the described hole");
    assert_eq!(out.acked, 254 * 1028);
    assert_eq!(
        t.in_flight_packets() + 342,
        345,
        "what was sent well before the packet that arrived has left the path"
    );
    assert_eq!(send_all(&mut t, at(600), &mut serial), [1]);
    // The hole filled, one of the unknown ones turns out missing.
    let mut table = vec![0u8; 4];
    table[1..].fill(1);
    let out = ack(&mut t, at(610), 597, 601, &table).unwrap();
    assert_eq!(out.acked, 1028 + 341 * 1028 + 3 * 1028);
    assert_eq!(send_all(&mut t, at(610), &mut serial), [597]);
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
        if let TimerAction::TimedOut { lost } = t.handle_timer(now, &rtt(), &Reordering::new(), Duration::ZERO) {
            assert_eq!(lost.bytes, 2056);
            assert_eq!(send_all(&mut t, now, &mut serial), [1, 2]);
        }
    }
    assert_eq!(waits, [25, 30, 25, 60, 25, 120]);
}
