//! Code that `afar import` and `afar export` share: OpenAFS's files of the cell's databases on the disk, which databases of
//! ours are meant, and how what is odd is told.

use crate::dates::now;
use crate::output::harmless;
use crate::runtime;
use afs_celldb::database::Image;
use afs_celldb::devices::Devices;
use afs_celldb::files::{MAX_FILE_BYTES, Oddities};
use afs_celldb::ptdb::Ptdb;
use afs_celldb::store::{CellStore, Row};
use afs_celldb::vldb::Vldb;
use afs_celldb::{Existing, FillError, StoreError, begin, check_empty};
use afs_config::{CellName, ServerFolder};
use afs_server::{Config, databases};
use rx::{Runtime, TokioRuntime};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;

/// Bytes of a log that has nothing in it.
pub(crate) const EMPTY_LOG_BYTES: u64 = 64;

/// The file beside a database file that has its log: `vldb.DBSYS1` beside `vldb.DB0`.
pub(crate) fn log_path(file: &Path) -> PathBuf {
    file.with_extension("DBSYS1")
}

/// Reads all of a file; nothing if it is not there and `may_miss`.
pub(crate) fn read(path: &Path, may_miss: bool) -> Result<Option<Vec<u8>>, String> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if may_miss && error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let mut bytes = Vec::new();
    let read = file.by_ref().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{}: this file is too large to be a database of OpenAFS's", path.display()));
    }
    Ok(Some(bytes))
}

/// The configuration whose databases are meant.
pub(crate) fn configuration(file: Option<&Path>, state: Option<&Path>) -> Result<Config, String> {
    let mut config = match file {
        Some(path) => Config::load(path).map_err(|error| error.to_string())?,
        None => Config::default(),
    };
    if let Some(state) = state {
        config.server.state =
            std::path::absolute(state).map_err(|error| format!("{}: {error}", state.display()))?;
    }
    Ok(config)
}

/// A number that no other process has, for what waits for the store.
pub(crate) fn chance() -> Result<u64, String> {
    let seed =
        TokioRuntime::current().seed().map_err(|error| format!("cannot get random numbers: {error}"))?;
    let (number, _) = seed.split_first_chunk().expect("32 bytes are more than 8");
    Ok(u64::from_be_bytes(*number))
}

/// Runs work that waits for the store.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let work: Pin<&mut dyn Future<Output = Result<T, String>>> = pin!(work);
    runtime::start()?.block_on(work)
}

/// Fills databases, those that there are rows for: all of them, or none if one may not be filled. How many rows each has.
pub(crate) async fn fill(
    store: &dyn CellStore,
    existing: Existing,
    volumes: Option<impl Iterator<Item = Row>>,
    users: Option<impl Iterator<Item = Row>>,
    devices: Option<impl Iterator<Item = Row>>,
) -> Result<[u64; 3], FillError> {
    // All are looked at before one is begun, and begun before one is filled.
    if existing == Existing::Keep && volumes.is_some() {
        check_empty::<Vldb>(store).await?;
    }
    if existing == Existing::Keep && users.is_some() {
        check_empty::<Ptdb>(store).await?;
    }
    if existing == Existing::Keep && devices.is_some() {
        check_empty::<Devices>(store).await?;
    }
    let writer = chance().map_err(|reason| FillError::Store {
        database: Vldb::NAME,
        source: StoreError::new("filling the cell's databases", reason),
    })?;
    let vldb = match volumes {
        Some(rows) => Some((begin::<Vldb>(store, existing, now(), writer).await?, rows)),
        None => None,
    };
    let ptdb = match users {
        Some(rows) => match begin::<Ptdb>(store, existing, now(), writer).await {
            Ok(filling) => Some((filling, rows)),
            Err(error) => {
                if let Some((filling, _)) = vldb {
                    filling.give_up().await?;
                }
                return Err(error);
            }
        },
        None => None,
    };
    let devices = match devices {
        Some(rows) => match begin::<Devices>(store, existing, now(), writer).await {
            Ok(filling) => Some((filling, rows)),
            Err(error) => {
                if let Some((filling, _)) = ptdb {
                    filling.give_up().await?;
                }
                if let Some((filling, _)) = vldb {
                    filling.give_up().await?;
                }
                return Err(error);
            }
        },
        None => None,
    };
    let mut counts = [0; 3];
    if let Some((filling, rows)) = vldb {
        counts[0] = filling.fill(rows).await?;
    }
    if let Some((filling, rows)) = ptdb {
        counts[1] = filling.fill(rows).await?;
    }
    if let Some((filling, rows)) = devices {
        counts[2] = filling.fill(rows).await?;
    }
    Ok(counts)
}

/// The text about oddities, a line for each kind and one for each example.
pub(crate) fn text_of(oddities: &Oddities) -> String {
    let mut text = String::new();
    for (oddity, count, examples) in oddities.iter() {
        let _ = writeln!(text, "  {count} {}: {}", oddity.sentence(), oddity.done());
        for example in examples {
            let _ = writeln!(text, "      {}", harmless(example));
        }
        let more = count - examples.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "      and {more} more");
        }
    }
    text
}

/// The same as JSON.
pub(crate) fn json_of(oddities: &Oddities) -> Value {
    let list = oddities.iter().map(|(oddity, count, examples)| {
        json!({ "what": oddity.sentence(), "count": count, "done": oddity.done(), "examples": examples })
    });
    list.collect()
}

/// The store of the databases.
pub(crate) fn store_of(config: &Config) -> Result<Arc<dyn CellStore>, String> {
    // Only keys in etcd have the cell's name in them.
    let cell = match config.databases.etcd.is_empty() {
        true => CellName::new("local").ok_or("no cell is called so")?,
        false => ServerFolder::read(&config.config_dir()).map_err(|error| error.to_string())?.cell,
    };
    let open = || databases::open_store(config, &cell).map_err(|error| error.to_string());
    match config.databases.etcd.is_empty() {
        true => as_owner(&config.server.state, open),
        false => open(),
    }
}

/// The place of the databases, for people.
pub(crate) fn place_of(config: &Config) -> String {
    match config.databases.etcd.is_empty() {
        true => config.server.state.join("databases").display().to_string(),
        false => format!("etcd at {}", config.databases.etcd.join(", ")),
    }
}

/// Opens what is in a state folder as whom the folder belongs to, who runs the server: what is made is theirs, and a link that they have put
/// there leads root nowhere. Before there are other threads.
fn as_owner<T>(state: &Path, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    use nix::unistd::{Gid, Uid, getegid, geteuid, getgroups, setegid, seteuid, setgroups};
    use std::os::unix::fs::MetadataExt;
    let owner = match fs::metadata(state) {
        Ok(owner) if geteuid().is_root() && owner.uid() != 0 => owner,
        _ => return work(),
    };
    let failed = |error: nix::Error| {
        format!("{}: cannot open this as its owner, user {}: {error}", state.display(), owner.uid())
    };
    let own = (getgroups().map_err(failed)?, getegid());
    let become_owner = || {
        setgroups(&[])?;
        setegid(Gid::from_raw(owner.gid()))?;
        seteuid(Uid::from_raw(owner.uid()))
    };
    let result = become_owner().map_err(failed).and_then(|()| work());
    let (groups, group) = own;
    let back = seteuid(Uid::from_raw(0)).and_then(|()| setegid(group)).and_then(|()| setgroups(&groups));
    back.map_err(failed).and(result)
}
