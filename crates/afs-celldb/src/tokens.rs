//! The service of the database servers that makes tokens of rxgk (rxgk notes 7): for who shows a ticket of Kerberos by GSS-API; and of a
//! user's token one for a file server, by which a client also learns that a file server has no rxgk, or one for Linux's AFS client. It is served
//! on the port of the volume location database.
//!
//! What a server has is said only to who asks by rxgk: an answer that anybody could forge would have clients go back to rxkad.

use std::sync::Arc;
use std::time::Duration;

use afs_wire::rxgk::{
    AFSCombineTokens, GSSNegotiate, RxgkClientInfo, RxgkCombineOptions, RxgkData, RxgkLevel, RxgkNonce,
    RxgkStartParams, RxgkTokenInfo, reply,
};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rx::Runtime;
use rx_proto::ids::SecurityIndex;
use rx_security::gss::{self, Accepted, GssError};
use rx_security::keys::{EncType, KeyType};
use rx_security::rxgk::{
    self, AuthName, Dialect, ENCTYPES, FOR_LINUX, Fault, Form, Grant, MakeError, Secret, Token,
};
use rx_security::time::Clock;
use rx_security::{KeySet, Level};
use rxgen::xdr::{Opaque, to_bytes};
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

    /// The token for a server, or for Linux; `None` if that server has registered and has no rxgk. Of one that is unknown here nothing is said:
    /// another database server may know it, and the caller would go back to rxkad.
    fn combine(&self, dialect: Dialect, args: &AFSCombineTokens) -> Result<Option<Token>, Fault> {
        if !args.cm_tok.is_empty() {
            return Err(Fault::NotAuth);
        }
        let keys = (self.keys)();
        let user = rxgk::open(&keys, dialect, &args.user_tok)?;
        user.check_times((self.clock)())?;
        let server = args.destination;
        let dialect = match server {
            FOR_LINUX => Dialect::Yfs,
            _ => match self.vldb.read(|vldb| vldb.registration(ServerQuery::Uuid(server.to_bytes()))) {
                Ok(known) if known.has_rxgk => dialect,
                Ok(_) => return Ok(None),
                Err(_) => return Err(Fault::Inconsistency),
            },
        };
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

/// The longest life of a token.
const LIFE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Bytes of the server's nonce at least.
const NONCE: usize = 20;

/// What GSS-API has for the reasons why there is no context.
const fn major(error: GssError) -> u32 {
    let routine = match error {
        GssError::DefectiveToken => 9,
        GssError::NoKey => 7,
        GssError::DefectiveCredential => 10,
        GssError::Expired => 11,
        GssError::BadSignature => 6,
        _ => 13,
    };
    routine << 16
}

impl TokenService {
    /// The token for who has begun a context, and the rest of what the client needs; or the code of why there is none.
    fn negotiated(
        &self,
        start: &RxgkStartParams,
        accepted: &mut Accepted,
        random: &mut StdRng,
    ) -> Result<RxgkClientInfo, Fault> {
        let kind = enctype(&start.enctypes).ok_or(Fault::BadEtype)?;
        // Who wants less is told what there is.
        let level = Level::Crypt;
        if !start.levels.contains(&RxgkLevel(level.number())) {
            return Err(Fault::BadLevel);
        }
        let length = kind.key_len().ok_or(Fault::BadEtype)?;
        let mut nonce = vec![0; length.max(NONCE)];
        random.fill_bytes(&mut nonce);
        let seed = [&start.client_nonce[..], &nonce].concat();
        let secret = accepted.context.pseudo_random(&seed, length);
        let now = (self.clock)();
        let grant = Grant {
            secret: Secret::new(kind, &secret).ok_or(Fault::BadEtype)?,
            level,
            name: AuthName::of_principal(&accepted.principal),
            start: now,
            end: accepted.end.min(now.plus(LIFE_MAX)),
        };
        let token = Token::granted(&(self.keys)(), Dialect::OURS, grant, random).map_err(|error| {
            tracing::warn!(%error, "a token was not made");
            if error == MakeError::BadTimes { Fault::Expired } else { Fault::BadKeyNo }
        })?;
        let too_long = |_| Fault::DataLen;
        Ok(RxgkClientInfo {
            error_code: 0,
            enctype: kind.0,
            level: RxgkLevel(level.number()),
            lifetime: token.lifetime,
            bytelife: token.bytelife,
            expiration: token.end.0,
            mic: Opaque::new(accepted.context.sign(&to_bytes(start))).map_err(too_long)?,
            token: RxgkData::new(token.token).map_err(too_long)?,
            server_nonce: RxgkNonce::new(nonce).map_err(too_long)?,
        })
    }
}

impl Serve<GSSNegotiate> for TokenService {
    async fn serve(
        &self,
        call: ServerCall<'_, GSSNegotiate>,
        args: GSSNegotiate,
    ) -> Result<reply::GSSNegotiate, Abort> {
        let failed = |fault| abort(Dialect::OURS, fault);
        // Kerberos needs one round trip.
        if !args.opaque_in.is_empty() {
            return Err(failed(Fault::Inconsistency));
        }
        let keys: Vec<_> =
            (self.keys)().iter().filter(|key| key.kind == KeyType::NEGOTIATION).cloned().collect();
        let mut random = self.random().map_err(failed)?;
        let mut accepted = match gss::accept(&keys, &args.input_token_buffer, (self.clock)(), &mut random) {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(peer = %call.peer(), %error, "no token is negotiated");
                return Ok(reply::GSSNegotiate { gss_major_status: major(error), ..nothing() });
            }
        };
        // From here on a failure is told in secret too.
        let info = self.negotiated(&args.client_start, &mut accepted, &mut random);
        let who = &accepted.principal;
        let code = info.as_ref().err().map_or(0, |fault| fault.code(Dialect::OURS).0);
        tracing::info!(target: "audit", rpc = "GSSNegotiate", what = "a token of rxgk", caller = who, peer = %call.peer(), code, "token");
        let info = info.unwrap_or_else(|_| RxgkClientInfo { error_code: code, ..no_info() });
        let sealed = accepted.context.wrap(&to_bytes(&info), &mut random);
        let too_long = |_| failed(Fault::DataLen);
        Ok(reply::GSSNegotiate {
            output_token_buffer: RxgkData::new(accepted.answer).map_err(too_long)?,
            rxgk_info: RxgkData::new(sealed).map_err(too_long)?,
            ..nothing()
        })
    }
}

/// An answer without anything.
fn nothing() -> reply::GSSNegotiate {
    reply::GSSNegotiate {
        output_token_buffer: RxgkData::default(),
        opaque_out: RxgkData::default(),
        gss_major_status: 0,
        gss_minor_status: 0,
        rxgk_info: RxgkData::default(),
    }
}

fn no_info() -> RxgkClientInfo {
    RxgkClientInfo {
        error_code: 0,
        enctype: 0,
        level: RxgkLevel::CLEAR,
        lifetime: 0,
        bytelife: 0,
        expiration: 0,
        mic: Opaque::default(),
        token: RxgkData::default(),
        server_nonce: RxgkNonce::default(),
    }
}
