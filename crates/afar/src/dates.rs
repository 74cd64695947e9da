//! Times as the classic tools print and read them, in the machine's time zone.

use jiff::Timestamp;
use jiff::civil;
use jiff::tz::TimeZone;
use rx_security::UnixTime;
use std::time::SystemTime;

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> u32 {
    UnixTime::of(SystemTime::now()).0
}

/// Seconds since 1970 as `Sat Nov 21 16:25:50 2026`.
pub(crate) fn date_of(seconds: i64, zone: &TimeZone) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.to_zoned(zone.clone()).strftime("%a %b %e %H:%M:%S %Y").to_string(),
        Err(_) => "BAD TIME".to_owned(),
    }
}

/// The form of times that name snapshots: UTC, without what a path cannot have.
const UTC: &str = "%Y-%m-%dT%H%M%SZ";

/// Seconds since 1970 as `2026-11-28T030000Z`.
pub(crate) fn utc_of(seconds: u32) -> String {
    Timestamp::from_second(seconds.into())
        .map_or_else(|_| seconds.to_string(), |time| time.strftime(UTC).to_string())
}

/// The reverse of [`utc_of`]; `None` if the text is no such time.
pub(crate) fn parse_utc(text: &str) -> Option<u32> {
    let time = civil::DateTime::strptime(UTC, text).ok()?.to_zoned(TimeZone::UTC).ok()?;
    // Also what is read leniently is written in one form.
    u32::try_from(time.timestamp().as_second()).ok().filter(|seconds| utc_of(*seconds) == text)
}

/// The reason why a text is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadDate {
    /// It has another form.
    Form,
    /// There is no such day or minute.
    Range,
}

impl BadDate {
    /// The number that OpenAFS's tools have for it.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::Form => -1,
            Self::Range => -2,
        }
    }
}

/// Seconds since 1970 of `yyyy-mm-dd` or `mm/dd/yyyy`, perhaps with `hh:mm` behind a blank. A year of two digits is one from 1970 to 2069.
pub(crate) fn parse(text: &str, zone: &TimeZone) -> Result<u32, BadDate> {
    let mut words = text.split_ascii_whitespace();
    let (Some(day), time, None) = (words.next(), words.next(), words.next()) else {
        return Err(BadDate::Form);
    };
    let numbers = |text: &str, separator| -> Option<Vec<i16>> {
        text.split(separator).map(|word| word.parse().ok().filter(|number| *number >= 0)).collect()
    };
    let [year, month, day] = match (numbers(day, '-').as_deref(), numbers(day, '/').as_deref()) {
        (Some(&[year, month, day]), _) => [year, month, day],
        (_, Some(&[month, day, year @ 0..70])) => [2000 + year, month, day],
        (_, Some(&[month, day, year @ 70..100])) => [1900 + year, month, day],
        (_, Some(&[month, day, year])) => [year, month, day],
        _ => return Err(BadDate::Form),
    };
    let [hour, minute] = match time.map(|time| numbers(time, ':')) {
        None => [0, 0],
        Some(Some(numbers)) => numbers.try_into().map_err(|_| BadDate::Form)?,
        Some(None) => return Err(BadDate::Form),
    };
    let small = |number: i16| i8::try_from(number).map_err(|_| BadDate::Range);
    let time = civil::DateTime::new(year, small(month)?, small(day)?, small(hour)?, small(minute)?, 0, 0);
    let zoned = time.and_then(|time| time.to_zoned(zone.clone())).map_err(|_| BadDate::Range)?;
    u32::try_from(zoned.timestamp().as_second()).map_err(|_| BadDate::Range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_ctime() {
        assert_eq!(date_of(0, &TimeZone::UTC), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date_of(1_795_278_350, &TimeZone::UTC), "Sat Nov 21 16:25:50 2026");
    }

    #[test]
    fn the_name_of_a_snapshot_is_a_utc_time_exact_to_the_second() {
        for (seconds, text) in [(0, "1970-01-01T000000Z"), (1_795_834_800, "2026-11-28T030000Z")] {
            assert_eq!((utc_of(seconds).as_str(), parse_utc(text)), (text, Some(seconds)));
        }
        assert_eq!(parse_utc(&utc_of(u32::MAX)), Some(u32::MAX));
        for text in [
            "",
            "2026-11-28",
            "2026-11-28T03:00:00Z",
            "2026-02-30T030000Z",
            "2026-11-28T030000",
            "26-11-28T030000Z",
            "2026-11-28T030000Z ",
        ] {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }

    #[test]
    fn dates_are_read_in_both_forms() {
        let parse = |text| parse(text, &TimeZone::UTC);
        assert_eq!(parse("1970-01-02"), Ok(86_400));
        assert_eq!(parse("01/02/1970 01:01"), Ok(86_400 + 3660));
        assert_eq!(parse("1/2/70"), Ok(86_400));
        assert_eq!(parse("11/21/26 16:25"), parse("2026-11-21 16:25"));
        for text in
            ["", "nonsense", "1/2", "2026-01", "2026-01-01 5", "2026-01-01 1:2:3", "1/2/3 4:5 6", "a/b/c"]
        {
            assert_eq!(parse(text), Err(BadDate::Form), "{text}");
        }
        for text in ["2026-13-01", "2026-02-30", "1/2/2026 25:00", "1/2/2026 1:60", "1969-01-01"] {
            assert_eq!(parse(text), Err(BadDate::Range), "{text}");
        }
    }
}
