//! One call: its two streams, how far it is, and how long it may still wait. What its packets say is in `transmit` and
//! `receive`; which connection and path it belongs to, in `connection`.
//!
//! ```text
//!             begins to reply            reply is through
//!   Request ───────────────────▶ Reply ───────────────────▶ Done
//!      │                           │
//!      └──────── aborted ──────────┴──────────────────────▶ Failed
//! ```
//! A client's call replies with the first DATA packet from the server and is through when its reader has all; a server's
//! replies when its handler writes and is through when the client has acknowledged all.

use crate::abort::AbortCode;
use crate::config::CallLimits;
use crate::fair::Owner;
use crate::ids::{CallNumber, Seq};
use crate::receive::Receive;
use crate::stall_timer::StallTimer;
use crate::time::Instant;
use crate::trace::Recorder;
use crate::transmit::Transmit;
use std::fmt;
use std::time::Duration;

/// The reason why a call ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// The peer ended it with this code.
    AbortedByPeer(AbortCode),
    /// This side ended it with this code: a timeout, a protocol error of the peer, or the application's wish.
    Failed(AbortCode),
    /// There is no such call any more.
    Gone,
}

impl CallError {
    /// The code, given by either end.
    pub const fn code(self) -> AbortCode {
        match self {
            Self::AbortedByPeer(code) | Self::Failed(code) => code,
            Self::Gone => AbortCode::USER_ABORT,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AbortedByPeer(code) => write!(f, "the peer ended the call: {code}"),
            Self::Failed(code) => write!(f, "the call failed: {code}"),
            Self::Gone => f.write_str("the call has ended"),
        }
    }
}

impl std::error::Error for CallError {}

/// The progress of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Request,
    Reply,
    Done,
    Failed,
}

/// An event that moves a call on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    ReplyBegins,
    ReplyThrough,
    Aborted,
}

impl Stage {
    /// The table under the drawing. What a call in that stage does not do leaves it as it is.
    pub(crate) const fn after(self, step: Step) -> Self {
        match (self, step) {
            (Self::Request, Step::ReplyBegins) => Self::Reply,
            (Self::Request | Self::Reply, Step::ReplyThrough) => Self::Done,
            (Self::Request | Self::Reply, Step::Aborted) => Self::Failed,
            (stage, _) => stage,
        }
    }

    pub(crate) const fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// The time for which a call's first DATA packet waits for its turn, the path's window and its pace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendWait {
    since: Option<Instant>,
    time: Option<Duration>,
}

impl SendWait {
    /// Notes that there is something to send.
    pub(crate) fn note_wish(&mut self, now: Instant) {
        self.since = self.since.or(Some(now));
    }

    /// A DATA packet went out.
    pub(crate) fn note_sent(&mut self, now: Instant) {
        if self.time.is_none() {
            self.time = Some(self.since.map_or(Duration::ZERO, |since| now.since(since)));
        }
    }

    pub(crate) const fn time(&self) -> Option<Duration> {
        self.time
    }
}

/// A call's share of the room for data on their way to here (see `endpoint::credits`).
#[derive(Debug)]
pub(crate) struct Credit {
    /// Bytes by the kernel's count that may still come for it.
    pub(crate) held: u64,
    /// The part of it that was not offered.
    pub(crate) uninvited: u64,
    /// The bytes that each of its packets counted in that; those up to the one that is named, which were cut before larger ones
    /// passed, count less.
    pub(crate) each: u64,
    pub(crate) small: (Seq, u64),
    /// It stands in the queue of those that want more, and has ever done so.
    pub(crate) is_queued: bool,
    pub(crate) has_asked: bool,
    /// It stands in the list of those that receive.
    pub(crate) is_listed: bool,
    /// The owner of the call, since that was first asked.
    pub(crate) owner: Option<Owner>,
    /// Packets that came in the last round trip, and in this one, which began then.
    pub(crate) came_before: u32,
    pub(crate) came: u32,
    pub(crate) round_from: Instant,
    /// It was told again what it has, and nothing has come since.
    pub(crate) is_reminded: bool,
    /// Nothing had come for so long that it was left one packet, which is not counted.
    pub(crate) is_idle: bool,
    pub(crate) data_at: Instant,
}

