//! Prefetch of small files that will be read next. If a program reads the files of a directory one after the other, the
//! next ones are fetched before it opens them. One at a time, each file would take a round trip.
//!
//! Programs go through a directory as it lists its entries (`find`, `grep -r`), by name (shells, `git`, `rsync`) or by
//! the numbers of the files (`cp -r`). The client follows all three orders, and expects a program that has read on
//! without jumps in any of them to go on so. It expects a program that has read most of a directory to do the same in
//! the next one. This module decides which files come next; [`pace`](super::pace) decides how many calls may be in
//! flight.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_wire::directory::Directory;
use afs_wire::ids::LocalFid;
use rx::Runtime;
use rx_proto::time::Instant;

use super::WHOLE_BYTES;
use crate::data::files::{Files, lock};
use crate::data::open_files::OpenFiles;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::status::Kind;
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::Vnode;
use afs_reach::fid::{Fid, User};
use afs_reach::users::Users;

/// Files that have to be read in an order before it is taken to go on.
const BEGINS_AT: usize = 2;

/// The number of files that are fetched ahead for each that was read in the order. A program that stops has cost at most so many
/// times what it has read.
const AHEAD_FOR_EACH: usize = 2;

/// Files that are fetched ahead at most. At 200 ms with 32 calls under way that is two round trips.
const AHEAD_MAX: usize = 64;

/// Bytes that are asked for at once at most; the rest comes when it is read.
const AHEAD_BYTES: u64 = 4 << 20;

/// The distance from the expected file within which a file counts as the next: there are directories and large files between, and
/// programs that read several at once.
const NEAR: usize = 8;

/// The time, after a file of a directory was opened, within which the program is expected to read on.
const READ_ON_FOR: Duration = Duration::from_secs(20);

/// Directories that are read at a time. More are forgotten, which costs their readers two round trips each.
const DIRECTORIES_MAX: usize = 16;

/// The orders in which programs go through a directory.
const ORDERS: usize = 3;

/// Prefetch: what is being read, and what it takes to fetch what comes next.
#[derive(Debug)]
pub struct Prefetch {
    /// The directories whose files are being read.
    pub readings: Readings,
    /// The runtime that tasks run on.
    pub runtime: Arc<dyn Runtime>,
    /// The users and their tokens.
    pub users: Arc<Users>,
    /// The table of vnodes.
    pub vnodes: Arc<Vnodes>,
    /// The statuses of files.
    pub statuses: Arc<Statuses>,
    /// The files that are being removed.
    pub open_files: Arc<OpenFiles>,
    /// The data of files.
    pub files: Arc<Files>,
}

/// Directories whose files are being read one after the other.
#[derive(Debug, Default)]
pub struct Readings {
    table: Mutex<HashMap<Fid, Reading>>,
    /// The number of directories in the table: an open looks here first.
    count: AtomicUsize,
}

/// The reading of one directory's files.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// The file that was read before the orders were looked at.
    first: LocalFid,
    orders: Option<Orders>,
    runs: [Run; ORDERS],
    /// Files that were read since the last jump.
    read: usize,
}

/// The files that a directory names, in each order.
#[derive(Debug)]
struct Orders {
    /// The files by their numbers.
    files: Vec<LocalFid>,
    /// The state of each file since the last jump.
    done: Vec<Done>,
    /// The index of the file at each place of each order, and the place of each file in each order.
    at: [Vec<u32>; ORDERS],
    place: [Vec<u32>; ORDERS],
}

/// The progress with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Done {
    Nothing,
    AskedFor,
    Read,
}

/// Files that were read one after the other in one order.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    length: usize,
    /// The furthest place that was read, and the one behind the last that was asked for.
    furthest: usize,
    asked: usize,
    /// They were of another directory: the places are not of this one.
    is_carried: bool,
}

