//! `vos dump`: writes all of a volume, or what has changed in it since some time, to a file or to the standard output.

use super::backup::locate;
use super::volser::{BUSY, OFFLINE};
use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::codes::Code;
use crate::dates::{self, date_of};
use crate::hosts;
use crate::printer::complain;
use afs_admin::Cancel;
use afs_admin::entry::Kind;
use afs_admin::volumes::{NewClone, StreamError, Transaction, Wanted};
use afs_wire::afsvol::VolumeFlags;
use afs_wire::ids::{AfsTime, PartitionId, VolumeId};
use serde_json::json;
use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;

/// The volume that is to be dumped, its place, and the output.
struct Plan<'a> {
    server: Ipv4Addr,
    partition: PartitionId,
    id: u32,
    wanted: Wanted,
    /// The standard output if there is none.
    file: Option<&'a str>,
    /// Ctrl-C: the dump ends, and with it the transaction and the clone.
    cancel: Cancel,
}

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let text = given.word("id").unwrap_or_default();
    let id = vos.known_volume_id(text, Stop::RETURNED, || format!("vos: can't find volume '{text}'"))?;
    let sentence = |text: &'static str| {
        complain!(vos.printer, "{text}\n");
        Stop::RETURNED
    };
    let place = match (given.word("server"), given.word("partition")) {
        (None, None) => None,
        (Some(server), Some(partition)) => Some((
            hosts::find_server(server).ok_or_else(|| sentence("Invalid server name"))?,
            PartitionId::parse(partition).ok_or_else(|| sentence("Invalid partition name"))?,
        )),
        (Some(_), None) | (None, Some(_)) => {
            return Err(sentence("Must specify both -server and -partition options"));
        }
    };
    let since = since(vos, given)?;
    let (server, partition) = match place {
        Some(place) => place,
        None => {
            let found = locate(vos, id, Stop::RETURNED)?;
            (found.server, found.partition)
        }
    };
    let wanted = Wanted { since: AfsTime(since), omits_directories: given.has("omitdirs") };
    let cancel = vos.cancel().clone();
    let plan = Plan { server, partition, id, wanted, file: given.word("file"), cancel };
    match since {
        0 => vos.note("Full Dump ...\n"),
        since => vos.note(&format!("Incremental Dump (as of {})...\n", date_of(since.into(), &vos.zone))),
    }
    let dumped = if given.has("clone") { dump_clone(vos, &plan) } else { dump(vos, &plan) };
    let bytes = dumped.map_err(|code| {
        vos.print_error(code);
        vos.print_diagnostics("dump", code);
        Stop::RETURNED
    })?;
    match plan.file {
        Some(file) => complain!(vos.printer, "Dumped volume {text} in file {file}\n"),
        None => complain!(vos.printer, "Dumped volume {text} in stdout \n"),
    }
    // The standard output may have the dump.
    if vos.json && plan.file.is_some() {
        vos.printer.say_json(&json!({ "id": id, "dumped_to": plan.file, "since": since, "bytes": bytes }));
    }
    Ok(())
}

/// The time of `-time`, from which on changes are wanted; 0 is all of the volume.
pub(super) fn since(vos: &Vos, given: &Given) -> Result<u32, Stop> {
    match given.word("time") {
        None | Some("0") => Ok(0),
        Some(time) => dates::parse(time, &vos.zone).map_err(|bad| {
            complain!(vos.printer, "vos: failed to parse date '{time}' (error={}))\n", bad.code());
            Stop::RETURNED
        }),
    }
}

impl Vos {
    /// Says something if `-verbose` is given, on the standard error: the standard output may have a dump.
    fn note(&self, text: &str) {
        if self.verbose {
            self.printer.complain(text);
        }
    }

    /// Runs work, and says so if `-verbose` is given.
    fn noting<T>(&self, what: &str, work: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        self.note(what);
        let result = work();
        if result.is_ok() {
            self.note(" done\n");
        }
        result
    }
}

fn dump(vos: &Vos, plan: &Plan<'_>) -> Result<u64, Code> {
    let id = plan.id;
    let transaction = begin(vos, plan)?;
    let dumped = vos
        .noting(&format!("Starting volume dump on volume {id}..."), || Ok(()))
        .and_then(|()| write(vos, plan, transaction));
    let ended = vos.noting(&format!("Ending transaction on volume {id}..."), || {
        vos.end_whatever_came(transaction).inspect_err(|_| {
            complain!(vos.printer, "Could not end transaction on the volume {id}\n");
        })
    });
    dumped.and_then(|bytes| ended.map(|()| bytes))
}

fn begin(vos: &Vos, plan: &Plan<'_>) -> Result<Transaction, Code> {
    let &Plan { server, partition, id, .. } = plan;
    vos.noting(&format!("Starting transaction on volume {id}..."), || {
        vos.begin(server, partition, id, BUSY).inspect_err(|code| {
            let what = format!("Could not start transaction on the volume {id} to be dumped\n");
            vos.print_failure(*code, &what);
        })
    })
}

