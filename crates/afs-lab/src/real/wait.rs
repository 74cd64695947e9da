//! Waiting for what comes by itself.

use std::time::Duration;

/// The longest that [`until!`](crate::until) waits: far more than anything takes, for slow machines.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The time between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until something is so: `until!(path.exists(), "it is not made: {}", log())`. After `await` it does so on tokio's
/// clock, and what is so may await too. It panics with the text, as `assert!` does, if that is not so within [`PATIENCE`].
#[macro_export]
macro_rules! until {
    (await $is_so:expr, $($problem:tt)+) => {
        $crate::until!(@ tokio::time::sleep($crate::real::wait::LOOK_EVERY).await, $is_so, $($problem)+)
    };
    (@ $sleep:expr, $is_so:expr, $($problem:tt)+) => {{
        let until = std::time::Instant::now() + $crate::real::wait::PATIENCE;
        while !$is_so {
            assert!(std::time::Instant::now() < until, $($problem)+);
            $sleep;
        }
    }};
    ($is_so:expr, $($problem:tt)+) => {
        $crate::until!(@ std::thread::sleep($crate::real::wait::LOOK_EVERY), $is_so, $($problem)+)
    };
}
