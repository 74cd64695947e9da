//! Paths that lose and reorder: how fast holes are repaired, and how much is sent again for nothing. In virtual time; a
//! fixed rate takes the congestion controller out, so that only what this is about is seen.

use afs_sim::world::{Job, Link, World, ms};
use rx_proto::ack::{Ack, Announcement};
use rx_proto::config::Config;
use rx_proto::endpoint::ConnectionHandle;
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use rx_proto::path::PathStats;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Seeds with which a call of many stood still.
const SEEDS_OF_MANY: [u64; 3] = [11, 12, 17];

const LONG: Duration = Duration::from_secs(120);

/// Bytes a second of DATA packets: a little under what a link of 1 Gbit/s carries.
const RATE: u64 = 115_000_000;

/// Share of a full DATA packet that is the stream's.
const PAYLOAD: f64 = 1416.0 / 1444.0;

/// A client and a server, of packets of the size that the Internet carries, over such a link of 1 Gbit/s.
fn pair(rate: Option<u64>, rtt: Duration, change: impl Fn(&mut Link)) -> (World, ConnectionHandle) {
    let config = Config { max_packet_len: 1444, fixed_rate: rate, ..Config::default() };
    let mut link = Link { delay: rtt / 2, rate: 1_000_000_000, ..Link::default() };
    change(&mut link);
    let mut world = World::pair(5, config, link);
    let connection = world.connect(0, 1);
    (world, connection)
}

/// What the server's path to the client counts.
fn stats(world: &World) -> PathStats {
    *world.nodes[1].endpoint.path_to(world.nodes[0].address).unwrap().stats()
}

/// How long a reply of so many bytes takes.
fn reply(world: &mut World, connection: ConnectionHandle, bytes: usize) -> Duration {
    world.call(0, connection, Job::new(0, bytes), LONG).unwrap()
}

#[test]
fn a_gigabit_over_200_ms_that_loses_a_hundredth_is_repaired_within_a_round_trip() {
    let rtt = ms(200);
    let (mut world, connection) = pair(Some(RATE), rtt, |l| l.loss = 0.01);
    reply(&mut world, connection, 150_000_000); // until the windows are open
    let (before, dropped) = (stats(&world), world.link(1, 0).dropped);
    let bytes = 250_000_000;
    let took = reply(&mut world, connection, bytes);
    let (after, dropped) = (stats(&world), world.link(1, 0).dropped - dropped);
    // Every hundredth goes twice; then the way there and back, the repair of what is lost last, and that of its repair.
    let expected = bytes as f64 / (RATE as f64 * PAYLOAD * 0.98) + 4.0 * rtt.as_secs_f64();
    assert!(took.as_secs_f64() < expected, "{took:?} of {expected}");
    let (sent, resent) = (after.data_sent - before.data_sent, after.data_resent - before.data_resent);
    assert!(dropped > sent / 120, "{dropped} of {sent} lost");
    assert!(resent <= dropped + sent / 1000, "{resent} sent again of {dropped} lost and {sent} sent");
    assert_eq!((after.spurious - before.spurious, after.timeouts), (0, before.timeouts));
    // The reader waits while a packet and then its repair is lost, not longer.
    let progress = &world.nodes[0].jobs.last().unwrap().progress;
    let stall = progress.windows(2).map(|w| w[1].0.since(w[0].0)).max().unwrap();
    assert!(stall < rtt * 5 / 2, "{stall:?}");
}

#[test]
fn several_thousand_holes_at_once_are_all_repaired() {
    let rtt = ms(200);
    let (mut world, connection) = pair(Some(RATE), rtt, |l| l.loss = 0.1);
    reply(&mut world, connection, 60_000_000);
    let bytes = 100_000_000;
    let (before, dropped) = (stats(&world), world.link(1, 0).dropped);
    let took = reply(&mut world, connection, bytes);
    let (after, dropped) = (stats(&world), world.link(1, 0).dropped - dropped);
    let expected = bytes as f64 / (RATE as f64 * PAYLOAD * 0.88) + 8.0 * rtt.as_secs_f64();
    assert!(took.as_secs_f64() < expected, "{took:?} of {expected}");
    let (sent, resent) = (after.data_sent - before.data_sent, after.data_resent - before.data_resent);
    assert!(resent <= dropped + sent / 1000, "{resent} sent again of {dropped} lost and {sent} sent");
}

