//! Which security class a server of the cell is called with. Who has a token of rxgk shows it to every server but those of which the
//! database servers say, by rxgk, that they have none. Nobody on the way can forge that: neither a server's refusal nor an answer of the VLDB
//! that came otherwise takes a caller back to rxkad. A server of which nobody knows anything is called by rxgk: it refuses if it has none.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use afs_wire::Uuid;
use afs_wire::abort::VL_NOENT;
use afs_wire::rxgk::{AFSCombineTokens, Rxgk};
use rx::{Endpoint, Runtime};
use rx_security::keys::EncType;
use rx_security::rxgk::{Combined, FOR_LINUX, RxgkTime, Token};

use crate::database::{DatabaseServers, Machine};
use crate::error::Error;
use crate::login::Login;
use crate::vldb::{LocationDb, ServerKey};

/// What the servers of a cell are called with, by one identity.
#[derive(Debug)]
pub struct Offers {
    login: Login,
    databases: Option<Databases>,
    known: Mutex<BTreeMap<Ipv4Addr, Login>>,
}

/// The database servers, and where they are.
#[derive(Debug)]
struct Databases {
    runtime: Arc<dyn Runtime>,
    locations: LocationDb,
    tokens: DatabaseServers,
}

impl Offers {
    /// What servers are called with of a cell that has its databases on these machines.
    pub fn new(endpoint: &Endpoint, machines: &[impl Machine], login: &Login) -> Self {
        let databases = login.rxgk().map(|_| Databases {
            runtime: Arc::clone(endpoint.runtime()),
            locations: LocationDb::new(endpoint, machines, login),
            tokens: DatabaseServers::new::<Rxgk>(endpoint, machines, login),
        });
        Self { login: login.clone(), databases, known: Mutex::default() }
    }

    /// The same where all servers have what the login has. What has no rxgk then refuses.
    pub fn all(login: &Login) -> Self {
        Self { login: login.clone(), databases: None, known: Mutex::default() }
    }

    /// The identity as it calls this server's machine.
    ///
    /// # Errors
    ///
    /// If the server has no rxgk, and there is no other token.
    pub async fn login_for(&self, server: Ipv4Addr) -> Result<Login, Error> {
        let Some(databases) = &self.databases else { return Ok(self.login.clone()) };
        let Some(token) = self.login.rxgk() else { return Ok(self.login.clone()) };
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(login) = known().get(&server) {
            return Ok(login.clone());
        }
        let login = match databases.token_for(token, server).await {
            Ok(Some(token)) => {
                let seed = databases.runtime.seed();
                let seed = seed.map_err(|error| local(format!("there are no random numbers: {error}")))?;
                self.login.for_server(token, seed)
            }
            Ok(None) => self.login.without_rxgk().ok_or_else(|| {
                local(format!("the server {server} has no rxgk, and there is no token of rxkad for it: get one with 'aklog'"))
            })?,
            Err(error) => {
                tracing::debug!(%server, %error, "nobody says whether it has rxgk");
                return Ok(self.login.clone());
            }
        };
        known().insert(server, login.clone());
        Ok(login)
    }
}

impl Databases {
    /// The token for the file server at an address; `None` if it has no rxgk.
    async fn token_for(&self, user: &Token, server: Ipv4Addr) -> Result<Option<Token>, Error> {
        let uuid = self.locations.registration(ServerKey::Address(server)).await?.uuid;
        combined(&self.tokens, user, uuid).await
    }
}

/// The token that the database servers make of a user's token for the server with a UUID; `None` if that has no rxgk.
async fn combined(servers: &DatabaseServers, user: &Token, uuid: Uuid) -> Result<Option<Token>, Error> {
    let question = AFSCombineTokens::for_server(&user.token, &user.enctypes(), user.level.number(), uuid);
    let question = question.ok_or_else(|| local("the token is too long".to_owned()))?;
    let reply = servers.call(&question).await?;
    let info = reply.token_info;
    let made = Combined {
        token: reply.new_token.to_vec(),
        kind: EncType(info.enctype),
        level: info.level.0,
        lifetime: info.lifetime,
        bytelife: info.bytelife,
        end: RxgkTime(info.expiration),
    };
    user.combined(uuid, made)
        .map_err(|fault| local(format!("a database server has made a token that is none: {fault}")))
}

/// The token for Linux's own AFS client that the database servers make of the token of this login.
///
/// # Errors
///
/// If the login has none of rxgk, or the servers do not make such tokens.
pub async fn for_linux(
    endpoint: &Endpoint,
    machines: &[impl Machine],
    login: &Login,
) -> Result<Token, Error> {
    let user = login.rxgk().ok_or_else(|| local("there is no token of rxgk".to_owned()))?;
    let servers = DatabaseServers::new::<Rxgk>(endpoint, machines, login);
    let made = combined(&servers, user, FOR_LINUX).await?;
    made.ok_or_else(|| local("the cell's database servers make no token for Linux's AFS client".to_owned()))
}

fn local(what: String) -> Error {
    Error::Local { what, code: VL_NOENT }
}
