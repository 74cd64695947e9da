//! `fs pin`, which OpenAFS does not have: files and directories that the client keeps in its cache, and reads without the server.

use super::errors::{EACCES, ENODATA, ENOSPC, EOPNOTSUPP, EPERM, Failure};
use super::place::Links;
use super::{FAILURE, Fs, Served, Target};
use crate::classic::Given;
use crate::dates::date_of;
use crate::output::text_of;
use crate::printer::{complain, say};
use afs_wire::control::{ListPins, Pin, PinTrouble, Pinned, Place, Unpin};
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::client::{Client, Mount};

/// `fs pin`.
pub(super) fn pin(fs: &Fs, given: &Given) -> u8 {
    let targets = Target::all(given, "path");
    match (given.has("remove"), given.has("list") || targets.is_empty()) {
        (true, true) => complain_usage(fs, "-remove needs the paths that are pinned no longer"),
        (true, false) => each(fs, &targets, |target| remove(fs, target)),
        (false, true) if !targets.is_empty() => {
            complain_usage(fs, "-list shows all that is pinned, and takes no path")
        }
        (false, true) => list(fs, given.has("json")),
        (false, false) if given.has("json") => complain_usage(fs, "-json is for -list"),
        (false, false) => each(fs, &targets, |target| {
            let Served { client, place } = Served::at(&target.path, Links::Follow)?;
            client.call(&Pin { place })?;
            say!(
                fs.printer,
                "{} is pinned and is being fetched; 'fs pin -list' tells how much of it is here.\n",
                target.shown
            );
            Ok(())
        }),
    }
}

fn complain_usage(fs: &Fs, text: &str) -> u8 {
    complain!(fs.printer, "fs: {text}\n");
    FAILURE
}

fn each(fs: &Fs, targets: &[Target], mut work: impl FnMut(&Target) -> Result<(), Failure>) -> u8 {
    let mut status = 0;
    for target in targets {
        let Err(failure) = work(target) else { continue };
        status = FAILURE;
        let path = &target.shown;
        match failure.errno() {
            Some(EACCES) => complain!(fs.printer, "fs: to pin {path} you need the right to read it\n"),
            Some(EPERM) => {
                complain!(
                    fs.printer,
                    "fs: another user has pinned {path}: only they, or root, can take that back\n"
                );
            }
            Some(ENODATA) => {
                complain!(fs.printer, "fs: {path} is not pinned; 'fs pin -list' shows what is\n")
            }
            Some(ENOSPC) => {
                complain!(
                    fs.printer,
                    "fs: {path} cannot be pinned: you may have half of the 256 pins that other users leave (root: all of them), or the cache's disk is full. 'fs pin -remove' takes some back\n"
                );
            }
            Some(EOPNOTSUPP) => complain!(
                fs.printer,
                "fs: the client has no cache folder, in which it could keep {path}; mount with --cache DIR\n"
            ),
            _ => fs.complain(&failure, Some(path)),
        }
    }
    status
}

/// Takes a pin back, by its path or as `-list` shows it: what is no longer there has no path.
fn remove(fs: &Fs, target: &Target) -> Result<(), Failure> {
    let (client, place) = match Served::at(&target.path, Links::Follow) {
        Ok(Served { client, place }) => (client, place),
        Err(failure) => {
            let client = fs.any_client()?;
            let pins = pins_of(&client)?;
            let shown = pins.into_iter().find(|pinned| shown(&client, pinned) == target.shown);
            (client, shown.ok_or(failure)?.place)
        }
    };
    client.call(&Unpin { place })?;
    say!(fs.printer, "{} is pinned no longer.\n", target.shown);
    Ok(())
}

/// All pins that the caller may see.
fn pins_of(client: &Client) -> Result<Vec<Pinned>, Failure> {
    let mut all = Vec::new();
    loop {
        let from = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let some = client.call(&ListPins { from })?.pins;
        if some.is_empty() {
            return Ok(all);
        }
        all.extend(some.iter().cloned());
    }
}

/// The path of a pin, where the client is mounted; or its number.
fn shown(client: &Client, pinned: &Pinned) -> String {
    let Place { cell, fid } = &pinned.place;
    if pinned.path.is_empty() {
        return format!("{}:{fid}", String::from_utf8_lossy(cell));
    }
    let mount = Mount::all().into_iter().rev().find(|mount| mount.socket == client.socket());
    let folder = mount.map_or_else(PathBuf::new, |mount| mount.folder);
    text_of(folder.join(Path::new(OsStr::from_bytes(&pinned.path))).as_os_str())
}

fn list(fs: &Fs, is_json: bool) -> u8 {
    let listed = fs.any_client().and_then(|client| {
        let pins = pins_of(&client)?;
        if is_json {
            let all = pins.iter().map(|pinned| as_json(&shown(&client, pinned), pinned)).collect();
            fs.printer.say_json(&Value::Array(all));
        } else if pins.is_empty() {
            say!(fs.printer, "Nothing is pinned.\n");
        } else {
            for pinned in &pins {
                fs.printer.say(&in_words(&shown(&client, pinned), pinned, &TimeZone::system()));
            }
        }
        Ok(())
    });
    fs.done(listed)
}

