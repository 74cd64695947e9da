//! The command `linkem`: emulated WAN links from the shell. Reads the command line and prints; links are the
//! library's, those that outlive a command are the daemon module's.

#![forbid(unsafe_code)]

mod args;
mod daemon;
mod datagrams;
mod validate;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use args::{BuilderArgs, Settings};
use clap::{Parser, Subcommand};
use linkem::{Counters, Termination};

/// The error that ends a command: printed to standard error as one line.
type Failure = Box<dyn std::error::Error>;

/// The time within which a command under `linkem run` must end by itself after a signal.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two looks of `linkem run` at whether its command has ended.
const END_POLL: Duration = Duration::from_millis(20);

/// A WAN link between two network namespaces, emulated in user space. Needs root.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Makes namespaces A and B joined by a link that stays until `down`; prints the emulator's process id
    Up {
        #[command(flatten)]
        ends: Ends,
        #[command(flatten)]
        link: BuilderArgs,
    },
    /// Prints the counters of a link so far, as one JSON line
    Stat {
        #[command(flatten)]
        ends: Ends,
    },
    /// Changes options of a link while it runs; prints its counters at that time
    Set {
        #[command(flatten)]
        ends: Ends,
        #[command(flatten)]
        settings: Settings,
    },
    /// Ends a link, removes both namespaces and prints the final counters
    Down {
        #[command(flatten)]
        ends: Ends,
    },
    /// Runs a command at end A of a link of its own, then prints the counters to standard error.
    /// The namespaces are in its environment as LINKEM_A and LINKEM_B
    Run {
        #[command(flatten)]
        link: BuilderArgs,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Measures what the links of this machine are worth, and prints a table row for each run
    Validate {
        #[command(subcommand)]
        what: validate::What,
    },
    /// The process behind a link made by `up`
    #[command(hide = true)]
    Serve {
        #[command(flatten)]
        ends: Ends,
        #[command(flatten)]
        link: BuilderArgs,
    },
}

#[derive(clap::Args)]
struct Ends {
    /// Namespace of end A, 10.99.0.1
    a: String,
    /// Namespace of end B, 10.99.0.2
    b: String,
    /// Where the sockets and logs of running links are
    #[arg(long, value_name = "DIR", default_value = "/run/linkem")]
    state_dir: PathBuf,
}

fn main() -> ExitCode {
    match act(Cli::parse().verb) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("linkem: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn act(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Up { ends, link: _ } => println!("{}", daemon::up(&ends)?),
        Verb::Stat { ends } => print_counters(&daemon::stat(&ends)?)?,
        Verb::Set { ends, settings } => print_counters(&daemon::set(&ends, settings.pairs)?)?,
        Verb::Down { ends } => match daemon::down(&ends)? {
            Some(counters) => print_counters(&counters)?,
            None => eprintln!("linkem: the emulator had ended already; the namespaces are removed"),
        },
        Verb::Run { link, command } => return run(&link, &command),
        Verb::Validate { what } => validate::validate(&what)?,
        Verb::Serve { ends, link } => daemon::serve(&ends, link.builder()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_counters(counters: &Counters) -> Result<(), Failure> {
    println!("{}", serde_json::to_string(counters)?);
    Ok(())
}

/// Runs the command to its end. A signal for us is (as with Ctrl-C) mostly one for the command too, so that
/// gets some time before it is killed.
fn run(link: &BuilderArgs, command: &[OsString]) -> Result<ExitCode, Failure> {
    let termination = Termination::block()?;
    let link = link.builder()?.start()?;
    let mut child = link
        .a()
        .command(&command[0])
        .args(&command[1..])
        .env("LINKEM_A", link.a().name())
        .env("LINKEM_B", link.b().name())
        .spawn()
        .map_err(|e| format!("starting {}: {e}", command[0].display()))?;
    let (asked, asked_to_end) = channel();
    std::thread::spawn(move || {
        termination.wait();
        let _ = asked.send(());
    });
    let mut kill_at = None;
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        match asked_to_end.recv_timeout(END_POLL) {
            Ok(()) => kill_at = Some(Instant::now() + END_TIMEOUT),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(END_POLL),
        }
        if kill_at.is_some_and(|at| Instant::now() > at) {
            child.kill()?;
        }
    };
    let counters = link.stop();
    eprintln!("{}", serde_json::to_string(&counters)?);
    if let Err(invalid) = counters.check() {
        eprintln!("linkem: {invalid}");
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Removes a namespace; false if there was none of that name.
fn remove_namespace(name: &str) -> Result<bool, Failure> {
    let output = Command::new("ip").args(["netns", "del", name]).output()?;
    Ok(output.status.success())
}
