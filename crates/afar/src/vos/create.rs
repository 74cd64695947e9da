//! `vos create`: makes a volume, and its entry in the volume location database.

use super::entry::{BadName, Entry, Kind, NAME_MAX, Site, check_name};
use super::vldb::MAX_VOLUME_ID;
use super::volser::{Changes, Transaction};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::{complain, say};
use afs_wire::afsvol::VolumeFlags;
use afs_wire::ids::PartitionId;
use afs_wire::vl::{EntryFlags, SiteFlags};
use serde_json::json;
use std::net::Ipv4Addr;

/// The quota of a new volume, in KiB, unless `-maxquota` says otherwise: what OpenAFS's have.
const QUOTA_KIB: i32 = 5000;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (machine, partition_name) =
        (given.word("server").unwrap_or_default(), given.word("partition").unwrap_or_default());
    let name = given.word("name").unwrap_or_default();
    let server = vos.server(machine, "host", Stop::RETURNED)?;
    let partition = vos.partition(partition_name, Stop::RETURNED)?;
    vos.check_partition(server, partition, partition_name, Stop::RETURNED)?;
    if let Err(error) = check_name(name) {
        match error {
            BadName::TooLong => complain!(
                vos.printer,
                "vos: the name of the root volume {name} exceeds the size limit of {NAME_MAX}\n"
            ),
            BadName::Suffix => {
                complain!(vos.printer, "Illegal volume name {name}, should not end in .readonly or .backup\n")
            }
            BadName::Number => {
                complain!(vos.printer, "Illegal volume name {name}, should not be a number\n");
            }
        }
        return Err(Stop::RETURNED);
    }
    if vos.entry_by_name(name).is_ok() {
        complain!(vos.printer, "Volume {name} already exists\nError in vos create command.\n");
        return Err(Stop::RETURNED);
    }
    let quota = match given.word("maxquota") {
        None => QUOTA_KIB,
        Some(text) => numbers::parse_kib(text).map_err(|bad| {
            match bad {
                BadNumber::NoNumber => complain!(vos.printer, "vos: bad integer specified for quota.\n"),
                BadNumber::OutOfRange { .. } => complain!(vos.printer, "vos: -maxquota {text} {bad}\n"),
            }
            Stop::RETURNED
        })?,
    };
    let id = given.word("id").map(|text| volume_id(vos, text, "id", "volume")).transpose()?;
    let read_only_id =
        given.word("roid").map(|text| volume_id(vos, text, "roid", "RO volume")).transpose()?;
    let plan = Plan { server, partition, name, quota, id: id.filter(|id| *id != 0), read_only_id };
    let ids = create(vos, &plan).map_err(|code| {
        vos.print_diagnostics("create", code);
        Stop::RETURNED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({
            "name": name,
            "rw_id": ids.read_write,
            "ro_id": ids.read_only,
            "backup_id": ids.backup,
            "server": server.to_string(),
            "partition": partition.to_string(),
        }));
    } else {
        say!(vos.printer, "Volume {} created on partition {partition} of {machine}\n", ids.read_write);
    }
    Ok(())
}

fn volume_id(vos: &Vos, text: &str, option: &str, what: &str) -> Result<u32, Stop> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        complain!(vos.printer, "vos: Given {what} ID {text} should be numeric.\n");
        return Err(Stop::RETURNED);
    }
    // 0 stands for one of the database's choice, or for none.
    numbers::parse(text, 0..=MAX_VOLUME_ID).map_err(|bad| {
        match bad {
            BadNumber::NoNumber => complain!(vos.printer, "vos: bad integer specified for volume ID.\n"),
            BadNumber::OutOfRange { .. } => complain!(vos.printer, "vos: -{option} {text} {bad}\n"),
        }
        Stop::RETURNED
    })
}

/// What is to be made.
struct Plan<'a> {
    server: Ipv4Addr,
    partition: PartitionId,
    name: &'a str,
    quota: i32,
    id: Option<u32>,
    /// 0 for none at all.
    read_only_id: Option<u32>,
}

/// The ids of the volumes of a name; 0 for one that has none.
struct Ids {
    read_write: u32,
    read_only: u32,
    backup: u32,
}

