//! The datagrams that a socket has received, and their memory: large buffers that go from the kernel to the
//! reader of a call without a copy and come back to be filled again. Knows nothing of Rx packets.

use std::array;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec;

use bytes::Bytes;
use quinn_udp::{BATCH_SIZE, RecvMeta};

use super::icmp::IcmpError;
use super::normalised;

/// Most deliveries that one [`Socket::recv`](super::Socket::recv) brings; with fewer, no more waited.
pub const MAX_DELIVERIES: usize = BATCH_SIZE;

/// Size of a receive buffer. The largest UDP payload and the largest bundle that GRO makes are both below 64 KiB, so
/// that nothing is ever cut.
pub(super) const BUFFER_BYTES: usize = 64 * 1024;

/// A delivery that fills less than this of its buffer is copied into memory of its own size, so that a kept delivery holds at most
/// eight times its size, and a single packet just itself. Bundles of 8, which senders make, are above it. Copying those was
/// measured to cost a fifth of 2 million packets/s, as malloc gave the memory back to the system and fetched it again for every
/// batch.
const COPY_BELOW_BYTES: usize = BUFFER_BYTES / 8;

/// Free buffers that are kept per [`RecvBatch`]: 16 MiB, if ever so many were in the hands of readers. What comes back beyond that
/// is freed. Kept were 64 first; readers that share cores with 250 hosts have more than that at a time, and making and zeroing
/// them anew was 4 % of all that the machine could carry.
const POOL_BUFFERS: usize = 8 * BATCH_SIZE;

/// One delivery of the kernel: a datagram, or several of equal size from one peer that arrived together (GRO).
#[derive(Debug, Clone)]
pub struct Datagram {
    /// The sender's address. IPv4 peers appear as IPv4 whatever the socket.
    pub from: SocketAddr,
    /// The address of ours that it was sent to, hence the one to answer from (as `src_ip` of a
    /// [`Transmit`](super::Transmit)). `None` where one cannot answer from it: multicast, IPv4 broadcast.
    pub to: Option<IpAddr>,
    /// Size in bytes of each datagram in `data` but the last, which may be shorter. Never 0, at most `data.len()`.
    pub segment_size: usize,
    /// The payload of the datagrams, one after the other; never empty. Parts of it share memory: keeping a few bytes of
    /// a large bundle for long keeps 64 KiB.
    pub data: Bytes,
}

impl Datagram {
    /// The single datagrams, in the order of arrival, without copying.
    pub fn segments(&self) -> Segments {
        Segments { rest: self.data.clone(), segment_size: self.segment_size }
    }

    /// Memory that it holds, in bytes.
    pub fn held_bytes(&self) -> usize {
        if self.data.len() < COPY_BELOW_BYTES { self.data.len() } else { BUFFER_BYTES }
    }
}

/// The single datagrams of a [`Datagram`].
#[derive(Debug, Clone)]
pub struct Segments {
    rest: Bytes,
    segment_size: usize,
}

impl Iterator for Segments {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.rest.len() > self.segment_size {
            Some(self.rest.split_to(self.segment_size))
        } else if self.rest.is_empty() {
            None
        } else {
            Some(mem::take(&mut self.rest))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.rest.len().div_ceil(self.segment_size);
        (count, Some(count))
    }
}

impl ExactSizeIterator for Segments {}

/// The datagrams that one [`Socket::recv`](super::Socket::recv) has brought, and the buffers for the next. One
/// per receiving thread; it holds 2 MiB, and up to 16 MiB more in free buffers.
#[derive(Debug)]
pub struct RecvBatch {
    pub(super) buffers: [Box<[u8]>; BATCH_SIZE],
    pub(super) meta: [RecvMeta; BATCH_SIZE],
    pub(super) errors: Vec<IcmpError>,
    datagrams: Vec<Datagram>,
    pool: Arc<Pool>,
}

impl RecvBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self {
            buffers: array::from_fn(|_| new_buffer()),
            meta: [RecvMeta::default(); BATCH_SIZE],
            errors: Vec::new(),
            datagrams: Vec::with_capacity(BATCH_SIZE),
            pool: Arc::default(),
        }
    }

    /// Takes out the datagrams, in the order of arrival. What is not taken is dropped by the next `recv`.
    pub fn drain(&mut self) -> vec::Drain<'_, Datagram> {
        self.datagrams.drain(..)
    }

    /// Takes out what ICMP reported about packets sent from the socket.
    pub fn drain_errors(&mut self) -> vec::Drain<'_, IcmpError> {
        self.errors.drain(..)
    }

    pub(super) fn clear(&mut self) {
        self.datagrams.clear();
        self.errors.clear();
    }

    /// Makes datagrams of the first `count` buffers, which the kernel has just filled as `meta` says. Returns how
    /// many there are; empty ones are left out, since no Rx packet is empty.
    pub(super) fn take_received(&mut self, count: usize) -> usize {
        for (buffer, meta) in self.buffers.iter_mut().zip(&self.meta).take(count) {
            let length = meta.len.min(buffer.len());
            if length == 0 {
                continue;
            }
            let data = if length < COPY_BELOW_BYTES {
                Bytes::copy_from_slice(&buffer[..length])
            } else {
                let buffer = mem::replace(buffer, self.pool.take());
                Bytes::from_owner(Lent { buffer, length, pool: Arc::clone(&self.pool) })
            };
            self.datagrams.push(Datagram {
                from: normalised(meta.addr),
                to: meta.dst_ip.map(|ip| ip.to_canonical()).filter(can_answer_from),
                segment_size: if meta.stride == 0 { length } else { meta.stride.min(length) },
                data,
            });
        }
        self.datagrams.len()
    }

    #[cfg(test)]
    pub(super) fn free_buffers(&self) -> usize {
        self.pool.lock().len()
    }
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self::new()
    }
}

fn can_answer_from(ip: &IpAddr) -> bool {
    !ip.is_multicast() && !matches!(ip, IpAddr::V4(ip) if ip.is_broadcast())
}

/// Zeroed once, when made; what an earlier packet left in a buffer is never handed out.
fn new_buffer() -> Box<[u8]> {
    vec![0; BUFFER_BYTES].into_boxed_slice()
}

/// Buffers that came back from readers.
#[derive(Debug, Default)]
struct Pool {
    free: Mutex<Vec<Box<[u8]>>>,
}

impl Pool {
    fn take(&self) -> Box<[u8]> {
        let free = self.lock().pop();
        free.unwrap_or_else(new_buffer)
    }

    fn give_back(&self, buffer: Box<[u8]>) {
        let mut free = self.lock();
        if free.len() < POOL_BUFFERS {
            free.push(buffer);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Box<[u8]>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer in the hands of readers; goes back to its pool when the last of them drops its part.
struct Lent {
    buffer: Box<[u8]>,
    length: usize,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give_back(mem::take(&mut self.buffer));
    }
}