/// Makes a clone, dumps that, and removes it: for servers at which clients have to wait for a dump.
fn dump_clone(vos: &Vos, plan: &Plan<'_>) -> Result<u64, Code> {
    let &Plan { server, partition, id, .. } = plan;
    let transaction = begin(vos, plan)?;
    let cloned = make_clone(vos, id, transaction);
    let ended = vos.noting(&format!("Ending the transaction on the volume {id} ..."), || {
        vos.end_whatever_came(transaction).inspect_err(|_| {
            complain!(vos.printer, "Failed to end the transaction on the volume {id}\n");
        })
    });
    let clone = cloned.and_then(|clone| ended.map(|()| clone))?;
    let transaction =
        vos.noting(&format!("Starting transaction on the cloned volume {clone} ..."), || {
            vos.begin(server, partition, clone, OFFLINE).inspect_err(|code| {
                let what = format!("Failed to start a transaction on the cloned volume {clone}\n");
                vos.print_failure(*code, &what);
            })
        })?;
    let dumped = vos
        .noting(&format!("Setting flags on cloned volume {clone} ..."), || {
            let flags = VolumeFlags::DELETE_ON_SALVAGE | VolumeFlags::OUT_OF_SERVICE;
            vos.set_flags(transaction, flags).inspect_err(|code| {
                vos.print_failure(*code, &format!("Could not set flags on the cloned volume {clone}\n"));
            })
        })
        .and_then(|()| {
            vos.noting(&format!("Starting volume dump from cloned volume {clone}..."), || Ok(()))?;
            write(vos, plan, transaction)
        });
    let deleted = vos.noting(&format!("Deleting the cloned volume {clone} ..."), || {
        vos.wait(vos.volumes.delete(transaction)).inspect_err(|code| {
            vos.print_failure(*code, &format!("Failed to delete the cloned volume {clone}\n"));
        })
    });
    let ended = vos.noting(&format!("Ending transaction on cloned volume {clone}..."), || {
        vos.end_whatever_came(transaction).inspect_err(|_| {
            complain!(vos.printer, "Could not end transaction on the cloned volume {clone}\n");
        })
    });
    let bytes = dumped?;
    deleted.and(ended).map(|()| bytes)
}

fn make_clone(vos: &Vos, id: u32, transaction: Transaction) -> Result<u32, Code> {
    let name = vos.noting(&format!("Getting the name for volume {id} ..."), || {
        vos.wait(vos.volumes.name(transaction)).inspect_err(|code| {
            vos.print_failure(*code, &format!("Failed to get the name of the volume {id}\n"));
        })
    })?;
    let clone = vos.noting(&format!("Allocating new volume id for clone of volume {id} ..."), || {
        vos.new_volume_ids(1).inspect_err(|code| {
            let what = format!("Could not get an ID for the clone of volume {id} from the VLDB\n");
            vos.print_failure(*code, &what);
        })
    })?;
    vos.noting(&format!("Cloning source volume {id} to clone volume {clone}..."), || {
        let new = NewClone { id: VolumeId(clone), kind: Kind::ReadOnly, name: &name };
        vos.wait(vos.volumes.clone_volume(transaction, new)).inspect_err(|code| {
            vos.print_failure(*code, &format!("Failed to clone the source volume {id}\n"));
        })
    })?;
    Ok(clone)
}

/// Writes what the server sends.
fn write(vos: &Vos, plan: &Plan<'_>, transaction: Transaction) -> Result<u64, Code> {
    let failed = |code: Code| {
        vos.print_failure(code, "Error while dumping volume \n");
        code
    };
    let mut out: Box<dyn Write> = match plan.file {
        None => Box::new(io::stdout().lock()),
        Some(file) => Box::new(File::create(file).map_err(|error| {
            complain!(vos.printer, "Could not create file '{file}': {}\n", words(&error));
            failed(Code::VOLSERBADOP)
        })?),
    };
    vos.note(&format!("Dumping volume {}...", plan.id));
    let progress = vos.progress(vos.dump_size(transaction, plan.wanted.since).ok());
    let dumped = vos.caller.run(vos.volumes.dump(transaction, plan.wanted, |bytes| {
        if plan.cancel.is_cancelled() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        progress.add(bytes.len());
        out.write_all(bytes)
    }));
    drop(progress);
    let dumped = dumped.and_then(|bytes| out.flush().map(|()| bytes).map_err(StreamError::Local));
    let bytes = dumped.map_err(|error| match error {
        StreamError::Server(error) => failed(Code(error.code().0)),
        StreamError::Local(_) if plan.cancel.is_cancelled() => {
            complain!(vos.printer, "\nvos: interrupted: the dump is not whole\n");
            failed(Code::EINTR)
        }
        StreamError::Local(error) => {
            let file = plan.file.unwrap_or("the standard output");
            complain!(vos.printer, "\nvos: could not write {file}: {}\n", words(&error));
            failed(Code::EIO)
        }
    })?;
    vos.note(" done\n");
    Ok(bytes)
}

/// The message of an error, without the number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