impl Orders {
    fn of<B: AsRef<[u8]>>(directory: &Directory<B>) -> Self {
        let entries =
            || directory.entries().filter(|entry| !entry.is_dot() && !entry.fid.vnode.is_directory());
        let mut files: Vec<_> = entries().map(|entry| entry.fid).collect();
        files.sort_unstable();
        files.dedup();
        let mut by_name: Vec<_> = entries().collect();
        by_name.sort_unstable_by_key(|entry| entry.name);
        let number = |fid: &LocalFid| files.binary_search(fid).expect("all are in it");
        let orders: [Vec<usize>; ORDERS] = [
            (0..files.len()).collect(),
            entries().map(|entry| number(&entry.fid)).collect(),
            by_name.iter().map(|entry| number(&entry.fid)).collect(),
        ];
        let narrow = |n: usize| u32::try_from(n).expect("a directory has few entries");
        let place = orders.each_ref().map(|order| {
            let mut place = vec![0; files.len()];
            for (at, &file) in order.iter().enumerate() {
                place[file] = narrow(at);
            }
            place
        });
        let at = orders.map(|order| order.into_iter().map(narrow).collect());
        Self { done: vec![Done::Nothing; files.len()], files, at, place }
    }
}

impl Run {
    /// Goes on in another directory, wherever there.
    const fn carried(length: usize) -> Self {
        Self { length, furthest: 0, asked: 0, is_carried: true }
    }

    fn goes_on(&self, place: usize) -> bool {
        self.is_carried || self.length > 0 && place <= self.furthest + NEAR && place + NEAR >= self.furthest
    }

    /// A file at a place is read. Which places are to be asked for.
    fn note(&mut self, place: usize) -> Range<usize> {
        if !self.goes_on(place) {
            *self = Self { length: 1, furthest: place, asked: place + 1, is_carried: false };
            return 0..0;
        }
        self.length += 1;
        self.furthest = if self.is_carried { place } else { self.furthest.max(place) };
        self.is_carried = false;
        let window = (AHEAD_FOR_EACH * self.length).min(AHEAD_MAX);
        let from = self.asked.max(self.furthest + 1);
        let upto = self.furthest + 1 + window;
        // Asked for in turns: each time when half of what was ahead is used up.
        if self.length < BEGINS_AT || upto - from < window.div_ceil(2) {
            return 0..0;
        }
        self.asked = upto;
        from..upto
    }
}

impl Reading {
    fn is_going_on(&self, now: Instant) -> bool {
        now.since(self.at) < READ_ON_FOR
    }

    /// True if somebody has read most of the directory's files.
    fn is_thorough(&self) -> bool {
        self.orders.as_ref().is_some_and(|orders| self.read * 2 >= orders.files.len())
    }

    /// The runs with which a program that has read this directory so is expected to begin the next one: those of the orders in which
    /// it has read most of this one.
    fn carried(&self) -> [Run; ORDERS] {
        self.runs
            .map(|run| if run.length * 2 > self.read { Run::carried(run.length) } else { Run::default() })
    }

    /// A file is read. Which files are to be fetched.
    fn note(&mut self, now: Instant, file: LocalFid) -> Vec<LocalFid> {
        self.at = now;
        let Some(orders) = &mut self.orders else { return Vec::new() };
        let Ok(number) = orders.files.binary_search(&file) else {
            // It was made since; the next who waits for one looks at the directory again.
            self.orders = None;
            self.first = file;
            return Vec::new();
        };
        let places: [usize; ORDERS] = std::array::from_fn(|order| orders.place[order][number] as usize);
        if !self.runs.iter().zip(places).any(|(run, place)| run.goes_on(place)) {
            orders.done.fill(Done::Nothing);
            self.read = 0;
        }
        // It is opened, and then waited for.
        if orders.done[number] == Done::Read {
            return Vec::new();
        }
        orders.done[number] = Done::Read;
        self.read += 1;
        let mut next = Vec::new();
        for (order, run) in self.runs.iter_mut().enumerate() {
            let asked = run.note(places[order]);
            for &number in orders.at[order].iter().take(asked.end).skip(asked.start) {
                let done = &mut orders.done[number as usize];
                if *done == Done::Nothing {
                    *done = Done::AskedFor;
                    next.push(orders.files[number as usize]);
                }
            }
        }
        next
    }
}

impl Readings {
    /// A file of a directory is opened. Which others of it are to be fetched.
    fn note_opened(&self, now: Instant, dir: Fid, file: LocalFid) -> Vec<LocalFid> {
        // An open does not wait for who puts the names of a large directory in order; one more or less does not matter here.
        let Ok(mut table) = self.table.try_lock() else { return Vec::new() };
        table
            .get_mut(&dir)
            .filter(|reading| reading.is_going_on(now))
            .map_or_else(Vec::new, |r| r.note(now, file))
    }

