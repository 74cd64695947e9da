//! What the driver costs, without a network: bulk both ways and empty calls over the loopback interface. Quick figures for
//! whoever changes the driver; `bench/` has those that count.
//!
//! `loopback [send|recv|rpc] [--seconds N] [--calls N] [--packet BYTES] [--at-once] [--shards N] [server ADDR | client ADDR]`
#![expect(clippy::disallowed_methods, reason = "a program runs in real time")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rx::{Abort, CallError, Endpoint, EndpointConfig, Peer, PeerLimits, ServerCall, ServiceConfig};
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;

const SERVICE: ServiceId = ServiceId(4);
const PIECE: usize = 128 << 10;

#[derive(Clone)]
struct Options {
    what: String,
    seconds: u64,
    calls: usize,
    packet: usize,
    at_once: bool,
    shards: Option<usize>,
    role: Option<(String, SocketAddr)>,
}

/// The request is a word: how many bytes to send back; what follows it is read and thrown away.
async fn serve(mut call: ServerCall) -> Result<(), Abort> {
    let abort = |e: CallError| Abort(e.code().0);
    let mut word = [0; 8];
    call.read_exact(&mut word).await.map_err(abort)?;
    while call.recv().await.map_err(abort)?.is_some() {}
    let mut left = u64::from_be_bytes(word);
    let piece = Bytes::from(vec![7; PIECE]);
    while left > 0 {
        let length = left.min(PIECE as u64);
        call.send(piece.slice(..length as usize)).await.map_err(abort)?;
        left -= length;
    }
    Ok(())
}

fn options() -> Options {
    let mut o = Options {
        what: "recv".into(),
        seconds: 3,
        calls: 1,
        packet: 1444,
        at_once: false,
        shards: None,
        role: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("the option takes a value");
        match arg.as_str() {
            "--seconds" => o.seconds = value().parse().expect("a number"),
            "--calls" => o.calls = value().parse().expect("a number"),
            "--packet" => o.packet = value().parse().expect("a number"),
            "--shards" => o.shards = Some(value().parse().expect("a number")),
            "--at-once" => o.at_once = true,
            "server" | "client" => o.role = Some((arg.clone(), value().parse().expect("an address"))),
            what => o.what = what.to_owned(),
        }
    }
    o
}

fn bind(o: &Options, address: &str) -> Endpoint {
    let proto = Config { max_packet_len: o.packet, ..Config::default() };
    let config = EndpointConfig { proto, shards: o.shards, ..EndpointConfig::default() };
    Endpoint::bind(address.parse().expect("an address"), config).expect("the port can be bound")
}

fn serving(o: &Options, address: &str) -> Endpoint {
    let endpoint = bind(o, address);
    let service = Service {
        id: SERVICE,
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig { answers_at_once: o.at_once, ..ServiceConfig::new(service, serve) });
    endpoint
}

#[tokio::main]
async fn main() {
    let o = options();
    match o.role.clone() {
        Some((role, address)) if role == "server" => {
            let endpoint = serving(&o, &address.to_string());
            std::future::pending::<()>().await;
            drop(endpoint);
        }
        Some((_, address)) => run(&o, address).await,
        None => {
            let server = serving(&o, "127.0.0.1:0");
            run(&o, server.local_addr()).await;
            println!("server {:?}", server.metrics());
        }
    }
}

async fn run(o: &Options, server: SocketAddr) {
    let client = bind(o, "0.0.0.0:0");
    let peer =
        client.peer(server, SERVICE, PeerLimits { connections: o.calls.div_ceil(4) }, || Box::new(Null));
    let bytes = Arc::new(AtomicU64::new(0));
    let calls = Arc::new(AtomicU64::new(0));
    for _ in 0..o.calls {
        let (peer, o, bytes, calls) = (peer.clone(), o.clone(), Arc::clone(&bytes), Arc::clone(&calls));
        tokio::spawn(async move {
            // Ends with the server.
            while call_once(&peer, &o.what, &bytes).await.is_ok() {
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let cpu = cpu_seconds();
    for _ in 0..o.seconds {
        let before = (bytes.load(Ordering::Relaxed), calls.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (b, c) = (bytes.load(Ordering::Relaxed) - before.0, calls.load(Ordering::Relaxed) - before.1);
        println!("{:.2} Gbit/s, {c} calls/s", b as f64 * 8e-9);
    }
    let cpu = cpu_seconds() - cpu;
    let (bytes, calls) = (bytes.load(Ordering::Relaxed) as f64, calls.load(Ordering::Relaxed) as f64);
    println!("cpu: {:.3} s/GB, {:.1} us/call, of this process", cpu / bytes * 1e9, cpu / calls * 1e6);
    println!("client {:?}\n{:?}", client.metrics(), client.stats());
}

/// What this process has used, in user and kernel mode.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("a Linux host");
    let after_name = &stat[stat.rfind(')').expect("the name is in brackets")..];
    let ticks: f64 =
        after_name.split(' ').skip(12).take(2).map(|n| n.parse::<f64>().expect("a number")).sum();
    ticks / 100.0
}

async fn call_once(peer: &Peer, what: &str, bytes: &AtomicU64) -> Result<(), CallError> {
    let mut call = peer.call().await?;
    let wanted = if what == "recv" { u64::MAX } else { 0 };
    call.send(Bytes::copy_from_slice(&wanted.to_be_bytes())).await?;
    if what == "send" {
        loop {
            call.send(Bytes::from_static(&[7; PIECE])).await?;
            bytes.fetch_add(PIECE as u64, Ordering::Relaxed);
        }
    }
    call.finish()?;
    let mut next = 1 << 30;
    let mut got = 0;
    while let Some(piece) = call.recv().await? {
        bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        got += piece.len();
        if got >= next {
            next += 1 << 30;
            println!("{:?} {:?}", call.stats(), call.rtt());
        }
    }
    Ok(())
}
