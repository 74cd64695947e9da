//! As whom a server calls other servers of its cell: as the cell itself, with a token made from the cell's key as it is at that moment. It is
//! one of rxgk if there is a key for that; only to file servers of which the location database says that they have no rxgk it is one of
//! rxkad.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use afs_admin::vldb::LocationDb;
use afs_admin::{Login, Offers};
use afs_celldb::Database;
use afs_celldb::vldb::{ServerQuery, VlError, Vldb};
use afs_volserver::{Connecting, NewIds, Peers};
use afs_wire::afsvol::AfsVol;
use afs_wire::ids::{SecurityLevel, VolumeId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, Runtime, WeakEndpoint};
use rx_proto::ids::ServiceId;
use rx_security::{Level, UnixTime};
use rxgen::Interface;

use crate::classes::Classes;
use crate::config::Encryption;

/// The cell itself, at this level of protection.
///
/// # Errors
///
/// There is no randomness, or no key that makes tickets.
pub(crate) fn cell_login(
    classes: &Classes,
    runtime: &Arc<dyn Runtime>,
    level: Level,
) -> Result<Login, String> {
    let seed = runtime.seed().map_err(|error| error.to_string())?;
    let wall = Arc::clone(runtime);
    let clock = Arc::new(move || UnixTime::of(wall.wall_clock()));
    Login::local_superuser(&classes.keys(), level, clock, &mut StdRng::from_seed(seed))
        .map_err(|error| error.to_string())
}

/// The source of what is known of other servers.
#[derive(Debug)]
pub(crate) enum Locations {
    /// The location database of this process.
    Local(Arc<Database<Vldb>>),
    /// The database servers of the cell.
    Remote(Vec<Ipv4Addr>),
}

/// The volume servers of other machines.
#[derive(Debug)]
pub(crate) struct VolumePeers {
    /// The volume service's own, which holds this.
    pub(crate) endpoint: WeakEndpoint,
    pub(crate) classes: Classes,
    pub(crate) locations: Locations,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) encryption: Encryption,
}

impl Peers for VolumePeers {
    fn connect(&self, to: SocketAddr, is_encrypted: bool, least: SecurityLevel) -> Connecting<'_> {
        Box::pin(async move {
            let endpoint = self.endpoint.upgrade().ok_or("this server ends")?;
            let level = level(self.encryption, is_encrypted, least);
            let login = cell_login(&self.classes, &self.runtime, level)?;
            let login = self.login_for(&endpoint, login, to).await?;
            Ok(endpoint.connect(to, ServiceId(AfsVol::SERVICE_ID), login.security()))
        })
    }

    fn new_volume_ids(&self, count: u32) -> NewIds<'_> {
        Box::pin(async move {
            let endpoint = self.endpoint.upgrade().ok_or("this server ends")?;
            match &self.locations {
                Locations::Local(database) => {
                    let now = UnixTime::of(self.runtime.wall_clock()).0;
                    let taken: Result<u32, VlError> =
                        database.change(now, move |vldb, rows| vldb.take_ids(count, rows)).await;
                    taken.map(VolumeId).map_err(|error| error.to_string())
                }
                Locations::Remote(servers) => {
                    let login = cell_login(&self.classes, &self.runtime, Level::Crypt)?;
                    let taken = LocationDb::new(&endpoint, servers, &login).new_volume_ids(count).await;
                    taken.map_err(|error| error.to_string())
                }
            }
        })
    }
}

impl VolumePeers {
    /// The cell itself, as it calls this server.
    async fn login_for(&self, endpoint: &Endpoint, login: Login, to: SocketAddr) -> Result<Login, String> {
        let IpAddr::V4(server) = to.ip() else { return Ok(login) };
        match &self.locations {
            Locations::Local(database) => {
                let by = ServerQuery::Address(server.to_bits());
                match database.read(|vldb| vldb.registration(by)) {
                    Ok(known) if !known.has_rxgk && login.rxgk().is_some() => login
                        .without_rxgk()
                        .ok_or_else(|| "it has no rxgk, and there is no key for rxkad".to_owned()),
                    // Of one that nobody knows nothing is known: it gets what is safe.
                    _ => Ok(login),
                }
            }
            Locations::Remote(servers) => {
                let login = Offers::new(endpoint, servers, &login).login_for(server).await;
                login.map_err(|error| error.to_string())
            }
        }
    }
}

/// The protection of a volume on its way, which needs this one at least. What is not encrypted is still from this server and no other.
fn level(encryption: Encryption, is_callers_encrypted: bool, least: SecurityLevel) -> Level {
    match encryption {
        _ if least >= SecurityLevel::CRYPT => Level::Crypt,
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
            let clear = SecurityLevel::CLEAR;
            assert_eq!((level(encryption, true, clear), level(encryption, false, clear)), (encrypted, plain));
            assert_eq!(
                level(encryption, false, SecurityLevel::CRYPT),
                Level::Crypt,
                "of a volume of that level"
            );
        }
    }
}
