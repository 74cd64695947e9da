//! A server and groups of load generators that begin together, with a probe beside them if wanted, over a link: starts them (the
//! server, if it does not run already), and gathers what they and the kernels have seen. What is compared, and what it should be, is
//! the experiments'.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::cpu_limit::CpuLimit;
use crate::error::Error;
use crate::lab::Lab;
use crate::network::{Ends, UdpCounters, add_addresses, consecutive};
use crate::process::{Process, thread_cpu_seconds_of, thread_waits_of};
use crate::tools::{Invocation, Place};
use crate::transfer::Window;
use crate::workers::{load, probe};

/// The round trip of the links under a crowd.
pub(crate) const RTT: Duration = Duration::from_millis(10);
/// The first host's address; what the link itself has is below.
pub(crate) const FIRST_HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 3);
/// An address above those of 250 hosts.
pub(crate) const ONE_MORE_HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 253);
/// The niceness before the kernel's own, 0: a server has its machine to itself, which here it has not.
pub(crate) const SERVER_NICENESS: i32 = -10;
/// The niceness behind everything else: clients have machines of their own.
pub(crate) const CROWD_NICENESS: i32 = 19;
/// Most processes of a group.
pub(crate) const PROCESSES: u32 = 4;

/// The bytes that a probe sends, and the time between two of them, ms.
pub(crate) const PROBE_BYTES: u32 = 64 << 10;
pub(crate) const PROBE_EVERY_MS: u64 = 100;
/// Probes before the first that counts: they make the connection, and the path's first round trips.
const WARM_UP: u32 = 5;
/// The time within which a process must begin: 63 endpoints have to be bound, and as many files made, at the lowest priority.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The time within which a generator must sum up.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Hosts that do the same, on behalf of one user or each of their own.
pub(crate) struct Group {
    pub(crate) first: Ipv4Addr,
    pub(crate) hosts: u32,
    /// Calls at once of each host, each way.
    pub(crate) calls: usize,
    pub(crate) niceness: i32,
    /// The name that they say.
    pub(crate) user: Option<&'static str>,
}

impl Group {
    /// So many hosts, each its own user with one call at a time.
    pub(crate) fn of_strangers(hosts: u32) -> Group {
        Group { first: FIRST_HOST, hosts, calls: 1, niceness: CROWD_NICENESS, user: None }
    }
}

/// The load that is to be run.
pub(crate) struct Crowd {
    /// The server's share of a core, if it is held to less than it wants.
    pub(crate) server_share: Option<f64>,
    pub(crate) groups: Vec<Group>,
    /// send, recv or both.
    pub(crate) command: &'static str,
    /// Probes before the load begins, and within the window; none at all if 0.
    pub(crate) idle_probes: u32,
    pub(crate) probes: u32,
    pub(crate) window: Window,
}

/// A server that runs.
pub(crate) struct Target {
    pub(crate) process: u32,
    pub(crate) address: SocketAddr,
    /// The volume of a file server that anyone may write. Other servers speak rxperf.
    pub(crate) volume: Option<String>,
}

/// The result.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) commands: Vec<String>,
    /// The report of each group, its processes together.
    pub(crate) groups: Vec<load::Report>,
    pub(crate) idle: probe::Report,
    pub(crate) loaded: probe::Report,
    /// The counters of the kernels of both ends within the window.
    pub(crate) server_udp: UdpCounters,
    pub(crate) client_udp: UdpCounters,
    /// CPU seconds within the window of each of the server's threads.
    pub(crate) server_threads: Vec<f64>,
    /// For each load generator, the seconds of the window for which its thread that waited the longest was ready and had no core.
    pub(crate) client_waits: Vec<f64>,
    /// The window's length as it was.
    pub(crate) seconds: f64,
}

impl Crowd {
    /// Runs it with an rxperf server that is started for it. The client's end is to be a namespace.
    pub(crate) fn run(&self, lab: &Lab, ends: Ends<'_>, server: &Invocation) -> Result<Seen, Error> {
        let server = server.clone().nice(SERVER_NICENESS);
        let mut serving = server.start(ends.server, &lab.interrupt)?;
        let ready = serving.wait_for_line("ready ", READY_TIMEOUT)?;
        let port = ready.parse().map_err(|_| Error::run(format!("{server}: '{ready}' is no port")))?;
        let address = SocketAddr::from((ends.host, port));
        let mut seen = self.run_at(lab, ends, &Target { process: serving.id(), address, volume: None })?;
        seen.commands.insert(0, server.to_string());
        Ok(seen)
    }

