//! The members of an etcd: which of them is asked, and when the next one. A member that answers is asked again; one
//! that does not within [`HEDGE`] is not waited for alone.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Error, Identity, TlsOptions};
use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use crate::store::{Known, StoreError};

/// After this time without an answer the next member is asked too: some times what a quorum takes on slow disks, and what
/// users do not notice.
const HEDGE: Duration = Duration::from_millis(200);

/// How long a connection may take to come about, with etcd's look at certificate and password, which takes a busy machine seconds. Other
/// members are asked meanwhile.
const CONNECT: Duration = Duration::from_secs(5);

/// When a connection that says nothing is asked whether it lives, and how long the answer may take. etcd ends connections
/// that ask more often than each 5 s (`--grpc-keepalive-min-time`).
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(2));

/// What etcd says to a token that it no longer takes: somebody changed its users since (then also of tokens that are signed, and
/// good for that reason), or it was forgotten. A new connection has a new one.
const STALE_TOKEN: [&str; 2] =
    ["etcdserver: revision of auth store is old", "etcdserver: invalid auth token"];

/// What etcd says before a request gets as far as being made.
const NOT_DONE: [&str; 4] =
    ["etcdserver: no leader", "etcdserver: too many requests", STALE_TOKEN[0], STALE_TOKEN[1]];

/// What etcd says of a moment whose rows it does not keep any more, or that it has not come to: then it was restored from a snapshot, as
/// reads wait until a member has all that any member has told of.
const FORGOTTEN: [&str; 2] =
    ["required revision has been compacted", "required revision is a future revision"];

/// The user and the password for etcd.
#[derive(Clone)]
pub struct Password {
    /// The name of the user in etcd.
    pub user: String,
    /// Their password.
    pub password: Zeroizing<String>,
}

/// The proofs of identity of members and of this client; all in PEM.
#[derive(Clone, Default)]
pub struct Tls {
    /// The certificates of the authorities that are trusted.
    pub authorities: Vec<u8>,
    /// The client's certificate and key, if it has one.
    pub identity: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
}

/// The means by which etcd and this client tell each other who they are.
#[derive(Clone, Default)]
pub struct Credentials {
    /// For `https://`.
    pub tls: Option<Tls>,
    /// The password, if etcd wants to know users.
    pub password: Option<Password>,
}

/// Reads the credentials, or says why not. It is called for each new connection, where it may wait for a disk: files that are replaced
/// count from the next connection on, before the certificate in use ends.
pub type ReadCredentials = Arc<dyn Fn() -> Result<Credentials, String> + Send + Sync>;

/// The configuration for reaching an etcd.
#[derive(Clone)]
pub struct Config {
    /// The addresses of members, `http://` or `https://`, host and port.
    pub endpoints: Vec<String>,
    /// The prefix of all keys that are used. Two cells in one etcd have different ones, neither of which begins with the other.
    pub prefix: String,
    /// Credentials with certificates if the members are at `https://`, each time.
    pub credentials: ReadCredentials,
}

impl Config {
    /// The configuration for an etcd that asks nobody who they are.
    pub fn without_credentials(endpoints: Vec<String>, prefix: &str) -> Self {
        Self { endpoints, prefix: prefix.to_owned(), credentials: Arc::new(|| Ok(Credentials::default())) }
    }
}

/// The reason why nothing came of a request.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) known: Known,
    /// True if all members would say the same, however often they are asked.
    pub(super) is_refusal: bool,
    /// True if the member no longer takes the token of the connection, which is made anew.
    pub(super) is_stale: bool,
}

/// The members.
pub(super) struct Members {
    endpoints: Vec<Endpoint>,
    credentials: ReadCredentials,
    /// The one that is asked first.
    preferred: AtomicUsize,
}

struct Endpoint {
    url: String,
    connection: Mutex<Connection>,
}

/// A connection to a member.
enum Connection {
    /// None yet.
    None,
    /// It is being made since then, for all who want it: with a password etcd is asked for a token, which takes it a while.
    Begun(Instant, Connecting),
    /// It is there.
    Made(Box<Client>),
}

/// What goes on though nobody waits for it.
type Connecting = Shared<BoxFuture<'static, Result<Client, Arc<Error>>>>;

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.endpoints.iter().map(|endpoint| &endpoint.url)).finish()
    }
}

