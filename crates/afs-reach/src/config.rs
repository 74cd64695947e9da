//! What a client says of how it reaches servers; and putting together the parts that reach them.

use std::sync::Arc;
use std::time::Duration;

use afs_config::CellServDb;
use afs_dns::Resolver;
use afs_wire::Uuid;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, Runtime};
use rx_security::Level;
use rx_security::rxgk::CallbackKeys;

use crate::cells::Cells;
use crate::closing::Closing;
use crate::connections::Connections;
use crate::dns::DnsCells;
use crate::liveness::{Liveness, Probe};
use crate::location::Locations;
use crate::offers::Offers;
use crate::remote::Calls;
use crate::table::Servers;
use crate::told::Told;
use crate::users::Users;
use crate::volumes::Volumes;
use crate::waiting::Waiting;

/// What a client says of how it reaches servers.
#[derive(Debug)]
pub struct Config<'a> {
    /// The runtime that is waited through.
    pub runtime: Arc<dyn Runtime>,
    /// The port that is called from.
    pub endpoint: Endpoint,
    /// The id of this client. Which of several equal servers it prefers follows from it.
    pub uuid: Uuid,
    /// Random bytes.
    pub seed: [u8; 32],
    /// The cells and their database servers.
    pub cells: &'a CellServDb,
    /// The resolver that is asked for cells that are not among these; without one, the DNS is not used.
    pub dns: Option<Arc<dyn Resolver>>,
    /// The port of volume location servers.
    pub location_port: u16,
    /// The port of file servers.
    pub file_port: u16,
    /// The protection of calls that are made with a ticket.
    pub level: Level,
    /// The time for which servers that are away or busy are waited for.
    pub patience: Duration,
    /// The time for which a call goes on with a server that is silent, if there is no other one.
    pub dead_after: Duration,
}

impl Calls {
    /// Puts the parts together. No server is asked yet.
    pub fn new(config: Config<'_>, volumes: Arc<Volumes>, told: Arc<dyn Told>) -> Self {
        let Config { runtime, endpoint, uuid, seed, cells, dns, location_port, file_port, level, .. } =
            config;
        let users = Arc::new(Users::new(Arc::clone(&runtime), level));
        let servers = Arc::new(Servers::new(uuid.time_low.into()));
        let cells = Arc::new(Cells::new(cells, location_port, &servers));
        let closing = Closing::default();
        let dns = DnsCells::new(
            dns,
            seed,
            Arc::clone(&runtime),
            Arc::clone(&cells),
            Arc::clone(&servers),
            Arc::clone(&told),
            closing.clone(),
        );
        let connections = Arc::new(Connections::new(endpoint, Arc::clone(&users)));
        let callback_keys = CallbackKeys::new(uuid, &mut StdRng::from_seed(connections.seed()));
        let probe: Arc<dyn Probe> = connections.clone();
        Self {
            patience: config.patience,
            dead_after: config.dead_after,
            users,
            cells,
            dns: Arc::new(dns),
            locations: Arc::new(Locations::new(Arc::clone(&runtime), Arc::clone(&servers), file_port)),
            connections,
            liveness: Arc::new(Liveness::new(Arc::clone(&servers), probe, Arc::clone(&runtime))),
            servers,
            volumes,
            told,
            waiting: Waiting::default(),
            offers: Offers::default(),
            callback_keys,
            closing,
            runtime,
        }
    }
}
