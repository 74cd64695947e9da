//! Who may hold promises, written down coarsely: clients, and the volumes of which they had something. After a restart each
//! of them is told to forget, and until it was, a change in such a volume tells it too.
//!
//! A text file that grows by a line for each new pair of client and volume, and is written anew when most of it is old. What was
//! written survives the death of the process; a power loss may cost the last second ([`Remembered::sync`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use afs_wire::Uuid;
use afs_wire::ids::VolumeId;

use crate::hosts::HostId;

/// Volumes written down for a client; one with more is written down for all volumes.
const MAX_VOLUMES: usize = 64;

/// Stands for all volumes.
pub const ALL_VOLUMES: VolumeId = VolumeId(0);

/// The file is written anew when it has so many lines, and twice as many as are needed.
const LINES_BEFORE_REWRITE: usize = 10_000;

/// Longest file that is read: some 60 bytes for each of 65,536 clients with 64 volumes each.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Somebody who may hold promises.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Its UUID, if it has one.
    pub uuid: Option<Uuid>,
    /// Where it was.
    pub address: SocketAddr,
}

/// The file.
#[derive(Debug)]
pub struct Remembered {
    path: PathBuf,
    file: File,
    holders: BTreeMap<HostId, (Holder, BTreeSet<VolumeId>)>,
    lines: usize,
    needed: usize,
    is_dirty: bool,
}

/// Hosts with the volumes in which they had promises.
pub type Held = Vec<(Holder, Vec<VolumeId>)>;

impl Remembered {
    /// Opens the file, or makes it, and says who is in it. Lines that make no sense, such as one that a power loss has cut, are
    /// passed over.
    ///
    /// # Errors
    ///
    /// It cannot be read or written.
    pub fn open(path: &Path) -> io::Result<(Self, Held)> {
        let mut text = Vec::new();
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        Read::by_ref(&mut file).take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        let before = parse(&String::from_utf8_lossy(&text));
        if text.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n")?;
        }
        let lines = text.split(|byte| *byte == b'\n').count();
        let this =
            Self { path: path.to_owned(), file, holders: BTreeMap::new(), lines, needed: 0, is_dirty: false };
        Ok((
            this,
            before.into_iter().map(|(holder, volumes)| (holder, volumes.into_iter().collect())).collect(),
        ))
    }

    /// Somebody whom [`open`](Self::open) has found is the host of this id.
    pub fn adopt(&mut self, host: HostId, holder: Holder, volumes: Vec<VolumeId>) {
        self.needed += volumes.len();
        self.holders.insert(host, (holder, volumes.into_iter().collect()));
    }

    /// The host of this id may hold promises for something in the volume. Writes if that is new.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn note(&mut self, host: HostId, holder: &Holder, volume: VolumeId) -> io::Result<()> {
        let (known, volumes) = self.holders.entry(host).or_insert_with(|| (holder.clone(), BTreeSet::new()));
        let has_moved = known != holder;
        if !has_moved && (volumes.contains(&volume) || volumes.contains(&ALL_VOLUMES)) {
            return Ok(());
        }
        let volume = if volumes.len() >= MAX_VOLUMES { ALL_VOLUMES } else { volume };
        let mut lines = String::new();
        if has_moved {
            gone_line(&mut lines, known);
            *known = holder.clone();
            for volume in volumes.iter() {
                held_line(&mut lines, holder, *volume);
            }
        }
        self.needed += usize::from(volumes.insert(volume));
        held_line(&mut lines, holder, volume);
        self.append(&lines)
    }

    /// The host holds nothing any longer.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn gone(&mut self, host: HostId) -> io::Result<()> {
        let Some((holder, volumes)) = self.holders.remove(&host) else { return Ok(()) };
        self.needed -= volumes.len();
        let mut line = String::new();
        gone_line(&mut line, &holder);
        self.append(&line)
    }

    /// Forces what was written onto the disk, if anything was; a handle to do that with, as it takes a while.
    pub fn sync(&mut self) -> Option<File> {
        std::mem::take(&mut self.is_dirty).then(|| self.file.try_clone().ok()).flatten()
    }

    fn append(&mut self, lines: &str) -> io::Result<()> {
        self.file.write_all(lines.as_bytes())?;
        self.is_dirty = true;
        self.lines += lines.lines().count();
        if self.lines > LINES_BEFORE_REWRITE && self.lines > 2 * self.needed {
            self.rewrite()
        } else {
            Ok(())
        }
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let mut text = String::new();
        for (holder, volumes) in self.holders.values() {
            for volume in volumes {
                held_line(&mut text, holder, *volume);
            }
        }
        let new = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&new, &self.path)?;
        self.file = OpenOptions::new().append(true).open(&self.path)?;
        self.lines = text.lines().count();
        Ok(())
    }
}

