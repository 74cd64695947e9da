//! A server that up to 250 hosts keep busy: what it carries, what it drops, how long a call stands still, and how long
//! somebody else's short calls take meanwhile; OpenAFS's server beside it.

use crate::crowd::{CROWD_NICENESS, Crowd, Group, PROCESSES, RTT, SERVER_NICENESS, Seen};
use crate::distribution::Distribution;
use crate::error::Error;
use crate::lab::{Cell, Lab, interleave};
use crate::network::{LinkSpec, over_link};
use crate::record::{Curve, Record, Row, Run, short};
use crate::tools::{Invocation, Stack};
use crate::transfer::{self, Window};

/// Hosts that call at once.
pub(super) const HOSTS: [u32; 4] = [1, 30, 100, 250];
const COMMANDS: [&str; 3] = ["send", "recv", "both"];
/// The servers: who, and with which options. A buffer of 416 KiB, 425,984 bytes, is twice Debian's net.core.rmem_max: what a
/// server without the capability to force it gets there. OpenAFS has the threads of a large file server.
const FORCED: &str = "afar";
const LIMITED: &str = "afar, receive buffer of 416 KiB";
const STOCK: &str = "OpenAFS";
const SERVERS: [(&str, Stack, &[&str]); 3] = [
    (FORCED, Stack::Afar, &[]),
    (LIMITED, Stack::Afar, &["-u", "416"]),
    (STOCK, Stack::OpenAfs, &["--threads", "128"]),
];

/// The goals: a probe's p99 by the idle median; dropped datagrams without the capability, %; the longest stall, 3 RTT + 50 ms;
/// throughput with the most hosts by the best; a thread's part of the process, %.
pub(super) const GOAL_PROBE: f64 = 10.0;
const GOAL_DROPPED_PERCENT: f64 = 0.1;
const GOAL_STALL_MS: f64 = 80.0;
const GOAL_THROUGHPUT: f64 = 0.9;
const GOAL_THREAD_PERCENT: f64 = 70.0;

/// Names of figures that goals are about.
pub(super) const PROBE: &str = "probe p99, ms";
pub(super) const PROBE_BY_IDLE: &str = "probe p99 / idle median";
const STALL: &str = "longest stall, ms";
pub(super) const DROPPED: &str = "server: dropped at its socket, datagrams";
const DROPPED_PERCENT: &str = "server: dropped at its socket, %";
pub(super) const MBIT: &str = "Mbit/s";
/// The wait of the thread that waits the longest, for each process that plays hosts: that thread serves all its sockets.
const WAITS: &str = "clients: wait for a core, % of the time";
const THREAD: &str = "server: busiest thread, % of its CPU";

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let hosts = lab.choose(&HOSTS[..], &[1, 20]);
    let window = lab.choose(Window::new(5, 30), Window::new(1, 3));
    let (idle_probes, probes) = lab.choose((50, 300), (15, 30));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = PROBE.into();
    record.compared = Some("server".into());
    record.placement = format!(
        "Server in namespace B at niceness {SERVER_NICENESS}, clients in namespace A: the crowd in at most {PROCESSES} processes at \
         niceness {CROWD_NICENESS}, the probe in its own at {SERVER_NICENESS}; the emulator's thread (SCHED_FIFO 10) in the bench's \
         process. Nothing is pinned; all of them share the cores of this machine, on which the crowd's machines and the network \
         cost more than the server."
    );
    record.method = format!(
        "Emulated link (linkem) of {} ms RTT without a rate limit, MTU 1500, a fresh one for each run; its counters are noted, but \
         a run counts though they are not in order, as the machine is full on purpose. N hosts, each an endpoint with an address \
         of its own (those of a process share a thread, and their callers two more), each making one rxperf call after the other, \
         level clear, of 64 KiB to 8 MB (logarithm evenly spread, seeded); both: one that sends and one that receives at the same \
         time. {measure} s are measured after {omit} s that are not. The probe, another host and so another owner, sends 64 KiB \
         every 100 ms, {probes} times within the window, none left out, each timed from when it was due until its reply; a failed \
         one counts as 30 s. The idle median is that of {idle_probes} such probes before the load begins. A stall is the longest time in a \
         call without a byte acknowledged (sending) or read (receiving), from its beginning to its end within the time that is measured, 10 ms exact; it contains \
         the time for which the client's process did not get a core; how much that is of all is noted, by the kernel's schedstat, for the \
         thread that serves all sockets of a process. Dropped datagrams are the kernel's RcvbufErrors, their share \
         that of RcvbufErrors + InDatagrams; datagrams that the kernel has joined (GRO) count as one. The server is afar with its \
         receive buffer forced to 32 MB, or limited to 416 KiB as without the capability; or OpenAFS's library with its defaults and \
         128 threads, under the same clients.",
        RTT.as_millis()
    );
    let most = hosts[hosts.len() - 1];
    let mut cells = Vec::new();
    for command in COMMANDS {
        for (name, who, options) in SERVERS {
            for hosts in hosts {
                // In quick runs the others show that they work, once.
                let is_wanted = match name {
                    FORCED => true,
                    LIMITED => *hosts == most && lab.choose(true, command == "both"),
                    _ => lab.choose(true, *hosts == most && command == "both"),
                };
                if !is_wanted {
                    continue;
                }
                let labels = [
                    ("server", name.to_string()),
                    ("hosts", hosts.to_string()),
                    ("direction", command.to_string()),
                ];
                let server = transfer::server(who, options);
                cells.push(Cell::new(labels, move |lab| {
                    over_link(lab, &LinkSpec::unlimited(RTT), |lab, ends| {
                        let server: Invocation = server(&lab.tools, ends.port);
                        let crowd = Crowd {
                            server_share: None,
                            groups: vec![Group::of_strangers(*hosts)],
                            command,
                            idle_probes,
                            probes,
                            window,
                        };
                        Ok(evaluate(crowd.run(lab, ends, &server)?))
                    })
                }));
            }
        }
    }
    interleave(lab, record, &cells, lab.repeats(1))?;
    judge(record, hosts);
    Ok(())
}

