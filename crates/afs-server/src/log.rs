//! The destinations of log lines: to stderr for people or machines, and those of changes to the audit log. How many a
//! minute is in `log/limited.rs`.

mod limited;
mod recent;

use std::io;
use std::time::{Duration, Instant};

use afs_fileserver::AUDIT;
use tracing::Subscriber;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::audit::{self, AuditLog};
use crate::config::{self, LogFormat};
use limited::Limited;
use recent::Classic;
pub use recent::Recent;

/// Begins to log, and keeps the last lines; `audits_files` has changes of files in the audit log too. What is logged before is lost; only the first in a process counts.
///
/// # Errors
///
/// When the filter cannot be understood.
pub fn begin(config: &config::Log, audit: Option<AuditLog>, audits_files: bool) -> Result<Recent, String> {
    let filter = || {
        EnvFilter::try_new(&config.filter)
            .map_err(|error| format!("log.filter: '{}' cannot be understood: {error}", config.filter))
    };
    let has_audit = audit.is_some();
    // Changes of files are too many for people, and those of the cell stand in the audit log, if there is one.
    let is_for_people = move |target: &str| target != AUDIT && !(has_audit && target == audit::TARGET);
    let wanted =
        || Ok::<_, String>(filter()?.and(filter_fn(move |metadata| is_for_people(metadata.target()))));
    let (to_stderr, to_recent) = (wanted()?, wanted()?);
    let recent = Recent::default();
    let began = Instant::now();
    let kept = keeping(&recent, move || began.elapsed()).with_filter(to_recent);
    let lines = Limited::new(move || began.elapsed(), io::stderr, config.format == LogFormat::Json);
    let stderr = match config.format {
        LogFormat::Text => fmt::layer().with_writer(lines).with_ansi(false).boxed(),
        LogFormat::Json => fmt::layer().with_writer(lines).json().flatten_event(true).boxed(),
    };
    let audit = audit.map(|log| {
        let layer = fmt::layer().with_writer(log).json().flatten_event(true);
        let layer = layer.with_current_span(false).with_span_list(false).with_target(false).with_level(false);
        let is_wanted = move |target: &str| target == audit::TARGET || (audits_files && target == AUDIT);
        layer.with_filter(filter_fn(move |metadata| is_wanted(metadata.target())))
    });
    let subscriber =
        tracing_subscriber::registry().with(stderr.with_filter(to_stderr).and_then(kept)).with(audit);
    // A second server in one process, as tests have it, logs where the first does.
    drop(subscriber.try_init());
    Ok(recent)
}

/// Keeps the last lines, and not only those that a stranger makes.
fn keeping<S>(recent: &Recent, clock: impl Fn() -> Duration + Send + Sync + 'static) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = Limited::of_last_lines(clock, recent.clone());
    fmt::layer().with_writer(lines).with_ansi(false).event_format(Classic)
}

#[cfg(test)]
mod tests {
    use afs_volserver::ORDERS;

    use super::*;

    #[test]
    fn a_stranger_cannot_drive_other_lines_out_of_the_last_ones() {
        let recent = Recent::default();
        let layer = keeping(&recent, || Duration::ZERO);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::error!(target: "afs_fileserver::health", "a disk has failed");
            for n in 0..20_000 {
                tracing::warn!(n, "arguments were refused");
                tracing::info!(target: "audit", n, "refused");
            }
        });
        let log = |name| String::from_utf8(recent.log(name).unwrap()).unwrap();
        assert!(log("FileLog").contains("a disk has failed"));
        assert!(log("BosLog").contains("arguments were refused"));
    }

    #[test]
    fn kept_lines_have_the_form_that_programs_know_from_openafs() {
        let recent = Recent::default();
        let layer = keeping(&recent, || Duration::ZERO);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(target: ORDERS, "Volser: Clone: volume 7 (user.x)");
            tracing::error!(target: "afs_volserver", partition = "/vicepa", "a disk has failed");
        });
        let log = String::from_utf8(recent.log("VolserLog").unwrap()).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        // "Sat Nov 28 23:53:21 2026 ", then the text.
        let texts: Vec<&str> = lines.iter().map(|line| &line[25..]).collect();
        assert_eq!(
            texts,
            ["Volser: Clone: volume 7 (user.x)", "ERROR: a disk has failed partition=\"/vicepa\""],
            "{log}"
        );
        let time = jiff::civil::DateTime::strptime("%a %b %e %H:%M:%S %Y", &lines[0][..24]);
        assert!(time.is_ok(), "{log}");
    }
}
