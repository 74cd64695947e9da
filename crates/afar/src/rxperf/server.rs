//! The serving side of rxperf: binds the port and waits for its end. The service itself is the library's.

use super::Server;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Listens until SIGTERM or SIGINT.
pub(super) async fn run(options: &Server) -> Result<ExitCode, String> {
    let signals = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let endpoint = super::bind(SocketAddr::new(options.bind, options.port), &options.transport)?;
    let offered = super::security::offered(&endpoint, options.transport.keys.as_deref())?;
    endpoint.add_service(::rxperf::config(offered));
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {}", endpoint.local_addr().port()).and_then(|()| out.flush());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    endpoint.shut_down();
    Ok(ExitCode::SUCCESS)
}
