//! Where root's clients keep users' tokens over a restart: below /run, which is memory, so that a reboot takes them. An ordinary user's client
//! keeps none.

use afs_client::Client;
use afs_client::control::pags_of_processes;
use rustix::fs::FsWord;
use rustix::process::geteuid;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder with one for each mount.
const FOLDER: &str = "/run/afar/tokens";

/// `TMPFS_MAGIC` of `statfs(2)`.
const TMPFS: FsWord = 0x0102_1994;

/// Gives users the tokens again that they had before the client of this mount was started anew, and keeps theirs from now on. Where that
/// cannot be, it is told in the log, and the client goes without. Many containers have no tmpfs there: their clients tell of it when
/// somebody has a token.
pub(crate) fn keep(client: &Client, mount: &Path) {
    if !geteuid().is_root() {
        return;
    }
    let kept = folder(mount).and_then(|folder| client.keep_tokens(&folder, 0, &pags_of_processes()?));
    match kept {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => client.keep_no_tokens(error),
        Err(error) => {
            tracing::warn!(%error, "a restart of this client takes all users' tokens away");
        }
        Ok(()) => {}
    }
}

/// The folder for a mount, which nobody but root can enter.
fn folder(mount: &Path) -> io::Result<PathBuf> {
    let all = Path::new(FOLDER);
    std::fs::create_dir_all(all)?;
    if rustix::fs::statfs(all)?.f_type != TMPFS {
        let why = format!("{FOLDER} is not on a tmpfs, and keys of users must not get to a disk");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let folder = all.join(name(mount));
    for folder in [all, &folder] {
        crate::private::folder(folder)?;
    }
    Ok(folder)
}

/// The name of the folder for a mount: always the same, and no other mount's.
fn name(mount: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    let bytes = mount.as_os_str().as_bytes().iter();
    bytes
        .map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mount_has_a_folder_of_its_own() {
        for (mount, expected) in
            [("/afs", "%2fafs"), ("/mnt/a-b", "%2fmnt%2fa-b"), ("/..", "%2f%2e%2e"), ("/%2f", "%2f%252f")]
        {
            assert_eq!(name(Path::new(mount)), expected);
        }
    }
}
