//! `afar-backup run`: backs up a volume; `src/jobs.rs` has many at once. A volume that has not changed costs one question and a snapshot of the same tree;
//! of one that was changed since the last backup, changes are dumped; all else is dumped in full.

use crate::cell::{Cell, Located};
use crate::known::KnownFiles;
use crate::progress::Bars;
use crate::repository::{PARTIAL, Place, Store};
use crate::source::{Source, Volume};
use crate::spool::{Spool, Spooling};
use crate::state::{State, latest_good};
use afs_dump::{DumpHeader, DumpRange, VolumeHeader, Writer};
use afs_wire::ids::AfsTime;
use rustic_core::jiff::{Timestamp, tz::TimeZone};
use rustic_core::repofile::SnapshotFile;
use rustic_core::{BackupOptions, SnapshotOptions};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A volume that was backed up.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) snapshot: SnapshotFile,
    /// The length of the dump. `None`: none was needed, as nothing has changed.
    pub(crate) dumped_bytes: Option<u64>,
    /// The reasons why it is not whole.
    pub(crate) failures: Vec<String>,
}

/// What the backups of a run have in common.
pub(crate) struct Run<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) place: &'a Place,
    pub(crate) store: &'a Store,
    /// The snapshots that there were before.
    pub(crate) snapshots: Vec<SnapshotFile>,
    /// The folder for what is dumped.
    pub(crate) spool: &'a Path,
    /// True if nothing is taken from the last backup.
    pub(crate) is_full: bool,
}

/// Backs up a volume into `store`, which nothing else uses meanwhile.
pub(crate) fn back_up(
    run: &Run<'_>,
    volume: &str,
    (store, bars): (&Store, &Bars),
    now: Duration,
) -> Result<Saved, String> {
    let cell = run.cell;
    let at = cell.locate(volume)?;
    let info = cell.info(&at)?;
    let state = State::of(&at, &info, now);
    let last = latest_good(&run.snapshots, &cell.name, &at.name).filter(|_| !run.is_full);
    let last = last.and_then(|last| Some((last, State::of_snapshot(last)?)));
    let last = last.filter(|(_, earlier)| state.continues(earlier));
    let mut snapshot = new_snapshot(&cell.name, &at.name, Some(state.to_text()), now)?;
    if let Some((last, earlier)) = &last
        && state.is_unchanged(earlier)
    {
        snapshot.tree = last.tree;
        snapshot.parent = Some(last.id);
        snapshot.paths.clone_from(&last.paths);
        store.save(snapshot.clone())?;
        return Ok(Saved { snapshot, dumped_bytes: None, failures: Vec::new() });
    }
    let indexed = store.indexed()?;
    let known = match &last {
        Some((last, _)) => KnownFiles::of(&indexed, last)?,
        None => KnownFiles::default(),
    };
    let since = last.as_ref().map_or(AfsTime(0), |(_, earlier)| AfsTime(earlier.updated));
    let receive = |since| {
        let size = (since == AfsTime(0)).then(|| u64::try_from(info.size).unwrap_or(0) << 10);
        receive(cell, &at, since, (run.spool, bars, size))
    };
    let mut contents = Volume {
        header: Vec::new(),
        spool: receive(since)?,
        known,
        repository: indexed,
        counts: Mutex::default(),
        name: at.name.clone(),
        id: at.id,
    };
    // A server whose clock was set back may leave out what it should not.
    if since != AfsTime(0) && !contents.is_whole() {
        contents.spool = receive(AfsTime(0))?;
    }
    contents.header = header_alone(&contents.spool.header)?;
    let saved = save(store, contents, last.map(|(last, _)| last), snapshot);
    // There is another disk that may be full: the spool's.
    saved.map_err(|why| format!("the repository {}: {why}", run.place.repository))
}

