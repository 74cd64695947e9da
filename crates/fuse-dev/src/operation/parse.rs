//! Reads requests from the bytes that the kernel gives: the numbers of operations and flags in `fuse.h`, and which fields each has.
//! What they mean is said beside [`Operation`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{
    Access, Caller, Forgets, Handle, Lock, LockKind, LockRange, NodeId, Operation, Request, SetAttributes,
    SetTime, Unique,
};
use crate::fields::{Fields, Malformed};

/// Bytes of a request's header.
pub(crate) const HEADER_LEN: usize = 40;

/// The operations by their numbers in `fuse.h`.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
}

/// Bits of `fuse_setattr_in.valid`.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const KILLS_PRIVILEGES: u32 = 1 << 11;
}

const GETATTR_HAS_HANDLE: u32 = 1;
const OPEN_KILLS_PRIVILEGES: u32 = 1;
const WRITE_FROM_CACHE: u32 = 1;
const WRITE_KILLS_PRIVILEGES: u32 = 1 << 2;
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
const FSYNC_DATA_ONLY: u32 = 1;
const LOCK_IS_FLOCK: u32 = 1;

impl<'a> Request<'a> {
    /// Reads a request, whole as the device gave it.
    ///
    /// # Errors
    ///
    /// When it is shorter than its fields. The number is that of the request, if that much could be read.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, (Option<Unique>, Malformed)> {
        let mut header = Fields::new("the header", bytes);
        let mut read_header = || -> Result<_, Malformed> {
            header.skip(4)?;
            let opcode = header.u32()?;
            let (unique, node) = (Unique(header.u64()?), NodeId(header.u64()?));
            let caller = Caller { uid: header.u32()?, gid: header.u32()?, pid: header.u32()? };
            header.skip(4)?;
            Ok((opcode, unique, node, caller))
        };
        let (opcode, unique, node, caller) = read_header().map_err(|error| (None, error))?;
        let operation = parse(opcode, &bytes[HEADER_LEN..]).map_err(|error| (Some(unique), error))?;
        Ok(Self { unique, node, caller, operation })
    }
}

