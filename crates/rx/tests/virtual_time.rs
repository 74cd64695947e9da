//! Client and server in virtual time, through the same driver and call API as over sockets: what takes seconds or minutes
//! takes none here, and is exact.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use afs_sim::{Fate, Sim};
use bytes::Bytes;
use rx::{CallError, Endpoint, EndpointConfig, PeerLimits, Runtime, ServerCall, ServiceConfig};
use rx_proto::abort::AbortCode;
use rx_proto::endpoint::Service;
use rx_proto::ids::{CallNumber, SecurityIndex, ServiceId};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, Null, SecurityClass, ServerSecurity};

const SEALED: ServiceId = ServiceId(201);
const MS: Duration = Duration::from_millis(1);

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn endpoint(sim: &Sim, at: &str, config: EndpointConfig) -> Endpoint {
    // What would happen every second for ever hides that nothing else is going to.
    let config = EndpointConfig { publish_every: None, ..config };
    Endpoint::bind_with(Arc::new(sim.clone()), address(at), config).unwrap()
}

/// A class whose packets count as made by the client, once it has answered a challenge: such connections alone may move.
#[derive(Debug)]
struct Sealed {
    is_authenticated: bool,
}

impl SecurityClass for Sealed {
    fn index(&self) -> SecurityIndex {
        SecurityIndex(201)
    }

    fn prepare(&mut self, _header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(plain);
    }

    fn finish(&mut self, _bodies: &mut dyn Iterator<Item = &mut [u8]>) {}

    fn open(&mut self, _header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        Ok(body)
    }

    fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    fn authenticates_data(&self) -> bool {
        self.is_authenticated
    }

    fn handle_response(&mut self, facts: &ConnectionFacts, _: &[u8]) -> Result<[CallNumber; 4], AbortCode> {
        self.is_authenticated = true;
        Ok(facts.calls)
    }

    fn handle_challenge(&mut self, _: &ConnectionFacts, _: &[u8]) -> Result<Vec<u8>, AbortCode> {
        Ok(vec![0; 4])
    }
}

#[derive(Debug)]
struct SealedServer;

impl ServerSecurity for SealedServer {
    fn index(&self) -> SecurityIndex {
        SecurityIndex(201)
    }

    fn accept(&self, _: &ConnectionFacts) -> Box<dyn SecurityClass> {
        Box::new(Sealed { is_authenticated: false })
    }
}

fn pair(sim: &Sim, shards: usize) -> (Endpoint, Endpoint) {
    let server = endpoint(sim, "10.0.0.1:7000", with_shards(shards));
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    (server, endpoint(sim, "10.0.0.2:7001", with_shards(shards)))
}

#[test]
fn a_short_call_takes_a_round_trip() {
    let sim = Sim::new(25 * MS);
    let (server, client) = pair(&sim, 1);
    let clock = sim.clone();
    sim.block_on(async move {
        let connection = connect(&client, &server, ECHO);
        let start = clock.now();
        let mut call = connection.call().await.unwrap();
        call.write_all(b"word").await.unwrap();
        call.finish().unwrap();
        assert_eq!(call.read_to_end(4).await.unwrap(), b"word");
        assert_eq!(clock.now().since(start), 50 * MS);
    });
}

#[test]
fn a_stream_arrives_whole_over_a_lossy_link() {
    for shards in [1, 3] {
        let sim = Sim::new(10 * MS);
        sim.lose_every(97);
        let (server, client) = pair(&sim, shards);
        sim.block_on(async move {
            let mut call = connect(&client, &server, ECHO).call().await.unwrap();
            send_stream(&mut call, 4, 3_000_000).await.unwrap();
            call.finish().unwrap();
            assert_eq!(check_stream(&mut call, 4).await.unwrap(), 3_000_000);
        });
    }
}

#[test]
fn a_deadline_is_kept_to_the_moment() {
    let sim = Sim::new(25 * MS);
    let (server, client) = pair(&sim, 1);
    server.add_service(ServiceConfig::new(service(ECHO), |mut call: ServerCall| async move {
        drop(call.read_to_end(100).await);
        std::future::pending().await
    }));
    let clock = sim.clone();
    sim.block_on(async move {
        let mut call = connect(&client, &server, ECHO).call().await.unwrap();
        let start = clock.now();
        call.set_timeout(3000 * MS);
        call.finish().unwrap();
        let error = call.recv().await.unwrap_err();
        assert!(matches!(error, CallError::DeadlinePassed { .. }), "{error:?}");
        assert_eq!(clock.now().since(start), 3000 * MS);
    });
}

