//! The files that the first start makes in the state folder: the cell's configuration in OpenAFS's formats, with a key of its
//! own. What is there stays as it is.
//!
//! The configuration is there before the protection database has the administrator. A start that ends between the two,
//! for example because a port is taken, must not leave a cell without one. So a file beside the configuration names the
//! administrator until the database has them.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use afs_config::{Cell, CellName, CellServDb, DbServer};
use rx_security::KeySet;
use rx_security::keys::{EncType, Key};
use zeroize::Zeroizing;

use crate::authority::replace;

/// The version of the cell's first keys.
const FIRST_KVNO: i32 = 1;

/// Beside the configuration of a cell whose administrator is not in its protection database yet: the administrator's
/// name.
const PENDING: &str = "administrator-to-be-made";
/// The beginning of a line with the number of a process.
const WRITER: &str = "writer ";
/// The most of these lines: a start that fails may be tried again every few seconds, for days.
const WRITERS: usize = 16;

/// The properties of a new cell.
#[derive(Debug, Clone)]
pub(crate) struct NewCell<'a> {
    pub(crate) name: CellName,
    /// The servers of its databases.
    pub(crate) servers: &'a [Ipv4Addr],
    pub(crate) administrator: &'a str,
    /// Its key for tickets of rxkad, for AES-256. It is overwritten when the files have it, as is the other one.
    pub(crate) key: Zeroizing<[u8; 32]>,
    /// Its key for tokens of rxgk.
    pub(crate) rxgk_key: Zeroizing<[u8; 32]>,
}

/// Makes the configuration folders of a new cell, `ETC/{ThisCell,CellServDB}` and
/// `ETC/server/{ThisCell,CellServDB,KeyFileExt,UserList}`, unless `ETC/server/ThisCell` is there. The server's folder
/// appears at once, so that a start that was cut off leaves nothing half-made; with it, who is to be made in the protection
/// database ([`pending_administrator`]). Says whether it made them.
pub(crate) fn make_configuration(etc: &Path, cell: &NewCell<'_>) -> io::Result<bool> {
    let server = etc.join("server");
    let sync_folder = |path: &Path| File::open(path).and_then(|f| f.sync_all()).map_err(|e| named(path, &e));
    if server.join("ThisCell").exists() {
        return Ok(false);
    }
    // Clients and tools of all users look there, whatever is made otherwise for nobody else.
    if !etc.exists() {
        make_folder(etc, 0o755)?;
        fs::set_permissions(etc, Permissions::from_mode(0o755)).map_err(|e| named(etc, &e))?;
    }
    let new = etc.join("server.new");
    if new.exists() {
        fs::remove_dir_all(&new).map_err(|e| named(&new, &e))?;
    }
    make_folder(&new, 0o700)?;
    let server_of = |address: &Ipv4Addr| DbServer { address: *address, name: None, is_clone: false };
    let own = Cell {
        name: cell.name.clone(),
        linked: None,
        comment: None,
        servers: cell.servers.iter().map(server_of).collect(),
    };
    let this_cell = format!("{}\n", cell.name);
    let servers = CellServDb { cells: vec![own] }.to_string();
    for folder in [etc, &new] {
        write(&folder.join("ThisCell"), &this_cell)?;
        write(&folder.join("CellServDB"), &servers)?;
    }
    write(&new.join("UserList"), &format!("{}\n", cell.administrator))?;
    write(&new.join(PENDING), &format!("{}\n", cell.administrator))?;
    let keys = KeySet::of([
        Key::rxkad_krb5(FIRST_KVNO, EncType::AES256, cell.key.as_slice()),
        Key::rxgk(FIRST_KVNO, EncType::AES256, cell.rxgk_key.as_slice()),
    ]);
    let keys = keys.and_then(|keys| keys.save(&new));
    keys.map_err(|error| io::Error::other(error.to_string()))?;
    if server.exists() {
        // Without a ThisCell: what is in it is kept beside the new files. ThisCell comes last, as it says that all is there.
        let files = fs::read_dir(&new).map_err(|e| named(&new, &e))?;
        let mut files = files.collect::<io::Result<Vec<_>>>().map_err(|e| named(&new, &e))?;
        files.sort_by_key(|file| file.file_name() == "ThisCell");
        for file in files {
            let to = server.join(file.file_name());
            if !to.exists() {
                fs::rename(file.path(), &to).map_err(|e| named(&to, &e))?;
            }
        }
        fs::remove_dir_all(&new).map_err(|e| named(&new, &e))?;
        sync_folder(&server)?;
    } else {
        sync_folder(&new)?;
        fs::rename(&new, &server).map_err(|e| named(&server, &e))?;
    }
    // A key that a power loss takes back would be made anew, another one.
    sync_folder(etc)?;
    Ok(true)
}

/// The administrator whom the first start has still to make in the protection database, and what is known of earlier attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    /// The administrator.
    pub(crate) name: String,
    /// The numbers of the processes that have tried it over a store that several machines share.
    pub(crate) writers: Vec<u64>,
}

