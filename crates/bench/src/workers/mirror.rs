//! An empty FUSE mount: the files of a local folder, served by `fuse-dev` and nothing else, with the flags that the client's mount
//! has. What a mount of AFS costs more than this is the client's doing, not FUSE's. Started as `afar-bench mirror-worker FOLDER
//! MOUNT`: prints "ready", and serves until its standard input ends.
//!
//! It forgets nothing and checks nothing: nobody else changes the folder.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use fuse_dev::{
    Attributes, Entries, Entry, Features, Handle, Handler, Kind, MountOptions, Mounted, NodeId, OpenFlags,
    Operation, PlusEntries, Reply, Request, Session, Settings,
};

use super::{Failure, hear, print};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "mirror-worker";

/// As many threads as the client's mount has.
const THREADS: usize = 2;
/// As long as the client's promises last in effect.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// As the client's mount has them.
const WRITE_MAX_BYTES: u32 = 1 << 20;
const BACKGROUND_MAX: u16 = 64;
const BLOCK_SIZE: u32 = 128 << 10;

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let [folder, mount] = arguments else { return Err("for afar-bench's own use: FOLDER MOUNT".into()) };
    let options = MountOptions { source: "mirror".to_owned(), kind: "mirror".to_owned(), allow_other: true };
    let mounted = Mounted::mount(mount.as_ref(), &options)?;
    let features = Features::ASYNC_READ
        .and(Features::ATOMIC_TRUNCATE)
        .and(Features::BIG_WRITES)
        .and(Features::READDIR_PLUS)
        .and(Features::READDIR_PLUS_AUTO)
        .and(Features::PARALLEL_DIROPS)
        .and(Features::HANDLE_KILLPRIV_V2)
        .and(Features::CACHE_SYMLINKS)
        .and(Features::POSIX_LOCKS)
        .and(Features::FLOCK_LOCKS)
        .and(Features::EXPLICIT_INVALIDATION);
    let settings = Settings {
        features,
        write_max_bytes: WRITE_MAX_BYTES,
        read_ahead_bytes: WRITE_MAX_BYTES,
        background_max: BACKGROUND_MAX,
        stack_depth: 1,
    };
    let mirror = Arc::new(Mirror::new(folder.as_ref()));
    let _session = Session::start(Arc::clone(mounted.device()), &settings, THREADS, |_, _| mirror)?;
    print(format_args!("ready"))?;
    while hear()?.is_some() {}
    mounted.unmount()?;
    Ok(())
}

/// The folder that is mirrored.
struct Mirror {
    /// Paths by node, which is the number of the inode, but for the root.
    paths: RwLock<HashMap<u64, PathBuf>>,
    open: RwLock<HashMap<u64, Arc<Opened>>>,
    next_handle: AtomicU64,
}

enum Opened {
    File(File),
    /// Names and what is behind them.
    Folder(Vec<(PathBuf, Entry)>),
}

/// The result of a request.
type Done<T> = io::Result<T>;

impl Mirror {
    fn new(folder: &Path) -> Mirror {
        let paths = HashMap::from([(NodeId::ROOT.0, folder.to_path_buf())]);
        Mirror { paths: RwLock::new(paths), open: RwLock::default(), next_handle: AtomicU64::new(1) }
    }

    fn path(&self, node: NodeId) -> Done<PathBuf> {
        let paths = self.paths.read().unwrap_or_else(PoisonError::into_inner);
        paths.get(&node.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn child(&self, node: NodeId, name: &OsStr) -> Done<PathBuf> {
        Ok(self.path(node)?.join(name))
    }

    fn entry(&self, path: PathBuf, metadata: &Metadata) -> Entry {
        let attributes = attributes(metadata);
        let node = NodeId(metadata.ino());
        self.paths.write().unwrap_or_else(PoisonError::into_inner).entry(node.0).or_insert(path);
        Entry { node, attributes, name_ttl: TTL, attributes_ttl: TTL }
    }

    fn look_up(&self, path: PathBuf) -> Done<Entry> {
        let metadata = fs::symlink_metadata(&path)?;
        Ok(self.entry(path, &metadata))
    }

    fn add(&self, opened: Opened) -> Handle {
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(opened));
        Handle(number)
    }

    fn opened(&self, handle: Handle) -> Done<Arc<Opened>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn open(&self, node: NodeId, flags: u32) -> Done<(Handle, OpenFlags)> {
        let (options, kept) = options(flags);
        Ok((self.add(Opened::File(options.open(self.path(node)?)?)), kept))
    }

    fn create(&self, path: PathBuf, mode: u32, flags: u32) -> Done<(Entry, Handle, OpenFlags)> {
        let (mut options, kept) = options(flags);
        let file = options.create(true).read(true).write(true).open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(mode & 0o7777))?;
        let metadata = file.metadata()?;
        Ok((self.entry(path, &metadata), self.add(Opened::File(file)), kept))
    }

