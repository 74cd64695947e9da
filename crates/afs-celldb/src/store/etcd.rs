//! The store of a cell whose databases are on several machines: rows in etcd, under a prefix so that one etcd serves several cells.
//!
//! A transaction that was sent and not answered is sent again, to another member if need be, until it is known what became of it: its
//! witness tells. So it may be on its way twice, and is made once, since both copies expect the same revision.
//!
//! Which member is asked, and when another one, is in `members.rs`.

mod members;

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, Txn, TxnOp, TxnOpResponse, WatchOptions, WatchStream,
};
use tokio::time::{Instant, sleep};

use super::{
    CellStore, Changed, Changes, Known, Outcome, Page, Position, RowChange, SharedStore, StoreError,
    StoreFuture, Transaction,
};
pub use members::{Config, Credentials, Password, ReadCredentials, Tls};
use members::{Failure, Members};

/// How long a read may take. As long as a round of a database at least, which is what waits for most of them.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a page of rows may take.
const SCAN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one attempt at a transaction may take, and how long it is tried to find out what became of one: several elections.
const ATTEMPT: Duration = Duration::from_secs(2);
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The largest message that is taken from etcd: a page of rows, each of which may be a group of some thousand members.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// How far a page is looked for at first, in pages: etcd takes a look at each key of the range that it is asked for, whatever the limit.
/// Entries are numbered without gaps, so that most pages are found so. A cell of a million volumes is read in seconds, not minutes.
const LOOK_AHEAD: usize = 4;

/// Operations on one level of a transaction. etcd counts (`--max-txn-ops`, 128) the way down to the deepest operation, level
/// by level, so that three levels of this have room for 64,000.
const OPS_OF_LEVEL: usize = 40;

/// Rows in etcd.
pub struct EtcdStore {
    members: Members,
    prefix: Vec<u8>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix.escape_ascii().to_string();
        f.debug_struct("EtcdStore").field("members", &self.members).field("prefix", &prefix).finish()
    }
}

impl EtcdStore {
    /// A store that is reached when it is needed.
    ///
    /// # Errors
    ///
    /// If the configuration makes no sense: no member, or an address or prefix that is none; if the credentials cannot be read.
    pub fn new(config: Config) -> Result<Self, StoreError> {
        let wrong = |what: &str| Err(StoreError::new("reaching etcd", what).with(Known::NotDone));
        if config.prefix.is_empty() {
            return wrong("a prefix is needed, so that nothing else in this etcd is touched");
        }
        let prefix = config.prefix.clone().into_bytes();
        Ok(Self { members: Members::new(config)?, prefix })
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    fn own(&self, mut key: Vec<u8>) -> Vec<u8> {
        key.drain(..self.prefix.len().min(key.len()));
        key
    }

    fn error(doing: &str, failure: Failure) -> StoreError {
        StoreError { doing: format!("{doing} in etcd"), reason: failure.reason, known: failure.known }
    }

    async fn page(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Position>,
    ) -> Result<Page, StoreError> {
        let end = end_of(&self.key(prefix));
        let (mut from, near) = match after {
            Some(after) => {
                let after = self.key(after);
                ([&after[..], &[0]].concat(), ahead(&after, LOOK_AHEAD.saturating_mul(limit)))
            }
            None => (self.key(prefix), None),
        };
        let mut near = near.filter(|near| *near < end && end.len() > 1);
        let mut page = Page { rows: Vec::new(), position: at.unwrap_or_default() };
        loop {
            let to = near.take();
            let left = limit - page.rows.len();
            let options = GetOptions::new()
                .with_range(to.as_ref().unwrap_or(&end).clone())
                .with_limit(i64::try_from(left).unwrap_or(i64::MAX))
                .with_revision(page.position.0 as i64);
            let get = |client: Client| {
                let (from, options) = (from.clone(), options.clone());
                async move {
                    let mut client = client.kv_client().max_decoding_message_size(MAX_MESSAGE_BYTES);
                    client.get(from, Some(options)).await
                }
            };
            let answer = self.members.ask(SCAN_TIMEOUT, get).await;
            let mut answer =
                answer.map_err(|failure| Self::error("reading the cell's databases", failure))?;
            if page.position == Position::default() {
                page.position = Position(answer.header().map_or(0, |header| header.revision()) as u64);
            }
            let rows = answer.take_kvs().into_iter().map(etcd_client::KeyValue::into_key_value);
            page.rows.extend(rows.map(|(key, value)| (self.own(key), value)));
            match to {
                Some(to) if page.rows.len() < limit => from = to,
                _ => return Ok(page),
            }
        }
    }

    /// The transaction for etcd. If it cannot be made because a row is not as expected, it reads the witness.
    fn request(&self, transaction: &Transaction) -> Txn {
        let expected = transaction.expected.iter().map(|(key, value)| match value {
            Some(value) => Compare::value(self.key(key), CompareOp::Equal, value.clone()),
            None => Compare::create_revision(self.key(key), CompareOp::Equal, 0),
        });
        // etcd takes one operation on a row. They keep their order, as places of entries grow by one.
        let last: HashMap<_, _> = transaction.changes.iter().map(|(key, value)| (&key[..], value)).collect();
        let mut is_done: HashMap<&[u8], ()> = HashMap::new();
        let first = transaction.changes.iter().filter(|(key, _)| is_done.insert(key, ()).is_none());
        let changes = first.map(|(key, _)| match last[&key[..]] {
            Some(value) => TxnOp::put(self.key(key), value.clone(), None),
            None => TxnOp::delete(self.key(key), None),
        });
        let witness = transaction.witness.iter().map(|key| TxnOp::get(self.key(key), None));
        Txn::new()
            .when(expected.collect::<Vec<_>>())
            .and_then(nested(changes.collect()))
            .or_else(witness.collect::<Vec<_>>())
    }

    /// Sends a transaction once; `None` if it was not made, and will not be by this.
    async fn attempt(&self, request: &Txn, witness: Option<&[u8]>, until: Instant) -> Result<bool, Failure> {
        let txn = |client: Client| {
            let request = request.clone();
            async move { client.kv_client().txn(request).await }
        };
        let left = until.saturating_duration_since(Instant::now());
        let answer = self.members.ask(ATTEMPT.min(left), txn).await?;
        if answer.succeeded() {
            return Ok(true);
        }
        let found = answer.op_responses().into_iter().next();
        let Some(TxnOpResponse::Get(mut found)) = found else { return Ok(false) };
        let found = found.take_kvs().into_iter().next().map(|row| row.into_key_value().1);
        Ok(witness.is_some() && found.as_deref() == witness)
    }

    async fn decide(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        let witness = transaction.witness.as_deref();
        let value = |(key, value): &RowChange| (Some(&key[..]) == witness).then(|| value.clone()).flatten();
        let witness = transaction.changes.iter().find_map(value);
        let request = self.request(&transaction);
        let until = Instant::now() + COMMIT_TIMEOUT;
        let mut may_be_made = false;
        loop {
            let failure = match self.attempt(&request, witness.as_deref(), until).await {
                Ok(true) => return Ok(Outcome::Committed),
                // If a copy of it was on its way, it found the row changed too, or the witness would tell.
                Ok(false) => return Ok(Outcome::Conflict),
                Err(failure) => failure,
            };
            may_be_made |= failure.known != Known::NotDone;
            if !may_be_made || failure.is_refusal || witness.is_none() || Instant::now() + PAUSE >= until {
                let known = if may_be_made { Known::Nothing } else { Known::NotDone };
                let known = if failure.is_refusal && !may_be_made { Known::Nothing } else { known };
                let failure = Failure { known, ..failure };
                return Err(Self::error("changing the cell's databases", failure));
            }
            sleep(PAUSE).await;
        }
    }
}

/// The first key behind all that begin with these bytes.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    // Only of 0xff: to the last key.
    if end.is_empty() { vec![0] } else { end }
}

