//! The emulator's thread: carries packets between two TUN devices, each direction as its state machine says
//! (see direction), and answers orders from other threads. Creates the devices; names, addresses and
//! everything else about the namespaces are link's.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::direction::Direction;
use crate::error::Error;
use crate::namespace::NamespaceHandle;
use crate::options::LinkOptions;
use crate::sys;
use crate::tun::Tun;

/// Packets read in one go from one device, so that the other direction and what is due get their turn.
const READ_BATCH: usize = 64;
/// Writes in one go, for the same reason.
const WRITE_BATCH: usize = 64;
/// Longest sleep, so that a lost wake-up costs no more than this.
const SLEEP_MAX_NS: u64 = 200_000_000;
/// ppoll may oversleep by 0.1 % of the time given; of longer sleeps the last part is slept separately.
const LONG_SLEEP_NS: u64 = 2_000_000;

/// The options of the emulator's thread; those of the link are in [`LinkOptions`].
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatorOptions {
    /// Name of the TUN device in both namespaces, 1 to 15 bytes. Default `wan0`.
    pub device: String,
    /// The link's random choices; the same seed and traffic give the same ones. Default 1.
    pub seed: u64,
    /// Pause between rounds under load. Default 50 us; longer takes less CPU and adds more error, 0 works at
    /// once. A packet may leave half of this early.
    pub quantum: Duration,
    /// Spin rather than sleep when the next packet is due this soon. Default 0.
    pub spin: Duration,
    /// Never sleep; takes a whole core. Default off.
    pub busy_poll: bool,
    /// SCHED_FIFO priority of the thread, 1 to 99; 0 for a normal thread, whose delays suffer from every
    /// other load. Default 10.
    pub rt_priority: u8,
    /// Pin the thread to this core. Default: not pinned.
    pub cpu: Option<usize>,
}

impl Default for EmulatorOptions {
    fn default() -> Self {
        EmulatorOptions {
            device: "wan0".to_string(),
            seed: 1,
            quantum: Duration::from_micros(50),
            spin: Duration::ZERO,
            busy_poll: false,
            rt_priority: 10,
            cpu: None,
        }
    }
}

/// A running emulator; dropping it ends the thread, and with it the devices.
pub(crate) struct Emulator {
    orders: Sender<Order>,
    wake: UnixStream,
    /// The thread's last words.
    last: Arc<Mutex<Option<Counters>>>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Report(Sender<Counters>),
    Change(Box<LinkOptions>, Sender<()>),
    Stop,
}

