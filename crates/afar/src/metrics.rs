//! Metrics of a client, for Prometheus: how full the shares of its memory are, and what its transport counts. Those of servers come
//! from `afs-server`.

use afs_client::Client;
use afs_fuse::Mount;
use afs_server::exporter::{Exporter, Page};
use afs_server::memory::Gauges;
use std::net::SocketAddr;
use std::sync::Arc;

/// Something that is to be done before metrics are shown.
pub(crate) type Publish = Arc<dyn Fn() + Send + Sync>;

const GAUGES: Gauges = Gauges {
    used: (
        "afs_client_memory_bytes",
        "Memory that the client uses, by share. For a table, this is the number of its entries times their usual size.",
    ),
    limit: ("afs_client_memory_limit_bytes", "How much memory the client may use, by share."),
};

/// The gauges of users' tokens: name, meaning.
const TOKENS: (&str, &str) = (
    "afs_client_tokens",
    "Tokens that users have given to the client, by state. An ended token has expired, or a server has refused it.",
);

/// The gauges of what waits for servers: name, unit, meaning.
const WAITING: [(&str, metrics::Unit, &str); 4] = [
    (
        "afs_client_waiting_changes",
        metrics::Unit::Count,
        "Changes of names and attributes that no server has yet.",
    ),
    ("afs_client_waiting_bytes", metrics::Unit::Bytes, "Written data that no server has yet."),
    (
        "afs_client_waiting_seconds",
        metrics::Unit::Seconds,
        "Age of the oldest change, or of the oldest data of a closed file, that no server has yet; 0 if there is none.",
    ),
    (
        "afs_client_conflicts",
        metrics::Unit::Count,
        "Files with written data that could not be stored and were put aside.",
    ),
];

/// The exporter, installed if an address was given: to be called before anything counts.
pub(crate) fn begin(address: Option<SocketAddr>) -> Option<(Exporter, SocketAddr)> {
    let address = address?;
    let exporter = Exporter::default();
    exporter.install();
    Some((exporter, address))
}

/// Answers requests for metrics from now on.
///
/// # Errors
///
/// When the address cannot be listened on; says what to do.
pub(crate) async fn serve(
    exporter: Option<(Exporter, SocketAddr)>,
    before: Vec<Publish>,
    pages: Vec<Page>,
) -> Result<(), String> {
    let Some((exporter, address)) = exporter else { return Ok(()) };
    let before = Arc::new(move || before.iter().for_each(|publish| publish()));
    let listen = exporter.listen(address, before, pages).await;
    let (address, serve) = listen.map_err(|error| {
        format!("metrics: afar cannot listen on {address}: {error}; choose another port with --metrics")
    })?;
    tracing::info!(%address, "metrics can be fetched");
    tokio::spawn(serve);
    Ok(())
}

/// Publishes what a mounted client has.
pub(crate) fn of_client(client: &Client, mount: &Mount) -> Publish {
    GAUGES.describe();
    metrics::describe_gauge!(TOKENS.0, metrics::Unit::Count, TOKENS.1);
    for (name, unit, meaning) in WAITING {
        metrics::describe_gauge!(name, unit, meaning);
    }
    let (client, nodes) = (client.clone(), mount.memory());
    Arc::new(move || {
        client.endpoint().publish_metrics();
        let tokens = client.token_counts();
        for (state, count) in [("good", tokens.all - tokens.ended), ("ended", tokens.ended)] {
            metrics::gauge!(TOKENS.0, "state" => state).set(count as f64);
        }
        let waiting = client.waiting();
        let age = match waiting.oldest.0 {
            0 => 0,
            oldest => client.time().0.saturating_sub(oldest),
        };
        let values = [waiting.changes as f64, waiting.bytes as f64, f64::from(age), waiting.conflicts as f64];
        for ((name, ..), value) in WAITING.into_iter().zip(values) {
            metrics::gauge!(name).set(value);
        }
        client.memory().into_iter().chain(nodes()).for_each(|used| GAUGES.publish(used));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_gauge() {
        let page = include_str!("../../../docs/seeing.md");
        let waiting = WAITING.map(|(name, _, meaning)| (name, meaning));
        for (name, meaning) in [GAUGES.used, GAUGES.limit, TOKENS].into_iter().chain(waiting) {
            assert!(page.contains(&format!("| `{name}` |")) && page.contains(meaning), "{name}: {meaning}");
        }
    }
}