impl Members {
    pub(super) fn new(config: Config) -> Result<Self, StoreError> {
        let wrong = |what: String| Err(StoreError::new("reaching etcd", what).with(Known::NotDone));
        if config.endpoints.is_empty() {
            return wrong("no member is named".to_owned());
        }
        let is_secret = match (config.credentials)() {
            Ok(credentials) => credentials.tls.is_some(),
            Err(what) => return wrong(what),
        };
        for url in &config.endpoints {
            let scheme = if is_secret { "https://" } else { "http://" };
            if !url.starts_with(scheme) {
                return wrong(format!(
                    "'{url}' does not begin with {scheme}, as it has to {}",
                    if is_secret { "if there are certificates" } else { "unless there are certificates" }
                ));
            }
        }
        let endpoint = |url| Endpoint { url, connection: Mutex::new(Connection::None) };
        let endpoints = config.endpoints.into_iter().map(endpoint).collect();
        Ok(Self { endpoints, credentials: config.credentials, preferred: AtomicUsize::new(0) })
    }

    pub(super) fn count(&self) -> usize {
        self.endpoints.len()
    }

    /// Asks a member, and another one each time when the last one fails or takes long. The first answer counts.
    pub(super) async fn ask<T, F>(
        &self,
        patience: Duration,
        request: impl Fn(Client) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.endpoints.len();
        let mut order = (0..count).map(|step| (first + step) % count);
        let mut asked = FuturesUnordered::new();
        let end = Instant::now() + patience;
        let (mut hedge, mut known, mut last) = (Instant::now(), Known::NotDone, None);
        let mut has_new_token = false;
        loop {
            tokio::select! {
                biased;
                Some((index, answer)) = asked.next() => match answer {
                    Ok(answer) => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(failure @ Failure { .. }) => {
                        if failure.known != Known::NotDone {
                            known = Known::Nothing;
                        }
                        if failure.is_stale && !std::mem::replace(&mut has_new_token, true) {
                            asked.push(self.ask_one(index, &request));
                            continue;
                        }
                        if failure.is_refusal {
                            self.preferred.store(index, Ordering::Relaxed);
                            return Err(failure);
                        }
                        last = Some(failure.reason);
                        hedge = Instant::now();
                    }
                },
                () = sleep_until(hedge.min(end)) => {
                    if Instant::now() >= end {
                        // All that were asked hang; next time their connections are new ones.
                        let waiting = format!("no member answered within {patience:?}");
                        self.preferred.store((first + 1) % count, Ordering::Relaxed);
                        self.endpoints.iter().for_each(Endpoint::forget);
                        let reason = last.map_or_else(|| waiting.clone(), |last| format!("{waiting}; {last}"));
                        return Err(Failure { reason, known: Known::Nothing, is_refusal: false, is_stale: false });
                    }
                    match order.next() {
                        Some(index) => {
                            asked.push(self.ask_one(index, &request));
                            hedge = Instant::now() + HEDGE;
                        }
                        None if asked.is_empty() => {
                            let reason = last.unwrap_or_default();
                            return Err(Failure { reason, known, is_refusal: false, is_stale: false });
                        }
                        None => hedge = end,
                    }
                }
            }
        }
    }

    async fn ask_one<T, F>(&self, index: usize, request: &impl Fn(Client) -> F) -> (usize, Result<T, Failure>)
    where
        F: Future<Output = Result<T, Error>>,
    {
        let answer = match self.client(index).await {
            Ok(client) => request(client).await.map_err(|error| self.failure(index, &error)),
            // There was no connection for the request to be sent on.
            Err(error) => Err(Failure { known: Known::NotDone, ..self.failure(index, &error) }),
        };
        (index, answer)
    }

    async fn client(&self, index: usize) -> Result<Client, Arc<Error>> {
        let endpoint = &self.endpoints[index];
        let connecting = {
            let mut connection = endpoint.lock();
            match &*connection {
                Connection::Made(client) => return Ok(Client::clone(client)),
                Connection::Begun(since, connecting) if since.elapsed() <= CONNECT => connecting.clone(),
                // What came of it nobody has waited for: it may be long out of date.
                Connection::Begun(..) | Connection::None => {
                    let connecting = connect(endpoint.url.clone(), Arc::clone(&self.credentials));
                    *connection = Connection::Begun(Instant::now(), connecting.clone());
                    connecting
                }
            }
        };
        let connected = connecting.clone().await;
        let mut connection = endpoint.lock();
        if matches!(&*connection, Connection::Begun(_, begun) if begun.ptr_eq(&connecting)) {
            match &connected {
                Ok(client) => *connection = Connection::Made(Box::new(client.clone())),
                // It holds for whoever asks in the next seconds: each try costs etcd a look at the password.
                Err(error) if is_login_refused(error) => {}
                Err(_) => *connection = Connection::None,
            }
        }
        connected
    }

