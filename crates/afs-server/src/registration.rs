//! Telling the volume location database where this file server is, and whether it has rxgk: at the start, from time to time, since a
//! database may have been put back to an older state, and soon after it has got a key for rxgk.

use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use afs_admin::Error;
use afs_admin::vldb::LocationDb;
use afs_celldb::Database;
use afs_celldb::vldb::{VlError, Vldb};
use afs_wire::Uuid;
use afs_wire::abort::VL_MULTIPADDR;
use rx::Runtime;
use rx_security::UnixTime;
use rxgen::Abort;

use crate::classes::Classes;

/// The time until the next try after one that failed, and until it is seen that there is rxgk now.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// The time after which it is told again.
const AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);
/// Most addresses that a database keeps (VLDB notes 4).
const MAX_ADDRESSES: usize = 15;

/// The database that is told.
pub(crate) enum Vl {
    /// That of this process.
    Local(Arc<Database<Vldb>>),
    /// The cell's.
    Remote(LocationDb),
}

/// The facts that the database is told.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) uuid: Uuid,
    pub(crate) addresses: Vec<Ipv4Addr>,
    /// The classes by which it is called.
    pub(crate) classes: Classes,
}

impl Vl {
    async fn register(&self, registration: &Registration, has_rxgk: bool) -> Result<(), String> {
        let said = |code: i32| match Abort(code) {
            VL_MULTIPADDR => {
                "other servers of the VLDB have these addresses: look with 'vos listaddrs -printuuid', and \
                              remove what is not there any more with 'vos changeaddr -remove'"
                    .to_owned()
            }
            other => afs_wire::abort::find(other)
                .map_or_else(|| other.to_string(), |code| code.sentence.to_owned()),
        };
        let count = registration.addresses.len().min(MAX_ADDRESSES);
        let addresses = &registration.addresses[..count];
        match self {
            Self::Local(database) => {
                let now = UnixTime::of(SystemTime::now()).0;
                let bits: Vec<u32> = addresses.iter().copied().map(Ipv4Addr::to_bits).collect();
                let uuid = registration.uuid.to_bytes();
                let result: Result<(), VlError> = database
                    .change(now, move |vldb, rows| vldb.register(uuid, &bits, Some(has_rxgk), rows))
                    .await;
                result.map_err(|error| said(error.code()))
            }
            Self::Remote(vldb) => match vldb.register(registration.uuid, addresses, has_rxgk).await {
                Ok(()) => Ok(()),
                Err(Error::Call(error) | Error::Repeated(error)) if error.code().0 > 0 => {
                    Err(said(error.code().0))
                }
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// Registers, and again from time to time for as long as `alive` is there. In the database of this process that is done when this
/// returns: nobody who finds the server up is to be sent to where it was before.
pub(crate) async fn register(
    vl: Vl,
    registration: Registration,
    runtime: &Arc<dyn Runtime>,
    alive: Weak<()>,
) {
    let (mut told, mut next) = (None, runtime.now());
    if matches!(vl, Vl::Local(_)) {
        next += tell(&vl, &registration, &mut told).await;
    }
    let clock = Arc::clone(runtime);
    runtime.spawn(Box::pin(async move {
        while alive.strong_count() > 0 {
            let now = clock.now();
            if now >= next || told.is_some_and(|told| told != registration.classes.has_rxgk()) {
                next = now + tell(&vl, &registration, &mut told).await;
            }
            clock.sleep_until(next.min(clock.now() + RETRY_AFTER)).await;
        }
    }));
}

/// Registers once; how long to wait until the next time. What was told of rxgk, if the database has heard it, is noted.
async fn tell(vl: &Vl, registration: &Registration, told: &mut Option<bool>) -> Duration {
    let addresses: Vec<String> = registration.addresses.iter().map(Ipv4Addr::to_string).collect();
    let addresses = addresses.join(" ");
    let has_rxgk = registration.classes.has_rxgk();
    let result = vl.register(registration, has_rxgk).await;
    let now = result.is_ok().then_some(has_rxgk);
    let is_news = std::mem::replace(told, now) != now;
    match result {
        Ok(()) => {
            if is_news {
                tracing::info!(addresses, has_rxgk, "registered with the volume location database");
            }
            AGAIN_AFTER
        }
        Err(error) => {
            tracing::warn!(
                addresses,
                error,
                "not registered with the volume location database, trying again"
            );
            RETRY_AFTER
        }
    }
}
