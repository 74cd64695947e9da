//! Which security class a file server is called with, for a user with a token of rxgk: rxgk, unless the cell's database servers say, by
//! rxgk, that the server has none. Nobody on the way can forge that. Neither a server's refusal nor an answer of the VLDB that came
//! otherwise takes the client back to rxkad: a server of which nobody says anything is shown the token of rxgk.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use afs_wire::Uuid;
use afs_wire::ids::HostAddr;
use afs_wire::rxgk::{AFSCombineTokens, Rxgk};
use afs_wire::vl::{AddrMask, GetAddrsU, ListAddrByAttributes, Vl};
use lru::LruCache;
use rx_proto::time::Instant;
use rx_security::keys::EncType;
use rx_security::rxgk::{self, Combined, RxgkTime};

use crate::fid::CellIndex;
use crate::remote::{Calls, QUICK_ANSWER_TIMEOUT, call_once};
use crate::table::{Server, ServerKind};
use crate::users::{IdentityIndex, Shown};

/// The time for which what the database servers said of a server is believed: one that has got rxgk is called by it from then on.
const LIFE: Duration = Duration::from_secs(3600);

/// The time after which they are asked again if none has answered.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Answers that are kept. With more, the one not used for longest is asked for again.
const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// What was said of file servers.
#[derive(Debug)]
pub(crate) struct Offers(Mutex<LruCache<(IdentityIndex, IpAddr), Known>>);

impl Default for Offers {
    fn default() -> Self {
        // Grown as needed.
        let mut known = LruCache::unbounded();
        known.resize(KNOWN_MAX);
        Self(Mutex::new(known))
    }
}

/// What was said of a file server to somebody with a token.
#[derive(Debug)]
struct Known {
    /// The user's token.
    of: Shown,
    shown: Shown,
    until: Instant,
}

impl Calls {
    /// What an identity that has this shows to a server at an address.
    pub(crate) async fn shown_to(
        &self,
        server: &Server,
        socket: SocketAddr,
        who: IdentityIndex,
        own: Shown,
    ) -> Shown {
        let Some(token) = own.rxgk.as_ref().filter(|_| server.kind == ServerKind::File) else { return own };
        let IpAddr::V4(address) = socket.ip() else { return own };
        let key = (who, socket.ip());
        let known = || self.offers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.runtime.now();
        if let Some(known) = known().get(&key).filter(|known| known.of.is_same(&own) && now < known.until) {
            return known.shown.clone();
        }
        let asked = self.ask_offer(server.cell, who, &own, token, address.into()).await;
        let (rxgk, life) = match asked {
            Some(offer) => (offer.map(Arc::new), LIFE),
            None => (Some(Arc::clone(token)), AGAIN_AFTER),
        };
        let callback = rxgk.as_ref().and_then(|token| self.callback_for(server, token));
        let shown = Shown { own: Arc::clone(&own.own), rxgk, callback };
        if shown.is_nothing() {
            tracing::warn!(
                address = %socket.ip(),
                "this file server has no rxgk: users whose tokens are of rxgk only can neither read nor change anything there"
            );
        }
        let until = self.runtime.now() + life;
        known().put(key, Known { of: own, shown: shown.clone(), until });
        shown
    }

    /// The token for the file server at an address, as a database server makes it; within, `None` if that file server has no rxgk. `None` if
    /// no database server says anything of it.
    async fn ask_offer(
        &self,
        cell: CellIndex,
        who: IdentityIndex,
        own: &Shown,
        token: &rxgk::Token,
        address: HostAddr,
    ) -> Option<Option<rxgk::Token>> {
        let cell = self.cells.numbered(cell).ok()?;
        for server in &cell.location_servers {
            let candidate = server.candidate();
            let Some(best) = server.best().filter(|_| candidate.down_since.is_none()) else { continue };
            let locations = self.connections.showing::<Vl>(best.socket, who, Some(own));
            let by = ListAddrByAttributes {
                mask: AddrMask::IPADDR,
                ipaddr: address,
                index: 0,
                spare1: 0,
                uuid: Uuid::default(),
            };
            let registered = call_once(&locations, &GetAddrsU { by }, QUICK_ANSWER_TIMEOUT).await;
            let uuid = match registered {
                Ok(reply) => reply.uuid,
                Err(error) => {
                    tracing::debug!(%address, %error, "a database server does not say which file server this is");
                    continue;
                }
            };
            let tokens = self.connections.showing::<Rxgk>(best.socket, who, Some(own));
            let question =
                AFSCombineTokens::for_server(&token.token, &token.enctypes(), token.level.number(), uuid)?;
            let made = call_once(&tokens, &question, QUICK_ANSWER_TIMEOUT).await;
            let made = made.map(|reply| {
                let info = reply.token_info;
                token.combined(
                    uuid,
                    Combined {
                        token: reply.new_token.to_vec(),
                        kind: EncType(info.enctype),
                        level: info.level.0,
                        lifetime: info.lifetime,
                        bytelife: info.bytelife,
                        end: RxgkTime(info.expiration),
                    },
                )
            });
            match made {
                Ok(Ok(offer)) => return Some(offer),
                Ok(Err(fault)) => {
                    tracing::warn!(%address, %fault, "a database server has made a token that is none")
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a database server makes no token for this file server")
                }
            }
        }
        None
    }
}
