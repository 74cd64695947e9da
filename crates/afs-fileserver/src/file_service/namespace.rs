//! Names: making, removing, renaming and linking.
//!
//! Changes of one directory are made one after the other, so that what was checked still holds when the change is made. Others
//! are told after that, and before the caller (File service notes 7.2 has who, and in which order).

use afs_volume::{Kind, VnodeStatus};
use afs_wire::ids::AfsFid;
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, reply};
use afs_wire::status::{AfsStoreStatus, StoreMask};

use super::{Outcome, Session, fid_of, handlers};
use crate::access::{self, Granted};
use crate::failure::Failure;

/// The ending that no name may have: clients replace it by the name of their system.
const SYSTEM_NAME: &[u8] = b"@sys";

/// The mode bits that mark a mount point: it lacks at least one of them.
const EXECUTE: u32 = 0o111;

handlers! {
    CreateFile create_file;
    MakeDir make_dir;
    Symlink symlink;
    Link link;
    RemoveFile remove_file;
    RemoveDir remove_dir;
    Rename rename;
    Lookup lookup;
    DFSSymlink dfs_symlink;
}

impl Session {
    async fn create_file(&self, args: rxafs::CreateFile) -> Outcome<reply::CreateFile> {
        let rxafs::CreateFile { dir, name, status } = args;
        check_name(&name)?;
        let volume = self.writable(dir)?;
        let lock = self.lock_vnode(dir).await;
        let seen = self.look_in(&volume, dir, Rights::INSERT)?;
        not_dots(&name)?;
        let (set, stamp) = (self.to_set(&status), self.stamp());
        let made =
            self.change(&volume, move |volume| volume.create_file((&dir).into(), &name, &set, stamp)).await?;
        let fid = fid_of(volume.id(), made.vnode.id);
        let callback = self.promise_new(&volume, &made.vnode);
        drop(lock);
        self.tell_others(dir, self.break_deadline()).await;
        let (status, dir_status) = self.both(fid, &made.vnode, dir, &made.directory, seen.granted);
        Ok(reply::CreateFile { fid, status, dir_status, callback, sync: Self::sync(&volume) })
    }

    async fn make_dir(&self, args: rxafs::MakeDir) -> Outcome<reply::MakeDir> {
        let rxafs::MakeDir { dir, name, status } = args;
        check_name(&name)?;
        let volume = self.writable(dir)?;
        let lock = self.lock_vnode(dir).await;
        let seen = self.look_in(&volume, dir, Rights::INSERT)?;
        not_dots(&name)?;
        let (set, stamp) = (self.to_set(&status), self.stamp());
        let made =
            self.change(&volume, move |volume| volume.make_dir((&dir).into(), &name, &set, stamp)).await?;
        let fid = fid_of(volume.id(), made.vnode.id);
        let callback = self.promise_new(&volume, &made.vnode);
        drop(lock);
        self.tell_others(dir, self.break_deadline()).await;
        // The new directory's access list is a copy of its parent's.
        let (status, dir_status) = self.both(fid, &made.vnode, dir, &made.directory, seen.granted);
        Ok(reply::MakeDir { fid, status, dir_status, callback, sync: Self::sync(&volume) })
    }

    async fn symlink(&self, args: rxafs::Symlink) -> Outcome<reply::Symlink> {
        let rxafs::Symlink { dir, name, contents, status } = args;
        check_name(&name)?;
        let volume = self.writable(dir)?;
        let lock = self.lock_vnode(dir).await;
        let seen = self.look_in(&volume, dir, Rights::INSERT)?;
        not_dots(&name)?;
        if is_mount_point(&status) && !self.caller().is_administrator() {
            access::in_directory(seen.granted.caller, Rights::ADMINISTER)?;
        }
        let (set, stamp) = (self.to_set(&status), self.stamp());
        let made = self
            .change(&volume, move |volume| volume.symlink((&dir).into(), &name, &contents, &set, stamp))
            .await?;
        drop(lock);
        self.tell_others(dir, self.break_deadline()).await;
        let fid = fid_of(volume.id(), made.vnode.id);
        let (status, dir_status) = self.both(fid, &made.vnode, dir, &made.directory, seen.granted);
        Ok(reply::Symlink { fid, status, dir_status, sync: Self::sync(&volume) })
    }

    async fn link(&self, args: rxafs::Link) -> Outcome<reply::Link> {
        let rxafs::Link { dir, name, existing } = args;
        if dir.volume != existing.volume {
            return Err(Failure::CROSS_DEVICE);
        }
        check_name(&name)?;
        let volume = self.writable(dir)?;
        if existing.vnode.0 == 0 {
            return Err(Failure::INVALID);
        }
        let lock = self.lock_vnode(dir).await;
        let seen = self.look_in(&volume, dir, Rights::INSERT)?;
        not_dots(&name)?;
        let stamp = self.stamp();
        let linked = self
            .change(&volume, move |volume| volume.link((&dir).into(), &name, (&existing).into(), stamp))
            .await?;
        drop(lock);
        let until = self.break_deadline();
        self.tell_others(dir, until).await;
        self.tell_others(existing, until).await;
        let (status, dir_status) = self.both(existing, &linked.vnode, dir, &linked.directory, seen.granted);
        Ok(reply::Link { status, dir_status, sync: Self::sync(&volume) })
    }

