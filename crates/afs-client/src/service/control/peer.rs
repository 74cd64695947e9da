//! The kernel's facts about a peer of the control socket that std does not tell: the only `unsafe` of this crate. And which PAGs
//! have processes.

#![expect(unsafe_code, reason = "the one file with a system call that std and tokio do not offer")]

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::{fs, io, mem};

use super::pags::is_ordinary;
use afs_reach::fid::Pag;
use afs_reach::pags::groups_of;

/// Groups of a process at most (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65536;

/// Groups that most processes have fewer than: then it is one call.
const GROUPS_FEW: usize = 64;

/// The supplementary groups of a socket's peer when it connected (SO_PEERGROUPS of `socket.h`).
pub(super) fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS_FEW];
    loop {
        let mut length = (groups.len() * mem::size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the descriptor is borrowed, so it is open; the kernel writes at most `length` bytes, which the vector has, and then how
        // many it wrote or needs.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / mem::size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// The PAGs that processes of this machine are in, as far as they can be seen from here. Ordinary groups whose number could be a PAG's are none:
/// who is in one would be taken for a session from before, and be anonymous.
///
/// # Errors
///
/// When one that is there cannot be read: its PAG is not to end for that.
pub fn pags_of_processes() -> io::Result<HashSet<Pag>> {
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let mut pags = HashSet::new();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        if !process.file_name().to_str().is_some_and(is_process) {
            continue;
        }
        match fs::read(process.path().join("status")) {
            Ok(status) => pags.extend(pags_in(&status)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // It has ended while it was read.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    pags.retain(|pag| !is_ordinary(*pag));
    Ok(pags)
}

/// The PAGs in a `/proc/PID/status`, in which the name is bytes of the program's choice.
fn pags_in(status: &[u8]) -> Vec<Pag> {
    let status = String::from_utf8_lossy(status);
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(3));
    let groups = uid.and_then(|uid| groups_of(&status, uid.parse().ok()?));
    groups.into_iter().flat_map(|(_, groups)| groups).filter_map(Pag::of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pag_does_not_end_as_its_last_program_has_an_odd_name() {
        let status = b"Name:\t\xff\xfe\nUid:\t1\t1\t1\t1\nGroups:\t4 1090519047 \n";
        assert_eq!(pags_in(status), [Pag::chosen_by(7)]);
        assert!(pags_of_processes().is_ok());
    }
}