    fn list(&self, node: NodeId) -> Done<Handle> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path(node)?)? {
            let path = entry?.path();
            let of = self.look_up(path.clone())?;
            found.push((path, of));
        }
        Ok(self.add(Opened::Folder(found)))
    }

    fn read(&self, handle: Handle, pos: u64, length: u32, reply: Reply) {
        let read = || -> Done<Vec<u8>> {
            let opened = self.opened(handle)?;
            let Opened::File(file) = &*opened else { return Err(io::Error::from_raw_os_error(libc::EISDIR)) };
            let mut data = vec![0; length as usize];
            let mut done = 0;
            while done < data.len() {
                match file.read_at(&mut data[done..], pos + done as u64)? {
                    0 => break,
                    count => done += count,
                }
            }
            data.truncate(done);
            Ok(data)
        };
        match read() {
            Ok(data) => reply.data(&data),
            Err(error) => fail(reply, &error),
        }
    }

    fn write(&self, handle: Handle, pos: u64, data: &[u8]) -> Done<()> {
        match &*self.opened(handle)? {
            Opened::File(file) => file.write_all_at(data, pos),
            Opened::Folder(_) => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        }
    }

    fn names(&self, handle: Handle, pos: u64, room: u32, is_plus: bool, reply: Reply) {
        let opened = match self.opened(handle) {
            Ok(opened) => opened,
            Err(error) => return fail(reply, &error),
        };
        let Opened::Folder(found) = &*opened else { return reply.error(libc::ENOTDIR) };
        let numbered = found.iter().zip(1u64..).skip(pos as usize);
        let named = numbered.map(|((path, entry), next)| (path.file_name().unwrap_or_default(), entry, next));
        if is_plus {
            let mut entries = PlusEntries::new(room);
            for (name, entry, next) in named {
                if !entries.add(entry, next, name) {
                    break;
                }
            }
            reply.plus_entries(&entries);
        } else {
            let mut entries = Entries::new(room);
            for (name, entry, next) in named {
                if !entries.add(entry.attributes.inode, next, Some(entry.attributes.kind), name) {
                    break;
                }
            }
            reply.entries(&entries);
        }
    }

    fn set_size(&self, node: NodeId, size: Option<u64>) -> Done<Attributes> {
        let path = self.path(node)?;
        if let Some(size) = size {
            OpenOptions::new().write(true).open(&path)?.set_len(size)?;
        }
        Ok(attributes(&fs::symlink_metadata(&path)?))
    }
}

/// The options with which a file is opened, and those that the kernel is told. As in the client's mount, pages stay, and a file
/// that is only read is closed without being asked.
fn options(flags: u32) -> (OpenOptions, OpenFlags) {
    let flags = flags as i32;
    let is_write = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let mut options = OpenOptions::new();
    options.read(true).write(is_write).truncate(flags & libc::O_TRUNC != 0 && is_write);
    let kept = if is_write { OpenFlags::KEEP_CACHE } else { OpenFlags::KEEP_CACHE.and(OpenFlags::NO_FLUSH) };
    (options, kept)
}

fn attributes(metadata: &Metadata) -> Attributes {
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_symlink() => Kind::Symlink,
        _ => Kind::File,
    };
    Attributes {
        inode: metadata.ino(),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: modified,
        mtime: modified,
        ctime: modified,
        kind,
        permissions: (metadata.mode() & 0o7777) as u16,
        links: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        block_size: BLOCK_SIZE,
    }
}

fn fail(reply: Reply, error: &io::Error) {
    reply.error(error.raw_os_error().unwrap_or(libc::EIO));
}

/// Answers with what was done, or with the error.
fn answer<T>(reply: Reply, done: Done<T>, send: impl FnOnce(Reply, T)) {
    match done {
        Ok(value) => send(reply, value),
        Err(error) => fail(reply, &error),
    }
}

impl Handler for Mirror {
    fn handle(&self, request: Request<'_>, reply: Reply) {
        let node = request.node;
        match request.operation {
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. } => {
                reply.nothing()
            }
            Operation::Lookup { name } => match self.child(node, name).and_then(|path| self.look_up(path)) {
                Ok(entry) => {
                    reply.entry(&entry);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => reply.no_entry(TTL),
                Err(error) => fail(reply, &error),
            },
            Operation::GetAttributes { .. } => {
                answer(reply, self.set_size(node, None), |reply, found| reply.attributes(&found, TTL));
            }
            Operation::SetAttributes(set) => {
                answer(reply, self.set_size(node, set.size), |reply, found| reply.attributes(&found, TTL));
            }
            Operation::Open { flags, .. } => {
                answer(reply, self.open(node, flags), |reply, (handle, flags)| {
                    reply.opened(handle, flags);
                })
            }
            Operation::Create { name, mode, umask, flags, .. } => {
                let made = self.child(node, name).and_then(|path| self.create(path, mode & !umask, flags));
                answer(reply, made, |reply, (entry, handle, flags)| {
                    reply.created(&entry, handle, flags);
                });
            }
            Operation::Read { handle, pos, length, .. } => self.read(handle, pos, length, reply),
            Operation::Write { handle, pos, data, .. } => {
                answer(reply, self.write(handle, pos, data), |reply, ()| reply.written(data.len() as u32));
            }
            Operation::Flush { .. } | Operation::Sync { .. } | Operation::Access(_) | Operation::Destroy => {
                reply.ok()
            }
            Operation::Release { handle, .. } | Operation::ReleaseDirectory { handle } => {
                self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0);
                reply.ok();
            }
            Operation::MakeDirectory { name, .. } => {
                let made = self.child(node, name).and_then(|path| {
                    fs::create_dir(&path)?;
                    self.look_up(path)
                });
                answer(reply, made, |reply, entry| {
                    reply.entry(&entry);
                });
            }
            Operation::Unlink { name } => {
                answer(reply, self.child(node, name).and_then(fs::remove_file), |reply, ()| reply.ok());
            }
            Operation::RemoveDirectory { name } => {
                answer(reply, self.child(node, name).and_then(fs::remove_dir), |reply, ()| reply.ok());
            }
            Operation::OpenDirectory { .. } => answer(reply, self.list(node), |reply, handle| {
                reply.opened(handle, OpenFlags::CACHE_DIRECTORY.and(OpenFlags::KEEP_CACHE));
            }),
            Operation::ReadDirectory { handle, pos, room } => self.names(handle, pos, room, false, reply),
            Operation::ReadDirectoryPlus { handle, pos, room } => self.names(handle, pos, room, true, reply),
            // What else there is programs can do without.
            _ => reply.error(libc::ENOSYS),
        }
    }
}
