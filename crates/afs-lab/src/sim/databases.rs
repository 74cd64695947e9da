//! The database server of a cell: volumes' locations and, where it has a disk, the people too. The disk is a simulated one, which
//! loses power and fails.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use afs_celldb::caller::NoAuth;
use afs_celldb::ptdb::{PtService, Ptdb, Rules};
use afs_celldb::store::embedded::EmbeddedStore;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::store::{CellStore, StoreError};
use afs_celldb::tokens::TokenService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Clock, Database, OpenError, rx_service};
use afs_fileserver::{Answer, Membership, Protection, ProtectionError};
use afs_sim::Sim;
use afs_store::Backend;
use afs_volume::disk::{Disk, SimulatedDisk};
use afs_wire::ids::ViceId;
use afs_wire::pt::{self, GetCPS, NameToID};
use afs_wire::rxgk::Rxgk;
use afs_wire::vl;
use rx::{Connection, Endpoint};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_security::{KeySet, UnixTime};
use rxgen::Interface;
use rxgen::xdr::{CharVec, XdrArray, XdrString};

use super::cell::{ALICE_ID, BOB_ID, LOCATION, classes};
use super::{bind, seconds};

const VL_PORT: u16 = 7003;
const PR_PORT: u16 = 7002;
const FILE: &str = "cell.redb";

/// The group of those who may change names in the whole cell's tests.
pub const WRITERS: &str = "system:writers";
const WRITERS_ID: ViceId = ViceId(-300);

/// The server, which may be dead.
pub struct Databases {
    sim: Sim,
    /// The disk. If there is none, there are only locations, in memory.
    disk: Option<SimulatedDisk>,
    /// The keys that they have; without any, nobody comes otherwise than as nobody.
    keys: KeySet,
    running: Vec<Endpoint>,
}

impl Databases {
    /// A server of empty databases, which runs. It makes tokens with these keys, if there is one for rxgk among them.
    pub fn new(sim: &Sim, disk: Option<SimulatedDisk>, keys: KeySet) -> Self {
        let mut databases = Self { sim: sim.clone(), disk, keys, running: Vec::new() };
        if let Some(disk) = &databases.disk {
            disk.create(FILE).unwrap();
            disk.sync_folder("").unwrap();
        }
        databases.start();
        databases
    }

    /// The disk, of a server that has one.
    pub fn disk(&self) -> &SimulatedDisk {
        self.disk.as_ref().expect("a disk that can fail")
    }

    /// True if users are asked for here.
    pub fn has_people(&self) -> bool {
        self.disk.is_some()
    }

    fn store(&self) -> Result<Arc<dyn CellStore>, StoreError> {
        let Some(disk) = &self.disk else { return Ok(Arc::new(MemoryStore::new())) };
        // As the store opens a file of the machine's: what a failed sync has left in memory does not count.
        disk.distrust();
        let file = disk.open(FILE).map_err(|error| StoreError::new("opening a simulated file", error))?;
        Ok(Arc::new(EmbeddedStore::over(Backend(file))?))
    }

    /// Starts the server on what its disk has.
    pub fn start(&mut self) {
        self.try_start().unwrap();
    }

    /// The same, where the disk may fail.
    pub fn try_start(&mut self) -> Result<(), StoreError> {
        let store = self.store()?;
        let sim = self.sim.clone();
        let clock: Clock = Arc::new(move || seconds(&sim));
        let bind = |port| bind(&self.sim, SocketAddr::from((LOCATION, port)));
        let vldb: Arc<Database<Vldb>> = open(Arc::clone(&store)).unwrap();
        let location = bind(VL_PORT);
        let (keys, wall) = (Arc::new(self.keys.clone()), self.sim.clone());
        let tokens = TokenService::new(
            Arc::clone(&vldb),
            Arc::new(move || Arc::clone(&keys)),
            Arc::new(move || UnixTime(seconds(&wall))),
            Arc::new(self.sim.clone()),
        );
        let vl = VlService::new(vldb, Arc::new(NoAuth), Arc::clone(&clock), RestrictedQuery::AnyUser);
        let security = classes(&self.sim, &self.keys, None);
        location.add_service(rx_service::<vl::Vl, _>(Arc::new(vl), security.clone()));
        location.add_service(rx_service::<Rxgk, _>(Arc::new(tokens), security));
        self.running = vec![location];
        if self.has_people() {
            let ptdb: Arc<Database<Ptdb>> = open(store).unwrap();
            let is_new = ptdb.read(Ptdb::is_empty);
            let pr = PtService::new(ptdb, Arc::new(NoAuth), clock, Rules::default());
            if is_new {
                ready(pr.initialize(None)).unwrap();
            }
            let people = bind(PR_PORT);
            people.add_service(rx_service::<pt::Pr, _>(Arc::new(pr), vec![Arc::new(Null)]));
            self.running.push(people);
        }
        Ok(())
    }

