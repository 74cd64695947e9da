//! The client program of the experiments with file servers, started by this program as `afar-bench file-worker WHAT HOST ...`.
//! It prints "begin" and "end JSON" around what is measured, and then waits for a line, so that it can be looked at.
//!
//! ```text
//! prepare HOST VOLUME KEYS               lets anyone write the volume, as the user admin
//! volumes HOST KEYS FIRST COUNT          makes so many volumes, each with the next number
//! create HOST VOLUME PARALLEL SECONDS    CreateFile and StoreData of 8192 bytes
//! status HOST VOLUME PARALLEL SECONDS    FetchStatus, of 1000 files
//! store HOST VOLUME BYTES CALL PARALLEL  StoreData of a file, so many bytes in each call
//! fetch HOST VOLUME BYTES CALL PARALLEL  FetchData of it, which makes it if it is not there
//! answers HOST FIRST COUNT               waits until the last of these volumes answers, then asks all
//! hold HOST VOLUME CLIENTS               has callbacks for the volume's root by so many clients, and waits
//! touch HOST VOLUME NAME                 makes a file
//! pulse HOST VOLUME FROM                 FetchStatus of the volume's root every 20 ms, from this address; each line that it
//!                                        reads has it print "took [...]": ms of all since the last
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use afs_lab::caller::{AccessList, Client, Credentials, Error, FileServer};
use afs_wire::abort::VBUSY;
use afs_wire::ids::{AfsFid, PartitionId, VolumeId};
use bytes::Bytes;
use rx_security::KeySet;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::{Failure, hear, print};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "file-worker";

/// The bytes of the files that are made: two pages, as in the tables of old.
const SMALL_BYTES: usize = 8192;
/// Files in a directory, below what makes directories of AFS slow or full.
const FILES_IN_DIRECTORY: u64 = 2000;
/// Files whose status is asked for.
const STATUS_FILES: usize = 1000;
/// The length of the pattern that is stored in bulk, again and again, so that data can be checked for nearly nothing. No
/// multiple of a page or packet.
const PATTERN_BYTES: usize = 131_071;
/// The file of the bulk transfers.
const BULK_FILE: &str = "bulk";
/// Volumes that are made or asked at once.
const VOLUMES_AT_ONCE: usize = 16;
/// The time between two questions to a server that is starting, and the longest time of an answer then.
const ASK_EVERY: Duration = Duration::from_millis(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// The pause after VBUSY, which OpenAFS's server says to a client if many of its calls wait at once. Cache managers ask again
/// after a while. This client asks much sooner, so that it is not idle meanwhile.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// The time between two beats of the pulse, and its patience: a call that takes longer counts as taking so long.
const PULSE_EVERY: Duration = Duration::from_millis(20);
const PULSE_TIMEOUT: Duration = Duration::from_secs(30);
/// EACCES as servers say it: the volume is there, and is not for us (File service notes 12).
const ACCESS: i32 = 49_733_388;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [what, host, rest @ ..] = arguments.as_slice() else {
        return Err("for afar-bench's own use: WHAT HOST ...".into());
    };
    let host: Ipv4Addr = host.parse()?;
    runtime.block_on(async {
        match (*what, rest) {
            ("prepare", [volume, keys]) => prepare(host, root(volume)?, keys).await,
            ("volumes", [keys, first, count]) => volumes(host, keys, first.parse()?, count.parse()?).await,
            ("create", [volume, parallel, seconds]) => {
                create(host, root(volume)?, parallel.parse()?, seconds.parse()?).await
            }
            ("status", [volume, parallel, seconds]) => {
                status(host, root(volume)?, parallel.parse()?, seconds.parse()?).await
            }
            ("store" | "fetch", [volume, bytes, call, parallel]) => {
                let sizes = Sizes { file: bytes.parse()?, call: call.parse()?, parallel: parallel.parse()? };
                bulk(host, root(volume)?, *what == "store", sizes).await
            }
            ("answers", [first, count]) => answers(host, first.parse()?, count.parse()?).await,
            ("hold", [volume, clients]) => hold(host, root(volume)?, clients.parse()?).await,
            ("touch", [volume, name]) => touch(host, root(volume)?, name).await,
            ("pulse", [volume, from]) => pulse(host, root(volume)?, from.parse()?).await,
            _ => Err("for afar-bench's own use: see crates/bench/src/workers/files.rs".into()),
        }
    })
}

