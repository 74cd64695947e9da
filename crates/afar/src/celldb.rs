//! `afar celldb copy`: the cell's databases from the file of a server into etcd, or back.

use crate::database_files::{configuration, fill, place_of, store_of, wait};
use crate::{arguments, output};
use afs_celldb::devices::Devices;
use afs_celldb::ptdb::Ptdb;
use afs_celldb::vldb::Vldb;
use afs_celldb::{Existing, FillError, rows_of};
use clap::{Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "afar celldb", about = "Copies the cell's databases between a file and etcd")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Copies the databases, that of devices too, from a file to etcd, or back. Stop the cell's database servers first
    Copy {
        /// The server's configuration file; its key databases.etcd says where etcd is
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// The destination
        #[arg(long, value_enum)]
        to: Place,
        /// Overwrites the databases at the destination
        #[arg(long)]
        replace: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    Etcd,
    File,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    crate::private::begin();
    arguments::run("afar celldb", args, |cli: Cli| copy(&cli))
}

fn copy(cli: &Cli) -> Result<(), String> {
    let Verb::Copy { config, to, replace } = &cli.verb;
    let of_etcd = configuration(Some(config), None)?;
    if of_etcd.databases.etcd.is_empty() {
        return Err(format!("{} does not say where etcd is: set databases.etcd", config.display()));
    }
    let mut of_file = of_etcd.clone();
    of_file.databases.etcd.clear();
    let file = of_file.server.state.join("databases/cell.redb");
    if *to == Place::Etcd && !file.exists() {
        return Err(format!("nothing to copy: there is no {}", file.display()));
    }
    let (from, to) = match to {
        Place::Etcd => (&of_file, &of_etcd),
        Place::File => (&of_etcd, &of_file),
    };
    let existing = if *replace { Existing::Replace } else { Existing::Keep };
    let (source, target) = (store_of(from)?, store_of(to)?);
    let copied = wait(async {
        // All is read before anything is written: with --replace, what is there would be removed for nothing.
        let volumes = rows_of::<Vldb>(&*source).await.map_err(|error| error.to_string())?;
        let users = rows_of::<Ptdb>(&*source).await.map_err(|error| error.to_string())?;
        if users.is_empty() {
            return Err(format!(
                "there is no PTDB in {}: nothing was copied; check databases.etcd and databases.etcd_prefix, or start a server once",
                place_of(from)
            ));
        }
        let devices = rows_of::<Devices>(&*source).await.map_err(|error| error.to_string())?;
        let (volumes, users) = (Some(volumes.into_iter()), Some(users.into_iter()));
        fill(&*target, existing, volumes, users, Some(devices.into_iter()))
            .await
            .map_err(|error| told_of(&error))
    });
    drop((source, target));
    let [volumes, users, devices] = copied?;
    let text = format!(
        "VLDB: {volumes} rows, PTDB: {users} rows, devices: {devices} rows, copied to {}\n",
        place_of(to)
    );
    output::write(&text).map_err(|error| error.to_string())
}

fn told_of(error: &FillError) -> String {
    match error {
        FillError::NotEmpty { .. } => {
            format!("at the destination, {error}; --replace overwrites all databases")
        }
        _ => error.to_string(),
    }
}
