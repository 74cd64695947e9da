//! Listings of entries: which ones match, and from where to go on (VLDB notes 13).
//!
//! A listing looks at some thousand entries at a time, so that others get at the database between; the caller goes on with
//! the place that it is told.

use super::errors::VlError;
use super::image::{FILE_ENTRY_BYTES, FILE_HEADER_BYTES, MAX_SLOTS, Vldb};
use super::pattern::Pattern;
use super::records::{EntryRow, ServerNumber};

/// Entries that are looked at in one go: some hundred microseconds.
const STEP: u32 = 4096;

/// Sites that the oldest form of an entry has, and that a listing in it looks at.
const OLD_SITES: usize = 8;

/// VLSF_ROVOL, VLSF_RWVOL and VLSF_BACKVOL: what is at a site, and which name has matched.
const READ_ONLY_SITE: u8 = 2;
const READ_WRITE_SITE: u8 = 4;
const BACKUP_SITE: u8 = 8;

/// VLF_RWEXISTS and VLF_BACKEXISTS.
const READ_WRITE_EXISTS: u32 = 0x1000;
const BACKUP_EXISTS: u32 = 0x4000;

/// The attributes by which entries are asked for; all of them must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// A site on the server with this address.
    pub server: Option<u32>,
    /// A site on this partition, on that server if there is one.
    pub partition: Option<i32>,
    /// One of these bits in the flags.
    pub flags: Option<u32>,
}

/// An entry that matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Its place.
    pub slot: u32,
    /// The site and the volume's name that have matched, as they are sent (VLDB notes 13).
    pub match_index: i32,
}

/// The progress of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The entries that were found in this step.
    pub found: Vec<Match>,
    /// The place to go on; `None` at the end.
    pub next: Option<u32>,
}

/// The index of a listing that stands for a place: where stock servers have it in their file.
pub fn index_of(slot: u32) -> i32 {
    FILE_HEADER_BYTES + FILE_ENTRY_BYTES * slot as i32
}

/// The place behind the one that an index of a listing stands for, the first one for 0; `None` for what is no index.
fn slot_behind(index: i32, slots: u32) -> Option<u32> {
    if index == 0 {
        return Some(0);
    }
    let slot = u32::try_from(index.checked_sub(FILE_HEADER_BYTES)? / FILE_ENTRY_BYTES).ok()?;
    (index >= FILE_HEADER_BYTES && slot < slots.min(MAX_SLOTS)).then_some(slot + 1)
}

/// The kind of a listing: which sites it looks at, and what it makes of several attributes.
#[derive(Clone, Debug)]
pub enum Listing {
    /// ListAttributes and LinkedList, in the oldest form.
    Old(Attributes),
    /// ListAttributesN and LinkedListN.
    New(Attributes),
    /// ListAttributesN2: the name that goes with each site counts too.
    Named(Attributes, Option<Pattern>),
}

impl Listing {
    /// ListAttributesN2 with a regular expression for the name; empty and `.*` are any.
    ///
    /// # Errors
    ///
    /// If this is none.
    pub fn named(attributes: Attributes, name: &[u8]) -> Result<Self, VlError> {
        let pattern = match Self::is_any_name(name) {
            true => None,
            false => Some(Pattern::new(name).ok_or(VlError::BadName)?),
        };
        Ok(Self::Named(attributes, pattern))
    }

    /// True if a name that is asked for is that of any volume.
    pub fn is_any_name(name: &[u8]) -> bool {
        name.is_empty() || name == b".*"
    }

    fn attributes(&self) -> &Attributes {
        match self {
            Self::Old(attributes) | Self::New(attributes) | Self::Named(attributes, _) => attributes,
        }
    }

    /// How an entry matches.
    fn matches(&self, row: &EntryRow, server: Option<ServerNumber>) -> Option<i32> {
        match self {
            Self::Old(attributes) => matches_sites(row, server, attributes, OLD_SITES).then_some(0),
            Self::New(attributes) => matches_sites(row, server, attributes, usize::MAX).then_some(0),
            Self::Named(attributes, pattern) => matches_name(row, server, attributes, pattern.as_ref()),
        }
    }
}

impl Vldb {
    /// The place where a listing begins that a client continues behind an index.
    pub fn start(&self, index: i32) -> Option<u32> {
        slot_behind(index, self.slots().len())
    }

