//! The counters of an endpoint beside the protocol's own [`Stats`], and their publication through the `metrics` facade.
//! Where the facade leads is the program's choice: a recorder has to be installed before the first endpoint is bound, and
//! without one nothing is kept.
//!
//! Nothing is published packet by packet. Counters and gauges are published together every
//! [`EndpointConfig::publish_every`](crate::EndpointConfig::publish_every) and by
//! [`Endpoint::publish_metrics`](crate::Endpoint::publish_metrics), as what has been added since the last time, so that several endpoints
//! of a program add up. Histograms and `rx_calls_ended` get a value as each call ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, SharedString, Unit};
use rx_proto::CallError;
use rx_proto::Role;
use rx_proto::abort::AbortCode;
use rx_proto::endpoint::Usage;
use rx_proto::ids::ServiceId;
use rx_proto::packet::PacketType;
use rx_proto::stats::{self, Stats};
use rx_proto::time::Instant;

use crate::socket::Socket;

/// The counters of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortMetrics {
    /// Packets that the kernel dropped, mostly because the receive buffer was full.
    pub kernel_dropped: u64,
    /// The receive buffer's size as granted, in bytes by the kernel's counting.
    pub receive_buffer_bytes: u64,
    /// The bytes that wait to be received, by the kernel's counting.
    pub queued_bytes: u64,
}

impl PortMetrics {
    /// The metrics of a socket; what it does not tell is 0.
    pub fn of(socket: &Socket) -> Self {
        Self {
            kernel_dropped: socket.dropped().unwrap_or_default(),
            receive_buffer_bytes: socket.granted_receive_bytes().unwrap_or_default() as u64,
            queued_bytes: socket.queued_bytes().unwrap_or_default() as u64,
        }
    }
}

