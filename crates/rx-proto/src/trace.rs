//! A record of one call, so that a slow one can be looked at: what was sent and received, what ACKs said, what was lost, and
//! how window, rate and round trip went. Off but for the calls that are asked for; where a call is not traced, a hook costs
//! one branch. Decides nothing; how a trace is written and drawn is for programs.
//!
//! However long the call, its trace has an end. What comes with every packet, the *flow*, is kept packet by packet while it
//! fits, then added up over spans of time that double as often as is needed. What is rare, the *marks* (losses, resends,
//! timeouts), is kept one by one, and counted when there is too much of it.

use crate::ack::Ack;
use crate::call::Call;
use crate::ids::Seq;
use crate::packet::Header;
use crate::path::Path;
use crate::receive::Received;
use crate::time::Instant;
use crate::transmit::{AckOutcome, Next, TimerAction};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

/// Records of the flow. A plot is some 1000 points wide, so that after thinning there are still several for each; 16 MB of
/// stock packets are kept packet by packet. A record takes some 100 bytes: 1.6 MB for a call that is traced.
pub const MAX_FLOW: usize = 16_384;

/// Marks. More than can be told apart in a plot; a window of 65,535 packets that is lost as a whole does not fit.
pub const MAX_MARKS: usize = 8192;

/// Kinds of flow, each added up by itself: so many records a span of time may have.
const FLOWS: usize = 4;

/// The trace of a call, from when it was switched on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The time when it was switched on: the zero of its plot.
    pub started: Instant,
    /// True if this end is the client.
    pub is_client: bool,
    /// The other end.
    pub peer: SocketAddr,
    /// The time over which the flow is added up; zero if each packet stands by itself.
    pub span: Duration,
    /// Marks that were left out.
    pub marks_left_out: u64,
    /// The events, in order of time.
    pub records: Vec<Record>,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The time; of a span, its beginning.
    pub at: Instant,
    /// The event.
    pub what: What,
}

/// An event of a call. The first four are the flow, the rest are marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// DATA packets went out for the first time.
    Sent(Sent),
    /// ACKs came.
    Acked(Acked),
    /// DATA packets came.
    Received(ReceivedData),
    /// ACKs went out.
    AckSent(AckSent),
    /// A DATA packet went out again.
    Resent {
        /// The packet.
        seq: Seq,
    },
    /// A DATA packet was found lost.
    Lost {
        /// The packet.
        seq: Seq,
    },
    /// No ACK came for a whole timeout: all under way counts as lost.
    TimedOut,
    /// No ACK came for a while: the peer was asked what it has.
    Probed,
    /// The reply began, or an ACKALL came: all that was sent has arrived.
    AllAcked,
    /// The path's controller went into this phase.
    Phase(Cow<'static, str>),
}

/// DATA packets that went out for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The first and the last of them.
    pub seqs: (Seq, Seq),
    /// The number of packets.
    pub packets: u32,
    /// Bytes of plain text.
    pub bytes: u64,
    /// Bytes under way on the path, all its calls and Rx headers included, after the last.
    pub in_flight: u64,
}

/// ACKs that came, and how the path stood after the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acked {
    /// The number of ACKs.
    pub acks: u32,
    /// The first packet not acknowledged for good.
    pub first: Seq,
    /// The last packet that had come to the peer, as it says.
    pub previous: Seq,
    /// Bytes that turned out to have arrived, Rx headers included.
    pub acked: u64,
    /// Bytes that turned out to be lost.
    pub lost: u64,
    /// Packets that had been given up and did arrive.
    pub spurious: u32,
    /// Bytes under way on the path.
    pub in_flight: u64,
    /// The path's congestion window, bytes.
    pub window: u64,
    /// The peer's window, packets.
    pub peer_window: u32,
    /// The rate at which the path is paced, bytes a second; `None` before it is known.
    pub rate: Option<u64>,
    /// The smallest and the largest round trip that was measured.
    pub rtt: Option<(Duration, Duration)>,
}

/// DATA packets that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedData {
    /// The first and the last by number.
    pub seqs: (Seq, Seq),
    /// The number of packets.
    pub packets: u32,
    /// Bytes of plain text.
    pub bytes: u64,
    /// Those that came while one before them was missing.
    pub held: u32,
    /// Those that had come before.
    pub duplicates: u32,
    /// Those beyond the window.
    pub refused: u32,
}

