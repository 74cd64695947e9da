//! The parts of names without a client: what they say of what is known, without asking anybody.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use afs_cache::Cache;
use afs_config::CellServDb;
use afs_sim::Sim;
use afs_wire::Uuid;
use afs_wire::directory::{Directory, Slot};
use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, VnodeNumber, VolumeId};
use afs_wire::status::AfsFetchStatus;
use rx::{Endpoint, EndpointConfig, Runtime};
use rx_proto::time::Instant;
use rx_security::Level;

use crate::data::locks::Locks;
use crate::data::locks::calls::LockCalls;
use crate::data::write_behind;
use crate::dependents::Dependents;
use crate::events::Invalidations;
use crate::names::changes::{self, Changes};
use crate::names::dynroot::{self, DynamicRoot};
use crate::names::lookup::SysNames;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::single_flight::SingleFlight;
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::tests::{promise, status};
use crate::vnodes::vnode::{Mounted, Pages};
use afs_reach::config::Config;
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid, User};
use afs_reach::remote::Calls;
use afs_reach::table::Responder;
use afs_reach::table::ServerKind;
use afs_reach::users::IdentityIndex;

const USER: User = User::of(1);
const DIR: Fid = Fid::root_of(CellIndex(1), VolumeId(7));

/// Directories have odd numbers of vnodes.
const fn fid(vnode: u32) -> Fid {
    Fid { vnode: VnodeNumber(vnode), unique: Uniquifier(1), ..DIR }
}

/// Everything that names are made of, of a cell `one.test` of whose servers nobody is asked anything.
struct World {
    sim: Sim,
    parts: Arc<Changes>,
    responder: Responder,
    now: Instant,
}

impl World {
    fn new(is_fakestat: bool) -> Self {
        let sim = Sim::new(Duration::from_millis(5));
        let runtime: Arc<dyn Runtime> = Arc::new(sim.clone());
        let options = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
        let address = SocketAddr::from(([10, 0, 0, 101], 7001));
        let file = CellServDb::parse(">one.test #\n10.0.0.100 #db\n", Path::new("CellServDB")).unwrap();
        let config = Config {
            runtime: Arc::clone(&runtime),
            endpoint: Endpoint::bind_with(Arc::clone(&runtime), address, options).unwrap(),
            uuid: Uuid::default(),
            seed: [7; 32],
            cells: &file,
            dns: None,
            location_port: 7003,
            file_port: 7000,
            level: Level::Crypt,
            patience: Duration::from_secs(50),
            dead_after: Duration::from_secs(12),
        };
        let vnodes = Arc::new(Vnodes::new(100, 1 << 20, Duration::ZERO));
        let invalidations = Arc::new(Invalidations::new(Arc::clone(&runtime), Arc::default()));
        let locks = Arc::new(Locks::new(runtime, Weak::<LockCalls>::new()));
        let dependents =
            Dependents { vnodes: Arc::clone(&vnodes), locks, invalidations: Arc::clone(&invalidations) };
        let calls = Arc::new(Calls::new(config, Arc::clone(&vnodes.volumes), Arc::new(dependents)));
        let socket = SocketAddr::from(([10, 0, 0, 1], 7000));
        let server = calls.servers.get_or_add(ServerKind::File, CellIndex(1), None, &[socket]).unwrap();
        let statuses = Arc::new(Statuses {
            vnodes,
            users: Arc::clone(&calls.users),
            calls: Arc::clone(&calls),
            single_flight: SingleFlight::default(),
            invalidations,
        });
        let dynamic_root = Arc::new(DynamicRoot::new(Arc::clone(&calls.cells), Vec::new(), AfsTime(7)));
        let cache = Cache::in_memory(afs_cache::Config::new(1 << 20)).unwrap();
        let sysnames = SysNames::new(vec!["linux".to_owned()]);
        let options = changes::Options { is_fakestat, shows_snapshots: false, sysnames };
        let parts =
            Changes::new(&calls, &statuses, cache, &dynamic_root, options, write_behind::Options::default());
        let responder = Responder { resets: server.resets(), server };
        let now = parts.calls.runtime.now();
        Self { sim, parts, responder, now }
    }

