//! What a clone costs, counted at the disk: the same for a small volume and for a large one.

use afs_volume::disk::{Disk, DiskFile, SimulatedDisk};
use afs_volume::{Config, NewClone, NewVolume, Partition, SetStatus, Stamp, VnodeId, VolumeKind};
use afs_wire::ids::{AfsTime, ViceId, VolumeId};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const VOLUME: VolumeId = VolumeId(536_870_912);
const CLONE: VolumeId = VolumeId(536_870_913);

/// Bytes that a clone may write more in one volume than in another: numbers in rows are longer, and a page of the tree may
/// be written once more.
const SLACK_BYTES: u64 = 8192;

/// What was asked of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Work {
    operations: u64,
    read: u64,
    written: u64,
}

#[derive(Debug, Clone)]
struct CountingDisk {
    disk: SimulatedDisk,
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

#[derive(Debug)]
struct CountingFile {
    file: Arc<dyn DiskFile>,
    of: CountingDisk,
}

impl CountingDisk {
    fn new() -> Self {
        Self { disk: SimulatedDisk::new(1 << 30), read: Arc::default(), written: Arc::default() }
    }

    fn work(&self) -> Work {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Work { operations: self.disk.operations(), read: of(&self.read), written: of(&self.written) }
    }

    fn counted(&self, file: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(CountingFile { file: file?, of: self.clone() }))
    }
}

impl Disk for CountingDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.counted(self.disk.open(name))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.counted(self.disk.create(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk.list(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.disk.sync_folder(folder)
    }

    fn sync_files(&self, names: &[String]) -> io::Result<()> {
        self.disk.sync_files(names)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.sync_all()
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        self.disk.space()
    }

    fn boot(&self) -> io::Result<String> {
        self.disk.boot()
    }
}

impl DiskFile for CountingFile {
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(position, out)?;
        self.of.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.of.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.file.write_at(position, bytes)
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_length(length)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        self.file.reserve(length)
    }

    fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        self.file.punch(position, length)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// What cloning a volume of so many files asks of the disk, first and again, and what making a file in it does meanwhile.
fn cost_of_cloning(files: usize) -> [Work; 3] {
    let disk = CountingDisk::new();
    let config = Config { reserve_kib: 0, has_thread: false, ..Config::default() };
    let partition = Partition::open_on(Arc::new(disk.clone()), Path::new("/vicepa"), config).unwrap();
    let stamp = Stamp { who: ViceId::ANONYMOUS, now: AfsTime(1_700_000_000) };
    let new = NewVolume {
        id: VOLUME,
        name: "large".to_owned(),
        kind: VolumeKind::ReadWrite,
        parent: VOLUME,
        max_quota_kib: 0,
        with_root: true,
    };
    let volume = partition.create_volume(&new, stamp).unwrap();
    volume.change_info(|info| (info.in_service, info.destroy_me) = (true, false)).unwrap();
    let (set, mut directory) = (SetStatus::default(), VnodeId::ROOT);
    for number in 0..files {
        // A directory is not to be full, nor its pages to be what is measured.
        if number % 1000 == 999 {
            let name = format!("dir{number}");
            directory = volume.make_dir(VnodeId::ROOT, name.as_bytes(), &set, stamp).unwrap().vnode.id;
        }
        volume.create_file(directory, format!("f{number}").as_bytes(), &set, stamp).unwrap();
    }
    // What was put off until now is not to count for the clone.
    partition.sync().unwrap();
    let measure = |work: &dyn Fn()| {
        let before = disk.work();
        work();
        partition.sync().unwrap();
        let Work { operations, read, written } = disk.work();
        Work {
            operations: operations - before.operations,
            read: read - before.read,
            written: written - before.written,
        }
    };
    let clone = NewClone { id: CLONE, name: "large.readonly".to_owned(), kind: VolumeKind::ReadOnly };
    let first = measure(&|| drop(partition.clone_volume(VOLUME, &clone, stamp).unwrap()));
    let change = measure(&|| {
        volume.create_file(VnodeId::ROOT, b"new", &set, stamp).unwrap();
    });
    let again = measure(&|| drop(partition.reclone_volume(VOLUME, CLONE, stamp).unwrap()));
    [first, change, again]
}

#[test]
fn a_clone_of_ten_thousand_vnodes_costs_what_one_of_ten_does() {
    let (small, large) = (cost_of_cloning(10), cost_of_cloning(10_000));
    println!("10: {small:?}\n10,000: {large:?}");
    for (small, large) in small.iter().zip(&large) {
        assert!(small.operations > 0 && small.written > 0, "nothing was counted: {small:?}");
        assert!(large.operations <= small.operations + 2, "{large:?} instead of {small:?}");
        assert!(large.written <= small.written + SLACK_BYTES, "{large:?} instead of {small:?}");
        assert!(large.read <= small.read + SLACK_BYTES, "{large:?} instead of {small:?}");
    }
}
