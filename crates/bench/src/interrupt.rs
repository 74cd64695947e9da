//! Ctrl-C and its like as a flag that everything that waits looks at, so that the guards of processes and
//! namespaces do their work on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linkem::Termination;

use crate::error::Error;

/// How often waiting looks around. Rare enough to leave the measured alone.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// Whether the user wants to stop.
#[derive(Clone)]
pub(crate) struct Interrupt {
    is_set: Arc<AtomicBool>,
}

impl Interrupt {
    /// From here on SIGINT, SIGTERM and SIGHUP set the flag instead of ending the process. To be called before
    /// other threads start.
    pub(crate) fn take_signals() -> Result<Interrupt, Error> {
        let doing = |e| Error::setup(format!("taking over SIGINT: {e}"));
        let termination = Termination::block().map_err(doing)?;
        let is_set = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_set);
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                termination.wait();
                eprintln!("afar-bench: interrupted, cleaning up");
                flag.store(true, Ordering::Relaxed);
            })
            .map_err(doing)?;
        Ok(Interrupt { is_set })
    }

    /// An error once the user wants to stop.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_set.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Waits until then, or until the user wants to stop.
    pub(crate) fn sleep_until(&self, at: Instant) -> Result<(), Error> {
        loop {
            self.check()?;
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(POLL));
        }
    }

    /// Waits so long.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Error> {
        self.sleep_until(Instant::now() + time)
    }
}
