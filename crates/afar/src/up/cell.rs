//! The contents of a new cell: users, volumes, mount points, access lists. Made by calls to the services with the cell's
//! key, each step only where it is not done yet, so that a start that was cut off is gone on with.

use afs_admin::create::{NewVolume, create};
use afs_admin::entry::{Kind, NAME_MAX};
use afs_admin::ptdb::ProtectionDb;
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Login, Offers};
use afs_wire::Errno;
use afs_wire::abort::VL_NOENT;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsFid, Name, PartitionId, Path, ViceId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{
    AfsOpaque, FetchData64, FetchStatus, GiveUpAllCallBacks, MakeDir, OldStoreACL, Rxafs, StoreStatus,
    Symlink,
};
use afs_wire::rxafscb::Rxafscb;
use afs_wire::status::{AfsStoreStatus, StoreMask};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Endpoint, EndpointConfig, Peer, PeerLimits, RpcError, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass};
use rx_security::keys::{EncType, KeyType};
use rx_security::rxgk::{Dialect, Form};
use rx_security::time::Clock;
use rx_security::{Identity, KeySet, Level, UnixTime, rxgk, rxkad, ticket};
use rxgen::{Abort, Interface, Rpc};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The administrator's name.
pub(super) const ADMINISTRATOR: &str = "admin";

/// The partition on which volumes are made.
const PARTITION: PartitionId = PartitionId(0);

/// No limit but the disk's.
const NO_QUOTA: i32 = 0;

/// The quota, in KiB, of the volume that anybody may write where others than this machine's users reach it.
const SCRATCH_QUOTA_KIB: i32 = 5 << 20;

/// More than a new cell's root directory has: a directory has 2 MiB at most.
const DIRECTORY_MAX_BYTES: i64 = 2 << 20;

/// The lifetime of the tickets with which a cell is made.
const TICKET_LIFE: Duration = Duration::from_secs(3600);

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
    files: Peer,
}

