//! Requests by which `fs` asks and changes the client itself, beyond what is in `volumes`: cells by whatever name
//! people give them, aliases, what is kept. Changes count until the client ends; lasting ones belong into its
//! configuration.

use afs_config::{CellAlias, CellName};
use afs_wire::control::{CacheUse, Waiting};
use rx_security::Level;

use crate::client::Client;
use crate::service::volumes::CellInfo;
use afs_reach::error::Error;
use afs_view::events::Change;
use afs_view::names::dynroot;

impl Client {
    /// A cell by its name, an alias, or a beginning of its name that no other has.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`].
    pub fn find_cell(&self, name: &str) -> Result<CellInfo, Error> {
        let wanted = name.to_ascii_lowercase();
        let cells = self.cells();
        let of_name = |name: &str| cells.iter().find(|cell| cell.name.as_str() == name);
        let aliases = self.aliases();
        let of_alias = || {
            let alias = aliases.iter().find(|alias| alias.alias.eq_ignore_ascii_case(&wanted))?;
            of_name(alias.cell.as_str())
        };
        let of_beginning = || {
            let begins = |cell: &&CellInfo| !wanted.is_empty() && cell.name.as_str().starts_with(&wanted);
            let mut found = cells.iter().filter(begins);
            found.next().filter(|_| found.next().is_none())
        };
        let found = of_name(&wanted).or_else(of_alias).or_else(of_beginning);
        found.cloned().ok_or_else(|| Error::NoCell { cell: name.to_owned() })
    }

    /// The same, and of what is not known the DNS is asked.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`]; [`Error::DnsSilent`].
    pub async fn find_cell_anywhere(&self, name: &str) -> Result<CellInfo, Error> {
        match self.find_cell(name) {
            Err(error) => match self.inner.dns.asks_for(name) {
                Some(cell) => {
                    self.inner.dns.cell_named(cell.as_str()).await?;
                    self.find_cell(name)
                }
                None => Err(error),
            },
            found => found,
        }
    }

    /// Other names of cells, which show in the dynamic root.
    pub fn aliases(&self) -> Vec<CellAlias> {
        self.inner.dynamic_root.aliases()
    }

    /// Gives a cell another name.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`]; [`Error::Exists`] for a name that a cell has; [`Error::Invalid`] for what cannot be a name.
    pub async fn add_alias(&self, alias: &str, cell: &str) -> Result<(), Error> {
        let cell = self.find_cell(cell)?.name;
        let invalid = || Error::Invalid { what: format!("{alias:?} as the name of a cell") };
        let alias = CellName::new(alias).ok_or_else(invalid)?.to_string();
        if self.cell_named(&alias).is_some() {
            return Err(Error::Exists { dir: dynroot::ROOT, name: alias });
        }
        self.inner.dynamic_root.add_alias(alias, cell);
        self.inner.invalidations.tell_of_names(dynroot::ROOT).await;
        Ok(())
    }

    /// Forgets all that is known, and all data but those that are dirty.
    pub async fn flush_all(&self) {
        for vnode in self.inner.vnodes.all() {
            vnode.forget();
        }
        if let Err(error) = self.inner.files.flush_all() {
            tracing::warn!(%error, "data stay in the cache");
        }
        let invalidations = &self.inner.invalidations;
        invalidations.tell_and_wait(&invalidations.changes(self.root(), Change::Everything)).await;
    }

    /// The use of the cache.
    pub fn cache_use(&self) -> CacheUse {
        let usage = self.cache_usage();
        CacheUse {
            size_kib: usage.limit_bytes >> 10,
            used_kib: usage.bytes.div_ceil(1 << 10),
            dirty_kib: self.dirty_bytes().div_ceil(1 << 10),
            files: usage.files as u64,
            conflicts: usage.conflicts as u64,
            statuses: self.vnode_count() as u64,
        }
    }

