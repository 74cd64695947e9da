//! Listing directories, with the attributes of what is in them if the kernel wants these: asked for in bulk, ahead of what the
//! kernel has room for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_client::{Client, Fid, Listing, Status, User};
use fuse_dev::{Caller, Entries, Handle, PlusEntries, Reply};

use crate::answer::Answer;
use crate::attributes::{self, attributes_ttl};
use crate::file_system::{FileSystem, Fresh, outcome};
use crate::handles::{DirHandle, Open};
use crate::inodes::Inodes;
use crate::nodes::{At, Node};

/// Statuses asked for ahead of a listing: six calls of fifty, the most that a server takes in one (File service notes 6.4),
/// which are on their way at once.
const AHEAD: usize = 300;

impl FileSystem {
    pub(crate) fn open_directory(self: &Arc<Self>, caller: Caller, node: Arc<Node>, reply: Reply) {
        let (client, user) = (self.client.clone(), self.user(caller));
        self.run(caller, reply, async move {
            let listing = client.read_dir(user, node.fid).await;
            outcome(move |fs, fresh| match listing {
                Ok(listing) => fs.opened_directory(node, user, listing, fresh),
                Err(error) => fs.errno(&error),
            })
        });
    }

    fn opened_directory(&self, node: Arc<Node>, user: User, listing: Listing, fresh: Fresh) -> Answer {
        // The kernel keeps a listing for all users: each of them has to be allowed to open the directory. It is to have none that is
        // older than what it keeps it as.
        let status = self.client.cached_status(user, node.fid).and_then(Result::ok);
        let is_current = |status: &Status| fresh.0 && status.data_version == listing.data_version();
        let version = status.filter(is_current).map(|status| status.data_version);
        let mut flags = fuse_dev::OpenFlags::NONE;
        if version.is_some() {
            flags = flags.and(fuse_dev::OpenFlags::CACHE_DIRECTORY);
        }
        let mut state = node.state();
        if version.is_some() && state.pages == version {
            flags = flags.and(fuse_dev::OpenFlags::KEEP_CACHE);
        }
        state.pages = version;
        drop(state);
        let listing = Mutex::new(listing);
        let handle = self.handles.add(Open::Dir(Arc::new(DirHandle { node, user, listing })));
        Answer::Opened(handle, flags, None)
    }

    pub(crate) fn read_directory(
        self: &Arc<Self>,
        caller: Caller,
        handle: Handle,
        (pos, room): (u64, u32),
        is_plus: bool,
        reply: Reply,
    ) {
        let Some(open) = self.handles.dir(handle) else { return reply.error(libc::EBADF) };
        let client = self.client.clone();
        self.run_locked(caller, reply, async move {
            let listing = open.listing();
            // At its beginning a listing has to be that of now: things may have been made since it was opened or read.
            let status = client.cached_status(open.user, open.node.fid).and_then(Result::ok);
            let is_current = status.is_some_and(|status| status.data_version == listing.data_version());
            let listing = match pos > 0 || is_current {
                true => listing,
                false => match client.read_dir(open.user, open.node.fid).await {
                    Ok(listing) => {
                        open.replace(listing.clone());
                        listing
                    }
                    Err(error) => return outcome(move |fs, _| fs.errno(&error)),
                },
            };
            if !is_plus {
                return outcome(move |fs, _| Answer::Entries(names(&fs.inodes, &listing, pos, room)));
            }
            // Each snapshot is a volume of its own, and would be asked for by a call of its own.
            if !open.node.fid.is_snapshots() {
                ask_ahead(&client, &open, &listing, (pos, room)).await;
            }
            outcome(move |fs, fresh| {
                Answer::PlusEntries(fs.plus_entries(&open, &listing, (pos, room), fresh))
            })
        });
    }

    fn plus_entries(
        &self,
        open: &DirHandle,
        listing: &Listing,
        (pos, room): (u64, u32),
        fresh: Fresh,
    ) -> PlusEntries {
        let mut entries = PlusEntries::new(room);
        let now = self.client.now();
        // What goes on with a listing that is no longer that of the directory says nothing of now.
        let version = self.known(open.user, open.node.fid).map(|status| status.data_version);
        let is_current = fresh.0 && version == Some(listing.data_version());
        let name_ttl = if is_current { self.name_ttl(open.user, open.node.fid) } else { Duration::ZERO };
        for entry in listing.entries_from(pos) {
            let name = OsStr::from_bytes(entry.name);
            if !entries.has_room(name) {
                break;
            }
            let status = if is_dots(entry.name) { None } else { self.known(open.user, entry.fid) };
            match status {
                Some(status) => {
                    let at = At { dir: open.node.id, name: entry.name, is_kept: !name_ttl.is_zero() };
                    let node = self.nodes.look_up(entry.fid, at, now);
                    node.note_told(&status, fresh);
                    let attributes_ttl = if fresh.0 { attributes_ttl(now, &status) } else { Duration::ZERO };
                    let attributes = self.attributes(&status);
                    let of = fuse_dev::Entry { node: node.id, attributes, name_ttl, attributes_ttl };
                    entries.add(&of, entry.next, name);
                }
                // The kernel looks it up when it needs to, and then it is said what is wrong with it.
                None => {
                    let kind = entry.kind.map(attributes::kind);
                    entries.add_name(self.inodes.number(entry.fid), entry.next, kind, name);
                }
            }
        }
        entries
    }

    fn known(&self, user: User, fid: Fid) -> Option<Status> {
        self.client.cached_status(user, fid)?.ok()
    }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// A listing without attributes.
fn names(inodes: &Inodes, listing: &Listing, pos: u64, room: u32) -> Entries {
    let mut entries = Entries::new(room);
    for entry in listing.entries_from(pos) {
        let kind = entry.kind.map(attributes::kind);
        if !entries.add(inodes.number(entry.fid), entry.next, kind, OsStr::from_bytes(entry.name)) {
            break;
        }
    }
    entries
}

/// Sees to it that the statuses of the entries that will find room are known, if they can be. When one is not, those behind it are
/// asked for with it.
async fn ask_ahead(client: &Client, open: &DirHandle, listing: &Listing, (pos, room): (u64, u32)) {
    // The smallest entry is some 160 bytes.
    let fitting = room as usize / 160 + 1;
    let fids = |count: usize| {
        let names = listing.entries_from(pos).filter(|entry| !is_dots(entry.name));
        names.take(count).map(|entry| entry.fid)
    };
    let is_unknown = |fid: &Fid| client.cached_status(open.user, *fid).is_none();
    if fids(fitting).any(|fid| is_unknown(&fid)) {
        let unknown: Vec<Fid> = fids(AHEAD.max(fitting)).filter(is_unknown).collect();
        // Each has its own outcome, which is looked at where it is used.
        let _ = client.statuses(open.user, &unknown).await;
    }
}