fn root(volume: &str) -> Result<AfsFid, Failure> {
    Ok(AfsFid::root_of(VolumeId(volume.parse()?)))
}

fn client() -> Result<Client, Error> {
    Client::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
}

fn keys(folder: &str) -> Result<KeySet, Failure> {
    Ok(KeySet::load(folder.as_ref())?)
}

/// Says what was measured, and stays until it was looked at.
fn end(report: &Value) -> Result<(), Failure> {
    print(format_args!("end {report}"))?;
    hear()?;
    Ok(())
}

async fn prepare(host: Ipv4Addr, root: AfsFid, folder: &str) -> Result<(), Failure> {
    let admin = Credentials::user("admin", afar_interop::cell::CELL_NAME, &keys(folder)?)?;
    let client = client()?;
    let server = client.file_server(host, &admin);
    let list = [("system:administrators", AccessList::ALL), ("system:anyuser", AccessList::WRITE)];
    server.set_access_list(root, &AccessList::granting(list)).await?;
    Ok(server.give_up_all().await?)
}

async fn volumes(host: Ipv4Addr, folder: &str, first: u32, count: u32) -> Result<(), Failure> {
    let superuser = Credentials::superuser(&keys(folder)?)?;
    let client = client()?;
    let server = client.volume_server(host, &superuser);
    print(format_args!("begin"))?;
    let started = Instant::now();
    each(first..first + count, |number| {
        let server = server.clone();
        async move { server.create(PartitionId(0), &format!("many.{number}"), VolumeId(number)).await }
    })
    .await?;
    end(&json!({ "volumes": count, "seconds": started.elapsed().as_secs_f64() }))
}

/// Runs work for each number, some at a time.
async fn each<F>(numbers: std::ops::Range<u32>, work: impl Fn(u32) -> F) -> Result<(), Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for number in numbers {
        if tasks.len() >= VOLUMES_AT_ONCE {
            tasks.join_next().await.expect("there are some").expect("no task panics")?;
        }
        tasks.spawn(work(number));
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no task panics")?;
    }
    Ok(())
}

/// The results of so many callers until they were told to stop.
#[derive(Default)]
struct Counted {
    is_over: AtomicBool,
    count: AtomicU64,
    /// Calls that were refused, and made again.
    refused: AtomicU64,
}

