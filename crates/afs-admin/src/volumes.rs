//! Volume servers: partitions, volumes and transactions (volume service notes).

mod forward;
mod level;
mod snapshots;
mod streams;

pub(crate) use level::would_lose_level;
pub use snapshots::SnapshotLimit;
pub use streams::{StreamError, Wanted};

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afs_wire::abort::{VOLSERBADNAME, VOLSERILLEGAL_PARTITION, VOLSERVOLBUSY};
use afs_wire::afsvol::{
    self, AfsVol, AttachFlags, DiskPartition, DiskPartition64, PartitionName, TransDebugInfo, UNCHANGED,
    VolName, VolintInfo, VolintXInfo, VolserStatus, VolumeFlags,
};
use afs_wire::errno::Errno;
use afs_wire::ids::{AfsTime, PartitionId, TransId, VolumeId, VolumeType};
use rx::{Connection, Endpoint, Runtime};
use rx_proto::config::CallLimits;
use rx_proto::ids::ServiceId;
use rxgen::xdr::CharVec;
use rxgen::{Abort, Interface, Rpc};

use crate::entry::Kind;
use crate::error::Error;
use crate::offers::Offers;

/// A volume server that sends nothing at all for so long is taken for dead. Half of what OpenAFS's `vos` waits; one that is busy
/// answers pings meanwhile.
const DEAD_AFTER: Duration = Duration::from_secs(45);

/// The number of times that a volume which another transaction has is tried: again after a second, then after two.
const BUSY_ATTEMPTS: u64 = 3;

/// The volume servers of a cell, called as one identity.
#[derive(Debug)]
pub struct VolumeServers {
    endpoint: Endpoint,
    offers: Offers,
    /// Those that were called.
    known: Mutex<BTreeMap<Ipv4Addr, Connection>>,
}

/// A transaction on a volume. The function that begins it ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// The server that has the volume.
    pub server: Ipv4Addr,
    /// The server's number of it.
    pub id: TransId,
}

/// The changes of a volume's header; what is not given stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// The quota, 0 for none.
    pub quota_kib: Option<i32>,
    /// The number of uses today.
    pub day_use: Option<i32>,
    /// The number of updates.
    pub update_counter: Option<i32>,
    /// The time when it was made.
    pub creation_date: Option<AfsTime>,
    /// The time when it was last changed.
    pub update_date: Option<AfsTime>,
}

/// Name, kind and relatives of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    /// The volume's own name.
    pub name: &'a str,
    /// The volume's own kind.
    pub kind: Kind,
    /// The read-write volume.
    pub parent: VolumeId,
    /// The read-only clone; 0 for none.
    pub clone: VolumeId,
    /// The backup clone; 0 for none.
    pub backup: VolumeId,
}

/// A clone that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewClone<'a> {
    /// Its id.
    pub id: VolumeId,
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: &'a str,
}

impl VolumeServers {
    /// The volume servers, called from this endpoint as these offers say.
    pub fn new(endpoint: &Endpoint, offers: Offers) -> Self {
        Self { endpoint: endpoint.clone(), offers, known: Mutex::default() }
    }

