//! The service: who may call, transactions in use, and the volume's state around them. The procedures are in the files below
//! this one, by what they do: `change` makes and alters volumes, `convert` makes a read-only one the read-write one, `level` sets how well their contents are protected, `show` tells of them, `snapshots` keeps those of a volume `schedule` makes them from time to time, and `limit` sets what they may hold, `removed` keeps what a removed volume leaves, `dump` and `forward` send their dumps and `restore` receives them, `unserved` refuses. What the logs say of them is in `order`.

mod change;
mod convert;
mod dump;
mod forward;
mod halves;
mod level;
mod limit;
mod order;
mod removed;
mod restore;
mod schedule;
mod show;
mod size;
mod snapshots;
mod unserved;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use afs_volume::fsck::{self, Report};
use afs_volume::{Partition, Schedule, Volume, VolumeError, VolumeKind, VolumeState};
use afs_wire::afsvol::{AfsVol, AttachFlags, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, SecurityLevel, TransId, VolumeId, VolumeType};
use futures_util::future::{Either, select};
use rx::{BoxFuture, Connection, Procedures, Runtime, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::ServerSecurity;
use rx_proto::time::Instant;
use rxgen::serve::MAX_ARGUMENT_BYTES;
use rxgen::{Abort, Interface, Rpc, ServerCall};

use crate::codes;
use crate::partitions::Partitions;
use crate::transactions::{Moved, Refused, Transaction, Transactions};
use order::{About, Caller};
pub use order::{OF_VOLUMES, ORDERS};
use rx::blocking::on_a_thread;
pub use schedule::{SnapshotSpace, snapshot_space};
pub(crate) use show::type_of;

/// The offline message of a volume that a transaction has taken offline. Stock servers say the same, and dumps carry
/// it.
pub(crate) const UTILITY_IS_RUNNING: &str = "A volume utility is running.";

/// The message of a volume out of service.
const OUT_OF_SERVICE: &str = "It was taken out of service.";

/// The time between two looks for idle transactions.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The time for which a call waits for its client. Longer than elsewhere: a dump may go into a pipe whose reader has to change a tape.
const STALL: Duration = Duration::from_secs(600);

/// The time between two looks of a waiting call at whether its transaction was ended.
const LOOK_FOR_END_EVERY: Duration = Duration::from_millis(100);

/// The time for which the end of a transaction waits for a call in it to stop: what came of a dump has to be removed.
const TIMEOUT_AT_END: Duration = Duration::from_secs(10);

/// Calls worked on at once. Each holds a thread while it waits for the disk; `vos` runs a handful.
const MAX_CALLS: usize = 64;

/// The configuration of the service.
#[derive(Clone)]
pub struct Config {
    /// True if only superusers may list volumes (`-restricted_query admin`). Default false.
    pub is_restricted: bool,
    /// A transaction that nobody has used for so long is ended. Default 600 s, as in OpenAFS.
    pub idle_limit: Duration,
    /// The time for which what came of a volume is kept after its restore, move or release broke off, to be gone on with.
    /// Default: a day.
    pub half_limit: Duration,
    /// The schedule by which snapshots are made of volumes that have none of their own. Default: none are made.
    pub schedule: Schedule,
    /// The time for which a removed volume can be brought back. Default: none can.
    pub undelete_limit: Duration,
    /// The time of day.
    pub clock: Arc<dyn Fn() -> AfsTime + Send + Sync>,
}

impl Config {
    /// The defaults, with this clock.
    pub fn new(clock: impl Fn() -> AfsTime + Send + Sync + 'static) -> Self {
        let (idle_limit, half_limit) = (Duration::from_secs(600), Duration::from_secs(24 * 3600));
        let (schedule, undelete_limit) = (Schedule::default(), Duration::ZERO);
        Self {
            is_restricted: false,
            idle_limit,
            half_limit,
            schedule,
            undelete_limit,
            clock: Arc::new(clock),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_restricted, idle_limit, half_limit, schedule, undelete_limit, clock } = self;
        let limits = (idle_limit, half_limit, undelete_limit);
        write!(f, "Config({is_restricted}, {limits:?}, {schedule:?}, {})", clock().0)
    }
}

/// The authority on who may change volumes.
pub trait Authority: Send + Sync + 'static {
    /// True if the caller whom the security class names so (empty: anonymous) is a superuser of this server.
    fn is_superuser(&self, identity: &str) -> bool;
}

