//! Advisory locks: the calls, and their old forms.

use afs_wire::ids::AfsFid;
use afs_wire::rxafs::{self, ViceLockType, reply};
use afs_wire::status::AfsVolSync;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{Outcome, Session, handlers};
use crate::access;
use crate::failure::Failure;
use crate::locks::{Kind, LockError, Locks};

handlers! {
    SetLock set_lock;
    ExtendLock extend_lock;
    ReleaseLock release_lock;
    OldSetLock old_set_lock;
    OldExtendLock old_extend_lock;
    OldReleaseLock old_release_lock;
}

impl Session {
    async fn set_lock(&self, args: rxafs::SetLock) -> Outcome<reply::SetLock> {
        Ok(reply::SetLock { sync: self.lock(args.fid, args.kind)? })
    }

    async fn old_set_lock(&self, args: rxafs::OldSetLock) -> Outcome<reply::OldSetLock> {
        self.lock(args.fid, args.kind)?;
        Ok(reply::OldSetLock {})
    }

    async fn extend_lock(&self, args: rxafs::ExtendLock) -> Outcome<reply::ExtendLock> {
        Ok(reply::ExtendLock { sync: self.extend(args.fid)? })
    }

    async fn old_extend_lock(&self, args: rxafs::OldExtendLock) -> Outcome<reply::OldExtendLock> {
        self.extend(args.fid)?;
        Ok(reply::OldExtendLock {})
    }

    async fn release_lock(&self, args: rxafs::ReleaseLock) -> Outcome<reply::ReleaseLock> {
        Ok(reply::ReleaseLock { sync: self.release(args.fid)? })
    }

    async fn old_release_lock(&self, args: rxafs::OldReleaseLock) -> Outcome<reply::OldReleaseLock> {
        self.release(args.fid)?;
        Ok(reply::OldReleaseLock {})
    }

    fn lock(&self, fid: AfsFid, kind: ViceLockType) -> Outcome<AfsVolSync> {
        let kind = match kind {
            ViceLockType::READ => Kind::Read,
            ViceLockType::WRITE => Kind::Write,
            _ => return Err(Failure::INVALID),
        };
        let volume = self.volume(fid)?;
        let seen = self.look(&volume, fid)?;
        match kind {
            Kind::Read => access::lock_to_read(&self.caller(), &seen.subject)?,
            Kind::Write => access::lock_to_write(&self.caller(), &seen.subject)?,
        }
        // Nobody changes it, so a lock for reading holds without being kept.
        match (volume.is_writable(), kind) {
            (true, _) => self.locks().set(self.server.runtime.now(), fid, kind).map_err(of)?,
            (false, Kind::Read) => {}
            (false, Kind::Write) => return Err(Failure::READ_ONLY),
        }
        Ok(Self::sync(&volume))
    }

    fn extend(&self, fid: AfsFid) -> Outcome<AfsVolSync> {
        let volume = self.volume(fid)?;
        let seen = self.look(&volume, fid)?;
        access::lock_to_read(&self.caller(), &seen.subject)?;
        if volume.is_writable() {
            self.locks().extend(self.server.runtime.now(), fid).map_err(of)?;
        }
        Ok(Self::sync(&volume))
    }

    /// Needs no right, and no lock (observed). When the last lock goes, other holders of promises are told that the file has changed,
    /// as stock servers do: that is what a kAFS client that waits for the lock waits for. The caller does not wait for them, since
    /// nothing has changed that they could miss.
    fn release(&self, fid: AfsFid) -> Outcome<AfsVolSync> {
        let volume = self.volume(fid)?;
        self.look(&volume, fid)?;
        if self.locks().release(self.server.runtime.now(), fid) {
            let (server, caller) = (Arc::clone(&self.server), self.host());
            self.server.runtime.spawn(Box::pin(async move {
                server.clients.changed(fid, Some(caller), server.clients.break_deadline()).await;
            }));
        }
        Ok(Self::sync(&volume))
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        self.server.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(error: LockError) -> Failure {
    match error {
        LockError::Held => Failure::AGAIN,
        LockError::NotLocked => Failure::INVALID,
    }
}
