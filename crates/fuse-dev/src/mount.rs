//! Mounting and unmounting: by the system call where this process may, else by `fusermount3`, which may for everybody.

use std::error::Error;
use std::ffi::CString;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::device::Device;
use crate::mounts::{MountPoint, is_plain, mount_points};

/// The program that mounts for ordinary users.
const HELPER: &str = "fusermount3";

/// The paths of the helper on most systems.
const HELPER_PATHS: [&str; 2] = ["/usr/bin/fusermount3", "/bin/fusermount3"];

/// The helper, if it is where it mostly is: a look-up in all folders of PATH may ask the mount that is to go, whose servers may be away.
fn helper() -> &'static str {
    HELPER_PATHS.into_iter().find(|path| Path::new(path).exists()).unwrap_or(HELPER)
}

/// The time for which a mount that is in use is waited for: a file that was closed just now is let go in the background.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);
/// The time between two tries meanwhile.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The source, as `mount` and `df` show it.
    pub source: String,
    /// The kind of file system: it is shown as `fuse.KIND`.
    pub kind: String,
    /// True if other users than the one who mounts it may use it. Ordinary users may only where `/etc/fuse.conf` says
    /// `user_allow_other`.
    pub allow_other: bool,
}

/// The reason why there is no mount. Each says what to do.
#[derive(Debug)]
pub enum MountError {
    /// The kernel has no FUSE, or it is hidden from this process.
    NoDevice(io::Error),
    /// This process may not mount, and the program that may is not there.
    NoHelper(io::Error),
    /// That program refused.
    Helper {
        /// The path where it was to mount.
        path: PathBuf,
        /// The program's message.
        said: String,
    },
    /// The mount point is not usable.
    Path {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The system call failed.
    Mount {
        /// The path where it was to mount.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice(error) => write!(
                f,
                "there is no FUSE here ({error}): load it with 'modprobe fuse'; in a container, give it the device \
                 (docker run --device /dev/fuse --cap-add SYS_ADMIN)"
            ),
            Self::NoHelper(error) => write!(
                f,
                "ordinary users need {HELPER} to mount ({error}): install the package fuse3, or run this as root"
            ),
            Self::Helper { path, said } => {
                write!(f, "{HELPER} does not mount {}: {}", path.display(), said.trim())?;
                match said.contains("open /dev/fuse") {
                    // As udev has it on Debian; a machine without udev may have it for root only.
                    true => f.write_str("; as root: chmod 666 /dev/fuse"),
                    false => Ok(()),
                }
            }
            Self::Path { path, error } => {
                write!(f, "{} cannot be a mount point: {error}; choose another folder", path.display())
            }
            Self::Mount { path, error } => write!(f, "mounting {} failed: {error}", path.display()),
        }
    }
}

impl Error for MountError {}

/// A mount of this process. Dropped, it is unmounted, lazily if it is in use.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    /// The line that the kernel has for it, if it shows one.
    listed: Option<MountPoint>,
    device: Arc<Device>,
    is_mounted: bool,
}

