//! Time as the protocol sees it: nanoseconds since an origin that the endpoint's driver chooses. Never reads a clock: a driver
//! maps the operating system's clock onto it, a test counts it up by hand.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// The least delay of a timer that shows that this process stood still: it was stopped, its machine was, or others had the cores.
/// What came meanwhile has not been read then, so that a peer must not be taken for silent yet.
pub const STOOD_STILL: Duration = Duration::from_millis(200);

/// A point in time, in nanoseconds since the driver's origin. Never runs backwards within one endpoint.
///
/// Eight bytes, where `std::time::Instant` takes sixteen: every packet in flight carries four of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's origin.
    pub const ORIGIN: Self = Self(0);

    /// The end of time: a deadline that never comes.
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if it is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}
