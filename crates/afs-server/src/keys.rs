//! The keys of the cell as a server takes them: not DES alone, and closed to other users of the machine. What is in the files is
//! `rx-security`'s.

use std::fs::{self, Permissions};
use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rx::Runtime;
use rx_security::keys::{KEY_FILE, KEY_FILE_EXT, KEYTAB};
use rx_security::{KeySet, rxkad};

/// Reads them.
///
/// # Errors
///
/// Why they cannot be used, and what to do.
pub(crate) fn load(folder: &Path, allow_only_des: bool) -> Result<KeySet, String> {
    close_files(folder);
    let keys = KeySet::load(folder).map_err(|error| error.to_string())?;
    if keys.has_only_des() {
        let what = format!(
            "all keys in {} are DES keys. An attacker who has seen one ticket can find such a key within hours, and can \
             then act as any user",
            folder.display()
        );
        if !allow_only_des {
            return Err(format!(
                "{what}. Add an AES key with 'afar key add KEYTAB', or set security.allow_only_des until there is one"
            ));
        }
        tracing::warn!("{what}");
    }
    Ok(keys)
}

/// The time between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The properties in which a changed file differs. A file that is replaced is another one, even within a second; one that has another
/// owner or mode may be readable now.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamps(folder: &Path) -> [Stamp; 3] {
    [KEY_FILE_EXT, KEY_FILE, KEYTAB].map(|name| {
        let status = fs::metadata(folder.join(name)).ok()?;
        Some((status.ino(), status.len(), status.ctime(), status.ctime_nsec()))
    })
}

/// The keys of a folder, and what security uses them.
pub(crate) struct Watched {
    folder: PathBuf,
    allow_only_des: bool,
    rxkad: rxkad::Server,
}

impl Watched {
    /// Makes the watcher of the keys that the server has just read.
    pub(crate) const fn new(folder: PathBuf, allow_only_des: bool, rxkad: rxkad::Server) -> Self {
        Self { folder, allow_only_des, rxkad }
    }

    /// Reads them anew: connections that stand go on. What cannot be used changes nothing.
    pub(crate) fn reload(&self) {
        if let Err(error) = self.try_reload() {
            tracing::error!(%error, "the keys stay as they were");
        }
    }

    fn try_reload(&self) -> Result<(), String> {
        self.rxkad.set_keys(load(&self.folder, self.allow_only_des)?);
        tracing::info!(folder = %self.folder.display(), "the keys were read anew");
        Ok(())
    }
}

/// Reads the keys anew whenever a file of theirs has changed, for as long as they are there.
pub(crate) async fn watch(watched: Weak<Watched>, runtime: Arc<dyn Runtime>) {
    let Some(mut before) = watched.upgrade().map(|watched| stamps(&watched.folder)) else { return };
    let mut failed = None;
    loop {
        runtime.sleep_until(runtime.now() + LOOK_EVERY).await;
        let Some(watched) = watched.upgrade() else { return };
        let now = stamps(&watched.folder);
        if now != before || failed.is_some() {
            let error = watched.try_reload().err();
            if let Some(error) =
                error.as_ref().filter(|error| now != before || failed.as_ref() != Some(*error))
            {
                tracing::error!(%error, "the keys stay as they were, until they can be read");
            }
            // Reading may change the mode: then they are read once more.
            (before, failed) = (now, error);
        }
    }
}

/// Takes from those who are neither owner nor of the group what they may do with the files of keys. A group is there on purpose.
fn close_files(folder: &Path) {
    for name in [KEY_FILE_EXT, KEY_FILE, KEYTAB] {
        let file = folder.join(name);
        let close = || {
            let mode = fs::metadata(&file)?.permissions().mode() & 0o7777;
            if mode & 0o007 == 0 {
                return Ok(false);
            }
            fs::set_permissions(&file, Permissions::from_mode(mode & !0o007)).map(|()| true)
        };
        match close() {
            Ok(false) => {}
            Ok(true) => tracing::warn!(
                file = %file.display(),
                "other users of this machine could read the cell's keys, and cannot any more: make new keys"
            ),
            Err(error) if matches!(error.kind(), NotFound) => {}
            Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => tracing::warn!(
                file = %file.display(),
                %error,
                "other users of this machine can read the cell's keys: chmod 600"
            ),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the mode of a file of keys is not known")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rx_security::keys::{EncType, Key};

    #[test]
    fn keys_for_des_alone_are_refused_unless_a_setting_allows_them() {
        let folder = std::env::temp_dir().join(format!("afs-server-des-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let des = Key::rxkad(3, *b"\x01\x02\x04\x07\x08\x0b\x0d\x0e");
        KeySet::of([des.clone()]).unwrap().save(&folder).unwrap();
        let error = load(&folder, false).unwrap_err();
        assert!(error.contains("DES") && error.contains("security.allow_only_des"), "{error}");
        assert_eq!(load(&folder, true).unwrap().iter().count(), 1);
        let aes = Key::rxkad_krb5(4, EncType::AES256, &[7; 32]);
        KeySet::of([des, aes]).unwrap().save(&folder).unwrap();
        assert_eq!(
            load(&folder, false).unwrap().iter().count(),
            2,
            "beside another it is the administrator's"
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn keys_that_others_could_read_are_closed_to_them() {
        let folder = std::env::temp_dir().join(format!("afs-server-keys-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        KeySet::of([Key::rxkad_krb5(4, EncType::AES256, &[7; 32])]).unwrap().save(&folder).unwrap();
        let file = folder.join(KEY_FILE_EXT);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        load(&folder, false).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        fs::remove_dir_all(folder).unwrap();
    }
}
