//! One direction of the link as a state machine: what happens to each packet, and when it leaves. Neither
//! reads nor writes (see emulator) and has no clock: times are nanoseconds since the emulator's start.
//!
//! The queue is a virtual clock, `link_free_ps`: when the link has sent all it has accepted. So one
//! time-ordered delay line holds everything, whether it is queued or on the way.
//!
//! ```text
//!   handle_packet -> drop-tail queue + rate -> loss -> delay -> poll_deliver
//! ```

use std::collections::VecDeque;
use std::rc::Rc;

use crate::counters::DirectionCounters;
use crate::options::{DirectionOptions, GilbertElliott};
use crate::packet::Packet;
use crate::random::Random;

/// Segments on the way at one time; what comes beyond this is dropped and counted as the emulator's own
/// fault. Full-size ones fill 1.5 GB, five seconds of 2 Gbit/s; without a limit a long delay on an unlimited
/// link would take all memory.
const HELD_LIMIT: usize = 1 << 20;
/// Delay line places made in advance, so that it does not grow during a measurement at 1 Gbit/s and 200 ms.
const HELD_RESERVE: usize = 1 << 16;
/// A packet that leaves later than this counts as late.
const LATE_NS: u64 = 200_000;
/// Picoseconds of a bit at 1 bit/s, times 8: what a byte takes.
const BYTE_PS_AT_1_BIT_S: u128 = 8_000_000_000_000;

/// One direction of the link. Feed arrivals to [`handle_packet`](Direction::handle_packet); then take what is
/// due with [`poll_deliver`](Direction::poll_deliver) until there is nothing; sleep no longer than until
/// [`next_release_ns`](Direction::next_release_ns).
pub(crate) struct Direction {
    options: DirectionOptions,
    loss_model: Option<GilbertElliott>,
    queue_limit_bytes: u64,
    random: Random,
    jitter_seed: u64,
    in_bad_state: bool,
    /// The time when everything accepted so far has been sent.
    link_free_ps: u64,
    last_release_ns: u64,
    delay_line: VecDeque<Held>,
    count: DirectionCounters,
    late_sum_ns: u64,
    late_max_ns: u64,
}

/// A segment waiting for its time.
struct Held {
    release_ns: u64,
    packet: Rc<Packet>,
    segment: u32,
}

/// Neighbouring segments of one packet that leave together as one write.
pub(crate) struct Burst {
    pub(crate) packet: Rc<Packet>,
    pub(crate) first: u32,
    pub(crate) end: u32,
}

impl Direction {
    /// Two directions with the same options, seed and arrivals make the same decisions.
    pub(crate) fn new(options: DirectionOptions, seed: u64) -> Direction {
        let mut random = Random::new(seed);
        let jitter_seed = random.next();
        Direction {
            loss_model: options.loss_model(),
            queue_limit_bytes: options.queue_limit_bytes(),
            options,
            random,
            jitter_seed,
            in_bad_state: false,
            link_free_ps: 0,
            last_release_ns: 0,
            delay_line: VecDeque::with_capacity(HELD_RESERVE),
            count: DirectionCounters::default(),
            late_sum_ns: 0,
            late_max_ns: 0,
        }
    }

    /// Other options from now on. Packets already accepted keep their times, and none overtakes them.
    pub(crate) fn set_options(&mut self, options: DirectionOptions) {
        self.loss_model = options.loss_model();
        self.queue_limit_bytes = options.queue_limit_bytes();
        if self.loss_model.is_none() {
            self.in_bad_state = false;
        }
        self.options = options;
    }

    /// Takes in a packet that arrived at `now_ns`. Each segment of a super-packet is queued, timed, lost and
    /// duplicated for itself.
    pub(crate) fn handle_packet(&mut self, packet: Packet, now_ns: u64) {
        self.count.reads += 1;
        let packet = Rc::new(packet);
        for segment in 0..packet.segments() {
            self.admit(&packet, segment, now_ns);
        }
    }

    /// The next piece that is due at `now_ns`, or will be within `early_ns`.
    pub(crate) fn poll_deliver(&mut self, now_ns: u64, early_ns: u64) -> Option<Burst> {
        let due_ns = now_ns + early_ns;
        let first = self.pop_if(|held| held.release_ns <= due_ns)?;
        self.note_delivery(&first, now_ns);
        let mut end = first.segment + 1;
        // Segments that follow it in the same super-packet and are due too share the write.
        while let Some(next) = self.pop_if(|next| {
            next.release_ns <= due_ns && Rc::ptr_eq(&next.packet, &first.packet) && next.segment == end
        }) {
            self.note_delivery(&next, now_ns);
            end += 1;
        }
        Some(Burst { packet: first.packet, first: first.segment, end })
    }

    /// The time when the next packet is due.
    pub(crate) fn next_release_ns(&self) -> Option<u64> {
        self.delay_line.front().map(|held| held.release_ns)
    }

    /// Counts a write to the receiver's device.
    pub(crate) fn note_write(&mut self, accepted: bool) {
        self.count.writes += 1;
        self.count.write_errors += u64::from(!accepted);
    }

