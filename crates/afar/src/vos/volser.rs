//! Volume servers, as the verbs of `vos` call them: one call after the other, by numbers as they are on the command line; what most
//! verbs complain of; and the two operations that several are made of, removing a volume and cloning one. How servers are
//! called is in `afs_admin`.

use super::Vos;
use crate::codes::Code;
use crate::printer::complain;
use afs_admin::Error;
use afs_admin::clone::{self, Source, make_clone};
use afs_admin::entry::Kind;
use afs_admin::remove::{self, remove};
use afs_admin::volumes::{self, Changes, NewClone, Transaction};
use afs_wire::afsvol::{AttachFlags, DiskPartition64, TransDebugInfo, VolintInfo, VolintXInfo, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The volume to clone, and the clone.
#[derive(Debug, Clone, Copy)]
pub(super) struct CloneOrder<'a> {
    pub(super) server: Ipv4Addr,
    pub(super) partition: PartitionId,
    pub(super) volume: u32,
    pub(super) clone: u32,
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    /// The name of the clone in complaints, such as `backup`.
    pub(super) what: &'a str,
}

/// The flags with which a volume is attached while it is taken offline.
pub(super) const OFFLINE: AttachFlags = AttachFlags::OFFLINE;
/// The flags with which a volume is attached while it is cloned.
pub(super) const BUSY: AttachFlags = AttachFlags::BUSY;

impl Vos {
    // ---- partitions

