//! VL: the procedures that vlservers offer, on a [`Database`] of volume locations.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use afs_wire::ids::{HostAddr, VolumeId};
use afs_wire::vl::*;
use rxgen::xdr::{Uuid, XdrArray};
use rxgen::{Abort, Rpc, Serve, ServerCall};

use super::change::{NewEntry, Update, check_name, check_type};
use super::errors::VlError;
use super::forms::{Form, attributes_of, query_of};
use super::image::{FILE_HEADER_BYTES, Vldb};
use super::list::{Attributes, Listing, index_of};
use super::{change, records::EntryRow};
use crate::caller::{Authority, Caller, Identity};
use crate::database::{Database, NoQuorum, Rows};
use crate::serving::{Clock, yield_once};
use crate::ubik::NO_QUORUM;

/// Entries that are returned at once where the client cannot go on later, some 50 MB: more than any server has volumes.
/// Beyond it the listing is refused, as stock servers do that are short of memory.
const MAX_LISTED: usize = 100_000;

/// Entries that ListAttributesN2 returns at once, as stock servers do.
const PAGE: usize = 500;

/// Where the opcodes begin that are counted, and how many of them the statistics have room for.
const LOWEST_OPCODE: u32 = 501;
const COUNTED_OPCODES: usize = 50;

/// The version of stock servers' databases in which servers may have several addresses.
const FILE_VERSION: i32 = 4;

/// The classes of rxgk, in both dialects.
const RXGK: [u8; 2] = [4, 6];

/// The callers who may list entries (`-restricted_query`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestrictedQuery {
    /// Anybody, as by default.
    #[default]
    AnyUser,
    /// Superusers.
    Admin,
}

/// Answers the calls of VL.
pub struct VlService {
    database: Arc<Database<Vldb>>,
    authority: Arc<dyn Authority>,
    clock: Clock,
    restricted_query: RestrictedQuery,
    started: u32,
    requests: Counters,
    aborts: Counters,
}

type Counters = [AtomicI32; COUNTED_OPCODES];

impl std::fmt::Debug for VlService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VlService").field("database", &self.database).finish_non_exhaustive()
    }
}

impl VlService {
    /// A service on a database.
    pub fn new(
        database: Arc<Database<Vldb>>,
        authority: Arc<dyn Authority>,
        clock: Clock,
        restricted_query: RestrictedQuery,
    ) -> Self {
        let counters = || std::array::from_fn(|_| AtomicI32::new(0));
        Self {
            database,
            authority,
            started: clock(),
            clock,
            restricted_query,
            requests: counters(),
            aborts: counters(),
        }
    }

    /// Counts a call and its end.
    async fn counted<R: Rpc, T>(&self, work: impl Future<Output = Result<T, VlError>>) -> Result<T, Abort> {
        count(&self.requests, R::OPCODE);
        let result = work.await;
        if result.is_err() {
            count(&self.aborts, R::OPCODE);
        }
        result.map_err(|error| Abort(error.code()))
    }

    /// Counts and answers what is looked up at once.
    fn look<R: Rpc, T>(&self, look: impl FnOnce(&Vldb) -> Result<T, VlError>) -> Result<T, Abort> {
        count(&self.requests, R::OPCODE);
        self.database.read(look).map_err(|error| {
            count(&self.aborts, R::OPCODE);
            Abort(error.code())
        })
    }

    fn caller<R: Rpc>(&self, call: &ServerCall<'_, R>) -> Caller {
        self.authority.caller(call.peer(), call.security())
    }

