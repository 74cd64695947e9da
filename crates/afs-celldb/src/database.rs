//! A database as an image in memory over a store: reads see the image, changes go to the store first.
//!
//! What a change writes are rows, and the image takes exactly those rows, as it does when it is loaded: so the two cannot
//! come to differ. Changes are made one after the other. Each rests on the revision that it was made from, and
//! is made anew if another machine has changed the database since; after an error of the store, which may or may not
//! have made the change, everything is read again before the next one.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Mutex;

use crate::record::{BadRow, Fields, PutFields};
use crate::store::{CellStore, Outcome, StoreError, Transaction};

/// Rows that are read from the store at a time when a database is loaded: some hundred kilobytes.
const LOAD_ROWS: usize = 4096;

/// How often a change is made anew since other machines were faster. They change a database a few times a second at most.
const MAX_CONFLICTS: usize = 16;

/// The row of the revision, behind the image's prefix. Sorts before all rows of an image, which are lower-case.
const REVISION: &[u8] = b"REVISION";

/// First byte of the revision's row.
const REVISION_VERSION: u8 = 1;

/// What a database is in memory.
pub trait Image: fmt::Debug + Send + Sync + Sized + 'static {
    /// What the keys of its rows begin with in the store.
    const PREFIX: &'static [u8];
    /// What the database is called in messages.
    const NAME: &'static str;

    /// A database without rows.
    fn empty() -> Self;

    /// Takes a row, whose key is given without the prefix; `None` if it is gone.
    ///
    /// # Errors
    ///
    /// If this is not a row of such a database. The image is of no use then.
    fn set_row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), BadRow>;
}

/// The changes of rows that are to be made together, by keys without the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(Vec<(Vec<u8>, Option<Vec<u8>>)>);

impl Rows {
    /// Sets a row.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.0.push((key, Some(value)));
    }
}

/// Which state a database is in, as `udebug` shows it: when it was made, in seconds since 1970, and how often it was
/// changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// When it was made; 0 if it has not been yet.
    pub epoch: u32,
    /// Changes since.
    pub counter: u64,
}

impl Version {
    fn to_row(self) -> Option<Vec<u8>> {
        (self != Self::default()).then(|| {
            let mut row = vec![REVISION_VERSION];
            row.put_u32(self.epoch);
            row.put_u64(self.counter);
            row
        })
    }

    fn from_row(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        if fields.u8()? != REVISION_VERSION {
            return Err(BadRow("it is of a version that this program does not know"));
        }
        let version = Self { epoch: fields.u32()?, counter: fields.u64()? };
        fields.finish()?;
        Ok(version)
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
        }
    }
}

impl std::error::Error for OpenError {}

/// Why a change could not be made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeError {
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
            Self::Store(source) => source.fmt(f),
            Self::Reload(source) => source.fmt(f),
            Self::Contended => write!(f, "others changed the database {MAX_CONFLICTS} times meanwhile"),
        }
    }
}

impl std::error::Error for ChangeError {}

/// A database: an image, and the store under it.
#[derive(Debug)]
pub struct Database<I> {
    current: RwLock<Current<I>>,
    store: Arc<dyn CellStore>,
    /// Held by the one who makes a change.
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Current<I> {
    image: I,
    version: Version,
}

#[derive(Debug, Default)]
struct Writer {
    /// Whether the image may lack a change that the store has. Set before each commit, so that it stands if the change
    /// is broken off.
    is_in_doubt: bool,
}

impl<I: Image> Database<I> {
    /// Loads a database. One that has never been changed is empty.
    ///
    /// # Errors
    ///
    /// If the store or its contents are damaged.
    pub async fn open(store: Arc<dyn CellStore>) -> Result<Self, OpenError> {
        let current = load(&*store).await?;
        Ok(Self { current: RwLock::new(current), store, writer: Mutex::default() })
    }

    /// Looks at the image. Nothing may be waited for in `look`, and it should take less than a millisecond, since changes
    /// wait for it.
    pub fn read<R>(&self, look: impl FnOnce(&I) -> R) -> R {
        look(&self.current.read().unwrap_or_else(PoisonError::into_inner).image)
    }