fn create(vos: &Vos, plan: &Plan<'_>) -> Result<Ids, Code> {
    let Plan { server, partition, name, .. } = *plan;
    let mut ids = choose_ids(vos, plan)?;
    let (id, transaction) =
        vos.create_volume(server, partition, name, ids.read_write).inspect_err(|code| {
            vos.print_failure(*code, &format!("Failed to create the volume {name} {} \n", ids.read_write));
            vos.print_error(*code);
        })?;
    ids.read_write = id;
    let made = fill(vos, plan, &ids, transaction);
    let ended = vos.end_whatever_came(transaction);
    match (made, ended) {
        (Ok(()), Ok(())) => Ok(ids),
        (Ok(()), Err(code)) => {
            complain!(vos.printer, "Failed to end the transaction on the volume {name} {id}\n");
            vos.print_error(code);
            Err(code)
        }
        (Err(code), ended) => {
            if ended.is_err() {
                complain!(vos.printer, "WARNING: could not end transaction\n");
            }
            vos.print_error(code);
            Err(code)
        }
    }
}

/// The ids that follow a given one, unless there are no more.
fn clones_of(read_write: u32, read_only_id: Option<u32>) -> Option<Ids> {
    let mut last = read_write.max(read_only_id.unwrap_or(0));
    let mut following = || {
        last = last.checked_add(1).filter(|id| *id <= MAX_VOLUME_ID)?;
        Some(last)
    };
    let read_only = match read_only_id {
        Some(id) => id,
        None => following()?,
    };
    Some(Ids { read_write, read_only, backup: following()? })
}

/// Takes ids from the database, unless they are given. Those of the clones follow a given one.
fn choose_ids(vos: &Vos, plan: &Plan<'_>) -> Result<Ids, Code> {
    let name = plan.name;
    if let Some(id) = plan.read_only_id.filter(|id| *id != 0) {
        vos.tell(&format!("Using RO volume ID {id}.\n"));
    }
    if let Some(id) = plan.id {
        if vos.entry_by_id(id, None).is_ok() {
            complain!(vos.printer, "Volume ID {id} already exists\n");
            return Err(Code::VVOLEXISTS);
        }
        vos.tell(&format!("Using volume ID {id}.\n"));
        let ids = clones_of(id, plan.read_only_id);
        return ids.ok_or_else(|| {
            complain!(vos.printer, "Volume ID {id} is out of range: its clones have the next ids\n");
            Code::VL_BADENTRY
        });
    }
    let take = |what: &str| {
        vos.new_volume_ids(1).inspect_err(|code| {
            vos.print_failure(*code, &format!("Could not get {what} Id for volume {name}\n"));
            vos.print_error(*code);
        })
    };
    let read_write = take("an")?;
    let read_only = plan.read_only_id.map_or_else(|| take("an RO"), Ok)?;
    Ok(Ids { read_write, read_only, backup: take("a BK")? })
}

/// Brings a new volume online and makes its entry; without one it is removed again.
fn fill(vos: &Vos, plan: &Plan<'_>, ids: &Ids, transaction: Transaction) -> Result<(), Code> {
    let (name, id) = (plan.name, ids.read_write);
    let changes = Changes { quota_kib: Some(plan.quota), ..Changes::default() };
    if let Err(code) = vos.set_info(transaction, None, changes) {
        vos.print_failure(code, "Could not change quota, continuing...\n");
    }
    vos.set_flags(transaction, VolumeFlags::NONE).inspect_err(|code| {
        vos.print_failure(*code, &format!("Could not bring the volume {name} {id} online \n"));
    })?;
    vos.tell(&format!("Volume {name} {id} created and brought online\n"));
    let mut entry = Entry {
        name: name.to_owned(),
        sites: vec![Site { server: plan.server, partition: plan.partition, flags: SiteFlags::RW_VOL }],
        ids: [0; 3],
        clone_id: 0,
        flags: EntryFlags::RW_EXISTS,
    };
    entry.set_id(Kind::ReadWrite, id);
    entry.set_id(Kind::ReadOnly, ids.read_only);
    entry.set_id(Kind::Backup, ids.backup);
    vos.create_entry(&entry).inspect_err(|_| {
        complain!(vos.printer, "Could not create a VLDB entry for the volume {name} {id}\n");
        vos.tell(&format!("Deleting the newly created volume {id}\n"));
        // The first failure is the one that counts.
        let _ = vos.delete_in(transaction);
    })?;
    vos.tell(&format!("Created the VLDB entry for the volume {name} {id}\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_clones_do_not_begin_again() {
        let ids = |id, read_only| clones_of(id, read_only).map(|ids| (ids.read_only, ids.backup));
        assert_eq!(ids(10, None), Some((11, 12)));
        assert_eq!(ids(10, Some(20)), Some((20, 21)));
        assert_eq!(ids(u32::MAX - 3, None), Some((u32::MAX - 2, u32::MAX - 1)));
        assert_eq!(ids(u32::MAX - 2, None), None);
        assert_eq!(ids(u32::MAX, None), None);
        assert_eq!(ids(u32::MAX, Some(5)), None);
    }
}