/// A client that had been stopped for longer than a call may take threw away the answer that waited in its socket, and took the server
/// for dead.
#[test]
fn an_answer_that_comes_while_the_client_stands_still_is_read() {
    for is_answered in [true, false] {
        let sim = Sim::new(25 * MS);
        let (server, client) = pair(&sim, 1);
        let clock = sim.clone();
        server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
            let clock = clock.clone();
            async move {
                let words = call.read_to_end(100).await.map_err(abort)?;
                let takes = if is_answered { 3400 } else { 60_000 };
                clock.sleep_until(clock.now() + takes * MS).await;
                call.write_all(&words).await.map_err(abort)
            }
        }));
        let world = sim.clone();
        sim.block_on(async move {
            let mut call = connect(&client, &server, ECHO).call().await.unwrap();
            let start = world.now();
            call.set_timeout(3000 * MS);
            call.write_all(b"word").await.unwrap();
            call.finish().unwrap();
            let stopped = world.clone();
            world.spawn(Box::pin(async move {
                stopped.sleep_until(start + 2000 * MS).await;
                stopped.stand_still(5000 * MS);
            }));
            let outcome = call.read_to_end(4).await;
            if is_answered {
                assert_eq!(outcome.unwrap(), b"word");
            } else {
                assert!(matches!(outcome, Err(CallError::DeadlinePassed { .. })), "{outcome:?}");
                assert_eq!(world.now().since(start), 8000 * MS, "one second to catch up");
            }
        });
    }
}

#[test]
fn an_answer_that_came_in_time_may_be_read_late() {
    let sim = Sim::new(25 * MS);
    let (server, client) = pair(&sim, 1);
    let world = sim.clone();
    sim.block_on(async move {
        let mut call = connect(&client, &server, ECHO).call().await.unwrap();
        call.set_timeout(3000 * MS);
        call.write_all(b"word").await.unwrap();
        call.finish().unwrap();
        world.sleep_until(world.now() + 3100 * MS).await;
        assert_eq!(call.read_to_end(4).await.unwrap(), b"word");
    });
}

#[test]
fn a_server_that_vanishes_is_given_up_after_twelve_seconds() {
    let sim = Sim::new(25 * MS);
    let (server, client) = pair(&sim, 1);
    let world = sim.clone();
    sim.block_on(async move {
        let connection = connect(&client, &server, ECHO);
        let mut call = connection.call().await.unwrap();
        call.write_all(b"word").await.unwrap();
        call.flush().unwrap();
        world.sleep_until(world.now() + 1000 * MS).await;
        world.cut_off(server.local_addr());
        let start = world.now();
        let error = call.recv().await.unwrap_err();
        assert_eq!(error.code(), AbortCode::CALL_DEAD, "{error}");
        let took = world.now().since(start);
        assert!((11..14).contains(&took.as_secs()), "{took:?}");
    });
}

/// Connections are forgotten when nobody has used them for long; a peer's next call makes a new one.
#[test]
fn a_peer_calls_again_after_a_long_time() {
    let sim = Sim::new(MS);
    let (server, client) = pair(&sim, 1);
    let world = sim.clone();
    sim.block_on(async move {
        let peer = client.peer(server.local_addr(), ECHO, PeerLimits::default(), || Box::new(Null));
        for _ in 0..3 {
            let mut call = peer.call().await.unwrap();
            call.write_all(b"word").await.unwrap();
            call.finish().unwrap();
            assert_eq!(call.read_to_end(4).await.unwrap(), b"word");
            drop(call);
            world.sleep_until(world.now() + Duration::from_secs(2000)).await;
            assert_eq!(server.connection_count(), 0);
        }
    });
}

/// A client whose address changes between calls: its packets reach another shard, which hands them on.
#[test]
fn a_connection_that_moves_stays_with_its_shard() {
    let sim = Sim::new(5 * MS);
    let (server, client) = pair(&sim, 4);
    let sealed = Service { security: vec![Arc::new(SealedServer)], ..service(SEALED) };
    server.add_service(ServiceConfig::new(sealed, echo));
    let world = sim.clone();
    sim.block_on(async move {
        let security = Box::new(Sealed { is_authenticated: true });
        let connection = client.connect(server.local_addr(), SEALED, security);
        for host in 3..40 {
            let mut call = connection.call().await.unwrap();
            send_stream(&mut call, 9, 100_000).await.unwrap();
            call.finish().unwrap();
            assert_eq!(call.read_to_end(1_000_000).await.unwrap(), piece(9, 0, 100_000));
            world.move_port(client.local_addr(), SocketAddr::from(([10, 0, 0, host], 7001)));
        }
        assert!(server.metrics().forwarded > 100, "{:?}", server.metrics());
        assert_eq!(server.connection_count(), 1);
    });
}

