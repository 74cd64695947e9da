//! `afar server` is killed again and again while clients write: what was acknowledged is there, nothing comes back that was
//! removed, the volumes are whole, the server is back within a second, and a client that held promises is told that they are off
//! and sees what is new. The server starts on the folder as the kill has left it; `afar fsck` looks at a copy of that.
//!
//! AFAR_KILLS says how often (default 5), AFAR_SEED with which seed.

use crate::mounted::{Folder, ServerProcess, our_program};
use afs_lab::cpu::cpu;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_lab::caller::{Client, Credentials, Error, FileServer, Heard};
use afs_wire::Uuid;
use afs_wire::abort::VNOVNODE;
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsFid, DataVersion, PartitionId, VolumeId};
use afs_wire::rxafs::{AfsStoreVolumeStatus, SetVolumeStatus, StoreVolumeMask};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rx_security::KeySet;

const VOLUME: VolumeId = VolumeId(536_870_912);
/// Clients that write at the same time, each in a directory of its own.
const WRITERS: usize = 4;
/// Longest file, in bytes: some are kept inside the database, some are files of their own.
const MAX_BYTES: usize = 40_000;
/// Most files of a directory.
const MAX_FILES: usize = 40;
/// The number of each writer's files that somebody else watches.
const WATCHED_FILES: usize = 6;

/// Files that are there all the time: some 10^8 bytes, of which a start should read none. How many, and of how many bytes: those
/// of the first kind are two files of data each, those of the second are kept with the metadata.
const LARGE: (usize, usize) = (45, 2_000_000);
const SMALL: (usize, usize) = (800, 12_000);
/// The number of small files that are looked at after each kill.
const SMALL_LOOKED_AT: usize = 10;

/// The time from the start of the process until it serves: by the clock in the median, and in processor time in nine of ten. What else the machine does
/// takes no processor time of the server's.
const START_MAX: Duration = Duration::from_secs(1);
/// The same by the clock at most: far more, for busy machines.
const START_MAX_ONCE: Duration = Duration::from_secs(30);
/// The time until a client is told that its promises are off: some round trips, and far more for slow machines.
const TOLD_WITHIN: Duration = Duration::from_secs(60);
/// Changes that are acknowledged before a kill, at least, and how long they may take.
const CHANGES_MIN: u64 = 15;
const CHANGES_WITHIN: Duration = Duration::from_secs(60);

/// A file as its writer knows it.
#[derive(Debug, Clone, PartialEq)]
struct File {
    name: String,
    fid: AfsFid,
    content: Content,
    version: DataVersion,
}

/// What is in a file: bytes that follow from two numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Content {
    seed: u64,
    length: usize,
}

impl Content {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        StdRng::seed_from_u64(self.seed).fill_bytes(&mut bytes);
        bytes
    }
}

/// What a writer was doing when the server died: it may be done or not.
#[derive(Debug, Clone, PartialEq)]
enum Doing {
    Nothing,
    Creating(String),
    Storing(AfsFid, Content),
    Removing(AfsFid),
    Renaming(AfsFid, String),
}

/// A writer, and all that it was told is so.
struct Writer {
    server: FileServer,
    directory: AfsFid,
    files: Vec<File>,
    removed: Vec<AfsFid>,
    doing: Doing,
    random: StdRng,
    next_name: u64,
}

