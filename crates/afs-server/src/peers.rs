//! As whom a server calls other servers of its cell: as the cell itself, with a ticket made from the cell's key as it is at that moment.

use std::net::SocketAddr;
use std::sync::Arc;

use afs_admin::Login;
use afs_volserver::Peers;
use afs_wire::afsvol::AfsVol;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Connection, Runtime, WeakEndpoint};
use rx_proto::ids::ServiceId;
use rx_security::{Level, rxkad};
use rxgen::Interface;

use crate::config::Encryption;

/// The cell itself, at this level of protection.
///
/// # Errors
///
/// There is no randomness, or no key that makes tickets.
pub(crate) fn cell_login(
    rxkad: &rxkad::Server,
    runtime: &Arc<dyn Runtime>,
    level: Level,
) -> Result<Login, String> {
    let seed = runtime.seed().map_err(|error| error.to_string())?;
    Login::local_superuser(&rxkad.keys(), level, &mut StdRng::from_seed(seed))
        .map_err(|error| error.to_string())
}

/// The volume servers of other machines.
#[derive(Debug)]
pub(crate) struct VolumePeers {
    /// The volume service's own, which holds this.
    pub(crate) endpoint: WeakEndpoint,
    pub(crate) rxkad: rxkad::Server,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) encryption: Encryption,
}

impl Peers for VolumePeers {
    fn connect(&self, to: SocketAddr) -> Result<Connection, String> {
        self.connect_for(to, true)
    }

    fn connect_for(&self, to: SocketAddr, is_encrypted: bool) -> Result<Connection, String> {
        let endpoint = self.endpoint.upgrade().ok_or("this server ends")?;
        let login = cell_login(&self.rxkad, &self.runtime, level(self.encryption, is_encrypted))?;
        Ok(endpoint.connect(to, ServiceId(AfsVol::SERVICE_ID), login.security()))
    }
}

/// The protection of volumes on their way. What is not encrypted is still from this server and no other.
fn level(encryption: Encryption, is_callers_encrypted: bool) -> Level {
    match encryption {
        Encryption::Always => Level::Crypt,
        Encryption::Inherit if is_callers_encrypted => Level::Crypt,
        Encryption::Inherit | Encryption::Never => Level::Auth,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_encrypted_on_their_way_as_s2scrypt_says() {
        for (encryption, encrypted, plain) in [
            (Encryption::Always, Level::Crypt, Level::Crypt),
            (Encryption::Inherit, Level::Crypt, Level::Auth),
            (Encryption::Never, Level::Auth, Level::Auth),
        ] {
            assert_eq!((level(encryption, true), level(encryption, false)), (encrypted, plain));
        }
    }
}
