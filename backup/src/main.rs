//! `afar-backup`: volumes of an AFS cell in a repository of restic's format. This file has its command line.
//!
//! A backup is a dump of a volume, which servers of afar and of OpenAFS give alike, saved file by file with the crate `rustic_core`, so that
//! afar-backup and restic read it. docs/backup.md is for administrators.
//!
//! # What to open for a change
//!
//! - How a volume is backed up, and when only its changes are: `src/run.rs`, `src/state.rs`; several at once: `src/jobs.rs`.
//! - What of a vnode a repository has: `src/node.rs`, `src/acl.rs`.
//! - What rustic is given to read, and how failures are found that it passes over: `src/source.rs`, with `src/spool.rs` for what comes in a
//!   dump and `src/known.rs` for what the last backup has.
//! - The repository and its password: `src/repository.rs`; one in a bucket of S3: `src/bucket.rs`.
//! - The cell and its servers: `src/cell.rs`; its databases: `src/databases.rs`.
//! - Restores: `src/restore.rs` into a folder, `src/for_user.rs` what a user may read, by `src/rights.rs`; `src/to_volume.rs` into a volume.
//! - Lists, differences, checks, and what is forgotten: `src/list.rs`, `src/upkeep.rs`, `src/lock.rs`.
//! - Progress bars, and what rustic warns of: `src/progress.rs`, `src/warnings.rs`.

mod acl;
#[cfg(feature = "remote")]
mod bucket;
mod cell;
mod databases;
mod for_user;
mod jobs;
mod known;
mod list;
mod lock;
mod node;
mod progress;
mod repository;
mod restore;
mod rights;
mod run;
mod source;
mod spool;
mod state;
mod to_volume;
mod upkeep;
mod warnings;

use cell::Cell;
use clap::{Args, Parser, Subcommand};
use progress::Bars;
use repository::Place;
use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// Backs up volumes of an AFS cell into an encrypted, deduplicated repository of restic's format, and restores them
#[derive(Parser)]
#[command(name = "afar-backup", version)]
struct Arguments {
    #[command(flatten)]
    repository: RepositoryOptions,
    #[command(subcommand)]
    work: Work,
}

#[derive(Args)]
struct RepositoryOptions {
    /// The repository: a folder, or opendal:s3 for a bucket of S3
    #[arg(long, value_name = "DIR")]
    repo: String,
    /// A file with the repository's password in its first line, which nobody else may read
    #[arg(long, value_name = "FILE")]
    password_file: PathBuf,
    /// A setting of S3: bucket=, endpoint=, region= and, for a part of the bucket, root=
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = setting)]
    options: Vec<(String, String)>,
    /// A folder that keeps what is read often of a repository far away
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

#[derive(Args)]
struct CellOptions {
    /// The servers' configuration folder, which has the cell's key
    #[arg(long, value_name = "DIR", default_value = "/etc/openafs/server")]
    config: PathBuf,
}

