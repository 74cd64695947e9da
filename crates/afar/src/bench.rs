//! `afar bench`: one's own mounts and link, measured where they are: folders beside each other in turns, and a server that runs `rxperf server`. What is
//! done in a folder is in `bench/folder.rs`, what becomes of the figures in `bench/page.rs`. The experiments behind `make bench`, with links and
//! cells of their own and OpenAFS beside, are another program, in the source tree.

mod folder;
mod page;

use crate::{arguments, output};
use clap::Parser;
use folder::{Scratch, Size, WHATS};
use page::{Figures, Row};
use serde_json::Value;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Seconds of one transfer over the link that count, and those before that do not.
const LINK_SECONDS: &str = "5";
const LINK_OMIT: &str = "2";
/// More than a link carries in that time, and less than a call may have.
const LINK_BYTES: &str = "4000000000";

#[derive(Parser)]
#[command(name = "afar bench", about = "Measures your own mounts and network links, and compares them")]
#[command(
    after_help = "The command makes a folder afar-bench-NUMBER in each FOLDER, and removes it at the end (not after Ctrl-C). In an afar mount, it drops \
    files from the cache (fs flush) and reads them again cold. In other mounts it tries the same with the machine's own fs command. It measures the first FOLDER twice: \
    the difference is noise. To measure a link, run 'afar rxperf server -p 7009' at the other end; OpenAFS's rxperf works too."
)]
struct Cli {
    /// Folders to measure, such as one in an AFS cell and one on a local disk
    #[arg(value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// A host that runs 'rxperf server', with its port if that is not 7009
    #[arg(long, value_name = "HOST[:PORT]")]
    server: Option<String>,
    /// Size of the large file, in MB
    #[arg(long, value_name = "MB", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    size: u64,
    /// Number of small files, of 8,192 bytes each
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    files: u32,
    /// Number of times that each thing is measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Folder for afar-bench.json and afar-bench.html
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Prints the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let cli: Cli = match arguments::parse("afar bench", args) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let done = measure(&cli).and_then(|figures| {
        let files = figures.write(&cli.out)?;
        Ok((figures, files))
    });
    match done {
        Ok((figures, _)) if cli.json => output::finish("afar bench", output::write_json(&figures.json())),
        Ok((figures, files)) => output::print(&(figures.text() + &files)),
        Err(error) => {
            eprintln!("afar bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> Result<Figures, String> {
    if cli.folders.is_empty() && cli.server.is_none() {
        return Err("nothing to measure: name folders, or a host with --server (see --help)".to_owned());
    }
    let program =
        env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let size = Size { bytes: cli.size * 1_000_000, files: cli.files };
    let link = match &cli.server {
        Some(server) => measure_link(&program, server, cli.repeats)?,
        None => Vec::new(),
    };
    let mut rows = link;
    // The first once more, for the noise.
    let mut places: Vec<(String, &Path)> =
        cli.folders.iter().map(|folder| (folder.display().to_string(), folder.as_path())).collect();
    if let Some((name, folder)) = places.first().cloned() {
        places.push((format!("{name} again"), folder));
    }
    let mut scratches = Vec::new();
    for (name, folder) in &places {
        scratches.push((name, Scratch::new(folder, &program)?));
    }
    let mut values = vec![vec![Vec::new(); scratches.len()]; WHATS.len()];
    for repeat in 0..cli.repeats as usize {
        for turn in 0..scratches.len() {
            let index = (turn + repeat) % scratches.len();
            let (name, scratch) = &scratches[index];
            eprintln!("{} of {}: {name}", repeat + 1, cli.repeats);
            for (what, value) in scratch.measure(size)? {
                let row = WHATS.iter().position(|known| known.name == what.name);
                values[row.expect("it is one of the table")][index].push(value);
            }
        }
    }
    for (what, of_what) in WHATS.iter().zip(values) {
        for ((name, _), values) in scratches.iter().zip(of_what) {
            rows.extend(Row::of(what.name, what.unit, name, values));
        }
    }
    Ok(Figures { bytes: size.bytes, files: size.files, rows })
}

/// Measures the throughput of a call to a host and from it.
fn measure_link(program: &Path, server: &str, repeats: u32) -> Result<Vec<Row>, String> {
    let (host, port) = server.rsplit_once(':').unwrap_or((server, "7009"));
    let mut rows = Vec::new();
    let mut rtts = Vec::new();
    for (direction, what) in [("recv", "link, from the server"), ("send", "link, to the server")] {
        let mut rates = Vec::new();
        for _ in 0..repeats {
            let mut client = Command::new(program);
            client.args([
                "rxperf", "client", "-c", direction, "-b", LINK_BYTES, "--json", "-s", host, "-p", port,
            ]);
            client.args(["--seconds", LINK_SECONDS, "--omit", LINK_OMIT]);
            let output = client.output().map_err(|error| format!("rxperf: {error}"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!(
                    "the link to {host}: {} (is 'afar rxperf server -p {port}' running there?)",
                    said.trim()
                ));
            }
            let report: Value = serde_json::from_slice(&output.stdout)
                .map_err(|error| format!("rxperf printed no JSON: {error}"))?;
            rates.extend(report["mbit_per_s"].as_f64());
            rtts.extend(report["rtt_ms"].as_f64());
        }
        rows.extend(Row::of(what, "Mbit/s", host, rates));
    }
    rows.extend(Row::of("link, round trip", "ms", host, rtts));
    Ok(rows)
}