    /// Runs it with a server that is there.
    pub(crate) fn run_at(&self, lab: &Lab, ends: Ends<'_>, target: &Target) -> Result<Seen, Error> {
        let Place::In(clients) = ends.client else { unreachable!("crowds are on links") };
        let mut seen = Seen::default();
        for group in &self.groups {
            add_addresses(clients, group.first, group.hosts)?;
        }
        let _held = self.server_share.map(|share| CpuLimit::hold(target.process, share)).transpose()?;

        let mut probing = None;
        if self.probes > 0 {
            add_addresses(clients, ONE_MORE_HOST, 1)?;
            let mut process = start(lab, &self.probe(lab, target), ends.client, &mut seen)?;
            process.wait_for_line("ready", READY_TIMEOUT)?;
            probe(&mut process, WARM_UP)?;
            seen.idle = probe(&mut process, self.idle_probes)?;
            probing = Some(process);
        }
        let mut loading = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            for invocation in self.generators(lab, group, index, target) {
                loading.push((index, start(lab, &invocation, ends.client, &mut seen)?));
            }
        }
        for (_, process) in &mut loading {
            process.wait_for_line("ready", READY_TIMEOUT)?;
        }
        for (_, process) in &mut loading {
            process.say("go")?;
        }
        let generators: Vec<_> = loading.iter().map(|(_, process)| process.id()).collect();
        let begin = Instant::now();
        lab.interrupt.sleep_until(begin + self.window.omit)?;
        let before = Look::now(target, &generators, ends)?;
        if let Some(process) = &mut probing {
            process.say(&self.probes.to_string())?;
        }
        lab.interrupt.sleep_until(begin + self.window.omit + self.window.measure)?;
        seen.add(&before, &Look::now(target, &generators, ends)?);
        seen.groups = self.groups.iter().map(|_| load::Report::default()).collect();
        for (group, process) in loading {
            let report = parse(&process.finish(END_TIMEOUT)?, "a load-worker")?;
            merge(&mut seen.groups[group], report);
        }
        if let Some(process) = &mut probing {
            seen.loaded = answer(process, self.probes)?;
        }
        Ok(seen)
    }

    fn probe(&self, lab: &Lab, target: &Target) -> Invocation {
        let (bytes, every, from) =
            (PROBE_BYTES.to_string(), PROBE_EVERY_MS.to_string(), ONE_MORE_HOST.to_string());
        let arguments = ["--from", &from, "--bytes", &bytes, "--every", &every];
        lab.tools.bench().and([probe::NAME]).and(target.options()).and(arguments).nice(SERVER_NICENESS)
    }

    /// The processes of a group, its hosts spread evenly over them.
    fn generators(&self, lab: &Lab, group: &Group, index: usize, target: &Target) -> Vec<Invocation> {
        let first: Vec<_> = consecutive(group.first, group.hosts).collect();
        let mut taken = 0;
        let mut invocations = Vec::new();
        for (process, hosts) in split(group.hosts, PROCESSES).into_iter().enumerate() {
            let numbers = [
                ("--first", first[taken as usize].to_string()),
                ("--hosts", hosts.to_string()),
                ("--calls", group.calls.to_string()),
                ("--omit", self.window.omit.as_secs().to_string()),
                ("--seconds", self.window.measure.as_secs().to_string()),
                ("--seed", (index * PROCESSES as usize + process + 1).to_string()),
            ];
            let mut generator =
                lab.tools.bench().and([load::NAME, "--command", self.command]).and(target.options());
            for (name, value) in numbers {
                generator = generator.and([name, &value]);
            }
            if let Some(user) = group.user {
                generator = generator.and(["--user", user]);
            }
            invocations.push(generator.nice(group.niceness));
            taken += hosts;
        }
        invocations
    }
}

impl Target {
    /// The options that tell a worker of it.
    fn options(&self) -> Vec<String> {
        let mut options = vec!["--server".to_string(), self.address.to_string()];
        options.extend(self.volume.iter().flat_map(|volume| ["--volume".to_string(), volume.clone()]));
        options
    }
}

/// The values that can be read from outside at a time.
struct Look {
    at: Instant,
    threads: BTreeMap<u32, f64>,
    waits: Vec<BTreeMap<u32, f64>>,
    server_udp: UdpCounters,
    client_udp: UdpCounters,
}

impl Look {
    fn now(target: &Target, generators: &[u32], ends: Ends<'_>) -> Result<Look, Error> {
        Ok(Look {
            at: Instant::now(),
            threads: thread_cpu_seconds_of(target.process),
            waits: generators.iter().map(|process| thread_waits_of(*process)).collect(),
            server_udp: UdpCounters::of(ends.server)?,
            client_udp: UdpCounters::of(ends.client)?,
        })
    }
}

