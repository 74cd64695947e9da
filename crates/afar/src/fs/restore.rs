//! `fs restore`: brings back a file or a tree from a snapshot, as the user who asks for it, by the mount's own paths. So the rights, the quota and
//! the cache are those of any program that copies files. The copying itself is in `restore/copy.rs`.

mod copy;

use super::client::Client;
use super::errors::{ENOENT, Failure};
use super::place::{Found, Links, client_of};
use super::snapshots::{Seen, Then, places, plain};
use super::{FAILURE, Fs, Target};
use crate::classic::Given;
use crate::dates::parse_utc;
use crate::output::text_of;
use crate::printer::{complain, say};
use afs_wire::control;
use afs_wire::ids::{VnodeNumber, VolumeId};
use copy::{Copy, Counts};
use rustix::fs::{AtFlags, Mode, OFlags, statat};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The reason why it ends early, in words.
struct Stop(String);

impl Stop {
    fn of(failure: &Failure, shown: &str) -> Self {
        Self(without_name(&failure.line(Some(shown))))
    }
}

/// A line of `fs` without the name of the suite in front.
fn without_name(line: &str) -> String {
    line.strip_prefix("fs:").unwrap_or(line).trim().to_owned()
}

/// `fs restore`.
pub(super) fn run(fs: &Fs, given: &Given) -> u8 {
    let Some(target) = Target::all(given, "path").into_iter().next() else { return FAILURE };
    match restore(fs, &target, given.word("at").unwrap_or_default(), given.has("over")) {
        Ok(status) => status,
        Err(Stop(why)) => {
            complain!(fs.printer, "fs: {why}\n");
            FAILURE
        }
    }
}

fn restore(fs: &Fs, target: &Target, time: &str, is_over: bool) -> Result<u8, Stop> {
    let shown = &target.shown;
    if time.is_empty() {
        return Err(Stop(format!(
            "say which snapshot, with -at TIME: 'fs snapshots {shown}' shows those that it is in"
        )));
    }
    if parse_utc(time).is_none() {
        return Err(Stop(format!("'{time}' is no time of a snapshot, such as 2026-11-28T030000Z")));
    }
    let path = plain(&target.path).map_err(|failure| Stop::of(&failure, shown))?;
    let mut places = places(&path).map_err(|missing| Stop(without_name(&missing.line(shown))))?;
    let is_there = |then: &Then| fs::symlink_metadata(then.path()).is_ok();
    let then = places.remove(time).filter(is_there).ok_or_else(|| {
        Stop(format!("{shown} is in no snapshot {time}: 'fs snapshots {shown}' shows those that it is in"))
    })?;
    let volume = Found::at(&then.dir, Links::Stay).map_err(|failure| Stop::of(&failure, shown))?.fid.volume;
    let to = Place::choose(&path, time, is_over)?;
    let from = then.path();
    let client = client_of(&to.parent, Links::Follow).map_err(|failure| Stop::of(&failure, shown))?;
    let mut room = Room { volume, is_over, taken_kib: 0, most_kib: 0 };
    room.measure(&from, &to.path());
    if let Some(refusal) = room.refusal(&client, &to.parent) {
        return Err(Stop(format!("{shown} of {time} takes {refusal}: nothing was restored")));
    }
    let mut copy = Copy::new(fs, client, volume, is_over).map_err(|failure| Stop::of(&failure, shown))?;
    let copied = copy.entry(&from, &to.dir, &to.name, &path);
    let Counts { files, directories, kib, same, failed, lists } = copy.counts;
    let made = text_of(to.path().as_os_str());
    if let Err(Stop(why)) = copied {
        let next = match is_over || to.path() == path {
            true => format!("'fs restore {shown} -at {time} -over' completes it"),
            false => format!("remove {made} to begin anew"),
        };
        return Err(Stop(format!(
            "{why}\nfs: so far {files} files, each of them whole, and {directories} directories of {time} are in {made}; {next}"
        )));
    }
    let unchanged = if is_over { format!("; {same} were as they are") } else { String::new() };
    say!(
        fs.printer,
        "Restored {shown} of {time} as {made}: {files} files, {directories} directories, {kib} KiB{unchanged}\n"
    );
    if lists > 0 {
        complain!(
            fs.printer,
            "fs: {lists} directories have the access list of the directory that they are in, as you may not set theirs\n"
        );
    }
    if failed > 0 {
        complain!(fs.printer, "fs: {failed} were not restored, for the reasons above\n");
        return Ok(FAILURE);
    }
    Ok(0)
}

/// Where it goes: a name in a directory, which is held open.
struct Place {
    dir: OwnedFd,
    parent: PathBuf,
    name: OsString,
}

