//! A file system of one directory, mounted: what the kernel asks, what it keeps, what it forgets when it is told, and that a call that
//! waits can be given up.

use afs_lab::real::folder::Folder;
use afs_lab::skipped::skip;
use afs_lab::until;
use fuse_dev::{
    Attributes, Entries, Entry, Features, Handle, Handler, Kind, MountOptions, Mounted, NodeId, OpenFlags,
    Operation, Reply, Request, Session, Settings, Unique,
};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

const HOUR: Duration = Duration::from_secs(3600);

/// `/greeting`, whose text changes, and `/never`, which is not answered until the caller gives up.
#[derive(Default)]
struct Small {
    version: AtomicU32,
    lookups: AtomicU32,
    reads: AtomicU32,
    forgotten: AtomicU64,
    waiting: Mutex<HashMap<Unique, Reply>>,
}

impl Small {
    fn text(&self) -> String {
        format!("hello {}\n", self.version.load(Ordering::SeqCst))
    }

    fn attributes(&self, node: NodeId) -> Attributes {
        let (kind, size) = match node {
            NodeId::ROOT => (Kind::Directory, 0),
            _ => (Kind::File, self.text().len() as u64),
        };
        Attributes {
            inode: node.0 + 1000,
            size,
            blocks: 1,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH + Duration::from_secs(7),
            ctime: UNIX_EPOCH,
            kind,
            permissions: if kind == Kind::File { 0o644 } else { 0o755 },
            links: 1,
            uid: 0,
            gid: 0,
            block_size: 4096,
        }
    }
}

impl Handler for Small {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        match request.operation {
            Operation::Lookup { name } if name == "greeting" => {
                self.lookups.fetch_add(1, Ordering::SeqCst);
                let attributes = self.attributes(NodeId(2));
                reply.entry(&Entry { node: NodeId(2), attributes, name_ttl: HOUR, attributes_ttl: HOUR });
            }
            Operation::Lookup { name } if name == "never" => {
                self.waiting.lock().unwrap().insert(request.unique, reply);
            }
            Operation::Lookup { .. } => {
                self.lookups.fetch_add(1, Ordering::SeqCst);
                reply.no_entry(HOUR);
            }
            Operation::Interrupt { request } => match self.waiting.lock().unwrap().remove(&request) {
                Some(waiting) => {
                    waiting.error(libc::EINTR);
                    reply.nothing();
                }
                None => reply.error(libc::EAGAIN),
            },
            Operation::GetAttributes { .. } => reply.attributes(&self.attributes(request.node), HOUR),
            Operation::Open { .. } => drop(reply.opened(Handle(1), OpenFlags::KEEP_CACHE)),
            Operation::OpenDirectory { .. } => drop(reply.opened(Handle(2), OpenFlags::NONE)),
            Operation::Read { pos, length, .. } => {
                self.reads.fetch_add(1, Ordering::SeqCst);
                let text = self.text().into_bytes();
                let from = (pos as usize).min(text.len());
                reply.data(&text[from..text.len().min(from + length as usize)]);
            }
            Operation::ReadDirectory { pos, room, .. } => {
                let mut entries = Entries::new(room);
                let all = [(".", 1), ("..", 1), ("greeting", 2)];
                for (at, (name, node)) in all.iter().enumerate().skip(pos as usize) {
                    let kind = self.attributes(NodeId(*node)).kind;
                    if !entries.add(node + 1000, at as u64 + 1, Some(kind), OsStr::new(name)) {
                        break;
                    }
                }
                reply.entries(&entries);
            }
            Operation::Release { .. } | Operation::ReleaseDirectory { .. } | Operation::Flush { .. } => {
                reply.ok()
            }
            Operation::Forget { lookups } => {
                self.forgotten.fetch_add(lookups, Ordering::SeqCst);
                reply.nothing();
            }
            Operation::BatchForget(nodes) => {
                self.forgotten.fetch_add(nodes.map(|(_, lookups)| lookups).sum(), Ordering::SeqCst);
                reply.nothing();
            }
            _ => reply.error(libc::ENOSYS),
        }
    }
}

struct Test {
    // Before the folder in which it is mounted.
    mounted: Option<Mounted>,
    path: Folder,
    session: Option<Session>,
    fs: Arc<Small>,
}

impl Test {
    /// `None`: nothing can be mounted here.
    fn new(name: &str) -> Option<Self> {
        let path = Folder::new(name);
        let options =
            MountOptions { source: "a, source".to_owned(), kind: "small".to_owned(), allow_other: false };
        let mounted = match Mounted::mount(&path, &options) {
            Ok(mounted) => mounted,
            Err(error) => {
                skip(&format!("fuse-dev/{name}"), &error.to_string());
                return None;
            }
        };
        let settings = Settings {
            features: Features::ASYNC_READ.and(Features::PARALLEL_DIROPS),
            write_max_bytes: 128 << 10,
            read_ahead_bytes: 128 << 10,
            background_max: 12,
            stack_depth: 1,
        };
        let fs = Arc::new(Small::default());
        let of = Arc::clone(&fs);
        let session = Session::start(Arc::clone(mounted.device()), &settings, 2, |_, _| of).unwrap();
        Some(Self { path, mounted: Some(mounted), session: Some(session), fs })
    }

