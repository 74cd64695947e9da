//! The level of a volume: how well a connection has to be protected over which its contents are told. These procedures are ours (Volume service
//! notes 5.6); a dump carries the level.

use afs_wire::afsvol::{GetLevel, MayLoseLevel, SetLevel, reply};
use rx::RpcError;
use rxgen::{Abort, Serve, ServerCall};

use super::{VolumeService, log};
use crate::codes;
use afs_wire::ids::{PartitionId, VolumeId};
use rx::Connection;
use rx::blocking::on_a_thread;

impl Serve<SetLevel> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, SetLevel>, args: SetLevel) -> Result<reply::SetLevel, Abort> {
        let SetLevel { trans, level } = args;
        let word = level.word();
        let about = self.in_transaction(trans, format!("at level {}", word.unwrap_or("unknown")));
        self.audited(call, about, async move {
            word.ok_or(codes::EINVAL)?;
            self.within(trans, "SetLevel", move |_, partition, volume| {
                partition.set_level(volume.id(), level).map_err(|e| log(&e, volume.id()))?;
                Ok(reply::SetLevel {})
            })
            .await
        })
        .await
    }
}

impl Serve<GetLevel> for VolumeService {
    async fn serve(&self, call: ServerCall<'_, GetLevel>, args: GetLevel) -> Result<reply::GetLevel, Abort> {
        self.may_query(call.security())?;
        let GetLevel { partition, volid } = args;
        let partition = self.partition(partition).ok_or(codes::ILLEGAL_PARTITION)?;
        on_a_thread(move || match partition.volume(volid) {
            Ok(volume) => Ok(reply::GetLevel { level: volume.level() }),
            Err(error) => Err(log(&error, volid)),
        })
        .await
    }
}

impl Serve<MayLoseLevel> for VolumeService {
    async fn serve(
        &self,
        call: ServerCall<'_, MayLoseLevel>,
        args: MayLoseLevel,
    ) -> Result<reply::MayLoseLevel, Abort> {
        let about = self.in_transaction(args.trans, "may be sent without its level");
        self.audited(call, about, async move {
            self.within(args.trans, "MayLoseLevel", |in_use, _, _| {
                in_use.transaction.may_lose_level = true;
                Ok(reply::MayLoseLevel {})
            })
            .await
        })
        .await
    }
}

/// True if another server knows levels: it answers a question about one, whatever it says.
pub(super) async fn knows_levels(server: &Connection) -> Result<bool, RpcError> {
    match server.rpc(&GetLevel { partition: PartitionId(0), volid: VolumeId(0) }).await {
        Err(error) if error.code().0 == Abort::OPCODE.0 => Ok(false),
        Err(error) if error.code().0 < 0 => Err(error),
        Ok(_) | Err(_) => Ok(true),
    }
}
