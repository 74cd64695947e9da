//! A probe of an rxperf server or a file server: short calls that send, at fixed times, whatever becomes of those before, each timed from when it was due. Started as
//! `afar-bench probe-worker ...`: prints "ready"; for each line read, a number, makes so many calls and prints "probed " with
//! a JSON object: `ms` of each in the order in which they were due, `failures` and the first one's text. Calls that a file server
//! has no time for (VBUSY) are made again, and take until they were served.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use clap::Parser;
use rx::{Endpoint, EndpointConfig, PeerLimits, TokioRuntime};
use rx_proto::security::Null;
use rxperf::SERVICE;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use super::calling::{self, Callee, Service, Watch};
use super::file_host::{self, FileHost};
use super::{Failure, hear, print};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "probe-worker";
/// The time that a call may take; one that takes longer or fails counts as taking so long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Calls that may be under way at once: all that fall into the time of the patience, ten a second.
const AT_ONCE: usize = 320;
/// Files that calls at a file server send to in turn: it takes those of one file one after the other.
const FILES: usize = 16;

#[derive(Parser)]
#[command(name = NAME, about = "For afar-bench's own use")]
struct Options {
    #[arg(long)]
    server: SocketAddr,
    #[arg(long)]
    from: Ipv4Addr,
    /// Bytes that a call sends
    #[arg(long)]
    bytes: u32,
    /// Milliseconds between calls
    #[arg(long)]
    every: u64,
    /// The server is a file server with this volume, which anyone may write
    #[arg(long)]
    volume: Option<u32>,
}

/// The report that it prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) ms: Vec<f64>,
    pub(crate) failures: u64,
    pub(crate) first_failure: Option<String>,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::try_parse_from(std::iter::once(&NAME.to_string()).chain(arguments))?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let callees = runtime.block_on(bind(&options))?;
    print(format_args!("ready"))?;
    while let Some(line) = hear()? {
        let report = runtime.block_on(probe(&options, &callees, line.trim().parse()?))?;
        print(format_args!("probed {}", serde_json::to_string(&report)?))?;
    }
    Ok(())
}

/// The servers that are called, one after the other.
async fn bind(options: &Options) -> Result<Vec<Callee>, Failure> {
    let limits = PeerLimits { connections: AT_ONCE / 4 };
    let Some(volume) = options.volume else {
        let endpoint = Endpoint::bind((options.from, 0).into(), EndpointConfig::default())?;
        let peer = endpoint.peer(options.server, SERVICE, limits, || Box::new(Null));
        return Ok(vec![Callee { peer, service: Service::Rxperf }]);
    };
    let host = FileHost::bind(Arc::new(TokioRuntime::current()), options.from, options.server, volume)?;
    let peer = host.peer(limits);
    let mut callees = Vec::new();
    for file in 0..FILES {
        let service = Service::File(host.make(&format!("probe-{file}"), 0).await?);
        callees.push(Callee { peer: peer.clone(), service });
    }
    Ok(callees)
}

async fn probe(options: &Options, callees: &[Callee], count: u32) -> Result<Report, Failure> {
    let every = Duration::from_millis(options.every);
    let start = Instant::now() + every;
    let mut probes = Vec::new();
    for (i, callee) in (0..count).zip(callees.iter().cycle()) {
        let due = start + every * i;
        tokio::time::sleep_until(due.into()).await;
        probes.push(tokio::spawn(one(callee.clone(), options.bytes, due)));
    }
    let mut report = Report::default();
    for probe in probes {
        let took = match probe.await? {
            Ok(took) => took,
            Err(failure) => {
                report.failures += 1;
                report.first_failure.get_or_insert(failure);
                TIMEOUT
            }
        };
        report.ms.push((took.as_secs_f64() * 1e5).round() / 100.0);
    }
    Ok(report)
}

/// One call; how long after it was due it was over.
async fn one(callee: Callee, bytes: u32, due: Instant) -> Result<Duration, String> {
    let (counter, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut watch = Watch::new(due, due);
    let until_served = async {
        loop {
            match calling::call(&callee, true, bytes, &counter, &is_over, &mut watch).await {
                Err(error) if file_host::is_busy(&error) => {
                    tokio::time::sleep(file_host::BUSY_PAUSE).await;
                }
                ended => return ended,
            }
        }
    };
    match tokio::time::timeout_at((due + TIMEOUT).into(), until_served).await {
        Ok(Ok(_)) => Ok(due.elapsed()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("a probe took more than {} s", TIMEOUT.as_secs())),
    }
}
