//! The names of Rx: what identifies a connection, a channel, a call, a packet and a transmission (Rx notes 1, 2, 5).
//! Each has a type of its own so that they cannot be mixed up; their arithmetic is here and nowhere else.

use std::fmt;

macro_rules! number {
    ($(#[$m:meta])* $name:ident($int:ty), $debug:literal) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $debug, self.0)
            }
        }
    };
}

number! {
    /// A client instance; chosen once when the client's Rx starts. With the top bit set the server matches connections
    /// without regard to the address they come from (Rx notes 5).
    Epoch(u32), "epoch {:08x}"
}

number! {
    /// A connection within an epoch: the header's cid with its two low bits, the channel, cleared.
    ConnectionId(u32), "cid {:08x}"
}

number! {
    /// Numbers the calls of a channel: 1, 2, 3, ...; 0 in a header means "about the whole connection".
    CallNumber(u32), "call {}"
}

number! {
    /// Numbers the DATA packets of one direction of a call: 1, 2, 3, ... Does not wrap: 2³² packets are 6 TB, and a call
    /// that comes to its end is aborted.
    Seq(u32), "seq {}"
}

number! {
    /// Names a service on a server's port (`serviceId`).
    ServiceId(u16), "service {}"
}

number! {
    /// The security class of a connection: 0 null, 2 rxkad, 4 rxgk, 6 yfs-rxgk. Fixed for its life.
    SecurityIndex(u8), "security {}"
}

number! {
    /// How well a connection's calls are protected: see the constants. All classes number it so.
    SecurityLevel(u8), "level {}"
}

impl SecurityLevel {
    /// Anybody on the way can read and change what is said.
    pub const CLEAR: Self = Self(0);
    /// Nobody on the way can change it unseen.
    pub const AUTH: Self = Self(1);
    /// Nor read it.
    pub const CRYPT: Self = Self(2);
}

number! {
    /// Counts the transmissions of one end of a connection; a new one for each packet put on the wire. Wraps, and is
    /// never 0; compare with [`Serial::is_after`].
    Serial(u32), "serial {}"
}

impl Epoch {
    /// Makes an epoch from 32 random bits: bit 31 set, bit 30 clear, as OpenAFS has it.
    pub const fn from_random(bits: u32) -> Self {
        Self((bits | 0x8000_0000) & !0x4000_0000)
    }

    /// True if a server matches this epoch's connections from any address.
    pub const fn ignores_address(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl ConnectionId {
    /// The connection part of a header's cid.
    pub const fn of(cid: u32) -> Self {
        Self(cid & !3)
    }

    /// The header's cid for one of this connection's channels.
    pub const fn with_channel(self, channel: Channel) -> u32 {
        self.0 | channel.0 as u32
    }

    /// The connection a client makes next.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(4))
    }
}

/// The number of channels of a connection, thus of calls that it carries at once (RX_MAXCALLS).
pub const CHANNELS: usize = 4;

/// One of a connection's four channels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Channel(u8);

impl Channel {
    /// All four.
    pub const ALL: [Self; CHANNELS] = [Self(0), Self(1), Self(2), Self(3)];

    /// The channel part of a header's cid.
    pub const fn of(cid: u32) -> Self {
        Self((cid & 3) as u8)
    }

    /// 0 to 3.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Serial {
    /// The serial in an ACK that no packet prompted.
    pub const NONE: Self = Self(0);

    /// The serial after this one, skipping 0.
    pub const fn next(self) -> Self {
        match self.0.wrapping_add(1) {
            0 => Self(1),
            n => Self(n),
        }
    }

    /// True if this transmission came after `other`, within half the number space.
    pub const fn is_after(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }
}

impl Seq {
    /// The first packet of a direction.
    pub const FIRST: Self = Self(1);

    /// The packet `n` later.
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0.saturating_add(n))
    }

    /// The number of packets by which this one comes after `earlier`; `None` if it comes before it.
    pub const fn after(self, earlier: Self) -> Option<u32> {
        self.0.checked_sub(earlier.0)
    }
}

impl CallNumber {
    /// In a header: about the connection, not one call.
    pub const CONNECTION: Self = Self(0);

    /// The channel's next call.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A channel of a connection by its place in the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChannelRef {
    pub(crate) connection: usize,
    pub(crate) channel: Channel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_wraps_past_zero() {
        assert_eq!(Serial(u32::MAX).next(), Serial(1));
        assert!(Serial(1).is_after(Serial(u32::MAX)));
        assert!(!Serial(5).is_after(Serial(5)));
    }

    #[test]
    fn an_epoch_has_openafs_bits() {
        assert_eq!(Epoch::from_random(0xffff_ffff), Epoch(0xbfff_ffff));
        assert!(Epoch::from_random(0).ignores_address());
        assert!(!Epoch(0x3fff_ffff).ignores_address());
    }

    #[test]
    fn cid_splits_into_connection_and_channel() {
        assert_eq!(ConnectionId::of(0xe567_6e67), ConnectionId(0xe567_6e64));
        assert_eq!(ConnectionId::of(0xe567_6e67).with_channel(Channel::of(0xe567_6e67)), 0xe567_6e67);
    }
}
