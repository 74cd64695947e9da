//! The client: its beginning, its end, and who its users are. Its parts are put together in [`parts`]. What callers do with it is in
//! [`names`], [`statuses`] and [`files`], and what `fs` asks in `service`.

mod behind;
pub(crate) mod callbacks;
mod device;
mod files;
mod kept;
mod names;
pub(crate) mod parts;
mod pins;
mod statuses;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use afs_config::CellName;
use afs_wire::Uuid;
use afs_wire::ids::{AfsTime, VolumeType};
use afs_wire::rxafs::{GiveUpAllCallBacks, Rxafs};
use futures_util::future::{join, join_all};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Endpoint, EndpointConfig, Runtime};
use rx_proto::time::Instant;
use rx_security::{Token, rxgk};

use crate::config::Config;
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, Pag, User};
use afs_reach::pags::{New, NoPag};
use afs_reach::table::ServerKind;
use afs_reach::users::{Holder, IdentityIndex, LoggedIn, TokenCounts, TokenInfo};
use afs_reach::wait;
use afs_view::data::files::Files;
use afs_view::events::{Audience, Notices};
use afs_view::names::dynroot;
use afs_view::vnodes::status::unix_time;
use afs_view::vnodes::suspended;

pub(crate) use parts::Parts;
use parts::assemble;

/// The time for which a client that ends waits for servers to take back what they have promised: they find out by themselves otherwise.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// The time for which a client that ends stores what is dirty: the rest is kept for the next start.
const STORE_MAX: Duration = Duration::from_secs(20);

/// A client of AFS. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) inner: Arc<Parts>,
}

/// Room in a volume and its partition, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The quota; without one, the partition's size.
    pub total_kib: u64,
    /// The room that is left in it.
    pub free_kib: u64,
}

/// Beginning and end.
impl Client {
    /// Starts a client: binds its port and answers servers on it. Of the servers nobody is asked anything yet, unless the root is a
    /// volume's.
    ///
    /// # Errors
    ///
    /// When no port can be had; when a user is to have tickets of a cell without a key; when the root volume is not found.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn start(config: Config) -> Result<Self, Error> {
        Self::start_with(Arc::new(rx::TokioRuntime::current()), config).await
    }

    /// The same on a runtime of the caller's choice.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub async fn start_with(runtime: Arc<dyn Runtime>, config: Config) -> Result<Self, Error> {
        let endpoint = bind(&runtime, &config)?;
        let seed = runtime.seed().map_err(|error| Error::local("getting random numbers", error))?;
        let inner = Arc::new(assemble(runtime, config, endpoint, seed)?);
        let client = Self { inner };
        client.inner.callbacks.offer();
        client.inner.files.load_settings().await?;
        let earlier = client.inner.files.load_known().await?;
        let root = if client.inner.config.dynroot { dynroot::ROOT } else { client.root_of_volume().await? };
        client.inner.mount_points.set_root(root);
        client.inner.changes.replay.load().await?;
        let pinned = client.inner.files.restore_known(earlier).await?;
        client.inner.files.store_left();
        client.inner.pins.load(&pinned)?;
        client.inner.runtime.spawn(Box::pin(Files::keep_on(Arc::downgrade(&client.inner.files))));
        client.inner.liveness.keep_in_touch();
        let inner = &client.inner;
        let (detector, closing) = (Arc::downgrade(&inner.suspended), inner.closing.clone());
        inner.runtime.spawn(Box::pin(suspended::watch(detector, inner.runtime.clone(), root, closing)));
        if client.inner.config.cache_disk.is_some() {
            client.inner.runtime.spawn(Box::pin(Files::maintain(Arc::downgrade(&client.inner.files))));
        }
        Ok(client)
    }

    /// Ends it: stores what is dirty, gives back locks and promises as far as servers can be reached, frees the port and closes the cache.
    /// Operations under way fail with [`Error::Closing`].
    pub async fn shut_down(&self) {
        let inner = &self.inner;
        self.set_paused(false);
        // What is left is in the cache, and is for the next start.
        let stored = join(inner.changes.replay.journal.settle_all(), inner.files.store_all());
        wait::within(&inner.runtime, STORE_MAX, stored).await;
        if let Err(error) = inner.files.keep_known(true).await {
            tracing::warn!(%error, "what is known is not kept for the next start");
        }
        wait::within(&inner.runtime, GOODBYE_MAX, inner.locks.release_all()).await;
        // From here on, the client asks servers nothing more, not even to prefetch. A server would take the caller for a new client, and
        // later wait in vain for the client's answer.
        inner.closing.begin();
        inner.liveness.end();
        inner.servers.back.notify_waiters();
        let goodbye = async {
            let servers = inner.servers.all();
            let known = servers.iter().filter(|server| {
                let candidate = server.candidate();
                server.kind == ServerKind::File && candidate.has_answered && candidate.down_since.is_none()
            });
            let calls = known.filter_map(|server| server.best()).map(|address| async move {
                let peer = inner.connections.to::<Rxafs>(address.socket);
                peer.rpc(&GiveUpAllCallBacks {}).await
            });
            join_all(calls).await
        };
        let said = wait::within(&inner.runtime, GOODBYE_MAX, goodbye).await;
        tracing::debug!(all = said.is_some(), "promises were given back");
        inner.invalidations.close();
        self.endpoint().shut_down();
        // Not with the last who has it: some task may be among them until the process ends, and what is not closed is worth nothing after
        // a reboot.
        let cache = inner.files.cache.clone();
        if let Err(error) = rx::blocking::on_a_thread(move || cache.close()).await {
            tracing::warn!(%error, "the cache was not closed");
        }
    }

    /// The root directory of the volume that is the root.
    async fn root_of_volume(&self) -> Result<Fid, Error> {
        let inner = &self.inner;
        let cell = inner.dns.cell_named(inner.config.cell.as_str()).await?;
        let entry = inner.locations.by_name(&*inner.calls, &cell, &inner.config.root_volume, None).await?;
        let volume = entry.id_of(VolumeType::READ_ONLY).or_else(|| entry.id_of(VolumeType::READ_WRITE));
        let none =
            || Error::NoVolume { cell: cell.name.to_string(), volume: inner.config.root_volume.clone() };
        Ok(Fid::root_of(cell.index, volume.ok_or_else(none)?))
    }
}

