//! The contents of a new cell: users, volumes, mount points, access lists. Made by calls to the services with the cell's
//! key, each step only where it is not done yet, so that a start that was cut off is gone on with.

use crate::login;
use crate::tree::{self, Tree, mount_text};
use afs_admin::create::{NewVolume, create};
use afs_admin::entry::{Kind, NAME_MAX};
use afs_admin::ptdb::ProtectionDb;
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Login, Offers};
use afs_wire::Errno;
use afs_wire::abort::VL_NOENT;
use afs_wire::ids::{AfsFid, PartitionId, ViceId};
use afs_wire::rights::Rights;
use afs_wire::status::StoreMask;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Endpoint, EndpointConfig};
use rx_security::time::Clock;
use rx_security::{KeySet, Level, UnixTime};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

/// The administrator's name.
pub(super) const ADMINISTRATOR: &str = "admin";

/// The partition on which volumes are made.
const PARTITION: PartitionId = PartitionId(0);

/// No limit but the disk's.
const NO_QUOTA: i32 = 0;

/// The quota, in KiB, of the volume that anybody may write where others than this machine's users reach it.
const SCRATCH_QUOTA_KIB: i32 = 5 << 20;

/// Rights as they are on access lists here.
const READ: Rights = Rights(Rights::READ.0 | Rights::LOOKUP.0);
const WRITE: Rights = Rights(READ.0 | Rights::INSERT.0 | Rights::DELETE.0 | Rights::WRITE.0 | Rights::LOCK.0);

/// A caller of the cell's services who may do everything.
pub(super) struct CellMaker {
    endpoint: Endpoint,
    /// The address at which volumes are, as the database is told.
    address: Ipv4Addr,
    cell: String,
    locations: LocationDb,
    users: ProtectionDb,
    volumes: VolumeServers,
    files: Tree,
}

/// The owner of the volume that is made besides those of the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    pub(super) name: &'a str,
    pub(super) id: ViceId,
}

/// Those who may read what is not a user's own, and write into `scratch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    /// Everybody who reaches the servers.
    Everybody,
    /// The cell's users: strangers reach the servers.
    Users,
}

impl CellMaker {
    /// One who calls the servers at an address, from another. The cell's administrator is known to the protection database already.
    ///
    /// # Errors
    ///
    /// When the keys make no tickets, or there is no port.
    pub(super) fn new(
        from: Ipv4Addr,
        address: Ipv4Addr,
        cell: &str,
        keys: &KeySet,
        seed: [u8; 32],
    ) -> Result<Self, String> {
        let mut random = StdRng::from_seed(seed);
        let clock: Clock = Arc::new(|| UnixTime::of(SystemTime::now()));
        let superuser = Login::local_superuser(keys, Level::Crypt, Arc::clone(&clock), &mut random);
        let superuser = superuser.map_err(|error| error.to_string())?;
        let administrator = login::user_by_key(keys, ADMINISTRATOR, cell, random.random())?;
        let endpoint = Endpoint::bind(SocketAddr::from((from, 0)), EndpointConfig::default())
            .map_err(|error| format!("no free port at {from}: {error}"))?;
        tree::refuse_callbacks(&endpoint);
        Ok(Self {
            locations: LocationDb::new(&endpoint, &[address], &superuser),
            users: ProtectionDb::new(&endpoint, &[address], &superuser),
            volumes: VolumeServers::new(&endpoint, Offers::all(&superuser)),
            files: Tree::new(&endpoint, address, &administrator),
            cell: cell.to_owned(),
            address,
            endpoint,
        })
    }

