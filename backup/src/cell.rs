//! The cell whose volumes are backed up: its configuration folder, the identity, and the few calls that a backup makes. How databases and
//! volume servers are called is in `afs_admin`.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use crate::rights::User;
use afs_admin::entry::Kind;
use afs_admin::ptdb::ProtectionDb;
use afs_admin::remove::remove;
use afs_admin::restore::{self, DateOf, Dump, Order};
use afs_admin::vldb::{self, LocationDb};
use afs_admin::volumes::{NewClone, Transaction, VolumeServers, Wanted};
use afs_admin::{Cancel, Login, Offers};
use afs_config::{CellServDb, ThisCell};
use afs_wire::abort::VL_NOENT;
use afs_wire::afsvol::{AttachFlags, VolintInfo, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, EndpointConfig};
use rx_security::time::Clock;
use rx_security::{KeySet, Level, UnixTime};
use tokio::runtime::{Builder, Runtime};

/// A cell, called as its superuser.
pub(crate) struct Cell {
    /// Its name.
    pub(crate) name: String,
    /// Its database servers.
    pub(crate) machines: Vec<Ipv4Addr>,
    runtime: Runtime,
    endpoint: Endpoint,
    locations: LocationDb,
    protection: ProtectionDb,
    servers: VolumeServers,
}

/// A read-write volume and its place.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) name: String,
    pub(crate) id: VolumeId,
    pub(crate) server: Ipv4Addr,
    pub(crate) partition: PartitionId,
}

/// The place of a volume that is to be restored.
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    pub(crate) server: Ipv4Addr,
    pub(crate) partition: PartitionId,
}

impl Cell {
    /// Opens the cell of a configuration folder that has the cell's key.
    pub(crate) fn open(folder: &Path) -> Result<Self, String> {
        let name = ThisCell::read(&folder.join("ThisCell")).map_err(|error| error.to_string())?.0;
        let known = CellServDb::read(&folder.join("CellServDB")).map_err(|error| error.to_string())?;
        let cell = known.cells.iter().find(|cell| cell.name == name);
        let machines: Vec<Ipv4Addr> =
            cell.map(|cell| cell.servers.iter().map(|server| server.address).collect()).unwrap_or_default();
        if machines.is_empty() {
            return Err(format!("{}/CellServDB has no servers of the cell {name}", folder.display()));
        }
        let keys = KeySet::load(folder).map_err(|error| error.to_string())?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
        let entered = runtime.enter();
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let endpoint = Endpoint::bind(any, EndpointConfig::default());
        let endpoint = endpoint.map_err(|error| format!("cannot open a socket: {error}"))?;
        let seed =
            endpoint.runtime().seed().map_err(|error| format!("there are no random bytes: {error}"))?;
        let clock: Clock = Arc::new(|| UnixTime::of(SystemTime::now()));
        let login = Login::local_superuser(&keys, Level::Crypt, clock, &mut StdRng::from_seed(seed));
        let login = login.map_err(|error| format!("{}: {error}", folder.display()))?;
        drop(entered);
        let locations = LocationDb::new(&endpoint, &machines, &login);
        let protection = ProtectionDb::new(&endpoint, &machines, &login);
        let servers = VolumeServers::new(&endpoint, Offers::new(&endpoint, &machines, &login));
        Ok(Self { name: name.to_string(), machines, runtime, endpoint, locations, protection, servers })
    }

    /// Finds the read-write volume of this name or number.
    pub(crate) fn locate(&self, volume: &str) -> Result<Located, String> {
        let found = self.runtime.block_on(async {
            match self.locations.volume_id(volume).await? {
                None => Ok(None),
                Some(id) => self.locations.entry_by_id(id, None).await.map(Some),
            }
        });
        let entry = match found {
            Ok(Some(entry)) => entry,
            Ok(None) => return Err("has no number in the volume location database".to_owned()),
            Err(error) if error.code() == VL_NOENT => {
                return Err(format!("the cell {} has no such volume", self.name));
            }
            Err(error) => return Err(error.to_string()),
        };
        let Some(site) = entry.read_write_site() else {
            return Err("has no read-write volume, and only those are backed up".to_owned());
        };
        let (server, partition) = (site.server, site.partition);
        Ok(Located { id: entry.id(Kind::ReadWrite), name: entry.name, server, partition })
    }

