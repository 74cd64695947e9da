//! `vos rename`: gives a volume, and its clones, another name.

use super::volser::OFFLINE;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::entry::{BadName, Entry, HEADER_NAME_MAX, Kind, NAME_MAX, check_name, has_suffix};
use afs_admin::volumes::{Identity, Transaction};
use afs_wire::ids::VolumeId;
use afs_wire::vl::EntryFlags;
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let old = given.word("oldname").unwrap_or_default();
    let new = given.word("newname").unwrap_or_default();
    let entry = vos.entry_by_name(old).map_err(|code| {
        complain!(vos.printer, "vos: Could not find entry for volume {old}\n");
        vos.print_error(code);
        Stop::EXITED
    })?;
    match vos.entry_by_name(new) {
        // The same volume: a renaming that was interrupted is completed.
        Ok(other) if other.id(Kind::ReadWrite).0 == entry.id(Kind::ReadWrite).0 => {}
        Ok(other) => {
            let (id, other) = (entry.id(Kind::ReadWrite).0, other.id(Kind::ReadWrite).0);
            complain!(
                vos.printer,
                "vos: Cannot rename volume {old} ({id}) to {new}; volume {new} ({other}) already exists\n"
            );
            return Err(Stop::EXITED);
        }
        Err(Code::VL_NOENT) => {}
        Err(code) => {
            complain!(vos.printer, "vos: Could not check entry for volume {new}\n");
            vos.print_error(code);
            return Err(Stop::EXITED);
        }
    }
    check_names(vos, old, new)?;
    let id = entry.id(Kind::ReadWrite).0;
    rename(vos, entry, old, new).map_err(|code| {
        vos.print_error(code);
        vos.print_diagnostics("rename", code);
        Stop::EXITED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({ "rw_id": id, "old_name": old, "name": new }));
    } else {
        say!(vos.printer, "Renamed volume {old} to {new}\n");
    }
    Ok(())
}

fn check_names(vos: &Vos, old: &str, new: &str) -> Done {
    let illegal = |name| {
        complain!(vos.printer, "Illegal volume name {name}, should not end in .readonly or .backup\n");
        Err(Stop::EXITED)
    };
    if has_suffix(old) {
        return illegal(old);
    }
    match check_name(new) {
        Ok(()) => Ok(()),
        Err(BadName::TooLong) => {
            complain!(vos.printer, "vos: the new volume name {new} exceeds the size limit of {NAME_MAX}\n");
            Err(Stop::EXITED)
        }
        Err(BadName::Suffix) => illegal(new),
        Err(BadName::Number) => {
            complain!(vos.printer, "Illegal volume name {new}, should not be a number\n");
            Err(Stop::EXITED)
        }
    }
}

fn rename(vos: &Vos, entry: Entry, old: &str, new: &str) -> Result<(), Code> {
    let id = entry.id(Kind::ReadWrite).0;
    vos.set_lock(id, Some(Kind::ReadWrite), EntryFlags::OP_DELETE).inspect_err(|_| {
        complain!(vos.printer, " Could not lock the VLDB entry for the  volume {id} \n");
    })?;
    let renamed = rename_locked(vos, entry, old, new);
    let unlocked = vos.release_lock(id, Some(Kind::ReadWrite)).inspect_err(|_| {
        complain!(vos.printer, "Could not unlock the VLDB entry for the volume {new} {id}\n");
    });
    renamed.and(unlocked)
}

fn rename_locked(vos: &Vos, mut entry: Entry, old: &str, new: &str) -> Result<(), Code> {
    let id = entry.id(Kind::ReadWrite).0;
    let now = vos.entry_by_id(id, Some(Kind::ReadWrite)).inspect_err(|_| {
        complain!(vos.printer, "Could not obtain the VLDB entry for the volume {id}\n");
    })?;
    entry.flags = entry.flags.without(EntryFlags::OPERATIONS) | EntryFlags::OP_DELETE;
    if entry != now {
        complain!(vos.printer, "VLDB entry for volume {id} has changed; please reissue the command.\n");
        return Err(Code::VL_BADENTRY);
    }
    new.clone_into(&mut entry.name);
    vos.replace_locked_entry(id, Kind::ReadWrite, &entry).inspect_err(|_| {
        complain!(vos.printer, "Could not update VLDB entry for {id}\n");
    })?;
    vos.tell(&format!("Recorded the new name {new} in VLDB\n"));
    if entry.has(Kind::ReadWrite) {
        rename_read_write(vos, &entry, old, new)?;
    }
    if entry.has(Kind::Backup) {
        rename_backup(vos, &entry, new)?;
    }
    if entry.has(Kind::ReadOnly) {
        rename_read_only(vos, &entry, new)?;
    }
    Ok(())
}

