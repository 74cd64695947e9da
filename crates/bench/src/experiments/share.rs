//! The share that a flow of ours leaves to others on the same link: to TCP, to more of our own, to one that comes late,
//! and to the small packets that wait behind it in the queue.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{DIRECTIONS, RTTS};
use crate::distribution::Distribution;
use crate::error::Error;
use crate::flows::{self, Flow, Planned, Progress};
use crate::lab::{Cell, Lab, interleave};
use crate::network::{Ends, LINK_TEXT, LinkSpec, PLACEMENT_LINK, add_addresses, over_link};
use crate::record::{Record, Run, short};
use crate::tools::Place;

/// The distance.
const RTT: Duration = RTTS[0];
/// Another address of the client's end.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 3);
/// TCP's kinds of congestion control.
const TCP: [&str; 2] = ["bbr", "cubic"];
/// The flow that begins.
const FIRST: [&str; 2] = ["afar", "TCP"];
/// Calls of the client that has many.
const MANY: usize = 16;

/// The share that we want beside TCP, %.
const GOAL_TCP: [f64; 2] = [25.0, 75.0];
/// The goal for the smaller of two paths, divided by the larger.
const GOAL_PATHS: f64 = 0.8;
/// The share that a latecomer should have, %, and the time within which it should have it.
const GOAL_LATE_PERCENT: f64 = 30.0;
const GOAL_LATE_S: f64 = 10.0;
/// The time by which ping may rise, ms.
const GOAL_PING_MS: f64 = 25.0;
/// A latecomer's share is that of so long, s.
const LATE_OVER_S: f64 = 1.0;

/// Names of figures that goals are about.
const SHARE: &str = "share, percent";
const RATIO: &str = "smaller / larger";
const LATE: &str = "a latecomer's best share within 10 s, percent";
const RISE: &str = "ping's rise, ms";

/// The lengths of the phases, s.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// The time until the second begins.
    alone: u64,
    /// Both, beside TCP; of that, the last part counts.
    beside_tcp: u64,
    beside_tcp_counts: u64,
    /// Both, of our own, and what counts.
    beside_own: u64,
    beside_own_counts: u64,
    /// The first before a latecomer.
    before_latecomer: u64,
    latecomer: u64,
    /// Pings, a tenth of a second each: without load, and under it.
    idle_pings: u64,
    pings: u64,
}

const FULL: Times = Times {
    alone: 5,
    beside_tcp: 60,
    beside_tcp_counts: 40,
    beside_own: 30,
    beside_own_counts: 20,
    before_latecomer: 10,
    latecomer: 15,
    idle_pings: 30,
    pings: 150,
};
const QUICK: Times = Times {
    alone: 1,
    beside_tcp: 3,
    beside_tcp_counts: 2,
    beside_own: 3,
    beside_own_counts: 2,
    before_latecomer: 2,
    latecomer: 3,
    idle_pings: 5,
    pings: 10,
};

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let times = lab.choose(FULL, QUICK);
    record.headline = SHARE.into();
    record.placement = PLACEMENT_LINK.into();
    record.method = format!(
        "{LINK_TEXT} RTT {} ms. All flows go the same way and are processes of their own; send: from client to server. Beside TCP: one \
         call (send) and one iperf3 connection; the second begins {} s after the first, then both run for {} s, of which the last {} \
         count; our share of the sum of both. iperf3's bytes are those that it gave to the kernel, ours those acknowledged. Two \
         paths: two clients with a call each, or with 1 and {MANY} calls from two addresses of the client's end, to one server, \
         begun together; the last {} of {} s count, and the share is that of the smaller, or of the one with 1 call. Latecomer: a second client \
         begins {} s after the first; its share of the sum over {LATE_OVER_S} s, the best within {GOAL_LATE_S} s and when it was \
         {GOAL_LATE_PERCENT} % first. Ping (iputils, \
         10 a second): the mean of {} under one call, from its sixth second on (second in quick runs), less that of {} before.",
        RTT.as_secs_f64() * 1e3,
        times.alone,
        times.beside_tcp,
        times.beside_tcp_counts,
        times.beside_own_counts,
        times.beside_own,
        times.before_latecomer,
        times.pings,
        times.idle_pings
    );
    let mut cells = Vec::new();
    for control in TCP {
        for first in FIRST {
            let labels = [("beside", format!("TCP {control}")), ("case", format!("{first} first"))];
            cells.push(on_link(labels, move |lab, ends| {
                beside_tcp(lab, ends, times, control, first == "afar")
            }));
        }
    }
    for direction in DIRECTIONS {
        let cell = |case: &str| [("beside", "afar".to_string()), ("case", format!("{case}, {direction}"))];
        cells.push(on_link(cell("two paths"), move |lab, ends| two_paths(lab, ends, times, direction, 1)));
        cells.push(on_link(cell("1 and 16 calls"), move |lab, ends| {
            two_paths(lab, ends, times, direction, MANY)
        }));
        cells.push(on_link(cell("latecomer"), move |lab, ends| latecomer(lab, ends, times, direction)));
        let alone = [("beside", "ping".to_string()), ("case", format!("one call, {direction}"))];
        cells.push(on_link(alone, move |lab, ends| ping(lab, ends, times, direction)));
    }
    interleave(lab, record, &cells, lab.repeats(1))?;
    judge(record);
    Ok(())
}

