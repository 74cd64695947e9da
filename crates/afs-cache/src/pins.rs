//! What users have pinned on this client: files, and directories with what is below them, whose data go last when the cache is full. Which files
//! that are, and that they are here, is its owner's matter (`afs-view`); here is what outlasts restarts.

use crate::records;
use crate::{Cache, CacheError, FileKey};
use afs_store::codec::{Fields, Value};
use afs_store::{Batch, StoreError};

/// A file or directory that a user has pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The file or directory.
    pub key: FileKey,
    /// The local user.
    pub user: u32,
    /// The user's identity in the cell then, by a name that the caller chooses; empty for an anonymous user.
    pub holder: String,
    /// The names that lead to it from the client's root, with slashes between them; empty if they are not known.
    pub path: Vec<u8>,
}

impl Pin {
    fn encode(&self) -> Vec<u8> {
        Value::default().string(&self.holder).bytes(&self.path).0
    }

    fn decode((key, user): (FileKey, u32), bytes: &[u8]) -> Result<Self, StoreError> {
        let mut f = Fields::new("a pin", bytes);
        Ok(Self { key, user, holder: f.string()?, path: f.rest().to_vec() })
    }
}

impl Cache {
    /// Keeps a pin, in place of the same user's for the same file. It outlasts a loss of power when this returns: it waits for the disk.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn keep_pin(&self, pin: &Pin) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        records::put(&mut batch, records::pin(pin.key, pin.user), pin.encode());
        self.inner.shared.commit(batch)?;
        self.sync()
    }

    /// Forgets a user's pin. It waits for the disk.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget_pin(&self, key: FileKey, user: u32) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        batch.delete(records::pin(key, user));
        self.inner.shared.commit(batch)?;
        self.sync()
    }

    /// All pins. A row that makes no sense is dropped, and told in the log.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn pins(&self) -> Result<Vec<Pin>, CacheError> {
        let mut all = Vec::new();
        self.inner.shared.scan_or_drop(&records::pins(), |key, row| {
            all.push(Pin::decode(records::pin_of(key)?, records::unsealed(key, row)?).ok()?);
            Some(())
        })?;
        Ok(all)
    }

    /// Says of files, or of all of a volume ([`FileKey::of_volume`]), whether they go last when the cache is full, in whichever version and also if
    /// nothing of them is here yet. It ends with the process.
    pub fn set_pinned(&self, keys: &[FileKey], is_pinned: bool) {
        self.inner.shared.set_pinned(keys, is_pinned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CellNumber, Config, Held};

    const LIMIT: u64 = 1 << 20;

    fn key(vnode: u32) -> FileKey {
        FileKey { cell: CellNumber(1), volume: 2, vnode, unique: 4 }
    }

    fn cache() -> Cache {
        Cache::in_memory(Config { has_keeper: false, ..Config::new(LIMIT) }).unwrap()
    }

    /// Puts a file of 100 kB into the cache, as if it was fetched.
    fn fill(cache: &Cache, vnode: u32) {
        let Held::Current(file) = cache.file(key(vnode), 1, 100_000).unwrap() else { panic!("it is dirty") };
        file.fill(0, &[7; 100_000]).unwrap();
        file.confirm(0..100_000);
    }

    #[test]
    fn what_is_pinned_is_there_after_a_restart_and_damage_costs_one_pin() {
        let cache = cache();
        let pin = |vnode, user, path: &[u8]| Pin {
            key: key(vnode),
            user,
            holder: "alice".to_owned(),
            path: path.to_vec(),
        };
        let all = [pin(3, 1001, b"one.test/a"), pin(3, 1002, b""), pin(5, 1001, b"\xff/b")];
        all.iter().for_each(|pin| cache.keep_pin(pin).unwrap());
        assert_eq!(cache.pins().unwrap(), all);
        cache.forget_pin(key(3), 1001).unwrap();
        let mut batch = Batch::default();
        records::put(&mut batch, records::pin(key(3), 1002), [0, 9, b'a']);
        cache.inner.shared.commit(batch).unwrap();
        assert_eq!(cache.pins().unwrap(), all[2..], "one is taken back, and one makes no sense");
        let bytes = all[2].encode();
        assert!((0..7).all(|length| Pin::decode((key(5), 1001), &bytes[..length]).is_err()));
    }

    #[test]
    fn a_full_cache_lets_go_of_what_nobody_has_pinned_and_of_the_rest_only_if_it_must() {
        let cache = cache();
        cache.set_pinned(&[key(2), key(4), key(6)], true);
        (1..=12).for_each(|number| fill(&cache, 2 * number));
        cache.maintain().unwrap();
        let kept = |vnode| cache.present_bytes(key(vnode)) == 100_000;
        assert!([2, 4, 6].into_iter().all(kept), "it was used least recently");
        assert!(!kept(8) && kept(24));
        cache.set_pinned(&[key(2)], false);
        cache.set_limit(250_000);
        cache.maintain().unwrap();
        assert_eq!([2, 4, 6, 24].map(kept), [false, true, true, false]);
        cache.set_pinned(&[key(2).of_volume()], true);
        fill(&cache, 26);
        fill(&cache, 28);
        let other = FileKey { volume: 3, ..key(2) };
        let Held::Current(file) = cache.file(other, 1, 100_000).unwrap() else { panic!("it is dirty") };
        file.fill(0, &[7; 100_000]).unwrap();
        drop(file);
        cache.set_limit(450_000);
        cache.maintain().unwrap();
        let kept = |key| cache.present_bytes(key) > 0;
        assert!(
            [4, 6, 26, 28].into_iter().all(|vnode| kept(key(vnode))) && !kept(other),
            "its whole volume is pinned"
        );
        cache.set_limit(150_000);
        cache.maintain().unwrap();
        assert!(cache.usage().bytes <= 150_000, "pins keep more than there may be");
    }
}