    /// What no server has yet, and what was put aside.
    pub fn waiting(&self) -> Waiting {
        let dirty = self.inner.files.cache.dirty_files();
        let (changes, oldest) = self.inner.changes.replay.journal.waiting();
        let oldest = [(changes > 0).then_some(oldest), self.inner.files.oldest_behind()];
        Waiting {
            changes: changes as u64,
            oldest: oldest.into_iter().flatten().min().unwrap_or_default(),
            files: dirty.len() as u64,
            bytes: dirty.iter().map(|file| file.dirty_bytes()).sum(),
            conflicts: self.cache_usage().conflicts as u64,
            is_paused: self.inner.changes.replay.journal.is_paused(),
        }
    }

    /// Sets how much may be kept on disk, in KiB; 0 is what is configured.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a client whose cache is in memory.
    pub fn set_cache_size(&self, size_kib: u64) -> Result<(), Error> {
        let Some(cache) = &self.config().cache else {
            return Err(Error::Unsupported { what: "the size of a cache in memory" });
        };
        let bytes = if size_kib == 0 { cache.limit_bytes } else { size_kib.saturating_mul(1 << 10) };
        self.set_cache_limit(bytes);
        Ok(())
    }

    /// True if calls that are made with a ticket are encrypted.
    pub fn is_encrypting(&self) -> bool {
        self.inner.users.level() == Level::Crypt
    }

    /// Sets whether what is said with a ticket is encrypted, for connections that are made from now on, and goes on with such.
    pub fn set_encrypting(&self, is_on: bool) {
        self.inner.users.set_level(if is_on { Level::Crypt } else { Level::Clear });
        self.inner.connections.renew_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use afs_config::CellServDb;
    use std::path::Path;

    async fn client() -> Client {
        let text = ">one.test #\n192.0.2.1 #a\n>other.test #\n192.0.2.2 #b\n";
        let cells = CellServDb::parse(text, Path::new("F")).unwrap();
        let mut config = Config::new(CellName::new("one.test").unwrap(), cells);
        config.bind = ([127, 0, 0, 1], 0).into();
        Client::start(config).await.unwrap()
    }

    #[tokio::test]
    async fn a_cell_goes_by_its_name_an_alias_and_the_beginning_of_it() {
        let client = client().await;
        let found = |name: &str| client.find_cell(name).map(|cell| cell.name.to_string());
        assert_eq!(found("ONE.test").unwrap(), "one.test");
        assert_eq!(found("ot").unwrap(), "other.test");
        for wrong in ["o", "", "three.test"] {
            assert_eq!(found(wrong).unwrap_err().errno().0, 2, "{wrong}");
        }
        client.add_alias("Two", "ot").await.unwrap();
        assert_eq!(found("two").unwrap(), "other.test");
        client.add_alias("two", "one.test").await.unwrap();
        assert_eq!(found("two").unwrap(), "one.test");
        assert_eq!(client.aliases().len(), 1);
        client.shut_down().await;
    }

    #[tokio::test]
    async fn the_dynamic_root_stays_as_it_is_until_it_is_told_of() {
        let client = client().await;
        let (root, user) = (client.root(), crate::User::of(0));
        let before = client.status(user, root).await.unwrap();
        assert_eq!(before.valid_until, rx_proto::time::Instant::MAX);
        let listing = client.read_dir(user, root).await.unwrap();
        assert_eq!(listing.data_version(), before.data_version);
        let mut notices = client.notices(crate::Audience::Anybody);
        let told = std::thread::spawn(move || notices.next_blocking().unwrap().changed);
        client.add_alias("two", "other.test").await.unwrap();
        let told = told.join().unwrap();
        assert_eq!((told.fid, told.change), (root, Change::Names));
        assert!(client.status(user, root).await.unwrap().data_version > before.data_version);
        client.shut_down().await;
    }

    #[tokio::test]
    async fn an_alias_is_no_cells_name() {
        let client = client().await;
        assert_eq!(client.add_alias("other.test", "one.test").await.unwrap_err().errno().0, 17);
        assert_eq!(client.add_alias("a/b", "one.test").await.unwrap_err().errno().0, 22);
        assert_eq!(client.add_alias("x", "nosuch").await.unwrap_err().errno().0, 2);
        client.shut_down().await;
    }
}
