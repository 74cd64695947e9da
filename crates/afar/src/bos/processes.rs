//! `bos start`, `stop`, `startup`, `shutdown`, `restart`, `create`, `delete`: what an overseer runs.

use super::{Bos, argument, status_of, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::complain;
use afs_wire::bos::{
    BnodeStatus, BozoString, CreateBnode, DeleteBnode, ReBozo, Restart, RestartAll, SetStatus, SetTStatus,
    ShutdownAll, StartupAll, WaitAll,
};

/// Commands of a process, at most.
const COMMANDS_MAX: usize = 5;

/// The word for "no program has to be told when the process ends".
const NO_NOTIFIER: &str = "__NONOTIFIER__";

pub(super) fn start(bos: &Bos, given: &Given) -> u8 {
    set(bos, given, BnodeStatus::NORMAL, "start")
}

pub(super) fn stop(bos: &Bos, given: &Given) -> u8 {
    let status = set(bos, given, BnodeStatus::SHUTDOWN, "change stop");
    if given.has("wait") { wait(bos) } else { status }
}

/// Sets what processes are to do, after a restart too; the status is that of the last one.
fn set(bos: &Bos, given: &Given, status: BnodeStatus, what: &str) -> u8 {
    let mut last = 0;
    for name in given.words("instance") {
        let set = argument(name).and_then(|instance| bos.call(&SetStatus { instance, status }));
        last = set.as_ref().map_or_else(|code| status_of(*code), |_| 0);
        if let Err(code) = set {
            complain!(bos.printer, "bos: failed to {what} instance '{name}' ({})\n", words(code));
        }
    }
    last
}

fn wait(bos: &Bos) -> u8 {
    match bos.call(&WaitAll {}) {
        Ok(_) => 0,
        Err(code) => {
            complain!(bos.printer, "bos: can't wait for processes to shutdown ({})\n", words(code));
            status_of(code)
        }
    }
}

pub(super) fn startup(bos: &Bos, given: &Given) -> u8 {
    let all = || bos.call(&StartupAll {}).map(drop);
    set_for_now(bos, given, BnodeStatus::NORMAL, ["start", "startup"], all)
}

pub(super) fn shutdown(bos: &Bos, given: &Given) -> u8 {
    let all = || bos.call(&ShutdownAll {}).map(drop);
    let status = set_for_now(bos, given, BnodeStatus::SHUTDOWN, ["shutdown", "shutdown"], all);
    if given.has("wait") { wait(bos) } else { status }
}

/// Sets what some or all processes are to do until the overseer is restarted. Failures have no status with OpenAFS's.
fn set_for_now(
    bos: &Bos,
    given: &Given,
    status: BnodeStatus,
    [one, all]: [&str; 2],
    set_all: impl FnOnce() -> Result<(), Code>,
) -> u8 {
    let names = given.words("instance");
    if names.is_empty()
        && let Err(code) = set_all()
    {
        complain!(bos.printer, "bos: failed to {all} servers ({})\n", words(code));
    }
    for name in names {
        let set = argument(name).and_then(|instance| bos.call(&SetTStatus { instance, status }));
        if let Err(code) = set {
            complain!(bos.printer, "bos: failed to {one} instance {name} ({})\n", words(code));
        }
    }
    0
}

pub(super) fn restart(bos: &Bos, given: &Given) -> u8 {
    let names = given.words("instance");
    if given.has("bosserver") {
        if let Err(code) = bos.call(&ReBozo {}) {
            complain!(bos.printer, "bos: failed to restart bosserver ({})\n", words(code));
            return status_of(code);
        }
        return 0;
    }
    if given.has("all") {
        if !names.is_empty() {
            complain!(bos.printer, "bos: Can't use '-all' along with individual instances\n");
        } else if let Err(code) = bos.call(&RestartAll {}) {
            complain!(bos.printer, "bos: failed to restart servers ({})\n", words(code));
        }
        return 0;
    }
    if names.is_empty() {
        complain!(bos.printer, "bos: To restart all processes please specify '-all'\n");
    }
    for name in names {
        if let Err(code) = argument(name).and_then(|instance| bos.call(&Restart { instance })) {
            complain!(bos.printer, "bos: failed to restart instance {name} ({})\n", words(code));
        }
    }
    0
}

pub(super) fn create(bos: &Bos, given: &Given) -> u8 {
    let (name, kind) = (given.word("instance").unwrap_or_default(), given.word("type").unwrap_or_default());
    let commands = given.words("cmd");
    if commands.len() > COMMANDS_MAX {
        complain!(bos.printer, "bos: too many parms, max={COMMANDS_MAX}\n");
        return 1;
    }
    let made = (|| {
        let mut parms = [const { None }; COMMANDS_MAX];
        for (place, command) in parms.iter_mut().zip(&commands) {
            *place = Some(argument(command)?);
        }
        let [p1, p2, p3, p4, p5] = parms.map(Option::<BozoString>::unwrap_or_default);
        let p6 = argument(given.word("notifier").unwrap_or(NO_NOTIFIER))?;
        let (kind, instance) = (argument(kind)?, argument(name)?);
        bos.call(&CreateBnode { kind, instance, p1, p2, p3, p4, p5, p6 })
    })();
    made.map_or_else(
        |code| {
            let words = words(code);
            complain!(
                bos.printer,
                "bos: failed to create new server instance {name} of type '{kind}' ({words})\n"
            );
            status_of(code)
        },
        |_| 0,
    )
}

pub(super) fn delete(bos: &Bos, given: &Given) -> u8 {
    let mut last = 0;
    for name in given.words("instance") {
        let deleted = argument(name).and_then(|instance| bos.call(&DeleteBnode { instance }));
        last = deleted.as_ref().map_or_else(|code| status_of(*code), |_| 0);
        if let Err(code) = deleted {
            complain!(bos.printer, "bos: failed to delete instance '{name}' ({})\n", words(code));
        }
    }
    last
}
