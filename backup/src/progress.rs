//! Progress bars on the standard error, where that is a terminal: rustic's, and those of dumps. They are gone when the work is done.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustic_core::{Progress, ProgressBars, ProgressType, RusticProgress};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time after which a bar is drawn again while nothing comes, so that it is seen to live.
const TICK: Duration = Duration::from_millis(250);

/// The bars of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bars {
    all: MultiProgress,
    /// What stands before those of one worker: the volume that it works at.
    title: Arc<Mutex<String>>,
}

impl Bars {
    /// Those that are never shown.
    pub(crate) fn hidden() -> Self {
        Self { all: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()), title: Arc::default() }
    }

    /// Those of another worker, beside these.
    pub(crate) fn of_another(&self) -> Self {
        Self { all: self.all.clone(), title: Arc::default() }
    }

    /// Says what the next bars are about.
    pub(crate) fn set_title(&self, title: &str) {
        title.clone_into(&mut self.title.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A bar that counts bytes.
    pub(crate) fn bytes(&self, what: &str) -> Progress {
        self.progress(ProgressType::Bytes, what)
    }

    /// Prints something while no bar is in the way.
    pub(crate) fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        self.all.suspend(print)
    }
}

impl ProgressBars for Bars {
    fn progress(&self, kind: ProgressType, what: &str) -> Progress {
        // rustic has some that say nothing.
        if self.all.is_hidden() || what.is_empty() {
            return Progress::hidden();
        }
        let title = self.title.lock().unwrap_or_else(PoisonError::into_inner);
        let message = [&**title, what.trim_end_matches('.')].join(" ").trim_start().to_owned();
        let bar = self.all.add(ProgressBar::no_length()).with_message(message);
        let bar = Bar { bar, kind };
        bar.bar.set_style(bar.style(false));
        // Drawn at once: the work may be done before the first of these.
        bar.bar.tick();
        bar.bar.enable_steady_tick(TICK);
        Progress::new(bar)
    }
}

/// One of them.
#[derive(Debug)]
struct Bar {
    bar: ProgressBar,
    kind: ProgressType,
}

impl Bar {
    fn style(&self, has_length: bool) -> ProgressStyle {
        let template = match (self.kind, has_length) {
            (ProgressType::Spinner, _) => "{spinner} {msg}, {elapsed}",
            (ProgressType::Counter, false) => "{spinner} {msg}: {pos}, {elapsed}",
            (ProgressType::Counter, true) => "{msg} {bar:20} {pos} of {len}, {eta} left",
            (ProgressType::Bytes, false) => "{spinner} {msg}: {bytes}, {binary_bytes_per_sec}, {elapsed}",
            (ProgressType::Bytes, true) => {
                "{msg} {bar:20} {percent:>3}% {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left"
            }
        };
        ProgressStyle::with_template(template).expect("a good template")
    }
}

impl RusticProgress for Bar {
    fn is_hidden(&self) -> bool {
        false
    }

    fn set_length(&self, length: u64) {
        self.bar.set_length(length);
        self.bar.set_style(self.style(true));
    }

    fn set_title(&self, title: &str) {
        self.bar.set_message(title.to_owned());
    }

    fn inc(&self, more: u64) {
        self.bar.inc(more);
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    /// rustic leaves those of work that has failed.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_all_kinds_can_be_made() {
        for kind in [ProgressType::Spinner, ProgressType::Counter, ProgressType::Bytes] {
            let bar = Bar { bar: ProgressBar::hidden(), kind };
            bar.bar.set_style(bar.style(false));
            bar.set_length(7);
            bar.inc(3);
            assert_eq!((bar.bar.position(), bar.bar.length()), (3, Some(7)));
        }
        assert!(Bars::hidden().bytes("dumping").is_hidden());
    }
}
