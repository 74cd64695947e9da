//! The interop test service, both ends: calls that do one thing of the transport each, and whose bytes are checked. The table
//! of its commands is in interop/oafs-peer/README.md; what is here has to stay equal to it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rx::{Abort, Call, CallError, ClientCall, Connection, Endpoint, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use tokio::time::sleep;

/// The service.
pub const SERVICE: ServiceId = ServiceId(4321);

/// Bytes that are sent at once.
const PIECE: u32 = 65_536;

/// Largest ECHO, in bytes: all of it is held in memory.
const MAX_ECHO: u32 = 64 << 20;

/// The status that a server sets in STATUS.
const STATUS_VALUE: u8 = 1;

/// The bytes by which an ABORT_EARLY client goes beyond what is read, unless told.
const EARLY_EXCESS: u32 = 8 << 20;

/// The codes with which the server aborts when the client is at fault.
mod fault {
    use rx::Abort;

    pub(super) const BAD_PATTERN: Abort = Abort(9001);
    pub(super) const BAD_COMMAND: Abort = Abort(9002);
    pub(super) const TOO_LARGE: Abort = Abort(9003);
    pub(super) const TOO_SHORT: Abort = Abort(9004);
    pub(super) const TOO_LONG: Abort = Abort(9005);
}

macro_rules! commands {
    ($($number:literal $variant:ident $name:literal { $($field:ident: $kind:ty),* } $meaning:literal)*) => {
        /// The request of a call.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Request {
            $(#[doc = $meaning] $variant { $(#[doc = "See the table of commands."] $field: $kind),* },)*
            /// This command number without arguments.
            Raw(u32),
        }

        impl Request {
            /// The command's number and its arguments, as they are sent.
            fn words(&self) -> Vec<u32> {
                match *self {
                    $(Self::$variant { $($field),* } => vec![$number, $($field as u32),*],)*
                    Self::Raw(number) => vec![number],
                }
            }

            /// The words that ask `oafs-peer test-client` for it.
            pub fn arguments(&self) -> Vec<String> {
                match *self {
                    $(Self::$variant { $($field),* } => vec![$name.to_owned(), $($field.to_string()),*],)*
                    Self::Raw(number) => vec!["RAW".to_owned(), number.to_string()],
                }
            }

            /// Reads it off a call.
            async fn read(call: &mut Call) -> Result<Self, Abort> {
                match read_word(call).await? {
                    $($number => {
                        $(let $field = read_word(call).await? as $kind;)*
                        Ok(Self::$variant { $($field),* })
                    })*
                    _ => Err(fault::BAD_COMMAND),
                }
            }
        }
    };
}

commands! {
    1 Echo "ECHO" { n: u32 } "The pattern there and back."
    2 Source "SOURCE" { n: u32 } "The pattern from the server."
    3 Sink "SINK" { n: u32 } "The pattern to the server."
    4 Abort "ABORT" { code: i32 } "An abort at once."
    5 AbortMid "ABORT_MID" { n: u32, code: i32 } "An abort behind so much of the reply."
    6 AbortEarly "ABORT_EARLY" { n: u32, code: i32 } "An abort while the client still sends."
    7 Sleep "SLEEP" { ms: u32 } "A pause."
    8 SlowRead "SLOW_READ" { n: u32, chunk: u32, ms: u32 } "A server that reads slowly."
    9 SlowWrite "SLOW_WRITE" { n: u32, chunk: u32, ms: u32 } "A server that writes slowly."
    10 Status "STATUS" { n: u32 } "The pattern to a server that sets its status."
}

impl Request {
    /// The outcome of it if all is well.
    pub fn outcome(&self) -> Outcome {
        match *self {
            Self::Echo { n } | Self::Source { n } | Self::SlowWrite { n, .. } => {
                Outcome::Ok { bytes: n.into() }
            }
            Self::Sink { .. } | Self::Sleep { .. } | Self::SlowRead { .. } | Self::Status { .. } => {
                Outcome::Ok { bytes: 4 }
            }
            Self::Abort { code: 0 } => Outcome::Ok { bytes: 0 },
            Self::Abort { code } | Self::AbortMid { code, .. } | Self::AbortEarly { code, .. } => {
                Outcome::Abort(code)
            }
            Self::Raw(1..=10) => Outcome::Abort(fault::TOO_SHORT.0),
            Self::Raw(_) => Outcome::Abort(fault::BAD_COMMAND.0),
        }
    }

