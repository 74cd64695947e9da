//! `afar rxperf`: measures an Rx transport by OpenAFS's rxperf protocol (rxperf notes), so that either side may be OpenAFS's.
//! The options are here, the two sides in `server.rs` and `client.rs`, and what both need to encrypt in `security.rs`; what is said on the
//! wire, and the service, are the library `crates/rxperf`.

mod client;
mod security;
mod server;

use crate::arguments;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rx::{EndpointConfig, SocketOptions};
use rx_proto::config::Config;
use rx_proto::packet::{BASE_PACKET_LEN, MAX_PACKET_LEN, MIN_PACKET_LEN};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The service's usual port.
const PORT: u16 = 7009;

#[derive(Parser)]
#[command(name = "afar rxperf", about = "Measures an Rx transport; speaks OpenAFS's rxperf protocol")]
struct Cli {
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Answers rxperf clients until SIGTERM or Ctrl-C
    Server(Server),
    /// Calls an rxperf server and prints the speed
    Client(Client),
}

/// What both sides take.
#[derive(Args)]
struct Transport {
    /// Largest packet to send, in bytes of UDP payload; 1444 turns off the search for larger ones
    #[arg(short = 'm', value_name = "BYTES", default_value_t = MAX_PACKET_LEN, value_parser = packet_len)]
    max_packet: usize,
    /// Receive window that a call begins with, in packets
    #[arg(short = 'W', value_name = "PACKETS", default_value_t = 255, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    window: u32,
    /// UDP receive buffer in KiB, at most what the system allows. Default: as large as possible
    #[arg(short = 'u', value_name = "KIB")]
    udp_buffer: Option<usize>,
    /// Behave like OpenAFS: do not announce that this is afar, and use windows of at most 255 packets
    #[arg(long)]
    stock_like: bool,
    /// Folder with a cell's keys. The server then takes encrypted calls, too, and the client makes them
    #[arg(long, value_name = "DIR")]
    keys: Option<PathBuf>,
    /// No jumbograms; has no effect, because none are ever sent
    #[arg(short = 'j')]
    _no_jumbo: bool,
}

impl Transport {
    fn config(&self) -> EndpointConfig {
        let proto = Config {
            max_packet_len: self.max_packet,
            initial_window: self.window,
            announce: !self.stock_like,
            version: concat!("afar rxperf ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Config::default()
        };
        let mut socket = SocketOptions::default();
        if let Some(kib) = self.udp_buffer {
            (socket.receive_buffer_bytes, socket.allow_force) = (Some(kib << 10), false);
        }
        EndpointConfig { proto, socket, ..EndpointConfig::default() }
    }
}

#[derive(Args)]
struct Server {
    /// Port to listen on; 0 takes a free one. "ready PORT" on stdout says that it listens
    #[arg(short, default_value_t = PORT)]
    port: u16,
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0")]
    bind: std::net::IpAddr,
    #[command(flatten)]
    transport: Transport,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// The client sends -b bytes
    Send,
    /// The server sends -b bytes
    Recv,
    /// The client sends -S bytes, the server sends -R bytes
    Rpc,
    /// The list in -f says who sends how much
    File,
}

#[derive(Args)]
struct Client {
    /// What a call does
    #[arg(short, value_enum)]
    command: What,
    /// Bytes of a call; with suffix K, M or G in units of 1024
    #[arg(short, default_value = "1M", value_parser = bytes)]
    bytes: u32,
    /// Bytes to send in an rpc
    #[arg(short = 'S', default_value = "0", value_parser = bytes)]
    send: u32,
    /// Bytes to receive in an rpc
    #[arg(short = 'R', default_value = "0", value_parser = bytes)]
    receive: u32,
    /// For -c file: a file of numbers: n sends n x 4 bytes, 0 lets the other side go on
    #[arg(short = 'f', value_name = "FILE")]
    list: Option<PathBuf>,
    /// The server, by name or address
    #[arg(short, value_name = "HOST")]
    server: String,
    /// The server's port
    #[arg(short, default_value_t = PORT)]
    port: u16,
    /// Number of calls, one after another
    #[arg(short = 'T', alias = "calls", default_value_t = 1, value_name = "TIMES")]
    times: u64,
    /// Number of calls at once
    #[arg(short = 't', default_value_t = 1, value_name = "CALLS")]
    parallel: usize,
    /// Size of the server's writes; the client tells the server
    #[arg(short = 'r', default_value_t = 131_072)]
    read_size: u32,
    /// Size of the client's writes
    #[arg(short = 'w', default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(1..=524_288))]
    write_size: u32,
    /// Repeat for this many seconds, then break off the running call
    #[arg(long, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Leave the first seconds out of the figures
    #[arg(long, value_parser = seconds, default_value = "0")]
    omit: Duration,
    /// Pause between calls, in ms
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pause: u64,
    /// Record each call's progress at this interval, in ms (with --json)
    #[arg(long, value_name = "MS")]
    intervals: Option<u64>,
    /// Write the trace of the first call to this file; 'afar rxplot FILE' draws it
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Record the bytes of all calls together at this interval, in ms (with --json)
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,
    /// Address to call from, on a host that has several
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<std::net::IpAddr>,
    /// The security class of calls with --keys
    #[arg(long, value_enum, default_value = "rxgk", requires = "keys")]
    class: security::Class,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    transport: Transport,
}

fn packet_len(text: &str) -> Result<usize, String> {
    let len: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if (MIN_PACKET_LEN..=MAX_PACKET_LEN).contains(&len) {
        Ok(len)
    } else {
        Err(format!("from {MIN_PACKET_LEN} to {MAX_PACKET_LEN}; every peer takes {BASE_PACKET_LEN}"))
    }
}

fn bytes(text: &str) -> Result<u32, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((i, 'k' | 'K')) => (&text[..i], 10),
        Some((i, 'm' | 'M')) => (&text[..i], 20),
        Some((i, 'g' | 'G')) => (&text[..i], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes".to_owned())?;
    let all = number.saturating_mul(1 << shift);
    u32::try_from(all)
        .map_err(|_| "a call carries less than 4G; OpenAFS's server takes less than 2G".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let cli: Cli = match arguments::parse("rxperf", args) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = match (runtime, cli.side) {
        (Err(error), _) => Err(format!("cannot start threads: {error}")),
        (Ok(runtime), Side::Server(options)) => runtime.block_on(server::run(&options)),
        (Ok(runtime), Side::Client(options)) => runtime.block_on(client::run(&options)),
    };
    match result {
        Ok(code) => code,
        Err(message) => {
            eprintln!("rxperf: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Binds the port that calls go out from or come to.
fn bind(address: SocketAddr, transport: &Transport) -> Result<rx::Endpoint, String> {
    rx::Endpoint::bind(address, transport.config()).map_err(|error| error.to_string())
}
