//! Locks of a repository in a folder: backups share them, and pruning has ours alone. rustic has no locks and needs none: what it prunes it marks
//! first and removes days later. restic prunes at once, so it has to see that a backup runs.

use crate::repository::{LOCKS, Place, ResticLock, Store};
use rustic_core::jiff::Zoned;
use std::fs::{self, File, TryLockError};
use std::path::Path;

/// The file that is locked, beside those of the repository.
const FILE: &str = "afar-backup.lock";

/// A lock of a repository. It has nothing in a repository that is not in a folder of this machine.
pub(crate) struct Lock {
    /// Released last.
    _restic: Option<ResticLock>,
    _ours: Option<File>,
}

/// Waits until nobody prunes. Nobody will while it is held.
pub(crate) fn shared(place: &Place, store: &Store) -> Result<Lock, String> {
    let Some(folder) = place.folder() else { return Ok(Lock { _restic: None, _ours: None }) };
    let ours = open(folder, File::try_lock_shared, File::lock_shared)?;
    let restic = store.show_restic(folder, Zoned::now())?;
    Ok(Lock { _restic: Some(restic), _ours: Some(ours) })
}

/// Waits until no afar-backup uses the repository; fails if a restic does.
pub(crate) fn exclusive(place: &Place, store: &Store) -> Result<Lock, String> {
    let Some(folder) = place.folder() else { return Ok(Lock { _restic: None, _ours: None }) };
    let ours = open(folder, File::try_lock, File::lock)?;
    let restic = store.show_restic(folder, Zoned::now())?;
    let locks = folder.join(LOCKS);
    match fs::read_dir(&locks).map_or(0, Iterator::count) {
        // Our own.
        0 | 1 => Ok(Lock { _restic: Some(restic), _ours: Some(ours) }),
        _ => Err(format!(
            "a restic uses {0}: try again later; if it has died, restic unlock, or remove the files in {1}",
            folder.display(),
            locks.display()
        )),
    }
}

fn open(
    folder: &Path,
    try_now: impl FnOnce(&File) -> Result<(), TryLockError>,
    wait: impl FnOnce(&File) -> std::io::Result<()>,
) -> Result<File, String> {
    let path = folder.join(FILE);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file =
        File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match try_now(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            eprintln!("afar-backup: waiting for another afar-backup to end");
            wait(&file).map_err(failed)?;
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::tests::place;
    use afs_lab::real::folder::Folder;

    #[test]
    fn nothing_is_pruned_while_a_restic_works() {
        let folder = Folder::new("backup-locked");
        let place = place(&folder);
        place.init().expect("there is room");
        let store = place.open().expect("it was made");
        drop(exclusive(&place, &store).expect("nobody works"));
        let lock = folder.write("repository/locks/of-restic", "");
        let refused = exclusive(&place, &store).err().expect("restic works");
        assert!(refused.starts_with("a restic uses "), "{refused}");
        drop(shared(&place, &store).expect("backups may run beside"));
        fs::remove_file(lock).expect("it is ours");
        drop(exclusive(&place, &store).expect("nobody works"));
    }

    #[test]
    fn backups_share_a_repository_and_a_prune_waits_for_them() {
        let folder = Folder::new("backup-shared");
        let place = place(&folder);
        place.init().expect("there is room");
        let store = place.open().expect("it was made");
        let backups = [shared(&place, &store), shared(&place, &store)].map(|lock| lock.expect("they share"));
        std::thread::scope(|scope| {
            let prune = scope.spawn(|| exclusive(&place, &place.open().expect("it was made")).map(drop));
            let [first, second] = backups;
            drop(first);
            assert!(!prune.is_finished());
            drop(second);
            assert_eq!(prune.join().expect("it does not panic"), Ok(()));
        });
    }
}