/// Returns the administrator whom the first start has still to make, by the server's configuration folder.
pub(crate) fn pending_administrator(server: &Path) -> io::Result<Option<Pending>> {
    let path = server.join(PENDING);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let mut lines = text.lines().map(str::trim);
            let name = lines.next().unwrap_or_default().to_owned();
            // A line that was cut off is of a process that has not gone on.
            let writer = |line: &str| {
                let digits = line.strip_prefix(WRITER)?;
                u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16)
            };
            Ok(Some(Pending { name, writers: lines.filter_map(writer).collect() }))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(named(&path, &error)),
    }
}

/// Notes on disk that this process is going to make the databases, so that the next start recognises them if this one is cut off. Keeps only the
/// last [`WRITERS`] notes: the start after a successful one finds its note and makes nothing.
pub(crate) fn note_writer(server: &Path, writer: u64) -> io::Result<()> {
    let gone = || named(&server.join(PENDING), &io::ErrorKind::NotFound.into());
    let Pending { name, writers } = pending_administrator(server)?.ok_or_else(gone)?;
    let mut text = format!("{name}\n");
    for writer in writers.iter().skip((writers.len() + 1).saturating_sub(WRITERS)).chain([&writer]) {
        text += &format!("{WRITER}{writer:016x}\n");
    }
    let path = server.join(PENDING);
    replace(&path, text.as_bytes()).map_err(|error| named(&path, &error))
}

/// The administrator is in the protection database.
pub(crate) fn administrator_is_made(server: &Path) -> io::Result<()> {
    let path = server.join(PENDING);
    fs::remove_file(&path).map_err(|error| named(&path, &error))
}

/// Makes a folder, and those above it, unless it is there.
pub(crate) fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|error| named(path, &error))
}

/// Takes from others what they may do in a folder that an earlier version, or somebody, has made for all to read.
pub(crate) fn close_folder(path: &Path) -> io::Result<()> {
    let close = || {
        let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
        if mode & 0o077 == 0 {
            Ok(())
        } else {
            fs::set_permissions(path, Permissions::from_mode(mode & !0o077))
        }
    };
    close().map_err(|error| named(path, &error))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let result = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path);
    let result = result.and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    result.map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_config::ServerFolder;

    #[test]
    fn a_new_cell_has_all_that_a_server_reads_and_keeps_its_key() {
        let etc = std::env::temp_dir().join(format!("afs-server-first-{}", std::process::id()));
        let cell = |key| NewCell {
            name: CellName::new("new.test").unwrap(),
            servers: &[Ipv4Addr::LOCALHOST],
            administrator: "admin",
            key: Zeroizing::new([key; 32]),
            rxgk_key: Zeroizing::new([!key; 32]),
        };
        assert!(make_configuration(&etc, &cell(1)).unwrap());
        let folder = ServerFolder::read(&etc.join("server")).unwrap();
        assert_eq!((folder.cell.as_str(), folder.own().servers.len()), ("new.test", 1));
        assert!(folder.users.contains("admin", None));
        let keys = KeySet::load(&etc.join("server")).unwrap();
        let mode = |name: &str| etc.join(name).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("server/KeyFileExt"), mode("server/ThisCell")), (0o600, 0o644));
        let pending = || pending_administrator(&etc.join("server")).unwrap();
        assert_eq!(pending(), Some(Pending { name: "admin".to_owned(), writers: Vec::new() }));
        note_writer(&etc.join("server"), 7).unwrap();
        // One that was cut off while it was written.
        let file = etc.join("server").join(PENDING);
        let cut = fs::read_to_string(&file).unwrap() + "\nwriter 00000000000000";
        fs::write(&file, cut).unwrap();
        note_writer(&etc.join("server"), u64::MAX).unwrap();
        assert_eq!(pending().unwrap().writers, [7, u64::MAX]);
        (0..100).for_each(|writer| note_writer(&etc.join("server"), writer).unwrap());
        assert_eq!(pending().unwrap().writers, (84..100).collect::<Vec<u64>>(), "the note does not grow");
        administrator_is_made(&etc.join("server")).unwrap();
        assert_eq!(pending(), None);
        assert!(!make_configuration(&etc, &cell(2)).unwrap(), "it is there already");
        assert_eq!(KeySet::load(&etc.join("server")).unwrap(), keys);

        fs::remove_file(etc.join("server/ThisCell")).unwrap();
        assert!(make_configuration(&etc, &cell(3)).unwrap());
        assert_eq!(KeySet::load(&etc.join("server")).unwrap(), keys, "a key is never replaced");
        fs::remove_dir_all(etc).unwrap();
    }

    #[test]
    fn a_folder_of_secrets_that_was_open_is_closed() {
        let folder = std::env::temp_dir().join(format!("afs-server-closed-{}", std::process::id()));
        make_folder(&folder, 0o755).unwrap();
        close_folder(&folder).unwrap();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        fs::remove_dir_all(folder).unwrap();
    }
}