/// The receiver of news of volumes: the file service.
pub trait Watcher: Send + Sync + 'static {
    /// A volume's state or contents have changed at once, or it has gone: the clients with callback promises must be called. The future
    /// ends when that is done, as far as it can be.
    fn volume_changed(&self, volume: VolumeId) -> BoxFuture;
}

/// The other servers of the cell: the volume servers, as volumes are sent to them, and the location database.
pub trait Peers: Send + Sync + 'static {
    /// The volume service at an address, called as by the cell itself on behalf of a caller whose own connection is encrypted or not, and
    /// at this level at least. Nothing is sent to it yet. An error says why it cannot be called: there is no key.
    fn connect(&self, to: SocketAddr, is_encrypted: bool, least: SecurityLevel) -> Connecting<'_>;

    /// So many new volume ids of the cell's location database, of which this is the first. An error says why there are none now.
    fn new_volume_ids(&self, count: u32) -> NewIds<'_> {
        let why = format!("there is no location database that could give {count} volume ids");
        Box::pin(std::future::ready(Err(why)))
    }
}

/// Volume ids that are asked for.
pub type NewIds<'a> = Pin<Box<dyn Future<Output = Result<VolumeId, String>> + Send + 'a>>;

/// A connection that is made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Connection, String>> + Send + 'a>>;

/// The reason why a volume was not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unchecked {
    /// It is not on that partition.
    NoVolume,
    /// Somebody works on it.
    Busy,
    /// It cannot be read, and why.
    Failed(String),
}

/// The volume service. Clones are the same one.
#[derive(Clone)]
pub struct VolumeService {
    shared: Arc<Shared>,
}

struct Shared {
    partitions: Partitions,
    transactions: Mutex<Transactions>,
    authority: Arc<dyn Authority>,
    watcher: Arc<dyn Watcher>,
    peers: Arc<dyn Peers>,
    runtime: Arc<dyn Runtime>,
    config: Config,
    /// Volumes of which the log says that their snapshots come near their limit.
    near_limit: Mutex<BTreeSet<VolumeId>>,
}

