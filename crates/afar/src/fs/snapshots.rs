//! `fs snapshots`: where a path is found in the snapshots of its volume, and which versions of it they have. Snapshots are entered by name, in
//! the client's mount, so the client and the servers decide who sees what.

use super::errors::{ENOENT, ENOTDIR, Failure};
use super::place::{Found, Links};
use super::{FAILURE, Fs, Target};
use crate::classic::Given;
use crate::dates::utc_of;
use crate::output::text_of;
use crate::printer::{complain, say};
use afs_wire::ids::{Uniquifier, VnodeNumber};
use rustix::fs::FileType;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

/// The name of the snapshots in each directory.
const SNAPSHOTS: &str = ".snapshots";

/// Snapshots that are looked into at once: each takes some round trips to the server.
const AT_ONCE: usize = 8;

/// A place in a snapshot: a directory that is there now as it was then, and the way from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Then {
    /// The directory in the snapshot.
    pub(super) dir: PathBuf,
    /// What follows behind it; nothing for the directory itself.
    pub(super) rest: PathBuf,
}

impl Then {
    /// The path of the place.
    pub(super) fn path(&self) -> PathBuf {
        if self.rest.as_os_str().is_empty() { self.dir.clone() } else { self.dir.join(&self.rest) }
    }
}

/// The reason why nothing is told of snapshots.
#[derive(Debug)]
pub(super) enum Missing {
    /// The server of this directory's volume knows no snapshots, or the directory is in no volume.
    Unknown(PathBuf),
    /// Something failed.
    Failed(Failure),
}

impl Missing {
    /// The line in which `fs` says it of a path.
    pub(super) fn line(&self, shown: &str) -> String {
        match self {
            Self::Unknown(dir) => format!(
                "fs: {} has no snapshots: it is in no volume, or its server is OpenAFS's or an older one of ours\n",
                text_of(dir.as_os_str())
            ),
            Self::Failed(failure) => failure.line(Some(shown)),
        }
    }
}

/// `fs snapshots`.
pub(super) fn list(fs: &Fs, given: &Given) -> u8 {
    let (mut status, mut told) = (0, Vec::new());
    for target in &Target::all_or_here(given) {
        let places = match plain(&target.path).map_err(Missing::Failed).and_then(|path| places(&path)) {
            Ok(places) => places,
            Err(missing) => {
                fs.printer.complain(&missing.line(&target.shown));
                status = FAILURE;
                continue;
            }
        };
        let (found, failures) = look(&places);
        for (time, failure) in failures {
            complain!(fs.printer, "fs: snapshot {time} cannot be looked into: {failure}\n");
            status = FAILURE;
        }
        let now = Seen::at(&target.path).ok().flatten();
        let versions = fold(found);
        if given.has("json") {
            let versions: Vec<Value> = versions.iter().map(|version| version.as_json(now.as_ref())).collect();
            told.push(json!({ "path": target.shown, "versions": versions }));
            continue;
        }
        let (count, in_all) = (versions.len(), versions.iter().map(|version| version.count).sum::<usize>());
        say!(fs.printer, "Versions of {} in {in_all} of {} snapshots: {count}\n", target.shown, places.len());
        versions.iter().for_each(|version| say!(fs.printer, "{}\n", version.line(now.as_ref())));
    }
    if given.has("json") {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

/// A path that can be taken apart by names: absolute, and what is at its end has a name.
pub(super) fn plain(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error: io::Error| Failure::of_system(&error);
    let path = std::path::absolute(path).map_err(failed)?;
    // A slash at the end goes.
    let path: PathBuf = path.components().collect();
    if path.file_name().is_none() { fs::canonicalize(&path).map_err(failed) } else { Ok(path) }
}

/// The places at which a path may be in the snapshots, by their times: a directory that is there is found by itself, whatever its name was then.
/// What is gone, or is no directory, or was not there then as this directory, is found by its name in the nearest directory above it that is
/// there, in the same volume.
pub(super) fn places(path: &Path) -> Result<BTreeMap<String, Then>, Missing> {
    let is_directory = fs::symlink_metadata(path).is_ok_and(|status| status.is_dir());
    let mut places = BTreeMap::new();
    if is_directory {
        add(&mut places, path, Path::new(""))?;
        let found = Found::at(path, Links::Stay).map_err(Missing::Failed)?;
        if found.fid.vnode == VnodeNumber::ROOT {
            return Ok(places);
        }
    }
    let above = path.ancestors().skip(1).find(|dir| dir.is_dir());
    let above = above.ok_or(Missing::Failed(Failure::Errno(ENOENT)))?;
    let rest = path.strip_prefix(above).expect("it is above");
    match add(&mut places, above, rest) {
        // Who may not look there still sees the directory itself.
        Err(_) if is_directory => Ok(places),
        added => added.map(|()| places),
    }
}

/// Adds the places in the snapshots of a directory, for times that have none yet.
fn add(places: &mut BTreeMap<String, Then>, dir: &Path, rest: &Path) -> Result<(), Missing> {
    let snapshots = dir.join(SNAPSHOTS);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Missing::Unknown(dir.to_owned()),
        _ => Missing::Failed(Failure::of_system(&error)),
    };
    for entry in fs::read_dir(&snapshots).map_err(failed)? {
        let Ok(time) = entry.map_err(failed)?.file_name().into_string() else { continue };
        let then = Then { dir: snapshots.join(&time), rest: rest.to_owned() };
        places.entry(time).or_insert(then);
    }
    Ok(())
}

/// What there is at a path, in a snapshot or now. Two looks that see the same have seen one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    file: (VnodeNumber, Uniquifier),
    /// Its type and permissions.
    mode: u32,
    bytes: u64,
    modified: i64,
    /// When the server changed it last.
    changed: i64,
}

