//! A volume server's calls for benches: volumes by the thousand, made without `vos`. They are not in the VLDB, and exist only
//! for who asks for them by number.

use std::ops::Deref;

use afs_wire::afsvol::{CreateVolume, EndTrans, SetFlags, VolName, VolumeFlags};
use afs_wire::ids::{PartitionId, VolumeId, VolumeType};

use super::client::Server;
use super::error::Error;

/// A volume server, called by one identity.
#[derive(Debug, Clone)]
pub struct VolumeServer {
    server: Server,
}

impl Deref for VolumeServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl VolumeServer {
    pub(crate) fn new(server: Server) -> Self {
        Self { server }
    }

    /// Makes a volume and brings it online: CreateVolume, SetFlags and EndTrans, as `vos create` does.
    ///
    /// # Errors
    ///
    /// The calls', or the name is too long.
    pub async fn create(&self, partition: PartitionId, name: &str, volume: VolumeId) -> Result<(), Error> {
        let text =
            VolName::new(name).map_err(|_| Error::Unsayable(format!("{name:?} as a volume's name")))?;
        let kind = VolumeType::READ_WRITE;
        let made = self
            .rpc(&CreateVolume { partition, name: text, kind, parent: VolumeId(0), volid: volume })
            .await?;
        self.rpc(&SetFlags { trans: made.trans, flags: VolumeFlags(0) }).await?;
        self.rpc(&EndTrans { trans: made.trans }).await?;
        Ok(())
    }
}
