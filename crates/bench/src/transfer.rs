//! One run of a server and a client beside each other, with the CPU time of both. Knows how rxperf and iperf3 are called and what they print; not what is compared.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::lab::Lab;
use crate::network::{Ends, socket_drops};
use crate::process::Process;
use crate::quiet;
use crate::record::Run;
use crate::tools::{Invocation, Place, Stack, Tools};

/// The time within which a server must listen.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a client may take beyond the time it was told.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// A port for iperf3 where nobody else listens either.
const IPERF_PORT_LINK: u16 = 5201;
const TLS_PORT_LINK: u16 = 4433;
/// The time in which CPU time is taken while a file is fetched by TLS, which takes longer.
const TLS_WINDOW: Window = Window::new(1, 2);

/// The time in which a run counts: so long, after a start that does not. Whole seconds, as the programs take them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) omit: Duration,
    pub(crate) measure: Duration,
}

impl Window {
    pub(crate) const fn new(omit_s: u64, measure_s: u64) -> Window {
        Window { omit: Duration::from_secs(omit_s), measure: Duration::from_secs(measure_s) }
    }

    /// As rxperf's options.
    pub(crate) fn rxperf(self) -> [String; 4] {
        let [measure, omit] = [self.measure, self.omit].map(|t| t.as_secs().to_string());
        ["--seconds".into(), measure, "--omit".into(), omit]
    }

    /// As iperf3's options.
    fn iperf3(self) -> [String; 4] {
        let [measure, omit] = [self.measure, self.omit].map(|t| t.as_secs().to_string());
        ["-t".into(), measure, "-O".into(), omit]
    }
}

/// Makes one rxperf run. The client's arguments must not name the server; `window` is what they say.
pub(crate) fn rxperf(
    lab: &Lab,
    ends: Ends<'_>,
    server: &dyn Fn(&Tools, u16) -> Invocation,
    client: &Invocation,
    window: Window,
) -> Result<Run, Error> {
    let invocation = server(&lab.tools, ends.port);
    let mut serving = invocation.start(ends.server, &lab.interrupt)?;
    let ready = serving.wait_for_line("ready ", READY_TIMEOUT)?;
    let client = client.clone().and(["-s", &ends.host.to_string(), "-p", &ready]);
    let drops_before = socket_drops(ends)?;
    let calling = client.start(ends.client, &lab.interrupt)?;
    let watched = watch(&serving, calling, window, &lab.interrupt)?;
    let drops = socket_drops(ends)?.saturating_sub(drops_before);

    let report: Value = serde_json::from_str(watched.output.trim())
        .map_err(|e| Error::run(format!("{client}: what it printed is no JSON: {e}")))?;
    let number = |name: &str| {
        report[name].as_f64().ok_or_else(|| Error::run(format!("{client}: its JSON has no number '{name}'")))
    };
    let (bytes, seconds, calls) = (number("bytes")?, number("seconds")?, number("calls")?);
    let mut run =
        run_of(&[invocation.to_string(), client.to_string()], bytes * 8.0 / seconds.max(1e-9) / 1e6);
    if calls > 0.0 {
        run.figures.insert("calls/s".into(), calls / seconds.max(1e-9));
    }
    watched.add_cpu(&mut run, bytes, calls, seconds);
    run.figures.insert("dropped at sockets, packets".into(), drops as f64);
    if let Some(resent) = report["retransmitted_packets"].as_f64() {
        run.figures.insert("sent again, packets".into(), resent);
    }
    run.report = report;
    Ok(run)
}

/// Makes one iperf3 run over TCP. `arguments` are the client's, beyond address and times.
pub(crate) fn iperf3(lab: &Lab, ends: Ends<'_>, arguments: &[&str], window: Window) -> Result<Run, Error> {
    let port = match ends.client {
        Place::Here => free_tcp_port()?,
        Place::In(_) => IPERF_PORT_LINK,
    };
    let server = lab.tools.iperf3().and(["-s", "-1", "--forceflush", "-p", &port.to_string()]);
    let mut serving = server.start(ends.server, &lab.interrupt)?;
    serving.wait_for_line("Server listening", READY_TIMEOUT)?;
    let client = lab.tools.iperf3().and(["-c", &ends.host.to_string(), "-p", &port.to_string(), "-J"]);
    let client = client.and(arguments).and(window.iperf3());
    let calling = client.start(ends.client, &lab.interrupt)?;
    let watched = watch(&serving, calling, window, &lab.interrupt)?;
    let report: Value = serde_json::from_str(&watched.output)
        .map_err(|e| Error::run(format!("{client}: what it printed is no JSON: {e}")))?;
    if let Some(problem) = report["error"].as_str() {
        return Err(Error::run(format!("{client}: {problem}")));
    }
    let end = &report["end"];
    let received = &end["sum_received"];
    let (Some(bytes), Some(seconds)) = (received["bytes"].as_f64(), received["seconds"].as_f64()) else {
        return Err(Error::run(format!("{client}: its JSON does not say what was received")));
    };
    let mut run = run_of(&[server.to_string(), client.to_string()], bytes * 8.0 / seconds.max(1e-9) / 1e6);
    watched.add_cpu(&mut run, bytes, 0.0, seconds);
    if let Some(resent) = end["sum_sent"]["retransmits"].as_f64() {
        run.figures.insert("sent again, packets".into(), resent);
    }
    run.report = serde_json::json!({ "sum_sent": end["sum_sent"], "sum_received": received });
    Ok(run)
}

