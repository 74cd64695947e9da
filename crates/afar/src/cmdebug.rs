//! `cmdebug`: what a cache manager, of whatever make, says of itself on its callback port. Reads the options and asks; how it is
//! printed is in `text`, and in `json`.
//!
//! What is printed is what OpenAFS 1.8.9's `cmdebug` prints. The exit status is not: it is 0 only where the cache manager
//! answered, and theirs always.

mod json;
mod text;

use crate::calls::Caller;
use crate::classic::{Command, Given, Opt, Parsed};
use crate::codes::Code;
use crate::printer::{Printer, say};
use crate::{hosts, output, ports};
use afs_wire::rxafscb::{self, AfsDbCacheEntry, AfsDbCacheEntry64, AfsDbLock, InterfaceAddr, Rxafscb};
use jiff::tz::TimeZone;
use rx::Connection;
use rx_proto::security::Null;
use rxgen::{Interface, Rpc};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

/// Locks asked for at most. A list has an end; a peer that shows none must not hold us for ever.
const LOCKS_MAX: i32 = 1000;
/// Entries of the cache asked for at most.
const ENTRIES_MAX: i32 = 1_000_000;
/// Cells asked for at most.
const CELLS_MAX: i32 = 100_000;

/// The code with which a list ends.
const END_OF_LIST: Code = Code(1);

/// Words of the configuration in its first version, which is the only one.
const CONFIG_WORDS: usize = 9;

static COMMAND: Command = Command {
    name: "cmdebug",
    options: &[
        Opt::single("servers", "server machine").required(),
        Opt::single("port", "IP port"),
        Opt::flag("long", "print all info"),
        Opt::flag("refcounts", "print only cache entries with positive reference counts"),
        Opt::flag("callbacks", "print only cache entries with callbacks"),
        Opt::flag("ctime", "print human readable expiration time"),
        Opt::flag("addrs", "print only host interfaces"),
        Opt::flag("cache", "print only cache configuration"),
        Opt::flag("cellservdb", "print only cellservdb info"),
        Opt::flag("json", "write one JSON value").ours(),
    ],
};

/// The entries of the cache that are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those whose lock is held or waited for.
    Locked,
    All,
    Referenced,
    WithCallback,
}

/// The way to a cache manager.
struct Debug {
    printer: Printer,
    caller: Caller,
    connection: Connection,
    is_json: bool,
}

/// The cache manager did not answer, or what cannot be; the user was told.
struct Failed;

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    if args.is_empty() {
        output::print("cmdebug: Type 'cmdebug -help' for help\n");
        return ExitCode::from(crate::classic::MISUSE);
    }
    let given = match COMMAND.parse(args) {
        Ok(Parsed::Run(given)) => given,
        Ok(Parsed::Help) => return output::print(&COMMAND.classic_help("cmdebug")),
        Err(misuse) => {
            eprintln!("{}", misuse.in_classic_words("cmdebug"));
            return ExitCode::from(crate::classic::MISUSE);
        }
    };
    if let Err(misuse) = given.check_text() {
        return misuse.report();
    }
    let debug = match open(&given) {
        Ok(debug) => debug,
        Err(complaint) => {
            output::print(&format!("cmdebug: {complaint}\n"));
            return ExitCode::FAILURE;
        }
    };
    let status = match debug.show(&given) {
        Ok(()) => 0,
        Err(Failed) => 1,
    };
    ExitCode::from(debug.printer.finish(status))
}

fn open(given: &Given) -> Result<Debug, String> {
    let host = given.word("servers").unwrap_or_default();
    let port = given.word("port").map_or(Ok(Rxafscb::PORT), ports::parse)?;
    let address: Ipv4Addr =
        hosts::find(host).ok_or_else(|| format!("can't resolve address for host {host}."))?;
    let caller = Caller::new().map_err(|error| format!("cannot open a socket: {error}"))?;
    let connection =
        caller.connect_to_client(SocketAddr::from((address, port)), Rxafscb::SERVICE_ID, Box::new(Null));
    Ok(Debug { printer: Printer::new("cmdebug"), caller, connection, is_json: given.has("json") })
}