    /// Makes a change that only superusers may make, and writes it to the log.
    async fn change<R: Rpc, T: Send + 'static>(
        &self,
        call: ServerCall<'_, R>,
        what: impl std::fmt::Display + Send,
        plan: impl FnMut(&Vldb, &mut Rows) -> Result<T, VlError> + Send + 'static,
    ) -> Result<T, Abort> {
        let caller = self.caller(&call);
        let result = self
            .counted::<R, T>(async {
                if !caller.is_superuser {
                    return Err(VlError::Permission);
                }
                self.database.change((self.clock)(), plan).await
            })
            .await;
        let (code, peer, caller) =
            (result.as_ref().err().map_or(0, |abort| abort.0), call.peer(), name(&caller));
        tracing::info!(target: "audit", rpc = R::NAME, %what, caller, %peer, code, "VLDB change");
        result
    }

    fn may_list(&self, caller: &Caller) -> Result<(), VlError> {
        match self.restricted_query {
            RestrictedQuery::AnyUser => Ok(()),
            RestrictedQuery::Admin if caller.is_superuser => Ok(()),
            RestrictedQuery::Admin => Err(VlError::Permission),
        }
    }

    /// All entries that a listing finds.
    async fn list_all<F: Form>(
        &self,
        caller: &Caller,
        asked: &VldbListByAttributes,
        listing: fn(Attributes) -> Listing,
    ) -> Result<Vec<F>, VlError> {
        self.may_list(caller)?;
        yield_once().await;
        let listing = match attributes_of(asked) {
            Ok(id) => return self.database.read(|vldb| Ok(vec![listed_by_id(vldb, id)?])),
            Err(attributes) => listing(attributes),
        };
        let (entries, _) = self.list_from(&listing, 0, MAX_LISTED + 1, |_, _: &mut F| ()).await;
        if entries.len() > MAX_LISTED { Err(VlError::SizeExceeded) } else { Ok(entries) }
    }

    /// Up to `limit` entries of a listing from a place on, in steps between which others get at the database; and where to
    /// go on.
    async fn list_from<F: Form>(
        &self,
        listing: &Listing,
        mut from: u32,
        limit: usize,
        finish: fn(i32, &mut F),
    ) -> (Vec<F>, Option<u32>) {
        let mut entries = Vec::new();
        loop {
            let next = self.database.read(|vldb| {
                let progress = vldb.list(listing, from, limit - entries.len());
                entries.extend(progress.found.iter().filter_map(|found| {
                    let mut entry = F::of(vldb, vldb.row(found.slot)?);
                    finish(found.match_index, &mut entry);
                    Some(entry)
                }));
                progress.next
            });
            match next {
                Some(next) if entries.len() < limit => from = next,
                next => return (entries, next),
            }
            yield_once().await;
        }
    }

    /// The entry behind an index, in some form: how many are behind it, its index, and it.
    fn entry_behind<R: Rpc, F: Form>(&self, caller: &Caller, index: i32) -> Result<(i32, i32, F), Abort> {
        self.look::<R, _>(|vldb| {
            self.may_list(caller)?;
            let (slot, count) = vldb.entry_behind(index);
            let entry = slot.and_then(|slot| vldb.row(slot)).map_or_else(F::none, |row| F::of(vldb, row));
            Ok((count, slot.map_or(0, index_of), entry))
        })
    }
}