/// Fetches a file of so many zeros by TLS 1.3, from a folder that has `cert.pem` and `key.pem`: by curl, from `openssl s_server`.
pub(crate) fn tls(lab: &Lab, ends: Ends<'_>, folder: &Path, bytes: u64) -> Result<Run, Error> {
    let failed = |e: std::io::Error| Error::setup(format!("a file of {bytes} zeros: {e}"));
    File::create(folder.join("zeros")).and_then(|file| file.set_len(bytes)).map_err(failed)?;
    let port = match ends.client {
        Place::Here => free_tcp_port()?,
        Place::In(_) => TLS_PORT_LINK,
    };
    let shell = Invocation::new(Path::new("sh"));
    let options = "-cert cert.pem -key key.pem -tls1_3 -WWW -accept";
    let server = format!("cd {} && exec openssl s_server {options} {port}", folder.display());
    let server = shell.and(["-c", &server]);
    let mut serving = server.start(ends.server, &lab.interrupt)?;
    serving.wait_for_line("ACCEPT", READY_TIMEOUT)?;
    let report = "%{size_download} %{time_starttransfer} %{time_total}";
    let url = format!("https://{}:{port}/zeros", ends.host);
    let client =
        Invocation::new(Path::new("curl")).and(["-sSk", "--tlsv1.3", "-o", "/dev/null", "-w", report, &url]);
    let calling = client.start(ends.client, &lab.interrupt)?;
    let watched = watch(&serving, calling, TLS_WINDOW, &lab.interrupt)?;
    let numbers: Vec<f64> = watched.output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[got, from, to] = &numbers[..] else {
        return Err(Error::run(format!("{client}: it printed '{}'", watched.output.trim())));
    };
    if got != bytes as f64 {
        return Err(Error::run(format!("{client}: it got {got} bytes of {bytes}")));
    }
    let mut run = run_of(&[server.to_string(), client.to_string()], got * 8.0 / (to - from) / 1e6);
    watched.add_cpu(&mut run, got, 0.0, to - from);
    Ok(run)
}

fn run_of(commands: &[String], mbit_per_s: f64) -> Run {
    let mut run = Run { is_valid: true, commands: commands.to_vec(), ..Run::default() };
    run.figures.insert("Mbit/s".into(), mbit_per_s);
    run
}

/// The values of a pair of processes.
struct Watched {
    output: String,
    /// CPU seconds per second within the window, if both lived that long.
    server_cpu: Option<f64>,
    client_cpu: Option<f64>,
}

impl Watched {
    /// The window's CPU time, by what was done in it.
    fn add_cpu(&self, run: &mut Run, bytes: f64, calls: f64, seconds: f64) {
        for (name, cpu) in [("server", self.server_cpu), ("client", self.client_cpu)] {
            let Some(cpu) = cpu else { continue };
            if bytes > 1e6 {
                run.figures.insert(format!("{name}, CPU s/GB"), cpu * seconds / (bytes / 1e9));
            } else if calls > 0.0 {
                run.figures.insert(format!("{name}, CPU µs/call"), cpu * seconds * 1e6 / calls);
            }
        }
    }
}

/// Waits for the client, taking both sides' CPU time at the edges of the window.
fn watch(server: &Process, client: Process, window: Window, interrupt: &Interrupt) -> Result<Watched, Error> {
    let start = Instant::now();
    let look = || (Instant::now(), server.cpu_seconds(), client.cpu_seconds());
    interrupt.sleep_until(start + window.omit)?;
    let from = look();
    // A little before the end, at which the client may be quick to go.
    interrupt
        .sleep_until(start + (window.omit + window.measure).saturating_sub(Duration::from_millis(100)))?;
    let to = look();
    let time = (to.0 - from.0).as_secs_f64().max(1e-9);
    let rate = |from: Option<f64>, to: Option<f64>| Some((to? - from?) / time);
    let (server_cpu, client_cpu) = (rate(from.1, to.1), rate(from.2, to.2));
    let output = client.finish(END_TIMEOUT)?;
    Ok(Watched { output, server_cpu, client_cpu })
}

fn free_tcp_port() -> Result<u16, Error> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|e| Error::setup(format!("finding a free TCP port: {e}")))
}

/// A server of this kind with these options.
pub(crate) fn server(who: Stack, options: &[&str]) -> impl Fn(&Tools, u16) -> Invocation {
    let options: Vec<String> = options.iter().map(|o| o.to_string()).collect();
    move |tools, port| tools.rxperf_server(who, port).and(&options)
}

/// Notes other builds that run now beside a run.
pub(crate) fn note_disturbance(run: &mut Run) {
    let builders = quiet::other_builders();
    if !builders.is_empty() {
        run.problems.push(format!("disturbed: {} ran beside it", builders.join(", ")));
    }
}
