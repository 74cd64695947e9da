//! A database as an image in memory over a store: reads see the image, changes go to the store first.
//!
//! What a change writes are rows, and the image takes exactly those rows, as it does when it is loaded: so the two cannot
//! come to differ. Transactions are made one after the other, and the changes that waited for one are made together by the next
//! (`batch.rs`). Each rests on the revision that it was made from, and
//! is made anew if another machine has changed the database since. After an error of a store that nobody else has, which may or may not
//! have made the change, everything is read again before the next one. How an image keeps up with a store that
//! other machines change too is in `following.rs`.

mod batch;
mod following;
mod revision;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::record::BadRow;
use crate::store::{CellStore, Known, Position, Row, RowChange, StoreError, Transaction};

use batch::{Planned, Waiting};
use following::Following;
pub use following::{Freshness, NoQuorum};
pub use revision::Version;
pub(crate) use revision::{REVISION, Revision, Stamp};

/// Rows that are read from the store at a time when a database is loaded: some hundred kilobytes.
const LOAD_ROWS: usize = 4096;

/// How often a change is made anew since other machines were faster: each of them is as likely to be next, so of three
/// machines that never pause one loses so often in a row once in 10^11 times.
const MAX_CONFLICTS: usize = 64;

/// The row that is there while a database is moved in, and says how far that has got; it must not be opened then. See
/// [`crate::fill()`].
pub(crate) const FILLING: &[u8] = b"FILLING";

/// What a database is in memory.
pub trait Image: fmt::Debug + Send + Sync + Sized + 'static {
    /// What the keys of its rows begin with in the store.
    const PREFIX: &'static [u8];
    /// What the database is called in messages.
    const NAME: &'static str;

    /// A row that was read.
    type Parsed: Send;

    /// A database without rows.
    fn empty() -> Self;

    /// Reads a row, whose key is given without the prefix; `None` if it is gone.
    ///
    /// # Errors
    ///
    /// If this is not a row of such a database.
    fn parse_row(key: &[u8], value: Option<&[u8]>) -> Result<Self::Parsed, BadRow>;

    /// Takes a row, and returns what was there: what rows have changed is set back by these, in the opposite order.
    ///
    /// # Errors
    ///
    /// If it does not fit to the others. The image is of no use then.
    fn set_parsed(&mut self, row: Self::Parsed) -> Result<Self::Parsed, BadRow>;

    /// Reads a row and takes it.
    ///
    /// # Errors
    ///
    /// As [`Self::parse_row`] and [`Self::set_parsed`].
    fn set_row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), BadRow> {
        self.set_parsed(Self::parse_row(key, value)?).map(drop)
    }
}

/// Whether a process that had this number ([`Options::writer`]) has changed a database in a store that several machines share. What a
/// process left behind that ended weeks ago may have been swept away.
///
/// # Errors
///
/// The store's.
pub async fn was_changed_by<I: Image>(store: &dyn CellStore, writer: u64) -> Result<bool, StoreError> {
    let key = Stamp { writer, sequence: 0 }.key(I::PREFIX);
    Ok(store.read(&key).await?.is_some())
}

/// The changes of rows that are to be made together, by keys without the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(Vec<RowChange>);

impl Rows {
    /// Sets a row.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((key, Some(value)));
    }
}

/// Why a database could not be opened, or read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The store failed.
    Store {
        /// Which database.
        database: &'static str,
        /// How.
        source: StoreError,
    },
    /// A row is damaged, or of a later version of this program.
    Row {
        /// Which database.
        database: &'static str,
        /// The row's key, without the database's prefix.
        key: Vec<u8>,
        /// What is wrong.
        source: BadRow,
    },
    /// It was being moved in, and that was cut off.
    Unfinished {
        /// Which database.
        database: &'static str,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { database, source } => write!(f, "cannot read the {database}: {source}"),
            Self::Row { database, key, source } => {
                let key = key.escape_ascii();
                write!(
                    f,
                    "the {database} cannot be used: its row {key} is damaged ({source}); restore it from a copy"
                )
            }
            Self::Unfinished { database } => {
                write!(
                    f,
                    "the {database} is not whole, as an 'afar import' or 'afar celldb copy' was cut off: do it again"
                )
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a change could not be made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// The store cannot make changes now, and has not made this one.
    NoQuorum(StoreError),
    /// The store failed: whether the change is made is open until the database is read again, which the next change
    /// does first.
    Store(StoreError),
    /// The database could not be read again after that.
    Reload(OpenError),
    /// Other machines were faster again and again.
    Contended,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQuorum(source) | Self::Store(source) => source.fmt(f),
            Self::Reload(source) => source.fmt(f),
            Self::Contended => write!(f, "others changed the database {MAX_CONFLICTS} times meanwhile"),
        }
    }
}