/// ACKs that went out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AckSent {
    /// The number of ACKs.
    pub acks: u32,
    /// The first packet that is missing, as the last of them says.
    pub next: Seq,
    /// The window that is offered, packets.
    pub window: u32,
}

impl What {
    /// The index of the kind of flow; `None` for a mark.
    const fn flow(&self) -> Option<usize> {
        match self {
            Self::Sent(_) => Some(0),
            Self::Acked(_) => Some(1),
            Self::Received(_) => Some(2),
            Self::AckSent(_) => Some(3),
            _ => None,
        }
    }

    /// Adds what came later in the same span.
    fn absorb(&mut self, later: &Self) {
        match (self, later) {
            (Self::Sent(sum), Self::Sent(later)) => {
                sum.seqs = (sum.seqs.0.min(later.seqs.0), sum.seqs.1.max(later.seqs.1));
                sum.packets += later.packets;
                sum.bytes += later.bytes;
                sum.in_flight = later.in_flight;
            }
            (Self::Acked(sum), Self::Acked(later)) => {
                let rtt = match (sum.rtt, later.rtt) {
                    (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
                    (a, b) => a.or(b),
                };
                *sum = Acked {
                    acks: sum.acks + later.acks,
                    acked: sum.acked + later.acked,
                    lost: sum.lost + later.lost,
                    spurious: sum.spurious + later.spurious,
                    first: sum.first.max(later.first),
                    rtt,
                    ..*later
                };
            }
            (Self::Received(sum), Self::Received(later)) => {
                sum.seqs = (sum.seqs.0.min(later.seqs.0), sum.seqs.1.max(later.seqs.1));
                sum.packets += later.packets;
                sum.bytes += later.bytes;
                sum.held += later.held;
                sum.duplicates += later.duplicates;
                sum.refused += later.refused;
            }
            (Self::AckSent(sum), Self::AckSent(later)) => {
                *sum = AckSent { acks: sum.acks + later.acks, ..*later };
            }
            _ => panic!("what is added up is of one kind"),
        }
    }
}

/// Keeps the trace of a call while it runs.
#[derive(Debug)]
pub(crate) struct Recorder {
    started: Instant,
    flow: Vec<Record>,
    marks: Vec<Record>,
    marks_left_out: u64,
    /// Nanoseconds that are added up; 0 while each packet stands by itself.
    span: u64,
    /// For each kind of flow: its latest span, and the record of it.
    open: [Option<(u64, usize)>; FLOWS],
    phase: &'static str,
}

impl Recorder {
    pub(crate) const fn new(started: Instant) -> Self {
        Self {
            started,
            flow: Vec::new(),
            marks: Vec::new(),
            marks_left_out: 0,
            span: 0,
            open: [None; FLOWS],
            phase: "",
        }
    }

    /// Returns what was recorded.
    pub(crate) fn finish(self, is_client: bool, peer: SocketAddr) -> Trace {
        let mut records = self.flow;
        records.extend(self.marks);
        // Stable: what happened at one time stays in the order of its kind.
        records.sort_by_key(|record| record.at);
        Trace {
            started: self.started,
            is_client,
            peer,
            span: Duration::from_nanos(self.span),
            marks_left_out: self.marks_left_out,
            records,
        }
    }

    fn note(&mut self, at: Instant, what: What) {
        if let Some(kind) = what.flow() {
            if self.flow.len() >= MAX_FLOW {
                self.thin_out(at);
            }
            return self.add_to_flow(kind, at, what);
        }
        if self.marks.len() < MAX_MARKS {
            self.marks.push(Record { at, what });
        } else {
            self.marks_left_out += 1;
        }
    }

    fn add_to_flow(&mut self, kind: usize, at: Instant, what: What) {
        let elapsed = at.since(self.started).as_nanos() as u64;
        if let Some(span) = elapsed.checked_div(self.span) {
            if let Some((latest, index)) = self.open[kind]
                && latest == span
            {
                return self.flow[index].what.absorb(&what);
            }
            self.open[kind] = Some((span, self.flow.len()));
        }
        self.flow.push(Record { at, what });
    }