fn parse(number: u32, body: &[u8]) -> Result<Operation<'_>, Malformed> {
    let fields = |what| Fields::new(what, body);
    Ok(match number {
        opcode::LOOKUP => Operation::Lookup { name: fields("LOOKUP").name()? },
        opcode::FORGET => Operation::Forget { lookups: fields("FORGET").u64()? },
        opcode::BATCH_FORGET => {
            let mut f = fields("BATCH_FORGET");
            let count = f.u32()? as usize;
            f.skip(4)?;
            let nodes = f.bytes(count.saturating_mul(16))?;
            Operation::BatchForget(Forgets(Fields::new("BATCH_FORGET", nodes)))
        }
        opcode::GETATTR => {
            let mut f = fields("GETATTR");
            let flags = f.u32()?;
            f.skip(4)?;
            let handle = Handle(f.u64()?);
            Operation::GetAttributes { handle: (flags & GETATTR_HAS_HANDLE != 0).then_some(handle) }
        }
        opcode::SETATTR => Operation::SetAttributes(set_attributes(&mut fields("SETATTR"))?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => {
            let mut f = fields("SYMLINK");
            Operation::Symlink { name: f.name()?, target: f.name()? }
        }
        opcode::MKNOD => {
            let mut f = fields("MKNOD");
            let (mode, device, umask) = (f.u32()?, f.u32()?, f.u32()?);
            f.skip(4)?;
            Operation::MakeNode { name: f.name()?, mode, device, umask }
        }
        opcode::MKDIR => {
            let mut f = fields("MKDIR");
            let (mode, umask) = (f.u32()?, f.u32()?);
            Operation::MakeDirectory { name: f.name()?, mode, umask }
        }
        opcode::UNLINK => Operation::Unlink { name: fields("UNLINK").name()? },
        opcode::RMDIR => Operation::RemoveDirectory { name: fields("RMDIR").name()? },
        opcode::RENAME => {
            let mut f = fields("RENAME");
            let to = NodeId(f.u64()?);
            Operation::Rename { name: f.name()?, to, new_name: f.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let mut f = fields("RENAME2");
            let (to, flags) = (NodeId(f.u64()?), f.u32()?);
            f.skip(4)?;
            Operation::Rename { name: f.name()?, to, new_name: f.name()?, flags }
        }
        opcode::LINK => {
            let mut f = fields("LINK");
            Operation::Link { existing: NodeId(f.u64()?), name: f.name()? }
        }
        opcode::OPEN => {
            let mut f = fields("OPEN");
            let (flags, how) = (f.u32()?, f.u32()?);
            Operation::Open { flags, kills_privileges: how & OPEN_KILLS_PRIVILEGES != 0 }
        }
        opcode::OPENDIR => Operation::OpenDirectory { flags: fields("OPENDIR").u32()? },
        opcode::CREATE => {
            let mut f = fields("CREATE");
            let (flags, mode, umask, how) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            let kills_privileges = how & OPEN_KILLS_PRIVILEGES != 0;
            Operation::Create { name: f.name()?, mode, umask, flags, kills_privileges }
        }
        opcode::READ => {
            let mut f = fields("READ");
            let (handle, pos, length) = read(&mut f)?;
            f.skip(12)?;
            Operation::Read { handle, pos, length, is_direct: f.u32()? & libc::O_DIRECT as u32 != 0 }
        }
        opcode::READDIR => {
            let (handle, pos, room) = read(&mut fields("READDIR"))?;
            Operation::ReadDirectory { handle, pos, room }
        }
        opcode::READDIRPLUS => {
            let (handle, pos, room) = read(&mut fields("READDIRPLUS"))?;
            Operation::ReadDirectoryPlus { handle, pos, room }
        }
        opcode::WRITE => {
            let mut f = fields("WRITE");
            let (handle, pos) = (Handle(f.u64()?), f.u64()?);
            let (size, flags) = (f.u32()?, f.u32()?);
            f.skip(8)?;
            let open_flags = f.u32()?;
            f.skip(4)?;
            Operation::Write {
                handle,
                pos,
                data: f.bytes(size as usize)?,
                is_from_cache: flags & WRITE_FROM_CACHE != 0,
                kills_privileges: flags & WRITE_KILLS_PRIVILEGES != 0,
                is_append: open_flags & libc::O_APPEND as u32 != 0,
            }
        }
        opcode::FLUSH => {
            let mut f = fields("FLUSH");
            let handle = Handle(f.u64()?);
            f.skip(8)?;
            Operation::Flush { handle, owner: f.u64()? }
        }
        opcode::RELEASE => {
            let mut f = fields("RELEASE");
            let handle = Handle(f.u64()?);
            f.skip(4)?;
            let (flags, owner) = (f.u32()?, f.u64()?);
            Operation::Release { handle, flock_owner: (flags & RELEASE_FLOCK_UNLOCK != 0).then_some(owner) }
        }
        opcode::RELEASEDIR => Operation::ReleaseDirectory { handle: Handle(fields("RELEASEDIR").u64()?) },
        opcode::FSYNC => {
            let mut f = fields("FSYNC");
            Operation::Sync { handle: Handle(f.u64()?), is_data_only: f.u32()? & FSYNC_DATA_ONLY != 0 }
        }
        opcode::FSYNCDIR => Operation::SyncDirectory { handle: Handle(fields("FSYNCDIR").u64()?) },
        opcode::STATFS => Operation::StatFs,
        opcode::SETXATTR => {
            let mut f = fields("SETXATTR");
            let (size, flags) = (f.u32()?, f.u32()?);
            Operation::SetXattr { name: f.name()?, value: f.bytes(size as usize)?, flags }
        }
        opcode::GETXATTR => {
            let mut f = fields("GETXATTR");
            let room = f.u32()?;
            f.skip(4)?;
            Operation::GetXattr { name: f.name()?, room }
        }
        opcode::LISTXATTR => Operation::ListXattr { room: fields("LISTXATTR").u32()? },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: fields("REMOVEXATTR").name()? },
        opcode::GETLK => Operation::GetLock(lock(&mut fields("GETLK"))?),
        opcode::SETLK => Operation::SetLock { lock: lock(&mut fields("SETLK"))?, waits: false },
        opcode::SETLKW => Operation::SetLock { lock: lock(&mut fields("SETLKW"))?, waits: true },
        opcode::ACCESS => Operation::Access(Access(fields("ACCESS").u32()?)),
        opcode::INTERRUPT => Operation::Interrupt { request: Unique(fields("INTERRUPT").u64()?) },
        opcode::FALLOCATE => {
            let mut f = fields("FALLOCATE");
            let (handle, pos, length) = (Handle(f.u64()?), f.u64()?, f.u64()?);
            Operation::Allocate { handle, pos, length, mode: f.u32()? }
        }
        opcode::LSEEK => {
            let mut f = fields("LSEEK");
            Operation::Seek { handle: Handle(f.u64()?), pos: f.u64()?, whence: f.u32()? }
        }
        opcode::COPY_FILE_RANGE => {
            let mut f = fields("COPY_FILE_RANGE");
            let from = (Handle(f.u64()?), f.u64()?);
            let to = (NodeId(f.u64()?), Handle(f.u64()?), f.u64()?);
            Operation::CopyRange { from, to, length: f.u64()? }
        }
        opcode::SYNCFS => Operation::SyncFileSystem,
        opcode::DESTROY => Operation::Destroy,
        other => Operation::Other { opcode: other },
    })
}

