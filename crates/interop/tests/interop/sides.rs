//! The two sides of a case: our endpoint as client or server, and `oafs-peer` as the other one.

use std::time::Duration;

use afar_interop::lab::Lab;
use afar_interop::network::Network;
use afar_interop::process::{self, Finished, Running, Server};
use afar_interop::service::{Outcome, Request};
use afar_interop::suite::{Trouble, Verdict};
use rx::{Endpoint, EndpointConfig};

/// What a call may take on a busy machine. It ends what hangs, and no more.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(150);

/// Our endpoint at our end of the network; to be called in [`Network::at_ours`].
pub(crate) fn bind(network: &Network, config: EndpointConfig) -> Result<Endpoint, Trouble> {
    bind_at(network, 0, config)
}

/// The same at a port that is known already.
pub(crate) fn bind_at(network: &Network, port: u16, config: EndpointConfig) -> Result<Endpoint, Trouble> {
    Ok(Endpoint::bind(network.ours(port), config).map_err(|error| error.to_string())?)
}

/// A stock server of the test service.
pub(crate) fn stock_server(lab: &Lab, network: &Network, options: &[&str]) -> Result<Server, Trouble> {
    stock_server_at(lab, network, 0, options)
}

/// The same at a port that is known already.
pub(crate) fn stock_server_at(
    lab: &Lab,
    network: &Network,
    port: u16,
    options: &[&str],
) -> Result<Server, Trouble> {
    let mut command = network.stock_command(lab.oafs_peer()?);
    command.args(["test-server", "-p", &port.to_string(), "--until-eof"]).args(options);
    Ok(Server::start(&mut command)?)
}

/// A stock client of the test service, started.
pub(crate) fn stock_client(
    lab: &Lab,
    network: &Network,
    server: std::net::SocketAddr,
    options: &[&str],
    request: Request,
) -> Result<Running, Trouble> {
    let mut command = network.stock_command(lab.oafs_peer()?);
    command.args(["test-client", "-s", &server.ip().to_string(), "-p", &server.port().to_string()]);
    if let Outcome::Abort(code) = request.outcome() {
        command.args(["--expect", "abort", &code.to_string()]);
    }
    command.args(options).args(request.arguments());
    Ok(process::start(&mut command)?)
}

/// Whether a stock client says what it should.
pub(crate) fn expect_said(request: Request, finished: &Finished, expected: &Outcome) -> Verdict {
    let said = finished.stdout.trim_end();
    if said == expected.to_string() {
        return Ok(());
    }
    let Finished { status, stderr, took, .. } = finished;
    let status = status.map_or("a signal".to_owned(), |status| format!("status {status}"));
    Err(Trouble::Failed(format!(
        "the stock client's {request:?} gave {said:?} after {took:?} ({status}, {stderr:?}), expected \"{expected}\""
    )))
}

/// Whether an outcome of ours is as it should be.
pub(crate) fn expect_outcome(request: Request, got: &Outcome, expected: &Outcome) -> Verdict {
    if got == expected {
        return Ok(());
    }
    Err(Trouble::Failed(format!("our {request:?} gave \"{got}\", expected \"{expected}\"")))
}

/// Whether something took as long as it has to, and less than a minute more, for which no machine stands still.
pub(crate) fn expect_least(what: &str, took: Duration, least: f64) -> Verdict {
    if (least..least + 60.0).contains(&took.as_secs_f64()) {
        return Ok(());
    }
    failed(format!("{what} took {took:?}, expected {least} s, and no minute more"))
}

/// Fails a case instead of letting it hang.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> Result<T, Trouble> {
    tokio::time::timeout(TIMEOUT, work)
        .await
        .map_err(|_| Trouble::Failed(format!("{what} is not through after {TIMEOUT:?}")))
}

/// Fails a case.
pub(crate) fn failed<T>(message: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Failed(message.into()))
}
