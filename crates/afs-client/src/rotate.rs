//! What to do when a call fails: wait, look the volume up again, ask another server, or tell the user. [`verdict`] is the table,
//! one line for each code; [`Rotation`] goes through the servers of one operation by it.
//!
//! Knows no servers and no clock: who they are, in which order they come and what time it is comes in.

use std::time::Duration;

use afs_wire::abort;
use afs_wire::errno::Errno;
use rx::{CallError, RpcError};
use rx_proto::abort::AbortCode;
use rx_proto::time::Instant;
use rxgen::Abort;

/// What a failure calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    /// It is an answer: the user is told.
    Fail,
    /// Busy or starting: another site if there is one, else the same again in a while.
    Wait,
    /// Not there now, and nobody says for how long: another site, else the same again for a short time.
    Offline,
    /// The volume is elsewhere: ask the VLDB again.
    LookAgain,
    /// This server cannot, another may.
    OtherSite,
    /// No answer: the server counts as down.
    Down,
    /// The ticket is not good: another one, once.
    Login,
    /// The connection or call broke: once more on a new one.
    Anew,
}

/// The codes of the file service (File service notes 12). They come before errno numbers, some of which they equal.
const VOLUME_CODES: &[(Abort, Verdict)] = &[
    (abort::VRESTARTING, Verdict::Wait),
    (abort::VSALVAGE, Verdict::OtherSite),
    (abort::VNOVNODE, Verdict::Fail),
    (abort::VNOVOL, Verdict::LookAgain),
    (abort::VVOLEXISTS, Verdict::Fail),
    (abort::VNOSERVICE, Verdict::OtherSite),
    (abort::VOFFLINE, Verdict::Offline),
    (abort::VONLINE, Verdict::Fail),
    (abort::VDISKFULL, Verdict::Fail),
    (abort::VOVERQUOTA, Verdict::Fail),
    (abort::VBUSY, Verdict::Wait),
    (abort::VMOVED, Verdict::LookAgain),
    (abort::VIO, Verdict::OtherSite),
    (abort::VSALVAGING, Verdict::Wait),
    (abort::VRESTRICTED, Verdict::Fail),
];

/// Rx's own codes, as the peer sent them.
const RX_CODES: &[(AbortCode, Verdict)] = &[
    // A peer that says these of itself has lost the call, not its life.
    (AbortCode::CALL_DEAD, Verdict::Anew),
    (AbortCode::CALL_TIMEOUT, Verdict::Anew),
    (AbortCode::EOF, Verdict::Anew),
    (AbortCode::PROTOCOL_ERROR, Verdict::Anew),
    (AbortCode::USER_ABORT, Verdict::Anew),
    (AbortCode::MESSAGE_SIZE, Verdict::Anew),
    // No such service: a server that starts says so between taking its port and serving; so does who has the port by mistake.
    (AbortCode::INVALID_OPERATION, Verdict::Offline),
    (AbortCode::ADDRESS_IN_USE, Verdict::OtherSite),
];

/// The VLDB's and the database servers' codes (VLDB notes 8 and 9).
const DATABASE_CODES: &[(Abort, Verdict)] = &[
    (abort::VL_IO, Verdict::OtherSite),
    (abort::VL_DBBAD, Verdict::OtherSite),
    (abort::VL_NOMEM, Verdict::OtherSite),
    (abort::VL_EMPTY, Verdict::OtherSite),
    (abort::UNOQUORUM, Verdict::Wait),
    (abort::UNOTSYNC, Verdict::OtherSite),
    (abort::USYNC, Verdict::Wait),
    (abort::UNOSERVERS, Verdict::OtherSite),
    (abort::UIOERROR, Verdict::OtherSite),
    (abort::UINTERNAL, Verdict::OtherSite),
    (abort::UREINITIALIZE, Verdict::Wait),
    (abort::USKEWED, Verdict::OtherSite),
];

/// The security classes' codes (Security notes): those that another ticket may cure.
const TICKET_CODES: &[Abort] = &[
    abort::RXKADNOAUTH,
    abort::RXKADBADTICKET,
    abort::RXKADUNKNOWNKEY,
    abort::RXKADEXPIRED,
    abort::RXKADBADKEY,
    abort::RXKADTICKETLEN,
    abort::RXGK_EXPIRED,
    abort::RXGK_NOTAUTH,
    abort::RXGK_BAD_TOKEN,
    abort::RXGK_BADKEYNO,
];

/// What a failed procedure calls for.
pub(crate) fn verdict(error: &RpcError) -> Verdict {
    match error {
        RpcError::Call { source, .. } => of_call(source),
        // Garbage. Nobody waits for it to become better.
        RpcError::Reply { .. } => Verdict::OtherSite,
    }
}

