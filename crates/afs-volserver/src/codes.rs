//! The codes with which this service ends calls (Volume service notes 8), and which of them a volume's error is.

use afs_volume::VolumeError;
use rxgen::Abort;

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $code:expr;)*) => {
        $($(#[$meta])* pub(crate) const $name: Abort = Abort($code);)*
    };
}

/// Base of the volume service's own codes.
const VOLS: i32 = 1_492_325_120;

codes! {
    /// Nothing such: a transaction that is not there, or whose volume was deleted.
    ENOENT = 2;
    /// The disk, or whatever else.
    EIO = 5;
    /// A volume without an id.
    E2BIG = 7;
    /// The volume is of another partition than its group.
    EXDEV = 18;
    /// No such volume, where one is listed.
    ENODEV = 19;
    /// An argument that cannot be.
    EINVAL = 22;
    /// The volume can only be read.
    EROFS = 30;
    /// The volume needs repair.
    VSALVAGE = 101;
    /// No such volume.
    VNOVOL = 103;
    /// There is one already.
    VVOLEXISTS = 104;
    /// The volume is out of service.
    VOFFLINE = 106;
    /// The partition is full.
    VDISKFULL = 107;
    /// The volume is in use.
    VBUSY = 110;
    /// The procedure does nothing any more.
    NO_OP = VOLS + 1;
    /// No such partition.
    ILLEGAL_PARTITION = VOLS + 5;
    /// The caller may not.
    BAD_ACCESS = VOLS + 7;
    /// The name cannot be a volume's.
    BAD_NAME = VOLS + 9;
    /// Somebody works on the volume.
    VOLSER_BUSY = VOLS + 13;
    /// No such volume or partition, where one is to be made.
    VOLSER_NO_VOL = VOLS + 15;
}

/// The code of a volume's error.
pub(crate) fn of(error: &VolumeError) -> Abort {
    match error {
        VolumeError::NoVolume(_) => VNOVOL,
        VolumeError::VolumeExists(_) => VVOLEXISTS,
        VolumeError::Offline { .. } => VOFFLINE,
        VolumeError::Busy(_) => VBUSY,
        VolumeError::ReadOnly(_) => EROFS,
        VolumeError::OverQuota(_) | VolumeError::DiskFull => VDISKFULL,
        VolumeError::Damaged { .. } => VSALVAGE,
        VolumeError::NoVnode(_) | VolumeError::NoEntry => ENOENT,
        VolumeError::BadName
        | VolumeError::NotDirectory(_)
        | VolumeError::IsDirectory(_)
        | VolumeError::WrongKind(_)
        | VolumeError::TooBig
        | VolumeError::TooMany
        | VolumeError::AccessListTooLong
        | VolumeError::CrossDirectory(_)
        | VolumeError::Loop(_)
        | VolumeError::SameFile(_) => EINVAL,
        VolumeError::Exists
        | VolumeError::NotEmpty(_)
        | VolumeError::DirectoryFull(_)
        | VolumeError::StoreInProgress(_)
        | VolumeError::Io { .. } => EIO,
    }
}
