//! `pagsh`: a shell in a PAG of its own, whose processes have tokens of their own. The client makes the PAG's number for the caller; to
//! add the group takes CAP_SETGID, which a copy of this program has that does nothing else (docs/users.md).

use crate::fs::client::Client;
use crate::fs::errors::Failure;
use afs_wire::control;
use rustix::process::{Gid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The shell, as OpenAFS's `pagsh` has it.
const SHELL: &str = "/bin/sh";

/// The name of the copy with the capability, and the folder in which packages put it. One beside this program comes first.
const HELPER: &str = "afar-pagsh";
const HELPERS: &str = "/usr/lib/afar";

/// Runs the command with the arguments behind its name, which are the shell's.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    if !may_set_groups() {
        if let Some(helper) = helper() {
            let error = Command::new(&helper).arg("pagsh").args(args).exec();
            return refused(&format!("{}: {error}", helper.display()));
        }
        let helper = format!("{HELPERS}/{HELPER}");
        return refused(&format!(
            "a new PAG needs CAP_SETGID: as root, run 'install -m 755 /usr/bin/afar {helper}; setcap cap_setgid+ep {helper}'"
        ));
    }
    if let Err(why) = enter() {
        return refused(&why);
    }
    let error = Command::new(SHELL).args(args).exec();
    refused(&format!("{SHELL}: {error}"))
}

/// Runs nothing, because there is no PAG: a command that was run now could set and forget the user's own tokens.
fn refused(why: &str) -> ExitCode {
    eprintln!("setpag: {why}");
    ExitCode::FAILURE
}

/// Gives up the capability that the program's file gives to every user who runs it: only `pagsh` uses it. Called before anything else.
pub(crate) fn give_up_privilege() {
    if !geteuid().is_root() && may_set_groups() {
        // What is not there cannot be given up, and is not used either.
        let _ = set_capabilities_without(CapabilitySet::SETGID);
    }
}

fn may_set_groups() -> bool {
    capabilities(None).is_ok_and(|has| has.effective.contains(CapabilitySet::SETGID))
}

fn set_capabilities_without(none: CapabilitySet) -> io::Result<()> {
    let has = capabilities(None)?;
    let without = |set: CapabilitySet| set.difference(none);
    // Those that a program would have after an exec go with these.
    let sets = CapabilitySets {
        effective: without(has.effective),
        permitted: without(has.permitted),
        inheritable: without(has.inheritable),
    };
    Ok(set_capabilities(None, sets)?)
}

/// The copy of this program that has the capability, if this is not it.
fn helper() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let beside = own.parent().map(|folder| folder.join(HELPER));
    let all = beside.into_iter().chain([Path::new(HELPERS).join(HELPER)]);
    let mut others = all.filter(|path| *path != own);
    others.find(|path| path.is_file())
}

/// Adds the group of a PAG that a client of root's has just made for this user, in place of the one that there is, and gives the privilege up. Any
/// other client could name the group of its choice, also one with files of its own.
fn enter() -> Result<(), String> {
    let made = Client::for_a_new_pag("pagsh", !geteuid().is_root())
        .and_then(|client| client.call(&control::NewPag {}));
    let group = made.map_err(|failure| match failure {
        Failure::Errno(errno) => io::Error::from_raw_os_error(errno).to_string(),
        Failure::NotTrusted { .. } | Failure::NoClient => {
            "only a client that root has mounted can make a PAG, and there is none here".to_owned()
        }
        failure => failure.to_string(),
    })?;
    let group = afs_client::Pag::of_group(group.group).ok_or("the client's answer is no PAG")?;
    let set = || -> io::Result<()> {
        let mut groups = getgroups()?;
        groups.retain(|group| afs_client::Pag::of_group(group.as_raw()).is_none());
        groups.push(Gid::from_raw(group.group()));
        // There is one thread.
        set_thread_groups(&groups)?;
        if geteuid().is_root() { Ok(()) } else { set_capabilities_without(CapabilitySet::all()) }
    };
    set().map_err(|error| format!("cannot add the PAG's group: {error}"))
}
