//! Locks of a repository in a folder: backups share them, and pruning has ours alone. rustic has no locks and needs none: what it prunes it marks
//! first and removes days later. restic prunes at once, so it has to see that a backup runs: by a lock that is written again every few minutes.

use crate::progress::Bars;
use crate::repository::{LOCKS, Place, ResticLock, Store};
use rustic_core::jiff::Zoned;
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The file that is locked, beside those of the repository.
const FILE: &str = "afar-backup.lock";

/// The time after which a lock is written again: restic does the same, and takes one of half an hour for that of a dead machine.
const REFRESHED_AFTER: Duration = Duration::from_secs(300);

/// A lock of a repository. It has nothing in a repository that is not in a folder of this machine.
pub(crate) struct Lock {
    /// Released last.
    _restic: Option<Refreshed>,
    _ours: Option<File>,
}

/// Waits until nobody prunes. Nobody will while it is held.
pub(crate) fn shared(place: &Place, store: &Store) -> Result<Lock, String> {
    let Some(folder) = place.folder() else { return Ok(Lock { _restic: None, _ours: None }) };
    let ours = open(folder, File::try_lock_shared, File::lock_shared)?;
    let restic = Refreshed::new(place, store, folder)?;
    Ok(Lock { _restic: Some(restic), _ours: Some(ours) })
}

/// Waits until no afar-backup uses the repository; fails if a restic does.
pub(crate) fn exclusive(place: &Place, store: &Store) -> Result<Lock, String> {
    let Some(folder) = place.folder() else { return Ok(Lock { _restic: None, _ours: None }) };
    let ours = open(folder, File::try_lock, File::lock)?;
    let restic = Refreshed::new(place, store, folder)?;
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

/// A lock of restic's that does not grow old while it is held.
struct Refreshed {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Refreshed {
    fn new(place: &Place, store: &Store, folder: &Path) -> Result<Self, String> {
        let mut lock = store.show_restic(folder, Zoned::now())?;
        let (store, folder) = (place.open_again(store, &Bars::hidden())?, folder.to_owned());
        let (stop, stopped) = channel();
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(REFRESHED_AFTER) == Err(RecvTimeoutError::Timeout) {
                if let Err(why) = refresh(&store, &folder, &mut lock, Zoned::now()) {
                    eprintln!("afar-backup: cannot show restic any more that the repository is used: {why}");
                }
            }
        });
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Refreshed {
    /// The lock is gone afterwards.
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread that has panicked has told so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Writes a lock with a new time, before the old one goes.
fn refresh(store: &Store, folder: &Path, lock: &mut ResticLock, now: Zoned) -> Result<(), String> {
    *lock = store.show_restic(folder, now)?;
    Ok(())
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
    use rustic_core::jiff::Span;
    use std::process::Command;

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
    fn restic_does_not_take_the_lock_of_a_long_run_for_a_dead_one() {
        let folder = Folder::new("backup-refreshed");
        let place = place(&folder);
        place.init().expect("there is room");
        let store = place.open().expect("it was made");
        let at = place.folder().expect("it is one");
        let an_hour_ago = || Zoned::now().saturating_sub(Span::new().hours(1));
        let mut held = store.show_restic(at, an_hour_ago()).expect("there is room");
        refresh(&store, at, &mut held, Zoned::now()).expect("there is room");
        // Of a machine that has died.
        std::mem::forget(store.show_restic(at, an_hour_ago()).expect("there is room"));
        let locks = || fs::read_dir(at.join(LOCKS)).expect("it is there").count();
        assert_eq!(locks(), 2);
        let mut unlock = Command::new("restic");
        unlock.args(["--no-cache", "--repo", &place.repository, "--password-file"]);
        let Ok(unlocked) = unlock.arg(&place.password_file).arg("unlock").output() else {
            return afs_lab::skipped::skip_this("restic is not installed");
        };
        assert!(unlocked.status.success(), "{}", String::from_utf8_lossy(&unlocked.stderr));
        assert_eq!(locks(), 1, "the old one");
        drop(held);
        assert_eq!(locks(), 0);
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
