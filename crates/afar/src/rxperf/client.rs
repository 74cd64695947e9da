//! The calling side of rxperf: makes the calls, counts, and reports.

use super::{Client, What};
use crate::output;
use crate::trace::TraceFile;
use ::rxperf::{MAGIC, Request, SERVICE, send_zeroes};
use bytes::Bytes;
use rx::{Call, CallError, Peer, PeerLimits};
use rx_proto::trace::Trace;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The sums over all calls.
#[derive(Default)]
struct Totals {
    bytes: AtomicU64,
    calls: AtomicU64,
    resent: AtomicU64,
    /// The calls that are through, and those under way, count; this ends the counting.
    is_over: AtomicBool,
    intervals: Mutex<Vec<Vec<(f64, u64)>>>,
    samples: Mutex<Vec<(f64, u64)>>,
    /// Smallest round trip seen, in nanoseconds; 0 before any.
    rtt: AtomicU64,
    /// True if the first call is still to be traced; and the trace, once there is one.
    wants_trace: AtomicBool,
    trace: Mutex<Option<Trace>>,
}

impl Totals {
    fn note_rtt(&self, call: &Call) {
        let Some((_, min)) = call.rtt() else { return };
        let nanos = u64::try_from(min.as_nanos()).unwrap_or(u64::MAX);
        let smaller = |old: u64| (old == 0 || nanos < old).then_some(nanos);
        let _ = self.rtt.fetch_update(Ordering::Relaxed, Ordering::Relaxed, smaller);
    }

    fn rtt_ms(&self) -> Option<f64> {
        let nanos = self.rtt.load(Ordering::Relaxed);
        (nanos > 0).then_some(nanos as f64 / 1e6)
    }
}

/// A call's own part of the totals.
struct Progress<'a> {
    totals: &'a Totals,
    started: Instant,
    every: Option<Duration>,
    counted: u64,
    resent: u64,
    noted: Vec<(f64, u64)>,
    next_note: Duration,
}

impl<'a> Progress<'a> {
    fn new(totals: &'a Totals, every: Option<Duration>) -> Self {
        Self {
            totals,
            started: Instant::now(),
            every,
            counted: 0,
            resent: 0,
            noted: Vec::new(),
            next_note: Duration::ZERO,
        }
    }

    /// The call has carried `bytes` so far.
    fn reach(&mut self, bytes: u64) {
        self.totals.bytes.fetch_add(bytes - self.counted, Ordering::Relaxed);
        self.counted = bytes;
        let Some(every) = self.every else { return };
        let elapsed = self.started.elapsed();
        if elapsed >= self.next_note {
            self.noted.push((elapsed.as_secs_f64() * 1e3, bytes));
            self.next_note = elapsed + every;
        }
    }

    /// Notes how many packets the call has sent again so far.
    fn note_resent(&mut self, resent: u64) {
        self.totals.resent.fetch_add(resent - self.resent, Ordering::Relaxed);
        self.resent = resent;
    }

    fn end(mut self, call: &Call) {
        self.totals.note_rtt(call);
        self.note_resent(call.stats().resent_packets);
        if self.every.is_some()
            && let Ok(mut all) = self.totals.intervals.lock()
        {
            all.push(self.noted);
        }
    }
}