    /// The partitions of a server. Complains if they cannot be had.
    pub(super) fn partitions(&self, server: Ipv4Addr) -> Result<Vec<PartitionId>, Code> {
        self.wait(self.volumes.partitions(server)).inspect_err(|code| {
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
        self.wait(self.volumes.partition_info(server, partition)).inspect_err(|code| {
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
        self.wait(self.volumes.volumes(server, partition, is_full))
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
        let listed = self.wait(self.volumes.volumes_with_statistics(server, partition, is_full));
        listed.inspect_err(|code| {
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
        self.wait(self.volumes.volume(server, partition, VolumeId(id)))
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
        let found = self.wait(self.volumes.volume_with_statistics(server, partition, VolumeId(id)));
        found.inspect_err(|code| {
            complain!(self.printer, "[UV_XListOneVolume] Couldn't fetch the volume information\n");
            self.print_error(*code);
        })
    }

    /// Tells whether a partition has a volume: an error other than "no" is one.
    pub(super) fn has_volume(&self, server: Ipv4Addr, partition: PartitionId, id: u32) -> Result<bool, Code> {
        self.wait(self.volumes.has_volume(server, partition, VolumeId(id)))
    }

    /// The transactions that a server has.
    pub(super) fn transactions(&self, server: Ipv4Addr) -> Result<Vec<TransDebugInfo>, Code> {
        self.wait(self.volumes.transactions(server))
    }

    // ---- transactions

    /// Begins a transaction on a volume. From then on Ctrl-C ends the verb in order.
    pub(super) fn begin(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volume: u32,
        flags: AttachFlags,
    ) -> Result<Transaction, Code> {
        self.cancel();
        self.wait(self.volumes.begin(server, partition, VolumeId(volume), flags))
    }

    /// Ends a transaction; its own result is one of ours too.
    pub(super) fn end(&self, transaction: Transaction) -> Result<(), Code> {
        Code(self.wait(self.volumes.end(transaction))?.0).check()
    }

    /// Ends a transaction whose own result does not matter.
    pub(super) fn end_whatever_came(&self, transaction: Transaction) -> Result<(), Code> {
        self.wait(self.volumes.end(transaction)).map(drop)
    }

    /// Sets the state of a transaction's volume.
    pub(super) fn set_flags(&self, transaction: Transaction, flags: VolumeFlags) -> Result<(), Code> {
        self.wait(self.volumes.set_flags(transaction, flags))
    }

    /// Changes the header of a transaction's volume.
    pub(super) fn set_info(
        &self,
        transaction: Transaction,
        volume: Option<u32>,
        changes: Changes,
    ) -> Result<(), Code> {
        self.wait(self.volumes.set_info(transaction, volume.map(VolumeId), changes))
    }

    /// Sets name, kind and relatives of a transaction's volume.
    pub(super) fn set_identity(
        &self,
        transaction: Transaction,
        to: volumes::Identity<'_>,
    ) -> Result<(), Code> {
        self.wait(self.volumes.set_identity(transaction, to))
    }

    /// The bytes that a dump of a transaction's volume would have, of what changed since then. Ctrl-C breaks it off.
    pub(super) fn dump_size(&self, transaction: Transaction, since: AfsTime) -> Result<u64, Code> {
        self.caller.wait_unless_cancelled(self.volumes.dump_size(transaction, since), self.cancel())
    }

    /// Removes a volume without looking at it.
    pub(super) fn nuke_volume(&self, server: Ipv4Addr, partition: PartitionId, id: u32) -> Result<(), Code> {
        self.wait(self.volumes.nuke(server, partition, VolumeId(id)))
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
        self.cancel();
        self.tell(&format!("Deleting {what} volume {id} ..."));
        let removed = self.caller.run(remove(&self.volumes, server, partition, VolumeId(id)));
        let Err(failure) = removed else {
            self.tell(" done\n");
            return Ok(());
        };
        let code = Code(failure.error.code().0);
        match failure.step {
            remove::Step::Begin if failure.is_missing() => {}
            remove::Step::Begin => {
                self.print_failure(code, &format!("Failed to start transaction on {id}\n"));
            }
            remove::Step::SetFlags => {
                self.print_failure(code, &format!("Could not set flags on volume {id} \n"));
            }
            remove::Step::Delete => self.print_failure(code, &format!("Could not delete volume {id}\n")),
            remove::Step::End => {}
        }
        if failure.step == remove::Step::End || failure.not_ended.is_some() {
            complain!(self.printer, "Could not end transaction on {what} volume {id} \n");
        }
        Err(code)
    }

    /// Clones a volume, or clones it again where the clone exists. The clone stays offline. Complains of all that goes
    /// wrong.
    pub(super) fn clone_volume(&self, order: CloneOrder<'_>) -> Result<(), Code> {
        let CloneOrder { server, partition, volume, clone, kind, name, what } = order;
        let source = Source { server, partition, volume: VolumeId(volume) };
        let new = NewClone { id: VolumeId(clone), kind, name };
        let cloned =
            self.caller.run(make_clone(&self.volumes, source, new, self.cancel(), |event| match event {
                clone::Event::Cloning => self.tell(&format!("Creating a new {what} clone {clone} ...")),
                clone::Event::Recloning => self.tell(&format!("Re-cloning {what} volume {clone} ...")),
                clone::Event::Done => self.tell(" done\n"),
            }));
        cloned.map_err(|failure| {
            let code = Code(failure.error.code().0);
            if let Error::Cancelled = failure.error {
                complain!(self.printer, "vos: {}\n", failure.error);
            }
            match failure.step {
                clone::Step::Look => {
                    self.print_failure(code, &format!("Could not reach the {what} volume {clone}\n"));
                }
                clone::Step::EndLook => complain!(
                    self.printer,
                    "Could not end transaction on the previous {what} volume {clone}\n"
                ),
                clone::Step::Begin => {
                    complain!(self.printer, "Could not start a transaction on the volume {volume}\n");
                }
                clone::Step::Clone => complain!(self.printer, "Failed to clone the volume {volume}\n"),
                clone::Step::Reclone => {
                    self.print_failure(code, &format!("Could not re-clone {what} volume {clone}\n"));
                }
                clone::Step::End => {}
            }
            if failure.step == clone::Step::End || failure.not_ended.is_some() {
                complain!(self.printer, "Could not end transaction on the volume {volume}\n");
            }
            code
        })
    }

    /// Attaches a volume, sets its state, waits for so long or until Ctrl-C, and lets it go.
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
            self.caller.sleep(wait, self.cancel());
        }
        let ended = self
            .end(transaction)
            .inspect_err(|_| complain!(self.printer, "SetVolumeStatus: EndTrans Failed\n"));
        set.and(ended)?;
        if wait.is_zero() { Ok(()) } else { self.may_begin() }
    }
}
