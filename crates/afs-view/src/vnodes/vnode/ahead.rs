//! What shows in a vnode of changes that were made here and are not at the server yet ([`crate::journal`]): names in a directory, attributes. What
//! is kept as the vnode's status and pages has them in it: they are put in when a change is made, and again whenever a server tells what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use afs_wire::directory::Directory;
use afs_wire::ids::{AfsTime, DataVersion, LocalFid};
use afs_wire::rights::Rights;
use afs_wire::status::{AfsFetchStatus, FileType};
use rx_proto::time::Instant;

use super::{Pages, Promise, Snapshot, State, Vnode};
use afs_reach::users::IdentityIndex;

/// The time for which the status of something that no server knows yet counts, until it is looked at again.
const HERE_FOR: Duration = Duration::from_secs(60);

/// What a change does to a vnode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A name of this directory names this now, and named that before.
    Name {
        /// The name.
        name: Vec<u8>,
        /// What it names.
        fid: LocalFid,
        /// What it named.
        replaced: Option<LocalFid>,
    },
    /// A name of this directory is gone.
    NoName {
        /// The name.
        name: Vec<u8>,
        /// What it named.
        fid: LocalFid,
    },
    /// Attributes are others; those that are `None` stay.
    Attributes {
        /// The mode bits.
        mode: Option<u32>,
        /// The time of modification.
        modified: Option<AfsTime>,
    },
    /// This file has a name more, or one less.
    Links(i32),
}

impl Effect {
    /// The links that this adds to the vnode.
    fn links(&self) -> i32 {
        match self {
            Self::Name { fid, .. } => i32::from(fid.vnode.is_directory()),
            Self::NoName { fid, .. } => -i32::from(fid.vnode.is_directory()),
            Self::Links(links) => *links,
            Self::Attributes { .. } => 0,
        }
    }

    fn is_of_names(&self) -> bool {
        matches!(self, Self::Name { .. } | Self::NoName { .. })
    }

    fn apply_to_status(&self, status: &mut AfsFetchStatus) {
        if let Self::Attributes { mode, modified } = *self {
            status.unix_mode_bits = mode.unwrap_or(status.unix_mode_bits);
            status.client_mod_time = modified.unwrap_or(status.client_mod_time);
        }
    }

    /// What the name had that is another than this change was made on, if it has.
    fn apply_to(&self, directory: &mut Directory) -> Option<LocalFid> {
        match self {
            Self::Name { name, fid, replaced } => {
                let found = directory.replace(name, *fid).map(|(found, _)| found);
                if found.is_none() {
                    // A full directory shows it no more; the server refuses it.
                    let _ = directory.insert(name, *fid);
                }
                found.filter(|found| found != fid && Some(*found) != *replaced)
            }
            Self::NoName { name, fid } => {
                directory.remove(name).map(|(found, _)| found).filter(|found| found != fid)
            }
            Self::Attributes { .. } | Self::Links(_) => None,
        }
    }
}

/// The changes of a vnode that are not at the server yet.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The effects of each change, by its number.
    effects: BTreeMap<u64, (AfsTime, Vec<Effect>)>,
    /// The sum of theirs.
    links: i32,
    /// Names that had something else, in pages that came from the server, than a change was made on.
    others: BTreeMap<u64, LocalFid>,
    /// Changes that were sent and not answered.
    sent: u64,
    /// A server did not answer a change: what it promised may have been broken meanwhile.
    is_doubtful: bool,
    /// A server has told another version without having promised to: others may have changed it, and what is missing is not ours alone.
    has_news: bool,
    /// The latest version that a change of ours has led to: pages of one before do not have it, and it is not ahead any more.
    reached: DataVersion,
    /// Versions that changes of ours have led to, beyond the pages'. Answers come in any order.
    own: BTreeSet<u64>,
}

impl Ahead {
    /// Puts what is ahead into a status that a server has told; `shown` is what was shown until then.
    pub(super) fn apply_to_status(&self, status: &mut AfsFetchStatus, shown: Option<&AfsFetchStatus>) {
        for (time, effects) in self.effects.values() {
            effects.iter().for_each(|effect| effect.apply_to_status(status));
            if effects.iter().any(Effect::is_of_names) {
                status.client_mod_time = status.client_mod_time.max(*time);
            }
            status.server_mod_time = status.server_mod_time.max(*time);
        }
        status.link_count = match shown.filter(|_| self.sent > 0 && status.file_type != FileType::DIRECTORY) {
            // Whether the server has told it with the change that is under way or without, nobody knows.
            Some(shown) => shown.link_count,
            None => status.link_count.saturating_add_signed(self.links),
        };
    }

