//! Access lists: `listacl`, `setacl`, `copyacl`, `cleanacl`, `getcalleraccess`. How the entries of a command line change a list
//! is in `acl/change.rs`, which names have nobody behind them in `names`.

mod change;

use super::errors::{EINVAL, EIO, Failure};
use super::names::Directory;
use super::place::Links;
use super::{FAILURE, Fs, Served, Target};
use crate::classic::Given;
use crate::output::harmless;
use crate::printer::{Printer, complain, say};
use afs_wire::acl::AclText;
use afs_wire::control;
use afs_wire::rights::Rights;
use afs_wire::rxafs::AfsOpaque;
use change::{BadRight, Entry};
use serde_json::{Value, json};

type Entries = Vec<(String, Rights)>;

/// `fs listacl`.
pub(super) fn list(fs: &Fs, given: &Given) -> u8 {
    if let Err(status) = check_dfs_flags(given) {
        return status;
    }
    let targets = Target::all_or_here(given);
    let mut told = Vec::new();
    let mut left = targets.len();
    let status = fs.each(&targets, |target| {
        left -= 1;
        let (_, acl) = fetch(target)?;
        if given.has("json") {
            told.push(as_json(target, &acl));
            return Ok(());
        }
        if given.has("cmd") {
            say_as_command(&fs.printer, target, &acl);
            return Ok(());
        }
        say!(fs.printer, "Access list for {} is\n", target.shown);
        say_entries(&fs.printer, &acl);
        if left > 0 {
            say!(fs.printer, "\n");
        }
        Ok(())
    });
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

/// `fs setacl`.
pub(super) fn set(fs: &Fs, given: &Given) -> u8 {
    if let Err(status) = check_dfs_flags(given) {
        return status;
    }
    let (clear, is_negative) = (given.has("clear"), given.has("negative"));
    let words = given.words("acl");
    let mut status = 0;
    for target in &Target::all(given, "dir") {
        let (served, mut acl) = match fetch_unless(clear, target) {
            Ok(found) => found,
            Err(failure) => {
                fs.complain(&failure, Some(&target.shown));
                status = FAILURE;
                continue;
            }
        };
        drop_unknown(&served, &mut acl);
        for pair in words.chunks(2) {
            let &[name, rights] = pair else {
                complain!(fs.printer, "fs: Missing second half of user/access pair.\n");
                return FAILURE;
            };
            let entry = match Entry::parse(name, rights) {
                Ok(entry) => entry,
                Err(BadRight(letter)) => {
                    complain!(fs.printer, "fs: illegal rights character '{letter}'.\n");
                    return FAILURE;
                }
            };
            entry.apply_to(if is_negative { &mut acl.negative } else { &mut acl.positive });
        }
        if let Err(failure) = store(&served, &acl) {
            status = FAILURE;
            match failure.errno() {
                Some(EINVAL) => complain!(
                    fs.printer,
                    "fs: Invalid argument, possible reasons include:\n\t-File not in AFS\n\
                     \t-Too many users on access control list\n\
                     \t-Tried to add non-existent user to access control list\n"
                ),
                _ => fs.complain(&failure, Some(&target.shown)),
            }
        }
    }
    status
}

/// `fs copyacl`.
pub(super) fn copy(fs: &Fs, given: &Given) -> u8 {
    if let Err(status) = check_dfs_flags(given) {
        return status;
    }
    let Some(from) = Target::all(given, "fromdir").into_iter().next() else { return FAILURE };
    let source = match fetch(&from) {
        Ok((served, mut acl)) => {
            drop_unknown(&served, &mut acl);
            acl
        }
        Err(failure) => {
            fs.complain(&failure, Some(&from.shown));
            return FAILURE;
        }
    };
    let mut status = 0;
    for target in &Target::all(given, "todir") {
        let copied = fetch_unless(given.has("clear"), target).map(|(served, mut acl)| {
            drop_unknown(&served, &mut acl);
            for (list, entries) in
                [(&mut acl.positive, &source.positive), (&mut acl.negative, &source.negative)]
            {
                entries.iter().for_each(|(name, rights)| Entry::set(name, *rights).apply_to(list));
            }
            (served, acl)
        });
        let (served, acl) = match copied {
            Ok(copied) => copied,
            Err(failure) => {
                fs.complain(&failure, Some(&target.shown));
                status = FAILURE;
                continue;
            }
        };
        if let Err(failure) = store(&served, &acl) {
            status = FAILURE;
            match failure.errno() {
                Some(EINVAL) => complain!(
                    fs.printer,
                    "fs: Invalid argument, possible reasons include:\n\t-File not in AFS\n"
                ),
                _ => fs.complain(&failure, Some(&target.shown)),
            }
        }
    }
    status
}

/// `fs cleanacl`.
pub(super) fn clean(fs: &Fs, given: &Given) -> u8 {
    let targets = Target::all_or_here(given);
    let (mut status, mut left) = (0, targets.len());
    for target in &targets {
        left -= 1;
        let (served, mut acl) = match fetch(target) {
            Ok(found) => found,
            Err(failure) => {
                fs.complain(&failure, Some(&target.shown));
                status = FAILURE;
                continue;
            }
        };
        if !drop_unknown(&served, &mut acl) {
            say!(fs.printer, "Access list for {} is fine.\n", target.shown);
            continue;
        }
        if let Err(failure) = store(&served, &acl) {
            status = FAILURE;
            match failure.errno() {
                Some(EINVAL) => complain!(
                    fs.printer,
                    "fs: Invalid argument, possible reasons include\nfs: File not in vice or\n\
                     fs: Too many users on access control list or\n"
                ),
                _ => fs.complain(&failure, Some(&target.shown)),
            }
            continue;
        }
        say!(fs.printer, "Access list for {} is now\n", target.shown);
        say_entries(&fs.printer, &acl);
        if left > 0 {
            say!(fs.printer, "\n");
        }
    }
    status
}

/// `fs getcalleraccess`.
pub(super) fn show_caller_access(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = fs.each(&Target::all_or_here(given), |target| {
        let Served { client, place } = Served::at(&target.path, Links::Follow)?;
        let rights = client.call(&control::GetCallerAccess { place })?.rights.letters();
        match given.has("json") {
            true => told.push(json!({ "path": target.shown, "rights": rights })),
            false => say!(fs.printer, "Callers access to {} is {rights}\n", target.shown),
        }
        Ok(())
    });
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

/// `-id` and `-if` are about lists of DFS, which no server has any more; both at once were never allowed.
fn check_dfs_flags(given: &Given) -> Result<(), u8> {
    if given.has("id") && given.has("if") {
        eprintln!("fs: you may specify either -id or -if, but not both switches");
        return Err(FAILURE);
    }
    Ok(())
}

fn fetch(target: &Target) -> Result<(Served, AclText), Failure> {
    let served = Served::at(&target.path, Links::Follow)?;
    let reply = served.client.call(&control::GetAcl { place: served.place.clone() })?;
    let acl = AclText::parse(&reply.access_list).map_err(|_| Failure::Errno(EIO))?;
    Ok((served, acl))
}

/// The list, or an empty one if it is to be cleared: so that one which cannot be shown can be mended.
fn fetch_unless(is_cleared: bool, target: &Target) -> Result<(Served, AclText), Failure> {
    if is_cleared {
        Ok((Served::at(&target.path, Links::Follow)?, AclText::default()))
    } else {
        fetch(target)
    }
}

fn store(served: &Served, acl: &AclText) -> Result<(), Failure> {
    let bytes = acl.to_bytes().map_err(|_| Failure::Errno(EINVAL))?;
    let access_list = AfsOpaque::new(bytes).map_err(|_| Failure::Errno(EINVAL))?;
    served.client.call(&control::SetAcl { place: served.place.clone(), access_list }).map(drop)
}

/// Takes out the entries of users and groups that exist no more, which a server shows as numbers; whether there were any.
fn drop_unknown(served: &Served, acl: &mut AclText) -> bool {
    let mut directory = Directory::of_cell(served);
    let mut changed = false;
    for list in [&mut acl.positive, &mut acl.negative] {
        list.retain(|(name, _)| {
            let stays = !directory.is_of_nobody(name);
            changed |= !stays;
            stays
        });
    }
    changed
}

fn say_entries(printer: &Printer, acl: &AclText) {
    for (title, entries) in [("Normal rights:\n", &acl.positive), ("Negative rights:\n", &acl.negative)] {
        if entries.is_empty() {
            continue;
        }
        printer.say(title);
        for (name, rights) in entries {
            say!(printer, "  {} {}\n", harmless(name), rights.letters());
        }
    }
}

/// Prints the list as the command that would make it.
fn say_as_command(printer: &Printer, target: &Target, acl: &AclText) {
    let words = |entries: &Entries| -> String {
        entries.iter().map(|(name, rights)| format!("  {} {}", harmless(name), rights.letters())).collect()
    };
    say!(printer, "fs setacl -dir {} -acl {}\n", target.shown, words(&acl.positive));
    if !acl.negative.is_empty() {
        say!(printer, "fs setacl -dir {} -acl {} -negative\n", target.shown, words(&acl.negative));
    }
}

fn as_json(target: &Target, acl: &AclText) -> Value {
    let entries = |list: &Entries| -> Value {
        list.iter().map(|(name, rights)| json!({ "name": name, "rights": rights.letters() })).collect()
    };
    json!({ "path": target.shown, "positive": entries(&acl.positive), "negative": entries(&acl.negative) })
}
