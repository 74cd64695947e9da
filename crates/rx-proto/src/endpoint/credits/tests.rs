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
