//! The way of one operation through the servers that may carry it out: which is asked next, when to wait, when to give up.

use std::time::Duration;

use rx_proto::time::Instant;

use crate::verdict::Verdict;

/// The time for which an offline volume, or a server that does not serve yet, is waited for: longer than a start or a salvage of
/// one volume usually takes, far shorter than an administrator.
pub(crate) const OFFLINE_TIMEOUT: Duration = Duration::from_secs(20);

/// The first wait for a busy server; each next is twice as long.
const WAIT_FIRST: Duration = Duration::from_millis(250);

/// The longest wait between two questions to a busy server. OpenAFS waits 15 s always; a move of a volume takes about that.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(8);

/// The number of times that the VLDB is asked again in one operation: at once, then after a wait, as a volume that is being moved is
/// for a moment nowhere.
const LOOKS_MAX: u32 = 4;

/// The time between questions to the VLDB about a volume that stays offline: whether somebody works on it, and where it is by now.
/// The last part of a move takes some seconds.
pub(crate) const LOOK_WHILE_OFFLINE: Duration = Duration::from_secs(5);

/// The number of times that a call is repeated on a new connection.
pub(crate) const ANEW_MAX: u32 = 3;

/// A server down for less than this is not asked by operations that it would only make wait.
const DOWN_FOR_SURE: Duration = Duration::from_secs(60);

/// A server that an operation may ask, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The server's number.
    pub server: u32,
    /// The time since which it counts as down.
    pub down_since: Option<Instant>,
    /// True if it has ever answered.
    pub has_answered: bool,
}

/// The next step of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask this server.
    Try(u32),
    /// Ask the VLDB again, not before that time.
    LookAgain(Instant),
    /// Wait until then, or until a server that was down answers.
    Wait(Instant),
    /// Tell the user about the last failure; without one, nobody was asked as all are known to be down.
    GiveUp,
}

/// The way of one operation through the servers.
#[derive(Debug)]
pub struct Rotation {
    began: Instant,
    patience: Duration,
    /// The time for which servers that do not answer are waited for.
    patience_away: Duration,
    /// True if the VLDB can be asked where it is, and whether somebody works on it: it is a volume.
    is_of_volume: bool,
    /// True if somebody works on the volume, as the VLDB said last.
    is_worked_on: bool,
    /// The time when the VLDB was last asked because the volume is offline.
    looked_at: Option<Instant>,
    /// The verdicts on each server's answers in this round.
    said: Vec<(u32, Verdict)>,
    /// The time when offline was first said.
    offline_since: Option<Instant>,
    waits: u32,
    looks: u32,
    anew: u32,
    logins: u32,
    /// True if a call failed so that nobody knows whether the server has done it.
    is_ambiguous: bool,
}

impl Rotation {
    /// An operation that begins now and waits so long at most.
    pub fn new(now: Instant, patience: Duration) -> Self {
        Self {
            began: now,
            patience,
            patience_away: patience,
            is_of_volume: false,
            is_worked_on: false,
            looked_at: None,
            said: Vec::new(),
            offline_since: None,
            waits: 0,
            looks: 0,
            anew: 0,
            logins: 0,
            is_ambiguous: false,
        }
    }

    /// An operation on a volume. Servers that do not answer are waited for only as long as `away`, if that is less, and not at all once
    /// none has answered for so long.
    pub fn of_volume(now: Instant, patience: Duration, away: Duration) -> Self {
        Self { patience_away: patience.min(away), is_of_volume: true, ..Self::new(now, patience) }
    }

