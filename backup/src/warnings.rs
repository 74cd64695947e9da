//! The warnings of rustic, which it has for much that is an error here: they are shown, and counted, so that a restore ends with an
//! error after one. They do not say which volume they are about; what a backup lacks, its source knows (`src/source.rs`).

use crate::progress::Bars;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::sync::atomic::{AtomicU64, Ordering};

/// Warnings so far, of the whole process: the crate `log` has one receiver.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// What rustic says of a restore into a folder that has something else in it. We say what stays, and mean it.
const NO_WARNING: &str = "Note: additional entries exist in destination";

struct Shown(Bars);

/// Shows warnings from now on, between the bars.
pub(crate) fn show(bars: &Bars) {
    // There is no other receiver.
    if log::set_boxed_logger(Box::new(Shown(bars.clone()))).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// The number of warnings until now.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::SeqCst)
}

impl Log for Shown {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Warn && metadata.target().starts_with("rustic")
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        if self.enabled(record.metadata()) && text != NO_WARNING {
            COUNT.fetch_add(1, Ordering::SeqCst);
            self.0.print(|| eprintln!("afar-backup: {text}"));
        }
    }

    fn flush(&self) {}
}
