//! `bos getdate`, `getlog`, `exec`, `prune`, `uninstall`: files of a server machine, and programs that run there.

use super::{Bos, FAILURE, argument, status_of, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::date_of;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::bos::{Exec, GetDates, GetLog, Prune, UnInstall};
use afs_wire::ids::AfsTime;
use jiff::tz::TimeZone;
use rx::{CallError, ClientCall, RpcError};
use rxgen::Rpc;
use serde_json::{Value, json};

/// The folder in which an overseer has the programs.
const PROGRAMS: &str = "/usr/afs/bin";

/// The kinds of files that are pruned.
const OLD: i32 = 1;
const BAK: i32 = 2;
const CORE: i32 = 4;
const EVERYTHING: i32 = 0xff;

/// The place on the server of a file that is named here: its last name, in a folder for programs.
fn place(given: &Given, file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    format!("{}/{name}", given.word("dir").unwrap_or(PROGRAMS))
}

pub(super) fn getdate(bos: &Bos, given: &Given) -> u8 {
    let zone = TimeZone::system();
    let date = |time: AfsTime| date_of(i64::from(time.0), &zone);
    let mut told = Vec::new();
    for file in given.words("file") {
        let path = place(given, file);
        let dates = match argument(&path).and_then(|path| bos.call(&GetDates { path })) {
            Ok(dates) => dates,
            Err(code) => {
                complain!(bos.printer, "bos: failed to check date on {path} ({})\n", words(code));
                return FAILURE;
            }
        };
        if bos.json {
            let time = |time: AfsTime| (time.0 != 0).then_some(time.0);
            told.push(json!({
                "file": path,
                "new": time(dates.new_time),
                "bak": time(dates.bak_time),
                "old": time(dates.old_time),
            }));
            continue;
        }
        let path = harmless(&path);
        match dates.new_time.0 {
            0 => say!(bos.printer, "File {path} does not exist, "),
            _ => say!(bos.printer, "File {path} dated {}, ", date(dates.new_time)),
        }
        match dates.bak_time.0 {
            0 => bos.printer.say("no .BAK file, "),
            _ => say!(bos.printer, ".BAK file dated {}, ", date(dates.bak_time)),
        }
        match dates.old_time.0 {
            0 => bos.printer.say("no .OLD file.\n"),
            _ => say!(bos.printer, ".OLD file dated {}.\n", date(dates.old_time)),
        }
    }
    if bos.json {
        bos.printer.say_json(&Value::Array(told));
    }
    0
}

pub(super) fn getlog(bos: &Bos, given: &Given) -> u8 {
    let file = given.word("file").unwrap_or_default();
    say!(bos.printer, "Fetching log file '{}'...\n", harmless(file));
    match argument(file).and_then(|name| fetch(bos, &GetLog { name })) {
        Ok(()) => 0,
        Err(code) => {
            complain!(bos.printer, "bos: {} (while reading log)\n\r", words(code));
            status_of(code)
        }
    }
}

/// Bytes of a line without an end that are kept until more comes.
const LINE_MAX: usize = 64 << 10;

/// Says a log line by line, as it comes.
fn fetch(bos: &Bos, order: &GetLog) -> Result<(), Code> {
    fetch_to(bos, order, |lines| say_lines(bos, lines))
}

/// Fetches a log. Each piece of it ends with a line. Behind it is a NUL.
pub(super) fn fetch_to(bos: &Bos, order: &GetLog, mut say: impl FnMut(&[u8])) -> Result<(), Code> {
    bos.caller.run(async {
        let mut call = begin_log(bos, order).await?;
        let mut pending = Vec::new();
        while let Some(bytes) = call.recv().await.map_err(log_failed)? {
            pending.extend(bytes.iter().filter(|byte| **byte != 0));
            if let Some(end) = pending.iter().rposition(|byte| *byte == b'\n') {
                say(&pending[..=end]);
                pending.drain(..=end);
            }
            if pending.len() > LINE_MAX {
                say(&pending);
                pending.clear();
            }
        }
        say(&pending);
        Ok(())
    })
}

/// Checks that there is a log. Its beginning is fetched.
pub(super) fn has_log(bos: &Bos, order: &GetLog) -> Result<(), Code> {
    bos.caller.run(async { begin_log(bos, order).await?.recv().await.map(drop).map_err(log_failed) })
}

async fn begin_log(bos: &Bos, order: &GetLog) -> Result<ClientCall, Code> {
    let mut call = bos.overseer.call().await.map_err(log_failed)?;
    call.send_request(order).await.map_err(|error| Code(error.code().0))?;
    call.finish().map_err(log_failed)?;
    Ok(call)
}

fn log_failed(source: CallError) -> Code {
    Code(RpcError::Call { rpc: GetLog::NAME, source }.code().0)
}

pub(super) fn say_lines(bos: &Bos, text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let fields: Vec<String> = line.split('\t').map(harmless).collect();
        say!(bos.printer, "{}{end}", fields.join("\t"));
    }
}

pub(super) fn exec(bos: &Bos, given: &Given) -> u8 {
    let ran = argument(given.word("cmd").unwrap_or_default()).and_then(|cmd| bos.call(&Exec { cmd }));
    ran.map_or_else(
        |code| {
            complain!(bos.printer, "bos: failed to execute command ({})\n", words(code));
            status_of(code)
        },
        |_| 0,
    )
}

pub(super) fn prune(bos: &Bos, given: &Given) -> u8 {
    let flags = [("bak", BAK), ("old", OLD), ("core", CORE), ("all", EVERYTHING)];
    let flags = flags.iter().filter(|(name, _)| given.has(name)).fold(0, |all, (_, bit)| all | bit);
    bos.call(&Prune { flags }).map_or_else(
        |code| {
            complain!(bos.printer, "bos: {} (failed to prune server files)\n\r", words(code));
            status_of(code)
        },
        |_| 0,
    )
}

pub(super) fn uninstall(bos: &Bos, given: &Given) -> u8 {
    for file in given.words("file") {
        let path = place(given, file);
        if let Err(code) = argument(&path).and_then(|path| bos.call(&UnInstall { path })) {
            complain!(bos.printer, "bos: failed to uninstall {file} ({})\n", words(code));
            return FAILURE;
        }
        if !bos.json {
            say!(bos.printer, "bos: uninstalled file {}\n", harmless(file));
        }
    }
    0
}