impl Writer {
    /// Writes until a call fails, which is when the server dies.
    async fn write(&mut self, acknowledged: &AtomicU64, is_dead: &AtomicBool) {
        loop {
            match self.step().await {
                Ok(()) => acknowledged.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    assert!(error.code().is_none(), "the server refuses {:?}: {error}", self.doing);
                    assert!(
                        is_dead.load(Ordering::Relaxed),
                        "{:?} failed, though the server lives: {error}",
                        self.doing
                    );
                    return;
                }
            };
            self.doing = Doing::Nothing;
        }
    }

    async fn step(&mut self) -> Result<(), Error> {
        let choice = if self.files.is_empty() { 0 } else { self.random.random_range(0..10) };
        let at = self.random.random_range(0..self.files.len().max(1));
        match choice {
            0..=3 if self.files.len() < MAX_FILES => {
                let name = self.new_name();
                self.doing = Doing::Creating(name.clone());
                let made = self.server.create_file(self.directory, &name).await?;
                let content = Content { seed: 0, length: 0 };
                self.files.push(File { name, fid: made.fid, content, version: made.status.data_version });
            }
            0..=7 => {
                let length = self.random.random_range(1..MAX_BYTES);
                let content = Content { seed: self.random.random(), length };
                let fid = self.files[at].fid;
                self.doing = Doing::Storing(fid, content);
                let status = self.server.store(fid, 0, content.bytes(), length as u64).await?;
                let next = self.files[at].version.0 + 1;
                assert_eq!(status.data_version.0, next, "kernel clients take any other for somebody else's");
                (self.files[at].content, self.files[at].version) = (content, status.data_version);
            }
            8 => {
                let (fid, name) = (self.files[at].fid, self.files[at].name.clone());
                self.doing = Doing::Removing(fid);
                self.server.remove_file(self.directory, &name).await?;
                self.files.remove(at);
                self.removed.push(fid);
            }
            _ => {
                let (name, to) = (self.files[at].name.clone(), self.new_name());
                self.doing = Doing::Renaming(self.files[at].fid, to.clone());
                self.server.rename((self.directory, &name), (self.directory, &to)).await?;
                self.files[at].name = to;
            }
        }
        Ok(())
    }

    fn new_name(&mut self) -> String {
        self.next_name += 1;
        format!("file-{}", self.next_name)
    }

    /// Compares what is there with what was acknowledged, and takes over what the last call did.
    async fn verify(&mut self) {
        let pages = self.server.fetch(self.directory, 0, 1 << 24).await.unwrap();
        let pages = Directory::parse(pages).unwrap();
        assert_eq!(pages.check(), [], "the directory's pages");
        let listed = |name: &str| pages.lookup(name.as_bytes()).map(|entry| entry.fid);
        let doing = std::mem::replace(&mut self.doing, Doing::Nothing);
        let mut names = Vec::new();
        let mut kept = Vec::new();
        for mut file in std::mem::take(&mut self.files) {
            if doing == Doing::Removing(file.fid) && listed(&file.name).is_none() {
                self.removed.push(file.fid);
                continue;
            }
            if let Doing::Renaming(fid, to) = &doing
                && *fid == file.fid
                && listed(to).is_some()
            {
                file.name.clone_from(to);
            }
            assert!(listed(&file.name).is_some(), "{} is missing", file.name);
            let status = self.server.status(file.fid).await.unwrap();
            let bytes = self.server.fetch(file.fid, 0, MAX_BYTES as u64).await.unwrap();
            match doing {
                Doing::Storing(fid, content) if fid == file.fid && bytes == content.bytes() => {
                    assert_eq!(status.data_version.0, file.version.0 + 1);
                    (file.content, file.version) = (content, status.data_version);
                }
                // A store that was cut off has left nothing.
                Doing::Storing(fid, _) if fid == file.fid => {
                    assert!(bytes == file.content.bytes(), "{}: half of a store", file.name);
                    assert_eq!(status.data_version, file.version);
                }
                _ => {
                    assert!(bytes == file.content.bytes(), "{}: other bytes than were stored", file.name);
                    assert_eq!(status.data_version, file.version, "{}", file.name);
                }
            }
            assert_eq!(status.length, file.content.length as u64);
            names.push(file.name.clone());
            kept.push(file);
        }
        if let Doing::Creating(name) = doing {
            if listed(&name).is_some() {
                // Its fid was lost with the answer; it goes, so that every file there is known.
                self.server.remove_file(self.directory, &name).await.unwrap();
            }
            names.push(name);
        }
        for entry in pages.entries().filter(|entry| !entry.is_dot()) {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            assert!(names.contains(&name), "{name} was never acknowledged, or was removed");
        }
        for fid in self.removed.drain(..) {
            let error = self.server.status(fid).await.unwrap_err();
            assert_eq!(error.code(), Some(VNOVNODE.0), "{fid} was removed: {error}");
        }
        self.files = kept;
    }
}

/// What a client keeps of a file for as long as it was promised to hear of changes.
#[derive(Debug, Clone, PartialEq)]
struct Kept {
    version: DataVersion,
    bytes: Vec<u8>,
}

/// A client that keeps what it has read until it hears that it is old.
struct Watcher {
    client: Client,
    server: FileServer,
    kept: BTreeMap<AfsFid, Kept>,
}

