//! As whom a command calls servers: with the caller's token, which the client of this machine has; with `-localauth`, as the cell's own
//! superuser, whose tickets are made from the key in the servers' configuration folder; or as nobody.

use crate::calls::Caller;
use crate::fs::client::{Client, Clients, Says};
use crate::fs::errors::Failure;
use crate::private;
use afs_admin::Login;
use afs_client::users::kept::taken_rxgk;
use afs_config::{Superuser, UserList};
use afs_wire::Errno;
use afs_wire::control::{self, GivenToken};
use afs_wire::ids::Name;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx_security::keys::{EncType, KeyType};
use rx_security::rxgk::{Dialect, Form};
use rx_security::ticket::{self, SessionKey};
use rx_security::time::Clock;
use rx_security::{Identity, KeySet, Level, Token, UnixTime, rxgk};
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long a token is good that a command makes for itself; it begins as long before, as clocks differ.
const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// The reason why there is no token to call servers with. The command goes on anonymously, as with OpenAFS's tools.
#[derive(Debug)]
pub(crate) enum NoToken {
    /// No key of the cell, or none that can be read; or the caller has no token. There is no more to say than OpenAFS's tools do.
    None,
    /// The caller's token has ended.
    Ended { cell: String },
    /// The client was not asked, or does not say.
    Client(Failure),
}

impl NoToken {
    fn of(failure: Failure) -> Self {
        match failure {
            Failure::NoClient => Self::None,
            // It has ended, and its mount is left over here or in this namespace.
            Failure::Unreachable { error, .. }
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
            {
                Self::None
            }
            Failure::Errno(errno) if errno == Errno::ENOTCONN.0 => Self::None,
            failure => Self::Client(failure),
        }
    }

    /// Says what OpenAFS's tools do not.
    pub(crate) fn explain(&self, program: &str) {
        match self {
            Self::None => {}
            other => eprintln!("{program}: {other}"),
        }
    }
}

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("there is no token"),
            Self::Ended { cell } => write!(f, "your token for {cell} has expired; 'aklog' gets a new one"),
            Self::Client(Failure::Errno(errno)) if *errno == Errno::ENOSYS.0 => f.write_str(
                "the mounted client is of an older version, which does not give tokens to commands",
            ),
            Self::Client(failure) => failure.fmt(f),
        }
    }
}

/// As whom, and how well protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoginOptions {
    /// `-noauth`.
    pub(crate) noauth: bool,
    /// `-localauth`.
    pub(crate) localauth: bool,
    /// True if what is said goes in the clear. It is encrypted unless somebody asks for this.
    pub(crate) clear: bool,
}

/// The identity that is wished for, in a cell. The folder is that of the servers' configuration, where the keys are; the seed is of good
/// randomness.
pub(crate) fn log_in(
    options: LoginOptions,
    folder: &Path,
    cell: &str,
    seed: [u8; 32],
) -> Result<Login, NoToken> {
    if options.noauth {
        return Ok(Login::anonymous());
    }
    let level = if options.clear { Level::Clear } else { Level::Crypt };
    if options.localauth {
        superuser(folder, level, seed)
    } else {
        // The first client that has one.
        let (clients, mut refusal) = (clients(), None);
        for client in clients.of_one_session() {
            match token_for(client, cell) {
                Ok((_, token)) => {
                    let login = Login::with_token(token, level);
                    return Ok(match rxgk_for(client, cell) {
                        Some(rxgk) => login.and_rxgk(rxgk, clock(), seed),
                        None => login,
                    });
                }
                Err(why) => {
                    // There may be one of rxgk alone.
                    if matches!(why, NoToken::None)
                        && let Some(rxgk) = rxgk_for(client, cell)
                    {
                        return Ok(Login::anonymous().and_rxgk(rxgk, clock(), seed));
                    }
                    refusal = refusal.or(Some(why));
                }
            }
        }
        Err(refusal.unwrap_or_else(|| NoToken::of(clients.into_first().err().unwrap_or(Failure::NoClient))))
    }
}

/// The caller in a cell, for questions that anybody may ask: with a token nobody on the way hears them.
pub(crate) fn caller_or_nobody(caller: &Caller, cell: &str) -> Login {
    let options = LoginOptions { noauth: false, localauth: false, clear: false };
    let login = caller.seed().ok().and_then(|seed| log_in(options, Path::new(""), cell, seed).ok());
    login.unwrap_or_default()
}

/// The superuser of the cell whose key is in a folder.
pub(crate) fn superuser(folder: &Path, level: Level, seed: [u8; 32]) -> Result<Login, NoToken> {
    let keys = KeySet::load(folder).map_err(|_| NoToken::None)?;
    Login::local_superuser(&keys, level, clock(), &mut StdRng::from_seed(seed)).map_err(|_| NoToken::None)
}

