//! The counters of a file server: calls, how long they took, and bytes, in the form that its statistics calls tell
//! them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_wire::ids::AfsTime;
use afs_wire::rxafs;
use rxgen::Rpc;

/// Procedures that are timed, in the order in which GetXStats tells them (File service notes 6.8). Forms of one procedure are
/// counted together.
const TIMED: &[&[u32]] = &[
    &[rxafs::FetchData::OPCODE, rxafs::FetchData64::OPCODE],
    &[rxafs::FetchACL::OPCODE],
    &[rxafs::FetchStatus::OPCODE],
    &[rxafs::StoreData::OPCODE, rxafs::StoreData64::OPCODE],
    &[rxafs::OldStoreACL::OPCODE, rxafs::StoreACL::OPCODE],
    &[rxafs::StoreStatus::OPCODE],
    &[rxafs::RemoveFile::OPCODE],
    &[rxafs::CreateFile::OPCODE],
    &[rxafs::Rename::OPCODE],
    &[rxafs::Symlink::OPCODE],
    &[rxafs::Link::OPCODE],
    &[rxafs::MakeDir::OPCODE],
    &[rxafs::RemoveDir::OPCODE],
    &[rxafs::SetLock::OPCODE, rxafs::OldSetLock::OPCODE],
    &[rxafs::ExtendLock::OPCODE, rxafs::OldExtendLock::OPCODE],
    &[rxafs::ReleaseLock::OPCODE, rxafs::OldReleaseLock::OPCODE],
    &[rxafs::GetStatistics::OPCODE, rxafs::GetStatistics64::OPCODE],
    &[rxafs::GiveUpCallBacks::OPCODE],
    &[rxafs::GetVolumeInfo::OPCODE],
    &[rxafs::GetVolumeStatus::OPCODE],
    &[rxafs::SetVolumeStatus::OPCODE],
    &[rxafs::GetRootVolume::OPCODE],
    &[rxafs::CheckToken::OPCODE],
    &[rxafs::GetTime::OPCODE],
    &[rxafs::NGetVolumeInfo::OPCODE],
    &[rxafs::BulkStatus::OPCODE, rxafs::InlineBulkStatus::OPCODE],
    &[rxafs::XStatsVersion::OPCODE],
    &[rxafs::GetXStats::OPCODE],
];

/// Upper ends of the sizes of transfers that are counted apart, in bytes; the last class is what is larger.
const SIZES: [u64; 8] = [128, 1 << 10, 8 << 10, 16 << 10, 32 << 10, 128 << 10, 256 << 10, 1 << 20];

/// The shortest time that a stock server reports of something that never happened, in seconds.
const NEVER_SECONDS: u64 = 999_999;

/// The counters of a server.
#[derive(Debug)]
pub(crate) struct Statistics {
    pub(crate) started: AfsTime,
    calls: AtomicU64,
    fetches: AtomicU64,
    stores: AtomicU64,
    fetched_datas: AtomicU64,
    fetched_bytes: AtomicU64,
    stored_datas: AtomicU64,
    stored_bytes: AtomicU64,
    details: Mutex<Details>,
}

#[derive(Debug)]
struct Details {
    calls: Vec<Times>,
    fetched: Transfers,
    stored: Transfers,
}

/// The number of times that something was done, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    count: u32,
    succeeded: u32,
    sum: Duration,
    /// In square microseconds.
    squares: u128,
    least: Option<Duration>,
    most: Duration,
}

/// The bytes of fetches or stores.
#[derive(Debug, Clone, Copy, Default)]
struct Transfers {
    times: Times,
    bytes: u64,
    least_bytes: Option<u64>,
    most_bytes: u64,
    by_size: [u32; SIZES.len() + 1],
}

/// The counters that GetStatistics tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) calls: u64,
    pub(crate) fetches: u64,
    pub(crate) stores: u64,
    pub(crate) fetched_datas: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) stored_datas: u64,
    pub(crate) stored_bytes: u64,
}

impl Statistics {
    pub(crate) fn new(started: AfsTime) -> Self {
        let details = Details {
            calls: vec![Times::default(); TIMED.len()],
            fetched: Transfers::default(),
            stored: Transfers::default(),
        };
        Self {
            started,
            calls: AtomicU64::new(0),
            fetches: AtomicU64::new(0),
            stores: AtomicU64::new(0),
            fetched_datas: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            stored_datas: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            details: Mutex::new(details),
        }
    }

    /// Returns so many bytes as bytes a second, by how long the server has run.
    pub(crate) fn rate(&self, bytes: u64, now: AfsTime) -> u64 {
        bytes / u64::from(now.0.saturating_sub(self.started.0).max(1))
    }

