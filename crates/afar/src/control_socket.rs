//! The socket at which the client of a mount answers `fs` and `tokens`: its place, and how a mount says it. The questions and answers are
//! in `afs_client::control`; `fs::client` looks for it.

use afs_client::Client;
use afs_client::control::{About, Control};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Root's sockets: everybody has to get there, and nobody into the folders of caches.
const FOLDER: &str = "/run/afar";

/// An ordinary user's socket, in the folder of their cache.
const NAME: &str = "control";

/// The beginning of the source of a mount of ours; the socket's path follows.
pub(crate) const SOURCE: &str = "afs:";

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
    let path = place(mount, cache, rustix::process::geteuid().is_root());
    let served = path.and_then(|path| Control::serve(client, &path, about));
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

/// The socket's path: always the same for a mount, so that what a client that was killed has left is found and replaced. Short, as a
/// socket's path has to be.
fn place(mount: &Path, cache: Option<&Path>, is_root: bool) -> io::Result<PathBuf> {
    if is_root {
        fs::create_dir_all(FOLDER)?;
        fs::set_permissions(FOLDER, fs::Permissions::from_mode(0o755))?;
        let mut hasher = DefaultHasher::new();
        mount.hash(&mut hasher);
        let name = mount.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name: String = name.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
        return Ok(Path::new(FOLDER).join(format!("{name}-{:016x}", hasher.finish())));
    }
    match cache {
        Some(folder) => Ok(folder.join(NAME)),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "there is no folder of a cache to put it into")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_user_has_it_with_his_cache() {
        let cache = Path::new("/cache");
        assert_eq!(place(Path::new("/afs"), Some(cache), false).unwrap(), cache.join("control"));
        assert!(place(Path::new("/afs"), None, false).is_err());
    }
}
