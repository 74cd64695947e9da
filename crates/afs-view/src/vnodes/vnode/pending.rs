//! Changes of ours that are under way.

use std::sync::Arc;

use super::Vnode;

/// A change of ours that is under way. Servers do not tell us of our own changes: so if it ends without an answer, because it was
/// interrupted or nobody answers, what is promised of these vnodes does not count any more.
#[derive(Debug)]
pub struct PendingChange {
    vnodes: Vec<Arc<Vnode>>,
}

impl PendingChange {
    /// A change of these vnodes begins.
    pub fn new(vnodes: impl IntoIterator<Item = Arc<Vnode>>) -> Self {
        Self { vnodes: vnodes.into_iter().collect() }
    }

    /// Notes that it is answered, and the answer noted.
    pub(crate) fn done(mut self) {
        self.vnodes.clear();
    }
}

impl Drop for PendingChange {
    fn drop(&mut self) {
        for vnode in &self.vnodes {
            vnode.note_unanswered();
        }
    }
}
