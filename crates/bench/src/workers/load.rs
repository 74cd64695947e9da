//! A load generator: many endpoints in one process, each a host with an address of its own, that call an rxperf server or a file
//! server all the time. Started as `afar-bench load-worker ...`: prints "ready" when its endpoints are bound, begins when it is sent a
//! line, and prints one JSON object at the end:
//!
//! `seconds` measured; in them `sent` and `received` bytes, also of calls that did not end, and `hosts`, the same by host;
//! `call_mbit` and `stalls_ms` of each call that ended in them, `stalls_ms` also of those that were broken off at the end;
//! `failures` and the first one's text; `busy`, how often a file server said that it has no time for a call (VBUSY), which is then
//! made again and counts as one.
//!
//! At a file server each caller that sends has a file of its own, and those that receive read one that all of the process share.
//!
//! The endpoints share a thread (`hosts`); the callers are tasks on two more.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Endpoint, EndpointConfig, Peer, PeerLimits, Runtime};
use rx_proto::security::{Null, SecurityClass};
use rxperf::SERVICE;
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;

use super::calling::{self, Callee, Service, Watch};
use super::file_host::{self, FileHost};
use super::hosts::Hosts;
use super::{Failure, hear, print};
use crate::network;
use afs_lab::caller::named::Named;

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "load-worker";
/// The pause before calling again after a failed call, so that a server that refuses is not drowned.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// The work of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Command {
    /// Send.
    Send,
    /// Receive.
    Recv,
    /// One caller that sends and one that receives, at the same time.
    Both,
}

#[derive(Parser)]
#[command(name = NAME, about = "For afar-bench's own use")]
struct Options {
    #[arg(long)]
    server: SocketAddr,
    /// Address of the first host; the others follow
    #[arg(long)]
    first: Ipv4Addr,
    #[arg(long)]
    hosts: u32,
    #[arg(long, value_enum)]
    command: Command,
    /// Calls at once of each host, each way
    #[arg(long, default_value_t = 1)]
    calls: usize,
    /// Bytes of the smallest and the largest call; each size between is drawn so that all orders of magnitude are as likely
    #[arg(long, default_value_t = 64 << 10)]
    least: u32,
    #[arg(long, default_value_t = 8_000_000)]
    most: u32,
    /// Seconds that do not count, at the start
    #[arg(long)]
    omit: u64,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    seed: u64,
    /// The name that all of them say, to a server that wants one
    #[arg(long)]
    user: Option<String>,
    /// The server is a file server with this volume, which anyone may write
    #[arg(long)]
    volume: Option<u32>,
}

/// The report that it prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) seconds: f64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) hosts: Vec<u64>,
    pub(crate) call_mbit: Vec<f64>,
    pub(crate) stalls_ms: Vec<f64>,
    pub(crate) failures: u64,
    pub(crate) first_failure: Option<String>,
    pub(crate) busy: u64,
}

/// The things that all callers share.
struct Shared {
    /// The time when it begins to count.
    from: Instant,
    is_over: AtomicBool,
    /// Traffic by host: bytes sent, bytes received.
    hosts: Vec<[AtomicU64; 2]>,
    least: u32,
    most: u32,
}

/// One of the callers.
struct Caller {
    callee: Callee,
    host: usize,
    is_sender: bool,
    rng: StdRng,
}

/// The results of a caller.
#[derive(Default)]
struct Seen {
    /// The time when each call ended, its rate if it came to its end, and its longest stall.
    calls: Vec<(Instant, Option<f64>, Duration)>,
    failures: Vec<(Instant, String)>,
    busy: Vec<Instant>,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::try_parse_from(std::iter::once(&NAME.to_string()).chain(arguments))?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let callers = runtime.block_on(bind(&options))?;
    print(format_args!("ready"))?;
    if hear()?.is_none() {
        return Ok(());
    }
    let report = runtime.block_on(measure(&options, callers))?;
    print(format_args!("{}", serde_json::to_string(&report)?))?;
    Ok(())
}