impl std::error::Error for ChangeError {}

impl From<StoreError> for ChangeError {
    fn from(error: StoreError) -> Self {
        match error.known {
            Known::NotDone => Self::NoQuorum(error),
            Known::Nothing | Known::Forgotten => Self::Store(error),
        }
    }
}

/// How a database is kept over a store that several machines share.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A number that no other process has that changes the database: by chance.
    pub writer: u64,
    /// For how long look-ups are answered from memory while the store does not say whether that is still right. 0 refuses
    /// them at once, so that clients ask another server.
    pub memory_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { writer: 0, memory_limit: Duration::from_secs(3600) }
    }
}

/// A database: an image, and the store under it.
#[derive(Debug)]
pub struct Database<I> {
    inner: Arc<Inner<I>>,
    /// What keeps the image up to date. Ends with the database.
    tasks: Vec<AbortHandle>,
}

#[derive(Debug)]
struct Inner<I> {
    current: RwLock<Current<I>>,
    store: Arc<dyn CellStore>,
    /// Changes that are to be made.
    waiting: Waiting<I>,
    /// Held by the one who makes transactions of them.
    turn: Arc<Mutex<()>>,
    /// Held while a transaction is made, and while the database is read anew.
    writer: Mutex<Writer>,
    /// For a store that others change too.
    following: Option<Following>,
}

#[derive(Debug)]
struct Current<I> {
    image: I,
    revision: Revision,
}

#[derive(Debug, Default)]
struct Writer {
    /// Whether the image may lack a change that the store has. Set before each commit, so that it stands if the change
    /// is broken off.
    is_in_doubt: bool,
    /// Transactions that were begun.
    sequence: u64,
}

impl<I> Drop for Database<I> {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl<I: Image> Database<I> {
    /// Loads a database. One that has never been changed is empty.
    ///
    /// # Errors
    ///
    /// If the store or its contents are damaged.
    pub async fn open(store: Arc<dyn CellStore>) -> Result<Self, OpenError> {
        Self::open_with(store, Options::default()).await
    }

    /// The same, with options for a store that several machines share; for such a store the caller has to be in a tokio runtime.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub async fn open_with(store: Arc<dyn CellStore>, options: Options) -> Result<Self, OpenError> {
        let begun = Instant::now();
        let (current, position) = load(&*store).await?;
        let following = store.shared().map(|_| Following::new(options, begun, current.revision));
        let current = RwLock::new(current);
        let (waiting, turn, writer) = (Waiting::default(), Arc::default(), Mutex::default());
        let inner = Arc::new(Inner { current, store, waiting, turn, writer, following });
        let tasks = following::start(&inner, position);
        Ok(Self { inner, tasks })
    }

    /// Looks at the image. Nothing may be waited for in `look`, and it should take less than a millisecond, since changes
    /// wait for it.
    pub fn read<R>(&self, look: impl FnOnce(&I) -> R) -> R {
        look(&self.inner.current.read().unwrap_or_else(PoisonError::into_inner).image)
    }

    /// Waits until the image has all changes that were acknowledged anywhere before this was called, which in most cases it has
    /// at once. While the store does not say what there is, the image stands in for a limited time.
    ///
    /// # Errors
    ///
    /// That time is over: nobody knows what is right.
    pub async fn catch_up(&self) -> Result<(), NoQuorum> {
        match &self.inner.following {
            Some(following) => following.catch_up().await,
            None => Ok(()),
        }
    }

    /// The state that the image is in.
    pub fn version(&self) -> Version {
        self.inner.revision().version
    }

    /// How well the image keeps up with a store that several machines share; `None` if nobody else has the store.
    pub fn freshness(&self) -> Option<Freshness> {
        let machines = self.inner.store.shared()?.machines();
        self.inner.following.as_ref().map(|following| following.freshness(machines))
    }

    /// Changes the database: `plan` looks at the image and says which rows change (none is fine) and what to return. It
    /// may be asked more than once, and sees changes that are made together with this one. `now` dates the database if
    /// this is its first change, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// That of `plan`, and nothing is changed; or that of the store.
    pub async fn change<R, E>(
        &self,
        now: u32,
        plan: impl FnMut(&I, &mut Rows) -> Result<R, E> + Send + 'static,
    ) -> Result<R, E>
    where
        R: Send + 'static,
        E: From<ChangeError> + Send + 'static,
    {
        let inner = &self.inner;
        if let Some(following) = &inner.following {
            following.can_change().await?;
        }
        let (answer, mut told) = oneshot::channel();
        inner.waiting.push(Box::new(Planned::new(now, plan, answer)));
        let told = loop {
            tokio::select! {
                biased;
                told = &mut told => break told,
                turn = Arc::clone(&inner.turn).lock_owned() => {
                    let inner = Arc::clone(inner);
                    let work = async move { inner.make_waiting(turn).await };
                    if self.inner.following.is_some() {
                        // Others' changes are in it, which must not end with this one's caller.
                        let _ = tokio::spawn(work).await;
                    } else {
                        work.await;
                    }
                }
            }
        };
        // It is gone if whoever made it was broken off.
        let broken =
            |_| ChangeError::Store(StoreError::new("changing the cell's databases", "it was broken off"));
        let (result, until) = told.map_err(broken)?;
        if let Some(until) = until {
            // By then no server takes for current what lacks the change.
            tokio::time::sleep_until(until).await;
        }
        result
    }
}