impl Seen {
    fn add(&mut self, before: &Look, after: &Look) {
        self.seconds = (after.at - before.at).as_secs_f64();
        self.server_udp = after.server_udp.since(before.server_udp);
        self.client_udp = after.client_udp.since(before.client_udp);
        self.server_threads = thread_deltas(&before.threads, &after.threads);
        let waits = before.waits.iter().zip(&after.waits).map(|(before, after)| thread_deltas(before, after));
        self.client_waits = waits.filter_map(|waits| waits.into_iter().max_by(f64::total_cmp)).collect();
    }

    /// The share of the process's CPU time that its busiest thread had; none if it had none.
    pub(crate) fn busiest_share(&self) -> Option<f64> {
        let all: f64 = self.server_threads.iter().sum();
        (all > 0.0).then(|| self.server_threads.iter().copied().fold(0.0, f64::max) / all)
    }
}

/// The increase between two looks for each thread that lives; one that was not there before began at 0.
fn thread_deltas(before: &BTreeMap<u32, f64>, after: &BTreeMap<u32, f64>) -> Vec<f64> {
    after.iter().map(|(thread, time)| time - before.get(thread).copied().unwrap_or(0.0)).collect()
}

fn start(lab: &Lab, invocation: &Invocation, place: Place<'_>, seen: &mut Seen) -> Result<Process, Error> {
    seen.commands.push(invocation.to_string());
    invocation.start(place, &lab.interrupt)
}

/// Has a probe-worker make so many calls.
pub(crate) fn probe(process: &mut Process, count: u32) -> Result<probe::Report, Error> {
    process.say(&count.to_string())?;
    answer(process, count)
}

/// The report of a probe that was told to make so many calls.
fn answer(process: &mut Process, count: u32) -> Result<probe::Report, Error> {
    let length = Duration::from_millis(PROBE_EVERY_MS) * count;
    let text = process.wait_for_line("probed ", length + probe::TIMEOUT + END_TIMEOUT)?;
    let report: probe::Report = parse(&text, "a probe-worker")?;
    if report.ms.len() == count as usize {
        return Ok(report);
    }
    Err(Error::run(format!("a probe-worker told of {} calls, not of {count}", report.ms.len())))
}

fn parse<T: DeserializeOwned>(text: &str, who: &str) -> Result<T, Error> {
    serde_json::from_str(text.trim())
        .map_err(|e| Error::run(format!("{who}: what it printed is no such JSON: {e}")))
}

/// Adds what another process of the group has seen at the same time.
fn merge(all: &mut load::Report, one: load::Report) {
    all.seconds = all.seconds.max(one.seconds);
    all.sent += one.sent;
    all.received += one.received;
    all.hosts.extend(one.hosts);
    all.call_mbit.extend(one.call_mbit);
    all.stalls_ms.extend(one.stalls_ms);
    all.failures += one.failures;
    all.busy += one.busy;
    all.first_failure = all.first_failure.take().or(one.first_failure);
}

/// So many hosts in at most so many parts, as even as they can be.
fn split(hosts: u32, parts: u32) -> Vec<u32> {
    let parts = parts.min(hosts);
    (0..parts).map(|i| hosts / parts + u32::from(i < hosts % parts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_spread_evenly_over_processes() {
        assert_eq!(split(250, 4), [63, 63, 62, 62]);
        assert_eq!(split(1, 4), [1]);
        assert_eq!(split(0, 4), [0; 0]);
    }

    #[test]
    fn the_busiest_thread_is_that_of_the_window() {
        let before = BTreeMap::from([(1, 50.0), (2, 1.0)]);
        let after = BTreeMap::from([(1, 51.0), (2, 3.0), (3, 1.0)]);
        let seen = Seen { server_threads: thread_deltas(&before, &after), ..Seen::default() };
        assert_eq!(seen.busiest_share(), Some(0.5));
        assert_eq!(Seen::default().busiest_share(), None);
    }

    #[test]
    fn processes_of_a_group_add_up() {
        let one = load::Report {
            seconds: 3.0,
            sent: 10,
            received: 1,
            hosts: vec![11],
            call_mbit: vec![5.0],
            stalls_ms: vec![1.0, 2.0],
            failures: 1,
            first_failure: Some("busy".into()),
            busy: 3,
        };
        let mut all = load::Report::default();
        merge(&mut all, one.clone());
        merge(&mut all, one);
        assert_eq!((all.sent, all.received, all.failures, all.hosts.len()), (20, 2, 2, 2));
        assert_eq!(all.busy, 6);
        assert_eq!((all.stalls_ms.len(), all.seconds, all.first_failure.as_deref()), (4, 3.0, Some("busy")));
    }
}
