//! Looking at one call: its figures and its trace, and how long it waited before its first byte went out.

use super::{CallHandle, ChannelRef, Endpoint};
use crate::call::CallError;
use crate::time::Instant;
use crate::trace::Trace;

impl Endpoint {
    /// Begins to record what happens in a call (see [`crate::trace`]); what was recorded before is forgotten. Takes memory
    /// for [`MAX_FLOW`](crate::trace::MAX_FLOW) and [`MAX_MARKS`](crate::trace::MAX_MARKS) records at most while the call lasts.
    pub fn trace_call(&mut self, now: Instant, call: CallHandle) -> Result<(), CallError> {
        let at = self.find(call)?;
        let call = self.connections[at.connection].call_mut(at.channel).ok_or(CallError::Gone)?;
        call.start_trace(now);
        Ok(())
    }

    /// Takes what was recorded of a call, which is not traced any more. `None` if it was not, or is gone: ask before letting
    /// it go.
    pub fn take_trace(&mut self, call: CallHandle) -> Option<Trace> {
        let at = self.find(call).ok()?;
        let connection = &mut self.connections[at.connection];
        let (is_client, peer) = (connection.is_client(), self.paths[connection.path].peer);
        let call = connection.call_mut(at.channel)?;
        call.tx.losses = crate::trace::LossNotes::default();
        Some(call.trace.take()?.finish(is_client, peer))
    }

    /// The application gave a call something to send: from when it has, its first byte waits.
    pub(super) fn note_wish(&mut self, now: Instant, at: ChannelRef) {
        if let Some(call) = self.connections[at.connection].call_mut(at.channel)
            && call.queued
        {
            call.wait.note_wish(now);
        }
    }

    /// The ACK that is due goes out.
    pub(super) fn trace_ack_sent(&mut self, now: Instant, at: ChannelRef) {
        if let Some(call) = self.connections[at.connection].call_mut(at.channel)
            && call.rx.is_ack_due()
        {
            call.trace_ack_sent(now);
        }
    }
}