/// Makes the calls and prints what came of them.
pub(super) async fn run(options: &Client) -> Result<ExitCode, String> {
    let server = resolve(&options.server, options.port)?;
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let local = SocketAddr::new(options.bind.unwrap_or(any), 0);
    let request = Arc::new(request(options)?);
    let endpoint = super::bind(local, &options.transport)?;
    let limits = PeerLimits { connections: options.parallel.div_ceil(4).max(1) };
    let caller = super::security::caller(&endpoint, options.transport.keys.as_deref(), options.class)?;
    let peer = endpoint.peer(server, SERVICE, limits, move || caller.security());
    let totals = Arc::new(Totals { wants_trace: options.trace.is_some().into(), ..Totals::default() });
    let plan = Arc::new(Plan {
        request,
        write_size: options.write_size,
        read_size: options.read_size,
        times: if options.seconds.is_some() { u64::MAX } else { options.times },
        pause: Duration::from_millis(options.pause),
        every: options.intervals.map(Duration::from_millis),
    });
    let mut workers = tokio::task::JoinSet::new();
    let started = Instant::now();
    for _ in 0..options.parallel.max(1) {
        workers.spawn(work(peer.clone(), Arc::clone(&plan), Arc::clone(&totals)));
    }
    let sampler = options
        .sample
        .map(|every| tokio::spawn(sample(Arc::clone(&totals), started, Duration::from_millis(every))));
    let mut measured = (started, 0, 0);
    let mut failure = None;
    if let Some(seconds) = options.seconds {
        let count = async {
            tokio::time::sleep(options.omit).await;
            let from =
                (Instant::now(), totals.bytes.load(Ordering::Relaxed), totals.calls.load(Ordering::Relaxed));
            tokio::time::sleep(seconds).await;
            from
        };
        tokio::select! {
            from = count => measured = from,
            failed = first_failure(&mut workers) => failure = Some(failed),
        }
    } else {
        while let Some(done) = workers.join_next().await {
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failure = Some(error.to_string()),
                Err(error) => failure = Some(error.to_string()),
            }
        }
    }
    let elapsed = measured.0.elapsed();
    let bytes = totals.bytes.load(Ordering::Relaxed) - measured.1;
    let calls = totals.calls.load(Ordering::Relaxed) - measured.2;
    totals.is_over.store(true, Ordering::Relaxed);
    if let Some(sampler) = sampler {
        sampler.abort();
    }
    workers.shutdown().await;
    if let Some(path) = &options.trace {
        save_trace(path, &totals)?;
    }
    if let Some(failure) = failure {
        return Err(format!("a call to {server} failed: {failure}"));
    }
    report(options, bytes, calls, elapsed, &totals)
}

/// Notes how many bytes all calls have carried, every so often.
async fn sample(totals: Arc<Totals>, started: Instant, every: Duration) {
    let mut at = started;
    loop {
        at += every;
        tokio::time::sleep_until(at.into()).await;
        let bytes = totals.bytes.load(Ordering::Relaxed);
        if let Ok(mut samples) = totals.samples.lock() {
            samples.push((started.elapsed().as_secs_f64() * 1e3, bytes));
        }
    }
}

/// The first worker that fails; waits for ever if none does.
async fn first_failure(workers: &mut tokio::task::JoinSet<Result<(), CallError>>) -> String {
    loop {
        match workers.join_next().await {
            Some(Ok(Err(error))) => return error.to_string(),
            Some(Err(error)) => return error.to_string(),
            Some(Ok(Ok(()))) => {}
            None => std::future::pending().await,
        }
    }
}

/// A call, and its trace if it is the first: kept even if the call is broken off, as a slow one may be.
struct Watched<'a> {
    call: &'a mut Call,
    totals: &'a Totals,
}

impl<'a> Watched<'a> {
    fn new(call: &'a mut Call, totals: &'a Totals) -> Result<Self, CallError> {
        if totals.wants_trace.swap(false, Ordering::Relaxed) {
            call.trace()?;
        }
        Ok(Self { call, totals })
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(trace) = self.call.take_trace()
            && let Ok(mut kept) = self.totals.trace.lock()
        {
            *kept = Some(trace);
        }
    }
}

struct Plan {
    request: Arc<Request>,
    write_size: u32,
    read_size: u32,
    times: u64,
    pause: Duration,
    every: Option<Duration>,
}

