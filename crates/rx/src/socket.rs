//! A UDP socket for Rx: datagrams in bundles both ways (GSO, GRO), never fragmented, with a receive buffer that holds
//! several windows, the kernel's count of dropped packets, and what ICMP says. Knows nothing of Rx packets, and leaves
//! threads and what to do about errors to its user. `unsafe` is in `socket/sys.rs` alone.

mod batch;
mod icmp;
#[expect(
    unsafe_code,
    reason = "the system calls that no safe crate offers; the only unsafe file of this crate"
)]
mod sys;
#[cfg(test)]
mod tests;

use std::error;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use quinn_udp::{UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Type};

pub use batch::{Datagram, MAX_DELIVERIES, RecvBatch, Segments};
pub use icmp::{IcmpError, IcmpErrorKind, QUOTED_BYTES};
use sys::Interest;
pub(crate) use sys::random_bytes;
pub use sys::wake_exactly;

/// The receive buffer that is asked for unless configured, as the kernel counts: about 14,500 single packets of 1472
/// bytes (2304 bytes each, measured), 450 full windows of 32. The usual default of 212,992 bytes holds 92, less than
/// three windows, and three calls at once overflow it.
pub const DEFAULT_RECEIVE_BUFFER_BYTES: usize = 32 << 20;

/// The send buffer that is asked for unless configured, as the kernel counts: about 60 full bundles. Pacing keeps it
/// nearly empty; it must only outlast a bundle or two per sending thread.
pub const DEFAULT_SEND_BUFFER_BYTES: usize = 4 << 20;

/// The most that one bundle may have in all: the largest UDP payload of IPv4.
pub const MAX_TRANSMIT_BYTES: usize = 65_507;

/// The number of times that a send is tried. An ICMP error about *any* earlier packet makes the next send fail once,
/// whatever its destination; several in a row happen when several peers are gone.
const SEND_ATTEMPTS: usize = 4;

/// The options of a [`Socket`].
#[derive(Debug, Clone)]
pub struct SocketOptions {
    /// Receive buffer in bytes as the kernel counts (with its overhead; what `ss -m` shows as `rb`, twice the number
    /// given to `SO_RCVBUF`). `Some` is a limit set by the administrator: never forced past `net.core.rmem_max`, so
    /// that twice that sysctl is the most one gets. Default `None`: [`DEFAULT_RECEIVE_BUFFER_BYTES`], forced if
    /// possible. Too small loses packets in bursts (see [`Socket::dropped`]); the memory is used only while packets
    /// wait.
    pub receive_buffer_bytes: Option<usize>,
    /// The same for sending, with `net.core.wmem_max` and [`DEFAULT_SEND_BUFFER_BYTES`]. Too small makes
    /// [`Socket::send`] wait; too large lets packets queue in this host instead of being paced.
    pub send_buffer_bytes: Option<usize>,
    /// True if a default size may go past the sysctls, which takes `CAP_NET_ADMIN`; without that capability the
    /// sysctls limit it, silently. Default: true.
    pub allow_force: bool,
    /// Share the port with other sockets that set this too, the kernel spreading peers over them (`SO_REUSEPORT`).
    /// Without it a second server on the port is refused, with it the two take packets from each other. Default: false.
    pub reuse_port: bool,
    /// The longest wait of one send attempt for room in the send buffer; at most four times that in all. Default:
    /// 5 ms, in which a 1 Gbit/s link drains 600 kB.
    pub send_wait: Duration,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            allow_force: true,
            reuse_port: false,
            send_wait: Duration::from_millis(5),
        }
    }
}

/// A datagram, or a bundle of them, to send.
#[derive(Debug, Clone, Copy)]
pub struct Transmit<'a> {
    /// The peer. A socket bound to an IPv4 address reaches IPv4 peers only, one bound to `[::]` both kinds.
    pub to: SocketAddr,
    /// The address of ours to send from, usually that which the peer has sent to; `None` lets the kernel choose.
    pub src_ip: Option<IpAddr>,
    /// Cut `contents` into datagrams of this many bytes each, the last as long as what is left. `None`, or a size not
    /// below that of `contents`, makes one datagram.
    pub segment_size: Option<usize>,
    /// The payload. Any length is allowed, but more than [`Socket::max_gso_segments`] segments or
    /// [`MAX_TRANSMIT_BYTES`] take several system calls.
    pub contents: &'a [u8],
}

