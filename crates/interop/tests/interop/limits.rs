//! Time limits, and peers that fall silent: who notices what, and when. How long OpenAFS takes was observed (1.8.9): it acts
//! 4 to 14 s after its limits.

use std::sync::Arc;
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
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::sides::{
    TIMEOUT, bind, expect_least, expect_outcome, expect_said, failed, soon, stock_client, stock_server,
};

/// The shortest limit that both sides take.
const DEAD: Duration = Duration::from_secs(6);

const DEAD_ONLY: CallLimits = CallLimits { dead: DEAD, silence: None, idle: None, hard: None, stall: None };

/// For calls that are not to end by a limit: longer than a busy machine stands still, and than [`TIMEOUT`] where only the network's word
/// that nobody is there can end a call.
const ENDLESS: CallLimits = CallLimits { dead: Duration::from_secs(180), ..DEAD_ONLY };

const MINUTE: Request = Request::Sleep { ms: 60_000 };

/// A dead time for which no machine stands still, and a call that takes longer.
const OUTLIVED: Duration = Duration::from_secs(30);
const OUTLIVES: Request = Request::Sleep { ms: 40_000 };

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
        Case::new(format!("limits/{name}"), Weight::Waiting, move || check(&lab))
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

    /// Makes a call that has to fail locally with this code, and not before so many seconds.
    async fn expect_failure(&self, request: Request, code: AbortCode, least: f64) -> Verdict {
        let started = Instant::now();
        let made = service::make(&self.connection, &self.pattern, request);
        let result = soon("a call that should fail", made).await?;
        match result {
            Err(Failure::Call(CallError::Failed { code: got, .. })) if got == code => {}
            other => {
                return failed(format!("{request:?} gave {other:?}, expected that we give it up: {code:?}"));
            }
        }
        expect_least(&format!("{request:?}"), started.elapsed(), least)
    }

    /// Makes a call that no limit ends.
    async fn expect_success(&self, request: Request) -> Verdict {
        self.connection.set_limits(ENDLESS);
        self.expect_success_within_limits(request).await
    }

    async fn expect_success_within_limits(&self, request: Request) -> Verdict {
        let made = service::outcome(&self.connection, &self.pattern, request);
        expect_outcome(request, &soon("a call", made).await?, &request.outcome())
    }
}

fn our_call_outlives_its_dead_time_by_pings(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, CallLimits { dead: OUTLIVED, ..DEAD_ONLY })?;
        client.expect_success_within_limits(OUTLIVES).await?;
        // The server pings every two seconds, and is pinged only by who waits for less: a sixth of the dead time.
        let client =
            Client::new(&network, &server, CallLimits { dead: Duration::from_secs(10), ..DEAD_ONLY })?;
        client.expect_success_within_limits(Request::Sleep { ms: 8000 }).await?;
        match client.endpoint.stats().pings_sent {
            1..=20 => Ok(()),
            pings => failed(format!("{pings} pings in 8 s, expected one in less than 2 s")),
        }
    })
}

fn stock_call_outlives_its_dead_time_by_pings(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        endpoint.add_service(service::service(true, ENDLESS, |_| ()));
        let dead = OUTLIVED.as_secs().to_string();
        let client = stock_client(lab, &network, endpoint.local_addr(), &["--dead", &dead], OUTLIVES)?;
        expect_said(OUTLIVES, &client.finish(TIMEOUT)?, &OUTLIVES.outcome())
    })
}

/// The connection has to be as good as before.
fn our_call_ends_at_its_hard_limit(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let limits = CallLimits { hard: Some(Duration::from_secs(2)), ..DEAD_ONLY };
        let client = Client::new(&network, &server, limits)?;
        client.expect_failure(MINUTE, AbortCode::CALL_TIMEOUT, 1.9).await?;
        client.expect_success(Request::Echo { n: 10_000 }).await
    })
}