/// What a failed call calls for.
pub(crate) fn of_call(error: &CallError) -> Verdict {
    match error {
        CallError::Aborted { code, .. } => of_code(Abort(code.0)),
        CallError::Failed { code, .. } => match *code {
            AbortCode::CALL_DEAD | AbortCode::CALL_TIMEOUT => Verdict::Down,
            _ => Verdict::Anew,
        },
        CallError::DeadlinePassed { .. } => Verdict::Down,
        CallError::Gone { .. } | CallError::StreamEnded { .. } | CallError::NotSending { .. } => {
            Verdict::Anew
        }
        CallError::StreamTooLong { .. } => Verdict::OtherSite,
        CallError::EndpointClosed => Verdict::Fail,
    }
}

/// What a peer's code calls for.
pub(crate) fn of_code(code: Abort) -> Verdict {
    let volume = VOLUME_CODES.iter().find(|(known, _)| *known == code).map(|(_, verdict)| *verdict);
    let rx = || RX_CODES.iter().find(|(known, _)| known.0 == code.0).map(|(_, verdict)| *verdict);
    let database = || DATABASE_CODES.iter().find(|(known, _)| *known == code).map(|(_, verdict)| *verdict);
    if let Some(verdict) = volume.or_else(rx).or_else(database) {
        return verdict;
    }
    if TICKET_CODES.contains(&code) {
        return Verdict::Login;
    }
    match abort::table(code).map(|table| table.name) {
        // What is left of them says that packets were damaged or out of order.
        Some("RXK" | "RXGK") => Verdict::Anew,
        // Answers: no such entry, not permitted.
        Some(_) => Verdict::Fail,
        None => match abort::errno(code) {
            // The server's machine has its troubles; a replica may not.
            Some(Errno::EIO | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE) => Verdict::OtherSite,
            // Marshalling (-450 to -457), and what nobody has named: to be told, as nothing is known of it.
            Some(_) | None => Verdict::Fail,
        },
    }
}

/// How long an offline volume, or a server that does not serve yet, is waited for: longer than a start or a salvage of one volume
/// usually takes, far shorter than an administrator.
const OFFLINE_PATIENCE: Duration = Duration::from_secs(20);

/// The first wait for a busy server; each next is twice as long.
const WAIT_FIRST: Duration = Duration::from_millis(250);

/// The longest wait between two questions to a busy server. OpenAFS waits 15 s always; a move of a volume takes about that.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// How often the VLDB is asked again in one operation: at once, then after a wait, as a volume that is being moved is for a
/// moment nowhere.
const LOOKS_MAX: u32 = 4;

/// How often a call is repeated on a new connection.
const ANEW_MAX: u32 = 3;

/// A server down for less than this is not asked by operations that it would only make wait.
const DOWN_FOR_SURE: Duration = Duration::from_secs(60);

/// A server that an operation may ask, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The server's number.
    pub(crate) server: u32,
    /// Since when it counts as down.
    pub(crate) down_since: Option<Instant>,
    /// Whether it has ever answered.
    pub(crate) has_answered: bool,
}

/// What an operation is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
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
pub(crate) struct Rotation {
    began: Instant,
    patience: Duration,
    /// What each server said in this round.
    said: Vec<(u32, Verdict)>,
    /// When offline was first said.
    offline_since: Option<Instant>,
    waits: u32,
    looks: u32,
    anew: u32,
    logins: u32,
    /// Whether a call failed so that nobody knows whether the server has done it.
    is_ambiguous: bool,
}

impl Rotation {
    /// An operation that begins now and waits so long at most.
    pub(crate) fn new(now: Instant, patience: Duration) -> Self {
        Self {
            began: now,
            patience,
            said: Vec::new(),
            offline_since: None,
            waits: 0,
            looks: 0,
            anew: 0,
            logins: 0,
            is_ambiguous: false,
        }
    }

    /// Whether an earlier attempt may have been carried out though it failed.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// What a server's failure means for the operation. A ticket that is refused is for the caller to replace.
    pub(crate) fn note(&mut self, now: Instant, server: u32, verdict: Verdict) {
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

    /// The VLDB was asked again: all servers may be asked.
    pub(crate) fn note_looked(&mut self) {
        self.said.clear();
    }

    /// What to do now; the candidates are in the order of preference.
    pub(crate) fn step(&mut self, now: Instant, candidates: &[Candidate]) -> Step {
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
            if self.looks > LOOKS_MAX {
                return Step::GiveUp;
            }
            let pause = if self.looks == 1 { Duration::ZERO } else { self.next_wait() };
            return Step::LookAgain(now + pause);
        }
        let is_offline = said(Verdict::Offline)
            && self.offline_since.is_some_and(|since| now.since(since) < OFFLINE_PATIENCE);
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
        if is_patient && may_return {
            // The prober tells when it is back; asking now and then does no harm.
            self.said.retain(|(_, v)| *v != Verdict::Down);
            return Step::Wait((now + DOWN_FOR_SURE).min(self.began + self.patience));
        }
        Step::GiveUp
    }

    fn next_wait(&mut self) -> Duration {
        let wait = WAIT_FIRST.saturating_mul(1 << self.waits.min(16)).min(WAIT_MAX);
        self.waits += 1;
        wait
    }
}

#[cfg(test)]
mod tests;