macro_rules! counters {
    ($($name:ident $unit:ident $meaning:literal)*) => {
        /// A snapshot of an endpoint's counters since it was bound.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Metrics {
            /// The counters of the port.
            pub port: PortMetrics,
            $(#[doc = $meaning] pub $name: u64,)*
        }

        /// The counters themselves.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self, port: PortMetrics) -> Metrics {
                Metrics { port, $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        /// The counters, as they are published.
        const COUNTERS: &[Row] = &[$(Row {
            name: concat!("rx_", stringify!($name)),
            unit: Unit::$unit,
            meaning: $meaning,
            value: |now| now.metrics.$name,
        },)*];
    };
}

counters! {
    bundles_received Count "Deliveries from the kernel. A delivery is one datagram, or several from one peer."
    bundles_sent Count "Bundles of packets that were sent. One bundle can need several system calls."
    bytes_received Bytes "UDP payload received, in bytes."
    bytes_sent Bytes "UDP payload sent, in bytes."
    worked_inline Count "Deliveries that the receiving thread processed itself."
    queue_dropped Count "Deliveries dropped because a shard's queue was full."
    send_full Count "Bundles not sent because the send buffer or the interface's queue was full. For the protocol, they are lost."
    send_too_large Count "Bundles not sent because they exceeded the interface's MTU."
    send_failed Count "Bundles not sent for other reasons, such as a missing route."
    icmp_errors Count "ICMP errors about packets that were sent."
    forwarded Count "Deliveries handed to another shard because their connection had moved there."
    worker_wakes Count "Wake-ups of a shard's worker by anything but its clock."
    calls_served Count "Calls given to handlers."
    calls_refused Count "Calls that were refused with the busy code of their service."
    calls_waited Count "Calls that had to wait for a handler."
    handler_panics Count "Handlers that panicked."
}

/// The counters of the port itself.
const PORT_COUNTERS: &[Row] = &[Row {
    name: "rx_kernel_dropped",
    unit: Unit::Count,
    meaning: "Packets that the kernel dropped, mostly because the receive buffer was full.",
    value: |now| now.metrics.port.kernel_dropped,
}];

macro_rules! gauges {
    ($($name:ident $unit:ident $value:expr, $meaning:literal;)*) => {
        /// The values that hold at the moment.
        const GAUGES: &[Row] = &[$(Row {
            name: concat!("rx_", stringify!($name)),
            unit: Unit::$unit,
            meaning: $meaning,
            value: $value,
        },)*];
    };
}

gauges! {
    connections Count |now| now.usage.connections as u64, "Connections, as client and as server.";
    calls_running Count |now| now.usage.calls as u64, "Calls that have not ended, or that the application has not dropped.";
    paths Count |now| now.usage.paths as u64, "Peers' addresses about which the endpoint remembers something.";
    promised Bytes |now| now.usage.promised, "Bytes by which receive windows exceed their initial size.";
    unproven Bytes |now| now.usage.unproven, "Bytes accepted from peers that have not proved their addresses.";
    strangers Bytes |now| now.usage.strangers, "Bytes of DATA kept for anonymous callers.";
    offered Bytes |now| now.usage.offered, "The bytes that peers may still send, as the kernel counts them; 0 while offers are not limited.";
    offer_limit Bytes |now| now.usage.offer_limit.unwrap_or(0), "The limit of `rx_offered`, or 0 if there is no limit. There is one if the receive buffer is small, or while packets wait to be processed.";
    receive_buffer Bytes |now| now.metrics.port.receive_buffer_bytes, "The size of the receive buffer that the kernel has granted, as the kernel counts it.";
    receive_queue Bytes |now| now.metrics.port.queued_bytes, "The bytes that wait to be received, as the kernel counts them.";
}

macro_rules! by_call {
    ($($konst:ident $name:literal $unit:ident $meaning:literal)*) => {
        $(const $konst: &str = $name;)*
        /// The metrics that get a value as a call ends: name, unit, meaning.
        const BY_CALL: &[(&str, Unit, &str)] = &[$(($konst, Unit::$unit, $meaning),)*];
    };
}

by_call! {
    CALLS_ENDED "rx_calls_ended" Count "Calls that have ended, by role, service and result."
    CALL_SECONDS "rx_call_seconds" Seconds "How long calls took, by role, service and result. A client's call begins when it has a channel, and ends when the program drops it. A server's call begins with its first packet and ends with its handler."
    HANDLER_WAIT "rx_handler_wait_seconds" Seconds "How long calls waited for a handler to begin, by service."
    SEND_WAIT "rx_send_wait_seconds" Seconds "How long calls with something to send waited until their first DATA packet went out, by role and service. They wait for other calls on the path, for its congestion window and for pacing."
    RTT "rx_rtt_seconds" Seconds "The newest round trip measured on the call's path when the call ended, by role and service."
}

/// Calls of declared interfaces, by procedure.
pub(crate) const RPCS_ENDED: &str = "rpcs_ended";
/// The time that the handlers of these calls took.
pub(crate) const RPC_SECONDS: &str = "rpc_seconds";
const RPCS_ENDED_MEANING: &str = "Calls whose handlers have ended, by interface, procedure (label `rpc`) and result: `ok`, or `failed` if the call was aborted with a code.";
const RPC_SECONDS_MEANING: &str = "How long the handlers of calls took, by interface, procedure and result. This includes waiting for arguments and data, but not waiting for a handler.";

/// Packets by type: name and meaning; the label is `type`.
const PACKETS_READ: (&str, &str) = ("rx_packets_read", "Packets received, by type.");
const PACKETS_SENT: (&str, &str) = ("rx_packets_sent", "Packets sent, by type.");

/// A number that is published: name, unit, meaning.
struct Row {
    name: &'static str,
    unit: Unit,
    meaning: &'static str,
    value: fn(&Snapshot) -> u64,
}

/// All that an endpoint counts, at one time.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) metrics: Metrics,
    pub(crate) stats: Stats,
    pub(crate) usage: Usage,
}

