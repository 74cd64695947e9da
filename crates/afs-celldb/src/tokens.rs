//! The service of the database servers that makes tokens of rxgk (rxgk notes 7): of a user's token one for a file server, by which a client
//! also learns that a file server has no rxgk. It is served on the port of the volume location database.
//!
//! What a server has is said only to who asks by rxgk: an answer that anybody could forge would have clients go back to rxkad.

use std::sync::Arc;

use afs_wire::rxgk::{
    AFSCombineTokens, CombineTokens, GSSNegotiate, RxgkCombineOptions, RxgkData, RxgkLevel, RxgkTokenInfo,
    reply,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::Runtime;
use rx_proto::ids::SecurityIndex;
use rx_security::KeySet;
use rx_security::keys::EncType;
use rx_security::rxgk::{self, Dialect, ENCTYPES, Fault, Form, Token};
use rx_security::time::Clock;
use rxgen::{Abort, Serve, ServerCall};

use crate::Database;
use crate::vldb::{ServerQuery, Vldb};

/// The source of the cell's keys, as they are at the time.
pub type Keys = Arc<dyn Fn() -> Arc<KeySet> + Send + Sync>;

/// The service.
pub struct TokenService {
    vldb: Arc<Database<Vldb>>,
    keys: Keys,
    clock: Clock,
    runtime: Arc<dyn Runtime>,
}

impl std::fmt::Debug for TokenService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenService").finish_non_exhaustive()
    }
}

/// A fault, as the caller's dialect numbers it.
fn abort(dialect: Dialect, fault: Fault) -> Abort {
    Abort(fault.code(dialect).0)
}

/// The enctype of a new token's secret: the first that the client names and rxgk has here.
fn enctype(wanted: &[i32]) -> Option<EncType> {
    wanted.iter().map(|kind| EncType(*kind)).find(|kind| ENCTYPES.contains(kind))
}

impl TokenService {
    /// A service that tells what servers have that are in this database. Random numbers are the runtime's.
    pub fn new(vldb: Arc<Database<Vldb>>, keys: Keys, clock: Clock, runtime: Arc<dyn Runtime>) -> Self {
        Self { vldb, keys, clock, runtime }
    }

    fn random(&self) -> Result<StdRng, Fault> {
        self.runtime.seed().map(StdRng::from_seed).map_err(|error| {
            tracing::error!(%error, "there are no random numbers for tokens");
            Fault::Inconsistency
        })
    }

    /// The token for a server; `None` if that has no rxgk.
    fn combine(&self, dialect: Dialect, args: &AFSCombineTokens) -> Result<Option<Token>, Fault> {
        if !args.cm_tok.is_empty() {
            return Err(Fault::NotAuth);
        }
        let keys = (self.keys)();
        let user = rxgk::open(&keys, dialect, &args.user_tok)?;
        user.check_times((self.clock)())?;
        let server = args.destination;
        let known = self.vldb.read(|vldb| vldb.registration(ServerQuery::Uuid(server.to_bytes())));
        if !known.is_ok_and(|known| known.has_rxgk) {
            return Ok(None);
        }
        let RxgkCombineOptions { enctypes, levels } = &args.options;
        let kind = enctype(enctypes).ok_or(Fault::BadEtype)?;
        // As good as the user's, and no client is talked into less.
        let level = user.level;
        if !levels.contains(&RxgkLevel(level.number())) {
            return Err(Fault::BadLevel);
        }
        let form = Form { dialect, kind, level };
        let made = Token::for_server(&keys, form, user, server, &mut self.random()?);
        made.map(Some).map_err(|error| {
            tracing::warn!(%error, "a token was not made");
            Fault::BadKeyNo
        })
    }
}

impl Serve<AFSCombineTokens> for TokenService {
    async fn serve(
        &self,
        call: ServerCall<'_, AFSCombineTokens>,
        args: AFSCombineTokens,
    ) -> Result<reply::AFSCombineTokens, Abort> {
        let dialect = Dialect::of_index(SecurityIndex(call.class())).ok_or(Abort::OPCODE)?;
        let failed = |fault| abort(dialect, fault);
        if !call.is_encrypted() {
            return Err(failed(Fault::NotAuth));
        }
        let made = self.combine(dialect, &args).map_err(failed)?;
        let token = made.as_ref().map_or_else(Vec::new, |token| token.token.clone());
        let token_info = made.map_or(NO_TOKEN, |token| RxgkTokenInfo {
            enctype: token.secret.kind().0,
            level: RxgkLevel(token.level.number()),
            lifetime: token.lifetime,
            bytelife: token.bytelife,
            expiration: token.end.0,
        });
        let new_token = RxgkData::new(token).map_err(|_| failed(Fault::DataLen))?;
        Ok(reply::AFSCombineTokens { new_token, token_info })
    }
}

/// What is said of no token.
const NO_TOKEN: RxgkTokenInfo =
    RxgkTokenInfo { enctype: 0, level: RxgkLevel::CLEAR, lifetime: 0, bytelife: 0, expiration: 0 };

impl Serve<CombineTokens> for TokenService {
    /// No client needs it.
    async fn serve(
        &self,
        _: ServerCall<'_, CombineTokens>,
        _: CombineTokens,
    ) -> Result<reply::CombineTokens, Abort> {
        Err(Abort::OPCODE)
    }
}

impl Serve<GSSNegotiate> for TokenService {
    async fn serve(
        &self,
        _: ServerCall<'_, GSSNegotiate>,
        _: GSSNegotiate,
    ) -> Result<reply::GSSNegotiate, Abort> {
        Err(Abort::OPCODE)
    }
}
