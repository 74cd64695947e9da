//! Connections to servers, one set for each service of a server and each identity that calls it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rx::{Endpoint, Peer, PeerLimits};
use rx_proto::ids::ServiceId;
use rxgen::Interface;

use crate::users::{Users, Who};

/// Sets of connections that are kept; with more, all are given up and made again as they are needed. Far above what the
/// users of a machine need at once.
const SETS_MAX: usize = 10_000;

/// The connections of a client.
#[derive(Debug)]
pub(crate) struct Connections {
    endpoint: Endpoint,
    users: Arc<Users>,
    sets: Mutex<HashMap<(SocketAddr, ServiceId, Who), Peer>>,
}

impl Connections {
    pub(crate) fn new(endpoint: Endpoint, users: Arc<Users>) -> Self {
        Self { endpoint, users, sets: Mutex::default() }
    }

    /// A service of a server as one identity calls it.
    pub(crate) fn to<I: Interface>(&self, server: SocketAddr, who: Who) -> Peer {
        let service = ServiceId(I::SERVICE_ID);
        let mut sets = self.lock();
        if sets.len() >= SETS_MAX {
            sets.clear();
        }
        let set = sets.entry((server, service, who)).or_insert_with(|| {
            let users = Arc::clone(&self.users);
            self.endpoint.peer(server, service, PeerLimits::default(), move || users.security(who))
        });
        set.clone()
    }

    /// Has new connections made for an identity: its ticket was replaced or refused.
    pub(crate) fn renew(&self, who: Who) {
        self.lock().retain(|(_, _, theirs), _| *theirs != who);
    }

    /// Has new connections made to a server: those that there are have broken.
    pub(crate) fn renew_to(&self, server: SocketAddr, who: Who) {
        self.lock().retain(|(there, _, theirs), _| (*there, *theirs) != (server, who));
    }

    /// The endpoint that they are made from.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(SocketAddr, ServiceId, Who), Peer>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
