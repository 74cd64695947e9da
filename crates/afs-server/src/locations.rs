//! Questions of the file service to the volume location database: in this process, or of the cell's servers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use afs_admin::DatabaseServers;
use afs_celldb::ubik::NO_QUORUM;
use afs_celldb::vldb::Vldb;
use afs_celldb::{Database, NoQuorum};
use afs_fileserver::Locations;
use afs_wire::abort::VL_BADNAME;
use afs_wire::ids::Name;
use afs_wire::vl::{GetEntryByNameO, VlName, VldbEntry};
use rxgen::Abort;

type Entry<'a> = Pin<Box<dyn Future<Output = Result<VldbEntry, Abort>> + Send + 'a>>;

/// The database of this process.
#[derive(Debug)]
pub(crate) struct LocalLocations(pub(crate) Arc<Database<Vldb>>);

impl Locations for LocalLocations {
    fn entry<'a>(&'a self, name: &'a Name) -> Entry<'a> {
        Box::pin(async move {
            self.0.catch_up().await.map_err(|NoQuorum| NO_QUORUM)?;
            self.0.read(|vldb| vldb.old_entry(name)).map_err(|error| Abort(error.code()))
        })
    }
}

/// The database servers of the cell. Stock file servers ask the one of their own machine alone.
#[derive(Debug)]
pub(crate) struct RemoteLocations(pub(crate) DatabaseServers);

impl Locations for RemoteLocations {
    fn entry<'a>(&'a self, name: &'a Name) -> Entry<'a> {
        Box::pin(async move {
            // Clients may send file servers longer names than databases take.
            let name = VlName::new(name.to_vec()).map_err(|_| VL_BADNAME)?;
            let reply = self.0.call(&GetEntryByNameO { name }).await;
            reply.map(|reply| reply.entry).map_err(|error| error.code())
        })
    }
}
