//! Calls between two endpoints in virtual time: data, ends, aborts, limits, channels.

use afs_sim::world::{Job, Link, World, ms};
use rand::Rng;
use rx_proto::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::Endpoint;
use rx_proto::packet::{HEADER_LEN, PacketType};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn own() -> World {
    World::pair(1, Config::default(), Link::default())
}

#[test]
fn an_empty_call_takes_one_round_trip() {
    let mut world = own();
    let connection = world.connect(0, 1);
    let first = world.call(0, connection, Job::new(0, 0), LONG).unwrap();
    let second = world.call(0, connection, Job::new(0, 0), LONG).unwrap();
    assert!(first <= ms(21), "the first includes the reach ping: {first:?}");
    assert!(second <= ms(11), "{second:?}");
}

#[test]
fn data_arrive_whole_in_both_directions() {
    for (send, receive) in
        [(1, 1), (1400, 1416), (1401, 1417), (100_000, 10), (10, 100_000), (3_000_000, 3_000_000)]
    {
        let mut world = own();
        let connection = world.connect(0, 1);
        world.call(0, connection, Job::new(send, receive), LONG).unwrap();
        assert_eq!(world.nodes[1].served, 1);
    }
}

#[test]
fn stock_like_endpoints_understand_each_other_and_ours() {
    for (a, b) in [(false, false), (true, false), (false, true)] {
        let config = |own| if own { Config::default() } else { Config::stock_like() };
        let mut world = World::new(3);
        world.add(config(a));
        world.add(config(b));
        let connection = world.connect(0, 1);
        world.call(0, connection, Job::new(300_000, 300_000), LONG).unwrap();
    }
}

#[test]
fn four_calls_run_at_once_and_the_fifth_waits() {
    let mut world = own();
    let connection = world.connect(0, 1);
    for _ in 0..9 {
        world.start(0, connection, Job { think: ms(100), ..Job::new(10, 10) });
    }
    world.run_until(LONG, |w| w.nodes[0].jobs.iter().all(|j| j.result.is_some()));
    let mut ends: Vec<u64> = world.nodes[0]
        .jobs
        .iter()
        .map(|j| j.ended.unwrap().since(j.started).as_millis() as u64 / 100)
        .collect();
    ends.sort_unstable();
    assert_eq!(ends, [1, 1, 1, 1, 2, 2, 2, 2, 3]);
}

#[test]
fn an_abort_reaches_the_caller_and_frees_the_channel() {
    let mut world = own();
    let connection = world.connect(0, 1);
    for code in [102, -5, i32::MAX] {
        let result = world.call(0, connection, Job { abort: code, ..Job::new(50_000, 10) }, LONG);
        assert_eq!(result, Err(CallError::AbortedByPeer(AbortCode(code))));
    }
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
}

#[test]
fn a_dropped_call_is_aborted_at_the_server() {
    let mut world = own();
    let connection = world.connect(0, 1);
    let job = world.start(0, connection, Job { think: ms(5000), ..Job::new(10, 10) });
    world.run_for(ms(100));
    let call = world.nodes[0].jobs[job].call.unwrap();
    let now = world.now;
    world.nodes[0].endpoint.release(now, call);
    world.run_for(ms(100));
    assert_eq!(world.nodes[1].served_failed, 1);
}

/// Found with OpenAFS: the next call took the channel of one that had been given up, and waited as long as the server worked
/// on that.
#[test]
fn a_channel_on_which_the_server_may_be_busy_comes_last() {
    let mut world = own();
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let job = world.start(0, connection, Job { think: ms(5000), ..Job::new(10, 10) });
    world.run_for(ms(100));
    let given_up = world.nodes[0].jobs[job].call.unwrap();
    let now = world.now;
    world.nodes[0].endpoint.release(now, given_up);
    for _ in 0..5 {
        let job = world.start(0, connection, Job::new(10, 10));
        world.run_until(LONG, |w| w.nodes[0].jobs[job].result.is_some());
        assert_ne!(world.nodes[0].jobs[job].call.unwrap().channel(), given_up.channel());
    }
}