/// A key that so many keys come before at most which begin as this one and end in numbers of four bytes that follow its own; `None` if
/// there is none.
fn ahead(key: &[u8], by: usize) -> Option<Vec<u8>> {
    let (begin, number) = key.split_last_chunk()?;
    let number = u32::from_be_bytes(*number).checked_add(u32::try_from(by).ok()?)?;
    Some([begin, &number.to_be_bytes()].concat())
}

/// Operations as a tree of transactions, none of which has too many.
fn nested(mut ops: Vec<TxnOp>) -> Vec<TxnOp> {
    while ops.len() > OPS_OF_LEVEL {
        ops = ops.chunks(OPS_OF_LEVEL).map(|part| TxnOp::txn(Txn::new().and_then(part))).collect();
    }
    ops
}

impl CellStore for EtcdStore {
    fn read<'a>(&'a self, key: &'a [u8]) -> StoreFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            let key = self.key(key);
            let get = |client: Client| {
                let key = key.clone();
                // Through the leader's quorum, as etcd does unless it is told otherwise.
                async move { client.kv_client().max_decoding_message_size(MAX_MESSAGE_BYTES).get(key, None).await }
            };
            let answer = self.members.ask(READ_TIMEOUT, get).await;
            let mut answer =
                answer.map_err(|failure| Self::error("reading the cell's databases", failure))?;
            Ok(answer.take_kvs().into_iter().next().map(|row| row.into_key_value().1))
        })
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&'a [u8]>,
        limit: usize,
        at: Option<Position>,
    ) -> StoreFuture<'a, Page> {
        Box::pin(self.page(prefix, after, limit, at))
    }

    fn commit(&self, transaction: Transaction) -> StoreFuture<'_, Outcome> {
        Box::pin(self.decide(transaction))
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }
}

