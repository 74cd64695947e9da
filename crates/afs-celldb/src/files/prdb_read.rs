//! Reads a prdb.DB0 (Database file notes 3 and 4): all places in it, and the lists that lead from one to another. Each
//! membership is there twice, with the user and with the group.

use std::collections::HashMap;

use afs_wire::ids::ViceId;

use crate::ptdb::{Entry, Flags, MAX_NAME};

use super::bytes::{BUCKETS, Data, id_bucket, name_bucket};
use super::oddities::shown;
use super::prdb::layout;
use super::{FileError, Oddities, Oddity, PrdbContents, ubik};

/// What stands in a list where an id was removed. No entry has it.
const HOLE: i32 = i32::MIN;

/// What the server looks for before it takes a file, and what everything rests on.
const SYSTEM: [i32; 4] = [
    ViceId::ANONYMOUS.0,
    ViceId::SYSTEM_ANYUSER.0,
    ViceId::SYSTEM_AUTHUSER.0,
    ViceId::SYSTEM_ADMINISTRATORS.0,
];

/// Reads a file, and what is odd in it. `log` is what the file .DBSYS1 beside it has, if there is one.
///
/// # Errors
///
/// If it is no such file, or of no known version.
pub fn read_prdb(file: &[u8], log: Option<&[u8]>) -> Result<(PrdbContents, Oddities), FileError> {
    let bytes = ubik::database(file, log)?;
    let data = Data::new(&bytes);
    match (data.u32(layout::VERSION), data.u32(layout::HEADER_SIZE)) {
        (0, layout::HEADER_BYTES) => {}
        (0, 0) => return Err(FileError::Empty),
        (version, _) => return Err(FileError::Version { version }),
    }
    if data.len() < layout::HEADER_BYTES as usize {
        return Err(FileError::Short { length: data.len() });
    }
    let mut reader = Reader { data, kinds: Vec::new(), oddities: Oddities::default() };
    reader.walk();
    reader.check_free_list();
    let names = reader.chain_ranks(layout::NAMES, layout::NEXT_NAME, |r, at| name_bucket(r.name(at), 31));
    let ids =
        reader.chain_ranks(layout::IDS, layout::NEXT_ID, |r, at| id_bucket(r.data.u32(at + layout::ID)));
    let places = reader.places(&names, &ids);
    let mut entries: Vec<Entry> = Vec::with_capacity(places.len());
    let mut blocks_seen = vec![false; reader.kinds.len()];
    for place in &places {
        entries.push(reader.entry(*place, &mut blocks_seen));
    }
    reader.rename_duplicates(&mut entries, &places, &names);
    let by_id: HashMap<i32, u32> = entries.iter().map(|entry| entry.id).zip(0..).collect();
    reader.check_owners(&mut entries, &places, &by_id);
    reader.check_members(&mut entries, &by_id);
    for id in SYSTEM.iter().filter(|id| !by_id.contains_key(id)) {
        reader.oddities.add(Oddity::NoSystemEntry, || id.to_string());
    }
    let (max_user, max_group) = (data.i32(layout::MAX_USER), data.i32(layout::MAX_GROUP));
    Ok((PrdbContents { max_user, max_group, entries }, reader.oddities))
}

/// What a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Entry,
    Block,
    Free,
    Other,
}

struct Reader<'a> {
    data: Data<'a>,
    /// What the places are, from the first behind the header on.
    kinds: Vec<Kind>,
    oddities: Oddities,
}

fn address(place: u32) -> u32 {
    layout::HEADER_BYTES + place * layout::ENTRY_BYTES
}

