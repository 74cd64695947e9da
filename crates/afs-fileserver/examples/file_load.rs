//! Load for a file server, ours or a stock one, without security: how many calls or bytes a second, and what processor time
//! the server took for them.
//!
//!     file_load serve FOLDER ADDRESS:PORT        a server of ours with one volume, 536870912, that anybody may write
//!     file_load status  ADDRESS:PORT FID PID CALLS SECONDS     FetchStatus of a directory, so many calls at once
//!     file_load create  ADDRESS:PORT FID PID CALLS SECONDS     CreateFile and StoreData of 8 KB in a directory
//!     file_load store   ADDRESS:PORT FID PID MEGABYTES         one StoreData64 into a new file, then it is fetched back
//!
//! FID is VOLUME.VNODE.UNIQUE of a directory that anybody may write, PID the server's process.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_fileserver::{Answer, Config, FileServer, Membership, Protection, Volumes};
use afs_volume::{NewVolume, Partition, Stamp, VnodeId, VolumeKind};
use afs_wire::Uuid;
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsFid, AfsTime, Name, Uniquifier, ViceId, VnodeNumber, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, CapabilityWords, Rxafs};
use afs_wire::rxafscb::{self, InterfaceAddr, TellMeAboutYourself};
use afs_wire::status::{AfsStoreStatus, StoreMask};
use bytes::Bytes;
use rx::{Endpoint, EndpointConfig, Peer, PeerLimits, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::serve::{MAX_ARGUMENT_BYTES, receive_arguments, receive_opcode};
use rxgen::{Abort, Interface, Rpc};

type Failure = Box<dyn Error + Send + Sync>;

const VOLUME: VolumeId = VolumeId(536_870_912);

/// What a StoreData of the `create` load stores.
const SMALL_BYTES: usize = 8 << 10;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    runtime.block_on(async {
        match words[..] {
            ["serve", folder, address] => serve(Path::new(folder), address.parse()?).await,
            ["status", address, fid, pid, calls, seconds] => {
                let load = Load::new(address, fid, pid)?;
                load.calls("FetchStatus", calls.parse()?, seconds.parse()?, status).await
            }
            ["create", address, fid, pid, calls, seconds] => {
                let load = Load::new(address, fid, pid)?;
                load.calls("CreateFile + StoreData", calls.parse()?, seconds.parse()?, create).await
            }
            ["store", address, fid, pid, megabytes] => {
                Load::new(address, fid, pid)?.bulk(megabytes.parse()?).await
            }
            _ => Err("see the first lines of this program for its arguments".into()),
        }
    })
}

// ---- the server

struct Nobody;

impl Protection for Nobody {
    fn membership<'a>(&'a self, _identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async { Ok(Membership::anonymous()) })
    }

    fn host_groups(&self, _host: std::net::IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        Box::pin(async move { Ok(vec![None; names.len()]) })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(ids.iter().map(ViceId::to_string).collect()) })
    }

    fn is_superuser(&self, _identity: &str) -> bool {
        false
    }
}

async fn serve(folder: &Path, address: SocketAddr) -> Result<(), Failure> {
    let partition = Partition::open(folder, afs_volume::Config::default())?;
    let stamp = Stamp { who: ViceId::ANONYMOUS, now: AfsTime(1) };
    if partition.volume(VOLUME).is_err() {
        let new = NewVolume {
            id: VOLUME,
            name: "load".to_owned(),
            kind: VolumeKind::ReadWrite,
            parent: VOLUME,
            max_quota_kib: 0,
            with_root: true,
        };
        let volume = partition.create_volume(&new, stamp)?;
        volume.change_info(|info| (info.in_service, info.destroy_me) = (true, false))?;
        let positive = vec![(ViceId::SYSTEM_ANYUSER, Rights(127))];
        volume.set_acl(VnodeId::ROOT, &Acl { positive, negative: Vec::new() }, stamp)?;
    }
    let endpoint = Endpoint::bind(address, EndpointConfig::default())?;
    let volumes: Arc<dyn Volumes> = Arc::new(vec![partition]);
    let config = Config::new(Uuid { time_low: std::process::id(), ..Uuid::default() });
    let server = FileServer::new(config, &endpoint, volumes, Arc::new(Nobody))?;
    endpoint.add_service(server.service(vec![Arc::new(Null)]));
    println!("serving {}.1.1 at {}, process {}", VOLUME.0, endpoint.local_addr(), std::process::id());
    std::future::pending().await
}

// ---- the load

