//! The calls of an endpoint and the paths that they go over, for those of its parts that look at several of them. What happens on a
//! connection or a path is theirs; here they are only found, and paths are queued that have something to send.

use crate::connection::Connection;
use crate::ids::ChannelRef;
use crate::path::{Control, Path};
use slab::Slab;
use std::collections::VecDeque;

/// All calls and paths, and the queue of paths that may have something to send.
#[derive(Debug)]
pub(super) struct Calls<'a> {
    pub(super) connections: &'a mut Slab<Box<Connection>>,
    pub(super) paths: &'a mut Slab<Box<Path>>,
    pub(super) ready: &'a mut VecDeque<usize>,
}

impl Calls<'_> {
    /// Sees to it that a path with something to send is asked for it.
    pub(super) fn wake_path(&mut self, index: usize) {
        let path = &mut self.paths[index];
        if !path.is_ready && path.has_work() {
            path.is_ready = true;
            self.ready.push_back(index);
        }
    }

    /// Queues the ACK that a call's receiving half has due.
    pub(super) fn queue_ack(&mut self, at: ChannelRef) {
        let connection = &mut self.connections[at.connection];
        let index = connection.path;
        let Some(call) = connection.call_mut(at.channel) else { return };
        if call.rx.is_ack_due() && !call.ack_queued {
            call.ack_queued = true;
            self.paths[index].push_control(Control::Ack(at));
            self.wake_path(index);
        }
    }
}
