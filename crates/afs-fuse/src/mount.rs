//! A mount from its beginning to its end: agreeing with the kernel on what is spoken, starting the threads, unmounting.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use afs_client::{Audience, Client, memory};
use afs_config::memory::Used;
use fuse_dev::{Device, Features, MountError, MountOptions, Mounted, Offer, Session, Settings};
use tokio::runtime;
use tokio::task::AbortHandle;

use crate::attributes::{Owner, Owners, Serves};
use crate::file_system::{FileSystem, Kernel, KernelHandler, Passthrough};
use crate::node_limit;
use crate::notices;

/// The longest write that is taken at once, and the longest read that is asked for: the kernel's own limit.
const WRITE_MAX_BYTES: u32 = 1 << 20;

/// The length that the kernel reads ahead in its page cache. In requests of 128 KiB, which it makes by itself, a copy from the
/// cache costs more in requests than in bytes (1 MiB instead gave 2.8 GB/s for 2.0, and 4 MiB nothing more).
const READ_AHEAD_KIB: u32 = 1024;

/// Reads ahead and writes behind that may be with us at once: enough that the link is filled by reads that wait.
const BACKGROUND_MAX: u16 = 64;

/// The time within which a mount must end once it is unmounted, if it is not in use.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The time for which an unmounting waits before it gives up the requests in flight.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(2);

/// The options of a mount.
#[derive(Debug, Clone)]
pub struct Options {
    /// The mount's path.
    pub path: PathBuf,
    /// The source that `mount` and `df` show: for `fs`, the path of the control socket.
    pub source: String,
    /// True if all users of the machine may use it, each with their own rights. Ordinary users cannot offer that unless
    /// `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
    /// Threads that answer from memory. Default 2: one more than would be busy, so that one may copy data while the other answers.
    /// Each more costs where threads wake each other on another core (measured: 9 microseconds become 30).
    pub threads: usize,
    /// Files from this length on that are wholly in the cache are read by the kernel itself; `None` for none. Default 1 MiB: to
    /// open one so takes 3 microseconds longer than through the page cache, and to read a MiB 15 less.
    pub passthrough_min_bytes: Option<u64>,
    /// True if the cache is on a stacked file system (overlayfs, as in containers): passthrough has to know.
    pub cache_is_stacked: bool,
    /// Users who have different numbers here and in their cell.
    pub owners: Vec<Owner>,
}

impl Options {
    /// The defaults, for a mount there.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            source: "afs".to_owned(),
            allow_other: false,
            threads: 2,
            passthrough_min_bytes: Some(1 << 20),
            cache_is_stacked: false,
            owners: Vec::new(),
        }
    }
}

/// The reason why there is no mount.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be mounted; says what to do.
    #[error("{0}")]
    Mount(MountError),
    /// It was mounted, and could not be served.
    #[error("{} cannot be served: {error}", .path.display())]
    Serve {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// A mounted client. Dropped, it is unmounted.
#[derive(Debug)]
pub struct Mount {
    // In this order: what is dropped first ends the rest.
    mounted: Mounted,
    served: Served,
}

/// A client that answers a kernel's requests. It ends when the kernel does.
#[derive(Debug)]
pub struct Served {
    session: Session,
    notices: JoinHandle<()>,
    node_limit: AbortOnDrop,
    fs: Arc<FileSystem>,
}

/// A task that ends with this.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Mount {
    /// Mounts a client and serves it until it is unmounted. Its root may be looked at when this returns.
    ///
    /// # Errors
    ///
    /// Why it cannot be mounted, and what to do.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, whose worker threads go on with what cannot be answered at once.
    pub fn start(client: &Client, options: &Options) -> Result<Self, Error> {
        let mount_options = MountOptions {
            source: options.source.clone(),
            kind: "afar".to_owned(),
            allow_other: options.allow_other,
        };
        let mounted = Mounted::mount(&options.path, &mount_options).map_err(Error::Mount)?;
        let path = mounted.path();
        let served = Served::start(client, options, Arc::clone(mounted.device()));
        let served = served.map_err(|error| Error::Serve { path: path.to_owned(), error })?;
        let offer = served.session.offer();
        tracing::info!(
            mount = %path.display(),
            protocol = offer.minor,
            passthrough = has_passthrough(&offer),
            "mounted"
        );
        read_ahead(path);
        Ok(Self { mounted, served })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// True if no requests come any more: somebody has unmounted it, or cut its connection.
    pub fn is_over(&self) -> bool {
        self.served.session.is_over()
    }

    /// True if nobody has unmounted it. If it [is over](Self::is_over) all the same, its connection was cut, and programs get ENOTCONN
    /// there until something else is mounted in its place.
    pub fn is_listed(&self) -> bool {
        self.mounted.is_listed()
    }

    /// True if large files that are wholly in the cache are read by the kernel itself.
    pub fn has_passthrough(&self) -> bool {
        self.served.fs.passthrough.is_on()
    }

    /// The client's memory that is taken by the files that the kernel knows; for as long as this is there, not longer.
    pub fn memory(&self) -> impl Fn() -> Option<Used> + Send + Sync + 'static {
        let fs = Arc::downgrade(&self.served.fs);
        move || {
            let fs = fs.upgrade()?;
            let bytes = |nodes: usize| nodes as u64 * memory::NODE_BYTES;
            let (used, limit) = (fs.nodes.len(), fs.nodes.limit());
            Some(Used { share: memory::NODES, bytes: Some(bytes(used)), limit_bytes: bytes(limit) })
        }
    }

    /// Unmounts it. `Ok(false)`: somebody is using it still, and gets errors from when this process ends.
    ///
    /// # Errors
    ///
    /// When the system does not let us.
    pub fn unmount(self) -> io::Result<bool> {
        let Self { mounted, served: Served { session, notices, node_limit, fs } } = self;
        drop(node_limit);
        let was_free = {
            // A request of a program that has ended may wait for a server, a notice for the request, and the kernel for the notice.
            let (unmounting, has_unmounted) = mpsc::channel::<()>();
            let in_flight = Arc::clone(&fs.in_flight);
            let waits = move || has_unmounted.recv_timeout(UNMOUNT_TIMEOUT) == Err(RecvTimeoutError::Timeout);
            std::thread::spawn(move || {
                while waits() {
                    in_flight.end();
                }
            });
            let was_free = mounted.unmount();
            drop(unmounting);
            was_free?
        };
        let end = Instant::now() + END_TIMEOUT;
        while was_free && !session.is_over() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        fs.in_flight.end();
        // It ends with the client, which may be used further.
        drop(notices);
        Ok(was_free)
    }
}