/// Saves the contents of a volume. What they share with the last backup is not stored again.
fn save(
    store: &Store,
    contents: Volume,
    last: Option<&SnapshotFile>,
    snapshot: SnapshotFile,
) -> Result<Saved, String> {
    let contents = Arc::new(contents);
    let mut options = BackupOptions::default();
    match last {
        Some(last) => options.parent_opts.parents = vec![last.id.to_string()],
        None => options.parent_opts.force = true,
    }
    let source = Source(Arc::clone(&contents));
    let root = [Path::new("/").join(&contents.name)];
    let backup = || contents.repository.archive(&options, &source, snapshot, &root);
    let mut snapshot = store.holding_back(backup)?;
    let mut failures = contents.failures(&snapshot.summary.clone().unwrap_or_default());
    if last.is_some() && snapshot.parent.is_none() {
        failures.push("the last backup cannot be read: run with --full".to_owned());
    }
    if !failures.is_empty() {
        snapshot.tags.add(PARTIAL.to_owned());
    }
    store.save(snapshot.clone())?;
    Ok(Saved { snapshot, dumped_bytes: Some(contents.spool.bytes), failures })
}

/// A snapshot of nothing yet.
pub(crate) fn new_snapshot(
    cell: &str,
    label: &str,
    description: Option<String>,
    now: Duration,
) -> Result<SnapshotFile, String> {
    let time = Timestamp::from_nanosecond(now.as_nanos().cast_signed()).map_err(|error| error.to_string())?;
    let mut options = SnapshotOptions::default();
    options.host = Some(cell.to_owned());
    options.label = Some(label.to_owned());
    options.description = description;
    options.time = Some(time.to_zoned(TimeZone::UTC));
    options.command = Some("afar-backup run".to_owned());
    options.to_snapshot().map_err(|error| error.display_log())
}

/// Receives a dump into a spool. A full one has about `size` bytes.
fn receive(
    cell: &Cell,
    at: &Located,
    since: AfsTime,
    (folder, bars, size): (&Path, &Bars, Option<u64>),
) -> Result<Spool, String> {
    let mut spooling = Spooling::new(folder).map_err(|error| error.to_string())?;
    let bar = bars.bytes("dumping");
    size.into_iter().for_each(|size| bar.set_length(size));
    cell.dump(at, since, |bytes| {
        bar.inc(bytes.len() as u64);
        spooling.take(bytes)
    })?;
    bar.finish();
    spooling.end().map_err(|error| error.to_string())
}

/// A volume's header as a dump without vnodes.
fn header_alone(header: &VolumeHeader) -> Result<Vec<u8>, String> {
    let to = header.update_date;
    let dump = DumpHeader {
        volume: header.parent,
        name: header.name.clone(),
        ranges: vec![DumpRange { from: AfsTime(0), to }],
    };
    let mut bytes = Vec::new();
    let writer = Writer::new(&dump, header, &mut bytes).map_err(|error| error.to_string())?;
    writer.end(&mut bytes);
    Ok(bytes)
}

