//! Operations of many calls, told step by step: what begins, what is done, what has failed.

use std::fmt;

use crate::cancel::Cancel;
use crate::error::Error;

/// An event of an operation with steps of this type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<S> {
    /// A step begins.
    Begins(S),
    /// It has done what it was for.
    IsDone(S),
}

/// A step that failed.
#[derive(Debug, Clone)]
pub struct Failed<S> {
    /// The step.
    pub step: S,
    /// The reason.
    pub error: Error,
}

impl<S: fmt::Debug> fmt::Display for Failed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S: fmt::Debug> std::error::Error for Failed<S> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Takes the steps of an operation.
pub(crate) struct Steps<'a, T> {
    pub(crate) cancel: &'a Cancel,
    pub(crate) tell: T,
}

impl<T> Steps<'_, T> {
    /// Takes a step, unless the operation is to stop.
    pub(crate) async fn take<S: Copy, R>(
        &mut self,
        step: S,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed<S>>
    where
        T: FnMut(Event<S>),
    {
        self.cancel.check().map_err(|error| Failed { step, error })?;
        self.take_surely(step, work).await
    }

    /// Takes a step also if the operation is to stop: it ends something.
    pub(crate) async fn take_surely<S: Copy, R>(
        &mut self,
        step: S,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed<S>>
    where
        T: FnMut(Event<S>),
    {
        surely(&mut self.tell, step, work).await
    }

    /// Takes a step that takes long and can be broken off.
    pub(crate) async fn take_long<S: Copy, R>(
        &mut self,
        step: S,
        work: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Failed<S>>
    where
        T: FnMut(Event<S>),
    {
        let cancel = self.cancel;
        self.take(step, cancel.or_break_off(work)).await
    }
}

/// Takes a step, and tells of it.
pub(crate) async fn surely<S: Copy, E: From<Event<S>>, R>(
    tell: &mut impl FnMut(E),
    step: S,
    work: impl Future<Output = Result<R, Error>>,
) -> Result<R, Failed<S>> {
    tell(Event::Begins(step).into());
    let result = work.await.map_err(|error| Failed { step, error })?;
    tell(Event::IsDone(step).into());
    Ok(result)
}

/// The date from which a server has to send what has changed, after a state of this date. Two seconds earlier, as clocks of seconds
/// need it and OpenAFS's `vos` has it; 0 for everything stays 0.
pub(crate) const fn since(date: afs_wire::ids::AfsTime) -> afs_wire::ids::AfsTime {
    afs_wire::ids::AfsTime(date.0.saturating_sub(2))
}
