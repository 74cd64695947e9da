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

/// The cell itself, with everything encrypted.
///
/// # Errors
///
/// There is no randomness, or no key that makes tickets.
pub(crate) fn cell_login(rxkad: &rxkad::Server, runtime: &Arc<dyn Runtime>) -> Result<Login, String> {
    let seed = runtime.seed().map_err(|error| error.to_string())?;
    Login::local_superuser(&rxkad.keys(), Level::Crypt, &mut StdRng::from_seed(seed))
        .map_err(|error| error.to_string())
}

/// The volume servers of other machines.
#[derive(Debug)]
pub(crate) struct VolumePeers {
    /// The volume service's own, which holds this.
    pub(crate) endpoint: WeakEndpoint,
    pub(crate) rxkad: rxkad::Server,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Peers for VolumePeers {
    fn connect(&self, to: SocketAddr) -> Result<Connection, String> {
        let endpoint = self.endpoint.upgrade().ok_or("this server ends")?;
        let login = cell_login(&self.rxkad, &self.runtime)?;
        Ok(endpoint.connect(to, ServiceId(AfsVol::SERVICE_ID), login.security()))
    }
}
