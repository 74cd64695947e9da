//! Calls between two endpoints over the loopback interface: what they carry, and how they end.
#![expect(clippy::disallowed_methods, reason = "real sockets take real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use rx::{Abort, CallError, Endpoint, EndpointConfig, PeerLimits, ServerCall, ServiceConfig};
use rx_proto::abort::AbortCode;
use rx_proto::config::Config;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use tokio::sync::{Notify, Semaphore};

/// Bytes that a bulk test sends: enough to go round every window and buffer several times.
const BULK: u64 = 200 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_echoes() {
    check_echo(small_packets()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_echoes_in_large_packets() {
    check_echo(EndpointConfig::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_echoes_between_stock_like_ends() {
    check_echo(EndpointConfig { proto: Config::stock_like(), ..EndpointConfig::default() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_echoes_with_two_shards() {
    check_echo(with_shards(2)).await;
}

async fn check_echo(config: EndpointConfig) {
    let (server, client) = (echo_server(config.clone()), bind_with(config));
    let connection = connect(&client, &server, ECHO);
    soon(async {
        for length in [0, 1, 4, 1415, 1416, 1417, 5000, 300_000] {
            let mut call = connection.call().await.unwrap();
            call.send(piece(7, 0, length)).await.unwrap();
            call.finish().unwrap();
            assert_eq!(check_stream(&mut call, 7).await.unwrap(), length as u64);
        }
    })
    .await;
}

/// Reads a word that says how many bytes to send, then sends them.
async fn source(mut call: ServerCall) -> Result<(), Abort> {
    let mut word = [0; 8];
    call.read_exact(&mut word).await.map_err(abort)?;
    send_stream(&mut call, 2, u64::from_be_bytes(word)).await.map_err(abort)
}

/// Checks what comes, and answers with how much it was.
async fn sink(mut call: ServerCall) -> Result<(), Abort> {
    let got = check_stream(&mut call, 1).await.map_err(abort)?;
    call.write_all(&got.to_be_bytes()).await.map_err(abort)
}

const SOURCE: ServiceId = ServiceId(2);
const SINK: ServiceId = ServiceId(3);

fn bulk_server(config: EndpointConfig) -> Endpoint {
    let server = echo_server(config);
    server.add_service(ServiceConfig::new(service(SOURCE), source));
    server.add_service(ServiceConfig::new(service(SINK), sink));
    server
}

async fn receive_from(connection: &rx::Connection, total: u64) {
    let mut call = connection.call().await.unwrap();
    call.write_all(&total.to_be_bytes()).await.unwrap();
    call.finish().unwrap();
    assert_eq!(check_stream(&mut call, 2).await.unwrap(), total);
}

async fn send_to(connection: &rx::Connection, total: u64) {
    let mut call = connection.call().await.unwrap();
    send_stream(&mut call, 1, total).await.unwrap();
    call.finish().unwrap();
    assert_eq!(call.read_to_end(8).await.unwrap(), total.to_be_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_arrives_whole_both_ways() {
    let (server, client) = (bulk_server(small_packets()), bind_with(small_packets()));
    soon(receive_from(&connect(&client, &server, SOURCE), BULK)).await;
    soon(send_to(&connect(&client, &server, SINK), BULK)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_arrives_whole_with_four_shards_and_both_ways_at_once() {
    let (server, client) = (bulk_server(with_shards(4)), bind_with(with_shards(4)));
    let (source, sink) = (connect(&client, &server, SOURCE), connect(&client, &server, SINK));
    soon(async { tokio::join!(receive_from(&source, BULK / 4), send_to(&sink, BULK / 4)) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_calls_run_at_once_over_sixteen_connections() {
    let (server, client) = (bind(), bind());
    let running = Arc::new(AtomicUsize::new(0));
    let all_there = Arc::new(Semaphore::new(0));
    let (r, a) = (Arc::clone(&running), Arc::clone(&all_there));
    server.add_service(ServiceConfig::new(service(ECHO), move |call: ServerCall| {
        let (running, all_there) = (Arc::clone(&r), Arc::clone(&a));
        async move {
            if running.fetch_add(1, Ordering::SeqCst) == 63 {
                all_there.add_permits(64);
            }
            all_there.acquire().await.unwrap().forget();
            echo(call).await
        }
    }));
    let peer = client.peer(server.local_addr(), ECHO, PeerLimits { connections: 16 }, || Box::new(Null));
    let tasks: Vec<_> = (0..64u64)
        .map(|i| {
            let peer = peer.clone();
            tokio::spawn(async move {
                let mut call = peer.call().await.unwrap();
                send_stream(&mut call, i, 10_000 + i).await.unwrap();
                call.finish().unwrap();
                assert_eq!(check_stream(&mut call, i).await.unwrap(), 10_000 + i);
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(peer.connection_count(), 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_short_calls() {
    check_short_calls(small_packets(), false, 500).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_calls_answered_at_once() {
    check_short_calls(small_packets(), true, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_calls_answered_at_once_by_four_shards() {
    check_short_calls(with_shards(4), true, 100).await;
}

/// Twenty tasks that call one after the other, sharing eight channels.
async fn check_short_calls(config: EndpointConfig, answers_at_once: bool, calls: u64) {
    let (server, client) = (bind_with(config.clone()), bind_with(config));
    // Some of the calls wait before they are answered.
    let patient = |mut call: ServerCall| async move {
        let all = call.read_to_end(200).await.map_err(abort)?;
        if all.len() > 100 {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        call.write_all(&all).await.map_err(abort)
    };
    server.add_service(ServiceConfig { answers_at_once, ..ServiceConfig::new(service(ECHO), patient) });
    let peer = client.peer(server.local_addr(), ECHO, PeerLimits { connections: 2 }, || Box::new(Null));
    let tasks: Vec<_> = (0..20u64)
        .map(|task| {
            let peer = peer.clone();
            tokio::spawn(async move {
                for i in 0..calls {
                    let length = if i % 16 == 0 { 150 } else { 100 };
                    let mut call = peer.call().await.unwrap();
                    call.send(piece(task, 0, length)).await.unwrap();
                    call.finish().unwrap();
                    assert_eq!(check_stream(&mut call, task).await.unwrap(), length as u64, "call {i}");
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!(server.metrics().calls_served, 20 * calls);
    assert!(server.connection_count() <= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fifth_call_waits_for_a_channel() {
    let (server, client) = (echo_server(small_packets()), bind());
    let connection = connect(&client, &server, ECHO);
    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(connection.call().await.unwrap());
    }
    let mut fifth = Box::pin(connection.call());
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut fifth).await.is_err());
    drop(calls.pop());
    soon(fifth).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_call_aborts_it_at_the_server() {
    let (server, client) = (bind(), bind());
    let ended = Arc::new(Notify::new());
    let told = Arc::clone(&ended);
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let told = Arc::clone(&told);
        async move {
            let error = call.read_to_end(100_000).await.unwrap_err();
            assert!(matches!(error, CallError::Aborted { code: AbortCode::USER_ABORT, .. }), "{error:?}");
            told.notify_one();
            Err(abort(error))
        }
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.send(piece(1, 0, 5000)).await.unwrap();
    call.flush().unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(call);
    soon(ended.notified()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_call_ends_a_reply_that_is_under_way() {
    let (server, client) = (bind(), bind());
    let ended = Arc::new(Notify::new());
    let told = Arc::clone(&ended);
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let told = Arc::clone(&told);
        async move {
            let error = send_stream(&mut call, 1, u64::MAX).await.unwrap_err();
            told.notify_one();
            Err(abort(error))
        }
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.finish().unwrap();
    soon(call.recv()).await.unwrap();
    drop(call);
    soon(ended.notified()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_waiting_and_the_call() {
    let (server, client) = (bind(), bind());
    let ended = Arc::new(Notify::new());
    let told = Arc::clone(&ended);
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let told = Arc::clone(&told);
        async move {
            let error = call.read_to_end(100).await.unwrap_err();
            assert!(matches!(error, CallError::Aborted { code: AbortCode::CALL_TIMEOUT, .. }), "{error:?}");
            told.notify_one();
            Err(abort(error))
        }
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.send(piece(1, 0, 4)).await.unwrap();
    let start = Instant::now();
    call.set_timeout(Duration::from_millis(100));
    let error = soon(call.recv()).await.unwrap_err();
    assert!(matches!(error, CallError::DeadlinePassed { .. }), "{error:?}");
    assert!((100..10_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    soon(ended.notified()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_code_and_its_panic_reach_the_client() {
    let (server, client) = (bind(), bind());
    let config = ServiceConfig::new(service(ECHO), |mut call: ServerCall| async move {
        let mut word = [0; 4];
        call.read_exact(&mut word).await.map_err(abort)?;
        match u32::from_be_bytes(word) {
            0 => panic!("a handler that panics on purpose"),
            1 => Err(Abort(102)),
            _ => call.write_all(&word).await.map_err(abort),
        }
    });
    server.add_service(ServiceConfig { panic_code: AbortCode(5), ..config });
    let connection = connect(&client, &server, ECHO);
    for (word, code) in [(0u32, Some(5)), (1, Some(102)), (2, None), (0, Some(5)), (2, None)] {
        let mut call = connection.call().await.unwrap();
        call.write_all(&word.to_be_bytes()).await.unwrap();
        call.finish().unwrap();
        let result = soon(call.read_to_end(4)).await;
        assert_eq!(result.map_err(|e| e.code().0).err(), code);
    }
    assert_eq!(server.metrics().handler_panics, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limits_are_refused_with_the_busy_code() {
    let (server, client) = (bind(), bind());
    let gate = Arc::new(Semaphore::new(0));
    let g = Arc::clone(&gate);
    let config = ServiceConfig::new(service(ECHO), move |call: ServerCall| {
        let gate = Arc::clone(&g);
        async move {
            gate.acquire().await.unwrap().forget();
            echo(call).await
        }
    });
    server.add_service(ServiceConfig { max_calls: 2, max_waiting: 1, busy_code: AbortCode(110), ..config });
    let connection = connect(&client, &server, ECHO);
    let mut calls = Vec::new();
    for i in 0..4 {
        let mut call = connection.call().await.unwrap();
        call.write_all(b"word").await.unwrap();
        call.finish().unwrap();
        if i == 3 {
            assert_eq!(soon(call.recv()).await.unwrap_err().code(), AbortCode(110));
        } else {
            // In order, so that it is the fourth that is refused.
            let server = &server;
            soon(async move {
                while server.stats().calls < i + 1 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
            calls.push(call);
        }
    }
    gate.add_permits(3);
    for mut call in calls {
        assert_eq!(soon(call.read_to_end(4)).await.unwrap(), b"word");
    }
    let metrics = server.metrics();
    assert_eq!((metrics.calls_served, metrics.calls_waited, metrics.calls_refused), (3, 1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_not_there_is_refused() {
    let (server, client) = (echo_server(small_packets()), bind());
    let connection = connect(&client, &server, ServiceId(99));
    let mut call = connection.call().await.unwrap();
    call.write_all(b"word").await.unwrap();
    call.finish().unwrap();
    let error = soon(call.recv()).await.unwrap_err();
    assert_eq!(error.code(), AbortCode::INVALID_OPERATION, "{error}");
}

/// A reply may begin before the request has been read: its caller, waiting for room to send, hears of it and can read it.
#[tokio::test(flavor = "multi_thread")]
async fn an_early_reply_stops_a_writer_who_can_then_read_it() {
    let (server, client) = (bind(), bind());
    server.add_service(ServiceConfig::new(service(ECHO), |mut call: ServerCall| async move {
        let mut word = [0; 4];
        call.read_exact(&mut word).await.map_err(abort)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        call.write_all(b"enough").await.map_err(abort)
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    let error = soon(send_stream(&mut call, 1, u64::MAX)).await.unwrap_err();
    assert!(matches!(error, CallError::NotSending { .. }), "{error:?}");
    assert_eq!(soon(call.read_to_end(100)).await.unwrap(), b"enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_abort_stops_a_writer() {
    let (server, client) = (bind(), bind());
    server.add_service(ServiceConfig::new(service(ECHO), |_: ServerCall| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(Abort(13))
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    let error = soon(send_stream(&mut call, 1, u64::MAX)).await.unwrap_err();
    assert_eq!(error.code(), AbortCode(13));
    assert_eq!(call.recv().await.unwrap_err(), error);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_holds_back_the_writer() {
    let mut config = small_packets();
    // What may be under way and unread: so many packets here, so many bytes there.
    config.proto.max_window = 255;
    config.proto.max_send_buffer = 1 << 20;
    let (server, client) = (bulk_server(config.clone()), bind_with(config));
    let written = Arc::new(AtomicUsize::new(0));
    let w = Arc::clone(&written);
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let written = Arc::clone(&w);
        async move {
            for i in 0..1000 {
                call.send(piece(3, i * 50_000, 50_000)).await.map_err(abort)?;
                written.fetch_add(50_000, Ordering::SeqCst);
            }
            Ok(())
        }
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.finish().unwrap();
    let first = soon(call.recv()).await.unwrap().unwrap();
    soon(async {
        while written.load(Ordering::SeqCst) < 300_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ahead = written.load(Ordering::SeqCst);
    assert!(ahead < 3_000_000, "{ahead} bytes ahead of the reader");
    call.unread(first);
    assert_eq!(soon(check_stream(&mut call, 3)).await.unwrap(), 50_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_bytes_travel() {
    let (server, client) = (bind(), bind());
    server.add_service(ServiceConfig::new(service(ECHO), |mut call: ServerCall| async move {
        assert_eq!(call.peer_status(), Some(9));
        call.set_status(17);
        echo(call).await
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.set_status(9);
    call.write_all(b"word").await.unwrap();
    call.finish().unwrap();
    assert_eq!(soon(call.recv()).await.unwrap().unwrap(), &b"word"[..]);
    assert_eq!(call.peer_status(), Some(17));
    assert_eq!(call.stats().bytes_received, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_at_once_while_services_are_away_and_go_on_when_they_are_back() {
    let (server, client) = (bulk_server(with_shards(2)), bind());
    let connection = connect(&client, &server, ECHO);
    let is_dead = |error: CallError| matches!(error, CallError::Aborted { code: AbortCode::CALL_DEAD, .. });
    soon(async {
        let mut running = connection.call().await.unwrap();
        running.send(piece(7, 0, 100)).await.unwrap();
        running.flush().unwrap();
        while server.served_calls() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        server.set_away(true);
        assert!(is_dead(running.read_exact(&mut [0; 1]).await.unwrap_err()), "one that runs");
        while server.served_calls() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for connection in [&connection, &connect(&client, &server, ECHO), &connect(&client, &server, SINK)] {
            let began = Instant::now();
            let mut call = connection.call().await.unwrap();
            call.finish().unwrap();
            assert!(is_dead(call.read_exact(&mut [0; 1]).await.unwrap_err()), "a new one");
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        }
        // What it calls itself is no matter of this.
        let other = echo_server(EndpointConfig::default());
        let outward = connect(&server, &other, ECHO);
        for connection in [&outward, &connection] {
            let mut call = connection.call().await.unwrap();
            call.send(piece(7, 0, 100)).await.unwrap();
            call.finish().unwrap();
            assert_eq!(check_stream(&mut call, 7).await.unwrap(), 100);
            server.set_away(false);
        }
    })
    .await;
}