#[test]
fn a_server_that_computes_for_minutes_is_waited_for() {
    let mut world = own();
    let connection = world.connect(0, 1);
    let took =
        world.call(0, connection, Job { think: ms(180_000), ..Job::new(10, 10) }, Duration::from_secs(200));
    assert!(took.unwrap() >= ms(180_000));
    assert!(world.datagrams < 500, "keepalives are few: {}", world.datagrams);
}

#[test]
fn a_dead_server_is_noticed_by_the_limit_and_a_dead_client_too() {
    let mut world = own();
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let job = world.start(0, connection, Job { think: ms(60_000), ..Job::new(10, 10) });
    world.run_for(ms(100));
    world.both_links(0, 1, |l| l.is_down = true);
    world.run_until(LONG, |w| w.nodes[0].jobs[job].result.is_some());
    let j = &world.nodes[0].jobs[job];
    assert_eq!(j.result, Some(Err(CallError::Failed(AbortCode::CALL_DEAD))));
    let waited = j.ended.unwrap().since(j.started);
    assert!((ms(12_000)..ms(12_500)).contains(&waited), "{waited:?}");
    world.run_for(ms(1000));
    assert_eq!(world.nodes[1].served_failed, 1);
}

#[test]
fn a_call_that_can_be_made_elsewhere_ends_soon_when_its_peer_is_silent_and_others_go_on() {
    let mut world = own();
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let jobs = [0, 1].map(|_| world.start(0, connection, Job { think: ms(60_000), ..Job::new(10, 10) }));
    world.run_for(ms(100));
    let hasty = world.nodes[0].jobs[jobs[0]].call.unwrap();
    let limits = CallLimits { silence: Some(ms(600)), ..CallLimits::default() };
    world.nodes[0].endpoint.set_call_limits(hasty, limits);
    // A server that computes answers pings.
    world.run_for(ms(5000));
    assert!(jobs.iter().all(|&job| world.nodes[0].jobs[job].result.is_none()));
    world.both_links(0, 1, |link| link.is_down = true);
    let cut = world.now;
    for (job, expected) in jobs.into_iter().zip([600, 12_000]) {
        world.run_until(LONG, |w| w.nodes[0].jobs[job].result.is_some());
        let job = &world.nodes[0].jobs[job];
        assert_eq!(job.result, Some(Err(CallError::Failed(AbortCode::CALL_DEAD))));
        let waited = job.ended.unwrap().since(cut);
        assert!(waited <= ms(expected + 100) && waited > ms(expected * 5 / 6 - 100), "{waited:?}");
    }
}

#[test]
fn idle_and_hard_limits_end_a_call_that_is_alive() {
    for (idle, hard, expect) in [(Some(3), None, 3000), (None, Some(4), 4000)] {
        let mut world = own();
        let connection = world.connect(0, 1);
        let limits = CallLimits {
            idle: idle.map(Duration::from_secs),
            hard: hard.map(Duration::from_secs),
            ..CallLimits::default()
        };
        world.nodes[0].endpoint.set_limits(connection, limits);
        let job = world.start(0, connection, Job { think: ms(60_000), ..Job::new(10, 10) });
        world.run_until(LONG, |w| w.nodes[0].jobs[job].result.is_some());
        let j = &world.nodes[0].jobs[job];
        assert_eq!(j.result, Some(Err(CallError::Failed(AbortCode::CALL_TIMEOUT))));
        let waited = j.ended.unwrap().since(j.started).as_millis() as i64;
        assert!((waited - expect).abs() < 100, "{waited}");
        world.run_for(ms(100));
        assert_eq!(world.nodes[1].served_failed, 1, "the server hears of it");
    }
}

#[test]
fn an_unknown_service_is_refused_at_once() {
    let mut world = own();
    let (peer, now) = (world.nodes[1].address, world.now);
    let connection = world.nodes[0].endpoint.connect(
        now,
        peer,
        rx_proto::ids::ServiceId(9),
        Box::new(rx_proto::security::Null),
    );
    let result = world.call(0, connection, Job::new(10, 10), ms(100));
    assert_eq!(result, Err(CallError::AbortedByPeer(AbortCode::INVALID_OPERATION)));
}