    /// What an error of a member means. Its connection is made anew, unless it was an answer.
    fn failure(&self, index: usize, error: &Error) -> Failure {
        let endpoint = &self.endpoints[index];
        let (known, is_refusal, reason) = match error {
            Error::GRpcStatus(status) => {
                let message = status.message();
                let is_not_sent = NOT_DONE.iter().any(|text| message.contains(text)) || is_connecting(status);
                let known = if is_not_sent { Known::NotDone } else { Known::Nothing };
                let code = status.code();
                let code = format!("{code:?}");
                let is_forgotten = FORGOTTEN.iter().any(|text| message.contains(text));
                let known = if is_forgotten { Known::Forgotten } else { known };
                let is_refusal = [
                    "InvalidArgument",
                    "PermissionDenied",
                    "OutOfRange",
                    "ResourceExhausted",
                    "FailedPrecondition",
                ]
                .contains(&&code[..])
                    && !is_not_sent;
                // etcd takes no changes until somebody ends its alarm, even with room again.
                let advice = if message.contains("database space exceeded") {
                    ": compact and defragment etcd, or raise its --quota-backend-bytes, then 'etcdctl alarm disarm'"
                } else {
                    ""
                };
                (known, is_refusal, format!("{message} ({code}){advice}"))
            }
            Error::EndpointError(_) | Error::InvalidArgs(_) | Error::InvalidUri(_) => {
                (Known::NotDone, false, error.to_string())
            }
            _ => (Known::Nothing, false, error.to_string()),
        };
        let is_stale = STALE_TOKEN.iter().any(|text| reason.contains(text));
        if is_stale || !is_refusal && !reason.contains("etcdserver:") {
            endpoint.forget();
        }
        Failure { reason: format!("{}: {reason}", endpoint.url), known, is_refusal, is_stale }
    }
}

/// Makes a connection, with a token if there is a password, in a task of its own: who asks for it may give up before it is made.
fn connect(url: String, credentials: ReadCredentials) -> Connecting {
    let ended = |error: tokio::task::JoinError| Error::EndpointError(error.to_string());
    let connected = async move {
        let read = tokio::task::spawn_blocking(move || credentials()).await.map_err(ended)?;
        let options = options(read.map_err(Error::EndpointError)?);
        Client::connect([&url], Some(options)).await
    };
    let task = tokio::spawn(async move {
        let late = |_| Err(Error::EndpointError(format!("not connected within {CONNECT:?}")));
        timeout(CONNECT, connected).await.unwrap_or_else(late)
    });
    async move { task.await.unwrap_or_else(|error| Err(ended(error))).map_err(Arc::new) }.boxed().shared()
}

fn options(credentials: Credentials) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
        .with_require_leader(true);
    if let Some(tls) = credentials.tls {
        let mut wanted = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.authorities));
        if let Some((certificate, key)) = &tls.identity {
            wanted = wanted.identity(Identity::from_pem(certificate, key.as_slice()));
        }
        options = options.with_tls(wanted);
    }
    if let Some(Password { user, password }) = credentials.password {
        options = options.with_user(user.as_str(), password.as_str());
    }
    options
}

/// True if etcd has looked at the user and the password, and takes neither.
fn is_login_refused(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("authentication failed"))
}

/// True if a request failed since there is no connection, so that it was not sent.
fn is_connecting(status: &impl std::error::Error) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.to_string().contains("tcp connect error") || error.to_string().contains("tcp open error") {
            return true;
        }
        cause = error.source();
    }
    false
}

impl Endpoint {
    fn lock(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request makes a new connection, unless one is being made.
    fn forget(&self) {
        let mut connection = self.lock();
        if matches!(*connection, Connection::Made(_)) {
            *connection = Connection::None;
        }
    }
}
