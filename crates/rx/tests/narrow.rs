//! A real path that drops long packets without a word: calls go on, in packets that pass.

use crate::support::{ECHO, check_stream, connect, echo, piece, service, soon};
use rx::{Connection, Endpoint, EndpointConfig, ServiceConfig};
use std::net::Ipv4Addr;
use std::time::Duration;

const BYTES: usize = 300_000;

/// An endpoint at one end of the link.
fn bind_at(end: &linkem::Namespace, address: Ipv4Addr) -> Endpoint {
    let runtime = tokio::runtime::Handle::current();
    let bind = || {
        let _entered = runtime.enter();
        Endpoint::bind((address, 0).into(), EndpointConfig::default())
    };
    end.run_in(bind).unwrap().unwrap()
}

/// A call that sends bytes and gets them back. `midway` is done when half of them have been sent.
async fn call(connection: &Connection, midway: impl FnOnce()) {
    soon(async {
        let mut call = connection.call().await.unwrap();
        call.send(piece(7, 0, BYTES / 2)).await.unwrap();
        midway();
        call.send(piece(7, BYTES as u64 / 2, BYTES / 2)).await.unwrap();
        call.finish().unwrap();
        assert_eq!(check_stream(&mut call, 7).await.unwrap(), BYTES as u64);
    })
    .await;
}

/// How long a call may take is told in virtual time (rx-proto, `narrow`). Here each ends, and the size that passes is found by those who need it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_where_a_path_drops_long_packets_without_a_word() {
    if let Err(why) = linkem::available() {
        return eprintln!("skipped: {why}");
    }
    let link = linkem::Link::builder().rtt(Duration::from_millis(2)).start().unwrap();
    // The client's way, the server's, and both.
    for longest in [(1280, 0), (0, 1280), (1280, 1280), (576, 1400)] {
        let narrow = |(there, back)| {
            link.set_each(|options| {
                (options.a_to_b.longest_bytes, options.b_to_a.longest_bytes) = (there, back);
            })
            .unwrap();
        };
        for (what, calls_before) in [("from the first call on", 0), ("in the middle of the third call", 2)] {
            let server = bind_at(link.b(), linkem::ADDRESS_B);
            server.add_service(ServiceConfig::new(service(ECHO), echo));
            let client = bind_at(link.a(), linkem::ADDRESS_A);
            let connection = connect(&client, &server, ECHO);
            narrow((0, 0));
            for _ in 0..calls_before {
                call(&connection, || ()).await;
            }
            let narrowed = || [&client, &server].map(|end| end.stats().paths_narrowed > 0);
            assert_eq!(narrowed(), [false, false], "a wide path");
            if calls_before == 0 {
                narrow(longest);
            }
            call(&connection, || narrow(longest)).await;
            for _ in 0..100 {
                call(&connection, || ()).await;
            }
            assert_eq!(narrowed(), [longest.0 > 0, longest.1 > 0], "at most {longest:?} bytes, {what}");
        }
    }
}