/// Binds all endpoints, and makes their files.
async fn bind(options: &Options) -> Result<Vec<Caller>, Failure> {
    let ways: &[bool] = match options.command {
        Command::Send => &[true],
        Command::Recv => &[false],
        Command::Both => &[true, false],
    };
    let mut callers = Vec::new();
    let hosts = Hosts::new()?;
    let mut shared = None;
    for (host, address) in network::consecutive(options.first, options.hosts).enumerate() {
        let limits = PeerLimits { connections: (options.calls * ways.len()).div_ceil(4) };
        let runtime = Arc::clone(&hosts) as Arc<dyn Runtime>;
        let (peer, files) = match options.volume {
            None => (rxperf_peer(runtime, options, address, limits)?, None),
            Some(volume) => {
                let host = FileHost::bind(runtime, address, options.server, volume)?;
                (host.peer(limits), Some(host))
            }
        };
        for is_sender in ways {
            for call in 0..options.calls {
                let service = match &files {
                    None => Service::Rxperf,
                    Some(files) if *is_sender => {
                        Service::File(files.make(&format!("sent-{address}-{call}"), 0).await?)
                    }
                    Some(files) => Service::File(match shared {
                        Some(file) => file,
                        None => *shared
                            .insert(files.make(&format!("read-{}", options.first), options.most).await?),
                    }),
                };
                // The seed of a caller is its place among those of all processes of a seed.
                let seed = (options.seed << 32) + callers.len() as u64;
                let (callee, rng) = (Callee { peer: peer.clone(), service }, StdRng::seed_from_u64(seed));
                callers.push(Caller { callee, host, is_sender: *is_sender, rng });
            }
        }
    }
    Ok(callers)
}

/// An rxperf server, as a host sees it.
fn rxperf_peer(
    runtime: Arc<dyn Runtime>,
    options: &Options,
    address: Ipv4Addr,
    limits: PeerLimits,
) -> Result<Peer, Failure> {
    let config = EndpointConfig { shards: Some(1), ..EndpointConfig::default() };
    let endpoint = Endpoint::bind_with(runtime, (address, 0).into(), config)?;
    let user = options.user.clone();
    let security = move || -> Box<dyn SecurityClass> {
        match &user {
            Some(name) => Box::new(Named { name: Some(name.clone()) }),
            None => Box::new(Null),
        }
    };
    Ok(endpoint.peer(options.server, SERVICE, limits, security))
}

async fn measure(options: &Options, callers: Vec<Caller>) -> Result<Report, Failure> {
    let from = Instant::now() + Duration::from_secs(options.omit);
    let shared = Arc::new(Shared::new(options, from));
    let tasks: Vec<_> =
        callers.into_iter().map(|caller| tokio::spawn(caller.work(Arc::clone(&shared)))).collect();
    tokio::time::sleep_until(from.into()).await;
    let (from, before) = (Instant::now(), shared.bytes());
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let (to, after) = (Instant::now(), shared.bytes());
    shared.is_over.store(true, Ordering::Relaxed);

    let of_way = |way: usize| after.iter().zip(&before).map(|(a, b)| a[way] - b[way]).sum();
    let mut report = Report {
        seconds: (to - from).as_secs_f64(),
        sent: of_way(0),
        received: of_way(1),
        hosts: after.iter().zip(&before).map(|(a, b)| a[0] + a[1] - b[0] - b[1]).collect(),
        ..Report::default()
    };
    for task in tasks {
        report.add(task.await?, from);
    }
    Ok(report)
}

impl Report {
    fn add(&mut self, seen: Seen, from: Instant) {
        for (_, mbit, stall) in seen.calls.into_iter().filter(|(at, ..)| *at >= from) {
            self.call_mbit.extend(mbit.map(|mbit| (mbit * 100.0).round() / 100.0));
            self.stalls_ms.push((stall.as_secs_f64() * 1e4).round() / 10.0);
        }
        for (_, text) in seen.failures.into_iter().filter(|(at, _)| *at >= from) {
            self.failures += 1;
            self.first_failure.get_or_insert(text);
        }
        self.busy += seen.busy.into_iter().filter(|at| *at >= from).count() as u64;
    }
}

impl Shared {
    fn new(options: &Options, from: Instant) -> Shared {
        Shared {
            from,
            is_over: AtomicBool::new(false),
            hosts: (0..options.hosts).map(|_| Default::default()).collect(),
            least: options.least,
            most: options.most.max(options.least),
        }
    }

    fn bytes(&self) -> Vec<[u64; 2]> {
        self.hosts.iter().map(|ways| [0, 1].map(|way| ways[way].load(Ordering::Relaxed))).collect()
    }

    /// A size between the least and the most, its logarithm evenly spread.
    fn size(&self, rng: &mut StdRng) -> u32 {
        let (least, most) = (f64::from(self.least).ln(), f64::from(self.most).ln());
        let size = (least + (most - least) * rng.random::<f64>()).exp().round();
        (size as u32).clamp(self.least, self.most)
    }
}

