//! fjall against redb on what a file server does to its metadata: the measurement behind docs/decisions/0003. It is
//! a workspace of its own, because one of fjall's dependencies has a licence that the project does not take.
//!
//! One operation is CreateFile and StoreData of 8 KB: two commits, of four rows (two directory pages of 2 KiB, the
//! vnode, its directory) and of three (the vnode, its data inline, the volume). THREADS wait each for its own
//! commit; a committer takes all that wait into one group, so that what is compared is the store under it. Nothing
//! is synced per commit; a sync of everything happens each second.
//!
//!     store-choice run STORE THREADS SECONDS       operations per second, slowest commit
//!     store-choice crash STORE MEBIBYTES           writes that much, kills itself; then opens, timed, and looks
//!
//! STORE: fjall; redb-log (a log of our own, written before each commit of redb that is not synced); redb-overlay
//! (the same log, rows in a BTreeMap in memory, which a thread moves into redb); redb (synced at each group).
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;
const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("rows");
/// Bytes of log after which redb takes what it holds.
const CHECKPOINT: u64 = 32 << 20;

trait Store: Send + Sync {
    fn commit(&self, rows: &Rows);
    fn sync(&self);
    /// The first row at or after a key.
    fn first(&self, key: &[u8]) -> Option<Vec<u8>>;
}

struct Fjall(fjall::Database, fjall::Keyspace);
impl Fjall {
    fn open(dir: &Path) -> Self {
        let db = fjall::Database::builder(dir).cache_size(64 << 20).worker_threads(2).open().unwrap();
        let rows = db.keyspace("rows", fjall::KeyspaceCreateOptions::default).unwrap();
        Fjall(db, rows)
    }
}
impl Store for Fjall {
    fn commit(&self, rows: &Rows) {
        let mut batch = self.0.batch().durability(Some(fjall::PersistMode::Buffer));
        rows.iter().for_each(|(k, v)| batch.insert(&self.1, k.as_slice(), v.as_slice()));
        batch.commit().unwrap();
    }
    fn sync(&self) {
        self.0.persist(fjall::PersistMode::SyncAll).unwrap();
    }
    fn first(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.1.range(key..).next().map(|row| row.value().unwrap().to_vec())
    }
}

/// A file of groups: length, checksum, rows. A new one is begun at each checkpoint; the old one goes after it.
struct Log(Mutex<(File, u64, u64)>, PathBuf);
impl Log {
    fn open(dir: &Path) -> (Self, Rows) {
        let mut found: Vec<u64> = fs::read_dir(dir).unwrap().filter_map(|e| {
            e.unwrap().file_name().to_str()?.strip_prefix("log.")?.parse().ok()
        }).collect();
        found.sort();
        let mut rows = Rows::new();
        for n in &found {
            let mut bytes = Vec::new();
            File::open(dir.join(format!("log.{n}"))).unwrap().read_to_end(&mut bytes).unwrap();
            let mut at = &bytes[..];
            while at.len() >= 8 {
                let length = u32::from_le_bytes(at[..4].try_into().unwrap()) as usize;
                let sum = u32::from_le_bytes(at[4..8].try_into().unwrap());
                if at.len() < 8 + length || crc32fast::hash(&at[8..8 + length]) != sum { break }
                let mut group = &at[8..8 + length];
                while !group.is_empty() {
                    let mut take = || {
                        let n = u32::from_le_bytes(group[..4].try_into().unwrap()) as usize;
                        let part = group[4..4 + n].to_vec();
                        group = &group[4 + n..];
                        part
                    };
                    rows.push((take(), take()));
                }
                at = &at[8 + length..];
            }
        }
        let next = found.last().map_or(0, |n| n + 1);
        let file = File::create(dir.join(format!("log.{next}"))).unwrap();
        (Log(Mutex::new((file, next, 0)), dir.into()), rows)
    }
    /// Appends a group; says whether the log is long by now.
    fn append(&self, rows: &Rows) -> bool {
        let mut out = vec![0; 8];
        for part in rows.iter().flat_map(|(k, v)| [k, v]) {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
            out.extend_from_slice(part);
        }
        let sum = crc32fast::hash(&out[8..]);
        let length = out.len() as u32 - 8;
        out[..4].copy_from_slice(&length.to_le_bytes());
        out[4..8].copy_from_slice(&sum.to_le_bytes());
        let mut log = self.0.lock().unwrap();
        log.0.write_all(&out).unwrap();
        log.2 += out.len() as u64;
        log.2 > CHECKPOINT
    }
    /// Begins a new file; the old ones, up to the number returned, may go when their rows are elsewhere.
    fn turn(&self) -> u64 {
        let mut log = self.0.lock().unwrap();
        log.0.sync_data().unwrap();
        let next = log.1 + 1;
        *log = (File::create(self.1.join(format!("log.{next}"))).unwrap(), next, 0);
        next - 1
    }
    fn forget(&self, up_to: u64) {
        for n in (0..=up_to).rev() {
            if fs::remove_file(self.1.join(format!("log.{n}"))).is_err() { break }
        }
    }
    fn sync(&self) {
        let file = self.0.lock().unwrap().0.try_clone().unwrap();
        file.sync_data().unwrap();
    }
}

