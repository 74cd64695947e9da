//! Tokens that outlive the client: a file for each, in a folder that nobody but the client's user can enter and that a reboot empties. The
//! caller sees to the latter. A client that starts on the folder gives users their tokens again, also after it was killed: each change of a
//! token changes its file before anybody is told.
//!
//! A file's name says whose token it is, so that a newer one replaces it and a token that is thrown away takes its file with it; what it
//! says is in it once more. It has a number for its form, the user, the group of the PAG or 0, and the token as the control socket has it.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afs_config::CellName;
use afs_wire::control::{GivenRxgk, GivenToken, RXGK_TOKEN_MAX, RxgkSecret, SessionKey, TICKET_MAX};
use afs_wire::ids::{AfsTime, Name, ViceId};
use rx_security::keys::EncType;
use rx_security::rxgk::{self, Dialect, RxgkTime, Secret};
use rx_security::ticket::{SessionKey as Key, TICKET_MIN};
use rx_security::{Level, Token, UnixTime};
use rxgen::xdr::{Opaque, OutOfBounds};
use rxgen::{Decoder, Xdr};
use zeroize::Zeroizing;

use super::{Holder, Own, Shown};
use crate::fid::{Pag, User};

/// The number that a file begins with: "AFT" and the version of its form, which is another one for a token of rxgk alone.
const FORM: u32 = 0x4146_5401;
const FORM_ONLY_RXGK: u32 = 0x4146_5402;

/// Bytes of a file at most: the ticket, the token of rxgk, names, and what is of fixed length.
const FILE_MAX: u64 = (TICKET_MAX + RXGK_TOKEN_MAX) as u64 + 4096;

/// Tokens that are kept of one local user: the newest. They take 1 MiB of memory at most, so that nobody fills a folder in /run.
const PER_USER_MAX: usize = 64;

/// The name of a file that is not complete.
const INCOMPLETE: &str = ".new";

/// A token that was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptToken {
    /// The user who has it.
    pub user: User,
    /// The cell that it is for.
    pub cell: CellName,
    /// The user's identity in the cell.
    pub holder: Holder,
    /// What the user shows, with the keys of its sessions.
    pub(super) shown: Shown,
}

/// The folder with the tokens that are kept.
#[derive(Debug)]
pub struct Kept {
    folder: PathBuf,
    /// The names of each local user's files, the newest last.
    files: HashMap<u32, VecDeque<String>>,
}

impl Kept {
    /// Opens a folder of this user's, and reads what an earlier client has kept in it. What cannot be used is removed.
    ///
    /// # Errors
    ///
    /// When the folder is somebody else's, or others may enter it.
    pub fn open(folder: &Path, owner: u32) -> io::Result<(Self, Vec<KeptToken>)> {
        let status = fs::symlink_metadata(folder)?;
        if !status.is_dir() || status.uid() != owner || status.mode() & 0o077 != 0 {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "{} must be a folder that user {owner} owns and nobody else may enter",
                    folder.display()
                ),
            ));
        }
        let mut all = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match read(&path, owner) {
                Ok((token, age)) if path.file_name().is_some_and(|name| *name == *token.file_name()) => {
                    all.push((age, token));
                }
                read => {
                    if let Err(error) = read {
                        tracing::warn!(file = %path.display(), %error, "a token that was kept cannot be used");
                    }
                    fs::remove_file(&path)?;
                }
            }
        }
        all.sort_by_key(|(age, _)| *age);
        let all: Vec<_> = all.into_iter().map(|(_, token)| token).collect();
        let mut files = HashMap::<_, VecDeque<_>>::new();
        for token in &all {
            files.entry(token.user.uid).or_default().push_back(token.file_name());
        }
        Ok((Self { folder: folder.to_owned(), files }, all))
    }

    /// True if a token for that user and cell is kept.
    pub(super) fn has(&self, user: User, cell: &CellName) -> bool {
        let name = file_name(user, cell.as_str());
        self.files.get(&user.uid).is_some_and(|names| names.contains(&name))
    }

    /// Keeps a token, in place of the one that the user had for its cell.
    pub(super) fn put(&mut self, user: User, cell: &str, holder: &Holder, shown: &Shown) {
        let name = file_name(user, cell);
        // An older one would make the user somebody else.
        let written = write(&self.folder, &name, user, cell, holder, shown).inspect_err(|_| {
            self.remove(user, Some(cell));
        });
        if let Err(error) = written {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "a token cannot be kept: its owner needs 'aklog' after a restart of the client");
            return;
        }
        let names = self.files.entry(user.uid).or_default();
        names.retain(|other| *other != name);
        names.push_back(name);
        while names.len() > PER_USER_MAX {
            let oldest = names.pop_front().expect("there are some");
            remove_file(&self.folder.join(oldest));
        }
    }

    /// Forgets a user's token for a cell, or those for all cells.
    pub(super) fn remove(&mut self, user: User, cell: Option<&str>) {
        let Some(names) = self.files.get_mut(&user.uid) else { return };
        let (one, all) = (cell.map(|cell| file_name(user, cell)), file_name(user, ""));
        names.retain(|name| {
            let goes = one.as_ref().map_or_else(|| name.starts_with(&all), |one| name == one);
            if goes {
                remove_file(&self.folder.join(name));
            }
            !goes
        });
        if names.is_empty() {
            self.files.remove(&user.uid);
        }
    }
}

