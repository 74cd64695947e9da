//! The progress bar of a transfer: on a terminal alone, on the standard error, and gone when the transfer is over.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// The time after which it is drawn again while nothing comes, so that it is seen to live.
const TICK: Duration = Duration::from_millis(250);

/// A bar for so many bytes; without a number, what has come so far is counted. Hidden where the standard error is no terminal, or
/// where it is not wanted.
pub(crate) fn bar(bytes: Option<u64>, is_wanted: bool) -> ProgressBar {
    let bar = match bytes {
        Some(bytes) => ProgressBar::new(bytes),
        None => ProgressBar::no_length(),
    };
    // indicatif draws on no other file than a terminal.
    bar.set_draw_target(if is_wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
    let template = match bytes {
        Some(_) => "{bar:30} {percent:>3}% {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
        None => "{spinner} {bytes}, {binary_bytes_per_sec}, {elapsed}",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("a good template"));
    if !bar.is_hidden() {
        bar.enable_steady_tick(TICK);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_bar_can_be_made() {
        for bytes in [Some(7), None] {
            let bar = bar(bytes, false);
            bar.inc(3);
            assert!(bar.is_hidden());
            assert_eq!((bar.position(), bar.length()), (3, bytes));
        }
    }
}
