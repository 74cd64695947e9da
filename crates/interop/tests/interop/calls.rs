//! Calls of all kinds and sizes, each in both directions: a table, and one `check` for a row of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::service::{self, Event, Failure, Outcome, Pattern, Request};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use rx::{EndpointConfig, PeerLimits};
use rx_proto::config::{CallLimits, Config};
use rx_proto::security::Null;

use crate::sides::{
    TIMEOUT, bind, expect_least, expect_outcome, expect_said, failed, soon, stock_client, stock_server,
};

use Kind::{Long, Loopback, Lossy};
use Request::{Abort, AbortEarly, AbortMid, Echo, Raw, Sink, Sleep, SlowRead, SlowWrite, Source, Status};

/// A row: these requests, in both directions, over each of these networks.
struct Row {
    name: &'static str,
    networks: &'static [Kind],
    directions: &'static [Direction],
    /// One after the other.
    requests: &'static [Request],
    /// Callers at once on one connection, and calls of each caller.
    callers: u32,
    times: u32,
    /// Further options of the stock side.
    stock: &'static [&'static str],
    ours: Ours,
    /// Seconds that all of a request's calls have to take at least.
    least: f64,
    /// Seconds that they would take if they waited for each other: far more than they take on a busy machine.
    most: f64,
}

/// Which side is the client.
#[derive(Clone, Copy)]
enum Direction {
    OurCalls,
    StockCalls,
}

use Direction::{OurCalls, StockCalls};

/// How our side is set up.
#[derive(Clone, Copy)]
struct Ours {
    checks_reach: bool,
    window: Option<u32>,
    announces: bool,
    shards: Option<usize>,
}

const OURS: Ours = Ours { checks_reach: true, window: None, announces: true, shards: None };

const ROW: Row = Row {
    name: "",
    networks: &[Loopback],
    directions: &[OurCalls, StockCalls],
    requests: &[],
    callers: 1,
    times: 1,
    stock: &[],
    ours: OURS,
    least: 0.0,
    most: f64::INFINITY,
};

const MB10: u32 = 10_000_000;
const EVERYWHERE: &[Kind] = &[Loopback, Long];

/// Sizes around those of packets: of the 1416 bytes in the first one, 8 are command and argument.
const EDGES: &[Request] = &[
    Echo { n: 0 },
    Echo { n: 1 },
    Echo { n: 1403 },
    Echo { n: 1404 },
    Echo { n: 1407 },
    Echo { n: 1408 },
    Echo { n: 1409 },
    Echo { n: 1416 },
    Echo { n: 2824 },
    Echo { n: 2825 },
    Echo { n: 4 * 1416 },
    Echo { n: 65_536 },
];