fn discrepancy(vos: &Vos, what: &str) -> Code {
    complain!(vos.printer, "{what}\ntry building VLDB from scratch\n");
    Code::VOLSERVLDB_ERROR
}

fn rename_read_write(vos: &Vos, entry: &Entry, old: &str, new: &str) -> Result<(), Code> {
    let id = entry.id(Kind::ReadWrite).0;
    let site = entry.read_write_site().ok_or_else(|| {
        discrepancy(vos, &format!("There is a serious discrepancy in VLDB entry for volume {id}"))
    })?;
    let transaction = vos.begin(site.server, site.partition, id, OFFLINE).inspect_err(|_| {
        complain!(vos.printer, "Could not start transaction on the rw volume {id}\n");
    })?;
    let to = Identity {
        name: new,
        kind: Kind::ReadWrite,
        parent: VolumeId(id),
        clone: entry.id(Kind::ReadOnly),
        backup: entry.id(Kind::Backup),
    };
    set(vos, transaction, to, &format!("volume {new} {id}"), &format!("volume {new} {id}"), || {
        vos.tell(&format!("Renamed rw volume {old} to {new}\n"));
    })
}

fn rename_backup(vos: &Vos, entry: &Entry, new: &str) -> Result<(), Code> {
    let id = entry.id(Kind::Backup).0;
    let site = entry.read_write_site().ok_or_else(|| {
        let what = "There is a serious discrepancy in the VLDB entry for the backup volume";
        discrepancy(vos, &format!("{what} {id}"))
    })?;
    let transaction = vos.begin(site.server, site.partition, id, OFFLINE).inspect_err(|_| {
        complain!(vos.printer, "Could not start transaction on the backup volume  {id}\n");
    })?;
    let name = format!("{new}.backup");
    let parent = entry.id(Kind::ReadWrite);
    let to = Identity { name: &name, kind: Kind::Backup, parent, clone: VolumeId(0), backup: VolumeId(0) };
    set(vos, transaction, to, &format!("the backup volume {id}"), &format!("the backup volume {id}"), || {
        vos.tell(&format!("Renamed backup volume to {name} \n"));
    })
}

fn rename_read_only(vos: &Vos, entry: &Entry, new: &str) -> Result<(), Code> {
    let id = entry.id(Kind::ReadOnly).0;
    let name = format!("{new}.readonly");
    debug_assert!(name.len() < HEADER_NAME_MAX, "check_name() allows no longer one");
    for site in entry.sites.iter().filter(|site| site.is(Kind::ReadOnly)) {
        let transaction = vos.begin(site.server, site.partition, id, OFFLINE).inspect_err(|_| {
            complain!(vos.printer, "Could not start transaction on the ro volume {id}\n");
        })?;
        let parent = entry.id(Kind::ReadWrite);
        let to =
            Identity { name: &name, kind: Kind::ReadOnly, parent, clone: VolumeId(0), backup: VolumeId(0) };
        set(vos, transaction, to, &format!("the ro volume {id}"), &format!("volume {id}"), || {
            vos.tell(&format!("Renamed RO volume {name} on host {}\n", vos.host(site.server)));
        })?;
    }
    Ok(())
}

/// Sets the name, and ends the transaction.
fn set(
    vos: &Vos,
    transaction: Transaction,
    to: Identity<'_>,
    what: &str,
    what_to_end: &str,
    renamed: impl Fn(),
) -> Result<(), Code> {
    if let Err(code) = vos.set_identity(transaction, to) {
        complain!(vos.printer, "Could not  set parameters on {what}\n");
        if vos.end(transaction).is_err() {
            complain!(vos.printer, "Failed to end transaction on a volume \n");
        }
        return Err(code);
    }
    renamed();
    vos.end_whatever_came(transaction).inspect_err(|_| {
        complain!(vos.printer, "Could not  end transaction on {what_to_end}\n");
    })
}