/// The reason why something was not sent. A failed bundle may have gone out in part, its first segments first.
#[derive(Debug)]
pub enum SendError {
    /// A datagram is larger than what the interface takes (never fragmented). Nothing of it was sent.
    TooLarge {
        /// The peer.
        to: SocketAddr,
        /// The datagram's payload in bytes.
        bytes: usize,
    },
    /// No room in the send buffer in time, or the interface's queue was full. To be treated like a packet lost in
    /// the network: slow down, send again later.
    Full {
        /// The peer.
        to: SocketAddr,
    },
    /// This host has no way to the peer at present: no route, interface down, forbidden by a firewall here, or the
    /// source address is none of this host's (any more). A peer that refuses packets shows up as an [`IcmpError`]
    /// instead.
    Unreachable {
        /// The peer.
        to: SocketAddr,
        /// The source address asked for.
        src_ip: Option<IpAddr>,
        /// The kernel's error.
        source: io::Error,
    },
    /// Anything else, such as an IPv6 peer on an IPv4 socket; some kernels also report a foreign source address so.
    Io {
        /// The peer.
        to: SocketAddr,
        /// The source address asked for.
        src_ip: Option<IpAddr>,
        /// The kernel's error.
        source: io::Error,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { to, bytes } => {
                write!(f, "a datagram of {bytes} bytes to {to} exceeds the MTU of the interface")
            }
            Self::Full { to } => {
                write!(f, "no room to send to {to}: the send buffer or the interface's queue is full")
            }
            Self::Unreachable { to, src_ip: Some(ip), source } => write!(
                f,
                "cannot reach {to} from {ip}: {source}; check that this host still has that address, and its routes, \
                 interfaces and firewall"
            ),
            Self::Unreachable { to, src_ip: None, source } => {
                write!(f, "cannot reach {to} from this host: {source}; check routes, interfaces and firewall")
            }
            Self::Io { to, src_ip: Some(ip), source } => {
                write!(
                    f,
                    "cannot send to {to} from {ip}: {source}; check that this host still has that address"
                )
            }
            Self::Io { to, src_ip: None, source } => write!(f, "cannot send to {to}: {source}"),
        }
    }
}

impl error::Error for SendError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::TooLarge { .. } | Self::Full { .. } => None,
            Self::Unreachable { source, .. } | Self::Io { source, .. } => Some(source),
        }
    }
}

/// A bound UDP socket. Any number of threads may receive and send on it at once, by shared reference.
#[derive(Debug)]
pub struct Socket {
    socket: socket2::Socket,
    state: UdpSocketState,
    local: SocketAddr,
    /// Bound to an IPv6 address, so that IPv4 peers are to be written as mapped addresses.
    is_ipv6: bool,
    max_gso_segments: usize,
    send_wait: Duration,
    wake: OwnedFd,
    shut_down: AtomicBool,
    /// A send has used up the kernel's hint that the error queue is filled.
    errors_pending: AtomicBool,
    /// Packets dropped, and the kernel's wrapping counter when that was computed.
    dropped: Mutex<(u64, u32)>,
    /// Held while don't-fragment is off.
    fragmenting: Mutex<()>,
}