    /// The names of the read-write volumes that a pattern means, sorted: in it, `*` stands for any text. A name without one means itself.
    pub(crate) fn matching(&self, pattern: &str) -> Result<Vec<String>, String> {
        if !pattern.contains('*') {
            return Ok(vec![pattern.to_owned()]);
        }
        let entries = self.runtime.block_on(self.locations.all_entries(vldb::Wanted::default()));
        let entries = entries.map_err(|error| error.to_string())?.into_iter();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.read_write_site().is_some() && matches(pattern, &entry.name))
            .map(|entry| entry.name)
            .collect();
        names.sort();
        match names.is_empty() {
            true => Err(format!("no volume of the cell {} has such a name", self.name)),
            false => Ok(names),
        }
    }

    /// Asks for a volume's dates and counts.
    pub(crate) fn info(&self, at: &Located) -> Result<VolintInfo, String> {
        let info = self.runtime.block_on(self.servers.volume(at.server, at.partition, at.id));
        info.map_err(|error| error.to_string())
    }

    /// Dumps what has changed in a volume since some time, or all of it (0), into `sink`. The dump is of a clone that is made for it, so
    /// that nobody waits for its end.
    pub(crate) fn dump(
        &self,
        at: &Located,
        since: AfsTime,
        sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), String> {
        self.runtime.block_on(async {
            let cloning = |error: afs_admin::Error| doing("cloning it", &error);
            let id = self.locations.new_volume_ids(1).await.map_err(cloning)?;
            let volume = self.servers.begin(at.server, at.partition, at.id, AttachFlags::BUSY).await;
            let done = match self.make_clone(at, id, volume.map_err(cloning)?).await {
                Err(error) => Err(cloning(error)),
                Ok(clone) => {
                    let wanted = Wanted { since, omits_directories: false };
                    let dumped = self.servers.dump(clone, wanted, sink).await;
                    let removed = self.servers.delete(clone).await;
                    let ended = self.servers.end(clone).await;
                    let dumped = dumped.map(drop).map_err(|error| doing("dumping it", &error));
                    if removed.and(ended).is_ok() {
                        return dumped;
                    }
                    dumped
                }
            };
            // It may be there, whatever has failed, and takes room on the server.
            match remove(&self.servers, at.server, at.partition, id).await {
                Err(error) if !error.is_missing() => {
                    let left = format!(
                        "its clone {id} may be left on {} until that starts again: {error}",
                        at.server
                    );
                    Err(done.map_or_else(|why| format!("{why}; {left}"), |()| left.clone()))
                }
                _ => done,
            }
        })
    }

    /// Makes a clone that nobody sees in a transaction on its volume, and begins one on the clone. The clone goes with the server's next start
    /// if this program does not come to remove it.
    async fn make_clone(
        &self,
        at: &Located,
        id: VolumeId,
        volume: Transaction,
    ) -> Result<Transaction, afs_admin::Error> {
        let name = format!("{}.clone", at.name);
        let new = NewClone { id, kind: Kind::ReadOnly, name: &name };
        let cloned = self.servers.clone_volume(volume, new).await;
        self.servers.end(volume).await?;
        cloned?;
        let clone = self.servers.begin(at.server, at.partition, id, AttachFlags::OFFLINE).await?;
        let flags = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
        match self.servers.set_flags(clone, flags).await {
            Ok(()) => Ok(clone),
            // Nobody can begin another one while this lasts.
            Err(error) => self.servers.end(clone).await.and(Err(error)),
        }
    }

    /// A user, with the groups that the protection database has them in now.
    pub(crate) fn user(&self, name: &str) -> Result<User, String> {
        let id = self.runtime.block_on(self.protection.id_of(name)).map_err(|error| error.to_string())?;
        if id.0 <= 0 {
            return Err(format!("{name} is a group: name a user"));
        }
        let ids = self.runtime.block_on(self.protection.access_ids(id)).map_err(|error| error.to_string())?;
        // Of a group that is not known, nobody knows what it is denied.
        if ids.is_cut {
            return Err(format!("{name} is in more groups than the protection database tells of"));
        }
        Ok(User::new(name, id, ids.ids))
    }

    /// Tells whether the cell has a volume of this name.
    pub(crate) fn has(&self, name: &str) -> Result<bool, String> {
        match self.runtime.block_on(self.locations.entry_by_name(name)) {
            Ok(_) => Ok(true),
            Err(error) if error.code() == VL_NOENT => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes a volume of a dump, or gives one that is there the dump's contents. Says its id.
    pub(crate) fn restore(
        &self,
        target: &Target<'_>,
        now: AfsTime,
        dump: impl FnMut() -> io::Result<Bytes>,
    ) -> Result<VolumeId, String> {
        let mut dump = Dump::begin(dump).map_err(|error| error.to_string())?;
        let order = Order {
            server: target.server,
            partition: target.partition,
            name: target.name,
            kind: Kind::ReadWrite,
            id: None,
            parent: None,
            is_full: true,
            stays_offline: false,
            creation: DateOf::Now,
            last_update: DateOf::Now,
            now,
            keeps_previous: false,
            may_lose_level: false,
        };
        let cancel = Cancel::default();
        let restored = restore::restore(&self.locations, &self.servers, &order, &mut dump, &cancel, |_| ());
        self.runtime.block_on(restored).map_err(|failure| failure.to_string())
    }
}

impl Drop for Cell {
    /// Servers are told that their calls are over.
    fn drop(&mut self) {
        self.endpoint.shut_down();
    }
}

fn doing(what: &str, error: &impl fmt::Display) -> String {
    format!("{what}: {error}")
}

/// Tells whether a name is one that a pattern means.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, rest)) => name.strip_prefix(begin).is_some_and(|left| {
            left.char_indices().map(|(at, _)| at).chain([left.len()]).any(|at| matches(rest, &left[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, is_meant) in [
            ("user.*", "user.alice", true),
            ("user.*", "user.", true),
            ("user.*", "users", false),
            ("*", "root.cell", true),
            ("*.cell", "root.cell", true),
            ("*.cell", "root.cells", false),
            ("a*b*c", "a.b.b.c", true),
            ("a*b*c", "acb", false),
            ("root.cell", "root.cell", true),
            ("root.cell", "root.cell2", false),
        ] {
            assert_eq!(matches(pattern, name), is_meant, "{pattern} {name}");
        }
    }
}