fn held_line(out: &mut String, holder: &Holder, volume: VolumeId) {
    let _ = writeln!(out, "held {} {} {volume}", uuid_text(holder.uuid), holder.address);
}

fn gone_line(out: &mut String, holder: &Holder) {
    let _ = writeln!(out, "gone {} {}", uuid_text(holder.uuid), holder.address);
}

fn uuid_text(uuid: Option<Uuid>) -> String {
    uuid.map_or_else(|| "-".to_owned(), |uuid| uuid.to_string())
}

fn parse(text: &str) -> BTreeMap<Holder, BTreeSet<VolumeId>> {
    let mut holders: BTreeMap<Holder, BTreeSet<VolumeId>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (kind, uuid, address) = (words.next(), words.next(), words.next());
        let (Some(uuid), Some(Ok(address))) = (uuid.and_then(parse_uuid), address.map(str::parse)) else {
            continue;
        };
        let holder = Holder { uuid, address };
        match (kind, words.next().map(str::parse)) {
            (Some("held"), Some(Ok(volume))) => {
                holders.entry(holder).or_default().insert(VolumeId(volume));
            }
            (Some("gone"), _) => drop(holders.remove(&holder)),
            _ => {}
        }
    }
    holders
}

/// `-`, or the form in which OpenAFS's tools write a UUID (XDR notes 1).
fn parse_uuid(text: &str) -> Option<Option<Uuid>> {
    if text == "-" {
        return Some(None);
    }
    text.parse().ok().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(number: u8) -> Holder {
        let uuid = Uuid { time_low: number.into(), clock_seq_low: 0xaa, ..Uuid::default() };
        Holder { uuid: (number > 0).then_some(uuid), address: SocketAddr::from(([10, 0, 0, number], 7001)) }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("afar-remembered-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn who_held_something_is_there_after_a_restart() {
        let folder = folder("restart");
        let path = folder.join("promises");
        let (mut file, before) = Remembered::open(&path).unwrap();
        assert_eq!(before, []);
        for (host, volume) in [(1, 7), (1, 8), (1, 7), (2, 7), (0, 9)] {
            file.note(HostId(host), &holder(host as u8), VolumeId(volume)).unwrap();
        }
        file.gone(HostId(2)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 5);
        drop(file);
        let (_, before) = Remembered::open(&path).unwrap();
        let expected = [(holder(0), vec![VolumeId(9)]), (holder(1), vec![VolumeId(7), VolumeId(8)])];
        assert_eq!(before, expected);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_line_that_was_cut_costs_itself_alone() {
        let folder = folder("cut");
        let path = folder.join("promises");
        let (mut file, _) = Remembered::open(&path).unwrap();
        file.note(HostId(1), &holder(1), VolumeId(7)).unwrap();
        file.note(HostId(2), &holder(2), VolumeId(7)).unwrap();
        let text = fs::read(&path).unwrap();
        for length in 0..text.len() {
            fs::write(&path, &text[..length]).unwrap();
            let (mut file, before) = Remembered::open(&path).unwrap();
            assert!(before.len() <= 2);
            file.note(HostId(3), &holder(3), VolumeId(8)).unwrap();
            let (_, after) = Remembered::open(&path).unwrap();
            assert!(after.contains(&(holder(3), vec![VolumeId(8)])), "cut after {length} bytes");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_client_of_very_many_volumes_is_one_of_all_and_a_long_file_is_written_anew() {
        let folder = folder("many");
        let path = folder.join("promises");
        let (mut file, _) = Remembered::open(&path).unwrap();
        for volume in 1..1000 {
            file.note(HostId(1), &holder(1), VolumeId(volume)).unwrap();
        }
        for _ in 0..LINES_BEFORE_REWRITE {
            file.note(HostId(2), &holder(2), VolumeId(7)).unwrap();
            file.gone(HostId(2)).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap().lines().count() <= LINES_BEFORE_REWRITE);
        let (_, before) = Remembered::open(&path).unwrap();
        assert_eq!(before.len(), 1);
        assert!(before[0].1.contains(&ALL_VOLUMES) && before[0].1.len() <= MAX_VOLUMES + 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