impl SharedStore for EtcdStore {
    fn watch<'a>(&'a self, prefix: &'a [u8], after: Position) -> StoreFuture<'a, Box<dyn Changes>> {
        Box::pin(async move {
            let prefix = self.key(prefix);
            let options = WatchOptions::new()
                .with_range(end_of(&prefix))
                .with_start_revision(after.0 as i64 + 1)
                .with_progress_notify();
            let watch = |client: Client| {
                let (prefix, options) = (prefix.clone(), options.clone());
                async move {
                    let mut client = client.watch_client().max_decoding_message_size(MAX_MESSAGE_BYTES);
                    client.watch(prefix, Some(options)).await
                }
            };
            let stream = self.members.ask(READ_TIMEOUT, watch).await;
            let stream = stream.map_err(|failure| Self::error("watching the cell's databases", failure))?;
            let changes = Watch { stream, cut: self.prefix.len(), position: after };
            Ok(Box::new(changes) as Box<dyn Changes>)
        })
    }

    fn machines(&self) -> usize {
        self.members.count()
    }
}

/// What etcd tells.
struct Watch {
    stream: WatchStream,
    /// Bytes of the store's prefix.
    cut: usize,
    position: Position,
}

impl Watch {
    async fn receive(&mut self) -> Result<Changed, StoreError> {
        let failed = |reason: &dyn fmt::Display, known| {
            StoreError::new("watching the cell's databases in etcd", reason).with(known)
        };
        loop {
            let message = self.stream.message().await.map_err(|error| {
                // etcd would answer the same to each further watch from here: the changes of up to 1,000 revisions at once.
                let is_too_large = error.to_string().contains("message length too large");
                failed(&error, if is_too_large { Known::Forgotten } else { Known::Nothing })
            })?;
            let Some(message) = message else { return Err(failed(&"etcd ended it", Known::Nothing)) };
            if message.canceled() {
                let known = if message.compact_revision() > 0 { Known::Forgotten } else { Known::Nothing };
                return Err(failed(&message.cancel_reason(), known));
            }
            if message.created() {
                continue;
            }
            let mut transactions: Vec<Vec<RowChange>> = Vec::new();
            let mut last = 0;
            for event in message.events() {
                let Some(row) = event.kv() else { continue };
                let value = (event.event_type() == EventType::Put).then(|| row.value().to_vec());
                let change = (row.key().get(self.cut..).unwrap_or_default().to_vec(), value);
                match transactions.last_mut() {
                    Some(rows) if row.mod_revision() == last => rows.push(change),
                    _ => transactions.push(vec![change]),
                }
                last = row.mod_revision();
            }
            // Without events it says how far it has got.
            let told = if transactions.is_empty() {
                message.header().map_or(0, |header| header.revision())
            } else {
                last
            };
            self.position = self.position.max(Position(told as u64));
            return Ok(Changed { transactions, position: self.position });
        }
    }
}

impl Changes for Watch {
    fn next(&mut self) -> StoreFuture<'_, Changed> {
        Box::pin(self.receive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_they_have_to() {
        assert_eq!(end_of(b"a/"), b"a0");
        assert_eq!(end_of(b"a\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0], "that is all that follows");
        assert_eq!(ahead(b"e\0\0\0\x05", 0x100).as_deref(), Some(&b"e\0\0\x01\x05"[..]));
        assert_eq!(ahead(b"e\xff\xff\xff\xff", 1), None);
        assert_eq!(ahead(b"abc", 1), None);
    }

    /// A server that watched an etcd before it was restored from a snapshot asks for such a moment.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_etcd_no_longer_keeps_or_has_not_come_to_is_said_to_be_forgotten() {
        use afs_lab::peers::etcd::{Etcd, available};
        use afs_lab::skipped::skip;
        if let Err(reason) = available() {
            return skip("what_etcd_no_longer_keeps_or_has_not_come_to_is_said_to_be_forgotten", &reason);
        }
        let etcd = Etcd::start("forgotten", 1);
        let config = Config::without_credentials(etcd.endpoints(), "/afar/a.cell/");
        let store = EtcdStore::new(config).unwrap();
        let mut positions = Vec::new();
        for value in [b"a", b"b"] {
            let changes = vec![(b"key".to_vec(), Some(value.to_vec()))];
            store.commit(Transaction { changes, ..Transaction::default() }).await.unwrap();
            positions.push(store.scan(b"key", None, 1, None).await.unwrap().position);
        }
        let [first, last] = positions[..] else { unreachable!() };
        let at = async |position| store.scan(b"key", None, 1, Some(position)).await;
        let value = |page: Page| page.rows[0].1.clone();
        assert_eq!(
            (at(first).await.map(value), at(last).await.map(value)),
            (Ok(b"a".into()), Ok(b"b".into()))
        );
        assert!(etcd.control(&["compact", &last.0.to_string()]).0);
        assert_eq!(at(last).await.map(value), Ok(b"b".into()));
        for position in [first, Position(last.0 + 1)] {
            assert_eq!(at(position).await.unwrap_err().known, Known::Forgotten, "{position:?}");
        }
    }

    #[test]
    fn no_level_of_a_transaction_has_too_many_operations() {
        fn top_level(count: usize) -> usize {
            nested((0..count).map(|n| TxnOp::delete(n.to_be_bytes(), None)).collect()).len()
        }
        for count in [0, 1, OPS_OF_LEVEL, OPS_OF_LEVEL + 1, 5000, OPS_OF_LEVEL.pow(3)] {
            assert!(top_level(count) <= OPS_OF_LEVEL, "{count}");
        }
    }
}
