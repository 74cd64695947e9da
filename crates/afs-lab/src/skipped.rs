//! Tests that cannot run on this machine, or had to begin anew: how they say so (CONTRIBUTING.md, "Tests").

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
    append("AFAR_SKIP_LOG", &format!("{test}: {reason}\n"));
}

/// Says, in the file that `AFAR_LATE_LOG` names, to `make test` that a test begins anew because the machine was late: else nobody would see
/// of a test that has passed how often it does.
///
/// # Panics
///
/// If that file cannot be written.
pub fn begun_anew(test: &str, why: &str) {
    let why = why.lines().next().unwrap_or_default();
    append("AFAR_LATE_LOG", &format!("{test}: {why}\n"));
}

/// Appends a line to the file that a variable names, if it is set.
fn append(variable: &str, line: &str) {
    if let Some(path) = std::env::var_os(variable) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("the file that {variable} names: {error}"));
    }
}
