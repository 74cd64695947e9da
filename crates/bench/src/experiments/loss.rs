//! One call over a long link that loses, reorders or has a short queue, beside TCP on links of the same kind.

use std::time::Duration;

use super::{DIRECTIONS, RTTS, rtt_text};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LinkSpec, PLACEMENT_LINK, over_link};
use crate::record::{Record, short};
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// More than the link carries in a run, so that it is a single call, and less than the 2^32 that the protocol can say.
const CALL_BYTES: &str = "4000000000";
/// The goal is no higher than this though TCP is, 0.95 of what Rx's packets can carry of the link.
const CAP_MBIT: f64 = 914.0;
/// The part of TCP BBR's figure that is the goal.
const SHARE_OF_BBR: f64 = 0.95;
/// Conditions under which TCP is measured beside.
const RANDOM: [Condition; 2] = [Condition::Random(0.001), Condition::Random(0.01)];
/// Conditions that are compared with our own figure without loss, and what is to be reached of it.
const SHAPED: [(Condition, f64); 3] =
    [(Condition::Bursts, 0.85), (Condition::Reordering, 0.85), (Condition::ShortQueue, 0.8)];
/// The round trip at which cubic is measured too: it has a few Mbit/s with loss at longer round trips, which is known.
const CUBIC_RTT: Duration = RTTS[0];

/// The treatment of the packets, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Condition {
    /// Nothing.
    Clean,
    /// Each is lost with this chance.
    Random(f64),
    /// 0.1 % are lost, in bursts of 5 on average.
    Bursts,
    /// 1 % are held back by 2 ms.
    Reordering,
    /// Nothing, but the queue holds 5 ms.
    ShortQueue,
}

impl Condition {
    /// As it is written in labels.
    fn name(self) -> String {
        match self {
            Condition::Clean => "no loss".into(),
            Condition::Random(share) => format!("{} % loss", short(share * 100.0)),
            Condition::Bursts => "0.1 % loss in bursts of 5".into(),
            Condition::Reordering => "1 % reordered by 2 ms".into(),
            Condition::ShortQueue => "queue of 5 ms".into(),
        }
    }

    fn link(self, rtt: Duration) -> LinkSpec {
        let link = LinkSpec::wan(rtt);
        match self {
            Condition::Clean => link,
            Condition::Random(loss) => LinkSpec { loss, ..link },
            Condition::Bursts => LinkSpec { loss: 0.001, burst_packets: 5.0, ..link },
            Condition::Reordering => LinkSpec { reorder: 0.01, reorder_by: Duration::from_millis(2), ..link },
            Condition::ShortQueue => LinkSpec { queue_ms: 5, ..link },
        }
    }
}

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(5, 20), Window::new(1, 2));
    let rtts = lab.choose(&RTTS[..], &RTTS[..1]);
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = "Mbit/s".into();
    record.placement = PLACEMENT_LINK.into();
    record.method = format!(
        "Emulated link (linkem): 1 Gbit/s each way, drop-tail queue of 50 ms unless told otherwise, MTU 1500; a fresh link for \
         each run, always from the same seed. Loss and reordering in both directions. A run counts only if the link's counters \
         are in order; if not, it is repeated up to twice. One call, level clear, of which {measure} s are measured after {omit} s \
         that are not; recv: from server to client, send: the other way. TCP: one connection (iperf3 -t {measure} -O {omit}) from \
         client to server; cubic for information, at the shortest round trip only. The bound with random loss is {SHARE_OF_BBR} of \
         the smaller of BBR's figure and {CAP_MBIT} Mbit/s; the others are shares of our own figure without loss, queue of 50 ms, at \
         the same round trip. Repetitions in turns. Figures are what the receiver was given in order within the window."
    );
    for rtt in rtts {
        let cells = cells(lab, *rtt, window);
        interleave(lab, record, &cells, lab.repeats(3))?;
    }
    for rtt in rtts.iter().copied().map(rtt_text) {
        judge(record, &rtt);
    }
    Ok(())
}

