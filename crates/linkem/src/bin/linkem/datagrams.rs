//! Sends numbered datagrams over a link at an even pace and tells what became of them: loss and its runs,
//! duplicates, reordering, one-way delay (both ends are this process, so they share a clock).

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linkem::{ADDRESS_A, ADDRESS_B, Link};

use crate::Failure;

/// IPv4 and UDP headers.
const HEADERS: usize = 28;
/// Datagrams sent between two sleeps are at most what this time holds.
const PACE: Duration = Duration::from_micros(100);
/// After the last datagram the receiver waits until nothing has come for so long.
const SILENCE: Duration = Duration::from_millis(500);

/// The fate of the datagrams.
pub(crate) struct Outcome {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Mean and longest run of losses in a row.
    pub(crate) run_mean: f64,
    pub(crate) run_longest: u64,
    pub(crate) duplicates: u64,
    /// Arrived after a later one.
    pub(crate) out_of_order: u64,
    /// One-way delays, shortest first; empty if none arrived.
    delays: Vec<Duration>,
}

impl Outcome {
    /// The delay that this share of the datagrams stays below, in milliseconds.
    pub(crate) fn delay_ms(&self, share: f64) -> f64 {
        let last = self.delays.len().saturating_sub(1);
        self.delays.get((last as f64 * share) as usize).map_or(f64::NAN, |delay| delay.as_secs_f64() * 1e3)
    }
}

/// Sends `count` packets of `size` bytes (IP bytes, at least 48) from A to B, `per_second` of them.
pub(crate) fn measure(link: &Link, count: u64, per_second: f64, size: usize) -> Result<Outcome, Failure> {
    let receiver = link.b().run_in(|| UdpSocket::bind((ADDRESS_B, 0)))??;
    let sender = link.a().run_in(|| UdpSocket::bind((ADDRESS_A, 0)))??;
    sender.connect(receiver.local_addr()?)?;
    receiver.set_read_timeout(Some(SILENCE))?;
    let start = Instant::now();
    let done = AtomicBool::new(false);
    let arrivals = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver, start, &done));
        let sent = send(&sender, start, count, per_second, size.max(HEADERS + 20) - HEADERS);
        done.store(true, Ordering::Release);
        let arrivals = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.map(|()| arrivals)
    })?;
    Ok(judge(count, arrivals))
}

/// A datagram's number, when it was sent and how long it took.
struct Arrival {
    number: u64,
    delay: Duration,
}

fn send(
    socket: &UdpSocket,
    start: Instant,
    count: u64,
    per_second: f64,
    payload: usize,
) -> std::io::Result<()> {
    let mut bytes = vec![0u8; payload];
    for number in 0..count {
        let due = Duration::from_secs_f64(number as f64 / per_second);
        while start.elapsed() + PACE / 2 < due {
            std::thread::sleep(PACE.min(due.saturating_sub(start.elapsed())));
        }
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..16].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_be_bytes());
        socket.send(&bytes)?;
    }
    Ok(())
}

fn receive(socket: &UdpSocket, start: Instant, done: &AtomicBool) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut buffer = [0u8; 65536];
    loop {
        let was_done = done.load(Ordering::Acquire);
        match socket.recv(&mut buffer) {
            Ok(len) if len >= 16 => {
                let now = start.elapsed();
                let field = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| buffer[at + i]));
                let delay = now.saturating_sub(Duration::from_nanos(field(8)));
                arrivals.push(Arrival { number: field(0), delay });
            }
            Ok(_) => (),
            Err(_) if was_done => return arrivals,
            Err(_) => (),
        }
    }
}

fn judge(count: u64, arrivals: Vec<Arrival>) -> Outcome {
    let mut times = vec![0u64; count as usize];
    let (mut highest, mut out_of_order) = (0, 0);
    for arrival in &arrivals {
        let Some(seen) = times.get_mut(arrival.number as usize) else { continue };
        *seen += 1;
        out_of_order += u64::from(arrival.number < highest && *seen == 1);
        highest = highest.max(arrival.number);
    }
    let runs: Vec<u64> =
        times.chunk_by(|a, b| (*a == 0) == (*b == 0)).filter(|r| r[0] == 0).map(|r| r.len() as u64).collect();
    let lost = runs.iter().sum::<u64>();
    let mut delays: Vec<Duration> = arrivals.into_iter().map(|arrival| arrival.delay).collect();
    delays.sort_unstable();
    Outcome {
        sent: count,
        lost,
        run_mean: lost as f64 / runs.len().max(1) as f64,
        run_longest: runs.into_iter().max().unwrap_or(0),
        duplicates: times.iter().map(|seen| seen.saturating_sub(1)).sum(),
        out_of_order,
        delays,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_judged() {
        let arrival = |number| Arrival { number, delay: Duration::from_millis(number) };
        // 3, 4 and 7 are lost, 2 comes late, 5 twice.
        let outcome = judge(8, [0, 1, 5, 2, 5, 6].map(arrival).into());
        assert_eq!((outcome.lost, outcome.run_mean, outcome.run_longest), (3, 1.5, 2));
        assert_eq!((outcome.out_of_order, outcome.duplicates), (1, 1));
        assert_eq!((outcome.delay_ms(0.0), outcome.delay_ms(1.0)), (0.0, 6.0));
    }
}
