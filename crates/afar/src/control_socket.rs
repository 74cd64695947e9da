//! The socket at which the client of a mount answers `fs` and `tokens`: its place, and how a mount says it. The questions and answers are
//! in `afs_client::control`; `fs::client` looks for it.

use afs_client::Client;
use afs_client::control::{About, Control};
use afs_control::SOURCE;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Root's sockets: everybody has to get there, and nobody into the folders of caches.
const FOLDER: &str = "/run/afar";

/// Clients at most that run for one mount at once, all but the newest of them without a mount.
const PLACES_MAX: usize = 64;

/// The file that a client locks while it looks for a place.
const LOCK: &str = ".lock";

/// An ordinary user's socket, in the folder of their cache.
const NAME: &str = "control";

/// The source of a mount whose client answers nowhere.
const NOWHERE: &str = "afs";

/// The interface that is offered, and its place.
pub(crate) struct Offer {
    /// The source that the mount is to show.
    pub(crate) source: String,
    /// Answers until it is dropped.
    _control: Option<Control>,
}

/// Begins to answer for the client of a mount. Where that cannot be, it is told in the log, and the mount goes without.
pub(crate) fn offer(client: &Client, mount: &Path, cache: Option<&Path>, cell_serv_db: PathBuf) -> Offer {
    let about = About { version: env!("CARGO_PKG_VERSION").to_owned(), cell_serv_db };
    let served = if rustix::process::geteuid().is_root() {
        serve_for_root(Path::new(FOLDER), mount, |path| Control::serve(client, path, about.clone()))
    } else {
        cache.ok_or_else(nowhere).and_then(|folder| Control::serve(client, &folder.join(NAME), about))
    };
    match served {
        Ok(control) => {
            Offer { source: format!("{SOURCE}{}", control.path().display()), _control: Some(control) }
        }
        Err(error) => {
            tracing::warn!(%error, "'fs' and 'tokens' cannot ask this client: it has no control socket");
            Offer { source: NOWHERE.to_owned(), _control: None }
        }
    }
}

fn nowhere() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "there is no folder of a cache to put it into")
}

/// Serves at the first free place of a mount. What a client that was killed has left is replaced, and a client that lives keeps its own, also one
/// that hangs.
fn serve_for_root<T>(
    folder: &Path,
    mount: &Path,
    serve: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    // Two that begin at once do not take the same for left over. Nobody else may open the file, and hold the lock.
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.join(LOCK))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let name = name_of(mount);
    let places = (0..PLACES_MAX).map(|number| match number {
        0 => folder.join(&name),
        number => folder.join(format!("{name}-{number}")),
    });
    let free = places.into_iter().find(|place| !is_lived_in(place));
    serve(&free.ok_or_else(|| io::Error::other("too many clients of this mount run"))?)
}

/// True if a client listens there.
fn is_lived_in(place: &Path) -> bool {
    let connected = SocketAddrUnix::new(place).and_then(|address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    // One that hangs may have no place for another connection.
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}

/// The name of a mount's socket: the same after a restart. Short, as a socket's path has to be. Two containers that share /run may have mounts at one
/// path, and one that sees the other's mount must not find its own client there.
fn name_of(mount: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    mount.hash(&mut hasher);
    fs::read_link("/proc/self/ns/mnt").unwrap_or_default().hash(&mut hasher);
    let name = mount.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
    format!("{name}-{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A second mount at the same path, in another mount namespace with the same /run, took the first one's socket: `fs` asked the wrong client.
    #[test]
    fn a_living_client_keeps_its_socket_and_a_dead_ones_is_taken_over() {
        let folder = std::env::temp_dir().join(format!("afar-control-socket-{}", std::process::id()));
        let serve = || {
            serve_for_root(&folder, Path::new("/afs"), |path| {
                let _ = fs::remove_file(path);
                UnixListener::bind(path).map(|listener| (path.to_owned(), listener))
            })
            .unwrap()
        };
        let (first, second) = (serve(), serve());
        assert_ne!(first.0, second.0);
        assert!(is_lived_in(&first.0) && is_lived_in(&second.0));
        let place = first.0.clone();
        drop(first);
        // A process that another test has just forked has it too, until it runs its program.
        afs_lab::until!(!is_lived_in(&place), "it is lived in");
        assert_eq!(serve().0, place);
        assert_ne!(name_of(Path::new("/mnt/a")), name_of(Path::new("/srv/a")));
        fs::remove_dir_all(&folder).unwrap();
    }
}
