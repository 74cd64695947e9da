//! Links as their users see them: made, used, changed, removed. Skipped with a printed reason where links
//! cannot be made.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use linkem::{ADDRESS_A, ADDRESS_B, ADDRESS6_A, ADDRESS6_B, Error, Link};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// False, with the reason printed, where no link can be made.
fn can_run() -> bool {
    linkem::available().inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
}

fn is_named(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

/// A socket at each end, connected to each other; reads wait up to a minute.
fn sockets(link: &Link, a: impl Into<IpAddr>, b: impl Into<IpAddr>) -> (UdpSocket, UdpSocket) {
    let (a, b) = (a.into(), b.into());
    let a = link.a().run_in(|| UdpSocket::bind((a, 0))).unwrap().unwrap();
    let b = link.b().run_in(|| UdpSocket::bind((b, 0))).unwrap().unwrap();
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    for socket in [&a, &b] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    (a, b)
}

/// Does what a signal has interrupted once more: a socket with a time limit does not by itself, and other tests of this process
/// start and end children.
fn again<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Round-trip times of `count` datagrams, shortest first.
fn round_trips(a: &UdpSocket, b: &UdpSocket, count: u8) -> Vec<Duration> {
    let mut buffer = [0; 100];
    let mut times: Vec<Duration> = (0..count)
        .map(|n| {
            let start = Instant::now();
            again(|| a.send(&[n; 50])).unwrap();
            assert_eq!(again(|| b.recv(&mut buffer)).unwrap(), 50);
            again(|| b.send(&buffer[..50])).unwrap();
            assert_eq!(again(|| a.recv(&mut buffer)).unwrap(), 50);
            assert_eq!(buffer[..50], [n; 50]);
            start.elapsed()
        })
        .collect();
    times.sort();
    times
}

#[test]
fn the_round_trip_takes_as_long_as_set() {
    if !can_run() {
        return;
    }
    let link = Link::builder().rtt(Duration::from_millis(40)).start().unwrap();
    let (a, b) = sockets(&link, ADDRESS_A, ADDRESS_B);
    let times = round_trips(&a, &b, 20);
    // Half a quantum early at most each way. A busy machine makes many of them longer, and hardly each.
    assert!(times[0] >= Duration::from_micros(39_900), "{times:?}");
    assert!(times[0] < Duration::from_millis(80), "{times:?}");
    let counters = link.counters();
    assert_eq!((counters.a_to_b.packets_in, counters.b_to_a.packets_out), (20, 20));
    assert_eq!((counters.a_to_b.drop_emulator, counters.a_to_b.write_errors), (0, 0));
}

#[test]
fn ping_runs_inside_the_namespace() {
    if !can_run() {
        return;
    }
    let link = Link::builder().rtt(Duration::from_millis(20)).start().unwrap();
    let ping = link.a().command("ping").args(["-q", "-c", "20", "-i", "0.1", "10.99.0.2"]).output();
    let Ok(ping) = ping else {
        eprintln!("skipped: there is no ping here");
        return;
    };
    let text = String::from_utf8(ping.stdout).unwrap();
    assert!(ping.status.success() && text.contains(" 0% packet loss"), "{text}");
    // rtt min/avg/max/mdev = 20.0/20.1/20.3/0.1 ms
    let min: f64 = text.split(" = ").nth(1).and_then(|t| t.split('/').next()).unwrap().parse().unwrap();
    assert!((19.9..60.0).contains(&min), "{text}");
}

#[test]
fn ipv6_crosses_the_link_when_switched_on() {
    if !can_run() {
        return;
    }
    let link = Link::builder().ipv6(true).start().unwrap();
    let (a, b) = sockets(&link, ADDRESS6_A, ADDRESS6_B);
    round_trips(&a, &b, 3);
    let counters = link.counters();
    assert_eq!((counters.a_to_b.packets_in, counters.b_to_a.packets_in), (3, 3), "nothing else crosses it");
}

#[test]
fn tcp_gets_its_bytes_through_loss_reordering_and_duplicates() {
    if !can_run() {
        return;
    }
    let link = Link::builder()
        .rtt(Duration::from_millis(4))
        .rate_mbit(400.0)
        .loss(0.002)
        .reorder(0.01, Duration::from_millis(1))
        .duplicate(0.01)
        .start()
        .unwrap();
    let bytes: Vec<u8> = (0..4_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let listener = link.b().run_in(|| TcpListener::bind((ADDRESS_B, 0))).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut received = Vec::new();
            io::copy(&mut listener.accept()?.0, &mut received).map(|_| received)
        });
        let mut stream = link.a().run_in(|| TcpStream::connect(to)).unwrap().unwrap();
        io::copy(&mut &bytes[..], &mut stream).unwrap();
        drop(stream);
        receiver.join().unwrap().unwrap()
    });
    assert!(received == bytes, "{} of {} bytes", received.len(), bytes.len());
    let counters = link.counters().a_to_b;
    assert!(counters.reads < counters.packets_in, "super-packets came in");
    assert!(counters.drop_loss > 0 && counters.duplicated > 0 && counters.overtook > 0, "{counters:?}");
    assert_eq!((counters.write_errors, counters.drop_emulator), (0, 0));
}

