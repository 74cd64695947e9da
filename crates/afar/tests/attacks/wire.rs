//! What attacks are made with: a stranger who sends any packet from an address of its own and answers the pings that prove where it is,
//! and somebody on the way between a client and a server, who reads what goes by.

use rx_proto::ids::{CallNumber, Channel, ConnectionId, Epoch, SecurityIndex, Seq, Serial, ServiceId};
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long one look at a socket waits.
const LOOK: Duration = Duration::from_millis(5);

/// Where the reason of an ACK is in its body, and two reasons (Rx notes 7).
const REASON: usize = 16;
const PING: u8 = 6;
const PING_RESPONSE: u8 = 7;

/// A stranger with an address of its own.
pub(crate) struct Stranger {
    socket: UdpSocket,
    server: SocketAddr,
}

impl Stranger {
    pub(crate) fn new(address: Ipv4Addr, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        socket.set_read_timeout(Some(LOOK)).unwrap();
        Self { socket, server }
    }

    pub(crate) fn send(&self, header: Header, body: &[u8]) {
        let packet = [&header.to_bytes()[..], body].concat();
        self.socket.send_to(&packet, self.server).unwrap();
    }

    /// All that comes within a time. Pings are answered.
    pub(crate) fn hear(&self, lasts: Duration) -> Vec<(Header, Vec<u8>)> {
        let until = Instant::now() + lasts;
        let mut heard = Vec::new();
        let mut buffer = vec![0; 20_000];
        while Instant::now() < until {
            let Ok((length, _)) = self.socket.recv_from(&mut buffer) else { continue };
            let Ok(header) = Header::parse(&buffer[..length]) else { continue };
            let body = buffer[HEADER_LEN..length].to_vec();
            if header.kind == PacketType::ACK && body.get(REASON) == Some(&PING) {
                let flags = Flags(header.flags.0 ^ Flags::CLIENT_INITIATED.0).without(Flags::REQUEST_ACK);
                self.send(Header { flags, ..header }, &ack(header.serial, PING_RESPONSE));
            }
            heard.push((header, body));
        }
        heard
    }
}

/// The body of an ACK that acknowledges nothing.
pub(crate) fn ack(of: Serial, reason: u8) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [1, 0, of.0] {
        body.extend_from_slice(&u32::to_be_bytes(word));
    }
    body.extend_from_slice(&[reason, 0, 0, 0, 0]);
    for word in [1444, 1444, 32, 1] {
        body.extend_from_slice(&u32::to_be_bytes(word));
    }
    body
}

/// A packet of DATA that begins a call: its first, and not its last.
pub(crate) fn first_of_call(connection: (u32, u32), channel: u32, call: u32, service: u16) -> Header {
    Header {
        epoch: Epoch(connection.0),
        connection: ConnectionId::of(connection.1),
        channel: Channel::of(channel),
        call: CallNumber(call),
        seq: Seq(1),
        serial: Serial(1),
        kind: PacketType::DATA,
        flags: Flags::CLIENT_INITIATED,
        user_status: 0,
        security: SecurityIndex(0),
        checksum: 0,
        service: ServiceId(service),
    }
}

/// Somebody between a client and a server's port, who passes everything on and notes the headers; at an address of its own.
pub(crate) struct Between {
    address: Ipv4Addr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Nothing is passed on to the client for now.
    holds: AtomicBool,
    seen: Mutex<Vec<Header>>,
}

impl Between {
    /// A relay between whoever calls `address` and `server`, at the same port.
    pub(crate) fn new(address: Ipv4Addr, server: SocketAddr) -> Self {
        let shared = Arc::new(Shared::default());
        let socket = |port| {
            let socket = UdpSocket::bind((address, port)).unwrap();
            socket.set_read_timeout(Some(LOOK)).unwrap();
            Arc::new(socket)
        };
        let (front, back) = (socket(server.port()), socket(0));
        let client = Arc::new(Mutex::new(None));
        let threads = [true, false].map(|is_to_server| {
            let (shared, client) = (Arc::clone(&shared), Arc::clone(&client));
            let (from, to) = if is_to_server { (&front, &back) } else { (&back, &front) };
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            thread::spawn(move || {
                let mut buffer = vec![0; 65_536];
                while !shared.is_over.load(Ordering::SeqCst) {
                    let Ok((length, sender)) = from.recv_from(&mut buffer) else { continue };
                    shared.note(&buffer[..length]);
                    let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
                    let receiver = match is_to_server {
                        true => {
                            *client = Some(sender);
                            Some(server)
                        }
                        false => *client,
                    };
                    drop(client);
                    if !is_to_server && shared.holds.load(Ordering::SeqCst) {
                        continue;
                    }
                    if let Some(receiver) = receiver {
                        // Nobody may be there just now.
                        drop(to.send_to(&buffer[..length], receiver));
                    }
                }
            })
        });
        Self { address, shared, threads: threads.into() }
    }

    /// What the client is to call.
    pub(crate) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The newest packet of DATA that a client has sent.
    pub(crate) fn newest_request(&self) -> Header {
        let seen = self.shared.seen.lock().unwrap();
        let is_request = |header: &&Header| header.kind == PacketType::DATA && header.is_from_client();
        *seen.iter().rev().find(is_request).expect("a client has called")
    }

    /// Lets nothing through to the client, or all.
    pub(crate) fn hold(&self, holds: bool) {
        self.shared.holds.store(holds, Ordering::SeqCst);
    }
}

impl Shared {
    fn note(&self, packet: &[u8]) {
        if let Ok(header) = Header::parse(packet) {
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(header);
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
