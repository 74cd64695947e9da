//! Servers and clients of AFS in one process and in virtual time: what takes minutes of waiting takes none, and each run is the
//! same. This has the pieces; `src/sim/cell.rs` puts them together.

#[cfg(feature = "cell")]
pub mod cell;
#[cfg(feature = "cell")]
pub mod databases;
#[cfg(feature = "cell")]
pub mod files;
#[cfg(feature = "cell")]
pub mod laptop;
#[cfg(feature = "cell")]
pub mod moving;
pub mod people;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use afs_fileserver::{Config, WallClock};
use afs_sim::Sim;
use afs_volume::disk::SimulatedDisk;
use afs_volume::{NewVolume, Partition, Stamp, VnodeId, Volume, VolumeKind, VolumeState};
use afs_wire::Uuid;
use afs_wire::acl::Acl;
use afs_wire::ids::{AfsTime, HostAddr, PartitionId, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::vl::{EntryFlags, NMAXNSERVERS, NvldbEntry, SiteFlags};
use rx::{Endpoint, EndpointConfig, Runtime};
use rxgen::xdr::CharVec;

#[cfg(feature = "cell")]
pub use cell::Cell;

/// Bytes of a segment of a log on a simulated disk.
pub const SMALL_LOG: u64 = 256 << 10;

/// Binds an endpoint at an address of the simulated network.
///
/// # Panics
///
/// If somebody is there.
pub fn bind(sim: &Sim, address: SocketAddr) -> Endpoint {
    // What would happen every second for ever hides that nothing else is going to.
    let options = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
    Endpoint::bind_with(Arc::new(sim.clone()), address, options).expect("nobody is there")
}

/// The time of day, in seconds.
pub fn seconds(sim: &Sim) -> u32 {
    since_1970(sim).as_secs() as u32
}

fn since_1970(sim: &Sim) -> Duration {
    sim.wall_clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The user who sets a cell up, and the time at which a simulation begins.
pub fn stamp() -> Stamp {
    Stamp { who: ViceId(1), now: AfsTime(seconds(&Sim::new(Duration::ZERO))) }
}

/// The configuration of a file server of this UUID, with the time of a simulation.
pub fn file_server_config(sim: &Sim, uuid: Uuid) -> Config {
    let (mut config, clock) = (Config::new(uuid), sim.clone());
    config.clock = WallClock::new(move || since_1970(&clock));
    config
}

/// Opens a partition in a folder of the machine's, or of a simulated disk.
///
/// # Panics
///
/// If it cannot be opened.
pub fn open_partition(folder: &Path, disk: Option<&SimulatedDisk>) -> Partition {
    // What is still under way in virtual time when a test ends keeps the partition open, whose thread would make the folder anew.
    let config = afs_volume::Config { has_thread: false, ..afs_volume::Config::default() };
    let Some(disk) = disk else { return Partition::open(folder, config).expect("it can be opened") };
    // Small, so that there are checkpoints within a test, and as a simulated disk is copied at each sync.
    let config = afs_volume::Config { reserve_kib: 0, cache_bytes: 1 << 20, log_bytes: SMALL_LOG, ..config };
    Partition::open_on(Arc::new(disk.clone()), folder, config).expect("it can be opened")
}

/// Makes a read-write volume, online, whose root grants everything to everybody.
///
/// # Panics
///
/// If there is one, or no room.
pub fn make_volume(partition: &Partition, name: &str, id: VolumeId) -> Arc<Volume> {
    let (name, kind) = (name.to_owned(), VolumeKind::ReadWrite);
    let new = NewVolume { id, name, kind, parent: id, max_quota_kib: 0, with_root: true };
    let volume = partition.create_volume(&new, stamp()).expect("there is none yet");
    put_online(&volume);
    grant(&volume, &[(ViceId::SYSTEM_ANYUSER, Rights::ALL)]);
    volume
}

/// A volume's entry in the VLDB, at these servers, on their first partition; ids of read-only volumes are the next, of backup ones that after it.
///
/// # Panics
///
/// If the name is too long, or there are too many servers.
pub fn entry(name: &str, id: VolumeId, sites: &[(Ipv4Addr, SiteFlags)]) -> NvldbEntry {
    let mut entry = NvldbEntry {
        name: CharVec::from_text(name).expect("a short name"),
        n_servers: i32::try_from(sites.len()).expect("a few servers"),
        server_number: [HostAddr(0); NMAXNSERVERS],
        server_partition: [PartitionId(0); NMAXNSERVERS],
        server_flags: [SiteFlags(0); NMAXNSERVERS],
        volume_id: [id, VolumeId(id.0 + 1), VolumeId(id.0 + 2)],
        clone_id: VolumeId(0),
        flags: EntryFlags::NONE,
        match_index: 0,
        spares: [0; 8],
    };
    for (place, &(address, flags)) in sites.iter().enumerate() {
        (entry.server_number[place], entry.server_flags[place]) = (HostAddr::from(address), flags);
        for (of_site, of_entry) in [
            (SiteFlags::RW_VOL, EntryFlags::RW_EXISTS),
            (SiteFlags::RO_VOL, EntryFlags::RO_EXISTS),
            (SiteFlags::BACK_VOL, EntryFlags::BACK_EXISTS),
        ] {
            if flags.contains(of_site) {
                entry.flags |= of_entry;
            }
        }
    }
    entry
}

/// Puts a volume that was just made into service.
///
/// # Panics
///
/// If its disk fails.
pub fn put_online(volume: &Volume) {
    let in_service = volume.change_info(|info| (info.in_service, info.destroy_me) = (true, false));
    in_service.expect("it was just made");
    volume.set_state(VolumeState::Online);
}

/// Sets what the root directory of a volume grants.
///
/// # Panics
///
/// If its disk fails.
pub fn grant(volume: &Volume, entries: &[(ViceId, Rights)]) {
    let list = Acl { positive: entries.to_vec(), negative: Vec::new() };
    volume.set_acl(VnodeId::ROOT, &list, stamp()).expect("the root is a directory");
}