impl Served {
    /// Answers what comes from a device, after the agreement with its kernel. Of the options, the path is where its kernel has it mounted.
    ///
    /// # Errors
    ///
    /// The device's, or there can be no threads.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, whose worker threads go on with what cannot be answered at once.
    pub fn start(client: &Client, options: &Options, device: Arc<Device>) -> io::Result<Self> {
        let runtime = runtime::Handle::current();
        let serves = if options.allow_other { Serves::All } else { Serves::One };
        let wants_passthrough =
            options.passthrough_min_bytes.is_some() && fuse_dev::mount::may_pass_through();
        let settings = settings(wants_passthrough, options.cache_is_stacked);
        let owners = Owners::new(options.owners.clone());
        // Before the first answer: what it says may change at once.
        let changes = client.notices(match serves {
            Serves::All => Audience::Anybody,
            Serves::One => Audience::One(rustix::process::getuid().as_raw()),
        });
        let pending = changes.pending();
        let mut made = None;
        let session = Session::start(Arc::clone(&device), &settings, options.threads, |offer, notifier| {
            let passthrough =
                Passthrough::new(options.passthrough_min_bytes.filter(|_| has_passthrough(&offer)));
            let can_map_direct = offer.features.has(Features::DIRECT_IO_MAPPED);
            let kernel = Kernel { device, notifier: notifier.clone(), can_map_direct };
            let fs = FileSystem::new(client.clone(), runtime, owners, serves, passthrough, kernel, pending);
            let fs = Arc::new(fs);
            made = Some((Arc::clone(&fs), notifier));
            Arc::new(KernelHandler(fs))
        })?;
        let (fs, notifier) = made.expect("the session has made it");
        let of = Arc::clone(&fs);
        let notices = std::thread::Builder::new()
            .name("fuse-notices".to_owned())
            .spawn(move || notices::serve(&of, &notifier, changes))?;
        let path = options.path.clone();
        let node_limit = fs.runtime.spawn(node_limit::keep_bounded(Arc::clone(&fs), path)).abort_handle();
        Ok(Self { session, notices, node_limit: AbortOnDrop(node_limit), fs })
    }
}

fn has_passthrough(offer: &Offer) -> bool {
    offer.features.has(Features::PASSTHROUGH)
}

fn settings(wants_passthrough: bool, cache_is_stacked: bool) -> Settings {
    // Without ATOMIC_TRUNCATE: with it the kernel has us cut a program that runs, and only then asks whether it may be written.
    let mut features = Features::ASYNC_READ
        .and(Features::BIG_WRITES)
        .and(Features::READDIR_PLUS)
        .and(Features::READDIR_PLUS_AUTO)
        .and(Features::PARALLEL_DIROPS)
        .and(Features::HANDLE_KILLPRIV_V2)
        .and(Features::CACHE_SYMLINKS)
        .and(Features::POSIX_LOCKS)
        .and(Features::FLOCK_LOCKS)
        // Size and time change when a store of our own is done, and data with them only when a notice says so.
        .and(Features::EXPLICIT_INVALIDATION)
        .and(Features::DIRECT_IO_MAPPED);
    if wants_passthrough {
        features = features.and(Features::PASSTHROUGH);
    }
    Settings {
        features,
        write_max_bytes: WRITE_MAX_BYTES,
        read_ahead_bytes: READ_AHEAD_KIB << 10,
        background_max: BACKGROUND_MAX,
        stack_depth: if cache_is_stacked { 2 } else { 1 },
    }
}

/// The kernel offers 128 KiB; more is set at the mount's device, where this process may.
fn read_ahead(path: &Path) {
    let mounts = fuse_dev::mount_points().unwrap_or_default();
    let Some(mount) = mounts.into_iter().rev().find(|mount| mount.path == path) else { return };
    let file = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(error) = fs::write(&file, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(file, %error, "the kernel reads ahead as far as it does by itself");
    }
}
