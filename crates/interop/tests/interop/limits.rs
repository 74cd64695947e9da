//! Time limits, and peers that fall silent: who notices what, and when. How long OpenAFS takes was observed (1.8.9): it acts
//! 4 to 14 s after its limits.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use afar_interop::lab::Lab;
use afar_interop::network::{Kind, Network};
use afar_interop::process::Server;
use afar_interop::service::{self, Event, Failure, Outcome, Pattern, Request};
use afar_interop::suite::{Case, Verdict, Weight};
use rx::{CallError, Connection, Endpoint, EndpointConfig};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use tokio::time::sleep;

use crate::sides::{
    TIMEOUT, bind, expect_outcome, expect_said, expect_time, failed, late, soon, stock_client, stock_server,
    thrice,
};

/// The shortest limit that both sides take.
const DEAD: Duration = Duration::from_secs(6);

const DEAD_ONLY: CallLimits = CallLimits { dead: DEAD, silence: None, idle: None, hard: None, stall: None };

const MINUTE: Request = Request::Sleep { ms: 60_000 };

type Check = fn(&Lab) -> Verdict;

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let checks: &[(&str, Check)] = &[
        ("our_call_outlives_its_dead_time_by_pings", our_call_outlives_its_dead_time_by_pings),
        ("stock_call_outlives_its_dead_time_by_pings", stock_call_outlives_its_dead_time_by_pings),
        ("our_call_ends_at_its_hard_limit", our_call_ends_at_its_hard_limit),
        ("our_call_ends_at_its_idle_limit", our_call_ends_at_its_idle_limit),
        ("our_call_ends_at_its_deadline", our_call_ends_at_its_deadline),
        ("our_call_that_is_dropped_is_aborted", our_call_that_is_dropped_is_aborted),
        ("stock_call_ends_at_its_hard_limit", |lab| stock_call_ends_late(lab, "--hard")),
        ("stock_call_ends_at_its_idle_limit", |lab| stock_call_ends_late(lab, "--idle")),
        ("our_client_notices_a_dead_server", our_client_notices_a_dead_server),
        ("our_client_notices_a_dead_server_while_sending", our_client_notices_a_dead_server_while_sending),
        ("our_server_notices_a_dead_client", our_server_notices_a_dead_client),
        ("stock_client_notices_our_dead_server", stock_client_notices_our_dead_server),
        ("our_client_notices_a_closed_port", our_client_notices_a_closed_port),
        ("our_client_notices_a_server_that_was_killed", our_client_notices_a_server_that_was_killed),
        ("our_transfer_survives_a_cut", our_transfer_survives_a_cut),
        ("stock_transfer_survives_a_cut", stock_transfer_survives_a_cut),
        ("our_call_of_no_service_is_refused", our_call_of_no_service_is_refused),
        ("stock_call_of_no_service_is_refused", stock_call_of_no_service_is_refused),
    ];
    let case = |(name, check): &(&str, Check)| {
        let (lab, check) = (Arc::clone(lab), *check);
        thrice(format!("limits/{name}"), Weight::Waiting, move || check(&lab).map_err(late))
    };
    checks.iter().map(case).collect()
}

/// Our client of a stock server.
struct Client {
    endpoint: Endpoint,
    connection: Connection,
    pattern: Pattern,
}

impl Client {
    fn new(
        network: &Network,
        server: &Server,
        limits: CallLimits,
    ) -> Result<Self, afar_interop::suite::Trouble> {
        let endpoint = bind(network, EndpointConfig::default())?;
        let connection = endpoint.connect(network.stock(server.port()), service::SERVICE, Box::new(Null));
        connection.set_limits(limits);
        Ok(Self { endpoint, connection, pattern: Pattern::default() })
    }

    /// Makes a call that has to fail locally with this code, within this many seconds.
    async fn expect_failure(&self, request: Request, code: AbortCode, least: f64, most: f64) -> Verdict {
        let started = Instant::now();
        let made = service::make(&self.connection, &self.pattern, request);
        let result = soon("a call that should fail", made).await?;
        match result {
            Err(Failure::Call(CallError::Failed { code: got, .. })) if got == code => {}
            other => {
                return failed(format!("{request:?} gave {other:?}, expected that we give it up: {code:?}"));
            }
        }
        expect_time(&format!("{request:?}"), started.elapsed(), least, most)
    }

    async fn expect_success(&self, request: Request) -> Verdict {
        let made = service::outcome(&self.connection, &self.pattern, request);
        expect_outcome(request, &soon("a call", made).await?, &request.outcome())
    }
}

