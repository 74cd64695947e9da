//! Errors: the reasons why something could not be done, with the errno for a program and the text for a person.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use afs_wire::Errno;
use afs_wire::abort::Described;
use afs_wire::directory::DirectoryError;
use afs_wire::ids::VolumeId;
use afs_wire::rights::Rights;
use rx::RpcError;
use rxgen::Abort;

use crate::fid::Fid;

/// The reason why something could not be done.
#[derive(Debug, Clone)]
pub enum Error {
    /// A server refused it.
    Refused {
        /// The procedure.
        rpc: &'static str,
        /// The vnode.
        fid: Fid,
        /// The server's code.
        code: Abort,
    },
    /// None of the servers that have it answers.
    Unreachable {
        /// The operation that could not be done.
        what: String,
        /// The servers.
        servers: Vec<SocketAddr>,
    },
    /// A call broke in the middle of its data: the server went away, or gave it up. Another one may succeed.
    Broken {
        /// The request.
        what: String,
        /// The outcome of the call.
        problem: String,
    },
    /// Servers answer that they cannot do it now, for longer than the client waits.
    Busy {
        /// The procedure.
        rpc: &'static str,
        /// The vnode.
        fid: Fid,
        /// The last code.
        code: Abort,
    },
    /// A server sent what makes no sense.
    BadReply {
        /// The request.
        what: String,
        /// The problem.
        problem: String,
    },
    /// A server sent a directory that is none.
    BadDirectory {
        /// The directory.
        fid: Fid,
        /// The problem with it.
        problem: DirectoryError,
    },
    /// No entry of this name.
    NoEntry {
        /// The directory.
        dir: Fid,
        /// The name.
        name: String,
    },
    /// There is an entry of this name.
    Exists {
        /// The directory.
        dir: Fid,
        /// The name.
        name: String,
    },
    /// The vnode is no longer there.
    Gone {
        /// The vnode.
        fid: Fid,
    },
    /// A name that no entry can have.
    BadName {
        /// The name.
        name: String,
    },
    /// Longer than a name or a link's target can be.
    NameTooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// Something else than a directory.
    NotADirectory {
        /// The vnode.
        fid: Fid,
    },
    /// A directory, where none can be.
    IsADirectory {
        /// The vnode.
        fid: Fid,
    },
    /// Neither a symbolic link nor a mount point.
    NotALink {
        /// The vnode.
        fid: Fid,
    },
    /// The user's rights do not allow it.
    NoAccess {
        /// The vnode.
        fid: Fid,
        /// The rights that it takes.
        needed: Rights,
    },
    /// The user's token was refused or thrown away: what needs it is not done as nobody.
    NoToken {
        /// The cell.
        cell: String,
    },
    /// A server has refused the user's token of rxgk, or the user's device has none: nothing is done as nobody.
    TokenRefused {
        /// The cell.
        cell: String,
        /// The user's name in it; empty if it is not known.
        name: String,
        /// True if it is a device's token.
        is_device: bool,
    },
    /// The user has a token of rxgk only, which the server does not take: nothing is done there as nobody.
    NoRxgk {
        /// The server.
        server: SocketAddr,
    },
    /// The local user has as many tokens as one may have in a client, in all PAGs together.
    TooManyTokens {
        /// The user.
        uid: u32,
    },
    /// The volume cannot be written: it is read-only or a backup, or this is the dynamic root.
    ReadOnly {
        /// The vnode.
        fid: Fid,
    },
    /// The two are not in the same volume or directory, as this wants them to be.
    Apart {
        /// The one.
        from: Fid,
        /// The other.
        to: Fid,
    },
    /// No such cell.
    NoCell {
        /// Its name.
        cell: String,
    },
    /// No file knows the cell, and the DNS does not answer.
    DnsSilent {
        /// The cell.
        cell: String,
        /// The problem.
        problem: String,
    },
    /// The cell has no such volume.
    NoVolume {
        /// The cell.
        cell: String,
        /// The volume, by name or number.
        volume: String,
    },
    /// A cell's database knows the volume, but no server that has it now.
    NoSite {
        /// The cell.
        cell: String,
        /// The volume.
        volume: VolumeId,
    },
    /// A mount point that leads back to itself, or too many in a row.
    MountLoop {
        /// The mount point.
        fid: Fid,
    },
    /// A mount point whose text makes no sense.
    BadMountPoint {
        /// The mount point.
        fid: Fid,
        /// Its text.
        text: String,
    },
    /// Another lock is held.
    Locked {
        /// The file.
        fid: Fid,
    },
    /// The server, which alone can keep others from a lock, is away.
    NoLock {
        /// The file.
        fid: Fid,
    },
    /// A file too large for the protocol or the server.
    TooLarge {
        /// The file.
        fid: Fid,
    },
    /// An argument that cannot be.
    Invalid {
        /// The thing.
        what: String,
    },
    /// Something that this client or the protocol cannot do.
    Unsupported {
        /// The thing.
        what: &'static str,
    },
    /// This machine failed: the cache's disk, a socket.
    Local {
        /// The operation.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The client is ending.
    Closing,
}

impl Error {
    /// An error of this machine.
    pub fn local(what: impl Into<String>, source: io::Error) -> Self {
        Self::Local { what: what.into(), source: Arc::new(source) }
    }

