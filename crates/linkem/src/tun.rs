//! A TUN device in a namespace: packets in and out, and the kernel's count of those we did not read in time.
//! Leaves the meaning of packets to packet.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use crate::error::Error;
use crate::namespace::NamespaceHandle;
use crate::packet::Packet;
use crate::sys;

/// Room for one read: a super-packet is at most 64 KB.
const READ_ROOM: usize = 1 << 17;
/// Room for `/proc/net/dev` of a namespace, which has a line of some 120 bytes for each of its few devices.
const STATS_ROOM: usize = 8192;
/// Column of the transmit drops in a line of `/proc/net/dev`, after the name.
const TRANSMIT_DROPS_COLUMN: usize = 11;

/// A TUN device with offloads on; it goes away when this is dropped.
pub(crate) struct Tun {
    file: File,
    /// That namespace's `/proc/net/dev`.
    stats: File,
    name: String,
    scratch: Box<[u8]>,
}

impl Tun {
    /// Enters the namespace (the calling thread stays in it) and creates the device there.
    pub(crate) fn create(namespace: &NamespaceHandle, name: &str) -> Result<Tun, Error> {
        let doing = |what: &str| format!("{what} TUN device {name} in namespace {}", namespace.name());
        namespace.enter()?;
        let file = sys::create_tun(name).map_err(Error::system(doing("creating")))?;
        sys::enable_offloads(&file).map_err(Error::system(doing("switching offloads on for")))?;
        let stats = File::open("/proc/thread-self/net/dev")
            .map_err(Error::system(doing("opening /proc/net/dev for")))?;
        Ok(Tun { file, stats, name: name.to_string(), scratch: vec![0; READ_ROOM].into() })
    }

    /// The next packet that was sent into the device, if there is one. An error means the device is gone.
    pub(crate) fn read(&mut self) -> Result<Option<Packet>, Error> {
        match (&self.file).read(&mut self.scratch) {
            Ok(len) => Ok(Packet::parse(&self.scratch[..len])),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
            Err(e) => Err(Error::system(format!("reading from {}", self.name))(e)),
        }
    }

    /// Hands segments `first..end` to the kernel as received. False: it refused.
    pub(crate) fn write(&self, packet: &Packet, first: u32, end: u32) -> bool {
        let (head, payload) = packet.piece(first, end);
        let parts = [IoSlice::new(head.bytes()), IoSlice::new(payload)];
        matches!((&self.file).write_vectored(&parts), Ok(len) if len > 0)
    }

    /// Transmit drops of the device so far: its ring towards us was full.
    pub(crate) fn ring_drops(&self) -> u64 {
        let mut text = [0u8; STATS_ROOM];
        let len = self.stats.read_at(&mut text, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..len]);
        let of_device = |line: &str| {
            let (name, numbers) = line.split_once(':')?;
            (name.trim() == self.name)
                .then(|| numbers.split_whitespace().nth(TRANSMIT_DROPS_COLUMN)?.parse().ok())?
        };
        text.lines().find_map(of_device).unwrap_or(0)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