/// Facts.
impl Client {
    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The time that `Status::valid_until` is told in.
    pub fn now(&self) -> Instant {
        self.inner.runtime.now()
    }

    /// Seconds since 1970, as times of files are told.
    pub fn time(&self) -> AfsTime {
        unix_time(&*self.inner.runtime)
    }

    /// The runtime that it waits through.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.inner.runtime
    }

    /// The root of it all: the dynamic root, or the root directory of the root volume.
    pub fn root(&self) -> Fid {
        self.inner.mount_points.root()
    }

    /// The id of this client for servers.
    pub fn uuid(&self) -> Uuid {
        self.inner.uuid
    }

    /// The address and port that it calls from and is called back on.
    pub fn address(&self) -> SocketAddr {
        self.endpoint().local_addr()
    }

    /// Its port, for calls to other services.
    pub fn endpoint(&self) -> &Endpoint {
        self.inner.connections.endpoint()
    }

    /// The name of a cell; `None` for the dynamic root.
    pub fn cell_name(&self, cell: CellIndex) -> Option<CellName> {
        self.inner.cells.get(cell).map(|cell| cell.name.clone())
    }

    /// Changes from now on, for those who keep copies for this audience.
    pub fn notices(&self, audience: Audience) -> Notices {
        self.inner.invalidations.subscribe(audience)
    }

    /// The number of vnodes that are known.
    pub fn vnode_count(&self) -> usize {
        self.inner.vnodes.count()
    }
}

/// The users and their tokens.
impl Client {
    /// Gives a user a token for a cell; `holder` is who the user says to be in it, for `tokens` and the log. Whether anything has
    /// changed: nothing does if the user has this very token already, unless `is_forced`.
    ///
    /// What the user may see is asked of servers again. Operations that are under way for the same person go on, with the new token.
    ///
    /// # Errors
    ///
    /// [`Error::NoCell`]; [`Error::TooManyTokens`].
    pub fn log_in(
        &self,
        user: User,
        cell: &str,
        holder: Holder,
        token: Token,
        is_forced: bool,
    ) -> Result<bool, Error> {
        let cell = self.inner.cells.find(cell)?;
        let cell_name = cell.name.as_str();
        let outcome = self.inner.users.log_in(user, (cell.index, cell_name), holder, token, is_forced);
        self.logged_in(user, outcome)
    }