    /// A server has told this status of a vnode.
    fn note(&self, fid: Fid, status: &AfsFetchStatus) {
        let vnode = self.parts.vnodes.get_or_add(fid);
        let before = vnode.snapshot();
        vnode.note(self.now, (&before, &self.responder), IdentityIndex::NOBODY, status, Some(&promise()));
    }

    /// A directory is here, with these names.
    fn fetch(&self, dir: Fid, parent: Fid, names: &[(&str, Fid)]) {
        self.note(dir, &status(dir, 5));
        let mut directory = Directory::new(dir.in_volume(), parent.in_volume());
        for &(name, fid) in names {
            directory.insert(name.as_bytes(), fid.in_volume()).unwrap();
        }
        let pages = Pages { directory: Arc::new(directory), version: DataVersion(5) };
        self.parts.vnodes.keep_pages(&self.parts.vnodes.get_or_add(dir), pages);
    }

    fn found(&self, name: &[u8]) -> Option<Result<Fid, Error>> {
        Some(self.parts.names.known(USER, DIR, name)?.map(|found| found.fid))
    }
}

#[test]
fn a_mount_point_of_another_cell_is_left_alone_until_somebody_goes_in() {
    let world = World::new(true);
    let points = &world.parts.mount_points;
    let mount = world.parts.names.dynamic_root.entry(b"one.test").unwrap();
    let status = points.known_status(USER, mount).unwrap().unwrap();
    assert!(status.is_volume_root && status.fid == mount, "it looks like a directory");
    assert_eq!(points.known_real(USER, mount), None, "to go in, its volume has to be found");
    let mounted = Mounted { root: DIR, until: world.now + Duration::from_secs(9) };
    world.parts.vnodes.get_or_add(mount).set_mounted(Some(mounted));
    assert_eq!(points.known_real(USER, mount), Some(DIR));
    assert!(points.known_status(USER, mount).is_none(), "nothing is known of what is mounted");
    let eager = World::new(false);
    assert!(eager.parts.mount_points.known_status(USER, mount).is_none(), "without -fakestat it is crossed");
}

#[test]
fn the_parent_of_a_volume_is_the_directory_with_its_mount_point() {
    let world = World::new(true);
    let points = &world.parts.mount_points;
    let mount = world.parts.names.dynamic_root.entry(b"one.test").unwrap();
    assert_eq!(points.parent_of(DIR, DIR, Some(DIR)), DIR, "nobody came by a mount point");
    world.parts.mount_points.mounts.note(DIR, mount);
    assert_eq!(points.parent_of(DIR, DIR, Some(DIR)), dynroot::ROOT);
    assert_eq!(points.parent_of(mount, DIR, Some(DIR)), dynroot::ROOT);
    let inside = fid(2);
    world.parts.vnodes.get_or_add(inside).set_parent(LocalFid { vnode: VnodeNumber(9), ..DIR.in_volume() });
    let inside_parent = DIR.sibling(LocalFid { vnode: VnodeNumber(9), ..DIR.in_volume() });
    assert_eq!(points.parent_of(inside, DIR, Some(DIR)), inside_parent, "by which it was asked for");
    assert_eq!(points.parent_of(fid(3), fid(3), Some(DIR)), DIR, "a directory says so itself");
}

#[test]
fn names_of_a_directory_that_is_here_are_answered_without_a_call() {
    let world = World::new(true);
    assert!(world.found(b"file").is_none(), "nothing is known of the directory");
    world.fetch(DIR, DIR, &[("file", fid(2)), ("bin.linux", fid(4)), ("new", fid(6))]);
    for file in [fid(2), fid(4)] {
        world.note(file, &status(file, 1));
    }
    assert_eq!(world.found(b"file").unwrap().unwrap(), fid(2));
    assert_eq!(world.found(b"bin.@sys").unwrap().unwrap(), fid(4));
    assert!(world.found(b"new").is_none(), "its status is not here");
    assert!(matches!(world.found(b"other"), Some(Err(Error::NoEntry { .. }))));
}