fn our_call_outlives_its_dead_time_by_pings(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        client.expect_success(Request::Sleep { ms: 8000 }).await?;
        match client.endpoint.stats().pings_sent {
            5..=20 => Ok(()),
            pings => failed(format!("{pings} pings in 8 s, expected one a second")),
        }
    })
}

fn stock_call_outlives_its_dead_time_by_pings(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        service::offer(&endpoint);
        let request = Request::Sleep { ms: 12_000 };
        let client = stock_client(lab, &network, endpoint.local_addr(), &["--dead", "6"], request)?;
        expect_said(request, &client.finish(TIMEOUT)?, &request.outcome())
    })
}

/// The connection has to be as good as before.
fn our_call_ends_at_its_hard_limit(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let limits = CallLimits { hard: Some(Duration::from_secs(2)), ..DEAD_ONLY };
        let client = Client::new(&network, &server, limits)?;
        client.expect_failure(MINUTE, AbortCode::CALL_TIMEOUT, 1.9, 4.0).await?;
        client.expect_success(Request::Echo { n: 10_000 }).await
    })
}

fn our_call_ends_at_its_idle_limit(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let limits = CallLimits { idle: Some(Duration::from_secs(2)), ..DEAD_ONLY };
        let client = Client::new(&network, &server, limits)?;
        client.expect_failure(MINUTE, AbortCode::CALL_TIMEOUT, 1.9, 4.0).await?;
        // Longer than the limit, but never idle, unless the machine stands still for as long.
        client.connection.set_limits(CallLimits { idle: Some(Duration::from_secs(8)), ..DEAD_ONLY });
        client.expect_success(Request::SlowWrite { n: 240_000, chunk: 4000, ms: 200 }).await
    })
}

fn our_call_ends_at_its_deadline(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        let mut call = client.connection.call().await.map_err(|error| error.to_string())?;
        call.set_timeout(Duration::from_secs(1));
        let started = Instant::now();
        let request = [7u32, 60_000].map(u32::to_be_bytes).concat();
        call.write_all(&request).await.map_err(|error| error.to_string())?;
        call.finish().map_err(|error| error.to_string())?;
        match call.recv().await {
            Err(CallError::DeadlinePassed { .. }) => expect_time("the call", started.elapsed(), 0.9, 2.5)?,
            other => return failed(format!("{other:?} instead of the deadline")),
        }
        drop(call);
        expect_room(&client, started).await
    })
}

fn our_call_that_is_dropped_is_aborted(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        let mut call = client.connection.call().await.map_err(|error| error.to_string())?;
        let request = [2u32, 50_000_000].map(u32::to_be_bytes).concat();
        call.write_all(&request).await.map_err(|error| error.to_string())?;
        call.finish().map_err(|error| error.to_string())?;
        let first = call.recv().await;
        if !matches!(first, Ok(Some(_))) {
            return failed(format!("{first:?} instead of bytes"));
        }
        drop(call);
        expect_room(&client, Instant::now()).await?;
        // The server's thread would send on, were it not for our abort.
        let aborts = client.endpoint.stats().packets_sent[4];
        if aborts == 0 { failed("no abort was sent") } else { Ok(()) }
    })
}

/// A stock server goes on with an aborted call's thread, and keeps its channel busy: there are others.
async fn expect_room(client: &Client, since: Instant) -> Verdict {
    for _ in 0..8 {
        client.expect_success(Request::Echo { n: 2000 }).await?;
    }
    expect_time("eight calls behind an aborted one", since.elapsed(), 0.0, 8.0)
}

/// It sends no abort then.
fn stock_call_ends_late(lab: &Lab, limit: &str) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        service::offer(&endpoint);
        let options = ["--dead", "6", limit, "7", "--expect", "abort", "-3"];
        let client = stock_client(lab, &network, endpoint.local_addr(), &options, MINUTE)?;
        let finished = client.finish(TIMEOUT)?;
        expect_said(MINUTE, &finished, &Outcome::Abort(-3))?;
        expect_time("the call", finished.took, 7.0, 25.0)
    })
}

fn our_client_notices_a_dead_server(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        client.expect_success(Request::Echo { n: 1000 }).await?;
        let call = client.expect_failure(MINUTE, AbortCode::CALL_DEAD, 6.0, 9.5);
        let cut = async {
            sleep(Duration::from_millis(500)).await;
            network.set_cut(true)
        };
        let (call, cut) = tokio::join!(call, cut);
        call.and(cut)?;
        network.set_cut(false)?;
        client.expect_success(Request::Echo { n: 1000 }).await
    })
}

