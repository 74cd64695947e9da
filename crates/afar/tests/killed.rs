//! `afar server` is killed again and again while clients write: what was acknowledged is there, nothing comes back that was
//! removed, the volumes are whole, the server is back at once, and clients are told that their promises are off.
//!
//! AFAR_KILLS says how often (default 50), AFAR_SEED with which seed.

mod server_process;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afs_testclient::{Client, Error, FileServer, Heard, Who};
use afs_volume::{Partition, fsck};
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsFid, DataVersion, PartitionId, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rx_security::KeySet;
use server_process::{ServerProcess, StateFolder};

const VOLUME: VolumeId = VolumeId(536_870_912);
/// Clients that write at the same time, each in a directory of its own.
const WRITERS: usize = 4;
/// Longest file, in bytes: some are kept inside the database, some are files of their own.
const MAX_BYTES: usize = 40_000;
/// Most files of a directory.
const MAX_FILES: usize = 40;

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
                assert!(status.data_version > self.files[at].version, "a version is used twice");
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
                    assert!(status.data_version > file.version);
                    (file.content, file.version) = (content, status.data_version);
                }
                // A store that was cut off may have left a version behind, never other bytes under the old one.
                Doing::Storing(fid, _) if fid == file.fid => {
                    assert!(bytes == file.content.bytes(), "{}: half of a store", file.name);
                    assert!(status.data_version >= file.version);
                    file.version = status.data_version;
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
            assert_eq!(error.code(), Some(afs_wire::abort::VNOVNODE.0), "{fid} was removed: {error}");
        }
        self.files = kept;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_kill_after_kill() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (kills, seed) = (number("AFAR_KILLS").unwrap_or(50), number("AFAR_SEED").unwrap_or(1));
    println!("{kills} kills, seed {seed}");
    let state = StateFolder::new("killed");
    let mut server = ServerProcess::start(&state, &["--cell", "killed.test"]);
    let address = server.address;
    let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
    let admin = Who::user("admin", "killed.test", &keys).unwrap();
    let client = || Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let (first, watcher) = (client(), client());
    first
        .volume_server(address, &Who::superuser(&keys).unwrap())
        .create(PartitionId(0), "killed", VOLUME)
        .await
        .unwrap();
    let root = AfsFid::root_of(VOLUME);
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
    let watched = watcher.file_server(address, &admin);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut starts = Vec::new();
    for kill in 0..kills {
        let before = watched.status(root).await.unwrap();
        watcher.take_heard();
        let is_dead = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for (client, mut writer) in writers.drain(..) {
            let (acknowledged, is_dead) = (Arc::clone(&acknowledged), Arc::clone(&is_dead));
            tasks.push(tokio::spawn(async move {
                writer.write(&acknowledged, &is_dead).await;
                (client, writer)
            }));
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(20..200))).await;
        is_dead.store(true, Ordering::Relaxed);
        server.kill();
        for task in tasks {
            writers.push(task.await.unwrap());
        }
        check_partition(&state, kill);

        let begun = Instant::now();
        server = ServerProcess::start_at(&state, address, &[]);
        starts.push(begun.elapsed());
        let after = watched.status(root).await.unwrap();
        assert!(
            watcher.hears(Duration::from_secs(5), |heard| matches!(heard, Heard::ForgetAll(_))).await,
            "kill {kill}: a client that held a promise was not told that it is off"
        );
        assert_eq!(after.data_version, before.data_version);
        for (_, writer) in &mut writers {
            writer.verify().await;
        }
    }
    starts.sort();
    let (median, longest) = (starts[starts.len() / 2], starts[starts.len() - 1]);
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    println!(
        "{acknowledged} changes acknowledged; starts took {median:?} in the median, {longest:?} at most"
    );
    assert!(acknowledged > kills * 10, "too little was written for this to mean anything");
    assert!(median < Duration::from_secs(1), "a server is back within a second");
}

/// What `afar fsck` says of the partition.
fn check_partition(state: &StateFolder, kill: u64) {
    let partition = Partition::open(&state.path().join("vicepa"), afs_volume::Config::default()).unwrap();
    let report = fsck::check(&partition).unwrap();
    assert!(report.findings.is_empty(), "kill {kill}: {:?}", report.findings);
    assert!(report.volumes >= 1 && report.vnodes >= 1, "{report:?}");
}
