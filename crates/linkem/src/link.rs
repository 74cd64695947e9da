//! The guard of a whole link: two namespaces, the emulator between them, addresses and limits. Puts the
//! others together; decides nothing about packets.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::counters::Counters;
use crate::emulator::{Emulator, EmulatorOptions};
use crate::error::Error;
use crate::namespace::{self, Namespace};
use crate::options::{DirectionOptions, GilbertElliott, LinkOptions, QueueLimit};
use crate::sys;

/// Address of A, unless the builder is told otherwise.
pub const ADDRESS_A: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Address of B, unless the builder is told otherwise.
pub const ADDRESS_B: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Address of A when IPv6 is on.
pub const ADDRESS6_A: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
/// Address of B when IPv6 is on.
pub const ADDRESS6_B: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);

/// Packets the device queues towards the emulator: rides out stalls of some 50 ms at 200 000 packets/s.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;
/// Smallest MTU that IPv4 allows, largest that an IP packet can have.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 68..=65_535;
/// Smallest MTU with which IPv6 works.
const MTU_MIN_IPV6: u32 = 1280;
/// Largest TCP buffer limit that the kernel's 32-bit setting holds, with some distance.
const TCP_BUFFER_MAX_MIB: u32 = 2000;

/// Two network namespaces joined by an emulated link; nothing else leads out of them. Dropping it, also in a
/// panic, ends the emulator and removes the namespaces; what a killed process leaves behind is removed by the
/// next start of a link.
pub struct Link {
    // In the order of their drop: the emulator before its namespaces.
    emulator: Emulator,
    a: Namespace,
    b: Namespace,
    options: Mutex<LinkOptions>,
}

impl Link {
    /// A link without rate limit, delay or loss, MTU 1500, IPv4 only.
    pub fn builder() -> Builder {
        Builder {
            names: None,
            link: LinkOptions::default(),
            emulator: EmulatorOptions::default(),
            mtu: 1500,
            addresses: [format!("{ADDRESS_A}/24"), format!("{ADDRESS_B}/24")],
            ipv6: false,
            tcp_buffer_mib: 128,
        }
    }

    /// The namespace of end A, 10.99.0.1.
    pub fn a(&self) -> &Namespace {
        &self.a
    }

    /// The namespace of end B, 10.99.0.2.
    pub fn b(&self) -> &Namespace {
        &self.b
    }

    /// The counters of what the link has done so far. If the emulator failed, its last counters with the
    /// failure noted; [`Counters::check`] then says so.
    pub fn counters(&self) -> Counters {
        self.emulator.counters()
    }

    /// The options in force.
    pub fn options(&self) -> LinkOptions {
        self.lock_options().clone()
    }

    /// Changes both directions while the link runs, for all packets that come in after this returns. Those on
    /// the way keep their times and are not overtaken.
    ///
    /// Errors: options that make no sense (nothing has changed then), or an emulator that has ended.
    pub fn set(&self, change: impl Fn(&mut DirectionOptions)) -> Result<(), Error> {
        self.set_each(|link| {
            change(&mut link.a_to_b);
            change(&mut link.b_to_a);
        })
    }

    /// As [`Link::set`], with both directions at hand.
    pub fn set_each(&self, change: impl FnOnce(&mut LinkOptions)) -> Result<(), Error> {
        let mut options = self.lock_options();
        let mut changed = options.clone();
        change(&mut changed);
        changed.a_to_b.check()?;
        changed.b_to_a.check()?;
        self.emulator.change(changed.clone())?;
        *options = changed;
        Ok(())
    }

    /// Ends the emulator, removes the namespaces and returns the last counters.
    pub fn stop(mut self) -> Counters {
        self.emulator.stop()
    }

    fn lock_options(&self) -> MutexGuard<'_, LinkOptions> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The options of a link; see [`Link::builder`] for the defaults.
#[derive(Clone, Debug)]
#[must_use = "a link is only made by start()"]
pub struct Builder {
    names: Option<[String; 2]>,
    link: LinkOptions,
    emulator: EmulatorOptions,
    mtu: u32,
    addresses: [String; 2],
    ipv6: bool,
    tcp_buffer_mib: u32,
}

impl Builder {
    /// Names of the two namespaces. Without this they are made up, and unique.
    pub fn names(mut self, a: &str, b: &str) -> Builder {
        self.names = Some([a.to_string(), b.to_string()]);
        self
    }

    /// Round-trip time; each direction gets half.
    pub fn rtt(self, rtt: Duration) -> Builder {
        self.both(|d| d.delay = rtt / 2)
    }