impl Caller {
    /// Makes one call after the other until it is over.
    async fn work(mut self, shared: Arc<Shared>) -> Seen {
        let mut seen = Seen::default();
        let counter = &shared.hosts[self.host][usize::from(!self.is_sender)];
        while !shared.is_over.load(Ordering::Relaxed) {
            let size = shared.size(&mut self.rng);
            let mut watch = Watch::new(Instant::now(), shared.from);
            let ended = loop {
                let (callee, is_over) = (&self.callee, &shared.is_over);
                match calling::call(callee, self.is_sender, size, counter, is_over, &mut watch).await {
                    Err(error) if file_host::is_busy(&error) => {
                        seen.busy.push(Instant::now());
                        tokio::time::sleep(file_host::BUSY_PAUSE).await;
                        if is_over.load(Ordering::Relaxed) {
                            break Ok(false);
                        }
                    }
                    ended => break ended,
                }
            };
            let now = Instant::now();
            match ended {
                Ok(is_whole) => {
                    let mbit = f64::from(size) * 8.0 / watch.age(now).as_secs_f64().max(1e-9) / 1e6;
                    seen.calls.push((now, is_whole.then_some(mbit), watch.longest_stall(now)));
                }
                Err(error) => {
                    seen.failures.push((now, error.to_string()));
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::caller::named::NamedServer;

    #[test]
    fn sizes_are_spread_over_all_orders_of_magnitude_and_the_same_for_a_seed() {
        let shared = Shared {
            from: Instant::now(),
            is_over: AtomicBool::new(false),
            hosts: Vec::new(),
            least: 65_536,
            most: 8_000_000,
        };
        let draw = || {
            let mut rng = StdRng::seed_from_u64(1);
            (0..1000).map(|_| shared.size(&mut rng)).collect::<Vec<_>>()
        };
        let mut sizes = draw();
        assert_eq!(sizes, draw());
        sizes.sort_unstable();
        assert!(sizes[0] >= 65_536 && sizes[999] <= 8_000_000);
        // The middle is the geometric mean, 724 kB.
        assert!((600_000..870_000).contains(&sizes[500]), "{}", sizes[500]);
    }

    #[test]
    fn calls_that_ended_before_the_window_do_not_count() {
        let from = Instant::now();
        let early = from.checked_sub(Duration::from_millis(1)).expect("the machine runs for a while");
        let stall = Duration::from_millis(12);
        let calls = vec![(early, Some(9.0), stall), (from, Some(7.0), stall), (from, None, stall * 2)];
        let failures = vec![(early, "early".to_string()), (from, "late".to_string())];
        let mut report = Report::default();
        report.add(Seen { calls, failures, busy: vec![early, from, from] }, from);
        assert_eq!((report.call_mbit, report.stalls_ms), (vec![7.0], vec![12.0, 24.0]));
        assert_eq!((report.failures, report.first_failure.as_deref()), (1, Some("late")));
        assert_eq!(report.busy, 2);
    }

    /// How many seconds may be measured until one shows what it should.
    const SECONDS_MAX: usize = 10;

    /// A second of two hosts at a server that wants to hear a name.
    fn measured(user: Option<&str>) -> Report {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let _in_runtime = runtime.enter();
        let server = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default()).unwrap();
        server.add_service(rxperf::config(vec![Arc::new(NamedServer)]));
        let options = Options {
            server: server.local_addr(),
            first: Ipv4Addr::LOCALHOST,
            hosts: 2,
            command: Command::Both,
            calls: 1,
            least: 1_000,
            most: 100_000,
            omit: 0,
            seconds: 1,
            seed: 1,
            user: user.map(str::to_string),
            volume: None,
        };
        runtime.block_on(async { measure(&options, bind(&options).await.unwrap()).await.unwrap() })
    }

    #[test]
    fn all_hosts_carry_bytes_both_ways_for_a_user_who_has_a_name() {
        // A busy machine may stand still for most of a second.
        let carries = (0..SECONDS_MAX).any(|_| {
            let report = measured(Some("somebody"));
            assert_eq!(report.first_failure, None);
            assert_eq!(report.hosts.len(), 2);
            assert!(report.stalls_ms.len() >= report.call_mbit.len());
            report.sent > 0
                && report.received > 0
                && report.hosts.iter().all(|bytes| *bytes > 0)
                && !report.call_mbit.is_empty()
        });
        assert!(carries);
    }

    #[test]
    fn a_user_without_a_name_fails_and_is_counted() {
        let fails = (0..SECONDS_MAX).any(|_| {
            let report = measured(None);
            assert_eq!((report.received, report.call_mbit.len()), (0, 0));
            assert_eq!(report.failures > 0, report.first_failure.is_some());
            report.failures > 0
        });
        assert!(fails);
    }
}