    fn end(mut self) {
        assert!(self.mounted.take().unwrap().unmount().unwrap(), "nobody uses it");
        self.session.take().unwrap().wait().unwrap();
    }
}

fn stat(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.ino())
}

#[test]
fn a_mount_is_read_kept_and_forgotten_when_told() {
    let Some(test) = Test::new("read") else { return };
    let (file, fs) = (test.path.join("greeting"), &test.fs);
    let names: Vec<_> = fs::read_dir(&test.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["greeting"]);
    for _ in 0..5 {
        assert_eq!(fs::read_to_string(&file).unwrap(), "hello 0\n");
    }
    assert_eq!(stat(&file), Some(1002), "the inode number is not the node's id");
    assert_eq!((fs.lookups.load(Ordering::SeqCst), fs.reads.load(Ordering::SeqCst)), (1, 1));
    // What the kernel has stays until it is told.
    fs.version.store(1, Ordering::SeqCst);
    assert_eq!(fs::read_to_string(&file).unwrap(), "hello 0\n");
    let notifier = test.session.as_ref().unwrap().notifier();
    notifier.forget_data(NodeId(2)).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "hello 1\n");
    assert_eq!(fs.lookups.load(Ordering::SeqCst), 1, "the name was not forgotten");
    notifier.forget_name(NodeId::ROOT, OsStr::new("greeting")).unwrap();
    assert_eq!(stat(&file), Some(1002));
    assert_eq!(fs.lookups.load(Ordering::SeqCst), 2);
    // A name that is not there is kept as well.
    assert_eq!((stat(&test.path.join("x")), stat(&test.path.join("x"))), (None, None));
    assert_eq!(fs.lookups.load(Ordering::SeqCst), 3);
    notifier.forget_name(NodeId(77), OsStr::new("of a node that is not there")).unwrap();
    test.end();
}

#[test]
fn a_node_that_nobody_uses_is_let_go_when_told() {
    let Some(test) = Test::new("pruned") else { return };
    let (file, fs) = (test.path.join("greeting"), &test.fs);
    let notifier = test.session.as_ref().unwrap().notifier();
    let forgotten = |at_least: u64| {
        until!(fs.forgotten.load(Ordering::SeqCst) >= at_least, "the kernel lets go of it");
    };
    assert_eq!(stat(&file), Some(1002));
    notifier.drop_name(NodeId::ROOT, OsStr::new("greeting")).unwrap();
    forgotten(1);
    assert_eq!((stat(&file), fs.lookups.load(Ordering::SeqCst)), (Some(1002), 2), "it is looked up again");
    if !notifier.can_prune() {
        assert!(notifier.prune(&[NodeId(2)]).is_err());
        return test.end();
    }
    let open = fs::File::open(&file).unwrap();
    notifier.prune(&[NodeId(2), NodeId(77)]).unwrap();
    assert_eq!((stat(&file), fs.lookups.load(Ordering::SeqCst)), (Some(1002), 2), "it is open, and stays");
    drop(open);
    // The last use ends a moment after the close.
    let is_forgotten = || {
        notifier.prune(&[NodeId(2)]).unwrap();
        fs.forgotten.load(Ordering::SeqCst) >= 2
    };
    until!(is_forgotten(), "the kernel lets go of it");
    assert_eq!((stat(&file), fs.lookups.load(Ordering::SeqCst)), (Some(1002), 3));
    test.end();
}

#[test]
fn the_mount_is_listed_with_its_source_and_kind() {
    let Some(test) = Test::new("listed") else { return };
    let mounts = fuse_dev::mount_points().unwrap();
    let mount = mounts.iter().find(|mount| mount.path == test.path.canonicalize().unwrap()).unwrap();
    assert_eq!((mount.source.to_str(), mount.kind.as_str()), (Some("a, source"), "fuse.small"));
    assert!(matches!(fuse_dev::state_of(&test.path), fuse_dev::StateOf::Mounted(found) if found == *mount));
    test.end();
}

#[test]
fn a_call_that_waits_can_be_given_up() {
    let Some(test) = Test::new("interrupt") else { return };
    // Ctrl-C ends it even if the tests run where that is ignored: in the background of a script.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "cat"]).arg(test.path.join("never")).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    until!(!test.fs.waiting.lock().unwrap().is_empty(), "the look-up has come");
    assert!(child.try_wait().unwrap().is_none());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert!(!child.wait().unwrap().success());
    assert!(test.fs.waiting.lock().unwrap().is_empty());
    test.end();
}

#[test]
fn that_somebody_else_has_unmounted_it_is_no_error() {
    let Some(mut test) = Test::new("unmounted") else { return };
    let path = test.path.to_path_buf();
    assert!(stat(&path.join("greeting")).is_some());
    fuse_dev::mount::unmount(&path, true).unwrap();
    assert!(test.mounted.take().unwrap().unmount().unwrap());
    test.session.take().unwrap().wait().unwrap();
    assert!(matches!(fuse_dev::state_of(&path), fuse_dev::StateOf::Folder { is_empty: true }));
}