/// What stock peers do by default, over loopback and a long line, then what options of either side change.
const ROWS: &[Row] = &[
    Row { name: "bulk_source", networks: EVERYWHERE, requests: &[Source { n: MB10 }], ..ROW },
    Row { name: "bulk_sink", networks: EVERYWHERE, requests: &[Sink { n: MB10 }], ..ROW },
    Row { name: "bulk_echo", requests: &[Echo { n: MB10 }], ..ROW },
    Row { name: "sizes_of_packets", requests: EDGES, ..ROW },
    Row {
        name: "empty_streams",
        requests: &[Source { n: 0 }, Sink { n: 0 }, Abort { code: 0 }],
        times: 3,
        ..ROW
    },
    Row { name: "small_calls_in_a_row", requests: &[Echo { n: 100 }], times: 2000, ..ROW },
    Row { name: "small_calls_in_a_row", networks: &[Long], requests: &[Echo { n: 100 }], times: 100, ..ROW },
    Row {
        name: "an_abort_at_once",
        networks: EVERYWHERE,
        requests: &[Abort { code: 17 }, Abort { code: -455 }, Abort { code: i32::MIN }],
        times: 5,
        ..ROW
    },
    Row {
        name: "an_abort_in_mid_reply",
        networks: EVERYWHERE,
        requests: &[AbortMid { n: 100, code: 5 }, AbortMid { n: 1_000_000, code: -5 }],
        times: 3,
        ..ROW
    },
    Row {
        name: "an_abort_while_the_client_sends",
        networks: EVERYWHERE,
        requests: &[AbortEarly { n: 10, code: 6 }, AbortEarly { n: 500_000, code: 7 }],
        times: 2,
        ..ROW
    },
    Row { name: "commands_that_are_refused", requests: &[Raw(99), Raw(1), Raw(9)], ..ROW },
    Row { name: "calls_at_once_4", requests: &[Echo { n: 200_000 }], callers: 4, times: 5, ..ROW },
    Row { name: "calls_at_once_5", requests: &[Echo { n: 20_000 }], callers: 5, times: 50, ..ROW },
    Row { name: "calls_at_once_9", requests: &[Source { n: 50_000 }], callers: 9, times: 20, ..ROW },
    Row {
        name: "calls_at_once_9",
        networks: &[Long],
        requests: &[Echo { n: 50_000 }],
        callers: 9,
        times: 3,
        ..ROW
    },
    // Four at a time make three rounds of nine calls, and two of five.
    Row {
        name: "four_at_a_time_9",
        requests: &[Sleep { ms: 10_000 }],
        callers: 9,
        least: 30.0,
        most: 90.0,
        ..ROW
    },
    Row {
        name: "four_at_a_time_5",
        requests: &[Sleep { ms: 15_000 }],
        callers: 5,
        least: 30.0,
        most: 75.0,
        ..ROW
    },
    Row {
        name: "a_slow_reader",
        networks: EVERYWHERE,
        requests: &[SlowRead { n: 1_000_000, chunk: 20_000, ms: 20 }],
        least: 1.0,
        ..ROW
    },
    Row {
        name: "a_slow_writer",
        networks: EVERYWHERE,
        requests: &[SlowWrite { n: 50_000, chunk: 1000, ms: 20 }],
        least: 1.0,
        ..ROW
    },
    Row { name: "the_status", networks: EVERYWHERE, requests: &[Status { n: 300_000 }], ..ROW },
    Row {
        name: "without_check_reach",
        networks: EVERYWHERE,
        requests: &[Echo { n: 100 }, Echo { n: 100_000 }],
        stock: &["--no-check-reach"],
        ours: Ours { checks_reach: false, ..OURS },
        ..ROW
    },
    Row {
        name: "stock_window_255",
        networks: EVERYWHERE,
        requests: &[Source { n: MB10 }, Sink { n: MB10 }],
        stock: &["-W", "255"],
        ..ROW
    },
    Row {
        name: "stock_window_16",
        networks: EVERYWHERE,
        requests: &[Source { n: 500_000 }, Sink { n: 500_000 }],
        stock: &["-W", "16"],
        ..ROW
    },
    // For what it sends only: it offers 16 at first all the same, and ends a call in which more than 8 come at once.
    Row {
        name: "stock_window_8",
        networks: EVERYWHERE,
        directions: &[OurCalls],
        requests: &[Source { n: 500_000 }],
        stock: &["-W", "8"],
        ..ROW
    },
    Row {
        name: "stock_window_8",
        networks: EVERYWHERE,
        directions: &[StockCalls],
        requests: &[Sink { n: 500_000 }],
        stock: &["-W", "8"],
        ..ROW
    },
    Row {
        name: "our_window_4",
        networks: EVERYWHERE,
        requests: &[Echo { n: 300_000 }],
        ours: Ours { window: Some(4), ..OURS },
        ..ROW
    },
    Row { name: "stock_without_jumbograms", requests: &[Echo { n: 1_000_000 }], stock: &["-j"], ..ROW },
    Row { name: "stock_with_small_packets", requests: &[Echo { n: 300_000 }], stock: &["-m", "1000"], ..ROW },
    Row {
        name: "without_the_announcement",
        requests: &[Echo { n: 1_000_000 }],
        ours: Ours { announces: false, ..OURS },
        ..ROW
    },
    Row {
        name: "with_three_shards",
        requests: &[Echo { n: 100_000 }],
        callers: 8,
        times: 5,
        stock: &["--connections", "2"],
        ours: Ours { shards: Some(3), ..OURS },
        ..ROW
    },
    Row {
        name: "twenty_at_a_time",
        directions: &[StockCalls],
        requests: &[Sleep { ms: 10_000 }],
        callers: 20,
        stock: &["--connections", "5"],
        least: 10.0,
        // On one connection.
        most: 50.0,
        ..ROW
    },
    Row {
        name: "bulk",
        networks: &[Lossy],
        requests: &[Source { n: 300_000 }, Sink { n: 300_000 }, Echo { n: 300_000 }],
        ..ROW
    },
    // A lost request of a stock client, or a lost reply of a stock server, costs 4 to 10 s each.
    Row { name: "small_calls_in_a_row", networks: &[Lossy], requests: &[Echo { n: 100 }], times: 40, ..ROW },
    Row {
        name: "calls_at_once_9",
        networks: &[Lossy],
        requests: &[Echo { n: 20_000 }],
        callers: 9,
        times: 3,
        ..ROW
    },
    Row {
        name: "aborts",
        networks: &[Lossy],
        requests: &[Abort { code: 17 }, AbortMid { n: 100_000, code: 5 }, AbortEarly { n: 100_000, code: 6 }],
        times: 3,
        ..ROW
    },
    Row {
        name: "stock_window_255",
        networks: &[Lossy],
        requests: &[Source { n: 1_000_000 }, Sink { n: 1_000_000 }],
        stock: &["-W", "255"],
        ..ROW
    },
];

/// All rows on all of their networks in both directions.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let mut cases = Vec::new();
    let many = Arc::clone(lab);
    let name = "our_calls/loopback/twenty_at_a_time";
    cases.push(Case::new(name, Weight::Waiting, move || check_many_connections(&many)));
    for row in ROWS {
        for &kind in row.networks {
            let weight = if kind == Loopback && row.least == 0.0 { Weight::Busy } else { Weight::Waiting };
            for direction in row.directions {
                let (direction, check): (_, fn(&Lab, Kind, &Row) -> Verdict) = match direction {
                    OurCalls => ("our_calls", check_our_calls),
                    StockCalls => ("stock_calls", check_stock_calls),
                };
                let lab = Arc::clone(lab);
                let name = format!("{direction}/{}/{}", kind.name(), row.name);
                cases.push(Case::new(name, weight, move || check(&lab, kind, row)));
            }
        }
    }
    cases
}

