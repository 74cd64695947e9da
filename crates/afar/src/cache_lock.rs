//! The wait for a cache that its last user is about to give up. `umount` comes back before the client that served the mount has ended, so
//! a mount that follows at once finds the cache in use for a moment.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

/// The time for which a cache in use is waited for: a client whose mount is gone ends within a second, unless it has much to store.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The file in the cache's folder that the cache's user locks.
const LOCK: &str = "lock";

/// Waits until nobody has the cache of this folder, or patience is over: then opening it says what is wrong.
pub(crate) async fn wait(folder: &Path) {
    wait_at_most(folder, TIMEOUT).await;
}

async fn wait_at_most(folder: &Path, patience: Duration) {
    let released = async {
        while is_held(folder) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let _ = tokio::time::timeout(patience, released).await;
}

/// True if a process has the lock. Where there is no cache, or none that can be opened, nobody has.
fn is_held(folder: &Path) -> bool {
    let Ok(lock) = OpenOptions::new().write(true).open(folder.join(LOCK)) else { return false };
    // Given up explicitly: a child that is being started has it open, too.
    lock.try_lock().is_err() || lock.unlock().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use std::fs::File;

    #[tokio::test]
    async fn a_cache_that_is_about_to_be_free_is_waited_for_and_another_is_not_for_ever() {
        let folder = Folder::new("cache-lock");
        wait(&folder).await;
        let held = File::create(folder.join(LOCK)).unwrap();
        held.lock().unwrap();
        wait_at_most(&folder, 2 * LOOK_EVERY).await;
        assert!(is_held(&folder), "it was waited for in vain");
        tokio::spawn(async move {
            tokio::time::sleep(3 * LOOK_EVERY).await;
            drop(held);
        });
        wait(&folder).await;
        assert!(!is_held(&folder));
    }
}
