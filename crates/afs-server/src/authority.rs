//! Who callers are to this server, and who of them may administer it: what the services' traits ask, answered from the
//! configuration folder. A changed UserList counts within a second.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use afs_celldb::caller::{self, Caller};
use afs_config::{CellName, RealmFiles, UserList};
use rx_security::Identity;

/// How often a UserList is looked at while it is asked for.
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
    modified: Option<SystemTime>,
    looked: Instant,
}

impl CellAuthority {
    /// Of a cell with these realms, whose superusers are in the folder's UserList.
    pub(crate) fn new(cell: CellName, realms: RealmFiles, folder: &Path) -> Self {
        let file = folder.join("UserList");
        let (list, modified) = (read(&file), modified(&file));
        Self { cell, realms, file, users: Mutex::new(Users { list, modified, looked: Instant::now() }) }
    }

    /// The UserList as it is now.
    pub(crate) fn users(&self) -> UserList {
        self.with_users(UserList::clone)
    }

    fn with_users<T>(&self, ask: impl FnOnce(&UserList) -> T) -> T {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.looked.elapsed() >= LOOK_EVERY {
            users.looked = Instant::now();
            let modified = modified(&self.file);
            if modified != users.modified {
                users.modified = modified;
                users.list = read(&self.file);
                tracing::info!(file = %self.file.display(), superusers = users.list.users.len(), "the UserList was read anew");
            }
        }
        ask(&users.list)
    }

    /// Whether whom a security class has named so may administer this server: the holder of the cell's key, and those in the
    /// UserList. The empty name is nobody's.
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

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// A list that cannot be read has nobody in it: less may be done then, not more.
fn read(file: &Path) -> UserList {
    UserList::read(file).unwrap_or_else(|error| {
        tracing::error!(%error, "nobody is taken for a superuser by the UserList");
        UserList::default()
    })
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
    use caller::Authority as _;

    fn authority(name: &str, list: &str) -> CellAuthority {
        let folder = std::env::temp_dir().join(format!("afs-server-authority-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("UserList"), list).unwrap();
        let cell = CellName::new("lab.test").unwrap();
        let authority = CellAuthority::new(cell, RealmFiles::parse("KRB.TEST", ""), &folder);
        std::fs::remove_dir_all(folder).unwrap();
        authority
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