    fn details(&self) -> MutexGuard<'_, Details> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call has been answered, or refused.
    pub(crate) fn note_call(&self, opcode: u32, succeeded: bool, took: Duration) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(index) = TIMED.iter().position(|opcodes| opcodes.contains(&opcode)) {
            self.details().calls[index].note(succeeded, took);
        }
    }

    /// Status, data or an access list were fetched.
    pub(crate) fn note_fetch(&self) {
        self.fetches.fetch_add(1, Ordering::Relaxed);
    }

    /// Status, data or an access list were stored.
    pub(crate) fn note_store(&self) {
        self.stores.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts so many bytes that were fetched.
    pub(crate) fn note_fetched(&self, bytes: u64, took: Duration) {
        self.note_fetch();
        self.fetched_datas.fetch_add(1, Ordering::Relaxed);
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.details().fetched.note(bytes, took);
    }

    /// Counts so many bytes that were stored.
    pub(crate) fn note_stored(&self, bytes: u64, took: Duration) {
        self.note_store();
        self.stored_datas.fetch_add(1, Ordering::Relaxed);
        self.stored_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.details().stored.note(bytes, took);
    }

    pub(crate) fn totals(&self) -> Totals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            calls: read(&self.calls),
            fetches: read(&self.fetches),
            stores: read(&self.stores),
            fetched_datas: read(&self.fetched_datas),
            fetched_bytes: read(&self.fetched_bytes),
            stored_datas: read(&self.stored_datas),
            stored_bytes: read(&self.stored_bytes),
        }
    }

    /// The words of the detailed statistics: since when, the times of each procedure, and both transfers.
    pub(crate) fn detail_words(&self) -> Vec<u32> {
        let details = self.details();
        let mut words = Vec::new();
        push_time(&mut words, Duration::from_secs(self.started.0.into()));
        for times in &details.calls {
            times.push_words(&mut words);
        }
        for transfers in [&details.fetched, &details.stored] {
            transfers.times.push_words(&mut words);
            // In KiB, as stock servers keep it.
            words.push((transfers.bytes >> 10) as u32);
            words.push(transfers.least_bytes.unwrap_or(NEVER_SECONDS).try_into().unwrap_or(u32::MAX));
            words.push(transfers.most_bytes.try_into().unwrap_or(u32::MAX));
            words.extend(transfers.by_size);
        }
        words
    }
}

impl Times {
    fn note(&mut self, succeeded: bool, took: Duration) {
        self.count = self.count.wrapping_add(1);
        if !succeeded {
            return;
        }
        self.succeeded = self.succeeded.wrapping_add(1);
        self.sum += took;
        self.squares = self.squares.saturating_add(took.as_micros().saturating_pow(2));
        self.least = Some(self.least.map_or(took, |least| least.min(took)));
        self.most = self.most.max(took);
    }

    fn push_words(&self, words: &mut Vec<u32>) {
        words.extend([self.count, self.succeeded]);
        push_time(words, self.sum);
        let squares = Duration::from_micros((self.squares / 1_000_000).try_into().unwrap_or(u64::MAX));
        push_time(words, squares);
        push_time(words, self.least.unwrap_or(Duration::from_secs(NEVER_SECONDS)));
        push_time(words, self.most);
    }
}

impl Transfers {
    fn note(&mut self, bytes: u64, took: Duration) {
        self.times.note(true, took);
        self.bytes += bytes;
        self.least_bytes = Some(self.least_bytes.map_or(bytes, |least| least.min(bytes)));
        self.most_bytes = self.most_bytes.max(bytes);
        let class = SIZES.iter().position(|size| bytes <= *size).unwrap_or(SIZES.len());
        self.by_size[class] = self.by_size[class].wrapping_add(1);
    }
}

/// A time as a 64-bit server has it in memory: seconds and microseconds of 64 bits each, low word first.
fn push_time(words: &mut Vec<u32>, time: Duration) {
    for part in [time.as_secs(), u64::from(time.subsec_micros())] {
        words.extend([part as u32, (part >> 32) as u32]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as those of a stock server (666 words with the 98 of the totals), with the times where it has them.
    #[test]
    fn details_have_the_layout_of_a_stock_server() {
        let statistics = Statistics::new(AfsTime(1_795_193_498));
        statistics.note_call(rxafs::FetchStatus::OPCODE, true, Duration::from_micros(52));
        statistics.note_call(rxafs::FetchStatus::OPCODE, false, Duration::from_micros(999));
        statistics.note_fetched(100_000, Duration::from_millis(4));
        let words = statistics.detail_words();
        assert_eq!(words.len(), 568);
        assert_eq!(words[0], 1_795_193_498);
        let fetch_status = &words[4 + 2 * 18..][..18];
        assert_eq!(fetch_status[..2], [2, 1]);
        assert_eq!(fetch_status[4], 52, "microseconds of the sum");
        assert_eq!(words[4 + 18 + 10], 999_999, "what never happened took long at least");
        let fetched = &words[4 + 28 * 18..][..30];
        assert_eq!(fetched[..2], [1, 1]);
        assert_eq!(fetched[18..21], [97, 100_000, 100_000]);
        assert_eq!(fetched[21..], [0, 0, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_rate_is_of_the_seconds_that_the_server_has_run() {
        let statistics = Statistics::new(AfsTime(1000));
        for (now, rate) in [(1010, 50), (1001, 500), (1000, 500), (900, 500)] {
            assert_eq!(statistics.rate(500, AfsTime(now)), rate, "at {now}");
        }
    }

    #[test]
    fn forms_of_one_procedure_are_counted_together_and_others_not_at_all() {
        let statistics = Statistics::new(AfsTime(0));
        for opcode in [rxafs::FetchData::OPCODE, rxafs::FetchData64::OPCODE, rxafs::Lookup::OPCODE] {
            statistics.note_call(opcode, true, Duration::ZERO);
        }
        assert_eq!(statistics.detail_words()[4], 2);
        assert_eq!(statistics.totals().calls, 3);
    }
}
