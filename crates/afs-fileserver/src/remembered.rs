//! The clients that may hold promises, written down coarsely: each client, and the volumes in which it had a promise. After a restart,
//! each of them is told to forget. Until it was told, a change in such a volume tells it too.
//!
//! A text file that grows by a line for each new pair of client and volume, and is written anew at each start, when most of it is
//! old, and when the disk has failed. What was written survives the death of the process, and is synced within [`SYNC_AFTER`], or when the
//! file that is being written anew is on the disk: a power loss may cost what is newer. Reads no clock, and waits for no sync but at the
//! start: the caller says what time it is, and does what [`Remembered::poll_due`] says, without whatever others need to get at the list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use afs_volume::disk::{Disk, DiskFile};
use afs_wire::Uuid;
use afs_wire::ids::VolumeId;
use rx_proto::time::Instant;

use crate::hosts::HostId;

/// The file on its disk.
pub const NAME: &str = "promises";

/// The file that takes its place, until it is whole.
const NEW: &str = "promises.new";

/// The time for which a line may be in memory only, and the pause before the next attempt after a failure. As with volumes, whose
/// changes are synced as often: who reads what a power loss takes back should not be forgotten with it.
pub const SYNC_AFTER: Duration = Duration::from_secs(1);

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
    /// Its address.
    pub address: SocketAddr,
}

/// The file.
#[derive(Debug)]
pub struct Remembered {
    disk: Arc<dyn Disk>,
    /// The file that lines are added to; none while it must first be written anew.
    file: Option<Arc<dyn DiskFile>>,
    /// True if lines may be lost that were written: nobody is known to be in the list then.
    is_lost: bool,
    has_failed: bool,
    /// Bytes of it that are lines.
    length: u64,
    holders: BTreeMap<HostId, (Holder, BTreeSet<VolumeId>)>,
    lines: usize,
    needed: usize,
    /// With more lines than this it is written anew, if most are not needed.
    long: usize,
    /// The time when something is to be done.
    due_at: Option<Instant>,
    /// True if something is being done: one thing at a time.
    is_busy: bool,
    /// Lines that came while the file is being written anew, which has not got them.
    since: Option<String>,
    /// True if the file has taken the place of another, and a restart may find that one.
    is_placed: bool,
}

/// Hosts with the volumes in which they had promises.
pub type Held = Vec<(Holder, Vec<VolumeId>)>;

/// Work that is to be done on the disk. It takes a while.
#[derive(Debug)]
pub enum Due {
    /// This is to be synced.
    Sync(Arc<dyn DiskFile>),
    /// The file that is to take the place of the list, with what is to be in it.
    Write(Arc<dyn Disk>, String),
    /// The file and the folder are to be synced, as the file in it is another one now.
    SyncPlaced(Arc<dyn Disk>, Arc<dyn DiskFile>),
}

/// The outcome of it.
#[derive(Debug)]
pub enum Done {
    /// The outcome of [`Due::Sync`].
    Synced(io::Result<()>),
    /// The outcome of [`Due::SyncPlaced`].
    SyncedPlaced(io::Result<()>),
    /// The outcome of [`Due::Write`]; the number of bytes.
    Written(u64, io::Result<Arc<dyn DiskFile>>),
}

impl Due {
    /// Runs the work. The caller passes the outcome to [`Remembered::handle_done`].
    pub fn run(self) -> Done {
        match self {
            Self::Sync(file) => Done::Synced(file.sync()),
            Self::SyncPlaced(disk, file) => {
                Done::SyncedPlaced(file.sync().and_then(|()| disk.sync_folder("")))
            }
            Self::Write(disk, text) => {
                let write = || {
                    let file = disk.create(NEW)?;
                    file.write_at(0, text.as_bytes())?;
                    file.sync()?;
                    Ok(file)
                };
                Done::Written(text.len() as u64, write())
            }
        }
    }
}

