//! Access control: the rights that an access list gives a caller, and what each operation needs.
//!
//! Plain functions of what is known of the caller and the vnode; nothing is looked up from here. The rules are those
//! that OpenAFS's server was seen, or is known, to apply (File service notes 6.3): the mode bits of the owner alone
//! count, and for everybody; an owner who may insert may also finish what they have made.

use afs_wire::acl::Acl;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;
use afs_wire::status::{AfsStoreStatus, FileType, StoreMask};

use crate::failure::Failure;

/// The rights that administrators have everywhere, whatever an access list says, unless the server is told otherwise: enough
/// to find and mend it.
pub const IMPLICIT_ADMIN: Rights = Rights(Rights::LOOKUP.0 | Rights::ADMINISTER.0);

const OWNER_READ: u32 = 0o400;
const OWNER_WRITE: u32 = 0o200;
const OWNER_EXECUTE: u32 = 0o100;
/// Set user id, set group id: who may set them could become another user on clients that honour them.
pub const SET_ID: u32 = 0o6000;

/// The caller, as far as access goes.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The caller's id.
    pub id: ViceId,
    /// The caller's id and groups, sorted (the CPS).
    pub groups: &'a [ViceId],
    /// The groups that the caller's host is in, sorted.
    pub host_groups: &'a [ViceId],
    /// The ids of somebody without a name, sorted.
    pub anyone: &'a [ViceId],
    /// The rights of administrators whatever an access list says; most often [`IMPLICIT_ADMIN`].
    pub implicit: Rights,
}

/// The rights of a caller, and of anybody, under an access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The caller.
    pub caller: Rights,
    /// Anybody at the caller's host.
    pub anyone: Rights,
}

impl Granted {
    /// What both give.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { caller: self.caller & other.caller, anyone: self.anyone & other.anyone }
    }
}

impl Caller<'_> {
    /// True if the caller is in `system:administrators`.
    pub fn is_administrator(&self) -> bool {
        self.groups.binary_search(&ViceId::SYSTEM_ADMINISTRATORS).is_ok()
    }

    /// The rights that the list gives the caller: by their own ids, as an administrator, and for the host they are at.
    pub fn granted(&self, acl: &Acl) -> Granted {
        let implicit = if self.is_administrator() { self.implicit } else { Rights::NONE };
        let host = acl.rights_of(self.host_groups);
        Granted {
            caller: acl.rights_of(self.groups) | implicit | host,
            anyone: acl.rights_of(self.anyone) | host,
        }
    }

    fn is(&self, owner: ViceId) -> bool {
        self.id == owner
    }

    /// True if the caller owns the volume: its owner may be a group.
    fn owns_volume(&self, owner: ViceId) -> bool {
        if owner.0 < 0 { self.groups.binary_search(&owner).is_ok() } else { self.is(owner) }
    }
}

/// The facts of a vnode that decide about access.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// Its type.
    pub file_type: FileType,
    /// The owner.
    pub owner: ViceId,
    /// Its group.
    pub group: ViceId,
    /// Its twelve mode bits.
    pub mode: u32,
    /// The rights by its access list, or by that of its directory.
    pub rights: Rights,
}

impl Subject {
    fn is_file(&self) -> bool {
        self.file_type == FileType::FILE
    }

    /// True if the caller owns the file and may insert: they may read, write and lock what they made, whatever the list
    /// says of others ("drop box").
    fn is_own(&self, caller: &Caller<'_>) -> bool {
        self.is_file() && caller.is(self.owner) && self.rights.contains(Rights::INSERT)
    }
}

fn allow(condition: bool) -> Result<(), Failure> {
    if condition { Ok(()) } else { Err(Failure::ACCESS) }
}

/// Checks that the caller may see the status. Anybody may see a directory's (File service notes 6.1). `volume_owner`
/// says whose the volume is, and is asked only if that matters.
///
/// # Errors
///
/// EACCES, here and below where nothing else is said.
pub fn fetch_status(
    caller: &Caller<'_>,
    subject: &Subject,
    volume_owner: impl FnOnce() -> ViceId,
) -> Result<(), Failure> {
    if subject.file_type == FileType::DIRECTORY { Ok(()) } else { status(caller, subject, volume_owner) }
}

/// Checks that the caller may see the access list, and what else there is to see of a file or symlink without its data.
///
/// # Errors
///
/// EACCES.
pub fn status(
    caller: &Caller<'_>,
    subject: &Subject,
    volume_owner: impl FnOnce() -> ViceId,
) -> Result<(), Failure> {
    allow(caller.is_administrator() || may_see(caller, subject, volume_owner))
}

/// Checks that the caller may read the data.
///
/// # Errors
///
/// EACCES.
pub fn fetch_data(
    caller: &Caller<'_>,
    subject: &Subject,
    volume_owner: impl FnOnce() -> ViceId,
) -> Result<(), Failure> {
    allow(may_see(caller, subject, volume_owner))?;
    let readable = subject.mode & (OWNER_READ | OWNER_EXECUTE) != 0;
    allow(!subject.is_file() || readable || caller.is(subject.owner) || caller.is_administrator())
}