fn count(counters: &Counters, opcode: u32) {
    if let Some(counter) = opcode.checked_sub(LOWEST_OPCODE).and_then(|index| counters.get(index as usize)) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

fn values(counters: &Counters) -> [i32; COUNTED_OPCODES] {
    std::array::from_fn(|index| counters[index].load(Ordering::Relaxed))
}

/// A caller's name for the log.
fn name(caller: &Caller) -> &str {
    match &caller.identity {
        Identity::Anonymous => "anonymous",
        Identity::Cell => "the cell",
        Identity::Local(name) | Identity::Foreign(name) => name,
    }
}

impl Vldb {
    /// Answers as `GetEntryByNameO`, for servers of the same process.
    ///
    /// # Errors
    ///
    /// There is no such entry, or it can have no such name.
    pub fn old_entry(&self, name: &[u8]) -> Result<VldbEntry, VlError> {
        by_name(self, name)
    }
}

/// An entry by id, if it is not marked as deleted.
fn by_id<F: Form>(vldb: &Vldb, id: u32, volume_type: Option<super::VolumeType>) -> Result<F, VlError> {
    existing(vldb, vldb.find_id(id, volume_type).ok_or(VlError::NoEntry)?.row)
}

/// An entry by id, as listings have it.
fn listed_by_id<F: Form>(vldb: &Vldb, id: u32) -> Result<F, VlError> {
    vldb.find_id(id, None).map(|found| F::of(vldb, found.row)).ok_or(VlError::NoEntry)
}

/// An entry by name; a name of digits is an id.
fn by_name<F: Form>(vldb: &Vldb, name: &[u8]) -> Result<F, VlError> {
    if name.iter().all(u8::is_ascii_digit) {
        // As C has it: the largest number that there is for one that is larger, and of that the lower half.
        let id =
            name.iter().fold(0u64, |id, digit| id.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
        return by_id(vldb, id as u32, None);
    }
    check_name(name)?;
    existing(vldb, vldb.find_name(name).ok_or(VlError::NoEntry)?.row)
}

fn existing<F: Form>(vldb: &Vldb, row: &EntryRow) -> Result<F, VlError> {
    if row.flags() & change::DELETED != 0 { Err(VlError::EntryDeleted) } else { Ok(F::of(vldb, row)) }
}

/// A name for the log.
fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

macro_rules! serves {
    ($($kind:ident $rpc:ident($self:ident, $call:ident, $args:ident) $body:block)*) => { $(
        impl Serve<$rpc> for VlService {
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

impl Serve<ProbeServer> for VlService {
    async fn serve(
        &self,
        _: ServerCall<'_, ProbeServer>,
        _: ProbeServer,
    ) -> Result<reply::ProbeServer, Abort> {
        Ok(reply::ProbeServer {})
    }
}

serves! {
    look GetEntryByID(self, _call, args) {
        let entry = self.look::<GetEntryByID, _>(|vldb| by_id(vldb, args.volid.0, check_type(args.kind.0)?))?;
        Ok(reply::GetEntryByID { entry })
    }
    look GetEntryByIDN(self, _call, args) {
        let entry = self.look::<GetEntryByIDN, _>(|vldb| by_id(vldb, args.volid.0, check_type(args.kind.0)?))?;
        Ok(reply::GetEntryByIDN { entry })
    }
    look GetEntryByNameO(self, _call, args) {
        let entry = self.look::<GetEntryByNameO, _>(|vldb| by_name(vldb, &args.name))?;
        Ok(reply::GetEntryByNameO { entry })
    }
    look GetEntryByNameN(self, _call, args) {
        let entry = self.look::<GetEntryByNameN, _>(|vldb| by_name(vldb, &args.name))?;
        Ok(reply::GetEntryByNameN { entry })
    }
    look GetEntryByNameU(self, _call, args) {
        let entry = self.look::<GetEntryByNameU, _>(|vldb| by_name(vldb, &args.name))?;
        Ok(reply::GetEntryByNameU { entry })
    }
    change CreateEntry(self, call, args) {
        let new = NewEntry::from(&args.entry);
        self.change(call, text(&new.name), move |vldb, rows| vldb.create(&new, rows)).await?;
        Ok(reply::CreateEntry {})
    }
    change CreateEntryN(self, call, args) {
        let new = NewEntry::from(&args.entry);
        self.change(call, text(&new.name), move |vldb, rows| vldb.create(&new, rows)).await?;
        Ok(reply::CreateEntryN {})
    }
    change DeleteEntry(self, call, args) {
        self.change(call, args.volid, move |vldb, rows| vldb.delete(args.volid.0, args.kind.0, rows)).await?;
        Ok(reply::DeleteEntry {})
    }
    change GetNewVolumeId(self, call, args) {
        let first = self.change(call, args.bump_count, move |vldb, rows| vldb.take_ids(args.bump_count, rows)).await?;
        Ok(reply::GetNewVolumeId { new_volid: VolumeId(first) })
    }
    change ReplaceEntry(self, call, args) {
        let new = NewEntry::from(&args.entry);
        let plan = move |vldb: &Vldb, rows: &mut Rows| {
            vldb.replace(args.volid.0, args.kind.0, &new, args.release.0, true, rows)
        };
        self.change(call, args.volid, plan).await?;
        Ok(reply::ReplaceEntry {})
    }
    change ReplaceEntryN(self, call, args) {
        let new = NewEntry::from(&args.entry);
        let plan = move |vldb: &Vldb, rows: &mut Rows| {
            vldb.replace(args.volid.0, args.kind.0, &new, args.release.0, false, rows)
        };
        self.change(call, args.volid, plan).await?;
        Ok(reply::ReplaceEntryN {})
    }
    change UpdateEntry(self, call, args) {
        let update = Update::from(&args.update);
        let plan = move |vldb: &Vldb, rows: &mut Rows| {
            vldb.update(args.volid.0, args.kind.0, &update, args.release.0, rows)
        };
        self.change(call, args.volid, plan).await?;
        Ok(reply::UpdateEntry {})
    }
    change UpdateEntryByName(self, call, args) {
        let update = Update::from(&args.update);
        let name = text(&args.name);
        let plan = move |vldb: &Vldb, rows: &mut Rows| {
            vldb.update_by_name(&args.name, &update, args.release.0, rows)
        };
        self.change(call, name, plan).await?;
        Ok(reply::UpdateEntryByName {})
    }
    change SetLock(self, call, args) {
        let now = (self.clock)();
        let plan = move |vldb: &Vldb, rows: &mut Rows| {
            vldb.lock(args.volid.0, args.kind.0, args.operation.0, now, rows)
        };
        self.change(call, args.volid, plan).await?;
        Ok(reply::SetLock {})
    }
    change ReleaseLock(self, call, args) {
        let plan = move |vldb: &Vldb, rows: &mut Rows| vldb.unlock(args.volid.0, args.kind.0, args.release.0, rows);
        self.change(call, args.volid, plan).await?;
        Ok(reply::ReleaseLock {})
    }
    look ListEntry(self, call, args) {
        let caller = self.caller(&call);
        let (count, next_index, entry) = self.entry_behind::<ListEntry, _>(&caller, args.previous_index)?;
        Ok(reply::ListEntry { count, next_index, entry })
    }
    look ListEntryN(self, call, args) {
        let caller = self.caller(&call);
        let (count, next_index, entry) = self.entry_behind::<ListEntryN, _>(&caller, args.previous_index)?;
        Ok(reply::ListEntryN { count, next_index, entry })
    }
    look ListAttributes(self, call, args) {
        let caller = self.caller(&call);
        let entries = self.counted::<ListAttributes, _>(self.list_all(&caller, &args.attributes, Listing::Old)).await?;
        Ok(reply::ListAttributes { n_entries: entries.len() as i32, entries: within_limits(entries) })
    }
    look ListAttributesN(self, call, args) {
        let caller = self.caller(&call);
        let entries = self.counted::<ListAttributesN, _>(self.list_all(&caller, &args.attributes, Listing::New)).await?;
        Ok(reply::ListAttributesN { n_entries: entries.len() as i32, entries: within_limits(entries) })
    }
    look LinkedList(self, call, args) {
        let caller = self.caller(&call);
        let entries = self.counted::<LinkedList, _>(self.list_all(&caller, &args.attributes, Listing::Old)).await?;
        let n_entries = entries.len() as i32;
        Ok(reply::LinkedList { n_entries, entries: VldbList::new(entries).expect("MAX_LISTED is below") })
    }
    look LinkedListN(self, call, args) {
        let caller = self.caller(&call);
        let entries = self.counted::<LinkedListN, _>(self.list_all(&caller, &args.attributes, Listing::New)).await?;
        let n_entries = entries.len() as i32;
        Ok(reply::LinkedListN { n_entries, entries: NvldbList::new(entries).expect("MAX_LISTED is below") })
    }
    look ListAttributesN2(self, call, args) {
        let caller = self.caller(&call);
        let work = async {
            self.may_list(&caller)?;
            yield_once().await;
            let attributes = match attributes_of(&args.attributes) {
                Ok(id) => return self.database.read(|vldb| Ok((vec![listed_by_id(vldb, id)?], None))),
                Err(attributes) => attributes,
            };
            // Before the name is looked at, as in stock servers.
            let is_known = |address| self.database.read(|vldb| vldb.find_address(address).is_some());
            if attributes.server.is_some_and(|address| !is_known(address)) {
                return Ok((Vec::new(), None));
            }
            if !Listing::is_any_name(&args.name) && !caller.is_superuser {
                return Err(VlError::Permission);
            }
            let listing = Listing::named(attributes, &args.name)?;
            let Some(from) = self.database.read(|vldb| vldb.start(args.start_index)) else {
                return Ok((Vec::new(), None));
            };
            let note = |match_index: i32, entry: &mut NvldbEntry| entry.match_index = match_index;
            Ok(self.list_from(&listing, from, PAGE, note).await)
        };
        let (entries, next) = self.counted::<ListAttributesN2, _>(work).await?;
        Ok(reply::ListAttributesN2 {
            n_entries: entries.len() as i32,
            entries: within_limits(entries),
            // Clients give back the index of what they had, and what they are given here is behind that.
            next_start_index: next.map_or(-1, |slot| index_of(slot - 1)),
        })
    }
    look GetStats(self, call, _args) {
        let caller = self.caller(&call);
        let header = self.look::<GetStats, _>(|vldb| {
            self.may_list(&caller)?;
            let (header, (_, totals)) = (vldb.header(), vldb.counts());
            Ok(VitalVlHeader {
                vldb_version: FILE_VERSION,
                header_size: FILE_HEADER_BYTES,
                free_ptr: header.free.map_or(0, index_of),
                eof_ptr: index_of(vldb.slots().len()),
                allocs: header.allocs as i32,
                frees: header.frees as i32,
                max_volume_id: VolumeId(header.max_volume_id),
                total_entries: totals.map(|total| total as i32),
            })
        })?;
        let stats = VldStats {
            start_time: self.started,
            requests: values(&self.requests),
            aborts: values(&self.aborts),
            reserved: [0; 5],
        };
        Ok(reply::GetStats { stats, header })
    }
    look GetAddrs(self, _call, _args) {
        let addrs: Vec<HostAddr> =
            self.look::<GetAddrs, _>(|vldb| Ok(vldb.addresses().into_iter().map(HostAddr).collect()))?;
        Ok(reply::GetAddrs {
            spare3: VlCallBack::default(),
            n_entries: addrs.len() as i32,
            addrs: within_limits(addrs),
        })
    }
    change ChangeAddr(self, call, args) {
        let what = format!("{} to {}", args.old, args.new);
        self.change(call, what, move |vldb, rows| vldb.change_address(args.old.0, args.new.0, rows)).await?;
        Ok(reply::ChangeAddr {})
    }
    change RegisterAddrs(self, call, args) {
        let addresses: Vec<u32> = args.addrs.iter().map(|address| address.0).collect();
        let uuid = args.uuid.to_bytes();
        // Servers of ours say that they have it, by it. Who says nothing by it, as 'vos setaddrs', has it forgotten.
        let rxgk = RXGK.contains(&call.class()).then_some(args.spare1 == REGISTERS_RXGK);
        let planned = move |vldb: &Vldb, rows: &mut Rows| vldb.register(uuid, &addresses, rxgk, rows);
        self.change(call, &args.uuid, planned).await?;
        Ok(reply::RegisterAddrs {})
    }
    look GetAddrsU(self, _call, args) {
        let server = self.look::<GetAddrsU, _>(|vldb| vldb.registration(query_of(&args.by)?))?;
        Ok(reply::GetAddrsU {
            uuid: Uuid::from_bytes(server.uuid),
            uniquifier: server.uniquifier as i32,
            n_entries: server.addresses.len() as i32,
            addrs: within_limits(server.addresses.into_iter().map(HostAddr).collect()),
        })
    }
}

/// What is limited far below what can be sent.
fn within_limits<T, const MAX: usize>(items: Vec<T>) -> XdrArray<T, MAX> {
    XdrArray::new(items).expect("fewer are listed than can be sent")
}