    /// Puts what is ahead into names that were kept, which may have some of it already.
    pub(super) fn apply_to_names(&self, directory: &mut Arc<Directory>) {
        if self.effects.is_empty() {
            return;
        }
        let directory = Arc::make_mut(directory);
        for effect in self.effects.values().flat_map(|(_, effects)| effects) {
            // A server is asked what else is there before the change is sent.
            let _ = effect.apply_to(directory);
        }
    }

    /// The links that a vnode has without what is ahead.
    pub(super) fn links_without(&self, links: u32) -> u32 {
        links.saturating_add_signed(-self.links)
    }

    /// True if a change was sent and not answered.
    pub(super) fn is_being_sent(&self) -> bool {
        self.sent > 0
    }

    /// A server has told this version, without having promised before to tell of a change.
    pub(super) fn note_news(&mut self, pages: Option<DataVersion>, version: DataVersion) {
        self.has_news |= pages.is_some_and(|pages| pages != version);
    }

    /// True if pages of this version have all that made this one: what is missing are changes of ours, of which some are not answered yet.
    pub(super) fn bridges(&self, pages: DataVersion, version: DataVersion) -> bool {
        let ours = if self.has_news { 0 } else { self.own.len() as u64 + self.sent };
        version.0.checked_sub(pages.0).is_some_and(|gap| gap <= ours)
    }

    fn note_others(&mut self, number: u64, found: Option<LocalFid>) {
        if let Some(found) = found {
            self.others.insert(number, found);
        }
    }
}

impl State {
    /// The time until which the status counts, if it does: by a server's promise, or as no server knows of it.
    pub(super) fn good_until(&self, now: Instant, is_good: impl Fn(&Promise) -> bool) -> Option<Instant> {
        if self.is_here_only {
            return Some(now + HERE_FOR);
        }
        self.promise.as_ref().filter(|promise| is_good(promise)).map(|promise| promise.until)
    }

    /// Puts what is ahead of the server into pages that came from it.
    pub(super) fn with_ahead(&mut self, mut pages: Pages) -> Pages {
        let ahead = &mut self.ahead;
        ahead.others.clear();
        ahead.has_news = false;
        if ahead.effects.values().any(|(_, effects)| effects.iter().any(Effect::is_of_names)) {
            let directory = Arc::make_mut(&mut pages.directory);
            let effects = std::mem::take(&mut ahead.effects);
            for (number, (_, effects)) in &effects {
                for effect in effects {
                    ahead.note_others(*number, effect.apply_to(directory));
                }
            }
            ahead.effects = effects;
        }
        ahead.own.retain(|own| *own > pages.version.0);
        pages
    }
}

/// Changes that were made here.
impl Vnode {
    /// Notes that it was made here, by somebody with these rights on its directory, and that no server knows it.
    pub(crate) fn set_made_here(
        &self,
        status: &AfsFetchStatus,
        dir: LocalFid,
        access: Option<(IdentityIndex, Rights)>,
    ) {
        let mut state = self.state();
        state.is_here_only = true;
        state.status = Some(*status);
        state.parent = Some(dir);
        if status.file_type == FileType::DIRECTORY {
            let directory = Arc::new(Directory::new(self.fid.in_volume(), dir));
            state.pages = Some(Pages { directory, version: status.data_version });
            if let Some((who, rights)) = access {
                state.set_access(who, rights);
            }
        }
    }

    /// True if no server knows it.
    pub(crate) fn is_here_only(&self) -> bool {
        self.state().is_here_only
    }

    /// True if nothing of it would be lost if it was forgotten.
    pub(in crate::vnodes) fn can_be_forgotten(&self) -> bool {
        let state = self.state();
        !state.is_here_only && state.ahead.effects.is_empty()
    }

    /// Notes that a server knows it now, by its answer that has this version. `is_new`: the server has made it just now, and of a directory it has
    /// what is here without what is ahead.
    pub(crate) fn set_made_there(&self, version: DataVersion, is_new: bool) {
        let mut state = self.state();
        state.is_here_only = false;
        match &mut state.pages {
            Some(pages) if is_new => pages.version = version,
            _ => state.pages = None,
        }
    }