impl fmt::Debug for VolumeService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeService").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl VolumeService {
    /// A service of these partitions. Ends idle transactions in a task of `runtime`, for as long as the service is there.
    pub fn new(
        partitions: Partitions,
        authority: Arc<dyn Authority>,
        watcher: Arc<dyn Watcher>,
        peers: Arc<dyn Peers>,
        runtime: Arc<dyn Runtime>,
        config: Config,
    ) -> Self {
        let transactions = Mutex::default();
        let shared = Arc::new(Shared {
            partitions,
            transactions,
            authority,
            watcher,
            peers,
            runtime: Arc::clone(&runtime),
            config,
            near_limit: Mutex::default(),
        });
        let task = end_idle(Arc::downgrade(&shared), Arc::clone(&runtime));
        runtime.spawn(Box::pin(task));
        let task = schedule::keep(Arc::downgrade(&shared), Arc::clone(&runtime));
        runtime.spawn(Box::pin(task));
        Self { shared }
    }

    /// The service for an endpoint, for clients of these security classes.
    pub fn config(&self, security: Vec<Arc<dyn ServerSecurity>>) -> ServiceConfig {
        let id = ServiceId(AfsVol::SERVICE_ID);
        // Nothing is trusted to an address, and vos has no reach check of its own that it would hold up.
        let limits = CallLimits { stall: Some(STALL), ..CallLimits::default() };
        let service = Service { id, security, check_reach: false, upgrades_to: None, limits };
        let this = self.clone();
        let procedures = Arc::new(Procedures::of::<AfsVol>());
        let mut config = ServiceConfig::new(service, move |mut call: rx::ServerCall| {
            let (this, procedures) = (this.clone(), Arc::clone(&procedures));
            async move { procedures.serve::<AfsVol, _>(&this, &mut call, MAX_ARGUMENT_BYTES).await }
        });
        config.max_calls = MAX_CALLS;
        config
    }

    /// The number of transactions.
    pub fn transaction_count(&self) -> usize {
        self.shared.transactions().iter().count()
    }

    /// Ends all transactions that no call is using: their callers cannot go on, because the service is stopped.
    pub async fn end_all(&self) {
        end_unused(&self.shared, Duration::ZERO, "the server is being stopped").await;
    }

    /// Checks a volume as `afar fsck` does, as it is now: clients go on reading and writing it meanwhile.
    ///
    /// # Errors
    ///
    /// Somebody works on the volume, it is not there, or it cannot be read.
    pub async fn check(&self, partition: PartitionId, volume: VolumeId) -> Result<Report, Unchecked> {
        let of = self.partition(partition).ok_or(Unchecked::NoVolume)?;
        if self.shared.transactions().of(volume, partition).is_some() {
            return Err(Unchecked::Busy);
        }
        on_a_thread(move || fsck::check_one(&of, volume)).await.map_err(|error| match error {
            VolumeError::NoVolume(_) => Unchecked::NoVolume,
            error => Unchecked::Failed(error.to_string()),
        })
    }

    fn must_be_superuser(&self, identity: &str) -> Result<(), Abort> {
        if self.shared.authority.is_superuser(identity) { Ok(()) } else { Err(codes::BAD_ACCESS) }
    }

    /// Runs an order that only superusers may give, and writes it to the logs.
    async fn audited<R: Rpc, T>(
        &self,
        call: ServerCall<'_, R>,
        about: About,
        work: impl Future<Output = Result<T, Abort>> + Send,
    ) -> Result<T, Abort> {
        let caller = Caller::of(&call);
        let result = match self.must_be_superuser(caller.name()) {
            Ok(()) => work.await,
            Err(code) => Err(code),
        };
        about.tell(R::NAME, &caller, result.as_ref().err().map_or(0, |abort| abort.0));
        result
    }

    fn may_query(&self, identity: &str) -> Result<(), Abort> {
        if self.shared.config.is_restricted { self.must_be_superuser(identity) } else { Ok(()) }
    }

    fn partition(&self, id: PartitionId) -> Option<Partition> {
        self.shared.partitions.get(id).cloned()
    }

    /// Begins a transaction, which is the caller's until they let go of it.
    fn begin(
        &self,
        volume: VolumeId,
        partition: PartitionId,
        attach: AttachFlags,
        procedure: &'static str,
    ) -> Result<InUse, Abort> {
        let shared = &self.shared;
        let mut table = shared.transactions();
        let id = table.begin(shared.now(), volume, partition, attach, procedure).map_err(refused)?;
        let transaction =
            table.of(volume, partition).filter(|t| t.id == id).expect("it was just begun").clone();
        Ok(InUse { shared: Arc::clone(shared), transaction, is_over: false })
    }

    /// Runs work with the volume of a transaction, on a thread that may wait for the disk. An error stays with the transaction.
    async fn within<T: Send + 'static>(
        &self,
        id: TransId,
        procedure: &'static str,
        work: impl FnOnce(&mut InUse, &Partition, &Volume) -> Result<T, Abort> + Send + 'static,
    ) -> Result<T, Abort> {
        let shared = Arc::clone(&self.shared);
        let transaction = shared.transactions().take(shared.now(), id, procedure).map_err(refused)?;
        let mut in_use = InUse { shared, transaction, is_over: false };
        on_a_thread(move || {
            // If the caller goes away meanwhile, the transaction is let go when this is done, not before.
            let result =
                in_use.volume().and_then(|(partition, volume)| work(&mut in_use, &partition, &volume));
            if let Err(code) = &result {
                in_use.transaction.return_code = code.0;
            }
            drop(in_use);
            result
        })
        .await
    }

    /// Takes a transaction in order to end it. A call that is still working in it is broken off: its peer may be gone.
    async fn take_to_end(&self, id: TransId) -> Result<Transaction, Abort> {
        let shared = &self.shared;
        let runtime = &shared.runtime;
        let until = runtime.now() + TIMEOUT_AT_END;
        loop {
            let taken = shared.transactions().take(shared.now(), id, "EndTrans");
            match taken {
                Err(Refused::Busy) if runtime.now() < until => shared.transactions().break_off(id),
                taken => return taken.map_err(refused),
            }
            runtime.sleep_until(runtime.now() + LOOK_FOR_END_EVERY / 2).await;
        }
    }

    /// Ends a transaction whose caller vanished in the middle of a call, once that call has let go of it: the next attempt need not wait until
    /// it has been idle for long.
    async fn end_for_gone(&self, id: TransId) {
        if let Ok(transaction) = self.take_to_end(id).await {
            end_taken(&self.shared, transaction, "its caller is gone").await;
        }
    }

    /// Tells the file service.
    async fn tell(&self, volume: VolumeId) {
        self.shared.watcher.volume_changed(volume).await;
    }
}

