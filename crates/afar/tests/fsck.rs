//! `afar fsck` on folders: what it prints and how it ends. What it finds and repairs is `afs_volume`'s, and tested there kind by kind.

use crate::mounted::our_program;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use afs_lab::real::folder::Folder;
use afs_volume::{Config, NewVolume, Partition, SetStatus, Stamp, StoreRange, VnodeId, VolumeKind};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};

/// A partition with a volume in it, whose file "f" has two chunks.
struct Served(Folder);

impl Served {
    fn new() -> Self {
        let folder = Folder::new("fsck");
        let partition = Partition::open(&folder, Config { log_bytes: 1 << 20, ..Config::default() }).unwrap();
        let new = NewVolume {
            id: VolumeId(536_870_915),
            name: "user.x".to_owned(),
            kind: VolumeKind::ReadWrite,
            parent: VolumeId(0),
            max_quota_kib: 0,
            with_root: true,
        };
        let (stamp, set) = (Stamp { who: ViceId(1), now: AfsTime(1) }, SetStatus::default());
        let volume = partition.create_volume(&new, stamp).unwrap();
        volume.change_info(|info| (info.in_service, info.destroy_me) = (true, false)).unwrap();
        let file = volume.create_file(VnodeId::ROOT, b"f", &set, stamp).unwrap().vnode.id;
        let range = StoreRange { position: 0, length: 1_500_000, file_length: 1_500_000 };
        let mut store = volume.begin_store(file, range).unwrap();
        store.write(&vec![1; 1_500_000]).unwrap();
        store.commit(&set, stamp, false).unwrap();
        Self(folder)
    }

    /// The files with the data, in order.
    fn data(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.0.join("data")).unwrap();
        let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    fn fsck(&self, more: &[&str]) -> Output {
        fsck(&self.0, more)
    }

