//! An entry of the volume location database: the volumes of one name, and where they are; and what names volumes may have.

use std::net::Ipv4Addr;

use afs_wire::ids::{HostAddr, PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, MAXTYPES, NMAXNSERVERS, NvldbEntry, SiteFlags, VL_MAXNAMELEN};
use rxgen::xdr::CharVec;

use crate::text::shown;

/// Longest name of a read-write volume, in bytes: with `.readonly` it must fit into a volume's header.
pub const NAME_MAX: usize = 22;

/// Longest name that a volume's header can hold, with its end.
pub const HEADER_NAME_MAX: usize = 32;

/// The kinds of volumes of an entry, by which its ids are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The one that is written.
    ReadWrite = 0,
    /// The clones that are released.
    ReadOnly = 1,
    /// The clone beside the read-write volume.
    Backup = 2,
}

/// Volumes of one name, and where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the read-write volume.
    pub name: String,
    /// The places of the volumes.
    pub sites: Vec<Site>,
    /// The ids by [`Kind`]; 0 for none.
    pub ids: [VolumeId; MAXTYPES],
    /// The clone of a release that is not complete; 0 for none.
    pub clone_id: VolumeId,
    /// The flags: which volumes exist, and whether the entry is locked.
    pub flags: EntryFlags,
}

/// A place where a volume is: the read-write and the backup volume, or a read-only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The file server.
    pub server: Ipv4Addr,
    /// The partition.
    pub partition: PartitionId,
    /// The flags: which volumes are here, and whether a release has reached them.
    pub flags: SiteFlags,
}

impl Kind {
    /// The kind as calls have it.
    pub const fn on_wire(self) -> VolumeType {
        match self {
            Self::ReadWrite => VolumeType::READ_WRITE,
            Self::ReadOnly => VolumeType::READ_ONLY,
            Self::Backup => VolumeType::BACKUP,
        }
    }
}

impl Entry {
    /// Makes the entry as it came. A count of sites that cannot be is taken for the nearest that can.
    pub fn from_wire(entry: &NvldbEntry) -> Self {
        let count = usize::try_from(entry.n_servers).unwrap_or(0).min(NMAXNSERVERS);
        let site = |i: usize| Site {
            server: entry.server_number[i].ip(),
            partition: entry.server_partition[i],
            flags: entry.server_flags[i],
        };
        Self {
            name: shown(entry.name.text()),
            sites: (0..count).map(site).collect(),
            ids: entry.volume_id,
            clone_id: entry.clone_id,
            flags: entry.flags,
        }
    }

    /// The entry as it is sent; `None` if it has too many sites or too long a name.
    pub fn to_wire(&self) -> Option<NvldbEntry> {
        if self.sites.len() > NMAXNSERVERS {
            return None;
        }
        let mut entry = NvldbEntry {
            name: CharVec::<VL_MAXNAMELEN>::from_text(&self.name).ok()?,
            n_servers: i32::try_from(self.sites.len()).ok()?,
            server_number: [HostAddr(0); NMAXNSERVERS],
            server_partition: [PartitionId(0); NMAXNSERVERS],
            server_flags: [SiteFlags::NONE; NMAXNSERVERS],
            volume_id: self.ids,
            clone_id: self.clone_id,
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
    pub const fn id(&self, kind: Kind) -> VolumeId {
        self.ids[kind as usize]
    }

    /// Says what the id of one of the volumes is.
    pub const fn set_id(&mut self, kind: Kind, id: VolumeId) {
        self.ids[kind as usize] = id;
    }

    /// True if the entry says that one of the volumes exists.
    pub const fn has(&self, kind: Kind) -> bool {
        self.flags.contains(exists(kind))
    }

    /// Says whether one of the volumes exists.
    pub const fn set_exists(&mut self, kind: Kind, does: bool) {
        self.flags = if does { self.flags.union(exists(kind)) } else { self.flags.without(exists(kind)) };
    }

    /// True if the entry is of any volume that exists.
    pub const fn has_any(&self) -> bool {
        self.has(Kind::ReadWrite) || self.has(Kind::ReadOnly) || self.has(Kind::Backup)
    }

    /// The kind of the volume of this id. Whatever is neither of the others is read-only.
    pub const fn kind_of(&self, id: VolumeId) -> Kind {
        if self.id(Kind::ReadWrite).0 == id.0 {
            Kind::ReadWrite
        } else if self.id(Kind::Backup).0 == id.0 {
            Kind::Backup
        } else {
            Kind::ReadOnly
        }
    }

    /// The place of the read-write volume among the sites.
    pub fn read_write_index(&self) -> Option<usize> {
        self.sites.iter().position(|site| site.is(Kind::ReadWrite))
    }

    /// The site of the read-write volume.
    pub fn read_write_site(&self) -> Option<Site> {
        self.read_write_index().map(|index| self.sites[index])
    }
}

impl Site {
    /// True if a volume of this kind is here, according to the entry.
    pub const fn is(&self, kind: Kind) -> bool {
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

/// The reason why a text cannot be the name of a read-write volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadName {
    /// It has more than [`NAME_MAX`] bytes.
    TooLong,
    /// It ends as the names of clones do.
    Suffix,
    /// It would be taken for an id.
    Number,
}

/// Checks that a new volume, or one that is renamed, may be called so.
///
/// # Errors
///
/// Why it may not.
pub fn check_name(name: &str) -> Result<(), BadName> {
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

/// True if a name is that of a read-only or backup volume.
pub fn has_suffix(name: &str) -> bool {
    name.ends_with(".readonly") || name.ends_with(".backup")
}

/// A volume's name without the suffix of its kind, and no longer than a volume's header has it.
pub fn base_name(name: &str) -> &str {
    let end =
        (0..=name.len().min(HEADER_NAME_MAX)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    let name = &name[..end];
    name.strip_suffix(".readonly").or_else(|| name.strip_suffix(".backup")).unwrap_or(name)
}

/// The kind of volume that a name stands for, by its suffix.
pub fn kind_of_name(name: &str) -> Kind {
    if name.ends_with(".readonly") {
        Kind::ReadOnly
    } else if name.ends_with(".backup") {
        Kind::Backup
    } else {
        Kind::ReadWrite
    }
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
            ids: [5, 6, 7].map(VolumeId),
            clone_id: VolumeId(8),
            flags: EntryFlags::RW_EXISTS | EntryFlags::RO_EXISTS,
        };
        assert_eq!(Entry::from_wire(&entry.to_wire().unwrap()), entry);
    }

    #[test]
    fn a_count_that_cannot_be_costs_nothing() {
        let empty = Entry {
            name: String::new(),
            sites: vec![],
            ids: [VolumeId(0); 3],
            clone_id: VolumeId(0),
            flags: EntryFlags::NONE,
        };
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
        let kinds = ["a", "a.readonly", "a.backup", "readonly", "a.backup.x"].map(kind_of_name);
        assert_eq!(kinds, [Kind::ReadWrite, Kind::ReadOnly, Kind::Backup, Kind::ReadWrite, Kind::ReadWrite]);
    }
}