/// Turns what was seen into figures.
pub(super) fn evaluate(seen: Seen) -> Run {
    let mut run = Run { is_valid: true, commands: seen.commands.clone(), ..Run::default() };
    let mut figure = |name: &str, value: Option<f64>| {
        run.figures.extend(value.map(|value| (name.to_string(), value)));
    };
    let seconds = seen.seconds.max(1e-9);
    let (idle, loaded) = (Distribution::of(seen.idle.ms.clone()), Distribution::of(seen.loaded.ms.clone()));
    let idle_median = idle.percentile(50.0);
    figure(PROBE, loaded.percentile(99.0));
    figure("probe, p50 ms", loaded.percentile(50.0));
    figure("probe, p90 ms", loaded.percentile(90.0));
    figure("probe, max ms", loaded.max());
    figure("probe, idle median ms", idle_median);
    figure(PROBE_BY_IDLE, loaded.percentile(99.0).zip(idle_median).map(|(p99, idle)| p99 / idle));
    figure("probe, failed calls", Some((seen.idle.failures + seen.loaded.failures) as f64));

    let group = &seen.groups[0];
    let bytes = group.sent + group.received;
    figure(MBIT, Some(bytes as f64 * 8.0 / group.seconds.max(1e-9) / 1e6));
    figure("calls/s", Some(group.call_mbit.len() as f64 / group.seconds.max(1e-9)));
    figure("failed calls", Some(group.failures as f64));
    let rates = Distribution::of(group.call_mbit.clone());
    figure("a call, median Mbit/s", rates.percentile(50.0));
    figure("a call, slowest Mbit/s", rates.percentile(0.0));
    let stalls = Distribution::of(group.stalls_ms.clone());
    figure(STALL, stalls.max());
    figure("stalls, p99.9 ms", stalls.percentile(99.9));
    figure("stalls, p50 ms", stalls.percentile(50.0));
    let hosts = Distribution::of(group.hosts.iter().map(|bytes| *bytes as f64));
    let fairness = hosts.percentile(0.0).zip(hosts.mean()).filter(|(_, mean)| *mean > 0.0);
    figure("bytes of the slowest host / mean", fairness.map(|(least, mean)| least / mean));

    figure(DROPPED, Some(seen.server_udp.dropped as f64));
    figure(DROPPED_PERCENT, Some(seen.server_udp.dropped_share() * 100.0));
    figure("clients: dropped at their sockets, datagrams", Some(seen.client_udp.dropped as f64));
    figure(WAITS, Distribution::of(seen.client_waits.clone()).mean().map(|waited| waited / seconds * 100.0));
    figure(THREAD, seen.busiest_share().map(|share| share * 100.0));
    figure("server, CPU s/s", Some(seen.server_threads.iter().sum::<f64>() / seconds));

    let failures = [&seen.idle.first_failure, &seen.loaded.first_failure, &group.first_failure];
    run.problems.extend(failures.into_iter().flatten().map(|text| format!("a call failed: {text}")));
    run.curves = vec![
        Curve { name: "probe under load, ms".into(), points: loaded.curve() },
        Curve { name: "idle".into(), points: idle.curve() },
    ];
    run.report = serde_json::json!({ "idle_probe_ms": seen.idle.ms, "probe_ms": seen.loaded.ms });
    run
}