impl Snapshot {
    /// Adds what a shard holds.
    pub(crate) fn add_usage(&mut self, usage: Usage) {
        let Usage { connections, paths, calls, timers, promised, unproven, strangers, offered, offer_limit } =
            usage;
        let sum = &mut self.usage;
        sum.connections += connections;
        sum.paths += paths;
        sum.calls += calls;
        sum.timers += timers;
        sum.promised += promised;
        sum.unproven += unproven;
        sum.strangers += strangers;
        sum.offered += offered;
        // Of shards without a limit nothing is known.
        sum.offer_limit = match (sum.offer_limit, offer_limit) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
}

/// Publishes what an endpoint counts.
pub(crate) struct Publisher {
    last: Snapshot,
    counters: Vec<(&'static Row, Counter)>,
    protocol: Vec<(&'static stats::Counter, Counter)>,
    packets_read: Vec<(usize, Counter)>,
    packets_sent: Vec<(usize, Counter)>,
    gauges: Vec<(&'static Row, Gauge)>,
}

impl Publisher {
    /// Makes the metrics with the recorder that is installed now.
    pub(crate) fn new() -> Self {
        for (name, unit, meaning) in BY_CALL {
            if *name == CALLS_ENDED {
                metrics::describe_counter!(*name, *unit, *meaning);
            } else {
                metrics::describe_histogram!(*name, *unit, *meaning);
            }
        }
        metrics::describe_counter!(RPCS_ENDED, Unit::Count, RPCS_ENDED_MEANING);
        metrics::describe_histogram!(RPC_SECONDS, Unit::Seconds, RPC_SECONDS_MEANING);
        let counters = COUNTERS.iter().chain(PORT_COUNTERS).map(|row| {
            metrics::describe_counter!(row.name, row.unit, row.meaning);
            (row, metrics::counter!(row.name))
        });
        let protocol = Stats::COUNTERS.iter().map(|counter| {
            let name = format!("rx_{}", counter.name);
            let unit = match counter.unit {
                stats::Unit::Count => Unit::Count,
                stats::Unit::Bytes => Unit::Bytes,
            };
            metrics::describe_counter!(name.clone(), unit, counter.meaning);
            (counter, metrics::counter!(name))
        });
        let gauges = GAUGES.iter().map(|row| {
            metrics::describe_gauge!(row.name, row.unit, row.meaning);
            (row, metrics::gauge!(row.name))
        });
        Self {
            last: Snapshot::default(),
            counters: counters.collect(),
            protocol: protocol.collect(),
            packets_read: packets_by_type(PACKETS_READ),
            packets_sent: packets_by_type(PACKETS_SENT),
            gauges: gauges.collect(),
        }
    }

    /// Publishes what has changed since the last time.
    pub(crate) fn publish(&mut self, now: Snapshot) {
        let last = &self.last;
        for (row, counter) in &self.counters {
            increment(counter, (row.value)(last), (row.value)(&now));
        }
        for (row, counter) in &self.protocol {
            increment(counter, (row.value)(&last.stats), (row.value)(&now.stats));
        }
        for (kind, counter) in &self.packets_read {
            increment(counter, last.stats.packets_read[*kind], now.stats.packets_read[*kind]);
        }
        for (kind, counter) in &self.packets_sent {
            increment(counter, last.stats.packets_sent[*kind], now.stats.packets_sent[*kind]);
        }
        for (row, gauge) in &self.gauges {
            gauge.increment((row.value)(&now) as f64 - (row.value)(last) as f64);
        }
        self.last = now;
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("last", &self.last).finish_non_exhaustive()
    }
}

fn increment(counter: &Counter, last: u64, now: u64) {
    if now > last {
        counter.increment(now - last);
    }
}

/// A counter for each packet type that has a name.
fn packets_by_type((name, meaning): (&'static str, &'static str)) -> Vec<(usize, Counter)> {
    metrics::describe_counter!(name, Unit::Count, meaning);
    (0..stats::COUNTED_TYPES)
        .filter_map(|kind| {
            let label = PacketType(kind as u8).name()?.to_lowercase();
            Some((kind, metrics::counter!(name, "type" => label)))
        })
        .collect()
}

/// The way a call ended, the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallResult {
    /// The reply was read to its end, or the handler's work was done.
    Ok,
    /// The peer ended it with a code.
    AbortedByPeer,
    /// This end did: by its handler's code, for a protocol error of the peer, or since nobody wanted it any more.
    Aborted,
    /// The peer was silent for too long, or a time limit ran out.
    TimedOut,
}

impl CallResult {
    const ALL: [Self; 4] = [Self::Ok, Self::AbortedByPeer, Self::Aborted, Self::TimedOut];

    const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::AbortedByPeer => "aborted_by_peer",
            Self::Aborted => "aborted",
            Self::TimedOut => "timed_out",
        }
    }

