//! The trace of a call: it shows what happened on the wire, at its time, on both ends, and changes nothing.

use afs_sim::world::{Job, Link, World, ms};
use rx_proto::config::Config;
use rx_proto::ids::Seq;
use rx_proto::packet::{Header, PacketType};
use rx_proto::time::Instant;
use rx_proto::trace::{Trace, What};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the network did with DATA of the client.
#[derive(Default)]
struct Wire {
    /// Packets dropped, and when.
    dropped: Vec<(Seq, Instant)>,
    /// Packets that passed, and when.
    passed: Vec<(Seq, Instant)>,
}

fn config() -> Config {
    Config { max_packet_len: 1444, ..Config::default() }
}

/// A client sends `len` bytes over a way of 20 ms and 100 Mbit/s that loses the first transmission of these packets. With
/// the trace of its call, switched on once it has begun.
fn send_with_losses(
    len: usize,
    lost: &'static [u32],
    traced: bool,
) -> (World, Option<Trace>, Arc<Mutex<Wire>>) {
    // A queue that takes whatever comes: nothing is lost but what the test drops.
    let link = Link { delay: ms(10), rate: 100_000_000, queue: ms(1000), ..Link::default() };
    let mut world = World::pair(11, config(), link);
    let wire = Arc::new(Mutex::new(Wire::default()));
    let seen = Arc::clone(&wire);
    let client = world.nodes[0].address;
    world.filter = Some(Box::new(move |now, from, bytes| {
        let header = Header::parse(bytes).expect("ours are whole");
        if from != client || header.kind != PacketType::DATA {
            return true;
        }
        let mut wire = seen.lock().unwrap();
        let again = wire.dropped.iter().any(|(seq, _)| *seq == header.seq);
        let passes = again || !lost.contains(&header.seq.0);
        let list = if passes { &mut wire.passed } else { &mut wire.dropped };
        list.push((header.seq, now));
        passes
    }));
    let connection = world.connect(0, 1);
    let job = world.start(0, connection, Job::new(len, 1));
    let call = world.nodes[0].jobs[job].call.expect("a channel is free");
    let now = world.now;
    if traced {
        world.nodes[0].endpoint.trace_call(now, call).unwrap();
    }
    // To just before the reply, after which the application lets the call go.
    world.run_until(ms(20_000), |w| {
        w.nodes[0].endpoint.call_stats(call).is_none_or(|s| s.bytes_acked as usize >= len)
            || w.nodes[1].served > 0
    });
    let trace = world.nodes[0].endpoint.take_trace(call);
    assert!(world.nodes[0].endpoint.take_trace(call).is_none(), "a trace is taken once");
    assert!(world.run_until(ms(20_000), |w| w.is_done()));
    (world, trace, wire)
}

#[test]
fn a_trace_has_the_losses_at_their_times() {
    const LOST: &[u32] = &[300, 301, 500, 900];
    let (_, trace, wire) = send_with_losses(2_000_000, LOST, true);
    let (trace, wire) = (trace.expect("it was traced"), wire.lock().unwrap());
    assert!(trace.is_client && trace.span.is_zero());
    let marks = |wanted: fn(&What) -> Option<Seq>| -> Vec<(Seq, Instant)> {
        trace.records.iter().filter_map(|r| wanted(&r.what).map(|seq| (seq, r.at))).collect()
    };
    let lost = marks(|what| if let What::Lost { seq } = what { Some(*seq) } else { None });
    let resent = marks(|what| if let What::Resent { seq } = what { Some(*seq) } else { None });
    assert_eq!(lost.iter().map(|(seq, _)| seq.0).collect::<Vec<_>>(), LOST);
    for (seq, dropped_at) in &wire.dropped {
        let found = lost.iter().find(|(s, _)| s == seq).unwrap().1;
        let after = found.since(*dropped_at);
        assert!((ms(20)..ms(150)).contains(&after), "{seq:?} was found lost {after:?} after it was dropped");
        let again = resent.iter().find(|(s, _)| s == seq).unwrap().1;
        let passed = wire.passed.iter().find(|(s, _)| s == seq).unwrap().1;
        assert_eq!(again, passed, "{seq:?} went again when the trace says");
    }
}

#[test]
fn what_the_trace_says_was_sent_is_what_the_wire_has_seen() {
    let (_, trace, wire) = send_with_losses(500_000, &[200], true);
    let (trace, wire) = (trace.unwrap(), wire.lock().unwrap());
    let mut sent = Vec::new();
    for record in &trace.records {
        match &record.what {
            What::Sent(s) => sent.push((s.seqs.0, record.at)),
            What::Resent { seq } => sent.push((*seq, record.at)),
            _ => {}
        }
    }
    let mut seen: Vec<_> = wire.passed.iter().chain(&wire.dropped).copied().collect();
    seen.retain(|(seq, at)| *at > trace.started || sent.contains(&(*seq, *at)));
    sent.sort_unstable();
    seen.sort_unstable();
    assert!(sent.len() > 300);
    assert_eq!(sent, seen);
}

