//! PR: the procedures that ptservers offer, on a [`Database`] of users and groups.

use std::sync::Arc;

use afs_wire::ids::ViceId;
use afs_wire::pt::*;
use rxgen::xdr::{CharVec, XdrArray};
use rxgen::{Abort, Rpc, Serve, ServerCall};

use super::access::Rules;
use super::change::{FieldChange, Renaming};
use super::create::{Administrator, NewPrincipal, initialize};
use super::errors::PtError;
use super::image::Ptdb;
use super::read::Kinds;
use super::records::Entry;
use crate::caller::{Authority, Caller, Identity};
use crate::database::{Database, NoQuorum, Rows};
use crate::serving::{Clock, yield_once};
use crate::ubik::NO_QUORUM;

/// Names or ids that are looked up in one call, 16 MB of them: stock servers take 500,000, but fit no more than some
/// thousand names into what is taken of arguments here.
const MAX_LOOKED_UP: usize = 1 << 16;

/// Names or ids that are looked up before others get at the database.
const STEP: usize = 1024;

/// Answers the calls of PR.
pub struct PtService {
    database: Arc<Database<Ptdb>>,
    authority: Arc<dyn Authority>,
    clock: Clock,
    rules: Rules,
}

impl std::fmt::Debug for PtService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PtService").field("database", &self.database).finish_non_exhaustive()
    }
}

impl PtService {
    /// A service on a database. Whether anybody is asked for authentication is taken from `authority`.
    pub fn new(
        database: Arc<Database<Ptdb>>,
        authority: Arc<dyn Authority>,
        clock: Clock,
        rules: Rules,
    ) -> Self {
        let rules = Rules { is_noauth: authority.is_noauth(), ..rules };
        Self { database, authority, clock, rules }
    }

    /// Makes the entries of a new cell.
    ///
    /// # Errors
    ///
    /// If there are entries already, or the administrator's name or id cannot be.
    pub async fn initialize(&self, administrator: Option<&Administrator>) -> Result<(), PtError> {
        let now = (self.clock)();
        let administrator = administrator.cloned();
        let plan = move |ptdb: &Ptdb, rows: &mut Rows| initialize(ptdb, administrator.as_ref(), now, rows);
        self.database.change(now, plan).await
    }

    fn caller<R: Rpc>(&self, call: &ServerCall<'_, R>) -> Caller {
        self.authority.caller(call.peer(), call.security())
    }

    /// Answers what is looked up at once.
    fn look<R: Rpc, T>(
        &self,
        call: &ServerCall<'_, R>,
        look: impl FnOnce(&Ptdb, &Rules, &Caller) -> Result<T, PtError>,
    ) -> Result<T, Abort> {
        let caller = self.caller(call);
        self.database.read(|ptdb| look(ptdb, &self.rules, &caller)).map_err(aborts)
    }

    /// Makes a change, and writes it to the log.
    async fn change<R: Rpc, T: Send + 'static>(
        &self,
        call: ServerCall<'_, R>,
        what: impl std::fmt::Display + Send,
        plan: impl FnMut(&Ptdb, &Rules, &Caller, u32, &mut Rows) -> Result<T, PtError> + Send + 'static,
    ) -> Result<T, Abort> {
        let what = what.to_string();
        self.change_and_tell(call, move |_| what, plan).await
    }

    /// The same, if the log is to have something of what came of it.
    async fn change_and_tell<R: Rpc, T: Send + 'static>(
        &self,
        call: ServerCall<'_, R>,
        what: impl FnOnce(Option<&T>) -> String + Send,
        mut plan: impl FnMut(&Ptdb, &Rules, &Caller, u32, &mut Rows) -> Result<T, PtError> + Send + 'static,
    ) -> Result<T, Abort> {
        let (caller, now) = (self.caller(&call), (self.clock)());
        let (rules, who) = (self.rules, caller.clone());
        let plan = move |ptdb: &Ptdb, rows: &mut Rows| plan(ptdb, &rules, &who, now, rows);
        let result = self.database.change(now, plan).await;
        let (code, peer) = (result.as_ref().err().map_or(0, |error: &PtError| error.code()), call.peer());
        let caller = match &caller.identity {
            Identity::Anonymous => "anonymous",
            Identity::Cell => "the cell",
            Identity::Local(name) | Identity::Foreign(name) => name,
        };
        let what = what(result.as_ref().ok());
        tracing::info!(target: "audit", rpc = R::NAME, what, caller, %peer, code, "PTDB change");
        result.map_err(aborts)
    }
}

