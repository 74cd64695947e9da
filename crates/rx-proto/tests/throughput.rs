//! What one call carries over links of many kinds: the numbers are kept in `throughput.txt`, so that a change in behaviour
//! is seen in review. Virtual time, so they are the same on every machine. `UPDATE=1 cargo test throughput::` writes them.

use afs_sim::world::{Job, Link, World, ms};
use rx_proto::config::Config;
use std::fmt::Write;
use std::time::Duration;

struct Row {
    mbit: f64,
    rounds_to_90: f64,
    second_rounds: f64,
    resent: u64,
}

/// Streams for `seconds` over the link; then once more on the same path.
fn stream(rtt: u64, mbit: u64, queue: u64, config: &Config, seconds: f64) -> Row {
    let link = Link {
        delay: Duration::from_micros(rtt * 500),
        rate: mbit * 1_000_000,
        queue: ms(queue),
        ..Link::default()
    };
    let mut world = World::new(11);
    world.default_link = link;
    world.add(config.clone());
    world.add(config.clone());
    let connection = world.connect(0, 1);
    let bytes = (mbit as f64 * 125_000.0 * seconds) as usize;
    let mut rounds = [0.0; 2];
    let mut rate = 0.0;
    for run in &mut rounds {
        let start = world.now;
        let index = world.start(0, connection, Job::new(0, bytes));
        let done = world.run_until(Duration::from_secs(120), |w| w.nodes[0].jobs[index].result.is_some());
        assert!(done, "{rtt} ms, {mbit} Mbit/s");
        let job = &world.nodes[0].jobs[index];
        let round = Duration::from_millis(rtt);
        // Rate per round trip; when it first reaches 90 % of what the link carries, headers taken off.
        let full = mbit as f64 * 1e6 / 8.0 * 1416.0 / 1472.0;
        let window = round.max(ms(10));
        *run = f64::INFINITY;
        for (i, (at, total)) in job.progress.iter().enumerate() {
            let Some((from, before)) = job.progress[..i].iter().rev().find(|(t, _)| at.since(*t) >= window)
            else {
                continue;
            };
            let got = (total - before) as f64 / at.since(*from).as_secs_f64();
            if got >= 0.9 * full {
                *run = from.since(start).as_secs_f64() / round.as_secs_f64();
                break;
            }
        }
        let (mid, half) = job.progress[job.progress.len() / 2];
        let (end, all) = *job.progress.last().unwrap();
        rate = (all - half) as f64 * 8.0 / 1e6 / end.since(mid).as_secs_f64();
    }
    let resent = world.nodes[1].endpoint.stats().data_resent;
    Row { mbit: rate, rounds_to_90: rounds[0], second_rounds: rounds[1], resent }
}

/// `-` where the rate is never reached: a stock peer's window does not fill the link.
fn rounds(n: f64) -> String {
    if n.is_finite() { format!("{n:.1}") } else { "-".to_owned() }
}