    /// Makes the users of the tests and their group.
    pub fn make_people(&self, from: &Endpoint) {
        let pr = connect(from);
        self.sim.block_on(async move {
            for (name, id) in [("alice", ALICE_ID), ("bob", BOB_ID), (WRITERS, WRITERS_ID)] {
                let (name, owner) = (XdrString::new(name).unwrap(), ViceId::SYSTEM_ADMINISTRATORS);
                pr.rpc(&pt::INewEntry { name, id, owner }).await.unwrap();
            }
            for uid in [ALICE_ID, BOB_ID] {
                pr.rpc(&pt::AddToGroup { uid, gid: WRITERS_ID }).await.unwrap();
            }
        });
    }

    /// Ends it as a crash does: it says nothing to anybody.
    pub fn kill(&mut self) {
        for endpoint in self.running.drain(..) {
            self.sim.cut_off(endpoint.local_addr());
            endpoint.shut_down();
        }
    }

    /// The process is gone at once, or the machine if there is a seed: the disk is as it is found then.
    pub fn crash(&mut self, power_loss: Option<u64>) {
        self.kill();
        self.disk = Some(match power_loss {
            Some(seed) => self.disk().after_power_loss(seed),
            None => self.disk().after_kill(),
        });
    }
}

fn connect(from: &Endpoint) -> Connection {
    from.connect(SocketAddr::from((LOCATION, PR_PORT)), ServiceId(pt::Pr::SERVICE_ID), Box::new(Null))
}

/// What comes of work that waits for nothing here: neither store has a thread.
fn ready<T>(work: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(work).expect("the store does not wait")
}

fn open<I: afs_celldb::database::Image>(store: Arc<dyn CellStore>) -> Result<Arc<Database<I>>, OpenError> {
    ready(Database::open(store)).map(Arc::new)
}

/// The users, as the database server tells them.
pub struct AsksPr(Connection);

impl AsksPr {
    /// Asked from this port.
    pub fn from(endpoint: &Endpoint) -> Self {
        Self(connect(endpoint))
    }

    async fn ids_of(&self, names: &[String]) -> Result<Vec<Option<ViceId>>, ProtectionError> {
        let names: Vec<_> = names.iter().map(|name| CharVec::from_text(name).unwrap()).collect();
        let names = XdrArray::new(names).unwrap();
        let reply = self.0.rpc(&NameToID { names }).await.map_err(failed)?;
        Ok(reply.ids.iter().map(|&id| Some(id).filter(|id| *id != ViceId::ANONYMOUS)).collect())
    }
}

fn failed(error: impl std::fmt::Display) -> ProtectionError {
    ProtectionError { reason: error.to_string() }
}

impl Protection for AsksPr {
    fn membership<'a>(&'a self, identity: &'a str) -> Answer<'a, Membership> {
        Box::pin(async move {
            let ids = self.ids_of(&[identity.to_owned()]).await?;
            let Some(id) = ids[0] else { return Ok(Membership::anonymous()) };
            let groups = self.0.rpc(&GetCPS { id }).await.map_err(failed)?.ids.to_vec();
            Ok(Membership { id, groups })
        })
    }

    fn host_groups(&self, _: IpAddr) -> Answer<'_, Vec<ViceId>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn ids(&self, names: Vec<String>) -> Answer<'_, Vec<Option<ViceId>>> {
        Box::pin(async move { self.ids_of(&names).await })
    }

    fn names(&self, ids: Vec<ViceId>) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            let reply =
                self.0.rpc(&pt::IDToName { ids: XdrArray::new(ids).unwrap() }).await.map_err(failed)?;
            Ok(reply.names.iter().map(|name| String::from_utf8_lossy(name.text()).into_owned()).collect())
        })
    }

    fn is_superuser(&self, _: &str) -> bool {
        false
    }
}