impl Emulator {
    /// Creates the devices in the two namespaces and starts carrying packets between them. `link` has been
    /// checked.
    pub(crate) fn start(
        namespaces: [NamespaceHandle; 2],
        link: LinkOptions,
        options: EmulatorOptions,
    ) -> Result<Emulator, Error> {
        let (orders, received) = channel();
        let pair = UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs))
        });
        let (wake, woken) = pair.map_err(Error::system("creating a socket pair"))?;
        let (started, start_result) = channel();
        let last = Arc::new(Mutex::new(None));
        let last_of_thread = last.clone();
        let body = move || match Carrier::set_up(&namespaces, link, options, received, woken) {
            Ok(mut carrier) => {
                let _ = started.send(Ok(()));
                let failure = carrier.run().err().map(|e| e.to_string());
                let counters = Counters { failure, ..carrier.counters() };
                *last_of_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(counters);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new()
            .name("linkem".to_string())
            .spawn(body)
            .map_err(Error::system("starting the emulator's thread"))?;
        let emulator = Emulator { orders, wake, last, thread: Some(thread) };
        start_result.recv().unwrap_or(Err(Error::EmulatorEnded))?;
        Ok(emulator)
    }

    /// The counters now; after the emulator's end those of its end, with the failure noted.
    pub(crate) fn counters(&self) -> Counters {
        let (reply, counters) = channel();
        if self.order(Order::Report(reply)).is_ok()
            && let Ok(counters) = counters.recv()
        {
            return counters;
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        last.unwrap_or_else(|| Counters {
            failure: Some("its thread panicked".to_string()),
            ..Counters::default()
        })
    }

    /// Other link options for all packets that come in after this returns. They have been checked.
    pub(crate) fn change(&self, link: LinkOptions) -> Result<(), Error> {
        let (reply, done) = channel();
        self.order(Order::Change(Box::new(link), reply))?;
        done.recv().map_err(|_| Error::EmulatorEnded)
    }

    /// Ends the thread and returns its last counters.
    pub(crate) fn stop(&mut self) -> Counters {
        let _ = self.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is told by the counters.
            let _ = thread.join();
        }
        self.counters()
    }

    fn order(&self, order: Order) -> Result<(), Error> {
        self.orders.send(order).map_err(|_| Error::EmulatorEnded)?;
        // If the socket is full the thread has enough to wake up for.
        let _ = (&self.wake).write(&[1]);
        Ok(())
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

/// The things that the thread owns.
struct Carrier {
    directions: [Direction; 2],
    tuns: [Tun; 2],
    options: EmulatorOptions,
    orders: Receiver<Order>,
    woken: UnixStream,
    start: Instant,
}

impl Carrier {
    /// Prepares the calling thread and leaves it in the second namespace.
    fn set_up(
        namespaces: &[NamespaceHandle; 2],
        link: LinkOptions,
        options: EmulatorOptions,
        orders: Receiver<Order>,
        woken: UnixStream,
    ) -> Result<Carrier, Error> {
        let tuns =
            [Tun::create(&namespaces[0], &options.device)?, Tun::create(&namespaces[1], &options.device)?];
        sys::use_fine_timers();
        sys::keep_heap();
        if let Some(cpu) = options.cpu {
            sys::pin_to_core(cpu).map_err(Error::system(format!("pinning the emulator to core {cpu}")))?;
        }
        if options.rt_priority > 0 {
            sys::set_fifo_priority(options.rt_priority)
                .map_err(Error::system("making the emulator SCHED_FIFO (priority 0 does without)"))?;
        }
        let seed = options.seed.wrapping_mul(2);
        let directions =
            [Direction::new(link.a_to_b, seed), Direction::new(link.b_to_a, seed.wrapping_add(1))];
        Ok(Carrier { directions, tuns, options, orders, woken, start: Instant::now() })
    }

    /// Carries packets until told to stop, or until a device is gone.
    fn run(&mut self) -> Result<(), Error> {
        let quantum_ns = self.options.quantum.as_nanos() as u64;
        let spin_ns = self.options.spin.as_nanos() as u64;
        while self.handle_orders() {
            let round_start = self.now_ns();
            let (mut work, mut full) = (0, false);
            for from in 0..2 {
                let read = self.ingest(from)?;
                let written = self.deliver(from, quantum_ns / 2);
                work += read + written;
                full |= read == READ_BATCH || written == WRITE_BATCH;
            }
            if full || self.options.busy_poll {
                continue;
            }
            let now = self.now_ns();
            let next = self.directions.iter().filter_map(Direction::next_release_ns).min();
            let round_end = round_start + quantum_ns;
            if work > 0 && round_end > now {
                sys::sleep([None; 3], round_end - now); // lets a batch gather
            } else if next.is_none_or(|at| at > now + spin_ns) {
                let wait = next.map_or(SLEEP_MAX_NS, |at| at - now - spin_ns).min(SLEEP_MAX_NS);
                let wait = if wait > LONG_SLEEP_NS { wait - wait / 50 } else { wait };
                let [a, b] = &self.tuns;
                let readable = sys::sleep([Some(a.as_fd()), Some(b.as_fd()), Some(self.woken.as_fd())], wait);
                if readable[2] {
                    // What the bytes announce is in the channel already.
                    let _ = (&self.woken).read(&mut [0; 64]);
                }
            }
        }
        Ok(())
    }

    /// Carries out the orders of other threads. Returns false if the thread has to stop.
    fn handle_orders(&mut self) -> bool {
        loop {
            let order = match self.orders.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            match order {
                // Who asked may have gone meanwhile.
                Order::Report(reply) => drop(reply.send(self.counters())),
                Order::Change(link, reply) => {
                    let [a_to_b, b_to_a] = &mut self.directions;
                    a_to_b.set_options(link.a_to_b);
                    b_to_a.set_options(link.b_to_a);
                    let _ = reply.send(());
                }
                Order::Stop => return false,
            }
        }
    }

    /// Reads and takes in up to READ_BATCH packets sent by this side. Returns how many there were.
    fn ingest(&mut self, from: usize) -> Result<usize, Error> {
        for done in 0..READ_BATCH {
            let Some(packet) = self.tuns[from].read()? else { return Ok(done) };
            let now = self.now_ns();
            self.directions[from].handle_packet(packet, now);
        }
        Ok(READ_BATCH)
    }

    /// Writes out what is due (or due within `early_ns`), at most WRITE_BATCH writes; returns their number.
    fn deliver(&mut self, from: usize, early_ns: u64) -> usize {
        for done in 0..WRITE_BATCH {
            let now = self.now_ns();
            let Some(burst) = self.directions[from].poll_deliver(now, early_ns) else { return done };
            let accepted = self.tuns[1 - from].write(&burst.packet, burst.first, burst.end);
            self.directions[from].note_write(accepted);
        }
        WRITE_BATCH
    }

    fn counters(&self) -> Counters {
        let (cpu, user) = sys::thread_cpu_time();
        Counters {
            uptime_s: self.start.elapsed().as_secs_f64(),
            cpu_s: cpu.as_secs_f64(),
            cpu_user_s: user.as_secs_f64(),
            a_to_b: self.directions[0].counters(self.tuns[0].ring_drops()),
            b_to_a: self.directions[1].counters(self.tuns[1].ring_drops()),
            failure: None,
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;
    use crate::link::Link;
    use crate::{ADDRESS_A, ADDRESS_B, ADDRESS6_A, ADDRESS6_B};

    /// Sends `sends` times `per_send` UDP segments from A to B as super-packets and checks that each arrives
    /// alone, whole, in order.
    fn check_udp_segments(from: SocketAddr, to: SocketAddr, sends: u8, per_send: u8) {
        const SEGMENT: usize = 1200;
        if let Err(why) = crate::available() {
            eprintln!("skipped: {why}");
            return;
        }
        let link = Link::builder().rtt(Duration::from_millis(2)).rate_mbit(500.0).ipv6(true).start().unwrap();
        let receiver = link.b().run_in(|| UdpSocket::bind(to)).unwrap().unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let to = receiver.local_addr().unwrap();
        let sender = link.a().run_in(|| UdpSocket::bind(from)).unwrap().unwrap();
        sys::set_udp_segment(&sender, SEGMENT as u16).unwrap();
        let segment = |send: u8, n: u8| {
            let len = if n + 1 == per_send { SEGMENT - 500 } else { SEGMENT };
            let mut bytes = vec![send ^ 0x5a; len];
            bytes[..2].copy_from_slice(&[send, n]);
            bytes
        };
        let mut buffer = [0; 65536];
        for send in 0..sends {
            let all: Vec<u8> = (0..per_send).flat_map(|n| segment(send, n)).collect();
            assert_eq!(sender.send_to(&all, to).unwrap(), all.len());
            for n in 0..per_send {
                let len = receiver.recv(&mut buffer);
                let len = len.unwrap_or_else(|error| {
                    panic!("segment {n} of send {send}: {error}: {:?}", link.counters())
                });
                let got = &buffer[..len];
                assert!(
                    got == segment(send, n),
                    "segment {n} of send {send}: {len} bytes, {:?}: {:?}",
                    &got[..2],
                    link.counters()
                );
            }
        }
        let counters = link.counters();
        let all = u64::from(sends) * u64::from(per_send);
        assert_eq!((counters.a_to_b.packets_in, counters.a_to_b.packets_out), (all, all));
        assert!(counters.a_to_b.reads < all, "super-packets came in: {}", counters.a_to_b.reads);
        assert_eq!((counters.a_to_b.write_errors, counters.a_to_b.drop_emulator), (0, 0));
    }

    #[test]
    fn udp_super_packets_arrive_as_intact_segments() {
        check_udp_segments((ADDRESS_A, 0).into(), (ADDRESS_B, 0).into(), 20, 41);
    }

    #[test]
    fn udp_super_packets_over_ipv6_arrive_as_intact_segments() {
        check_udp_segments((ADDRESS6_A, 0).into(), (ADDRESS6_B, 0).into(), 5, 41);
    }
}