/// A rename that another client has overtaken found its file under the new name, and was told that both names are the file's.
#[test]
fn an_earlier_name_counts_beside_a_new_one_only_if_its_directory_has_it_still() {
    let world = World::new(true);
    world.fetch(DIR, DIR, &[("file", fid(2)), ("bin.linux", fid(2)), ("moved", fid(4))]);
    world.fetch(fid(3), DIR, &[("moved", fid(4))]);
    let counts = |earlier: (Fid, &[u8]), of| world.parts.names.is_name_beside(USER, earlier, (DIR, of));
    assert!(counts((DIR, b"bin.@sys"), fid(2)), "a file may have several names in its directory");
    assert!(!counts((DIR, b"other"), fid(2)) && !counts((DIR, b"file"), fid(4)));
    let mount = fid(8);
    world.parts.mount_points.mounts.note(DIR, mount);
    assert!(counts((mount, b"moved"), fid(4)), "it is the same directory");
    assert!(!counts((fid(3), b"moved"), fid(4)), "and in no other");
    let stale = world.parts.vnodes.get(fid(3)).unwrap();
    assert!(stale.promised_status(world.now).is_none(), "which is asked for anew");
}

#[test]
fn the_next_directories_are_fetched_once_two_of_a_directory_were_listed() {
    let world = World::new(true);
    let children: Vec<_> = (0..9).map(|n| (format!("dir{n}"), fid(3 + 2 * n))).collect();
    let names: Vec<_> = children.iter().map(|(name, fid)| (&**name, *fid)).collect();
    world.fetch(DIR, DIR, &names);
    let directories = &world.parts.directories;
    let next = |n: usize| {
        let pages = Directory::new(names[n].1.in_volume(), DIR.in_volume());
        directories.walked_next(names[n].1, &pages)
    };
    assert_eq!((next(0), next(1)), (vec![], vec![]), "nobody has listed the directory that they are in");
    directories.note_goes_on(&world.parts.vnodes.get_or_add(DIR));
    assert_eq!(next(0), []);
    assert_eq!(next(1), [2, 3, 4, 5].map(|n| names[n].1));
    world.fetch(names[3].1, DIR, &[]);
    assert_eq!(next(1), [2, 4, 5].map(|n| names[n].1), "one of them is here");
}

#[test]
fn statuses_that_are_not_here_are_asked_for_from_a_name_on() {
    let world = World::new(true);
    let children: Vec<_> = (0..9).map(|n| (format!("file{n}"), fid(2 + 2 * n))).collect();
    let names: Vec<_> = children.iter().map(|(name, fid)| (&**name, *fid)).collect();
    world.fetch(DIR, DIR, &names);
    world.note(names[1].1, &status(names[1].1, 1));
    let vnode = world.parts.vnodes.get_or_add(DIR);
    let pages = vnode.good_pages(world.now).unwrap().directory;
    let unknown: Vec<_> = world.parts.directories.unknown_from(DIR, &pages, Slot(0), 3).collect();
    assert_eq!(unknown, [0, 2, 3].map(|n| names[n].1));
    let parent = world.parts.vnodes.get(names[0].1).unwrap().parent();
    assert_eq!(parent, Some(DIR.in_volume()), "whose rights they will have");
}

#[test]
fn a_file_is_forgotten_with_its_last_name_and_asked_for_again_without_one_of_several() {
    let world = World::new(true);
    let (last, other) = (fid(2), fid(4));
    world.note(last, &status(last, 1));
    world.note(other, &AfsFetchStatus { link_count: 2, ..status(other, 1) });
    world.parts.note_unlinked(last);
    world.parts.note_unlinked(other);
    assert!(world.parts.vnodes.get(last).is_none());
    let other = world.parts.vnodes.get(other).unwrap();
    assert!(other.promised_status(world.now).is_none() && other.last_status().is_some());
    drop(world.sim);
}