fn our_client_notices_a_dead_server_while_sending(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        let request = Request::Sink { n: 1 << 30 };
        let call = client.expect_failure(request, AbortCode::CALL_DEAD, 6.0, 9.5);
        let cut = async {
            sleep(Duration::from_millis(500)).await;
            network.set_cut(true)
        };
        let (call, cut) = tokio::join!(call, cut);
        call.and(cut)
    })
}

fn our_server_notices_a_dead_client(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let (ended, results) = mpsc::channel();
        let ended = std::sync::Mutex::new(ended);
        endpoint.add_service(service::service(true, DEAD_ONLY, move |event| {
            if let Event::Ended(result) = event {
                let _ = ended.lock().map(|ended| ended.send(result));
            }
        }));
        let request = Request::SlowRead { n: 1 << 30, chunk: 10_000, ms: 20 };
        let client = stock_client(lab, &network, endpoint.local_addr(), &["--dead", "6"], request)?;
        sleep(Duration::from_millis(700)).await;
        network.set_cut(true)?;
        let cut_at = Instant::now();
        let result = tokio::task::spawn_blocking(move || results.recv_timeout(TIMEOUT)).await;
        if !matches!(result, Ok(Ok(Err(rx::Abort(-1))))) {
            return failed(format!("our server's call gave {result:?}, expected that its client is dead"));
        }
        expect_time("noticing it", cut_at.elapsed(), 5.0, 9.5)?;
        let finished = client.finish(TIMEOUT)?;
        expect_said(request, &finished, &Outcome::Abort(-1))
    })
}

fn stock_client_notices_our_dead_server(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        service::offer(&endpoint);
        let options = ["--dead", "6", "--expect", "abort", "-1"];
        let client = stock_client(lab, &network, endpoint.local_addr(), &options, MINUTE)?;
        sleep(Duration::from_millis(700)).await;
        network.set_cut(true)?;
        let finished = client.finish(TIMEOUT)?;
        expect_said(MINUTE, &finished, &Outcome::Abort(-1))?;
        expect_time("noticing it", finished.took, 6.0, 25.0)
    })
}

/// The network says at once that nobody is there.
fn our_client_notices_a_closed_port(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        server.kill();
        client.expect_failure(Request::Echo { n: 10 }, AbortCode::CALL_DEAD, 0.0, 2.0).await
    })
}

/// It is heard of by the next ping, a second later.
fn our_client_notices_a_server_that_was_killed(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        client.expect_success(Request::Echo { n: 10 }).await?;
        let call = client.expect_failure(MINUTE, AbortCode::CALL_DEAD, 0.5, 4.0);
        let kill = async {
            sleep(Duration::from_millis(500)).await;
            server.kill();
        };
        tokio::join!(call, kill).0
    })
}

fn our_transfer_survives_a_cut(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        for request in [Request::Sink { n: 4_000_000 }, Request::Source { n: 4_000_000 }] {
            let (call, cut) = tokio::join!(client.expect_success(request), cut_for_a_while(&network));
            call.and(cut)?;
        }
        Ok(())
    })
}

fn stock_transfer_survives_a_cut(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        service::offer(&endpoint);
        for request in [Request::Sink { n: 4_000_000 }, Request::Source { n: 4_000_000 }] {
            let client = stock_client(lab, &network, endpoint.local_addr(), &[], request)?;
            cut_for_a_while(&network).await?;
            expect_said(request, &client.finish(TIMEOUT)?, &request.outcome())?;
        }
        Ok(())
    })
}

/// Once a transfer is on its way.
async fn cut_for_a_while(network: &Network) -> Verdict {
    sleep(Duration::from_millis(400)).await;
    network.set_cut(true)?;
    sleep(Duration::from_secs(2)).await;
    network.set_cut(false)
}

fn our_call_of_no_service_is_refused(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let address = network.stock(server.port());
        let connection = endpoint.connect(address, ServiceId(4322), Box::new(Null));
        let request = Request::Echo { n: 10 };
        let pattern = Pattern::default();
        let made = service::make(&connection, &pattern, request);
        match soon("a call", made).await? {
            Err(Failure::Call(CallError::Aborted { code: AbortCode::INVALID_OPERATION, .. })) => Ok(()),
            other => failed(format!("{other:?}, expected a refusal")),
        }
    })
}

fn stock_call_of_no_service_is_refused(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let request = Request::Echo { n: 10 };
        let client =
            stock_client(lab, &network, endpoint.local_addr(), &["--expect", "abort", "-2"], request)?;
        let finished = client.finish(TIMEOUT)?;
        expect_said(request, &finished, &Outcome::Abort(-2))?;
        expect_time("the refusal", finished.took, 0.0, 3.0)
    })
}
