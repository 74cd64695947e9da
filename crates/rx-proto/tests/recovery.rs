//! Each fault of a network or a peer alone: calls survive what they can, and end soon where they cannot.

use afs_sim::world::{Job, Link, SERVICE, World, ms};
use rx_proto::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::ack::{Ack, AckReason};
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::{ConnectionHandle, Endpoint};
use rx_proto::ids::ServiceId;
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use rx_proto::security::Null;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);

fn pair(link: Link) -> (World, ConnectionHandle) {
    let mut world = World::pair(1, Config::default(), link);
    let connection = world.connect(0, 1);
    (world, connection)
}

/// Starts a job, lets `then` change the world some time later, and returns what became of the job and how long it took.
fn disturbed(
    world: &mut World,
    connection: ConnectionHandle,
    job: Job,
    after: Duration,
    then: impl FnOnce(&mut World),
) -> (Result<(), CallError>, Duration) {
    let index = world.start(0, connection, job);
    world.run_for(after);
    assert!(world.nodes[0].jobs[index].result.is_none(), "the fault is to come in mid-call");
    then(world);
    assert!(world.run_until(LONG, World::is_done), "the call ends");
    let job = &world.nodes[0].jobs[index];
    (job.result.unwrap(), job.ended.unwrap().since(job.started))
}

const DEAD: Result<(), CallError> = Err(CallError::Failed(AbortCode::CALL_DEAD));

#[test]
fn a_narrowed_path_is_noticed_and_the_call_goes_on() {
    for (mtu, job) in [
        (1444, Job::new(2_000_000, 0)),
        (1200, Job::new(2_000_000, 0)),
        (1444, Job::new(0, 2_000_000)),
        (1200, Job::new(0, 2_000_000)),
    ] {
        let (mut world, connection) = pair(Link { rate: 20_000_000, mtu: 8972, ..Link::default() });
        world.call(0, connection, Job::new(3_000_000, 3_000_000), LONG).unwrap();
        let len = world.nodes[0].endpoint.path(connection).unwrap().packet_len();
        assert!(len > 8000, "the path was wide: {len}");
        let (result, took) =
            disturbed(&mut world, connection, job, ms(100), |w| w.both_links(0, 1, |l| l.mtu = mtu));
        result.unwrap();
        assert!(took < ms(4000), "{mtu}: {took:?}");
    }
}

/// A first store hung for more than a minute where a router dropped what was longer than 1280 bytes and nobody heard of it.
#[test]
fn calls_over_a_narrow_path_that_says_nothing_end_soon() {
    for mtu in [1280, 1400, 576] {
        for job in [Job::new(200_000, 10), Job::new(10, 200_000), Job::new(5_000_000, 5_000_000)] {
            for is_known in [false, true] {
                // IPv4 and UDP headers are 28 bytes.
                let (mut world, connection) = pair(Link { rate: 100_000_000, ..Link::default() });
                if is_known {
                    world.call(0, connection, Job::new(300_000, 300_000), LONG).unwrap();
                }
                world.both_links(0, 1, |l| l.mtu = mtu - 28);
                let took = world.call(0, connection, job, LONG).unwrap();
                assert!(took < ms(5000), "{mtu}, known before {is_known}: {job:?} took {took:?}");
            }
        }
    }
}

#[test]
fn a_request_of_a_single_packet_gets_over_a_path_that_does_not_carry_it() {
    for (mtu, len) in [(1444, 2000), (1200, 1200), (1200, 1400), (600, 700)] {
        let (mut world, connection) = pair(Link { rate: 20_000_000, mtu: 8972, ..Link::default() });
        world.call(0, connection, Job::new(3_000_000, 3_000_000), LONG).unwrap();
        world.both_links(0, 1, |l| l.mtu = mtu);
        world.call(0, connection, Job::new(len, 0), LONG).unwrap();
    }
}

