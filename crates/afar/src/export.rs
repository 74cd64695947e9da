//! `afar export`: the cell's databases as files from which OpenAFS's vlserver and ptserver start, `vldb.DB0` and `prdb.DB0`. How the
//! files are written is `afs_celldb::files`. They come from the store of servers that are stopped, or by calls from servers that run.

use crate::database_files::{EMPTY_LOG_BYTES, configuration, log_path, place_of, store_of, wait};
use crate::dates::now;
use crate::import::servers;
use crate::{arguments, output};
use afs_celldb::Database;
use afs_celldb::database::Image;
use afs_celldb::files::{FileError, PrdbContents, VldbContents, write_prdb, write_vldb};
use afs_celldb::ptdb::Ptdb;
use afs_celldb::store::CellStore;
use afs_celldb::vldb::Vldb;
use clap::Parser;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Parser)]
#[command(
    name = "afar export",
    about = "Writes the cell's databases as files for OpenAFS's vlserver and ptserver. Stop 'afar server' first, or read from it with --from"
)]
struct Cli {
    /// File to write the volume location database to, such as /var/lib/openafs/db/vldb.DB0
    #[arg(long, value_name = "FILE")]
    vldb: Option<PathBuf>,
    /// File to write the protection database to, such as /var/lib/openafs/db/prdb.DB0
    #[arg(long, value_name = "FILE")]
    prdb: Option<PathBuf>,
    /// Reads both databases from running database servers, several with commas between. Nobody should change the databases meanwhile
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with_all = ["config", "state"])]
    from: Vec<Ipv4Addr>,
    /// The folder with the cell's key, for --from
    #[arg(long, value_name = "DIR", default_value = crate::cell::SERVER_FOLDER)]
    keys: PathBuf,
    /// The server's configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's state folder
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Replaces existing files
    #[arg(long)]
    force: bool,
    /// Prints the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    crate::private::begin();
    arguments::run("afar export", args, |cli: Cli| export(&cli))
}

fn export(cli: &Cli) -> Result<(), String> {
    let files: Vec<&Path> = [&cli.vldb, &cli.prdb].into_iter().flatten().map(PathBuf::as_path).collect();
    if files.is_empty() {
        return Err("give --vldb FILE, --prdb FILE, or both".to_owned());
    }
    files.iter().try_for_each(|path| may_write(path, cli.force))?;
    let (volumes, users) = if cli.from.is_empty() {
        of_store(cli)?
    } else {
        let ((volumes, _), (users, _)) = servers::ask(&cli.from, &cli.keys)?;
        (Some(volumes), users)
    };
    let vldb = cli.vldb.as_ref().zip(volumes);
    let mut told = Vec::new();
    if let Some((path, contents)) = vldb {
        write(path, write_vldb(&contents, now()))?;
        let (volumes, servers) = (contents.entries.len(), contents.server_count());
        told.push((path, format!("{volumes} volumes on {servers} servers")));
    }
    if let Some(path) = &cli.prdb {
        let [local, groups, foreign] = users.counts();
        write(path, write_prdb(&users, now()))?;
        told.push((path, format!("{local} users, {groups} groups, {foreign} users of other cells")));
    }
    let written = if cli.json {
        let list: Value = told
            .iter()
            .map(|(path, what)| json!({ "file": path.display().to_string(), "what": what }))
            .collect();
        output::write_json(&list)
    } else {
        output::write(
            &told.iter().map(|(path, what)| format!("{}: {what}\n", path.display())).collect::<String>(),
        )
    };
    written.map_err(|error| error.to_string())
}

/// Reads the databases from their store: the VLDB only if it is wanted.
fn of_store(cli: &Cli) -> Result<(Option<VldbContents>, PrdbContents), String> {
    let config = configuration(cli.config.as_deref(), cli.state.as_deref())?;
    let state = &config.server.state;
    if !state.is_dir() {
        return Err(format!("{}: there is no such state folder; name it with --state", state.display()));
    }
    let store = store_of(&config)?;
    // Both are read before one is written, and by one runtime: what asks etcd belongs to it.
    let (volumes, users) = wait(async {
        let volumes = match &cli.vldb {
            Some(_) => Some(contents::<Vldb, _>(&store, VldbContents::of).await?),
            None => None,
        };
        Ok((volumes, contents::<Ptdb, _>(&store, PrdbContents::of).await?))
    })?;
    // Also where the VLDB alone is wanted, which may be empty: an empty one of no cell is not to replace a file.
    if users.counts()[0] == 0 {
        return Err(format!(
            "there is no PTDB in {}: nothing was written; start the server once",
            place_of(&config)
        ));
    }
    Ok((volumes, users))
}

async fn contents<I: Image, T>(store: &Arc<dyn CellStore>, look: fn(&I) -> T) -> Result<T, String> {
    let database = Database::<I>::open(Arc::clone(store)).await.map_err(|error| error.to_string())?;
    Ok(database.read(look))
}

/// Checks that a file may be written: an existing file must not be lost, and the log of an old file must not be applied to a new
/// one.
fn may_write(path: &Path, force: bool) -> Result<(), String> {
    if path.exists() && !force {
        return Err(format!("{} exists already; --force replaces it", path.display()));
    }
    let log = log_path(path);
    if fs::metadata(&log).is_ok_and(|log| log.len() > EMPTY_LOG_BYTES) {
        return Err(format!(
            "{} is the log of the old database, which OpenAFS's server would apply to the new one: stop OpenAFS's servers and remove it",
            log.display()
        ));
    }
    Ok(())
}

/// Puts a file in place as a whole, for its owner alone.
fn write(path: &Path, bytes: Result<Vec<u8>, FileError>) -> Result<(), String> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let bytes = bytes.map_err(|error| format!("{}: {error}", path.display()))?;
    let new = path.with_extension("DB0.new");
    // One that was left over goes, and a link that somebody put there is not followed.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("{}: {error}", new.display()));
        }
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let mut file = file.map_err(|error| format!("{}: {error}", new.display()))?;
    let written = file.write_all(&bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map_err(named)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(named)
}