impl Debug {
    fn show(&self, given: &Given) -> Result<(), Failed> {
        if given.has("addrs") {
            return self.show_interfaces();
        }
        if given.has("cache") {
            return self.show_config();
        }
        if given.has("cellservdb") {
            return self.show_cells();
        }
        let which = match (given.has("long"), given.has("refcounts"), given.has("callbacks")) {
            (true, _, _) => Which::All,
            (false, true, _) => Which::Referenced,
            (false, false, true) => Which::WithCallback,
            (false, false, false) => Which::Locked,
        };
        let locks = match which {
            Which::All | Which::Locked => self.locks(which),
            Which::Referenced | Which::WithCallback => Ok(Vec::new()),
        };
        // Entries may be told where locks are not.
        let entries = self.entries(which, given.has("ctime"))?;
        let locks = locks?;
        if self.is_json {
            self.printer.say_json(&json!({ "locks": locks, "entries": entries }));
        }
        Ok(())
    }

    fn ask<R: Rpc>(&self, args: &R) -> Result<R::Reply, Code> {
        self.caller.call(&self.connection, args)
    }

    fn failed(&self, what: &str, code: Code) -> Failed {
        // As there, on the standard output: scripts read it.
        say!(self.printer, "cmdebug: {what}: {code}\n");
        Failed
    }

    fn show_interfaces(&self) -> Result<(), Failed> {
        let told = match self.ask(&rxafscb::TellMeAboutYourself {}) {
            Ok(reply) => Ok((reply.addr, reply.capabilities.into_vec())),
            Err(Code::NO_SUCH_PROCEDURE) => {
                self.ask(&rxafscb::WhoAreYou {}).map(|reply| (reply.addr, Vec::new()))
            }
            Err(code) => Err(code),
        };
        let (interfaces, capabilities): (InterfaceAddr, Vec<u32>) =
            told.map_err(|code| self.failed("error checking interfaces", code))?;
        match self.is_json {
            true => self.printer.say_json(&json::interfaces(&interfaces, &capabilities)),
            false => self.printer.say(&text::interfaces(&interfaces, &capabilities)),
        }
        Ok(())
    }

    fn show_config(&self) -> Result<(), Failed> {
        let reply = self
            .ask(&rxafscb::GetCacheConfig { caller_version: 1 })
            .map_err(|code| self.failed("error checking cache config", code))?;
        if reply.server_version != 1 {
            let version = reply.server_version.cast_signed();
            say!(self.printer, "cmdebug: unsupported server version {version}\n");
            return Err(Failed);
        }
        let Ok(words) = <&[u32; CONFIG_WORDS]>::try_from(&reply.config[..]) else {
            let words = reply.config.len();
            say!(self.printer, "cmdebug: configuration data size mismatch ({words} != {CONFIG_WORDS})\n");
            return Err(Failed);
        };
        match self.is_json {
            true => self.printer.say_json(&json::config(words)),
            false => self.printer.say(&text::config(words)),
        }
        Ok(())
    }

    /// A list that is cut off by a failure is as long as it is: so it is there.
    fn show_cells(&self) -> Result<(), Failed> {
        let mut told: Vec<Value> = Vec::new();
        let mut result = Ok(());
        for cell_index in 0..CELLS_MAX {
            let cell = match self.ask(&rxafscb::GetCellServDB { cell_index }) {
                Ok(cell) if !cell.cell_name.is_empty() => cell,
                Err(code) if cell_index == 0 => {
                    result = Err(self.failed("error checking cells", code));
                    break;
                }
                Ok(_) | Err(_) => break,
            };
            let name = output::harmless(&cell.cell_name.to_string());
            match self.is_json {
                true => told.push(json::cell(&name, &cell.cell_hosts)),
                false => {
                    let lines = text::cell(&name, &cell.cell_hosts, |address| {
                        let found = hosts::name_of(address);
                        if found == address.to_string() { String::new() } else { output::harmless(&found) }
                    });
                    self.printer.say(&lines);
                }
            }
        }
        if self.is_json {
            self.printer.say_json(&Value::Array(told));
        }
        result
    }

