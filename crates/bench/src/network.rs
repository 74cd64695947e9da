//! The two ends of a run: on the loopback interface, or in the namespaces of a fresh emulated link, and what the kernels
//! of such ends count. It does not know what runs there.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use linkem::{Counters, Link, Namespace};

use crate::error::Error;
use crate::lab::Lab;
use crate::record::Run;
use crate::tools::Place;

/// Rate of the emulated links that have one, Mbit/s.
const LINK_MBIT: f64 = 1000.0;
/// Their drop-tail queue, ms at the rate.
pub(crate) const QUEUE_MS: u64 = 50;
/// Pause between the emulator's rounds on links with a rate. With the emulator's own 50 us it took 0.65 of one of the two
/// cores from sender and receiver on a slow host, and neither has it in its CPU time: one call at 12.5 ms had 880 Mbit/s
/// with 50 us, and 961 with 100 and with 150, and fewer packets were late.
const ROUND: Duration = Duration::from_micros(100);
/// The Mbit/s of it that an Rx stream in packets of 1444 bytes can carry: 1416 of 1472 bytes (with IP and UDP headers).
pub(crate) const CEILING_MBIT: f64 = 962.0;
/// The port of servers that have a namespace to themselves.
const PORT: u16 = 7009;
/// The links' device.
pub(crate) const DEVICE: &str = "wan0";

/// The text of the records about links without loss.
pub(crate) const LINK_TEXT: &str = "Emulated link (linkem): 1 Gbit/s each way, drop-tail queue of 50 ms, MTU 1500, no \
    loss, rounds of 0.1 ms; a fresh link for each run. A run counts only if the link's counters are in order; if not, it is \
    repeated up to twice.";
/// The place where processes run.
pub(crate) const PLACEMENT_LINK: &str = "Client in namespace A, server in namespace B, the emulator's thread \
    (SCHED_FIFO 10) in the bench's process; nothing is pinned, niceness 0, all on the cores of this machine.";
/// The place where processes run without a link.
pub(crate) const PLACEMENT_LOOPBACK: &str = "Server and client are processes of their own on 127.0.0.1, not pinned, niceness 0, on the cores of this machine.";

/// The place where a server and its client run.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) client: Place<'a>,
    pub(crate) server: Place<'a>,
    pub(crate) host: Ipv4Addr,
    pub(crate) port: u16,
}

/// Both on the loopback interface, at any free port.
pub(crate) const LOOPBACK: Ends<'static> =
    Ends { client: Place::Here, server: Place::Here, host: Ipv4Addr::LOCALHOST, port: 0 };

/// An emulated link, the same in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSpec {
    pub(crate) rtt: Duration,
    /// Mbit/s; 0 is without a limit.
    pub(crate) rate_mbit: f64,
    pub(crate) queue_ms: u64,
    /// Share of the packets that is lost, in bursts of so many on average; 1 is each for itself.
    pub(crate) loss: f64,
    pub(crate) burst_packets: f64,
    /// Share of the packets that is held back, by `reorder_by`.
    pub(crate) reorder: f64,
    pub(crate) reorder_by: Duration,
    /// True if a run only counts if the link kept its promises. Where its rate is that of the machine, it cannot.
    pub(crate) is_judged: bool,
}

impl LinkSpec {
    /// A link with the usual rate and queue, without loss.
    pub(crate) fn wan(rtt: Duration) -> LinkSpec {
        LinkSpec {
            rtt,
            rate_mbit: LINK_MBIT,
            queue_ms: QUEUE_MS,
            loss: 0.0,
            burst_packets: 1.0,
            reorder: 0.0,
            reorder_by: Duration::ZERO,
            is_judged: true,
        }
    }

    /// A link that is as fast as the machine.
    pub(crate) fn unlimited(rtt: Duration) -> LinkSpec {
        LinkSpec { rate_mbit: 0.0, is_judged: false, ..LinkSpec::wan(rtt) }
    }

    /// A link that nothing goes over: its ends are namespaces in which nobody else is.
    pub(crate) fn none() -> LinkSpec {
        LinkSpec::unlimited(Duration::ZERO)
    }

