//! The cells that the client knows, by number and by name, and their database servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use afs_config::{CellName, CellServDb, DbServer};

use crate::error::Error;
use crate::fid::CellIndex;
use crate::table::{Server, ServerKind, Servers};
use rx_proto::time::Instant;

/// Cells that are known at once: the public list has about 200.
const CELLS_MAX: usize = 10_000;

/// Cells that the DNS has told of, and the servers that they have had. Every owner of a zone can make names and addresses without end.
/// These should not take the place of cells that files and administrators name, nor that of file servers.
const FOUND_MAX: usize = 1000;
const FOUND_SERVERS_MAX: usize = 16 * FOUND_MAX;

/// A cell.
#[derive(Debug)]
pub struct Cell {
    /// Its number.
    pub index: CellIndex,
    /// Its name.
    pub name: CellName,
    /// The cell in which volumes are looked for that this one does not have.
    pub linked: Option<CellName>,
    /// Its database servers, in the order in which they were given.
    pub addresses: Vec<Ipv4Addr>,
    pub(crate) location_servers: Vec<Arc<Server>>,
    /// The end of that answer's validity, for a cell that the DNS has told of.
    pub(crate) until: Option<Instant>,
}

impl Cell {
    /// True if none of its database servers answers, as far as is known. Of a cell of the DNS, which may have others by now, that is not known.
    pub(crate) fn is_away(&self) -> bool {
        let mut servers = self.location_servers.iter();
        let is_known = self.until.is_none() && servers.len() > 0;
        is_known && servers.all(|server| server.down_since().is_some())
    }
}

/// The cells; a number stays a cell's.
#[derive(Debug)]
pub struct Cells {
    location_port: u16,
    table: RwLock<Vec<Arc<Cell>>>,
    /// Servers that were made for cells of the DNS.
    found_servers: AtomicUsize,
}

impl Cells {
    /// Makes the table, with the cells that a file knows.
    pub fn new(known: &CellServDb, location_port: u16, servers: &Servers) -> Self {
        let cells = Self { location_port, table: RwLock::default(), found_servers: AtomicUsize::new(0) };
        for cell in &known.cells {
            let addresses: Vec<_> = cell.servers.iter().map(|server: &DbServer| server.address).collect();
            cells.set(&cell.name, cell.linked.clone(), &addresses, servers);
        }
        cells
    }

    /// The port of database servers that nothing else is said of.
    pub(crate) fn location_port(&self) -> u16 {
        self.location_port
    }

    /// Adds a cell, or gives one that is there other servers. `None` when there are too many.
    pub fn set(
        &self,
        name: &CellName,
        linked: Option<CellName>,
        addresses: &[Ipv4Addr],
        servers: &Servers,
    ) -> Option<CellIndex> {
        let sockets: Vec<_> = addresses
            .iter()
            .map(|&address| (SocketAddr::new(IpAddr::V4(address), self.location_port), 0))
            .collect();
        self.put(name, linked, &sockets, None, servers)
    }

    /// Adds a cell as the DNS has told of it, or gives it other servers, each with its place in their order. What files or the
    /// administrator say of a cell stays. `None` when there are too many, of cells or of servers.
    pub(crate) fn set_found(
        &self,
        name: &CellName,
        found: &[(SocketAddr, u16)],
        until: Instant,
        servers: &Servers,
    ) -> Option<CellIndex> {
        let is_new = match self.named(name.as_str()) {
            Some(cell) if cell.until.is_none() => return Some(cell.index),
            known => known.is_none(),
        };
        let is_full = is_new && self.all().iter().filter(|cell| cell.until.is_some()).count() >= FOUND_MAX;
        let made = self.found_servers.load(Ordering::Relaxed);
        if is_full || made + found.len() > FOUND_SERVERS_MAX {
            return None;
        }
        let before = servers.len();
        let index = self.put(name, None, found, Some(until), servers);
        // Others may have made some meanwhile: that is too many rather than too few.
        self.found_servers.fetch_add(servers.len() - before, Ordering::Relaxed);
        index
    }