impl Shared {
    /// Waits for a peer, unless somebody ends the transaction meanwhile.
    async fn unless_ended<T>(
        &self,
        moved: &Moved,
        waiting: impl Future<Output = Result<T, Abort>>,
    ) -> Result<T, Abort> {
        let mut waiting = pin!(waiting);
        loop {
            let timer = self.runtime.sleep_until(self.runtime.now() + LOOK_FOR_END_EVERY);
            match select(waiting, timer).await {
                Either::Left((result, _)) => return result,
                Either::Right(_) if moved.is_unwanted() => return Err(codes::CALL_DEAD),
                Either::Right(((), rest)) => waiting = rest,
            }
        }
    }

    fn transactions(&self) -> MutexGuard<'_, Transactions> {
        self.transactions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> (Instant, AfsTime) {
        (self.runtime.now(), (self.config.clock)())
    }

    fn time(&self) -> AfsTime {
        (self.config.clock)()
    }
}

/// A transaction in use; let go when it is dropped.
struct InUse {
    shared: Arc<Shared>,
    transaction: Transaction,
    is_over: bool,
}

impl InUse {
    /// The transaction's volume and its partition.
    fn volume(&self) -> Result<(Partition, Arc<Volume>), Abort> {
        if self.transaction.flags.contains(VolumeFlags::DELETED) {
            return Err(codes::ENOENT);
        }
        let partition =
            self.shared.partitions.get(self.transaction.partition).ok_or(codes::ILLEGAL_PARTITION)?;
        let volume =
            partition.volume(self.transaction.volume).map_err(|e| log(&e, self.transaction.volume))?;
        Ok((partition.clone(), volume))
    }

    /// Keeps the code of a failure with the transaction.
    fn note_failure(&mut self, code: Abort) {
        self.transaction.return_code = code.0;
    }

    /// Has the disk keep what was made in the transaction: the caller that ends it may remove the source next, and a power loss would cost
    /// both. A failure stays with the transaction.
    fn keep_for_good(&mut self) {
        if self.transaction.is_for_good
            && let Ok((partition, volume)) = self.volume()
            && let Err(error) = partition.sync()
        {
            self.note_failure(log(&error, volume.id()));
        }
    }

    /// Ends the transaction: the volume is served again, if it is to be. Says whether the file service has to be told.
    fn end(mut self) -> bool {
        if let Ok((_, volume)) = self.volume() {
            settle(&volume);
        }
        self.is_over = true;
        let transaction = self.shared.transactions().end(self.transaction.id);
        self.transaction.is_changed || transaction.is_changed
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if !self.is_over {
            let Transaction { flags, return_code, is_changed, is_for_good, may_lose_level, end, .. } =
                self.transaction;
            self.shared.transactions().release(self.shared.runtime.now(), self.transaction.id, |t| {
                (t.flags, t.return_code, t.is_changed) = (flags, return_code, is_changed);
                (t.is_for_good, t.may_lose_level, t.end) = (is_for_good, may_lose_level, end);
            });
        }
    }
}

