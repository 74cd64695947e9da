//! An entry of the volume location database, as `vos` works with it: the volumes of one name, and where they are.

use crate::output::harmless;
use afs_wire::ids::{HostAddr, PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, MAXTYPES, NMAXNSERVERS, NvldbEntry, SiteFlags, VL_MAXNAMELEN};
use rxgen::xdr::CharVec;
use std::net::Ipv4Addr;

/// Longest name of a read-write volume, in bytes: with `.readonly` it must fit into a volume's header.
pub(super) const NAME_MAX: usize = 22;

/// Longest name that a volume's header can hold, with its end.
pub(super) const HEADER_NAME_MAX: usize = 32;

/// The kinds of volumes of an entry, by which its ids are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    ReadWrite = 0,
    ReadOnly = 1,
    Backup = 2,
}

/// Volumes of one name, and where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) sites: Vec<Site>,
    /// By [`Kind`]; 0 for none.
    pub(super) ids: [u32; MAXTYPES],
    /// The clone of a release that is not complete.
    pub(super) clone_id: u32,
    pub(super) flags: EntryFlags,
}

/// A place where a volume is: the read-write and the backup volume, or a read-only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) server: Ipv4Addr,
    pub(super) partition: PartitionId,
    pub(super) flags: SiteFlags,
}

impl Entry {
    /// As it came. A count of sites that cannot be is taken for the nearest that can.
    pub(super) fn from_wire(entry: &NvldbEntry) -> Self {
        let count = usize::try_from(entry.n_servers).unwrap_or(0).min(NMAXNSERVERS);
        let site = |i: usize| Site {
            server: entry.server_number[i].ip(),
            partition: entry.server_partition[i],
            flags: entry.server_flags[i],
        };
        Self {
            name: harmless(&String::from_utf8_lossy(entry.name.text())),
            sites: (0..count).map(site).collect(),
            ids: entry.volume_id.map(|id| id.0),
            clone_id: entry.clone_id.0,
            flags: entry.flags,
        }
    }

    /// As it is sent; `None` if it has too many sites or too long a name.
    pub(super) fn to_wire(&self) -> Option<NvldbEntry> {
        if self.sites.len() > NMAXNSERVERS {
            return None;
        }
        let mut entry = NvldbEntry {
            name: CharVec::<VL_MAXNAMELEN>::from_text(&self.name).ok()?,
            n_servers: i32::try_from(self.sites.len()).ok()?,
            server_number: [HostAddr(0); NMAXNSERVERS],
            server_partition: [PartitionId(0); NMAXNSERVERS],
            server_flags: [SiteFlags::NONE; NMAXNSERVERS],
            volume_id: self.ids.map(VolumeId),
            clone_id: VolumeId(self.clone_id),
            flags: self.flags,
            match_index: 0,
            spares: [0; 8],
        };
        for (i, site) in self.sites.iter().enumerate() {
            entry.server_number[i] = HostAddr::from(site.server);
            entry.server_partition[i] = site.partition;
            entry.server_flags[i] = site.flags;
        }
        Some(entry)
    }

    /// The id of one of the volumes; 0 if it has none.
    pub(super) const fn id(&self, kind: Kind) -> u32 {
        self.ids[kind as usize]
    }

    pub(super) const fn set_id(&mut self, kind: Kind, id: u32) {
        self.ids[kind as usize] = id;
    }

    /// Whether the entry says that one of the volumes exists.
    pub(super) const fn has(&self, kind: Kind) -> bool {
        self.flags.contains(exists(kind))
    }

    pub(super) const fn set_exists(&mut self, kind: Kind, does: bool) {
        self.flags = if does { self.flags.union(exists(kind)) } else { self.flags.without(exists(kind)) };
    }

    /// Whether the entry is of any volume that exists.
    pub(super) const fn has_any(&self) -> bool {
        self.has(Kind::ReadWrite) || self.has(Kind::ReadOnly) || self.has(Kind::Backup)
    }

