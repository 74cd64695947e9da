//! What a large cell costs whose databases are in etcd, measured on this machine: how long it takes to fill them, how long a server
//! takes to read them and how much memory it has then, the look-ups that it answers over Rx, each kind alone, and the changes of three
//! servers. Starts its own etcd, of three members. Clients are processes of their own on loopback. docs/decisions/0008-etcd.md
//! has what it printed.
//!
//!     cargo run --release -p afs-celldb --features etcd --example large_cell
#![forbid(unsafe_code)]

mod large;

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_celldb::caller::NoAuth;
use afs_celldb::ptdb::{PtService, Ptdb, Rules};
use afs_celldb::store::CellStore;
use afs_celldb::store::etcd::{Config, EtcdStore};
use afs_celldb::vldb::{NewEntry, NewSite, RestrictedQuery, VlError, VlService, Vldb};
use afs_celldb::{Clock, Database, Existing, Options, fill, rx_service};
use afs_lab::peers::etcd::Etcd;
use afs_wire::ids::{ViceId, VolumeId, VolumeType};
use afs_wire::pt::{GetCPS, NameToID, Pr};
use afs_wire::vl::{GetEntryByIDN, GetEntryByNameU, Vl, VlName};
use rx::{Endpoint, EndpointConfig, PeerLimits};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;
use rxgen::xdr::{CharVec, XdrArray};

type Failure = Box<dyn Error + Send + Sync>;

/// What clients look up.
const LOOK_UPS: [&str; 4] = ["volume by name", "volume by id", "user by name", "groups of a user"];

/// Processes of clients, and callers in each of them, that make one call after the other.
const CLIENTS: usize = 2;
const CALLERS: u64 = 64;

/// What is counted, behind what is not.
const OMIT: Duration = Duration::from_secs(1);
const TIME: Duration = Duration::from_secs(5);

/// Callers of changes at each server.
const CHANGERS: usize = 24;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => measure().await,
        ["client", port, kind, seed] => call(port.parse()?, kind.parse()?, seed.parse()?).await,
        _ => Err("this takes no arguments".into()),
    }
}

fn store(etcd: &Etcd) -> Result<Arc<dyn CellStore>, Failure> {
    let config = Config::without_credentials(etcd.endpoints(), "/large/");
    Ok(Arc::new(EtcdStore::new(config)?))
}

fn options(writer: u64) -> Options {
    Options { writer, ..Options::default() }
}

/// Bytes that this process has in memory, in millions.
fn megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0 / 1e6
}

async fn measure() -> Result<(), Failure> {
    let etcd = Etcd::start("large", 3);
    let begun = Instant::now();
    let rows = {
        let store = store(&etcd)?;
        let volumes = fill::<Vldb>(&*store, large::volumes().rows(), Existing::Keep, 1, 1).await?;
        volumes + fill::<Ptdb>(&*store, large::principals().rows(), Existing::Keep, 1, 2).await?
    };
    println!("{rows} rows, filled in {:.1} s", begun.elapsed().as_secs_f64());

    let (begun, before) = (Instant::now(), megabytes());
    let vldb = Arc::new(Database::<Vldb>::open_with(store(&etcd)?, options(11)).await?);
    let ptdb = Arc::new(Database::<Ptdb>::open_with(store(&etcd)?, options(12)).await?);
    println!(
        "read in {:.1} s; {:.0} MB of memory, {before:.0} before",
        begun.elapsed().as_secs_f64(),
        megabytes()
    );

    let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default())?;
    let clock: Clock = Arc::new(|| 1);
    let vl =
        VlService::new(Arc::clone(&vldb), Arc::new(NoAuth), Arc::clone(&clock), RestrictedQuery::AnyUser);
    let rules = Rules {
        is_noauth: true,
        is_restricted: false,
        restricts_anonymous: false,
        supergroups: None,
        user_privacy: 0x80,
        group_privacy: 0x90,
    };
    let pt = PtService::new(Arc::clone(&ptdb), Arc::new(NoAuth), clock, rules);
    endpoint.add_service(rx_service::<Vl, _>(Arc::new(vl), vec![Arc::new(Null)]));
    endpoint.add_service(rx_service::<Pr, _>(Arc::new(pt), vec![Arc::new(Null)]));
    for (kind, what) in LOOK_UPS.iter().enumerate() {
        let clients = (0..CLIENTS).map(|seed| {
            Command::new(std::env::current_exe()?)
                .args([
                    "client",
                    &endpoint.local_addr().port().to_string(),
                    &kind.to_string(),
                    &seed.to_string(),
                ])
                .stdout(Stdio::piped())
                .spawn()
        });
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let mut sum = 0.0;
        for client in clients {
            let output = tokio::task::spawn_blocking(|| client.wait_with_output()).await??;
            sum += String::from_utf8(output.stdout)?.trim().parse::<f64>()?;
        }
        println!("{what}: {sum:.0} look-ups a second");
    }
    let freshness = vldb.freshness().unwrap_or_default();
    println!("{} look-ups were answered while etcd did not", freshness.from_memory);

    let mut servers = vec![vldb];
    for writer in [21, 31] {
        servers.push(Arc::new(Database::<Vldb>::open_with(store(&etcd)?, options(writer)).await?));
    }
    println!("three servers: {:.0} changes a second", changes(&servers).await?);
    Ok(())
}