/// A volume's state when nobody works on it.
fn settle(volume: &Volume) {
    let info = volume.header().info;
    let state = if info.in_service && !info.destroy_me {
        VolumeState::Online
    } else {
        VolumeState::Offline(OUT_OF_SERVICE.to_owned())
    };
    volume.set_state(state);
}

/// A volume's state while a transaction has it.
fn attach(volume: &Volume, flags: AttachFlags) {
    let is_clone = !volume.is_writable();
    // A release fills a replica in one step, so its readers see the last release until they see the new one.
    let is_replica =
        volume.header().info.kind == VolumeKind::ReadOnly && volume.state() == VolumeState::Online;
    if flags.contains(AttachFlags::OFFLINE) && !is_replica {
        volume.set_state(VolumeState::Offline(UTILITY_IS_RUNNING.to_owned()));
    } else if flags.contains(AttachFlags::BUSY) && !is_clone && !is_replica {
        // Nobody writes into a clone, so it is served while it is read.
        volume.set_state(VolumeState::Busy);
    }
}

fn refused(refused: Refused) -> Abort {
    match refused {
        Refused::Busy => codes::VOLSER_BUSY,
        Refused::Unknown => codes::ENOENT,
        Refused::TooMany => codes::VBUSY,
    }
}

/// The code of an error, which the log has in full if it speaks of the server.
fn log(error: &VolumeError, volume: VolumeId) -> Abort {
    if error.is_alarming() {
        tracing::error!(%volume, %error, "a volume operation failed");
    } else {
        tracing::debug!(%volume, %error, "a volume operation was refused");
    }
    codes::of(error)
}

fn is_known(kind: VolumeType) -> bool {
    matches!(kind, VolumeType::READ_WRITE | VolumeType::READ_ONLY | VolumeType::BACKUP)
}

/// Ends what nobody uses any more, until the service is gone.
async fn end_idle(shared: Weak<Shared>, runtime: Arc<dyn Runtime>) {
    while let Some(limit) = shared.upgrade().map(|shared| shared.config.idle_limit) {
        runtime.sleep_until(runtime.now() + LOOK_EVERY.min(limit)).await;
        let Some(shared) = shared.upgrade() else { return };
        end_unused(&shared, limit, &format!("nobody has used it for {} seconds", limit.as_secs())).await;
        on_a_thread(move || halves::remove_old(&shared)).await;
    }
}

/// Ends the transactions that nobody has used for so long, for this reason.
async fn end_unused(shared: &Arc<Shared>, limit: Duration, reason: &str) {
    loop {
        let found = shared.transactions().poll_idle(shared.runtime.now(), limit);
        let Some(transaction) = found else { break };
        end_taken(shared, transaction, reason).await;
    }
}

/// Ends a transaction that was taken, in its caller's place, for this reason.
async fn end_taken(shared: &Arc<Shared>, transaction: Transaction, reason: &str) {
    let Transaction { id, volume, procedure, .. } = transaction;
    let in_use = InUse { shared: Arc::clone(shared), transaction, is_over: false };
    let name = in_use.volume().map(|(_, volume)| format!(" ({})", volume.name())).unwrap_or_default();
    tracing::warn!(
        "Volser: transaction {id} on volume {volume}{name} was ended, as {reason}; its last procedure was {procedure}"
    );
    let shared_then = Arc::clone(shared);
    let end = move || {
        let found = in_use.volume().ok();
        let is_changed = in_use.end();
        if let Some((partition, volume)) = found.filter(|(_, volume)| volume.is_half()) {
            if let Err(error) = partition.remove_carried(volume.id()) {
                tracing::warn!(volume = %volume.id(), %error, "snapshots of a half-made volume could not be removed");
            }
            halves::put_aside(&shared_then, &partition, &volume);
        }
        is_changed
    };
    if on_a_thread(end).await {
        shared.watcher.volume_changed(volume).await;
    }
}