/// All that is measured at a round trip.
fn cells(lab: &Lab, rtt: Duration, window: Window) -> Vec<Cell<'static>> {
    let mut cells = Vec::new();
    let shaped = SHAPED.map(|(condition, _)| condition);
    for condition in [Condition::Clean].into_iter().chain(RANDOM).chain(shaped) {
        for direction in DIRECTIONS {
            let client = lab.tools.rxperf_client(Stack::Afar).and(["-c", direction, "-b", CALL_BYTES]);
            let client = client.and(window.rxperf());
            cells.push(Cell::new(labels(rtt, condition, "afar", direction), move |lab| {
                over_link(lab, &condition.link(rtt), |lab, ends| {
                    transfer::rxperf(lab, ends, &transfer::server(Stack::Afar, &[]), &client, window)
                })
            }));
        }
        if !RANDOM.contains(&condition) {
            continue;
        }
        let controls: &[&'static str] = if rtt == CUBIC_RTT { &["bbr", "cubic"] } else { &["bbr"] };
        for control in controls {
            let who = format!("TCP {control}");
            cells.push(Cell::new(labels(rtt, condition, &who, "send"), move |lab| {
                over_link(lab, &condition.link(rtt), |lab, ends| {
                    transfer::iperf3(lab, ends, &["-C", control], window)
                })
            }));
        }
    }
    cells
}

/// The goals at a round trip.
fn judge(record: &mut Record, rtt: &str) {
    for direction in DIRECTIONS {
        let ours = |record: &Record, condition: Condition| {
            record.median("Mbit/s", &[rtt, &condition.name(), "afar", direction])
        };
        for condition in RANDOM {
            let name = condition.name();
            let [bbr, cubic] =
                ["TCP bbr", "TCP cubic"].map(|who| record.median("Mbit/s", &[rtt, &name, who]));
            let Some(bbr) = bbr else { continue };
            let bound = SHARE_OF_BBR * bbr.min(CAP_MBIT);
            let beside = cubic.map_or(String::new(), |cubic| format!(", cubic {}", short(cubic)));
            let claim = format!("One call, {rtt}, {name}, {direction}");
            let measured = ours(record, condition);
            record.at_least(&claim, measured, bound, "Mbit/s", &format!("TCP: bbr {}{beside}", short(bbr)));
        }
        let Some(clean) = ours(record, Condition::Clean) else { continue };
        for (condition, share) in SHAPED {
            let claim = format!("One call, {rtt}, {}, {direction}", condition.name());
            let note = format!("without loss: {}; {share} of it is the goal", short(clean));
            let measured = ours(record, condition);
            record.at_least(&claim, measured, share * clean, "Mbit/s", &note);
        }
    }
}

fn labels(rtt: Duration, condition: Condition, who: &str, direction: &str) -> [(&'static str, String); 4] {
    [
        ("RTT", rtt_text(rtt)),
        ("link", condition.name()),
        ("who", who.to_string()),
        ("direction", direction.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Row, Run};

    fn record_of(figures: &[(Condition, &str, &str, f64)]) -> Record {
        let mut record = Record::default();
        for (condition, who, direction, mbit) in figures {
            let mut row = Row::new(&labels(RTTS[0], *condition, who, direction), 1);
            let figures = [("Mbit/s".to_string(), *mbit)].into();
            row.push(Run { is_valid: true, figures, ..Run::default() });
            record.rows.push(row);
        }
        record
    }

    #[test]
    fn random_loss_is_judged_by_bbr_up_to_the_cap_and_the_rest_by_ourselves() {
        let mut record = record_of(&[
            (Condition::Random(0.001), "afar", "send", 870.0),
            (Condition::Random(0.001), "TCP bbr", "send", 950.0),
            (Condition::Random(0.01), "afar", "send", 770.0),
            (Condition::Random(0.01), "TCP bbr", "send", 800.0),
            (Condition::Clean, "afar", "send", 960.0),
            (Condition::ShortQueue, "afar", "send", 760.0),
        ]);
        judge(&mut record, "12.5 ms");
        let of = |text: &str| {
            let mut found = record.verdicts.iter().filter(|v| v.claim.contains(text));
            let verdict = found.find(|v| v.claim.contains("send")).expect("it was judged");
            (verdict.bound, verdict.is_met)
        };
        assert_eq!(of("0.1 % loss, send"), (868.3, true));
        assert_eq!(of("1 % loss, send: at least 760"), (760.0, true));
        assert_eq!(of("queue of 5 ms"), (768.0, false));
        assert!(!of("in bursts").1, "what was not measured is not met");
    }

    #[test]
    fn conditions_have_names_that_tell_them_apart() {
        let names: Vec<_> = RANDOM.iter().map(|c| c.name()).collect();
        assert_eq!(names, ["0.1 % loss", "1 % loss"]);
    }
}
