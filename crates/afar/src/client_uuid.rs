//! The identity of a client for servers, over restarts: so that a server that still has promises to it knows that it is the same. Beside
//! the UUID stands for which machine and which folder it was made: servers tell changes to one of the clients with a UUID only, so a
//! copy of the folder, or of the machine, must not have the same.

use afs_wire::Uuid;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file in the folder of the cache: the UUID in its first line, and what it was made for in the second.
const FILE: &str = "uuid";

/// The file that tells this machine from its copies, as far as the system knows.
const MACHINE_ID: &str = "/etc/machine-id";

/// The UUID of the client of this folder; made from `seed` if it has none.
///
/// # Errors
///
/// When the file cannot be read or written.
pub(crate) fn of_folder(folder: &Path, seed: [u8; 32]) -> io::Result<Uuid> {
    let machine = fs::read_to_string(MACHINE_ID).unwrap_or_default();
    of_folder_on(machine.trim(), folder, seed)
}

fn of_folder_on(machine: &str, folder: &Path, seed: [u8; 32]) -> io::Result<Uuid> {
    let status = fs::metadata(folder)?;
    let machine = if machine.is_empty() { "-" } else { machine };
    let made_for = format!("machine={machine} folder={}:{}", status.dev(), status.ino());
    let file = folder.join(FILE);
    let text = match fs::read(&file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return write(folder, Uuid::random(&seed).to_bytes(), &made_for);
        }
        Err(error) => return Err(error),
    };
    let mut lines = text.lines().map(str::trim);
    let Some(bytes) = lines.next().and_then(parse) else {
        tracing::warn!(file = %file.display(), "this is no UUID; the client gets a new one");
        return write(folder, Uuid::random(&seed).to_bytes(), &made_for);
    };
    match lines.next() {
        Some(found) if found == made_for => Ok(Uuid::from_bytes(bytes)),
        Some(_) => {
            tracing::warn!(
                file = %file.display(),
                "this UUID is of another machine or another folder, as if it had been copied; the client gets a new one"
            );
            write(folder, Uuid::random(&seed).to_bytes(), &made_for)
        }
        // Written by a version that did not say it: it stays, and is this folder's from now on.
        None => write(folder, bytes, &made_for),
    }
}

fn write(folder: &Path, bytes: [u8; 16], made_for: &str) -> io::Result<Uuid> {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let new = folder.join("uuid.new");
    fs::write(&new, format!("{text}\n{made_for}\n"))?;
    fs::rename(new, folder.join(FILE))?;
    Ok(Uuid::from_bytes(bytes))
}

/// A UUID of zeros is none: all clients whose file was damaged so would be one.
fn parse(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes).filter(|bytes| *bytes != [0; 16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    #[test]
    fn a_client_stays_the_same_over_restarts() {
        let folder = Folder::new("restarts");
        let first = of_folder(&folder, [0xff; 32]).unwrap();
        assert_eq!(first.time_hi_and_version, 0x4fff);
        assert_eq!(of_folder(&folder, [1; 32]).unwrap(), first);
        fs::write(folder.join(FILE), "damaged").unwrap();
        assert_ne!(of_folder(&folder, [1; 32]).unwrap(), first);
    }

    #[test]
    fn a_copied_cache_folder_is_another_client() {
        let (folder, copy) = (Folder::new("original"), Folder::new("copy"));
        let first = of_folder(&folder, [2; 32]).unwrap();
        fs::copy(folder.join(FILE), copy.join(FILE)).unwrap();
        let second = of_folder(&copy, [3; 32]).unwrap();
        assert_ne!(second, first);
        assert_eq!(of_folder(&copy, [4; 32]).unwrap(), second, "it keeps the new one");
        assert_eq!(of_folder(&folder, [4; 32]).unwrap(), first, "and the first keeps its own");
    }

    #[test]
    fn a_cloned_machine_is_another_client() {
        let folder = Folder::new("clone");
        let first = of_folder_on("aa", &folder, [5; 32]).unwrap();
        assert_eq!(of_folder_on("aa", &folder, [6; 32]).unwrap(), first);
        assert_ne!(of_folder_on("bb", &folder, [6; 32]).unwrap(), first);
    }

    #[test]
    fn a_uuid_of_zeros_is_not_used() {
        let folder = Folder::new("zeros");
        fs::write(folder.join(FILE), format!("{}\n", "0".repeat(32))).unwrap();
        assert_ne!(of_folder(&folder, [7; 32]).unwrap(), Uuid::from_bytes([0; 16]));
    }

    #[test]
    fn a_uuid_of_an_older_version_is_kept() {
        let (folder, copy) = (Folder::new("older"), Folder::new("older-copy"));
        fs::write(folder.join(FILE), format!("{}\n", "ab".repeat(16))).unwrap();
        assert_eq!(of_folder(&folder, [8; 32]).unwrap(), Uuid::from_bytes([0xab; 16]));
        fs::copy(folder.join(FILE), copy.join(FILE)).unwrap();
        assert_ne!(of_folder(&copy, [8; 32]).unwrap(), Uuid::from_bytes([0xab; 16]), "once");
    }
}
