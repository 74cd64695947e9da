//! `pts sleep`: does nothing for some seconds, between commands that are read from a file.

use super::{Failed, Pts};
use crate::classic::Given;
use crate::numbers::leading_number;
use std::thread;
use std::time::Duration;

#[expect(clippy::unnecessary_wraps, reason = "it is a row of the table, as verbs are that can fail")]
pub(super) fn run(_: &Pts, given: &Given) -> Result<(), Failed> {
    thread::sleep(Duration::from_secs(seconds(given.word("delay").unwrap_or_default())));
    Ok(())
}

/// The digits that a text begins with, as C's `atoi` reads them. A negative number is 0; OpenAFS's `pts` would never return.
fn seconds(text: &str) -> u64 {
    leading_number(text).max(0).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_begin_with_digits_is_no_time() {
        for (text, wanted) in [
            ("2", 2),
            (" 3x", 3),
            ("+4", 4),
            ("-1", 0),
            ("x", 0),
            ("", 0),
            ("18446744073709551617", i64::MAX as u64),
        ] {
            assert_eq!(seconds(text), wanted, "{text:?}");
        }
    }
}
