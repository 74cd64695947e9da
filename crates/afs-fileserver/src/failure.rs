//! The reasons why a call of the file service fails, and the number that the client is told.
//!
//! Most failures are error numbers of Unix, which differ between systems: a client that says so is told the universal ones
//! instead (File service notes 12). The codes of AFS itself are the same everywhere.

use afs_volume::VolumeError;
use afs_wire::abort;
use afs_wire::errno::Errno;
use rxgen::Abort;

/// The reason why a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// An error number, as Linux numbers them, to be translated for clients that want it.
    Errno(i32),
    /// A code of AFS or Rx, told as it is; also the few error numbers that stock servers do not translate.
    Code(i32),
}

macro_rules! failures {
    ($( $(#[$meta:meta])* $kind:ident $number:literal $name:ident; )*) => {
        impl Failure {
            $( $(#[$meta])* pub const $name: Self = Self::$kind($number); )*
        }
    };
}

failures! {
    /// EPERM.
    Errno 1 NOT_OWNER;
    /// ENOENT.
    Errno 2 NO_ENTRY;
    /// EIO.
    Errno 5 IO;
    /// EAGAIN.
    Errno 11 AGAIN;
    /// EACCES.
    Errno 13 ACCESS;
    /// EEXIST.
    Errno 17 EXISTS;
    /// EXDEV.
    Errno 18 CROSS_DEVICE;
    /// ENOTDIR.
    Errno 20 NOT_DIRECTORY;
    /// EISDIR.
    Errno 21 IS_DIRECTORY;
    /// EINVAL.
    Errno 22 INVALID;
    /// EFBIG.
    Errno 27 TOO_BIG;
    /// EROFS (VREADONLY).
    Errno 30 READ_ONLY;
    /// EMLINK.
    Errno 31 TOO_MANY_LINKS;
    /// The answer of stock servers for ELOOP: the number of other systems, which Linux translates as EMSGSIZE (observed).
    Errno 90 LOOP;
    /// EPERM of the calls that stock servers answer without translation.
    Code 1 PLAIN_NOT_OWNER;
    /// EINVAL of the same.
    Code 22 PLAIN_INVALID;
    /// EOPNOTSUPP of other systems, not translated: GetRootVolume.
    Code 122 NOT_SUPPORTED;
    /// ECONNREFUSED of other systems, not translated: CheckToken.
    Code 130 REFUSED;
    /// VNOVNODE.
    Code 102 NO_VNODE;
    /// VNOVOL.
    Code 103 NO_VOLUME;
    /// VOFFLINE.
    Code 106 OFFLINE;
    /// VDISKFULL.
    Code 108 DISK_FULL;
    /// VOVERQUOTA.
    Code 109 OVER_QUOTA;
    /// VBUSY.
    Code 110 BUSY;
    /// VIO.
    Code 112 VOLUME_IO;
}

impl Failure {
    /// The abort that ends the call, for a client that wants error numbers translated or does not.
    pub fn abort(self, translates: bool) -> Abort {
        match self {
            Self::Errno(number) => abort::from_errno(Errno(number), translates),
            Self::Code(number) => Abort(number),
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::NoVolume(_) => Self::NO_VOLUME,
            VolumeError::Offline { .. } => Self::OFFLINE,
            VolumeError::Busy(_) => Self::BUSY,
            // Clients ask the VLDB again, as they do for VMOVED: to that, kAFS 6.1 to 7.2 may never come back (File service notes 12).
            VolumeError::Moved(_) => Self::NO_VOLUME,
            VolumeError::NoVnode(_) => Self::NO_VNODE,
            VolumeError::ReadOnly(_) => Self::READ_ONLY,
            VolumeError::OverQuota(_) => Self::OVER_QUOTA,
            VolumeError::DiskFull => Self::DISK_FULL,
            VolumeError::NoEntry => Self::NO_ENTRY,
            VolumeError::VolumeExists(_) | VolumeError::Exists | VolumeError::NotEmpty(_) => Self::EXISTS,
            VolumeError::BadName | VolumeError::AccessListTooLong | VolumeError::SameFile(_) => Self::INVALID,
            VolumeError::NotDirectory(_) => Self::NOT_DIRECTORY,
            VolumeError::IsDirectory(_) | VolumeError::WrongKind(_) => Self::IS_DIRECTORY,
            VolumeError::Loop(_) => Self::LOOP,
            VolumeError::CrossDirectory(_) => Self::CROSS_DEVICE,
            VolumeError::DirectoryFull(_) | VolumeError::TooBig => Self::TOO_BIG,
            VolumeError::TooMany => Self::TOO_MANY_LINKS,
            // The service puts stores of a file in order, so this is not one of its own.
            VolumeError::StoreInProgress(_) => Self::BUSY,
            // Not a code of the security class: OpenAFS's clients would drop their user's tokens for the whole cell, and those without a
            // token would ask again for ever.
            VolumeError::LevelTooLow { .. } => Self::ACCESS,
            VolumeError::Damaged { .. } => Self::IO,
            VolumeError::Io { .. } => Self::IO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose file was in a volume that is being moved stood still for ever in a kernel with kAFS, which was told VMOVED.
    #[test]
    fn a_volume_that_has_moved_is_not_here_and_that_is_all() {
        assert_eq!(Failure::from(VolumeError::Moved(afs_wire::ids::VolumeId(7))).abort(true), Abort(103));
    }

    /// Pairs seen of a stock server (File service notes 12 and 14).
    #[test]
    fn error_numbers_are_translated_for_those_who_want_it_and_codes_never() {
        let table = [
            (Failure::NOT_OWNER, 49_733_376),
            (Failure::NO_ENTRY, 49_733_377),
            (Failure::AGAIN, 49_733_386),
            (Failure::ACCESS, 49_733_388),
            (Failure::EXISTS, 49_733_392),
            (Failure::CROSS_DEVICE, 49_733_393),
            (Failure::NOT_DIRECTORY, 49_733_395),
            (Failure::IS_DIRECTORY, 49_733_396),
            (Failure::INVALID, 49_733_397),
            (Failure::TOO_BIG, 49_733_402),
            (Failure::READ_ONLY, 49_733_405),
            (Failure::LOOP, 49_733_464),
            (Failure::PLAIN_INVALID, 22),
            (Failure::NO_VNODE, 102),
            (Failure::OVER_QUOTA, 109),
        ];
        for (failure, code) in table {
            assert_eq!(failure.abort(true), Abort(code), "{failure:?}");
            let (Failure::Errno(number) | Failure::Code(number)) = failure;
            assert_eq!(failure.abort(false), Abort(number));
        }
    }
}
