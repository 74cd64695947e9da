//! `vos backupsys`: makes the backup volumes of many volumes, which are chosen by prefixes of their names, or by basic regular expressions, which
//! begin with `^`.

use super::backup::back_up;
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates;
use crate::printer::{complain, say};
use afs_admin::entry::{Entry, Kind};
use afs_admin::vldb::Wanted;
use afs_celldb::vldb::Pattern;
use afs_wire::ids::AfsTime;
use afs_wire::ids::PartitionId;
use serde_json::json;
use std::fmt;
use std::net::Ipv4Addr;

/// The prefix or expression that names are compared with.
enum Choosing<'a> {
    Prefix(&'a str),
    Expression(&'a str, Pattern),
}

/// The choice of the user.
struct Choice<'a> {
    prefixes: Vec<Choosing<'a>>,
    without: Vec<Choosing<'a>>,
    /// Those that do not match, instead.
    is_reversed: bool,
    server: Option<Ipv4Addr>,
    partition: Option<PartitionId>,
}

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let (machine, partition_name) = (given.word("server"), given.word("partition"));
    let choice = Choice {
        prefixes: choosing(vos, given, "prefix")?,
        without: choosing(vos, given, "xprefix")?,
        is_reversed: given.has("exclude"),
        server: machine.map(|name| vos.server(name, "server", Stop::EXITED)).transpose()?,
        partition: partition_name.map(|name| vos.partition(name, Stop::EXITED)).transpose()?,
    };
    let is_dry = given.has("dryrun");
    let wanted = Wanted { server: choice.server, partition: choice.partition, is_locked: false };
    let entries = vos.list_all_entries(wanted).map_err(|code| {
        complain!(vos.printer, "Could not access the VLDB for attributes\n");
        vos.print_error(code);
        Stop::EXITED
    })?;
    if machine.is_some() || partition_name.is_some() || vos.verbose {
        say!(vos.printer, "{}", announcement(&choice, machine, is_dry));
        if vos.verbose {
            say!(vos.printer, "\n");
        }
        vos.printer.flush();
    }
    let (mut done, mut failed, mut would) = (Vec::new(), Vec::new(), Vec::new());
    let mut status = Ok(());
    for entry in entries.iter().filter(|entry| choice.takes(&entry.name)) {
        if is_dry {
            say!(vos.printer, "     {}\n", entry.name);
            would.push(&entry.name);
            continue;
        }
        if vos.may_begin().is_err() {
            status = Err(Stop::EXITED);
            break;
        }
        match back_up_one(vos, entry, &choice) {
            Ok(true) => done.push(&entry.name),
            Ok(false) => {}
            Err(_) => failed.push(&entry.name),
        }
    }
    let counts = (done.len(), failed.len());
    say!(vos.printer, "done\nTotal volumes backed up: {}; failed to backup: {}\n", counts.0, counts.1);
    if vos.json {
        let outcome = json!({ "backed_up": done, "failed": failed, "would_back_up": would });
        vos.printer.say_json(&outcome);
    }
    status
}

/// The prefixes or expressions of an option.
fn choosing<'a>(vos: &Vos, given: &'a Given, option: &str) -> Result<Vec<Choosing<'a>>, Stop> {
    given
        .words(option)
        .into_iter()
        .map(|word| {
            Choosing::new(word).map_err(|wrong| {
                complain!(vos.printer, "Unrecognizable -{option} regular expression: '{word}': {wrong}\n");
                Stop::EXITED
            })
        })
        .collect()
}

impl<'a> Choosing<'a> {
    fn new(word: &'a str) -> Result<Self, &'static str> {
        match word.starts_with('^') {
            true => Ok(Self::Expression(word, Pattern::within(word)?)),
            false => Ok(Self::Prefix(word)),
        }
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Expression(_, pattern) => pattern.matches(name.as_bytes()),
        }
    }
}

impl fmt::Display for Choosing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(text) => write!(f, "prefix '{text}'"),
            Self::Expression(text, _) => write!(f, "expression '{text}'"),
        }
    }
}

impl Choice<'_> {
    fn takes(&self, name: &str) -> bool {
        let has = |choosing: &[Choosing<'_>]| choosing.iter().any(|choosing| choosing.fits(name));
        let fits = (self.prefixes.is_empty() || has(&self.prefixes)) && !has(&self.without);
        fits != self.is_reversed
    }
}