    /// Gives a user a token of rxgk for a cell, and none of rxkad. The cell may be in the DNS only.
    ///
    /// # Errors
    ///
    /// As [`Self::log_in`].
    pub async fn log_in_by_rxgk_alone(
        &self,
        user: User,
        cell: &str,
        holder: Holder,
        token: rxgk::Token,
    ) -> Result<(), Error> {
        let cell = self.inner.dns.cell_named(cell).await?;
        // Where volumes are was asked by who could be lied to.
        self.inner.locations.forget_all();
        let cell_name = cell.name.as_str();
        let outcome = self.inner.users.log_in_by_rxgk_alone(user, (cell.index, cell_name), holder, token);
        self.logged_in(user, outcome).map(drop)
    }

    fn logged_in(&self, user: User, outcome: LoggedIn) -> Result<bool, Error> {
        match outcome {
            LoggedIn::Before => return Ok(false),
            LoggedIn::TooMany => return Err(Error::TooManyTokens { uid: user.uid }),
            LoggedIn::Renewed(_) | LoggedIn::Anew(_) => self.note_login(user, outcome),
        }
        Ok(true)
    }

    /// A user has another token: what is known of the identity before is asked anew.
    fn note_login(&self, user: User, outcome: LoggedIn) {
        match outcome {
            LoggedIn::Before | LoggedIn::TooMany => return,
            LoggedIn::Renewed(who) | LoggedIn::Anew(Some(who)) => self.forget_identity(who),
            LoggedIn::Anew(None) => {}
        }
        let inner = Arc::downgrade(&self.inner);
        self.inner.users.begin_to_watch(move |user, who| {
            // What was cached for the user may be shown no more: servers are asked what anybody may.
            if let Some(client) = inner.upgrade().map(|inner| Self { inner }) {
                client.forget_identity(who);
                client.inner.invalidations.mention_identity(Some(user), client.root());
            }
        });
        self.inner.invalidations.mention_identity(Some(user), self.root());
        // What waits to be stored may have waited for this.
        self.inner.users.changed.notify_waiters();
    }

    /// Takes a user's token for a cell away, or all of the user's tokens. Returns how many there were.
    pub fn log_out(&self, user: User, cell: Option<CellIndex>) -> usize {
        let cell = cell.map(|cell| (cell, self.inner.cells.name_of(cell)));
        let cell = cell.as_ref().map(|(cell, name)| (*cell, name.as_str()));
        let (count, gone) = self.inner.users.log_out(user, cell);
        gone.into_iter().for_each(|who| self.forget_identity(who));
        if count > 0 {
            self.inner.invalidations.mention_identity(Some(user), self.root());
        }
        count
    }

    /// Has servers asked anew, by new connections, what an identity may do.
    fn forget_identity(&self, who: IdentityIndex) {
        self.inner.connections.renew(who);
        self.inner.vnodes.all().iter().for_each(|vnode| vnode.forget_rights(who));
    }

    /// The tokens that a user has.
    pub fn tokens(&self, user: User) -> Vec<TokenInfo> {
        self.inner.users.tokens(user)
    }

    /// A user's token for the cell of exactly this name, and who the user is there. It has the session's key: it is for this user alone.
    pub fn held_token(&self, user: User, cell: &str) -> Option<(Holder, Arc<Token>)> {
        self.inner.users.held(user, self.inner.cells.named(cell)?.index)
    }

    /// The same of rxgk.
    pub fn held_rxgk(&self, user: User, cell: &str) -> Option<Arc<rxgk::Token>> {
        self.inner.users.held_rxgk(user, self.inner.cells.named(cell)?.index)
    }

    /// Gives a user a token of rxgk, beside the one that the user has for the cell. Returns whether the user has one.
    pub fn log_in_by_rxgk(&self, user: User, cell: &str, token: rxgk::Token) -> bool {
        let cell = self.inner.cells.named(cell);
        let who = cell.and_then(|cell| {
            // Where volumes are was asked by who could be lied to.
            self.inner.locations.forget_all();
            self.inner.users.log_in_by_rxgk(user, cell.index, token)
        });
        who.inspect(|who| self.forget_identity(*who)).is_some()
    }