impl Counted {
    /// Makes a call until the server has time for it.
    async fn until_served<T, F>(&self, call: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        loop {
            match call().await {
                Err(error) if error.code() == Some(VBUSY.0) && !self.is_over.load(Ordering::Relaxed) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }
}

/// Lets callers call for so many seconds, each one operation after the other, and says how many there were.
async fn callers<F>(
    parallel: usize,
    seconds: f64,
    caller: impl Fn(usize, Arc<Counted>) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let counted = Arc::new(Counted::default());
    let mut tasks = JoinSet::new();
    for number in 0..parallel {
        tasks.spawn(caller(number, Arc::clone(&counted)));
    }
    // Connections are made, the server has met the client.
    tokio::time::sleep(Duration::from_secs_f64(seconds / 4.0)).await;
    if let Some(ended) = tasks.try_join_next() {
        ended.expect("no task panics")?;
    }
    print(format_args!("begin"))?;
    let (started, before) = (Instant::now(), counted.count.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let (took, after) = (started.elapsed(), counted.count.load(Ordering::Relaxed));
    // The server goes on until the bench has looked.
    let refused = counted.refused.load(Ordering::Relaxed);
    end(&json!({ "operations": after - before, "seconds": took.as_secs_f64(), "refused": refused }))?;
    counted.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics")?;
    }
    Ok(())
}

async fn create(host: Ipv4Addr, root: AfsFid, parallel: usize, seconds: f64) -> Result<(), Failure> {
    let client = client()?;
    let server = client.file_server(host, &Credentials::Anonymous);
    let bytes = Bytes::from(vec![7; SMALL_BYTES]);
    callers(parallel, seconds, |number, counted| {
        let (server, bytes) = (server.clone(), bytes.clone());
        async move {
            for directory in 0.. {
                let name = format!("{number}-{directory}");
                let folder = counted.until_served(|| server.make_dir(root, &name)).await?.fid;
                for file in 0..FILES_IN_DIRECTORY {
                    if counted.is_over.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let name = format!("f{file}");
                    let made = counted.until_served(|| server.create_file(folder, &name)).await?.fid;
                    let store = || server.store(made, 0, bytes.clone(), SMALL_BYTES as u64);
                    counted.until_served(store).await?;
                    counted.count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        }
    })
    .await?;
    Ok(server.give_up_all().await?)
}

async fn status(host: Ipv4Addr, root: AfsFid, parallel: usize, seconds: f64) -> Result<(), Failure> {
    let client = client()?;
    let server = client.file_server(host, &Credentials::Anonymous);
    let mut fids = Vec::with_capacity(STATUS_FILES);
    for file in 0..STATUS_FILES {
        fids.push(server.create_file(root, &format!("s{file}")).await?.fid);
    }
    let fids = Arc::new(fids);
    callers(parallel, seconds, |number, counted| {
        let (server, fids) = (server.clone(), Arc::clone(&fids));
        async move {
            // Each begins elsewhere.
            for fid in fids.iter().cycle().skip(number * 17 % STATUS_FILES) {
                if counted.is_over.load(Ordering::Relaxed) {
                    break;
                }
                counted.until_served(|| server.status(*fid)).await?;
                counted.count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    })
    .await?;
    Ok(server.give_up_all().await?)
}

/// The sizes of what is moved, and the number of calls at a time.
#[derive(Clone, Copy)]
struct Sizes {
    file: u64,
    call: u64,
    parallel: usize,
}

/// The data that are stored: the position in the file says which byte of it is where.
fn pattern() -> Bytes {
    (0..PATTERN_BYTES).map(|i| (i * 7 % 251) as u8).collect::<Vec<u8>>().into()
}

/// The pattern from a position on, in pieces.
fn pieces(pattern: Bytes, pos: u64, length: u64) -> impl Iterator<Item = Bytes> {
    let mut at = pos;
    let to = pos + length;
    std::iter::from_fn(move || {
        let start = (at % PATTERN_BYTES as u64) as usize;
        let size = (PATTERN_BYTES - start).min((to - at) as usize);
        at += size as u64;
        (size > 0).then(|| pattern.slice(start..start + size))
    })
}

async fn bulk(host: Ipv4Addr, root: AfsFid, stores: bool, sizes: Sizes) -> Result<(), Failure> {
    let client = client()?;
    let server = client.file_server(host, &Credentials::Anonymous);
    let fid = server.create_file(root, BULK_FILE).await?.fid;
    if !stores {
        transfer(&server, fid, true, sizes).await?;
    }
    print(format_args!("begin"))?;
    let started = Instant::now();
    transfer(&server, fid, stores, sizes).await?;
    let seconds = started.elapsed().as_secs_f64();
    end(&json!({ "bytes": sizes.file, "seconds": seconds }))?;
    let length = server.status(fid).await?.length;
    if length != sizes.file {
        return Err(format!("the file has {length} bytes instead of {}", sizes.file).into());
    }
    server.remove_file(root, BULK_FILE).await?;
    Ok(server.give_up_all().await?)
}

/// Stores the whole file or fetches and checks it, by so many calls at a time.
async fn transfer(server: &FileServer, fid: AfsFid, stores: bool, sizes: Sizes) -> Result<(), Failure> {
    let pattern = pattern();
    let mut tasks: JoinSet<Result<(), Failure>> = JoinSet::new();
    for lane in 0..sizes.parallel as u64 {
        let (server, pattern) = (server.clone(), pattern.clone());
        tasks.spawn(async move {
            for pos in (lane * sizes.call..sizes.file).step_by((sizes.call * sizes.parallel as u64) as usize)
            {
                let length = sizes.call.min(sizes.file - pos);
                if stores {
                    let data = pieces(pattern.clone(), pos, length);
                    server.store_pieces(fid, pos, (length, sizes.file), data).await?;
                } else {
                    fetch_checked(&server, fid, pos, length, &pattern).await?;
                }
            }
            Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn fetch_checked(
    server: &FileServer,
    fid: AfsFid,
    pos: u64,
    length: u64,
    pattern: &Bytes,
) -> Result<(), Failure> {
    let mut at = pos;
    let mut is_same = true;
    let (came, _) = server
        .fetch_pieces(fid, pos, length, |piece| {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let start = (at % PATTERN_BYTES as u64) as usize;
                let size = rest.len().min(PATTERN_BYTES - start);
                is_same &= rest[..size] == pattern[start..start + size];
                rest = &rest[size..];
                at += size as u64;
            }
        })
        .await?;
    if came == length && is_same {
        return Ok(());
    }
    Err(format!(
        "{came} of {length} bytes from {pos} on came back, {}",
        if is_same { "as stored" } else { "others" }
    )
    .into())
}

async fn answers(host: Ipv4Addr, first: u32, count: u32) -> Result<(), Failure> {
    let client = client()?;
    let server = client.file_server(host, &Credentials::Anonymous);
    print(format_args!("begin"))?;
    let started = Instant::now();
    let last = VolumeId(first + count - 1);
    while !is_there(&server, last).await {
        if started.elapsed() > START_TIMEOUT {
            return Err(format!("volume {last} does not answer within {} s", START_TIMEOUT.as_secs()).into());
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    let first_s = started.elapsed().as_secs_f64();
    each(first..first + count, |number| {
        let server = server.clone();
        async move {
            while !is_there(&server, VolumeId(number)).await {
                tokio::time::sleep(ASK_EVERY).await;
            }
            Ok(())
        }
    })
    .await?;
    end(&json!({ "first_s": first_s, "all_s": started.elapsed().as_secs_f64() }))
}

/// True if the volume's root is served, be it by a refusal.
async fn is_there(server: &FileServer, volume: VolumeId) -> bool {
    match tokio::time::timeout(ANSWER_TIMEOUT, server.status(AfsFid::root_of(volume))).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.code() == Some(ACCESS),
        Err(_) => false,
    }
}

async fn hold(host: Ipv4Addr, root: AfsFid, clients: usize) -> Result<(), Failure> {
    let mut all = Vec::with_capacity(clients);
    for _ in 0..clients {
        let client = client()?;
        client.file_server(host, &Credentials::Anonymous).status(root).await?;
        all.push(client);
    }
    print(format_args!("ready"))?;
    hear()?;
    Ok(())
}

async fn touch(host: Ipv4Addr, root: AfsFid, name: &str) -> Result<(), Failure> {
    let client = client()?;
    let server = client.file_server(host, &Credentials::Anonymous);
    // The server is to have met this client.
    server.status(root).await?;
    print(format_args!("begin"))?;
    let started = Instant::now();
    server.create_file(root, name).await?;
    end(&json!({ "seconds": started.elapsed().as_secs_f64() }))?;
    Ok(server.give_up_all().await?)
}

/// Open loop: a call is made when it is due, whatever became of those before, and timed from then.
async fn pulse(host: Ipv4Addr, fid: AfsFid, from: Ipv4Addr) -> Result<(), Failure> {
    let client = Client::bind(SocketAddr::from((from, 0)))?;
    let server = client.file_server(host, &Credentials::Anonymous);
    // The connection is made, the server has met the client.
    for _ in 0..5 {
        server.status(fid).await?;
    }
    let took: Arc<Mutex<Vec<f64>>> = Arc::default();
    let beats = {
        let (server, took) = (server.clone(), Arc::clone(&took));
        tokio::spawn(async move {
            let start = Instant::now();
            for beat in 0.. {
                let due = start + PULSE_EVERY * beat;
                tokio::time::sleep_until(due.into()).await;
                let (server, took) = (server.clone(), Arc::clone(&took));
                tokio::spawn(async move {
                    let done = tokio::time::timeout(PULSE_TIMEOUT, server.status(fid)).await;
                    let time = if matches!(done, Ok(Ok(_))) { due.elapsed() } else { PULSE_TIMEOUT };
                    took.lock().unwrap_or_else(PoisonError::into_inner).push(time.as_secs_f64() * 1e3);
                });
            }
        })
    };
    print(format_args!("begin"))?;
    while tokio::task::spawn_blocking(hear).await??.is_some() {
        let all = std::mem::take(&mut *took.lock().unwrap_or_else(PoisonError::into_inner));
        print(format_args!("took {}", json!(all)))?;
    }
    beats.abort();
    Ok(server.give_up_all().await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_pattern_from_anywhere() {
        let pattern = pattern();
        for (pos, length) in [(0, 10), (PATTERN_BYTES as u64 - 3, 10), (5_000_000_000, 300_000), (7, 0)] {
            let joined: Vec<u8> = pieces(pattern.clone(), pos, length).flatten().collect();
            let expected: Vec<u8> =
                (pos..pos + length).map(|at| pattern[(at % PATTERN_BYTES as u64) as usize]).collect();
            assert_eq!(joined, expected, "{length} from {pos}");
        }
    }
}
