//! Questions of a file server to the volume location database, for clients that ask the file server instead of the
//! database.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use afs_wire::ids::{HostAddr, Name, VolumeId};
use afs_wire::rxafs::VolumeInfo;
use afs_wire::vl::{EntryFlags, OMAXNSERVERS, VldbEntry};
use rxgen::Abort;

/// In place of the id of a fifth kind of volume: to a client, that the database itself knows more (File service notes 6.5).
const ASK_THE_DATABASE: VolumeId = VolumeId(0xabcd_9999);

/// Entries of the volume location database: of this process, or of the cell's servers.
pub trait Locations: fmt::Debug + Send + Sync + 'static {
    /// The entry of a volume, by its name or its number as text.
    ///
    /// Fails with what the database refuses it with (VL_NOENT for most), or with Rx's code when no server answers.
    fn entry<'a>(
        &'a self,
        name: &'a Name,
    ) -> Pin<Box<dyn Future<Output = Result<VldbEntry, Abort>> + Send + 'a>>;
}

/// An entry as `GetVolumeInfo` has it, in the way of a stock server (File service notes 6.5): whichever of the volumes was asked
/// for, it is told of the read-write one, and of those beside it that exist.
pub(crate) fn volume_info(entry: &VldbEntry) -> VolumeInfo {
    let [read_write, read_only, backup] = entry.volume_id;
    let if_there = |id, flag| if entry.flags.contains(flag) { id } else { VolumeId(0) };
    let read_only = if_there(read_only, EntryFlags::RO_EXISTS);
    let backup = if_there(backup, EntryFlags::BACK_EXISTS);
    let count = usize::try_from(entry.n_servers).unwrap_or(0).min(entry.server_number.len());
    let mut servers = [HostAddr(0); OMAXNSERVERS];
    servers[..count].copy_from_slice(&entry.server_number[..count]);
    VolumeInfo {
        vid: read_write,
        kind: 0,
        types: [read_write, read_only, backup, VolumeId(0), ASK_THE_DATABASE],
        server_count: count as u32,
        servers,
    }
}

#[cfg(test)]
mod tests {
    use afs_wire::ids::PartitionId;
    use afs_wire::vl::{SiteFlags, VL_MAXNAMELEN};
    use rxgen::xdr::CharVec;

    use super::*;

    /// The database may be another server, which may count more sites than there is room for.
    #[test]
    fn an_entry_has_at_most_the_servers_that_fit() {
        for (n_servers, count) in [(-1, 0), (0, 0), (2, 2), (8, 8), (i32::MAX, 8)] {
            let entry = VldbEntry {
                name: CharVec([0; VL_MAXNAMELEN]),
                spares3: 0,
                n_servers,
                server_number: [HostAddr(7); OMAXNSERVERS],
                server_partition: [PartitionId(0); OMAXNSERVERS],
                server_flags: [SiteFlags(0); OMAXNSERVERS],
                volume_id: [1, 2, 3].map(VolumeId),
                clone_id: VolumeId(0),
                flags: EntryFlags(0),
            };
            let info = volume_info(&entry);
            assert_eq!(info.server_count, count, "of {n_servers}");
            assert_eq!(info.servers.iter().filter(|server| server.0 == 7).count(), count as usize);
        }
    }
}
