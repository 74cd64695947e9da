//! The two processes of the experiment `vldb`, started by this program as `afar-bench vldb-worker ...`: a volume location
//! server in memory with so many volumes, and callers that look volumes up by name, each one call after the other.
//!
//!     vldb-worker server VOLUMES                          prints "ready PORT"; serves until its standard input ends
//!     vldb-worker memory VOLUMES SECONDS                  looks up without any network; prints "looked COUNT SECONDS"
//!     vldb-worker client PORT VOLUMES CALLERS OMIT SECONDS   prints "looked COUNT SECONDS" of the time after OMIT

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_celldb::caller::NoAuth;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::vldb::{NewEntry, NewSite, RestrictedQuery, VlError, VlService, Vldb};
use afs_celldb::{Database, rx_service};
use afs_wire::vl::{GetEntryByNameU, Vl, VlName};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rx::{Endpoint, EndpointConfig, PeerLimits};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;
use tokio::runtime::{Builder, Runtime};

use super::{Failure, hear, print};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "vldb-worker";

/// Look-ups between two looks at the clock, in memory.
const BATCH: u64 = 1000;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server", volumes] => serve(volumes.parse()?),
        ["memory", volumes, seconds] => look_in_memory(volumes.parse()?, seconds_of(seconds)?),
        ["client", port, volumes, callers, omit, seconds] => call(
            (Ipv4Addr::LOCALHOST, port.parse()?).into(),
            volumes.parse()?,
            callers.parse()?,
            [seconds_of(omit)?, seconds_of(seconds)?],
        ),
        _ => Err("for afar-bench's own use: see workers/vldb.rs".into()),
    }
}

fn seconds_of(text: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_secs(text.parse()?))
}

fn name_of(volume: u32) -> String {
    format!("user.{volume}")
}

/// A database of so many volumes, each with a read-only copy and a backup, on a hundred servers.
async fn fill(volumes: u32) -> Result<Database<Vldb>, Failure> {
    let database = Database::open(Arc::new(MemoryStore::new())).await?;
    for volume in 0..volumes {
        let site = |flags| NewSite { address: 0x0a00_0001 + volume % 100, partition: 0, flags };
        let mut sites = vec![NewSite::default(); 13];
        (sites[0], sites[1]) = (site(4), site(2));
        let id = 0x2000_0000 + 3 * volume;
        let new = NewEntry {
            name: name_of(volume).into_bytes(),
            site_count: 2,
            sites,
            ids: [id, id + 1, id + 2],
            clone_id: 0,
            flags: 0x7000,
        };
        database.change::<_, VlError>(1, move |vldb: &Vldb, rows| vldb.create(&new, rows)).await?;
    }
    Ok(database)
}

fn serve(volumes: u32) -> Result<(), Failure> {
    let (runtime, endpoint) = bind()?;
    let database = Arc::new(runtime.block_on(fill(volumes))?);
    let service = VlService::new(database, Arc::new(NoAuth), Arc::new(|| 1), RestrictedQuery::AnyUser);
    endpoint.add_service(rx_service::<Vl, _>(Arc::new(service), vec![Arc::new(Null)]));
    print(format_args!("ready {}", endpoint.local_addr().port()))?;
    while hear()?.is_some() {}
    Ok(())
}

fn look_in_memory(volumes: u32, time: Duration) -> Result<(), Failure> {
    let (runtime, _endpoint) = bind()?;
    let database = runtime.block_on(fill(volumes))?;
    let mut random = StdRng::seed_from_u64(1);
    let (started, mut count) = (Instant::now(), 0);
    while started.elapsed() < time {
        for _ in 0..BATCH {
            let name = name_of(random.random_range(0..volumes));
            let is_found = database.read(|vldb| vldb.find_name(name.as_bytes()).is_some());
            assert!(is_found, "all names that are looked up are there");
        }
        count += BATCH;
    }
    print(format_args!("looked {count} {}", started.elapsed().as_secs_f64()))?;
    Ok(())
}

fn call(server: SocketAddr, volumes: u32, callers: u64, [omit, time]: [Duration; 2]) -> Result<(), Failure> {
    let (runtime, endpoint) = bind()?;
    let limits = PeerLimits::default();
    let peer = Arc::new(endpoint.peer(server, ServiceId(Vl::SERVICE_ID), limits, || Box::new(Null)));
    let count = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let calling: Vec<_> = (0..callers)
            .map(|seed| {
                let (peer, count) = (Arc::clone(&peer), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut random = StdRng::seed_from_u64(seed);
                    loop {
                        let name = name_of(random.random_range(0..volumes));
                        let asked = GetEntryByNameU { name: VlName::new(name.as_str())? };
                        let entry = peer.rpc(&asked).await?.entry;
                        if entry.name.text() != name.as_bytes() {
                            return Err::<(), Failure>(
                                format!("{name} was asked for, not {:?}", entry.name).into(),
                            );
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        tokio::time::sleep(omit).await;
        let (before, started) = (count.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(time).await;
        let looked = count.load(Ordering::Relaxed) - before;
        let took = started.elapsed().as_secs_f64();
        for caller in calling {
            // None ends by itself but with an error.
            if caller.is_finished() {
                caller.await??;
            } else {
                caller.abort();
            }
        }
        print(format_args!("looked {looked} {took}"))?;
        Ok(())
    })
}

fn bind() -> Result<(Runtime, Endpoint), Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let endpoint = {
        let _in_runtime = runtime.enter();
        Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default())?
    };
    Ok((runtime, endpoint))
}