    /// True if an earlier attempt may have been carried out though it failed.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Notes a server's failure. A ticket that is refused is for the caller to replace.
    pub fn note(&mut self, now: Instant, server: u32, verdict: Verdict) {
        match verdict {
            Verdict::Down => self.is_ambiguous = true,
            Verdict::Anew => {
                self.is_ambiguous = true;
                self.anew += 1;
                if self.anew <= ANEW_MAX {
                    return;
                }
            }
            Verdict::Login => {
                self.logins += 1;
                if self.logins == 1 {
                    return;
                }
            }
            Verdict::Offline => {
                self.offline_since.get_or_insert(now);
            }
            Verdict::Fail | Verdict::Wait | Verdict::LookAgain | Verdict::OtherSite => {}
        }
        self.said.retain(|(who, _)| *who != server);
        self.said.push((server, verdict));
    }

    /// The VLDB was asked again: all servers may be asked. It says whether somebody works on the volume (moves it, restores it): then
    /// it is waited for like a busy one, whatever its server says of it.
    pub fn note_looked(&mut self, is_worked_on: bool) {
        self.is_worked_on = is_worked_on;
        self.said.clear();
    }

    /// Returns what to do now; the candidates are in the order of preference.
    pub fn step(&mut self, now: Instant, candidates: &[Candidate]) -> Step {
        if self.said.iter().any(|(_, verdict)| *verdict == Verdict::Fail) {
            return Step::GiveUp;
        }
        let is_patient = now.since(self.began) < self.patience;
        let fresh: Vec<_> =
            candidates.iter().filter(|c| !self.said.iter().any(|(who, _)| *who == c.server)).collect();
        if let Some(candidate) = fresh.iter().find(|c| c.down_since.is_none()) {
            return Step::Try(candidate.server);
        }
        let said = |verdict| self.said.iter().any(|(_, said)| *said == verdict);
        // Others may be asked in a while, but one that moved says that the list is old.
        if said(Verdict::LookAgain) || candidates.is_empty() {
            self.looks += 1;
            if self.looks > LOOKS_MAX && !(self.is_worked_on && is_patient) {
                return Step::GiveUp;
            }
            let pause = if self.looks == 1 { Duration::ZERO } else { self.next_wait() };
            return Step::LookAgain(now + pause);
        }
        let offline_since = self.offline_since.filter(|_| said(Verdict::Offline));
        let is_offline =
            offline_since.is_some_and(|since| self.is_worked_on || now.since(since) < OFFLINE_TIMEOUT);
        if let Some(since) = offline_since.map(|since| self.looked_at.unwrap_or(since))
            && (self.is_of_volume && is_patient)
            && now.since(since) >= LOOK_WHILE_OFFLINE
        {
            self.looked_at = Some(now);
            return Step::LookAgain(now);
        }
        if is_patient && (said(Verdict::Wait) || is_offline) {
            let wait = self.next_wait();
            self.said.retain(|(_, v)| !matches!(v, Verdict::Wait | Verdict::Offline | Verdict::Down));
            return Step::Wait(now + wait);
        }
        // What is left is down, or cannot.
        if let Some(candidate) = fresh
            .iter()
            .find(|c| c.down_since.is_some_and(|since| now.since(since) >= DOWN_FOR_SURE) && !c.has_answered)
        {
            return Step::Try(candidate.server);
        }
        let may_return = candidates.iter().any(|c| {
            c.has_answered
                && c.down_since.is_some()
                && self.said.iter().all(|(who, v)| *who != c.server || *v == Verdict::Down)
        });
        let is_away_for_long = self.patience_away < self.patience
            && candidates.iter().all(|c| c.down_since.is_some_and(|at| now.since(at) >= self.patience_away));
        if may_return && !is_away_for_long && now.since(self.began) < self.patience_away {
            // The prober tells when it is back; asking now and then does no harm.
            self.said.retain(|(_, v)| *v != Verdict::Down);
            return Step::Wait((now + DOWN_FOR_SURE).min(self.began + self.patience_away));
        }
        Step::GiveUp
    }

    fn next_wait(&mut self) -> Duration {
        let wait = WAIT_FIRST.saturating_mul(1 << self.waits.min(16)).min(WAIT_MAX);
        self.waits += 1;
        wait
    }
}
