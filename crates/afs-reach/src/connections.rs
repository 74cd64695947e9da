//! Connections to servers, one set for each service of a server and each identity that calls it.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Endpoint, Peer, PeerLimits};
use rx_proto::ids::ServiceId;
use rxgen::Interface;

use crate::users::{IdentityIndex, Shown, Users};

/// Sets of connections that are kept; with more, the one not used for longest is given up, and made again when it is needed. Far above
/// what the users of a machine need at once.
const SETS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The connections of a client.
#[derive(Debug)]
pub struct Connections {
    endpoint: Endpoint,
    users: Arc<Users>,
    /// The source of the chance that encryption needs.
    seeds: Mutex<StdRng>,
    sets: Mutex<Sets>,
}

type Sets = LruCache<(SocketAddr, ServiceId, IdentityIndex), Set>;

/// The connections of an identity to a service of a server, and what all of them show.
#[derive(Debug)]
struct Set {
    shown: Option<Shown>,
    peer: Peer,
}

impl Set {
    fn shows(&self, shown: Option<&Shown>) -> bool {
        match (&self.shown, shown) {
            (Some(ours), Some(shown)) => ours.is_same(shown),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Connections {
    pub(crate) fn new(endpoint: Endpoint, users: Arc<Users>) -> Self {
        let seed = endpoint.runtime().seed().expect("there were random numbers when its port was opened");
        let (seeds, sets) = (StdRng::from_seed(seed), LruCache::new(SETS_MAX));
        Self { endpoint, users, seeds: Mutex::new(seeds), sets: Mutex::new(sets) }
    }

    /// A service of a server as nobody calls it.
    pub fn to<I: Interface>(&self, server: SocketAddr) -> Peer {
        self.showing::<I>(server, IdentityIndex::NOBODY, None)
    }

    /// A service of a server as one identity calls it who shows this token, or nothing. All connections of what is returned show that,
    /// whatever becomes of the identity meanwhile.
    pub(crate) fn showing<I: Interface>(
        &self,
        server: SocketAddr,
        who: IdentityIndex,
        shown: Option<&Shown>,
    ) -> Peer {
        let service = ServiceId(I::SERVICE_ID);
        let mut sets = self.lock();
        if let Some(set) = sets.get(&(server, service, who)).filter(|set| set.shows(shown)) {
            return set.peer.clone();
        }
        let security = self.users.security(shown, self.seed());
        let peer = self.endpoint.peer(server, service, PeerLimits::default(), security);
        sets.put((server, service, who), Set { shown: shown.cloned(), peer: peer.clone() });
        peer
    }

    /// Has new connections made for an identity: its ticket was replaced or refused.
    pub fn renew(&self, who: IdentityIndex) {
        self.drop_where(|_, theirs| theirs == who);
    }

    /// Has new connections made for everybody: what they are protected with has changed.
    pub fn renew_all(&self) {
        self.lock().clear();
    }

    /// Has new connections made to a server: those that there are have broken.
    pub(crate) fn renew_to(&self, server: SocketAddr, who: IdentityIndex) {
        self.drop_where(|there, theirs| (there, theirs) == (server, who));
    }

    fn drop_where(&self, goes: impl Fn(SocketAddr, IdentityIndex) -> bool) {
        let mut sets = self.lock();
        let gone: Vec<_> =
            sets.iter().map(|(key, _)| *key).filter(|(there, _, theirs)| goes(*there, *theirs)).collect();
        for key in gone {
            sets.pop(&key);
        }
    }

    /// Chance that nobody else has.
    pub(crate) fn seed(&self) -> [u8; 32] {
        self.seeds.lock().unwrap_or_else(PoisonError::into_inner).random()
    }

    /// The endpoint that they are made from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