#[cfg(test)]
impl<I> Database<I> {
    /// What is held by the one who makes transactions: whoever has it keeps changes waiting.
    pub(crate) fn turn(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.inner.turn)
    }
}

impl<I: Image> Inner<I> {
    fn revision(&self) -> Revision {
        self.current.read().unwrap_or_else(PoisonError::into_inner).revision
    }

    /// Takes the rows of a transaction into the image, unless it has them or later ones already.
    fn take(&self, rows: &[RowChange], from: Revision, to: Revision) -> Result<(), BadRow> {
        // All are read before one is taken: look-ups may go on with the image if one cannot be.
        let parsed: Result<Vec<_>, _> =
            rows.iter().map(|(key, value)| I::parse_row(key, value.as_deref())).collect();
        let parsed = parsed?;
        {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            if current.revision != from {
                return Ok(());
            }
            parsed.into_iter().try_for_each(|row| current.image.set_parsed(row).map(drop))?;
            current.revision = to;
        }
        if let Some(following) = &self.following {
            following.moved(to);
        }
        Ok(())
    }

    /// After a conflict: waits for the change that was faster.
    async fn wait_for_others(&self, from: Revision) {
        // Without others the database is read again, as the writer is in doubt.
        if let Some(following) = &self.following {
            following.wait_for_others(from).await;
        }
    }
}

pub(crate) fn key<I: Image>(key: &[u8]) -> Vec<u8> {
    [I::PREFIX, key].concat()
}

fn transaction<I: Image>(rows: &Rows, from: Revision, to: Revision, now: u32) -> Transaction {
    let changes = rows.0.iter().map(|(row, value)| (key::<I>(row), value.clone()));
    let revision = (key::<I>(REVISION), to.to_row());
    let witness = to.stamp.map(|stamp| (stamp.key(I::PREFIX), stamp.to_row(now)));
    Transaction {
        expected: vec![(key::<I>(REVISION), from.to_row())],
        witness: witness.as_ref().map(|(key, _)| key.clone()),
        changes: changes.chain([revision]).chain(witness.map(|(key, row)| (key, Some(row)))).collect(),
    }
}

async fn load<I: Image>(store: &dyn CellStore) -> Result<(Current<I>, Position), OpenError> {
    load_and_see::<I>(store, |_, _| {}).await
}

/// All rows of a database as they are at one moment, by their keys without the database's prefix, in their order; not that of its
/// revision. They are read as a server reads them.
///
/// # Errors
///
/// If the store or its contents are damaged.
pub async fn rows_of<I: Image>(store: &dyn CellStore) -> Result<Vec<Row>, OpenError> {
    let mut rows = Vec::new();
    load_and_see::<I>(store, |key, value| rows.push((key.to_vec(), value.to_vec()))).await?;
    Ok(rows)
}

async fn load_and_see<I: Image>(
    store: &dyn CellStore,
    mut see: impl FnMut(&[u8], &[u8]),
) -> Result<(Current<I>, Position), OpenError> {
    let mut current = Current { image: I::empty(), revision: Revision::default() };
    let failed = |source| OpenError::Store { database: I::NAME, source };
    let (mut after, mut at): (Option<Vec<u8>>, _) = (None, None);
    loop {
        let page = store.scan(I::PREFIX, after.as_deref(), LOAD_ROWS, at).await.map_err(failed)?;
        for (key, value) in &page.rows {
            let row = &key[I::PREFIX.len()..];
            let taken = match row {
                FILLING => return Err(OpenError::Unfinished { database: I::NAME }),
                REVISION => Revision::from_row(value).map(|revision| current.revision = revision),
                _ => {
                    see(row, value);
                    current.image.set_row(row, Some(value))
                }
            };
            taken.map_err(|source| OpenError::Row { database: I::NAME, key: row.to_vec(), source })?;
        }
        if page.rows.len() < LOAD_ROWS {
            return Ok((current, page.position));
        }
        at = Some(page.position);
        after = page.rows.into_iter().next_back().map(|(key, _)| key);
    }
}
