//! What arrives at a recorder of the `metrics` facade: names, units, meanings and values.
#![expect(clippy::disallowed_methods, reason = "real sockets take real time")]

use crate::support;
use std::time::Duration;

use crate::support::recorder::Kept;
use crate::support::{ECHO, bind_with, connect, echo, service, small_packets, soon};
use metrics::Unit;
use rx::{Abort, EndpointConfig, ServerCall, ServiceConfig, WeakEndpoint};
use rx_proto::ids::ServiceId;

/// Published by the test alone, so that it knows when.
fn quiet() -> EndpointConfig {
    EndpointConfig { publish_every: None, ..small_packets() }
}

const SLOW: ServiceId = ServiceId(2);
/// Long enough that no wait on a busy machine is taken for it.
const SLOW_TIME: Duration = Duration::from_secs(3);
const REFUSING: ServiceId = ServiceId(3);

/// Begins its time when another call waits for the handler: however late that call comes, it waits for all of it.
async fn slow(endpoint: WeakEndpoint, mut call: ServerCall) -> Result<(), Abort> {
    while endpoint.upgrade().is_some_and(|endpoint| endpoint.metrics().calls_waited == 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(SLOW_TIME).await;
    call.write_all(b"late").await.map_err(support::abort)
}

async fn refuse(_: ServerCall) -> Result<(), Abort> {
    Err(Abort(17))
}

#[tokio::test]
async fn calls_arrive_as_counters_and_histograms_with_role_service_and_result() {
    let kept = Kept::default();
    let _guard = metrics::set_default_local_recorder(&kept);
    let server = bind_with(quiet());
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    let endpoint = server.downgrade();
    let slow = ServiceConfig::new(service(SLOW), move |call| slow(endpoint.clone(), call));
    server.add_service(ServiceConfig { max_calls: 1, ..slow });
    server.add_service(ServiceConfig::new(service(REFUSING), refuse));
    let client = bind_with(quiet());

    let connection = connect(&client, &server, ECHO);
    for _ in 0..3 {
        let mut call = soon(connection.call()).await.unwrap();
        soon(call.write_all(&[7; 100_000])).await.unwrap();
        call.finish().unwrap();
        assert_eq!(soon(call.read_to_end(usize::MAX)).await.unwrap().len(), 100_000);
    }
    let refused = connect(&client, &server, REFUSING);
    let mut call = soon(refused.call()).await.unwrap();
    call.finish().unwrap();
    soon(call.recv()).await.unwrap_err();
    drop(call);
    let slow = connect(&client, &server, SLOW);
    let (mut first, mut second) = (soon(slow.call()).await.unwrap(), soon(slow.call()).await.unwrap());
    for call in [&mut first, &mut second] {
        call.finish().unwrap();
    }
    for call in [&mut first, &mut second] {
        soon(call.read_to_end(10)).await.unwrap();
    }
    drop((first, second));
    let abandoned = soon(connection.call()).await.unwrap();
    drop(abandoned);
    server.shut_down();
    client.shut_down();

    assert_eq!(kept.number("rx_calls_ended result=ok role=client service=1"), 3.0);
    assert_eq!(kept.number("rx_calls_ended result=ok role=server service=1"), 3.0);
    assert_eq!(kept.number("rx_calls_ended result=aborted role=client service=1"), 1.0, "nobody wanted it");
    assert_eq!(kept.number("rx_calls_ended result=aborted_by_peer role=client service=3"), 1.0);
    assert_eq!(kept.number("rx_calls_ended result=aborted role=server service=3"), 1.0);
    assert_eq!(kept.samples("rx_call_seconds result=ok role=client service=1").len(), 3);
    let slow = kept.samples("rx_call_seconds result=ok role=server service=2");
    assert!(slow.len() == 2 && slow.iter().all(|s| (3.0..60.0).contains(s)), "{slow:?}");
    let mut waits = kept.samples("rx_handler_wait_seconds service=2");
    waits.sort_by(f64::total_cmp);
    assert!(
        waits.len() == 2 && waits[0] < 3.0 && waits[1] >= 3.0,
        "the second waited for the first: {waits:?}"
    );
    assert_eq!(kept.samples("rx_send_wait_seconds role=client service=1").len(), 3);
    let rtt = kept.samples("rx_rtt_seconds role=client service=1");
    assert!(!rtt.is_empty() && rtt.iter().all(|s| (1e-6..10.0).contains(s)), "{rtt:?}");
}

#[tokio::test]
async fn counters_arrive_as_what_was_added_and_gauges_as_what_is_there() {
    let kept = Kept::default();
    let _guard = metrics::set_default_local_recorder(&kept);
    let server = bind_with(quiet());
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    let client = bind_with(quiet());
    let connection = connect(&client, &server, ECHO);
    for round in 1..=2u32 {
        let mut call = soon(connection.call()).await.unwrap();
        soon(call.write_all(&[1; 500_000])).await.unwrap();
        call.finish().unwrap();
        soon(call.read_to_end(usize::MAX)).await.unwrap();
        assert_eq!(
            kept.number("rx_bytes_written"),
            f64::from(round - 1) * 1e6,
            "nothing before it is published"
        );
        client.publish_metrics();
        server.publish_metrics();
        assert_eq!(kept.number("rx_bytes_written"), f64::from(round) * 1e6, "both ends' bytes, added up");
        assert_eq!(kept.number("rx_connections"), 2.0);
    }
    server.shut_down();
    client.shut_down();
    let (stats, counts) = ([client.stats(), server.stats()], [client.metrics(), server.metrics()]);
    let sum = |of: fn(&rx_proto::stats::Stats) -> u64| stats.iter().map(of).sum::<u64>() as f64;
    assert_eq!(kept.number("rx_packets_sent type=data"), sum(|s| s.packets_sent[1]));
    assert_eq!(kept.number("rx_packets_read type=ack"), sum(|s| s.packets_read[2]));
    assert_eq!(kept.number("rx_data_resent"), sum(|s| s.data_resent));
    assert_eq!(kept.number("rx_calls"), 4.0);
    let sent = counts.iter().map(|m| m.bytes_sent).sum::<u64>() as f64;
    assert!(sent > 2e6);
    assert_eq!(kept.number("rx_bytes_sent"), sent);
    for gauge in ["rx_connections", "rx_receive_buffer", "rx_calls_running"] {
        assert_eq!(kept.number(gauge), 0.0, "{gauge} of endpoints that are shut down");
    }
}

#[tokio::test]
async fn every_metric_has_a_unit_and_a_meaning() {
    let kept = Kept::default();
    let _guard = metrics::set_default_local_recorder(&kept);
    let server = bind_with(quiet());
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    server.publish_metrics();
    let values = kept.0.lock().unwrap();
    let unit = |name: &str| values.described.get(name).and_then(|(unit, _)| *unit);
    assert_eq!(unit("rx_kernel_dropped"), Some(Unit::Count));
    assert_eq!(unit("rx_bytes_read"), Some(Unit::Bytes));
    assert_eq!(unit("rx_receive_queue"), Some(Unit::Bytes));
    assert_eq!(unit("rx_call_seconds"), Some(Unit::Seconds));
    for (name, (unit, meaning)) in &values.described {
        assert!(unit.is_some() && meaning.ends_with('.'), "{name}: {meaning}");
    }
    for key in values.numbers.keys() {
        let name = key.split(' ').next().unwrap();
        assert!(values.described.contains_key(name), "{name} is not described");
    }
}

/// The page of the metrics is read by people who set up dashboards: it has to have all names.
#[tokio::test]
async fn the_documentation_has_every_name() {
    let kept = Kept::default();
    let _guard = metrics::set_default_local_recorder(&kept);
    let _server = bind_with(quiet());
    let page = include_str!("../../../docs/seeing.md");
    let names: Vec<String> = kept.0.lock().unwrap().described.keys().cloned().collect();
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/seeing.md lacks {name}");
    }
}

#[tokio::test]
async fn counters_are_published_by_themselves() {
    let kept = Kept::default();
    let _guard = metrics::set_default_local_recorder(&kept);
    let every = Some(Duration::from_millis(20));
    let server = bind_with(EndpointConfig { publish_every: every, ..small_packets() });
    server.add_service(ServiceConfig::new(service(ECHO), echo));
    let client = bind_with(quiet());
    let mut call = soon(connect(&client, &server, ECHO).call()).await.unwrap();
    call.finish().unwrap();
    soon(call.read_to_end(1)).await.unwrap();
    let arrived = async {
        while kept.number("rx_calls_served") < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(arrived).await;
}