/// A user of the cell whose key this is, for an hour: of rxgk if the cell has a key for that, and of rxkad for servers without.
///
/// # Errors
///
/// When the keys make no token, or it is no user's name.
pub(crate) fn user_by_key(keys: &KeySet, name: &str, cell: &str, seed: [u8; 32]) -> Result<Login, String> {
    let who = Identity::parse(name).ok_or_else(|| format!("'{name}' is no name of a user"))?;
    let (now, random) = (SystemTime::now(), &mut StdRng::from_seed(seed));
    let times = (UnixTime::of(now - TOKEN_LIFE), UnixTime::of(now + TOKEN_LIFE));
    let ticket = ticket::for_user(keys, &who, cell, times, random).map_err(|error| error.to_string());
    let Some(key) = keys.newest(KeyType::RXGK) else { return Ok(Login::with_token(ticket?, Level::Crypt)) };
    let login = ticket.map_or_else(|_| Login::anonymous(), |ticket| Login::with_token(ticket, Level::Crypt));
    let form = Form { dialect: Dialect::OURS, kind: EncType(key.subtype), level: Level::Crypt };
    let token = rxgk::Token::of_user(keys, form, &who, cell, times, random);
    let token = token.map_err(|error| error.to_string())?;
    Ok(login.and_rxgk(token, clock(), random.random()))
}

/// The caller's tokens that are good, each with its cell and the name of its owner there.
pub(crate) fn all_tokens() -> Result<Vec<(String, String, Token)>, NoToken> {
    let mut tokens: Vec<(String, String, Token)> = Vec::new();
    let clients = clients();
    for client in clients.of_one_session() {
        for held in client.call(&control::ListTokens {}).map_err(NoToken::of)?.tokens.into_vec() {
            let cell = held.cell.to_string();
            if tokens.iter().all(|(other, ..)| *other != cell)
                && let Ok((name, token)) = token_for(client, &cell)
            {
                tokens.push((cell, name, token));
            }
        }
    }
    match clients.into_first() {
        Ok(_) => Ok(tokens),
        Err(failure) => Err(NoToken::of(failure)),
    }
}

/// The clients that may have tokens. A command that mends a cell in which clients hang goes on without, and the others' tokens do.
fn clients() -> Clients {
    Clients::find("afar", Says::Hanging)
}

/// The caller's token for a cell, and the name of its owner there. From now on this process hides its memory from others.
fn token_for(client: &Client, cell: &str) -> Result<(String, Token), NoToken> {
    private::hide_memory();
    let name = Name::try_from(cell).map_err(|_| NoToken::None)?;
    let given = client.call(&control::GetToken { cell: name }).map_err(NoToken::of)?.token;
    let holder = given.holder.to_string();
    let token = token_of(&given);
    if token.end <= UnixTime::of(SystemTime::now()) {
        return Err(NoToken::Ended { cell: cell.to_owned() });
    }
    Ok((holder, token))
}

/// The caller's token of rxgk for a cell; an older client has none.
fn rxgk_for(client: &Client, cell: &str) -> Option<rxgk::Token> {
    let cell = Name::try_from(cell).ok()?;
    let given = client.call(&control::GetRxgk { cell }).ok()?.token;
    taken_rxgk(&given).filter(|token| !token.end.has_passed(UnixTime::of(SystemTime::now())))
}

/// True if a client has a token of rxgk for a cell, or had one that has ended.
pub(crate) fn has_rxgk(client: &Client, cell: &str) -> bool {
    let cell = Name::try_from(cell);
    cell.is_ok_and(|cell| client.call(&control::GetRxgk { cell }).is_ok())
}

/// The time of day, as tokens of rxgk need it.
pub(crate) fn clock() -> Clock {
    Arc::new(|| UnixTime::of(SystemTime::now()))
}

fn token_of(given: &GivenToken) -> Token {
    Token {
        session_key: SessionKey::new(given.session_key.0),
        ticket: given.ticket.to_vec(),
        kvno: given.kvno,
        start: UnixTime(given.start.0),
        end: UnixTime(given.end.0),
    }
}

/// The user whom `-localauth` stands for at file servers, to which the cell's own superuser is nobody: the first of the `UserList` in
/// the folder of the servers' configuration.
///
/// # Errors
///
/// When there is no such file, or nobody of this cell in it.
pub(crate) fn first_superuser(folder: &Path) -> Result<String, String> {
    let file = folder.join("UserList");
    let list = UserList::read(&file).map_err(|error| error.to_string())?;
    let local = list.users.into_iter().find_map(|user| match user {
        Superuser::Local(name) => Some(name),
        Superuser::Foreign { .. } | Superuser::Extended(_) | Superuser::NotUtf8(_) => None,
    });
    local.ok_or_else(|| format!("{} names no user of this cell", file.display()))
}