    /// The kind of the volume of this id. Whatever is neither of the others is read-only.
    pub(super) const fn kind_of(&self, id: u32) -> Kind {
        if self.id(Kind::ReadWrite) == id {
            Kind::ReadWrite
        } else if self.id(Kind::Backup) == id {
            Kind::Backup
        } else {
            Kind::ReadOnly
        }
    }

    /// The place of the read-write volume among the sites.
    pub(super) fn read_write_index(&self) -> Option<usize> {
        self.sites.iter().position(|site| site.is(Kind::ReadWrite))
    }

    /// The site of the read-write volume.
    pub(super) fn read_write_site(&self) -> Option<Site> {
        self.read_write_index().map(|index| self.sites[index])
    }
}

impl Site {
    /// Whether a volume of this kind is here, according to the entry.
    pub(super) const fn is(&self, kind: Kind) -> bool {
        self.flags.contains(match kind {
            Kind::ReadWrite | Kind::Backup => SiteFlags::RW_VOL,
            Kind::ReadOnly => SiteFlags::RO_VOL,
        })
    }
}

const fn exists(kind: Kind) -> EntryFlags {
    match kind {
        Kind::ReadWrite => EntryFlags::RW_EXISTS,
        Kind::ReadOnly => EntryFlags::RO_EXISTS,
        Kind::Backup => EntryFlags::BACK_EXISTS,
    }
}

/// Why a text cannot be the name of a read-write volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadName {
    TooLong,
    Suffix,
    Number,
}

/// Whether a new volume, or one that is renamed, may be called so.
pub(super) fn check_name(name: &str) -> Result<(), BadName> {
    if name.len() > NAME_MAX {
        Err(BadName::TooLong)
    } else if has_suffix(name) {
        Err(BadName::Suffix)
    } else if name.bytes().all(|b| b.is_ascii_digit()) {
        Err(BadName::Number)
    } else {
        Ok(())
    }
}

/// Whether a name is that of a read-only or backup volume.
pub(super) fn has_suffix(name: &str) -> bool {
    name.ends_with(".readonly") || name.ends_with(".backup")
}

/// A volume's name without the suffix of its kind, and no longer than a volume's header has it.
pub(super) fn base_name(name: &str) -> &str {
    let end =
        (0..=name.len().min(HEADER_NAME_MAX)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    let name = &name[..end];
    name.strip_suffix(".readonly").or_else(|| name.strip_suffix(".backup")).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_the_way_to_the_wire_and_back() {
        let site =
            |last, flags| Site { server: Ipv4Addr::new(10, 88, 0, last), partition: PartitionId(27), flags };
        let entry = Entry {
            name: "root.cell".to_owned(),
            sites: vec![site(1, SiteFlags::RW_VOL), site(2, SiteFlags::RO_VOL)],
            ids: [5, 6, 7],
            clone_id: 8,
            flags: EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS,
        };
        assert_eq!(Entry::from_wire(&entry.to_wire().unwrap()), entry);
    }

    #[test]
    fn a_count_that_cannot_be_costs_nothing() {
        let empty =
            Entry { name: String::new(), sites: vec![], ids: [0; 3], clone_id: 0, flags: EntryFlags::NONE };
        let mut wire = empty.to_wire().unwrap();
        wire.n_servers = -1;
        assert!(Entry::from_wire(&wire).sites.is_empty());
        wire.n_servers = i32::MAX;
        assert_eq!(Entry::from_wire(&wire).sites.len(), NMAXNSERVERS);
    }

    #[test]
    fn names_are_neither_numbers_nor_of_clones() {
        assert_eq!(check_name("root.cell"), Ok(()));
        assert_eq!(check_name("a.readonly"), Err(BadName::Suffix));
        assert_eq!(check_name("a.backup"), Err(BadName::Suffix));
        assert_eq!(check_name("123"), Err(BadName::Number));
        assert_eq!(check_name(&"a".repeat(22)), Ok(()));
        assert_eq!(check_name(&"a".repeat(23)), Err(BadName::TooLong));
        assert_eq!(base_name("a.readonly"), "a");
        assert_eq!(base_name("a.backup"), "a");
        assert_eq!(base_name(&"a".repeat(40)).len(), 32);
    }
}