fn aborts(error: PtError) -> Abort {
    Abort(error.code())
}

/// A name as it is kept: in lower case.
fn lower(name: &[u8]) -> Vec<u8> {
    name.to_ascii_lowercase()
}

fn name_vec(name: &[u8]) -> PrNameVec {
    // Longer is a number only in theory: names of entries are shorter than what there is room for.
    let mut bytes = [0; PR_MAXNAMELEN];
    let length = name.len().min(PR_MAXNAMELEN - 1);
    bytes[..length].copy_from_slice(&name[..length]);
    CharVec(bytes)
}

fn id_list(ids: &[i32]) -> Result<IdList, Abort> {
    XdrArray::new(ids.iter().map(|id| ViceId(*id)).collect()).map_err(|_| aborts(PtError::TooMany))
}

fn check_entry(rules: &Rules, entry: &Entry) -> PrCheckEntry {
    PrCheckEntry {
        flags: Privacy(rules.privacy(entry)),
        id: ViceId(entry.id),
        owner: ViceId(entry.owner),
        creator: ViceId(entry.creator),
        ngroups: entry.group_quota,
        nusers: entry.user_quota,
        count: entry.list.len() as i32,
        reserved: [0; 5],
        name: name_vec(&entry.name),
    }
}

fn list_entry(rules: &Rules, entry: &Entry) -> PrListEntry {
    let PrCheckEntry { flags, id, owner, creator, ngroups, nusers, count, reserved, name } =
        check_entry(rules, entry);
    PrListEntry { flags, id, owner, creator, ngroups, nusers, count, reserved, name }
}

fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Returns what the log says of a new entry: its name and, if it was made, its number. An administrator who restores an old copy of the
/// database needs the numbers that were given out since; one that was refused must not be taken for one of them.
fn with_id(name: String) -> impl FnOnce(Option<&i32>) -> String + Send {
    move |id| match id {
        Some(id) => format!("{name} {id}"),
        None => name,
    }
}

macro_rules! serves {
    ($($kind:ident $rpc:ident($self:ident, $call:ident, $args:ident) $body:block)*) => { $(
        impl Serve<$rpc> for PtService {
            async fn serve(
                &$self,
                $call: ServerCall<'_, $rpc>,
                $args: $rpc,
            ) -> Result<reply::$rpc, Abort> {
                serves!(@$kind $self);
                $body
            }
        }
    )* };
    (@look $self:ident) => { $self.database.catch_up().await.map_err(|NoQuorum| NO_QUORUM)?; };
    // What makes a change sees to that.
    (@change $self:ident) => {};
}

