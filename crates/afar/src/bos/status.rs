//! `bos status`: what an overseer says of the processes it looks after.

use super::{Bos, LIST_MAX, argument, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::date_of;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::bos::{
    BnodeFlags, BnodeStatus, BozoStatus, EnumerateInstance, GetInstanceInfo, GetInstanceParm,
    GetInstanceStrings, GetStatus,
};
use afs_wire::ids::AfsTime;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

/// The place among a process's commands where its notifier is.
const NOTIFIER: i32 = 999;

/// The signal with which processes are shut down.
const SIGTERM: i32 = 15;

pub(super) fn run(bos: &Bos, given: &Given) -> u8 {
    let is_long = given.has("long");
    let mut shown = Vec::new();
    let named = given.words("instance");
    if named.is_empty() {
        for index in 0..LIST_MAX {
            match bos.call(&EnumerateInstance { index }) {
                Ok(reply) => show(bos, &reply.name.to_string(), is_long, index == 0, &mut shown),
                Err(Code::BZDOM) => break,
                Err(code) => {
                    let words = words(code);
                    complain!(bos.printer, "bos: failed to contact host's bosserver ({words}).\n");
                    break;
                }
            }
        }
    } else {
        for (index, name) in named.iter().enumerate() {
            show(bos, name, is_long, index == 0, &mut shown);
        }
    }
    if bos.json {
        bos.printer.say_json(&Value::Array(shown));
    }
    // Whatever went wrong: so it is with OpenAFS's.
    0
}

/// Shows a process. Complaints are made here.
fn show(bos: &Bos, name: &str, is_long: bool, is_first: bool, shown: &mut Vec<Value>) {
    let info = argument(name).and_then(|instance| bos.call(&GetInstanceInfo { instance }));
    let (kind, status) = match info {
        Ok(info) => (harmless(&info.kind.to_string()), info.status),
        Err(code) => {
            let words = words(code);
            complain!(bos.printer, "bos: failed to get instance info for '{name}' ({words})\n");
            return;
        }
    };
    let state = argument(name).and_then(|instance| bos.call(&GetStatus { instance }));
    if bos.json {
        shown.push(as_json(bos, name, &kind, &status, state.map(|s| (s.status, s.description.to_string()))));
        return;
    }
    let name = &harmless(name);
    if is_first && is_long && status.flags.contains(BnodeFlags::BAD_DIR_ACCESS) {
        say!(bos.printer, "Bosserver reports inappropriate access on server directories\n");
    }
    say!(bos.printer, "Instance {name}, ");
    if is_long {
        say!(bos.printer, "(type is {kind}) ");
    }
    bos.printer.say(match (status.file_goal, status.goal) {
        (BnodeStatus::SHUTDOWN, BnodeStatus::SHUTDOWN) => "disabled, ",
        (file, now) if file == now => "",
        (BnodeStatus::SHUTDOWN, _) => "temporarily enabled, ",
        _ => "temporarily disabled, ",
    });
    if status.flags.contains(BnodeFlags::ERROR_STOP) {
        say!(bos.printer, "stopped for too many errors, ");
    }
    if status.flags.contains(BnodeFlags::HAS_CORE) {
        say!(bos.printer, "has core file, ");
    }
    match state {
        Err(code) => {
            let words = words(code);
            complain!(bos.printer, "bos: failed to get status for instance '{name}' ({words})\n");
        }
        Ok(state) => {
            bos.printer.say("currently ");
            bos.printer.say(match state.status {
                BnodeStatus::NORMAL => "running normally.\n",
                BnodeStatus::SHUTDOWN => "shutdown.\n",
                BnodeStatus::STARTING_UP => "starting up.\n",
                BnodeStatus::SHUTTING_DOWN => "shutting down.\n",
                _ => "",
            });
            let description = harmless(&state.description.to_string());
            if !description.is_empty() {
                say!(bos.printer, "    Auxiliary status is: {description}.\n");
            }
        }
    }
    if is_long {
        show_history(bos, name, &status);
    }
}

fn show_history(bos: &Bos, name: &str, status: &BozoStatus) {
    let zone = TimeZone::system();
    let date = |time: AfsTime| date_of(i64::from(time.0), &zone);
    if status.proc_start_time.0 != 0 {
        let (date, starts) = (date(status.proc_start_time), status.proc_starts);
        say!(bos.printer, "    Process last started at {date} ({starts} proc starts)\n");
    }
    if status.last_any_exit.0 != 0 {
        say!(bos.printer, "    Last exit at {}\n", date(status.last_any_exit));
    }
    if status.last_error_exit.0 != 0 {
        say!(bos.printer, "    Last error exit at {}, ", date(status.last_error_exit));
        // An overseer that cannot say by whom is an old one.
        let strings = argument(name).and_then(|instance| bos.call(&GetInstanceStrings { instance }));
        if let Ok(strings) = strings
            && !strings.error_name.is_empty()
        {
            say!(bos.printer, "by {}, ", harmless(&strings.error_name.to_string()));
        }
        match status.error_signal {
            0 => say!(bos.printer, "by exiting with code {}\n", status.error_code),
            SIGTERM => say!(bos.printer, "due to shutdown request\n"),
            signal => say!(bos.printer, "due to signal {signal}\n"),
        }
    }
    for (index, command) in commands(bos, name).iter().enumerate() {
        say!(bos.printer, "    Command {} is '{command}'\n", index + 1);
    }
    if let Some(notifier) = notifier(bos, name) {
        say!(bos.printer, "    Notifier  is '{notifier}'\n");
    }
    say!(bos.printer, "\n");
}

/// The commands of a process, up to the first that the overseer does not have.
fn commands(bos: &Bos, name: &str) -> Vec<String> {
    (0..LIST_MAX).map_while(|num| parm(bos, name, num)).collect()
}

fn notifier(bos: &Bos, name: &str) -> Option<String> {
    parm(bos, name, NOTIFIER)
}

fn parm(bos: &Bos, name: &str, num: i32) -> Option<String> {
    let instance = argument(name).ok()?;
    let reply = bos.call(&GetInstanceParm { instance, num }).ok()?;
    Some(harmless(&reply.parm.to_string()))
}

fn as_json(
    bos: &Bos,
    name: &str,
    kind: &str,
    status: &BozoStatus,
    state: Result<(BnodeStatus, String), Code>,
) -> Value {
    let time = |time: AfsTime| (time.0 != 0).then_some(time.0);
    let word =
        |status: BnodeStatus| status.name().map_or_else(|| status.0.to_string(), str::to_ascii_lowercase);
    let (state, description) = match state {
        Ok((state, description)) => (Some(word(state)), description),
        Err(_) => (None, String::new()),
    };
    json!({
        "instance": name,
        "type": kind,
        "goal": word(status.goal),
        "file_goal": word(status.file_goal),
        "state": state,
        "description": (!description.is_empty()).then_some(description),
        "has_core": status.flags.contains(BnodeFlags::HAS_CORE),
        "stopped_for_errors": status.flags.contains(BnodeFlags::ERROR_STOP),
        "started": time(status.proc_start_time),
        "starts": status.proc_starts,
        "last_exit": time(status.last_any_exit),
        "last_error_exit": time(status.last_error_exit),
        "error_code": status.error_code,
        "error_signal": status.error_signal,
        "commands": commands(bos, name),
        "notifier": notifier(bos, name),
    })
}
