//! Who asks: the user whom the kernel names, and the PAG that the calling thread is in, which the kernel does not name.
//!
//! It is read from `/proc` before the request is answered. Until then the thread waits, also if it is being killed, so nobody else
//! has its number. What is asked with a handle counts as asked by who opened it: some of that is sent for no thread at all.

use std::fs::File;
use std::io::Read;

use afs_client::{User, groups_of};
use fuse_dev::Caller;

use crate::attributes::Serves;
use crate::file_system::FileSystem;

/// Bytes of a `/proc/PID/status` up to its groups, for most.
const STATUS_BYTES: usize = 2048;

impl FileSystem {
    /// Who asks for something that takes a right. As long as there are no PAGs nothing is read.
    pub(crate) fn user(&self, caller: Caller) -> User {
        if !self.client.has_pags() {
            return User::of(caller.uid);
        }
        let status = status_of(caller.pid);
        match groups_of(&status, caller.uid) {
            Some(groups) => self.client.user(caller.uid, groups),
            // It is not to be seen from here, or acts for somebody else.
            None => User::of(caller.uid),
        }
    }

    /// Whose the kernel's copies are: with PAGs, one user may be several people.
    pub(crate) fn serves(&self) -> Serves {
        if self.client.has_pags() { Serves::All } else { self.serves }
    }
}

/// What the kernel says of a thread; nothing of one that cannot be seen from here.
fn status_of(thread: u32) -> String {
    let mut status = String::with_capacity(STATUS_BYTES);
    let read =
        File::open(format!("/proc/{thread}/status")).and_then(|mut file| file.read_to_string(&mut status));
    if let Err(error) = read {
        tracing::debug!(thread, %error, "the groups of a caller cannot be told");
        status.clear();
    }
    status
}