serves! {
    change INewEntry(self, call, args) {
        let new = NewPrincipal { name: lower(&args.name), flag: 0, id: None, owner: args.owner.0 };
        let (what, id) = (with_id(text(&new.name)), args.id.0);
        let plan = move |ptdb: &Ptdb, rules: &Rules, caller: &Caller, now, rows: &mut Rows| {
            ptdb.new_entry_with_id(rules, caller, &new, id, now, rows).map(|()| id)
        };
        self.change_and_tell(call, what, plan).await?;
        Ok(reply::INewEntry {})
    }
    change NewEntry(self, call, args) {
        let new = NewPrincipal { name: lower(&args.name), flag: args.flag, id: None, owner: args.owner.0 };
        let what = with_id(text(&new.name));
        let plan = move |ptdb: &Ptdb, rules: &Rules, caller: &Caller, now, rows: &mut Rows| {
            ptdb.new_entry(rules, caller, &new, now, rows)
        };
        let id = self.change_and_tell(call, what, plan).await?;
        Ok(reply::NewEntry { id: ViceId(id) })
    }
    look WhereIsIt(self, call, args) {
        let pos = self.look(&call, |ptdb, rules, caller| ptdb.where_is(rules, caller, args.id.0))?;
        Ok(reply::WhereIsIt { pos })
    }
    look DumpEntry(self, call, args) {
        let dump = self.look(&call, |ptdb, rules, caller| ptdb.dump(rules, caller, args.pos))?;
        let entry = dump.entry;
        let mut entries = [ViceId(0); 10];
        entries.iter_mut().zip(&entry.list).for_each(|(place, id)| *place = ViceId(*id));
        let times = [entry.created, entry.added, entry.removed, entry.changed];
        Ok(reply::DumpEntry {
            entry: PrDebugEntry {
                flags: entry.flags.0 as i32,
                id: ViceId(entry.id),
                cellid: entry.cell_group,
                next: 0,
                reserved: std::array::from_fn(|index| times.get(index).map_or(0, |time| *time as i32)),
                entries,
                next_id: 0,
                next_name: 0,
                owner: ViceId(entry.owner),
                creator: ViceId(entry.creator),
                ngroups: entry.group_quota,
                nusers: entry.user_quota,
                count: entry.list.len() as i32,
                instance: entry.supergroups.len() as i32,
                owned: dump.owned,
                next_owned: dump.next_owned,
                parent: 0,
                sibling: entry.supergroups.first().copied().unwrap_or(0),
                child: entry.supergroups.get(1).copied().unwrap_or(0),
                name: name_vec(&entry.name),
            },
        })
    }
    change AddToGroup(self, call, args) {
        let (id, group) = (args.uid.0, args.gid.0);
        self.change(call, format!("{id} to {group}"), move |ptdb, rules, caller, now, rows| {
            ptdb.add_to_group(rules, caller, id, group, now, rows)
        })
        .await?;
        Ok(reply::AddToGroup {})
    }
    change RemoveFromGroup(self, call, args) {
        let (id, group) = (args.id.0, args.gid.0);
        self.change(call, format!("{id} from {group}"), move |ptdb, rules, caller, now, rows| {
            ptdb.remove_from_group(rules, caller, id, group, now, rows)
        })
        .await?;
        Ok(reply::RemoveFromGroup {})
    }
    look NameToID(self, _call, args) {
        if args.names.len() > MAX_LOOKED_UP {
            return Err(aborts(PtError::TooMany));
        }
        let mut ids = Vec::with_capacity(args.names.len());
        for names in args.names.chunks(STEP) {
            self.database.read(|ptdb| {
                let id = |name: &PrNameVec| {
                    ptdb.name_to_id(name.text(), |realm| self.authority.is_local_realm(realm))
                };
                ids.extend(names.iter().map(id).map(ViceId));
            });
            if args.names.len() > STEP {
                yield_once().await;
            }
        }
        let ids = XdrArray::new(ids).map_err(|_| aborts(PtError::TooMany))?;
        Ok(reply::NameToID { ids })
    }
    look IDToName(self, call, args) {
        if args.ids.len() > MAX_LOOKED_UP {
            return Err(aborts(PtError::TooMany));
        }
        let ids: Vec<i32> = args.ids.iter().map(|id| id.0).collect();
        let mut names = Vec::with_capacity(ids.len());
        for part in ids.chunks(STEP) {
            let part = self.look(&call, |ptdb, rules, caller| ptdb.id_to_name(rules, caller, part))?;
            names.extend(part.iter().map(|name| name_vec(name)));
            if ids.len() > STEP {
                yield_once().await;
            }
        }
        let names = XdrArray::new(names).map_err(|_| aborts(PtError::TooMany))?;
        Ok(reply::IDToName { names })
    }
    change Delete(self, call, args) {
        self.change(call, args.id, move |ptdb, rules, caller, now, rows| {
            ptdb.delete(rules, caller, args.id.0, now, rows)
        })
        .await?;
        Ok(reply::Delete {})
    }
    look GetCPS(self, call, args) {
        let ids = self.look(&call, |ptdb, rules, caller| ptdb.get_cps(rules, caller, args.id.0))?;
        Ok(reply::GetCPS { ids: id_list(&ids)?, over: 0 })
    }
    look GetCPS2(self, call, args) {
        let ids = self.look(&call, |ptdb, rules, caller| {
            ptdb.get_cps_at(rules, caller, args.id.0, args.host.0)
        })?;
        Ok(reply::GetCPS2 { ids: id_list(&ids)?, over: 0 })
    }
    look GetHostCPS(self, call, args) {
        let ids = self.look(&call, |ptdb, rules, caller| ptdb.host_cps(rules, caller, args.host.0))?;
        Ok(reply::GetHostCPS { ids: id_list(&ids)?, over: 0 })
    }
    look ListMax(self, call, _args) {
        let (uid, gid) = self.look(&call, Ptdb::list_max)?;
        Ok(reply::ListMax { uid: ViceId(uid), gid: ViceId(gid) })
    }
    change SetMax(self, call, args) {
        let of_groups = args.gflag & PRGRP != 0;
        self.change(call, args.id, move |ptdb, rules, caller, _, rows| {
            ptdb.set_max(rules, caller, args.id.0, of_groups, rows)
        })
        .await?;
        Ok(reply::SetMax {})
    }
    look ListEntry(self, call, args) {
        let entry = self.look(&call, |ptdb, rules, caller| {
            ptdb.list_entry(rules, caller, args.id.0).map(|entry| check_entry(rules, entry))
        })?;
        Ok(reply::ListEntry { entry })
    }
    look ListEntries(self, call, args) {
        yield_once().await;
        let kinds = Kinds {
            users: args.flags.intersects(ListEntriesFlags::USERS),
            groups: args.flags.intersects(ListEntriesFlags::GROUPS),
        };
        let (entries, next) = self.look(&call, |ptdb, rules, caller| {
            let page = ptdb.list_entries(rules, caller, kinds, args.start_index)?;
            let entries: Vec<_> = page.items.into_iter().map(|entry| list_entry(rules, entry)).collect();
            Ok((entries, page.next))
        })?;
        let entries = XdrArray::new(entries).map_err(|_| aborts(PtError::TooMany))?;
        Ok(reply::ListEntries { entries, next_start_index: next.unwrap_or(-1) })
    }
    change ChangeEntry(self, call, args) {
        let to = Renaming { name: lower(&args.name), owner: args.owner.0, id: args.new_id.0 };
        let what = format!("{} to {} {} {}", args.id, text(&to.name), to.owner, to.id);
        self.change(call, what, move |ptdb, rules, caller, now, rows| {
            ptdb.change_entry(rules, caller, args.id.0, &to, now, rows)
        })
        .await?;
        Ok(reply::ChangeEntry {})
    }
    change SetFieldsEntry(self, call, args) {
        if args.mask.is_empty() {
            return Ok(reply::SetFieldsEntry {});
        }
        let bits = args.mask.0 as u16;
        let change = FieldChange {
            privacy: (bits != 0).then_some((bits, args.flags as u16)),
            group_quota: args.mask.intersects(SetFieldsMask::NGROUPS).then_some(args.ngroups),
            user_quota: args.mask.intersects(SetFieldsMask::NUSERS).then_some(args.nusers),
        };
        self.change(call, args.id, move |ptdb, rules, caller, now, rows| {
            ptdb.set_fields(rules, caller, args.id.0, &change, now, rows)
        })
        .await?;
        Ok(reply::SetFieldsEntry {})
    }
    look ListElements(self, call, args) {
        let ids = self.look(&call, |ptdb, rules, caller| {
            ptdb.list_elements(rules, caller, args.id.0).map(<[i32]>::to_vec)
        })?;
        Ok(reply::ListElements { ids: id_list(&ids)?, over: 0 })
    }
    look ListSuperGroups(self, call, args) {
        if self.rules.supergroups.is_none() {
            return Err(Abort::OPCODE);
        }
        let ids = self.look(&call, |ptdb, rules, caller| {
            ptdb.list_supergroups(rules, caller, args.id.0).map(<[i32]>::to_vec)
        })?;
        Ok(reply::ListSuperGroups { ids: id_list(&ids)?, over: 0 })
    }
    look IsAMemberOf(self, call, args) {
        let is_member = self.look(&call, |ptdb, rules, caller| {
            ptdb.is_member_of(rules, caller, args.uid.0, args.gid.0)
        })?;
        Ok(reply::IsAMemberOf { flag: is_member.into() })
    }
    look ListOwned(self, call, args) {
        let page = self.look(&call, |ptdb, rules, caller| {
            ptdb.list_owned(rules, caller, args.id.0, args.last)
        })?;
        Ok(reply::ListOwned { ids: id_list(&page.items)?, last: page.next.unwrap_or(0) })
    }
    look UpdateEntry(self, call, args) {
        self.look(&call, |ptdb, rules, caller| ptdb.repair(rules, caller, args.id.0, &lower(&args.name)))?;
        Ok(reply::UpdateEntry {})
    }
}
