//! A volume's entry as a plain value, which outlasts the client: where a volume was when a client last knew it. It counts only as long as no
//! database server says otherwise.

use std::net::SocketAddr;
use std::sync::Arc;

use afs_wire::Uuid;
use afs_wire::ids::{VolumeId, VolumeType};
use afs_wire::vl::{EntryFlags, SiteFlags};

use super::{Locations, Site, Vldb, VolumeEntry};
use crate::cells::Cell;
use crate::fid::CellIndex;
use crate::remote::Calls;
use crate::table::{Server, ServerKind};

/// A server that has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceSite {
    /// Its id, if it has one.
    pub uuid: Option<Uuid>,
    /// Which of the volume's kinds it has.
    pub flags: SiteFlags,
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
}

/// A volume with all of its kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name without what says its kind.
    pub name: String,
    /// The numbers of its kinds; 0 stands for none.
    pub ids: [VolumeId; 3],
    /// Which of them there are, and what is being done with it.
    pub flags: EntryFlags,
    /// The servers that have it.
    pub sites: Vec<PlaceSite>,
}

impl Locations {
    /// Where a volume is, as far as that is known.
    pub fn place(&self, cell: CellIndex, volume: VolumeId) -> Option<Place> {
        let entry = self.lock().by_id.get(&(cell, volume)).map(Arc::clone)?;
        let sites = entry.sites.iter().map(|site| {
            let mut addresses: Vec<_> = site.server.addresses().iter().map(|a| a.socket).collect();
            // The order is that of the moment.
            addresses.sort_unstable();
            PlaceSite { uuid: site.server.uuid, flags: site.flags, addresses }
        });
        Some(Place { name: entry.name.clone(), ids: entry.ids, flags: entry.flags, sites: sites.collect() })
    }

    /// True if a server that has a volume answers, as far as is known.
    pub fn is_answered(&self, cell: CellIndex, volume: VolumeId) -> bool {
        let entry = self.lock().by_id.get(&(cell, volume)).map(Arc::clone);
        entry.is_some_and(|entry| {
            let mut candidates = entry.sites.iter().map(|site| site.server.candidate());
            candidates.any(|candidate| candidate.has_answered && candidate.down_since.is_none())
        })
    }

    /// Takes over where a volume was, unless it is known already: the entry is old from the beginning, so that database servers are asked as
    /// soon as one answers. Returns the servers that have the volume of this number.
    pub fn restore(&self, vldb: &dyn Vldb, cell: &Cell, volume: VolumeId, place: Place) -> Vec<Arc<Server>> {
        let known = self.known(cell.index, volume);
        let entry = known.unwrap_or_else(|| {
            let sites = place.sites.into_iter().filter_map(|PlaceSite { uuid, flags, addresses }| {
                let server = self.servers.get_or_add(ServerKind::File, cell.index, uuid, &addresses)?;
                Some(Site { server, flags })
            });
            let entry = Arc::new(VolumeEntry {
                cell: cell.index,
                name: place.name,
                ids: place.ids,
                flags: place.flags,
                sites: sites.collect(),
                until: self.runtime.now(),
            });
            self.keep(&entry);
            entry
        });
        let kind = entry.kind_of(volume).unwrap_or(VolumeType::READ_WRITE);
        if kind != VolumeType::READ_WRITE {
            vldb.note_read_only(cell.index, volume);
        }
        entry.servers_of(kind)
    }
}

impl Calls {
    /// Finds out whether these file servers answer, and the database servers of their cell, without waiting for it.
    pub fn ask_who_answers(&self, cell: &Cell, servers: &[Arc<Server>]) {
        for server in servers.iter().chain(&cell.location_servers) {
            let (liveness, server) = (Arc::clone(&self.liveness), Arc::clone(server));
            self.runtime.spawn(Box::pin(async move { liveness.ask_once(&server, false).await }));
        }
    }
}
