//! One hot file server that up to 250 light clients read from or write to, real calls to real files: ours, and OpenAFS's as it is
//! and with large buffers; what it carries and drops, and how long the short writes of another user take meanwhile.

use std::path::Path;

use afar_interop::cell::ADDRESS;

use crate::crowd::{CROWD_NICENESS, Crowd, Group, PROCESSES, RTT, SERVER_NICENESS, Target};
use crate::error::Error;
use crate::host::KernelSetting;
use crate::lab::{Cell, Lab, interleave};
use crate::mounts::CellScene;
use crate::network::{Ends, LinkSpec, note_link};
use crate::process;
use crate::record::{Record, Run, short};
use crate::tools::Stack;
use crate::transfer::Window;

use super::crowd::{DROPPED, GOAL_PROBE, HOSTS, MBIT, PROBE, PROBE_BY_IDLE, evaluate, worst};

/// The work of the crowd, as the load generators call it and as the record does.
const WAYS: [(&str, &str); 2] = [("send", "writing"), ("recv", "reading")];
/// The servers: who, with which flags, and how large a receive buffer a program without the capability to force one may ask for, if
/// not as the machine has it. OpenAFS's first flags are those that Debian's afs-newcell gives it; the second are those of a large site.
const OURS: &str = "afar";
const STOCK: &str = "OpenAFS, as Debian sets it up";
const LARGE: &str = "OpenAFS, 128 threads and 16 MB of buffer";
const SERVERS: [(&str, Stack, &str, Option<&str>); 3] = [
    (OURS, Stack::Afar, "", None),
    (STOCK, Stack::OpenAfs, "-p 23 -busyat 600 -rxpck 400 -s 1200 -l 1200 -cb 65535 -b 240 -vc 1200", None),
    (
        LARGE,
        Stack::OpenAfs,
        "-L -p 128 -s 2400 -l 2400 -vc 1200 -b 240 -cb 65535 -sendsize 4000000 -udpsize 16777216",
        Some("16777216"),
    ),
];
/// The setting that makes the kernel give sessions equal shares of the cores, before it looks at what is in them.
const AUTOGROUP: &str = "kernel/sched_autogroup_enabled";
/// The port of file servers.
const PORT: u16 = 7000;

pub(crate) fn run(lab: &Lab, record: &mut Record) -> Result<(), Error> {
    let hosts = lab.choose(&HOSTS[..], &[20]);
    let window = lab.choose(Window::new(5, 30), Window::new(1, 3));
    let (idle_probes, probes) = lab.choose((50, 300), (15, 30));
    let (omit, measure) = (window.omit.as_secs(), window.measure.as_secs());
    record.headline = PROBE.into();
    record.compared = Some("server".into());
    record.placement = format!(
        "The cell's servers in a namespace of their own behind B, the file server at niceness {SERVER_NICENESS}, clients in namespace \
         A: the crowd in at most {PROCESSES} processes at niceness {CROWD_NICENESS}, the probe in its own at {SERVER_NICENESS}; the \
         emulator's thread (SCHED_FIFO 10) in the bench's process. Nothing is pinned, and sessions are not grouped \
         (sched_autogroup_enabled is 0): all of them share the cores of this machine, on which the crowd's machines and the network cost \
         more than the server."
    );
    record.method = format!(
        "Emulated link (linkem) of {} ms RTT without a rate limit, MTU 1500, a fresh one and a fresh cell for each run, partitions on the \
         same disk; the link's counters are noted, but a run counts though they are not in order, as the machine is full on purpose. N \
         light clients, each an endpoint of our Rx with an address and a UUID of its own that answers the server's calls (those of a \
         process share a thread, and their callers two more), not authenticated (rxnull), each making one call after the other of 64 KiB \
         to 8 MB (logarithm evenly spread, seeded). Writing: StoreData64 of all of a file that is the client's own, on into the same \
         file. Reading: FetchData64 from the beginning of a file of 8 MB that the clients of a process share, which the server has in its \
         page cache. {measure} s are measured after {omit} s that are not. Scaled down: CERN's clients wrote a gigabyte each, from \
         machines of their own. The probe, another host and so another owner, stores 64 KiB every 100 ms in one of 16 files in turn, \
         {probes} times within the window, each timed from when it was due until its reply; one that fails or takes longer counts as 30 s. \
         The idle median is that of {idle_probes} such probes before the load begins. A call that is refused as busy (VBUSY) is made again \
         20 ms later, and takes until it was served. Dropped datagrams are the kernel's RcvbufErrors, their share that of RcvbufErrors + \
         InDatagrams; datagrams that the kernel has joined (GRO) count as one. For 16 MB of buffer net.core.rmem_max is raised while it \
         runs; the kernel gives twice what is asked for.",
        RTT.as_millis()
    );
    // The cell's programs are a session of their own, which else has its share of the cores whatever its niceness is.
    let groups = Path::new("/proc/sys").join(AUTOGROUP).exists();
    let _by_niceness = groups.then(|| KernelSetting::set(AUTOGROUP, "0")).transpose()?;
    let mut cells = Vec::new();
    for (command, way) in lab.choose(&WAYS[..], &WAYS[..1]) {
        for (name, who, flags, buffer) in SERVERS {
            for hosts in hosts {
                let labels = [
                    ("server", name.to_string()),
                    ("clients", hosts.to_string()),
                    ("direction", way.to_string()),
                ];
                cells.push(Cell::new(labels, move |lab| {
                    let crowd = Crowd {
                        server_share: None,
                        groups: vec![Group::of_strangers(*hosts)],
                        command,
                        idle_probes,
                        probes,
                        window,
                    };
                    let _limit =
                        buffer.map(|bytes| KernelSetting::set("net/core/rmem_max", bytes)).transpose()?;
                    once(lab, &crowd, who, flags)
                }));
            }
        }
    }
    interleave(lab, record, &cells, lab.repeats(1))?;
    judge(record, hosts);
    Ok(())
}

