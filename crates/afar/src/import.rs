//! `afar import`: a cell's databases from the files of OpenAFS's servers, `vldb.DB0` and `prdb.DB0`, or from servers that run
//! (`import/servers.rs`). What is odd in them is told, with `--dry-run` that alone. How the files are read is `afs_celldb::files`.

pub(crate) mod servers;

use crate::database_files::{
    configuration, fill, json_of, log_path, place_of, read, store_of, text_of, wait,
};
use crate::{arguments, output};
use afs_celldb::files::{FileError, Oddities, PrdbContents, VldbContents, read_prdb, read_vldb};
use afs_celldb::store::Row;
use afs_celldb::{Existing, FillError};
use clap::Parser;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "afar import",
    about = "Fills the cell's databases from the database files of OpenAFS's vlserver and ptserver, or from running servers. Stop 'afar server' first, and OpenAFS's servers too if you read their files"
)]
struct Cli {
    /// The file of the volume location database, such as /var/lib/openafs/db/vldb.DB0
    #[arg(long, value_name = "FILE")]
    vldb: Option<PathBuf>,
    /// The file of the protection database, such as /var/lib/openafs/db/prdb.DB0
    #[arg(long, value_name = "FILE")]
    prdb: Option<PathBuf>,
    /// Reads both databases from running database servers, several with commas between. Nobody should change the databases meanwhile
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', conflicts_with_all = ["vldb", "prdb"])]
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
    /// Only reads the databases and reports what is odd in them; changes nothing
    #[arg(long)]
    dry_run: bool,
    /// Replaces the databases' content; without this option they must be empty
    #[arg(long)]
    replace: bool,
    /// Prints the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    crate::private::begin();
    arguments::run("afar import", args, |cli: Cli| import(&cli))
}

fn import(cli: &Cli) -> Result<(), String> {
    if cli.vldb.is_none() && cli.prdb.is_none() && cli.from.is_empty() {
        return Err("give --vldb FILE or --prdb FILE or both, or --from ADDRESS".to_owned());
    }
    // Both are read before anything is changed.
    let (vldb, prdb) = if cli.from.is_empty() {
        let vldb = cli.vldb.as_deref().map(|path| open(path, read_vldb)).transpose()?;
        (vldb, cli.prdb.as_deref().map(|path| open(path, read_prdb)).transpose()?)
    } else {
        let (vldb, prdb) = servers::ask(&cli.from, &cli.keys)?;
        (Some(vldb), Some(prdb))
    };
    let mut told = serde_json::Map::new();
    let mut text = String::new();
    let source = |file: Option<&PathBuf>, kind: &str| match file {
        Some(path) => path.display().to_string(),
        None => format!("the {kind} servers at {}", servers::list(&cli.from)),
    };
    if let Some((contents, oddities)) = &vldb {
        text += &tell_vldb(&source(cli.vldb.as_ref(), "volume location"), contents, oddities, &mut told);
    }
    if let Some((contents, oddities)) = &prdb {
        text += &tell_prdb(&source(cli.prdb.as_ref(), "protection"), contents, oddities, &mut told);
    }
    let say = |text: &str| if cli.json { Ok(()) } else { output::write(text) };
    say(&text).map_err(|error| error.to_string())?;
    let config = configuration(cli.config.as_deref(), cli.state.as_deref())?;
    if !cli.dry_run {
        let existing = if cli.replace { Existing::Replace } else { Existing::Keep };
        let store = store_of(&config)?;
        let volumes = vldb.as_ref().map(|(contents, _)| contents.rows());
        let users = prdb.as_ref().map(|(contents, _)| contents.rows());
        let filled = wait(async {
            fill(&*store, existing, volumes, users, None::<std::iter::Empty<Row>>)
                .await
                .map_err(|error| told_of(&error))
        });
        drop(store);
        filled?;
    }
    let last = match cli.dry_run {
        true => "nothing was changed\n".to_owned(),
        false => format!("imported to {}\n", place_of(&config)),
    };
    told.insert("imported".to_owned(), Value::Bool(!cli.dry_run));
    let written = if cli.json { output::write_json(&Value::Object(told)) } else { output::write(&last) };
    written.map_err(|error| error.to_string())
}

type Reader<T> = fn(&[u8], Option<&[u8]>) -> Result<(T, Oddities), FileError>;

fn open<T>(path: &Path, reader: Reader<T>) -> Result<(T, Oddities), String> {
    let bytes = read(path, false)?.unwrap_or_default();
    let log = read(&log_path(path), true)?;
    reader(&bytes, log.as_deref()).map_err(|error| format!("{}: {error}", path.display()))
}

fn told_of(error: &FillError) -> String {
    match error {
        FillError::NotEmpty { .. } => {
            format!(
                "{error}; make a copy of the state folder, then use --replace to replace the databases' content"
            )
        }
        _ => error.to_string(),
    }
}

fn tell_vldb(
    source: &str,
    contents: &VldbContents,
    oddities: &Oddities,
    told: &mut serde_json::Map<String, Value>,
) -> String {
    let (volumes, servers) = (contents.entries.len(), contents.server_count());
    let value = json!({ "file": source, "volumes": volumes, "servers": servers, "odd": json_of(oddities) });
    told.insert("vldb".to_owned(), value);
    format!("{source}: {volumes} volumes on {servers} servers\n{}", text_of(oddities))
}

fn tell_prdb(
    source: &str,
    contents: &PrdbContents,
    oddities: &Oddities,
    told: &mut serde_json::Map<String, Value>,
) -> String {
    let [users, groups, foreign] = contents.counts();
    let value = json!({
        "file": source,
        "users": users,
        "groups": groups,
        "foreign_users": foreign,
        "odd": json_of(oddities),
    });
    told.insert("prdb".to_owned(), value);
    format!("{source}: {users} users, {groups} groups, {foreign} users of other cells\n{}", text_of(oddities))
}