/// Callers that were woken together make their next calls together: a system call for each would cost more than all else.
#[test]
fn what_callers_send_who_were_woken_together_goes_out_together() {
    const CALLERS: u64 = 16;
    const ROUNDS: u64 = 20;
    let sim = Sim::new(MS);
    let (server, client) = pair(&sim, 1);
    sim.deliver_together();
    let (world, sender) = (sim.clone(), client.clone());
    sim.block_on(async move {
        let peer = client.peer(server.local_addr(), ECHO, PeerLimits::default(), || Box::new(Null));
        let ended = Arc::new(tokio::sync::Semaphore::new(0));
        for _ in 0..CALLERS {
            let (peer, ended) = (peer.clone(), Arc::clone(&ended));
            world.spawn(Box::pin(async move {
                for _ in 0..ROUNDS {
                    let mut call = peer.call().await.unwrap();
                    call.write_all(b"word").await.unwrap();
                    call.finish().unwrap();
                    assert_eq!(call.read_to_end(4).await.unwrap(), b"word");
                }
                ended.add_permits(1);
            }));
        }
        let _ = ended.acquire_many(CALLERS as u32).await.unwrap();
    });
    let sent = sender.metrics().bundles_sent;
    assert!(sent < 2 * CALLERS + 4 * ROUNDS, "{sent} bundles for {} calls", CALLERS * ROUNDS);
}

/// A host began calls without ever sending their arguments, and answered pings: all places of the service were taken, and
/// everybody else got errors.
#[test]
fn one_host_with_half_open_calls_leaves_room_for_others() {
    let sim = Sim::new(5 * MS);
    let server = endpoint(&sim, "10.0.0.1:7000", with_shards(1));
    let config = ServiceConfig::new(service(ECHO), echo);
    server.add_service(ServiceConfig { max_calls: 64, max_waiting: 256, ..config });
    let attackers: Vec<Endpoint> =
        (0..4).map(|i| endpoint(&sim, &format!("10.0.0.66:{}", 7001 + i), with_shards(1))).collect();
    let client = endpoint(&sim, "10.0.0.2:7001", with_shards(1));
    let world = sim.clone();
    sim.block_on(async move {
        let mut half_open = Vec::new();
        for i in 0..400 {
            let connection = connect(&attackers[i % 4], &server, ECHO);
            let mut call = connection.call().await.unwrap();
            call.write_all(b"half").await.unwrap();
            call.flush().unwrap();
            half_open.push((connection, call));
        }
        world.sleep_until(world.now() + 100 * MS).await;
        assert!(server.metrics().calls_refused > 0, "the attack fills what there is for a host");
        for _ in 0..20 {
            let start = world.now();
            let mut call = connect(&client, &server, ECHO).call().await.unwrap();
            call.write_all(b"word").await.unwrap();
            call.finish().unwrap();
            assert_eq!(call.read_to_end(4).await.unwrap(), b"word");
            assert!(world.now().since(start) <= 20 * MS, "others do not wait");
            world.sleep_until(world.now() + 1000 * MS).await;
        }
    });
}

/// A client that may write a file could keep it locked for all by a store that it does not finish.
#[test]
fn a_call_whose_arguments_do_not_come_ends_after_a_minute() {
    // Nothing more, and a byte now and then.
    for dripping in [false, true] {
        let sim = Sim::new(5 * MS);
        let (server, client) = pair(&sim, 1);
        let world = sim.clone();
        sim.block_on(async move {
            let mut call = connect(&client, &server, ECHO).call().await.unwrap();
            let start = world.now();
            let error = loop {
                if dripping || world.now() == start {
                    if let Err(error) = call.write_all(b"x").await {
                        break error;
                    }
                    call.flush().unwrap();
                    world.sleep_until(world.now() + 5000 * MS).await;
                } else {
                    break call.recv().await.unwrap_err();
                }
            };
            assert_eq!(error.code(), AbortCode::CALL_TIMEOUT, "{error}");
            let took = world.now().since(start).as_secs();
            assert!((60..=66).contains(&took), "{took} s");
        });
    }
}

