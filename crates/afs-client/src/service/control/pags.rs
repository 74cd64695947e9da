//! New PAGs: with a number that no ordinary group has, and that all clients of root's on this machine know.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use afs_wire::control::{self, framed};
use nix::unistd::{Gid, Group};
use rxgen::encode_request;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::answers::{Answer, no_pag};
use super::{Session, receive};
use afs_reach::fid::{Pag, User};

/// The time for which other clients are waited for. They look at a table, and a login waits for this.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for which the machine's directory of groups is waited for. If it does not answer, the number is taken all the same: chances that a group
/// has it are one in thousands, and nobody could log in for as long.
const GROUPS_TIMEOUT: Duration = Duration::from_secs(1);

impl Session {
    /// Makes a PAG for the user who asks.
    pub(super) async fn new_pag(&self) -> Answer<Pag> {
        let pag = loop {
            let pag = self.client.make_pag(self.uid).map_err(no_pag)?;
            let looked = tokio::task::spawn_blocking(move || is_ordinary(pag));
            match tokio::time::timeout(GROUPS_TIMEOUT, looked).await {
                // Whoever is in the PAG would have the files of that group.
                Ok(Ok(true)) => self.client.end_pag(User { uid: self.uid, pag: Some(pag) }),
                Ok(Ok(false) | Err(_)) | Err(_) => break pag,
            }
        };
        self.tell_others(pag).await;
        Ok(pag)
    }

    /// Tells the other clients of root's of a PAG: without, a session would have the user's tokens there, and set them.
    async fn tell_others(&self, pag: Pag) {
        if self.owner != 0 {
            return;
        }
        let request = framed(&encode_request(&control::AdoptPag { group: pag.group(), uid: self.uid }));
        let mut asked = JoinSet::new();
        for socket in sockets_beside(&self.socket) {
            let request = request.clone();
            asked.spawn(async move {
                let told = tokio::time::timeout(OTHERS_TIMEOUT, tell(&socket, &request)).await;
                (socket, told.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())))
            });
        }
        while let Some(Ok((socket, told))) = asked.join_next().await {
            match told {
                Ok(()) => {}
                // It has ended.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                }
                Err(error) => tracing::warn!(
                    socket = %socket.display(), %error,
                    "another client on this machine does not know a new PAG: its processes have the user's tokens there"
                ),
            }
        }
    }
}

async fn tell(socket: &Path, request: &[u8]) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(request).await?;
    let answer = receive(&mut stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    match answer.first_chunk().map(|code| i32::from_be_bytes(*code)) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The sockets of the other clients: root's are all in one folder.
fn sockets_beside(own: &Path) -> Vec<PathBuf> {
    let entries =
        own.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.map(|entry| entry.path()).filter(|path| path != own).collect()
}

/// True if a group of the machine's has the number: directories of users (sssd, winbind) give groups such numbers. May ask the network.
pub(super) fn is_ordinary(pag: Pag) -> bool {
    matches!(Group::from_gid(Gid::from_raw(pag.group())), Ok(Some(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_clients_sockets_are_asked() {
        let folder = std::env::temp_dir().join(format!("afs-control-beside-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let _listening =
            ["own", "other"].map(|name| std::os::unix::net::UnixListener::bind(at(name)).unwrap());
        std::fs::write(at("file"), b"").unwrap();
        let found = sockets_beside(&at("own"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [at("other")]);
    }
}
