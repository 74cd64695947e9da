//! One call over a long link without loss, steady state, beside TCP on links of the same kind.

use super::{DIRECTIONS, RTTS, rtt_text};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LINK_TEXT, LinkSpec, PLACEMENT_LINK, over_link};
use crate::record::Record;
use crate::tools::Stack;
use crate::transfer::{self, Window};

/// More than the link carries in a run, so that it is a single call, and less than the 2^32 that the protocol can say.
const CALL_BYTES: &str = "4000000000";
/// 0.95 of what Rx's packets can carry of the link.
const GOAL_MBIT: f64 = 914.0;
/// TCP's kinds of congestion control.
const TCP: [&str; 2] = ["bbr", "cubic"];

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let window = lab.choose(Window::new(5, 20), Window::new(1, 3));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = "Mbit/s".into();
    record.placement = PLACEMENT_LINK.into();
    record.method = format!(
        "{LINK_TEXT} One call, level clear, of which {measure} s are measured after {omit} s that are not; recv: \
         from server to client, send: the other way. Beside it one TCP connection (iperf3 -t {measure} -O {omit}) \
         from client to server. Repetitions in turns. Figures are what the receiver was given in order within the window; \
         after a loss TCP's may hold, at the window's edges, some that had crossed the link before it."
    );
    let rtts = lab.choose(&RTTS[..], &RTTS[..1]);
    for rtt in rtts.iter().copied() {
        let mut cells = Vec::new();
        for direction in DIRECTIONS {
            let client = lab.tools.rxperf_client(Stack::Afar).and(["-c", direction, "-b", CALL_BYTES]);
            let client = client.and(window.rxperf());
            cells.push(Cell::new(labels(rtt_text(rtt), "afar", direction), move |lab| {
                over_link(lab, &LinkSpec::wan(rtt), |lab, ends| {
                    transfer::rxperf(lab, ends, &transfer::server(Stack::Afar, &[]), &client, window)
                })
            }));
        }
        for control in TCP {
            let who = format!("TCP {control}");
            cells.push(Cell::new(labels(rtt_text(rtt), &who, "send"), move |lab| {
                over_link(lab, &LinkSpec::wan(rtt), |lab, ends| {
                    transfer::iperf3(lab, ends, &["-C", control], window)
                })
            }));
        }
        interleave(lab, record, &cells, lab.repeats(3))?;
    }
    for rtt in rtts.iter().copied().map(rtt_text) {
        for direction in DIRECTIONS {
            let measured = record.median("Mbit/s", &[&rtt, "afar", direction]);
            let beside = TCP.map(|control| {
                let median = record.median("Mbit/s", &[&rtt, &format!("TCP {control}")]);
                format!("{control} {}", median.map_or("-".into(), crate::record::short))
            });
            let claim = format!("One call, {rtt}, {direction}");
            record.at_least(&claim, measured, GOAL_MBIT, "Mbit/s", &format!("TCP: {}", beside.join(", ")));
        }
    }
    Ok(())
}

fn labels(rtt: String, who: &str, direction: &str) -> [(&'static str, String); 3] {
    [("RTT", rtt), ("who", who.to_string()), ("direction", direction.to_string())]
}
