//! The check whether another database server keeps its databases where this one does, as far as the two show it: a server tells
//! `udebug` when its database was made and how often it was changed since. What it tells has to be what the store here has.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use afs_admin::Login;
use afs_celldb::database::Image;
use afs_celldb::{CellStore, OpenError, Version, version_in};
use afs_wire::ubik::UbikDebugOld;
use afs_wire::ubik::vote::{DebugOld, Vote};
use rx::{Connection, Endpoint};
use rx_proto::config::CallLimits;
use rx_proto::ids::ServiceId;
use rxgen::Interface;
use tokio::time::{Instant, sleep};

/// The time within which a server must answer.
const DEAD_AFTER: Duration = Duration::from_secs(3);

/// The time within which a server must tell of a change that is in the store. One that has lost etcd finds that out within two
/// seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(100);

/// The time until which a server is the sync site whose databases are in a file: for ever.
const FOREVER: u32 = 0x7fff_ffff;

/// The finding about another server's databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Those of the store here, or a copy of them that nobody has changed since.
    Same,
    /// Others, in a file of its own.
    InFile,
    /// Others.
    Elsewhere,
    /// It is not known: etcd does not answer that server.
    WithoutEtcd,
}

/// The answer of a server.
#[derive(Clone, Copy, Debug)]
struct Reported {
    epoch: u32,
    /// Only the lowest bits of the counter fit into the answer.
    counter: u32,
    is_sync_site: bool,
    until: u32,
}

impl From<UbikDebugOld> for Reported {
    fn from(state: UbikDebugOld) -> Self {
        Self {
            epoch: state.local_version.epoch.0,
            counter: state.local_version.counter as u32,
            is_sync_site: state.am_sync_site != 0,
            until: state.sync_site_until.0,
        }
    }
}

/// Finds out whether a server of a database keeps it in this store.
///
/// # Errors
///
/// If the store or the server does not answer.
pub(super) async fn compare<I: Image>(
    store: &Arc<dyn CellStore>,
    endpoint: &Endpoint,
    server: SocketAddr,
) -> Result<Sharing, Failure> {
    let connection = endpoint.connect(server, ServiceId(Vote::SERVICE_ID), Login::anonymous().security());
    connection.set_limits(CallLimits { dead: DEAD_AFTER, ..CallLimits::default() });
    let before = version_in::<I>(&**store).await.map_err(Failure::Store)?;
    let until = Instant::now() + TIMEOUT;
    loop {
        let told = ask(&connection).await?;
        let after = version_in::<I>(&**store).await.map_err(Failure::Store)?;
        match judge(before, told, after) {
            // It may only be late.
            Sharing::Elsewhere | Sharing::WithoutEtcd if Instant::now() < until => sleep(PAUSE).await,
            sharing => return Ok(sharing),
        }
    }
}

/// Judges an answer, by what the store had before the question and after the answer.
fn judge(before: Version, told: Reported, after: Version) -> Sharing {
    if told.is_sync_site && told.until == FOREVER {
        return Sharing::InFile;
    }
    let is_unchanged = told.epoch == before.epoch && told.counter == before.counter as u32;
    let oldest = if before.epoch == after.epoch { before.counter } else { 0 };
    let is_between = told.epoch == after.epoch
        && u64::from((after.counter as u32).wrapping_sub(told.counter))
            <= after.counter.saturating_sub(oldest);
    match (is_unchanged || is_between, told.is_sync_site) {
        (true, _) => Sharing::Same,
        (false, true) => Sharing::Elsewhere,
        (false, false) => Sharing::WithoutEtcd,
    }
}

async fn ask(connection: &Connection) -> Result<Reported, Failure> {
    let answer = connection.rpc(&DebugOld {}).await;
    answer.map(|reply| Reported::from(reply.db)).map_err(|error| Failure::Server(error.to_string()))
}

/// The reason why nothing was found out.
#[derive(Debug)]
pub(super) enum Failure {
    Store(OpenError),
    Server(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Server(error) => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(epoch: u32, counter: u64) -> Version {
        Version { epoch, counter }
    }

    fn told(epoch: u32, counter: u32) -> Reported {
        Reported { epoch, counter, is_sync_site: true, until: 1_700_000_060 }
    }

    #[test]
    fn what_a_server_of_the_same_store_may_tell_is_between_what_the_store_had_before_and_after() {
        let (before, after) = (version(7, 10), version(7, 13));
        for (counter, sharing) in [
            (9, Sharing::Elsewhere),
            (10, Sharing::Same),
            (12, Sharing::Same),
            (13, Sharing::Same),
            (14, Sharing::Elsewhere),
        ] {
            assert_eq!(judge(before, told(7, counter), after), sharing, "{counter}");
            assert_eq!(judge(before, told(8, counter), after), Sharing::Elsewhere, "{counter}");
        }
        // The answer has 32 bits of the counter.
        let (before, after) = (version(7, u64::from(u32::MAX)), version(7, (1 << 32) + 1));
        assert_eq!(judge(before, told(7, u32::MAX), after), Sharing::Same);
        assert_eq!(judge(before, told(7, 0), after), Sharing::Same);
        assert_eq!(judge(before, told(7, 2), after), Sharing::Elsewhere);
    }

    #[test]
    fn a_database_that_is_made_meanwhile_is_no_other_one() {
        let (before, after) = (version(0, 0), version(7, 2));
        for (epoch, counter) in [(0, 0), (7, 1), (7, 2)] {
            assert_eq!(judge(before, told(epoch, counter), after), Sharing::Same);
        }
        assert_eq!(judge(before, told(0, 0), before), Sharing::Same);
        assert_eq!(judge(before, told(6, 1), before), Sharing::Elsewhere);
    }

    #[test]
    fn a_server_without_etcd_may_be_behind_and_one_with_a_file_says_so() {
        let now = version(7, 10);
        let without = |counter| Reported { is_sync_site: false, until: 0, ..told(7, counter) };
        assert_eq!(judge(now, without(9), now), Sharing::WithoutEtcd);
        assert_eq!(judge(now, without(10), now), Sharing::Same);
        assert_eq!(judge(now, Reported { until: FOREVER, ..told(7, 10) }, now), Sharing::InFile);
    }
}
