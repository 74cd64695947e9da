//! Invitations and devices of a cell (Join notes): how administrators make, list and revoke them.

use afs_wire::ids::AfsTime;
use afs_wire::join::{
    DeviceInfo, InvitationInfo, Join, JoinApprove, JoinDigest, JoinFlags, JoinInvite, JoinKey,
    JoinListDevices, JoinListInvitations, JoinName, JoinRemoveOldKeys, JoinRename, JoinRevoke, JoinRevoked,
    JoinRotateKey, JoinTarget, JoinUser,
};
use rx::Endpoint;
use rxgen::Rpc;
use rxgen::xdr::OpaqueFixed;

use crate::database::{DatabaseServers, Machine};
use crate::error::Error;
use crate::login::Login;

/// The invitations and devices of a cell, called as one identity: that of a superuser.
#[derive(Debug)]
pub struct DeviceDb {
    servers: DatabaseServers,
}

impl DeviceDb {
    /// The database on these machines.
    pub fn new(endpoint: &Endpoint, machines: &[impl Machine], login: &Login) -> Self {
        Self { servers: DatabaseServers::new::<Join>(endpoint, machines, login) }
    }

    /// The same for who runs for long: see [`DatabaseServers::with_logins`].
    pub fn with_logins(
        endpoint: &Endpoint,
        machines: &[impl Machine],
        login: impl Fn() -> Login + Clone + Send + Sync + 'static,
    ) -> Self {
        Self { servers: DatabaseServers::with_logins::<Join>(endpoint, machines, login) }
    }

    async fn call<R: Rpc>(&self, args: R) -> Result<R::Reply, Error> {
        self.servers.call(&args).await
    }

    /// Adds an invitation, by the SHA-256 of its secret. Returns the cell's public key, which its line has too.
    ///
    /// # Errors
    /// The database's.
    pub async fn invite(
        &self,
        digest: [u8; 32],
        user: JoinUser,
        expires: AfsTime,
        flags: JoinFlags,
    ) -> Result<JoinKey, Error> {
        Ok(self.call(JoinInvite { digest: OpaqueFixed(digest), user, expires, flags }).await?.key)
    }

    /// All open invitations.
    ///
    /// # Errors
    /// The database's.
    pub async fn invitations(&self) -> Result<Vec<InvitationInfo>, Error> {
        let mut all: Vec<InvitationInfo> = Vec::new();
        let mut after: JoinDigest = OpaqueFixed([0; 32]);
        loop {
            let page = self.call(JoinListInvitations { after }).await?.invitations.into_vec();
            // A server that goes on for ever says something that is not behind what it has said.
            let Some(last) = page.last().map(|last| last.digest).filter(|last| *last > after) else {
                return Ok(all);
            };
            after = last;
            all.extend(page);
        }
    }

    /// All devices, in the order of their numbers.
    ///
    /// # Errors
    /// The database's.
    pub async fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        let mut all: Vec<DeviceInfo> = Vec::new();
        let mut after = 0;
        loop {
            let page = self.call(JoinListDevices { after }).await?.devices.into_vec();
            let Some(last) = page.last().map(|last| last.number).filter(|last| *last > after) else {
                return Ok(all);
            };
            after = last;
            all.extend(page);
        }
    }

    /// Gives a device another name.
    ///
    /// # Errors
    /// The database's.
    pub async fn rename(&self, device: u32, name: JoinName) -> Result<(), Error> {
        self.call(JoinRename { device, name }).await.map(drop)
    }

    /// Revokes a device.
    ///
    /// # Errors
    /// The database's.
    pub async fn revoke_device(&self, device: u32) -> Result<(u32, u32), Error> {
        self.revoke(JoinTarget::DEVICE, device, JoinUser::default()).await
    }

    /// Revokes the devices of a user and the open invitations for them; how many of each.
    ///
    /// # Errors
    /// The database's.
    pub async fn revoke_user(&self, user: JoinUser) -> Result<(u32, u32), Error> {
        self.revoke(JoinTarget::USER, 0, user).await
    }

    /// Revokes all devices and open invitations; how many of each.
    ///
    /// # Errors
    /// The database's.
    pub async fn revoke_all(&self) -> Result<(u32, u32), Error> {
        self.revoke(JoinTarget::ALL, 0, JoinUser::default()).await
    }

    /// Withdraws all open invitations; no device, and how many of these.
    ///
    /// # Errors
    /// The database's.
    pub async fn revoke_invitations(&self) -> Result<(u32, u32), Error> {
        self.revoke(JoinTarget::INVITATIONS, 0, JoinUser::default()).await
    }

    async fn revoke(&self, target: JoinTarget, device: u32, user: JoinUser) -> Result<(u32, u32), Error> {
        let revoked = self.call(JoinRevoke { target, device, user }).await?;
        Ok((revoked.devices, revoked.invitations))
    }

    /// Approves a device that waits for it. Only the cell's own superuser may. Returns the device's user.
    ///
    /// # Errors
    /// The database's.
    pub async fn approve(&self, device: u32) -> Result<JoinUser, Error> {
        Ok(self.call(JoinApprove { device }).await?.user)
    }

    /// The version of the list of revoked devices, and their numbers if the version is another one than `since`.
    ///
    /// # Errors
    /// The database's.
    pub async fn revoked(&self, since: u64) -> Result<(u64, Vec<u32>), Error> {
        let said = self.call(JoinRevoked { since }).await?;
        Ok((said.version, said.devices.into_vec()))
    }

    /// Makes a new key of the cell, which devices learn when they next get a token.
    ///
    /// # Errors
    /// The database's.
    pub async fn rotate_key(&self) -> Result<JoinKey, Error> {
        Ok(self.call(JoinRotateKey {}).await?.key)
    }

    /// Removes the cell's old keys; how many.
    ///
    /// # Errors
    /// The database's.
    pub async fn remove_old_keys(&self) -> Result<u32, Error> {
        Ok(self.call(JoinRemoveOldKeys {}).await?.removed)
    }
}