    /// Returns the outcome of a call that has failed.
    pub(crate) fn of_error(error: CallError) -> Self {
        match error {
            CallError::AbortedByPeer(_) => Self::AbortedByPeer,
            CallError::Failed(AbortCode::CALL_DEAD | AbortCode::CALL_TIMEOUT) => Self::TimedOut,
            CallError::Failed(_) | CallError::Gone => Self::Aborted,
        }
    }
}

/// The facts of a call that metrics record as it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    pub(crate) result: CallResult,
    pub(crate) duration: Duration,
    /// `None` if it has not sent anything.
    pub(crate) send_wait: Option<Duration>,
    /// `None` if it was never measured.
    pub(crate) rtt: Option<Duration>,
}

/// The meters of the calls of a service, of one role.
pub(crate) struct CallMeters {
    /// The counters, in the order of [`CallResult::ALL`].
    by_result: [(Counter, Histogram); 4],
    handler_wait: Histogram,
    send_wait: Histogram,
    rtt: Histogram,
}

impl std::fmt::Debug for CallMeters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallMeters").finish_non_exhaustive()
    }
}

impl CallMeters {
    fn new(role: Role, service: ServiceId) -> Self {
        let role = match role {
            Role::Client => "client",
            Role::Server => "server",
        };
        let service = SharedString::from(service.0.to_string());
        let histogram = |name: &'static str| {
            let service = service.clone();
            metrics::histogram!(name, "role" => role, "service" => service)
        };
        Self {
            by_result: CallResult::ALL.map(|result| {
                let labels =
                    [("role", role.into()), ("service", service.clone()), ("result", result.label().into())];
                (metrics::counter!(CALLS_ENDED, &labels), metrics::histogram!(CALL_SECONDS, &labels))
            }),
            handler_wait: match role {
                "server" => metrics::histogram!(HANDLER_WAIT, "service" => service.clone()),
                _ => Histogram::noop(),
            },
            send_wait: histogram(SEND_WAIT),
            rtt: histogram(RTT),
        }
    }

    /// A call has ended.
    pub(crate) fn note_end(&self, ending: &Ending) {
        let (ended, seconds) = &self.by_result[ending.result as usize];
        ended.increment(1);
        seconds.record(ending.duration);
        if let Some(wait) = ending.send_wait {
            self.note_send_wait(wait);
        }
        if let Some(rtt) = ending.rtt {
            self.rtt.record(rtt);
        }
    }

    /// A call's handler begins.
    pub(crate) fn note_handler_wait(&self, wait: Duration) {
        self.handler_wait.record(wait);
    }

    /// Notes the time that a call had to wait until it could send. It shows which calls wait because a path is shared.
    fn note_send_wait(&self, wait: Duration) {
        self.send_wait.record(wait);
    }
}

/// A running call's start, and the meters that record its end.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) started: Instant,
    pub(crate) meters: Arc<CallMeters>,
}

/// The meters of all services that an endpoint offers or has called: as many as the program knows, whatever peers ask for.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    by_service: Mutex<HashMap<(Role, ServiceId), Arc<CallMeters>>>,
}

impl Meters {
    pub(crate) fn of(&self, role: Role, service: ServiceId) -> Arc<CallMeters> {
        let mut all = self.by_service.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((role, service)).or_insert_with(|| Arc::new(CallMeters::new(role, service))))
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_numbers_have_the_same_name() {
        let rows = COUNTERS.iter().chain(PORT_COUNTERS).chain(GAUGES).map(|row| row.name.to_owned());
        let protocol = Stats::COUNTERS.iter().map(|counter| format!("rx_{}", counter.name));
        let others = BY_CALL.iter().map(|(name, ..)| *name).chain([PACKETS_READ.0, PACKETS_SENT.0]);
        let mut names: Vec<String> = rows.chain(protocol).chain(others.map(str::to_owned)).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn results_stand_where_their_number_says() {
        for (i, result) in CallResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, i);
        }
    }

    #[test]
    fn a_silent_peer_and_a_time_limit_are_timeouts() {
        let result = |code| CallResult::of_error(CallError::Failed(code));
        assert_eq!(result(AbortCode::CALL_DEAD), CallResult::TimedOut);
        assert_eq!(result(AbortCode::CALL_TIMEOUT), CallResult::TimedOut);
        assert_eq!(result(AbortCode::USER_ABORT), CallResult::Aborted);
        assert_eq!(CallResult::of_error(CallError::AbortedByPeer(AbortCode(5))), CallResult::AbortedByPeer);
    }
}