/// A crowd at a cell that is made for it.
fn once(lab: &Lab, crowd: &Crowd, who: Stack, flags: &str) -> Result<Run, Error> {
    let spec = LinkSpec::unlimited(RTT);
    let scene = CellScene::open(lab, who, flags, &spec)?;
    let process = scene.file_server()?;
    process::renice(process, SERVER_NICENESS)?;
    let target =
        Target { process, address: (ADDRESS, PORT).into(), volume: Some(scene.volume().to_string()) };
    let ends = Ends { client: scene.far(), server: scene.near(), host: ADDRESS, port: PORT };
    let before = scene.link().counters();
    let seen = crowd.run_at(lab, ends, &target)?;
    let counters = scene.link().counters().since(&before);
    let busy = seen.groups.iter().map(|group| group.busy).sum::<u64>();
    let mut threads = seen.server_threads.clone();
    threads.sort_by(|a, b| b.total_cmp(a));
    let mut run = evaluate(seen);
    run.figures.insert("calls refused as busy".into(), busy as f64);
    run.commands.insert(0, format!("{} {flags}", scene.program()).trim_end().to_string());
    note_link(&mut run, &spec, counters);
    run.report["server_threads_cpu_s"] = serde_json::json!(threads);
    Ok(run)
}

fn judge(record: &mut Record, hosts: &[u32]) {
    for (_, way) in WAYS {
        for hosts in hosts {
            let hosts = hosts.to_string();
            let text = |figure: &str, server: &str| {
                record.median(figure, &[server, &hosts, way]).map_or("-".into(), short)
            };
            let [ours, stock, large] =
                [OURS, STOCK, LARGE].map(|server| (text(PROBE, server), text(MBIT, server)));
            let note = format!(
                "p99 {} ms beside {} Mbit/s; OpenAFS as Debian sets it up {} beside {}, with 128 threads and 16 MB {} beside {}",
                ours.0, ours.1, stock.0, stock.1, large.0, large.1
            );
            let measured = record.median(PROBE_BY_IDLE, &[OURS, &hosts, way]);
            let claim = format!("A probe's p99 by its idle median, {hosts} clients {way}");
            record.at_most(&claim, measured, GOAL_PROBE, "times", &note);
        }
    }
    let (dropped, which) = worst(record, OURS, DROPPED);
    let others = [STOCK, LARGE].map(|server| worst(record, server, DROPPED).0.map_or("-".into(), short));
    let note = format!("{which}; OpenAFS's worst: {}", others.join(", "));
    record.at_most("Datagrams dropped at the server", dropped, 0.0, "datagrams", &note);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Row;

    fn row(server: &str, by_idle: f64, dropped: f64) -> Row {
        let labels = [("server", server), ("clients", "1"), ("direction", "writing")]
            .map(|(name, value)| (name, value.to_string()));
        let figures = [(PROBE_BY_IDLE, by_idle), (DROPPED, dropped)];
        let figures = figures.map(|(name, value)| (name.to_string(), value)).into();
        let mut row = Row::new(&labels, 1);
        row.push(Run { is_valid: true, figures, ..Run::default() });
        row
    }

    #[test]
    fn our_server_is_judged_and_no_other() {
        for (ours, stock, are_met) in [((9.0, 0.0), (90.0, 7.0), true), ((11.0, 1.0), (1.0, 0.0), false)] {
            let rows = vec![row(STOCK, stock.0, stock.1), row(OURS, ours.0, ours.1)];
            let mut record = Record { rows, ..Record::default() };
            judge(&mut record, &[1]);
            let is_met = |text: &str| {
                let verdict = record.verdicts.iter().find(|v| v.claim.contains(text));
                verdict.unwrap_or_else(|| panic!("{text} is not judged")).is_met
            };
            assert_eq!((is_met("1 clients writing"), is_met("dropped")), (are_met, are_met));
            assert!(!is_met("1 clients reading"), "not measured");
        }
    }
}