fn judge(record: &mut Record, hosts: &[u32]) {
    for command in COMMANDS {
        for hosts in hosts {
            let hosts = hosts.to_string();
            let measured = record.median(PROBE_BY_IDLE, &[FORCED, &hosts, command]);
            let text = |figure: &str, server: &str| {
                record.median(figure, &[server, &hosts, command]).map_or("-".into(), short)
            };
            let note = format!(
                "p99 {} ms, idle median {} ms; OpenAFS: {} and {}",
                text(PROBE, FORCED),
                text("probe, idle median ms", FORCED),
                text(PROBE, STOCK),
                text("probe, idle median ms", STOCK)
            );
            let claim = format!("A probe's p99 by its idle median, {hosts} hosts, {command}");
            record.at_most(&claim, measured, GOAL_PROBE, "times", &note);
        }
    }
    let worst = worst(record, FORCED, DROPPED);
    record.at_most("Datagrams dropped at the server, forced buffer", worst.0, 0.0, "datagrams", &worst.1);
    let worst = self::worst(record, LIMITED, DROPPED_PERCENT);
    record.at_most("Datagrams dropped at the server, 416 KiB", worst.0, GOAL_DROPPED_PERCENT, "%", &worst.1);
    let worst = self::worst(record, LIMITED, STALL);
    record.at_most("Longest stall of a call, 416 KiB", worst.0, GOAL_STALL_MS, "ms", &worst.1);
    for command in COMMANDS {
        let rates: Vec<_> =
            hosts.iter().map(|hosts| record.median(MBIT, &[FORCED, &hosts.to_string(), command])).collect();
        let best = rates.iter().flatten().copied().fold(0.0, f64::max);
        // The best of some is no measure of the last.
        let is_whole = rates.iter().all(Option::is_some) && best > 0.0;
        let last = rates.last().copied().flatten().filter(|_| is_whole);
        let note: Vec<_> = rates.iter().map(|rate| rate.map_or("-".into(), short)).collect();
        let claim = format!("Throughput with the most hosts by the best, {command}");
        let note = format!("Mbit/s by hosts: {}", note.join(", "));
        record.at_least(&claim, last.map(|rate| rate / best), GOAL_THROUGHPUT, "times", &note);
    }
    let worst = self::worst(record, FORCED, THREAD);
    record.at_most("A thread's part of the server's CPU", worst.0, GOAL_THREAD_PERCENT, "%", &worst.1);
}

/// The largest median of a figure over a server's rows, and in which it was.
pub(super) fn worst(record: &Record, server: &str, figure: &str) -> (Option<f64>, String) {
    let of = |row: &Row| Some((row.figures.get(figure)?.median, row.name()));
    let rows = record.rows.iter().filter(|row| row.labels.iter().any(|(_, value)| value == server));
    let found = rows.filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0));
    found.map_or((None, String::new()), |(value, name)| (Some(value), format!("the worst of all: {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::UdpCounters;
    use crate::workers::{load, probe};

    fn seen(p99_ms: f64) -> Seen {
        let mut ms = vec![20.0; 296];
        ms.extend([p99_ms, p99_ms + 1.0, 500.0, 600.0]);
        Seen {
            groups: vec![load::Report {
                seconds: 2.0,
                sent: 1_000_000,
                received: 250_000,
                hosts: vec![1_000_000, 250_000],
                call_mbit: vec![1.0, 3.0, 2.0],
                stalls_ms: vec![10.0, 90.0],
                ..load::Report::default()
            }],
            idle: probe::Report { ms: vec![10.0; 15], ..probe::Report::default() },
            loaded: probe::Report { ms, ..probe::Report::default() },
            server_udp: UdpCounters { received: 9_980, dropped: 20 },
            server_threads: vec![0.6, 0.2, 0.2],
            client_waits: vec![1.0, 2.0],
            seconds: 2.0,
            ..Seen::default()
        }
    }

    fn row(server: &str, seen: Seen) -> Row {
        let labels =
            [("server", server.to_string()), ("hosts", "1".to_string()), ("direction", "send".to_string())];
        let mut row = Row::new(&labels, 1);
        row.push(evaluate(seen));
        row
    }

    #[test]
    fn figures_are_those_of_the_goals() {
        let figures = evaluate(seen(90.0)).figures;
        let wanted = [
            (PROBE, 90.0),
            (PROBE_BY_IDLE, 9.0),
            ("probe, max ms", 600.0),
            (STALL, 90.0),
            (MBIT, 5.0),
            ("calls/s", 1.5),
            ("a call, slowest Mbit/s", 1.0),
            ("bytes of the slowest host / mean", 0.4),
            (DROPPED, 20.0),
            (DROPPED_PERCENT, 0.2),
            (THREAD, 60.0),
            (WAITS, 75.0),
            ("server, CPU s/s", 0.5),
        ];
        for (name, value) in wanted {
            assert!((figures[name] - value).abs() < 1e-9, "{name}: {}", figures[name]);
        }
    }

    #[test]
    fn goals_are_judged_by_the_right_rows() {
        let mut record =
            Record { rows: vec![row(FORCED, seen(90.0)), row(LIMITED, seen(90.0))], ..Record::default() };
        judge(&mut record, &[1]);
        let is_met = |text: &str| {
            let verdict = record.verdicts.iter().find(|v| v.claim.contains(text));
            verdict.unwrap_or_else(|| panic!("{text} is not judged")).is_met
        };
        assert!(is_met("idle median, 1 hosts, send"));
        assert!(!is_met("idle median, 1 hosts, recv"), "not measured");
        assert!(!is_met("forced buffer"));
        assert!(!is_met("dropped at the server, 416 KiB"));
        assert!(!is_met("Longest stall"));
        assert!(is_met("by the best, send"));
        assert!(is_met("A thread's part"));
    }
}
