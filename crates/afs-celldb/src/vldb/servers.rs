//! Servers and their addresses: registration, changes, and what is told of them (VLDB notes 4 and 13).

use crate::database::Rows;

use super::errors::VlError;
use super::image::{Vldb, server_key};
use super::records::{MAX_ADDRESSES, Server, ServerNumber, ServerUuid};

/// Registered servers in a block of a stock database file: what shows in the numbers that [`Vldb::addresses`] returns.
const SERVERS_PER_BLOCK: u32 = 63;

/// The key by which a server is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerQuery {
    /// One of its addresses.
    Address(u32),
    /// Its number, counted from 1, as it was sent.
    Index(i32),
    /// The UUID.
    Uuid(ServerUuid),
}

/// A registered server, as it is told to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its UUID.
    pub uuid: ServerUuid,
    /// Goes up with each change of the addresses.
    pub uniquifier: u32,
    /// Its addresses.
    pub addresses: Vec<u32>,
    /// True if it takes calls by rxgk with tokens of the cell-wide key.
    pub has_rxgk: bool,
}

/// A server that a registration takes addresses from.
struct Overlap {
    number: ServerNumber,
    /// True if it would have none left.
    is_whole: bool,
}

impl Vldb {
    /// Registers a file server under its addresses (RegisterAddrs). Those in excess of 15 are left out. Who says it by rxgk says whether the
    /// server has rxgk; of others that is not believed, and stays as it was.
    ///
    /// # Errors
    ///
    /// If there is no address, if other servers have them so that it is not clear which of those this is, or if no
    /// server more can be known.
    pub fn register(
        &self,
        uuid: ServerUuid,
        addresses: &[u32],
        rxgk: Option<bool>,
        rows: &mut Rows,
    ) -> Result<(), VlError> {
        let mut own = Vec::new();
        for address in addresses.iter().filter(|address| **address != 0) {
            if !own.contains(address) && own.len() < MAX_ADDRESSES {
                own.push(*address);
            }
        }
        if own.is_empty() {
            return Err(VlError::IndexRange);
        }
        let known = self.number_of(uuid);
        let overlaps = self.overlaps(uuid, &own);
        let whole = overlaps.iter().rfind(|overlap| overlap.is_whole).map(|overlap| overlap.number);
        if (known.is_some() && whole.is_some()) || (known.is_none() && overlaps.len() > 1) {
            let others: Vec<u8> = overlaps.iter().map(|overlap| overlap.number.0).collect();
            tracing::warn!(
                addresses = ?own.iter().map(|a| std::net::Ipv4Addr::from(*a)).collect::<Vec<_>>(),
                servers = ?others,
                "a file server was not registered, as other servers of the VLDB have its addresses; 'vos changeaddr' \
                 removes those"
            );
            return Err(VlError::MultipleAddresses);
        }
        // A server that has nothing but what this one registers, or the only one that shares an address, was this one.
        let replaced = known.or(whole).or(overlaps.first().map(|overlap| overlap.number));
        let number = match replaced {
            Some(number) => number,
            None => self.free_server().ok_or(VlError::SitesFull)?,
        };
        let (before, had_rxgk) = match self.server(number) {
            Server::Registered { uuid: old, addresses, has_rxgk, .. }
                if *old == uuid && *addresses == own && rxgk.is_none_or(|rxgk| rxgk == *has_rxgk) =>
            {
                return Ok(());
            }
            Server::Registered { uniquifier, has_rxgk, .. } => (*uniquifier, *has_rxgk),
            Server::Free { uniquifier } => (*uniquifier, false),
            Server::Address(_) => (0, false),
        };
        for overlap in overlaps.iter().filter(|overlap| overlap.number != number) {
            if let Server::Registered { uuid, uniquifier, addresses, has_rxgk } = self.server(overlap.number)
            {
                let left = addresses.iter().copied().filter(|address| !own.contains(address)).collect();
                let changed = Server::Registered {
                    uuid: *uuid,
                    uniquifier: uniquifier.wrapping_add(1),
                    addresses: left,
                    has_rxgk: *has_rxgk,
                };
                rows.put(server_key(overlap.number), changed.to_row());
            }
        }
        let (uniquifier, has_rxgk) = (before.wrapping_add(1), rxgk.unwrap_or(had_rxgk));
        let server = Server::Registered { uuid, uniquifier, addresses: own, has_rxgk };
        rows.put(server_key(number), server.to_row());
        Ok(())
    }

