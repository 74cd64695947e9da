//! Tests that cannot run on this machine: how they say so (CONTRIBUTING.md, "Tests").

use std::fs::OpenOptions;
use std::io::Write;

/// Says that a test cannot run here, to the person who looks on and, in the file that `AFAR_SKIP_LOG` names, to `make test`.
///
/// # Panics
///
/// If that file cannot be written: the test would count as passed.
pub fn skip(test: &str, reason: &str) {
    println!("SKIPPED: {reason}");
    note(test, reason);
}

/// Says so of the test that runs in this thread. Returns what is returned by one that ends here, or by a helper of it: nothing, or false.
///
/// # Panics
///
/// As [`skip`].
pub fn skip_this<T: Default>(reason: &str) -> T {
    skip(std::thread::current().name().unwrap_or("a test"), reason);
    T::default()
}

/// Ends a test that cannot run here: `require!(can_mount())`. The condition has told why, by [`skip_this`].
#[macro_export]
macro_rules! require {
    ($can_run:expr) => {
        if !$can_run {
            return;
        }
    };
}

/// Says so to `make test` alone.
///
/// # Panics
///
/// If the file that AFAR_SKIP_LOG names cannot be written.
pub fn note(test: &str, reason: &str) {
    if let Some(path) = std::env::var_os("AFAR_SKIP_LOG") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write and one line: other tests append at the same time.
        let line = format!("{test}: {}\n", reason.replace('\n', " "));
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("the file that AFAR_SKIP_LOG names: {error}"));
    }
}