/// The sentence about what is going to be done.
fn announcement(choice: &Choice<'_>, machine: Option<&str>, is_dry: bool) -> String {
    let mut text = if is_dry { "Would have backed" } else { "Backing" }.to_owned();
    text += " up volumes";
    match (machine, choice.partition) {
        (Some(name), _) => text += &format!(" on server {name}"),
        (None, Some(_)) => text += " for all servers",
        (None, None) => {}
    }
    if let Some(partition) = choice.partition {
        text += &format!(" partition {partition}");
    }
    let Choice { prefixes, without, is_reversed, .. } = choice;
    let (named, is_negative) =
        if prefixes.is_empty() { (without, !is_reversed) } else { (prefixes, *is_reversed) };
    if let Some((first, others)) = named.split_first() {
        let (not, nor) = if is_negative { ("do not ", "n") } else { ("", "") };
        text += &format!(" which {not}match {first}");
        others.iter().for_each(|other| text += &format!(" {nor}or {other}"));
    }
    if let Some((first, others)) = without.split_first().filter(|_| !prefixes.is_empty()) {
        let verb = if *is_reversed { "adding those " } else { "removing those " };
        text += &format!(" {verb}which match {first}");
        others.iter().for_each(|other| text += &format!(" or {other}"));
    }
    text + " .. "
}

/// True if the volume was backed up, and false if it need not be.
fn back_up_one(vos: &Vos, entry: &Entry, choice: &Choice<'_>) -> Result<bool, Code> {
    let name = &entry.name;
    if !entry.has(afs_admin::entry::Kind::ReadWrite) {
        vos.tell(&format!("Omitting to backup {name} since RW volume does not exist \n\n"));
        return Ok(false);
    }
    let Some(site) = entry.read_write_site() else {
        say!(vos.printer, "could not backup {name}, invalid VLDB entry\n");
        return Err(Code::VL_BADENTRY);
    };
    let is_here = match choice.server {
        None => true,
        Some(server) => vos.is_same_server(server, site.server).inspect_err(|code| {
            let address = i32::from_ne_bytes(server.octets());
            complain!(
                vos.printer,
                "Failed to get info about server's {address} address(es) from vlserver (err={}); aborting call!\n",
                code.0
            );
        })?,
    };
    if !is_here || choice.partition.is_some_and(|partition| partition != site.partition) {
        vos.tell(&format!("Omitting to backup {name} since the RW is in a different location\n"));
        return Ok(false);
    }
    let now = vos.date(AfsTime(dates::now()));
    vos.tell(&format!("Creating backup volume for {name} on {now}\n"));
    let id = entry.id(Kind::ReadWrite).0;
    let made = back_up(vos, site.server, site.partition, id).inspect_err(|code| {
        vos.print_error(*code);
        say!(vos.printer, "Could not backup {name}\n");
    });
    vos.tell("\n");
    made.map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_backed_up_is_chosen_by_prefixes_and_expressions() {
        let choice = |prefixes: &[&'static str], without: &[&'static str], is_reversed| Choice {
            prefixes: prefixes.iter().map(|word| Choosing::new(word).unwrap()).collect(),
            without: without.iter().map(|word| Choosing::new(word).unwrap()).collect(),
            is_reversed,
            server: None,
            partition: None,
        };
        assert!(choice(&[], &[], false).takes("user.a"));
        assert!(choice(&["user"], &[], false).takes("user.a"));
        assert!(!choice(&["user"], &["user.a"], false).takes("user.a"));
        assert!(choice(&["user"], &["user.a"], true).takes("user.a"));
        assert!(!choice(&["user"], &[], true).takes("user.a"));
        assert!(choice(&["^user\\.[ab]"], &[], false).takes("user.a"));
        assert!(!choice(&["^user\\.[ab]"], &[], false).takes("user.c"));
        assert!(!choice(&["user"], &["^.*a$"], false).takes("user.a"));
        let said = announcement(&choice(&["a", "^b"], &["c"], true), Some("fs"), true);
        assert_eq!(
            said,
            "Would have backed up volumes on server fs which do not match prefix 'a' nor expression '^b' adding those which match prefix 'c' .. "
        );
    }
}