#[test]
fn packets_held_back_by_two_milliseconds_are_waited_for() {
    for rtt_us in [12_500, 50_000, 200_000] {
        let (mut world, connection) = pair(Some(RATE), Duration::from_micros(rtt_us), |l| l.reorder = 0.01);
        reply(&mut world, connection, 60_000_000);
        let stats = stats(&world);
        assert!(stats.data_sent > 40_000);
        assert!(stats.data_resent <= 8, "{rtt_us} us: {stats:?}");
        assert_eq!(stats.spurious, stats.data_resent, "what was sent again for nothing is known as such");
    }
}

#[test]
fn packets_held_back_for_most_of_the_round_trip_are_waited_for_in_the_end() {
    let (mut world, connection) = pair(Some(20_000_000), ms(20), |l| {
        (l.reorder, l.reorder_by) = (0.02, ms(12));
    });
    reply(&mut world, connection, 8_000_000);
    let before = stats(&world);
    assert!(before.spurious > 10, "{before:?}");
    reply(&mut world, connection, 20_000_000);
    let after = stats(&world);
    let (sent, spurious) = (after.data_sent - before.data_sent, after.spurious - before.spurious);
    assert!(spurious < sent / 500, "{spurious} of {sent}");
}

/// Drops the last `n` packets of the reply, when they go for the first time.
fn without_tail(world: &mut World, packets: u32, n: u32) {
    let left = Rc::new(Cell::new(n));
    world.filter = Some(Box::new(move |_, _, packet| {
        let header = Header::parse(packet).unwrap();
        let is_tail = header.kind == PacketType::DATA && header.seq.0 > packets - n && packets > 1;
        let drops = is_tail && left.get() > 0 && header.seq.0 == packets - left.get() + 1;
        left.set(left.get() - u32::from(drops));
        !drops
    }));
}

#[test]
fn a_lost_tail_is_repaired_by_a_probe() {
    let rtt = ms(100);
    // Two round trips after the tail went the probe goes. Its answer shows what else is missing, a round trip later.
    for (lost, most) in [(1, 2.3), (5, 3.3), (20, 3.3)] {
        let (mut world, connection) = pair(None, rtt, |_| ());
        reply(&mut world, connection, 500_000); // the path is known
        let packets = 60;
        let whole = reply(&mut world, connection, packets as usize * 1416);
        without_tail(&mut world, packets, lost);
        let took = reply(&mut world, connection, packets as usize * 1416);
        let extra = took.saturating_sub(whole).as_secs_f64() / rtt.as_secs_f64();
        assert!(extra < most && extra > 1.9, "{lost} lost: {extra} round trips more");
        world.run_for(rtt); // the server hears of it
        let stats = stats(&world);
        assert_eq!((stats.timeouts, stats.data_resent), (0, u64::from(lost)));
        assert_eq!(stats.bytes_lost, u64::from(lost) * 1444, "counted, though a probe repaired one");
        assert_eq!(stats.spurious, 0);
    }
}

#[test]
fn a_probe_that_was_not_needed_counts_as_no_loss() {
    let (mut world, connection) = pair(None, ms(50), |_| ());
    reply(&mut world, connection, 500_000);
    let before = stats(&world);
    // The answers are late: the link to the server holds everything back for a while.
    world.start(0, connection, Job::new(0, 20 * 1416));
    world.run_for(ms(40));
    world.link(0, 1).delay += ms(90);
    assert!(world.run_until(LONG, World::is_done));
    world.run_for(ms(400));
    let after = stats(&world);
    assert!(after.data_resent > before.data_resent, "{after:?}");
    assert_eq!((after.bytes_lost, after.timeouts), (before.bytes_lost, before.timeouts));
}