impl Mounted {
    /// Mounts a file system on a folder. Requests can be read from its device.
    ///
    /// # Errors
    ///
    /// Why it cannot be, and what to do.
    pub fn mount(path: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let unusable = |error| MountError::Path { path: path.to_owned(), error };
        let path = path.canonicalize().map_err(unusable)?;
        let unusable = |error| MountError::Path { path: path.clone(), error };
        let metadata = path.metadata().map_err(unusable)?;
        if !metadata.is_dir() {
            return Err(unusable(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let device = match by_system_call(&path, metadata.mode(), options)? {
            Some(device) => device,
            None => by_helper(&path, options)?,
        };
        let listed = mount_points().unwrap_or_default().into_iter().rev().find(|mount| mount.path == path);
        Ok(Self { path, listed, device: Arc::new(device), is_mounted: true })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The device from which requests come.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// True if the kernel still has it at its path: nobody has unmounted it. Its connection may be cut all the same.
    pub fn is_listed(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| mount_points().unwrap_or_default().contains(listed))
    }

    /// Unmounts. If it is in use, it disappears from the tree of files at once, and who uses it gets errors when this process
    /// ends; `Ok(false)` says so.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub fn unmount(mut self) -> io::Result<bool> {
        self.is_mounted = false;
        self.end()
    }

    fn end(&self) -> io::Result<bool> {
        if is_gone(&self.device) {
            return Ok(true);
        }
        let until = Instant::now() + BUSY_TIMEOUT;
        loop {
            match unmount(&self.path, false) {
                Ok(()) => return Ok(true),
                Err(error) if error.raw_os_error() != Some(libc::EBUSY) => return Err(error),
                Err(_) if Instant::now() < until => thread::sleep(BUSY_PAUSE),
                Err(_) => return unmount(&self.path, true).map(|()| false),
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = self.end()
        {
            tracing::error!(mount = %self.path.display(), %error, "unmounting failed");
        }
    }
}

/// True if this process may register files that the kernel reads by itself.
pub fn may_pass_through() -> bool {
    may_administer()
}

/// True if this process may do what only administrators of the whole machine may (CAP_SYS_ADMIN, by its effective set; 21 in
/// `capability.h`).
fn may_administer() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set & 1 << 21 != 0)
}

/// True if the mount of a device is gone already, as when somebody else has unmounted it. Unmounting its path then would hit
/// what has been mounted there since.
fn is_gone(device: &Device) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::empty())];
    matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1..))
        && polled[0].revents().contains(PollFlags::ERR)
}

/// Unmounts what is mounted last on a path: at once, or `lazily` when nobody uses it any more.
///
/// # Errors
///
/// EBUSY if it is in use and this is not lazy; the system's.
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // Ordinary users go through the helper.
        Err(Errno::PERM) => {
            let mut command = Command::new(helper());
            command.arg("-u");
            if lazily {
                command.arg("-z");
            }
            let output = command.arg("--").arg(path).stdin(Stdio::null()).output()?;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("busy") {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            Err(io::Error::other(format!("{HELPER} does not unmount {}: {}", path.display(), said.trim())))
        }
        Err(error) => Err(error.into()),
    }
}

/// `None`: this process may not, and the helper should be asked.
fn by_system_call(path: &Path, mode: u32, options: &MountOptions) -> Result<Option<Device>, MountError> {
    let device = match Device::open() {
        Ok(device) => device,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound) => {
            return Err(MountError::NoDevice(error));
        }
        // The number of a device that the kernel has no driver for.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => {
            return Err(MountError::NoDevice(error));
        }
        // The helper opens it with rights of its own.
        Err(_) => return Ok(None),
    };
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut data =
        format!("fd={},rootmode={mode:o},user_id={uid},group_id={gid}", device.as_fd().as_raw_fd());
    if options.allow_other {
        data += ",allow_other";
    }
    // Neither set-uid bits nor device files count: an administrator of a cell need not be one of this machine.
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let kind = format!("fuse.{}", options.kind);
    let data = CString::new(data).expect("words and numbers");
    match rustix::mount::mount(options.source.as_str(), path, kind, flags, data.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(Errno::NODEV) => Err(MountError::NoDevice(Errno::NODEV.into())),
        Err(error) => Err(MountError::Mount { path: path.to_owned(), error: error.into() }),
    }
}

/// The helper opens the device, mounts it, and sends its descriptor over a socket whose number is in its environment.
fn by_helper(path: &Path, options: &MountOptions) -> Result<Device, MountError> {
    let failed = |error| MountError::Mount { path: path.to_owned(), error };
    let (ours, its) = UnixStream::pair().map_err(failed)?;
    let mut words = vec![format!("fsname={}", escaped(&options.source)), format!("subtype={}", options.kind)];
    if options.allow_other {
        words.push("allow_other".to_owned());
    }
    // The socket is its standard input: that is a number which is known.
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(words.join(","))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(its))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    // All its ends are closed with the child, so that this ends too.
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    match received.map_err(failed)? {
        Some(descriptor) if output.status.success() => Ok(Device::of(descriptor)),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(MountError::Helper { path: path.to_owned(), said })
        }
    }
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Escapes an option for the helper: a comma ends one, unless a backslash is in front of it.
fn escaped(source: &str) -> String {
    if is_plain(Path::new(source)) {
        return source.to_owned();
    }
    source.replace('\\', "\\\\").replace(',', "\\,")
}
