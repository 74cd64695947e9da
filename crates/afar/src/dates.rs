//! Times as the classic tools print them: in the form of C's `ctime`, in the machine's time zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Seconds since 1970 as `Sat Nov 21 16:25:50 2026`.
pub(crate) fn date_of(seconds: i64, zone: &TimeZone) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.to_zoned(zone.clone()).strftime("%a %b %e %H:%M:%S %Y").to_string(),
        Err(_) => "BAD TIME".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_ctime() {
        assert_eq!(date_of(0, &TimeZone::UTC), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date_of(1_795_278_350, &TimeZone::UTC), "Sat Nov 21 16:25:50 2026");
    }
}