fn open_redb(dir: &Path) -> redb::Database {
    redb::Builder::new().set_cache_size(128 << 20).create_with_file_format_v3(true).create(dir.join("redb")).unwrap()
}
fn redb_write<'a>(db: &redb::Database, rows: impl Iterator<Item = (&'a [u8], &'a [u8])>, durable: bool) {
    let mut tx = db.begin_write().unwrap();
    tx.set_durability(if durable { redb::Durability::Immediate } else { redb::Durability::None });
    tx.set_quick_repair(durable);
    let mut table = tx.open_table(TABLE).unwrap();
    rows.for_each(|(k, v)| { table.insert(k, v).unwrap(); });
    drop(table);
    tx.commit().unwrap();
}
fn redb_first(db: &redb::Database, key: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let tx = db.begin_read().unwrap();
    let table = tx.open_table(TABLE).ok()?;
    let row = table.range(key..).unwrap().next()?.unwrap();
    Some((row.0.value().to_vec(), row.1.value().to_vec()))
}
fn borrowed(rows: &Rows) -> impl Iterator<Item = (&[u8], &[u8])> {
    rows.iter().map(|(k, v)| (&k[..], &v[..]))
}

struct RedbLog { db: redb::Database, log: Option<Log> }
impl RedbLog {
    fn open(dir: &Path, with_log: bool) -> Self {
        let db = open_redb(dir);
        let log = with_log.then(|| {
            let (log, rows) = Log::open(dir);
            redb_write(&db, borrowed(&rows), true);
            let next = log.turn();
            log.forget(next);
            log
        });
        RedbLog { db, log }
    }
}
impl Store for RedbLog {
    fn commit(&self, rows: &Rows) {
        let full = self.log.as_ref().is_some_and(|log| log.append(rows));
        let old = full.then(|| self.log.as_ref().unwrap().turn());
        redb_write(&self.db, borrowed(rows), full || self.log.is_none());
        if let Some(old) = old { self.log.as_ref().unwrap().forget(old) }
    }
    fn sync(&self) {
        if let Some(log) = &self.log { log.sync() }
    }
    fn first(&self, key: &[u8]) -> Option<Vec<u8>> {
        redb_first(&self.db, key).map(|row| row.1)
    }
}

