//! The codes with which this service ends calls (Volume service notes 8): its own, those of volumes, and plain errno numbers as
//! stock servers send them; and which of them a volume's error is.

use afs_volume::VolumeError;
use rxgen::Abort;

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $code:expr;)*) => {
        $($(#[$meta])* pub(crate) const $name: Abort = Abort($code);)*
    };
}

pub(crate) use afs_wire::abort::{
    RXKADLEVELFAIL as LEVEL_TOO_LOW, VBUSY, VDISKFULL, VMOVED, VNOVOL, VOFFLINE,
    VOLSERBAD_ACCESS as BAD_ACCESS, VOLSERBADNAME as BAD_NAME, VOLSERBADOP as BAD_OP,
    VOLSERDUMPERROR as DUMP_ERROR, VOLSERILLEGAL_PARTITION as ILLEGAL_PARTITION, VOLSERNO_OP as NO_OP,
    VOLSERNOVOL as VOLSER_NO_VOL, VOLSERREAD_DUMPERROR as READ_DUMP_ERROR, VOLSERVOLBUSY as VOLSER_BUSY,
    VSALVAGE, VVOLEXISTS,
};

codes! {
    /// A call whose transaction was ended meanwhile, as Rx has it for a peer that is gone.
    CALL_DEAD = -1;
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
    /// A server that could not be called, as Linux numbers it.
    ENOTCONN = 107;
}

/// The code of a volume's error.
pub(crate) fn of(error: &VolumeError) -> Abort {
    match error {
        VolumeError::NoVolume(_) => VNOVOL,
        VolumeError::VolumeExists(_) => VVOLEXISTS,
        VolumeError::Offline { .. } => VOFFLINE,
        VolumeError::Busy(_) => VBUSY,
        VolumeError::Moved(_) => VMOVED,
        VolumeError::ReadOnly(_) => EROFS,
        VolumeError::LevelTooLow { .. } => LEVEL_TOO_LOW,
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
