//! Connections to servers, one set for each service of a server and each identity that calls it.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use rx::{Endpoint, Peer, PeerLimits};
use rx_proto::ids::ServiceId;
use rxgen::Interface;

use crate::servers::users::{Users, Who};

/// Sets of connections that are kept; with more, the one not used for longest is given up, and made again when it is needed. Far above
/// what the users of a machine need at once.
const SETS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The connections of a client.
#[derive(Debug)]
pub(crate) struct Connections {
    endpoint: Endpoint,
    users: Arc<Users>,
    sets: Mutex<Sets>,
}

type Sets = LruCache<(SocketAddr, ServiceId, Who), Peer>;

impl Connections {
    pub(crate) fn new(endpoint: Endpoint, users: Arc<Users>) -> Self {
        Self { endpoint, users, sets: Mutex::new(LruCache::new(SETS_MAX)) }
    }

    /// A service of a server as one identity calls it.
    pub(crate) fn to<I: Interface>(&self, server: SocketAddr, who: Who) -> Peer {
        let service = ServiceId(I::SERVICE_ID);
        let mut sets = self.lock();
        let set = sets.get_or_insert((server, service, who), || {
            let users = Arc::clone(&self.users);
            self.endpoint.peer(server, service, PeerLimits::default(), move || users.security(who))
        });
        set.clone()
    }

    /// Has new connections made for an identity: its ticket was replaced or refused.
    pub(crate) fn renew(&self, who: Who) {
        self.drop_where(|_, theirs| theirs == who);
    }

    /// Has new connections made for everybody: what they are protected with has changed.
    pub(crate) fn renew_all(&self) {
        self.lock().clear();
    }

    /// Has new connections made to a server: those that there are have broken.
    pub(crate) fn renew_to(&self, server: SocketAddr, who: Who) {
        self.drop_where(|there, theirs| (there, theirs) == (server, who));
    }

    fn drop_where(&self, goes: impl Fn(SocketAddr, Who) -> bool) {
        let mut sets = self.lock();
        let gone: Vec<_> =
            sets.iter().map(|(key, _)| *key).filter(|(there, _, theirs)| goes(*there, *theirs)).collect();
        for key in gone {
            sets.pop(&key);
        }
    }

    /// The endpoint that they are made from.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