type Layer = BTreeMap<Vec<u8>, Vec<u8>>;
struct Overlay { db: Arc<redb::Database>, log: Arc<Log>, layers: Arc<RwLock<(Layer, Arc<Layer>)>>, busy: Arc<AtomicBool> }
impl Overlay {
    fn open(dir: &Path) -> Self {
        let db = open_redb(dir);
        let (log, rows) = Log::open(dir);
        let layers = Arc::new(RwLock::new((rows.into_iter().collect(), Arc::default())));
        Overlay { db: Arc::new(db), log: Arc::new(log), layers, busy: Arc::default() }
    }
}
impl Store for Overlay {
    fn commit(&self, rows: &Rows) {
        let full = self.log.append(rows);
        let mut layers = self.layers.write().unwrap();
        layers.0.extend(rows.iter().cloned());
        if full && !self.busy.swap(true, Ordering::SeqCst) {
            let old = self.log.turn();
            let frozen = Arc::new(std::mem::take(&mut layers.0));
            layers.1 = frozen.clone();
            let (db, log, layers, busy) = (self.db.clone(), self.log.clone(), self.layers.clone(), self.busy.clone());
            thread::spawn(move || {
                redb_write(&db, frozen.iter().map(|(k, v)| (&k[..], &v[..])), true);
                layers.write().unwrap().1 = Arc::default();
                log.forget(old);
                busy.store(false, Ordering::SeqCst);
            });
        }
    }
    fn sync(&self) {
        self.log.sync()
    }
    fn first(&self, key: &[u8]) -> Option<Vec<u8>> {
        let layers = self.layers.read().unwrap();
        let from = (std::ops::Bound::Included(key), std::ops::Bound::Unbounded);
        let a = layers.0.range::<[u8], _>(from).next();
        let b = layers.1.range::<[u8], _>(from).next();
        let memory = match (a, b) { (Some(a), Some(b)) => Some(if a.0 <= b.0 { a } else { b }), (a, b) => a.or(b) };
        let disk = redb_first(&self.db, key);
        match (memory, disk) {
            (Some(m), Some(d)) => Some(if *m.0 <= d.0 { m.1.clone() } else { d.1 }),
            (m, d) => m.map(|m| m.1.clone()).or(d.map(|d| d.1)),
        }
    }
}

fn open(store: &str, dir: &Path) -> Arc<dyn Store> {
    match store {
        "fjall" => Arc::new(Fjall::open(dir)),
        "redb-log" => Arc::new(RedbLog::open(dir, true)),
        "redb" => Arc::new(RedbLog::open(dir, false)),
        "redb-overlay" => Arc::new(Overlay::open(dir)),
        _ => panic!("no such store: {store}"),
    }
}

fn key(kind: u8, volume: u64, vnode: u64, part: u32) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&volume.to_be_bytes());
    key.extend_from_slice(&(vnode as u32).to_be_bytes());
    key.extend_from_slice(&part.to_be_bytes());
    key.extend_from_slice(&(!1u32).to_be_bytes());
    key
}
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length).map(|_| { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x as u8 }).collect()
}
/// The two commits of operation `n` of a volume.
fn operation(volume: u64, n: u64) -> [Rows; 2] {
    let dir = 1 + n / 500 * 2;
    let file = 2 + n * 2;
    [
        vec![
            (key(b'd', volume, dir, 0), noise(n, 2048)),
            (key(b'd', volume, dir, 1 + (n % 500 / 50) as u32), noise(n + 1, 2048)),
            (key(b'v', volume, file, 0), noise(n, 160)),
            (key(b'v', volume, dir, 0), noise(n, 400)),
        ],
        vec![
            (key(b'v', volume, file, 0), noise(n + 1, 160)),
            (key(b'i', volume, file, 0), noise(n, 8192)),
            (key(b'h', volume, 0, 0), n.to_be_bytes().to_vec()),
        ],
    ]
}