/// Writes when each of these volumes had its last whole backup, as node_exporter's textfile collector reads it; 0 for one that never had any.
pub(crate) fn write_metrics(
    store: &Store,
    cell: &str,
    volumes: &[String],
    file: &Path,
) -> Result<(), String> {
    let snapshots = store.snapshots()?;
    let mut text = String::from(
        "# HELP afar_backup_last_good_seconds The time of a volume's last whole backup, in seconds since 1970.\n\
         # TYPE afar_backup_last_good_seconds gauge\n",
    );
    for volume in BTreeSet::from_iter(volumes) {
        let last = latest_good(&snapshots, cell, volume);
        let seconds = last.map_or(0, |snapshot| snapshot.time.timestamp().as_second());
        writeln!(text, "afar_backup_last_good_seconds{{cell={cell:?},volume={volume:?}}} {seconds}")
            .expect("a string takes all");
    }
    // Readers see the old file or the new one, and another run may write its own.
    let mut part = file.as_os_str().to_owned();
    part.push(format!(".{}", std::process::id()));
    let part = PathBuf::from(part);
    std::fs::write(&part, text)
        .and_then(|()| std::fs::rename(&part, file))
        .map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::tests::place;
    use crate::state::is_good;
    use afs_dump::{VnodeAttributes, VnodeKind, VnodeRecord};
    use afs_lab::real::folder::Folder;
    use afs_wire::acl::Acl;
    use afs_wire::directory::Directory;
    use afs_wire::ids::{DataVersion, LocalFid, Uniquifier, ViceId, VnodeNumber, VolumeId};

    /// A repository, and backups of a volume "data" of a cell "cell".
    struct Lab {
        folder: Folder,
        store: Store,
    }

    fn fid(vnode: u32) -> LocalFid {
        LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(vnode) }
    }

    impl Lab {
        fn new(name: &str) -> Self {
            let folder = Folder::new(name);
            let place = place(&folder);
            place.init().expect("there is room");
            let store = place.open().expect("it was made");
            Self { folder, store }
        }

        /// A dump whose root has these names, of files that have the texts.
        fn spool(&self, names: &[(&str, u32)], files: &[(u32, &str)]) -> Spool {
            let mut out = Vec::new();
            let header = VolumeHeader {
                id: VolumeId(7),
                parent: VolumeId(7),
                name: b"data".to_vec(),
                ..Default::default()
            };
            let ranges = vec![DumpRange::default()];
            let dump = DumpHeader { volume: VolumeId(7), name: b"data".to_vec(), ranges };
            let mut writer = Writer::new(&dump, &header, &mut out).expect("it fits");
            let attributes = |kind, length: usize| VnodeAttributes {
                kind,
                link_count: 1,
                data_version: DataVersion(1),
                client_mod_time: AfsTime(1000),
                author: ViceId(1),
                owner: ViceId(1),
                group: ViceId(0),
                mode: 0o644,
                parent: VnodeNumber(1),
                server_mod_time: AfsTime(1000),
                acl: (kind == VnodeKind::Directory).then(Acl::administrators),
                length: Some(length as u64),
            };
            let entries = names.iter().map(|(name, vnode)| (name.as_bytes(), fid(*vnode)));
            let pages = Directory::build(fid(1), fid(1), entries).expect("they fit").into_bytes();
            let all = [(1, VnodeKind::Directory, &pages[..])].into_iter();
            for (vnode, kind, data) in
                all.chain(files.iter().map(|(n, text)| (*n, VnodeKind::File, text.as_bytes())))
            {
                let record = VnodeRecord { fid: fid(vnode), attributes: Some(attributes(kind, data.len())) };
                writer.vnode(&record, &mut out).expect("they are in order");
                writer.data(data, &mut out);
            }
            writer.end(&mut out);
            let mut spooling = Spooling::new(&self.folder).expect("there is room");
            // Pieces of any size.
            out.chunks(7).for_each(|piece| spooling.take(piece).expect("it is a dump"));
            spooling.end().expect("it has an end")
        }

        fn save(&self, spool: Spool, time: u64) -> Saved {
            let state = r#"{"volume":7,"server":"127.0.0.1","partition":0,"created":1,"copied":1,"updated":1,"updates":1,"taken":9}"#;
            let now = Duration::from_secs(time);
            let snapshot = new_snapshot("cell", "data", Some(state.to_owned()), now).expect("it is one");
            let snapshots = self.store.snapshots().expect("they can be read");
            let contents = Volume {
                name: "data".to_owned(),
                id: VolumeId(7),
                header: header_alone(&spool.header).expect("it fits"),
                spool,
                known: KnownFiles::default(),
                repository: self.store.indexed().expect("it can be read"),
                counts: Mutex::default(),
            };
            save(&self.store, contents, latest_good(&snapshots, "cell", "data"), snapshot)
                .expect("it is saved")
        }
    }

    #[test]
    fn an_entry_that_fails_makes_a_partial_backup_that_is_nobodys_parent() {
        let lab = Lab::new("backup-partial");
        let whole = lab.spool(&[("a", 2), ("b", 4)], &[(2, "a"), (4, "b")]);
        let good = lab.save(whole, 1);
        assert_eq!(good.failures, [""; 0]);
        let mut unreadable = lab.spool(&[("a", 2), ("b", 4)], &[(2, "A, longer"), (4, "b")]);
        unreadable.vnodes.get_mut(&2).and_then(|vnode| vnode.body.as_mut()).expect("it is there").at = 1000;
        let damaged = [
            lab.spool(&[("a", 2), ("missing", 6)], &[(2, "a")]),
            lab.spool(&[("a", 2), ("in/ner", 4)], &[(2, "a"), (4, "b")]),
            lab.spool(&[("a", 2), ("again", 1)], &[(2, "a")]),
            unreadable,
        ];
        for (n, (spool, path)) in damaged.into_iter().zip(["missing", "in/ner", "again", "a"]).enumerate() {
            let saved = lab.save(spool, 2 + n as u64);
            assert_eq!(saved.failures.len(), 1, "{:?}", saved.failures);
            assert!(saved.failures[0].starts_with(&format!("/data/{path}: ")), "{:?}", saved.failures);
            let snapshots = lab.store.snapshots().expect("they can be read");
            let last = snapshots.last().expect("it was saved");
            assert!(!is_good(last) && last.tags.contains(PARTIAL));
            assert_eq!(last.parent, Some(snapshots[0].id), "the good one");
        }
        assert_eq!(lab.save(lab.spool(&[("a", 2)], &[(2, "a")]), 9).failures, [""; 0]);
    }

    /// A dump of OpenAFS's `vos`, and what a restore of its backup gives to a server.
    #[test]
    fn a_dump_of_openafs_comes_out_of_a_repository_as_it_went_in() {
        let sample = include_bytes!("../../crates/afs-dump/tests/samples/demo.dump");
        let lab = Lab::new("backup-openafs");
        let spool = |bytes: &[u8]| {
            let mut spooling = Spooling::new(&lab.folder).expect("there is room");
            spooling.take(bytes).and_then(|()| spooling.end()).expect("it is a dump")
        };
        let saved = lab.save(spool(sample), 1);
        assert_eq!(saved.failures, [""; 0]);
        let indexed = lab.store.indexed().expect("it can be read");
        let mut again = Vec::new();
        let made = crate::to_volume::MadeDump::read(&indexed, &saved.snapshot).expect("it is whole");
        made.write(&indexed, |piece| {
            again.extend_from_slice(&piece);
            Ok(())
        })
        .expect("it is whole");
        let (before, after) = (spool(sample), spool(&again));
        assert_eq!(after.header, before.header);
        assert_eq!((before.vnodes.len(), after.vnodes.len()), (4, 4));
        for (number, vnode) in &before.vnodes {
            let same = &after.vnodes[number];
            assert_eq!(same.unique, vnode.unique);
            let (was, is) =
                (vnode.body.as_ref().expect("all is there"), same.body.as_ref().expect("all is there"));
            // A repository does not say who wrote last, nor when the server took it.
            let left_out = VnodeAttributes {
                author: was.attributes.author,
                server_mod_time: was.attributes.server_mod_time,
                ..is.attributes.clone()
            };
            assert_eq!((left_out, &is.entries), (was.attributes.clone(), &was.entries), "{number}");
            let data = |spool: &Spool, body: &crate::spool::Body| {
                let length = if body.attributes.kind == VnodeKind::Directory {
                    0
                } else {
                    body.attributes.length.unwrap_or(0)
                };
                let mut data = vec![0; length as usize];
                spool.read(body.at, &mut data).expect("it is there");
                data
            };
            assert_eq!(data(&after, is), data(&before, was), "{number}");
        }
    }

    #[test]
    fn the_spool_of_a_dump_has_no_name() {
        let lab = Lab::new("backup-spool");
        let spool = lab.spool(&[("a", 2)], &[(2, "text")]);
        let names = std::fs::read_dir(&lab.folder).expect("it is there").count();
        assert_eq!(names, 2, "the password and the repository");
        let mut text = [0; 4];
        spool.read(0, &mut text).expect("it is there");
        assert_eq!(&text, b"text");
    }
}