/// Hours over a slow link, with an outage in between, are no stall; neither is what the server takes for its own work.
#[test]
fn a_slow_store_goes_on_as_long_as_it_makes_progress() {
    let sim = Sim::new(5 * MS);
    let (server, client) = pair(&sim, 1);
    let clock = sim.clone();
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let clock = clock.clone();
        async move {
            // Unread data, a pause between reads, and one before the reply.
            clock.sleep_until(clock.now() + Duration::from_secs(600)).await;
            let mut first = [0; 1000];
            call.read_exact(&mut first).await.map_err(abort)?;
            clock.sleep_until(clock.now() + Duration::from_secs(600)).await;
            let rest = call.read_to_end(usize::MAX).await.map_err(abort)?;
            clock.sleep_until(clock.now() + Duration::from_secs(600)).await;
            call.write_all(&[&first[..], &rest].concat()).await.map_err(abort)
        }
    }));
    let world = sim.clone();
    sim.block_on(async move {
        let mut call = connect(&client, &server, ECHO).call().await.unwrap();
        for i in 0..7200u64 {
            call.write_all(&piece(5, i * 500, 500)).await.unwrap();
            call.flush().unwrap();
            let pause = if i % 1000 == 999 { 50 } else { 1 };
            world.sleep_until(world.now() + Duration::from_secs(pause)).await;
        }
        call.finish().unwrap();
        assert_eq!(check_stream(&mut call, 5).await.unwrap(), 7200 * 500);
    });
}

#[test]
fn a_reply_that_nobody_takes_ends_after_a_minute() {
    let sim = Sim::new(5 * MS);
    let (server, client) = pair(&sim, 1);
    let ended = Arc::new(std::sync::Mutex::new(None));
    let (clock, e) = (sim.clone(), Arc::clone(&ended));
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let (clock, ended) = (clock.clone(), Arc::clone(&e));
        async move {
            let start = clock.now();
            let error = send_stream(&mut call, 6, 200_000_000).await.unwrap_err();
            *ended.lock().unwrap() = Some((error.code(), clock.now().since(start).as_secs()));
            Err(abort(error))
        }
    }));
    let world = sim.clone();
    sim.block_on(async move {
        let mut call = connect(&client, &server, ECHO).call().await.unwrap();
        call.finish().unwrap();
        assert!(call.recv().await.unwrap().is_some());
        world.sleep_until(world.now() + Duration::from_secs(70)).await;
    });
    let (code, seconds) = ended.lock().unwrap().expect("the handler has ended");
    assert_eq!(code, AbortCode::CALL_TIMEOUT);
    assert!((60..=65).contains(&seconds), "{seconds} s");
}

/// A task that is woken for each bundle costs as much as all that is done with it.
#[test]
fn the_reader_of_a_fast_far_stream_is_woken_for_each_third_delivery() {
    const LENGTH: usize = 60_000_000;
    let sim = Sim::new(10 * MS);
    let mut is_free_at = sim.now();
    sim.set_network(move |now, _, _, datagram| {
        // 1 Gbit/s.
        is_free_at = is_free_at.max(now) + Duration::from_nanos(8 * datagram.len() as u64);
        Fate::Arrives(is_free_at.since(now))
    });
    let (server, client) = pair(&sim, 1);
    let (seen, clock) = (Arc::new(Mutex::new(Vec::new())), sim.clone());
    let waits = Arc::clone(&seen);
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let (waits, clock) = (Arc::clone(&waits), clock.clone());
        async move {
            let mut length = 0;
            loop {
                let mut next = pin!(call.recv());
                let bytes = poll_fn(|cx| {
                    let polled = next.as_mut().poll(cx);
                    if polled.is_pending() {
                        waits.lock().unwrap().push(clock.now());
                    }
                    polled
                });
                match bytes.await.map_err(abort)? {
                    Some(bytes) => length += bytes.len(),
                    None => break,
                }
            }
            assert_eq!(length, LENGTH);
            call.write_all(b"done").await.map_err(abort)
        }
    }));
    sim.block_on(async move {
        let mut call = connect(&client, &server, ECHO).call().await.unwrap();
        for _ in 0..LENGTH / 100_000 {
            call.write_all(&[7; 100_000]).await.unwrap();
        }
        call.finish().unwrap();
        assert_eq!(call.read_to_end(4).await.unwrap(), b"done");
    });
    let seen = seen.lock().unwrap();
    let (from, to) = (seen[0] + 300 * MS, seen[0] + 500 * MS);
    let count = seen.iter().filter(|at| (from..to).contains(at)).count();
    assert!((120..=140).contains(&count), "{count} times in 200 ms, of 400 deliveries");
}
