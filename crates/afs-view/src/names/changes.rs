//! Changes of names: making and removing entries, links, renaming. Each change is one call. Its reply tells what has
//! changed, and the client edits its copy of the directory's pages if nothing else has happened to the directory.
//!
//! **Repeated calls.** If a call breaks, nobody knows whether the server has carried it out. The client makes it again.
//! If it then fails because the result is there already, the client looks: what is as the first attempt would have left
//! it counts as success.
//!
//! **Files that are open** and lose their last name live on under the name `.__afs` and a number in their directory
//! until they are closed, as with OpenAFS, because AFS servers do not know which files are open. While a file that
//! nobody has open loses its last name, nobody can open it: a program that tries looks the name up again, and that
//! waits for the outcome.

mod ends;
mod here;

use std::sync::{Arc, Weak};

use afs_cache::{Cache, Change, NewKind};
use afs_wire::Errno;
use afs_wire::abort;
use afs_wire::ids::Path;
use afs_wire::rxafs::{CreateFile, Link, MakeDir, Symlink};
use afs_wire::status::{AfsStoreStatus, StoreMask};
use rx_proto::time::Instant;
use rxgen::Rpc;

use crate::data::files::Files;
use crate::data::fsync::Recorder;
use crate::data::open_files::OpenFiles;
use crate::data::streams::Streams;
use crate::data::write_behind;
use crate::journal::{Journal, Replay};
use crate::names::directory::Directories;
use crate::names::dynroot::DynamicRoot;
use crate::names::links::Links;
use crate::names::lookup::{Found, Made, Names, SysNames, new_name};
use crate::names::mount_point::{MountPoints, MountText};
use crate::names::snapshots::Snapshots;
use crate::vnodes::attributes::Statuses;
use crate::vnodes::status::{Kind, unix_time};
use crate::vnodes::table::Vnodes;
use crate::vnodes::vnode::{Cause, PendingChange, Vnode};
use afs_reach::error::Error;
use afs_reach::fid::{Fid, User};
use afs_reach::remote::{Calls, Failure};
use afs_reach::users::IdentityIndex;

/// The mode of symbolic links. The x bits say that they are no mount points (File service notes 11).
const LINK_MODE: u32 = 0o777;

/// The mode of mount points.
const MOUNT_MODE: u32 = 0o644;

/// A directory that is about to be changed, by one of us at a time.
struct Changing {
    who: IdentityIndex,
    dir: Fid,
    vnode: Arc<Vnode>,
}

/// True if a failure says that something is there, or is not.
fn says(failure: &Failure, errno: Errno) -> bool {
    failure.code().and_then(abort::errno) == Some(errno)
}

