//! What we send to stock peers, recorded on the way and judged by the rules of the protocol (`afar_interop::wire`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::proxy::{Proxy, Way};
use afar_interop::service::{self, Pattern, Request};
use afar_interop::suite::{Case, Verdict, Weight};
use afar_interop::wire::{self, Seen};
use afs_lab::real::wait::PATIENCE;
use rx::EndpointConfig;
use rx_proto::security::Null;
use tokio::time::sleep;

use crate::sides::{TIMEOUT, bind, expect_outcome, expect_said, failed, soon, stock_client, stock_server};

const REQUESTS: &[Request] = &[
    Request::Echo { n: 0 },
    Request::Echo { n: 100 },
    Request::Echo { n: 1408 },
    Request::Echo { n: 300_000 },
    Request::Source { n: 300_000 },
    Request::Sink { n: 300_000 },
    Request::Abort { code: 5 },
    Request::AbortMid { n: 50_000, code: 6 },
    Request::AbortEarly { n: 50_000, code: 7 },
    Request::Sleep { ms: 2500 },
    Request::SlowRead { n: 200_000, chunk: 5000, ms: 5 },
    Request::SlowWrite { n: 20_000, chunk: 1000, ms: 5 },
    Request::Status { n: 1_000_000 },
];

/// A record is judged for each direction, with and without losses, and with the stock side's largest window.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab, usize, &[&str]) -> Verdict;
    let directions: [(&str, Check); 2] = [("of_our_client", our_client), ("of_our_server", our_server)];
    let conditions: [(&str, usize, &[&str]); 3] = [
        ("nothing_lost", 0, &[]),
        ("one_of_30_lost", 30, &[]),
        ("window_255_one_of_70_lost", 70, &["-W", "255"]),
    ];
    let mut cases = Vec::new();
    for (side, check) in directions {
        for (condition, drop_every, stock) in conditions {
            let lab = Arc::clone(lab);
            let name = format!("facts/{side}/{condition}");
            cases.push(Case::new(name, Weight::Waiting, move || check(&lab, drop_every, stock)));
        }
    }
    cases
}

fn our_client(lab: &Lab, drop_every: usize, stock: &[&str]) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, stock)?;
    let proxy = Proxy::start(network.stock(server.port()), drop_every)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let connection = endpoint.connect(proxy.address(), service::SERVICE, Box::new(Null));
        let pattern = Pattern::default();
        for &request in REQUESTS {
            let made = service::outcome(&connection, &pattern, request);
            expect_outcome(request, &soon("a call", made).await?, &request.outcome())?;
        }
        judge_soon(&proxy, Way::ToServer, drop_every).await
    })
}

fn our_server(lab: &Lab, drop_every: usize, stock: &[&str]) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        service::offer(&endpoint);
        let proxy = Proxy::start(endpoint.local_addr(), drop_every)?;
        for &request in REQUESTS {
            let client = stock_client(lab, &network, proxy.address(), stock, request)?;
            expect_said(request, &client.finish(TIMEOUT)?, &request.outcome())?;
        }
        judge_soon(&proxy, Way::ToClient, drop_every).await
    })
}

/// Waits for the last ACK and the last answer to a ping, which come late from a busy machine.
async fn judge_soon(proxy: &Proxy, ours: Way, drop_every: usize) -> Verdict {
    let until = Instant::now() + PATIENCE;
    loop {
        sleep(Duration::from_millis(300)).await;
        let verdict = judge(proxy, ours, drop_every);
        if verdict.is_ok() || Instant::now() >= until {
            return verdict;
        }
    }
}

fn judge(proxy: &Proxy, ours: Way, drop_every: usize) -> Verdict {
    let seen = wire::judge(&proxy.record(), ours)?;
    let Seen { data, resent, acks, with_holes, .. } = seen;
    let is_lossy = drop_every > 0;
    // Where nothing is lost, what a busy machine is late to acknowledge is sent again: crates/rx-proto/tests/loss.rs counts
    // that in virtual time.
    if data < 400 || acks < 40 || (is_lossy && (resent == 0 || with_holes == 0)) {
        return failed(format!("the record is not what it was made for: {seen:?}"));
    }
    Ok(())
}