    /// The state that the image is in.
    pub fn version(&self) -> Version {
        self.current.read().unwrap_or_else(PoisonError::into_inner).version
    }

    /// Changes the database: `plan` looks at the image and says which rows change (none is fine) and what to return. It
    /// may be asked more than once. `now` dates the database if this is its first change, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// That of `plan`, and nothing is changed; or that of the store.
    pub async fn change<R, E: From<ChangeError>>(
        &self,
        now: u32,
        mut plan: impl FnMut(&I, &mut Rows) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut writer = self.writer.lock().await;
        for _ in 0..MAX_CONFLICTS {
            if writer.is_in_doubt {
                let current = load(&*self.store).await.map_err(ChangeError::Reload)?;
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
                writer.is_in_doubt = false;
            }
            let mut rows = Rows::default();
            let (result, from) = {
                let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
                (plan(&current.image, &mut rows)?, current.version)
            };
            if rows.0.is_empty() {
                return Ok(result);
            }
            let epoch = if from.epoch == 0 { now.max(1) } else { from.epoch };
            let to = Version { epoch, counter: from.counter + 1 };
            writer.is_in_doubt = true;
            match self.store.commit(transaction::<I>(&rows, from, to)).await.map_err(ChangeError::Store)? {
                Outcome::Conflict => continue,
                Outcome::Committed => {}
            }
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            for (key, value) in &rows.0 {
                current.image.set_row(key, value.as_deref()).expect("rows are made as they are read");
            }
            current.version = to;
            writer.is_in_doubt = false;
            return Ok(result);
        }
        Err(ChangeError::Contended.into())
    }
}

fn key<I: Image>(key: &[u8]) -> Vec<u8> {
    [I::PREFIX, key].concat()
}

fn transaction<I: Image>(rows: &Rows, from: Version, to: Version) -> Transaction {
    let changes = rows.0.iter().map(|(row, value)| (key::<I>(row), value.clone()));
    let revision = (key::<I>(REVISION), to.to_row());
    Transaction {
        expected: vec![(key::<I>(REVISION), from.to_row())],
        changes: changes.chain([revision]).collect(),
    }
}

async fn load<I: Image>(store: &dyn CellStore) -> Result<Current<I>, OpenError> {
    let mut current = Current { image: I::empty(), version: Version::default() };
    let failed = |source| OpenError::Store { database: I::NAME, source };
    let mut after: Option<Vec<u8>> = None;
    loop {
        let rows = store.scan(I::PREFIX, after.as_deref(), LOAD_ROWS).await.map_err(failed)?;
        for (key, value) in &rows {
            let row = &key[I::PREFIX.len()..];
            let taken = match row {
                REVISION => Version::from_row(value).map(|version| current.version = version),
                _ => current.image.set_row(row, Some(value)),
            };
            taken.map_err(|source| OpenError::Row { database: I::NAME, key: row.to_vec(), source })?;
        }
        if rows.len() < LOAD_ROWS {
            return Ok(current);
        }
        after = rows.into_iter().next_back().map(|(key, _)| key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::memory::{Failure, MemoryStore};
    use crate::testing::now;

    /// Words by number.
    #[derive(Debug)]
    struct Words(BTreeMap<Vec<u8>, Vec<u8>>);

    impl Image for Words {
        const PREFIX: &'static [u8] = b"w/";
        const NAME: &'static str = "words";

        fn empty() -> Self {
            Self(BTreeMap::new())
        }

        fn set_row(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), BadRow> {
            match value {
                Some(b"bad") => return Err(BadRow("it is bad")),
                Some(value) => drop(self.0.insert(key.to_vec(), value.to_vec())),
                None => drop(self.0.remove(key)),
            }
            Ok(())
        }
    }

    fn open(store: &Arc<MemoryStore>) -> Database<Words> {
        now(Database::open(Arc::clone(store) as Arc<dyn CellStore>)).unwrap()
    }

    fn put(words: &Database<Words>, key: &str, value: &str) -> Result<(), ChangeError> {
        now(words.change(1000, |_, rows| {
            rows.put(key.into(), value.into());
            Ok(())
        }))
    }

    fn word(words: &Database<Words>, key: &str) -> Option<String> {
        words.read(|words| words.0.get(key.as_bytes()).map(|value| String::from_utf8(value.clone()).unwrap()))
    }

    #[test]
    fn a_change_is_seen_at_once_and_after_opening_again() {
        let store = Arc::new(MemoryStore::new());
        let words = open(&store);
        assert_eq!(words.version(), Version::default());
        put(&words, "a", "one").unwrap();
        put(&words, "a", "two").unwrap();
        for words in [words, open(&store)] {
            assert_eq!(word(&words, "a").as_deref(), Some("two"));
            assert_eq!(words.version(), Version { epoch: 1000, counter: 2 });
        }
    }

    #[test]
    fn a_plan_that_refuses_or_changes_nothing_writes_nothing() {
        let store = Arc::new(MemoryStore::new());
        let words = open(&store);
        let refused = now(words.change(1, |_, rows| {
            rows.put(b"a".to_vec(), b"b".to_vec());
            Err::<(), _>(ChangeError::Contended)
        }));
        assert_eq!(refused, Err(ChangeError::Contended));
        assert_eq!(now(words.change(1, |_, _| Ok::<_, ChangeError>(5))), Ok(5));
        assert_eq!((store.rows().len(), words.version()), (0, Version::default()));
    }

    #[test]
    fn a_change_by_another_machine_is_taken_in_and_the_plan_made_anew() {
        let store = Arc::new(MemoryStore::new());
        let (ours, theirs) = (open(&store), open(&store));
        put(&theirs, "a", "theirs").unwrap();
        let mut seen = Vec::new();
        now(ours.change(1000, |image, rows| {
            seen.push(image.0.len());
            rows.put(b"b".to_vec(), b"ours".to_vec());
            Ok::<_, ChangeError>(())
        }))
        .unwrap();
        assert_eq!(seen, [0, 1]);
        assert_eq!(word(&ours, "a").as_deref(), Some("theirs"));
        assert_eq!(ours.version().counter, 2);
    }

    #[test]
    fn after_an_error_of_the_store_the_image_is_what_the_store_has() {
        for (failure, kept) in [(Failure::Lost, None), (Failure::Unanswered, Some("doubtful"))] {
            let store = Arc::new(MemoryStore::new());
            let words = open(&store);
            put(&words, "a", "one").unwrap();
            store.fail_next(failure);
            assert!(matches!(put(&words, "b", "doubtful"), Err(ChangeError::Store(_))));
            assert_eq!(word(&words, "b"), None, "nobody is told of what is not known to be durable");
            put(&words, "c", "three").unwrap();
            assert_eq!(word(&words, "b").as_deref(), kept);
            assert_eq!(word(&words, "c").as_deref(), Some("three"));
        }
    }

    #[test]
    fn more_rows_than_are_loaded_at_a_time_are_all_loaded() {
        let store = Arc::new(MemoryStore::new());
        let words = open(&store);
        let count = 2 * LOAD_ROWS;
        now(words.change(1, |_, rows| {
            (0..count as u32).for_each(|n| rows.put(n.to_be_bytes().to_vec(), b"x".to_vec()));
            Ok::<_, ChangeError>(())
        }))
        .unwrap();
        assert_eq!(open(&store).read(|words| words.0.len()), count);
    }

    #[test]
    fn a_damaged_row_is_named() {
        let store = Arc::new(MemoryStore::new());
        let changes = vec![(b"w/x".to_vec(), Some(b"bad".to_vec()))];
        now(store.commit(Transaction { expected: vec![], changes })).unwrap();
        let error = now(Database::<Words>::open(store)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the words cannot be used: its row x is damaged (it is bad); restore it from a copy"
        );
    }
}