    /// Makes it. It goes with the value.
    pub(crate) fn start(&self) -> Result<Link, Error> {
        let mut builder = Link::builder().rtt(self.rtt).rate_mbit(self.rate_mbit);
        if self.rate_mbit > 0.0 {
            builder = builder.queue_ms(self.queue_ms).emulator(|options| options.quantum = ROUND);
        }
        builder = if self.burst_packets > 1.0 {
            builder.loss_bursts(self.loss, self.burst_packets)
        } else {
            builder.loss(self.loss)
        };
        if self.reorder > 0.0 {
            builder = builder.reorder(self.reorder, self.reorder_by);
        }
        Ok(builder.start()?)
    }
}

/// Runs work over a fresh link, and adds the link's counters to the result.
pub(crate) fn over_link(
    lab: &Lab,
    spec: &LinkSpec,
    run: impl FnOnce(&Lab, Ends<'_>) -> Result<Run, Error>,
) -> Result<Run, Error> {
    lab.interrupt.check()?;
    let link = spec.start()?;
    let before = link.counters();
    let ends = Ends {
        client: Place::In(link.a()),
        server: Place::In(link.b()),
        host: linkem::ADDRESS_B,
        port: PORT,
    };
    let mut run = run(lab, ends)?;
    note_link(&mut run, spec, link.counters().since(&before));
    Ok(run)
}

/// Adds a link's word on a run over it.
pub(crate) fn note_link(run: &mut Run, spec: &LinkSpec, counters: Counters) {
    if let Err(invalid) = counters.check() {
        run.is_valid &= !spec.is_judged;
        run.problems.push(if spec.is_judged {
            invalid.to_string()
        } else {
            format!("counted though {invalid}")
        });
    }
    let (there, back) = (&counters.a_to_b, &counters.b_to_a);
    let mut figure = |name: &str, value: f64| run.figures.insert(name.to_string(), value);
    figure("late packets, %", counters.late_share() * 100.0);
    figure("dropped by the queue, packets", (there.drop_queue + back.drop_queue) as f64);
    figure("emulator, CPU s/s", counters.cpu_s / counters.uptime_s.max(1e-9));
    if spec.loss > 0.0 {
        figure("lost on the link, packets", (there.drop_loss + back.drop_loss) as f64);
    }
    if !spec.is_judged {
        figure("dropped by the emulator, packets", (there.drop_emulator + back.drop_emulator) as f64);
    }
    run.link = Some(counters);
}

/// Gives a namespace more addresses of the link's network, from `first` on.
pub(crate) fn add_addresses(namespace: &Namespace, first: Ipv4Addr, count: u32) -> Result<(), Error> {
    let commands: String =
        consecutive(first, count).map(|address| format!("addr add {address}/24 dev {DEVICE}\n")).collect();
    let doing = |what: &str| Error::setup(format!("adding {count} addresses from {first} on: {what}"));
    let path = std::env::temp_dir().join(format!("afar-bench-addresses-{}", std::process::id()));
    fs::write(&path, commands).map_err(|e| doing(&format!("writing {}: {e}", path.display())))?;
    let output = namespace.command("ip").arg("-batch").arg(&path).output();
    let _ = fs::remove_file(&path);
    let output = output.map_err(|e| doing(&e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(doing(String::from_utf8_lossy(&output.stderr).trim()))
}

/// Runs `ip` with the words of a line.
pub(crate) fn ip(line: &str) -> Result<(), Error> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|e| Error::setup(format!("ip {line}: {e}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::setup(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim()))),
    }
}

/// So many addresses, one after the other.
pub(crate) fn consecutive(first: Ipv4Addr, count: u32) -> impl Iterator<Item = Ipv4Addr> {
    (0..count).map(move |i| Ipv4Addr::from(u32::from(first) + i))
}

/// The counters of UDP in a kernel so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct UdpCounters {
    /// Datagrams that were given to programs; those joined by the kernel (GRO) count as one.
    pub(crate) received: u64,
    /// Those that found the socket's buffer full, counted likewise.
    pub(crate) dropped: u64,
}

impl UdpCounters {
    /// Reads the counters of the network at this place.
    pub(crate) fn of(place: Place<'_>) -> Result<UdpCounters, Error> {
        let read = || fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
        let snmp = match place {
            Place::Here => read(),
            Place::In(namespace) => namespace.run_in(read)?,
        };
        Ok(UdpCounters::parse(&snmp))
    }

    /// Reads `/proc/net/snmp`: a line of names, then one of values.
    fn parse(snmp: &str) -> UdpCounters {
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
        let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return UdpCounters::default() };
        let value = |wanted: &str| {
            let mut pairs = names.split_whitespace().zip(values.split_whitespace());
            pairs.find(|(name, _)| *name == wanted).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        UdpCounters { received: value("InDatagrams"), dropped: value("RcvbufErrors") }
    }

    /// The difference since then.
    pub(crate) fn since(self, before: UdpCounters) -> UdpCounters {
        UdpCounters {
            received: self.received.saturating_sub(before.received),
            dropped: self.dropped.saturating_sub(before.dropped),
        }
    }

    /// The share of the datagrams that were dropped.
    pub(crate) fn dropped_share(self) -> f64 {
        self.dropped as f64 / ((self.received + self.dropped) as f64).max(1.0)
    }
}

/// The bytes that the devices of a network have carried so far, with all headers. A loopback device receives what it
/// sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkBytes {
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl NetworkBytes {
    /// Reads the counters of the network at this place; nothing where there is none.
    pub(crate) fn of(place: Option<Place<'_>>) -> Result<NetworkBytes, Error> {
        let read = || fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        Ok(match place {
            None => NetworkBytes::default(),
            Some(Place::Here) => NetworkBytes::parse(&read()),
            Some(Place::In(namespace)) => NetworkBytes::parse(&namespace.run_in(read)?),
        })
    }

    /// Reads `/proc/net/dev`: behind a device's name eight numbers of what it has received, then eight of what it has sent.
    fn parse(dev: &str) -> NetworkBytes {
        let mut all = NetworkBytes::default();
        for (_, numbers) in dev.lines().filter_map(|line| line.split_once(':')) {
            let numbers: Vec<u64> =
                numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            all.received += numbers.first().copied().unwrap_or(0);
            all.sent += numbers.get(8).copied().unwrap_or(0);
        }
        all
    }

    /// The difference since then.
    pub(crate) fn since(self, before: NetworkBytes) -> NetworkBytes {
        NetworkBytes {
            received: self.received.saturating_sub(before.received),
            sent: self.sent.saturating_sub(before.sent),
        }
    }
}

/// Datagrams that found a socket's buffer full so far, in both places.
pub(crate) fn socket_drops(ends: Ends<'_>) -> Result<u64, Error> {
    let client = UdpCounters::of(ends.client)?.dropped;
    match (ends.client, ends.server) {
        // One kernel counts for both.
        (Place::Here, Place::Here) => Ok(client),
        _ => Ok(client + UdpCounters::of(ends.server)?.dropped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_sockets_are_read_from_the_kernels_table() {
        let snmp = "Ip: A B\nIp: 1 2\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\nUdp: 995 8 7 6 5\n";
        let counters = UdpCounters::parse(snmp);
        assert_eq!(counters, UdpCounters { received: 995, dropped: 5 });
        assert_eq!(counters.dropped_share(), 0.005);
        assert_eq!(UdpCounters::parse(""), UdpCounters::default());
        assert_eq!(UdpCounters::default().dropped_share(), 0.0);
    }

    #[test]
    fn bytes_of_all_devices_are_added_up() {
        let dev = "Inter-|   Receive                    |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes\n\
             lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0\n  wan0:20 1 0 0 0 0 0 0 3 1 0 0 0 0 0 0\n";
        assert_eq!(NetworkBytes::parse(dev), NetworkBytes { received: 120, sent: 103 });
        assert_eq!(NetworkBytes::parse(""), NetworkBytes::default());
    }

    #[test]
    fn addresses_follow_each_other() {
        let addresses: Vec<_> = consecutive(Ipv4Addr::new(10, 99, 0, 254), 3).collect();
        assert_eq!(addresses.last(), Some(&Ipv4Addr::new(10, 99, 1, 0)));
    }
}
