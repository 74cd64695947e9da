//! The serving side of rxperf: binds the port and waits for its end. The service itself is the library's.

use super::Server;
use rx_proto::security::Null;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// Listens until SIGTERM or SIGINT.
pub(super) async fn run(options: &Server) -> Result<ExitCode, String> {
    let signals = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
    let (mut terminate, mut interrupt) =
        (signals(SignalKind::terminate())?, signals(SignalKind::interrupt())?);
    let endpoint = super::bind(SocketAddr::new(options.bind, options.port), &options.transport)?;
    endpoint.add_service(::rxperf::config(vec![Arc::new(Null)]));
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {}", endpoint.local_addr().port()).and_then(|()| out.flush());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    endpoint.shut_down();
    Ok(ExitCode::SUCCESS)
}