#[derive(Subcommand)]
enum Work {
    /// Makes a new repository
    Init,
    /// Backs up volumes
    Run {
        #[command(flatten)]
        cell: CellOptions,
        /// The volumes, by name or number; '*' in a name stands for any text
        #[arg(required_unless_present = "databases")]
        volumes: Vec<String>,
        /// Backs up the cell's databases too, before the volumes
        #[arg(long)]
        databases: bool,
        /// With --databases, saves the cell's keys too: whoever can read the repository then has the cell
        #[arg(long, requires = "databases")]
        keys: bool,
        /// The program afar, for --databases
        #[arg(long, value_name = "FILE", default_value = "afar")]
        afar: PathBuf,
        /// Reads all of the volumes, and takes nothing from the last backup
        #[arg(long)]
        full: bool,
        /// A folder with room for the changed files of the volumes that are backed up at once
        #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
        spool: PathBuf,
        /// The volumes that are backed up at once
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
        jobs: u32,
        /// A file for node_exporter's textfile collector, with the time of each volume's last whole backup
        #[arg(long, value_name = "FILE")]
        metrics: Option<PathBuf>,
    },
    /// Lists backups
    List {
        /// Only those of this volume
        volume: Option<String>,
        /// Only those that have this file or folder, with its size and date
        #[arg(long, value_parser = list::path)]
        path: Option<PathBuf>,
    },
    /// Shows what differs between two backups
    Diff {
        /// The earlier one: the beginning of its id
        earlier: String,
        /// The later one
        later: String,
        /// Only what is at this path within the volume, and below
        #[arg(long, value_parser = list::path)]
        path: Option<PathBuf>,
    },
    /// Restores a backup into a folder, or into a volume
    Restore {
        #[command(flatten)]
        cell: CellOptions,
        /// The beginning of the backup's id, or VOLUME for its latest one, or VOLUME@TIME for the latest one up to a time; :databases in
        /// place of VOLUME for the cell's databases
        backup: String,
        /// A folder, in which a folder of the volume's name is made
        #[arg(long, value_name = "DIR", required_unless_present = "volume", conflicts_with_all = ["volume", "server", "partition", "overwrite"])]
        to: Option<PathBuf>,
        /// Only what is at this path within the volume, and below
        #[arg(long, requires = "to", value_parser = list::path)]
        path: Option<PathBuf>,
        /// Only what this user may read, by the backup's access lists and the groups of now; without owners, set-uid bits and access lists
        #[arg(long = "for", value_name = "USER", requires = "to")]
        user: Option<String>,
        /// A volume of this name
        #[arg(long, requires = "server", requires = "partition")]
        volume: Option<String>,
        /// The volume's server
        #[arg(long)]
        server: Option<std::net::Ipv4Addr>,
        /// The volume's partition on that server
        #[arg(long)]
        partition: Option<String>,
        /// Replaces the contents of a volume that is there
        #[arg(long)]
        overwrite: bool,
    },
    /// Reads everything in the repository and checks it
    Verify,
    /// Forgets old backups, and removes what no other backup needs
    Prune(upkeep::Keep),
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    let (arguments, bars) = (Arguments::parse(), Bars::default());
    warnings::show(&bars);
    match work(arguments, bars) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("afar-backup: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Does what was asked for. Says whether all of it succeeded; what did not is told.
fn work(Arguments { repository, work }: Arguments, bars: Bars) -> Result<bool, String> {
    let RepositoryOptions { repo, password_file, options, cache } = repository;
    let place =
        Place { repository: repo, password_file, options: options.into_iter().collect(), cache, bars };
    match work {
        Work::Init => {
            place.init()?;
            println!("made the repository {}: without its password, nobody can read it", place.repository);
        }
        Work::Run {
            cell: CellOptions { config },
            volumes,
            databases,
            keys,
            afar,
            full,
            spool,
            jobs,
            metrics,
        } => {
            let cell = Cell::open(&config)?;
            let store = place.open()?;
            let _lock = lock::shared(&place, &store)?;
            let (mut all_good, mut asked) = (true, Vec::new());
            for pattern in &volumes {
                match cell.matching(pattern) {
                    Ok(names) => asked.extend(names),
                    Err(why) => all_good &= jobs::tell(pattern, &Err(why)),
                }
            }
            if databases {
                let saved = databases::back_up(&cell, &store, (&afar, &config, &spool), (keys, now()));
                all_good &= jobs::tell(databases::LABEL, &saved);
            }
            let mut seen = HashSet::new();
            asked.retain(|volume| seen.insert(volume.clone()));
            let snapshots = store.snapshots()?;
            let (cell, place, store) = (&cell, &place, &store);
            let run = run::Run { cell, place, store, snapshots, spool: &spool, is_full: full };
            let (mut told, are_good) = jobs::back_up(&run, &asked, jobs as usize, now);
            if let Some(file) = metrics {
                told.extend(databases.then(|| databases::LABEL.to_owned()));
                run::write_metrics(store, &cell.name, &told, &file)?;
            }
            return Ok(all_good && are_good);
        }
        Work::List { volume, path } => {
            list::list(&place.open()?, volume.as_deref(), &path.unwrap_or_default())?;
        }
        Work::Diff { earlier, later, path } => {
            list::diff(&place.open()?, &earlier, &later, &path.unwrap_or_default())?;
        }
        Work::Restore { cell, backup, to, path, user, volume, server, partition, overwrite } => {
            let path = path.unwrap_or_default();
            let store = place.open()?;
            let snapshot = list::find(&store, &backup)?;
            match (to, volume, server, partition) {
                (Some(folder), ..) => match user {
                    None => restore::to_folder(&store, &snapshot, &path, &folder)?,
                    Some(user) => {
                        let cell = Cell::open(&cell.config)?;
                        let user = for_user::of_backup(&cell, &snapshot, &user)?;
                        for_user::to_folder(&store, &snapshot, &path, (&user, &folder, &place.bars))?;
                    }
                },
                (None, Some(name), Some(server), Some(partition)) => {
                    let cell = Cell::open(&cell.config)?;
                    let partition = afs_wire::ids::PartitionId::parse(&partition)
                        .ok_or_else(|| format!("no partition is called {partition}"))?;
                    let target = cell::Target { name: &name, server, partition };
                    to_volume::restore(&cell, &store, &snapshot, &target, (overwrite, now()))?;
                }
                _ => return Err("give --to DIR, or --volume, --server and --partition".to_owned()),
            }
        }
        Work::Verify => return upkeep::verify(&place.open()?),
        Work::Prune(keep) => upkeep::prune(&place, &place.open()?, &keep)?,
    }
    Ok(true)
}

/// The time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
