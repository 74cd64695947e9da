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
    if let Some(log) = std::env::var_os("AFAR_SKIP_LOG") {
        let line = format!("{test}: {reason}\n");
        let file = OpenOptions::new().create(true).append(true).open(log);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skipped tests");
    }
}
