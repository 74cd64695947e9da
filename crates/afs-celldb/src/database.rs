//! A database as an image in memory over a store: reads see the image, changes go to the store first.
//!
//! What a change writes are rows, and the image takes exactly those rows, as it does when it is loaded: so the two cannot
//! come to differ (`mirror.rs`). Transactions are made one after the other, and the changes that waited for one are made together by the next
//! (`batch.rs`). Each rests on the revision that it was made from, and
//! is made anew if another machine has changed the database since. After an error of a store that nobody else has, which may or may not
//! have made the change, everything is read again before the next one. How an image keeps up with a store that
//! other machines change too is in `following.rs` and `follower.rs`.

mod batch;
mod follower;
mod following;
mod mirror;
mod revision;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::record::BadRow;
use crate::store::{CellStore, Known, RowChange, StoreError};

use batch::GroupCommit;
use follower::Follower;
pub(crate) use following::FRESH_FOR;
use following::Following;
pub use following::{Freshness, NoQuorum};
use mirror::Mirror;
pub use mirror::{rows_of, version_in};
pub use revision::Version;
pub(crate) use revision::{REVISION, Revision, Stamp};

/// How often a change is made anew since other machines were faster: each of them is as likely to be next, so of three
/// machines that never pause one loses so often in a row once in 10^11 times.
const MAX_CONFLICTS: usize = 64;

/// The row that is there while a database is moved in, and says how far that has got; it must not be opened then. See
/// [`crate::fill()`].
pub(crate) const FILLING: &[u8] = b"FILLING";

/// The form of a database in memory.
pub trait Image: fmt::Debug + Send + Sync + Sized + 'static {
    /// The prefix of the keys of its rows in the store.
    const PREFIX: &'static [u8];
    /// The name of the database in messages.
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

/// Tells whether a process that had this number ([`Options::writer`]) has changed a database in a store that several machines share.
/// What a process left behind that ended weeks ago may have been swept away.
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

    /// Removes a row.
    pub(crate) fn remove(&mut self, key: Vec<u8>) {
        self.0.push((key, None));
    }
}

/// The reason why a database could not be opened, or read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// The store failed.
    Store {
        /// The database.
        database: &'static str,
        /// The store's error.
        source: StoreError,
    },
    /// A row is damaged, or of a later version of this program.
    Row {
        /// The database.
        database: &'static str,
        /// The row's key, without the database's prefix.
        key: Vec<u8>,
        /// The problem.
        source: BadRow,
    },
    /// It was being moved in, and that was cut off.
    Unfinished {
        /// The database.
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
                    "the {database} is not whole: an 'afar import' or 'afar celldb copy' fills it, or was cut off; then do it again"
                )
            }
        }
    }
}

impl std::error::Error for OpenError {}

/// The reason why a change could not be made durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The store cannot make changes now, and has not made this one.
    #[error("{0}")]
    NoQuorum(StoreError),
    /// The store failed: whether the change is made is open until the database is read again, which the next change
    /// does first.
    #[error("{0}")]
    Store(StoreError),
    /// The database could not be read again after that.
    #[error("{0}")]
    Reload(OpenError),
    /// Other machines were faster again and again.
    #[error("others changed the database {MAX_CONFLICTS} times meanwhile")]
    Contended,
}

impl From<StoreError> for ChangeError {
    fn from(error: StoreError) -> Self {
        match error.known {
            Known::NotDone => Self::NoQuorum(error),
            Known::Nothing | Known::Forgotten => Self::Store(error),
        }
    }
}

/// The options of a database over a store that several machines share.
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
    mirror: Arc<Mirror<I>>,
    commits: Arc<GroupCommit<I>>,
    /// For a store that others change too.
    following: Option<Arc<Following>>,
    /// What keeps the image up to date. Ends with the database.
    tasks: Vec<AbortHandle>,
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
        let (mirror, position) = Mirror::load(store).await?;
        let mirror = Arc::new(mirror);
        let following = |_| Arc::new(Following::new(options, begun, mirror.revision()));
        let following = mirror.store.shared().map(following);
        let writer = Arc::default();
        let commits = GroupCommit::new(Arc::clone(&mirror), Arc::clone(&writer), following.clone());
        let commits = Arc::new(commits);
        let follow = |following| Follower::new(Arc::clone(&mirror), writer, following).start(position);
        let tasks = following.clone().map(follow).unwrap_or_default();
        Ok(Self { mirror, commits, following, tasks })
    }

    /// Looks at the image. Nothing may be waited for in `look`, and it should take less than a millisecond, since changes
    /// wait for it.
    pub fn read<R>(&self, look: impl FnOnce(&I) -> R) -> R {
        self.mirror.read(look)
    }

    /// Waits until the image has all changes that were acknowledged anywhere before this was called, which in most cases it has
    /// at once. While the store does not say what there is, the image stands in for a limited time.
    ///
    /// # Errors
    ///
    /// That time is over: nobody knows what is right.
    pub async fn catch_up(&self) -> Result<(), NoQuorum> {
        match &self.following {
            Some(following) => following.catch_up().await,
            None => Ok(()),
        }
    }

    /// The state that the image is in.
    pub fn version(&self) -> Version {
        self.mirror.revision().version
    }

    /// The state of the image, which keeps up with a store that several machines share; `None` if nobody else has the
    /// store.
    pub fn freshness(&self) -> Option<Freshness> {
        let machines = self.mirror.store.shared()?.machines();
        self.following.as_ref().map(|following| following.freshness(machines))
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
        self.commits.change(now, plan).await
    }
}

#[cfg(test)]
impl<I> Database<I> {
    /// The lock of the task that makes transactions: its holder keeps changes waiting.
    pub(crate) fn turn(&self) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(&self.commits.turn)
    }
}

pub(crate) fn key<I: Image>(key: &[u8]) -> Vec<u8> {
    [I::PREFIX, key].concat()
}