/// Nothing shows that who speaks from elsewhere is the client. (With security it is found again: see `security.rs`.)
#[test]
fn a_call_without_security_ends_when_its_client_moves_and_the_next_one_works() {
    for job in [Job::new(10, 2_000_000), Job::new(2_000_000, 10), Job { think: ms(3000), ..Job::new(10, 10) }]
    {
        let (mut world, connection) = pair(Link { rate: 20_000_000, ..Link::default() });
        world.rebind(0, "192.0.2.1:4001".parse().unwrap());
        world.call(0, connection, Job::new(10, 10), LONG).unwrap();
        let rebind = |w: &mut World| w.rebind(0, "192.0.2.1:4002".parse().unwrap());
        let (result, took) = disturbed(&mut world, connection, job, ms(200), rebind);
        assert!(result == DEAD && took <= ms(12_500), "{result:?} after {took:?}");
        world.call(0, connection, Job::new(10, 10), ms(100)).unwrap();
    }
}

#[test]
fn a_client_that_moved_between_calls_is_found_by_its_next_call() {
    let (mut world, connection) = pair(Link::default());
    world.rebind(0, "192.0.2.1:4001".parse().unwrap());
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    world.rebind(0, "192.0.2.1:4002".parse().unwrap());
    let took = world.call(0, connection, Job::new(10, 100_000), LONG).unwrap();
    assert!(took < ms(2000), "{took:?}");
}

/// A call that waited for its client to show where it is was not told of when the client showed it from elsewhere.
#[test]
fn a_call_that_waits_for_its_client_goes_on_when_the_client_moves() {
    let (mut world, connection) = pair(Link::default());
    world.rebind(0, "192.0.2.1:4001".parse().unwrap());
    // The first ping is lost with the old address.
    let (result, took) = disturbed(&mut world, connection, Job::new(10, 10), ms(7), |w| {
        w.rebind(0, "192.0.2.1:4002".parse().unwrap());
    });
    result.unwrap();
    assert!(took < ms(4000), "{took:?}");
}

#[test]
fn a_restarted_server_goes_on_with_null_security() {
    let (mut world, connection) = pair(Link::default());
    for _ in 0..3 {
        world.call(0, connection, Job::new(3000, 3000), LONG).unwrap();
        world.restart(1);
    }
    world.call(0, connection, Job::new(3000, 3000), ms(100)).unwrap();
}

#[test]
fn a_server_that_restarts_in_mid_call_ends_it_within_the_dead_time() {
    let slow = Link { rate: 20_000_000, ..Link::default() };
    for job in [Job::new(2_000_000, 0), Job::new(0, 2_000_000), Job { think: ms(9000), ..Job::new(0, 0) }] {
        let (mut world, connection) = pair(slow.clone());
        let (result, took) = disturbed(&mut world, connection, job, ms(300), |w| w.restart(1));
        assert!(result == DEAD && took <= ms(12_500), "{job:?}: {result:?} after {took:?}");
        world.run_for(ms(30_000));
        assert_eq!(world.nodes[1].endpoint.usage().calls, 0, "and the new server has no half of it");
    }
}

#[test]
fn a_lost_final_ack_is_made_up_by_the_next_call() {
    let (mut world, connection) = pair(Link::default());
    let client = world.nodes[0].address;
    let lose = Rc::new(Cell::new(true));
    let loses = Rc::clone(&lose);
    world.filter = Some(Box::new(move |_, from, packet| {
        let header = Header::parse(packet).unwrap();
        let is_final = header.kind == PacketType::ACK
            && Ack::parse(&packet[HEADER_LEN..], false)
                .is_ok_and(|a| a.first.0 > 1 && a.reason != AckReason::PING_RESPONSE);
        !(loses.get() && from == client && is_final)
    }));
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    assert_eq!(world.nodes[1].endpoint.usage().calls, 1, "the reply is not acknowledged");
    lose.set(false);
    let took = world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    world.run_for(ms(100));
    assert_eq!((world.nodes[1].endpoint.usage().calls, took < ms(15)), (0, true));
    assert_eq!(world.nodes[1].served_failed, 0);
}

#[test]
fn busy_is_answered_and_the_call_sent_again() {
    let (mut world, connection) = pair(Link::default());
    world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    let client = world.nodes[0].address;
    // The client gives a call up, and the server does not hear of it.
    let job = world.start(0, connection, Job { think: ms(60_000), ..Job::new(10, 10) });
    world.run_for(ms(100));
    world.filter = Some(Box::new(move |_, from, packet| {
        from != client || Header::parse(packet).unwrap().kind != PacketType::ABORT
    }));
    world.drop_call(0, job);
    // The other channels are in use: it has to call again on that one.
    (0..3).for_each(|_| _ = world.start(0, connection, Job { think: ms(60_000), ..Job::new(10, 10) }));
    let took = world.call(0, connection, Job::new(10, 10), LONG).unwrap();
    assert_eq!(world.nodes[1].endpoint.stats().busies, 1);
    assert!(took < ms(2000), "{took:?}");
}

