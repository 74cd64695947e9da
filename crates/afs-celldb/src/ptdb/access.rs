//! The rights of callers to see and change entries (PTDB notes 4 and 10).

use crate::caller::{Caller, Identity};

use super::errors::PtError;
use super::image::View;
use super::membership::{ADMINISTRATORS, ANONYMOUS, VIEWERS, is_member};
use super::records::{Entry, Flags};

/// How deep groups may be in groups, where they may be: OpenAFS's default of `-depth`.
const DEFAULT_DEPTH: u32 = 5;

/// The decisions of ptserver's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nobody is asked for authentication, and everyone may do everything (`-noauth`). Default: no.
    pub is_noauth: bool,
    /// Only administrators change anything (`-restricted`). Default: no.
    pub is_restricted: bool,
    /// True if a caller without a name sees nothing (`-restrict_anonymous`). Default: no.
    pub restricts_anonymous: bool,
    /// Groups may be in groups, so deep (`-depth`); `None`: they may not. Default: not, as OpenAFS is built unless it is
    /// told otherwise. Debian's is told, with a depth of 5.
    pub supergroups: Option<u32>,
    /// The eight bits of who may see and change users, unless set (`-default_access`). Default: all see that they exist.
    pub user_privacy: u8,
    /// The same for groups. Default: all see that they exist, and who is in.
    pub group_privacy: u8,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            is_noauth: false,
            is_restricted: false,
            restricts_anonymous: false,
            supergroups: None,
            user_privacy: 0x80,
            group_privacy: 0x90,
        }
    }
}

impl Rules {
    /// Groups in groups as Debian's ptserver has them.
    pub const DEBIAN_SUPERGROUPS: Option<u32> = Some(DEFAULT_DEPTH);

    pub(crate) fn group_depth(&self) -> u32 {
        self.supergroups.unwrap_or(0)
    }

    /// The bits of who may see and change an entry, as they are sent.
    pub(crate) fn privacy(&self, entry: &Entry) -> i32 {
        let own = entry.flags.0 >> Flags::PRIVACY_SHIFT;
        let default = if entry.is_group() { self.group_privacy } else { self.user_privacy };
        if own == 0 { i32::from(default) } else { own as i32 }
    }
}

/// A right that a caller may want to an entry: the bits that give it to members (of a group) and to anyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    members: u32,
    anyone: u32,
    kind: RightKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RightKind {
    /// Those who see all have it.
    See,
    /// Members of the group have it only in servers that are not restricted.
    ChangeMembers,
    /// Anybody with the bits.
    Other,
    /// Nobody but owners and administrators.
    Change,
}

impl Right {
    /// That it exists, and what it is.
    pub(crate) const STATUS: Self = Self { members: 0x40, anyone: 0x80, kind: RightKind::See };
    /// The same, for those alone who see all.
    pub(crate) const STATUS_OF_ALL: Self = Self { members: 0x40, anyone: 0, kind: RightKind::See };
    /// The right to see what it owns. Members of a group always see that.
    pub(crate) const OWNED: Self = Self { members: 0, anyone: 0x20, kind: RightKind::See };
    /// The right to see who is in it, or where it is in.
    pub(crate) const MEMBERS: Self = Self { members: 0x08, anyone: 0x10, kind: RightKind::See };
    /// The same, for IsAMemberOf with a user: the user, or what anyone may.
    pub(crate) const MEMBERSHIP: Self = Self { members: 0, anyone: 0x10, kind: RightKind::Other };
    /// Adding members.
    pub(crate) const ADD: Self = Self { members: 0x02, anyone: 0x04, kind: RightKind::ChangeMembers };
    /// Removing members.
    pub(crate) const REMOVE: Self = Self { members: 0x01, anyone: 0, kind: RightKind::ChangeMembers };
    /// Changing it, or the database.
    pub(crate) const CHANGE: Self = Self { members: 0, anyone: 0, kind: RightKind::Change };
}

/// True if a caller has a right to an entry; to the database as a whole if there is none.
pub(crate) fn may(view: &impl View, rules: &Rules, caller: i32, entry: Option<&Entry>, right: Right) -> bool {
    if rules.is_noauth || caller == ADMINISTRATORS {
        return true;
    }
    let is_administrator = is_member(view, rules, caller, ADMINISTRATORS);
    let is_change = matches!(right.kind, RightKind::Change | RightKind::ChangeMembers);
    if is_administrator || rules.is_restricted && is_change {
        return is_administrator;
    }
    if right.kind == RightKind::See && is_member(view, rules, caller, VIEWERS) {
        return true;
    }
    let Some(entry) = entry else { return false };
    let privacy = effective_privacy(rules, entry);
    privacy & right.anyone != 0
        || entry.owner != 0 && (caller == entry.owner || is_member(view, rules, caller, entry.owner))
        || entry.id > 0 && entry.id == caller
        || entry.id < 0
            && (privacy & right.members != 0 || right == Right::OWNED)
            && is_member(view, rules, caller, entry.id)
}

fn effective_privacy(rules: &Rules, entry: &Entry) -> u32 {
    let own = entry.flags.0 >> Flags::PRIVACY_SHIFT;
    match (entry.flags.has(Flags::ACCESS), entry.is_group()) {
        (true, _) => own,
        (false, true) => own | u32::from(rules.group_privacy),
        (false, false) => own | u32::from(rules.user_privacy),
    }
}

/// A caller, as an entry of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerEntry {
    /// The caller's id; that of anonymous if they have none.
    pub id: i32,
    /// For a user of another cell, their name.
    pub foreign: Option<Vec<u8>>,
}

impl CallerEntry {
    /// Looks a caller up.
    ///
    /// # Errors
    ///
    /// If the caller's name is not that of a user, unless nobody is asked for authentication.
    pub(crate) fn of(view: &impl View, rules: &Rules, caller: &Caller) -> Result<Self, PtError> {
        let local = |id| Ok(Self { id, foreign: None });
        match &caller.identity {
            Identity::Anonymous => local(ANONYMOUS),
            Identity::Cell => local(ADMINISTRATORS),
            Identity::Local(name) => match view.by_name(name.as_bytes()) {
                Some(entry) => local(entry.id),
                None if rules.is_noauth => local(ANONYMOUS),
                None => Err(PtError::Permission),
            },
            Identity::Foreign(name) => {
                let id = view.by_name(name.as_bytes()).map_or(ANONYMOUS, |entry| entry.id);
                Ok(Self { id, foreign: Some(name.as_bytes().to_vec()) })
            }
        }
    }

    /// The id of a caller of this cell: what users of others may do is to register themselves, and nothing else.
    ///
    /// # Errors
    ///
    /// For users of other cells, and as [`Self::of`].
    pub(crate) fn local_id(view: &impl View, rules: &Rules, caller: &Caller) -> Result<i32, PtError> {
        match Self::of(view, rules, caller)? {
            Self { id, foreign: None } => Ok(id),
            Self { foreign: Some(_), .. } => Err(PtError::Permission),
        }
    }

    /// As [`Self::local_id`], where nobody without a name may see anything if that is restricted.
    ///
    /// # Errors
    ///
    /// If it is, or as [`Self::local_id`].
    pub(crate) fn reader_id(view: &impl View, rules: &Rules, caller: &Caller) -> Result<i32, PtError> {
        let id = Self::local_id(view, rules, caller)?;
        if rules.restricts_anonymous && !rules.is_noauth && id == ANONYMOUS {
            return Err(PtError::Permission);
        }
        Ok(id)
    }
}
