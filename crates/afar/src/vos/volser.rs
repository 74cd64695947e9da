//! Volume servers, as `vos` calls them: partitions, volumes, transactions, and the two operations that several verbs are made
//! of, removing a volume and cloning one. What else is printed is for the verbs.

use super::Vos;
use super::entry::Kind;
use crate::codes::Code;
use crate::printer::complain;
use afs_wire::afsvol::{
    self, AfsVol, AttachFlags, DiskPartition, DiskPartition64, PartitionName, TransDebugInfo, UNCHANGED,
    VolName, VolintInfo, VolintXInfo, VolumeFlags,
};
use afs_wire::ids::{AfsTime, PartitionId, TransId, VolumeId, VolumeType};
use rx::Connection;
use rxgen::xdr::CharVec;
use rxgen::{Interface, Rpc};
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

/// How often a volume that another transaction has is tried.
const BUSY_ATTEMPTS: u64 = 3;

/// A transaction on a volume. Whoever begins it ends it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transaction {
    pub(super) server: Ipv4Addr,
    pub(super) id: TransId,
}

/// What an operation is to change of a volume's header; what is not given stays.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Changes {
    pub(super) quota_kib: Option<i32>,
    pub(super) day_use: Option<i32>,
    pub(super) update_counter: Option<i32>,
}

/// Names of the volumes of a group: the read-write one's, and the ids of all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'a> {
    pub(super) name: &'a str,
    pub(super) kind: Kind,
    pub(super) parent: u32,
    pub(super) clone: u32,
    pub(super) backup: u32,
}

/// What to clone, and to what.
#[derive(Debug, Clone, Copy)]
pub(super) struct CloneOrder<'a> {
    pub(super) server: Ipv4Addr,
    pub(super) partition: PartitionId,
    pub(super) volume: u32,
    pub(super) clone: u32,
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    /// What the clone is called in complaints, such as `backup`.
    pub(super) what: &'a str,
}

/// How a volume is attached while it is taken offline.
pub(super) const OFFLINE: AttachFlags = AttachFlags::OFFLINE;
/// How a volume is attached while it is cloned.
pub(super) const BUSY: AttachFlags = AttachFlags::BUSY;

const fn kind_on_wire(kind: Kind) -> VolumeType {
    match kind {
        Kind::ReadWrite => VolumeType::READ_WRITE,
        Kind::ReadOnly => VolumeType::READ_ONLY,
        Kind::Backup => VolumeType::BACKUP,
    }
}

fn name_on_wire(name: &str) -> Result<VolName, Code> {
    VolName::try_from(name).map_err(|_| Code::VOLSERBADNAME)
}

impl Vos {
    fn volume_server(&self, server: Ipv4Addr) -> Connection {
        let connect = || {
            let address = SocketAddr::from((server, AfsVol::PORT));
            self.caller.connect(address, AfsVol::SERVICE_ID, self.login.security())
        };
        self.volume_servers.borrow_mut().entry(server).or_insert_with(connect).clone()
    }

    fn order<R: Rpc>(&self, server: Ipv4Addr, args: &R) -> Result<R::Reply, Code> {
        self.caller.call(&self.volume_server(server), args)
    }

    /// Calls again while another transaction has the volume, after a second, then two.
    fn order_patiently<R: Rpc>(&self, server: Ipv4Addr, args: &R) -> Result<R::Reply, Code> {
        for attempt in 1..BUSY_ATTEMPTS {
            match self.order(server, args) {
                Err(Code::VOLSERVOLBUSY) => thread::sleep(Duration::from_secs(attempt)),
                answer => return answer,
            }
        }
        self.order(server, args)
    }

    // ---- partitions

    /// The partitions of a server. Complains if they cannot be had.
    pub(super) fn partitions(&self, server: Ipv4Addr) -> Result<Vec<PartitionId>, Code> {
        let listed = match self.order(server, &afsvol::XListPartitions {}) {
            Err(Code::NO_SUCH_PROCEDURE) => self
                .order(server, &afsvol::ListPartitions {})
                .map(|reply| reply.part_ids.part_ids.into_iter().filter(|id| id.0 >= 0).collect()),
            other => other.map(|reply| reply.part_ids.into_vec()),
        };
        listed.inspect_err(|code| {
            complain!(self.printer, "Could not fetch the list of partitions from the server\n");
            self.print_error(*code);
        })
    }

