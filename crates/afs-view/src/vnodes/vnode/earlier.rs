//! What is kept of a vnode for the next run of the client, and what a run makes of it: it is known as something that was promised once, which
//! counts while its servers are away, and only then. The first word of a server ends it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};

use afs_wire::directory::Directory;
use afs_wire::ids::LocalFid;
use afs_wire::rights::Rights;
use afs_wire::status::{AfsFetchStatus, FileType};
use bytes::Bytes;
use rx_proto::time::Instant;

use super::{Pages, Promise, State, Vnode};
use afs_reach::table::Server;
use afs_reach::users::IdentityIndex;

/// Bytes of pages that are kept of a directory at most: it is written anew whenever it changes. Some 8,000 short names.
const PAGES_KEPT_MAX: usize = 256 << 10;

/// The servers of a volume of which something is known from an earlier run, and how long that counts.
#[derive(Debug)]
pub(crate) struct Sites {
    /// The servers; at least one.
    pub(crate) servers: Vec<Arc<Server>>,
    /// The time until which it counts.
    pub(crate) until: Instant,
}

impl Sites {
    pub(super) fn count(&self, now: Instant) -> bool {
        now < self.until
    }

    /// The time since when none of them answers, as long as what is known counts then.
    pub(super) fn away_since(&self, now: Instant) -> Option<Instant> {
        let down: Option<Vec<_>> = self.servers.iter().map(|server| server.down_since()).collect();
        down?.into_iter().max().filter(|_| self.count(now))
    }
}

/// What is kept of a vnode.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// As the server told it.
    pub(crate) status: AfsFetchStatus,
    /// True if it is pinned, or on the way to what is.
    pub(crate) is_pinned: bool,
    /// The directory that it is in.
    pub(crate) parent: Option<LocalFid>,
    /// The target of a symbolic link or mount point.
    pub(crate) link: Option<Bytes>,
    /// The names in a directory, in the version of the status, with what was changed here.
    pub(crate) directory: Option<Arc<Directory>>,
    /// What is known of rights in a directory.
    pub(crate) rights: Vec<(IdentityIndex, Rights)>,
}

/// What becomes of what was kept before.
#[derive(Debug)]
pub(crate) enum ToKeep {
    /// It stays: what is known now is in between two states.
    Before,
    /// Nothing is kept: a server has said that it has changed, or no server knows it.
    Nothing,
    /// This.
    This(Box<Earlier>),
}

/// A vnode's state. Who changes it through this has it kept.
pub(in crate::vnodes) struct Guard<'a> {
    state: MutexGuard<'a, State>,
    vnode: &'a Vnode,
    has_changed: bool,
}

impl<'a> Guard<'a> {
    pub(super) fn new(state: MutexGuard<'a, State>, vnode: &'a Vnode) -> Self {
        Self { state, vnode, has_changed: false }
    }

    /// The state, to change what is not kept.
    pub(super) fn unkept(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.has_changed = true;
        &mut self.state
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.has_changed {
            self.vnode.keeping.note(self.vnode);
        }
    }
}

impl State {
    /// A server tells what it has: what was known in an earlier run does not count any more.
    pub(super) fn end_earlier(&mut self) {
        if std::mem::take(&mut self.is_earlier) {
            (self.promise, self.pages) = (None, None);
            self.forget_access();
        }
    }

    fn all_rights(&self) -> Vec<(IdentityIndex, Rights)> {
        let mut all = self.access.clone();
        let is_known = |who| self.access.iter().any(|(theirs, _)| *theirs == who);
        all.extend(self.ended_access.iter().filter(|(who, _)| !is_known(*who)));
        all
    }
}

impl Vnode {
    /// What is to be kept of it.
    pub(crate) fn to_keep(&self) -> ToKeep {
        let state = self.state();
        let is_unbroken = |promise: &Promise| promise.volume_breaks == self.volume.breaks();
        let Some(status) = state.status.filter(|_| state.promise.as_ref().is_some_and(is_unbroken)) else {
            return ToKeep::Nothing;
        };
        if state.is_here_only {
            return ToKeep::Nothing;
        }
        if status.file_type != FileType::DIRECTORY && state.ahead.is_being_sent() {
            return ToKeep::Before;
        }
        let pages = state.pages.as_ref().filter(|pages| {
            state.ahead.bridges(pages.version, status.data_version)
                && pages.directory.bytes().len() <= PAGES_KEPT_MAX
        });
        ToKeep::This(Box::new(Earlier {
            // The next run adds what waits then.
            status: AfsFetchStatus { link_count: state.ahead.links_without(status.link_count), ..status },
            is_pinned: self.is_pinned(),
            parent: state.parent,
            link: state.link.clone(),
            directory: pages.map(|pages| Arc::clone(&pages.directory)),
            rights: state.all_rights(),
        }))
    }

    /// Takes over what was known in an earlier run, unless something is known by now. What waits to be sent shows in it.
    pub(in crate::vnodes) fn restore(&self, earlier: Earlier, sites: &Arc<Sites>) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.status.is_some() || state.pages.is_some() || state.is_here_only {
            return false;
        }
        let Earlier { mut status, parent, link, directory, rights, .. } = earlier;
        state.ahead.apply_to_status(&mut status, None);
        state.pages = directory.map(|mut directory| {
            state.ahead.apply_to_names(&mut directory);
            Pages { directory, version: status.data_version }
        });
        state.status = Some(status);
        state.parent = parent.or(state.parent);
        state.link = link;
        state.ended_access = rights;
        let server = Arc::clone(&sites.servers[0]);
        state.promise = Some(Promise {
            until: Instant::ORIGIN,
            resets: server.resets(),
            server,
            volume_breaks: self.volume.breaks(),
            sites: Some(Arc::clone(sites)),
        });
        state.is_earlier = true;
        true
    }

    /// The status that counts though its server is away.
    pub(crate) fn offline_status(&self, now: Instant) -> Option<AfsFetchStatus> {
        let state = self.state();
        self.offline_until(&state, now).and(state.status)
    }

    /// What is known of rights in a directory.
    pub(crate) fn all_rights(&self) -> Vec<(IdentityIndex, Rights)> {
        self.state().all_rights()
    }

    /// The rights in a directory that an earlier run has made and no server has yet: those in the one that it is in.
    pub(crate) fn set_earlier_rights(&self, rights: Vec<(IdentityIndex, Rights)>) {
        self.state().ended_access = rights;
    }
}
