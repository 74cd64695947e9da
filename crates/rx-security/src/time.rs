//! Time of day as tickets have it. Where it is read is the caller's matter: a [`Clock`] is a function.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Seconds since 1970-01-01 UTC, unsigned, to 2106 (Security notes 3.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UnixTime(pub u32);

impl UnixTime {
    /// 1970: as the start of a ticket it means "since ever".
    pub const ORIGIN: Self = Self(0);
    /// As the end of a ticket it means "for ever" (NEVERDATE).
    pub const NEVER: Self = Self(u32::MAX);

    /// The second of this time; times that have no number are cut to the first or last that has one.
    pub fn of(time: SystemTime) -> Self {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self(u32::try_from(seconds).unwrap_or(u32::MAX))
    }

    /// This time so much later, at most [`Self::NEVER`].
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)))
    }
}

impl fmt::Debug for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NEVER => f.write_str("never"),
            Self(seconds) => write!(f, "{seconds} s"),
        }
    }
}

/// The source of the time of day: in programs, `Arc::new(|| UnixTime::of(SystemTime::now()))`. It is asked for each
/// packet.
pub type Clock = Arc<dyn Fn() -> UnixTime + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_range_are_cut() {
        let day = Duration::from_secs(86_400);
        assert_eq!(UnixTime::of(SystemTime::UNIX_EPOCH + day), UnixTime(86_400));
        assert_eq!(UnixTime::of(SystemTime::UNIX_EPOCH - day), UnixTime(0));
        assert_eq!(UnixTime(5).plus(day * 100_000), UnixTime::NEVER);
    }
}