    /// Size and free space of a partition. Complains if they cannot be had.
    pub(super) fn partition_info(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
    ) -> Result<DiskPartition64, Code> {
        let name = || PartitionName::try_from(partition.to_string().as_str()).map_err(|_| Code::EINVAL);
        let info = match self.order(server, &afsvol::PartitionInfo64 { name: name()? }) {
            Err(Code::NO_SUCH_PROCEDURE) => self
                .order(server, &afsvol::PartitionInfo { name: name()? })
                .map(|reply| widened(&reply.partition)),
            other => other.map(|reply| reply.partition),
        };
        info.inspect_err(|code| {
            complain!(self.printer, "Could not get information on partition {partition}\n");
            self.print_error(*code);
        })
    }

    // ---- lists

    /// The volumes of a partition; of each no more than its id unless `is_full`. Says nothing.
    pub(super) fn volumes_quietly(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        is_full: bool,
    ) -> Result<Vec<VolintInfo>, Code> {
        let reply = self.order(server, &afsvol::ListVolumes { partition, flags: i32::from(is_full) })?;
        Ok(reply.entries.into_vec())
    }

    /// The same. Complains if they cannot be had.
    pub(super) fn volumes(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        is_full: bool,
    ) -> Result<Vec<VolintInfo>, Code> {
        self.volumes_quietly(server, partition, is_full).inspect_err(|code| {
            complain!(self.printer, "Could not fetch the list of volumes from the server\n");
            self.print_error(*code);
        })
    }

    /// The volumes of a partition with statistics. Complains if they cannot be had.
    pub(super) fn volumes_with_statistics(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        is_full: bool,
    ) -> Result<Vec<VolintXInfo>, Code> {
        let reply = self.order(server, &afsvol::XListVolumes { partition, flags: i32::from(is_full) });
        reply.map(|reply| reply.entries.into_vec()).inspect_err(|code| {
            complain!(self.printer, "[UV_XListVolumes] Couldn't fetch volume list\n");
            self.print_error(*code);
        })
    }

    /// One volume of a partition. Says nothing.
    pub(super) fn volume_quietly(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
    ) -> Result<VolintInfo, Code> {
        let reply = self.order(server, &afsvol::ListOneVolume { partition, volid: VolumeId(id) })?;
        reply.entries.into_iter().next().ok_or(Code::ENODEV)
    }

    /// The same. Complains if it cannot be had.
    pub(super) fn volume(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
    ) -> Result<VolintInfo, Code> {
        self.volume_quietly(server, partition, id).inspect_err(|code| {
            complain!(self.printer, "Could not fetch the information about volume {id} from the server\n");
            self.print_error(*code);
        })
    }

    /// One volume of a partition with statistics. Complains if it cannot be had.
    pub(super) fn volume_with_statistics(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
    ) -> Result<VolintXInfo, Code> {
        let reply = self.order(server, &afsvol::XListOneVolume { partition, volid: VolumeId(id) });
        let first = reply.and_then(|reply| reply.entries.into_iter().next().ok_or(Code::ENODEV));
        first.inspect_err(|code| {
            complain!(self.printer, "[UV_XListOneVolume] Couldn't fetch the volume information\n");
            self.print_error(*code);
        })
    }

    /// Whether a partition has a volume: an error other than "no" is one.
    pub(super) fn has_volume(&self, server: Ipv4Addr, partition: PartitionId, id: u32) -> Result<bool, Code> {
        match self.volume_quietly(server, partition, id) {
            Ok(_) => Ok(true),
            Err(Code::ENODEV | Code::VOLSERILLEGAL_PARTITION) => Ok(false),
            Err(code) => Err(code),
        }
    }

    /// The transactions that a server has.
    pub(super) fn transactions(&self, server: Ipv4Addr) -> Result<Vec<TransDebugInfo>, Code> {
        self.order(server, &afsvol::Monitor {}).map(|reply| reply.entries.into_vec())
    }

    // ---- transactions

    /// Begins a transaction on a volume.
    pub(super) fn begin(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volume: u32,
        flags: AttachFlags,
    ) -> Result<Transaction, Code> {
        let volume = VolumeId(volume);
        let reply = self.order_patiently(server, &afsvol::TransCreate { volume, partition, flags })?;
        Ok(Transaction { server, id: reply.trans })
    }