impl KeptToken {
    /// The time until which it is good.
    pub fn end(&self) -> UnixTime {
        self.shown.own.end
    }

    fn file_name(&self) -> String {
        file_name(self.user, self.cell.as_str())
    }
}

/// The name of the file for a user's token for a cell. Cells have no other characters than file names.
fn file_name(user: User, cell: &str) -> String {
    format!("{}.{}.{cell}", user.uid, user.pag.map_or(0, Pag::group))
}

fn remove_file(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::error!(file = %path.display(), %error, "a token that was thrown away cannot be removed: remove its file");
        }
        Ok(()) | Err(_) => {}
    }
}

/// Writes a file under another name, and gives it its own when it is complete.
fn write(
    folder: &Path,
    name: &str,
    user: User,
    cell: &str,
    holder: &Holder,
    shown: &Shown,
) -> io::Result<()> {
    let token = shown.own.rxkad.as_ref().map(|token| given(cell, holder, token)).transpose();
    let token = token.map_err(|_| ErrorKind::InvalidData)?;
    let rxgk = shown.rxgk.as_ref().map(|rxgk| given_rxgk(cell, rxgk)).transpose();
    let rxgk = rxgk.map_err(|_| ErrorKind::InvalidData)?;
    // Large enough to stay where it is.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize));
    token.as_ref().map_or(FORM_ONLY_RXGK, |_| FORM).encode(&mut bytes);
    user.uid.encode(&mut bytes);
    user.pag.map_or(0, Pag::group).encode(&mut bytes);
    match token {
        Some(token) => token.encode(&mut bytes),
        None => {
            Name::new(&*holder.name).map_err(|_| ErrorKind::InvalidData)?.encode(&mut bytes);
            holder.id.unwrap_or(ViceId::ANONYMOUS).encode(&mut bytes);
            AfsTime(shown.own.start.0).encode(&mut bytes);
        }
    }
    if let Some(rxgk) = rxgk {
        rxgk.encode(&mut bytes);
    }
    let incomplete = folder.join(INCOMPLETE);
    remove_file(&incomplete);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&incomplete)?;
    file.write_all(&bytes).and_then(|()| fs::rename(&incomplete, folder.join(name))).inspect_err(|_| {
        remove_file(&incomplete);
    })
}

/// Reads a file that only its owner can have written, and the time at which that was.
fn read(path: &Path, owner: u32) -> io::Result<(KeptToken, (i64, i64))> {
    let invalid = |why: &'static str| io::Error::new(ErrorKind::InvalidData, why);
    let mut options = OpenOptions::new();
    let file: File = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let status = file.metadata()?;
    if !status.is_file() || status.uid() != owner || status.mode() & 0o077 != 0 || status.nlink() != 1 {
        return Err(invalid("others may have written or read it"));
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_MAX as usize));
    file.take(FILE_MAX).read_to_end(&mut bytes)?;
    let token = decode(&bytes).ok_or_else(|| invalid("it has another form"))?;
    Ok((token, (status.mtime(), status.mtime_nsec())))
}