fn trouble_word(trouble: PinTrouble) -> &'static str {
    match trouble {
        PinTrouble::NONE => "none",
        PinTrouble::NEW => "new",
        PinTrouble::AWAY => "away",
        PinTrouble::NO_TOKEN => "no token",
        PinTrouble::GONE => "gone",
        _ => "failed",
    }
}

fn as_json(path: &str, pinned: &Pinned) -> Value {
    json!({
        "path": path,
        "user": pinned.user,
        "files": pinned.files,
        "files_here": pinned.files_here,
        "bytes": pinned.bytes,
        "bytes_here": pinned.bytes_here,
        "complete": (pinned.complete.0 > 0).then_some(pinned.complete.0),
        "no_room": pinned.no_room,
        "no_rights": pinned.no_rights,
        "failed": pinned.failed,
        "mount_points": pinned.mount_points,
        "example": text_of(OsStr::from_bytes(&pinned.example)),
        "trouble": trouble_word(pinned.trouble),
    })
}

/// A pin in words, with the times of a zone.
fn in_words(path: &str, pinned: &Pinned, zone: &TimeZone) -> String {
    let Pinned {
        files,
        files_here,
        bytes,
        bytes_here,
        no_room,
        no_rights,
        failed,
        mount_points,
        trouble,
        complete,
        ..
    } = *pinned;
    let mut text =
        format!("{path}: {files_here} of {files} files are here, with {bytes_here} of {bytes} bytes\n");
    text += &match complete.0 {
        0 => "    It was not complete yet since the client began.\n".to_owned(),
        time => format!("    It was last complete at {}.\n", date_of(time.into(), zone)),
    };
    let mut say = |line: &str| text += &format!("    {line}\n");
    match trouble {
        PinTrouble::NONE if files_here + no_room + no_rights + failed < files => say("It is being fetched."),
        PinTrouble::NONE => {}
        PinTrouble::NEW => say("The client is finding out what is in it."),
        PinTrouble::AWAY => say("The server does not answer: what is here can be read."),
        PinTrouble::NO_TOKEN => {
            say("Nothing is fetched, as there is no token of the user who pinned it: use 'aklog'.")
        }
        PinTrouble::GONE => say("It is no longer there: 'fs pin -remove' forgets it."),
        _ => say("It cannot be fetched: the client's log says why."),
    }
    for (count, why) in [
        (
            no_room,
            "do not fit: pins may fill half of the cache and of the table of files, see 'fs setcachesize'",
        ),
        (no_rights, "may not be read by the user who pinned it"),
        (failed, "could not be fetched, and are tried again"),
    ] {
        if count > 0 {
            say(&format!("{count} files or directories {why}."));
        }
    }
    if !pinned.example.is_empty() {
        say(&format!("The first that is missing: {}", text_of(OsStr::from_bytes(&pinned.example))));
    }
    if mount_points > 0 {
        say(&format!(
            "Mount points in it: {mount_points}. What is behind them is not pinned: pin it by itself."
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::{AfsFid, AfsTime, VolumeId};

    fn pinned() -> Pinned {
        Pinned {
            place: Place::new("one.test", AfsFid::root_of(VolumeId(7))).unwrap(),
            user: 1001,
            path: Default::default(),
            files: 10,
            files_here: 10,
            bytes: 5000,
            bytes_here: 5000,
            no_room: 0,
            no_rights: 0,
            failed: 0,
            mount_points: 0,
            example: Default::default(),
            trouble: PinTrouble::NONE,
            complete: AfsTime(1_700_000_000),
        }
    }

    #[test]
    fn a_pin_is_told_with_what_is_missing_and_why() {
        let text = |pinned: &Pinned| in_words("/afs/work", pinned, &TimeZone::UTC);
        let whole = "/afs/work: 10 of 10 files are here, with 5000 of 5000 bytes\n    It was last complete at Tue Nov 14 22:13:20 2023.\n";
        assert_eq!(text(&pinned()), whole);
        let fetching = Pinned { files_here: 4, bytes_here: 100, complete: AfsTime(0), ..pinned() };
        assert_eq!(
            text(&fetching),
            "/afs/work: 4 of 10 files are here, with 100 of 5000 bytes\n    It was not complete yet since the client began.\n    It is being fetched.\n"
        );
        let example = afs_wire::control::LocalPath::new("a/film").unwrap();
        let full = Pinned { files_here: 9, no_room: 1, mount_points: 2, example, ..pinned() };
        let told = text(&full);
        assert!(
            told.contains("    1 files or directories do not fit: pins may fill half of the cache"),
            "{told}"
        );
        assert!(told.contains("    The first that is missing: a/film\n    Mount points in it: 2."), "{told}");
        assert!(!told.contains("being fetched"), "{told}");
        for (trouble, says) in [
            (PinTrouble::NEW, "finding out"),
            (PinTrouble::AWAY, "does not answer"),
            (PinTrouble::NO_TOKEN, "aklog"),
            (PinTrouble::GONE, "no longer there"),
            (PinTrouble::FAILED, "log says why"),
        ] {
            let told = text(&Pinned { trouble, ..pinned() });
            assert!(told.contains(says), "{told}");
        }
    }
}
