//! `afar conflicts`: what the caller has written that could not be stored, as the client of this machine keeps it. Lists it, tells of one file,
//! copies it to another file, or removes it. The client is that of the current folder, or the first one that answers.

use crate::fs::client::Client;
use crate::fs::errors::Failure;
use crate::{arguments, output};
use afs_wire::control::{Aside, DropPutAside, ListPutAside, ReadPutAside};
use clap::{Parser, Subcommand};
use serde_json::json;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) const ABOUT: &str = "lists, copies and removes what you have written that could not be stored";

#[derive(Parser)]
#[command(
    name = "afar conflicts",
    about = "Lists, copies and removes what you have written that could not be stored; the superuser sees that of all users"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Lists what was put aside: numbers, files, sizes, reasons
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Tells all that is known of one
    Show { number: u64 },
    /// Copies one to a new file, and keeps it
    Restore { number: u64, file: PathBuf },
    /// Removes one for good
    Drop { number: u64 },
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    arguments::run("afar conflicts", args, |cli: Cli| match cli.verb {
        Verb::List { json } => list(json),
        Verb::Show { number } => show(number),
        Verb::Restore { number, file } => restore(number, &file),
        Verb::Drop { number } => drop_one(number),
    })
}

fn said(text: &str) -> Result<(), String> {
    output::write(text).map_err(|error| error.to_string())
}

fn all_of(client: &Client) -> Result<Vec<Aside>, Failure> {
    let mut all: Vec<Aside> = Vec::new();
    loop {
        let above = all.last().map_or(0, |last| last.number);
        let reply = client.call(&ListPutAside { above })?;
        if reply.files.is_empty() {
            return Ok(all);
        }
        all.extend(reply.files.iter().cloned());
    }
}

fn client() -> Result<Client, String> {
    Client::any("afar conflicts").map_err(|failure| failure.to_string())
}

/// The one of a number.
fn find(client: &Client, number: u64) -> Result<Aside, String> {
    let all = all_of(client).map_err(|failure| failure.to_string())?;
    let found = all.into_iter().find(|aside| aside.number == number);
    found.ok_or_else(|| {
        format!("none of your files has the number {number}; afar conflicts list has all numbers")
    })
}

fn list(is_json: bool) -> Result<(), String> {
    let all = all_of(&client()?).map_err(|failure| failure.to_string())?;
    if is_json {
        let list: Vec<_> = all.iter().map(as_json).collect();
        return output::write_json(&json!({ "conflicts": list })).map_err(|error| error.to_string());
    }
    if all.is_empty() {
        return said("Nothing was put aside.\n");
    }
    said(&all.iter().map(line).collect::<String>())
}

fn as_json(aside: &Aside) -> serde_json::Value {
    json!({
        "number": aside.number,
        "cell": aside.cell.to_string(),
        "fid": fid(aside),
        "version": aside.version,
        "user": aside.user,
        "length": aside.length,
        "written": aside.written,
        "why": aside.why.to_string(),
    })
}

fn fid(aside: &Aside) -> String {
    let fid = aside.fid;
    format!("{}.{}.{}", fid.volume.0, fid.vnode.0, fid.unique.0)
}

fn line(aside: &Aside) -> String {
    let Aside { number, cell, length, why, .. } = aside;
    let why = output::harmless(&why.to_string());
    format!("{number:>6}  {length:>10} bytes  {cell} {}  {why}\n", fid(aside))
}

fn show(number: u64) -> Result<(), String> {
    said(&described(&find(&client()?, number)?))
}

fn described(aside: &Aside) -> String {
    let Aside { number, cell, version, user, length, written, why, .. } = aside;
    let mut text = format!(
        "Number:    {number}\nFile:      {} of the cell {cell}\nWritten:   by user {user}, on version {version}\n\
         Length:    {length} bytes\nReason:    {}\n",
        fid(aside),
        output::harmless(&why.to_string()),
    );
    if written < length {
        text += &format!("Only {written} bytes were written here; the others may read as zeros.\n");
    }
    text + &format!(
        "'afar conflicts restore {number} FILE' copies it; 'afar conflicts drop {number}' removes it.\n"
    )
}

fn restore(number: u64, path: &Path) -> Result<(), String> {
    let client = client()?;
    let aside = find(&client, number)?;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    // Never over something else.
    let mut file = File::create_new(path).map_err(failed)?;
    let copied = copy(&client, number, &mut file, failed).and_then(|()| file.sync_all().map_err(failed));
    if copied.is_err() {
        // Half of it would pass for all of it.
        let _ = std::fs::remove_file(path);
    }
    copied?;
    let Aside { length, written, .. } = aside;
    let mut text = format!("{length} bytes were copied to {}.\n", path.display());
    if written < length {
        text += &format!(
            "Only {written} of them were written here; the others may be zeros. Compare it with the file.\n"
        );
    }
    said(&text)
}

fn copy(
    client: &Client,
    number: u64,
    file: &mut File,
    failed: impl Fn(std::io::Error) -> String,
) -> Result<(), String> {
    let mut position = 0;
    loop {
        let reply = client.call(&ReadPutAside { number, position }).map_err(|failure| failure.to_string())?;
        if reply.piece.is_empty() {
            return Ok(());
        }
        file.write_all(&reply.piece).map_err(&failed)?;
        position += reply.piece.len() as u64;
    }
}

fn drop_one(number: u64) -> Result<(), String> {
    let client = client()?;
    find(&client, number)?;
    client.call(&DropPutAside { number }).map_err(|failure| failure.to_string())?;
    said(&format!("Number {number} was removed.\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::control::LocalPath;
    use afs_wire::ids::{AfsFid, Name, Uniquifier, VnodeNumber, VolumeId};

    #[test]
    fn what_was_put_aside_is_told_with_its_reason_and_what_is_missing() {
        let aside = Aside {
            number: 7,
            cell: Name::new("one.test").unwrap(),
            fid: AfsFid { volume: VolumeId(1), vnode: VnodeNumber(2), unique: Uniquifier(3) },
            version: 4,
            user: 1000,
            length: 20,
            written: 5,
            why: LocalPath::new("the quota\x1b is used up").unwrap(),
        };
        let told = line(&aside);
        assert!(told.starts_with("     7          20 bytes  one.test 1.2.3  the quota"), "{told}");
        assert!(!told.contains('\x1b'), "what a terminal obeys is not printed");
        let told = described(&aside);
        assert!(told.contains("by user 1000, on version 4\n") && told.contains("Only 5 bytes"), "{told}");
        let whole = Aside { written: 20, ..aside };
        assert!(!described(&whole).contains("Only"));
    }
}
