//! Tests of what a direction does to packets, checked without devices: arrivals go in at chosen times,
//! departures are taken out at the times planned.

use std::time::Duration;

use super::*;
use crate::options::QueueLimit;

const MS: u64 = 1_000_000;

fn direction(change: impl FnOnce(&mut DirectionOptions)) -> Direction {
    let mut options = DirectionOptions::default();
    change(&mut options);
    options.check().unwrap();
    Direction::new(options, 1)
}

/// A packet whose first four bytes are its number.
fn numbered(number: u32, len: usize) -> Packet {
    let mut raw = vec![0u8; crate::packet::VNET_HEADER + len];
    raw[crate::packet::VNET_HEADER..][..4].copy_from_slice(&number.to_be_bytes());
    Packet::parse(&raw).unwrap()
}

fn number_of(burst: &Burst) -> u32 {
    let (_, payload) = burst.packet.piece(burst.first, burst.end);
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}

/// Sends packets 0, 1, 2, ... of `len` bytes at `times`. Returns the time of each departure, and the
/// packet's number.
fn departures(link: &mut Direction, len: usize, times: impl Iterator<Item = u64>) -> Vec<(u64, u32)> {
    let mut out = Vec::new();
    let mut drain = |link: &mut Direction, until: u64| {
        while let Some(at) = link.next_release_ns().filter(|at| *at <= until) {
            assert!(at == 0 || link.poll_deliver(at - 1, 0).is_none(), "left before its time");
            out.push((at, number_of(&link.poll_deliver(at, 0).unwrap())));
        }
    };
    for (number, time) in times.enumerate() {
        drain(link, time);
        link.handle_packet(numbered(number as u32, len), time);
    }
    drain(link, u64::MAX / 2);
    out
}

/// Tells which of `count` packets are lost, and the lengths of the runs of losses.
fn losses(link: &mut Direction, count: u64) -> (Vec<bool>, Vec<u64>) {
    let mut lost = vec![true; count as usize];
    for (_, number) in departures(link, 100, (0..count).map(|n| n * 1000)) {
        lost[number as usize] = false;
    }
    let runs = lost.chunk_by(|a, b| a == b).filter(|run| run[0]).map(|run| run.len() as u64).collect();
    (lost, runs)
}

fn share(lost: &[bool]) -> f64 {
    lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
}

#[test]
fn packets_leave_at_the_link_rate_and_then_take_the_delay() {
    // 1000 bytes at 8 Mbit/s take 1 ms.
    let mut link = direction(|o| {
        o.rate_bit_s = 8_000_000;
        o.delay = Duration::from_millis(10);
    });
    let out = departures(&mut link, 1000, [0, 0, 0, 20 * MS].into_iter());
    assert_eq!(out, [(11 * MS, 0), (12 * MS, 1), (13 * MS, 2), (31 * MS, 3)]);
}

#[test]
fn overhead_takes_time_on_the_link() {
    let mut link = direction(|o| {
        o.rate_bit_s = 8_000_000;
        o.overhead_bytes = 500;
    });
    assert_eq!(departures(&mut link, 1000, [0, 0].into_iter()), [(3 * MS / 2, 0), (3 * MS, 1)]);
}

#[test]
fn the_bucket_lets_a_burst_through_and_then_keeps_the_rate() {
    let mut link = direction(|o| {
        o.rate_bit_s = 8_000_000;
        o.burst_bytes = 2000;
    });
    let out = departures(&mut link, 1000, [100 * MS; 4].into_iter());
    assert_eq!(out.iter().map(|(at, _)| at / MS).collect::<Vec<_>>(), [100, 100, 101, 102]);
}

#[test]
fn an_unlimited_link_only_delays() {
    let mut link = direction(|o| o.delay = Duration::from_millis(5));
    assert_eq!(
        departures(&mut link, 1500, [0, 0, 1].into_iter()),
        [(5 * MS, 0), (5 * MS, 1), (5 * MS + 1, 2)]
    );
}

#[test]
fn a_full_queue_drops_the_newcomer() {
    for queue in [QueueLimit::Bytes(3000), QueueLimit::Time(Duration::from_millis(3))] {
        let mut link = direction(|o| {
            o.rate_bit_s = 8_000_000;
            o.queue = queue;
        });
        let out = departures(&mut link, 1000, [0, 0, 0, 0, MS, MS].into_iter());
        assert_eq!(out.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [0, 1, 2, 4]);
        let counters = link.counters(0);
        assert_eq!(
            (counters.drop_queue, counters.queue_max_bytes, counters.queue_limit_bytes),
            (2, 3000, 3000)
        );
    }
}