fn decode(bytes: &[u8]) -> Option<KeptToken> {
    let mut decoder = Decoder::new(bytes);
    let form = u32::decode(&mut decoder).ok()?;
    let uid = u32::decode(&mut decoder).ok()?;
    let pag = match u32::decode(&mut decoder).ok()? {
        0 => None,
        group => Some(Pag::of_group(group)?),
    };
    let (cell, holder, shown) = match form {
        FORM => {
            let token = GivenToken::decode(&mut decoder).ok()?;
            let rxgk = match decoder.clone().finish() {
                Ok(()) => None,
                Err(_) => Some(Arc::new(taken_rxgk(&GivenRxgk::decode(&mut decoder).ok()?)?)),
            };
            let (holder, own) = taken(&token);
            (token.cell, holder, Shown { own: Own::of(own), rxgk, callback: None })
        }
        FORM_ONLY_RXGK => {
            let (name, id) = (Name::decode(&mut decoder).ok()?, ViceId::decode(&mut decoder).ok()?);
            let start = AfsTime::decode(&mut decoder).ok()?;
            let token = GivenRxgk::decode(&mut decoder).ok()?;
            let shown = Shown::only_rxgk(taken_rxgk(&token)?, UnixTime(start.0));
            (token.cell, holder_of(&name, id), shown)
        }
        _ => return None,
    };
    decoder.finish().ok()?;
    let cell = CellName::new(std::str::from_utf8(&cell).ok()?)?;
    Some(KeptToken { user: User { uid, pag }, cell, holder, shown })
}

/// A token as the control socket has it.
///
/// # Errors
///
/// Something is longer than it has room for.
pub fn given(cell: &str, holder: &Holder, token: &Token) -> Result<GivenToken, OutOfBounds> {
    Ok(GivenToken {
        cell: Name::new(cell)?,
        holder: Name::new(&*holder.name)?,
        id: holder.id.unwrap_or(ViceId::ANONYMOUS),
        kvno: token.kvno,
        session_key: SessionKey(token.session_key.bytes()),
        start: AfsTime(token.start.0),
        end: AfsTime(token.end.0),
        ticket: Opaque::new(token.ticket.clone())?,
    })
}

/// A token of rxgk as the control socket has it.
///
/// # Errors
///
/// Something is longer than it has room for.
pub fn given_rxgk(cell: &str, token: &rxgk::Token) -> Result<GivenRxgk, OutOfBounds> {
    Ok(GivenRxgk {
        cell: Name::new(cell)?,
        enctype: token.secret.kind().0,
        secret: RxgkSecret(token.secret.bytes().to_vec()),
        level: token.level.number(),
        lifetime: token.lifetime,
        bytelife: token.bytelife,
        expiration: token.end.0,
        token: Opaque::new(token.token.clone())?,
    })
}

/// The token of what [`given_rxgk`] makes; `None` for what is none.
pub fn taken_rxgk(given: &GivenRxgk) -> Option<rxgk::Token> {
    (given.token.len() >= TICKET_MIN).then_some(())?;
    Some(rxgk::Token {
        dialect: Dialect::OURS,
        secret: Secret::new(EncType(given.enctype), &given.secret.0)?,
        level: Level::of_number(given.level)?,
        lifetime: given.lifetime,
        bytelife: given.bytelife,
        end: RxgkTime(given.expiration),
        token: given.token.to_vec(),
    })
}

/// The owner and the token of what [`given`] makes.
pub fn taken(given: &GivenToken) -> (Holder, Token) {
    let token = Token {
        session_key: Key::new(given.session_key.0),
        ticket: given.ticket.to_vec(),
        kvno: given.kvno,
        start: UnixTime(given.start.0),
        end: UnixTime(given.end.0),
    };
    (holder_of(&given.holder, given.id), token)
}

/// The owner of a token, as the control socket tells it.
pub fn holder_of(name: &Name, id: ViceId) -> Holder {
    let name = String::from_utf8_lossy(name).into_owned();
    Holder { name, id: (id != ViceId::ANONYMOUS).then_some(id) }
}