    async fn remove_file(&self, args: rxafs::RemoveFile) -> Outcome<reply::RemoveFile> {
        let rxafs::RemoveFile { dir, name } = args;
        let volume = self.writable(dir)?;
        let lock = self.lock_vnode(dir).await;
        let seen = self.look_in(&volume, dir, Rights::DELETE)?;
        let stamp = self.stamp();
        let removed =
            self.change(&volume, move |volume| volume.remove_file((&dir).into(), &name, stamp)).await?;
        drop(lock);
        let until = self.break_deadline();
        let fid = fid_of(volume.id(), removed.id);
        match removed.left {
            Some(_) => self.tell_all(fid, until).await,
            None => self.forget(fid),
        }
        self.tell_others(dir, until).await;
        let dir_status = self.fetch_status(dir, &removed.directory, seen.granted);
        Ok(reply::RemoveFile { dir_status, sync: Self::sync(&volume) })
    }

    async fn remove_dir(&self, args: rxafs::RemoveDir) -> Outcome<reply::RemoveDir> {
        let rxafs::RemoveDir { dir, name } = args;
        let volume = self.writable(dir)?;
        let lock = self.lock_vnode(dir).await;
        let seen = self.look_in(&volume, dir, Rights::DELETE)?;
        if is_dots(&name) {
            return Err(Failure::INVALID);
        }
        let stamp = self.stamp();
        let removed =
            self.change(&volume, move |volume| volume.remove_dir((&dir).into(), &name, stamp)).await?;
        drop(lock);
        self.forget(fid_of(volume.id(), removed.id));
        self.tell_others(dir, self.break_deadline()).await;
        let dir_status = self.fetch_status(dir, &removed.directory, seen.granted);
        Ok(reply::RemoveDir { dir_status, sync: Self::sync(&volume) })
    }

    async fn rename(&self, args: rxafs::Rename) -> Outcome<reply::Rename> {
        let rxafs::Rename { old_dir, old_name, new_dir, new_name } = args;
        check_name(&new_name)?;
        if old_dir.volume != new_dir.volume {
            return Err(Failure::CROSS_DEVICE);
        }
        let volume = self.writable(old_dir)?;
        self.writable(new_dir)?;
        if is_dots(&old_name) || is_dots(&new_name) {
            return Err(Failure::INVALID);
        }
        let lock = self.lock_vnodes(old_dir, new_dir).await;
        let old = self.look_in(&volume, old_dir, Rights::DELETE)?;
        let new = self.look_in(&volume, new_dir, Rights::INSERT)?;
        if volume.lookup((&new_dir).into(), &new_name).is_ok() {
            access::in_directory(new.granted.caller, Rights::DELETE)?;
        }
        let stamp = self.stamp();
        let renamed = self
            .change(&volume, move |volume| {
                volume.rename((&old_dir).into(), &old_name, (&new_dir).into(), &new_name, stamp)
            })
            .await?;
        drop(lock);
        let until = self.break_deadline();
        self.tell_others(new_dir, until).await;
        if old_dir != new_dir {
            self.tell_others(old_dir, until).await;
            if renamed.moved.kind == Kind::Directory {
                self.tell_all(fid_of(volume.id(), renamed.moved.id), until).await;
            }
        }
        if let Some((id, left)) = renamed.replaced {
            let fid = fid_of(volume.id(), id);
            match left {
                Some(_) => self.tell_all(fid, until).await,
                None => self.forget(fid),
            }
        }
        Ok(reply::Rename {
            old_dir_status: self.fetch_status(old_dir, &renamed.old_directory, old.granted),
            new_dir_status: self.fetch_status(new_dir, &renamed.new_directory, new.granted),
            sync: Self::sync(&volume),
        })
    }

    /// Refuses, without translation (observed): this is not served.
    async fn lookup(&self, _args: rxafs::Lookup) -> Outcome<reply::Lookup> {
        Err(Failure::PLAIN_INVALID)
    }

    /// The same.
    async fn dfs_symlink(&self, _args: rxafs::DFSSymlink) -> Outcome<reply::DFSSymlink> {
        Err(Failure::PLAIN_INVALID)
    }

    /// The statuses of something and of its directory, whose access list is that of both.
    fn both(
        &self,
        fid: AfsFid,
        vnode: &VnodeStatus,
        dir: AfsFid,
        directory: &VnodeStatus,
        granted: Granted,
    ) -> (afs_wire::status::AfsFetchStatus, afs_wire::status::AfsFetchStatus) {
        (self.fetch_status(fid, vnode, granted), self.fetch_status(dir, directory, granted))
    }
}

/// Checks that something may get this name.
fn check_name(name: &[u8]) -> Outcome<()> {
    let is_bad = name.is_empty() || name.contains(&b'/') || name.ends_with(SYSTEM_NAME);
    if is_bad { Err(Failure::INVALID) } else { Ok(()) }
}

/// "." and ".." are in every directory already.
fn not_dots(name: &[u8]) -> Outcome<()> {
    if is_dots(name) { Err(Failure::EXISTS) } else { Ok(()) }
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Clients mark a mount point by a mode that lacks a right to execute.
fn is_mount_point(status: &AfsStoreStatus) -> bool {
    status.mask.contains(StoreMask::MODE) && status.unix_mode_bits & EXECUTE != EXECUTE
}
