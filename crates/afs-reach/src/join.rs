//! How a device asks its cell for a token, by its key alone (Join notes): the calls of JOIN, at one database server after the other.
//!
//! The answer of a server that has not the cell's key is no answer, so the next one is asked. What the cell says of the device is the
//! result, whatever it is.

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use afs_join::{AnswerError, Chance, Membership};
use afs_wire::abort::{AJBUSY, AJCOOKIE, AJNOKEY, AJNOSESSION, Described};
use afs_wire::join::{Join, JoinOutcome, JoinReply, JoinRequest};
use rx::{Connection, Endpoint, RpcError};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::ids::{SecurityIndex, ServiceId};
use rx_proto::security::Null;
use rx_security::Level;
use rx_security::keys::EncType;
use rx_security::rxgk::{Dialect, RxgkTime, Secret, Token};
use rxgen::{Abort, Interface};

/// A server that sends nothing for so long is taken for dead.
const DEAD_AFTER: Duration = Duration::from_secs(12);

/// How often a handshake is begun anew at a server whose cookie or handshake has become too old, as on a slow line.
const ATTEMPTS: usize = 3;

/// The reason why a cell has not answered.
#[derive(Debug)]
pub struct JoinError {
    /// The server that was asked last.
    pub server: SocketAddrV4,
    /// What was wrong there.
    pub what: String,
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.what)
    }
}

impl std::error::Error for JoinError {}

/// The token in an answer. `None` if it is for a dialect, a level or an enctype that rxgk does not have here.
pub fn token_of(reply: &JoinReply) -> Option<Token> {
    let dialect = Dialect::of_index(SecurityIndex(u8::try_from(reply.dialect).ok()?))?;
    let secret = Secret::new(EncType(reply.enctype), &reply.secret.0)?;
    let level = Level::of_number(reply.level)?;
    let (lifetime, bytelife, end) = (reply.lifetime, reply.bytelife, RxgkTime(reply.expiration));
    Some(Token { dialect, secret, level, lifetime, bytelife, end, token: reply.token.to_vec() })
}

/// What came of the attempt at one server.
enum Attempt {
    Answered(JoinReply),
    /// The same server may answer another attempt.
    Again(String),
    /// Another server may answer.
    Next(String),
}

/// Asks the servers of a cell until one of them answers for it.
///
/// # Errors
/// If none does: the first one's reason, since the others are asked only after it.
pub async fn ask(
    endpoint: &Endpoint,
    servers: &[SocketAddrV4],
    member: &Membership,
    request: &JoinRequest,
) -> Result<JoinReply, JoinError> {
    let (mut first, mut later) = (None, None);
    for server in servers {
        let to = SocketAddr::V4(*server);
        let connection = endpoint.connect(to, ServiceId(Join::SERVICE_ID), Box::new(Null));
        connection.set_limits(CallLimits { dead: DEAD_AFTER, ..CallLimits::default() });
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            match attempt(endpoint, &connection, member, request).await {
                Attempt::Answered(reply) if reply.outcome == JoinOutcome::TRY_LATER => {
                    later = later.or(Some(reply));
                    break;
                }
                Attempt::Answered(reply) => return Ok(reply),
                Attempt::Again(what) => reason = what,
                Attempt::Next(what) => {
                    reason = what;
                    break;
                }
            }
        }
        first = first.or(Some(JoinError { server: *server, what: reason }));
    }
    match (later, first) {
        (Some(reply), _) => Ok(reply),
        (None, Some(error)) => Err(error),
        (None, None) => {
            let server = SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0);
            Err(JoinError { server, what: "the cell has no database servers".to_owned() })
        }
    }
}

async fn attempt(
    endpoint: &Endpoint,
    connection: &Connection,
    member: &Membership,
    request: &JoinRequest,
) -> Attempt {
    let chance = match endpoint.runtime().seed() {
        Ok(seed) => Chance::new(seed),
        Err(error) => return Attempt::Next(format!("there are no random bytes: {error}")),
    };
    let exchange = async {
        let hello = connection.rpc(&member.hello()).await.map_err(|error| refused(&error))?;
        let (begun, call) = member.begin(&hello, chance).map_err(|error| Attempt::Next(error.to_string()))?;
        let begin = connection.rpc(&call).await.map_err(|error| refused(&error))?;
        let finished = begun.finish(&begin, request).map_err(AnswerError::from);
        let (asked, call) = finished.map_err(|error| Attempt::Next(error.to_string()))?;
        let finish = connection.rpc(&call).await.map_err(|error| refused(&error))?;
        asked.answer(&finish).map_err(|error| Attempt::Next(error.to_string()))
    };
    match exchange.await {
        Ok(reply) => Attempt::Answered(reply),
        Err(attempt) => attempt,
    }
}

fn refused(error: &RpcError) -> Attempt {
    let code = Abort(error.code().0);
    let what = match code {
        AJCOOKIE | AJNOSESSION | AJBUSY | AJNOKEY => Described(code).to_string(),
        _ if error.code() == AbortCode::INVALID_OPERATION => {
            "this server has no service by which machines join: it is none of afar's, or of an \
                                     older release"
                .to_owned()
        }
        _ => error.to_string(),
    };
    if code == AJCOOKIE || code == AJNOSESSION { Attempt::Again(what) } else { Attempt::Next(what) }
}
