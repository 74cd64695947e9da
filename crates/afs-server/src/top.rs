//! The activity on this server right now, as JSON beside the metrics: what `afar top` and the page for browsers show. Read only.
//!
//! The figures of a row count from the moment when the server first kept the row: a reader asks twice and takes the difference.
//! docs/seeing.md has the format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use afs_fileserver::FileServer;
use afs_fileserver::activity::{ANONYMOUS, Figures, Refused, Report, WaitingCall};
use rx::Runtime;
use rx_proto::time::Instant;
use serde_json::{Value, json};

use crate::config::Role;
use crate::exporter::{Exporter, NOTHING, Page};

/// The path of the JSON.
pub const PATH: &str = "/top.json";

/// The path of the page for browsers.
const PAGE_PATH: &str = "/top";

/// The page: one file, which asks for the JSON and needs nothing else.
const PAGE: &str = include_str!("top/page.html");

/// The policy for the page: it may run its own script, which is known by its hash, and ask this server. Names that are put into
/// it by mistake as anything but text run nothing and fetch nothing.
const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; \
     script-src 'sha256-Tnc+GgD2f+3GfaA4UL7hEZYfw/1db0Op1z8lGENpYVg='; style-src 'sha256-gGIi6Mg8ziX8dF3VMD+q3Lz3zY3TjkoJnd/dc49kgWo='; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Rows of each kind that are told at most.
const MAX_ROWS: usize = 200;

/// The metric that counts and times the procedures of all roles.
const RPC_SECONDS: &str = "rpc_seconds";

/// The server's facts about itself.
pub(crate) struct About {
    pub(crate) cell: String,
    pub(crate) roles: Vec<Role>,
    pub(crate) file_server: Option<FileServer>,
    pub(crate) started: Instant,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Names under which it may be shown, besides those that every machine has.
    pub(crate) shown_as: Arc<[String]>,
}

/// The pages about a server.
pub(crate) fn pages(about: About) -> Vec<Page> {
    let shown_as = Arc::clone(&about.shown_as);
    let json = Page {
        shown_as: Arc::clone(&shown_as),
        path: PATH,
        content_type: "application/json",
        policy: NOTHING,
        body: Arc::new(move |exporter| about.told(exporter).to_string()),
    };
    let page = Page {
        shown_as,
        path: PAGE_PATH,
        content_type: "text/html; charset=utf-8",
        policy: PAGE_POLICY,
        body: Arc::new(|_| PAGE.to_owned()),
    };
    vec![json, page]
}

impl About {
    fn told(&self, exporter: &Exporter) -> Value {
        let report =
            self.file_server.as_ref().map_or_else(Report::default, |server| server.activity(MAX_ROWS));
        let (clients, promises) = self.file_server.as_ref().map_or((0, 0), FileServer::client_counts);
        let name = |id| self.file_server.as_ref().and_then(|server| server.volume_name(id));
        let volume = |(id, figures): &(afs_wire::ids::VolumeId, Figures)| {
            row(json!({ "id": id.0, "name": name(*id).unwrap_or_else(|| id.0.to_string()) }), figures)
        };
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        json!({
            "version": 1,
            "cell": self.cell,
            "host": host.trim(),
            "program": format!("afar {}", env!("CARGO_PKG_VERSION")),
            "roles": self.roles.iter().map(|role| role.name()).collect::<Vec<_>>(),
            "uptime_seconds": seconds(self.runtime.now().since(self.started)),
            "clients_known": clients,
            "promises": promises,
            "total": row(json!({}), &report.total),
            "procedures": procedures(exporter),
            "volumes": report.volumes.iter().map(volume).collect::<Vec<_>>(),
            "users": report.users.iter().map(|(name, figures)| row(json!({ "name": name }), figures)).collect::<Vec<_>>(),
            "clients": report.clients.iter()
                .map(|(address, figures)| row(json!({ "address": address.to_string() }), figures)).collect::<Vec<_>>(),
            "waiting": report.waiting.iter().map(waiting).collect::<Vec<_>>(),
            "waiting_count": report.waiting_count,
            "refused": report.refused.iter().map(refused).collect::<Vec<_>>(),
        })
    }
}

/// The time as a number that is short in JSON: to a microsecond.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

fn row(mut row: Value, figures: &Figures) -> Value {
    row["calls"] = figures.calls.into();
    row["failed"] = figures.failed.into();
    row["stored_bytes"] = figures.stored_bytes.into();
    row["fetched_bytes"] = figures.fetched_bytes.into();
    row["seconds"] = seconds(figures.time).into();
    row
}

/// The procedures of all roles, by interface and name.
fn procedures(exporter: &Exporter) -> Vec<Value> {
    let mut all: BTreeMap<(String, String), (u64, u64, f64)> = BTreeMap::new();
    for (labels, count, sum) in exporter.histograms(RPC_SECONDS) {
        let label = |name| labels.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value);
        let row = all.entry((label("interface").to_owned(), label("rpc").to_owned())).or_default();
        row.0 += count;
        row.1 += if label("result") == "ok" { 0 } else { count };
        row.2 += sum;
    }
    let told = all.into_iter().map(|((interface, name), (calls, failed, sum))| {
        let seconds = (sum * 1e6).round() / 1e6;
        json!({ "interface": interface, "name": name, "calls": calls, "failed": failed, "seconds": seconds })
    });
    told.collect()
}

fn waiting(told: &WaitingCall) -> Value {
    let awaited: Vec<_> = told.awaited.iter().map(ToString::to_string).collect();
    json!({
        "for": told.call.wait.text(),
        "volume": told.call.fid.map(|fid| fid.volume.0),
        "vnode": told.call.fid.map(|fid| fid.vnode.0),
        "user": told.call.user.as_deref().unwrap_or(ANONYMOUS),
        "client": told.call.client.to_string(),
        "seconds": seconds(told.waited),
        "awaited": awaited,
        "awaited_count": told.awaited_count,
    })
}

fn refused(refused: &Refused) -> Value {
    json!({
        "why": refused.why,
        "volume": refused.volume.map(|volume| volume.0),
        "client": refused.client.to_string(),
        "count": refused.count,
        "seconds_ago": seconds(refused.ago),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text between two tags.
    fn inside(tag: &str) -> &'static str {
        let (_, rest) = PAGE.split_once(&format!("<{tag}>")).unwrap();
        rest.split_once(&format!("</{tag}>")).unwrap().0
    }

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for piece in bytes.chunks(3) {
            let word =
                piece.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - piece.len()));
            for digit in 0..4 {
                let index = (word >> (18 - 6 * digit)) as usize % 64;
                text.push(if digit <= piece.len() { char::from(DIGITS[index]) } else { '=' });
            }
        }
        text
    }

    #[test]
    fn the_policy_lets_the_pages_own_script_and_style_run() {
        use sha2::Digest;
        for tag in ["script", "style"] {
            let hash = base64(&sha2::Sha256::digest(inside(tag).as_bytes()));
            assert!(PAGE_POLICY.contains(&format!("{tag}-src 'sha256-{hash}'")), "{tag}: {hash}");
        }
    }

    #[test]
    fn the_page_needs_no_other_server_and_puts_what_it_is_told_into_text_only() {
        for hostile in [
            "http:",
            "https:",
            "//",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            let found =
                PAGE.lines().find(|line| line.contains(hostile) && !line.trim_start().starts_with("// "));
            assert_eq!(found, None, "{hostile}");
        }
    }
}