impl Seen {
    /// What is at a path; nothing, if nothing is.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, Failure> {
        let status = match fs::symlink_metadata(path) {
            Ok(status) => status,
            Err(error) if matches!(error.raw_os_error(), Some(ENOENT | ENOTDIR)) => return Ok(None),
            Err(error) => return Err(Failure::of_system(&error)),
        };
        let fid = Found::at(path, Links::Stay)?.fid;
        Ok(Some(Self {
            file: (fid.vnode, fid.unique),
            mode: status.mode(),
            bytes: status.len(),
            modified: status.mtime(),
            changed: status.ctime(),
        }))
    }
}

/// A version, and the snapshots one after the other that have it.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    first: String,
    last: String,
    count: usize,
    seen: Seen,
}

impl Version {
    fn kind(&self) -> &'static str {
        match FileType::from_raw_mode(self.seen.mode) {
            FileType::Directory => "directory",
            FileType::Symlink => "link",
            _ => "file",
        }
    }

    fn modified(&self) -> String {
        u32::try_from(self.seen.modified).map_or_else(|_| self.seen.modified.to_string(), utc_of)
    }

    fn line(&self, now: Option<&Seen>) -> String {
        let (last, bytes, modified) = (&self.last, self.seen.bytes, self.modified());
        let kind = match self.kind() {
            "file" => String::new(),
            kind => format!(", a {kind}"),
        };
        let others = match self.count {
            1 => String::new(),
            count => format!(", in {count} since {}", self.first),
        };
        let as_now = if now == Some(&self.seen) { ", as it is now" } else { "" };
        format!("{last} {bytes:>12} bytes, modified {modified}{kind}{others}{as_now}")
    }

    fn as_json(&self, now: Option<&Seen>) -> Value {
        json!({
            "time": self.last,
            "since": self.first,
            "snapshots": self.count,
            "kind": self.kind(),
            "bytes": self.seen.bytes,
            "modified": self.modified(),
            "is_now": now == Some(&self.seen),
        })
    }
}

/// What the snapshots show, by time, and those that could not be looked into.
type Looked = (Vec<(String, Seen)>, Vec<(String, Failure)>);

/// Looks into the snapshots, several at once.
fn look(places: &BTreeMap<String, Then>) -> Looked {
    let all: Vec<_> = places.iter().collect();
    let part = all.len().div_ceil(AT_ONCE).max(1);
    let looks = |part: &[(&String, &Then)]| -> Vec<_> {
        part.iter().map(|(time, then)| ((*time).clone(), Seen::at(&then.path()))).collect()
    };
    let looked: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = all.chunks(part).map(|part| scope.spawn(move || looks(part))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for (time, seen) in looked {
        match seen {
            Ok(seen) => found.extend(seen.map(|seen| (time, seen))),
            Err(failure) => failures.push((time, failure)),
        }
    }
    (found, failures)
}

/// Makes one version of what is the same in snapshots that follow each other.
fn fold(found: Vec<(String, Seen)>) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    for (time, seen) in found {
        match versions.last_mut() {
            Some(version) if version.seen == seen => {
                version.last = time;
                version.count += 1;
            }
            _ => versions.push(Version { first: time.clone(), last: time, count: 1, seen }),
        }
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(unique: u32, bytes: u64) -> Seen {
        let file = (VnodeNumber(2), Uniquifier(unique));
        Seen { file, mode: 0o100_644, bytes, modified: 1_795_834_800, changed: 1_795_834_800 }
    }

    #[test]
    fn versions_that_follow_each_other_unchanged_are_one_line() {
        let found = [("a", seen(1, 7)), ("b", seen(1, 7)), ("c", seen(1, 8)), ("d", seen(2, 8))];
        let versions = fold(found.map(|(time, seen)| (time.to_owned(), seen)).to_vec());
        let lines: Vec<_> = versions.iter().map(|version| version.line(Some(&seen(2, 8)))).collect();
        assert_eq!(
            lines,
            [
                "b            7 bytes, modified 2026-11-28T030000Z, in 2 since a",
                "c            8 bytes, modified 2026-11-28T030000Z",
                "d            8 bytes, modified 2026-11-28T030000Z, as it is now",
            ]
        );
    }

    #[test]
    fn paths_of_other_file_systems_have_no_snapshots() {
        let missing = places(Path::new("/proc/nosuch")).unwrap_err();
        assert!(missing.line("x").starts_with("fs: /proc has no snapshots: "), "{missing:?}");
    }

    #[test]
    fn a_path_has_a_name_at_its_end() {
        for (path, expected) in
            [("/usr/bin/", "/usr/bin"), ("/usr/./bin/.", "/usr/bin"), ("/no/such", "/no/such")]
        {
            assert_eq!(plain(Path::new(path)).unwrap(), Path::new(expected), "{path}");
        }
        assert_eq!(plain(Path::new("/proc/..")).unwrap(), Path::new("/"));
    }
}