impl Watcher {
    /// Does what servers have asked for, and says what that was.
    fn listen(&mut self) -> Vec<Heard> {
        let all = self.client.take_heard();
        for heard in &all {
            match heard {
                Heard::Broken(fids) => self.kept.retain(|fid, _| !fids.contains(fid)),
                Heard::ForgetAll(_) => self.kept.clear(),
                Heard::Probe | Heard::WhoAreYou => {}
            }
        }
        all
    }

    /// Fetches something, and keeps it if it was not said to be old on its way.
    async fn look(&mut self, fid: AfsFid) -> Result<Kept, Error> {
        self.listen();
        let mut bytes = Vec::new();
        let take = |piece: bytes::Bytes| bytes.extend_from_slice(&piece);
        let (_, status) = self.server.fetch_pieces(fid, 0, 1 << 24, take).await?;
        let kept = Kept { version: status.data_version, bytes };
        let is_old = self.listen().iter().any(|heard| match heard {
            Heard::Broken(fids) => fids.contains(&fid),
            Heard::ForgetAll(_) => true,
            Heard::Probe | Heard::WhoAreYou => false,
        });
        if !is_old {
            self.kept.insert(fid, kept.clone());
        }
        Ok(kept)
    }

    /// The same, and again if it may not keep it: who is new to a server is told so.
    async fn keep(&mut self, fid: AfsFid) -> Kept {
        let mut kept = self.look(fid).await.unwrap();
        while !self.kept.contains_key(&fid) {
            kept = self.look(fid).await.unwrap();
        }
        kept
    }

    /// Fetches these anew whenever they have changed, until the server dies.
    async fn watch(&mut self, mut fids: Vec<AfsFid>, is_dead: &AtomicBool) {
        while !is_dead.load(Ordering::Relaxed) {
            self.listen();
            let Some(&fid) = fids.iter().find(|fid| !self.kept.contains_key(fid)) else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            match self.look(fid).await {
                Ok(_) => {}
                Err(error) if error.code() == Some(VNOVNODE.0) => fids.retain(|other| *other != fid),
                Err(error) => {
                    assert!(error.code().is_none(), "the server refuses {fid}: {error}");
                    assert!(
                        is_dead.load(Ordering::Relaxed),
                        "{fid}: the server lives, and says nothing: {error}"
                    );
                }
            }
        }
    }

    /// Nobody was told that a file was stored before this client had heard of it: what it still keeps is not older.
    fn keeps_nothing_old(&mut self, writers: &[(Client, Writer)]) {
        self.listen();
        for file in files_of(writers) {
            let Some(kept) = self.kept.get(&file.fid) else { continue };
            assert!(
                kept.version >= file.version,
                "{}: its writer was told of {:?}, who watches it not: {:?}",
                file.name,
                file.version,
                kept.version
            );
            if kept.version == file.version {
                assert!(kept.bytes == file.content.bytes(), "{}: other bytes of the same version", file.name);
            }
        }
    }
}

fn files_of(writers: &[(Client, Writer)]) -> impl Iterator<Item = &File> {
    writers.iter().flat_map(|(_, writer)| &writer.files)
}

/// Files that nobody changes.
struct Lasting {
    server: FileServer,
    large: Vec<(AfsFid, Content)>,
    small: Vec<(AfsFid, Content)>,
}

impl Lasting {
    async fn make(server: FileServer, root: AfsFid) -> Self {
        let directory = server.make_dir(root, "lasting").await.unwrap().fid;
        let (mut large, mut small) = (Vec::new(), Vec::new());
        for (of, (count, length)) in [(&mut large, LARGE), (&mut small, SMALL)] {
            for number in 0..count {
                let made = server.create_file(directory, &format!("{length}-{number}")).await.unwrap();
                let content = Content { seed: (length + number) as u64, length };
                server.store(made.fid, 0, content.bytes(), length as u64).await.unwrap();
                of.push((made.fid, content));
            }
        }
        Self { server, large, small }
    }

    /// Looks at one of the large ones and some of the small ones.
    async fn verify_some(&self, random: &mut StdRng) {
        self.verify(&self.large[random.random_range(0..self.large.len())]).await;
        for _ in 0..SMALL_LOOKED_AT {
            self.verify(&self.small[random.random_range(0..self.small.len())]).await;
        }
    }