    /// Makes all that a cell has that nobody has worked in yet.
    ///
    /// # Errors
    ///
    /// Which step failed, and why.
    pub(super) async fn make(&self, owner: &Owner<'_>, readers: Readers) -> Result<(), String> {
        let root_afs = self.volume("root.afs").await?;
        let root_cell = self.volume("root.cell").await?;
        // Strangers on the network must not fill the disk; users of this machine could anyway.
        let quota = if self.address.is_loopback() { NO_QUOTA } else { SCRATCH_QUOTA_KIB };
        let scratch = self.volume_with("scratch", quota).await?;
        let home_name = volume_of(owner.name);
        let home = self.volume(&home_name).await?;

        let everybody = match readers {
            Readers::Everybody => "system:anyuser",
            Readers::Users => "system:authuser",
        };
        let everybody_reads = [("system:administrators", Rights::ALL), (everybody, READ)];
        // Clients without a dynamic root find the cell here.
        self.files.mount_point(root_afs, &self.cell, &mount_text("root.cell")).await?;
        self.files.mount_point(root_afs, &format!(".{}", self.cell), "%root.cell.").await?;
        self.files.access_list(root_afs, &everybody_reads).await?;

        self.files.mount_point(root_cell, "scratch", &mount_text("scratch")).await?;
        let users = self.files.folder(root_cell, "user").await?;
        self.files.mount_point(users, owner.name, &mount_text(&home_name)).await?;
        self.files.access_list(users, &everybody_reads).await?;
        self.files.access_list(root_cell, &everybody_reads).await?;

        let mut of_home = vec![("system:administrators", Rights::ALL), (everybody, Rights::LOOKUP)];
        if owner.name != ADMINISTRATOR {
            of_home.push((owner.name, Rights::ALL));
        }
        self.files.set(home, StoreMask::OWNER, owner.id, 0o755).await?;
        self.files.access_list(home, &of_home).await?;

        // The mode is what programs show; what counts is the list. New volumes have 0777, as OpenAFS's.
        for shared in [root_afs, root_cell] {
            self.files.set(shared, StoreMask::MODE, owner.id, 0o755).await?;
        }
        self.files.set(scratch, StoreMask::MODE, owner.id, 0o777).await?;
        let anybody_writes = [("system:administrators", Rights::ALL), (everybody, WRITE)];
        self.files.access_list(scratch, &anybody_writes).await
    }

    /// Ends it: servers are told to forget this caller.
    pub(super) async fn finish(self) {
        self.files.finish().await;
        self.endpoint.shut_down();
    }

    /// The number of a user in the cell; made with the number that is wished for, if that is free, when there is none of the
    /// name.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) async fn user(&self, name: &str, wish: u32) -> Result<ViceId, String> {
        if let Some(id) = self.id_of(name).await? {
            return Ok(id);
        }
        if let Some(id) = i32::try_from(wish).ok().filter(|id| *id > 0 && *id != ViceId::ANONYMOUS.0)
            && let Ok(id) = self.users.create_user(name, Some(ViceId(id))).await
        {
            return Ok(id);
        }
        let made = self.users.create_user(name, None).await;
        made.map_err(|error| format!("cannot make the user {name}: {error}"))
    }

    /// The number of a user; `None` if there is none of the name.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) async fn id_of(&self, name: &str) -> Result<Option<ViceId>, String> {
        let ids = self.users.ids_of(&[name]).await;
        let ids = ids.map_err(|error| format!("cannot look up the user {name}: {error}"))?;
        Ok(ids.first().copied().filter(|id| *id != ViceId::ANONYMOUS))
    }

    /// Makes a user an administrator.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) async fn administrator(&self, id: ViceId) -> Result<(), String> {
        match self.users.add_to_group(id, ViceId::SYSTEM_ADMINISTRATORS).await {
            Ok(()) => Ok(()),
            Err(error) if tree::is(error.code(), Errno::EEXIST) => Ok(()),
            Err(error) => Err(format!("cannot make user {id} an administrator: {error}")),
        }
    }

    /// The root directory of a volume of this name, which is made, without a quota, if there is none.
    async fn volume(&self, name: &str) -> Result<AfsFid, String> {
        self.volume_with(name, NO_QUOTA).await
    }

    /// The same with a quota, in KiB.
    async fn volume_with(&self, name: &str, quota_kib: i32) -> Result<AfsFid, String> {
        let doing = format!("cannot make the volume {name}");
        match self.locations.entry_by_name(name).await {
            Ok(entry) => return Ok(AfsFid::root_of(entry.id(Kind::ReadWrite))),
            Err(error) if error.code() == VL_NOENT => {}
            Err(error) => return Err(format!("{doing}: {error}")),
        }
        let (server, partition) = (self.address, PARTITION);
        let new = NewVolume { name, server, partition, quota_kib, id: None, read_only_id: None };
        let made = create(&self.locations, &self.volumes, new, &Cancel::default(), |_| {}).await;
        made.map(|ids| AfsFid::root_of(ids.read_write)).map_err(|failure| format!("{doing}: {failure}"))
    }
}

/// The volume of a user: its name may have [`NAME_MAX`] bytes.
pub(super) fn volume_of(user: &str) -> String {
    let mut name = format!("user.{user}");
    name.truncate(NAME_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_volume_has_a_name_that_volumes_can_have() {
        assert_eq!(volume_of("alice"), "user.alice");
        assert_eq!(volume_of("somebody-with-a-long-name").len(), 22);
    }
}
