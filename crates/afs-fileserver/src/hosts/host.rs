//! One host: what is known of it, what it holds, and what it has to be told next. When it is told, is left to the parent.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, VolumeId};
use rx_proto::ids::Epoch;
use rx_proto::time::Instant;

use super::{Admitted, Delivery, HostId, Message};

/// The number of clients at a silent address that the server still asks when they first call. Usually there is one: a client that has just
/// begun where another has ended. More are an attack.
pub(super) const ASKED_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Host {
    pub(super) uuid: Option<Uuid>,
    /// The address that it calls from, and at which it is called.
    pub(super) address: SocketAddr,
    /// The epochs of its calls since it last said who it is, the newest last.
    pub(super) epochs: Vec<Epoch>,
    /// The epochs of starts that are known to be alive, and of those that were before the last new one: see [`alive`](super::alive).
    pub(super) alive: Vec<Epoch>,
    pub(super) formerly_alive: Vec<Epoch>,
    pub(super) capabilities: u32,
    pub(super) last_heard: Instant,
    /// The time when it is looked at again: its entry in the agenda.
    pub(super) due: Instant,
    /// `Some` while it does not answer.
    pub(super) down: Option<Down>,
    /// It has to be told to forget everything.
    pub(super) reset_pending: bool,
    /// Breaks that it did not take.
    pub(super) delayed: BTreeSet<AfsFid>,
    /// Somebody is telling it something that calls wait for.
    pub(super) is_being_told: bool,
    /// For a host from before the start: the volumes it may have promises for.
    pub(super) held_before: Vec<VolumeId>,
    /// It was given promises since it was last told to forget.
    pub(super) may_hold_promises: bool,
    /// Another address says that it is this client: it is to be asked whether it is still here.
    pub(super) is_doubted: bool,
    /// Another address was given all its promises, which happens once.
    pub(super) has_moved: bool,
    /// It goes as soon as it has been told to forget, unless it calls before.
    pub(super) is_leaving: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Down {
    /// The time to wait after the next failure.
    pub(super) backoff: Duration,
    /// The earliest time of the next try.
    pub(super) retry_at: Instant,
    /// The clients, by their epochs, that have called from there since and did not say who they are.
    pub(super) asked: Vec<Epoch>,
}

impl Down {
    /// True if a client there is not to be asked before it is time.
    pub(super) fn was_asked(&self, epoch: Epoch) -> bool {
        self.asked.contains(&epoch) || self.asked.len() >= ASKED_MAX
    }
}

impl Host {
    /// Notes that it says who it is, or calls: it is not to go.
    pub(super) fn heard_of(&mut self, now: Instant) {
        self.last_heard = now;
        self.is_leaving = false;
    }

    /// True if a change might have to be told to it.
    pub(super) fn holds_something(&self) -> bool {
        self.may_hold_promises || !self.delayed.is_empty() || !self.held_before.is_empty()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.reset_pending || !self.delayed.is_empty()
    }

    pub(super) fn message(&self) -> Message {
        match (self.reset_pending, self.delayed.is_empty()) {
            (true, _) => Message::Reset,
            (false, false) => Message::Break(self.delayed.iter().copied().collect()),
            (false, true) => Message::Probe,
        }
    }

    pub(super) fn delivery(&self, id: HostId, message: Message, is_waited_for: bool) -> Delivery {
        Delivery { host: id, address: self.address, uuid: self.uuid, message, is_waited_for }
    }

    pub(super) fn admitted(&self, id: HostId) -> Admitted {
        let gets_promises = self.down.is_none() && !self.has_pending();
        Admitted { host: id, gets_promises, capabilities: self.capabilities }
    }
}
