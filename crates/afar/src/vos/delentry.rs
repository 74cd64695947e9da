//! `vos delentry`: removes entries from the volume location database, and leaves the volumes.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::{complain, say};
use afs_admin::entry::Kind;
use afs_admin::vldb::Wanted;
use serde_json::json;

/// The results for entries, by the names of their volumes.
#[derive(Default)]
struct Outcome<'a> {
    deleted: Vec<&'a str>,
    failed: Vec<&'a str>,
    /// Entries that would be deleted, with `-dryrun`.
    would_delete: Vec<&'a str>,
}

impl Outcome<'_> {
    fn say_json(&self, vos: &Vos) {
        if vos.json {
            let Self { deleted, failed, would_delete } = self;
            vos.printer
                .say_json(&json!({ "deleted": deleted, "failed": failed, "would_delete": would_delete }));
        }
    }
}

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let ids = given.words("id");
    let (prefix, machine, partition_name) =
        (given.word("prefix"), given.word("server"), given.word("partition"));
    let is_dry = given.has("dryrun") || given.has("noexecute");
    let misused = |sentence: &str| {
        complain!(vos.printer, "{sentence}\n");
        Err(Stop::MISUSED)
    };
    let has_others = prefix.is_some() || machine.is_some() || partition_name.is_some();
    match (ids.is_empty(), has_others) {
        (false, true) => {
            return misused("You cannot use -server, -partition, or -prefix with the -id argument");
        }
        (false, false) => return delete_named(vos, &ids, is_dry),
        (true, false) => return misused("You must specify an option"),
        (true, true) => {}
    }
    if prefix.is_some() && machine.is_none() && partition_name.is_none() {
        return misused("You must provide -server with the -prefix argument");
    }
    let server = machine.map(|name| vos.server(name, "server", Stop::RETURNED)).transpose()?;
    if partition_name.is_some() && machine.is_none() {
        return misused("You must provide -server with the -partition argument");
    }
    let partition = partition_name.map(|name| vos.partition(name, Stop::RETURNED)).transpose()?;
    say!(vos.printer, "Deleting VLDB entries for ");
    if let Some(name) = machine {
        say!(vos.printer, "server {name} ");
    }
    if let Some(partition) = partition {
        say!(vos.printer, "partition {partition} ");
    }
    if let Some(prefix) = prefix {
        say!(vos.printer, "which are prefixed with {prefix} ");
    }
    say!(vos.printer, "\n");
    vos.printer.flush();
    let wanted = Wanted { server, partition, is_locked: false };
    let entries = vos.list_all_entries(wanted).map_err(|code| {
        complain!(vos.printer, "Could not access the VLDB for attributes\n");
        vos.print_error(code);
        Stop::RETURNED
    })?;
    let mut outcome = Outcome::default();
    for entry in &entries {
        let name = &entry.name;
        if let Some(prefix) = prefix.filter(|prefix| !name.starts_with(prefix)) {
            vos.tell(&format!("Omitting to delete {name} due to prefix {prefix} mismatch\n"));
        } else if is_dry {
            say!(vos.printer, "Would have deleted VLDB entry for {name} \n");
            outcome.would_delete.push(name);
        } else if let Err(code) = vos.delete_entry(entry.id(Kind::ReadWrite).0, Kind::ReadWrite) {
            say!(vos.printer, "Could not delete VLDB entry for  {name}\n");
            vos.print_error(code);
            outcome.failed.push(name);
        } else {
            vos.tell(&format!("Deleted VLDB entry for {name} \n"));
            outcome.deleted.push(name);
        }
    }
    let (deleted, failed) = (outcome.deleted.len(), outcome.failed.len());
    say!(
        vos.printer,
        "----------------------\nTotal VLDB entries deleted: {deleted}; failed to delete: {failed}\n"
    );
    outcome.say_json(vos);
    Ok(())
}

fn delete_named(vos: &Vos, names: &[&str], is_dry: bool) -> Done {
    let mut outcome = Outcome::default();
    for &name in names {
        let id = match vos.volume_id(name) {
            Ok(Some(id)) => id,
            Ok(None) => {
                complain!(vos.printer, "vos: can't find volume '{name}'\n");
                continue;
            }
            Err(code) => {
                vos.print_error(code);
                continue;
            }
        };
        if is_dry {
            say!(vos.printer, "Would have deleted VLDB entry for {name} \n");
            outcome.would_delete.push(name);
            continue;
        }
        match vos.delete_entry(id, Kind::ReadWrite) {
            Ok(()) => outcome.deleted.push(name),
            Err(code) => {
                complain!(
                    vos.printer,
                    "Could not delete entry for volume {name}\nYou must specify a RW volume name or ID (the entire VLDB entry will be deleted)\n"
                );
                vos.print_error(code);
                outcome.failed.push(name);
            }
        }
    }
    say!(vos.printer, "Deleted {} VLDB entries\n", outcome.deleted.len());
    outcome.say_json(vos);
    if !outcome.failed.is_empty() { Err(Stop::RETURNED) } else { Ok(()) }
}