    /// `ring_drops`: packets the kernel dropped because the sender's device was not read in time.
    pub(crate) fn counters(&self, ring_drops: u64) -> DirectionCounters {
        DirectionCounters {
            drop_emulator: self.count.drop_emulator + ring_drops,
            queue_limit_bytes: self.queue_limit_bytes,
            held_now: self.delay_line.len() as u64,
            late_mean_us: self.late_sum_ns as f64 / 1e3 / self.count.packets_out.max(1) as f64,
            late_max_us: self.late_max_ns as f64 / 1e3,
            ..self.count.clone()
        }
    }

    /// Takes in one segment: queue, rate, loss, delay.
    fn admit(&mut self, packet: &Rc<Packet>, segment: u32, now_ns: u64) {
        let len = packet.segment_len(segment) as u64;
        self.count.packets_in += 1;
        self.count.bytes_in += len;
        let Some(sent_ns) = self.enqueue(len, now_ns) else {
            self.count.drop_queue += 1;
            return;
        };
        let is_too_long = self.options.longest_bytes > 0 && len > self.options.longest_bytes;
        if self.is_lost() || is_too_long {
            self.count.drop_loss += 1;
            return;
        }
        let mut release_ns = sent_ns + nanos(self.options.delay) + self.jitter_ns(sent_ns);
        if self.random.chance(self.options.reorder) {
            release_ns += nanos(self.options.reorder_by);
        } else if !self.options.jitter_iid {
            release_ns = release_ns.max(self.last_release_ns);
            self.last_release_ns = release_ns;
        }
        let copies = 1 + u64::from(self.random.chance(self.options.duplicate));
        self.count.duplicated += copies - 1;
        for _ in 0..copies {
            self.hold(Held { release_ns, packet: packet.clone(), segment });
        }
    }

    /// The time when the last bit of a packet of `len` bytes has left the queue; None if the queue is full.
    fn enqueue(&mut self, len: u64, now_ns: u64) -> Option<u64> {
        let rate = u128::from(self.options.rate_bit_s);
        if rate == 0 {
            return Some(now_ns);
        }
        let now_ps = now_ns.saturating_mul(1000);
        let wire = len + self.options.overhead_bytes;
        let ps_for = |bytes: u64| (u128::from(bytes) * BYTE_PS_AT_1_BIT_S / rate) as u64;
        let wait_ps = self.link_free_ps.saturating_sub(now_ps);
        let queued = (u128::from(wait_ps) * rate / BYTE_PS_AT_1_BIT_S) as u64;
        if queued > 0 && queued + wire > self.queue_limit_bytes {
            return None;
        }
        self.count.queue_max_bytes = self.count.queue_max_bytes.max(queued + wire);
        let earliest = now_ps.saturating_sub(ps_for(self.options.burst_bytes));
        self.link_free_ps = self.link_free_ps.max(earliest).saturating_add(ps_for(wire));
        Some((self.link_free_ps / 1000).max(now_ns))
    }

    fn is_lost(&mut self) -> bool {
        if self.options.blackout {
            return true;
        }
        let Some(model) = self.loss_model else {
            return self.random.chance(self.options.loss);
        };
        let flip = if self.in_bad_state { model.bad_to_good } else { model.good_to_bad };
        self.in_bad_state ^= self.random.chance(flip);
        self.random.chance(if self.in_bad_state { model.loss_bad } else { model.loss_good })
    }

    /// Extra delay at this time: drawn alone, or on a line between random points one period apart.
    fn jitter_ns(&mut self, at_ns: u64) -> u64 {
        let max = nanos(self.options.jitter) as f64;
        if max == 0.0 {
            return 0;
        }
        if self.options.jitter_iid {
            return (self.random.unit() * max) as u64;
        }
        let period = nanos(self.options.jitter_period).max(1);
        let seed = self.jitter_seed;
        let point = |n: u64| Random::new(seed ^ n.wrapping_mul(0xD134_2543_DE82_EF95)).unit();
        let (n, share) = (at_ns / period, (at_ns % period) as f64 / period as f64);
        (max * (point(n) * (1.0 - share) + point(n + 1) * share)) as u64
    }

    /// Puts a segment into the delay line, which stays sorted by release time.
    fn hold(&mut self, held: Held) {
        if self.delay_line.len() >= HELD_LIMIT {
            self.count.drop_emulator += 1;
            return;
        }
        let at = match self.delay_line.back() {
            Some(last) if last.release_ns > held.release_ns => {
                self.delay_line.partition_point(|h| h.release_ns <= held.release_ns)
            }
            _ => self.delay_line.len(),
        };
        self.count.overtook += u64::from(at < self.delay_line.len());
        self.delay_line.insert(at, held);
        self.count.held_max = self.count.held_max.max(self.delay_line.len() as u64);
    }

    fn pop_if(&mut self, wanted: impl FnOnce(&Held) -> bool) -> Option<Held> {
        if wanted(self.delay_line.front()?) { self.delay_line.pop_front() } else { None }
    }

    fn note_delivery(&mut self, held: &Held, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(held.release_ns);
        self.count.packets_out += 1;
        self.count.bytes_out += held.packet.segment_len(held.segment) as u64;
        self.late_sum_ns += late_ns;
        self.late_max_ns = self.late_max_ns.max(late_ns);
        self.count.late_over_200us += u64::from(late_ns > LATE_NS);
    }
}

/// Checked options are below an hour, so this does not wrap.
fn nanos(duration: std::time::Duration) -> u64 {
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests;
