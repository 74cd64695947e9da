//! How fast a core seals and opens packets, with each class, at each level and with each enctype: `cargo run --release -p rx-security
//! --example crypt_speed`. Prints megabytes of plain text a second of processor time, the median of several runs and the lowest and
//! highest. Words on the command line have it measure what has one of them in its name.
#![forbid(unsafe_code)]

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::ids::{CHANNELS, CallNumber, ConnectionId, Epoch, Seq, ServiceId};
use rx_proto::packet::{HEADER_LEN, Header};
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxgk::{self, Dialect, ENCTYPES, Form};
use rx_security::ticket::{SessionKey, Token};
use rx_security::time::UnixTime;
use rx_security::{Level, rxkad};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

/// How long a run takes, and how many there are.
const RUN: Duration = Duration::from_millis(200);
const RUNS: usize = 9;
/// Bodies of a packet to a stock peer, and of the largest to one of our own kind.
const BODIES: [usize; 2] = [1416, 16_356];
/// Packets that are sealed together, as they are sent.
const BUNDLE: usize = 8;

/// The two ends of a connection, which know each other.
type Ends = (Box<dyn SecurityClass>, Box<dyn SecurityClass>);

fn facts() -> ConnectionFacts {
    ConnectionFacts {
        epoch: Epoch(0),
        connection: ConnectionId(0),
        service: ServiceId(1),
        calls: [CallNumber(0); CHANNELS],
        peer: ([192, 0, 2, 1], 7001).into(),
        checksum: 0,
    }
}

fn rxkad(level: Level) -> Ends {
    let session_key = SessionKey::new([1, 2, 4, 7, 8, 11, 13, 14]);
    let (start, end) = (UnixTime::ORIGIN, UnixTime::NEVER);
    let token = Arc::new(Token { session_key, ticket: vec![0; 40], kvno: 3, start, end });
    let end = || Box::new(rxkad::Client::new(Arc::clone(&token), level));
    // Both directions are the same.
    (end(), end())
}

fn rxgk(kind: EncType, level: Level) -> Ends {
    let keys = KeySet::of([Key::rxgk(1, kind, &vec![7; kind.key_len().expect("it is known")])]);
    let (keys, dialect) = (keys.expect("a good key"), Dialect::Yfs);
    let form = Form { dialect, kind, level };
    let rng = &mut StdRng::seed_from_u64(1);
    let token = rxgk::Token::of_superuser(&keys, form, rng).expect("there is a key");
    // The other end gets few of the packets, and would not follow if keys were replaced.
    let token = rxgk::Token { bytelife: 0, ..token };
    let mut client = rxgk::Client::new(Arc::new(token), Arc::new(|| UnixTime(1)), [1; 32]);
    let options = rxgk::ServerOptions { min_level: level, ..rxgk::ServerOptions::of_cell("lab.test") };
    let server = rxgk::Server::new(dialect, keys, options, Arc::new(|| UnixTime(1)), [2; 32]);
    let mut server = server.accept(&facts());
    let answer = client.handle_challenge(&facts(), &server.challenge(1)).expect("a good challenge");
    server.handle_response(&facts(), &answer).expect("a good answer");
    (Box::new(client), server)
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

/// Names with what makes the ends.
fn all() -> Vec<(String, Ends)> {
    let kad = Level::ALL.map(|level| (format!("rxkad {level}"), rxkad(level)));
    let gk = ENCTYPES.into_iter().flat_map(|kind| {
        let name = kind.name().expect("it is known");
        [Level::Auth, Level::Crypt].map(|level| (format!("rxgk {level} {name}"), rxgk(kind, level)))
    });
    kad.into_iter().chain(gk).collect()
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("{:40} body   seal MB/s (low-high)     open MB/s (low-high)", "");
    for (name, (mut client, mut server)) in all() {
        if !wanted.is_empty() && !wanted.iter().any(|word| name.contains(&**word)) {
            continue;
        }
        for body in BODIES {
            let plain = vec![0x5a; client.plaintext_capacity(body)];
            let mut header = Header::parse(&[0; HEADER_LEN]).expect("28 bytes are a header");
            (header.call, header.seq, header.security) = (CallNumber(1), Seq(1), client.index());
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
                let opened = server.open(&header, black_box(sealed.clone()));
                assert_eq!(opened.map(|plain| plain.len()), Ok(plain.len()));
            });
            let show = |(median, low, high): (f64, f64, f64)| format!("{median:8.0} ({low:.0}-{high:.0})");
            println!("{name:40} {body:5}  {:24} {:24}", show(seal), show(open));
        }
    }
}
