//! Links that outlive the command that made them: each is a process `linkem serve` that listens on a Unix
//! socket in the state directory. A request is one JSON line, and so is the answer.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use linkem::{Builder, Counters, Termination};
use serde::{Deserialize, Serialize};

use crate::{Ends, Failure, remove_namespace};

/// Longest request taken, far above all options at once.
const REQUEST_MAX: u64 = 1 << 16;
/// A client that is silent for so long is given up, and so is a daemon that does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The line that the daemon prints once the link carries packets.
const READY: &str = "ready";

#[derive(Serialize, Deserialize)]
enum Request {
    Stat,
    Set(Vec<(String, String)>),
    Down,
}

type Answer = Result<Counters, String>;

impl Ends {
    fn socket(&self) -> PathBuf {
        self.state_dir.join(format!("{}+{}.sock", self.a, self.b))
    }

    fn log(&self) -> PathBuf {
        self.state_dir.join(format!("{}+{}.log", self.a, self.b))
    }
}

/// Starts a daemon with the options of this very command line and waits until its link is there. Returns its
/// process id.
pub(crate) fn up(ends: &Ends) -> Result<u32, Failure> {
    fs::create_dir_all(&ends.state_dir).map_err(|e| format!("{}: {e}", ends.state_dir.display()))?;
    let log = ends.log();
    let log_file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    // The first argument is "up"; nothing can come before it.
    let mut child = Command::new(std::env::current_exe()?)
        .arg("serve")
        .args(std::env::args_os().skip(2))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(child.id());
    }
    child.wait()?;
    let text = fs::read_to_string(&log).unwrap_or_default();
    Err(text.trim_end().trim_start_matches("linkem: ").to_string().into())
}

/// The counters so far.
pub(crate) fn stat(ends: &Ends) -> Result<Counters, Failure> {
    ask(ends, &Request::Stat)
}

/// Changes link options; returns the counters after that.
pub(crate) fn set(ends: &Ends, settings: Vec<(String, String)>) -> Result<Counters, Failure> {
    ask(ends, &Request::Set(settings))
}

/// Ends the link; None if its daemon had died and only namespaces were left.
pub(crate) fn down(ends: &Ends) -> Result<Option<Counters>, Failure> {
    match ask(ends, &Request::Down) {
        Ok(counters) => Ok(Some(counters)),
        Err(failure) => {
            let _ = fs::remove_file(ends.socket());
            let removed = [remove_namespace(&ends.a)?, remove_namespace(&ends.b)?];
            if removed.contains(&true) { Ok(None) } else { Err(failure) }
        }
    }
}

fn ask(ends: &Ends, request: &Request) -> Result<Counters, Failure> {
    let path = ends.socket();
    let mut stream = UnixStream::connect(&path)
        .map_err(|e| format!("no link between {} and {} ({}: {e})", ends.a, ends.b, path.display()))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let answer: Answer = serde_json::from_str(&text).map_err(|e| format!("the emulator's answer: {e}"))?;
    Ok(answer?)
}

enum Event {
    Asked(Request, UnixStream),
    Signal,
}

/// The daemon: keeps the link until told to end it, by request or by signal.
pub(crate) fn serve(ends: &Ends, builder: Builder) -> Result<(), Failure> {
    let termination = Termination::block()?;
    let link = builder.names(&ends.a, &ends.b).start()?;
    let path = ends.socket();
    // The namespaces are ours, so a socket of that name is of a dead daemon.
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(format!("{}: {e}", path.display()).into()),
        _ => (),
    }
    let listener = UnixListener::bind(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (events, happened) = channel();
    let signals = events.clone();
    std::thread::spawn(move || {
        termination.wait();
        let _ = signals.send(Event::Signal);
    });
    std::thread::spawn(move || accept(&listener, &events));
    println!("{READY}");

    while let Ok(event) = happened.recv() {
        match event {
            Event::Asked(Request::Stat, stream) => reply(stream, &Ok(link.counters())),
            Event::Asked(Request::Set(settings), stream) => {
                let mut applied = Ok(());
                let changed = link.set_each(|options| {
                    applied = options.apply(settings.iter().map(|(n, v)| (n.as_str(), v.as_str())));
                });
                let answer = applied.and(changed).map(|()| link.counters()).map_err(|e| e.to_string());
                reply(stream, &answer);
            }
            Event::Asked(Request::Down, stream) => {
                let counters = link.stop();
                let _ = fs::remove_file(&path);
                reply(stream, &Ok(counters));
                return Ok(());
            }
            Event::Signal => break,
        }
    }
    let counters = link.stop();
    let _ = fs::remove_file(&path);
    eprintln!("{}", serde_json::to_string(&counters)?);
    Ok(())
}

/// Reads requests, one for each connection, until the main thread ends.
fn accept(listener: &UnixListener, events: &Sender<Event>) {
    for stream in listener.incoming().flatten() {
        let mut line = String::new();
        let read = stream
            .set_read_timeout(Some(TIMEOUT))
            .and_then(|()| BufReader::new((&stream).take(REQUEST_MAX)).read_line(&mut line));
        match serde_json::from_str(&line) {
            Ok(request) if read.is_ok() => {
                if events.send(Event::Asked(request, stream)).is_err() {
                    return;
                }
            }
            Ok(_) => (),
            Err(e) => reply(stream, &Err(format!("not a request: {e}"))),
        }
    }
}

/// Sends an answer. The asker may have gone; then nobody needs it.
fn reply(mut stream: UnixStream, answer: &Answer) {
    if let Ok(text) = serde_json::to_string(answer) {
        let _ = stream.write_all(text.as_bytes());
    }
}