    /// Rate of each direction in Mbit/s of IP bytes; 0 is unlimited. TCP over IPv4 gets at most 96.5 % of it
    /// (1448 of 1500 bytes). The queue holds 50 ms unless told otherwise.
    pub fn rate_mbit(self, rate: f64) -> Builder {
        self.both(|d| d.set_rate_mbit(rate))
    }

    /// Drop-tail limit in milliseconds at the rate.
    pub fn queue_ms(self, queue: u64) -> Builder {
        self.both(|d| d.queue = QueueLimit::Time(Duration::from_millis(queue)))
    }

    /// Drop-tail limit in bytes.
    pub fn queue_bytes(self, queue: u64) -> Builder {
        self.both(|d| d.queue = QueueLimit::Bytes(queue))
    }

    /// Independent loss in both directions, 0 to 1.
    pub fn loss(self, loss: f64) -> Builder {
        self.both(|d| d.loss = loss)
    }

    /// The same average loss in bursts of `mean_packets` on average.
    pub fn loss_bursts(self, loss: f64, mean_packets: f64) -> Builder {
        self.both(|d| (d.loss, d.loss_burst_packets) = (loss, mean_packets))
    }

    /// Loss by a two-state model.
    pub fn gilbert_elliott(self, model: GilbertElliott) -> Builder {
        self.both(|d| d.gilbert_elliott = Some(model))
    }

    /// Extra delay from 0 to this, drifting smoothly; keeps the order.
    pub fn jitter(self, jitter: Duration) -> Builder {
        self.both(|d| d.jitter = jitter)
    }

    /// Holds this share of the packets back by this long.
    pub fn reorder(self, share: f64, by: Duration) -> Builder {
        self.both(|d| (d.reorder, d.reorder_by) = (share, by))
    }

    /// Delivers this share of the packets twice.
    pub fn duplicate(self, share: f64) -> Builder {
        self.both(|d| d.duplicate = share)
    }

    /// Any change to both directions.
    pub fn both(mut self, change: impl Fn(&mut DirectionOptions)) -> Builder {
        change(&mut self.link.a_to_b);
        change(&mut self.link.b_to_a);
        self
    }

    /// Any change to the direction from A to B.
    pub fn a_to_b(mut self, change: impl FnOnce(&mut DirectionOptions)) -> Builder {
        change(&mut self.link.a_to_b);
        self
    }

    /// Any change to the direction from B to A.
    pub fn b_to_a(mut self, change: impl FnOnce(&mut DirectionOptions)) -> Builder {
        change(&mut self.link.b_to_a);
        self
    }

    /// All options of both directions at once.
    pub fn link_options(mut self, options: LinkOptions) -> Builder {
        self.link = options;
        self
    }

    /// Any change to how the emulator works: seed, real-time priority, quantum and so on.
    pub fn emulator(mut self, change: impl FnOnce(&mut EmulatorOptions)) -> Builder {
        change(&mut self.emulator);
        self
    }

    /// MTU of both ends, 68 to 65535 (default 1500).
    pub fn mtu(mut self, mtu: u32) -> Builder {
        self.mtu = mtu;
        self
    }

    /// IPv4 addresses of both ends with prefix length, instead of 10.99.0.1/24 and 10.99.0.2/24.
    pub fn addresses(mut self, a: &str, b: &str) -> Builder {
        self.addresses = [a.to_string(), b.to_string()];
        self
    }

    /// Adds fd99::1/64 and fd99::2/64. Without it IPv6 is off on the link, so that nothing but what is
    /// measured crosses it.
    pub fn ipv6(mut self, on: bool) -> Builder {
        self.ipv6 = on;
        self
    }

    /// Largest TCP send and receive buffer in both namespaces, in MiB, at most 2000. The default, 128, is
    /// enough for 1 Gbit/s and 200 ms; 0 leaves the system's limit.
    pub fn tcp_buffer_mib(mut self, size: u32) -> Builder {
        self.tcp_buffer_mib = size;
        self
    }

    /// Makes the link. It takes about 50 ms, and needs what [`available`] checks.
    ///
    /// Errors: options that make no sense, a namespace that exists already, a missing right or tool. Nothing
    /// is left behind.
    pub fn start(self) -> Result<Link, Error> {
        self.check()?;
        namespace::remove_stale();
        let (a, b) = match &self.names {
            Some([a, b]) => (Namespace::create(a)?, Namespace::create(b)?),
            None => Namespace::create_pair()?,
        };
        let emulator = Emulator::start([a.handle(), b.handle()], self.link.clone(), self.emulator.clone())?;
        let link = Link { emulator, a, b, options: Mutex::new(self.link.clone()) };
        self.configure(&link.a, &self.addresses[0], ADDRESS6_A)?;
        self.configure(&link.b, &self.addresses[1], ADDRESS6_B)?;
        Ok(link)
    }