    /// Changes the address of a server that has not registered; `from` of all ones removes the server with the address
    /// `to` (ChangeAddr).
    ///
    /// # Errors
    ///
    /// If no such server is known, another has the new address, or volumes are on a server that is to be removed.
    pub fn change_address(&self, from: u32, to: u32, rows: &mut Rows) -> Result<(), VlError> {
        if to >> 24 == 0xff {
            // So would be taken for a reference by stock servers.
            return Err(VlError::BadServer);
        }
        let (from, to) = if from == u32::MAX { (to, None) } else { (from, Some(to).filter(|to| *to != 0)) };
        let number = self.find_address(from).ok_or(VlError::NoEntry)?;
        let Some(to) = to else {
            let is_there = |site: super::Site| site.server == number;
            if self.slots().from(0).any(|(_, row)| row.sites().any(is_there)) {
                return Err(VlError::IdExists);
            }
            let uniquifier = match self.server(number) {
                Server::Registered { uniquifier, .. } => *uniquifier,
                Server::Free { .. } | Server::Address(_) => 0,
            };
            rows.put(server_key(number), Server::Free { uniquifier }.to_row());
            return Ok(());
        };
        if self.find_address(to).is_some_and(|other| other != number) {
            return Err(VlError::MultipleAddresses);
        }
        if !matches!(self.server(number), Server::Address(_)) {
            return Err(VlError::NoEntry);
        }
        rows.put(server_key(number), Server::Address(to).to_row());
        Ok(())
    }

    /// A registered server (GetAddrsU).
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn registration(&self, query: ServerQuery) -> Result<Registration, VlError> {
        let number = match query {
            // One that has not registered may have it as well, and is passed over.
            ServerQuery::Address(address) => self.numbers().find(|number| {
                matches!(self.server(*number), Server::Registered { addresses, .. } if addresses.contains(&address))
            }),
            ServerQuery::Index(index) => {
                let index = u8::try_from(index).ok().filter(|index| (1..=254).contains(index));
                Some(ServerNumber(index.ok_or(VlError::IndexRange)? - 1))
            }
            ServerQuery::Uuid(uuid) => self.number_of(uuid),
        };
        match number.map(|number| self.server(number)) {
            Some(Server::Registered { uuid, uniquifier, addresses, has_rxgk }) if *uuid != [0; 16] => {
                let (addresses, has_rxgk) = (addresses.clone(), *has_rxgk);
                Ok(Registration { uuid: *uuid, uniquifier: *uniquifier, addresses, has_rxgk })
            }
            _ => Err(VlError::NoEntry),
        }
    }

    /// All servers by address; those that have registered by numbers above 255.0.0.0 (GetAddrs).
    pub fn addresses(&self) -> Vec<u32> {
        let mut registered = 0;
        let servers = self.servers().iter().filter_map(|server| match server {
            Server::Free { .. } => None,
            Server::Address(address) => Some(*address),
            Server::Registered { .. } => {
                let at = registered;
                registered += 1;
                Some(0xff00_0000 | (at / SERVERS_PER_BLOCK) << 16 | (at % SERVERS_PER_BLOCK + 1))
            }
        });
        servers.collect()
    }

    fn numbers(&self) -> impl Iterator<Item = ServerNumber> + use<> {
        (0..=254).map(ServerNumber)
    }

    fn free_server(&self) -> Option<ServerNumber> {
        self.numbers().find(|number| matches!(self.server(*number), Server::Free { .. }))
    }

    fn number_of(&self, wanted: ServerUuid) -> Option<ServerNumber> {
        self.numbers()
            .find(|number| matches!(self.server(*number), Server::Registered { uuid, .. } if *uuid == wanted))
    }

    /// Other servers that have some of these addresses.
    fn overlaps(&self, own: ServerUuid, wanted: &[u32]) -> Vec<Overlap> {
        let overlap = |number: ServerNumber| match self.server(number) {
            Server::Free { .. } => None,
            Server::Address(address) => {
                wanted.contains(address).then_some(Overlap { number, is_whole: true })
            }
            Server::Registered { uuid, .. } if *uuid == own => None,
            Server::Registered { addresses, .. } => {
                let shared = addresses.iter().filter(|address| wanted.contains(address)).count();
                (shared > 0).then_some(Overlap { number, is_whole: shared == addresses.len() })
            }
        };
        self.numbers().filter_map(overlap).collect()
    }
}
