//! The warnings of rustic, which it has for much that is an error here: they are shown, and counted, so that a command ends with an
//! error after one.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::sync::atomic::{AtomicU64, Ordering};

/// Warnings so far, of the whole process: the crate `log` has one receiver.
static COUNT: AtomicU64 = AtomicU64::new(0);

struct Shown;

/// Shows warnings from now on.
pub(crate) fn show() {
    // There is no other receiver.
    if log::set_logger(&Shown).is_ok() {
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
        if self.enabled(record.metadata()) {
            COUNT.fetch_add(1, Ordering::SeqCst);
            eprintln!("afar-backup: {}", record.args());
        }
    }

    fn flush(&self) {}
}