    fn check(&self) -> Result<(), Error> {
        self.link.a_to_b.check()?;
        self.link.b_to_a.check()?;
        if !MTU_RANGE.contains(&self.mtu) {
            return Err(Error::option("mtu", self.mtu, "must be from 68 to 65535"));
        }
        if self.ipv6 && self.mtu < MTU_MIN_IPV6 {
            return Err(Error::option("mtu", self.mtu, "IPv6 needs 1280 or more"));
        }
        if self.tcp_buffer_mib > TCP_BUFFER_MAX_MIB {
            return Err(Error::option("tcp-buf-mb", self.tcp_buffer_mib, "at most 2000"));
        }
        let device = &self.emulator.device;
        if device.is_empty() || device.len() > 15 || device.contains(|c: char| !c.is_ascii_alphanumeric()) {
            return Err(Error::option("dev", device, "must be 1 to 15 letters and digits"));
        }
        for address in &self.addresses {
            let known = address.split_once('/').is_some_and(|(ip, prefix)| {
                ip.parse::<Ipv4Addr>().is_ok() && prefix.parse::<u8>().is_ok_and(|bits| bits <= 32)
            });
            if !known {
                return Err(Error::option("addr", address, "must be an IPv4 address with prefix length"));
            }
        }
        Ok(())
    }

    /// Limits, switches, MTU and addresses of one end.
    fn configure(&self, end: &Namespace, address: &str, address6: Ipv6Addr) -> Result<(), Error> {
        let device = &self.emulator.device;
        end.run_in(|| self.write_settings())??;
        let mut lines = String::from("link set lo up\n");
        if self.ipv6 {
            // No router solicitations, no multicast: only what is sent on purpose.
            lines += &format!("link set {device} multicast off addrgenmode none\n");
        }
        lines += &format!("link set {device} mtu {} txqueuelen {DEVICE_QUEUE_PACKETS} up\n", self.mtu);
        lines += &format!("addr add {address} dev {device}\n");
        if self.ipv6 {
            lines += &format!("addr add {address6}/64 dev {device} nodad\n");
        }
        end.ip_batch(&lines)
    }

    /// Kernel settings of the namespace that the calling thread is in.
    fn write_settings(&self) -> Result<(), Error> {
        let write = |path: &str, value: &str| {
            let path = format!("/proc/sys/net/{path}");
            match fs::write(&path, value) {
                // A kernel without IPv6 has nothing to switch off.
                Err(e) if e.kind() == io::ErrorKind::NotFound && path.contains("ipv6") && !self.ipv6 => {
                    Ok(())
                }
                other => other.map_err(Error::system(format!("writing {value} to {path}"))),
            }
        };
        let off = if self.ipv6 { "0" } else { "1" };
        write(&format!("ipv6/conf/{}/disable_ipv6", self.emulator.device), off)?;
        // Runs stay independent of each other.
        write("ipv4/tcp_no_metrics_save", "1")?;
        if self.tcp_buffer_mib > 0 {
            let max = u64::from(self.tcp_buffer_mib) << 20;
            write("ipv4/tcp_rmem", &format!("4096 131072 {max}"))?;
            write("ipv4/tcp_wmem", &format!("4096 65536 {max}"))?;
        }
        Ok(())
    }
}

/// Checks that a link can be made here: root, network namespaces, TUN devices, real-time scheduling and
/// iproute2. The error says what is missing, so that a test can skip with a reason.
pub fn available() -> Result<(), String> {
    if !sys::is_root() {
        return Err("emulated links need root".to_string());
    }
    let ip = Command::new("ip").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !ip.is_ok_and(|status| status.success()) {
        return Err("emulated links need iproute2: there is no working `ip` here".to_string());
    }
    // Tried on a thread, with which all of it goes away.
    let attempt = || {
        sys::enter_new_namespace().map_err(|e| format!("network namespaces cannot be made here: {e}"))?;
        let tun = sys::create_tun("wan0")
            .map_err(|e| format!("TUN devices cannot be made here (/dev/net/tun): {e}"))?;
        sys::enable_offloads(&tun).map_err(|e| format!("TUN devices have no offloads here: {e}"))?;
        sys::set_fifo_priority(1).map_err(|e| format!("SCHED_FIFO is not allowed here: {e}"))
    };
    let joined = std::thread::scope(|scope| scope.spawn(attempt).join());
    joined.unwrap_or_else(|_| Err("the attempt to make a TUN device panicked".to_string()))
}
