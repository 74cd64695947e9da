//! The identity of callers for this server, and the right to administer it: what the services' traits ask, answered
//! from the configuration folder. A changed UserList counts within a second.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use afs_celldb::caller::{self, Caller};
use afs_config::{CellName, RealmFiles, Superuser, UserList};
use rx_security::Identity;

/// The time between two looks at a UserList while it is asked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The authority of a server.
pub(crate) struct CellAuthority {
    cell: CellName,
    realms: RealmFiles,
    file: PathBuf,
    users: Mutex<Users>,
}

struct Users {
    list: UserList,
    /// The stamp of the file that was read, or could not be.
    stamp: Stamp,
    is_unread: bool,
    looked: Instant,
}

/// The properties in which a changed file differs: inode and time of change, which another owner or mode changes too.
type Stamp = Option<(u64, i64, i64)>;

/// A change of the UserList.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserChange {
    Add,
    Remove,
}

/// The reason why the UserList was not changed.
#[derive(Debug)]
pub(crate) enum BadUser {
    NoName,
    IsThere,
    IsNotThere,
    File(io::Error),
}

impl CellAuthority {
    /// Makes the authority of a cell with these realms. Its superusers are in the folder's UserList.
    pub(crate) fn new(cell: CellName, realms: RealmFiles, folder: &Path) -> Self {
        let file = folder.join("UserList");
        let (stamp, list) = (stamp_of(&file), read(&file));
        let (is_unread, list) = (list.is_none(), list.unwrap_or_default());
        let users = Users { list, stamp, is_unread, looked: Instant::now() };
        Self { cell, realms, file, users: Mutex::new(users) }
    }

    /// The UserList as it is now.
    pub(crate) fn users(&self) -> UserList {
        self.with_users(UserList::clone)
    }

    /// Adds a superuser to the UserList's file, or removes one; counts at once.
    ///
    /// # Errors
    ///
    /// If it is no name, is there already or is not there, or the file cannot be written.
    pub(crate) fn change_user(&self, name: &[u8], change: UserChange) -> Result<(), BadUser> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || byte.is_ascii_control();
        let text = String::from_utf8_lossy(name);
        let is_word =
            !name.iter().any(is_blank) && !text.contains(|c: char| c.is_whitespace() || c.is_control());
        let [user] = &UserList::parse_bytes(name).users[..] else { return Err(BadUser::NoName) };
        // Nobody has such a name; one that is there can be removed.
        let is_utf8 = !matches!(user, Superuser::NotUtf8(_));
        if !is_word || change == UserChange::Add && !is_utf8 {
            return Err(BadUser::NoName);
        }
        let mut bytes = match fs::read(&self.file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(BadUser::File(error)),
        };
        let is_listed = UserList::parse_bytes(&bytes).users.contains(user);
        match (change, is_listed) {
            (UserChange::Add, true) => return Err(BadUser::IsThere),
            (UserChange::Remove, false) => return Err(BadUser::IsNotThere),
            (UserChange::Add, false) => {
                if !bytes.is_empty() && !bytes.ends_with(b"\n") {
                    bytes.push(b'\n');
                }
                bytes.extend(name);
                bytes.push(b'\n');
            }
            (UserChange::Remove, true) => {
                let lines = bytes.split_inclusive(|byte| *byte == b'\n');
                let stays = |line: &&[u8]| !UserList::parse_bytes(line).users.contains(user);
                bytes = lines.filter(stays).collect::<Vec<_>>().concat();
            }
        }
        replace(&self.file, &bytes).map_err(BadUser::File)?;
        users.list = UserList::parse_bytes(&bytes);
        (users.stamp, users.is_unread) = (stamp_of(&self.file), false);
        Ok(())
    }

    fn with_users<T>(&self, ask: impl FnOnce(&UserList) -> T) -> T {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.looked.elapsed() >= LOOK_EVERY {
            users.looked = Instant::now();
            let stamp = stamp_of(&self.file);
            let is_changed = stamp != std::mem::replace(&mut users.stamp, stamp);
            if is_changed {
                let list = read(&self.file);
                (users.is_unread, users.list) = (list.is_none(), list.unwrap_or_default());
                tracing::info!(file = %self.file.display(), superusers = users.list.users.len(), "the UserList was read anew");
            } else if users.is_unread
                && let Ok(list) = UserList::read(&self.file)
            {
                (users.is_unread, users.list) = (false, list);
                tracing::info!(file = %self.file.display(), "the UserList can be read again");
            }
        }
        ask(&users.list)
    }

    /// True if the caller whom a security class has named so may administer this server: the holder of the cell's key, and
    /// those in the UserList. The empty name is nobody's.
    pub(crate) fn is_superuser(&self, identity: &str) -> bool {
        let Some(identity) = Identity::parse(identity) else { return false };
        if identity.is_local_superuser() {
            return true;
        }
        let name = match identity.instance() {
            "" => identity.name().to_owned(),
            instance => format!("{}.{instance}", identity.name()),
        };
        self.with_users(|users| match identity.realm() {
            Some(realm) => users.contains(&name, Some(realm)),
            None => {
                let mut realms =
                    [self.cell.as_str()].into_iter().chain(self.realms.realms.iter().map(String::as_str));
                users.contains(&name, None) || realms.any(|realm| users.contains(&name, Some(realm)))
            }
        })
    }
}