fn our_call_ends_at_its_idle_limit(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let limits = CallLimits { idle: Some(Duration::from_secs(2)), ..DEAD_ONLY };
        let client = Client::new(&network, &server, limits)?;
        client.expect_failure(MINUTE, AbortCode::CALL_TIMEOUT, 1.9).await?;
        // Longer than the limit, but never idle.
        client.connection.set_limits(CallLimits { idle: Some(Duration::from_secs(30)), ..ENDLESS });
        client.expect_success_within_limits(Request::SlowWrite { n: 240_000, chunk: 1200, ms: 200 }).await
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
            Err(CallError::DeadlinePassed { .. }) => expect_least("the call", started.elapsed(), 0.9)?,
            other => return failed(format!("{other:?} instead of the deadline")),
        }
        drop(call);
        expect_room(&client).await?;
        // Its thread at the server sleeps for a minute.
        if started.elapsed() < Duration::from_secs(55) {
            return Ok(());
        }
        failed("calls had to wait for one that was aborted")
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
        expect_room(&client).await?;
        // The server's thread would send on, were it not for our abort.
        let aborts = client.endpoint.stats().packets_sent[4];
        if aborts == 0 { failed("no abort was sent") } else { Ok(()) }
    })
}

/// A stock server goes on with an aborted call's thread, and keeps its channel busy: there are others.
async fn expect_room(client: &Client) -> Verdict {
    for _ in 0..8 {
        client.expect_success(Request::Echo { n: 2000 }).await?;
    }
    Ok(())
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
        expect_least("the call", finished.took, 7.0)
    })
}

fn our_client_notices_a_dead_server(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, DEAD_ONLY)?;
        client.expect_success(Request::Echo { n: 1000 }).await?;
        client.connection.set_limits(DEAD_ONLY);
        let call = client.expect_failure(MINUTE, AbortCode::CALL_DEAD, 6.0);
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
        let call = client.expect_failure(request, AbortCode::CALL_DEAD, 6.0);
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
        let (tell, mut events) = mpsc::unbounded_channel();
        endpoint.add_service(service::service(true, DEAD_ONLY, move |event| {
            let _ = tell.send(event);
        }));
        let request = Request::SlowRead { n: 1 << 30, chunk: 10_000, ms: 20 };
        let client = stock_client(lab, &network, endpoint.local_addr(), &["--dead", "6"], request)?;
        soon("the call", events.recv()).await?;
        sleep(Duration::from_millis(500)).await;
        let cut_at = Instant::now();
        network.set_cut(true)?;
        match soon("the call without its client", events.recv()).await? {
            Some(Event::Ended(Err(rx::Abort(-1)))) => {}
            other => {
                return failed(format!("our server's call gave {other:?}, expected that its client is dead"));
            }
        }
        expect_least("noticing it", cut_at.elapsed(), 5.0)?;
        let finished = client.finish(TIMEOUT)?;
        expect_said(request, &finished, &Outcome::Abort(-1))
    })
}

fn stock_client_notices_our_dead_server(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Long)?;
    network.at_ours(async || {
        let endpoint = bind(&network, EndpointConfig::default())?;
        let (tell, mut events) = mpsc::unbounded_channel();
        endpoint.add_service(service::service(true, ENDLESS, move |event| {
            let _ = tell.send(event);
        }));
        let options = ["--dead", "6", "--expect", "abort", "-1"];
        let client = stock_client(lab, &network, endpoint.local_addr(), &options, MINUTE)?;
        soon("the call", events.recv()).await?;
        sleep(Duration::from_millis(500)).await;
        network.set_cut(true)?;
        let finished = client.finish(TIMEOUT)?;
        expect_said(MINUTE, &finished, &Outcome::Abort(-1))?;
        expect_least("noticing it", finished.took, 6.0)
    })
}

/// The network says at once that nobody is there.
fn our_client_notices_a_closed_port(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, ENDLESS)?;
        server.kill();
        client.expect_failure(Request::Echo { n: 10 }, AbortCode::CALL_DEAD, 0.0).await
    })
}

/// It is heard of by the next ping, half a minute later.
fn our_client_notices_a_server_that_was_killed(lab: &Lab) -> Verdict {
    let network = Network::new(lab, Kind::Loopback)?;
    let server = stock_server(lab, &network, &[])?;
    network.at_ours(async || {
        let client = Client::new(&network, &server, ENDLESS)?;
        client.expect_success(Request::Echo { n: 10 }).await?;
        let call = client.expect_failure(MINUTE, AbortCode::CALL_DEAD, 0.5);
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
        endpoint.add_service(service::service(true, ENDLESS, |_| ()));
        for request in [Request::Sink { n: 4_000_000 }, Request::Source { n: 4_000_000 }] {
            let client = stock_client(lab, &network, endpoint.local_addr(), &["--dead", "120"], request)?;
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
        expect_said(request, &finished, &Outcome::Abort(-2))
    })
}