/// Takes the RANGES bit out of every announcement; returns how many ACKs had ranges all the same.
fn without_ranges(world: &mut World) -> Rc<Cell<usize>> {
    let with_ranges = Rc::new(Cell::new(0));
    let seen = with_ranges.clone();
    world.rewrite = Some(Box::new(move |packet| {
        let header = Header::parse(packet).unwrap();
        if header.kind != PacketType::ACK {
            return;
        }
        let ack = Ack::parse(&packet[HEADER_LEN..], header.flags.contains(Flags::EXTENDED_SACK)).unwrap();
        let (has_ranges, table_len) = (ack.has_ranges(), ack.table.len() as usize);
        if ack.trailer.announcement.is_some_and(|a| a.has(Announcement::RANGES)) {
            seen.set(seen.get() + usize::from(has_ranges));
            packet[HEADER_LEN + 18 + table_len + 3 + 19] &= !2;
        }
    }));
    with_ranges
}

#[test]
fn a_peer_that_knows_no_ranges_is_repaired_too() {
    let (mut world, connection) = pair(Some(RATE), ms(50), |l| l.loss = 0.01);
    let with_ranges = without_ranges(&mut world);
    let took = reply(&mut world, connection, 5_000_000);
    assert_eq!(with_ranges.get(), 0, "nobody is sent what it has not asked for");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(world.nodes[0].jobs[0].call.is_some() && stats(&world).data_resent > 20);
}

#[test]
fn acks_stay_small_but_where_one_was_asked_for() {
    let (mut world, connection) = pair(Some(RATE), ms(100), |l| l.loss = 0.02);
    let (total, ordinary, data) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counts = (total.clone(), ordinary.clone(), data.clone());
    world.filter = Some(Box::new(move |_, _, packet| {
        let header = Header::parse(packet).unwrap();
        if header.kind == PacketType::ACK {
            assert!(packet.len() <= 1444, "{} bytes", packet.len());
            counts.0.set(counts.0.get() + packet.len());
            counts.1.set(counts.1.get() + usize::from(packet.len() <= 201));
        } else {
            counts.2.set(counts.2.get() + packet.len());
        }
        true
    }));
    reply(&mut world, connection, 60_000_000);
    assert!(total.get() < data.get() / 20, "{} bytes of ACKs for {} of data", total.get(), data.get());
    assert!(ordinary.get() > 10_000);
}

/// A call began with more than it was offered, as earlier ones of the path had been offered more; the refusal named what had been thrown away,
/// and the sender took that for received: the call stood still for ever, the server sure that all of it had come.
#[test]
fn of_many_calls_that_follow_each_other_none_stands_still() {
    let link = Link { delay: ms(100), rate: 1_000_000_000, loss: 0.001, ..Link::default() };
    let config = Config { max_packet_len: 1444, ..Config::default() };
    for seed in SEEDS_OF_MANY {
        let mut world = World::pair(seed, config.clone(), link.clone());
        let connections = [world.connect(0, 1), world.connect(0, 1)];
        let (mut started, mut open) = (0, Vec::new());
        while started < 24 || !open.is_empty() {
            while open.len() < 7 && started < 24 {
                open.push(world.start(0, connections[started % 2], Job::new(0, 16 << 20)));
                started += 1;
            }
            let goes_on = world.run_until(Duration::from_secs(10), |w| {
                open.iter().any(|&job| w.nodes[0].jobs[job].result.is_some())
            });
            assert!(goes_on, "seed {seed}: {} calls stand still at {:?}", open.len(), world.now);
            open.retain(|&job| world.nodes[0].jobs[job].result.is_none());
        }
    }
}

/// A long path of a caller whose window is more than a server keeps for one without a name. Holes behind the first were filled before
/// it, or by a packet a round trip, and the store stood still until it was given up.
#[test]
fn a_long_store_without_a_name_goes_on_though_the_server_keeps_no_whole_window() {
    for (seed, loss, queue) in [(6, 0.0, 20), (3, 0.01, 50), (4, 0.02, 50)] {
        let config = Config { strangers_memory: 8 << 20, ..Config::default() };
        let link = Link { delay: ms(100), rate: 125_000_000, queue: ms(queue), loss, ..Link::default() };
        let mut world = World::pair(seed, config, link);
        let connection = world.connect(0, 1);
        let took = world.call(0, connection, Job::new(125_000_000, 4), LONG).unwrap();
        assert!(world.nodes[1].endpoint.stats().unkept > 0, "nothing was refused");
        let mbit = 1000.0 / took.as_secs_f64();
        assert!(mbit > 60.0, "seed {seed}, {loss} lost: {mbit:.0} of 125 Mbit/s");
    }
}
