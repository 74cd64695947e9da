//! Commands that tell where a file is: `whereis`, `whichcell`, `getfid`.

use super::errors::{ENOENT, Failure};
use super::place::{Found, Links};
use super::{Fs, Served, Target};
use crate::classic::Given;
use crate::hosts;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::control;
use serde_json::{Value, json};

/// `fs whereis`.
pub(super) fn where_is(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = fs.each(&Target::all_or_here(given), |target| {
        let Served { client, place } = Served::at(&target.path, Links::Follow)?;
        let servers = client.call(&control::WhereIs { place })?.servers;
        if given.has("json") {
            let addresses: Vec<_> = servers.iter().map(|server| server.to_string()).collect();
            told.push(json!({ "path": target.shown, "servers": addresses }));
            return Ok(());
        }
        let plural = if servers.len() == 1 { "" } else { "s" };
        say!(fs.printer, "File {} is on host{plural} ", target.shown);
        for server in servers.iter() {
            say!(fs.printer, "{} ", harmless(&hosts::name_of(server.ip())));
        }
        say!(fs.printer, "\n");
        Ok(())
    });
    finish(fs, given, told, status)
}

/// `fs whichcell`.
pub(super) fn which_cell(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = show(fs, given, |target, found| match given.has("json") {
        true => told.push(json!({ "path": target.shown, "cell": found.cell })),
        false => say!(fs.printer, "File {} lives in cell '{}'\n", target.shown, harmless(&found.cell)),
    });
    finish(fs, given, told, status)
}

/// `fs getfid`.
pub(super) fn show_fid(fs: &Fs, given: &Given) -> u8 {
    let mut told = Vec::new();
    let status = fs.each(&Target::all_or_here(given), |target| {
        let Found { cell, fid } = target.find()?;
        match given.has("json") {
            true => told.push(json!({
                "path": target.shown,
                "cell": cell,
                "volume": fid.volume.0,
                "vnode": fid.vnode.0,
                "uniquifier": fid.unique.0,
            })),
            false => {
                say!(fs.printer, "File {} ({fid}) located in cell {}\n", target.shown, harmless(&cell));
            }
        }
        Ok(())
    });
    finish(fs, given, told, status)
}

/// Shows something of each path, with a complaint of its own for one that is not there.
fn show(fs: &Fs, given: &Given, mut tell: impl FnMut(&Target, &Found)) -> u8 {
    let mut status = 0;
    for target in &Target::all_or_here(given) {
        match target.find() {
            Ok(found) => tell(target, &found),
            Err(failure) => {
                status = super::FAILURE;
                match failure {
                    Failure::Errno(ENOENT) => {
                        complain!(fs.printer, "fs: no such cell as '{}'\n", target.shown);
                    }
                    failure => fs.complain(&failure, Some(&target.shown)),
                }
            }
        }
    }
    status
}

fn finish(fs: &Fs, given: &Given, told: Vec<Value>, status: u8) -> u8 {
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}