fn on_link<'a>(
    labels: [(&'static str, String); 2],
    run: impl Fn(&Lab, Ends<'_>) -> Result<Run, Error> + 'a,
) -> Cell<'a> {
    Cell::new(labels, move |lab| over_link(lab, &LinkSpec::wan(RTT), |lab, ends| run(lab, ends)))
}

fn judge(record: &mut Record) {
    for control in TCP {
        for first in FIRST {
            let of =
                |figure: &str| record.median(figure, &[&format!("TCP {control}"), &format!("{first} first")]);
            let mbit = |figure: &str| of(figure).map_or("-".into(), short);
            let (share, note) =
                (of(SHARE), format!("afar {} Mbit/s, TCP {}", mbit("afar, Mbit/s"), mbit("other, Mbit/s")));
            let claim = format!("Our share beside TCP {control}, {first} first");
            record.at_least(&claim, share, GOAL_TCP[0], "%", &note);
            record.at_most(&claim, share, GOAL_TCP[1], "%", &note);
        }
    }
    for direction in DIRECTIONS {
        for case in ["two paths", "1 and 16 calls"] {
            let ratio = record.median(RATIO, &["afar", &format!("{case}, {direction}")]);
            record.at_least(&format!("Equal shares, {case}, {direction}"), ratio, GOAL_PATHS, "times", "");
        }
        let late = record.median(LATE, &["afar", &format!("latecomer, {direction}")]);
        let claim = format!("A latecomer's share within {GOAL_LATE_S} s, {direction}");
        record.at_least(&claim, late, GOAL_LATE_PERCENT, "%", "");
        let rise = record.median(RISE, &["ping", &format!("one call, {direction}")]);
        record.at_most(&format!("Ping rises under one call, {direction}"), rise, GOAL_PING_MS, "ms", "");
    }
}

fn planned(flow: Flow, begin: u64, length: u64) -> Planned {
    Planned { flow, begin: Duration::from_secs(begin), length: Duration::from_secs(length) }
}

fn one_of_ours(direction: &'static str) -> Flow {
    Flow::Afar { direction, calls: 1, from: linkem::ADDRESS_A }
}

/// One call of ours and one connection of TCP.
fn beside_tcp(
    lab: &Lab,
    ends: Ends<'_>,
    times: Times,
    control: &'static str,
    is_ours_first: bool,
) -> Result<Run, Error> {
    let mut flows = [one_of_ours("send"), Flow::Tcp(control)];
    if !is_ours_first {
        flows.reverse();
    }
    let [first, second] = flows;
    // A second more, so that the first surely lasts as long as the second.
    let plan = [
        planned(first, 0, times.alone + times.beside_tcp + 1),
        planned(second, times.alone, times.beside_tcp + 1),
    ];
    let mut seen = flows::run(lab, ends, &plan)?;
    if !is_ours_first {
        seen.flows.reverse();
    }
    let to = (times.alone + times.beside_tcp) as f64;
    let [ours, other] = rates(&seen.flows, to - times.beside_tcp_counts as f64, to);
    let mut run = run_of(seen.commands, &seen.flows, ["afar", "other"], [ours, other]);
    run.figures.insert(SHARE.into(), percent(ours, ours + other));
    Ok(run)
}

/// Two clients of ours, the second with this many calls; one with more than one has an address of its own.
fn two_paths(
    lab: &Lab,
    ends: Ends<'_>,
    times: Times,
    direction: &'static str,
    calls: usize,
) -> Result<Run, Error> {
    let mut second = one_of_ours(direction);
    if calls > 1 {
        let Place::In(clients) = ends.client else { unreachable!("the flows are on a link") };
        add_addresses(clients, OTHER, 1)?;
        second = Flow::Afar { direction, calls, from: OTHER };
    }
    let plan =
        [planned(one_of_ours(direction), 0, times.beside_own + 1), planned(second, 0, times.beside_own + 1)];
    let seen = flows::run(lab, ends, &plan)?;
    let to = times.beside_own as f64;
    let [one, other] = rates(&seen.flows, to - times.beside_own_counts as f64, to);
    let mut run = run_of(seen.commands, &seen.flows, ["afar", "other"], [one, other]);
    let of_interest = if calls > 1 { one } else { one.min(other) };
    run.figures.insert(SHARE.into(), percent(of_interest, one + other));
    run.figures.insert(RATIO.into(), one.min(other) / one.max(other).max(1e-9));
    Ok(run)
}

/// A client of ours beside one that is there already.
fn latecomer(lab: &Lab, ends: Ends<'_>, times: Times, direction: &'static str) -> Result<Run, Error> {
    let length = times.before_latecomer + times.latecomer + 1;
    let plan = [
        planned(one_of_ours(direction), 0, length),
        planned(one_of_ours(direction), times.before_latecomer, times.latecomer),
    ];
    let seen = flows::run(lab, ends, &plan)?;
    let (first, late) = (&seen.flows[0], &seen.flows[1]);
    let counts = [late.end() - LATE_OVER_S, late.end()];
    let [one, other] = rates(&seen.flows, counts[0], counts[1]);
    let mut run = run_of(seen.commands.clone(), &seen.flows, ["afar", "other"], [one, other]);
    run.figures.insert(SHARE.into(), percent(other, one + other));
    let shares = shares(first, late);
    let soon = shares.iter().filter(|(after, _)| *after <= GOAL_LATE_S).map(|(_, share)| *share);
    run.figures.insert(LATE.into(), soon.fold(0.0, f64::max));
    let reached = shares.iter().find(|(_, share)| *share >= GOAL_LATE_PERCENT);
    run.figures
        .extend(reached.map(|(after, _)| ("until a latecomer's share is 30 %, s".to_string(), *after)));
    Ok(run)
}

/// A latecomer's share over the last second, %, by the time since it began.
fn shares(first: &Progress, late: &Progress) -> Vec<(f64, f64)> {
    const STEPS_PER_S: f64 = 10.0;
    let last = ((late.end() - late.begin()) * STEPS_PER_S) as u32;
    let times = (1..=last).map(|step| f64::from(step) / STEPS_PER_S).filter(|after| *after >= LATE_OVER_S);
    let share = |after: f64| {
        let to = late.begin() + after;
        let [one, other] = [first, late].map(|flow| flow.mbit(to - LATE_OVER_S, to));
        percent(other, one + other)
    };
    times.map(|after| (after, share(after))).collect()
}

/// One call, and pings before and under it.
fn ping(lab: &Lab, ends: Ends<'_>, times: Times, direction: &'static str) -> Result<Run, Error> {
    let pings = |count: u64| {
        lab.tools.ping().and(["-n", "-i", "0.1", "-c", &count.to_string(), &ends.host.to_string()])
    };
    let patience = Duration::from_secs(times.idle_pings + times.pings + 10);
    let idle = pings(times.idle_pings).start(ends.client, &lab.interrupt)?.finish(patience)?;
    // Begun before the flow, whose end is waited for here; this many pings pass before those that count.
    let early = times.alone * 10;
    let pinging = pings(early + times.pings).start(ends.client, &lab.interrupt)?;
    let length = times.alone + times.pings / 10 + 2;
    let seen = flows::run(lab, ends, &[planned(one_of_ours(direction), 0, length)])?;
    let loaded = pinging.finish(patience)?;
    let idle = Distribution::of(ping_times(&idle).into_iter().map(|(_, ms)| ms));
    let under = ping_times(&loaded).into_iter().filter(|(number, _)| *number > early);
    let under = Distribution::of(under.map(|(_, ms)| ms));
    let (Some(before), Some(mean)) = (idle.mean(), under.mean()) else {
        return Err(Error::run("ping printed no times".to_string()));
    };
    let mut run = run_of(
        seen.commands,
        &seen.flows,
        ["afar"],
        [seen.flows[0].mbit(times.alone as f64, length as f64 - 1.0)],
    );
    run.commands.push(pings(early + times.pings).to_string());
    let mut figure = |name: &str, value: Option<f64>| {
        run.figures.extend(value.map(|value| (name.to_string(), value)));
    };
    figure(RISE, Some(mean - before));
    figure("ping alone, mean ms", Some(before));
    figure("ping under load, median ms", under.percentile(50.0));
    figure("ping under load, p95 ms", under.percentile(95.0));
    figure("ping under load, max ms", under.max());
    Ok(run)
}

/// Numbers and milliseconds of the answers that ping printed ("... icmp_seq=3 ttl=64 time=12.6 ms").
fn ping_times(output: &str) -> Vec<(u64, f64)> {
    let word = |line: &str, name: &str| -> Option<f64> {
        line.split_whitespace().find_map(|word| word.strip_prefix(name))?.parse().ok()
    };
    output.lines().filter_map(|line| Some((word(line, "icmp_seq=")? as u64, word(line, "time=")?))).collect()
}

fn rates(flows: &[Progress], from: f64, to: f64) -> [f64; 2] {
    [0, 1].map(|i| flows[i].mbit(from, to))
}

fn percent(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all * 100.0 } else { 0.0 }
}

