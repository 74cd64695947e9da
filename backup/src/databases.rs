//! A backup of the cell's databases, as files from which `afar import` and OpenAFS's servers read them. `afar export` writes these; access
//! lists have numbers, and only the protection database tells whose they are. The cell's keys are saved with them if that is asked for.

use crate::cell::Cell;
use crate::repository::Store;
use crate::run::{Saved, new_snapshot};
use rustic_core::repofile::{Metadata, Node, NodeType};
use rustic_core::{BackupOptions, ReadSource, ReadSourceEntry, RusticResult};
use rx_security::keys::{KEY_FILE, KEY_FILE_EXT, KEYTAB, NEGOTIATION_KEYTAB};
use std::ffi::OsStr;
use std::fs;
use std::io::{Cursor, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::vec::IntoIter;

/// The name that such backups have in place of a volume's. No volume can have it.
pub(crate) const LABEL: &str = ":databases";

/// The files.
const FILES: [&str; 2] = ["prdb.DB0", "vldb.DB0"];

/// Files of the folder with the cell's key, as far as they are there: the keys, the superusers, and the realms whose users are the cell's.
const KEYS: [&str; 7] =
    [KEY_FILE_EXT, KEY_FILE, KEYTAB, NEGOTIATION_KEYTAB, "UserList", "krb.conf", "krb.excl"];

/// The folder that they are in.
const KEYS_FOLDER: &str = "server";

/// What is saved, by its name.
type Contents = Vec<(String, Vec<u8>)>;

/// Backs the databases up, and the keys if they are wanted. `afar` is the program, `config` the folder with the cell's key, `spool` one for
/// the files.
pub(crate) fn back_up(
    cell: &Cell,
    store: &Store,
    (afar, config, spool): (&Path, &Path, &Path),
    (has_keys, now): (bool, Duration),
) -> Result<Saved, String> {
    let mut files = export(cell, (afar, config, spool))?;
    if has_keys {
        files.extend(keys(config)?);
    }
    // As restic has them.
    files.sort();
    let count = files.len() as u64;
    let dumped_bytes = Some(files.iter().map(|(_, bytes)| bytes.len() as u64).sum());
    let new = new_snapshot(&cell.name, LABEL, None, now)?;
    let indexed = store.indexed()?;
    let mut options = BackupOptions::default();
    options.no_scan = true;
    options.parent_opts.force = true;
    let backup = || indexed.archive(&options, &Files(files), new, &[Path::new("/").join(LABEL)]);
    let snapshot = store.holding_back(backup)?;
    let saved = snapshot.summary.as_ref().map_or(0, |summary| summary.total_files_processed);
    if saved != count {
        return Err(format!("{saved} of {count} files could be saved"));
    }
    store.save(snapshot.clone())?;
    Ok(Saved { snapshot, dumped_bytes, failures: Vec::new() })
}

/// Has `afar export` write the files, and reads them.
fn export(cell: &Cell, (afar, config, spool): (&Path, &Path, &Path)) -> Result<Contents, String> {
    let folder = spool.join(format!("afar-backup.databases.{}", std::process::id()));
    let named = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::DirBuilder::new().mode(0o700).create(&folder).map_err(named)?;
    let exported = || {
        let servers: Vec<String> = cell.machines.iter().map(ToString::to_string).collect();
        let mut command = Command::new(afar);
        command.args(["export", "--from", &servers.join(","), "--keys"]).arg(config);
        for file in FILES {
            command.arg(format!("--{}", file.trim_end_matches(".DB0"))).arg(folder.join(file));
        }
        let output = command.output().map_err(|error| format!("{}: {error}", afar.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned());
        }
        let read = |file: &str| Ok((file.to_owned(), fs::read(folder.join(file)).map_err(named)?));
        FILES.into_iter().map(read).collect()
    };
    let files = exported();
    fs::remove_dir_all(&folder).map_err(named).and(files)
}

/// Reads the keys, and what belongs to them.
fn keys(config: &Path) -> Result<Contents, String> {
    let read = |name| {
        let path = config.join(name);
        match fs::read(&path) {
            Ok(bytes) => Some(Ok((format!("{KEYS_FOLDER}/{name}"), bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(Err(format!("{}: {error}", path.display()))),
        }
    };
    KEYS.into_iter().filter_map(read).collect()
}

/// The files, as rustic reads them.
struct Files(Contents);

impl ReadSource for Files {
    type Open = Cursor<Vec<u8>>;
    type Iter = IntoIter<RusticResult<ReadSourceEntry<Self::Open>>>;

    fn size(&self) -> RusticResult<Option<u64>> {
        Ok(None)
    }

    fn entries(&self) -> Self::Iter {
        let entry = |(name, bytes): &(String, Vec<u8>)| {
            let size = bytes.len() as u64;
            let meta = Metadata { mode: Some(0o600), size, links: 1, ..Metadata::default() };
            let path = PathBuf::from("/").join(LABEL).join(name);
            let name = path.file_name().unwrap_or(OsStr::new(name));
            let node = Node::new_node(name, NodeType::File, meta);
            Ok(ReadSourceEntry { path, node, open: Some(Cursor::new(bytes.clone())) })
        };
        self.0.iter().map(entry).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    #[test]
    fn every_file_that_has_keys_is_saved_with_them() {
        let folder = Folder::new("backup-keys");
        let (keys_of, others) =
            ([KEY_FILE_EXT, KEY_FILE, KEYTAB, NEGOTIATION_KEYTAB], ["UserList", "ThisCell"]);
        for name in keys_of.iter().chain(&others) {
            folder.write(name, name);
        }
        let saved = keys(&folder).expect("they can be read");
        for name in keys_of.iter().chain(&others[..1]) {
            assert!(saved.contains(&(format!("server/{name}"), name.as_bytes().to_vec())), "{name}");
        }
        assert_eq!(saved.len(), 5, "{saved:?}");
    }
}