    /// Ends a transaction; its own result is one of ours too.
    pub(super) fn end(&self, transaction: Transaction) -> Result<(), Code> {
        let Transaction { server, id: trans } = transaction;
        let reply = self.order(server, &afsvol::EndTrans { trans })?;
        Code(reply.rcode).check()
    }

    /// Ends a transaction whose own result does not matter.
    pub(super) fn end_whatever_came(&self, transaction: Transaction) -> Result<(), Code> {
        let Transaction { server, id: trans } = transaction;
        self.order(server, &afsvol::EndTrans { trans }).map(drop)
    }

    /// Makes a read-write volume, out of service.
    pub(super) fn create_volume(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        name: &str,
        id: u32,
    ) -> Result<(u32, Transaction), Code> {
        let (kind, parent, volid) = (VolumeType::READ_WRITE, VolumeId(0), VolumeId(id));
        let name = name_on_wire(name)?;
        let order = afsvol::CreateVolume { partition, name, kind, parent, volid };
        let reply = self.order_patiently(server, &order)?;
        Ok((reply.volid.0, Transaction { server, id: reply.trans }))
    }

    /// Sets the state of a transaction's volume.
    pub(super) fn set_flags(&self, transaction: Transaction, flags: VolumeFlags) -> Result<(), Code> {
        let Transaction { server, id: trans } = transaction;
        self.order(server, &afsvol::SetFlags { trans, flags }).map(drop)
    }

