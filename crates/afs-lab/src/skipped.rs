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

/// Says so to `make test` alone.
///
/// # Panics
///
/// As [`skip`].
pub fn note(test: &str, reason: &str) {
    if let Some(path) = std::env::var_os("AFAR_SKIP_LOG") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write: other tests append at the same time.
        let written = file.and_then(|mut file| file.write_all(format!("{test}: {reason}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("the file that AFAR_SKIP_LOG names: {error}"));
    }
}
