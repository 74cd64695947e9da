//! The numbers within DEBUG packets: what can be asked, versions, states and flags. Each is written once, with the word
//! that rxdebug prints for it. The records that hold them are in `debug`.

use crate::debug::record::newtype_fields;
use std::fmt;

macro_rules! numbers {
    ($(#[$about:meta])* $name:ident($int:ty) { $($(#[$doc:meta])* $number:literal $constant:ident $word:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($number);)*

            /// The word for it, or `None` for a number without one.
            pub const fn word(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($word),)*
                    _ => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.word() {
                    Some(word) => f.write_str(word),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }

        newtype_fields! { $name($int) }
    };
}

macro_rules! bits {
    ($(#[$about:meta])* $name:ident($int:ty) { $($(#[$doc:meta])* $bit:literal $constant:ident $word:literal)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($bit);)*

            /// True if all bits of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These and those.
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The words for the bits that are set, in the order of the bits; bits without a word are passed over.
            pub fn words(self) -> impl Iterator<Item = &'static str> {
                let all: &'static [(Self, &'static str)] = &[$((Self($bit), $word),)*];
                all.iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, word)| *word)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)?;
                self.words().try_for_each(|word| write!(f, " {word}"))
            }
        }

        newtype_fields! { $name($int) }
    };
}

numbers! {
    /// The kind of a DEBUG request (Rx notes 14). An open set.
    DebugKind(i32) {
        /// [`DebugStats`](super::DebugStats).
        1 STATS "statistics of the packet pool"
        /// The index-th connection with an active call.
        2 CONNECTION "connection"
        /// The index-th connection of all.
        3 ANY_CONNECTION "connection of all"
        /// [`RxStatistics`](super::RxStatistics).
        4 RX_STATISTICS "Rx statistics"
        /// The index-th peer.
        5 PEER "peer"
        /// In a reply: the question is not understood.
        -8 NOT_SUPPORTED "not supported"
    }
}

/// The letter by which a server says which debug records it knows (Rx notes 14). Each constant is the first version
/// with that feature.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DebugVersion(pub u8);

impl DebugVersion {
    /// Security statistics in connections.
    pub const SECURITY_STATS: Self = Self(b'L');
    /// Connections are laid out as today; before, without the three bytes behind the security index.
    pub const ALIGNED_CONNECTIONS: Self = Self(b'M');
    /// [`DebugKind::ANY_CONNECTION`].
    pub const ANY_CONNECTION: Self = Self(b'M');
    /// [`DebugKind::RX_STATISTICS`].
    pub const RX_STATISTICS: Self = Self(b'M');
    /// `n_waiting`.
    pub const WAITING: Self = Self(b'N');
    /// `idle_threads`.
    pub const IDLE_THREADS: Self = Self(b'O');
    /// Thirteen packet types in the statistics.
    pub const PACKET_TYPES: Self = Self(b'P');
    /// [`DebugKind::PEER`].
    pub const PEERS: Self = Self(b'Q');
    /// `n_waited`.
    pub const WAITED: Self = Self(b'R');
    /// `n_packets`.
    pub const PACKETS: Self = Self(b'S');
    /// The version of a server of today.
    pub const CURRENT: Self = Self(b'S');

    /// True if a server of this version has the feature of that one.
    pub const fn has(self, feature: Self) -> bool {
        self.0 >= feature.0
    }
}

impl fmt::Debug for DebugVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version '{}'", self.0.escape_ascii())
    }
}

newtype_fields! { DebugVersion(u8) }

numbers! {
    /// The state of a call (Rx notes 6.3).
    CallState(u8) {
        /// The channel has had no call, or has forgotten it.
        0 NOT_INITIALIZED "not initialized"
        /// Server: packets have come, no thread has it yet.
        1 PRECALL "precall"
        /// A call at work.
        2 ACTIVE "active"
        /// Done, kept in case the peer lacks the last acknowledgement.
        3 DALLY "dally"
        /// Server: done, the reply is not hard-acknowledged yet.
        4 HOLD "hold"
        /// About to be given up.
        5 RESET "reset"
    }
}