    /// Makes the error of a procedure that was about a fid: see `afs_failover` for what is tried before it comes to this.
    pub fn of_rpc(rpc: &'static str, fid: Fid, error: &RpcError) -> Self {
        let code = match error {
            RpcError::Call { source, .. } => afs_failover::peers_code(source),
            RpcError::Reply { .. } => None,
        };
        if let Some(code) = code {
            return Self::Refused { rpc, fid, code };
        }
        match error {
            RpcError::Call { source: rx::CallError::EndpointClosed, .. } => Self::Closing,
            RpcError::Call { source, .. } => {
                Self::BadReply { what: format!("{rpc} of {fid}"), problem: source.to_string() }
            }
            RpcError::Reply { .. } => {
                Self::BadReply { what: format!("{rpc} of {fid}"), problem: error.to_string() }
            }
        }
    }

    /// The errno for a program.
    pub fn errno(&self) -> Errno {
        match self {
            // What a server says of itself, and not of the file, is a fault to a program.
            Self::Refused { code, .. } => afs_wire::abort::errno(*code).unwrap_or(Errno::EIO),
            Self::Busy { code, .. } => match afs_wire::abort::errno(*code) {
                Some(Errno::EIO) => Errno::EIO,
                Some(_) | None => Errno::EBUSY,
            },
            Self::Unreachable { .. } | Self::Broken { .. } | Self::DnsSilent { .. } => Errno::ETIMEDOUT,
            Self::BadReply { .. } | Self::BadDirectory { .. } => Errno::EIO,
            Self::NoEntry { .. } | Self::Gone { .. } => Errno::ENOENT,
            Self::Exists { .. } => Errno::EEXIST,
            Self::BadName { .. } | Self::Invalid { .. } => Errno::EINVAL,
            Self::NameTooLong { .. } => Errno::ENAMETOOLONG,
            Self::NotADirectory { .. } => Errno::ENOTDIR,
            Self::IsADirectory { .. } => Errno::EISDIR,
            Self::NotALink { .. } => Errno::EINVAL,
            Self::NoAccess { .. } | Self::NoToken { .. } => Errno::EACCES,
            // In programs' words: "Key was rejected by service". kAFS says the same.
            Self::TokenRefused { .. } | Self::NoRxgk { .. } => Errno::EKEYREJECTED,
            Self::TooManyTokens { .. } => Errno::ENOSPC,
            Self::ReadOnly { .. } => Errno::EROFS,
            Self::Apart { .. } => Errno::EXDEV,
            Self::NoCell { .. } => Errno::ENOENT,
            Self::NoVolume { .. } | Self::NoSite { .. } | Self::BadMountPoint { .. } => Errno::ENODEV,
            Self::MountLoop { .. } => Errno::ELOOP,
            Self::Locked { .. } => Errno::EAGAIN,
            Self::NoLock { .. } => Errno::ENOLCK,
            Self::TooLarge { .. } => Errno::EFBIG,
            Self::Unsupported { .. } => Errno::EOPNOTSUPP,
            Self::Local { source, .. } => Errno(source.raw_os_error().unwrap_or(Errno::EIO.0)),
            Self::Closing => Errno::ESHUTDOWN,
        }
    }

    /// True if there was no room for it on this machine.
    pub fn is_full_here(&self) -> bool {
        matches!(self, Self::Local { source, .. } if source.raw_os_error() == Some(Errno::ENOSPC.0))
    }