    async fn verify_all(&self) {
        for file in self.large.iter().chain(&self.small) {
            self.verify(file).await;
        }
    }

    async fn verify(&self, (fid, content): &(AfsFid, Content)) {
        let bytes = self.server.fetch(*fid, 0, content.length as u64 + 1).await.unwrap();
        assert!(bytes == content.bytes(), "{fid}, which nobody has changed, has other bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kill_after_kill() {
    let _cpu = cpu();
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (kills, seed) = (number("AFAR_KILLS").unwrap_or(5), number("AFAR_SEED").unwrap_or(1));
    println!("{kills} kills, seed {seed}");
    let state = Folder::new("killed");
    let mut server = ServerProcess::start(&state, &["--cell", "killed.test"]);
    let address = server.address;
    let uuid = uuid_of_server(&state);
    let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
    let admin = Credentials::user("admin", "killed.test", &keys).unwrap();
    let client = || Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let first = client();
    first
        .volume_server(address, &Credentials::superuser(&keys).unwrap())
        .create(PartitionId(0), "killed", VOLUME)
        .await
        .unwrap();
    let root = AfsFid::root_of(VOLUME);
    let files = first.file_server(address, &admin);
    has_no_quota(&files).await;
    let lasting = Lasting::make(files, root).await;
    let mut random = StdRng::seed_from_u64(seed);
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let client = client();
        let server = client.file_server(address, &admin);
        let directory = server.make_dir(root, &format!("writer-{number}")).await.unwrap().fid;
        let random = StdRng::seed_from_u64(random.random());
        let (files, removed) = (Vec::new(), Vec::new());
        let writer =
            Writer { server, directory, files, removed, doing: Doing::Nothing, random, next_name: 0 };
        writers.push((client, writer));
    }
    let client = client();
    let mut watcher = Watcher { server: client.file_server(address, &admin), client, kept: BTreeMap::new() };
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut yardstick = Vec::new();
    let (mut starts, mut efforts, mut promises, mut untold) = (Vec::new(), Vec::new(), 0, 0);
    for kill in 0..kills {
        let enough = acknowledged.load(Ordering::Relaxed) + CHANGES_MIN;
        let before = watcher.keep(root).await;
        let watched = writers.iter().flat_map(|(_, writer)| writer.files.iter().take(WATCHED_FILES));
        let watched: Vec<AfsFid> = watched.map(|file| file.fid).collect();
        let is_dead = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (client, mut writer) in writers.drain(..) {
            let (acknowledged, is_dead) = (Arc::clone(&acknowledged), Arc::clone(&is_dead));
            tasks.push(tokio::spawn(async move {
                writer.write(&acknowledged, &is_dead).await;
                (client, writer)
            }));
        }
        let watching = tokio::spawn({
            let is_dead = Arc::clone(&is_dead);
            async move {
                watcher.watch(watched, &is_dead).await;
                watcher
            }
        });
        let begun = Instant::now();
        tokio::time::sleep(Duration::from_millis(random.random_range(20..200))).await;
        while acknowledged.load(Ordering::Relaxed) < enough && begun.elapsed() < CHANGES_WITHIN {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        is_dead.store(true, Ordering::Relaxed);
        server.kill();
        for task in tasks {
            writers.push(task.await.unwrap());
        }
        watcher = watching.await.unwrap();
        watcher.keeps_nothing_old(&writers);
        let kept = watcher.kept.clone();
        assert!(kept.contains_key(&root), "kill {kill}: it holds a promise for the root");

        let left = copy_of_partition(&state);
        yardstick.push(start_of_a_program());
        let begun = Instant::now();
        server = ServerProcess::start_at(&state, address, &[]);
        starts.push(begun.elapsed());
        efforts.push(processor_time(server.pid()));
        // It has not called since: the server knows from before whom to tell.
        assert!(
            watcher.client.hears(TOLD_WITHIN, |heard| *heard == Heard::ForgetAll(Some(uuid))).await,
            "kill {kill}: a client that held promises was not told that they are off: {:?}",
            watcher.client.heard()
        );
        let fsck = start_fsck(&left);
        assert_eq!(watcher.look(root).await.unwrap(), before, "kill {kill}: nobody has changed the root");
        for (_, writer) in &mut writers {
            writer.verify().await;
        }
        for file in files_of(&writers).filter(|file| kept.contains_key(&file.fid)) {
            let now = watcher.look(file.fid).await.unwrap();
            assert!(now.bytes == file.content.bytes(), "kill {kill}: {}: old or other bytes", file.name);
            assert_eq!(now.version, file.version, "kill {kill}: {}", file.name);
            promises += 1;
            untold += u64::from(kept[&file.fid].version < now.version);
        }
        lasting.verify_some(&mut random).await;
        check(fsck, kill);
    }
    lasting.verify_all().await;
    starts.sort();
    efforts.sort();
    yardstick.sort();
    let usual = yardstick[yardstick.len() / 2];
    let (median, longest) = (starts[starts.len() / 2], starts[starts.len() - 1]);
    let (effort, largest) = (efforts[(efforts.len() - 1) * 9 / 10], efforts[efforts.len() - 1]);
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    println!(
        "{acknowledged} changes acknowledged; starts took {median:?} in the median, {longest:?} at most, and {effort:?} of a processor in \
         nine of ten, {largest:?} at most; {promises} promises for files of writers were held at a kill, of which {untold} files had \
         changed and nobody had been told"
    );
    assert!(acknowledged > kills * 10, "too little was written for this to mean anything");
    assert!(promises > kills, "too little was watched for this to mean anything");
    // Where a program that does nothing takes long to start, so may a server.
    let is_soon = median < START_MAX + 10 * usual && longest < START_MAX_ONCE;
    let is_cheap = effort < START_MAX && largest < 5 * START_MAX;
    assert!(
        is_soon && is_cheap,
        "a server is back within a second: {starts:?}, {efforts:?} of a processor, where a program starts in {usual:?}"
    );
}

/// How long the same program takes that only says how it is used.
fn start_of_a_program() -> Duration {
    let begun = Instant::now();
    let output = our_program().arg("help").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    begun.elapsed()
}

/// The processor time that a process has taken, in steps of 10 ms.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Behind its name, which may have spaces, the 12th field is the time in the program and the 13th that in the kernel.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// Lets the volume have as much as there is room for.
async fn has_no_quota(files: &FileServer) {
    let status = AfsStoreVolumeStatus { mask: StoreVolumeMask::MAX_QUOTA, min_quota: 0, max_quota: 0 };
    let (name, offline_message, motd) = Default::default();
    files.rpc(&SetVolumeStatus { volume: VOLUME, status, name, offline_message, motd }).await.unwrap();
}

/// The UUID in the state folder's `sysid`: behind two words, in the machine's own byte order.
fn uuid_of_server(state: &Folder) -> Uuid {
    let bytes = std::fs::read(state.path().join("sysid")).unwrap();
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    Uuid {
        time_low: u32::from_ne_bytes(bytes[8..12].try_into().unwrap()),
        time_mid: half(12),
        time_hi_and_version: half(14),
        clock_seq_hi_and_reserved: bytes[16],
        clock_seq_low: bytes[17],
        node: bytes[18..24].try_into().unwrap(),
    }
}

/// A copy of the partition as it is now. Opening one changes what is at its top, not what is in the files of data.
fn copy_of_partition(state: &Folder) -> Folder {
    let copy = Folder::new("killed-copy");
    let script = "cd \"$0/vicepa\" && for name in *; do \
                  if [ -d \"$name\" ]; then cp -al \"$name\" \"$1\"; else cp -a \"$name\" \"$1\"; fi || exit; done";
    let status = Command::new("sh").args(["-c", script]).args([state.path(), copy.path()]).status().unwrap();
    assert!(status.success());
    copy
}

/// Starts `afar fsck` on a folder.
fn start_fsck(folder: &Folder) -> Child {
    let mut command = our_program();
    command.arg("fsck").arg(folder.path()).arg("-json").stdout(Stdio::piped()).stdin(Stdio::null());
    command.spawn().unwrap()
}

/// It has found nothing wrong.
fn check(fsck: Child, kill: u64) {
    let output = fsck.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "kill {kill}: {said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&report["clean"], &report["volumes"]), (&true.into(), &1.into()), "kill {kill}: {said}");
    let least = (LARGE.0 + SMALL.0 + WRITERS) as u64;
    assert!(report["vnodes"].as_u64().unwrap() > least, "kill {kill}: {said}");
}