/// Changes by all callers at all servers, ids and volumes in turn: how many a second.
async fn changes(servers: &[Arc<Database<Vldb>>]) -> Result<f64, Failure> {
    let end = Instant::now() + TIME;
    let callers = servers.iter().flat_map(|server| std::iter::repeat_n(server, CHANGERS)).map(|server| {
        let server = Arc::clone(server);
        tokio::spawn(async move {
            let mut made = 0_u32;
            while Instant::now() < end {
                let id = server.change(1, |vldb, rows| vldb.take_ids(1, rows)).await?;
                let mut sites = vec![NewSite::default(); 13];
                sites[0] = NewSite { address: 0x0a00_0001, partition: 0, flags: 4 };
                let name = format!("new.{id}").into_bytes();
                let new =
                    NewEntry { name, site_count: 1, sites, ids: [id, 0, 0], clone_id: 0, flags: 0x1000 };
                server.change(1, move |vldb, rows| vldb.create(&new, rows)).await?;
                made += 2;
            }
            Ok::<_, VlError>(made)
        })
    });
    let mut sum = 0;
    for caller in callers.collect::<Vec<_>>() {
        sum += caller.await?.map_err(|error| format!("a change failed: {error:?}"))?;
    }
    Ok(f64::from(sum) / TIME.as_secs_f64())
}

/// A client: prints how many look-ups it made in a second.
async fn call(port: u16, kind: usize, seed: u64) -> Result<(), Failure> {
    let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default())?;
    let server = (Ipv4Addr::LOCALHOST, port).into();
    let peer = |service| endpoint.peer(server, ServiceId(service), PeerLimits::default(), || Box::new(Null));
    let (vl, pt) = (Arc::new(peer(Vl::SERVICE_ID)), Arc::new(peer(Pr::SERVICE_ID)));
    let count = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (vl, pt, count) = (Arc::clone(&vl), Arc::clone(&pt), Arc::clone(&count));
            // Any numbers do that are spread over all of them.
            let mut random = (seed << 32 | caller).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            tokio::spawn(async move {
                loop {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let n = ((random >> 33) % u64::from(large::VOLUMES)) as u32;
                    let (id, user) = (VolumeId(0x2000_0000 + 3 * n), ViceId(1_000_000 + n as i32));
                    let is_right = match kind {
                        0 => {
                            let name = VlName::new(format!("user.u{n:07}").into_bytes())?;
                            vl.rpc(&GetEntryByNameU { name }).await?.entry.volume_id[0] == id
                        }
                        1 => {
                            let asked = GetEntryByIDN { volid: id, kind: VolumeType(-1) };
                            vl.rpc(&asked).await?.entry.volume_id[0] == id
                        }
                        2 => {
                            let names = XdrArray::new(vec![CharVec::from_text(format!("u{n:07}"))?])?;
                            pt.rpc(&NameToID { names }).await?.ids[0] == user
                        }
                        _ => pt.rpc(&GetCPS { id: user }).await?.ids.len() >= 3,
                    };
                    if !is_right {
                        return Err::<(), Failure>(format!("{n} has another answer").into());
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(OMIT).await;
    let (before, begun) = (count.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(TIME).await;
    let made = count.load(Ordering::Relaxed) - before;
    let took = begun.elapsed().as_secs_f64();
    for caller in callers {
        // None ends by itself but with an error.
        if caller.is_finished() {
            caller.await??;
        } else {
            caller.abort();
        }
    }
    println!("{}", made as f64 / took);
    Ok(())
}