    /// True if it is for want of rights, or of a token that servers take.
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Errno::EACCES | Errno::EPERM | Errno::EKEYREJECTED)
    }

    /// True if it is about the servers or the way there, so that it may well be otherwise in a moment; not about the file.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Broken { .. }
                | Self::Busy { .. }
                | Self::NoSite { .. }
                | Self::DnsSilent { .. }
                | Self::Closing
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { rpc, fid, code } => write!(f, "{rpc} of {fid}: {}", Described(*code)),
            Self::Busy { rpc, fid, code } => {
                write!(f, "{rpc} of {fid}: {}; given up after waiting", Described(*code))
            }
            Self::Unreachable { what, servers } => {
                write!(f, "{what}: no answer from ")?;
                for (i, server) in servers.iter().enumerate() {
                    write!(f, "{}{}", if i == 0 { "" } else { ", " }, server.ip())?;
                }
                if servers.is_empty() {
                    f.write_str("any server")?;
                }
                f.write_str("; see fs checkservers")
            }
            Self::Broken { what, problem } | Self::BadReply { what, problem } => {
                write!(f, "{what}: {problem}")
            }
            Self::BadDirectory { fid, problem } => write!(f, "the directory {fid} cannot be read: {problem}"),
            Self::NoEntry { dir, name } => write!(f, "there is no {name:?} in {dir}"),
            Self::Exists { dir, name } => write!(f, "there is a {name:?} in {dir} already"),
            Self::Gone { fid } => write!(f, "{fid} is no longer there"),
            Self::BadName { name } => write!(f, "{name:?} cannot be a name"),
            Self::NameTooLong { bytes } => write!(f, "a name of {bytes} bytes is too long"),
            Self::NotADirectory { fid } => write!(f, "{fid} is not a directory"),
            Self::IsADirectory { fid } => write!(f, "{fid} is a directory"),
            Self::NotALink { fid } => write!(f, "{fid} is not a symbolic link"),
            Self::NoAccess { fid, needed } => {
                write!(f, "{fid}: the right {} is missing; see fs listacl", needed.letters())
            }
            Self::NoToken { cell } => {
                write!(f, "the token for {cell} is no longer good: 'aklog' gets another one")
            }
            Self::TokenRefused { cell, name, is_device: true } => write!(
                f,
                "this device has no token of {name}'s that servers of {cell} take: the client's log has the reason"
            ),
            Self::TokenRefused { cell, name, is_device: false } => {
                let name = if name.is_empty() { "the user" } else { name };
                write!(
                    f,
                    "a server refuses the token of rxgk that {name} has for {cell}: 'aklog' gets another one, 'unlog' goes on without"
                )
            }
            Self::NoRxgk { server } => {
                write!(
                    f,
                    "the file server {} has no rxgk, and the user's token is of rxgk only: 'unlog' goes on without a token",
                    server.ip()
                )
            }
            Self::TooManyTokens { uid } => {
                write!(f, "the user {uid} has too many tokens in all PAGs together: 'unlog' throws some away")
            }
            Self::ReadOnly { fid } => write!(f, "{fid} is in a read-only volume"),
            Self::Apart { from, to } => write!(f, "{from} and {to} are not in the same volume or directory"),
            Self::NoCell { cell } => write!(f, "there is no cell {cell}: see CellServDB"),
            Self::DnsSilent { cell, problem } => {
                write!(
                    f,
                    "whether there is a cell {cell} the DNS does not tell: {problem}; see /etc/resolv.conf"
                )
            }
            Self::NoVolume { cell, volume } => write!(f, "the cell {cell} has no volume {volume}"),
            Self::NoSite { cell, volume } => {
                write!(f, "no server of {cell} has the volume {volume} now: see vos examine")
            }
            Self::MountLoop { fid } => write!(f, "the mount point {fid} leads back to itself"),
            Self::BadMountPoint { fid, text } => write!(f, "the mount point {fid} reads {text:?}"),
            Self::Locked { fid } => write!(f, "{fid} is locked by another"),
            Self::NoLock { fid } => write!(f, "{fid} cannot be locked while its server is away"),
            Self::TooLarge { fid } => write!(f, "{fid} would be too large"),
            Self::Invalid { what } => f.write_str(what),
            Self::Unsupported { what } => write!(f, "{what} cannot be done in AFS"),
            Self::Local { what, source } => write!(f, "{what}: {source}"),
            Self::Closing => f.write_str("the client is ending"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Local { source, .. } => Some(source),
            Self::BadDirectory { problem, .. } => Some(problem),
            _ => None,
        }
    }
}
