//! Ctrl-C and its like as a flag that everything that waits looks at, so that the guards of processes and
//! namespaces do their work on the way out.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::Error;

/// The time between two looks while waiting. Rare enough to leave the measured alone.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// The wish of the user to stop.
#[derive(Clone)]
pub(crate) struct Interrupt {
    is_set: Arc<AtomicBool>,
}

impl Interrupt {
    /// Has SIGINT, SIGTERM and SIGHUP set the flag from here on, instead of ending the process. They are not blocked, as what is
    /// started would have them blocked too: servers that cannot be told to stop.
    pub(crate) fn take_signals() -> Result<Interrupt, Error> {
        let is_set = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_set);
        let (ready, is_ready) = mpsc::channel();
        let wait = move || {
            let listen = async || -> io::Result<()> {
                let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
                    .into_iter()
                    .map(signal)
                    .collect::<io::Result<Vec<_>>>()?;
                let _ = ready.send(Ok(()));
                poll_fn(|cx| {
                    if signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready()) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                })
                .await;
                eprintln!("afar-bench: interrupted, cleaning up");
                flag.store(true, Ordering::Relaxed);
                // The handlers stay, so that a second signal does not cut that short.
                Ok(())
            };
            let listening =
                Builder::new_current_thread().enable_io().build().and_then(|rt| rt.block_on(listen()));
            if let Err(error) = listening {
                let _ = ready.send(Err(error));
            }
        };
        let doing = |e| Error::setup(format!("taking over SIGINT: {e}"));
        thread::Builder::new().name("signals".into()).spawn(wait).map_err(doing)?;
        is_ready.recv().unwrap_or_else(|gone| Err(io::Error::other(gone))).map_err(doing)?;
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