impl Socket {
    /// Binds a socket. Port 0 takes any free port; `[::]` serves IPv4 and IPv6 on one port, and IPv4 peers still appear
    /// as IPv4 addresses.
    ///
    /// # Errors
    ///
    /// The kind is the kernel's, the message names the address and says what to do.
    pub fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        Self::bind_inner(normalised(address), options).map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    let port = address.port();
                    format!("; another process has the port (`ss -ulpn sport = :{port}` names it): stop it, or choose another port")
                }
                io::ErrorKind::PermissionDenied => {
                    "; ports below 1024 need root or CAP_NET_BIND_SERVICE: grant it, or choose another port".into()
                }
                io::ErrorKind::AddrNotAvailable => {
                    "; no interface of this host has that address (`ip address` lists them)".into()
                }
                _ if error.raw_os_error() == Some(libc::EAFNOSUPPORT) && address.is_ipv6() => {
                    "; this host has no IPv6: bind an IPv4 address such as 0.0.0.0".into()
                }
                _ => String::new(),
            };
            io::Error::new(error.kind(), format!("cannot bind UDP {address}: {error}{advice}"))
        })
    }

    fn bind_inner(address: SocketAddr, options: &SocketOptions) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        if options.reuse_port {
            socket.set_reuse_port(true)?;
        }
        set_buffer(&socket, &RECEIVE, options.receive_buffer_bytes, options.allow_force)?;
        set_buffer(&socket, &SEND, options.send_buffer_bytes, options.allow_force)?;
        // All options are in force before the first packet can arrive. This one makes the socket non-blocking, sets
        // don't-fragment, and turns on GRO and the report of destination addresses.
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        state.enable_transport_errors(UdpSockRef::from(&socket))?;
        socket.bind(&address.into())?;
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            // Fixed here, since `state` lowers its own number after errors that concern one peer only.
            max_gso_segments: state.max_gso_segments().max(1),
            is_ipv6: local.is_ipv6(),
            socket,
            state,
            local,
            send_wait: options.send_wait,
            wake: sys::wake_flag()?,
            shut_down: AtomicBool::new(false),
            errors_pending: AtomicBool::new(false),
            dropped: Mutex::new((0, 0)),
            fragmenting: Mutex::new(()),
        })
    }

    /// The address that the socket is bound to, with the port it has got.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The receive buffer's size as granted, in the kernel's counting; compare with what was asked for.
    pub fn granted_receive_bytes(&self) -> io::Result<usize> {
        self.socket.recv_buffer_size()
    }

    /// The most segments that go out by one system call: 64, or 1 where the kernel lacks GSO. Bundles of 8 to 16 have
    /// most of the gain without overrunning the receiver.
    pub fn max_gso_segments(&self) -> usize {
        self.max_gso_segments
    }

    /// True if the kernel may fragment what is sent, which it does only where it cannot be told not to.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Packets that arrived but were dropped here since the socket was bound, mostly for want of receive buffer.
    /// Counts buffers of the kernel: a bundle coalesced by GRO is one. Right as long as it is called once per 2^32.
    pub fn dropped(&self) -> io::Result<u64> {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let now = sys::memory_info(self.socket.as_fd())?.drops;
        dropped.0 += u64::from(now.wrapping_sub(dropped.1));
        dropped.1 = now;
        Ok(dropped.0)
    }

    /// The bytes that wait to be received, in the kernel's counting, to be compared with
    /// [`granted_receive_bytes`](Self::granted_receive_bytes).
    pub fn queued_bytes(&self) -> io::Result<usize> {
        Ok(sys::memory_info(self.socket.as_fd())?.receive_queued_bytes as usize)
    }

    /// Makes every present and future [`recv`](Self::recv) return at once with nothing. Sending still works.
    pub fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        sys::raise(self.wake.as_fd());
    }

    /// True if [`shut_down`](Self::shut_down) was called.
    pub fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Receives what is there, waiting up to `timeout` (for ever with `None`) if there is nothing. Returns the number
    /// of [`Datagram`]s in `batch`. That is 0 after the timeout, after a signal, after
    /// [`shut_down`](Self::shut_down), and when only ICMP errors came, so: call it in a loop until
    /// [`is_shut_down`](Self::is_shut_down), and look at [`RecvBatch::drain_errors`] each time.
    ///
    /// # Errors
    ///
    /// Only those that concern the socket as a whole, such as a lack of memory.
    pub fn recv(&self, batch: &mut RecvBatch, timeout: Option<Duration>) -> io::Result<usize> {
        batch.clear();
        if self.is_shut_down() {
            return Ok(0);
        }
        if self.errors_pending.load(Ordering::Relaxed) && self.errors_pending.swap(false, Ordering::Relaxed) {
            self.poll_errors(&mut batch.errors)?;
        }
        // Under load there is always something, and the wait is saved.
        let received = self.recv_now(batch)?;
        if received > 0 || !batch.errors.is_empty() {
            return Ok(received);
        }
        let found = sys::wait(self.socket.as_fd(), Interest::Readable, Some(self.wake.as_fd()), timeout)?;
        if found.error {
            self.poll_errors(&mut batch.errors)?;
        }
        if found.ready && !self.is_shut_down() { self.recv_now(batch) } else { Ok(0) }
    }

    /// Receives without waiting.
    fn recv_now(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        let mut slices = batch.buffers.each_mut().map(|buffer| IoSliceMut::new(buffer));
        match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut batch.meta) {
            Ok(count) => Ok(batch.take_received(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) if concerns_one_peer(&error) => {
                self.poll_errors(&mut batch.errors)?;
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Appends to `out` what ICMP has reported about packets sent from here, up to 64 reports at once; returns how
    /// many. [`recv`](Self::recv) does this by itself whenever there is something to report; only a socket on which
    /// nobody receives needs this.
    pub fn poll_errors(&self, out: &mut Vec<IcmpError>) -> io::Result<usize> {
        icmp::poll_errors(self.socket.as_fd(), out)
    }

    /// Sends a datagram or a bundle of them, in order. Waits for room in the send buffer, but no longer than
    /// [`SocketOptions::send_wait`] a few times.
    ///
    /// # Errors
    ///
    /// See [`SendError`]. ICMP errors about earlier packets are not reported here but by [`recv`](Self::recv).
    pub fn send(&self, transmit: &Transmit<'_>) -> Result<(), SendError> {
        let segment_size = match transmit.segment_size {
            Some(size) if size < transmit.contents.len() && size > 0 => size,
            _ => return self.send_one(transmit, transmit.contents, None),
        };
        let bundle_segments = self.max_gso_segments.min(MAX_TRANSMIT_BYTES / segment_size).max(1);
        for bundle in transmit.contents.chunks(bundle_segments * segment_size) {
            if bundle.len() <= segment_size {
                self.send_one(transmit, bundle, None)?;
                continue;
            }
            match self.send_one(transmit, bundle, Some(segment_size)) {
                // The way to this peer does not take bundles (a tunnel, IPsec, a card without checksums), or an
                // older kernel (6.18 says EMSGSIZE) finds a segment too large: single datagrams settle which.
                Err(SendError::Io { source, .. })
                    if matches!(source.raw_os_error(), Some(libc::EIO | libc::EINVAL)) =>
                {
                    for segment in bundle.chunks(segment_size) {
                        self.send_one(transmit, segment, None)?;
                    }
                }
                result => result?,
            }
        }
        Ok(())
    }

    /// Sends as [`send`](Self::send) does, but lets this host and routers fragment: for a packet that was made before its
    /// path turned out to be narrower, and cannot be made anew. Rare, and serialised. What other threads send meanwhile may
    /// be fragmented too.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send); never too large for the interface.
    pub fn send_fragmentable(&self, transmit: &Transmit<'_>) -> Result<(), SendError> {
        let _one_at_a_time = self.fragmenting.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| SendError::Io { to: transmit.to, src_ip: transmit.src_ip, source };
        self.allow_fragments(true).map_err(failed)?;
        let sent = self.send(transmit);
        self.allow_fragments(false).map_err(failed)?;
        sent
    }

    fn allow_fragments(&self, allow: bool) -> io::Result<()> {
        let (v4, v6) = if allow {
            (libc::IP_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DONT)
        } else {
            (libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE)
        };
        let socket = self.socket.as_fd();
        if self.is_ipv6 {
            sys::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6)?;
        }
        sys::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4)
    }

    /// Sends by one system call, or a few if they fail for passing reasons.
    fn send_one(
        &self,
        transmit: &Transmit<'_>,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> Result<(), SendError> {
        let &Transmit { to, src_ip, .. } = transmit;
        let message = quinn_udp::Transmit {
            destination: self.as_kernel_wants(to),
            ecn: None,
            contents,
            segment_size,
            src_ip,
        };
        let mut attempt = 1;
        loop {
            let Err(source) = self.state.try_send(UdpSockRef::from(&self.socket), &message) else {
                return Ok(());
            };
            let last = attempt == SEND_ATTEMPTS;
            attempt += 1;
            match source.raw_os_error() {
                Some(libc::EAGAIN) if last => return Err(SendError::Full { to }),
                Some(libc::EAGAIN) => {
                    self.wait_for_room().map_err(|source| SendError::Io { to, src_ip, source })?
                }
                // With error reports turned on, the kernel says this when the interface's queue dropped the packet.
                Some(libc::ENOBUFS) => return Err(SendError::Full { to }),
                _ if concerns_one_peer(&source) && !last => {
                    self.errors_pending.store(true, Ordering::Relaxed)
                }
                Some(libc::EMSGSIZE) => {
                    return Err(SendError::TooLarge { to, bytes: segment_size.unwrap_or(contents.len()) });
                }
                _ if concerns_one_peer(&source) => return Err(SendError::Unreachable { to, src_ip, source }),
                _ => return Err(SendError::Io { to, src_ip, source }),
            }
        }
    }

    fn wait_for_room(&self) -> io::Result<()> {
        let found = sys::wait(self.socket.as_fd(), Interest::Writable, None, Some(self.send_wait))?;
        if found.error && !found.ready {
            // A filled error queue ends every wait at once, until a receiving thread has emptied it.
            self.errors_pending.store(true, Ordering::Relaxed);
            thread::sleep(self.send_wait.min(Duration::from_millis(1)));
        }
        Ok(())
    }

    fn as_kernel_wants(&self, to: SocketAddr) -> SocketAddr {
        match to {
            SocketAddr::V4(v4) if self.is_ipv6 => {
                SocketAddr::new(IpAddr::V6(v4.ip().to_ipv6_mapped()), v4.port())
            }
            to => to,
        }
    }
}

