//! The folder of a machine that has joined a cell: ThisCell and CellServDB for `afar mount --config`, and the device's key in a file of its
//! own, which only its user may read. The key is written before it is registered, so that a join that was cut off is gone on with.

use afs_join::{KEY_BYTES, KeyPair, Membership, PublicKey};
use afs_wire::ids::CellName;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::SocketAddrV4;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::{Zeroize, Zeroizing};

/// The file of the key.
const DEVICE: &str = "device.json";

/// Longest file that is read, in bytes: sixteen servers take one.
const FILE_MAX: usize = 16 << 10;

/// What a device knows.
pub(crate) struct Joined {
    /// The cell, and the keys.
    pub(crate) member: Membership,
    /// The cell's database servers.
    pub(crate) servers: Vec<SocketAddrV4>,
    /// The user and the device's number; `None` before the cell has said.
    pub(crate) registered: Option<(String, u32)>,
}

/// The file, as it is written.
#[derive(Serialize, Deserialize)]
struct Device {
    about: String,
    cell: String,
    servers: Vec<SocketAddrV4>,
    user: String,
    device: u32,
    cell_key: String,
    device_key: String,
}

impl Drop for Device {
    fn drop(&mut self) {
        self.device_key.zeroize();
    }
}

/// The folder for a cell, unless somebody names another one.
///
/// # Errors
///
/// When the user has no home folder.
pub(crate) fn folder_of(cell: &CellName) -> Result<PathBuf, String> {
    Ok(default_folder()?.join(cell.as_str()))
}

/// The folder that has one for each cell.
fn default_folder() -> Result<PathBuf, String> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/afar/joined"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let folder = state.map(|state| state.join("afar/joined"));
    folder.ok_or_else(|| "HOME is not set: say where to keep the device's key with --folder DIR".to_owned())
}

/// The folders of all cells that this user has joined.
///
/// # Errors
///
/// When they cannot be listed.
pub(crate) fn all_folders() -> Result<Vec<PathBuf>, String> {
    let folder = default_folder()?;
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", folder.display())),
    };
    let mut folders: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.retain(|folder| folder.join(DEVICE).exists());
    folders.sort();
    Ok(folders)
}

impl Joined {
    /// Reads what a folder has; `None` if no device is in it.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or was damaged.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, String> {
        let path = folder.join(DEVICE);
        let bytes = match fs::read(&path).map(Zeroizing::new) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let damaged =
            || format!("{} is damaged: remove it, and join again with a new invitation", path.display());
        if bytes.len() > FILE_MAX {
            return Err(damaged());
        }
        let device: Device = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        let key = |text: &str| from_hex(text).ok_or_else(damaged);
        let member = Membership {
            cell: CellName::new(&device.cell).map_err(|_| damaged())?,
            key: PublicKey(*key(&device.cell_key)?),
            device: KeyPair::of_private(*key(&device.device_key)?),
        };
        let registered = (device.device != 0).then(|| (device.user.clone(), device.device));
        Ok(Some(Self { member, servers: device.servers.clone(), registered }))
    }

    /// Writes it, and what `afar mount` reads. All is there or nothing has changed.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made, or a file not written.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), String> {
        crate::private::folder(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let cell = self.member.cell.as_str();
        let mut lines = format!(">{cell}\n");
        for server in &self.servers {
            lines += &format!("{} #{}\n", server.ip(), server.ip());
        }
        let (user, device) = self.registered.clone().unwrap_or_default();
        let device = Device {
            about: "Whoever has this file can act as this device: see 'afar join --help'".to_owned(),
            cell: cell.to_owned(),
            servers: self.servers.clone(),
            user,
            device,
            cell_key: to_hex(&self.member.key.0).to_string(),
            device_key: to_hex(self.member.device.private()).to_string(),
        };
        let text = Zeroizing::new(serde_json::to_string_pretty(&device).expect("texts and numbers") + "\n");
        replace(&folder.join("CellServDB"), lines.as_bytes())?;
        replace(&folder.join("ThisCell"), format!("{cell}\n").as_bytes())?;
        replace(&folder.join(DEVICE), text.as_bytes())
    }

    /// Removes what [`Self::write`] has written.
    ///
    /// # Errors
    ///
    /// When the key cannot be removed.
    pub(crate) fn forget(folder: &Path) -> Result<(), String> {
        for name in [DEVICE, "ThisCell", "CellServDB"] {
            match fs::remove_file(folder.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", folder.join(name).display()));
                }
                _ => {}
            }
        }
        // Something else of the user's may be in it.
        let _ = fs::remove_dir(folder);
        Ok(())
    }
}

/// Writes a file beside the old one, syncs it, and puts it in its place.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

fn to_hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        for half in [byte >> 4, byte & 15] {
            text.push(char::from_digit(half.into(), 16).expect("it is below 16"));
        }
    }
    text
}

fn from_hex(text: &str) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (at, byte) in bytes.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    is_hex.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_join::Chance;
    use afs_lab::real::folder::Folder;
    use std::os::unix::fs::PermissionsExt;

    fn joined() -> Joined {
        let pair = |number| KeyPair::generate(Chance::new([number; 32]));
        let cell = CellName::new("home.example").unwrap();
        let member = Membership { cell, key: pair(1).public(), device: pair(2) };
        Joined { member, servers: vec!["192.0.2.7:7003".parse().unwrap()], registered: None }
    }

    #[test]
    fn a_device_is_what_it_was_and_only_its_user_reads_its_key() {
        let folder = Folder::new("joined");
        let home = folder.join("cell");
        assert!(Joined::read(&home).unwrap().is_none());
        let mut written = joined();
        for registered in [None, Some(("alice".to_owned(), 7))] {
            written.registered = registered.clone();
            written.write(&home).unwrap();
            let read = Joined::read(&home).unwrap().unwrap();
            assert_eq!((read.registered, &read.servers), (registered, &written.servers));
            assert_eq!(read.member.device.private(), written.member.device.private());
            assert_eq!((read.member.key, &read.member.cell), (written.member.key, &written.member.cell));
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&home), mode(&home.join(DEVICE))), (0o700, 0o600));
        assert_eq!(
            fs::read_to_string(home.join("CellServDB")).unwrap(),
            ">home.example\n192.0.2.7 #192.0.2.7\n"
        );
        Joined::forget(&home).unwrap();
        assert!(!home.exists());
        Joined::forget(&home).unwrap();
    }

    #[test]
    fn a_damaged_file_is_told_as_that() {
        let folder = Folder::new("damaged");
        joined().write(&folder).unwrap();
        let path = folder.join(DEVICE);
        let text = fs::read_to_string(&path).unwrap();
        for damaged in [
            "",
            "{}",
            &text[..text.len() / 2],
            &text.replace("home.example", "a b"),
            &text.replace("_key\": \"", "_key\": \"x"),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = Joined::read(&folder).err().expect(damaged);
            assert!(error.contains("is damaged: remove it"), "{error}");
        }
    }
}