/// A server takes its port before it has opened what it serves. Clients of that moment must find the service, not a refusal.
#[test]
fn a_client_of_a_server_that_is_starting_waits_for_the_service() {
    let mut world = own();
    let (peer, now) = (world.nodes[1].address, world.now);
    world.nodes[1].endpoint.set_starting(now, true);
    let late = rx_proto::ids::ServiceId(9);
    let connection = world.nodes[0].endpoint.connect(now, peer, late, Box::new(rx_proto::security::Null));
    let job = world.start(0, connection, Job::new(10, 10));
    world.run_for(ms(3000));
    assert_eq!(world.nodes[0].jobs[job].result, None, "nothing was said");
    // One that is there already answers.
    let known = world.connect(0, 1);
    world.call(0, known, Job::new(10, 10), ms(100)).unwrap();
    world.nodes[1].endpoint.add_service(rx_proto::endpoint::Service {
        id: late,
        security: vec![std::sync::Arc::new(rx_proto::security::Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    });
    // What was asked is answered then, not when it is asked again.
    let now = world.now;
    world.nodes[1].endpoint.set_starting(now, false);
    world.run_for(ms(100));
    assert_eq!(world.nodes[0].jobs[job].result, Some(Ok(())));
}

/// Small calls say nothing of what a path carries: the start of a long one after them goes as one on a new path does. (They once ended
/// it, and 16 MB took 17 s.)
#[test]
fn a_long_call_after_small_ones_starts_as_a_first_one_does() {
    let took = |small: usize, sizes: &[usize]| {
        let link = Link { delay: ms(50), rate: 1_000_000_000, ..Link::default() };
        let mut world = World::pair(7, Config::default(), link);
        let connection = world.connect(0, 1);
        for _ in 0..small {
            world.call(0, connection, Job::new(10, 200), LONG).unwrap();
        }
        let begin = world.now;
        let jobs: Vec<_> = sizes.iter().map(|size| world.start(0, connection, Job::new(10, *size))).collect();
        world.run_until(LONG, |w| jobs.iter().all(|job| w.nodes[0].jobs[*job].result.is_some()));
        world.now.since(begin)
    };
    for sizes in [&[1_000_000][..], &[256_000; 4], &[16_000_000]] {
        let first = took(0, sizes);
        for small in [1, 10, 40] {
            let after = took(small, sizes);
            assert!(
                after <= first + ms(20),
                "{sizes:?} after {small} small ones: {after:?}, before them {first:?}"
            );
        }
    }
}

#[test]
fn a_slow_reader_holds_the_sender_and_loses_nothing() {
    for config in [Config::default(), Config::stock_like()] {
        let mut world = World::pair(7, config, Link::default());
        let connection = world.connect(0, 1);
        world.nodes[0].reads_after = world.now + ms(8000);
        let job = world.start(0, connection, Job::new(10, 2_000_000));
        world.run_for(ms(7000));
        let sent = world.nodes[1].endpoint.stats().bytes_written;
        assert!(sent < 500_000, "the window holds the sender: {sent}");
        world.run_until(LONG, |w| w.nodes[0].jobs[job].result.is_some());
        assert_eq!(world.nodes[0].jobs[job].result, Some(Ok(())));
    }
}

/// Found through the driver: a writer that waited for room was never woken when the reply began before its end.
#[test]
fn a_reply_that_begins_early_ends_the_request_and_wakes_its_writer() {
    use rx_proto::endpoint::{Event, Read};
    let mut world = own();
    let connection = world.connect(0, 1);
    let (now, a, b) = (world.now, world.nodes[0].address, world.nodes[1].address);
    let mut nodes = world.nodes.into_iter().map(|n| n.endpoint);
    let (mut client, mut server) = (nodes.next().unwrap(), nodes.next().unwrap());
    let call = client.open(now, connection).unwrap().unwrap();
    while client.write(now, call, vec![0; 100_000].into()).unwrap() {}
    let exchange = |client: &mut Endpoint, server: &mut Endpoint| {
        let mut out = Vec::new();
        for _ in 0..10 {
            while let Some(t) = client.poll_transmit(now, &mut out) {
                out.chunks(t.segment_len).for_each(|p| server.handle_datagram(now, a, p.to_vec().into()));
            }
            while let Some(t) = server.poll_transmit(now, &mut out) {
                out.chunks(t.segment_len).for_each(|p| client.handle_datagram(now, b, p.to_vec().into()));
            }
        }
    };
    exchange(&mut client, &mut server);
    let Some(Event::Incoming(incoming)) = server.poll_event() else { panic!("the server hears of the call") };
    server.write(now, incoming, vec![1; 10].into()).unwrap();
    server.finish(now, incoming).unwrap();
    exchange(&mut client, &mut server);
    let events: Vec<Event> = std::iter::from_fn(|| client.poll_event()).collect();
    assert!(events.contains(&Event::Writable(call)), "{events:?}");
    client.write(now, call, vec![0; 10].into()).unwrap();
    assert_eq!(client.read(now, call), Ok(Read::Data(vec![1; 10].into())));
    assert_eq!(client.read(now, call), Ok(Read::End));
}

/// What the kernel is given at once costs it little more than one packet does: small calls of a client, and their replies.
#[test]
fn short_calls_go_out_together() {
    use rx_proto::endpoint::{Event, Transmission};
    let mut world = own();
    let connections = [world.connect(0, 1), world.connect(0, 1)];
    let (now, a, b) = (world.now, world.nodes[0].address, world.nodes[1].address);
    let mut nodes = world.nodes.into_iter().map(|n| n.endpoint);
    let (mut client, mut server) = (nodes.next().unwrap(), nodes.next().unwrap());
    let all = |endpoint: &mut Endpoint| {
        let mut out = Vec::new();
        let mut sent: Vec<(Transmission, Vec<Vec<u8>>)> = Vec::new();
        while let Some(t) = endpoint.poll_transmit(now, &mut out) {
            sent.push((t, out.chunks(t.segment_len).map(<[u8]>::to_vec).collect()));
        }
        sent
    };
    // The last of them is shorter, and so at the end of the first bundle: the kernel cuts at equal lengths.
    let lens = [100, 100, 100, 100, 100, 60, 80, 80];
    for (i, len) in lens.into_iter().enumerate() {
        let call = client.open(now, connections[i / 4]).unwrap().unwrap();
        client.write(now, call, vec![7; len].into()).unwrap();
        client.finish(now, call).unwrap();
    }
    let sent = all(&mut client);
    let counts: Vec<(usize, usize)> =
        sent.iter().map(|(t, p)| (t.segment_len - HEADER_LEN, p.len())).collect();
    assert_eq!(counts, [(100, 6), (80, 2)]);
    let packets = |sent: Vec<(Transmission, Vec<Vec<u8>>)>| sent.into_iter().flat_map(|(_, packets)| packets);
    packets(sent).for_each(|p| server.handle_datagram(now, a, p.into()));
    // The server asks whether the client is where it says.
    packets(all(&mut server)).for_each(|p| client.handle_datagram(now, b, p.into()));
    packets(all(&mut client)).for_each(|p| server.handle_datagram(now, a, p.into()));
    let incoming: Vec<_> = std::iter::from_fn(|| server.poll_event())
        .filter_map(|event| if let Event::Incoming(call) = event { Some(call) } else { None })
        .collect();
    assert_eq!(incoming.len(), lens.len());
    for call in incoming {
        server.write(now, call, vec![9; 148].into()).unwrap();
        server.finish(now, call).unwrap();
    }
    let data: Vec<usize> = (all(&mut server).iter())
        .filter(|(t, _)| t.segment_len == HEADER_LEN + 148)
        .map(|(_, packets)| packets.len())
        .collect();
    assert_eq!(data, [8], "one bundle of replies");
}

/// Short calls have no acknowledgements but their replies, which come when the server is done: without an ACK asked for now and
/// then a lost request is sent again only after seconds.
#[test]
fn short_calls_show_the_round_trip_too() {
    let mut world = own();
    let connection = world.connect(0, 1);
    for _ in 0..5 {
        world.call(0, connection, Job { think: ms(300), ..Job::new(10, 10) }, LONG).unwrap();
    }
    let rtt = world.nodes[0].endpoint.path(connection).unwrap().rtt();
    assert!((ms(10)..ms(12)).contains(&rtt.smoothed()), "{rtt:?}");
}

/// The server keeps a reply until it knows that it has come. The next call says so too: of calls in a row only one in a while
/// costs an ACK, so that the server learns the round trip, and the last does, shortly after.
#[test]
fn the_next_call_tells_the_server_that_a_reply_has_come() {
    let mut world = World::pair(1, Config::default(), Link { delay: ms(1), ..Link::default() });
    let connection = world.connect(0, 1);
    for _ in 0..20 {
        world.call(0, connection, Job::new(100, 100), LONG).unwrap();
    }
    let acks = |world: &World| world.nodes[0].endpoint.stats().packets_sent[PacketType::ACK.0 as usize];
    let before = acks(&world);
    for _ in 0..200 {
        world.call(0, connection, Job::new(100, 100), LONG).unwrap();
    }
    let in_a_row = acks(&world) - before;
    assert!((6..=12).contains(&in_a_row), "{in_a_row} ACKs for 200 calls in 400 ms");
    assert!(world.nodes[1].endpoint.stats().data_resent == 0, "it has not begun to ask");
    world.run_for(ms(4));
    assert_eq!(world.nodes[1].endpoint.usage().calls, 0, "the server knows of the last");
    // Who closes the connection says it at once.
    world.call(0, connection, Job::new(100, 100), LONG).unwrap();
    world.close_connections();
    world.run_for(ms(1) + ms(1) / 2);
    assert_eq!(world.nodes[1].endpoint.usage().calls, 0);
}

#[test]
fn a_client_keeps_its_connection_however_long_it_is_idle() {
    let mut world = own();
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    world.run_for(Duration::from_secs(5000));
    assert_eq!(world.nodes[1].endpoint.connection_count(), 0, "the server has forgotten it");
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
}

#[test]
fn a_nat_ping_is_one_packet_and_gets_no_answer() {
    let mut world = own();
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    world.run_for(ms(1000));
    let (before, peer) = (world.datagrams, world.nodes[1].address);
    world.nodes[0].endpoint.ping_nat(peer);
    world.run_for(ms(20_000));
    assert_eq!(world.datagrams - before, 1);
    world.nodes[0].endpoint.ping_nat("192.0.2.1:7000".parse().unwrap());
    world.run_for(ms(20_000));
    assert_eq!(world.datagrams - before, 1, "nobody there was called");
}

/// With 250 clients on one machine some calls stood still for good: they had begun while the client's offers were limited, the
/// limit ended before anything had come, and nobody widened their windows again.
#[test]
fn a_call_that_began_under_a_limit_is_free_of_it_when_it_ends() {
    let mut world = own();
    let connection = world.connect(0, 1);
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    for _ in 0..20 {
        let now = world.now;
        world.nodes[0].endpoint.handle_backlog(now, 1 << 20);
        world.run_for(ms(5));
    }
    let job = world.start(0, connection, Job { think: ms(600), ..Job::new(10, 1_000_000) });
    assert!(world.run_until(ms(2000), |w| w.nodes[0].jobs[job].result.is_some()), "it stands still");
}

/// A crowd of 250 that received on one full machine: of 3,000 calls some ended with -1 of the server. A client that had got no time
/// for a while answered all questions that waited, but sent an ACK before them that it made after them; the server took that for
/// a client that had forgotten the call.
#[test]
fn a_client_that_stands_still_now_and_then_is_not_taken_for_one_that_forgot_its_call() {
    for seed in 0..40 {
        let mut world = World::pair(seed, Config::default(), Link { rate: 50_000_000, ..Link::default() });
        let connection = world.connect(0, 1);
        let job = world.start(0, connection, Job::new(10, 20_000_000));
        while world.nodes[0].jobs[job].result.is_none() {
            let (runs, stands) = (world.rng.random_range(1..100), world.rng.random_range(1..600));
            world.run_until(ms(runs), |w| w.nodes[0].jobs[job].result.is_some());
            world.nodes[0].stands_until = world.now + ms(stands);
            world.run_until(ms(stands), |w| w.nodes[0].jobs[job].result.is_some());
        }
        assert_eq!(world.nodes[0].jobs[job].result, Some(Ok(())), "seed {seed}");
    }
}
