//! `afar top`: who does what at servers right now, in the terminal. It reads the JSON that they have beside their metrics
//! (`afs_server::top`) again and again; what is computed from it is in `top/model.rs`, what is drawn in `top/screen.rs`. What the client of this
//! machine has that no server has yet is in `top/here.rs`.

mod here;
mod model;
mod sample;
mod screen;

use crate::{arguments, output};
use clap::Parser;
use model::Model;
use ratatui::crossterm::event;
use screen::{Next, Screen};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The time within which a key, or a new look at a server, is seen on the screen.
const SOON: Duration = Duration::from_millis(100);

#[derive(Parser)]
#[command(
    name = "afar top",
    about = "Shows what servers are doing now, by volume, user, client and procedure, and which calls wait",
    after_help = "Keys: 1 to 5 or Tab choose the table; c, b, l, f, n sort by calls, bytes, latency, failures, name; the \
                  arrow keys scroll; p pauses; q quits."
)]
struct Cli {
    /// Servers, as HOST or HOST:PORT; PORT is that of the server's metrics.bind, by default 9160
    #[arg(value_name = "HOST", default_value = "127.0.0.1")]
    servers: Vec<String>,
    /// Seconds between two measurements; rates are means over this time
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Prints everything once, for scripts; the default without a terminal
    #[arg(long)]
    once: bool,
    /// Maximum number of rows of each table to print
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

/// The time for which the client of this machine is waited for, where everything is printed once.
const CLIENT_WITHIN: Duration = Duration::from_secs(2);

/// Shows it until q is pressed.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    arguments::run("afar top", args, show)
}

fn show(cli: Cli) -> Result<(), String> {
    let interval = Duration::from_secs(cli.interval);
    let mut model = Model::new(&cli.servers);
    let looks = look(&cli.servers, interval);
    let here = here::look(interval);
    if !cli.once && std::io::stdout().is_terminal() && std::io::stdin().is_terminal() {
        return interactive(model, &looks, &here);
    }
    // Figures are of the time between two looks.
    while !model.is_measured() {
        let (server, at, sample) =
            looks.recv().map_err(|_| "the threads that ask the servers have ended".to_owned())?;
        if let (Err(error), [_]) = (&sample, &cli.servers[..]) {
            return Err(error.clone());
        }
        model.note(server, at, sample);
    }
    model.note_here(here.recv_timeout(CLIENT_WITHIN).ok().flatten());
    output::write(&model.text(cli.rows)).map_err(|error| error.to_string())
}

/// A look at a server: which, when, what it said.
type Look = (usize, Instant, Result<sample::Sample, String>);

/// Looks at each of them again and again, for as long as somebody listens.
fn look(servers: &[String], interval: Duration) -> Receiver<Look> {
    let (found, looks) = channel();
    for (index, server) in servers.iter().enumerate() {
        let (found, server) = (found.clone(), server.clone());
        std::thread::spawn(move || {
            loop {
                let sample = sample::fetch(&server);
                if found.send((index, now(), sample)).is_err() {
                    return;
                }
                std::thread::sleep(interval);
            }
        });
    }
    looks
}

fn now() -> Instant {
    Instant::now()
}

fn interactive(
    mut model: Model,
    looks: &Receiver<Look>,
    here: &Receiver<Option<String>>,
) -> Result<(), String> {
    let failed =
        |error: std::io::Error| format!("cannot use the terminal: {error}; --once prints the tables instead");
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut screen = Screen::default();
    let result = loop {
        for (server, at, sample) in looks.try_iter() {
            if !screen.is_paused() {
                model.note(server, at, sample);
            }
        }
        if let Some(line) = here.try_iter().last().filter(|_| !screen.is_paused()) {
            model.note_here(line);
        }
        if let Err(error) = terminal.draw(|frame| screen.draw(frame, &model)) {
            break Err(error);
        }
        let event =
            event::poll(SOON).and_then(|is_there| if is_there { event::read().map(Some) } else { Ok(None) });
        match event {
            Ok(Some(event)) if screen.handle(&event) == Next::End => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result.map_err(failed)
}