    /// Bytes of pattern that the client sends.
    fn sent_bytes(&self) -> u32 {
        match *self {
            Self::Echo { n } | Self::Sink { n } | Self::SlowRead { n, .. } | Self::Status { n } => n,
            Self::AbortEarly { n, .. } => n.saturating_add(EARLY_EXCESS),
            _ => 0,
        }
    }

    /// The word that a reply consists of.
    fn reply_word(&self) -> Option<u32> {
        match *self {
            Self::Sink { n } | Self::SlowRead { n, .. } | Self::Status { n } => Some(n),
            Self::Sleep { ms } => Some(ms),
            _ => None,
        }
    }
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Ok {
        /// Length of the reply.
        bytes: u64,
    },
    /// It was ended with this code, by either end.
    Abort(i32),
    /// It was not as it should be.
    Bad(String),
}

impl Outcome {
    /// The outcome of so many of these.
    pub fn times(self, count: u32) -> Self {
        match self {
            Self::Ok { bytes } => Self::Ok { bytes: bytes * u64::from(count) },
            other => other,
        }
    }
}

/// As `oafs-peer test-client` prints it.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok { bytes } => write!(f, "ok {bytes} bytes"),
            Self::Abort(code) => write!(f, "abort {code}"),
            Self::Bad(text) => write!(f, "bad {text}"),
        }
    }
}

/// The pattern, `(i * 7 + (i >> 8)) & 0xff`, which repeats after 64 KiB. Clones share it.
#[derive(Debug, Clone)]
pub struct Pattern(Bytes);

impl Default for Pattern {
    fn default() -> Self {
        Self((0..2 * PIECE).map(|i| (i.wrapping_mul(7).wrapping_add(i >> 8)) as u8).collect())
    }
}

impl Pattern {
    /// Returns up to [`PIECE`] bytes of it, from byte `at` on.
    fn piece(&self, at: u32, length: u32) -> Bytes {
        let from = (at % PIECE) as usize;
        self.0.slice(from..from + length.min(PIECE) as usize)
    }

