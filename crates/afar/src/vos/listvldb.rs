//! `vos listvldb`: what the volume location database has.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::{complain, say};
use afs_admin::entry::Entry;
use afs_admin::vldb::Wanted;
use serde_json::Value;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let is_locked = given.has("locked");
    if let Some(name) = given.word("name") {
        if is_locked {
            complain!(
                vos.printer,
                "vos: illegal use of '-locked' switch, need to specify server and/or partition\n"
            );
            return Err(Stop::EXITED);
        }
        let entry = vos.entry_by_name(name).map_err(|code| {
            vos.print_error(code);
            Stop::EXITED
        })?;
        if vos.json {
            vos.printer.say_json(&Value::Array(vec![vos.entry_as_json(&entry)]));
        } else {
            show(vos, &entry);
        }
        return Ok(());
    }
    let (machine, partition_name) = (given.word("server"), given.word("partition"));
    let server = machine.map(|name| vos.server(name, "server", Stop::EXITED)).transpose()?;
    let partition = partition_name.map(|name| vos.partition(name, Stop::EXITED)).transpose()?;
    let is_quiet = given.has("quiet") || vos.json;
    if !is_quiet {
        let whose = machine.map_or("all servers".to_owned(), |name| format!("server {name}"));
        let where_ = partition.map_or(String::new(), |partition| format!(" partition {partition}"));
        let which = if is_locked { "which are locked:" } else { "" };
        say!(vos.printer, "VLDB entries for {whose}{where_} {which}\n");
    }
    let is_sorted = !given.has("nosort");
    let mut kept: Vec<Entry> = Vec::new();
    let mut count = 0;
    let take = |entries: Vec<Entry>| {
        count += entries.len();
        if is_sorted || vos.json {
            kept.extend(entries);
        } else {
            entries.iter().for_each(|entry| show(vos, entry));
        }
    };
    vos.list_entries(Wanted { server, partition, is_locked }, take).map_err(|code| {
        complain!(vos.printer, "Could not access the VLDB for attributes\n");
        vos.print_error(code);
        Stop::EXITED
    })?;
    if is_sorted {
        kept.sort_by(|a, b| a.name.cmp(&b.name));
    }
    if vos.json {
        vos.printer.say_json(&kept.iter().map(|entry| vos.entry_as_json(entry)).collect());
        return Ok(());
    }
    kept.iter().for_each(|entry| show(vos, entry));
    if !is_quiet {
        say!(vos.printer, "\nTotal entries: {count}\n");
    }
    Ok(())
}

fn show(vos: &Vos, entry: &Entry) {
    vos.show_entry(entry);
    vos.show_locks(entry);
}