#[test]
fn a_packet_larger_than_the_queue_passes_when_the_link_is_idle() {
    let mut link = direction(|o| {
        o.rate_bit_s = 8_000_000;
        o.queue = QueueLimit::Bytes(500);
    });
    assert_eq!(departures(&mut link, 1000, [0, 0, 5 * MS].into_iter()).len(), 2);
}

#[test]
fn independent_loss_has_the_share_asked_for() {
    let mut link = direction(|o| o.loss = 0.01);
    let (lost, runs) = losses(&mut link, 200_000);
    assert!((share(&lost) - 0.01).abs() < 0.001, "{}", share(&lost));
    let mean_run = runs.iter().sum::<u64>() as f64 / runs.len() as f64;
    assert!(mean_run < 1.05, "{mean_run}");
    assert_eq!(link.counters(0).drop_loss, lost.iter().filter(|l| **l).count() as u64);
}

#[test]
fn burst_loss_keeps_the_share_and_comes_in_runs() {
    let mut link = direction(|o| {
        o.loss = 0.01;
        o.loss_burst_packets = 8.0;
    });
    let (lost, runs) = losses(&mut link, 500_000);
    assert!((share(&lost) - 0.01).abs() < 0.002, "{}", share(&lost));
    let mean_run = runs.iter().sum::<u64>() as f64 / runs.len() as f64;
    assert!((7.0..9.0).contains(&mean_run), "{mean_run}");
}

#[test]
fn gilbert_elliott_loses_in_both_states() {
    let model = GilbertElliott { good_to_bad: 0.02, bad_to_good: 0.25, loss_bad: 0.5, loss_good: 0.01 };
    let mut link = direction(|o| o.gilbert_elliott = Some(model));
    let (lost, _) = losses(&mut link, 300_000);
    let bad = 0.02 / 0.27;
    let expected = bad * 0.5 + (1.0 - bad) * 0.01;
    assert!((share(&lost) - expected).abs() < 0.003, "{} against {expected}", share(&lost));
}

#[test]
fn a_lost_packet_has_used_the_link() {
    let mut link = direction(|o| {
        o.rate_bit_s = 8_000_000;
        o.loss = 1.0;
    });
    assert!(departures(&mut link, 1000, [0, 0].into_iter()).is_empty());
    link.set_options(DirectionOptions { loss: 0.0, ..link.options.clone() });
    assert_eq!(departures(&mut link, 1000, [0].into_iter()), [(3 * MS, 0)]);
}

#[test]
fn a_blackout_passes_nothing_and_leaves_the_loss_pattern_alone() {
    let loss = |o: &mut DirectionOptions| o.loss = 0.3;
    let (mut cut, mut whole) = (direction(loss), direction(loss));
    let options = cut.options.clone();
    cut.set_options(DirectionOptions { blackout: true, ..options.clone() });
    assert!(departures(&mut cut, 100, 0..50).is_empty());
    cut.set_options(options);
    assert_eq!(departures(&mut cut, 100, 100..200), departures(&mut whole, 100, 100..200));
}

#[test]
fn packets_that_are_too_long_are_lost_and_others_pass() {
    let mut link = direction(|o| o.longest_bytes = 1280);
    assert_eq!(departures(&mut link, 1281, 0..3), []);
    assert_eq!(departures(&mut link, 1280, 10..13).len(), 3);
    assert_eq!(link.counters(0).drop_loss, 3);
}

#[test]
fn held_back_packets_are_overtaken() {
    let mut link = direction(|o| {
        o.delay = Duration::from_millis(10);
        o.reorder = 0.02;
        o.reorder_by = Duration::from_millis(2);
    });
    let out = departures(&mut link, 100, (0..50_000).map(|n| n * 66_000));
    let late = out.iter().filter(|(at, number)| at - u64::from(*number) * 66_000 == 12 * MS).count();
    let on_time = out.iter().filter(|(at, number)| at - u64::from(*number) * 66_000 == 10 * MS).count();
    assert_eq!(late + on_time, 50_000, "a packet is either on time or held back");
    assert!((800..1200).contains(&late), "{late}");
    assert!(link.counters(0).overtook as usize >= late);
}

#[test]
fn duplicates_follow_their_original() {
    let mut link = direction(|o| o.duplicate = 0.1);
    let out = departures(&mut link, 100, (0..10_000).map(|n| n * 1000));
    let twice = out.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(out.len(), 10_000 + twice);
    assert!((850..1150).contains(&twice), "{twice}");
    assert_eq!(link.counters(0).duplicated as usize, twice);
}

