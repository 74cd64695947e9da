//! The three forms that an entry has on the wire (VLDB notes 2), and the structures that ask for something, to and from
//! what they mean.

use afs_wire::ids::{HostAddr, PartitionId, VolumeId};
use afs_wire::vl::{
    AddrMask, EntryFlags, ListAddrByAttributes, ListMask, NMAXNSERVERS, NvldbEntry, OMAXNSERVERS,
    RepSiteMask, SiteFlags, UpdateMask, UvldbEntry, VL_MAXNAMELEN, VldbEntry, VldbListByAttributes,
    VldbUpdateEntry,
};
use rxgen::xdr::{CharVec, Uuid};

use super::change::{NewEntry, NewSite, ReplicaChange, Update};
use super::errors::VlError;
use super::image::Vldb;
use super::list::Attributes;
use super::records::{EntryRow, Server, VolumeType};
use super::servers::ServerQuery;

/// VLSF_UUID: the server of this site is named by its UUID.
const NAMED_BY_UUID: i32 = 0x10;

/// A form of an entry.
pub(crate) trait Form: Sized {
    /// An entry in this form.
    fn of(vldb: &Vldb, row: &EntryRow) -> Self;

    /// No entry: what goes with an index of 0 in a listing.
    fn none() -> Self;
}

impl Form for VldbEntry {
    fn of(vldb: &Vldb, row: &EntryRow) -> Self {
        let mut entry = Self {
            name: name_of(row),
            volume_id: ids_of(row),
            clone_id: VolumeId(row.clone_id()),
            flags: EntryFlags(row.flags() as i32),
            ..Self::none()
        };
        for (index, site) in row.sites().take(OMAXNSERVERS).enumerate() {
            entry.server_number[index] = HostAddr(vldb.server(site.server).first_address());
            entry.server_partition[index] = PartitionId(site.partition.into());
            entry.server_flags[index] = SiteFlags(site.flags.into());
            entry.n_servers += 1;
        }
        entry
    }

    fn none() -> Self {
        Self {
            name: CharVec([0; VL_MAXNAMELEN]),
            spares3: 0,
            n_servers: 0,
            server_number: [HostAddr(0); OMAXNSERVERS],
            server_partition: [PartitionId(0); OMAXNSERVERS],
            server_flags: [SiteFlags(0); OMAXNSERVERS],
            volume_id: [VolumeId(0); 3],
            clone_id: VolumeId(0),
            flags: EntryFlags(0),
        }
    }
}

impl Form for NvldbEntry {
    fn of(vldb: &Vldb, row: &EntryRow) -> Self {
        let mut entry = Self {
            name: name_of(row),
            volume_id: ids_of(row),
            clone_id: VolumeId(row.clone_id()),
            flags: EntryFlags(row.flags() as i32),
            ..Self::none()
        };
        for (index, site) in row.sites().take(NMAXNSERVERS).enumerate() {
            entry.server_number[index] = HostAddr(vldb.server(site.server).first_address());
            entry.server_partition[index] = PartitionId(site.partition.into());
            entry.server_flags[index] = SiteFlags(site.flags.into());
            entry.n_servers += 1;
        }
        entry
    }

    fn none() -> Self {
        Self {
            name: CharVec([0; VL_MAXNAMELEN]),
            n_servers: 0,
            server_number: [HostAddr(0); NMAXNSERVERS],
            server_partition: [PartitionId(0); NMAXNSERVERS],
            server_flags: [SiteFlags(0); NMAXNSERVERS],
            volume_id: [VolumeId(0); 3],
            clone_id: VolumeId(0),
            flags: EntryFlags(0),
            match_index: 0,
            spares: [0; 8],
        }
    }
}

impl Form for UvldbEntry {
    fn of(vldb: &Vldb, row: &EntryRow) -> Self {
        let mut entry = Self {
            name: name_of(row),
            volume_id: ids_of(row),
            clone_id: VolumeId(row.clone_id()),
            flags: EntryFlags(row.flags() as i32),
            ..Self::none()
        };
        for (index, site) in row.sites().take(NMAXNSERVERS).enumerate() {
            let mut flags = i32::from(site.flags);
            match vldb.server(site.server) {
                Server::Registered { uuid, uniquifier, .. } => {
                    entry.server_number[index] = Uuid::from_bytes(*uuid);
                    entry.server_unique[index] = *uniquifier as i32;
                    flags |= NAMED_BY_UUID;
                }
                other => entry.server_number[index].time_low = other.first_address(),
            }
            entry.server_partition[index] = PartitionId(site.partition.into());
            entry.server_flags[index] = SiteFlags(flags);
            entry.n_servers += 1;
        }
        entry
    }

    fn none() -> Self {
        Self {
            name: CharVec([0; VL_MAXNAMELEN]),
            n_servers: 0,
            server_number: [NO_UUID; NMAXNSERVERS],
            server_unique: [0; NMAXNSERVERS],
            server_partition: [PartitionId(0); NMAXNSERVERS],
            server_flags: [SiteFlags(0); NMAXNSERVERS],
            volume_id: [VolumeId(0); 3],
            clone_id: VolumeId(0),
            flags: EntryFlags(0),
            match_index: 0,
            spares: [0; 8],
        }
    }
}

