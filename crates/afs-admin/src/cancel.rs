//! Stopping an operation in an orderly way.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use tokio::sync::watch;

use crate::error::Error;

/// The wish that an operation stops. It is looked at between steps, and breaks off what takes long: what would be left half done is undone
/// first, and the operation fails with [`Error::Cancelled`]. A clone is the same wish.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// Has the operation stop as soon as it can.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// True if it is to stop.
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Checks that it may go on.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] if it is to stop.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Waits until it is to stop.
    pub async fn cancelled(&self) {
        let mut wish = self.0.subscribe();
        // Its other end is here.
        let _ = wish.wait_for(|is_cancelled| *is_cancelled).await;
    }

    /// Returns the result of a call, or of another operation that can be broken off without a loss. It is broken off as soon as it is to
    /// stop.
    ///
    /// # Errors
    ///
    /// The operation's; [`Error::Cancelled`] if it was broken off.
    pub async fn or_break_off<R>(&self, work: impl Future<Output = Result<R, Error>>) -> Result<R, Error> {
        match select(pin!(work), pin!(self.cancelled())).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Error::Cancelled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_takes_long_is_broken_off_at_once() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let cancel = Cancel::default();
        let mut work = pin!(cancel.or_break_off(pending::<Result<(), Error>>()));
        assert!(work.as_mut().poll(&mut context).is_pending());
        assert!(!woken.0.load(Ordering::Relaxed));
        cancel.clone().cancel();
        assert!(woken.0.load(Ordering::Relaxed), "it is not looked at from time to time");
        assert!(matches!(work.poll(&mut context), Poll::Ready(Err(Error::Cancelled))));
    }

    #[test]
    fn what_has_ended_is_not_lost_when_it_is_to_stop() {
        let cancel = Cancel::default();
        cancel.cancel();
        let mut context = Context::from_waker(Waker::noop());
        let done = pin!(cancel.or_break_off(ready(Ok(7)))).poll(&mut context);
        assert!(matches!(done, Poll::Ready(Ok(7))));
        let waits = pin!(cancel.or_break_off(pending::<Result<(), Error>>())).poll(&mut context);
        assert!(matches!(waits, Poll::Ready(Err(Error::Cancelled))));
    }
}
