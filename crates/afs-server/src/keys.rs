//! The keys of the cell as a server takes them: not DES alone, and closed to other users of the machine. What is in the files is
//! `rx-security`'s.

use std::fs::{self, Permissions};
use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rx::Runtime;
use rx_proto::time::Instant;
use rx_security::KeySet;
use rx_security::keys::{KEY_FILE, KEY_FILE_EXT, KEYTAB, NEGOTIATION_KEYTAB};

use crate::classes::Classes;

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

/// The least time between two looks for tickets for keys that are not there, which anybody may show.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The properties in which a changed file differs. A file that is replaced is another one, even within a second; one that has another
/// owner or mode may be readable now.
type Stamp = Option<(u64, u64, i64, i64)>;

/// The files of keys.
const FILES: [&str; 4] = [KEY_FILE_EXT, KEY_FILE, KEYTAB, NEGOTIATION_KEYTAB];

fn stamps(folder: &Path) -> [Stamp; FILES.len()] {
    FILES.map(|name| {
        let status = fs::metadata(folder.join(name)).ok()?;
        Some((status.ino(), status.len(), status.ctime(), status.ctime_nsec()))
    })
}

/// The keys of a folder, and what security uses them.
pub(crate) struct Watched {
    folder: PathBuf,
    allow_only_des: bool,
    classes: Classes,
    seen: Mutex<Seen>,
}

/// The last look at the files.
struct Seen {
    stamps: [Stamp; FILES.len()],
    /// The reason why they could not be read.
    failed: Option<String>,
    /// The time of the last look for a ticket for another key.
    for_unknown: Option<Instant>,
}

impl Watched {
    /// Makes the watcher of the keys that the server has just read. They are also looked at when somebody shows a ticket for another key: without,
    /// commands with the key that was just added would fail.
    pub(crate) fn new(
        folder: PathBuf,
        allow_only_des: bool,
        classes: Classes,
        runtime: &Arc<dyn Runtime>,
    ) -> Arc<Self> {
        let seen = Mutex::new(Seen { stamps: stamps(&folder), failed: None, for_unknown: None });
        let watched = Arc::new(Self { folder, allow_only_des, classes, seen });
        let (weak, runtime) = (Arc::downgrade(&watched), Arc::clone(runtime));
        watched.classes.when_key_is_unknown(move || {
            if let Some(watched) = weak.upgrade() {
                watched.look_for_unknown(runtime.now());
            }
        });
        watched
    }

    /// Somebody has shown a ticket for a key that is not there.
    fn look_for_unknown(&self, now: Instant) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.for_unknown.is_none_or(|last| now >= last + LOOK_AGAIN_AFTER) {
            seen.for_unknown = Some(now);
            self.look(&mut seen);
        }
    }

    /// Reads the keys anew if a file of theirs has changed.
    fn look(&self, seen: &mut Seen) {
        let stamps = stamps(&self.folder);
        if stamps == seen.stamps && seen.failed.is_none() {
            return;
        }
        let error = self.try_reload().err();
        if let Some(error) =
            error.as_ref().filter(|error| stamps != seen.stamps || seen.failed.as_ref() != Some(*error))
        {
            tracing::error!(%error, "the keys stay as they were, until they can be read");
        }
        // Reading may change the mode: then they are read once more.
        (seen.stamps, seen.failed) = (stamps, error);
    }

    /// Reads them anew: connections that stand go on. What cannot be used changes nothing.
    pub(crate) fn reload(&self) {
        if let Err(error) = self.try_reload() {
            tracing::error!(%error, "the keys stay as they were");
        }
    }

    fn try_reload(&self) -> Result<(), String> {
        self.classes.set_keys(load(&self.folder, self.allow_only_des)?);
        tracing::info!(folder = %self.folder.display(), "the keys were read anew");
        Ok(())
    }
}

/// Reads the keys anew whenever a file of theirs has changed, for as long as they are there.
pub(crate) async fn watch(watched: Weak<Watched>, runtime: Arc<dyn Runtime>) {
    loop {
        runtime.sleep_until(runtime.now() + LOOK_EVERY).await;
        let Some(watched) = watched.upgrade() else { return };
        watched.look(&mut watched.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Takes from those who are neither owner nor of the group what they may do with the files of keys. A group is there on purpose.
fn close_files(folder: &Path) {
    for name in FILES {
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
    use afs_lab::real::folder::Folder;
    use rx_security::keys::{EncType, Key};

    #[test]
    fn keys_for_des_alone_are_refused_unless_a_setting_allows_them() {
        let folder = Folder::new("des");
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
    }

    /// For up to a second after `afar key add`, every command with `-localauth` was refused: it uses the newest key at once.
    #[tokio::test]
    async fn a_key_that_was_just_added_is_known_to_who_comes_with_it() {
        let folder = Folder::new("new-key");
        let key = |kvno| Key::rxkad_krb5(kvno, EncType::AES256, &[7; 32]);
        let save =
            |kvnos: &[i32]| KeySet::of(kvnos.iter().map(|kvno| key(*kvno))).unwrap().save(&folder).unwrap();
        save(&[1]);
        let runtime: Arc<dyn Runtime> = Arc::new(rx::TokioRuntime::current());
        let clock = Arc::new(|| rx_security::UnixTime(0));
        let options = rx_security::rxkad::ServerOptions::of_cell("one.test");
        let keys = load(&folder, false).unwrap();
        let classes = Classes::new(keys, options, rx_security::Level::Crypt, clock, [1; 32]);
        let watched = Watched::new(folder.to_path_buf(), false, classes.clone(), &runtime);
        let begin = runtime.now();
        let known_at = |later: u32| {
            watched.look_for_unknown(begin + LOOK_AGAIN_AFTER * later / 2);
            classes.keys().iter().count()
        };
        save(&[1, 2]);
        assert_eq!(known_at(0), 2, "at once");
        save(&[1, 2, 3]);
        assert_eq!([1, 2].map(known_at), [2, 3], "files are not looked at for each ticket");
    }

    #[test]
    fn keys_that_others_could_read_are_closed_to_them() {
        let folder = Folder::new("keys");
        KeySet::of([Key::rxkad_krb5(4, EncType::AES256, &[7; 32])]).unwrap().save(&folder).unwrap();
        let file = folder.join(KEY_FILE_EXT);
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        load(&folder, false).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }
}