    /// Shows a change that was made here at a time.
    pub(crate) fn note_made_here(&self, number: u64, time: AfsTime, effects: Vec<Effect>) {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(pages) = &mut state.pages
            && effects.iter().any(Effect::is_of_names)
        {
            let directory = Arc::make_mut(&mut pages.directory);
            for effect in &effects {
                // What it was made on was just looked at.
                let _ = effect.apply_to(directory);
            }
        }
        let links: i32 = effects.iter().map(Effect::links).sum();
        state.ahead.links += links;
        if let Some(status) = &mut state.status {
            for effect in &effects {
                effect.apply_to_status(status);
            }
            if effects.iter().any(Effect::is_of_names) {
                status.client_mod_time = status.client_mod_time.max(time);
            }
            status.server_mod_time = status.server_mod_time.max(time);
            status.link_count = status.link_count.saturating_add_signed(links);
        }
        state.ahead.effects.insert(number, (time, effects));
    }

    /// A change is at the server, or came to nothing: it is no longer shown over what the server tells. What is shown of it stays until then.
    pub(crate) fn end_made_here(&self, number: u64) {
        let mut state = self.state();
        // What was asked for before, and is told afterwards, may be without it.
        state.changes += 1;
        if let Some((_, effects)) = state.ahead.effects.remove(&number) {
            state.ahead.links -= effects.iter().map(Effect::links).sum::<i32>();
        }
        state.ahead.others.remove(&number);
    }

    /// The same of a change of a directory that has led to this version. What a later version has told already has it in it, and so counts it
    /// twice.
    pub(crate) fn end_made_there(&self, number: u64, version: DataVersion) {
        let before = self.state().ahead.links;
        self.end_made_here(number);
        let mut state = self.state();
        state.ahead.reached = state.ahead.reached.max(version);
        let links = before - state.ahead.links;
        if let Some(status) = state.status.as_mut().filter(|status| status.data_version > version) {
            status.link_count = status.link_count.saturating_add_signed(-links);
        }
    }

    /// True if pages of this version were fetched before a change of ours that is shown no more over what servers tell.
    pub(crate) fn is_before_own(&self, version: DataVersion) -> bool {
        version < self.state().ahead.reached
    }

    /// Changes that made something in this directory, which had this name, are taken back: no server has heard of them.
    pub(crate) fn take_back(&self, numbers: &[u64], name: &[u8]) {
        numbers.iter().for_each(|&number| self.end_made_here(number));
        if let Some(pages) = &mut self.state().pages {
            Arc::make_mut(&mut pages.directory).remove(name);
        }
    }

    /// What pages of the server had under a name that this change is about, if it was not what the change was made on.
    pub(crate) fn found_instead(&self, number: u64) -> Option<LocalFid> {
        self.state().ahead.others.get(&number).copied()
    }

    /// Forgets the promise if servers have broken one of something in the volume that nobody knew, since this was taken.
    pub(crate) fn note_strays(&self, before: &Snapshot) {
        if self.volume.strays() != before.strays {
            self.note_break();
        }
    }

    /// A change of ours has ended without an answer: what is promised does not count any more, but while the server is away.
    pub(super) fn note_unanswered(&self) {
        if self.offline_max().is_zero() {
            return self.note_break();
        }
        let mut state = self.state();
        state.breaks += 1;
        if let Some(promise) = &mut state.promise {
            promise.until = Instant::ORIGIN;
        }
    }

    /// A server did not answer a change of this directory: before something in it is removed or replaced, its names are asked for.
    pub(crate) fn note_doubt(&self) {
        self.state().ahead.is_doubtful = true;
    }

    /// True if its names are to be asked for; then the caller does that.
    pub(crate) fn take_doubt(&self) -> bool {
        std::mem::take(&mut self.state().ahead.is_doubtful)
    }

    /// A change of this directory, or of the names of this file, is sent.
    pub(crate) fn note_sent(&self) {
        self.state().ahead.sent += 1;
    }

    /// It was answered, and has led to this version; or it was not, or refused.
    pub(crate) fn note_answered(&self, version: Option<DataVersion>) {
        let mut state = self.state();
        let state = &mut *state;
        let ahead = &mut state.ahead;
        ahead.sent = ahead.sent.saturating_sub(1);
        ahead.own.extend(version.map(|version| version.0));
        let Some(pages) = &mut state.pages else { return ahead.own.clear() };
        while ahead.own.remove(&pages.version.next().0) {
            pages.version = pages.version.next();
        }
        let reached = pages.version;
        ahead.own.retain(|own| *own > reached.0);
        if ahead.sent == 0 && state.status.is_some_and(|status| status.data_version != reached) {
            // Others have changed it too.
            ahead.own.clear();
            state.pages = None;
        }
    }

    /// Lets its pages go, if they can be fetched again.
    pub(in crate::vnodes) fn drop_pages(&self) {
        let mut state = self.state();
        if !state.is_here_only {
            state.pages = None;
        }
    }
}