/// The owner of the volume that is made besides those of the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    pub(super) name: &'a str,
    pub(super) id: ViceId,
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
        let who = Identity::parse(ADMINISTRATOR).expect("a good name");
        let now = SystemTime::now();
        let times = (UnixTime::of(now - TICKET_LIFE), UnixTime::of(now + TICKET_LIFE));
        let security = administrator(keys, &who, cell, times, clock, &mut random)?;
        let endpoint = Endpoint::bind(SocketAddr::from((from, 0)), EndpointConfig::default())
            .map_err(|error| format!("no free port at {from}: {error}"))?;
        refuse_callbacks(&endpoint);
        let to = SocketAddr::from((address, Rxafs::PORT));
        let files = endpoint.peer(to, ServiceId(Rxafs::SERVICE_ID), PeerLimits::default(), security);
        Ok(Self {
            locations: LocationDb::new(&endpoint, &[address], &superuser),
            users: ProtectionDb::new(&endpoint, &[address], &superuser),
            volumes: VolumeServers::new(&endpoint, Offers::all(&superuser)),
            files,
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
    pub(super) async fn make(&self, owner: &Owner<'_>) -> Result<(), String> {
        let root_afs = self.volume("root.afs").await?;
        let root_cell = self.volume("root.cell").await?;
        // Strangers on the network must not fill the disk; users of this machine could anyway.
        let quota = if self.address.is_loopback() { NO_QUOTA } else { SCRATCH_QUOTA_KIB };
        let scratch = self.volume_with("scratch", quota).await?;
        let home_name = volume_of(owner.name);
        let home = self.volume(&home_name).await?;

        let everybody_reads = [("system:administrators", Rights::ALL), ("system:anyuser", READ)];
        // Clients without a dynamic root find the cell here.
        self.mount_point(root_afs, &self.cell, "#root.cell.").await?;
        self.mount_point(root_afs, &format!(".{}", self.cell), "%root.cell.").await?;
        self.access_list(root_afs, &everybody_reads).await?;

        self.mount_point(root_cell, "scratch", "#scratch.").await?;
        let users = self.folder(root_cell, "user").await?;
        self.mount_point(users, owner.name, &format!("#{home_name}.")).await?;
        self.access_list(users, &everybody_reads).await?;
        self.access_list(root_cell, &everybody_reads).await?;

        let mut of_home = vec![("system:administrators", Rights::ALL), ("system:anyuser", Rights::LOOKUP)];
        if owner.name != ADMINISTRATOR {
            of_home.push((owner.name, Rights::ALL));
        }
        self.set(home, StoreMask::OWNER, owner.id, 0o755).await?;
        self.access_list(home, &of_home).await?;

        // The mode is what programs show; what counts is the list. New volumes have 0777, as OpenAFS's.
        for shared in [root_afs, root_cell] {
            self.set(shared, StoreMask::MODE, owner.id, 0o755).await?;
        }
        self.set(scratch, StoreMask::MODE, owner.id, 0o777).await?;
        let anybody_writes = [("system:administrators", Rights::ALL), ("system:anyuser", WRITE)];
        self.access_list(scratch, &anybody_writes).await
    }

    /// Ends it: servers are told to forget this caller.
    pub(super) async fn finish(self) {
        // Who has heard of no promises is not called back; if this fails, it is found out then.
        let _ = self.files.rpc(&GiveUpAllCallBacks {}).await;
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
            Err(error) if is(error.code(), Errno::EEXIST) => Ok(()),
            Err(error) => Err(format!("cannot make user {id} an administrator: {error}")),
        }
    }

    async fn ask<R: Rpc>(&self, args: &R, doing: &str) -> Result<R::Reply, String> {
        self.files.rpc(args).await.map_err(|error| format!("{doing}: {error}"))
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

    async fn mount_point(&self, dir: AfsFid, name: &str, text: &str) -> Result<(), String> {
        let doing = format!("cannot make the mount point {name} ({text})");
        let order = Symlink {
            dir,
            name: Name::new(name).map_err(|error| format!("{doing}: {error}"))?,
            contents: Path::new(text).map_err(|error| format!("{doing}: {error}"))?,
            // No x bit: so it is a mount point, and no link.
            status: mode(0o644),
        };
        there_or_made(self.files.rpc(&order).await.map(drop), &doing)
    }

    /// A folder of this name, which is made if there is none.
    async fn folder(&self, dir: AfsFid, name: &str) -> Result<AfsFid, String> {
        let doing = format!("cannot make the folder {name}");
        let wire_name = Name::new(name).map_err(|error| format!("{doing}: {error}"))?;
        match self.files.rpc(&MakeDir { dir, name: wire_name, status: mode(0o755) }).await {
            Ok(reply) => Ok(reply.fid),
            Err(error) if is(Abort(error.code().0), Errno::EEXIST) => {
                let pages = self.pages(dir).await.map_err(|error| format!("{doing}: {error}"))?;
                let directory = Directory::parse(&pages).map_err(|error| format!("{doing}: {error}"))?;
                let entry = directory
                    .lookup(name.as_bytes())
                    .ok_or_else(|| format!("{doing}: it existed, and then it was gone"))?;
                Ok(AfsFid { volume: dir.volume, vnode: entry.fid.vnode, unique: entry.fid.unique })
            }
            Err(error) => Err(format!("{doing}: {error}")),
        }
    }

    /// The contents of a directory: a word of two with their length, the pages, and the results (File service notes 6.3).
    async fn pages(&self, dir: AfsFid) -> Result<Vec<u8>, RpcError> {
        let failed = |source| RpcError::Call { rpc: FetchData64::NAME, source };
        let mut call = self.files.call().await.map_err(failed)?;
        call.send_request(&FetchData64 { fid: dir, pos: 0, length: DIRECTORY_MAX_BYTES }).await?;
        call.finish().map_err(failed)?;
        let mut length = [0; 8];
        call.read_exact(&mut length).await.map_err(failed)?;
        let mut pages = vec![0; u64::from_be_bytes(length).min(DIRECTORY_MAX_BYTES as u64) as usize];
        call.read_exact(&mut pages).await.map_err(failed)?;
        call.reply::<FetchData64>().await?;
        Ok(pages)
    }

    async fn access_list(&self, dir: AfsFid, entries: &[(&str, Rights)]) -> Result<(), String> {
        let mut text = format!("{}\n0\n", entries.len());
        for (name, rights) in entries {
            let _ = writeln!(text, "{name}\t{}", rights.0);
        }
        // Servers want a NUL at its end.
        text.push('\0');
        let doing = format!("cannot set the access list of {dir}");
        let access_list = AfsOpaque::new(text).map_err(|error| format!("{doing}: {error}"))?;
        self.ask(&OldStoreACL { fid: dir, access_list }, &doing).await.map(drop)
    }

    async fn set(&self, fid: AfsFid, mask: StoreMask, owner: ViceId, bits: u32) -> Result<(), String> {
        let doing = format!("cannot set the status of {fid}");
        let status = AfsStoreStatus { mask, owner, unix_mode_bits: bits, ..AfsStoreStatus::default() };
        let before = self.ask(&FetchStatus { fid }, &doing).await?.status;
        if mask == StoreMask::OWNER && before.owner == owner {
            return Ok(());
        }
        self.ask(&StoreStatus { fid, status }, &doing).await.map(drop)
    }
}

/// Makes the security of connections of a user of the cell: of rxgk, if there is a key for that.
fn administrator(
    keys: &KeySet,
    who: &Identity,
    cell: &str,
    times: (UnixTime, UnixTime),
    clock: Clock,
    random: &mut StdRng,
) -> Result<Box<dyn Fn() -> Box<dyn SecurityClass> + Send + Sync>, String> {
    let Some(key) = keys.newest(KeyType::RXGK) else {
        let ticket = ticket::for_user(keys, who, cell, times, random).map_err(|error| error.to_string())?;
        return Ok(Box::new(rxkad::Client::factory(ticket, Level::Crypt)));
    };
    let form = Form { dialect: Dialect::OURS, kind: EncType(key.subtype), level: Level::Crypt };
    let token = rxgk::Token::of_user(keys, form, who, cell, times, random);
    let token = token.map_err(|error| error.to_string())?;
    Ok(Box::new(rxgk::Client::factory(token, clock, random.random())))
}

/// The volume of a user: its name may have [`NAME_MAX`] bytes.
pub(super) fn volume_of(user: &str) -> String {
    let mut name = format!("user.{user}");
    name.truncate(NAME_MAX);
    name
}

/// Takes something that exists already for made.
fn there_or_made(result: Result<(), RpcError>, doing: &str) -> Result<(), String> {
    match result {
        Err(error) if is(Abort(error.code().0), Errno::EEXIST) => Ok(()),
        other => other.map_err(|error| format!("{doing}: {error}")),
    }
}

/// True if a server's code means this.
fn is(code: Abort, errno: Errno) -> bool {
    afs_wire::abort::errno(code) == Some(errno)
}

fn mode(bits: u32) -> AfsStoreStatus {
    AfsStoreStatus { mask: StoreMask::MODE, unix_mode_bits: bits, ..AfsStoreStatus::default() }
}

/// The file server asks who its clients are: this one keeps nothing that could have to be taken back.
fn refuse_callbacks(endpoint: &Endpoint) {
    let service = Service {
        id: ServiceId(Rxafscb::SERVICE_ID),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig::new(service, |_call| async { Err(Abort::OPCODE) }));
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