/// Translates a server's EISDIR for a link to something that is no file, even a symbolic link: POSIX has EPERM for that.
fn not_linked(error: Error) -> Error {
    match error {
        Error::Refused { rpc, fid, code } if abort::errno(code) == Some(Errno::EISDIR) => {
            Error::Refused { rpc, fid, code: Errno::EPERM.uae().unwrap_or(code) }
        }
        other => other,
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// What the client's configuration says of names.
#[derive(Debug)]
pub struct Options {
    /// See `Config::fakestat` of `afs-client`.
    pub is_fakestat: bool,
    /// See `Config::shows_snapshots`.
    pub shows_snapshots: bool,
    /// The values of `@sys`.
    pub sysnames: SysNames,
}

/// Changes of names: who is asked to make them, and what is edited here afterwards.
#[derive(Debug)]
pub struct Changes {
    pub(crate) calls: Arc<Calls>,
    pub(crate) vnodes: Arc<Vnodes>,
    pub(crate) statuses: Arc<Statuses>,
    /// The look-up of names.
    pub names: Arc<Names>,
    /// The pages of directories.
    pub directories: Arc<Directories>,
    /// The mount points, which are crossed.
    pub mount_points: Arc<MountPoints>,
    /// The texts of links.
    pub links: Arc<Links>,
    /// The files that are open and lose their names.
    pub open_files: Arc<OpenFiles>,
    /// The files' data: what is not stored of a file that is removed goes with it.
    pub files: Arc<Files>,
    /// What was changed here and is not at the server yet.
    pub replay: Arc<Replay>,
}

impl Recorder for Changes {
    fn record(&self, user: User, change: Change<Fid>) -> Result<(), Error> {
        self.replay.record(user, change)
    }
}

impl Changes {
    /// Makes the parts that look up and change names, and the part that holds the data of files: they are its fields.
    pub fn new(
        calls: &Arc<Calls>,
        statuses: &Arc<Statuses>,
        cache: Cache,
        dynamic_root: &Arc<DynamicRoot>,
        options: Options,
        write_behind: write_behind::Options,
    ) -> Arc<Self> {
        let vnodes = &statuses.vnodes;
        let streams = Streams::new(Arc::clone(statuses));
        let links = Arc::new(Links {
            vnodes: Arc::clone(vnodes),
            statuses: Arc::clone(statuses),
            streams: streams.clone(),
            dynamic_root: Arc::clone(dynamic_root),
        });
        let mount_points = Arc::new(MountPoints::new(
            Arc::clone(calls),
            Arc::clone(statuses),
            Arc::clone(&links),
            Arc::clone(dynamic_root),
            options.is_fakestat,
        ));
        // Hidden names go by changes of names, which ask which files are open.
        let journal = Arc::new(Journal::new(Arc::clone(&vnodes.local_ids.pause)));
        Arc::new_cyclic(|changes: &Weak<Self>| {
            let open_files = Arc::new(OpenFiles::new(Arc::clone(&calls.runtime), changes.clone()));
            let files = Files::new(
                cache,
                Arc::clone(calls),
                Arc::clone(statuses),
                streams.clone(),
                Arc::clone(&open_files),
                (write_behind, Arc::clone(&journal)),
                changes.clone(),
            );
            let files = Arc::new(files);
            let directories = Arc::new(Directories {
                runtime: Arc::clone(&calls.runtime),
                users: Arc::clone(&calls.users),
                vnodes: Arc::clone(vnodes),
                statuses: Arc::clone(statuses),
                streams,
                dynamic_root: Arc::clone(dynamic_root),
                snapshots: Arc::new(Snapshots::new(calls, vnodes)),
                shows_snapshots: options.shows_snapshots,
                mount_points: Arc::clone(&mount_points),
                open_files: Arc::clone(&open_files),
            });
            let names = Arc::new(Names {
                directories: Arc::clone(&directories),
                mount_points: Arc::clone(&mount_points),
                dynamic_root: Arc::clone(dynamic_root),
                dns: Arc::clone(&calls.dns),
                vnodes: Arc::clone(vnodes),
                open_files: Arc::clone(&open_files),
                sysnames: options.sysnames,
            });
            let replay = Arc::new(Replay {
                journal,
                calls: Arc::clone(calls),
                vnodes: Arc::clone(vnodes),
                statuses: Arc::clone(statuses),
                directories: Arc::clone(&directories),
                files: Arc::clone(&files),
            });
            Self {
                calls: Arc::clone(calls),
                vnodes: Arc::clone(vnodes),
                statuses: Arc::clone(statuses),
                names,
                directories,
                mount_points,
                links,
                open_files,
                files,
                replay,
            }
        })
    }

    fn now(&self) -> Instant {
        self.calls.runtime.now()
    }

    async fn changing(&self, user: User, dir: Fid) -> Result<Changing, Error> {
        let real = self.mount_points.real(user, dir).await?;
        if real.is_made_up() {
            return Err(Error::ReadOnly { fid: dir });
        }
        if !real.vnode.is_directory() {
            return Err(Error::NotADirectory { fid: dir });
        }
        let vnode = self.vnodes.get_or_add(real);
        if vnode.volume.is_read_only() {
            return Err(Error::ReadOnly { fid: dir });
        }
        Ok(Changing { who: self.calls.users.who(user, real.cell), dir: real, vnode })
    }

    /// The status to make something with.
    fn made_with(&self, mode: u32) -> AfsStoreStatus {
        AfsStoreStatus {
            mask: StoreMask::MODE | StoreMask::MOD_TIME,
            unix_mode_bits: mode & 0o7777,
            client_mod_time: unix_time(&*self.calls.runtime),
            ..AfsStoreStatus::default()
        }
    }

    /// The entry of a name, as the server has it now.
    async fn entry_anew(&self, user: User, changing: &Changing, name: &[u8]) -> Result<Fid, Error> {
        changing.vnode.forget();
        self.names.entry(user, changing.dir, name).await
    }
}

impl Changes {
    /// See `Client::create`.
    pub async fn create(&self, user: User, dir: Fid, name: &[u8], mode: u32) -> Result<Made, Error> {
        let wire_name = new_name(name)?;
        let changing = self.changing(user, dir).await?;
        let guard = changing.vnode.changing.lock().await;
        if let Some(fid) = self.make_here(user, &changing, name, &NewKind::File, mode)? {
            drop(guard);
            return Ok(Found { fid, status: self.mount_points.status(user, fid).await? });
        }
        let in_cell = self.settled(&changing).await?;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = CreateFile { dir: in_cell, name: wire_name, status: self.made_with(mode) };
        let answer = match self.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let fid = self.entry_anew(user, &changing, name).await;
                drop(guard);
                if let (true, Ok(fid)) = (was_ambiguous, fid) {
                    let status = self.mount_points.status(user, fid).await?;
                    if status.kind == Kind::File && status.length == 0 {
                        return Ok(Found { fid, status });
                    }
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(failure.of(CreateFile::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, self.now());
        let fid = changing.dir.sibling(reply.fid.local());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        let in_dir = (who, changing.dir.in_volume());
        let callback = Some(&reply.callback);
        self.vnodes.note_made(
            now,
            fid,
            (&before, &responder),
            in_dir,
            (&reply.status, Cause::Asked),
            callback,
        );
        drop(guard);
        Ok(Found { fid, status: self.mount_points.status(user, fid).await? })
    }

    /// See `Client::make_dir`.
    pub async fn make_dir(&self, user: User, dir: Fid, name: &[u8], mode: u32) -> Result<Made, Error> {
        let wire_name = new_name(name)?;
        let changing = self.changing(user, dir).await?;
        let guard = changing.vnode.changing.lock().await;
        if let Some(fid) = self.make_here(user, &changing, name, &NewKind::Directory, mode)? {
            drop(guard);
            return Ok(Found { fid, status: self.mount_points.status(user, fid).await? });
        }
        let in_cell = self.settled(&changing).await?;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = MakeDir { dir: in_cell, name: wire_name, status: self.made_with(mode) };
        let answer = match self.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let fid = self.entry_anew(user, &changing, name).await;
                drop(guard);
                if let (true, Ok(fid)) = (was_ambiguous, fid)
                    && fid.vnode.is_directory()
                    && self.directories.pages_of(user, fid).await?.directory.is_empty()
                {
                    return Ok(Found { fid, status: self.mount_points.status(user, fid).await? });
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(failure.of(MakeDir::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, self.now());
        let fid = changing.dir.sibling(reply.fid.local());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        let in_dir = (who, changing.dir.in_volume());
        let callback = Some(&reply.callback);
        self.vnodes.note_made(
            now,
            fid,
            (&before, &responder),
            in_dir,
            (&reply.status, Cause::Asked),
            callback,
        );
        drop(guard);
        Ok(Found { fid, status: self.mount_points.status(user, fid).await? })
    }

    /// See `Client::symlink`.
    pub async fn symlink(&self, user: User, dir: Fid, name: &[u8], target: &[u8]) -> Result<Made, Error> {
        let fid = self.link_with_text(user, dir, name, target, LINK_MODE).await?;
        Ok(Found { fid, status: self.statuses.own_status(user, fid, fid).await? })
    }

    /// See `Client::make_mount`.
    pub async fn make_mount(&self, user: User, dir: Fid, name: &[u8], text: &str) -> Result<Fid, Error> {
        if MountText::parse(text.as_bytes()).is_none() {
            return Err(Error::Invalid { what: format!("{text:?} cannot be a mount point's text") });
        }
        self.link_with_text(user, dir, name, text.as_bytes(), MOUNT_MODE).await
    }

    async fn link_with_text(
        &self,
        user: User,
        dir: Fid,
        name: &[u8],
        target: &[u8],
        mode: u32,
    ) -> Result<Fid, Error> {
        let wire_name = new_name(name)?;
        let contents = Path::new(target).map_err(|_| Error::NameTooLong { bytes: target.len() })?;
        let changing = self.changing(user, dir).await?;
        let _guard = changing.vnode.changing.lock().await;
        // Who makes a mount point wants the server to know it.
        if mode == LINK_MODE
            && let Some(fid) =
                self.make_here(user, &changing, name, &NewKind::Symlink(target.to_vec()), mode)?
        {
            return Ok(fid);
        }
        let in_cell = self.settled(&changing).await?;
        let pending = PendingChange::new([Arc::clone(&changing.vnode)]);
        let before = changing.vnode.snapshot();
        let who = changing.who;
        let args = Symlink { dir: in_cell, name: wire_name, contents, status: self.made_with(mode) };
        let answer = match self.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let fid = self.entry_anew(user, &changing, name).await;
                if let (true, Ok(fid)) = (was_ambiguous, fid)
                    && self.links.text(user, fid).await.is_ok_and(|text| text == target)
                {
                    return Ok(fid);
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(failure.of(Symlink::NAME, changing.dir)),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, self.now());
        let fid = changing.dir.sibling(reply.fid.local());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        let in_dir = (who, changing.dir.in_volume());
        let made = self.vnodes.note_made(
            now,
            fid,
            (&before, &responder),
            in_dir,
            (&reply.status, Cause::Asked),
            None,
        );
        made.set_link(target.to_vec().into());
        Ok(fid)
    }

    /// See `Client::link`.
    pub async fn link(&self, user: User, fid: Fid, dir: Fid, name: &[u8]) -> Result<Made, Error> {
        let wire_name = new_name(name)?;
        let changing = self.changing(user, dir).await?;
        if (fid.cell, fid.volume) != (changing.dir.cell, changing.dir.volume) {
            return Err(Error::Apart { from: fid, to: dir });
        }
        let guard = changing.vnode.changing.lock().await;
        if self.link_here(user, &changing, name, fid)? {
            drop(guard);
            return Ok(Found { fid, status: self.mount_points.status(user, fid).await? });
        }
        self.files.store_before_naming(user, fid).await?;
        self.replay.journal.settle(fid).await?;
        let (in_cell, existing) =
            (self.settled(&changing).await?, self.vnodes.local_ids.at_server(fid).await?);
        let file = self.vnodes.get_or_add(fid);
        let pending = PendingChange::new([Arc::clone(&changing.vnode), Arc::clone(&file)]);
        let (before, file_before) = (changing.vnode.snapshot(), file.snapshot());
        let who = changing.who;
        let args = Link { dir: in_cell, name: wire_name, existing: existing.in_cell() };
        let answer = match self.calls.try_call(who, changing.dir, args).await {
            Ok(answer) => answer,
            Err(failure) if says(&failure, Errno::EEXIST) => {
                let was_ambiguous = failure.is_ambiguous;
                let there = self.entry_anew(user, &changing, name).await;
                drop(guard);
                if was_ambiguous && there.is_ok_and(|there| there == fid) {
                    file.note_break();
                    return Ok(Found { fid, status: self.mount_points.status(user, fid).await? });
                }
                return Err(Error::Exists { dir, name: text(name) });
            }
            Err(failure) => return Err(not_linked(failure.of(Link::NAME, changing.dir))),
        };
        let (reply, responder) = (answer.reply, answer.responder);
        pending.done();
        let (vnode, now) = (&changing.vnode, self.now());
        vnode.note_change(now, (&before, &responder), who, &reply.dir_status, None);
        vnode.edit_pages(reply.dir_status.data_version, |pages| pages.insert(name, fid.in_volume()).is_ok());
        file.note_change(now, (&file_before, &responder), who, &reply.status, None);
        drop(guard);
        Ok(Found { fid, status: self.mount_points.status(user, fid).await? })
    }
}