#[test]
fn smooth_jitter_keeps_the_order_and_its_bounds() {
    let mut link = direction(|o| {
        o.delay = Duration::from_millis(10);
        o.jitter = Duration::from_millis(4);
    });
    let out = departures(&mut link, 100, (0..30_000).map(|n| n * 66_000));
    assert!(out.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1), "in order");
    let delays: Vec<u64> = out.iter().map(|(at, number)| at - u64::from(*number) * 66_000).collect();
    let (min, max) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!(*min >= 10 * MS && *max <= 14 * MS && max - min > 3 * MS, "{min} to {max}");
}

#[test]
fn independent_jitter_reorders() {
    let mut link = direction(|o| {
        o.jitter = Duration::from_millis(4);
        o.jitter_iid = true;
    });
    let out = departures(&mut link, 100, (0..1000).map(|n| n * 66_000));
    assert!(out.windows(2).any(|pair| pair[0].1 > pair[1].1));
    assert!(link.counters(0).overtook > 500);
}

#[test]
fn the_same_seed_makes_the_same_choices_and_another_makes_others() {
    let options = || DirectionOptions { loss: 0.5, duplicate: 0.1, ..Default::default() };
    let run = |seed| departures(&mut Direction::new(options(), seed), 100, 0..200);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// A UDP super-packet over IPv4 of `segments` segments with 1000 bytes of payload each.
fn super_packet(segments: usize) -> Packet {
    let mut raw = vec![0u8; crate::packet::VNET_HEADER + 28 + 1000 * segments];
    raw[0] = 1; // needs its checksum
    raw[1] = 5; // UDP segmentation
    raw[4..6].copy_from_slice(&1000u16.to_ne_bytes());
    raw[6..8].copy_from_slice(&20u16.to_ne_bytes());
    raw[8..10].copy_from_slice(&6u16.to_ne_bytes());
    raw[crate::packet::VNET_HEADER] = 0x45;
    Packet::parse(&raw).unwrap()
}

#[test]
fn segments_of_a_super_packet_are_timed_alone_and_leave_together_when_due() {
    let mut link = direction(|o| o.rate_bit_s = 1028 * 8000); // 1 ms each
    link.handle_packet(super_packet(5), 0);
    let counters = link.counters(0);
    assert_eq!((counters.reads, counters.packets_in, counters.bytes_in), (1, 5, 5 * 1028));
    let burst = link.poll_deliver(MS, 0).unwrap();
    assert_eq!((burst.first, burst.end), (0, 1));
    let burst = link.poll_deliver(4 * MS - MS / 2, MS / 2).unwrap();
    assert_eq!((burst.first, burst.end), (1, 4));
    assert!(link.poll_deliver(4 * MS, 0).is_none());
    assert_eq!(link.next_release_ns(), Some(5 * MS));
    assert_eq!(link.counters(0).held_now, 1);
}

#[test]
fn a_lost_segment_splits_the_super_packet() {
    let mut link = direction(|o| o.loss = 0.3);
    link.handle_packet(super_packet(60), 0);
    let (mut seen, mut bursts) = (0, 0);
    while let Some(burst) = link.poll_deliver(0, 0) {
        seen += burst.end - burst.first;
        bursts += 1;
    }
    let counters = link.counters(0);
    assert_eq!(u64::from(seen), counters.packets_out);
    assert_eq!(counters.packets_out + counters.drop_loss, 60);
    assert!(counters.drop_loss > 5 && bursts > 5);
}

#[test]
fn lateness_is_counted() {
    let mut link = direction(|_| ());
    link.handle_packet(Packet::plain(100), 0);
    link.handle_packet(Packet::plain(100), 0);
    link.poll_deliver(100_000, 0).unwrap();
    link.poll_deliver(300_000, 0).unwrap();
    let counters = link.counters(4);
    assert_eq!((counters.late_mean_us, counters.late_max_us), (200.0, 300.0));
    assert_eq!((counters.late_over_200us, counters.drop_emulator), (1, 4));
}

#[test]
fn the_delay_line_has_a_limit() {
    let mut link = direction(|o| o.delay = Duration::from_secs(60));
    for n in 0..HELD_LIMIT as u64 / 60 + 2 {
        link.handle_packet(super_packet(60), n);
    }
    let counters = link.counters(0);
    assert_eq!(counters.held_now, HELD_LIMIT as u64);
    assert_eq!(counters.drop_emulator, counters.packets_in - HELD_LIMIT as u64);
}

#[test]
fn new_options_let_nothing_overtake() {
    let mut link = direction(|o| o.delay = Duration::from_millis(100));
    link.handle_packet(numbered(0, 100), 0);
    link.set_options(DirectionOptions::default());
    link.handle_packet(numbered(1, 100), MS);
    assert!(link.poll_deliver(99 * MS, 0).is_none());
    let order: Vec<u32> =
        std::iter::from_fn(|| link.poll_deliver(100 * MS, 0)).map(|burst| number_of(&burst)).collect();
    assert_eq!(order, [0, 1]);
}