fn read(f: &mut Fields<'_>) -> Result<(Handle, u64, u32), Malformed> {
    Ok((Handle(f.u64()?), f.u64()?, f.u32()?))
}

fn lock(f: &mut Fields<'_>) -> Result<Lock, Malformed> {
    let (handle, owner) = (Handle(f.u64()?), f.u64()?);
    let range = LockRange { start: f.u64()?, end: f.u64()? };
    let kind = match f.u32()? {
        0 => LockKind::Read,
        1 => LockKind::Write,
        _ => LockKind::Unlock,
    };
    let pid = f.u32()?;
    Ok(Lock { handle, owner, range, kind, pid, is_flock: f.u32()? & LOCK_IS_FLOCK != 0 })
}

fn set_attributes(f: &mut Fields<'_>) -> Result<SetAttributes, Malformed> {
    let valid = f.u32()?;
    f.skip(4)?;
    let (handle, size) = (Handle(f.u64()?), f.u64()?);
    f.skip(8)?;
    let (atime, mtime) = (f.u64()?, f.u64()?);
    f.skip(8)?;
    let (atime_nanos, mtime_nanos) = (f.u32()?, f.u32()?);
    f.skip(4)?;
    let mode = f.u32()?;
    f.skip(4)?;
    let (uid, gid) = (f.u32()?, f.u32()?);
    let has = |bit| valid & bit != 0;
    let set_time = |bit, now, seconds, nanos| {
        has(bit).then(|| if has(now) { SetTime::Now } else { SetTime::To(system_time(seconds, nanos)) })
    };
    Ok(SetAttributes {
        mode: has(valid::MODE).then_some(mode),
        uid: has(valid::UID).then_some(uid),
        gid: has(valid::GID).then_some(gid),
        size: has(valid::SIZE).then_some(size),
        atime: set_time(valid::ATIME, valid::ATIME_NOW, atime, atime_nanos),
        mtime: set_time(valid::MTIME, valid::MTIME_NOW, mtime, mtime_nanos),
        handle: has(valid::HANDLE).then_some(handle),
        kills_privileges: has(valid::KILLS_PRIVILEGES),
    })
}

