//! The identity and the groups of a caller, as the protection database says, remembered for a while.

use std::future::Future;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use afs_wire::ids::ViceId;
use lru::LruCache;
use rx_proto::time::Instant;

/// An answer that may take a call to another server.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ProtectionError>> + Send + 'a>>;

/// The protection database did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the protection database does not answer: {reason}")]
pub struct ProtectionError {
    /// The question, the server that was asked, and the problem.
    pub reason: String,
}

/// A caller's id, and the ids that count for them in access lists: their own, those of their groups, and those that all
/// have (the CPS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The caller's id.
    pub id: ViceId,
    /// All of them.
    pub groups: Vec<ViceId>,
}

impl Membership {
    /// Makes the caller without a name.
    pub fn anonymous() -> Self {
        Self { id: ViceId::ANONYMOUS, groups: vec![ViceId::SYSTEM_ANYUSER, ViceId::ANONYMOUS] }
    }
}

/// Questions of a file server to the protection database: in this process, or at another server.
pub trait Protection: Send + Sync + 'static {
    /// The caller whom the security class names so. If the database does not know the name, it is
    /// [`Membership::anonymous`].
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership>;

    /// The groups that a host is in: empty for most.
    fn host_groups(&self, host: IpAddr) -> Answer<'_, Vec<ViceId>>;

    /// The ids of these names, in their order; `None` for those that there are not.
    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>>;

    /// The names of these ids, in their order; of those that there are not, the number as text.
    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>>;

    /// True if the caller administers this server (UserList), which is not a question of groups.
    fn is_superuser(&self, identity: &str) -> bool;
}

/// Memberships remembered at once, of users and of hosts each: some 500 bytes for one with thirty groups.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

/// The time for which a failed answer counts as "nobody in particular" before the database is asked again: a database that
/// is away must not cost each call its timeout.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Answers of a [`Protection`], kept for a while.
pub(crate) struct Memberships {
    protection: Arc<dyn Protection>,
    life: Duration,
    users: Mutex<Remembered<String, Arc<Membership>>>,
    hosts: Mutex<Remembered<IpAddr, Arc<[ViceId]>>>,
    anonymous: Arc<Membership>,
}

impl Memberships {
    pub(crate) fn new(protection: Arc<dyn Protection>, life: Duration) -> Self {
        let anonymous = Arc::new(sorted(Membership::anonymous()));
        Self { protection, life, users: Mutex::default(), hosts: Mutex::default(), anonymous }
    }

    pub(crate) fn database(&self) -> &dyn Protection {
        &*self.protection
    }

    pub(crate) fn anonymous(&self) -> &Arc<Membership> {
        &self.anonymous
    }

    /// The membership of a caller. If the database does not answer, an anonymous caller: with fewer rights than theirs,
    /// never with more.
    pub(crate) async fn of(&self, now: Instant, identity: Option<&str>) -> Arc<Membership> {
        let Some(identity) = identity else { return Arc::clone(&self.anonymous) };
        if let Some(membership) = lock(&self.users).get(now, identity) {
            return membership;
        }
        let (membership, life) = match self.protection.membership(identity).await {
            Ok(membership) => (Arc::new(sorted(membership)), self.life),
            Err(error) => {
                tracing::warn!(identity, %error, "a caller is treated as anonymous");
                (Arc::clone(&self.anonymous), RETRY_AFTER)
            }
        };
        lock(&self.users).put(now + life, identity.to_owned(), Arc::clone(&membership));
        membership
    }

    /// The groups of the host that somebody calls from.
    pub(crate) async fn of_host(&self, now: Instant, host: IpAddr) -> Arc<[ViceId]> {
        if let Some(groups) = lock(&self.hosts).get(now, &host) {
            return groups;
        }
        let (mut groups, life) = match self.protection.host_groups(host).await {
            Ok(groups) => (groups, self.life),
            Err(error) => {
                tracing::warn!(%host, %error, "a host is treated as being in no group");
                (Vec::new(), RETRY_AFTER)
            }
        };
        groups.sort_unstable();
        groups.dedup();
        let groups: Arc<[ViceId]> = groups.into();
        lock(&self.hosts).put(now + life, host, Arc::clone(&groups));
        groups
    }

    /// Forgets what was remembered of these.
    pub(crate) fn flush(&self, ids: &[ViceId], hosts: &[IpAddr]) {
        lock(&self.users).forget(|_, membership| ids.contains(&membership.id));
        lock(&self.hosts).forget(|host, _| hosts.contains(host));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sorted(mut membership: Membership) -> Membership {
    membership.groups.sort_unstable();
    membership.groups.dedup();
    membership
}

#[derive(Debug)]
struct Remembered<K: Hash + Eq, V> {
    entries: LruCache<K, (Instant, V)>,
}

impl<K: Hash + Eq + Clone, V> Default for Remembered<K, V> {
    fn default() -> Self {
        // Made as it fills.
        let mut entries = LruCache::unbounded();
        entries.resize(MAX_REMEMBERED);
        Self { entries }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Remembered<K, V> {
    fn get<Q: ?Sized + Hash + Eq>(&mut self, now: Instant, key: &Q) -> Option<V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.entries.get(key).filter(|(until, _)| *until > now).map(|(_, value)| value.clone())
    }

    fn forget(&mut self, goes: impl Fn(&K, &V) -> bool) {
        let going = self.entries.iter().filter(|(key, (_, value))| goes(key, value));
        let going: Vec<K> = going.map(|(key, _)| key.clone()).collect();
        for key in going {
            self.entries.pop(&key);
        }
    }

    fn put(&mut self, until: Instant, key: K, value: V) {
        self.entries.put(key, (until, value));
    }
}
