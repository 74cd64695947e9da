//! The client program of the experiment `snapshots`, started by this program as `afar-bench snapshot-worker WHAT HOST VOLUME ...`. It prints
//! "begin" and "end JSON" around what is measured, and then waits for a line.
//!
//! ```text
//! fill HOST VOLUME FILES                     makes so many files of 8192 bytes, in folders of 1000
//! make HOST VOLUME KEYS FIRST COUNT WRITERS  writes 20 files of 100 kB anew and makes a snapshot, once a second and so often, while so many
//!                                            writers store; FIRST is the volume id of the first snapshot, 0 for none at all
//! remove HOST VOLUME KEYS                    removes all snapshots
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use afs_lab::caller::{Client, Credentials, Error, FileServer, VolumeServer};
use afs_wire::afsvol::{AttachFlags, EndTrans, SnapshotCreate, SnapshotList, SnapshotRemove, TransCreate};
use afs_wire::ids::{AfsFid, PartitionId, VolumeId};
use bytes::Bytes;
use rx_security::KeySet;
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use super::{Failure, hear, print};
use crate::distribution::Distribution;

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "snapshot-worker";

const BYTES: usize = 8192;
const FILES_IN_FOLDER: u32 = 1000;
/// Files that change between two snapshots.
const CHANGED: u32 = 20;
const CHANGED_BYTES: usize = 100_000;
/// Bytes that they have together.
pub(crate) const VERSION_BYTES: f64 = CHANGED as f64 * CHANGED_BYTES as f64;
/// A snapshot is named by its second.
const EVERY: Duration = Duration::from_millis(1050);

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [what, host, volume, rest @ ..] = arguments.as_slice() else {
        return Err("for afar-bench's own use: see crates/bench/src/workers/snapshots.rs".into());
    };
    let (host, volume): (Ipv4Addr, _) = (host.parse()?, VolumeId(volume.parse()?));
    let client = {
        let _in_runtime = runtime.enter();
        Client::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?
    };
    let files = client.file_server(host, &Credentials::Anonymous);
    let superuser = |keys: &str| -> Result<VolumeServer, Failure> {
        Ok(client.volume_server(host, &Credentials::superuser(&KeySet::load(keys.as_ref())?)?))
    };
    runtime.block_on(async {
        let report = match (*what, rest) {
            ("fill", [count]) => fill(&files, volume, count.parse()?).await?,
            ("make", [keys, first, count, writers]) => {
                let first: u32 = first.parse()?;
                let server = if first == 0 { None } else { Some((superuser(keys)?, first)) };
                make(&files, server, volume, count.parse()?, writers.parse()?).await?
            }
            ("remove", [keys]) => remove(&superuser(keys)?, volume).await?,
            _ => return Err("for afar-bench's own use: see crates/bench/src/workers/snapshots.rs".into()),
        };
        files.give_up_all().await?;
        print(format_args!("end {report}"))?;
        hear()?;
        Ok(())
    })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn content() -> Bytes {
    Bytes::from(vec![7; BYTES])
}

async fn fill(files: &FileServer, volume: VolumeId, count: u32) -> Result<Value, Failure> {
    print(format_args!("begin"))?;
    let root = AfsFid::root_of(volume);
    let mut folder = root;
    for n in 0..count {
        if n % FILES_IN_FOLDER == 0 {
            folder = files.make_dir(root, &format!("d{}", n / FILES_IN_FOLDER)).await?.fid;
        }
        let file = files.create_file(folder, &format!("f{n}")).await?.fid;
        files.store(file, 0, content(), BYTES as u64).await?;
    }
    Ok(json!({ "files": count }))
}

/// Files in a new folder of the volume's root.
async fn made(files: &FileServer, volume: VolumeId, count: u32) -> Result<Vec<AfsFid>, Error> {
    let name = format!("w{:?}", Instant::now()).replace(|c: char| !c.is_ascii_alphanumeric(), "");
    let folder = files.make_dir(AfsFid::root_of(volume), &name).await?.fid;
    let mut made = Vec::new();
    for n in 0..count {
        made.push(files.create_file(folder, &format!("f{n}")).await?.fid);
    }
    Ok(made)
}

async fn make(
    files: &FileServer,
    server: Option<(VolumeServer, u32)>,
    volume: VolumeId,
    count: u32,
    writers: u32,
) -> Result<Value, Failure> {
    let changed = made(files, volume, CHANGED).await?;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut writing: JoinSet<Result<Vec<f64>, Error>> = JoinSet::new();
    for file in made(files, volume, writers).await? {
        let (files, is_over) = (files.clone(), is_over.clone());
        writing.spawn(async move {
            let mut took = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                files.store(file, 0, content(), BYTES as u64).await?;
                took.push(milliseconds(began));
            }
            Ok(took)
        });
    }
    print(format_args!("begin"))?;
    let began = Instant::now();
    let mut ticks = tokio::time::interval(EVERY);
    let mut snapshots = Vec::new();
    let version = Bytes::from(vec![9; CHANGED_BYTES]);
    for n in 0..count {
        ticks.tick().await;
        for file in &changed {
            files.store(*file, 0, version.clone(), CHANGED_BYTES as u64).await?;
        }
        let Some((server, first)) = &server else { continue };
        let began = Instant::now();
        // As `vos snapshot create`, but for the look-up of the volume and a number for the snapshot.
        let flags = AttachFlags::READ_ONLY;
        let trans = server.rpc(&TransCreate { volume, partition: PartitionId(0), flags }).await?.trans;
        server.rpc(&SnapshotCreate { trans, new_vol: VolumeId(first + n) }).await?;
        server.rpc(&EndTrans { trans }).await?;
        snapshots.push(milliseconds(began));
    }
    ticks.tick().await;
    is_over.store(true, Ordering::Relaxed);
    let seconds = began.elapsed().as_secs_f64();
    let mut stores = Vec::new();
    while let Some(took) = writing.join_next().await {
        stores.extend(took.expect("no task panics")?);
    }
    let rate = stores.len() as f64 / seconds;
    let (snapshots, stores) = (Distribution::of(snapshots), Distribution::of(stores));
    Ok(json!({
        "median_ms": snapshots.percentile(50.0),
        "most_ms": snapshots.max(),
        "stores_a_second": rate,
        "store_p99_ms": stores.percentile(99.0),
    }))
}

async fn remove(server: &VolumeServer, volume: VolumeId) -> Result<Value, Failure> {
    let there = server.rpc(&SnapshotList { volume }).await?.snapshots.into_vec();
    print(format_args!("begin"))?;
    let mut took = Vec::new();
    for snapshot in there {
        let began = Instant::now();
        server.rpc(&SnapshotRemove { partition: snapshot.partition, volid: snapshot.volid }).await?;
        took.push(milliseconds(began));
    }
    let took = Distribution::of(took);
    Ok(json!({ "median_ms": took.percentile(50.0), "most_ms": took.max() }))
}
