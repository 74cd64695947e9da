//! A user on 250 hosts and a user on one, all at once: both are to have as much of the server.

use crate::crowd::{
    CROWD_NICENESS, Crowd, FIRST_HOST, Group, ONE_MORE_HOST, PROCESSES, RTT, SERVER_NICENESS, Seen,
};
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LinkSpec, over_link};
use crate::record::{Record, Run, short};
use crate::transfer::Window;
use crate::workers::named_server;

use super::DIRECTIONS;

/// Calls at once of the user on one host: as many as keep a server busy alone. Each of the other's hosts has one.
const CALLS: usize = 16;
/// The niceness of that user's process, which stands for a machine of its own, as do the other's 250 hosts together.
const ONE_NICENESS: i32 = 0;
/// The goal for the smaller throughput, divided by the larger.
const GOAL: f64 = 0.8;
/// The part of a core that the server gets where it alone is to be short of CPU time: less than its clients take to
/// keep it busy.
const SERVER_SHARE: f64 = 0.3;
/// The users' names.
const USERS: [&str; 2] = ["many", "one"];
const RATIO: &str = "smaller / larger";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let hosts = lab.choose(250, 30);
    let window = lab.choose(Window::new(5, 30), Window::new(2, 4));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = RATIO.into();
    record.placement = format!(
        "Server in namespace B at niceness {SERVER_NICENESS}, clients in namespace A: {hosts} hosts in {PROCESSES} processes at niceness \
         {CROWD_NICENESS}, the one host in its own at {ONE_NICENESS}; the emulator's thread (SCHED_FIFO 10) in the bench's process. \
         Nothing is pinned; all of them share the cores of this machine, and where the server is held to {SERVER_SHARE} of a core (a \
         control group) nobody else waits for one."
    );
    record.method = format!(
        "Emulated link (linkem) of {} ms RTT without a rate limit, MTU 1500, a fresh one for each run; its counters are noted, but a \
         run counts though they are not in order, as the machine is full on purpose. The user '{}' calls from {hosts} hosts, each an \
         endpoint with an address of its own and one call after the other; '{}' from one host, with {CALLS} calls at once. Calls are \
         rxperf's, of 64 KiB to 8 MB. The security class is a toy of the lab by which a client says its name in clear, at a server of \
         the bench (rx as in afar rxperf): an owner is whom the class names. {measure} s are measured after {omit} s that are not. \
         Bytes are those acknowledged (send) or read (recv) at the clients.",
        RTT.as_millis(),
        USERS[0],
        USERS[1]
    );
    let mut cells = Vec::new();
    for (command, server_share) in cases() {
        let labels = [("direction", command.to_string()), ("server", server(server_share))];
        cells.push(Cell::new(labels, move |lab| {
            over_link(lab, &LinkSpec::unlimited(RTT), |lab, ends| {
                let group =
                    |first, hosts, calls, niceness, user| Group { first, hosts, calls, niceness, user };
                let server = lab.tools.bench().and([named_server::NAME, &ends.port.to_string()]);
                let crowd = Crowd {
                    server_share,
                    groups: vec![
                        group(FIRST_HOST, hosts, 1, CROWD_NICENESS, Some(USERS[0])),
                        group(ONE_MORE_HOST, 1, CALLS, ONE_NICENESS, Some(USERS[1])),
                    ],
                    command,
                    idle_probes: 0,
                    probes: 0,
                    window,
                };
                Ok(evaluate(&crowd.run(lab, ends, &server)?))
            })
        }));
    }
    interleave(lab, record, &cells, lab.repeats(1))?;
    for (command, server_share) in cases() {
        let server = server(server_share);
        let measured = record.median(RATIO, &[command, &server]);
        let of = |user: &str| record.median(&mbit(user), &[command, &server]).map_or("-".into(), short);
        let note = format!("Mbit/s: on {hosts} hosts {}, on one {}", of(USERS[0]), of(USERS[1]));
        let claim =
            format!("Users on {hosts} hosts and on one have equal shares, {command}, server {server}");
        record.at_least(&claim, measured, GOAL, "times", &note);
    }
    Ok(())
}

/// Directions, each with all that the server can have, and with less.
fn cases() -> impl Iterator<Item = (&'static str, Option<f64>)> {
    [None, Some(SERVER_SHARE)].into_iter().flat_map(|share| DIRECTIONS.map(|command| (command, share)))
}

/// The words for what a server is held to.
fn server(share: Option<f64>) -> String {
    share.map_or("not held".to_string(), |share| format!("held to {share} of a core"))
}

fn mbit(user: &str) -> String {
    format!("user '{user}': Mbit/s")
}

fn evaluate(seen: &Seen) -> Run {
    let mut run = Run { is_valid: true, commands: seen.commands.clone(), ..Run::default() };
    let rates: Vec<f64> = seen
        .groups
        .iter()
        .map(|group| (group.sent + group.received) as f64 * 8.0 / group.seconds.max(1e-9) / 1e6)
        .collect();
    for (user, (group, rate)) in USERS.iter().zip(seen.groups.iter().zip(&rates)) {
        run.figures.insert(mbit(user), *rate);
        run.figures.insert(format!("user '{user}': failed calls"), group.failures as f64);
        run.problems
            .extend(group.first_failure.iter().map(|text| format!("a call of '{user}' failed: {text}")));
    }
    let (least, most) =
        (rates.iter().copied().fold(f64::INFINITY, f64::min), rates.iter().copied().fold(0.0, f64::max));
    run.figures.insert(RATIO.into(), if most > 0.0 { least / most } else { 0.0 });
    run.figures.insert("server: dropped at its socket, datagrams".into(), seen.server_udp.dropped as f64);
    let cpu: f64 = seen.server_threads.iter().sum();
    run.figures.insert("server, CPU s/s".into(), cpu / seen.seconds.max(1e-9));
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::load;

    #[test]
    fn the_ratio_is_that_of_the_smaller_whoever_it_is() {
        let group = |sent: u64| load::Report { seconds: 1.0, sent, ..load::Report::default() };
        for (many, one) in [(1_000_000, 4_000_000), (4_000_000, 1_000_000)] {
            let seen = Seen { groups: vec![group(many), group(one)], seconds: 1.0, ..Seen::default() };
            assert_eq!(evaluate(&seen).figures[RATIO], 0.25);
        }
        let nothing = Seen { groups: vec![group(0), group(0)], seconds: 1.0, ..Seen::default() };
        assert_eq!(evaluate(&nothing).figures[RATIO], 0.0);
    }
}