const NO_UUID: Uuid = Uuid {
    time_low: 0,
    time_mid: 0,
    time_hi_and_version: 0,
    clock_seq_hi_and_reserved: 0,
    clock_seq_low: 0,
    node: [0; 6],
};

fn name_of(row: &EntryRow) -> CharVec<VL_MAXNAMELEN> {
    let mut name = [0; VL_MAXNAMELEN];
    name[..row.name().len()].copy_from_slice(row.name());
    CharVec(name)
}

fn ids_of(row: &EntryRow) -> [VolumeId; 3] {
    VolumeType::ALL.map(|volume_type| VolumeId(row.id(volume_type)))
}

impl From<&VldbEntry> for NewEntry {
    fn from(entry: &VldbEntry) -> Self {
        Self {
            name: entry.name.text().to_vec(),
            site_count: entry.n_servers,
            sites: sites_of(&entry.server_number, &entry.server_partition, &entry.server_flags),
            ids: entry.volume_id.map(|id| id.0),
            clone_id: entry.clone_id.0,
            flags: entry.flags.0 as u32,
        }
    }
}

impl From<&NvldbEntry> for NewEntry {
    fn from(entry: &NvldbEntry) -> Self {
        Self {
            name: entry.name.text().to_vec(),
            site_count: entry.n_servers,
            sites: sites_of(&entry.server_number, &entry.server_partition, &entry.server_flags),
            ids: entry.volume_id.map(|id| id.0),
            clone_id: entry.clone_id.0,
            flags: entry.flags.0 as u32,
        }
    }
}

fn sites_of(servers: &[HostAddr], partitions: &[PartitionId], flags: &[SiteFlags]) -> Vec<NewSite> {
    let sites = servers.iter().zip(partitions).zip(flags);
    sites.map(|((server, partition), flags)| new_site(*server, *partition, *flags)).collect()
}

fn new_site(server: HostAddr, partition: PartitionId, flags: SiteFlags) -> NewSite {
    NewSite { address: server.0, partition: partition.0, flags: flags.0 }
}

impl From<&VldbUpdateEntry> for Update {
    fn from(update: &VldbUpdateEntry) -> Self {
        let has = |bits: UpdateMask| update.mask.intersects(bits);
        let change = |index: usize| ReplicaChange {
            mask: mask_of(update.repsites_mask[index]),
            target_address: update.repsites_target_server[index].0,
            target_partition: update.repsites_target_part[index].0,
            new: new_site(
                update.repsites_new_server[index],
                update.repsites_new_part[index],
                update.repsites_new_flags[index],
            ),
        };
        Self {
            name: has(UpdateMask::VOLUME_NAME).then(|| update.name.text().to_vec()),
            flags: has(UpdateMask::FLAGS).then_some(update.flags.0 as u32),
            clone_id: has(UpdateMask::CLONE_ID).then_some(update.clone_id.0),
            ids: [
                // A spare field became that of this id.
                has(UpdateMask::RW_ID).then_some(update.spares3 as u32),
                has(UpdateMask::READ_ONLY_ID).then_some(update.read_only_id.0),
                has(UpdateMask::BACKUP_ID).then_some(update.backup_id.0),
            ],
            replicas: has(UpdateMask::REP_SITES)
                .then(|| (update.n_modified_repsites, (0..OMAXNSERVERS).map(change).collect())),
        }
    }
}

/// The numbers of the two are the same.
const fn mask_of(mask: RepSiteMask) -> u32 {
    mask.0
}

/// The volume that is asked for, and if there is none the attributes.
pub(crate) fn attributes_of(asked: &VldbListByAttributes) -> Result<u32, Attributes> {
    let has = |bits: ListMask| asked.mask.intersects(bits);
    if has(ListMask::VOLUME_ID) {
        return Ok(asked.volumeid.0);
    }
    Err(Attributes {
        server: has(ListMask::SERVER).then_some(asked.server.0),
        partition: has(ListMask::PARTITION).then_some(asked.partition.0),
        flags: has(ListMask::FLAG).then_some(asked.flag.0 as u32),
    })
}

/// Returns what a server is asked for by.
pub(crate) fn query_of(asked: &ListAddrByAttributes) -> Result<ServerQuery, VlError> {
    let known = AddrMask::IPADDR | AddrMask::INDEX | AddrMask::UUID;
    match AddrMask(asked.mask.0 & known.0) {
        AddrMask::IPADDR => Ok(ServerQuery::Address(asked.ipaddr.0)),
        AddrMask::INDEX => Ok(ServerQuery::Index(asked.index)),
        AddrMask::UUID => Ok(ServerQuery::Uuid(asked.uuid.to_bytes())),
        _ => Err(VlError::BadMask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_asked_for_by_exactly_one_thing() {
        let asked = |mask| ListAddrByAttributes {
            mask: AddrMask(mask),
            ipaddr: HostAddr(7),
            index: 8,
            spare1: 0,
            uuid: NO_UUID,
        };
        assert_eq!(query_of(&asked(1)), Ok(ServerQuery::Address(7)));
        assert_eq!(query_of(&asked(0x102)), Ok(ServerQuery::Index(8)));
        assert_eq!(query_of(&asked(4)), Ok(ServerQuery::Uuid([0; 16])));
        for mask in [0, 3, 5, 6, 7, 8] {
            assert_eq!(query_of(&asked(mask)), Err(VlError::BadMask), "{mask}");
        }
    }
}