fn may_see(caller: &Caller<'_>, subject: &Subject, volume_owner: impl FnOnce() -> ViceId) -> bool {
    if subject.is_file() {
        let own = subject.is_own(caller) && caller.id != ViceId::ANONYMOUS;
        subject.rights.contains(Rights::READ) || own
    } else {
        subject.rights.contains(Rights::LOOKUP) || caller.owns_volume(volume_owner())
    }
}

/// Checks that the caller may write the data, and set this status with it.
///
/// # Errors
///
/// EACCES; EPERM for a change of owner or group.
pub fn store_data(caller: &Caller<'_>, subject: &Subject, status: &AfsStoreStatus) -> Result<(), Failure> {
    let vanilla = !caller.is_administrator();
    owner_and_group(subject, status, vanilla)?;
    if subject.is_own(caller) {
        return Ok(());
    }
    set_ids(status, vanilla)?;
    allow(subject.rights.contains(Rights::WRITE))?;
    // Who makes a file without the bit still owns it, and comes no further than the line above.
    allow(subject.file_type == FileType::DIRECTORY || subject.mode & OWNER_WRITE != 0 || !vanilla)
}

/// Checks that the caller may set this status.
///
/// # Errors
///
/// EACCES; EPERM for a change of owner or group.
pub fn store_status(caller: &Caller<'_>, subject: &Subject, status: &AfsStoreStatus) -> Result<(), Failure> {
    if caller.is_administrator() {
        return Ok(());
    }
    owner_and_group(subject, status, true)?;
    if subject.is_own(caller) {
        return Ok(());
    }
    set_ids(status, true)?;
    allow(if subject.file_type == FileType::DIRECTORY {
        subject.rights.intersects(Rights::DELETE | Rights::INSERT)
    } else {
        subject.rights.contains(Rights::WRITE)
    })
}

/// Owner and group are changed by administrators only.
fn owner_and_group(subject: &Subject, status: &AfsStoreStatus, vanilla: bool) -> Result<(), Failure> {
    let owner = status.mask.contains(StoreMask::OWNER) && status.owner != subject.owner;
    let group = status.mask.contains(StoreMask::GROUP) && status.group != subject.group;
    if vanilla && (owner || group) { Err(Failure::NOT_OWNER) } else { Ok(()) }
}

fn set_ids(status: &AfsStoreStatus, vanilla: bool) -> Result<(), Failure> {
    let wants = status.mask.contains(StoreMask::MODE) && status.unix_mode_bits & SET_ID != 0;
    allow(!vanilla || !wants)
}

/// Checks that the caller may change the access list.
///
/// # Errors
///
/// EACCES.
pub fn store_acl(
    caller: &Caller<'_>,
    subject: &Subject,
    volume_owner: impl FnOnce() -> ViceId,
) -> Result<(), Failure> {
    let may = subject.rights.contains(Rights::ADMINISTER) || caller.is_administrator();
    allow(may || caller.owns_volume(volume_owner()))
}

/// The users who may change what is on a server, where their rights allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Everybody who has the rights.
    Everybody,
    /// Members of `system:administrators` (OpenAFS's `-readonly -admin-write`).
    Administrators,
    /// Nobody (`-readonly`).
    Nobody,
}

/// Checks that the caller may change anything here. Comes before the check of rights.
///
/// # Errors
///
/// EROFS.
pub fn to_write(caller: &Caller<'_>, writers: Writers) -> Result<(), Failure> {
    let may = match writers {
        Writers::Everybody => true,
        Writers::Administrators => caller.is_administrator(),
        Writers::Nobody => false,
    };
    if may { Ok(()) } else { Err(Failure::READ_ONLY) }
}

/// Checks that the caller may do in a directory what needs all of `needed` there.
///
/// # Errors
///
/// EACCES.
pub fn in_directory(rights: Rights, needed: Rights) -> Result<(), Failure> {
    allow(rights.contains(needed))
}

/// Checks that the caller may lock for reading, or extend a lock.
///
/// # Errors
///
/// EACCES.
pub fn lock_to_read(caller: &Caller<'_>, subject: &Subject) -> Result<(), Failure> {
    allow(subject.rights.intersects(Rights::LOCK | Rights::WRITE) || subject.is_own(caller))
}

/// Checks that the caller may lock for writing.
///
/// # Errors
///
/// EACCES.
pub fn lock_to_write(caller: &Caller<'_>, subject: &Subject) -> Result<(), Failure> {
    allow(subject.rights.contains(Rights::WRITE) || subject.is_own(caller))
}

/// The mode that is stored: the bits that let a file run as its owner are cleared when anybody but an administrator sets a
/// mode or writes (observed: the owner's 04755 and 02755 became 0755, without an error).
pub fn stored_mode(caller: &Caller<'_>, mode: u32) -> u32 {
    let mode = mode & 0o7777;
    if caller.is_administrator() { mode } else { mode & !SET_ID }
}

#[cfg(test)]
#[path = "access/tests.rs"]
mod tests;