/// One of the callers at once.
async fn work(peer: Peer, plan: Arc<Plan>, totals: Arc<Totals>) -> Result<(), CallError> {
    for time in 0..plan.times {
        if totals.is_over.load(Ordering::Relaxed) {
            break;
        }
        if time > 0 && !plan.pause.is_zero() {
            tokio::time::sleep(plan.pause).await;
        }
        let mut call = peer.call().await?;
        let mut progress = Progress::new(&totals, plan.every);
        let watched = Watched::new(&mut call, &totals)?;
        let result = one_call(watched.call, &plan, &mut progress).await;
        drop(watched);
        progress.end(&call);
        result?;
        totals.calls.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

async fn one_call(call: &mut Call, plan: &Plan, progress: &mut Progress<'_>) -> Result<(), CallError> {
    let opening = plan.request.encode((plan.read_size, plan.write_size));
    let opening_len = opening.len() as u64;
    let (send, receive) = plan.request.bytes();
    call.send(Bytes::from(opening)).await?;
    let mut left = send;
    while left > 0 {
        let len = left.min(u64::from(plan.write_size));
        send_zeroes(call, len, plan.write_size).await?;
        left -= len;
        let stats = call.stats();
        progress.reach(stats.bytes_acked.saturating_sub(opening_len));
        progress.note_resent(stats.resent_packets);
        progress.totals.note_rtt(call);
    }
    call.finish()?;
    progress.totals.note_rtt(call);
    let mut measured_at = Instant::now();
    let mut got = 0;
    let mut tail = [0; 4];
    let end = receive + if plan.request.has_magic() { 4 } else { 0 };
    while let Some(bytes) = call.recv().await? {
        for (i, byte) in
            bytes.iter().enumerate().skip(receive.saturating_sub(got).min(bytes.len() as u64) as usize)
        {
            if let Some(place) = tail.get_mut((got + i as u64 - receive) as usize) {
                *place = *byte;
            }
        }
        got += bytes.len() as u64;
        progress.reach(send + got.min(receive));
        if measured_at.elapsed() > Duration::from_millis(100) {
            progress.totals.note_rtt(call);
            measured_at = Instant::now();
        }
    }
    progress.reach(send + got.min(receive));
    if got != end || (plan.request.has_magic() && tail != MAGIC.to_be_bytes()) {
        return Err(CallError::StreamEnded { peer: call.peer() });
    }
    Ok(())
}

fn request(options: &Client) -> Result<Request, String> {
    Ok(match options.command {
        What::Send => Request::Send(options.bytes),
        What::Recv => Request::Receive(options.bytes),
        What::Rpc => Request::Rpc { send: options.send, receive: options.receive },
        What::File => {
            let path = options.list.as_ref().ok_or("-c file needs a list of numbers: -f FILE")?;
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read the list {}: {error}", path.display()))?;
            let numbers: Result<Vec<u32>, _> = text
                .split(|c: char| c.is_whitespace() || c == ',')
                .filter(|w| !w.is_empty())
                .map(str::parse)
                .collect();
            Request::File(
                numbers.map_err(|error| {
                    format!("the list {} must contain only numbers: {error}", path.display())
                })?,
            )
        }
    })
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let mut all =
        (host, port).to_socket_addrs().map_err(|error| format!("cannot look up the host {host}: {error}"))?;
    let first = all.next().ok_or_else(|| format!("the host {host} has no address"))?;
    Ok(if first.is_ipv4() { first } else { all.find(SocketAddr::is_ipv4).unwrap_or(first) })
}

fn save_trace(path: &Path, totals: &Totals) -> Result<(), String> {
    let trace = totals.trace.lock().ok().and_then(|mut kept| kept.take());
    let trace = trace.ok_or("no call was made, so there is nothing to trace")?;
    let saved = TraceFile::from(&trace).save(path);
    saved.map_err(|error| format!("cannot write the trace {}: {error}", path.display()))
}

fn report(
    options: &Client,
    bytes: u64,
    calls: u64,
    elapsed: Duration,
    totals: &Totals,
) -> Result<ExitCode, String> {
    let seconds = elapsed.as_secs_f64();
    let mbit = bytes as f64 * 8.0 / 1e6 / seconds.max(1e-9);
    let text = if options.json {
        let resent = totals.resent.load(Ordering::Relaxed);
        let mut object = json!({
            "bytes": bytes,
            "seconds": seconds,
            "mbit_per_s": mbit,
            "calls": calls,
            "rtt_ms": totals.rtt_ms(),
            "retransmitted_packets": if options.command == What::Recv { Value::Null } else { json!(resent) },
        });
        if options.intervals.is_some()
            && let Ok(all) = totals.intervals.lock()
        {
            object["intervals"] = json!(*all);
        }
        if options.sample.is_some()
            && let Ok(all) = totals.samples.lock()
        {
            object["samples"] = json!(*all);
        }
        format!("{object}\n")
    } else {
        let name = match options.command {
            What::Send => "SEND",
            What::Recv => "RECV",
            What::Rpc => "RPC",
            What::File => "FILE",
        };
        format!(
            "{name}: threads\t{}, times\t{calls}, bytes\t{bytes}:\t{:>12} msec\t[{mbit:.2} Mbit/s]\n",
            options.parallel,
            elapsed.as_millis()
        )
    };
    Ok(output::print(&text))
}
