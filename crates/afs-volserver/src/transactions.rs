//! Transactions: who works on which volume, at most one a volume, ended when nobody uses them (Volume service notes 3).
//!
//! A table without a clock: the time comes in. What a transaction's end does to its volume is the service's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use afs_wire::afsvol::{AttachFlags, VolumeFlags};
use afs_wire::ids::{AfsTime, PartitionId, TransId, VolumeId};
use rx_proto::time::Instant;

/// Most transactions at once, so that a program that forgets them cannot fill memory: each is some 100 bytes.
pub const MAX_TRANSACTIONS: usize = 65_536;

/// A transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its number.
    pub id: TransId,
    /// Its volume.
    pub volume: VolumeId,
    /// The partition of that.
    pub partition: PartitionId,
    /// The flags that it asked for.
    pub attach: AttachFlags,
    /// The flags that were set of the volume in it, last by `SetFlags`.
    pub flags: VolumeFlags,
    /// The last error in it.
    pub return_code: i32,
    /// The time when it began.
    pub created: AfsTime,
    /// The time when it was used last.
    pub used: AfsTime,
    /// The procedure that used it last.
    pub procedure: &'static str,
    /// True if clients may have seen something that is not so any more.
    pub is_changed: bool,
    /// True if its end waits until the volume is on the disk for good: a dump was restored in it, or what was half made is no longer.
    pub is_for_good: bool,
    /// True if its volume may be sent to servers that know no levels.
    pub may_lose_level: bool,
    /// What was said in it of the end of its volume.
    pub end: End,
    /// The bytes of a dump that the last procedure has sent or received.
    pub moved: Moved,
    idle_since: Instant,
    is_in_use: bool,
}

/// What was said of the end of a volume, before it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nothing.
    Unknown,
    /// It was whole, and is to be removed.
    OfWhole,
    /// It has moved to another server.
    HasMoved,
}

/// Bytes that a procedure has sent and received so far, and whether it is to stop. A clone is of the same procedure.
#[derive(Debug, Clone, Default)]
pub struct Moved(Arc<([AtomicU64; 2], AtomicBool)>);

