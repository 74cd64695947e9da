//! A `vos` that is killed in the middle of a call: its transactions end as soon as the server takes it for dead, here and at the servers that it
//! has volumes sent to, so that the next attempt finds no busy volume and goes on with what came.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::dumps::{FULL, filled, stamp, store};
use crate::support::{A, Lab, RW, TIMEOUT, text};
use afs_wire::afsvol::{
    AttachFlags, CreateVolume, DestServer, Dump, Forward, ListHalves, Monitor, Restore, RestoreCookie,
    RestoreFlags,
};
use afs_wire::ids::{TransId, VolumeId, VolumeType};
use rx::{Connection, Endpoint, EndpointConfig};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::xdr::CharVec;

/// Stands between one client and a server until it is cut, and lets nothing through from then on.
struct Relay {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
}

impl Relay {
    /// What goes to the server takes this long for each packet.
    fn to(server: SocketAddr, pace: Duration) -> Self {
        let (front, back) = (bind(), bind());
        back.connect(server).unwrap();
        let relay = Self { address: front.local_addr().unwrap(), is_cut: Arc::default() };
        let is_cut = Arc::clone(&relay.is_cut);
        thread::spawn(move || {
            let mut client = None;
            let mut packet = [0; 65_536];
            while !is_cut.load(Ordering::Relaxed) {
                if let Ok((length, from)) = front.recv_from(&mut packet) {
                    client = Some(from);
                    let _ = back.send(&packet[..length]);
                    thread::sleep(pace);
                }
                while let (Ok(length), Some(client)) = (back.recv(&mut packet), client) {
                    let _ = front.send_to(&packet[..length], client);
                }
            }
            // The ports stay, as those of a machine that was switched off: nobody says that there is nobody.
            thread::sleep(TIMEOUT);
        });
        relay
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }
}

fn bind() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    socket
}

/// A `vos` that reaches the server through the relay.
fn vos(relay: &Relay) -> (Endpoint, Connection) {
    let endpoint = Endpoint::bind("127.0.0.1:0".parse().unwrap(), EndpointConfig::default()).unwrap();
    let connection = endpoint.connect(relay.address, ServiceId(4), Box::new(Null));
    (endpoint, connection)
}

fn cookie() -> RestoreCookie {
    let name = CharVec::from_text("user.x").unwrap();
    RestoreCookie { name, kind: VolumeType::READ_WRITE, clone: VolumeId(0), parent: RW }
}

async fn begin_copy(lab: &Lab) -> TransId {
    let kind = VolumeType::READ_WRITE;
    let order = CreateVolume { partition: A, name: text("user.x"), kind, parent: RW, volid: RW };
    lab.call(order).await.expect("the volume is not busy").trans
}

/// Waits until something has moved in a transaction.
async fn has_moved(lab: &Lab, trans: TransId) {
    wait_until(async || {
        let seen = lab.call(Monitor {}).await.unwrap().entries.into_vec();
        seen.iter().any(|seen| seen.tid == trans && seen.read_next + seen.transmit_next > 0)
    })
    .await;
}

async fn wait_until(is_so: impl AsyncFn() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, waited).await.expect("what is waited for comes");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_of_a_restore_is_kept_as_soon_as_its_vos_is_dead() {
    let lab = Lab::new();
    let trans = begin_copy(&lab).await;
    let source = Lab::new();
    filled(&source).await;
    let from = source.begin(RW, AttachFlags::BUSY).await;
    let dump = source.stream(Dump { from_trans: from, from_date: FULL }).await.unwrap();
    let relay = Relay::to(lab.connection.peer(), Duration::ZERO);
    let (_endpoint, connection) = vos(&relay);
    let mut call = connection.call().await.unwrap();
    call.send_request(&Restore { trans, flags: RestoreFlags::NONE, cookie: cookie() }).await.unwrap();
    for piece in dump[..dump.len() / 2].chunks(100_000) {
        call.send(piece.to_vec().into()).await.unwrap();
    }
    has_moved(&lab, trans).await;
    relay.cut();
    // Ten minutes pass before a transaction ends that nobody uses.
    wait_until(async || lab.service.transaction_count() == 0).await;
    let halves = || async { lab.call(ListHalves { partition: A }).await.unwrap().halves.into_vec() };
    wait_until(async || halves().await.len() == 1).await;
    begin_copy(&lab).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_volume_stays_busy_here_or_there_after_the_vos_that_moved_it_is_dead() {
    let (here, there) = (Lab::new(), Lab::new());
    let volume = filled(&here).await;
    volume.change_info(|info| info.max_quota_kib = 0).unwrap();
    let long = volume.create_file(
        afs_volume::VnodeId::ROOT,
        b"longer",
        &afs_volume::SetStatus::default(),
        stamp(20),
    );
    store(&volume, long.unwrap().vnode.id, &vec![1; 30 << 20], 20);
    let target = begin_copy(&there).await;
    let trans = here.begin(RW, AttachFlags::BUSY).await;
    let slow = Relay::to(there.connection.peer(), Duration::from_millis(5));
    let relay = Relay::to(here.connection.peer(), Duration::ZERO);
    let (_endpoint, connection) = vos(&relay);
    let std::net::IpAddr::V4(host) = slow.address.ip() else { unreachable!("it was bound so") };
    let destination = DestServer { host: host.into(), port: slow.address.port().into(), ssid: 1 };
    let order =
        Forward { from_trans: trans, from_date: FULL, destination, dest_trans: target, cookie: cookie() };
    let forwarded = tokio::spawn(async move { connection.rpc(&order).await.is_ok() });
    has_moved(&there, target).await;
    relay.cut();
    wait_until(async || here.service.transaction_count() + there.service.transaction_count() == 0).await;
    assert!(!forwarded.is_finished() || !forwarded.await.unwrap(), "the volume was not sent in time");
    here.begin(RW, AttachFlags::BUSY).await;
}