    /// What it says of a partition in which something is wrong.
    fn says(&self) -> String {
        let output = self.fsck(&[]);
        assert_eq!(output.status.code(), Some(1), "something is wrong");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn fsck(folder: &Path, more: &[&str]) -> Output {
    our_program().arg("fsck").arg(folder).args(more).output().unwrap()
}

#[test]
fn a_whole_partition_is_said_to_be_whole() {
    let folder = Served::new();
    let output = folder.fsck(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("1 volume") && said.contains("2 vnodes"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&folder.fsck(&["-json"]).stdout).unwrap();
    assert_eq!((&json["clean"], &json["volumes"], &json["data_files"]), (&true.into(), &1.into(), &2.into()));
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_is_a_failure() {
    let folder = Served::new();
    let [first, second] = &folder.data()[..] else { panic!("two chunks") };
    let name = |path: &Path| path.strip_prefix(&folder.0).unwrap().display().to_string();
    fs::remove_file(first).unwrap();
    fs::File::options().write(true).open(second).unwrap().set_len(5).unwrap();
    let stray = folder.0.join("data/00000000/core");
    fs::write(&stray, "x").unwrap();
    let said = folder.says();
    for expected in [
        format!("volume 536870915: vnode 2: {} is not there", name(first)),
        format!("volume 536870915: vnode 2: {} has 5 bytes, and should have 451424", name(second)),
        "data/00000000/core: is no file of ours".to_owned(),
    ] {
        assert!(said.lines().any(|line| line == expected), "{expected} in:\n{said}");
    }
    let output = folder.fsck(&["-json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["clean"], json["findings"].as_array().unwrap().len()), (&false.into(), 3));
    assert_eq!(json["findings"][0]["volume"], 536_870_915);
}

#[test]
fn a_partition_that_is_served_or_is_none_is_not_looked_at() {
    let folder = Served::new();
    let open = Partition::open(&folder.0, Config::default()).unwrap();
    let output = folder.fsck(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("cannot open the partition"), "{said}");
    drop(open);
    let other = Folder::new("fsck-other");
    let output = fsck(&other, &["-repair"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("this is no partition"), "{said}");
    assert!(files(&other).is_empty(), "nothing is made there");
    let output = fsck(Path::new("/nowhere"), &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("/nowhere"), "{said}");
}

/// All files of a folder, and what is in them.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            _ = found.insert(path.clone(), fs::read(path).unwrap())
        }
    }
    found
}

/// What a dump has of each vnode: its number, and its data.
fn read(dump: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let (mut reader, mut input) = (afs_dump::Reader::new(), dump);
    let (mut found, mut last) = (BTreeMap::new(), 0);
    while let Some(event) = reader.next(&mut input).unwrap() {
        match event {
            afs_dump::Event::Vnode(record) => {
                last = record.fid.vnode.0;
                found.insert(last, Vec::new());
            }
            afs_dump::Event::Data(data) => found.get_mut(&last).unwrap().extend_from_slice(data),
            afs_dump::Event::Dump(_) | afs_dump::Event::Volume(_) | afs_dump::Event::End => {}
        }
    }
    reader.finish().unwrap();
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_repair_is_said_before_done_after_and_taken_back_with_its_file() {
    let folder = Served::new();
    let stray = folder.0.join("data/00000000/core");
    fs::write(&stray, "x").unwrap();
    let before = files(&folder.0);
    let said = "data/00000000/core: moves it to orphans/00000000.core: no row names it\n";
    let would = folder.fsck(&["-repair", "-n"]);
    assert!(would.status.success(), "{would:?}");
    assert!(text(&would.stdout).starts_with(&format!("{said}nothing was changed\n")), "{would:?}");
    assert!(files(&folder.0) == before, "-n changes nothing");

    let kept = folder.0.join("kept");
    let done = folder.fsck(&["-repair", "-keep", kept.to_str().unwrap()]);
    assert!(done.status.success() && text(&done.stdout).starts_with(said), "{done:?}");
    assert!(text(&done.stdout).contains(&format!("-undo {}' takes it back", kept.display())), "{done:?}");
    assert!(!stray.exists() && folder.0.join("orphans/00000000.core").exists());
    let again = folder.fsck(&["-repair"]);
    assert!(
        again.status.success() && text(&again.stdout).starts_with("there is nothing to repair\n"),
        "{again:?}"
    );
    let undone = folder.fsck(&["-undo", kept.to_str().unwrap()]);
    assert_eq!(text(&undone.stdout), "took back 0 rows and 1 files of data\n", "{undone:?}");
    assert_eq!(fs::read(&stray).unwrap(), b"x");
    assert!(folder.says().contains("data/00000000/core: is no file of ours"));
}

#[test]
fn a_dump_of_a_volume_is_written_without_its_server_and_changes_nothing() {
    let folder = Served::new();
    let before = files(&folder.0);
    let path = std::env::temp_dir().join(format!("afar-fsck-dump-{}", std::process::id()));
    for name in ["user.x", "536870915"] {
        let output = folder.fsck(&["-dump", name, "-file", path.to_str().unwrap()]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let found = read(&fs::read(&path).unwrap());
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert!(found[&2] == vec![1; 1_500_000]);
    }
    fs::remove_file(path).unwrap();
    let output = folder.fsck(&["-dump", "user.y"]);
    assert!(
        !output.status.success() && text(&output.stderr).contains("user.y: the partition has no such volume"),
        "{output:?}"
    );
    assert!(files(&folder.0) == before);
}

#[test]
fn data_that_are_lost_are_zeros_in_the_dump_and_are_listed() {
    let folder = Served::new();
    let [first, second] = &folder.data()[..] else { panic!("two chunks") };
    fs::remove_file(first).unwrap();
    fs::File::options().write(true).open(second).unwrap().set_len(10_000).unwrap();
    let output = folder.fsck(&["-dump", "user.x"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let mut expected = vec![0; 1_500_000];
    expected[1 << 20..(1 << 20) + 8192].fill(1);
    assert!(read(&output.stdout)[&2] == expected);
    let said = text(&output.stderr);
    for place in ["0 to 1048576", "1056768 to 1500000"] {
        let line = format!("lost: volume 536870915: /f: bytes {place} are zeros");
        assert!(said.lines().any(|said| said == line), "{line}\n{said}");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let folder = Served::new();
    for (options, why) in [
        (&["-n"][..], "-n is for -repair"),
        (&["-file", "x"], "-file is for -dump"),
        (&["-repair", "-dump", "user.x"], "-repair and -dump do not go together"),
        (&["-json", "-dump", "user.x"], "-json is for checks and -repair"),
    ] {
        let output = folder.fsck(options);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(why), "{output:?}");
    }
}