impl Moved {
    /// Counts so many more bytes that were sent.
    pub fn add_sent(&self, bytes: usize) {
        self.0.0[0].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts so many more bytes that were received.
    pub fn add_received(&self, bytes: usize) {
        self.0.0[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes sent, and bytes received.
    pub fn bytes(&self) -> [u64; 2] {
        [&self.0.0[0], &self.0.0[1]].map(|bytes| bytes.load(Ordering::Relaxed))
    }
}

impl Moved {
    /// True if somebody has ended the transaction meanwhile.
    pub fn is_unwanted(&self) -> bool {
        self.0.1.load(Ordering::Relaxed)
    }
}

impl PartialEq for Moved {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Moved {}

/// The reason why there is no transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The volume has one already, or a call is using it just now.
    Busy,
    /// There is no such transaction.
    Unknown,
    /// There are [`MAX_TRANSACTIONS`].
    TooMany,
}

/// The transactions of a server.
#[derive(Debug, Default)]
pub struct Transactions {
    by_id: BTreeMap<TransId, Transaction>,
    last: i32,
}

impl Transactions {
    /// Begins a transaction, in use by the caller until [`Self::release`].
    ///
    /// # Errors
    ///
    /// [`Refused::Busy`] when somebody else works on the volume.
    pub fn begin(
        &mut self,
        now: (Instant, AfsTime),
        volume: VolumeId,
        partition: PartitionId,
        attach: AttachFlags,
        procedure: &'static str,
    ) -> Result<TransId, Refused> {
        if self.of(volume, partition).is_some() {
            return Err(Refused::Busy);
        }
        if self.by_id.len() >= MAX_TRANSACTIONS {
            return Err(Refused::TooMany);
        }
        let id = self.unused();
        let (instant, time) = now;
        self.by_id.insert(
            id,
            Transaction {
                id,
                volume,
                partition,
                attach,
                flags: VolumeFlags::NONE,
                return_code: 0,
                created: time,
                used: time,
                procedure,
                is_changed: false,
                is_for_good: false,
                may_lose_level: false,
                end: End::Unknown,
                moved: Moved::default(),
                idle_since: instant,
                is_in_use: true,
            },
        );
        Ok(id)
    }

    /// The next number: never 0, and none that is in use.
    fn unused(&mut self) -> TransId {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.by_id.contains_key(&TransId(self.last)) {
                return TransId(self.last);
            }
        }
    }

    /// Takes a transaction into use until [`Self::release`].
    ///
    /// # Errors
    ///
    /// When there is none, or another call is using it.
    pub fn take(
        &mut self,
        now: (Instant, AfsTime),
        id: TransId,
        procedure: &'static str,
    ) -> Result<Transaction, Refused> {
        let transaction = self.by_id.get_mut(&id).ok_or(Refused::Unknown)?;
        if transaction.is_in_use {
            return Err(Refused::Busy);
        }
        transaction.is_in_use = true;
        (transaction.idle_since, transaction.used) = now;
        transaction.procedure = procedure;
        transaction.moved = Moved::default();
        Ok(transaction.clone())
    }

    /// Lets go of a transaction that was taken or begun, after changing what is known of it.
    ///
    /// # Panics
    ///
    /// When it is not in use.
    pub fn release(&mut self, now: Instant, id: TransId, change: impl FnOnce(&mut Transaction)) {
        let transaction =
            self.by_id.get_mut(&id).filter(|t| t.is_in_use).expect("only what is in use is released");
        change(transaction);
        transaction.idle_since = now;
        transaction.is_in_use = false;
    }

    /// Has the procedure stop that uses a transaction.
    pub fn break_off(&self, id: TransId) {
        if let Some(transaction) = self.by_id.get(&id) {
            transaction.moved.0.1.store(true, Ordering::Relaxed);
        }
    }

    /// Ends a transaction that was taken or begun.
    ///
    /// # Panics
    ///
    /// When it is not in use.
    pub fn end(&mut self, id: TransId) -> Transaction {
        self.by_id.remove(&id).filter(|t| t.is_in_use).expect("only what is in use is ended")
    }

    /// The transaction of a number.
    pub fn by_id(&self, id: TransId) -> Option<&Transaction> {
        self.by_id.get(&id)
    }

    /// The transaction of a volume.
    pub fn of(&self, volume: VolumeId, partition: PartitionId) -> Option<&Transaction> {
        self.by_id.values().find(|t| t.volume == volume && t.partition == partition)
    }

    /// All of them, oldest first unless numbers have begun anew.
    pub fn iter(&self) -> impl Iterator<Item = &Transaction> {
        self.by_id.values()
    }

    /// Takes a transaction into use that nobody has used for so long, in order to end it.
    pub fn poll_idle(&mut self, now: Instant, limit: Duration) -> Option<Transaction> {
        let transaction =
            self.by_id.values_mut().find(|t| !t.is_in_use && now.since(t.idle_since) >= limit)?;
        transaction.is_in_use = true;
        Some(transaction.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PartitionId = PartitionId(0);

    fn at(seconds: u64) -> (Instant, AfsTime) {
        (Instant::ORIGIN + Duration::from_secs(seconds), AfsTime(1000 + seconds as u32))
    }

    fn begin(table: &mut Transactions, volume: u32) -> Result<TransId, Refused> {
        table.begin(at(0), VolumeId(volume), A, AttachFlags::BUSY, "TransCreate")
    }

    #[test]
    fn a_volume_has_one_transaction_at_a_time() {
        let mut table = Transactions::default();
        let first = begin(&mut table, 7).unwrap();
        assert_ne!(first, TransId(0));
        assert_eq!(begin(&mut table, 7), Err(Refused::Busy));
        let other = table.begin(at(0), VolumeId(7), PartitionId(1), AttachFlags::BUSY, "TransCreate");
        assert!(other.is_ok(), "a copy on another partition is another volume");
        table.end(first);
        assert_ne!(begin(&mut table, 7).unwrap(), first, "a number is not used again soon");
    }

    #[test]
    fn a_transaction_serves_one_call_at_a_time() {
        let mut table = Transactions::default();
        let id = begin(&mut table, 7).unwrap();
        assert_eq!(table.take(at(1), id, "GetName"), Err(Refused::Busy), "it is still being begun");
        table.release(at(1).0, id, |_| {});
        assert_eq!(table.take(at(2), id, "GetName").unwrap().used, AfsTime(1002));
        assert_eq!(table.take(at(2), id, "GetName"), Err(Refused::Busy));
        table.release(at(3).0, id, |t| t.flags = VolumeFlags::DELETED);
        assert_eq!(table.take(at(4), id, "GetName").unwrap().flags, VolumeFlags::DELETED);
        assert_eq!(table.take(at(4), TransId(99), "GetName"), Err(Refused::Unknown));
    }

    #[test]
    fn what_nobody_uses_is_ended_and_what_is_in_use_is_not() {
        let mut table = Transactions::default();
        let (used, idle) = (begin(&mut table, 1).unwrap(), begin(&mut table, 2).unwrap());
        table.release(at(0).0, idle, |_| {});
        let limit = Duration::from_secs(600);
        assert_eq!(table.poll_idle(at(599).0, limit), None);
        assert_eq!(table.poll_idle(at(600).0, limit).map(|t| t.id), Some(idle));
        table.end(idle);
        assert_eq!(table.poll_idle(at(10_000).0, limit), None, "{used:?} is in use");
    }

    #[test]
    fn numbers_begin_anew_before_they_become_negative() {
        let mut table = Transactions { last: i32::MAX - 1, ..Transactions::default() };
        assert_eq!(begin(&mut table, 1), Ok(TransId(i32::MAX)));
        assert_eq!(begin(&mut table, 2), Ok(TransId(1)));
    }
}
