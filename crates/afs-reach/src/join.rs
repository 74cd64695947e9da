//! How a device asks its cell for a token, by its key alone (Join notes): the calls of JOIN, at one database server after the other.
//!
//! The answer of a server that has not the cell's key is no answer, so the next one is asked. What the cell says of the device is the
//! result, whatever it is.

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use afs_join::{AnswerError, Chance, Membership, PublicKey};
use afs_wire::abort::{AJBUSY, AJCOOKIE, AJNOKEY, AJNOSESSION, Described};
use afs_wire::join::{
    JOIN_SECRET_BYTES, Join, JoinName, JoinOutcome, JoinReply, JoinRequest, JoinSecret, JoinWant,
};
use afs_wire::rxgk::RxgkEnctypes;
use rx::{Connection, Endpoint, RpcError};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::ids::{SecurityIndex, ServiceId};
use rx_proto::security::Null;
use rx_security::Level;
use rx_security::keys::EncType;
use rx_security::rxgk::{Dialect, ENCTYPES, RxgkTime, Secret, Token};
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

/// A device that was registered, and gets its user's tokens.
#[derive(Debug)]
pub struct Device {
    /// The cell, and the keys.
    pub member: Membership,
    /// The cell's database servers.
    pub servers: Vec<SocketAddrV4>,
    /// The user.
    pub user: String,
}

/// The reason why a device has got no token.
#[derive(Debug)]
pub struct Refused {
    /// The reason, for a person.
    pub why: String,
    /// True if the cell has said that it is a device of its no more.
    pub is_final: bool,
}

impl Device {
    /// Asks for a token. From then on the cell is known by its newest key.
    ///
    /// # Errors
    ///
    /// If no server answers, or the cell refuses.
    pub async fn renew(&mut self, endpoint: &Endpoint) -> Result<Token, Refused> {
        let failed = |why: String| Refused { why, is_final: false };
        let request = request(JoinWant::RENEW, JoinSecret([0; JOIN_SECRET_BYTES]), JoinName::default());
        let asked = ask(endpoint, &self.servers, &self.member, &request).await;
        let reply =
            asked.map_err(|error| failed(format!("no server of the cell answers for it: {error}")))?;
        if reply.outcome != JoinOutcome::DONE {
            let is_final = [JoinOutcome::REVOKED, JoinOutcome::UNKNOWN_DEVICE].contains(&reply.outcome);
            let mut why = refusal(reply.outcome).to_owned();
            if reply.outcome == JoinOutcome::NOT_APPROVED {
                why += &format!(
                    ". This is device {}, with the code {}",
                    reply.device,
                    self.member.device.public().code()
                );
            }
            return Err(Refused { why, is_final });
        }
        self.member.key = PublicKey(reply.key.0);
        let token = token_of(&reply);
        token.ok_or_else(|| {
            failed("its token is none that this release knows: use a later release".to_owned())
        })
    }
}

/// What a device asks for.
///
/// # Panics
///
/// Never: there are fewer enctypes than a list has room for.
pub fn request(want: JoinWant, secret: JoinSecret, name: JoinName) -> JoinRequest {
    let enctypes = RxgkEnctypes::new(ENCTYPES.map(|kind| kind.0).to_vec()).expect("there are four");
    JoinRequest { want, secret, name, enctypes }
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

/// What a user is told of a refusal.
pub fn refusal(outcome: JoinOutcome) -> &'static str {
    match outcome {
        JoinOutcome::UNKNOWN_INVITATION => {
            "the cell does not know this invitation: it was withdrawn; ask for another"
        }
        JoinOutcome::USED => {
            "another device has used this invitation. If it was not one of yours, somebody else has seen the line: tell the \
             administrator at once, who sees with 'afar devices list' from where, and ends it with 'afar devices revoke'"
        }
        JoinOutcome::EXPIRED => "the invitation has expired: ask for another",
        JoinOutcome::UNKNOWN_DEVICE => "the cell does not know this device: join again with a new invitation",
        JoinOutcome::REVOKED => {
            "an administrator has revoked this device: 'afar leave --force' removes its key, and a new invitation makes another"
        }
        JoinOutcome::TOO_MANY => "the cell has as many devices as it can: tell its administrator",
        JoinOutcome::TRY_LATER => {
            "the cell's servers cannot do it now: try again in a minute; the administrator finds the reason in their log"
        }
        JoinOutcome::NO_ENCTYPE => {
            "the cell makes no tokens that this release of afar knows: use a later release"
        }
        JoinOutcome::NOT_APPROVED => {
            "an administrator has to approve this device first, with 'afar devices approve' on a server of the cell"
        }
        _ => "the cell refuses with a reason that this release of afar does not know: use a later release",
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