impl Reader<'_> {
    fn walk(&mut self) {
        let end = self.data.u32(layout::EOF);
        let present = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        if end > present {
            self.oddities.add(Oddity::CutShort, || format!("{} of {end} bytes are there", self.data.len()));
        }
        let count = end.min(present).saturating_sub(layout::HEADER_BYTES) / layout::ENTRY_BYTES;
        for at in (0..count).map(address) {
            let kind = match self.data.u32(at + layout::FLAGS) & Flags::KINDS.0 {
                layout::IS_FREE => Kind::Free,
                layout::IS_BLOCK => Kind::Block,
                layout::IS_GROUP | 0 if self.name(at).is_empty() || matches!(self.id(at), 0 | HOLE) => {
                    self.oddities.add(Oddity::Nameless, || format!("at {at}"));
                    Kind::Other
                }
                layout::IS_GROUP | 0 => Kind::Entry,
                kind => {
                    self.oddities.add(Oddity::UnknownSlot, || format!("kind {kind} at {at}"));
                    Kind::Other
                }
            };
            self.kinds.push(kind);
        }
    }

    /// The place that an address is, if it is one of this kind.
    fn place(&self, at: u32, kind: Kind) -> Option<u32> {
        let offset = at.checked_sub(layout::HEADER_BYTES)?;
        let place = offset / layout::ENTRY_BYTES;
        let is_it =
            offset.is_multiple_of(layout::ENTRY_BYTES) && self.kinds.get(place as usize) == Some(&kind);
        is_it.then_some(place)
    }

    fn id(&self, at: u32) -> i32 {
        self.data.i32(at + layout::ID)
    }

    fn name(&self, at: u32) -> &[u8] {
        self.data.text(at + layout::NAME, layout::NAME_FIELD)
    }

    fn shown(&self, at: u32) -> String {
        format!("{} ({})", shown(self.name(at)), self.id(at))
    }

    fn check_free_list(&mut self) {
        let mut at = self.data.u32(layout::FREE);
        for _ in 0..=self.kinds.len() {
            if at == 0 {
                return;
            }
            if self.place(at, Kind::Free).is_none() {
                break;
            }
            at = self.data.u32(at + layout::NEXT);
        }
        self.oddities.add(Oddity::BrokenFreeList, || format!("at {at}"));
    }

    /// Follows the chains of a hash table. For each place which one it is of its chain, from 1 on; 0 if it is in none, or in one
    /// in which nobody looks for it.
    fn chain_ranks(&mut self, table: u32, next: u32, bucket_of: impl Fn(&Self, u32) -> u32) -> Vec<u32> {
        let mut ranks = vec![0; self.kinds.len()];
        let mut seen = vec![false; self.kinds.len()];
        for bucket in 0..BUCKETS {
            let mut at = self.data.u32(table + 4 * bucket);
            let mut rank = 0;
            while at != 0 {
                let place = self.place(at, Kind::Entry).map(|place| place as usize);
                let Some(place) = place.filter(|place| !std::mem::replace(&mut seen[*place], true)) else {
                    let what = if table == layout::NAMES { "names" } else { "ids" };
                    self.oddities
                        .add(Oddity::BrokenChain, || format!("chain {bucket} of the {what}, at {at}"));
                    break;
                };
                rank += 1;
                if bucket_of(self, at) == bucket {
                    ranks[place] = rank;
                } else {
                    let entry = self.shown(at);
                    self.oddities.add(Oddity::WrongChain, || entry);
                }
                at = self.data.u32(at + next);
            }
        }
        ranks
    }

    /// The places of the entries that are kept: of those with the same id one.
    fn places(&mut self, names: &[u32], ids: &[u32]) -> Vec<u32> {
        let rank = |place: u32| ids[place as usize].wrapping_sub(1);
        let mut all: Vec<(i32, u32)> = Vec::new();
        for place in (0..).take(self.kinds.len()).filter(|place| self.kinds[*place as usize] == Kind::Entry) {
            match (names[place as usize] > 0, ids[place as usize] > 0) {
                (true, true) => {}
                (false, false) => {
                    let entry = self.shown(address(place));
                    self.oddities.add(Oddity::Unreachable, || entry);
                    continue;
                }
                _ => {
                    let entry = self.shown(address(place));
                    self.oddities.add(Oddity::MissingFromChain, || entry);
                }
            }
            all.push((self.id(address(place)), place));
        }
        // What look-ups find comes first: 0, which is in no chain, became the largest.
        all.sort_unstable_by_key(|(id, place)| (*id, rank(*place), *place));
        let mut last = None;
        all.retain(|(id, place)| {
            let is_first = last.replace(*id) != Some(*id);
            if !is_first {
                let entry = format!("{} ({id})", shown(self.data.text(address(*place) + layout::NAME, 64)));
                self.oddities.add(Oddity::DuplicateId, || format!("{entry} is left out"));
            }
            is_first
        });
        let mut places: Vec<u32> = all.into_iter().map(|(_, place)| place).collect();
        places.sort_unstable();
        places
    }

    fn entry(&mut self, place: u32, blocks_seen: &mut [bool]) -> Entry {
        let (data, at) = (self.data, address(place));
        let name = self.name(at).to_vec();
        if name.iter().any(|byte| byte.is_ascii_uppercase() || *byte == b'\n') {
            let entry = self.shown(at);
            self.oddities.add(Oddity::OddName, || entry);
        }
        let list = self.list(at, layout::LIST, layout::LIST_IDS, layout::NEXT, layout::COUNT, blocks_seen);
        let flags = Flags(data.u32(at + layout::FLAGS));
        let supergroups = if flags.has(Flags::GROUP) {
            let (ids, next) = (layout::SUPERGROUP_IDS, layout::NEXT_SUPERGROUP);
            self.list(at, layout::SUPERGROUPS, ids, next, layout::SUPERGROUP_COUNT, blocks_seen)
        } else {
            Vec::new()
        };
        Entry {
            flags,
            id: data.i32(at + layout::ID),
            cell_group: data.i32(at + layout::CELL),
            created: data.u32(at + layout::CREATED),
            added: data.u32(at + layout::ADDED),
            removed: data.u32(at + layout::REMOVED),
            changed: data.u32(at + layout::CHANGED),
            owner: data.i32(at + layout::OWNER),
            creator: data.i32(at + layout::CREATOR),
            group_quota: data.i32(at + layout::GROUP_QUOTA),
            user_quota: data.i32(at + layout::USER_QUOTA),
            name,
            list,
            supergroups,
        }
    }

    /// The ids of a list, sorted and none twice: those in the entry, and those in the blocks that continue it.
    fn list(
        &mut self,
        entry: u32,
        first: u32,
        first_ids: u32,
        next: u32,
        count: u32,
        seen: &mut [bool],
    ) -> Vec<i32> {
        let mut ids = Vec::new();
        let (mut at, mut length, mut next_at) = (entry + first, first_ids, entry + next);
        'blocks: loop {
            for id in (0..length).map(|n| self.data.i32(at + 4 * n)) {
                match id {
                    0 => break 'blocks,
                    HOLE => {}
                    id => ids.push(id),
                }
            }
            let block = self.data.u32(next_at);
            if block == 0 {
                break;
            }
            let own = self.id(entry);
            let place = self.place(block, Kind::Block).filter(|_| self.id(block) == own);
            if place.is_none_or(|place| std::mem::replace(&mut seen[place as usize], true)) {
                let entry = self.shown(entry);
                self.oddities.add(Oddity::BrokenList, || format!("that of {entry}, at {block}"));
                break;
            }
            (at, length, next_at) = (block + layout::LIST, layout::BLOCK_IDS, block + layout::NEXT);
        }
        if ids.len() != self.data.u32(entry + count) as usize {
            let (entry, told) = (self.shown(entry), self.data.u32(entry + count));
            self.oddities.add(Oddity::WrongCount, || format!("{entry}: {told}, not {}", ids.len()));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Renames all entries with the same name but the one that look-ups find.
    fn rename_duplicates(&mut self, entries: &mut [Entry], places: &[u32], ranks: &[u32]) {
        let mut order: Vec<usize> = (0..entries.len()).collect();
        let rank = |index: usize| ranks[places[index] as usize].wrapping_sub(1);
        order.sort_unstable_by(|a, b| {
            let by_name = entries[*a].name.cmp(&entries[*b].name);
            by_name.then(rank(*a).cmp(&rank(*b))).then(a.cmp(b))
        });
        let twice = order.windows(2).filter(|pair| entries[pair[0]].name == entries[pair[1]].name);
        let twice: Vec<usize> = twice.map(|pair| pair[1]).collect();
        if twice.is_empty() {
            return;
        }
        let mut taken: std::collections::HashSet<Vec<u8>> = entries.iter().map(|e| e.name.clone()).collect();
        for index in twice {
            let entry = &mut entries[index];
            let old = shown(&entry.name);
            // The id makes it one of a kind, unless somebody else has just this name.
            for mark in 0_u32.. {
                let mark = if mark == 0 { String::new() } else { format!("-{mark}") };
                let end = format!("-{}{mark}", entry.id.unsigned_abs());
                let mut name = entry.name.clone();
                name.truncate(MAX_NAME - end.len());
                name.extend(end.bytes());
                if taken.insert(name.clone()) {
                    entry.name = name;
                    break;
                }
            }
            let new = shown(&entry.name);
            self.oddities.add(Oddity::DuplicateName, || format!("{old} ({}) is {new} now", entry.id));
        }
    }

    /// Groups need an owner that exists, or none, and are in the list of what that owns.
    fn check_owners(&mut self, entries: &mut [Entry], places: &[u32], by_id: &HashMap<i32, u32>) {
        let mut is_owned = vec![false; self.kinds.len()];
        let owners = std::iter::once((0, layout::ORPHANS)).chain(
            entries.iter().zip(places).map(|(entry, place)| (entry.id, address(*place) + layout::OWNED)),
        );
        for (owner, head) in owners {
            let mut at = self.data.u32(head);
            while at != 0 {
                let place = self.place(at, Kind::Entry);
                let own = self.data.i32(at.saturating_add(layout::OWNER)) == owner;
                match place {
                    Some(place) if own && !std::mem::replace(&mut is_owned[place as usize], true) => {}
                    _ => {
                        self.oddities.add(Oddity::BrokenList, || format!("what {owner} owns, at {at}"));
                        break;
                    }
                }
                at = self.data.u32(at + layout::NEXT_OWNED);
            }
        }
        for (entry, place) in entries.iter_mut().zip(places) {
            if !entry.is_group() {
                continue;
            }
            let what = || format!("{} ({})", shown(&entry.name), entry.id);
            if entry.owner == 0 {
                self.oddities.add(Oddity::Orphan, what);
            } else if !by_id.contains_key(&entry.owner) {
                self.oddities.add(Oddity::DeadOwner, || format!("{}, owner {}", what(), entry.owner));
                entry.owner = 0;
            } else if !is_owned[*place as usize] {
                self.oddities.add(Oddity::WrongOwnerChain, what);
            }
        }
    }

    /// Memberships need both, and both have them.
    fn check_members(&mut self, entries: &mut [Entry], by_id: &HashMap<i32, u32>) {
        let is_group: Vec<bool> = entries.iter().map(Entry::is_group).collect();
        let find = |id: &i32| by_id.get(id).map(|index| *index as usize);
        for (index, entry) in entries.iter_mut().enumerate() {
            let label = (entry.id, shown(&entry.name));
            let oddities = &mut self.oddities;
            let mut keep = |id: &i32, only_groups: bool| {
                let is_there = find(id).is_some_and(|other| !only_groups || is_group[other]);
                if !is_there {
                    oddities.add(Oddity::DeadMember, || format!("{id}, of {} ({})", label.1, label.0));
                }
                is_there
            };
            entry.list.retain(|id| keep(id, !is_group[index]));
            entry.supergroups.retain(|id| keep(id, true));
        }
        // What one has and the other has not, as the other's place and the one's id.
        let mut missing: Vec<(usize, bool, i32)> = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            for other in entry.list.iter().filter_map(find) {
                let is_nested = is_group[index] && is_group[other];
                let theirs = if is_nested { &entries[other].supergroups } else { &entries[other].list };
                if theirs.binary_search(&entry.id).is_err() {
                    missing.push((other, is_nested, entry.id));
                }
            }
            for other in entry.supergroups.iter().filter_map(find) {
                if entries[other].list.binary_search(&entry.id).is_err() {
                    missing.push((other, false, entry.id));
                }
            }
        }
        for (index, is_supergroup, id) in &missing {
            let entry = &mut entries[*index];
            self.oddities
                .add(Oddity::OneSided, || format!("{id} was not with {} ({})", shown(&entry.name), entry.id));
            let list = if *is_supergroup { &mut entry.supergroups } else { &mut entry.list };
            list.push(*id);
        }
        for (index, ..) in missing {
            let entry = &mut entries[index];
            for list in [&mut entry.list, &mut entry.supergroups] {
                list.sort_unstable();
                list.dedup();
            }
        }
    }
}