numbers! {
    /// The state of an active call (Rx notes 6.3).
    CallMode(u8) {
        /// Sending, or may.
        1 SENDING "sending"
        /// Receiving, or may.
        2 RECEIVING "receiving"
        /// In error.
        3 ERROR "error"
        /// The reply is all sent, or all read.
        4 EOF "eof"
    }
}

numbers! {
    /// The end of the connection that the server that was asked is (Rx notes 14).
    ConnectionSide(u8) {
        /// It makes the calls.
        0 CLIENT "client"
        /// It serves them.
        1 SERVER "server"
    }
}

bits! {
    /// The flags of a connection; observed: what rxdebug of OpenAFS 1.8.9 prints.
    ConnectionFlags(u8) {
        /// A new call waits for a channel.
        0x01 MAKE_CALL_WAITING "MAKECALL_WAITING"
        /// Client: goes away with its last call.
        0x02 DESTROYED "DESTROYED"
        /// The peer fills the header's checksum.
        0x04 PACKET_CHECKSUM "pktCksum"
        /// The peer tells its window.
        0x08 KNOWS_WINDOW "knowWindow"
        /// Being reset.
        0x10 RESET "reset"
        /// In use: must not go away.
        0x20 BUSY "busy"
        /// Waits for an answer that proves the client's address.
        0x40 ATTACH_WAIT "attachWait"
    }
}

bits! {
    /// The lowest eight flags of a call; observed: what rxdebug of OpenAFS 1.8.9 prints.
    CallFlags(u8) {
        /// The reader waits for a packet.
        0x01 READER_WAITS "reader_wait"
        /// The writer waits for the window, to fill a packet.
        0x02 WAITS_TO_FILL "window_alloc"
        /// The writer waits for the window, to send.
        0x04 WAITS_TO_SEND "window_send"
        /// The writer waits for a packet buffer.
        0x08 WAITS_FOR_PACKETS "wait_packets"
        /// Waits for a thread.
        0x10 WAITS_FOR_THREAD "waiting_for_process"
        /// Everything has been received.
        0x20 RECEIVE_DONE "receive_done"
        /// The receive queue was emptied before a thread had the call.
        0x40 CLEARED "call_cleared"
    }
}

bits! {
    /// The queues of a call (Rx notes 14, callOther).
    CallQueues(u8) {
        /// Packets to be read.
        0x01 INPUT "has_input_packets"
        /// Packets to be sent, or acknowledged.
        0x02 OUTPUT "has_output_packets"
    }
}

numbers! {
    /// The security class of a connection, by what it says of itself. Observed: 1.8.9's rxdebug knows these words.
    SecurityKind(u8) {
        /// It says nothing.
        0 SILENT "none"
        /// No security.
        1 NULL "rxnull"
        /// A class of AFS before Kerberos; long gone.
        2 VAB "rxvab"
        /// Kerberos with fcrypt.
        3 KAD "rxkad"
    }
}

numbers! {
    /// The protection of packets: the levels of rxkad.
    SecurityLevel(u8) {
        /// Nothing but the header's checksum.
        0 CLEAR "clear"
        /// Integrity.
        1 AUTH "auth"
        /// Encryption.
        2 CRYPT "crypt"
    }
}

bits! {
    /// The flags of a connection's security (Rx notes 14).
    SecurityFlags(i32) {
        /// No state of the connection is held.
        0x01 UNALLOCATED "unalloc"
        /// The client has proved who it is.
        0x02 AUTHENTICATED "authenticated"
        /// The ticket has run out.
        0x04 EXPIRED "expired"
        /// Packets carry a checksum in the header.
        0x08 PACKET_CHECKSUM "pktCksum"
    }
}