impl Credit {
    /// A packet came.
    pub(crate) fn handle_data(&mut self, now: Instant, rtt: Duration) {
        if now.since(self.round_from) >= rtt {
            (self.came_before, self.came, self.round_from) = (self.came, 0, now);
        }
        self.came += 1;
        (self.data_at, self.is_reminded, self.is_idle) = (now, false, false);
    }

    const fn new(now: Instant) -> Self {
        Self {
            held: 0,
            uninvited: 0,
            each: 0,
            small: (Seq(0), 0),
            is_queued: false,
            has_asked: false,
            is_listed: false,
            owner: None,
            came_before: 0,
            came: 0,
            round_from: now,
            is_reminded: false,
            is_idle: false,
            data_at: now,
        }
    }
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) number: CallNumber,
    pub(crate) stage: Stage,
    pub(crate) tx: Transmit,
    pub(crate) rx: Receive,
    pub(crate) error: Option<CallError>,
    /// The application is done with it.
    pub(crate) released: bool,
    /// Server: the application has been told of it.
    pub(crate) announced: bool,
    /// Server: it has not, yet.
    pub(crate) is_pending: bool,
    /// The application was told to wait, and wants to hear when it need not.
    pub(crate) wants_read: bool,
    pub(crate) wants_write: bool,
    /// It stands in its path's queue of senders; an ACK of it does.
    pub(crate) queued: bool,
    pub(crate) ack_queued: bool,
    pub(crate) limits: CallLimits,
    /// Server: how long it still waits for the client.
    pub(crate) stall_timer: StallTimer,
    started: Instant,
    pub(crate) heard_at: Instant,
    pub(crate) progress_at: Instant,
    pub(crate) pinged_at: Instant,
    /// The time when the peer was last asked something that it has answered.
    pub(crate) answered_at: Instant,
    /// The status bytes of both ends (Rx notes 12).
    pub(crate) status: u8,
    pub(crate) peer_status: u8,
    pub(crate) bytes_sent: u64,
    /// Bytes of the receive budget that its window holds.
    pub(crate) promised: u64,
    /// Server: unread bytes that are counted for the caller's host.
    pub(crate) counted: u64,
    /// Its share of the room for data on their way to here.
    pub(crate) credit: Credit,
    /// The peer has named its window in this call.
    pub(crate) window_known: bool,
    /// Answers to our pings in a row that take back what had been acknowledged for good.
    pub(crate) contradictions: u8,
    pub(crate) wait: SendWait,
    /// The record of it, if it is traced.
    pub(crate) trace: Option<Box<Recorder>>,
}

impl Call {
    pub(crate) fn new(
        now: Instant,
        number: CallNumber,
        limits: CallLimits,
        send_window: u32,
        receive_window: u32,
    ) -> Self {
        let mut tx = Transmit::new(now, send_window);
        tx.set_dead_time(limits.dead_after());
        Self {
            number,
            stage: Stage::Request,
            tx,
            rx: Receive::new(now, receive_window),
            error: None,
            released: false,
            announced: false,
            is_pending: false,
            wants_read: false,
            wants_write: false,
            queued: false,
            ack_queued: false,
            limits,
            stall_timer: StallTimer::default(),
            started: now,
            heard_at: now,
            progress_at: now,
            pinged_at: now,
            answered_at: Instant::ORIGIN,
            status: 0,
            peer_status: 0,
            bytes_sent: 0,
            promised: 0,
            counted: 0,
            credit: Credit::new(now),
            window_known: false,
            contradictions: 0,
            wait: SendWait::default(),
            trace: None,
        }
    }