    async fn server(&self, server: Ipv4Addr) -> Result<Connection, Error> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = known().get(&server) {
            return Ok(connection.clone());
        }
        let login = self.offers.login_for(server).await?;
        let connect = || {
            let address = SocketAddr::from((server, AfsVol::PORT));
            let connection = self.endpoint.connect(address, ServiceId(AfsVol::SERVICE_ID), login.security());
            connection.set_limits(CallLimits { dead: DEAD_AFTER, ..CallLimits::default() });
            connection
        };
        Ok(known().entry(server).or_insert_with(connect).clone())
    }

    async fn call<R: Rpc>(&self, server: Ipv4Addr, args: R) -> Result<R::Reply, Error> {
        Ok(self.server(server).await?.rpc(&args).await?)
    }

    /// Calls again while another transaction has the volume.
    async fn call_patiently<R: Rpc>(&self, server: Ipv4Addr, args: R) -> Result<R::Reply, Error> {
        let connection = self.server(server).await?;
        for attempt in 1..BUSY_ATTEMPTS {
            match connection.rpc(&args).await {
                Err(error) if error.code().0 == VOLSERVOLBUSY.0 => {
                    let runtime = self.endpoint.runtime();
                    runtime.sleep_until(runtime.now() + Duration::from_secs(attempt)).await;
                }
                answer => return Ok(answer?),
            }
        }
        Ok(connection.rpc(&args).await?)
    }

    /// Time and timers of the endpoint.
    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        self.endpoint.runtime()
    }

    // ---- partitions

    /// The partitions of a server.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn partitions(&self, server: Ipv4Addr) -> Result<Vec<PartitionId>, Error> {
        match self.call(server, afsvol::XListPartitions {}).await {
            Err(error) if error.code() == Abort::OPCODE => {
                let ids = self.call(server, afsvol::ListPartitions {}).await?.part_ids.part_ids;
                Ok(ids.into_iter().filter(|id| id.0 >= 0).collect())
            }
            other => Ok(other?.part_ids.into_vec()),
        }
    }

    /// Size and free space of a partition.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn partition_info(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
    ) -> Result<DiskPartition64, Error> {
        let name = || {
            PartitionName::try_from(partition.to_string().as_str()).map_err(|_| Error::Local {
                what: format!("no partition is called {partition}"),
                code: Abort(Errno::EINVAL.0),
            })
        };
        match self.call(server, afsvol::PartitionInfo64 { name: name()? }).await {
            Err(error) if error.code() == Abort::OPCODE => {
                Ok(widened(&self.call(server, afsvol::PartitionInfo { name: name()? }).await?.partition))
            }
            other => Ok(other?.partition),
        }
    }

    // ---- lists

    /// The volumes of a partition; of each no more than its id unless `is_full`.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn volumes(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        is_full: bool,
    ) -> Result<Vec<VolintInfo>, Error> {
        let reply = self.call(server, afsvol::ListVolumes { partition, flags: i32::from(is_full) }).await?;
        Ok(reply.entries.into_vec())
    }

    /// The volumes of a partition with statistics.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn volumes_with_statistics(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        is_full: bool,
    ) -> Result<Vec<VolintXInfo>, Error> {
        let reply = self.call(server, afsvol::XListVolumes { partition, flags: i32::from(is_full) }).await?;
        Ok(reply.entries.into_vec())
    }

    /// One volume of a partition.
    ///
    /// # Errors
    ///
    /// The server's; ENODEV when it has no such volume.
    pub async fn volume(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<VolintInfo, Error> {
        let reply = self.call(server, afsvol::ListOneVolume { partition, volid }).await?;
        reply.entries.into_iter().next().ok_or_else(|| not_listed(server, partition, volid))
    }

    /// One volume of a partition with statistics.
    ///
    /// # Errors
    ///
    /// The server's; ENODEV when it has no such volume.
    pub async fn volume_with_statistics(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<VolintXInfo, Error> {
        let reply = self.call(server, afsvol::XListOneVolume { partition, volid }).await?;
        reply.entries.into_iter().next().ok_or_else(|| not_listed(server, partition, volid))
    }

    /// Tells whether a partition has a volume.
    ///
    /// # Errors
    ///
    /// The server's, but for those that say no.
    pub async fn has_volume(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<bool, Error> {
        match self.volume(server, partition, volid).await {
            Ok(_) => Ok(true),
            Err(error) if [Abort(Errno::ENODEV.0), VOLSERILLEGAL_PARTITION].contains(&error.code()) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The transactions that a server has.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn transactions(&self, server: Ipv4Addr) -> Result<Vec<TransDebugInfo>, Error> {
        Ok(self.call(server, afsvol::Monitor {}).await?.entries.into_vec())
    }

    // ---- transactions

    /// Begins a transaction on a volume. One that another transaction has is tried again, for 3 s.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn begin(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volume: VolumeId,
        flags: AttachFlags,
    ) -> Result<Transaction, Error> {
        let reply = self.call_patiently(server, afsvol::TransCreate { volume, partition, flags }).await?;
        Ok(Transaction { server, id: reply.trans })
    }

    /// Ends a transaction; says what has become of it. One whose last call was broken off may still be busy with what came: it is tried
    /// again, for 3 s.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn end(&self, transaction: Transaction) -> Result<Abort, Error> {
        let Transaction { server, id: trans } = transaction;
        Ok(Abort(self.call_patiently(server, afsvol::EndTrans { trans }).await?.rcode))
    }

    /// Ends a transaction in which nothing may have gone wrong.
    ///
    /// # Errors
    ///
    /// The server's, and what has become of the transaction if that is no success.
    pub async fn end_well(&self, transaction: Transaction) -> Result<(), Error> {
        let code = self.end(transaction).await?;
        if code == Abort(0) {
            return Ok(());
        }
        let Transaction { server, id } = transaction;
        Err(Error::Local { what: format!("transaction {id} of {server} has ended with {code}"), code })
    }

    /// Makes a read-write volume, out of service, and begins a transaction on it. Says the volume's id.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn create_volume(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        name: &str,
        volid: VolumeId,
    ) -> Result<(VolumeId, Transaction), Error> {
        let (kind, parent, name) = (VolumeType::READ_WRITE, VolumeId(0), name_on_wire(name)?);
        let order = afsvol::CreateVolume { partition, name, kind, parent, volid };
        let reply = self.call_patiently(server, order).await?;
        Ok((reply.volid, Transaction { server, id: reply.trans }))
    }

    /// Makes a volume that a dump will fill, out of service, and begins a transaction on it. Clone and backup of the identity are not
    /// looked at.
    ///
    /// # Errors
    ///
    /// The server's; VOLSERBADNAME for a name that is too long.
    pub async fn create_to_fill(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
        identity: Identity<'_>,
    ) -> Result<Transaction, Error> {
        let (name, kind) = (name_on_wire(identity.name)?, identity.kind.on_wire());
        let order = afsvol::CreateVolume { partition, name, kind, parent: identity.parent, volid };
        let reply = self.call_patiently(server, order).await?;
        Ok(Transaction { server, id: reply.trans })
    }

    /// The state of a transaction's volume.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn status(&self, transaction: Transaction) -> Result<VolserStatus, Error> {
        let Transaction { server, id: trans } = transaction;
        Ok(self.call(server, afsvol::GetStatus { trans }).await?.status)
    }

    /// Sets the creation date of a transaction's volume.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_creation_date(&self, transaction: Transaction, date: AfsTime) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        self.call(server, afsvol::SetDate { trans, new_date: date }).await.map(drop)
    }

    /// The name of a transaction's volume.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn name(&self, transaction: Transaction) -> Result<String, Error> {
        let Transaction { server, id: trans } = transaction;
        let name = self.call(server, afsvol::GetName { trans }).await?.name.into_bytes();
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// Sets the state of a transaction's volume.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_flags(&self, transaction: Transaction, flags: VolumeFlags) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        self.call(server, afsvol::SetFlags { trans, flags }).await.map(drop)
    }

    /// Changes the header of a transaction's volume. Servers do not look at the id.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn set_info(
        &self,
        transaction: Transaction,
        volid: Option<VolumeId>,
        changes: Changes,
    ) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        let unchanged = AfsTime(u32::MAX);
        let info = VolintInfo {
            name: CharVec([0; afsvol::VNAMESIZE]),
            volid: volid.unwrap_or(VolumeId(0)),
            kind: VolumeType::READ_WRITE,
            backup_id: VolumeId(0),
            parent_id: VolumeId(0),
            clone_id: VolumeId(0),
            status: 0,
            copy_date: AfsTime(0),
            in_use: 0,
            needs_salvaged: 0,
            destroy_me: 0,
            creation_date: changes.creation_date.unwrap_or(unchanged),
            access_date: AfsTime(0),
            update_date: changes.update_date.unwrap_or(unchanged),
            backup_date: AfsTime(0),
            day_use: changes.day_use.unwrap_or(UNCHANGED),
            filecount: 0,
            maxquota: changes.quota_kib.unwrap_or(UNCHANGED),
            size: 0,
            flags: UNCHANGED,
            spare0: UNCHANGED,
            spare1: UNCHANGED,
            spare2: changes.update_counter.unwrap_or(UNCHANGED),
            spare3: UNCHANGED,
        };
        self.call(server, afsvol::SetInfo { trans, info }).await.map(drop)
    }

    /// Sets name, kind and relatives of a transaction's volume.
    ///
    /// # Errors
    ///
    /// The server's; VOLSERBADNAME for a name that is too long.
    pub async fn set_identity(&self, transaction: Transaction, to: Identity<'_>) -> Result<(), Error> {
        let order = afsvol::SetIdsTypes {
            trans: transaction.id,
            name: name_on_wire(to.name)?,
            kind: to.kind.on_wire(),
            parent_id: to.parent,
            clone_id: to.clone,
            backup_id: to.backup,
        };
        self.call(transaction.server, order).await.map(drop)
    }

    /// Clones a transaction's volume. The clone stays offline.
    ///
    /// # Errors
    ///
    /// The server's; VOLSERBADNAME for a name that is too long.
    pub async fn clone_volume(&self, transaction: Transaction, new: NewClone<'_>) -> Result<(), Error> {
        let order = afsvol::Clone {
            trans: transaction.id,
            purge_vol: VolumeId(0),
            new_type: new.kind.on_wire(),
            new_name: name_on_wire(new.name)?,
            new_vol: new.id,
        };
        self.call(transaction.server, order).await.map(drop)
    }

    /// Gives a clone of a transaction's volume what the volume has now. The clone stays offline.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn reclone(&self, transaction: Transaction, clone_id: VolumeId) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        self.call(server, afsvol::ReClone { trans, clone_id }).await.map(drop)
    }

    /// The bytes that a dump of a transaction's volume would have, of what changed since then.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn dump_size(&self, transaction: Transaction, since: AfsTime) -> Result<u64, Error> {
        let Transaction { server, id: from_trans } = transaction;
        Ok(self.call(server, afsvol::GetSize { from_trans, from_date: since }).await?.size.dump_size)
    }

    /// Removes a transaction's volume. One whose last call was broken off may still be busy with what came: it is tried again, for 3 s.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn delete(&self, transaction: Transaction) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        self.call_patiently(server, afsvol::DeleteVolume { trans }).await.map(drop)
    }

    /// Removes a volume without looking at it.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn nuke(&self, server: Ipv4Addr, partition: PartitionId, volid: VolumeId) -> Result<(), Error> {
        self.call(server, afsvol::NukeVolume { partition, volid }).await.map(drop)
    }
}

fn not_listed(server: Ipv4Addr, partition: PartitionId, volid: VolumeId) -> Error {
    let what = format!("{server} listed nothing when it was asked for volume {volid} of {partition}");
    Error::Local { what, code: Abort(Errno::ENODEV.0) }
}

fn name_on_wire(name: &str) -> Result<VolName, Error> {
    VolName::try_from(name).map_err(|_| Error::Local {
        what: format!("{name} is too long for the name of a volume"),
        code: VOLSERBADNAME,
    })
}

fn widened(old: &DiskPartition) -> DiskPartition64 {
    let widened = |name: &CharVec<32>| CharVec::from_text(name.text()).unwrap_or(CharVec([0; 256]));
    DiskPartition64 {
        name: widened(&old.name),
        dev_name: widened(&old.dev_name),
        lock_fd: old.lock_fd,
        total_usable: i64::from(old.total_usable),
        free: i64::from(old.free),
        min_free: i64::from(old.min_free),
    }
}
