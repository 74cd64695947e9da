//! What is set for a directory or a whole volume on this client, and outlasts its restarts: a byte, whose meaning is its owner's (`afs-view`).

use crate::records;
use crate::{Cache, CacheError, FileKey};
use afs_store::Batch;

impl Cache {
    /// Keeps what is set for a directory, or for a volume if vnode and uniquifier are 0; `None` forgets it. It outlasts a loss of power when
    /// this returns: it waits for the disk.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn keep_setting(&self, key: FileKey, setting: Option<u8>) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        match setting {
            Some(setting) => records::put(&mut batch, records::setting(key), [setting]),
            None => batch.delete(records::setting(key)),
        }
        self.inner.shared.commit(batch)?;
        self.sync()
    }

    /// All that is set. A row that makes no sense is dropped, and told in the log.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn settings(&self) -> Result<Vec<(FileKey, u8)>, CacheError> {
        let mut all = Vec::new();
        self.inner.shared.scan_or_drop(&records::settings(), |key, row| {
            let &[setting] = records::unsealed(key, row)? else { return None };
            all.push((records::file_of(key)?, setting));
            Some(())
        })?;
        Ok(all)
    }
}