/// The descriptor to wait for, beside others by one thread; what is there is taken by [`Socket::recv`].
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Addresses as Rx compares them: IPv4 as IPv4 even on a socket for both, and no IPv6 flow labels.
fn normalised(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), v6.port()),
            None => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id())),
        },
    }
}

/// True if an error on the socket says nothing about the socket itself: what Linux makes of ICMP errors (reported once,
/// by whatever is called next, since one socket serves all peers), and of a way that is missing or closed here.
fn concerns_one_peer(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::ENETDOWN
                | libc::EMSGSIZE
                | libc::ENOPROTOOPT
                | libc::EOPNOTSUPP
                | libc::EPROTO
                | libc::EACCES
                | libc::EPERM
        )
    )
}

/// The options of one of the two buffers.
struct BufferKind {
    plain: i32,
    forced: i32,
    default_bytes: usize,
}

const RECEIVE: BufferKind = BufferKind {
    plain: libc::SO_RCVBUF,
    forced: libc::SO_RCVBUFFORCE,
    default_bytes: DEFAULT_RECEIVE_BUFFER_BYTES,
};

const SEND: BufferKind = BufferKind {
    plain: libc::SO_SNDBUF,
    forced: libc::SO_SNDBUFFORCE,
    default_bytes: DEFAULT_SEND_BUFFER_BYTES,
};

/// Asks for a buffer of `configured` bytes, or of the default size. A size that the kernel lowers or refuses to force is
/// no error: the socket works, and the granted size can be asked for.
fn set_buffer(
    socket: &socket2::Socket,
    kind: &BufferKind,
    configured: Option<usize>,
    allow_force: bool,
) -> io::Result<()> {
    // The kernel doubles what it is given, and counts by the doubled value.
    let half = configured.unwrap_or(kind.default_bytes) / 2;
    let half = i32::try_from(half).unwrap_or(i32::MAX / 2);
    let forced = configured.is_none()
        && allow_force
        && sys::set_option(socket.as_fd(), libc::SOL_SOCKET, kind.forced, half).is_ok();
    if forced { Ok(()) } else { sys::set_option(socket.as_fd(), libc::SOL_SOCKET, kind.plain, half) }
}
