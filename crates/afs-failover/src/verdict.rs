//! The verdict on each code and each failure, as tables.

use afs_wire::abort;
use afs_wire::errno::Errno;
use rx::{CallError, RpcError};
use rx_proto::abort::AbortCode;
use rxgen::Abort;

/// The action that a failure calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is an answer: the user is told.
    Fail,
    /// Busy or starting: another site if there is one, else the same again in a while.
    Wait,
    /// The volume is not there now, and nobody says for how long: another site, else the same again for a short time.
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

/// The codes of the file service (File service notes 12). They come before errno numbers, because some of them equal such numbers.
pub(crate) const VOLUME_CODES: &[(Abort, Verdict)] = &[
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
    // So does a server whose role is stopped (`bos stop`). One that has only given the call up, as it heard nothing from here, answers
    // to the probe that follows.
    (AbortCode::CALL_DEAD, Verdict::Down),
    // A peer that says these of itself has lost the call, not its life.
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

/// The peer's code that a call has ended with. Our own end of a connection may know it too: the server's challenge says which level the server
/// wants.
pub fn peers_code(error: &CallError) -> Option<Abort> {
    let code = match error {
        CallError::Aborted { code, .. } => Abort(code.0),
        CallError::Failed { code, .. } if code.0 == abort::RXKADLEVELFAIL.0 => abort::RXKADLEVELFAIL,
        _ => return None,
    };
    Some(code)
}

/// Returns what a failed procedure calls for.
pub fn verdict(error: &RpcError) -> Verdict {
    match error {
        RpcError::Call { source, .. } => of_call(source),
        // Garbage. Nobody waits for it to become better.
        RpcError::Reply { .. } => Verdict::OtherSite,
    }
}

/// Returns what a failed call calls for.
pub fn of_call(error: &CallError) -> Verdict {
    match (error, peers_code(error)) {
        (_, Some(code)) => of_code(code),
        (CallError::Failed { code: AbortCode::CALL_DEAD | AbortCode::CALL_TIMEOUT, .. }, _) => Verdict::Down,
        (CallError::DeadlinePassed { .. }, _) => Verdict::Down,
        (
            CallError::Aborted { .. }
            | CallError::Failed { .. }
            | CallError::Gone { .. }
            | CallError::StreamEnded { .. }
            | CallError::NotSending { .. },
            _,
        ) => Verdict::Anew,
        (CallError::StreamTooLong { .. }, _) => Verdict::OtherSite,
        (CallError::EndpointClosed, _) => Verdict::Fail,
    }
}

/// Returns what a peer's code calls for.
pub fn of_code(code: Abort) -> Verdict {
    let volume = VOLUME_CODES.iter().find(|(known, _)| *known == code).map(|(_, verdict)| *verdict);
    let rx = || RX_CODES.iter().find(|(known, _)| known.0 == code.0).map(|(_, verdict)| *verdict);
    let database = || DATABASE_CODES.iter().find(|(known, _)| *known == code).map(|(_, verdict)| *verdict);
    if let Some(verdict) = volume.or_else(rx).or_else(database) {
        return verdict;
    }
    if TICKET_CODES.contains(&code) {
        return Verdict::Login;
    }
    if code == abort::RXKADLEVELFAIL {
        // The caller that chose the level has to choose another one.
        return Verdict::Fail;
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
