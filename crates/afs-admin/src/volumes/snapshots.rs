//! Snapshots of a volume. Servers of ours know them (Volume service notes 5.7).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::time::Duration;

use afs_wire::afsvol::{self, SnapshotInfo, SnapshotSchedule, SnapshotType};
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use futures_util::future::{Either, join_all, select};
use rxgen::Abort;

use super::{Transaction, VolumeServers, name_on_wire};
use crate::error::Error;
use crate::transfer::Place;
use crate::vldb::LocationDb;

/// The time for which servers are waited for that may have a snapshot which nobody asked for.
const WAIT: Duration = Duration::from_secs(2);

/// What the snapshots of a volume hold, and may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotLimit {
    /// True if it is the volume's own limit; otherwise it is the quota.
    pub is_own: bool,
    /// Most KiB that they may hold before the oldest scheduled ones go; 0 is no limit.
    pub limit_kib: u32,
    /// KiB that they hold; `None` while the server still counts.
    pub held_kib: Option<u64>,
}

impl VolumeServers {
    /// Makes a snapshot of a transaction's volume, which is a read-write one, and says the time that it shows.
    ///
    /// # Errors
    ///
    /// The server's; that it knows no snapshots.
    pub async fn make_snapshot(&self, transaction: Transaction, new_vol: VolumeId) -> Result<AfsTime, Error> {
        let Transaction { server, id: trans } = transaction;
        match self.call(server, afsvol::SnapshotCreate { trans, new_vol }).await {
            Err(error) if error.code() == Abort::OPCODE => Err(knows_none(server)),
            made => made.map(|reply| reply.made),
        }
    }