#[test]
fn a_client_that_asks_for_the_better_service_gets_it_and_keeps_it() {
    const BETTER: ServiceId = ServiceId(5432);
    for has_better in [true, false] {
        let mut world = World::new(1);
        world.upgrades_to = has_better.then_some(BETTER);
        world.add(Config::default());
        world.add(Config::default());
        let connection = world.connect(0, 1);
        world.nodes[0].endpoint.ask_for_upgrade(connection);
        for _ in 0..2 {
            world.call(0, connection, Job::new(5000, 5000), LONG).unwrap();
            let expected = if has_better { BETTER } else { SERVICE };
            assert_eq!(world.nodes[0].endpoint.service(connection), Some(expected));
        }
    }
}

#[test]
fn a_client_that_answers_no_ping_gets_no_service_and_leaves_nothing() {
    let (mut world, connection) = pair(Link::default());
    let client = world.nodes[0].address;
    world.filter = Some(Box::new(move |_, from, packet| {
        from != client || Header::parse(packet).unwrap().kind == PacketType::DATA
    }));
    let index = world.start(0, connection, Job::new(10, 10));
    world.run_for(ms(30_000));
    assert_eq!(world.nodes[1].served, 0);
    let (job, now) = (&world.nodes[0].jobs[index], world.now);
    assert!(job.result.is_none() || now > job.started, "{:?}", job.result);
    world.drop_call(0, index);
    world.run_for(ms(30_000));
    assert_eq!(world.nodes[1].endpoint.usage().calls, 0);
}

#[test]
fn a_connection_serves_a_thousand_calls_and_is_then_forgotten() {
    let (mut world, connection) = pair(Link { delay: ms(1), ..Link::default() });
    for i in 0..1000 {
        world.call(0, connection, Job::new(i, i * 3 % 1000), LONG).unwrap();
        for node in &world.nodes {
            let usage = node.endpoint.usage();
            assert!(usage.timers <= 2 * (usage.connections + usage.paths) + 64, "{usage:?}");
        }
    }
    world.close_connections();
    world.run_for(Duration::from_secs(1500));
    for node in &world.nodes {
        assert_eq!(node.endpoint.usage(), rx_proto::endpoint::Usage::default());
    }
    assert!(matches!(world.nodes[0].endpoint.open(world.now, connection), Err(CallError::Gone)));
}

#[test]
fn a_blackout_shorter_than_the_dead_time_costs_little_more_than_itself() {
    for job in [Job::new(1_000_000, 10), Job::new(10, 1_000_000), Job { think: ms(1000), ..Job::new(10, 10) }]
    {
        let (mut world, connection) = pair(Link { rate: 20_000_000, ..Link::default() });
        world.call(0, connection, Job::new(10, 10), LONG).unwrap();
        let (result, took) = disturbed(&mut world, connection, job, ms(200), |w| {
            w.both_links(0, 1, |l| l.is_down = true);
            w.run_for(ms(8000));
            w.both_links(0, 1, |l| l.is_down = false);
        });
        result.unwrap();
        assert!(took < ms(11_500), "{job:?}: {took:?}");
    }
}

#[test]
fn a_blackout_does_not_pass_for_a_narrow_path() {
    let (mut world, connection) = pair(Link { rate: 100_000_000, mtu: 8972, ..Link::default() });
    world.call(0, connection, Job::new(3_000_000, 3_000_000), LONG).unwrap();
    let (result, _) = disturbed(&mut world, connection, Job::new(30_000_000, 0), ms(500), |w| {
        w.both_links(0, 1, |l| l.is_down = true);
        w.run_for(ms(5000));
        w.both_links(0, 1, |l| l.is_down = false);
    });
    result.unwrap();
    world.run_for(Duration::from_secs(31));
    world.call(0, connection, Job::new(1_000_000, 0), LONG).unwrap();
    assert!(world.nodes[0].endpoint.path(connection).unwrap().packet_len() > 8000, "found again soon");
}

