//! The callers: the user whom the kernel names, and the PAG that the calling thread is in, which the kernel does not
//! name.
//!
//! It is read from `/proc` before the request is answered. Until then the thread waits, also if it is being killed, so nobody else
//! has its number. What is asked with a handle counts as asked by who opened it: some of that is sent for no thread at all.

use std::fs::File;
use std::io::{self, Read};

use afs_client::{Pag, User, groups_of};
use fuse_dev::Caller;

use crate::attributes::Serves;
use crate::file_system::FileSystem;

/// Bytes of a `/proc/PID/status` up to its groups, for most.
const STATUS_BYTES: usize = 2048;

impl FileSystem {
    /// The user who asks for something that takes a right. As long as there are no PAGs nothing is read.
    pub(crate) fn user(&self, caller: Caller) -> User {
        if !self.client.has_pags() {
            return User::of(caller.uid);
        }
        user_of(caller, status_of(caller.pid), |real, groups| {
            self.client.user(caller.uid, real, groups.into_iter())
        })
    }

    /// The users of the kernel's copies: with PAGs, one user may be several people.
    pub(crate) fn serves(&self) -> Serves {
        if self.client.has_pags() { Serves::All } else { self.serves }
    }
}

/// The kernel's status of a thread. The name in it is bytes of the program's choice.
fn status_of(thread: u32) -> io::Result<Vec<u8>> {
    let mut status = Vec::with_capacity(STATUS_BYTES);
    File::open(format!("/proc/{thread}/status"))?.read_to_end(&mut status)?;
    Ok(status)
}

/// Returns the user who asks, from the status of their thread. `in_groups` tells which user the client sees in a process of this
/// real user with these groups.
fn user_of(
    caller: Caller,
    status: io::Result<Vec<u8>>,
    in_groups: impl FnOnce(u32, Vec<u32>) -> User,
) -> User {
    match status {
        Ok(status) => match groups_of(&String::from_utf8_lossy(&status), caller.uid) {
            Some((real, groups)) => in_groups(real, groups.collect()),
            // It acts for somebody else.
            None => User::of(caller.uid),
        },
        // It is not to be seen from here, as in another container.
        Err(error) if error.kind() == io::ErrorKind::NotFound => User::of(caller.uid),
        Err(error) => {
            tracing::warn!(thread = caller.pid, %error, "the groups of a caller cannot be read: it is anonymous for now");
            User { uid: caller.uid, pag: Some(Pag::UNKNOWN) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    const CALLER: Caller = Caller { uid: 5, gid: 5, pid: 7 };

    /// Its status was not read then, and it was taken for one outside of PAGs.
    #[test]
    fn a_program_with_an_odd_name_stays_in_its_pag() {
        let (is_named, pag) = std::thread::spawn(|| {
            fs::write("/proc/thread-self/comm", b"\xff\xfe").unwrap();
            let own = fs::read_link("/proc/thread-self").unwrap();
            let thread = own.file_name().unwrap().to_str().unwrap().parse().unwrap();
            let status = status_of(thread).unwrap();
            let caller = Caller { uid: fs::metadata("/proc/thread-self").unwrap().uid(), ..CALLER };
            let pag = Pag::chosen_by(9);
            (
                status.starts_with(b"Name:\t\xff\xfe\n"),
                user_of(caller, Ok(status), |_, _| User { uid: 5, pag: Some(pag) }).pag,
            )
        })
        .join()
        .unwrap();
        assert!(is_named);
        assert_eq!(pag, Some(Pag::chosen_by(9)));
    }

    #[test]
    fn who_cannot_be_told_has_no_tokens() {
        let user =
            |error: i32| user_of(CALLER, Err(io::Error::from_raw_os_error(error)), |_, _| unreachable!());
        assert_eq!(user(libc::ENOENT), User::of(5), "a process of a container");
        assert_eq!(user(libc::EMFILE).pag, Some(Pag::UNKNOWN));
        assert_eq!(user(libc::EMFILE).uid, 5);
    }
}