/// A run with the rates of its flows, and their curves.
fn run_of<const N: usize>(
    commands: Vec<String>,
    flows: &[Progress],
    names: [&str; N],
    rates: [f64; N],
) -> Run {
    let mut run = Run { is_valid: true, commands, ..Run::default() };
    for ((name, rate), flow) in names.into_iter().zip(rates).zip(flows) {
        run.figures.insert(format!("{name}, Mbit/s"), rate);
        run.curves.push(flow.curve(name));
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latecomer_has_its_share_when_the_last_second_says_so() {
        // The first has 100 bytes a second, and 50 from 10 s on, when the second begins, which has them from 12 s on.
        let first: Vec<_> = (1..=25)
            .map(|s| (f64::from(s), 100.0 * f64::from(s) - 50.0 * (f64::from(s) - 10.0).max(0.0)))
            .collect();
        let late: Vec<_> = (1..=15).map(|s| (f64::from(s), 50.0 * (f64::from(s) - 2.0).max(0.0))).collect();
        let (first, late) = (Progress::new(0.0, &first), Progress::new(10.0, &late));
        // 30 % are reached when it had its 50 for x of the last second: 50x / (50x + 50) = 0.3.
        let shares = shares(&first, &late);
        let reached = shares.iter().find(|(_, share)| *share >= GOAL_LATE_PERCENT);
        assert_eq!(reached.map(|(after, _)| *after), Some(2.5));
        assert_eq!((shares.first(), shares.last()), (Some(&(1.0, 0.0)), Some(&(15.0, 50.0))));
    }

    #[test]
    fn pings_are_read_with_their_numbers() {
        let output = "PING 10.99.0.2 (10.99.0.2) 56(84) bytes of data.\n\
            64 bytes from 10.99.0.2: icmp_seq=1 ttl=64 time=12.6 ms\n\
            64 bytes from 10.99.0.2: icmp_seq=3 ttl=64 time=13 ms\n\n\
            3 packets transmitted, 2 received, 33.3333% packet loss, time 201ms\n";
        assert_eq!(ping_times(output), [(1, 12.6), (3, 13.0)]);
    }
}
