//! The clients that commands talk to: by a file, the one that serves it; else by the rule of `afs_control` (docs/client.md).

use super::errors::Failure;
use afs_control::{Found, Search, Trust};
use rustix::process::geteuid;
use rxgen::Rpc;
use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use afs_control::Mount;

/// The time, in all, for which clients are waited for that do not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time within which a client must answer: longer than it waits for its servers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(600);

/// The environment variable that names the clients by their sockets, as `pam_afar` does. Empty, it names none.
const SOCKET_VARIABLE: &str = "AFAR_SOCKET";

/// Connection to a client.
pub(crate) struct Client(afs_control::Client);

/// The clients that the caller's tokens are for: root's and their own, that of the current folder first, then the newest.
pub(crate) struct Clients {
    all: Vec<Client>,
    /// The reason why there is none.
    refusal: Failure,
}

/// What is said of clients that do not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Says {
    /// All that were passed over.
    All,
    /// Those that hang. A command that works without a client is not kept from it by one that has ended.
    Hanging,
}

impl Client {
    /// Connects to the client that listens there.
    pub(crate) fn connect(socket: &Path) -> Result<Self, Failure> {
        Ok(Self(afs_control::Client::connect(socket)?))
    }

    /// Finds the first client for a command that is about no file and needs one.
    pub(crate) fn any(program: &str) -> Result<Self, Failure> {
        Clients::of(search(trust(), named()).first(), program, Says::All).into_first()
    }

    /// Finds the first client for a program that does without one, and has no place to say why there is none.
    pub(crate) fn silently() -> Option<Self> {
        search(trust(), named()).first().clients.into_iter().next().map(Self)
    }

    /// Finds the client that makes a PAG for the caller: one of root's, whose numbers alone may be added to a process. A program that lends
    /// the privilege for that does not believe what its caller says of clients.
    pub(crate) fn for_a_new_pag(program: &str, is_lent: bool) -> Result<Self, Failure> {
        let named = if is_lent { None } else { named() };
        Clients::of(search(Trust::Root, named).first(), program, Says::All).into_first()
    }

    /// The folder in which it is mounted, or its socket.
    pub(crate) fn place(&self) -> &Path {
        self.0.place()
    }

    /// The socket on which it listens.
    pub(crate) fn socket(&self) -> &Path {
        self.0.socket()
    }

    /// True if the caller means this one: the current folder is in its mount, or the environment names it.
    pub(crate) const fn is_here(&self) -> bool {
        self.0.is_here()
    }

    /// True if the caller is in the same session for both.
    pub(crate) fn has_session_of(&self, other: &Self) -> bool {
        self.0.has_session_of(&other.0)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn call<R: Rpc>(&self, args: &R) -> Result<R::Reply, Failure> {
        Ok(self.0.call(args)?)
    }
}

impl Clients {
    /// Finds those that answer. The others are reported, in the name of the program.
    pub(crate) fn find(program: &str, says: Says) -> Self {
        Self::of(search(trust(), named()).all(), program, says)
    }

    fn of(mut found: Found, program: &str, says: Says) -> Self {
        let all: Vec<_> = std::mem::take(&mut found.clients).into_iter().map(Client).collect();
        // What keeps the command from all it does is said by the command itself.
        let told = found.passed_over.iter().filter_map(|one| match &one.why {
            afs_control::Failure::Unreachable { error, .. } if !all.is_empty() => {
                let hangs = !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
                (hangs || says == Says::All).then_some((&one.place, error))
            }
            _ => None,
        });
        for (place, error) in told {
            eprintln!(
                "{program}: the client of {} is passed over, as it does not answer: {error}",
                place.display()
            );
        }
        Self { all, refusal: found.refusal().into() }
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Client] {
        &self.all
    }

    /// The first, or why there is none.
    pub(crate) fn first(&self) -> Result<&Client, &Failure> {
        self.all.first().ok_or(&self.refusal)
    }

    /// The same, for one who needs no other.
    pub(crate) fn into_first(self) -> Result<Client, Failure> {
        self.all.into_iter().next().ok_or(self.refusal)
    }

    /// Those in which the caller is in the same session as in the first: their tokens there are for the same processes.
    pub(crate) fn of_one_session(&self) -> impl Iterator<Item = &Client> {
        let first = self.all.first();
        self.all.iter().filter(move |client| first.is_some_and(|first| client.has_session_of(first)))
    }
}

fn trust() -> Trust {
    Trust::RootAnd(geteuid().as_raw())
}

/// The sockets that the environment names.
fn named() -> Option<Vec<PathBuf>> {
    env::var_os(SOCKET_VARIABLE).map(|value| sockets_of(&value))
}

fn sockets_of(value: &OsStr) -> Vec<PathBuf> {
    env::split_paths(value).filter(|path| !path.as_os_str().is_empty()).collect()
}

fn search(trust: Trust, named: Option<Vec<PathBuf>>) -> Search {
    let here = env::current_dir().ok();
    Search { trust, named, here, patience: PATIENCE, answers_within: ANSWERS_WITHIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_one_several_or_no_client() {
        for (value, sockets) in
            [("", &[][..]), ("/run/a", &["/run/a"]), ("/run/a:/run/b", &["/run/a", "/run/b"])]
        {
            let sockets: Vec<_> = sockets.iter().map(PathBuf::from).collect();
            assert_eq!(sockets_of(OsStr::new(value)), sockets, "{value}");
        }
    }
}
