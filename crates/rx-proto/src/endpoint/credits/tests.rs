//! Tests of how much each peer and each owner may have in flight to this host.

use super::*;
use crate::call::Call;
use crate::config::{CallLimits, Config};
use crate::connection::{Connection, ConnectionKey, Role};
use crate::fair::Owners;
use crate::ids::{Channel, ConnectionId, Epoch, Seq, ServiceId};
use crate::packet::Header;
use crate::path::Path;
use crate::receive::PathView;
use crate::security::Null;
use bytes::Bytes;
use slab::Slab;
use std::net::{IpAddr, SocketAddr};

const BUFFER: u64 = 64 * PART_COST;
const VIEW: PathView = PathView { is_own: true, takes_ranges: true, rtt: Duration::from_millis(20) };

/// The header of a packet of data.
fn data(seq: Seq) -> Header {
    let mut bytes = [0; 28];
    bytes[12..16].copy_from_slice(&seq.0.to_be_bytes());
    bytes[20] = 1;
    Header::parse(&bytes).unwrap()
}

/// Calls, each of a host of its own. Their packets arrive when a test says so.
struct World {
    connections: Slab<Box<Connection>>,
    paths: Slab<Box<Path>>,
    ready: VecDeque<usize>,
    credits: Credits,
    now: Instant,
}

impl World {
    fn new(hosts: u8) -> Self {
        let (mut connections, mut paths, now) = (Slab::new(), Slab::new(), Instant::ORIGIN);
        let owners = Owners::new([1, 2]);
        for host in 0..hosts {
            let peer = SocketAddr::from(([10, 0, 0, host], 7001));
            let path = paths.insert(Box::new(Path::new(now, peer, &Config::default(), 1)));
            let key = ConnectionKey::new(Epoch(1), ConnectionId(4 * u32::from(host)), Role::Server, peer);
            let owner = owners.owner(None, IpAddr::from([10, 0, 0, host]));
            let (service, limits) = (ServiceId(1), CallLimits::default());
            let mut connection = Connection::new(now, key, path, service, owner, Box::new(Null), limits);
            let call = Call::new(now, CallNumber(1), limits, 32, 255);
            connection.slots[0].call = Some(Box::new(call));
            connections.insert(Box::new(connection));
        }
        let credits = Credits::new(Some(BUFFER));
        Self { connections, paths, ready: VecDeque::new(), credits, now }
    }

    fn at(host: usize) -> ChannelRef {
        ChannelRef { connection: host, channel: Channel::ALL[0] }
    }

    fn ask(&mut self, ask: impl FnOnce(&mut Credits, Instant, &mut Calls<'_>)) {
        let Self { connections, paths, ready, credits, now } = self;
        ask(credits, *now, &mut Calls { connections, paths, ready });
    }

    /// Packets come for a call, and its reader takes them.
    fn come(&mut self, host: usize, packets: u32) {
        for _ in 0..packets {
            let call = self.connections[host].slots[0].call.as_deref_mut().unwrap();
            let header = data(call.rx.next());
            call.rx.handle_data(self.now, &header, Bytes::from_static(&[0; 100]), VIEW);
            call.rx.read();
            self.ask(|credits, now, calls| credits.handle_data(now, Self::at(host), 1444, calls));
        }
    }

    /// A packet comes for a call behind a hole.
    fn come_behind(&mut self, host: usize, seq: u32) {
        let call = self.connections[host].slots[0].call.as_deref_mut().unwrap();
        call.rx.handle_data(self.now, &data(Seq(seq)), Bytes::from_static(&[0; 100]), VIEW);
        self.ask(|credits, now, calls| credits.handle_data(now, Self::at(host), 1444, calls));
    }

    /// A host of whose sixteen packets all but the first and the last are lost.
    fn with_holes() -> Self {
        let mut world = Self::new(1);
        world.ask(|credits, _, calls| credits.handle_new_call(Self::at(0), calls));
        world.come(0, 1);
        world.come_behind(0, 16);
        assert_eq!((world.outstanding(0), world.credits.held), (14, 14 * PART_COST));
        world
    }

    fn outstanding(&self, host: usize) -> u32 {
        self.connections[host].slots[0].call.as_deref().unwrap().rx.outstanding()
    }
}

#[test]
fn what_is_offered_stays_below_a_small_buffer_and_hosts_get_equal_parts() {
    let mut world = World::new(20);
    for host in 0..20 {
        world.ask(|credits, _, calls| credits.handle_new_call(World::at(host), calls));
    }
    for host in 0..20 {
        world.come(host, 2);
    }
    for _ in 0..1000 {
        let (limit, before) = (world.credits.limit().unwrap(), world.credits.offered());
        world.ask(Credits::grant);
        let offered = world.credits.offered();
        assert!(offered <= limit.max(before), "{offered} of {limit} after {before}");
        let turn: Vec<_> = (0..20).filter(|&host| world.outstanding(host) > 0).collect();
        assert!(!turn.is_empty(), "nobody may send");
        for host in turn {
            world.come(host, 1);
        }
        world.now += Duration::from_millis(1);
    }
    let nexts: Vec<_> =
        (0..20).map(|host| world.connections[host].slots[0].call.as_deref().unwrap().rx.next().0).collect();
    let (least, most) = (nexts.iter().min().unwrap(), nexts.iter().max().unwrap());
    assert!(10 * least >= 9 * most, "{nexts:?}");
}

/// What was lost is sent again as it was cut. It counted as large, so that more was offered than the buffer has room for.
#[test]
fn packets_that_were_lost_before_larger_ones_passed_count_as_they_were_cut() {
    let mut world = World::with_holes();
    world.paths[0].handle_received(world.now, 2048);
    world.ask(|credits, now, calls| credits.settle(now, World::at(0), calls));
    assert_eq!(world.credits.held, 14 * PART_COST);
    world.come(0, 1);
    assert_eq!(world.credits.held, 13 * PART_COST);
    world.ask(Credits::grant);
    let (granted, each) = (u64::from(world.outstanding(0)) - 13, cost(2048));
    assert!(granted > 0);
    assert_eq!(world.credits.held, 13 * PART_COST + granted * each);
}

/// A call that was left one packet fills its holes later. They counted as offered all at once, beside what others had got meanwhile.
#[test]
fn what_fills_the_holes_of_a_call_that_was_quiet_was_not_offered() {
    let mut world = World::with_holes();
    world.connections[0].slots[0].call.as_deref_mut().unwrap().rx.leave_one();
    world.ask(|credits, now, calls| credits.settle(now, World::at(0), calls));
    assert_eq!(world.credits.offered(), 0);
    assert_eq!(world.credits.held, 14 * PART_COST);
    world.come(0, 14);
    assert_eq!((world.credits.held, world.credits.offered()), (0, 0));
}
