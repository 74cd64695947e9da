//! Lines of a log, so many of each kind a minute: what a stranger does again and again must not fill the disk of the log, nor
//! drive other lines out of those that are kept in memory.
//! The kind of a line is the place in the code that logs it. Which lines are wanted at all is decided in `log`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::{Level, Metadata, callsite};
use tracing_subscriber::fmt::MakeWriter;

use crate::audit;
use afs_volserver::{OF_VOLUMES, ORDERS};

/// Lines of a kind in each [`PERIOD`]. Enough to see what goes on; ten kinds at once are 60 kB a minute.
const LINES: u32 = 60;
const PERIOD: Duration = Duration::from_secs(60);

/// Makes the writers; see the module.
pub(super) struct Limited<C, O> {
    /// The time since any beginning.
    clock: C,
    /// Makes the writers behind this.
    out: O,
    is_json: bool,
    /// True if lines of changes are never left out.
    has_all_changes: bool,
    /// The lines of each kind that were written. There are as many kinds as the program has places that log.
    kinds: Mutex<HashMap<callsite::Identifier, Kind>>,
}

#[derive(Default)]
struct Kind {
    began: Duration,
    written: u32,
    left_out: u64,
}

impl<C: Fn() -> Duration, O> Limited<C, O> {
    /// Makes a log that has all changes.
    pub(super) fn new(clock: C, out: O, is_json: bool) -> Self {
        Self { clock, out, is_json, has_all_changes: true, kinds: Mutex::default() }
    }

    /// Makes the log of the last lines, in text: others keep all changes.
    pub(super) fn of_last_lines(clock: C, out: O) -> Self {
        Self { has_all_changes: false, ..Self::new(clock, out, false) }
    }

    /// Returns how many lines of this kind were left out before this one, if it may be written.
    fn admit(&self, metadata: &Metadata<'_>) -> Option<u64> {
        // Who changed what is never left out, nor what superusers did to volumes, and who asks for details gets all.
        let is_change = self.has_all_changes && metadata.target() == audit::TARGET;
        let is_order = [ORDERS, OF_VOLUMES].contains(&metadata.target());
        if is_change || is_order || *metadata.level() > Level::INFO {
            return Some(0);
        }
        let now = (self.clock)();
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = kinds.entry(metadata.callsite()).or_default();
        if now.saturating_sub(kind.began) >= PERIOD {
            (kind.began, kind.written) = (now, 0);
        }
        if kind.written == LINES {
            kind.left_out += 1;
            return None;
        }
        kind.written += 1;
        Some(std::mem::take(&mut kind.left_out))
    }
}

impl<'a, C: Fn() -> Duration, O: MakeWriter<'a>> MakeWriter<'a> for Limited<C, O> {
    type Writer = Line<O::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(Some(self.out.make_writer()))
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        let Some(left_out) = self.admit(metadata) else { return Line(None) };
        let mut line = Line(Some(self.out.make_writer_for(metadata)));
        if left_out > 0 {
            // A log that cannot be written to cannot be told so.
            drop(match self.is_json {
                true => writeln!(
                    line,
                    "{{\"message\":\"lines like the next were left out\",\"lines\":{left_out}}}"
                ),
                false => writeln!(line, "{left_out} lines like the next were left out"),
            });
        }
        line
    }
}

/// A line that is written, or left out.
pub(super) struct Line<W>(Option<W>);

impl<W: Write> Write for Line<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Ok(bytes.len()), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stranger_cannot_fill_the_log_with_refused_arguments() {
        let (memory, seconds) = (Memory::default(), Arc::new(AtomicU64::new(0)));
        let (out, clock) = (memory.clone(), Arc::clone(&seconds));
        let time = move || Duration::from_secs(clock.load(Ordering::Relaxed));
        let limited = Limited::new(time, move || out.clone(), false);
        let layer = fmt::layer().with_ansi(false).with_writer(limited);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let refuse = |n: u64| tracing::warn!(n, "arguments were refused");
            for n in 0..10_000 {
                refuse(n);
            }
            tracing::warn!("something else");
            for n in 0..100 {
                tracing::info!(target: "audit", n, "changed");
            }
            seconds.store(61, Ordering::Relaxed);
            refuse(10_000);
        });
        let text = String::from_utf8(memory.0.lock().unwrap().clone()).unwrap();
        let count = |what: &str| text.matches(what).count();
        assert_eq!(count("arguments were refused"), LINES as usize + 1, "{text}");
        assert_eq!((count("something else"), count("changed")), (1, 100), "others are not concerned");
        assert_eq!(count("9940 lines like the next were left out\n"), 1, "{text}");
    }
}