    /// A small file is waited for. Which others of its directory are to be fetched.
    fn note_waited<B: AsRef<[u8]>>(
        &self,
        now: Instant,
        dir: Fid,
        file: LocalFid,
        pages: impl FnOnce() -> Option<Arc<Directory<B>>>,
    ) -> Vec<LocalFid> {
        let mut table = lock(&self.table);
        table.retain(|_, reading| reading.is_going_on(now));
        if let Some(reading) = table.get_mut(&dir) {
            if reading.orders.is_none() && reading.first != file {
                reading.orders = pages().map(|directory| Orders::of(&directory));
                (reading.runs, reading.read) = Default::default();
                reading.note(now, reading.first);
            }
            return reading.note(now, file);
        }
        let thorough = table.iter().filter(|(other, reading)| {
            (other.cell, other.volume) == (dir.cell, dir.volume) && reading.is_thorough()
        });
        let runs = thorough.max_by_key(|(_, reading)| reading.at).map(|(_, reading)| reading.carried());
        if table.len() >= DIRECTORIES_MAX
            && let Some(oldest) = table.iter().min_by_key(|(_, reading)| reading.at).map(|(&dir, _)| dir)
        {
            table.remove(&oldest);
        }
        let orders = runs.and_then(|_| pages()).map(|directory| Orders::of(&directory));
        let reading = Reading { at: now, first: file, orders, runs: runs.unwrap_or_default(), read: 0 };
        let next = table.entry(dir).insert_entry(reading).get_mut().note(now, file);
        self.count.store(table.len(), Ordering::Relaxed);
        next
    }
}

impl Prefetch {
    /// A file is opened to be read.
    pub(crate) fn note_opened(self: &Arc<Self>, user: User, vnode: &Vnode) {
        if self.readings.count.load(Ordering::Relaxed) > 0
            && let Some(dir) = self.vnodes.parent_of(vnode)
        {
            let next = self.readings.note_opened(self.runtime.now(), dir, vnode.fid.in_volume());
            self.begin(user, dir, next);
        }
    }

    /// The data of a small file are not here, and somebody waits for them.
    pub(crate) fn note_waited(self: &Arc<Self>, user: User, vnode: &Vnode) {
        let Some(dir) = self.vnodes.parent_of(vnode) else { return };
        let now = self.runtime.now();
        let pages = || Some(self.vnodes.get(dir)?.good_pages(now)?.directory);
        let next = self.readings.note_waited(now, dir, vnode.fid.in_volume(), pages);
        self.begin(user, dir, next);
    }

