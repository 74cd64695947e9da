//! Stores whose answer never came: whether the server has carried them out, and whether what is dirty here may be stored on top. What tells a store
//! of ours is noted before it is sent ([`afs_cache::SentStore`]): the length and the modification time that it sets. Whose it is, the status tells.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use afs_cache::CacheFile;
use afs_wire::status::AfsFetchStatus;

use crate::data::files::{FileData, Files, local};
use crate::data::write::noted;
use afs_reach::error::Error;
use afs_reach::fid::User;
use afs_reach::users::IdentityIndex;

/// Starts of a server, one after the other, that may each have carried out the same store, as the client went on to send it: starting takes a
/// second or more, and the client gives up a call after 12 s of silence.
const STARTS_MAX: u64 = 8;

impl FileData {
    /// Finds out what has become at the server of a file that the last run left dirty: whether what was written may be stored
    /// on top of it. If others have changed it meanwhile, it is put aside.
    ///
    /// # Errors
    ///
    /// Those of the status.
    pub(crate) async fn settle(self: &Arc<Self>, user: User) -> Result<(), Error> {
        let files = self.files()?;
        let _one = self.storing.lock().await;
        self.settle_locked(&files, user).await
    }

    /// The same with `storing` held.
    pub(super) async fn settle_locked(self: &Arc<Self>, files: &Files, user: User) -> Result<(), Error> {
        if !self.is_unsettled.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(file) = self.current().filter(|file| file.is_dirty()) else {
            self.is_unsettled.store(false, Ordering::Release);
            return Ok(());
        };
        let fid = self.vnode.fid;
        // The writer may know, whoever asks now.
        let writer = files.users.who_wrote(noted(&file.writer()), fid.cell).unwrap_or(IdentityIndex::NOBODY);
        let asker = files.users.who(user, fid.cell);
        let mut status = files.statuses.fetch_status(writer, &self.vnode).await;
        if status.is_err() && writer != asker {
            status = files.statuses.fetch_status(asker, &self.vnode).await;
        }
        match status {
            Ok(status) => {
                let version = status.data_version.0;
                if version != file.version() && !self.adopt_own(files, &file, user, &status).await? {
                    let why = format!(
                        "the file was changed by others meanwhile: it is of version {version} at the server"
                    );
                    self.put_aside(files, &Error::Invalid { what: why });
                }
            }
            Err(error @ Error::Gone { .. }) => self.put_aside(files, &error),
            Err(error) => return Err(error),
        }
        self.is_unsettled.store(false, Ordering::Release);
        Ok(())
    }

    /// Takes the version that the server has as the base of what is dirty if a store of ours has made it whose answer never came: once, or once by
    /// each start of the server that got it. It has our length, our time and our number. That the same user has stored as many bytes in the same
    /// second on another machine cannot be told from it.
    ///
    /// # Errors
    ///
    /// The cache's; those of fetching what the server has.
    pub(super) async fn adopt_own(
        &self,
        files: &Files,
        file: &Arc<CacheFile>,
        user: User,
        status: &AfsFetchStatus,
    ) -> Result<bool, Error> {
        let version = status.data_version.0;
        let times = version.saturating_sub(file.version());
        let is_as_sent = file
            .sent()
            .is_some_and(|sent| (sent.length, sent.modified) == (status.length, status.client_mod_time.0));
        if !is_as_sent
            || !(1..=STARTS_MAX).contains(&times)
            || !self.is_of_writer(files, file, user, status).await?
        {
            return Ok(false);
        }
        match times {
            1 => file.adopt(version, status.length).map_err(local)?,
            _ => self.adopt_repeated(file, version, status.length)?,
        }
        Ok(true)
    }

    /// The answer to a store comes from another start of the server than the one that it was sent to: if both have carried it out, the version is
    /// the next one of the first's.
    ///
    /// # Errors
    ///
    /// The cache's.
    pub(super) fn note_repeated(&self, file: &CacheFile, status: &AfsFetchStatus) -> Result<(), Error> {
        let version = status.data_version.0;
        match (2..=STARTS_MAX).contains(&version.saturating_sub(file.version())) {
            true => self.adopt_repeated(file, version - 1, file.server_length()),
            false => Ok(()),
        }
    }

    /// Takes a version that others may have had a part in: they may have stored before ours, and what is clean here is not what the server has
    /// then.
    fn adopt_repeated(&self, file: &CacheFile, version: u64, length: u64) -> Result<(), Error> {
        tracing::debug!(fid = %self.vnode.fid, version, "a store was carried out more than once");
        file.adopt(version, length).map_err(local)?;
        file.let_go(0..0).map(drop).map_err(local)
    }

    /// True if the user who wrote here has stored what a status tells of. Where nobody knows the user's number at the server, as at a start, the data
    /// decide: nothing is lost where the server has what is here.
    async fn is_of_writer(
        &self,
        files: &Files,
        file: &Arc<CacheFile>,
        user: User,
        status: &AfsFetchStatus,
    ) -> Result<bool, Error> {
        let writer = files.users.who_wrote(noted(&file.writer()), self.vnode.fid.cell);
        match writer.ok().and_then(|who| files.users.is_called(who, status.author)) {
            Some(is_author) => Ok(is_author),
            None if !file.is_complete() || file.length() != status.length => Ok(false),
            None => match files.begins_with(user, file, (self.vnode.fid, status.length)).await {
                Err(error) if !error.is_passing() => Ok(false),
                is_same => is_same,
            },
        }
    }
}