/// A time of the kernel's: seconds since 1970, which may be negative, and nanoseconds after that.
fn system_time(seconds: u64, nanos: u32) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(nanos.min(999_999_999)));
    let seconds = seconds as i64;
    let whole = if seconds >= 0 {
        UNIX_EPOCH.checked_add(Duration::from_secs(seconds.unsigned_abs()))
    } else {
        UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.unsigned_abs()))
    };
    whole.and_then(|time| time.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as the kernel would write it.
    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((40 + body.len() as u32).to_ne_bytes());
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(77u64.to_ne_bytes());
        bytes.extend(5u64.to_ne_bytes());
        for word in [1000u32, 100, 4242, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn check(opcode: u32, body: &[u8], expected: &str) {
        let bytes = request(opcode, body);
        let parsed = Request::parse(&bytes).unwrap();
        assert_eq!((parsed.unique, parsed.node), (Unique(77), NodeId(5)));
        assert_eq!(parsed.caller, Caller { uid: 1000, gid: 100, pid: 4242 });
        assert_eq!(format!("{:?}", parsed.operation), expected);
    }

    #[test]
    fn operations_are_read_with_their_fields() {
        check(opcode::LOOKUP, b"a\0", "Lookup { name: \"a\" }");
        check(opcode::SYMLINK, b"l\0../t\0", "Symlink { name: \"l\", target: \"../t\" }");
        let mut rename = words(&[9, 0, 1, 0]);
        rename.extend(b"old\0new\0");
        check(
            opcode::RENAME2,
            &rename,
            "Rename { name: \"old\", to: NodeId(9), new_name: \"new\", flags: 1 }",
        );
        let mut write = words(&[3, 0, 4096, 0, 2, 1, 0, 0, libc::O_APPEND as u32, 0]);
        write.extend(b"xy");
        check(
            opcode::WRITE,
            &write,
            "Write { handle: Handle(3), pos: 4096, data: [120, 121], is_from_cache: true, kills_privileges: false, is_append: true }",
        );
        check(
            opcode::READ,
            &words(&[3, 0, 4096, 0, 100, 0, 0, 0, libc::O_DIRECT as u32, 0]),
            "Read { handle: Handle(3), pos: 4096, length: 100, is_direct: true }",
        );
        check(
            opcode::RELEASE,
            &words(&[3, 0, 0, 2, 8, 0]),
            "Release { handle: Handle(3), flock_owner: Some(8) }",
        );
        check(opcode::OPEN, &words(&[0o1001, 1]), "Open { flags: 513, kills_privileges: true }");
        check(
            opcode::CREATE,
            &[words(&[2, 0o644, 0o22, 0]), b"n\0".to_vec()].concat(),
            "Create { name: \"n\", mode: 420, umask: 18, flags: 2, kills_privileges: false }",
        );
        check(opcode::INTERRUPT, &words(&[76, 0]), "Interrupt { request: Unique(76) }");
        check(48, b"", "Other { opcode: 48 }");
    }

    #[test]
    fn attributes_to_set_are_those_that_are_valid() {
        let mut body = words(&[
            valid::SIZE | valid::MTIME | valid::ATIME | valid::ATIME_NOW | valid::KILLS_PRIVILEGES,
            0,
        ]);
        for value in [0u64, 17, 0, 1, (-1i64) as u64, 0] {
            body.extend(value.to_ne_bytes());
        }
        body.extend(words(&[0, 500_000_000, 0, 0o644, 0, 1, 2, 0]));
        let bytes = request(opcode::SETATTR, &body);
        let Operation::SetAttributes(set) = Request::parse(&bytes).unwrap().operation else { panic!() };
        let half_before = UNIX_EPOCH - Duration::from_millis(500);
        let expected = SetAttributes {
            size: Some(17),
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::To(half_before)),
            kills_privileges: true,
            ..SetAttributes::default()
        };
        assert_eq!(set, expected);
    }

    #[test]
    fn a_request_that_is_cut_off_anywhere_is_an_error_or_shorter() {
        let mut body = words(&[1, 0, 2, 0, 16, 0, 0, 0, 0, 0]);
        body.extend([0; 16]);
        for number in 0..=60 {
            let whole = request(number, &body);
            for length in 0..whole.len() {
                // No panic is the claim.
                let _ = Request::parse(&whole[..length]).map(|request| match request.operation {
                    Operation::BatchForget(nodes) => nodes.count(),
                    _ => 0,
                });
            }
        }
        assert!(Request::parse(&request(opcode::WRITE, &words(&[0, 0, 0, 0, 9, 0, 0, 0, 0, 0]))).is_err());
    }

    #[test]
    fn a_count_of_forgets_that_is_a_lie_is_an_error() {
        let bytes = request(opcode::BATCH_FORGET, &words(&[u32::MAX, 0, 1, 0, 1, 0]));
        let (unique, error) = Request::parse(&bytes).unwrap_err();
        assert_eq!((unique, error.what), (Some(Unique(77)), "BATCH_FORGET"));
    }
}