impl Place {
    /// The path itself if nothing is there, or if what is there is to be replaced; else beside it. What is beside a volume's root is in another
    /// volume, so that one is restored inside of itself.
    fn choose(path: &Path, time: &str, is_over: bool) -> Result<Self, Stop> {
        let is_there = fs::symlink_metadata(path).is_ok();
        let is_root =
            is_there && Found::at(path, Links::Stay).is_ok_and(|found| found.fid.vnode == VnodeNumber::ROOT);
        let mut name = path.file_name().unwrap_or_default().to_owned();
        let mut parent = path.parent().unwrap_or(path);
        if is_there && !is_over {
            name.push(format!(".{time}"));
        } else if is_root {
            name = OsString::from(".");
        }
        if is_root {
            parent = path;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(parent, flags, Mode::empty()).map_err(|errno| {
            let shown = text_of(parent.as_os_str());
            match errno.raw_os_error() {
                ENOENT => Stop(format!("the directory {shown} is gone too: restore that one")),
                _ => Stop(format!("{shown}: {errno}")),
            }
        })?;
        if is_there && !is_over && statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            let made = text_of(parent.join(&name).as_os_str());
            return Err(Stop(format!("{made} is there already: remove it, or give it another name")));
        }
        Ok(Self { dir, parent: parent.to_owned(), name })
    }

    fn path(&self) -> PathBuf {
        match self.name == *OsStr::new(".") {
            true => self.parent.clone(),
            false => self.parent.join(&self.name),
        }
    }
}

/// The room that it takes, in KiB. A file that is replaced goes when the new one is there.
struct Room {
    /// The snapshot: what is in another volume is behind a mount point.
    volume: VolumeId,
    is_over: bool,
    taken_kib: u64,
    most_kib: u64,
}

/// KiB that a server counts for so many bytes.
fn kib_of(bytes: u64) -> u64 {
    bytes.div_ceil(1024).max(1)
}

impl Room {
    /// Adds what is at a path of the snapshot, if it goes to another path. What cannot be looked at is told when it is copied.
    fn measure(&mut self, from: &Path, to: &Path) {
        let Ok(status) = fs::symlink_metadata(from) else { return };
        let there = fs::symlink_metadata(to).ok().filter(|_| self.is_over);
        let is_here = Found::at(from, Links::Stay).is_ok_and(|found| found.fid.volume == self.volume);
        if status.is_dir() && is_here {
            if there.is_none() {
                self.take(status.len(), None);
            }
            for entry in fs::read_dir(from).into_iter().flatten().flatten() {
                self.measure(&from.join(entry.file_name()), &to.join(entry.file_name()));
            }
            return;
        }
        let is_same = || matches!((Seen::at(from), Seen::at(to)), (Ok(then), Ok(now)) if then == now);
        if there.is_none() || !is_same() {
            let length = if is_here { status.len() } else { 0 };
            self.take(length, there.map(|there| there.len()));
        }
    }

    fn take(&mut self, bytes: u64, replaced_bytes: Option<u64>) {
        self.taken_kib += kib_of(bytes);
        self.most_kib = self.most_kib.max(self.taken_kib);
        self.taken_kib = self.taken_kib.saturating_sub(replaced_bytes.map_or(0, kib_of));
    }

    /// The words for why there is not enough room in the volume of a directory. Who may not ask for its quota finds out on the way.
    fn refusal(&self, client: &Client, dir: &Path) -> Option<String> {
        let place = Found::at(dir, Links::Follow).and_then(|found| found.place()).ok()?;
        let reply = client.call(&control::GetVolumeStatus { place }).ok()?;
        let kib = |number: i32| u64::from(number as u32);
        let free = kib(reply.status.part_blocks_avail);
        let left = kib(reply.status.max_quota).saturating_sub(kib(reply.status.blocks_in_use));
        let (left, of_what) = match kib(reply.status.max_quota) {
            0 => (free, "on its partition"),
            _ if left > free => (free, "on its partition"),
            _ => (left, "of its quota"),
        };
        let volume = crate::output::harmless(&String::from_utf8_lossy(&reply.name));
        let needed = self.most_kib;
        (needed > left)
            .then(|| format!("{needed} KiB, and the volume {volume} has {left} KiB left {of_what}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_takes_room_beside_the_new_one_for_a_moment() {
        let mut room = Room { volume: VolumeId(1), is_over: true, taken_kib: 0, most_kib: 0 };
        room.take(10_000, Some(9000));
        assert_eq!((room.taken_kib, room.most_kib), (1, 10));
        room.take(0, None);
        room.take(2048, Some(1 << 20));
        assert_eq!((room.taken_kib, room.most_kib), (0, 10), "nothing that it frees is counted for more");
    }
}