    async fn send(&self, call: &mut Call, n: u32, chunk: u32, pause: Duration) -> Result<(), CallError> {
        let mut at = 0;
        while at < n {
            let length = chunk.min(n - at);
            call.send(self.piece(at, length)).await?;
            at += length;
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
        Ok(())
    }

    /// Receives bytes of the pattern from `at` on, no more than `most`. `None` at the end.
    async fn receive(&self, call: &mut Call, at: u32, most: u32) -> Result<Option<Bytes>, Trouble> {
        let Some(mut bytes) = call.recv().await? else { return Ok(None) };
        let rest = bytes.split_off(bytes.len().min(most.min(PIECE) as usize));
        call.unread(rest);
        if bytes != self.piece(at, bytes.len() as u32) {
            return Err(Trouble::Pattern);
        }
        Ok(Some(bytes))
    }

    /// Receives `n` bytes, pausing after each `chunk`.
    async fn check(
        &self,
        call: &mut Call,
        n: u32,
        chunk: u32,
        pause: Duration,
    ) -> Result<Vec<Bytes>, Trouble> {
        let mut all = Vec::new();
        let mut at = 0;
        while at < n {
            let end = at + chunk.min(n - at);
            while at < end {
                let bytes = self.receive(call, at, end - at).await?.ok_or(Trouble::Short)?;
                at += bytes.len() as u32;
                all.push(bytes);
            }
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
        Ok(all)
    }
}

/// The fault of a stream.
enum Trouble {
    Pattern,
    Short,
    Call(CallError),
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<Trouble> for Abort {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Pattern => fault::BAD_PATTERN,
            Trouble::Short => fault::TOO_SHORT,
            Trouble::Call(error) => abort_of(error),
        }
    }
}

fn abort_of(error: CallError) -> Abort {
    match error {
        CallError::StreamEnded { .. } => fault::TOO_SHORT,
        other => Abort(other.code().0),
    }
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

// ---- the server

/// An event at a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A call has come.
    Began {
        /// The address that it came from.
        peer: SocketAddr,
    },
    /// A call has ended.
    Ended(Result<(), Abort>),
}

/// The service's configuration; `report` is told what happens.
pub fn service(
    check_reach: bool,
    limits: CallLimits,
    report: impl Fn(Event) + Send + Sync + 'static,
) -> ServiceConfig {
    let service =
        Service { id: SERVICE, security: vec![Arc::new(Null)], check_reach, upgrades_to: None, limits };
    let (pattern, report) = (Pattern::default(), Arc::new(report));
    ServiceConfig::new(service, move |mut call: ServerCall| {
        let (pattern, report) = (pattern.clone(), Arc::clone(&report));
        async move {
            report(Event::Began { peer: call.peer() });
            let result = answer(&mut call, &pattern).await;
            report(Event::Ended(result));
            result
        }
    })
}

/// Offers the service as it is by default.
pub fn offer(endpoint: &Endpoint) {
    endpoint.add_service(service(true, CallLimits::default(), |_| ()));
}

async fn answer(call: &mut Call, pattern: &Pattern) -> Result<(), Abort> {
    match Request::read(call).await? {
        Request::Echo { n } if n > MAX_ECHO => Err(fault::TOO_LARGE),
        Request::Echo { n } => {
            let all = pattern.check(call, n, PIECE, Duration::ZERO).await?;
            expect_end(call).await?;
            for bytes in all {
                call.send(bytes).await.map_err(abort_of)?;
            }
            Ok(())
        }
        Request::Source { n } => send(call, pattern, n, PIECE, 0).await,
        Request::Sink { n } => sink(call, pattern, n, PIECE, 0).await,
        Request::Abort { code: 0 } => Ok(()),
        Request::Abort { code } => Err(Abort(code)),
        Request::AbortMid { n, code } => {
            send(call, pattern, n, PIECE, 0).await?;
            Err(Abort(code))
        }
        Request::AbortEarly { n, code } => {
            pattern.check(call, n, PIECE, Duration::ZERO).await?;
            Err(Abort(code))
        }
        Request::Sleep { ms } => {
            sleep(millis(ms)).await;
            call.write_all(&ms.to_be_bytes()).await.map_err(abort_of)
        }
        Request::SlowRead { chunk, .. } | Request::SlowWrite { chunk, .. }
            if !(1..=PIECE).contains(&chunk) =>
        {
            Err(fault::TOO_LARGE)
        }
        Request::SlowRead { n, chunk, ms } => sink(call, pattern, n, chunk, ms).await,
        Request::SlowWrite { n, chunk, ms } => send(call, pattern, n, chunk, ms).await,
        Request::Status { n } => {
            call.set_status(STATUS_VALUE);
            sink(call, pattern, n, PIECE, 0).await
        }
        Request::Raw(_) => Err(fault::BAD_COMMAND),
    }
}

async fn send(call: &mut Call, pattern: &Pattern, n: u32, chunk: u32, ms: u32) -> Result<(), Abort> {
    pattern.send(call, n, chunk, millis(ms)).await.map_err(abort_of)
}

async fn sink(call: &mut Call, pattern: &Pattern, n: u32, chunk: u32, ms: u32) -> Result<(), Abort> {
    pattern.check(call, n, chunk, millis(ms)).await?;
    expect_end(call).await?;
    call.write_all(&n.to_be_bytes()).await.map_err(abort_of)
}

/// The client's stream has to end here.
async fn expect_end(call: &mut Call) -> Result<(), Abort> {
    match call.recv().await.map_err(abort_of)? {
        None => Ok(()),
        Some(_) => Err(fault::TOO_LONG),
    }
}

async fn read_word(call: &mut Call) -> Result<u32, Abort> {
    let mut word = [0; 4];
    call.read_exact(&mut word).await.map_err(abort_of)?;
    Ok(u32::from_be_bytes(word))
}

// ---- the client

/// The reason why a call did not give what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The call failed.
    Call(CallError),
    /// Its reply is wrong, in this way.
    Reply(&'static str),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Pattern => Self::Reply("the reply is not the pattern"),
            Trouble::Short => Self::Reply("the reply is too short"),
            Trouble::Call(error) => Self::Call(error),
        }
    }
}

