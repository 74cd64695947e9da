//! `bos salvage`: asks an overseer to check volumes or partitions. The command has the overseer start a process that runs once, waits until
//! the process has ended, and fetches its log. A file server of OpenAFS repairs what it finds; ours only reports it.

use super::files::{fetch_to, has_log, say_lines};
use super::{Bos, FAILURE, argument, status_of, words};
use crate::cell::CellServers;
use crate::classic::Given;
use crate::codes::Code;
use crate::printer::{complain, say};
use afs_admin::vldb::{LocationDb, volume_number};
use afs_dns::Service;
use afs_wire::bos::{BnodeStatus, BozoString, CreateBnode, GetInstanceInfo, GetLog, SetTStatus, WaitAll};
use afs_wire::ids::{AfsTime, PartitionId};
use std::fs::File;
use std::io::Write;
use std::time::Duration;

/// The paths of an overseer's programs, and of its log, as an overseer is told them.
const SALVAGER: &str = "/usr/afs/bin/salvager";
const SALVAGESERVER: &str = "/usr/afs/bin/salvageserver";
const LOG: &str = "/usr/afs/logs/SalvageLog";

/// The name of the process that runs once.
const PROCESS: &str = "salvage-tmp";

/// The argument that says: no program has to be told when the process ends.
const NO_NOTIFIER: &str = "__NONOTIFIER__";

/// The time between two questions whether the process has ended, and the number of questions after which the command says that it waits.
const ASK_EVERY: Duration = Duration::from_secs(1);
const SAY_EVERY: u32 = 5;
/// Codes of Rx after which the command asks again: no answer has come, or none in time.
const UNANSWERED: std::ops::Range<i32> = -64..0;
/// The number of times in a row that there may be no answer. Each time may take as long as a server is waited for.
const MAX_UNANSWERED: u32 = 60;

/// Exit statuses, as OpenAFS's.
const MISUSE: u8 = 255;
const EINVAL: u8 = 22;
const ENOENT: u8 = 2;

/// The complaint has been made; what is left is the exit status.
struct Failed(u8);

pub(super) fn run(bos: &Bos, given: &Given) -> u8 {
    salvage(bos, given).map_or_else(|Failed(status)| status, |()| 0)
}

fn salvage(bos: &Bos, given: &Given) -> Result<(), Failed> {
    let (partition, volume) = (given.word("partition"), given.word("volume"));
    let dafs = goal_of(bos, "dafs");
    let is_demand_attach = dafs.is_ok_and(|goal| goal != BnodeStatus::SHUTDOWN);
    // Beside one that is stopped there may be another, which runs.
    let is_only_dafs = dafs.is_ok() && !is_demand_attach && goal_of(bos, "fs") == Err(Code::BZNOENT);
    let service = if is_demand_attach || is_only_dafs { "dafs" } else { "fs" };
    let misused = |text: &str| {
        complain!(bos.printer, "{text}\n");
        Err(Failed(MISUSE))
    };
    if partition.is_none() && volume.is_some() {
        return misused("bos: must specify partition to salvage individual volume.");
    }
    if given.has("showlog") && given.word("file").is_some() {
        say!(bos.printer, "bos: can not specify both -file and -showlog.\n");
        return Err(Failed(MISUSE));
    }
    if given.has("all") && (partition.is_some() || volume.is_some()) {
        return misused("bos: can not specify -all with other flags.");
    }
    if is_demand_attach && !given.has("forceDAFS") {
        complain!(
            bos.printer,
            "This is a demand attach fileserver.  Are you sure you want to proceed with a manual salvage?\n\
             must specify -forceDAFS flag in order to proceed.\n"
        );
        return Err(Failed(EINVAL));
    }
    if given.has("salvagedirs") && !given.has("all") {
        complain!(bos.printer, " -salvagedirs only possible with -all.\n");
        return Err(Failed(EINVAL));
    }
    let place = match partition {
        None if given.has("all") => None,
        None => return misused("bos: must specify -all switch to salvage all partitions."),
        Some(name) => Some(name),
    };
    let id = volume.map(|volume| volume_id(bos, given, volume)).transpose()?;
    let place = match place.map(|name| (name, PartitionId::parse(name))) {
        Some((name, None)) => {
            return misused(&format!("bos: can't interpret {name} as partition ID."));
        }
        place => place.and_then(|(_, id)| id),
    };
    if id.is_some() {
        say!(bos.printer, "Starting salvage.\n");
        return check(bos, given, &command(given, place, id, is_demand_attach));
    }
    let was_running = goal_of(bos, service).unwrap_or_else(|code| {
        complain!(bos.printer, "bos: failed to get instance info for '{service}' ({})\n", words(code));
        BnodeStatus::NORMAL
    }) != BnodeStatus::SHUTDOWN;
    if was_running {
        say!(bos.printer, "bos: shutting down '{service}'.\n");
        if let Err(code) = set(bos, service, BnodeStatus::SHUTDOWN) {
            let what = if place.is_some() { "can't" } else { "failed to" };
            complain!(bos.printer, "bos: {what} stop '{service}' ({})\n", words(code));
            return Err(Failed(status_of(code)));
        }
        if bos.call(&WaitAll {}).is_err() {
            complain!(bos.printer, "bos: failed to wait for file server shutdown, continuing.\n");
        }
    }
    say!(bos.printer, "Starting salvage.\n");
    let checked = check(bos, given, &command(given, place, None, is_demand_attach));
    if was_running {
        match place {
            Some(_) => say!(bos.printer, "bos: restarting '{service}'.\n"),
            None => say!(bos.printer, "bos: restarting {service}.\n"),
        }
        if let Err(code) = set(bos, service, BnodeStatus::NORMAL) {
            complain!(bos.printer, "bos: failed to restart '{service}' ({})\n", words(code));
            return Err(Failed(status_of(code)));
        }
    }
    checked
}

