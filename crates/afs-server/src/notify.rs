//! Notices to the service manager: ready, stopping, and why (the protocol of sd_notify: a datagram of `NAME=VALUE` lines
//! to the socket that it names).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager, if there is one that wants to know.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

impl ServiceManager {
    /// The one at this socket, as the environment variable `NOTIFY_SOCKET` names it: a path, or behind `@` an abstract name.
    ///
    /// # Errors
    ///
    /// When it is neither, or there can be no socket to send from.
    pub fn at(name: Option<&OsStr>) -> io::Result<Self> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Self::default()) };
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        Ok(Self { socket: Some((UnixDatagram::unbound()?, address)) })
    }

    /// Tells it. That nobody listens any more is not this program's trouble: the log says it.
    pub fn tell(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::warn!(%error, message, "the service manager could not be told");
        }
    }

    /// The server answers; `status` is shown by the service manager.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// The server is being stopped.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_is_told_by_path_and_by_abstract_name() {
        let path = std::env::temp_dir().join(format!("afs-server-notify-{}", std::process::id()));
        let at_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("afs-server-notify-{}", std::process::id());
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (listener, name) in [(at_path, path.as_os_str().to_owned()), (at_name, format!("@{name}").into())]
        {
            let manager = ServiceManager::at(Some(&name)).unwrap();
            manager.ready("all of it");
            let mut bytes = [0; 100];
            let len = listener.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"READY=1\nSTATUS=all of it");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn without_a_manager_nothing_is_told() {
        ServiceManager::at(None).unwrap().stopping();
        ServiceManager::at(Some(OsStr::new(""))).unwrap().stopping();
    }
}
