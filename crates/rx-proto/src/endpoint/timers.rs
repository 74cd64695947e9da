//! Work that is due with time: resends, delayed ACKs, keepalives, limits, reaping. Each path and each connection has one
//! entry in the heap, for the earliest of its deadlines; an entry that turns out too early is put back.

use super::reach::IDLE_PATH;
use super::{ChannelRef, Endpoint, Target};
use crate::abort::AbortCode;
use crate::call::CallError;
use crate::ids::Channel;
use crate::time::{Instant, STOOD_STILL};
use crate::transmit::{Lost, TimerAction};
use std::cmp::Reverse;
use std::time::Duration;

/// The number of challenges that a client may leave unanswered, and the time between two of them: 50 times 2 s (Rx notes
/// 11).
const CHALLENGE_TRIES: u8 = 50;
const CHALLENGE_AGAIN: Duration = Duration::from_secs(2);
/// Entries of the heap that may be out of date, beside one for each connection and path.
const TIMERS_SPARE: usize = 64;

impl Endpoint {
    /// The time when [`Self::handle_timeout`] is to be called next; `None` if nothing waits for time.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        [timer, self.credits.deadline()].into_iter().flatten().min()
    }

    /// Time has passed. Early calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(at) = self.poll_timeout().filter(|at| *at <= now) {
            match self.timers.peek() {
                Some(&Reverse((time, target))) if time == at => {
                    self.timers.pop();
                    match target {
                        Target::Path(index) => self.handle_path_timer(now, index, at),
                        Target::Connection(index) => self.handle_connection_timer(now, index, at),
                    }
                }
                _ => {
                    let (credits, mut calls) = self.credits();
                    credits.handle_timeout(now, &mut calls);
                }
            }
        }
    }

    pub(super) fn arm(&mut self, target: Target, at: Instant) {
        let armed = match target {
            Target::Path(index) => self.paths.get_mut(index).map(|p| &mut p.armed),
            Target::Connection(index) => self.connections.get_mut(index).map(|c| &mut c.armed),
        };
        let Some(armed) = armed else { return };
        if armed.is_none_or(|earlier| at < earlier) {
            *armed = Some(at);
            self.timers.push(Reverse((at, target)));
            if self.timers.len() > 2 * (self.connections.len() + self.paths.len()) + TIMERS_SPARE {
                self.tidy_timers();
            }
        }
    }

    /// Drops the entries that an earlier one has replaced, or whose target is no more. Without this each call would leave
    /// one for as long as an idle connection is kept.
    fn tidy_timers(&mut self) {
        let (paths, connections) = (&self.paths, &self.connections);
        let mut seen = std::collections::HashSet::new();
        self.timers.retain(|Reverse((at, target))| {
            let armed = match *target {
                Target::Path(index) => paths.get(index).and_then(|p| p.armed),
                Target::Connection(index) => connections.get(index).and_then(|c| c.armed),
            };
            armed == Some(*at) && seen.insert(*target)
        });
    }

    pub(super) fn rearm_path(&mut self, index: usize) {
        if let Some(at) = self.paths[index].deadline() {
            self.arm(Target::Path(index), at);
        }
    }

    pub(super) fn rearm_connection(&mut self, index: usize) {
        if let Some(at) = self.connection_deadline(index) {
            self.arm(Target::Connection(index), at);
        }
    }

    /// The time when time changes something here. `None` while calls have ended and the application holds them.
    fn connection_deadline(&self, index: usize) -> Option<Instant> {
        let connection = &self.connections[index];
        let path = &self.paths[connection.path];
        // One that is in use is not reaped, however long nothing has come: a deadline in the past would come for ever.
        let reap = self.reap_after(index).filter(|_| connection.is_idle());
        let mut at = reap.map_or(Instant::MAX, |time| connection.last_used + time);
        if let Some(challenging) = connection.challenging {
            at = at.min(challenging.sent_at + CHALLENGE_AGAIN);
        }
        at = Channel::ALL.into_iter().filter_map(|c| connection.final_ack_due(c)).fold(at, Instant::min);
        for call in connection.slots.iter().filter_map(|s| s.call.as_deref()) {
            if call.stage.has_ended() {
                continue;
            }
            at = at.min(call.liveness_deadline());
            let deadlines = [call.tx.deadline(&path.rtt, path.peer_delay()), call.rx.deadline()];
            at = deadlines.into_iter().flatten().fold(at, Instant::min);
        }
        (at < Instant::MAX).then_some(at)
    }

    /// An idle connection of a server goes after this time; a client's stays until it is closed, and goes once its last
    /// packets are out.
    fn reap_after(&self, index: usize) -> Option<Duration> {
        let connection = &self.connections[index];
        match (connection.is_client(), connection.is_open) {
            (false, _) => Some(self.config.reap_after),
            (true, false) => Some(Duration::ZERO),
            (true, true) => None,
        }
    }

    fn handle_path_timer(&mut self, now: Instant, index: usize, at: Instant) {
        let Some(path) = self.paths.get_mut(index).filter(|p| p.armed == Some(at)) else { return };
        path.armed = None;
        if path.send_at.is_some_and(|t| t <= now) {
            path.send_at = None;
            self.wake_path(index);
        }
        let path = &mut self.paths[index];
        let probe = path.mtu.deadline(path.rtt.timeout(path.peer_delay()));
        if probe.is_some_and(|t| t <= now) {
            path.mtu.handle_probe_timeout();
        }
        if path.reach_ping_due().is_some_and(|t| t <= now) {
            self.ask_reach_again(now, index);
        }
        let path = &mut self.paths[index];
        if path.connections == 0 {
            let idle = if path.is_verified() { self.config.reap_after } else { IDLE_PATH };
            if now.since(path.last_used) >= idle {
                return self.remove_path(index);
            }
            let at = path.last_used + idle;
            self.arm(Target::Path(index), at);
        }
        self.rearm_path(index);
    }

    fn handle_connection_timer(&mut self, now: Instant, index: usize, at: Instant) {
        let Some(connection) = self.connections.get_mut(index).filter(|c| c.armed == Some(at)) else {
            return;
        };
        connection.armed = None;
        if now.since(at) >= STOOD_STILL {
            connection.calls_mut().for_each(|call| call.leave_out(now, now.since(at)));
        }
        let connection = &self.connections[index];
        let unused_for = now.since(connection.last_used);
        if connection.is_idle() && self.reap_after(index).is_some_and(|time| unused_for >= time) {
            return self.remove_connection(now, index);
        }
        if let Some(challenging) = connection.challenging
            && now.since(challenging.sent_at) >= CHALLENGE_AGAIN
        {
            if challenging.tries >= CHALLENGE_TRIES || connection.held.is_empty() {
                return self.remove_connection(now, index);
            }
            self.challenge(now, index);
        }
        for channel in Channel::ALL {
            self.handle_call_timer(now, ChannelRef { connection: index, channel });
        }
        self.rearm_connection(index);
    }

    fn handle_call_timer(&mut self, now: Instant, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        if connection.final_ack_due(at.channel).is_some_and(|due| due <= now) {
            self.send_delayed_final_ack(at);
        }
        let connection = &mut self.connections[at.connection];
        let path = &mut self.paths[connection.path];
        let index = connection.path;
        let Some(call) = connection.call_mut(at.channel) else { return };
        if call.stage.has_ended() {
            return;
        }
        call.rx.handle_timer(now);
        call.stall_timer.look(now);
        let expired = call.expired(now);
        let keepalive = now >= call.keepalive_due();
        let action = call.tx.handle_timer(now, &path.rtt, &path.reordering, path.peer_delay());
        self.stats.note_timer(&action);
        call.trace_timer(now, &action);
        match action {
            TimerAction::Nothing | TimerAction::Probe => {}
            TimerAction::ProbeTail { left } => path.handle_lost(now, Lost::default(), left),
            TimerAction::TimedOut { lost } => path.handle_timeout(now, lost),
            TimerAction::Lost { lost, left } => path.handle_lost(now, lost, left),
        }
        self.queue_ack(at);
        if let Some(code) = expired {
            // A peer that does not answer is not told: for a server that is the end of a client that went away.
            return self.fail_call(now, at, CallError::Failed(code), code != AbortCode::CALL_DEAD);
        }
        let asks = match action {
            TimerAction::Probe => true,
            // The window may have shrunk below what is under way: a ping goes in any case.
            TimerAction::ProbeTail { left } => {
                let path = &self.paths[index];
                path.in_flight() > 0 && path.in_flight() + left > path.window()
            }
            TimerAction::Nothing | TimerAction::TimedOut { .. } | TimerAction::Lost { .. } => false,
        };
        if keepalive || asks {
            self.ping(now, at, 0);
        }
        self.examine_doubt(now, at);
        self.queue_call(at);
        self.wake_path(index);
    }
}