#[test]
fn full_loss_passes_nothing_and_a_change_lets_it_pass_again() {
    if !can_run() {
        return;
    }
    let link = Link::builder().loss(1.0).start().unwrap();
    let (a, b) = sockets(&link, ADDRESS_A, ADDRESS_B);
    for _ in 0..100 {
        a.send(b"lost").unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while link.counters().a_to_b.drop_loss < 100 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    b.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(again(|| b.recv(&mut [0; 10])).is_err());
    let counters = link.counters();
    assert_eq!((counters.a_to_b.drop_loss, counters.a_to_b.packets_out), (100, 0));

    link.set(|direction| direction.loss = 0.0).unwrap();
    b.set_read_timeout(Some(PATIENCE)).unwrap();
    round_trips(&a, &b, 3);
    link.set_each(|link| link.b_to_a.blackout = true).unwrap();
    a.send(b"through").unwrap();
    assert_eq!(again(|| b.recv(&mut [0; 10])).unwrap(), 7);
    assert!(link.options().b_to_a.blackout && !link.options().a_to_b.blackout);

    let refused = link.set(|direction| direction.loss = 2.0).unwrap_err();
    assert_eq!(refused.to_string(), "option loss = 2: must be from 0 to 1");
    assert_eq!(link.options().a_to_b.loss, 0.0);
}

#[test]
fn links_run_side_by_side_with_the_same_addresses() {
    if !can_run() {
        return;
    }
    let links: Vec<Link> = (0..3).map(|_| Link::builder().start().unwrap()).collect();
    for (n, link) in links.iter().enumerate() {
        let (a, b) = sockets(link, ADDRESS_A, ADDRESS_B);
        round_trips(&a, &b, n as u8 + 1);
        assert_eq!(link.counters().a_to_b.packets_in, n as u64 + 1);
    }
}

#[test]
fn stopping_removes_the_namespaces_and_returns_the_counters() {
    if !can_run() {
        return;
    }
    let link = Link::builder().start().unwrap();
    let names = [link.a().name().to_string(), link.b().name().to_string()];
    assert!(names.iter().all(|name| is_named(name)));
    let (a, b) = sockets(&link, ADDRESS_A, ADDRESS_B);
    round_trips(&a, &b, 2);
    let counters = link.stop();
    assert_eq!((counters.b_to_a.packets_out, counters.failure), (2, None));
    assert!(!names.iter().any(|name| is_named(name)), "{names:?}");
}

#[test]
fn a_panic_removes_the_namespaces() {
    if !can_run() {
        return;
    }
    let mut names = Vec::new();
    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let link = Link::builder().start().unwrap();
        names = vec![link.a().name().to_string(), link.b().name().to_string()];
        link.a().run_in(|| panic!("on purpose")).unwrap();
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"), "the panic goes on in the caller");
    assert_eq!(names.len(), 2);
    assert!(!names.iter().any(|name| is_named(name)), "{names:?}");
}

#[test]
fn namespaces_of_a_dead_process_are_removed_and_those_of_a_live_one_stay() {
    if !can_run() {
        return;
    }
    let live = Link::builder().start().unwrap();
    // Our process id, but the start time of another process: a dead one whose id was given again.
    let stale = format!("linkem-{}-1-0-a", std::process::id());
    // A test beside this one may remove the name while the command makes it, which then fails.
    let made = (0..50).any(|_| {
        let status = Command::new("ip").args(["netns", "add", &stale]).status().unwrap();
        status.success() || {
            std::thread::sleep(Duration::from_millis(20));
            false
        }
    });
    assert!(made, "no namespace {stale}");
    let next = Link::builder().start().unwrap();
    assert!(!is_named(&stale));
    assert!(is_named(live.a().name()) && is_named(next.b().name()));
}

/// A thread that found one of two names taken, and gone a moment later as another thread removed it, failed.
#[test]
fn threads_start_and_stop_links_at_once() {
    if !can_run() {
        return;
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..6).for_each(|_| drop(Link::builder().start().unwrap())));
        }
    });
}

#[test]
fn a_failed_start_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let (a, b) = (format!("lk-fail-{}", std::process::id()), format!("lk-fail2-{}", std::process::id()));
    let first = Link::builder().names(&b, &format!("{b}x")).start().unwrap();
    let error = Link::builder().names(&a, &b).start().map(drop).unwrap_err();
    assert!(matches!(&error, Error::NamespaceExists { name } if *name == b), "{error}");
    assert!(!is_named(&a) && is_named(&b));
    drop(first);
    // The device's name passes our check and not the kernel's.
    let error = Link::builder().names(&a, &b).emulator(|e| e.device = "lo".into()).start().map(drop);
    assert!(error.unwrap_err().to_string().contains("creating TUN device lo"));
    assert!(!is_named(&a) && !is_named(&b));
}

#[test]
fn senseless_options_are_refused() {
    for (builder, expected) in [
        (Link::builder().loss(1.5), "option loss = 1.5"),
        (Link::builder().rate_mbit(-1.0), "option rate"),
        (Link::builder().rate_mbit(f64::NAN), "option rate"),
        (Link::builder().mtu(60), "option mtu = 60"),
        (Link::builder().mtu(1000).ipv6(true), "IPv6 needs 1280"),
        (Link::builder().addresses("10.0.0.1", "10.0.0.2/24"), "option addr = 10.0.0.1"),
        (Link::builder().emulator(|e| e.device = "much too long a name".into()), "option dev"),
    ] {
        let error = builder.start().map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn the_counters_tell_when_the_device_is_taken_away() {
    if !can_run() {
        return;
    }
    let link = Link::builder().start().unwrap();
    let address: SocketAddr = (ADDRESS_B, 9).into();
    let status = link.a().command("ip").args(["link", "del", "wan0"]).status().unwrap();
    assert!(status.success());
    let unreachable = link.a().run_in(|| UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", address)).unwrap();
    assert!(unreachable.is_err());
    let invalid = (0..3000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        link.counters().check().err()
    });
    let invalid = invalid.expect("noticed within a minute").to_string();
    assert!(invalid.contains("reading from wan0"), "{invalid}");
    assert!(matches!(link.set(|_| ()), Err(Error::EmulatorEnded)));
}