    /// The snapshots of a volume that a server has, or those of all volumes (0), by volume and time. A server that knows none has none.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn snapshots(&self, server: Ipv4Addr, volume: VolumeId) -> Result<Vec<SnapshotInfo>, Error> {
        match self.call(server, afsvol::SnapshotList { volume }).await {
            Err(error) if error.code() == Abort::OPCODE => Ok(Vec::new()),
            listed => listed.map(|reply| reply.snapshots.into_vec()),
        }
    }

    /// Removes a snapshot. One that another transaction has is tried again, for 3 s.
    ///
    /// # Errors
    ///
    /// The server's; that it knows no snapshots.
    pub async fn remove_snapshot(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<(), Error> {
        match self.call_patiently(server, afsvol::SnapshotRemove { partition, volid }).await {
            Err(error) if error.code() == Abort::OPCODE => Err(knows_none(server)),
            removed => removed.map(drop),
        }
    }

    /// Makes of the snapshot that a removed volume has left the read-write volume `new` again, with this name. The location database is left
    /// as it is. One that another transaction has is tried again, for 3 s.
    ///
    /// # Errors
    ///
    /// The server's; VOLSERBADNAME for a name that is too long.
    pub async fn undelete(
        &self,
        server: Ipv4Addr,
        left: &SnapshotInfo,
        new: VolumeId,
        name: &str,
    ) -> Result<(), Error> {
        let (partition, volid, name) = (left.partition, left.volid, name_on_wire(name)?);
        let order = afsvol::SnapshotUndelete { partition, volid, new_vol: new, name };
        self.call_patiently(server, order).await.map(drop)
    }

    /// True if the server of a transaction takes over the snapshots of a volume that comes to it.
    pub(crate) async fn takes_snapshots(&self, target: Transaction) -> bool {
        let order = afsvol::SnapshotCarry {
            trans: target.id,
            new_vol: VolumeId(0),
            made: AfsTime(0),
            kind: SnapshotType::MANUAL,
        };
        self.call(target.server, order).await.is_ok()
    }

    /// Makes a snapshot of a transaction's volume, which is being filled, that has the id and the time of one at another server. One that is there
    /// already stays.
    ///
    /// # Errors
    ///
    /// The server's.
    pub(crate) async fn carry_snapshot(
        &self,
        target: Transaction,
        snapshot: &SnapshotInfo,
    ) -> Result<(), Error> {
        let SnapshotInfo { volid: new_vol, made, kind, .. } = *snapshot;
        let order = afsvol::SnapshotCarry { trans: target.id, new_vol, made, kind };
        self.call(target.server, order).await.map(drop)
    }

    /// Removes the snapshots of a volume that a place has and another one has as well. A server that cannot say which it has keeps them.
    ///
    /// # Errors
    ///
    /// The servers'.
    pub(crate) async fn remove_twins(&self, volume: VolumeId, at: Place, beside: Place) -> Result<(), Error> {
        let has = async |place: Place| {
            let mut found = self.snapshots(place.server, volume).await?;
            found.retain(|snapshot| snapshot.partition == place.partition);
            Ok::<_, Error>(found)
        };
        let other: BTreeSet<VolumeId> = has(beside).await?.iter().map(|snapshot| snapshot.volid).collect();
        if other.is_empty() {
            return Ok(());
        }
        for snapshot in has(at).await?.into_iter().filter(|snapshot| other.contains(&snapshot.volid)) {
            self.remove_snapshot(at.server, at.partition, snapshot.volid).await?;
        }
        Ok(())
    }

    /// Gives a snapshot a name of its own, under which it is served with the rights of its time; or the volume's name, and these and the rights
    /// of now. The location database is left as it is.
    ///
    /// # Errors
    ///
    /// The server's; VOLSERBADNAME for a name that is too long; that it knows no published snapshots.
    pub async fn publish_snapshot(
        &self,
        server: Ipv4Addr,
        snapshot: &SnapshotInfo,
        name: &str,
        is_published: bool,
    ) -> Result<(), Error> {
        let (partition, volid, name) = (snapshot.partition, snapshot.volid, name_on_wire(name)?);
        let order = afsvol::SnapshotPublish { partition, volid, is_published: i32::from(is_published), name };
        match self.call_patiently(server, order).await {
            Err(error) if error.code() == Abort::OPCODE => Err(too_old(server, "publish snapshots")),
            published => published.map(drop),
        }
    }

    /// Sets by which schedule the server makes snapshots of a transaction's volume; `None` is the server's own.
    ///
    /// # Errors
    ///
    /// The server's; that it knows no snapshots.
    pub async fn set_schedule(
        &self,
        transaction: Transaction,
        schedule: Option<SnapshotSchedule>,
    ) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        let none = SnapshotSchedule { hourly: 0, daily: 0, weekly: 0, monthly: 0 };
        let (is_own, schedule) = (i32::from(schedule.is_some()), schedule.unwrap_or(none));
        match self.call(server, afsvol::SnapshotSetSchedule { trans, is_own, schedule }).await {
            Err(error) if error.code() == Abort::OPCODE => Err(knows_none(server)),
            set => set.map(drop),
        }
    }

    /// The schedule of a volume, and whether it is its own.
    ///
    /// # Errors
    ///
    /// The server's; that it knows no snapshots.
    pub async fn schedule(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<(bool, SnapshotSchedule), Error> {
        match self.call(server, afsvol::SnapshotGetSchedule { partition, volid }).await {
            Err(error) if error.code() == Abort::OPCODE => Err(knows_none(server)),
            answer => answer.map(|reply| (reply.is_own != 0, reply.schedule)),
        }
    }

    /// Sets how many KiB the snapshots of a transaction's volume may hold, 0 for no limit; `None` is the volume's quota.
    ///
    /// # Errors
    ///
    /// The server's; that it knows no limits.
    pub async fn set_snapshot_limit(
        &self,
        transaction: Transaction,
        limit_kib: Option<u32>,
    ) -> Result<(), Error> {
        let Transaction { server, id: trans } = transaction;
        let (is_own, limit_kib) = (i32::from(limit_kib.is_some()), limit_kib.unwrap_or(0));
        match self.call(server, afsvol::SnapshotSetLimit { trans, is_own, limit_kib }).await {
            Err(error) if error.code() == Abort::OPCODE => Err(too_old(server, "limit what snapshots hold")),
            set => set.map(drop),
        }
    }

    /// What the snapshots of a volume hold and may hold; `None` at a server that does not know.
    ///
    /// # Errors
    ///
    /// The server's.
    pub async fn snapshot_limit(
        &self,
        server: Ipv4Addr,
        partition: PartitionId,
        volid: VolumeId,
    ) -> Result<Option<SnapshotLimit>, Error> {
        match self.call(server, afsvol::SnapshotGetLimit { partition, volid }).await {
            Err(error) if error.code() == Abort::OPCODE => Ok(None),
            answer => answer.map(|reply| {
                let held_kib = (reply.is_counted != 0).then_some(reply.held_kib);
                Some(SnapshotLimit { is_own: reply.is_own != 0, limit_kib: reply.limit_kib, held_kib })
            }),
        }
    }

    /// The snapshots of a volume at the cell's other servers, where it was before it moved. All are asked at once, and those that do not
    /// answer within two seconds are left out.
    ///
    /// # Errors
    ///
    /// The database's.
    pub async fn snapshots_elsewhere(
        &self,
        vldb: &LocationDb,
        at: Ipv4Addr,
        volume: VolumeId,
    ) -> Result<Vec<(Ipv4Addr, SnapshotInfo)>, Error> {
        let servers = vldb.file_servers().await?;
        let others = servers.into_iter().filter(|addresses| !addresses.contains(&at));
        let asked = others.filter_map(|addresses| addresses.first().copied()).map(async |server| {
            let timer = self.runtime().sleep_until(self.runtime().now() + WAIT);
            let asked = pin!(self.snapshots(server, volume));
            match select(asked, timer).await {
                Either::Left((Ok(found), _)) => found.into_iter().map(|info| (server, info)).collect(),
                Either::Left((Err(_), _)) | Either::Right(_) => Vec::new(),
            }
        });
        let found: Vec<Vec<(Ipv4Addr, SnapshotInfo)>> = join_all(asked).await;
        Ok(found.concat())
    }
}

fn too_old(server: Ipv4Addr, to_do: &str) -> Error {
    let what = format!("the volume server on {server} is too old to {to_do}");
    Error::Local { what, code: Abort::OPCODE }
}

fn knows_none(server: Ipv4Addr) -> Error {
    let what =
        format!("the volume server on {server} knows no snapshots: it is OpenAFS's, or an older one of ours");
    Error::Local { what, code: Abort::OPCODE }
}
