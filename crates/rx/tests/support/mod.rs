//! What the tests of the whole crate share: endpoints on the loopback interface and services to call.
#![expect(clippy::disallowed_methods, reason = "real sockets take real time")]
pub(crate) mod recorder;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rx::{Abort, Call, Connection, Endpoint, EndpointConfig, ServerCall, ServiceConfig};
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;

/// What any single step may take on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) const ECHO: ServiceId = ServiceId(1);

pub(crate) fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub(crate) fn bind() -> Endpoint {
    bind_with(EndpointConfig::default())
}

pub(crate) fn bind_with(config: EndpointConfig) -> Endpoint {
    Endpoint::bind(loopback(), config).unwrap()
}

/// Packets as stock peers have them.
pub(crate) fn small_packets() -> EndpointConfig {
    EndpointConfig {
        proto: Config { max_packet_len: 1444, ..Config::default() },
        ..EndpointConfig::default()
    }
}

pub(crate) fn with_shards(shards: usize) -> EndpointConfig {
    EndpointConfig { shards: Some(shards), ..small_packets() }
}

pub(crate) fn service(id: ServiceId) -> Service {
    Service {
        id,
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    }
}

pub(crate) fn connect(client: &Endpoint, server: &Endpoint, id: ServiceId) -> Connection {
    client.connect(server.local_addr(), id, Box::new(Null))
}

pub(crate) fn abort(error: rx::CallError) -> Abort {
    Abort(error.code().0)
}

/// Sends back what came, once all has come: the beginning of a reply ends the request.
pub(crate) async fn echo(mut call: ServerCall) -> Result<(), Abort> {
    let all = call.read_to_end(usize::MAX).await.map_err(abort)?;
    call.write_all(&all).await.map_err(abort)
}

/// A server of [`ECHO`].
pub(crate) fn echo_server(config: EndpointConfig) -> Endpoint {
    let server = bind_with(config);
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    server
}

/// Byte `i` of a stream named by `seed`: a stream cut, doubled or mixed up is told apart.
pub(crate) fn byte_at(seed: u64, i: u64) -> u8 {
    let x = (i / 8).wrapping_add(seed.wrapping_mul(0x1000_0001)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> (8 * (i % 8))) as u8
}

/// Bytes `from` to `from + length` of that stream.
pub(crate) fn piece(seed: u64, from: u64, length: usize) -> Bytes {
    (from..from + length as u64).map(|i| byte_at(seed, i)).collect()
}

/// Sends `total` bytes of the stream.
pub(crate) async fn send_stream(call: &mut Call, seed: u64, total: u64) -> Result<(), rx::CallError> {
    let mut sent = 0;
    while sent < total {
        let length = (total - sent).min(100_000) as usize;
        call.send(piece(seed, sent, length)).await?;
        sent += length as u64;
    }
    Ok(())
}

/// Receives to the end, checking each byte; says how many there were.
pub(crate) async fn check_stream(call: &mut Call, seed: u64) -> Result<u64, rx::CallError> {
    let mut got = 0;
    while let Some(bytes) = call.recv().await? {
        for (i, b) in bytes.iter().enumerate() {
            assert_eq!(*b, byte_at(seed, got + i as u64), "byte {} of stream {seed}", got + i as u64);
        }
        got += bytes.len() as u64;
    }
    Ok(got)
}

/// Fails the test instead of hanging.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.expect("this takes moments unless something hangs")
}
