//! A volume: its header and state, and what can be asked and set of its vnodes. Names are in `namespace`, bytes of
//! files in `data`.

use crate::{AccessList, SetStatus, Stamp, VnodeId, VnodeStatus, VolumeError, VolumeHeader, VolumeInfo, VolumeState};
use afs_wire::ids::{AfsTime, VolumeId};

/// A volume of a partition. All methods may be called by many threads; each is done at once or not at all, in some
/// order for the whole volume. Those that change something return when it cannot be lost with the process.
///
/// A volume's [`VolumeState`] binds its servers, not these methods: volume operations work on volumes that are
/// offline. What serves clients asks [`Volume::check_online`] first.
#[derive(Debug)]
pub struct Volume {
    pub(crate) id: VolumeId,
}

#[expect(clippy::unused_self, unused_variables, clippy::needless_pass_by_value, reason = "signatures first")]
impl Volume {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.id
    }

    /// Whether vnodes of it can be changed: it is no clone, nor was it made read-only.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        false
    }

    /// Its header now.
    #[must_use]
    pub fn header(&self) -> VolumeHeader {
        unreachable!("signatures first")
    }

    /// Its creation date alone, for `AFSVolSync` in every reply.
    #[must_use]
    pub fn creation_date(&self) -> AfsTime {
        AfsTime(0)
    }

    /// Changes its header.
    ///
    /// # Errors
    ///
    /// The volume is gone; the disk failed.
    pub fn change_info(&self, change: impl FnOnce(&mut VolumeInfo)) -> Result<(), VolumeError> {
        Err(VolumeError::DiskFull)
    }

    /// Notes that a client used it, for `day_use` and the access date. Written to disk some time later.
    pub fn note_use(&self, now: AfsTime) {}

    /// Whether clients are served from it.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        VolumeState::Online
    }

    /// Sets that. The state stays as it is if the disk failed.
    pub fn set_state(&self, state: VolumeState) {}

    /// Whether clients may be served from it now.
    ///
    /// # Errors
    ///
    /// [`VolumeError::Busy`] or [`VolumeError::Offline`]; [`VolumeError::NoVolume`] if it was deleted.
    pub fn check_online(&self) -> Result<(), VolumeError> {
        Err(VolumeError::NoVolume(self.id))
    }

    /// The status of a vnode.
    ///
    /// # Errors
    ///
    /// There is none; the disk failed.
    pub fn status(&self, id: VnodeId) -> Result<VnodeStatus, VolumeError> {
        Err(VolumeError::NoVnode(id.vnode))
    }

    /// The status of a vnode, and the access list that governs it: a directory's own, else that of its directory.
    ///
    /// # Errors
    ///
    /// As [`Volume::status`].
    pub fn status_and_acl(&self, id: VnodeId) -> Result<(VnodeStatus, AccessList), VolumeError> {
        Err(VolumeError::NoVnode(id.vnode))
    }

    /// Sets what is told of a vnode. Its data version stays. The owner of the root directory becomes the volume's.
    ///
    /// # Errors
    ///
    /// No such vnode; read-only; the disk failed.
    pub fn set_status(&self, id: VnodeId, set: &SetStatus, stamp: Stamp) -> Result<VnodeStatus, VolumeError> {
        Err(VolumeError::NoVnode(id.vnode))
    }

    /// Replaces a directory's access list.
    ///
    /// # Errors
    ///
    /// No such vnode, or no directory; too many entries; read-only; the disk failed.
    pub fn set_acl(&self, id: VnodeId, acl: &AccessList, stamp: Stamp) -> Result<VnodeStatus, VolumeError> {
        Err(VolumeError::NoVnode(id.vnode))
    }

    /// The vnodes there are, in the order of their numbers, from a number on and at most `limit`: for dumps and
    /// checks.
    ///
    /// # Errors
    ///
    /// The disk failed.
    pub fn vnodes(&self, from: u32, limit: usize) -> Result<Vec<VnodeStatus>, VolumeError> {
        Err(VolumeError::DiskFull)
    }
}