#[test]
fn the_table_of_throughput() {
    let mut table = String::from(
        "one call, server to client; no loss but in full queues; Mbit/s in its second half, then round trips until 90 %\n\
         of the link's rate, in a first and in a second call on the path, then packets sent again\n\n\
         peers     RTT ms  Mbit/s  queue ms   Mbit/s  first  second  resent\n",
    );
    let stock = Config::stock_like();
    let own = Config { max_packet_len: 1444, ..Config::default() };
    for (name, config, rtts, seconds) in
        [("own", &own, [1u64, 12, 50, 100, 200].as_slice(), 1.0), ("stock", &stock, &[12, 50], 0.02)]
    {
        for &rtt in rtts {
            for (mbit, queue) in [(20, 50), (100, 50), (1000, 50), (1000, 10)] {
                let seconds = if name == "own" { (rtt as f64 * 0.02).max(seconds) } else { seconds };
                let row = stream(rtt, mbit, queue, config, seconds);
                writeln!(
                    table,
                    "{name:8} {rtt:7} {mbit:7} {queue:9} {:8.1} {:>6} {:>7} {:7}",
                    row.mbit,
                    rounds(row.rounds_to_90),
                    rounds(row.second_rounds),
                    row.resent
                )
                .unwrap();
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/throughput.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(table == kept, "throughput changed; if that is meant, UPDATE=1 writes the new table:\n{table}");
}

/// Mbit/s of a call's second and third second, where the receiver runs and stands still in turns, as in a machine that is full.
fn stream_to_one_who_stands_still(runs: Duration, stands: Duration) -> f64 {
    let config = Config { max_packet_len: 1444, ..Config::default() };
    let mut world =
        World::pair(1, config, Link { rate: 200_000_000, queue: Duration::from_secs(1), ..Link::default() });
    let connection = world.connect(0, 1);
    let start = world.now;
    let job = world.start(0, connection, Job::new(0, 100_000_000));
    let mut received = |until: Duration| {
        while world.now.since(start) < until {
            world.run_for(runs);
            world.nodes[0].stands_until = world.now + stands;
            world.run_for(stands);
        }
        world.nodes[0].jobs[job].progress.last().map_or(0, |&(_, bytes)| bytes)
    };
    let first = received(Duration::from_secs(1));
    (received(Duration::from_secs(3)) - first) as f64 * 8e-6 / 2.0
}

/// It went down to 1 to 4 Mbit/s of 192: the window was of the smallest round trip, so each standstill divided the rate that
/// was measured, and that the window.
#[test]
fn a_receiver_that_stands_still_for_nine_tenths_of_the_time_has_the_whole_link() {
    for (runs, stands) in [(1, 19), (5, 45), (10, 90)] {
        let mbit = stream_to_one_who_stands_still(ms(runs), ms(stands));
        assert!(mbit > 0.9 * 192.0, "{stands} of {} ms: {mbit:.0} Mbit/s", runs + stands);
    }
}

/// The first of three calls held all the memory for windows, and the two beside it were left 255 packets each.
#[test]
fn calls_beside_each_other_share_the_memory_for_windows() {
    let config = Config { max_packet_len: 1444, receive_budget: 24 << 20, ..Config::default() };
    let link = Link { delay: ms(50), rate: 500_000_000, queue: ms(50), ..Link::default() };
    let mut world = World::pair(3, config, link);
    let connection = world.connect(0, 1);
    let first = world.start(0, connection, Job::new(0, 80_000_000));
    let minute = Duration::from_secs(60);
    assert!(world.run_until(minute, |w| w.nodes[0].jobs[first].result.is_some()));
    let jobs = [(); 3].map(|()| world.start(0, connection, Job::new(0, 20_000_000)));
    assert!(world.run_until(minute, |w| jobs.iter().any(|&job| w.nodes[0].jobs[job].result.is_some())));
    for job in jobs {
        let here = world.nodes[0].jobs[job].progress.last().map_or(0, |&(_, bytes)| bytes);
        assert!(here > 10_000_000, "{here} bytes when another has all");
    }
}

/// A thread need not be woken for each packet of a stream of a long path that is alone on the socket. A call of anybody else is answered at once,
/// and so are those that follow it.
#[test]
fn a_stream_is_alone_until_somebody_else_calls() {
    let mut world = World::pair(1, Config::default(), Link { rate: 100_000_000, ..Link::default() });
    let [stream, other] = [0; 2].map(|_| world.connect(0, 1));
    let job = world.start(0, stream, Job::new(20_000_000, 4));
    let alone =
        |world: &World| [0, 1].map(|node: usize| world.nodes[node].endpoint.is_lone_stream(world.now));
    world.run_for(ms(50));
    assert_eq!(alone(&world), [false; 2], "it has just begun");
    world.run_for(ms(500));
    assert_eq!(alone(&world), [true; 2]);
    world.call(0, other, Job::new(4, 4), ms(200)).unwrap();
    assert_eq!(alone(&world), [false; 2]);
    world.run_for(ms(150));
    assert_eq!(alone(&world), [true; 2]);
    assert!(world.run_until(Duration::from_secs(10), |w| w.nodes[0].jobs[job].result.is_some()));
    world.run_for(ms(200));
    assert_eq!(alone(&world), [false; 2], "its call is over");
}