/// Operations by `threads` until `stop` says so; what each volume acknowledged last is told to `acknowledged`.
fn load(store: &Arc<dyn Store>, threads: u64, stop: &(dyn Fn() -> bool + Sync), done: &AtomicU64,
        acknowledged: &(dyn Fn(u64, u64) + Sync)) -> Duration {
    let (send, queue) = mpsc::channel::<(Rows, mpsc::SyncSender<()>)>();
    let over = AtomicBool::new(false);
    let slowest = Mutex::new(Duration::ZERO);
    thread::scope(|scope| {
        scope.spawn(|| {
            let queue = queue;
            while let Ok((mut rows, reply)) = queue.recv() {
                let mut replies = vec![reply];
                while let Ok((more, reply)) = queue.try_recv() {
                    rows.extend(more);
                    replies.push(reply);
                }
                store.commit(&rows);
                replies.into_iter().for_each(|r| r.send(()).unwrap());
            }
        });
        scope.spawn(|| while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_secs(1));
            store.sync();
        });
        let workers: Vec<_> = (0..threads).map(|volume| {
            let (send, slowest) = (send.clone(), &slowest);
            scope.spawn(move || {
                let (reply, answer) = mpsc::sync_channel(1);
                for n in 0.. {
                    if stop() { break }
                    store.first(&key(b'v', volume, 1 + n / 500 * 2, 0));
                    for rows in operation(volume, n) {
                        let begun = Instant::now();
                        send.send((rows, reply.clone())).unwrap();
                        answer.recv().unwrap();
                        let mut slowest = slowest.lock().unwrap();
                        *slowest = begun.elapsed().max(*slowest);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    acknowledged(volume, n);
                }
            })
        }).collect();
        drop(send);
        workers.into_iter().for_each(|w| w.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    slowest.into_inner().unwrap()
}

fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
fn size(dir: &Path) -> u64 {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap()).map(|e| {
        if e.path().is_dir() { size(&e.path()) } else { e.metadata().unwrap().len() }
    }).sum()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize| args[i].parse::<u64>().unwrap();
    let (what, store) = (args[1].as_str(), args[2].as_str());
    let dir = PathBuf::from(std::env::var("DIR").unwrap_or("store".into()));
    if what != "reopen" {
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
    }
    let done = AtomicU64::new(0);
    match what {
        "run" => {
            let opened = open(store, &dir);
            let (begun, cpu) = (Instant::now(), cpu_seconds());
            let limit = Duration::from_secs(number(4));
            let slowest = load(&opened, number(3), &|| begun.elapsed() > limit, &done, &|_, _| ());
            let (n, cpu) = (done.load(Ordering::Relaxed), cpu_seconds() - cpu);
            println!("{store} in flight {}: {:.0} creates+stores/s, {:.0} us CPU each, slowest commit {:.0} ms, {} MiB on disk for {} MiB",
                number(3), n as f64 / begun.elapsed().as_secs_f64(), cpu * 1e6 / n as f64, slowest.as_secs_f64() * 1e3,
                size(&dir) >> 20, n * 8500 >> 20);
        }
        "writer" => {
            let opened = open(store, &dir);
            let acks: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
            let limit = number(3) * (1 << 20) / 8500;
            let is_dying = AtomicBool::new(false);
            load(&opened, 8, &|| {
                if done.load(Ordering::Relaxed) >= limit && !is_dying.swap(true, Ordering::SeqCst) {
                    // What was acknowledged, then death in the midst of the other threads' commits.
                    let text: Vec<String> = acks.iter().map(|a| a.load(Ordering::SeqCst).to_string()).collect();
                    fs::write(dir.with_extension("acks"), text.join(" ")).unwrap();
                    let _ = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
                }
                false
            }, &done, &|volume, n| acks[volume as usize].store(n + 1, Ordering::SeqCst));
        }
        "crash" => {
            std::process::Command::new(&args[0]).args(["writer", store, &args[3]]).status().unwrap();
            // Opened in a process of its own, as a restarted server would be.
            std::process::Command::new(&args[0]).args(["reopen", store]).status().unwrap();
        }
        "reopen" => {
            let bytes = size(&dir);
            let begun = Instant::now();
            let opened = open(store, &dir);
            assert!(opened.first(&key(b'v', 0, 1, 0)).is_some());
            let took = begun.elapsed();
            let acks = fs::read_to_string(dir.with_extension("acks")).unwrap();
            let mut lost = 0;
            for (volume, acked) in acks.split(' ').map(|a| a.parse::<u64>().unwrap()).enumerate() {
                for n in 0..acked {
                    let inline = &operation(volume as u64, n)[1][1];
                    if opened.first(&inline.0) != Some(inline.1.clone()) { lost += 1 }
                }
            }
            println!("{store} after kill -9: opens {} MB in {:.3} s, {lost} acknowledged operations lost",
                bytes / 1_000_000, took.as_secs_f64());
        }
        _ => panic!("run or crash"),
    }
}