    /// Makes a PAG for a user, and gives it a number that no other has. A process is in it that has this group.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when the user has too many, and none of them is without processes.
    pub fn make_pag(&self, uid: u32) -> Result<Pag, Error> {
        let seed =
            self.inner.runtime.seed().map_err(|error| Error::local("getting random numbers", error))?;
        self.add_pag(self.inner.pags.make(uid, &mut StdRng::from_seed(seed)), uid)
    }

    /// Takes over a PAG that another client of this machine has made for a user: it is the same session in all of them.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] as with [`Self::make_pag`], or when the number is somebody else's PAG here.
    pub fn adopt_pag(&self, pag: Pag, uid: u32) -> Result<(), Error> {
        self.add_pag(self.inner.pags.adopt(pag, uid), uid).map(drop)
    }

    fn add_pag(&self, made: Result<New, NoPag>, uid: u32) -> Result<Pag, Error> {
        let New { pag, is_first, ended } = made.map_err(|why| Error::Invalid {
            what: match why {
                NoPag::TooMany => format!("the user {uid} has too many PAGs that have processes or are new"),
                NoPag::Taken => {
                    "this number is another user's PAG, or one from before this client began".to_owned()
                }
            },
        })?;
        if is_first {
            self.distrust_copies();
        }
        if let Some(user) = ended {
            self.forget_pag(user);
        }
        Ok(pag)
    }

    /// Ends the PAG of a user, if it is one that was made for that user: processes that are still in it have no tokens. What was written with its
    /// tokens and is not stored yet waits for another one of the same person's.
    pub fn end_pag(&self, user: User) {
        self.inner.pags.end(user);
        self.forget_pag(user);
        self.inner.invalidations.mention_identity(Some(user), self.root());
    }

    fn forget_pag(&self, user: User) {
        tracing::debug!(uid = user.uid, "a PAG has ended");
        self.inner.users.end(user).into_iter().for_each(|who| self.forget_identity(who));
    }

    /// Makes programs look again at copies that one user was shown: not all of the user's processes may see them any more.
    fn distrust_copies(&self) {
        self.inner.invalidations.mention_identity(None, self.root());
    }

    /// True if there are PAGs: else nobody needs to know the groups of processes.
    pub fn has_pags(&self) -> bool {
        self.inner.pags.are_in_use()
    }

    /// The identity of a process, by its user, its real user and its groups.
    pub fn user(&self, uid: u32, real: u32, groups: impl Iterator<Item = u32>) -> User {
        self.inner.pags.user(uid, real, groups)
    }

    /// These are the PAGs that processes are in: others end, in time. To be told now and then; at first before the client is mounted, or
    /// soon after, as those that are told then may be of an earlier run.
    pub fn note_pags(&self, alive: &HashSet<Pag>) {
        let inner = &self.inner;
        let had_any = inner.pags.are_in_use();
        let ended = inner.pags.look(alive, |user| inner.users.has_token(user));
        if !had_any && inner.pags.are_in_use() {
            self.distrust_copies();
        }
        ended.into_iter().for_each(|user| self.forget_pag(user));
    }

    /// The number of tokens that users have given.
    pub fn token_counts(&self) -> TokenCounts {
        self.inner.users.counts()
    }
}

fn bind(runtime: &Arc<dyn Runtime>, config: &Config) -> Result<Endpoint, Error> {
    let make = |address| {
        let mut options = EndpointConfig::default();
        options.proto.limits.dead = config.dead_after;
        options.proto.receive_budget = config.received_bytes;
        options.queue_bytes = config.packet_bytes;
        Endpoint::bind_with(Arc::clone(runtime), address, options)
    };
    let failed = |error| Error::local(format!("binding {} for callbacks of servers", config.bind), error);
    match make(config.bind) {
        Err(error) if config.any_port && config.bind.port() != 0 => {
            tracing::info!(%error, "the port for callbacks is taken: servers call another port");
            make(SocketAddr::new(config.bind.ip(), 0)).map_err(failed)
        }
        bound => bound.map_err(failed),
    }
}