    /// Sets how long it may still wait.
    pub(crate) fn set_limits(&mut self, limits: CallLimits) {
        self.limits = limits;
        self.tx.set_dead_time(limits.dead_after());
    }

    /// Returns the code of the limit that has run out, if one has.
    pub(crate) fn expired(&self, now: Instant) -> Option<AbortCode> {
        let over = |limit: Option<Duration>, from: Instant| limit.is_some_and(|l| now >= from + l);
        if over(Some(self.limits.dead_after()), self.alive_at()) {
            return Some(AbortCode::CALL_DEAD);
        }
        (self.stall_timer.is_over()
            || over(self.limits.idle, self.progress_at)
            || over(self.limits.hard, self.started))
        .then_some(AbortCode::CALL_TIMEOUT)
    }

    /// Leaves out a time for which this end stood still: that says nothing of the peer, whose answers may wait to be
    /// read.
    pub(crate) fn leave_out(&mut self, now: Instant, late: Duration) {
        for since in [&mut self.heard_at, &mut self.progress_at, &mut self.started] {
            *since = (*since + late).min(now);
        }
    }

    /// The time from which silence counts. A server's call that the application has not been told of is kept by data
    /// alone: its peer may answer pings for ever and not have such a call, or not be who it says.
    fn alive_at(&self) -> Instant {
        if self.is_pending { self.progress_at } else { self.heard_at }
    }

    /// The time when [`Self::expired`] may change, or a ping is due.
    pub(crate) fn liveness_deadline(&self) -> Instant {
        let mut at = self.keepalive_due().min(self.alive_at() + self.limits.dead_after());
        if let Some(idle) = self.limits.idle {
            at = at.min(self.progress_at + idle);
        }
        if let Some(hard) = self.limits.hard {
            at = at.min(self.started + hard);
        }
        self.stall_timer.ends_at().map_or(at, |ends| at.min(ends))
    }

    /// The time when the peer has been silent for so long that it is asked.
    pub(crate) fn keepalive_due(&self) -> Instant {
        self.heard_at.max(self.pinged_at) + self.limits.keepalive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every stage against every step, so that a new transition shows up in review.
    #[test]
    fn the_table_of_stages() {
        let mut table = String::new();
        for stage in [Stage::Request, Stage::Reply, Stage::Done, Stage::Failed] {
            for step in [Step::ReplyBegins, Step::ReplyThrough, Step::Aborted] {
                table += &format!("{stage:?} {step:?} {:?}\n", stage.after(step));
            }
        }
        assert_eq!(
            table,
            "Request ReplyBegins Reply\nRequest ReplyThrough Done\nRequest Aborted Failed\n\
             Reply ReplyBegins Reply\nReply ReplyThrough Done\nReply Aborted Failed\n\
             Done ReplyBegins Done\nDone ReplyThrough Done\nDone Aborted Done\n\
             Failed ReplyBegins Failed\nFailed ReplyThrough Failed\nFailed Aborted Failed\n"
        );
    }

    #[test]
    fn limits_run_out_in_their_order() {
        let limits = CallLimits {
            idle: Some(Duration::from_secs(3)),
            hard: Some(Duration::from_secs(9)),
            ..CallLimits::default()
        };
        let mut call = Call::new(Instant::ORIGIN, CallNumber(1), limits, 16, 255);
        let at = |s| Instant::ORIGIN + Duration::from_secs(s);
        assert_eq!(call.liveness_deadline(), at(2));
        call.heard_at = at(2);
        assert_eq!(call.expired(at(2)), None);
        assert_eq!(call.expired(at(3)), Some(AbortCode::CALL_TIMEOUT));
        (call.heard_at, call.progress_at) = (at(8), at(8));
        assert_eq!(call.expired(at(9)), Some(AbortCode::CALL_TIMEOUT));
        call.heard_at = Instant::ORIGIN;
        assert_eq!(call.expired(at(12)), Some(AbortCode::CALL_DEAD));
    }
}
