//! Counters of an endpoint, named as rxdebug names them where it has them (Rx notes 14).

/// Packet types that are counted one by one: 0 to 13.
pub const COUNTED_TYPES: usize = 14;

/// What an endpoint has done since it was made.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Packets received, by type.
    pub packets_read: [u64; COUNTED_TYPES],
    /// Packets sent, by type.
    pub packets_sent: [u64; COUNTED_TYPES],
    /// Datagrams that are no Rx packets.
    pub bogus_packets: u64,
    /// Packets for connections or calls that are not there.
    pub spurious_packets: u64,
    /// DATA packets that had come before.
    pub duplicate_packets: u64,
    /// DATA packets sent again.
    pub data_resent: u64,
    /// PINGs sent.
    pub pings_sent: u64,
    /// Calls begun, of both roles.
    pub calls: u64,
    /// Calls that ended early, whoever ended them.
    pub calls_failed: u64,
    /// Calls that were told to wait since an older one still ran on their channel.
    pub busies: u64,
    /// Packets not sent since the peer's address may be spoofed.
    pub withheld: u64,
    /// Connections dropped to make room for others.
    pub evicted: u64,
    /// Bytes of calls received in order.
    pub bytes_read: u64,
    /// Bytes of calls sent for the first time.
    pub bytes_written: u64,
}

impl Stats {
    pub(crate) fn note_read(&mut self, kind: crate::packet::PacketType) {
        if let Some(n) = self.packets_read.get_mut(usize::from(kind.0)) {
            *n += 1;
        }
    }

    pub(crate) fn note_sent(&mut self, kind: crate::packet::PacketType) {
        if let Some(n) = self.packets_sent.get_mut(usize::from(kind.0)) {
            *n += 1;
        }
    }
}
