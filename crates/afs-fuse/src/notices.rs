//! Telling the kernel what to forget when something changes elsewhere: a thread of its own, as a notice may have to wait for a
//! lock that the kernel holds while a request is with us.
//!
//! The client acknowledges a server's break of a promise when the notice of it is dropped here, which is when the kernel has
//! forgotten.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use afs_client::{Change, Changed, Notices};
use fuse_dev::{NodeId, Notifier};

use crate::file_system::FileSystem;
use crate::nodes::{About, Forget};

/// Runs until the client ends.
pub(crate) fn serve(fs: &Arc<FileSystem>, notifier: &Notifier, mut notices: Notices) {
    while let Some(notice) = notices.next_blocking() {
        fs.close_gate();
        for forget in forgets(fs, notice.changed) {
            send(notifier, &forget);
        }
        drop(notice);
    }
}

fn forgets(fs: &FileSystem, Changed { fid, change }: Changed) -> Vec<Forget> {
    match change {
        Change::Vnode => fs.nodes.on_change(fid, About::All),
        Change::Status => fs.nodes.on_change(fid, About::Status),
        Change::Data => fs.nodes.on_change(fid, About::Data),
        Change::Names => fs.nodes.on_change(fid, About::Names),
        Change::Volume => fs.nodes.on_change_of(Some((fid.cell, fid.volume))),
        Change::Everything => fs.nodes.on_change_of(None),
    }
}

fn send(notifier: &Notifier, forget: &Forget) {
    let result: io::Result<()> = match forget {
        Forget::Data(node) => notifier.forget_data(*node),
        Forget::Attributes(node) => notifier.forget_attributes(*node),
        Forget::Name(dir, name) => notifier.forget_name(*dir, OsStr::from_bytes(name)),
    };
    if let Err(error) = result {
        tracing::warn!(?forget, %error, "the kernel did not take a notice");
    }
}

impl FileSystem {
    /// Has a name asked for again, in the background: who is answering the kernel must not wait for its locks.
    pub(crate) fn expire(&self, dir: NodeId, name: &[u8]) {
        let (notifier, name) = (self.notifier.clone(), name.to_vec());
        self.runtime.spawn_blocking(move || send(&notifier, &Forget::Name(dir, name)));
    }
}