    /// Changes the header of a transaction's volume.
    pub(super) fn set_info(
        &self,
        transaction: Transaction,
        volume: Option<u32>,
        changes: Changes,
    ) -> Result<(), Code> {
        let Transaction { server, id: trans } = transaction;
        let unchanged = AfsTime(u32::MAX);
        let info = VolintInfo {
            name: CharVec([0; afsvol::VNAMESIZE]),
            volid: VolumeId(volume.unwrap_or(0)),
            kind: VolumeType::READ_WRITE,
            backup_id: VolumeId(0),
            parent_id: VolumeId(0),
            clone_id: VolumeId(0),
            status: 0,
            copy_date: AfsTime(0),
            in_use: 0,
            needs_salvaged: 0,
            destroy_me: 0,
            creation_date: unchanged,
            access_date: AfsTime(0),
            update_date: unchanged,
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
        self.order(server, &afsvol::SetInfo { trans, info }).map(drop)
    }

    /// Sets name, kind and relatives of a transaction's volume.
    pub(super) fn set_identity(&self, transaction: Transaction, to: Identity<'_>) -> Result<(), Code> {
        let Transaction { server, id } = transaction;
        let order = afsvol::SetIdsTypes {
            trans: id,
            name: name_on_wire(to.name)?,
            kind: kind_on_wire(to.kind),
            parent_id: VolumeId(to.parent),
            clone_id: VolumeId(to.clone),
            backup_id: VolumeId(to.backup),
        };
        self.order(server, &order).map(drop)
    }

    /// How many bytes a dump of a transaction's volume would have, of what changed since then.
    pub(super) fn dump_size(&self, transaction: Transaction, since: AfsTime) -> Result<u64, Code> {
        let Transaction { server, id: from_trans } = transaction;
        let reply = self.order(server, &afsvol::GetSize { from_trans, from_date: since })?;
        Ok(reply.size.dump_size)
    }

    /// Removes a transaction's volume.
    pub(super) fn delete_in(&self, transaction: Transaction) -> Result<(), Code> {
        let Transaction { server, id: trans } = transaction;
        self.order(server, &afsvol::DeleteVolume { trans }).map(drop)
    }

    /// Removes a volume without looking at it.
    pub(super) fn nuke_volume(&self, server: Ipv4Addr, partition: PartitionId, id: u32) -> Result<(), Code> {
        self.order(server, &afsvol::NukeVolume { partition, volid: VolumeId(id) }).map(drop)
    }

    // ---- operations

    /// Removes a volume; `what` is what it is called in complaints, such as `the`. Complains of everything but a volume that
    /// is not there.
    pub(super) fn delete_volume(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
        what: &str,
    ) -> Result<(), Code> {
        self.tell(&format!("Deleting {what} volume {id} ..."));
        let transaction = match self.begin(server, partition, id, OFFLINE) {
            Ok(transaction) => transaction,
            Err(Code::VNOVOL) => return Err(Code::VNOVOL),
            Err(code) => {
                self.print_failure(code, &format!("Failed to start transaction on {id}\n"));
                return Err(code);
            }
        };
        let flags = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
        let deleted = self
            .set_flags(transaction, flags)
            .inspect_err(|code| self.print_failure(*code, &format!("Could not set flags on volume {id} \n")))
            .and_then(|()| {
                self.delete_in(transaction).inspect_err(|code| {
                    self.print_failure(*code, &format!("Could not delete volume {id}\n"));
                })
            });
        let ended = self.end(transaction).inspect_err(|_| {
            complain!(self.printer, "Could not end transaction on {what} volume {id} \n");
        });
        let result = deleted.and(ended);
        if result.is_ok() {
            self.tell(" done\n");
        }
        result
    }

    /// Clones a volume, or clones it again where the clone exists. The clone stays offline. Complains of all that goes
    /// wrong.
    pub(super) fn clone_volume(&self, order: CloneOrder<'_>) -> Result<(), Code> {
        let CloneOrder { server, partition, volume, clone, what, .. } = order;
        let exists = match self.begin(server, partition, clone, OFFLINE) {
            Ok(transaction) => {
                self.end(transaction).inspect_err(|_| {
                    complain!(
                        self.printer,
                        "Could not end transaction on the previous {what} volume {clone}\n"
                    );
                })?;
                true
            }
            Err(Code::VNOVOL) => false,
            Err(code) => {
                self.print_failure(code, &format!("Could not reach the {what} volume {clone}\n"));
                return Err(code);
            }
        };
        let transaction = self.begin(server, partition, volume, BUSY).inspect_err(|_| {
            complain!(self.printer, "Could not start a transaction on the volume {volume}\n");
        })?;
        let cloned =
            if exists { self.reclone(transaction, order) } else { self.new_clone(transaction, order) };
        if cloned.is_ok() {
            self.tell(" done\n");
        }
        let ended = self.end(transaction).inspect_err(|_| {
            complain!(self.printer, "Could not end transaction on the volume {volume}\n");
        });
        cloned.and(ended)
    }

    fn reclone(&self, transaction: Transaction, order: CloneOrder<'_>) -> Result<(), Code> {
        let CloneOrder { clone, what, .. } = order;
        self.tell(&format!("Re-cloning {what} volume {clone} ..."));
        let (trans, clone_id) = (transaction.id, VolumeId(clone));
        self.order(order.server, &afsvol::ReClone { trans, clone_id }).map(drop).inspect_err(|code| {
            self.print_failure(*code, &format!("Could not re-clone {what} volume {clone}\n"));
        })
    }

    fn new_clone(&self, transaction: Transaction, order: CloneOrder<'_>) -> Result<(), Code> {
        let CloneOrder { clone, what, .. } = order;
        self.tell(&format!("Creating a new {what} clone {clone} ..."));
        let call = afsvol::Clone {
            trans: transaction.id,
            purge_vol: VolumeId(0),
            new_type: kind_on_wire(order.kind),
            new_name: name_on_wire(order.name)?,
            new_vol: VolumeId(clone),
        };
        self.order(order.server, &call).map(drop).inspect_err(|_| {
            complain!(self.printer, "Failed to clone the volume {}\n", order.volume);
        })
    }

    /// Attaches a volume, sets its state, waits for so long, and lets it go.
    pub(super) fn set_volume_state(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        id: u32,
        attach: AttachFlags,
        state: VolumeFlags,
        wait: Duration,
    ) -> Result<(), Code> {
        let transaction = self
            .begin(server, partition, id, attach)
            .inspect_err(|_| complain!(self.printer, "SetVolumeStatus: TransCreate Failed\n"))?;
        let set = self
            .set_flags(transaction, state)
            .inspect_err(|_| complain!(self.printer, "SetVolumeStatus: SetFlags Failed\n"));
        if set.is_ok() {
            thread::sleep(wait);
        }
        let ended = self
            .end(transaction)
            .inspect_err(|_| complain!(self.printer, "SetVolumeStatus: EndTrans Failed\n"));
        set.and(ended)
    }
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