impl Row {
    fn config(&self) -> EndpointConfig {
        let usual = Config::default();
        let proto = Config {
            initial_window: self.ours.window.unwrap_or(usual.initial_window),
            announce: self.ours.announces,
            ..usual
        };
        EndpointConfig { proto, shards: self.ours.shards, ..EndpointConfig::default() }
    }

    fn expect_time(&self, request: Request, took: Duration) -> Verdict {
        if took.as_secs_f64() >= self.most {
            return failed(format!("{request:?}: the calls took {took:?}, as if each waited for others"));
        }
        expect_least(&format!("{request:?}"), took, self.least)
    }
}

/// Our client, stock server.
fn check_our_calls(lab: &Lab, kind: Kind, row: &Row) -> Verdict {
    let network = Network::shared(lab, kind)?;
    let server = stock_server(lab, &network, row.stock)?;
    network.at_ours(async || {
        let endpoint = bind(&network, row.config())?;
        let connection = endpoint.connect(network.stock(server.port()), service::SERVICE, Box::new(Null));
        let pattern = Pattern::default();
        for &request in row.requests {
            let started = endpoint.now();
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..row.callers {
                let (connection, pattern, times) = (connection.clone(), pattern.clone(), row.times);
                callers.spawn(async move {
                    for _ in 0..times {
                        let got = service::outcome(&connection, &pattern, request).await;
                        expect_outcome(request, &got, &request.outcome())?;
                    }
                    Ok::<_, Trouble>(())
                });
            }
            for result in soon(&format!("{request:?}"), callers.join_all()).await? {
                result?;
            }
            row.expect_time(request, endpoint.now().since(started))?;
        }
        let stats = endpoint.stats();
        if stats.bogus_packets > 0 || stats.packets_read[2] == 0 {
            return failed(format!("odd statistics: {stats:?}"));
        }
        Ok(())
    })
}

/// A [`rx::Peer`] makes the connections that it needs.
fn check_many_connections(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Loopback)?;
    let server = stock_server(lab, &network, &["--threads", "30"])?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let address = network.stock(server.port());
        let peer = endpoint.peer(address, service::SERVICE, PeerLimits::default(), || Box::new(Null));
        let pattern = Pattern::default();
        let started = endpoint.now();
        let request = Sleep { ms: 10_000 };
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (peer, pattern) = (peer.clone(), pattern.clone());
            callers.spawn(async move { service::fulfil(peer.call().await?, &pattern, request).await });
        }
        for result in soon("twenty calls", callers.join_all()).await? {
            result.map_err(|failure: Failure| format!("{failure:?}"))?;
        }
        let row = Row { least: 10.0, most: 50.0, ..ROW };
        row.expect_time(request, endpoint.now().since(started))
    })
}

/// Stock client, our server.
fn check_stock_calls(lab: &Lab, kind: Kind, row: &Row) -> Verdict {
    let network = Network::shared(lab, kind)?;
    network.at_ours(async || {
        let endpoint = bind(&network, row.config())?;
        let served = Arc::new(AtomicU32::new(0));
        let limits = CallLimits::default();
        endpoint.add_service(service::service(row.ours.checks_reach, limits, {
            let served = Arc::clone(&served);
            move |event| {
                served.fetch_add(u32::from(matches!(event, Event::Ended(_))), Ordering::SeqCst);
            }
        }));
        // Those options of the table that only servers have.
        let options: Vec<&str> = row.stock.iter().copied().filter(|o| *o != "--no-check-reach").collect();
        let (callers, times) = (row.callers.to_string(), row.times.to_string());
        let options = [&options[..], &["--parallel", &callers, "--times", &times]].concat();
        for &request in row.requests {
            let client = stock_client(lab, &network, endpoint.local_addr(), &options, request)?;
            let finished = client.finish(TIMEOUT)?;
            let expected = request.outcome().times(row.callers * row.times);
            expect_said(request, &finished, &expected)?;
            row.expect_time(request, finished.took)?;
        }
        let expected = row.callers * row.times * row.requests.len() as u32;
        let served = served.load(Ordering::SeqCst);
        if served < expected || (served > expected && kind == Loopback) {
            return failed(format!("{served} calls were served, expected {expected}"));
        }
        let stats = endpoint.stats();
        if stats.bogus_packets > 0 {
            return failed(format!("odd statistics: {stats:?}"));
        }
        if let (Outcome::Ok { .. }, [request]) = (row.requests[0].outcome(), row.requests)
            && stats.calls_failed > 0
        {
            return failed(format!("{request:?} succeeded, and our server saw {} fail", stats.calls_failed));
        }
        Ok(())
    })
}
