//! `vos backup`: makes the backup volume of a volume, or makes it again.

use super::volser::{CloneOrder, OFFLINE};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{Entry, Kind, NAME_MAX};
use afs_wire::afsvol::VolumeFlags;
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{EntryFlags, SiteFlags};
use serde_json::json;
use std::net::Ipv4Addr;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id =
        vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume ID or name '{text}'"))?;
    let found = locate(vos, id, Stop::EXITED)?;
    if found.kind != Kind::ReadWrite {
        complain!(vos.printer, "{text} not RW volume\n");
        return Err(Stop::EXITED);
    }
    if found.entry.has(Kind::Backup) {
        let backup_id = found.entry.id(Kind::Backup).0;
        let backup = locate(vos, backup_id, Stop::EXITED)?;
        let as_number = |address: Ipv4Addr| u32::from_ne_bytes(address.octets());
        match vos.is_same_server(backup.server, found.server) {
            Ok(true) => {}
            Ok(false) => {
                let server = as_number(backup.server);
                complain!(vos.printer, "FATAL ERROR: backup volume {backup_id} exists on server {server}\n");
                return Err(Stop::EXITED);
            }
            Err(_) => {
                let server = as_number(backup.server).cast_signed();
                complain!(
                    vos.printer,
                    "Failed to get info about server's {server} address(es) from vlserver; aborting call!\n"
                );
                return Err(Stop::EXITED);
            }
        }
    }
    let backup_id = back_up(vos, found.server, found.partition, id).map_err(|code| {
        vos.print_error(code);
        vos.print_diagnostics("backup", code);
        Stop::RETURNED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({ "rw_id": id, "backup_id": backup_id }));
    } else {
        say!(vos.printer, "Created backup volume for {text} \n");
    }
    Ok(())
}

/// The place of a volume, according to its entry.
pub(super) struct Located {
    pub(super) entry: Entry,
    pub(super) server: Ipv4Addr,
    pub(super) partition: PartitionId,
    pub(super) kind: Kind,
}

/// Finds where a volume is; `stop` is how a verb ends that cannot go on without.
pub(super) fn locate(vos: &Vos, id: u32, stop: Stop) -> Result<Located, Stop> {
    let entry = vos.entry_by_id(id, None).map_err(|code| {
        complain!(vos.printer, "Could not fetch the entry for volume {id} from VLDB \n");
        vos.print_error(code);
        stop
    })?;
    let (kind, site) = if id == entry.id(Kind::ReadOnly).0 {
        let is_released = |site: &&afs_admin::entry::Site| {
            site.is(Kind::ReadOnly) && !site.flags.contains(SiteFlags::DONT_USE)
        };
        let site = entry.sites.iter().find(is_released).copied().ok_or_else(|| {
            complain!(vos.printer, "RO volume is not found in VLDB entry for volume {id}\n");
            stop
        })?;
        (Kind::ReadOnly, site)
    } else {
        let site = entry.read_write_site().ok_or_else(|| {
            complain!(vos.printer, "RW Volume is not found in VLDB entry for volume {id}\n");
            stop
        })?;
        (entry.kind_of(VolumeId(id)), site)
    };
    Ok(Located { server: site.server, partition: site.partition, kind, entry })
}

/// Makes the backup volume, and says its id. Complains of all that goes wrong but not of what the code means.
pub(super) fn back_up(vos: &Vos, server: Ipv4Addr, partition: PartitionId, id: u32) -> Result<u32, Code> {
    let fetch = || {
        vos.entry_by_id(id, Some(Kind::ReadWrite)).inspect_err(|_| {
            complain!(vos.printer, "Could not fetch the entry for the volume {id} from the VLDB \n");
        })
    };
    let mut entry = fetch()?;
    // Where the entry will not change, it need not be locked.
    let is_locked = !entry.has(Kind::Backup)
        || entry.flags.intersects(EntryFlags::OPERATIONS)
        || entry.id(Kind::Backup).0 == 0;
    if is_locked {
        vos.set_lock(id, Some(Kind::ReadWrite), EntryFlags::OP_BACKUP).inspect_err(|_| {
            complain!(vos.printer, "Could not lock the VLDB entry for the volume {id}\n");
        })?;
    }
    let mut is_changed = false;
    let made = (|| {
        if is_locked {
            entry = fetch()?;
        }
        make(vos, server, partition, id, &mut entry, &mut is_changed)
    })();
    if !is_locked {
        return made;
    }
    let unlocked = if is_changed {
        vos.replace_entry(id, Kind::ReadWrite, &entry).inspect_err(|_| {
            complain!(vos.printer, "Could not update the VLDB entry for the volume {id} \n");
        })
    } else {
        vos.release_lock(id, Some(Kind::ReadWrite)).inspect_err(|_| {
            complain!(vos.printer, "Could not unlock the VLDB entry for the volume {id} \n");
        })
    };
    made.and_then(|backup_id| unlocked.map(|()| backup_id))
}

/// Makes the volume and brings it online; says in the entry what there is then.
fn make(
    vos: &Vos,
    server: Ipv4Addr,
    partition: PartitionId,
    id: u32,
    entry: &mut Entry,
    is_changed: &mut bool,
) -> Result<u32, Code> {
    if entry.name.len() > NAME_MAX {
        complain!(vos.printer, "Name of the volume {} exceeds the size limit\n", entry.name);
        return Err(Code::VOLSERBADNAME);
    }
    if entry.id(Kind::Backup).0 == 0 {
        let new = vos.new_volume_ids(1).inspect_err(|_| {
            complain!(vos.printer, "Could not allocate ID for the backup volume of  {id} from the VLDB\n");
        })?;
        entry.set_id(Kind::Backup, VolumeId(new));
        *is_changed = true;
    }
    let backup_id = entry.id(Kind::Backup).0;
    let name = format!("{}.backup", entry.name);
    vos.clone_volume(CloneOrder {
        server,
        partition,
        volume: id,
        clone: backup_id,
        kind: Kind::Backup,
        name: &name,
        what: "backup",
    })?;
    if !entry.has(Kind::Backup) {
        entry.set_exists(Kind::Backup, true);
        *is_changed = true;
    }
    let transaction = vos.begin(server, partition, backup_id, OFFLINE).inspect_err(|_| {
        complain!(vos.printer, "Failed to start a transaction on the backup volume {backup_id}\n");
    })?;
    if let Err(code) = vos.set_flags(transaction, VolumeFlags::NONE) {
        complain!(vos.printer, "Could not mark the backup volume {backup_id} on line \n");
        if vos.end(transaction).is_err() {
            complain!(vos.printer, "Could not end transaction the backup volume {backup_id}\n");
        }
        return Err(code);
    }
    vos.end(transaction).inspect_err(|_| {
        complain!(vos.printer, "Failed to end the transaction on the backup volume {backup_id}\n");
    })?;
    Ok(backup_id)
}
