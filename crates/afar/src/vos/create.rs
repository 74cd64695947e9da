//! `vos create`: makes a volume, and its entry in the volume location database.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::numbers::{self, BadNumber};
use crate::printer::{complain, say};
use afs_admin::Error;
use afs_admin::create::{self, CreateFailure, Event, NewVolume, Step};
use afs_admin::entry::{BadName, Kind, NAME_MAX, check_name};
use afs_admin::vldb::MAX_VOLUME_ID;
use afs_wire::ids::VolumeId;
use serde_json::json;

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
    let new = NewVolume {
        name,
        server,
        partition,
        quota_kib: quota,
        id: id.filter(|id| *id != 0).map(VolumeId),
        read_only_id: read_only_id.map(VolumeId),
    };
    let ids = create(vos, &new).map_err(|code| {
        vos.print_diagnostics("create", code);
        Stop::RETURNED
    })?;
    if vos.json {
        vos.printer.say_json(&json!({
            "name": name,
            "rw_id": ids.read_write.0,
            "ro_id": ids.read_only.0,
            "backup_id": ids.backup.0,
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

fn create(vos: &Vos, new: &NewVolume<'_>) -> Result<create::Ids, Code> {
    let name = new.name;
    if let Some(id) = new.read_only_id.filter(|id| id.0 != 0) {
        vos.tell(&format!("Using RO volume ID {id}.\n"));
    }
    let cancel = vos.cancel();
    let made = vos.caller.run(create::create(&vos.vldb, &vos.volumes, *new, cancel, |event| match event {
        Event::IdIsFree(id) => vos.tell(&format!("Using volume ID {id}.\n")),
        Event::NoQuota(error) => {
            vos.print_failure(Code(error.code().0), "Could not change quota, continuing...\n");
        }
        Event::IsOnline(id) => vos.tell(&format!("Volume {name} {id} created and brought online\n")),
        Event::HasEntry(id) => vos.tell(&format!("Created the VLDB entry for the volume {name} {id}\n")),
    }));
    made.map_err(|failure| {
        let code = Code(failure.error.code().0);
        complain_of(vos, name, &failure, code);
        code
    })
}

fn complain_of(vos: &Vos, name: &str, failure: &CreateFailure, code: Code) {
    if let Error::Cancelled = failure.error {
        return complain!(vos.printer, "vos: {failure}\n");
    }
    match failure.step {
        Step::CheckId(id) => return complain!(vos.printer, "Volume ID {id} already exists\n"),
        Step::FollowId(id) => {
            return complain!(vos.printer, "Volume ID {id} is out of range: its clones have the next ids\n");
        }
        Step::TakeId(kind) => {
            let what = match kind {
                Kind::ReadWrite => "an",
                Kind::ReadOnly => "an RO",
                Kind::Backup => "a BK",
            };
            vos.print_failure(code, &format!("Could not get {what} Id for volume {name}\n"));
        }
        Step::Make(id) => vos.print_failure(code, &format!("Failed to create the volume {name} {id} \n")),
        Step::BringOnline(id) => {
            vos.print_failure(code, &format!("Could not bring the volume {name} {id} online \n"));
        }
        Step::MakeEntry(id) => {
            complain!(vos.printer, "Could not create a VLDB entry for the volume {name} {id}\n");
            if failure.may_have_entry {
                complain!(vos.printer, "vos: {failure}\n");
            } else {
                vos.tell(&format!("Deleting the newly created volume {id}\n"));
            }
        }
        Step::End(id) => {
            complain!(vos.printer, "Failed to end the transaction on the volume {name} {id}\n");
        }
    }
    if failure.not_ended.is_some() {
        complain!(vos.printer, "WARNING: could not end transaction\n");
    }
    vos.print_error(code);
}