/// Puts new contents in the place of a file, as a whole and with the mode that the file had.
pub(crate) fn replace(file: &Path, contents: &[u8]) -> io::Result<()> {
    let new = file.with_extension("NEW");
    // One that was left over goes, and a link that somebody put there is not followed.
    let _ = fs::remove_file(&new);
    let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&new)?;
    if let Ok(old) = fs::metadata(file) {
        written.set_permissions(old.permissions())?;
    }
    written.write_all(contents)?;
    written.sync_all()?;
    fs::rename(&new, file)?;
    // Else one who was removed is there again after a loss of power.
    fs::File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn stamp_of(file: &Path) -> Stamp {
    let metadata = file.metadata().ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The list; one that cannot be read has nobody in it: less may be done then, not more.
fn read(file: &Path) -> Option<UserList> {
    let list = UserList::read(file);
    list.inspect_err(|error| tracing::error!(%error, "the UserList cannot be read: there are no superusers"))
        .ok()
}

impl caller::Authority for CellAuthority {
    fn caller(&self, _peer: SocketAddr, security: &str) -> Caller {
        let identity = match Identity::parse(security) {
            None => caller::Identity::Anonymous,
            Some(identity) if identity.is_local_superuser() => caller::Identity::Cell,
            Some(identity) => {
                let name = identity.to_string().to_lowercase();
                if identity.realm().is_some() {
                    caller::Identity::Foreign(name)
                } else {
                    caller::Identity::Local(name)
                }
            }
        };
        Caller { identity, is_superuser: self.is_superuser(security) }
    }

    fn is_local_realm(&self, realm: &str) -> bool {
        self.cell.as_str().eq_ignore_ascii_case(realm)
            || self.realms.realms.iter().any(|local| local.eq_ignore_ascii_case(realm))
    }

    fn is_noauth(&self) -> bool {
        false
    }
}

impl afs_volserver::Authority for CellAuthority {
    fn is_superuser(&self, identity: &str) -> bool {
        self.is_superuser(identity)
    }
}

impl fmt::Debug for CellAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellAuthority({})", self.cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;
    use caller::Authority as _;

    fn authority(name: &str, list: &str) -> CellAuthority {
        let folder = Folder::new(name);
        folder.write("UserList", list);
        let cell = CellName::new("lab.test").unwrap();
        CellAuthority::new(cell, RealmFiles::parse("KRB.TEST", ""), &folder)
    }

    #[test]
    fn superusers_hold_the_cells_key_or_are_listed() {
        let authority = authority("listed", "admin\nsmith/admin\njones@LAB.TEST\neve@other.test\n");
        for (who, expected) in [
            ("afs", true),
            ("admin", true),
            ("smith.admin", true),
            ("smith", false),
            ("jones", true),
            ("eve@other.test", true),
            ("eve", false),
            ("admin@other.test", false),
            ("afs@other.test", false),
            ("", false),
        ] {
            assert_eq!(authority.is_superuser(who), expected, "{who}");
        }
    }

    #[test]
    fn superusers_are_added_and_removed_and_the_rest_of_the_file_stays() {
        let folder = Folder::new("users");
        let file = folder.join("UserList");
        let other = b"# f\xfcr alle\nm\xfcller\n";
        let whole = |rest: &str| [other, rest.as_bytes()].concat();
        fs::write(&file, whole("admin\nsmith/admin")).unwrap();
        let cell = CellName::new("lab.test").unwrap();
        let authority = CellAuthority::new(cell, RealmFiles::parse("", ""), &folder);
        authority.change_user(b"bob", UserChange::Add).unwrap();
        assert!(authority.is_superuser("bob"));
        assert_eq!(fs::read(&file).unwrap(), whole("admin\nsmith/admin\nbob\n"));
        assert!(matches!(authority.change_user(b"bob", UserChange::Add), Err(BadUser::IsThere)));
        assert!(matches!(authority.change_user(b"nobody", UserChange::Remove), Err(BadUser::IsNotThere)));
        authority.change_user(b"smith.admin", UserChange::Remove).unwrap();
        assert!(!authority.is_superuser("smith.admin"));
        assert_eq!(fs::read(&file).unwrap(), whole("admin\nbob\n"));
        assert!(matches!(authority.change_user(b"m\xe4ller", UserChange::Remove), Err(BadUser::IsNotThere)));
        authority.change_user(b"m\xfcller", UserChange::Remove).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"# f\xfcr alle\nadmin\nbob\n");
        for name in
            [&b""[..], b"a b", b"#no", b"a\nb", b" 1 x", b"a\x07", "a\u{a0}b".as_bytes(), b"m\xfcller"]
        {
            assert!(matches!(authority.change_user(name, UserChange::Add), Err(BadUser::NoName)), "{name:?}");
        }
    }

    #[test]
    fn the_databases_are_told_who_calls() {
        let authority = authority("databases", "admin\n");
        let peer = "127.0.0.1:1".parse().unwrap();
        let caller = |who| authority.caller(peer, who);
        assert_eq!(caller(""), Caller::ANONYMOUS);
        assert_eq!(caller("afs").identity, caller::Identity::Cell);
        assert_eq!(caller("Admin").identity, caller::Identity::Local("admin".into()));
        assert_eq!(caller("x@other.test").identity, caller::Identity::Foreign("x@other.test".into()));
        assert!(authority.is_local_realm("krb.test") && authority.is_local_realm("LAB.test"));
        assert!(!authority.is_local_realm("other.test"));
    }
}
