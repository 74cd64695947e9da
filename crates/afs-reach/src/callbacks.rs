//! Which file server has made a call to the client. A server that is called by rxgk gets a token to call back with. Ours call back with it before they
//! promise anything. From then on, the client believes nothing that comes from the server's address without that token, as anybody can forge an
//! address. This lasts as long as somebody here has a token of the cell, with which a new connection can be made. Other servers are known by
//! address and port, as the VLDB tells them.
//!
//! A server may have lost its token, in a new start or when it had too many clients, and this client may have got another address. Then it is
//! called by a new connection, which brings it the token, and says what it has to say once more.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use afs_wire::rxafs::{GetCapabilities, Rxafs};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::security::ServerSecurity;
use rx_proto::time::Instant;
use rx_security::UnixTime;
use rx_security::rxgk::{self, AppData, Dialect};

use crate::remote::{Calls, QUICK_ANSWER_TIMEOUT, call_once};
use crate::table::Server;
use crate::users::{IdentityIndex, Purpose};

/// The shortest time between two calls that bring a server its token: what causes them can be forged.
const BROUGHT_EVERY: Duration = Duration::from_secs(1);

/// What a file server calls back with.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    /// What it gets, from the first call on with a token of rxgk.
    data: OnceLock<Arc<AppData>>,
    /// True if it has called with it: not all servers do.
    has_called: AtomicBool,
    brought: Mutex<Brought>,
}

/// When it gets that once more.
#[derive(Debug, Default)]
struct Brought {
    last: Option<Instant>,
    is_due: bool,
}

impl Keyed {
    /// When it is to be brought; `None` if somebody waits for that time already.
    fn bring_at(&self, now: Instant) -> Option<Instant> {
        let mut brought = self.brought.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut brought.is_due, true) {
            return None;
        }
        let at = brought.last.map_or(now, |last| now.max(last + BROUGHT_EVERY));
        brought.last = Some(at);
        Some(at)
    }

    /// It is brought now.
    fn begin_to_bring(&self) {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner).is_due = false;
    }
}

/// Those who may have made a call.
#[derive(Debug, Default)]
pub struct Callers {
    /// The file servers that have, one for each cell that knows the address.
    pub believed: Vec<Arc<Server>>,
    /// Those that would have shown a token.
    pub doubted: Vec<Arc<Server>>,
}

impl Calls {
    /// What a file server gets with a token of rxgk, to call back with. `None` if its UUID is not known.
    pub(crate) fn callback_for(&self, server: &Server, token: &rxgk::Token) -> Option<Arc<AppData>> {
        let uuid = server.uuid.filter(|_| token.dialect == Dialect::OURS)?;
        let made = || {
            let mut random = StdRng::from_seed(self.connections.seed());
            Arc::new(self.callback_keys.app_data(uuid, server.id, &mut random))
        };
        Some(Arc::clone(server.keyed.data.get_or_init(made)))
    }

    /// The class by which file servers call back with what they got.
    pub fn callback_class(&self) -> Arc<dyn ServerSecurity> {
        let runtime = Arc::clone(&self.runtime);
        let clock = Arc::new(move || UnixTime::of(runtime.wall_clock()));
        Arc::new(self.callback_keys.server(clock, self.connections.seed()))
    }

    /// Those who may have made a call that came from this address, by this identity of its connection.
    pub fn callers(&self, peer: SocketAddr, identity: &str) -> Callers {
        if let Some(number) = rxgk::file_server(identity) {
            let server = self.servers.by_id(number);
            if let Some(server) = &server {
                server.keyed.has_called.store(true, Ordering::Relaxed);
            }
            return Callers { believed: server.into_iter().collect(), doubted: Vec::new() };
        }
        let (doubted, believed) =
            self.servers.calling(peer).into_iter().partition(|server| self.is_to_show_a_token(server));
        Callers { believed, doubted }
    }

    /// True if a call from a file server is believed only with its token.
    pub fn is_to_show_a_token(&self, server: &Server) -> bool {
        server.keyed.has_called.load(Ordering::Relaxed)
            && self.users.anybody_with_rxgk(server.cell) != IdentityIndex::NOBODY
    }

    /// Calls a file server soon by a new connection, which brings it its token: it has called without.
    pub fn bring_token(self: &Arc<Self>, server: &Arc<Server>) {
        let Some(at) = server.keyed.bring_at(self.runtime.now()) else { return };
        let (calls, server) = (Arc::clone(self), Arc::clone(server));
        self.runtime.spawn(Box::pin(async move {
            calls.runtime.sleep_until(at).await;
            // What it says from here on without a token has another call follow.
            server.keyed.begin_to_bring();
            let who = calls.users.anybody_with_rxgk(server.cell);
            let (Ok(Some(own)), Some(address)) = (calls.users.shown(who, Purpose::Read), server.best())
            else {
                return;
            };
            calls.connections.renew_to(address.socket, who);
            let shown = calls.shown_to(&server, address.socket, who, own).await;
            let peer = calls.connections.showing::<Rxafs>(address.socket, who, Some(&shown));
            match call_once(&peer, &GetCapabilities {}, QUICK_ANSWER_TIMEOUT).await {
                Ok(_) => calls.liveness.note_answer(&address),
                Err(error) => {
                    tracing::debug!(server = %address.socket, %error, "its token was not brought to it")
                }
            }
        }));
    }
}