    fn begin(self: &Arc<Self>, user: User, dir: Fid, files: Vec<LocalFid>) {
        if files.is_empty() {
            return;
        }
        let files = files.into_iter().map(|file| dir.sibling(file)).collect();
        let me = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move { me.fetch_small(user, dir, files).await }));
    }

    /// Fetches those of the files that are small, that the user may read and that are not here. The read of a file
    /// reports what fails.
    async fn fetch_small(&self, user: User, dir: Fid, files: Vec<Fid>) {
        let now = self.runtime.now();
        let (known, unknown): (Vec<Fid>, Vec<Fid>) = files.into_iter().partition(|&fid| {
            let vnode = self.vnodes.get_or_add(fid);
            if vnode.parent().is_none() {
                vnode.set_parent(dir.in_volume());
            }
            vnode.has_status(now)
        });
        let mut left = AHEAD_BYTES.min(self.files.cache.usage().limit_bytes / 16);
        self.fetch_those(user, &known, &mut left).await;
        if !unknown.is_empty() {
            drop(self.statuses.fetch_statuses(self.users.who(user, dir.cell), &unknown).await);
            self.fetch_those(user, &unknown, &mut left).await;
        }
    }

    /// Fetches those of the files whose status is known, and of bytes not more than are left.
    async fn fetch_those(&self, user: User, files: &[Fid], left: &mut u64) {
        for &fid in files {
            // The own status of a mount point, which directories name like a file, is a link's.
            let Some(Ok(status)) = self.statuses.known_status(user, fid, fid) else { continue };
            let is_small = status.kind == Kind::File && (1..=WHOLE_BYTES.min(*left)).contains(&status.length);
            if !is_small || !status.may_read() || self.open_files.is_being_unlinked(fid) {
                continue;
            }
            let vnode = self.vnodes.get_or_add(fid);
            // To open each file of the cache costs as much as the program's own open of it, at each pass through the directory.
            if vnode.whole_version.load(Ordering::Relaxed) == status.data_version.0
                && self.files.key(fid).is_ok_and(|key| self.files.cache.present_bytes(key) >= status.length)
            {
                continue;
            }
            let Ok(data) = self.files.of(&vnode) else { continue };
            // A cache that is full here is so for the others too.
            let Ok(()) = data.adopt_known(&self.files, user) else { return };
            let Some(file) = data.current().filter(|file| !file.is_dirty()) else { continue };
            if file.is_complete() {
                vnode.whole_version.store(status.data_version.0, Ordering::Relaxed);
                continue;
            }
            *left -= status.length;
            data.bring_ahead(&self.files, user, &file).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_reach::fid::CellIndex;
    use afs_wire::ids::{Uniquifier, VnodeNumber, VolumeId};

    const DIR: Fid = Fid::root_of(CellIndex(1), VolumeId(7));
    const START: Instant = Instant::from_nanos(1_000_000_000);

    fn file(number: u32) -> LocalFid {
        LocalFid { vnode: VnodeNumber(2 * number + 2), unique: Uniquifier(number) }
    }

    /// A directory whose files have numbers in one order, names in another, and places in a third.
    fn directory(count: u32) -> Arc<Directory<Vec<u8>>> {
        let mut directory = Directory::new(DIR.in_volume(), DIR.in_volume());
        for place in 0..count {
            let number = place * 7919 % count;
            directory.insert(format!("{:05}", number * 31 % count).as_bytes(), file(number)).unwrap();
        }
        Arc::new(directory)
    }

    fn in_order(directory: &Directory<Vec<u8>>, order: usize) -> Vec<LocalFid> {
        let orders = Orders::of(directory);
        orders.at[order].iter().map(|&number| orders.files[number as usize]).collect()
    }

    /// Reads files as a program would: how often it waited, and how many files that it did not read were fetched.
    fn read(directory: &Arc<Directory<Vec<u8>>>, files: &[LocalFid]) -> (usize, usize) {
        let readings = Readings::default();
        let mut here = std::collections::HashSet::new();
        let mut waited = 0;
        for &file in files {
            here.extend(readings.note_opened(START, DIR, file));
            if here.insert(file) {
                waited += 1;
                here.extend(readings.note_waited(START, DIR, file, || Some(Arc::clone(directory))));
            }
        }
        (waited, here.len() - files.len())
    }

    #[test]
    fn who_reads_in_any_of_the_orders_waits_for_two_files() {
        let directory = directory(1000);
        for order in 0..ORDERS {
            let files = in_order(&directory, order);
            assert_eq!(read(&directory, &files), (2, 0), "order {order}");
            // Every third, as there are others between; two at a time, the second first.
            let some: Vec<_> = files.iter().step_by(3).copied().collect();
            assert!(read(&directory, &some).0 <= 3, "order {order}");
            let swapped: Vec<_> = files.chunks(2).flat_map(|two| two.iter().rev()).copied().collect();
            assert!(read(&directory, &swapped).0 <= 3, "order {order}");
        }
    }

    #[test]
    fn who_stops_has_cost_little() {
        let directory = directory(1000);
        for order in 0..ORDERS {
            let files = in_order(&directory, order);
            for count in 1..200 {
                let wasted = read(&directory, &files[100..100 + count]).1;
                let most = if count < BEGINS_AT { 0 } else { (AHEAD_FOR_EACH * count).min(AHEAD_MAX) };
                assert!(wasted <= most, "{wasted} after {count}");
            }
        }
    }

    #[test]
    fn who_jumps_about_gets_what_he_asks_for() {
        let directory = directory(1000);
        let files = in_order(&directory, 0);
        let jumps: Vec<_> = (0..1000).map(|n| files[n * 389 % 1000]).collect();
        let (waited, wasted) = read(&directory, &jumps[..300]);
        assert!(waited > 280 && wasted < 60, "{waited} waited for, {wasted} for nothing");
    }

    #[test]
    fn a_file_is_asked_for_once_in_a_pass_and_again_in_the_next() {
        let directory = directory(300);
        let files = in_order(&directory, 2);
        let readings = Readings::default();
        let pages = || Some(Arc::clone(&directory));
        for pass in 0..2 {
            let mut asked: Vec<_> = readings.note_waited(START, DIR, files[0], pages);
            for &file in &files[1..] {
                asked.extend(readings.note_waited(START, DIR, file, pages));
            }
            let count = asked.len();
            asked.sort_unstable();
            asked.dedup();
            assert_eq!((count, asked.len()), (298, 298), "pass {pass}");
        }
    }

    #[test]
    fn who_has_read_a_directory_waits_for_one_file_in_the_next() {
        let readings = Readings::default();
        for (number, count) in [10, 3, 1, 12, 30].into_iter().enumerate() {
            let (dir, directory) =
                (Fid { vnode: VnodeNumber(2 * number as u32 + 1), ..DIR }, directory(count));
            let files = in_order(&directory, 2);
            let mut asked = Vec::new();
            for &file in &files[..files.len().min(10)] {
                asked.extend(readings.note_opened(START, dir, file));
                asked.extend(readings.note_waited(START, dir, file, || Some(Arc::clone(&directory))));
            }
            let first = if number == 0 { 2 } else { 1 };
            assert_eq!(asked.len(), files.len() - first, "directory {number}");
        }
    }

    #[test]
    fn who_has_read_a_part_of_a_directory_is_not_taken_to_read_the_next() {
        let readings = Readings::default();
        for (number, read) in [(0, 10), (1, 1)] {
            let (dir, directory) = (Fid { vnode: VnodeNumber(2 * number + 1), ..DIR }, directory(30));
            let mut asked = Vec::new();
            for &file in &in_order(&directory, 0)[..read] {
                asked.extend(readings.note_waited(START, dir, file, || Some(Arc::clone(&directory))));
            }
            assert_eq!(asked.is_empty(), number == 1, "directory {number}");
        }
    }

    #[test]
    fn what_was_read_long_ago_is_nothing_that_goes_on() {
        let directory = directory(100);
        let files = in_order(&directory, 0);
        let readings = Readings::default();
        let pages = || Some(Arc::clone(&directory));
        for (n, &file) in files.iter().enumerate() {
            let now = START + READ_ON_FOR * u32::try_from(n).unwrap();
            assert_eq!(readings.note_opened(now, DIR, file), []);
            assert_eq!(readings.note_waited(now, DIR, file, pages), []);
        }
    }

    #[test]
    fn files_that_are_made_meanwhile_are_known_after_two() {
        let mut directory = directory(10);
        let readings = Readings::default();
        let files = in_order(&directory, 0);
        for &file in &files[..4] {
            let pages = || Some(Arc::clone(&directory));
            readings.note_waited(START, DIR, file, pages);
        }
        for number in 10..30 {
            let changed = Arc::make_mut(&mut directory);
            changed.insert(format!("new{number}").as_bytes(), file(number)).unwrap();
        }
        let pages = || Some(Arc::clone(&directory));
        assert_eq!(readings.note_waited(START, DIR, file(10), pages), []);
        assert_eq!(readings.note_waited(START, DIR, file(11), pages).len(), 4);
    }

    #[test]
    fn directories_beyond_a_number_are_forgotten() {
        let directory = directory(100);
        let files = in_order(&directory, 0);
        let readings = Readings::default();
        for number in 0..100 {
            let dir = Fid { vnode: VnodeNumber(2 * number + 1), ..DIR };
            let now = START + Duration::from_millis(number.into());
            readings.note_waited(now, dir, files[0], || Some(Arc::clone(&directory)));
            assert!(lock(&readings.table).len() <= DIRECTORIES_MAX);
        }
        let last = Fid { vnode: VnodeNumber(199), ..DIR };
        assert!(lock(&readings.table).contains_key(&last));
    }
}