    fn locks(&self, which: Which) -> Result<Vec<Value>, Failed> {
        let mut told = Vec::new();
        for index in 0..LOCKS_MAX {
            let AfsDbLock { name, lock } = match self.ask(&rxafscb::GetLock { index }) {
                Ok(reply) => reply.lock,
                Err(END_OF_LIST) => break,
                Err(code) => return Err(self.failed("error checking locks", code)),
            };
            if which == Which::Locked && !text::is_locked(&lock) {
                continue;
            }
            let name = output::harmless(&String::from_utf8_lossy(name.text()));
            match self.is_json {
                true => told.push(json::lock(Some(&name), &lock)),
                false => say!(self.printer, "Lock {name} status: {}\n", text::lock(&lock)),
            }
        }
        Ok(told)
    }

    fn entries(&self, which: Which, is_dated: bool) -> Result<Vec<Value>, Failed> {
        let zone = if is_dated { Some(TimeZone::system()) } else { None };
        let mut cells = Cells { debug: self, names: HashMap::new(), are_told: true };
        let mut has_64_bits = true;
        let mut told = Vec::new();
        for index in 0..ENTRIES_MAX {
            let mut answer = match has_64_bits {
                true => self.ask(&rxafscb::GetCE64 { index }).map(|reply| reply.entry),
                false => Err(Code::NO_SUCH_PROCEDURE),
            };
            if answer == Err(Code::NO_SUCH_PROCEDURE) && (index == 0 || !has_64_bits) {
                has_64_bits = false;
                answer = self.ask(&rxafscb::GetCE { index }).map(|reply| widened(&reply.entry));
            }
            let entry = match answer {
                Ok(entry) => entry,
                Err(END_OF_LIST) => break,
                Err(code) => {
                    say!(self.printer, "cmdebug: failed to get cache entry {index} ({code})\n");
                    return Err(Failed);
                }
            };
            if !is_shown(&entry, which) {
                continue;
            }
            let cell = if entry.addr == 0 { None } else { cells.name_of(entry.cell) };
            match self.is_json {
                true => told.push(json::entry(&entry, cell.as_deref())),
                false => self.printer.say(&text::entry(&entry, cell.as_deref(), zone.as_ref())),
            }
        }
        Ok(told)
    }
}

/// True if the entry is to be shown. Without an address it is no entry but a process that sleeps, which is always shown.
fn is_shown(entry: &AfsDbCacheEntry64, which: Which) -> bool {
    entry.addr == 0
        || match which {
            Which::All => true,
            Which::Locked => text::is_locked(&entry.lock),
            Which::Referenced => entry.ref_count != 0,
            Which::WithCallback => entry.callback != 0,
        }
}

/// An entry of the old kind, with a length of 32 bits.
fn widened(entry: &AfsDbCacheEntry) -> AfsDbCacheEntry64 {
    let AfsDbCacheEntry {
        addr,
        cell,
        net_fid,
        length,
        data_version,
        lock,
        callback,
        cb_expires,
        ref_count,
        opens,
        writers,
        mvstat,
        states,
    } = *entry;
    let length = i64::from(length);
    AfsDbCacheEntry64 {
        addr,
        cell,
        net_fid,
        length,
        data_version,
        lock,
        callback,
        cb_expires,
        ref_count,
        opens,
        writers,
        mvstat,
        states,
    }
}

/// The names of cells, each asked for once.
struct Cells<'a> {
    debug: &'a Debug,
    names: HashMap<i32, String>,
    /// True if the peer knows the procedure.
    are_told: bool,
}

impl Cells<'_> {
    fn name_of(&mut self, cell_number: i32) -> Option<String> {
        if !self.are_told {
            return None;
        }
        if let Some(name) = self.names.get(&cell_number) {
            return Some(name.clone());
        }
        match self.debug.ask(&rxafscb::GetCellByNum { cell_number }) {
            Ok(reply) => {
                let name = output::harmless(&reply.cell_name.to_string());
                self.names.insert(cell_number, name.clone());
                Some(name)
            }
            Err(code) => {
                self.are_told = code != Code::NO_SUCH_PROCEDURE;
                None
            }
        }
    }
}