    fn put(
        &self,
        name: &CellName,
        linked: Option<CellName>,
        sockets: &[(SocketAddr, u16)],
        until: Option<Instant>,
        servers: &Servers,
    ) -> Option<CellIndex> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let known = table.iter().position(|cell| cell.name == *name);
        let place = known.unwrap_or(table.len());
        if place >= CELLS_MAX {
            return None;
        }
        let index = CellIndex(u32::try_from(place + 1).expect("CELLS_MAX fits"));
        let location_servers = sockets
            .iter()
            .filter_map(|&(socket, place)| {
                let server = servers.get_or_add(ServerKind::Location, index, None, &[socket])?;
                server.set_place(place);
                Some(server)
            })
            .collect();
        let addresses = sockets.iter().filter_map(|(socket, _)| match socket.ip() {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(_) => None,
        });
        let cell = Arc::new(Cell {
            index,
            name: name.clone(),
            linked,
            addresses: addresses.collect(),
            location_servers,
            until,
        });
        match table.get_mut(place) {
            Some(slot) => *slot = cell,
            None => table.push(cell),
        }
        Some(index)
    }

    /// The cell of a number.
    pub fn get(&self, index: CellIndex) -> Option<Arc<Cell>> {
        let place = usize::try_from(index.0).ok()?.checked_sub(1)?;
        self.table.read().unwrap_or_else(PoisonError::into_inner).get(place).map(Arc::clone)
    }

    /// The cell of a number that came from here, or what to tell the user.
    pub fn numbered(&self, index: CellIndex) -> Result<Arc<Cell>, Error> {
        self.get(index).ok_or_else(|| Error::NoCell { cell: format!("of number {}", index.0) })
    }

    /// The cell of exactly this name, without regard to case.
    pub fn named(&self, name: &str) -> Option<Arc<Cell>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.iter().find(|cell| cell.name.as_str().eq_ignore_ascii_case(name)).map(Arc::clone)
    }

    /// The same, or what to tell the user.
    pub fn find(&self, name: &str) -> Result<Arc<Cell>, Error> {
        self.named(name).ok_or_else(|| Error::NoCell { cell: name.to_owned() })
    }

    /// All, in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<Cell>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The name for messages.
    pub fn name_of(&self, index: CellIndex) -> String {
        self.get(index).map_or_else(|| format!("cell {}", index.0), |cell| cell.name.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_cell_keeps_its_number_when_its_servers_change() {
        let text = ">one.test #\n192.0.2.1 #a\n>two.test #\n192.0.2.2 #b\n";
        let servers = Servers::default();
        let known = CellServDb::parse(text, Path::new("F")).unwrap();
        let cells = Cells::new(&known, 7003, &servers);
        let two = cells.named("Two.Test").unwrap();
        assert_eq!((two.index, cells.all().len()), (CellIndex(2), 2));
        let index = cells.set(&two.name, None, &[Ipv4Addr::new(192, 0, 2, 9)], &servers);
        assert_eq!(index, Some(CellIndex(2)));
        assert_eq!(cells.get(CellIndex(2)).unwrap().addresses, [Ipv4Addr::new(192, 0, 2, 9)]);
        assert!(cells.get(CellIndex::DYNROOT).is_none());
        assert_eq!(cells.find("three.test").unwrap_err().errno().0, 2);
    }

    #[test]
    fn a_zone_without_end_leaves_room_for_cells_and_servers_of_others() {
        let servers = Servers::default();
        let cells = Cells::new(&CellServDb::parse("", Path::new("F")).unwrap(), 7003, &servers);
        let name = |number: usize| CellName::new(&format!("c{number}.evil.test")).unwrap();
        let socket = |number: usize| {
            let address = Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number).unwrap());
            (SocketAddr::from((address, 7003)), 0)
        };
        let mut number = 0;
        let mut found = |name: &CellName| {
            number += 8;
            let sockets: Vec<_> = (number..number + 8).map(socket).collect();
            cells.set_found(name, &sockets, Instant::ORIGIN, &servers)
        };
        let taken = (0..2 * FOUND_MAX).filter(|&number| found(&name(number)).is_some()).count();
        assert_eq!(taken, FOUND_MAX);
        // One that goes on to change its addresses keeps those that it had.
        let changes = (0..2 * FOUND_MAX).filter(|_| found(&name(0)).is_some()).count();
        assert_eq!((changes, servers.len()), (FOUND_MAX, FOUND_SERVERS_MAX));
        assert!(!cells.named("c0.evil.test").unwrap().location_servers.is_empty());
        let known = CellName::new("known.test").unwrap();
        assert!(cells.set(&known, None, &[Ipv4Addr::new(192, 0, 2, 1)], &servers).is_some());
        assert_eq!(cells.named("known.test").unwrap().location_servers.len(), 1);
    }
}
