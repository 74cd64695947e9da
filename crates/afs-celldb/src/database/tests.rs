//! Databases of words over a store in memory: what is seen after a change, after one that failed, and of changes that were made
//! together.

use std::collections::BTreeMap;

use super::*;
use crate::database::mirror::LOAD_ROWS;
use crate::store::Transaction;
use crate::store::memory::{Failure, MemoryStore};
use crate::testing::{Plan, now, together};

/// Words by number.
#[derive(Debug)]
pub(super) struct Words(BTreeMap<Vec<u8>, Vec<u8>>);

impl Words {
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key.as_bytes())
    }
}

impl Image for Words {
    const PREFIX: &'static [u8] = b"w/";
    const NAME: &'static str = "words";

    fn empty() -> Self {
        Self(BTreeMap::new())
    }

    type Parsed = RowChange;

    fn parse_row(key: &[u8], value: Option<&[u8]>) -> Result<RowChange, BadRow> {
        match value {
            Some(b"bad") => Err(BadRow("it is bad")),
            value => Ok((key.to_vec(), value.map(<[u8]>::to_vec))),
        }
    }

    fn set_parsed(&mut self, (key, value): RowChange) -> Result<RowChange, BadRow> {
        let old = match value {
            Some(value) => self.0.insert(key.clone(), value),
            None => self.0.remove(&key),
        };
        Ok((key, old))
    }
}

fn open(store: &Arc<MemoryStore>) -> Database<Words> {
    now(Database::open(Arc::clone(store) as Arc<dyn CellStore>)).unwrap()
}

fn put(words: &Database<Words>, key: &str, value: &str) -> Result<(), ChangeError> {
    let (key, value) = (key.to_owned(), value.to_owned());
    now(words.change(1000, move |_, rows| {
        rows.put(key.clone().into(), value.clone().into());
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
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    now(ours.change(1000, move |image, rows| {
        sees.lock().unwrap().push(image.0.len());
        rows.put(b"b".to_vec(), b"ours".to_vec());
        Ok::<_, ChangeError>(())
    }))
    .unwrap();
    assert_eq!(*seen.lock().unwrap(), [0, 1]);
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
fn changes_that_wait_are_made_together_and_each_fails_alone() {
    let store = Arc::new(MemoryStore::new());
    let words = open(&store);
    let add = |key: &'static str, is_good: bool| -> Plan<Words, usize, ChangeError> {
        Box::new(move |words, rows| {
            rows.put(key.into(), b"x".to_vec());
            if is_good && !words.0.contains_key(key.as_bytes()) {
                Ok(words.0.len())
            } else {
                Err(ChangeError::Contended)
            }
        })
    };
    let no = Err(ChangeError::Contended);
    let plans = vec![add("a", true), add("b", false), add("a", true), add("c", true)];
    assert_eq!(together(&words, plans), [Ok(0), no.clone(), no, Ok(1)], "each sees those before it");
    assert_eq!((words.version().counter, store.rows().len()), (1, 3), "in one transaction");

    // If the store fails, nobody is told that anything is there, nor has the image any of it.
    store.fail_next(Failure::Lost);
    let plans = vec![add("d", true), add("d", true)];
    let results = together(&words, plans);
    assert!(results.iter().all(|result| matches!(result, Err(ChangeError::Store(_)))), "{results:?}");
    assert_eq!(word(&words, "d"), None);

    // If another machine was faster, all are planned anew.
    put(&open(&store), "e", "theirs").unwrap();
    let results = together(&words, vec![add("e", true), add("f", true)]);
    assert_eq!(results, [Err(ChangeError::Contended), Ok(3)]);
    assert_eq!(words.version().counter, 3);
}

#[test]
fn a_change_too_large_for_a_transaction_with_others_is_made_alone() {
    let store = Arc::new(MemoryStore::new());
    let words = open(&store);
    let put = |key: &'static str, bytes: usize| -> Plan<Words, (), ChangeError> {
        Box::new(move |_, rows| {
            rows.put(key.into(), vec![b'x'; bytes]);
            Ok(())
        })
    };
    let large = 700 << 10;
    let results = together(&words, vec![put("a", 1), put("b", large), put("c", large), put("d", 1)]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(words.version().counter, 4);
}

#[test]
fn more_rows_than_are_loaded_at_a_time_are_all_loaded() {
    let store = Arc::new(MemoryStore::new());
    let words = open(&store);
    let count = 2 * LOAD_ROWS;
    now(words.change(1, move |_, rows| {
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
    now(store.commit(Transaction { changes, ..Transaction::default() })).unwrap();
    let error = now(Database::<Words>::open(store)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the words cannot be used: its row x is damaged (it is bad); restore it from a copy"
    );
}

#[test]
fn a_change_with_a_row_that_cannot_be_read_changes_nothing_in_memory() {
    let words = open(&Arc::new(MemoryStore::new()));
    put(&words, "a", "one").unwrap();
    let from = words.mirror.revision();
    let change = |key: &str, value: &str| (key.as_bytes().to_vec(), Some(value.as_bytes().to_vec()));
    let taken = words.mirror.take(&[change("a", "two"), change("b", "bad")], from, from.next(1, None));
    assert_eq!(taken, Err(BadRow("it is bad")));
    assert_eq!((word(&words, "a").as_deref(), words.mirror.revision()), (Some("one"), from));
}