/// Makes a call and checks its reply; gives the length.
///
/// # Errors
///
/// See [`Failure`].
pub async fn make(connection: &Connection, pattern: &Pattern, request: Request) -> Result<u64, Failure> {
    fulfil(connection.call().await?, pattern, request).await
}

/// The same with a call that is there already, and new.
///
/// # Errors
///
/// See [`Failure`].
pub async fn fulfil(mut call: ClientCall, pattern: &Pattern, request: Request) -> Result<u64, Failure> {
    let status_seen = match send_request(&mut call, pattern, request).await {
        Ok(status_seen) => status_seen,
        // What the server has to say about it comes next.
        Err(CallError::NotSending { .. }) => false,
        Err(error) => return Err(error.into()),
    };
    let mut bytes = 0;
    match request {
        Request::Echo { n }
        | Request::Source { n }
        | Request::AbortMid { n, .. }
        | Request::SlowWrite { n, .. } => {
            pattern.check(&mut call, n, PIECE, Duration::ZERO).await?;
            bytes = n.into();
        }
        _ => {}
    }
    if let Some(expected) = request.reply_word() {
        let mut word = [0; 4];
        call.read_exact(&mut word).await?;
        bytes = 4;
        if word != expected.to_be_bytes() {
            return Err(Failure::Reply("the reply has the wrong value"));
        }
    }
    if call.recv().await?.is_some() {
        return Err(Failure::Reply("the reply is too long"));
    }
    if matches!(request, Request::Status { .. }) && !status_seen {
        return Err(Failure::Reply("no ACK showed the user status that the peer set"));
    }
    Ok(bytes)
}

/// Sends all of a request; says whether the peer's status was seen on the way.
async fn send_request(call: &mut Call, pattern: &Pattern, request: Request) -> Result<bool, CallError> {
    let words: Vec<u8> = request.words().into_iter().flat_map(u32::to_be_bytes).collect();
    call.write_all(&words).await?;
    let mut status_seen = false;
    if let Request::Status { n } = request {
        let mut at = 0;
        while at < n {
            let length = (n - at).min(1000);
            call.send(pattern.piece(at, length)).await?;
            at += length;
            status_seen |= call.peer_status() == Some(STATUS_VALUE);
        }
        call.flush()?;
        // All of it may be on its way by now; a server that reads will say so soon.
        for _ in 0..1000 {
            if status_seen {
                break;
            }
            sleep(Duration::from_millis(1)).await;
            status_seen = call.peer_status() == Some(STATUS_VALUE);
        }
    } else {
        pattern.send(call, request.sent_bytes(), PIECE, Duration::ZERO).await?;
    }
    call.finish()?;
    Ok(status_seen)
}

/// Makes a call; what came of it as `oafs-peer` says it.
pub async fn outcome(connection: &Connection, pattern: &Pattern, request: Request) -> Outcome {
    match make(connection, pattern, request).await {
        Ok(bytes) => Outcome::Ok { bytes },
        Err(Failure::Call(CallError::Aborted { code, .. } | CallError::Failed { code, .. })) => {
            Outcome::Abort(code.0)
        }
        Err(Failure::Call(error)) => Outcome::Bad(error.to_string()),
        Err(Failure::Reply(what)) => Outcome::Bad(what.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_the_words_of_the_table() {
        assert_eq!(Request::AbortMid { n: 7, code: -3 }.words(), [5, 7, 0xffff_fffd]);
        assert_eq!(Request::AbortMid { n: 7, code: -3 }.arguments(), ["ABORT_MID", "7", "-3"]);
        assert_eq!(Request::SlowRead { n: 1, chunk: 2, ms: 3 }.words(), [8, 1, 2, 3]);
        assert_eq!(Request::Raw(99).arguments(), ["RAW", "99"]);
    }

    #[test]
    fn the_pattern_repeats_after_its_period() {
        let pattern = Pattern::default();
        assert_eq!(pattern.piece(0, 3)[..], [0, 7, 14]);
        assert_eq!(pattern.piece(256, 1)[..], [1]);
        assert_eq!(pattern.piece(3 * PIECE + 300, PIECE), pattern.piece(300, PIECE));
    }
}