    /// The next step of a listing, from a place on, with at most `limit` entries.
    pub fn list(&self, listing: &Listing, from: u32, limit: usize) -> Progress {
        let mut found = Vec::new();
        let server = match listing.attributes().server {
            None => None,
            Some(address) => match self.find_address(address) {
                Some(number) => Some(number),
                None => return Progress { found, next: None },
            },
        };
        let end = from.saturating_add(STEP);
        for (slot, row) in self.slots().from(from) {
            if slot >= end {
                return Progress { found, next: Some(slot) };
            }
            if let Some(match_index) = listing.matches(row, server) {
                found.push(Match { slot, match_index });
                if found.len() >= limit {
                    return Progress { found, next: Some(slot + 1) };
                }
            }
        }
        Progress { found, next: None }
    }

    /// The entry behind an index, with its place, and how many places there are behind it (ListEntry, ListEntryN). `None`
    /// and 0 at the end, `None` and -1 if the index is none.
    pub fn entry_behind(&self, index: i32) -> (Option<u32>, i32) {
        let Some(from) = self.start(index) else { return (None, -1) };
        match self.slots().from(from).next() {
            Some((slot, _)) => (Some(slot), (self.slots().len() - slot - 1) as i32),
            None => (None, 0),
        }
    }

    /// The entry at a place.
    pub(crate) fn row(&self, slot: u32) -> Option<&EntryRow> {
        self.slots().get(slot)
    }
}

/// Stock servers look for the server first, and for the partition then at the site that they found.
fn matches_sites(
    row: &EntryRow,
    server: Option<ServerNumber>,
    attributes: &Attributes,
    sites: usize,
) -> bool {
    let is_there = |partition: u8| attributes.partition.is_none_or(|wanted| wanted == i32::from(partition));
    let site_matches = match server {
        Some(server) => {
            let site = row.sites().take(sites).find(|site| site.server == server);
            site.is_some_and(|site| is_there(site.partition))
        }
        None => {
            attributes.partition.is_none() || row.sites().take(sites).any(|site| is_there(site.partition))
        }
    };
    site_matches && attributes.flags.is_none_or(|flags| row.flags() & flags != 0)
}

/// The site that matches best, and which of the volumes is there: the read-write one, then its backup, then the last of the
/// read-only ones before those.
fn matches_name(
    row: &EntryRow,
    server: Option<ServerNumber>,
    attributes: &Attributes,
    pattern: Option<&Pattern>,
) -> Option<i32> {
    let fits = |suffix: &str| {
        pattern.is_none_or(|pattern| pattern.matches(&[row.name(), suffix.as_bytes()].concat()))
    };
    let (mut found, mut tried_read_only, mut tried_read_write) = (None, None, None);
    for (index, site) in row.sites().enumerate() {
        let mut kind = 0;
        if site.flags & READ_WRITE_SITE != 0 {
            if row.flags() & READ_WRITE_EXISTS != 0 && fits("") {
                kind = READ_WRITE_SITE;
            } else if row.flags() & BACKUP_EXISTS != 0 && fits(".backup") {
                kind = BACKUP_SITE;
            }
            tried_read_write = Some(kind != 0);
        } else {
            if site.flags & READ_ONLY_SITE != 0
                && (pattern.is_none() || tried_read_only != Some(false) && fits(".readonly"))
            {
                kind = READ_ONLY_SITE;
            }
            tried_read_only = Some(kind != 0);
        }
        let is_match = kind != 0
            && server.is_none_or(|server| server == site.server)
            && attributes.partition.is_none_or(|wanted| wanted == i32::from(site.partition))
            && attributes.flags.is_none_or(|flags| row.flags() & flags != 0);
        if is_match {
            found = Some(i32::from(kind) << 16 | index as i32);
        }
        if found.is_some() && tried_read_write.is_some()
            || tried_read_write == Some(false) && tried_read_only == Some(false)
        {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_stands_for_its_place_and_what_is_none_is_refused() {
        for slot in [0, 1, 999_999] {
            assert_eq!(slot_behind(index_of(slot), 1_000_000), Some(slot + 1));
        }
        assert_eq!(slot_behind(0, 10), Some(0));
        for index in [1, -1, FILE_HEADER_BYTES - 1, index_of(10), i32::MAX, i32::MIN] {
            assert_eq!(slot_behind(index, 10), None, "{index}");
        }
        assert_eq!(slot_behind(index_of(MAX_SLOTS - 1), u32::MAX), Some(MAX_SLOTS));
    }
}
