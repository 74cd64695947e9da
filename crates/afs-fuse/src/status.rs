//! Operations on a node's status: asking for it, changing it, and whether something may be done.

use std::sync::Arc;
use std::time::Duration;

use afs_client::{Error, Kind, SetStatus, Status};
use afs_wire::rights::Rights;
use fuse_dev::{Access, Caller, Handle, Reply, SetAttributes, SetTime};

use crate::answer::Answer;
use crate::attributes::{afs_time, attributes_ttl};
use crate::file_system::{FileSystem, Fresh, outcome};
use crate::files::{PRIVILEGES, retired_length};
use crate::nodes::Node;

impl FileSystem {
    pub(crate) fn get_attributes(
        self: &Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        handle: Option<Handle>,
        reply: Reply,
    ) {
        if node.state().is_retired && node.state().mode.is_closed() {
            return reply.error(libc::ESTALE);
        }
        // Who has it open may know its attributes, whatever has become of his rights.
        let user = handle
            .and_then(|handle| self.handles.file(handle))
            .map_or_else(|| self.user(caller), |open| open.file.user());
        let hit = |fresh| {
            let status = self.client.cached_status(user, node.fid)?;
            Some(self.status_answer(&node, status, fresh))
        };
        let Err(reply) = self.answer_hit(reply, hit) else { return };
        let client = self.client.clone();
        self.run(caller, reply, async move {
            let status = client.status(user, node.fid).await;
            outcome(move |fs, fresh| fs.status_answer(&node, status, fresh))
        });
    }

    fn status_answer(&self, node: &Node, status: Result<Status, Error>, fresh: Fresh) -> Answer {
        let status = match status {
            Ok(status) => status,
            Err(error) => {
                return match &node.state().gone {
                    Some(gone) if matches!(error, Error::Gone { .. }) => {
                        Answer::Attributes(**gone, Duration::ZERO)
                    }
                    Some(_) | None => self.errno(&error),
                };
            }
        };
        let mut attributes = self.attributes(&status);
        let mut ttl = if fresh.0 { attributes_ttl(self.client.now(), &status) } else { Duration::ZERO };
        let state = node.state();
        if state.is_nameless {
            attributes.links = attributes.links.saturating_sub(1);
        }
        if state.is_retired {
            attributes.size = retired_length(&state).unwrap_or(attributes.size);
            ttl = Duration::ZERO;
        }
        drop(state);
        node.note_told(&Status { length: attributes.size, ..status }, fresh);
        Answer::Attributes(attributes, ttl)
    }

    pub(crate) fn set_attributes(
        self: &Arc<Self>,
        caller: Caller,
        node: Arc<Node>,
        set: SetAttributes,
        reply: Reply,
    ) {
        let user = self.user(caller);
        let owner = match set.uid.map(|uid| self.owners.id(&self.client, node.fid.cell, uid)) {
            Some(None) => return reply.error(libc::EINVAL),
            Some(owner) => owner,
            None => None,
        };
        let group = match set.gid.map(i32::try_from) {
            Some(Err(_)) => return reply.error(libc::EINVAL),
            Some(Ok(group)) => Some(afs_wire::ids::ViceId(group)),
            None => None,
        };
        let modified = set.mtime.map(|time| match time {
            SetTime::Now => self.client.time(),
            SetTime::To(time) => afs_time(time),
        });
        let wanted =
            SetStatus { mode: set.mode.map(|mode| mode & 0o7777), owner, group, modified, length: None };
        let writer = set.size.and_then(|_| match set.handle {
            Some(handle) => self.handles.file(handle).filter(|open| open.file.flags().write),
            None => self.handles.writer_of(&node).filter(|open| open.file.user() == user),
        });
        let (client, size, kills_privileges) = (self.client.clone(), set.size, set.kills_privileges);
        let is_directory = node.fid.vnode.is_directory();
        let locked = is_directory.then(|| self.locked(vec![node.id]));
        let work = async move {
            let change = async {
                let before = client.status(user, node.fid).await?;
                let mut status = before;
                // What is so already needs no right: tools set what they have read.
                let wanted = SetStatus {
                    owner: wanted.owner.filter(|owner| *owner != before.owner),
                    group: wanted.group.filter(|group| *group != before.group),
                    ..wanted
                };
                // The kernel leaves it to us to take set-uid bits away: with another owner, and when it says so.
                let is_given_away = wanted.owner.is_some() || wanted.group.is_some();
                let loses = kills_privileges || is_given_away && before.kind == Kind::File;
                let kept = before.mode & 0o7777 & !PRIVILEGES;
                let mode = wanted.mode.or((loses && before.mode & PRIVILEGES != 0).then_some(kept));
                let wanted = SetStatus { mode, ..wanted };
                if let Some(size) = size {
                    status = match &writer {
                        Some(open) if set.handle.is_some() => open.file.truncate(size).await?,
                        Some(open) => {
                            // Others see what is cut by its name, whoever has it open: it may be closed already, as the kernel tells of
                            // that later, and then nobody would wait for the store. With write-behind nobody does anyway: an open that
                            // truncates comes here.
                            open.file.truncate(size).await?;
                            open.file.close().await?;
                            client.status(user, node.fid).await?
                        }
                        None => {
                            let length = SetStatus { length: Some(size), ..SetStatus::default() };
                            client.set_status(user, node.fid, length).await?
                        }
                    };
                }
                if wanted != SetStatus::default() {
                    status = client.set_status(user, node.fid, wanted).await?;
                }
                Ok(status)
            };
            let status = change.await;
            drop(locked);
            outcome(move |fs, fresh| fs.status_answer(&node, status, fresh))
        };
        if is_directory { self.run_locked(caller, reply, work) } else { self.run(caller, reply, work) }
    }

    pub(crate) fn access(self: &Arc<Self>, caller: Caller, node: Arc<Node>, access: Access, reply: Reply) {
        let user = self.user(caller);
        let answer = move |fs: &FileSystem, status: Result<Status, Error>| match status {
            Ok(status) if may(&status, access) => Answer::Ok,
            Ok(_) => Answer::Error(libc::EACCES),
            Err(error) => fs.errno(&error),
        };
        let hit = |_| Some(answer(self, self.client.cached_status(user, node.fid)?));
        let Err(reply) = self.answer_hit(reply, hit) else { return };
        let client = self.client.clone();
        self.run(caller, reply, async move {
            let status = client.status(user, node.fid).await;
            outcome(move |fs, _| answer(fs, status))
        });
    }
}

/// True if the bits of `access(2)` are granted: by the access list, and for files by the owner's mode bits besides.
fn may(status: &Status, Access(bits): Access) -> bool {
    let wants = |bit: i32| bits & bit as u32 != 0;
    let may_execute = match status.kind {
        Kind::Directory => status.rights.contains(Rights::LOOKUP),
        Kind::File => status.mode & 0o100 != 0 && status.may_read(),
        Kind::Symlink => true,
    };
    let may_write = status.may_write() && !status.is_read_only;
    (!wants(libc::R_OK) || status.may_read())
        && (!wants(libc::W_OK) || may_write)
        && (!wants(libc::X_OK) || may_execute)
}