impl Remembered {
    /// Reads the file, if it is there, and says who is in it. Lines that make no sense, such as one that a power loss has cut, are
    /// passed over. Nothing can be added before those who are still of interest are [adopted](Self::adopt) and the file is [written
    /// anew](Self::write_anew).
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn open(disk: Arc<dyn Disk>) -> io::Result<(Self, Held)> {
        let mut text = Vec::new();
        match disk.open(NAME) {
            Ok(file) => {
                text.resize(file.length()?.min(MAX_FILE_BYTES) as usize, 0);
                let n = file.read_at(0, &mut text)?;
                text.truncate(n);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let before = parse(&String::from_utf8_lossy(&text));
        let holders = BTreeMap::new();
        let this = Self {
            disk,
            file: None,
            is_lost: false,
            has_failed: false,
            length: 0,
            holders,
            lines: 0,
            needed: 0,
            long: LINES_BEFORE_REWRITE,
            due_at: None,
            is_busy: false,
            since: None,
            is_placed: false,
        };
        Ok((
            this,
            before.into_iter().map(|(holder, volumes)| (holder, volumes.into_iter().collect())).collect(),
        ))
    }

    /// Notes that a holder that [`open`](Self::open) has found is the host of this id.
    pub fn adopt(&mut self, host: HostId, holder: Holder, volumes: Vec<VolumeId>) {
        self.needed += volumes.len();
        self.holders.insert(host, (holder, volumes.into_iter().collect()));
    }

    /// The host of this id may hold promises for something in the volume. Writes if that is new.
    ///
    /// # Errors
    ///
    /// It cannot be written, and would be forgotten if the server were to end now: the host must get no promise.
    pub fn note(&mut self, now: Instant, host: HostId, holder: &Holder, volume: VolumeId) -> io::Result<()> {
        let known = self.holders.get(&host).map(|(_, volumes)| volumes);
        let has = |volumes: &BTreeSet<VolumeId>| volumes.contains(&volume) || volumes.contains(&ALL_VOLUMES);
        if !self.is_lost && known.is_some_and(has) {
            return Ok(());
        }
        let is_full = known.is_some_and(|volumes| volumes.len() >= MAX_VOLUMES);
        let volume = if is_full { ALL_VOLUMES } else { volume };
        let mut line = String::new();
        held_line(&mut line, holder, volume);
        self.append(now, &line)?;
        let (_, volumes) = self.holders.entry(host).or_insert_with(|| (holder.clone(), BTreeSet::new()));
        self.needed += usize::from(volumes.insert(volume));
        Ok(())
    }

    /// The host holds nothing any longer.
    ///
    /// # Errors
    ///
    /// It cannot be written. It will be when the file is written anew; a restart before that tells a host that holds nothing.
    pub fn gone(&mut self, now: Instant, host: HostId) -> io::Result<()> {
        let Some((holder, volumes)) = self.holders.remove(&host) else { return Ok(()) };
        self.needed -= volumes.len();
        let mut line = String::new();
        gone_line(&mut line, &holder);
        let outcome = if self.file.is_some() { self.append(now, &line) } else { Ok(()) };
        // It may still be in the file that is being written, if one is.
        if self.file.is_none()
            && let Some(since) = &mut self.since
        {
            since.push_str(&line);
        }
        outcome
    }

    /// True if lines could not be written, or may be lost, and a file that has them all is not on the disk yet.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The time when [`poll_due`](Self::poll_due) has something next; nothing while what it said last is being done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due_at.filter(|_| !self.is_busy)
    }

    /// Returns the work that is to be done on the disk now.
    pub fn poll_due(&mut self, now: Instant) -> Option<Due> {
        if self.is_busy {
            return None;
        }
        self.due_at.take_if(|at| *at <= now)?;
        self.is_busy = true;
        Some(match &self.file {
            Some(file) if std::mem::take(&mut self.is_placed) => {
                Due::SyncPlaced(Arc::clone(&self.disk), Arc::clone(file))
            }
            Some(file) if !self.is_long() => Due::Sync(Arc::clone(file)),
            _ => self.begin_anew(),
        })
    }

    /// Something that was due is done.
    ///
    /// # Errors
    ///
    /// It did not work. What is due next makes up for it.
    pub fn handle_done(&mut self, now: Instant, done: Done) -> io::Result<()> {
        self.is_busy = false;
        let since = self.since.take().unwrap_or_default();
        let is_on_disk = matches!(done, Done::SyncedPlaced(_));
        let outcome = match done {
            Done::Synced(outcome) => outcome.inspect_err(|_| self.lose(now)),
            // A folder that cannot be synced is not to have all written anew again and again without a pause.
            Done::SyncedPlaced(outcome) => outcome.inspect_err(|_| self.lose(now + SYNC_AFTER)),
            Done::Written(length, written) => written.and_then(|file| self.place(now, file, length, &since)),
        };
        if is_on_disk && outcome.is_ok() {
            self.has_failed = false;
        }
        if outcome.is_err() {
            self.has_failed |= self.file.is_none();
            // Also for the lines that the old file has got meanwhile, where that is still there.
            self.due_at = self.due_at.or(Some(now + SYNC_AFTER));
            self.long = self.lines + LINES_BEFORE_REWRITE;
        }
        outcome
    }

    /// Notes that the disk may have got less of the file than was written, whatever a later sync says. The file is written anew at the
    /// given time.
    fn lose(&mut self, then: Instant) {
        (self.file, self.is_lost, self.due_at) = (None, true, Some(then));
    }

    /// Writes all that is needed into a new file, which takes the place of the old one. Waits for the disk.
    ///
    /// # Errors
    ///
    /// It cannot be written. It is due again after [`SYNC_AFTER`].
    pub fn write_anew(&mut self, now: Instant) -> io::Result<()> {
        let written = self.begin_anew().run();
        self.handle_done(now, written)?;
        self.poll_due(now).map_or(Ok(()), |placed| self.handle_done(now, placed.run()))
    }

    fn begin_anew(&mut self) -> Due {
        let mut text = String::new();
        for (holder, volumes) in self.holders.values() {
            for volume in volumes {
                held_line(&mut text, holder, *volume);
            }
        }
        self.since = Some(String::new());
        Due::Write(Arc::clone(&self.disk), text)
    }

    /// Has the new file take the place of the old one.
    fn place(&mut self, now: Instant, file: Arc<dyn DiskFile>, length: u64, since: &str) -> io::Result<()> {
        file.write_at(length, since.as_bytes())?;
        // From here on nobody knows which of the two a restart finds.
        self.file = None;
        self.disk.rename(NEW, NAME)?;
        (self.file, self.length) = (Some(file), length + since.len() as u64);
        (self.lines, self.long) = (self.needed + since.lines().count(), LINES_BEFORE_REWRITE);
        (self.is_lost, self.is_placed, self.due_at) = (false, true, Some(now));
        Ok(())
    }

    fn append(&mut self, now: Instant, lines: &str) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Err(io::Error::other("an earlier write failed, and has not been made up for"));
        };
        if let Err(error) = file.write_at(self.length, lines.as_bytes()) {
            // A part of it may be there.
            (self.file, self.has_failed) = (None, true);
            self.due_at = Some(now + SYNC_AFTER);
            return Err(error);
        }
        if let Some(since) = &mut self.since {
            since.push_str(lines);
        }
        self.length += lines.len() as u64;
        self.lines += lines.lines().count();
        self.due_at = self.due_at.or(Some(now + SYNC_AFTER));
        Ok(())
    }

    fn is_long(&self) -> bool {
        self.lines > self.long && self.lines > 2 * self.needed
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
    use afs_volume::disk::{Cut, SimulatedDisk};

    use super::*;

    const NOW: Instant = Instant::ORIGIN;

    fn holder(number: u8) -> Holder {
        let uuid = Uuid { time_low: number.into(), clock_seq_low: 0xaa, ..Uuid::default() };
        Holder { uuid: (number > 0).then_some(uuid), address: SocketAddr::from(([10, 0, 0, number], 7001)) }
    }

    fn disk() -> SimulatedDisk {
        SimulatedDisk::new(8 << 20)
    }

    /// As at the start of a server, where all are still of interest.
    fn open(disk: &SimulatedDisk) -> (Remembered, Held) {
        let (mut file, before) = Remembered::open(Arc::new(disk.clone())).unwrap();
        for (n, (holder, volumes)) in before.iter().enumerate() {
            file.adopt(HostId(1000 + n as u64), holder.clone(), volumes.clone());
        }
        file.write_anew(NOW).unwrap();
        (file, before)
    }

    fn note(file: &mut Remembered, number: u8, volume: u32) -> io::Result<()> {
        file.note(NOW, HostId(number.into()), &holder(number), VolumeId(volume))
    }

    /// Runs what is due, as the server does.
    fn do_due(file: &mut Remembered) -> io::Result<()> {
        while let Some(due) = file.poll_due(NOW + SYNC_AFTER) {
            file.handle_done(NOW, due.run())?;
        }
        Ok(())
    }

    fn text(disk: &SimulatedDisk) -> Vec<u8> {
        let file = disk.open(NAME).unwrap();
        let mut text = vec![0; file.length().unwrap() as usize];
        file.read_at(0, &mut text).unwrap();
        text
    }

    fn lines(disk: &SimulatedDisk) -> usize {
        text(disk).iter().filter(|byte| **byte == b'\n').count()
    }

    #[test]
    fn who_held_something_is_there_after_a_restart() {
        let disk = disk();
        let (mut file, before) = open(&disk);
        assert_eq!(before, []);
        for (host, volume) in [(1, 7), (1, 8), (1, 7), (2, 7), (0, 9)] {
            note(&mut file, host, volume).unwrap();
        }
        file.gone(NOW, HostId(2)).unwrap();
        assert_eq!(lines(&disk), 5);
        drop(file);
        let (_, before) = open(&disk);
        let expected = [(holder(0), vec![VolumeId(9)]), (holder(1), vec![VolumeId(7), VolumeId(8)])];
        assert_eq!(before, expected);
        assert_eq!(lines(&disk), 3, "what is needed");
    }

    #[test]
    fn a_line_that_was_cut_costs_itself_alone() {
        let whole = disk();
        let (mut file, _) = open(&whole);
        note(&mut file, 1, 7).unwrap();
        note(&mut file, 2, 7).unwrap();
        for length in 0..text(&whole).len() {
            let disk = whole.after_kill();
            disk.open(NAME).unwrap().set_length(length as u64).unwrap();
            let (mut file, before) = open(&disk);
            assert!(before.len() <= 2);
            note(&mut file, 3, 8).unwrap();
            let (_, after) = open(&disk);
            assert!(after.contains(&(holder(3), vec![VolumeId(8)])), "cut after {length} bytes");
        }
    }

    #[test]
    fn a_client_of_very_many_volumes_is_one_of_all_and_a_long_file_is_written_anew() {
        let disk = disk();
        let (mut file, _) = open(&disk);
        for volume in 1..1000 {
            note(&mut file, 1, volume).unwrap();
        }
        for _ in 0..LINES_BEFORE_REWRITE {
            note(&mut file, 2, 7).unwrap();
            file.gone(NOW, HostId(2)).unwrap();
        }
        let due = file.poll_due(NOW + SYNC_AFTER).unwrap();
        assert!(matches!(due, Due::Write(..)));
        // Others go on meanwhile.
        assert!(file.poll_due(NOW + 9 * SYNC_AFTER).is_none(), "one thing at a time");
        note(&mut file, 3, 9).unwrap();
        file.handle_done(NOW, due.run()).unwrap();
        do_due(&mut file).unwrap();
        assert!(lines(&disk) <= MAX_VOLUMES + 2);
        let (_, before) = open(&disk);
        assert_eq!((before.len(), &before[1]), (2, &(holder(3), vec![VolumeId(9)])));
        assert!(before[0].1.contains(&ALL_VOLUMES) && before[0].1.len() <= MAX_VOLUMES + 1);
    }

    /// Nothing new is promised until the disk is written to again, and what was promised is not forgotten.
    #[test]
    fn what_a_disk_does_not_take_is_said_and_written_when_it_does() {
        for cut in [Cut::ErrorAt(0), Cut::ErrorsFrom(0)] {
            let disk = disk();
            let (mut file, _) = open(&disk);
            note(&mut file, 1, 7).unwrap();
            disk.set_cut(Some(cut));
            assert!(note(&mut file, 2, 7).is_err());
            assert!(note(&mut file, 2, 7).is_err(), "it is not taken for known");
            note(&mut file, 1, 7).unwrap();
            file.gone(NOW, HostId(1)).unwrap();
            disk.set_cut(None);
            do_due(&mut file).unwrap();
            note(&mut file, 3, 7).unwrap();
            assert_eq!(open(&disk).1, [(holder(3), vec![VolumeId(7)])], "{cut:?}");
        }
        let disk = disk();
        let (mut file, _) = open(&disk);
        disk.set_capacity(100);
        let refused = (1..10).filter(|number| note(&mut file, *number, 7).is_err()).count();
        assert!(refused >= 8, "{refused}");
        assert!(do_due(&mut file).is_err() || refused == 8);
        disk.set_capacity(1 << 20);
        do_due(&mut file).unwrap();
        (1..10).for_each(|number| note(&mut file, number, 7).unwrap());
        assert_eq!(open(&disk).1.len(), 9);
    }

    /// Lines that were synced are there, whatever the disk refuses, and however often the power goes.
    #[test]
    fn what_was_synced_outlasts_a_power_loss() {
        let (mut losses, mut failures) = (0, 0);
        for seed in 0..200u64 {
            let mut disk = disk();
            let mut random = seed;
            let mut below = |most: u64| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (random >> 33) % most
            };
            let (mut file, _) = open(&disk);
            let (mut held, mut synced) = (BTreeSet::new(), BTreeSet::new());
            // What is being done while the rest happens.
            let mut doing: Option<Due> = None;
            let has_failures = seed % 4 != 0;
            for volume in 1..60 {
                match below(16) {
                    0 if has_failures => {
                        disk.set_cut(Some(Cut::ErrorAt(below(5))));
                        failures += 1;
                    }
                    1 if has_failures => {
                        disk.set_cut(Some(Cut::ErrorsFrom(below(5))));
                        failures += 1;
                    }
                    2 => disk.set_cut(None),
                    3 => {
                        // The lines are as good as too many.
                        if doing.is_none() {
                            file.is_busy = true;
                            doing = Some(file.begin_anew());
                        }
                    }
                    what @ (4 | 5) => {
                        losses += 1;
                        let is_kill = what == 4;
                        doing = None;
                        disk =
                            if is_kill { disk.after_kill() } else { disk.after_power_loss(below(1 << 30)) };
                        let (opened, before) = open(&disk);
                        let found: BTreeSet<u32> =
                            before.iter().flat_map(|(_, volumes)| volumes.iter().map(|v| v.0)).collect();
                        let sure = if is_kill && !has_failures { &held } else { &synced };
                        assert!(sure.is_subset(&found), "seed {seed}: {sure:?} of {found:?}");
                        (file, synced) = (opened, found.clone());
                        held = found;
                    }
                    6 | 7 => {
                        if let Some(due) = doing.take() {
                            let _ = file.handle_done(NOW, due.run());
                        }
                        if do_due(&mut file).is_ok() && file.file.is_some() {
                            synced.clone_from(&held);
                        }
                    }
                    8 | 9 => match doing.take() {
                        Some(due) => drop(file.handle_done(NOW, due.run())),
                        None => doing = file.poll_due(NOW + SYNC_AFTER),
                    },
                    _ => {
                        if note(&mut file, 1, volume).is_ok() {
                            held.insert(volume);
                        }
                    }
                }
            }
        }
        assert!(losses > 500 && failures > 1000, "{losses} losses, {failures} failures");
    }
}
