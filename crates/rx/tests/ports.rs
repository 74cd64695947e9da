//! Endpoints as ports of this host: several at once, both address families, what the network says, and how they end.
#![expect(clippy::disallowed_methods, reason = "real sockets take real time")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use rx::{CallError, Connection, Endpoint, EndpointConfig, ServerCall, ServiceConfig};
use rx_proto::abort::AbortCode;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use tokio::sync::Notify;

async fn check_word(connection: &Connection, word: &[u8]) {
    let mut call = connection.call().await.unwrap();
    call.write_all(word).await.unwrap();
    call.finish().unwrap();
    assert_eq!(soon(call.read_to_end(100)).await.unwrap(), word);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_services_on_several_ports() {
    let (a, b) = (echo_server(small_packets()), echo_server(small_packets()));
    b.add_service(ServiceConfig::new(service(ServiceId(52)), |mut call: ServerCall| async move {
        call.write_all(b"fifty-two").await.map_err(abort)
    }));
    check_word(&connect(&a, &b, ECHO), b"from a to b").await;
    check_word(&connect(&b, &a, ECHO), b"from b to a").await;
    check_word(&connect(&a, &a, ECHO), b"from a to itself").await;
    let connection = connect(&a, &b, ServiceId(52));
    let mut call = connection.call().await.unwrap();
    call.finish().unwrap();
    assert_eq!(soon(call.read_to_end(100)).await.unwrap(), b"fifty-two");
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_and_ipv4_on_one_port() {
    let server = Endpoint::bind((Ipv6Addr::UNSPECIFIED, 0).into(), EndpointConfig::default()).unwrap();
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    let port = server.local_addr().port();
    let peers: [SocketAddr; 2] = [(Ipv6Addr::LOCALHOST, port).into(), (Ipv4Addr::LOCALHOST, port).into()];
    for peer in peers {
        let any = Endpoint::bind((Ipv6Addr::UNSPECIFIED, 0).into(), EndpointConfig::default()).unwrap();
        check_word(&any.connect(peer, ECHO, Box::new(Null)), b"word").await;
    }
}

/// A server on all addresses answers from the one that it was called at, which a client behind a firewall needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_all_addresses_answers_from_the_one_called() {
    let server = Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), small_packets()).unwrap();
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    let called = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 7), server.local_addr().port()));
    let socket = std::net::UdpSocket::bind(loopback()).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    // A VERSION packet: epoch, cid, call, seq and serial of no meaning, type 13, flags: from a client.
    let mut question = [0; 65];
    (question[20], question[21]) = (13, 1);
    socket.send_to(&question, called).unwrap();
    let (_, from) = socket.recv_from(&mut [0; 1500]).unwrap();
    assert_eq!(from, called);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_nobody_has_fails_fast() {
    let client = bind();
    let gone = std::net::UdpSocket::bind(loopback()).unwrap().local_addr().unwrap();
    let connection = client.connect(gone, ECHO, Box::new(Null));
    let start = Instant::now();
    let mut call = connection.call().await.unwrap();
    call.write_all(b"word").await.unwrap();
    call.finish().unwrap();
    let error = soon(call.recv()).await.unwrap_err();
    assert_eq!(error.code(), AbortCode::CALL_DEAD, "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(client.metrics().icmp_errors > 0);
}

/// Fails unless the port has so many threads. They name themselves a moment after they were made, and the kernel shows them for
/// a moment after they were joined.
fn check_threads(port: u16, expected: usize) {
    let deadline = Instant::now() + TIMEOUT;
    while threads_of(port) != expected {
        assert!(Instant::now() < deadline, "{} threads, not {expected}", threads_of(port));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many threads of this process are a port's, by their names as the kernel has them.
fn threads_of(port: u16) -> usize {
    let prefix = format!("rx-{port}-");
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with(&prefix)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_last_endpoint_ends_its_threads_and_frees_its_port() {
    let server = echo_server(with_shards(2));
    let address = server.local_addr();
    check_threads(address.port(), 3);
    {
        let client = bind();
        let connection = connect(&client, &server, ECHO);
        let port = client.local_addr().port();
        drop(client);
        // The connection still has it.
        check_word(&connection, b"word").await;
        check_threads(port, 2);
        drop(connection);
        check_threads(port, 0);
    }
    let clone = server.clone();
    drop(server);
    check_threads(address.port(), 3);
    drop(clone);
    check_threads(address.port(), 0);
    drop(Endpoint::bind(address, EndpointConfig::default()).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn shutting_down_ends_calls_and_tells_peers() {
    let (server, client) = (bind(), bind());
    let (begun, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (b, e) = (Arc::clone(&begun), Arc::clone(&ended));
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        let (begun, ended) = (Arc::clone(&b), Arc::clone(&e));
        async move {
            begun.notify_one();
            let error = call.read_to_end(100).await.unwrap_err();
            assert_eq!(error, CallError::EndpointClosed);
            ended.notify_one();
            Err(abort(error))
        }
    }));
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.write_all(b"word").await.unwrap();
    call.flush().unwrap();
    soon(begun.notified()).await;
    let address = server.local_addr();
    drop(server);
    soon(ended.notified()).await;
    let error = soon(call.recv()).await.unwrap_err();
    assert!(matches!(error, CallError::Aborted { .. }), "{error:?}");
    // The handler is gone, and the port with it.
    soon(async {
        while Endpoint::bind(address, EndpointConfig::default()).is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_tells_its_statistics() {
    let (server, client) = (echo_server(small_packets()), bind());
    let peer = server.local_addr();
    assert_eq!(client.statistics_of(peer, TIMEOUT).await, None, "there is no connection");
    check_word(&connect(&client, &server, ECHO), b"word").await;
    let (one, other) = tokio::join!(client.statistics_of(peer, TIMEOUT), client.statistics_of(peer, TIMEOUT));
    assert_eq!(one.expect("an answer").calls_executed, 1);
    assert!(other.is_some());
    server.shut_down();
    // What has arrived by then may still be answered.
    soon(async { while client.statistics_of(peer, Duration::from_millis(50)).await.is_some() {} }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_closed_is_free() {
    let (server, client) = (bind(), bind());
    let begun = Arc::new(Notify::new());
    let b = Arc::clone(&begun);
    server.add_service(ServiceConfig::new(service(ECHO), move |mut call: ServerCall| {
        b.notify_one();
        async move {
            let error = call.read_to_end(100).await.unwrap_err();
            // As long as this takes, it has the port.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err(abort(error))
        }
    }));
    let mut call = connect(&client, &server, ECHO).call().await.unwrap();
    call.write_all(b"word").await.unwrap();
    call.flush().unwrap();
    soon(begun.notified()).await;
    let address = server.local_addr();
    soon(server.close()).await;
    Endpoint::bind(address, EndpointConfig::default()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_shut_down_fails_its_calls() {
    let (server, client) = (echo_server(small_packets()), bind());
    let connection = connect(&client, &server, ECHO);
    let mut call = connection.call().await.unwrap();
    call.write_all(b"word").await.unwrap();
    let waiting = tokio::spawn(async move { call.recv().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.shut_down();
    assert_eq!(soon(waiting).await.unwrap().unwrap_err(), CallError::EndpointClosed);
    assert_eq!(connection.call().await.unwrap_err(), CallError::EndpointClosed);
}

/// Handlers that call back from the port that they serve, as file servers do, neither hold it nor outlive it.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_calls_back_from_its_own_port() {
    let (server, client) = (bind(), echo_server(small_packets()));
    server.add_service(ServiceConfig::new(service(ServiceId(2)), |mut call: ServerCall| async move {
        let endpoint = call.endpoint().unwrap();
        let back = endpoint.connect(call.peer(), ECHO, Box::new(Null));
        check_word(&back, b"are you there").await;
        call.write_all(b"yes").await.map_err(abort)
    }));
    let connection = connect(&client, &server, ServiceId(2));
    let mut call = connection.call().await.unwrap();
    call.finish().unwrap();
    assert_eq!(soon(call.read_to_end(100)).await.unwrap(), b"yes");
    let port = server.local_addr().port();
    drop(server);
    soon(async {
        while threads_of(port) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