fn goal_of(bos: &Bos, name: &str) -> Result<BnodeStatus, Code> {
    let instance = argument(name)?;
    Ok(bos.call(&GetInstanceInfo { instance })?.status.goal)
}

/// The time when the file server was started, if there is one with demand attach. A process that runs once is forgotten when its overseer
/// is started again, and so are its log and this time.
fn start_of_dafs(bos: &Bos) -> Option<AfsTime> {
    let instance = argument("dafs").ok()?;
    Some(bos.call(&GetInstanceInfo { instance }).ok()?.status.proc_start_time)
}

fn set(bos: &Bos, name: &str, status: BnodeStatus) -> Result<(), Code> {
    let instance = argument(name)?;
    bos.call(&SetTStatus { instance, status }).map(drop)
}

/// The number of a volume, which may be given by its name.
fn volume_id(bos: &Bos, given: &Given, volume: &str) -> Result<u32, Failed> {
    // The databases need not be there for a number.
    if let Ok(Some(id)) = volume_number(volume)
        && id.0 != 0
    {
        return Ok(id.0);
    }
    let unknown = || {
        complain!(bos.printer, "bos: can't interpret {volume} as volume name or ID\n");
        Failed(MISUSE)
    };
    let cell = CellServers::find_anywhere(&bos.folder, given.word("cell"), Service::Location)
        .map_err(|_| unknown())?;
    let vldb = LocationDb::new(bos.caller.endpoint(), &cell.servers, &bos.asks);
    let id = bos.caller.wait(vldb.volume_id(volume)).map_err(|_| unknown())?;
    id.map(|id| id.0).ok_or_else(unknown)
}

/// The command that the overseer is to run.
fn command(given: &Given, place: Option<PartitionId>, id: Option<u32>, is_demand_attach: bool) -> String {
    let place = place.map(|id| id.to_string()).unwrap_or_default();
    let mut command = match id {
        Some(id) if is_demand_attach => return format!("{SALVAGESERVER} -client {place} {id}"),
        Some(id) => format!("{SALVAGER} {place} {id}"),
        None => format!("{SALVAGER} -force {place}"),
    };
    for option in ["parallel", "tmpdir", "orphans"] {
        if let Some(value) = given.word(option) {
            command += &format!(" -{option} {value}");
        }
    }
    if given.has("salvagedirs") {
        command += " -salvagedirs";
    }
    command
}

/// Has a command run, waits for its end, and shows its log if that is asked for.
fn check(bos: &Bos, given: &Given, command: &str) -> Result<(), Failed> {
    let failed = |what: &str, code: Code| {
        complain!(bos.printer, "bos: {what} ({})\n", words(code));
        Failed(status_of(code))
    };
    let mut file = match given.word("file") {
        None => None,
        Some(name) => Some(File::create(name).map_err(|_| {
            complain!(bos.printer, "bos: can't open specified SalvageLog file '{name}'\n");
            Failed(ENOENT)
        })?),
    };
    let before = start_of_dafs(bos);
    let made = (|| {
        let [p3, p4, p5] = [const { None }; 3].map(Option::<BozoString>::unwrap_or_default);
        let (kind, instance) = (argument("cron")?, argument(PROCESS)?);
        let (p1, p2, p6) = (argument(command)?, argument("now")?, argument(NO_NOTIFIER)?);
        bos.call(&CreateBnode { kind, instance, p1, p2, p3, p4, p5, p6 })
    })();
    made.map_err(|code| failed("failed to start 'salvager'", code))?;
    let mut unanswered = 0;
    for asked in 1.. {
        std::thread::sleep(ASK_EVERY);
        unanswered += 1;
        match goal_of(bos, PROCESS) {
            Err(Code::BZNOENT) => break,
            // The process runs on, although the overseer does not answer.
            Err(code) if !UNANSWERED.contains(&code.0) || unanswered == MAX_UNANSWERED => {
                return Err(failed("salvage failed", code));
            }
            Err(_) => {}
            Ok(_) => unanswered = 0,
        }
        if asked % SAY_EVERY == 0 {
            bos.printer.say("bos: waiting for salvage to complete.\n");
        }
    }
    let order = GetLog { name: argument(LOG).map_err(|code| failed("salvage failed", code))? };
    // OpenAFS's salvageserver writes another log.
    let may_have_ended = command.starts_with(SALVAGESERVER) && start_of_dafs(bos) == before;
    if !may_have_ended && has_log(bos, &order) == Err(Code::BZNOENT) {
        complain!(
            bos.printer,
            "bos: salvage failed: the server was started again meanwhile, and has no log of it. Salvage once more.\n"
        );
        return Err(Failed(FAILURE));
    }
    bos.printer.say("bos: salvage completed\n");
    let fetched = match &mut file {
        Some(file) => {
            let mut written = file.write_all(b"SalvageLog:\n");
            let fetched = fetch_to(bos, &order, |lines| {
                written = std::mem::replace(&mut written, Ok(())).and_then(|()| file.write_all(lines));
            });
            if let Err(error) = written {
                complain!(bos.printer, "bos: the log could not be written: {error}\n");
                return Err(Failed(FAILURE));
            }
            fetched
        }
        None if given.has("showlog") => {
            bos.printer.say("SalvageLog:\n");
            fetch_to(bos, &order, |lines| say_lines(bos, lines))
        }
        None => Ok(()),
    };
    fetched.map_err(|code| failed("the log could not be fetched", code))
}