    /// Makes the spans so long that at most half of the records are left, even if each has every kind.
    fn thin_out(&mut self, now: Instant) {
        let elapsed = now.since(self.started).as_nanos() as u64;
        let enough = elapsed / (MAX_FLOW / 2 / FLOWS - 1) as u64 + 1;
        self.span = enough.max(2 * self.span);
        self.open = [None; FLOWS];
        for Record { at, what } in std::mem::take(&mut self.flow) {
            let kind = what.flow().expect("only flow is in the flow");
            self.add_to_flow(kind, at, what);
        }
    }
}

/// The packets that a call's sending half finds lost, noted for its trace. Nothing is kept for a call without one.
#[derive(Debug, Default)]
pub(crate) struct LossNotes {
    seqs: Option<Vec<Seq>>,
}

impl LossNotes {
    pub(crate) fn enable(&mut self) {
        self.seqs = Some(Vec::new());
    }

    /// The packet is lost.
    pub(crate) fn note(&mut self, seq: Seq) {
        if let Some(seqs) = &mut self.seqs {
            seqs.push(seq);
        }
    }

    fn take(&mut self) -> Vec<Seq> {
        self.seqs.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

/// The hooks: a line each where something happens.
impl Call {
    /// Begins a trace, anew if there is one.
    pub(crate) fn start_trace(&mut self, now: Instant) {
        self.tx.losses.enable();
        self.trace = Some(Box::new(Recorder::new(now)));
    }

    /// A DATA packet went out.
    pub(crate) fn trace_sent(&mut self, now: Instant, next: &Next, path: &Path) {
        let Some(trace) = &mut self.trace else { return };
        let what = if next.again {
            What::Resent { seq: next.seq }
        } else {
            let (seqs, bytes) = ((next.seq, next.seq), next.len as u64);
            What::Sent(Sent { seqs, packets: 1, bytes, in_flight: path.in_flight() })
        };
        trace.note(now, what);
    }

    /// An ACK came: `outcome` is what it has changed, `ping_sent_at` when the ping went out that it answers.
    pub(crate) fn trace_ack(
        &mut self,
        now: Instant,
        ack: &Ack<'_>,
        outcome: Option<&AckOutcome>,
        ping_sent_at: Option<Instant>,
        path: &Path,
    ) {
        let Some(trace) = &mut self.trace else { return };
        let rtt = ping_sent_at.map(|at| now.since(at)).or_else(|| outcome.and_then(|o| o.rtt));
        if outcome.is_none() && rtt.is_none() {
            return; // overtaken, or of another life of the call
        }
        let out = outcome.copied().unwrap_or_default();
        for seq in self.tx.losses.take() {
            trace.note(now, What::Lost { seq });
        }
        let phase = path.phase();
        if phase != trace.phase {
            trace.phase = phase;
            trace.note(now, What::Phase(Cow::Borrowed(phase)));
        }
        let acked = Acked {
            acks: 1,
            first: ack.first,
            previous: ack.previous,
            acked: out.acked,
            lost: out.lost.bytes,
            spurious: out.spurious,
            in_flight: path.in_flight(),
            window: path.window(),
            peer_window: self.tx.window(),
            rate: path.rate(),
            rtt: rtt.map(|rtt| (rtt, rtt)),
        };
        trace.note(now, What::Acked(acked));
    }

    /// Notes that all that was sent has arrived.
    pub(crate) fn trace_all_acked(&mut self, now: Instant) {
        if let Some(trace) = &mut self.trace {
            trace.note(now, What::AllAcked);
        }
    }

    /// The timer of the sending half has come to this.
    pub(crate) fn trace_timer(&mut self, now: Instant, action: &TimerAction) {
        let Some(trace) = &mut self.trace else { return };
        match action {
            TimerAction::Nothing | TimerAction::Lost { .. } => {}
            TimerAction::Probe | TimerAction::ProbeTail { .. } => trace.note(now, What::Probed),
            TimerAction::TimedOut { .. } => trace.note(now, What::TimedOut),
        }
        for seq in self.tx.losses.take() {
            trace.note(now, What::Lost { seq });
        }
    }

    /// A DATA packet with `len` bytes of plain text came.
    pub(crate) fn trace_received(&mut self, now: Instant, header: &Header, len: usize, received: Received) {
        let Some(trace) = &mut self.trace else { return };
        let is = |what| u32::from(received == what);
        let data = ReceivedData {
            seqs: (header.seq, header.seq),
            packets: 1,
            bytes: len as u64,
            held: is(Received::Held),
            duplicates: is(Received::Duplicate),
            refused: is(Received::Refused),
        };
        trace.note(now, What::Received(data));
    }

    /// An ACK goes out.
    pub(crate) fn trace_ack_sent(&mut self, now: Instant) {
        if let Some(trace) = &mut self.trace {
            let sent = AckSent { acks: 1, next: self.rx.next(), window: self.rx.window() };
            trace.note(now, What::AckSent(sent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::ORIGIN + Duration::from_micros(micros)
    }

    fn sent(seq: u32) -> What {
        What::Sent(Sent { seqs: (Seq(seq), Seq(seq)), packets: 1, bytes: 1000, in_flight: u64::from(seq) })
    }

    fn acked(rtt_micros: u64) -> What {
        let rtt = Duration::from_micros(rtt_micros);
        What::Acked(Acked {
            acks: 1,
            first: Seq(1),
            previous: Seq(1),
            acked: 10,
            lost: 0,
            spurious: 0,
            in_flight: 0,
            window: 0,
            peer_window: 0,
            rate: None,
            rtt: Some((rtt, rtt)),
        })
    }

    fn finish(recorder: Recorder) -> Trace {
        recorder.finish(true, ([127, 0, 0, 1], 7000).into())
    }

    #[test]
    fn a_short_call_is_kept_packet_by_packet() {
        let mut recorder = Recorder::new(at(0));
        (1..=MAX_FLOW as u32).for_each(|seq| recorder.note(at(u64::from(seq)), sent(seq)));
        let trace = finish(recorder);
        assert_eq!((trace.records.len(), trace.span), (MAX_FLOW, Duration::ZERO));
    }

    #[test]
    fn a_long_call_is_thinned_out_and_nothing_of_it_is_missing() {
        let mut recorder = Recorder::new(at(0));
        let packets = 40 * MAX_FLOW as u32;
        for seq in 1..=packets {
            recorder.note(at(10 * u64::from(seq)), sent(seq));
            if seq % 4 == 0 {
                recorder.note(at(10 * u64::from(seq)), acked(u64::from(seq)));
            }
        }
        let trace = finish(recorder);
        assert!((MAX_FLOW / 8..=MAX_FLOW).contains(&trace.records.len()), "{}", trace.records.len());
        assert!(trace.records.is_sorted_by_key(|r| r.at));
        let (mut next, mut bytes, mut acks) = (1, 0, 0);
        for Record { what, .. } in &trace.records {
            match what {
                What::Sent(s) => {
                    assert_eq!(s.seqs.0, Seq(next), "spans follow each other without a gap");
                    assert_eq!(s.seqs.1.0 - s.seqs.0.0 + 1, s.packets);
                    assert_eq!(s.in_flight, u64::from(s.seqs.1.0), "as it stood at the end of the span");
                    (next, bytes) = (s.seqs.1.0 + 1, bytes + s.bytes);
                }
                What::Acked(a) => {
                    acks += a.acks;
                    assert!(a.rtt.is_some_and(|(min, max)| min <= max));
                }
                what => panic!("{what:?}"),
            }
        }
        assert_eq!((next - 1, bytes, acks), (packets, 1000 * u64::from(packets), packets / 4));
    }

    #[test]
    fn everything_at_one_time_fits_too() {
        let mut recorder = Recorder::new(at(7));
        (1..=3 * MAX_FLOW as u32).for_each(|seq| recorder.note(at(7), sent(seq)));
        assert!(finish(recorder).records.len() <= MAX_FLOW);
    }

    #[test]
    fn marks_have_a_limit_and_are_counted_beyond_it() {
        let mut recorder = Recorder::new(at(0));
        (0..MAX_MARKS as u32 + 5).for_each(|seq| recorder.note(at(1), What::Lost { seq: Seq(seq) }));
        let trace = finish(recorder);
        assert_eq!((trace.records.len(), trace.marks_left_out), (MAX_MARKS, 5));
    }
}