#[test]
fn acks_show_window_rate_and_round_trip() {
    let (_, trace, _) = send_with_losses(4_000_000, &[], true);
    let trace = trace.unwrap();
    let acks = trace.records.iter().filter_map(|r| if let What::Acked(a) = &r.what { Some(a) } else { None });
    let last = acks.clone().next_back().unwrap();
    assert!(last.rate.is_some_and(|rate| (8_000_000..16_000_000).contains(&rate)), "{last:?}");
    assert!(last.window > 200_000 && last.peer_window > 16, "{last:?}");
    for (min, max) in acks.clone().filter_map(|a| a.rtt) {
        assert!(min >= ms(20) && max < ms(500), "{min:?} to {max:?}");
    }
    assert!(acks.filter(|a| a.rtt.is_some()).count() > 20);
    assert!(trace.records.iter().any(|r| matches!(r.what, What::Phase(_))));
}

#[test]
fn a_silent_peer_shows_as_probes_and_timeouts() {
    let mut world = World::pair(3, config(), Link { rate: 100_000_000, ..Link::default() });
    let connection = world.connect(0, 1);
    let job = world.start(0, connection, Job::new(10_000_000, 1));
    let call = world.nodes[0].jobs[job].call.unwrap();
    world.run_for(ms(200));
    let now = world.now;
    world.nodes[0].endpoint.trace_call(now, call).unwrap();
    world.both_links(0, 1, |link| link.is_down = true);
    world.run_for(ms(5000));
    let trace = world.nodes[0].endpoint.take_trace(call).unwrap();
    let at = |wanted: fn(&What) -> bool| trace.records.iter().find(|r| wanted(&r.what)).map(|r| r.at);
    let probed = at(|what| *what == What::Probed).expect("it is asked first");
    let timed_out = at(|what| *what == What::TimedOut).expect("and then given up");
    let lost = at(|what| matches!(what, What::Lost { .. })).expect("with all that was under way");
    assert!(now < probed && probed < timed_out && lost == timed_out);
    let stats = world.nodes[0].endpoint.stats();
    assert!(stats.probes > 0 && stats.timeouts > 0 && stats.data_lost > 0, "{stats:?}");
}

#[test]
fn the_receiving_end_shows_what_came_and_what_was_answered() {
    let mut world = World::pair(5, config(), Link { loss: 0.01, ..Link::default() });
    let connection = world.connect(0, 1);
    let job = world.start(0, connection, Job::new(1, 3_000_000));
    let call = world.nodes[0].jobs[job].call.unwrap();
    let now = world.now;
    world.nodes[0].endpoint.trace_call(now, call).unwrap();
    let received = |w: &World| w.nodes[0].endpoint.call_stats(call).map_or(u64::MAX, |s| s.bytes_received);
    assert!(world.run_until(ms(20_000), |w| received(w) > 2_000_000));
    let trace = world.nodes[0].endpoint.take_trace(call).unwrap();
    let (mut bytes, mut held, mut acks) = (0, 0, 0);
    for record in &trace.records {
        match &record.what {
            What::Received(data) => {
                bytes += data.bytes;
                held += data.held;
            }
            What::AckSent(sent) => {
                acks += sent.acks;
                assert!(sent.window >= 255);
            }
            _ => {}
        }
    }
    assert!(bytes >= 2_000_000 && held > 0 && acks > 50, "{bytes} bytes, {held} held, {acks} ACKs");
}

#[test]
fn a_call_that_is_traced_does_the_same_as_one_that_is_not() {
    let (traced, trace, _) = send_with_losses(2_000_000, &[300, 700], true);
    let (untraced, none, _) = send_with_losses(2_000_000, &[300, 700], false);
    assert!(trace.is_some() && none.is_none());
    assert_eq!((traced.now, traced.datagrams), (untraced.now, untraced.datagrams));
}

#[test]
fn the_wait_of_a_first_packet_is_measured() {
    let link = Link { delay: ms(10), rate: 20_000_000, ..Link::default() };
    let mut world = World::pair(7, config(), link);
    let connection = world.connect(0, 1);
    let first = world.start(0, connection, Job::new(10_000_000, 1));
    world.run_for(ms(1000));
    let second = world.start(0, connection, Job::new(10_000, 1));
    let wait = |w: &World, job: usize| {
        let call = w.nodes[0].jobs[job].call.unwrap();
        w.nodes[0].endpoint.call_stats(call).unwrap().send_wait
    };
    assert_eq!(wait(&world, first), Some(Duration::ZERO), "nobody was before it");
    let started = world.now;
    assert!(world.run_until(ms(1000), |w| wait(w, second).is_some()));
    assert_eq!(wait(&world, second), Some(world.now.since(started)), "it waited for the pace of the path");
}