#[derive(Clone)]
struct Load {
    peer: Peer,
    dir: AfsFid,
    pid: u32,
    /// Names differ from those of other runs by the time.
    run: u128,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Load {
    fn new(address: &str, fid: &str, pid: &str) -> Result<Self, Failure> {
        let numbers: Vec<u32> = fid.split('.').map(str::parse).collect::<Result<_, _>>()?;
        let [volume, vnode, unique] = numbers[..] else { return Err("a fid is VOLUME.VNODE.UNIQUE".into()) };
        let dir = AfsFid { volume: VolumeId(volume), vnode: VnodeNumber(vnode), unique: Uniquifier(unique) };
        let endpoint = Endpoint::bind("0.0.0.0:0".parse()?, EndpointConfig::default())?;
        answer_the_server(&endpoint);
        let service = ServiceId(Rxafs::SERVICE_ID);
        let peer = endpoint.peer(address.parse()?, service, PeerLimits::default(), || Box::new(Null));
        let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_micros();
        Ok(Self { peer, dir, pid: pid.parse()?, run })
    }

    fn new_name(&self) -> Name {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Name::new(format!("load{}-{number}", self.run)).expect("short")
    }

    async fn create(&self) -> Result<AfsFid, Failure> {
        let mask = StoreMask::MODE;
        let status = AfsStoreStatus { mask, unix_mode_bits: 0o644, ..AfsStoreStatus::default() };
        let args = rxafs::CreateFile { dir: self.dir, name: self.new_name(), status };
        Ok(self.peer.rpc(&args).await?.fid)
    }

    async fn store(&self, fid: AfsFid, data: Bytes, times: u64) -> Result<(), Failure> {
        let length = data.len() as u64 * times;
        let status = AfsStoreStatus::default();
        let args = rxafs::StoreData64 { fid, status, pos: 0, length, file_length: length };
        let mut call = self.peer.call().await?;
        call.send_request(&args).await?;
        for _ in 0..times {
            call.send(data.clone()).await?;
        }
        call.reply::<rxafs::StoreData64>().await?;
        Ok(())
    }

    /// So many calls at once for so many seconds.
    async fn calls<W>(
        self,
        name: &str,
        at_once: usize,
        seconds: u64,
        work: fn(Self) -> W,
    ) -> Result<(), Failure>
    where
        W: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        work(self.clone()).await?;
        let done = Arc::new(AtomicU64::new(0));
        let (start, processor) = (Instant::now(), processor_seconds(self.pid)?);
        let end = start + Duration::from_secs(seconds);
        let tasks: Vec<_> = (0..at_once)
            .map(|_| {
                let (load, done) = (self.clone(), Arc::clone(&done));
                tokio::spawn(async move {
                    while Instant::now() < end {
                        work(load.clone()).await?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<(), Failure>(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        let (took, processor) = (start.elapsed().as_secs_f64(), processor_seconds(self.pid)? - processor);
        let count = done.load(Ordering::Relaxed) as f64;
        println!(
            "{name}, {at_once} at once: {:.0} a second, {:.0} for each second of the server's processor time",
            count / took,
            count / processor
        );
        Ok(())
    }

    async fn bulk(self, megabytes: u64) -> Result<(), Failure> {
        let piece = Bytes::from(vec![7; 100_000]);
        let fid = self.create().await?;
        let report = |name: &str, took: Duration, processor: f64| {
            let (rate, cost) = (megabytes as f64 / took.as_secs_f64(), processor * 1000.0 / megabytes as f64);
            println!("{name}: {rate:.0} MB/s, {cost:.2} s of the server's processor time for a gigabyte");
        };
        let (start, processor) = (Instant::now(), processor_seconds(self.pid)?);
        self.store(fid, piece, megabytes * 10).await?;
        report("StoreData64", start.elapsed(), processor_seconds(self.pid)? - processor);
        let (start, processor) = (Instant::now(), processor_seconds(self.pid)?);
        let mut call = self.peer.call().await?;
        call.send_request(&rxafs::FetchData64 { fid, pos: 0, length: i64::MAX }).await?;
        call.finish()?;
        let mut bytes = 0;
        while let Some(piece) = call.recv().await? {
            bytes += piece.len() as u64;
        }
        report("FetchData64", start.elapsed(), processor_seconds(self.pid)? - processor);
        if bytes < megabytes * 1_000_000 {
            return Err(format!("{bytes} bytes came back").into());
        }
        Ok(())
    }
}

async fn status(load: Load) -> Result<(), Failure> {
    load.peer.rpc(&rxafs::FetchStatus { fid: load.dir }).await?;
    Ok(())
}

async fn create(load: Load) -> Result<(), Failure> {
    let fid = load.create().await?;
    load.store(fid, Bytes::from_static(&[7; SMALL_BYTES]), 1).await
}

/// User and system time of a process, in seconds.
fn processor_seconds(pid: u32) -> Result<f64, Failure> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / TICKS_PER_SECOND)
}

/// Says who we are, and takes all messages for good.
fn answer_the_server(endpoint: &Endpoint) {
    let service = Service {
        id: ServiceId(rxafscb::Rxafscb::SERVICE_ID),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    let uuid = Uuid { time_low: std::process::id(), ..Uuid::default() };
    endpoint.add_service(ServiceConfig::new(service, move |mut call: rx::ServerCall| async move {
        let opcode = receive_opcode(&mut call).await?;
        if opcode == TellMeAboutYourself::OPCODE {
            let _ = receive_arguments::<TellMeAboutYourself>(&mut call, MAX_ARGUMENT_BYTES).await?;
            let capabilities = CapabilityWords::new(vec![1]).expect("one word fits");
            let addr = InterfaceAddr::new(uuid, &[]);
            let reply = rxafscb::reply::TellMeAboutYourself { addr, capabilities };
            call.write_all(&rxgen::xdr::to_bytes(&reply)).await.map_err(|error| Abort(error.code().0))?;
        }
        Ok(())
    }));
}