/// The answer of a peer that is there may wait to be read when a process that stood still goes on: the call ended as if the peer were dead.
#[test]
fn a_leap_of_the_clock_ends_no_call_whose_peer_is_there() {
    for leap in [ms(3000), ms(60_000), Duration::from_secs(86_400)] {
        for is_there in [true, false] {
            let (mut world, connection) = pair(Link::default());
            let job = Job { think: ms(1000), ..Job::new(10, 10) };
            let (result, _) = disturbed(&mut world, connection, job, ms(100), |w| {
                w.both_links(0, 1, |l| l.is_down = !is_there);
                w.now += leap;
            });
            assert_eq!(result.is_ok(), is_there, "{leap:?}: {result:?}");
            world.both_links(0, 1, |l| l.is_down = false);
            let connection = world.connect(0, 1);
            world.call(0, connection, job, LONG).unwrap();
        }
    }
}

/// A connection whose idle time was over while a call of it was held had its deadline in the past, and the timer ran for ever.
#[test]
fn a_call_that_is_held_longer_than_idle_connections_are_kept_disturbs_nothing() {
    let (mut world, connection) = pair(Link::default());
    let limits = CallLimits { dead: Duration::from_secs(3600), ..CallLimits::default() };
    world.nodes[0].endpoint.set_limits(connection, limits);
    world.start(0, connection, Job { think: ms(3_000_000), ..Job::new(10, 10) });
    world.run_for(ms(1000));
    world.both_links(0, 1, |l| l.is_down = true);
    world.run_for(Duration::from_secs(2000));
    assert_eq!(world.nodes[0].endpoint.usage().calls, 1);
    // The same with a call that has ended and is not let go.
    let now = world.now;
    let peer = world.nodes[1].address;
    let endpoint: &mut Endpoint = &mut world.nodes[0].endpoint;
    let other = endpoint.connect(now, peer, SERVICE, Box::new(Null));
    let call = endpoint.open(now, other).unwrap().unwrap();
    endpoint.abort(now, call, AbortCode(1));
    world.run_for(Duration::from_secs(1000));
    assert_eq!(world.nodes[0].endpoint.usage().calls, 2);
    let now = world.now;
    world.nodes[0].endpoint.close_connection(now, other);
    world.run_for(ms(1));
    assert_eq!(world.nodes[0].endpoint.usage().connections, 1);
}

/// A server that replies before it has the whole request ends it; the client's next write was taken for a programmer's error.
#[test]
fn a_reply_that_begins_early_cuts_the_request_short() {
    let (mut world, connection) = pair(Link::default());
    let now = world.now;
    let client = &mut world.nodes[0].endpoint;
    let call = client.open(now, connection).unwrap().unwrap();
    client.write(now, call, vec![0; 16].into()).unwrap();
    client.flush(now, call).unwrap();
    world.run_for(ms(30));
    let header = Header { kind: PacketType::DATA, ..sniff(&mut world, call) };
    let mut packet = header.to_bytes().to_vec();
    packet.extend_from_slice(b"early");
    let server = world.nodes[1].address;
    world.inject(0, server, packet.into());
    let now = world.now;
    let client = &mut world.nodes[0].endpoint;
    assert!(!client.takes_bytes(call));
    assert_eq!(client.write(now, call, vec![0; 1000].into()), Ok(true));
    client.finish(now, call).unwrap();
}

/// The header of a server's first packet of a call.
fn sniff(world: &mut World, call: rx_proto::endpoint::CallHandle) -> Header {
    let seen = Rc::new(Cell::new(None));
    let sees = Rc::clone(&seen);
    let server = world.nodes[1].address;
    world.filter = Some(Box::new(move |_, from, packet| {
        if from == server {
            sees.set(Some(Header::parse(packet).unwrap()));
        }
        true
    }));
    world.run_for(ms(5000)); // until a ping's answer
    world.filter = None;
    let header = seen.get().expect("the server answers pings");
    assert_eq!(header.call, call.number());
    Header { seq: rx_proto::ids::Seq(1), flags: rx_proto::packet::Flags::NONE, ..header }
}
