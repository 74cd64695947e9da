//! How fast a core seals and opens packets of each level: `cargo run --release -p rx-security --example crypt_speed`. Prints
//! megabytes of plain text a second of processor time, the median of several runs and the lowest and highest.
#![forbid(unsafe_code)]

use bytes::Bytes;
use rx_proto::ids::{CallNumber, SecurityIndex, Seq};
use rx_proto::packet::{HEADER_LEN, Header};
use rx_proto::security::SecurityClass;
use rx_security::rxkad::{Client, Level};
use rx_security::ticket::{SessionKey, Token};
use rx_security::time::UnixTime;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// How long a run takes, and how many there are.
const RUN: Duration = Duration::from_millis(200);
const RUNS: usize = 9;
/// Bodies of a packet to a stock peer, and of the largest to one of our own kind.
const BODIES: [usize; 2] = [1416, 16_356];
/// Packets that are sealed together, as they are sent.
const BUNDLE: usize = 4;

fn client(level: Level) -> Client {
    let session_key = SessionKey::new([1, 2, 4, 7, 8, 11, 13, 14]);
    let (start, end) = (UnixTime::ORIGIN, UnixTime::NEVER);
    Client::new(Arc::new(Token { session_key, ticket: vec![0; 40], kvno: 3, start, end }), level)
}

/// How long this thread has had a processor: others may want it too, and their share is none of our business.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux tells it");
    Duration::from_nanos(
        text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds stand first"),
    )
}

/// Megabytes a second of a work of so many bytes: median, lowest, highest.
fn speed(bytes: usize, mut work: impl FnMut()) -> (f64, f64, f64) {
    let mut speeds: Vec<f64> = (0..RUNS)
        .map(|_| {
            let (started, mut times) = (processor_time(), 0u32);
            let took = loop {
                (0..256).for_each(|_| work());
                times += 256;
                let took = processor_time() - started;
                if took >= RUN {
                    break took;
                }
            };
            f64::from(times) * bytes as f64 / took.as_secs_f64() / 1e6
        })
        .collect();
    speeds.sort_by(f64::total_cmp);
    (speeds[RUNS / 2], speeds[0], speeds[RUNS - 1])
}

fn main() {
    println!("level  body   seal MB/s (low-high)     open MB/s (low-high)");
    for level in Level::ALL {
        for body in BODIES {
            let mut client = client(level);
            let plain = vec![0x5a; client.plaintext_capacity(body)];
            let mut header = Header::parse(&[0; HEADER_LEN]).expect("28 bytes are a header");
            (header.call, header.seq, header.security) = (CallNumber(1), Seq(1), SecurityIndex(2));
            let mut out = Vec::with_capacity(BUNDLE * body);
            let seal = speed(BUNDLE * plain.len(), || {
                out.clear();
                (0..BUNDLE).for_each(|_| client.prepare(&mut header, black_box(&plain), &mut out));
                let length = out.len() / BUNDLE;
                client.finish(&mut out.chunks_mut(length));
            });
            out.truncate(out.len() / BUNDLE);
            let sealed = Bytes::from(out);
            let open = speed(plain.len(), || {
                let opened = client.open(&header, black_box(sealed.clone()));
                assert_eq!(opened.map(|plain| plain.len()), Ok(plain.len()));
            });
            let show = |(median, low, high): (f64, f64, f64)| format!("{median:8.0} ({low:.0}-{high:.0})");
            println!("{:6} {body:5}  {:24} {:24}", level.name(), show(seal), show(open));
        }
    }
}
