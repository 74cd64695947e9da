//! Entries, servers and the header of the VLDB, and the rows that they are in the store.

use crate::record::{BadRow, Fields, PutFields};

/// Longest name of a volume in bytes, which on the wire is an array of 65 with a NUL (VLDB notes 2).
pub(crate) const MAX_NAME: usize = 64;

/// Most sites of a volume.
pub(crate) const MAX_SITES: usize = 13;

/// Most addresses of a server.
pub(crate) const MAX_ADDRESSES: usize = 15;

/// The most servers that can be known: their numbers go up to 254, since entries hold them in a byte and 255 means
/// none.
pub(crate) const MAX_SERVERS: usize = 255;

/// How entries, servers and the header are written: the first byte of their rows.
const ROW_VERSION: u8 = 1;

/// The type of a volume of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeType {
    /// The volume that is written.
    ReadWrite,
    /// Its read-only copies.
    ReadOnly,
    /// Its backup.
    Backup,
}

impl VolumeType {
    /// All, in the order in which stock servers look for an id of any type.
    pub const ALL: [Self; 3] = [Self::ReadWrite, Self::ReadOnly, Self::Backup];

    /// The type of a number on the wire.
    pub fn from_wire(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number).copied())
    }
}

/// The number by which entries name a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerNumber(pub u8);

/// The place of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The server.
    pub server: ServerNumber,
    /// The partition: 0 is /vicepa.
    pub partition: u8,
    /// VLSF_...: what is there (VLDB notes 2).
    pub flags: u8,
}

/// A volume, with its read-only copies and its backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, without .readonly or .backup.
    pub name: Vec<u8>,
    /// The ids by [`VolumeType`]; 0 is none.
    pub ids: [u32; 3],
    /// The id of a clone that a release is making.
    pub clone_id: u32,
    /// VLF_... and the bits of the operation that holds the lock.
    pub flags: u32,
    /// The time when it was locked, in seconds since 1970; 0 if it is not.
    pub lock_timestamp: u32,
    /// The user who has locked it; stock servers never set it.
    pub lock_afs_id: u32,
    /// Sites, at most 13.
    pub sites: Vec<Site>,
}

impl Entry {
    /// The row of this entry.
    pub(crate) fn to_row(&self) -> Vec<u8> {
        let mut row = Vec::with_capacity(EntryRow::NAME + 2 + self.name.len() + 3 * self.sites.len());
        row.push(ROW_VERSION);
        self.ids.iter().for_each(|id| row.put_u32(*id));
        [self.clone_id, self.flags, self.lock_timestamp, self.lock_afs_id]
            .iter()
            .for_each(|field| row.put_u32(*field));
        row.put_short_bytes(&self.name);
        for site in &self.sites {
            row.extend([site.server.0, site.partition, site.flags]);
        }
        row
    }
}

/// An entry as it is kept in memory: its row, which takes half the room of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryRow(Box<[u8]>);

impl EntryRow {
    /// Where the name's length is, behind the version and seven numbers.
    const NAME: usize = 1 + 7 * 4;

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        if fields.u8()? != ROW_VERSION {
            return Err(BadRow("it is of a version that this program does not know"));
        }
        fields.bytes(Self::NAME - 1)?;
        let name = fields.short_bytes()?;
        if name.len() > MAX_NAME {
            return Err(BadRow("its name is too long"));
        }
        let sites = row.len() - Self::NAME - 1 - name.len();
        if !sites.is_multiple_of(3) || sites / 3 > MAX_SITES {
            return Err(BadRow("its sites are not whole, or too many"));
        }
        Ok(Self(row.into()))
    }

    fn number(&self, index: usize) -> u32 {
        let at = 1 + 4 * index;
        u32::from_be_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    pub(crate) fn id(&self, volume_type: VolumeType) -> u32 {
        self.number(volume_type as usize)
    }

    pub(crate) fn clone_id(&self) -> u32 {
        self.number(3)
    }

    pub(crate) fn flags(&self) -> u32 {
        self.number(4)
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.0[Self::NAME + 1..][..usize::from(self.0[Self::NAME])]
    }

    pub(crate) fn sites(&self) -> impl Iterator<Item = Site> {
        let sites = &self.0[Self::NAME + 1 + usize::from(self.0[Self::NAME])..];
        sites.chunks_exact(3).map(|site| Site {
            server: ServerNumber(site[0]),
            partition: site[1],
            flags: site[2],
        })
    }

    pub(crate) fn to_entry(&self) -> Entry {
        Entry {
            name: self.name().to_vec(),
            ids: VolumeType::ALL.map(|volume_type| self.id(volume_type)),
            clone_id: self.clone_id(),
            flags: self.flags(),
            lock_timestamp: self.number(5),
            lock_afs_id: self.number(6),
            sites: self.sites().collect(),
        }
    }
}

/// A file server's UUID, in the 16 bytes of RFC 4122.
pub type ServerUuid = [u8; 16];

/// The entry of a server's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// Nothing, or not any more.
    Free {
        /// The counter of the last one, so that the next does not repeat it.
        uniquifier: u32,
    },
    /// A server that was named by an address in an entry, and has not registered.
    Address(u32),
    /// A server that has registered.
    Registered {
        /// Its UUID.
        uuid: ServerUuid,
        /// Goes up with each change of the addresses.
        uniquifier: u32,
        /// Addresses, at most 15, and none twice. Others may have taken all of them away.
        addresses: Vec<u32>,
        /// True if it has said, by rxgk, that it takes calls by rxgk with tokens of the cell-wide key. Files of OpenAFS's do not have it.
        has_rxgk: bool,
    },
}

impl Server {
    /// Nothing, and never anything.
    pub(crate) const NONE: Self = Self::Free { uniquifier: 0 };

    /// True if it is reached by an address.
    pub(crate) fn has_address(&self, address: u32) -> bool {
        match self {
            Self::Free { .. } => false,
            Self::Address(own) => *own == address,
            Self::Registered { addresses, .. } => addresses.contains(&address),
        }
    }

    /// The address by which entries of the older forms name it; 0 if it has none.
    pub(crate) fn first_address(&self) -> u32 {
        match self {
            Self::Free { .. } => 0,
            Self::Address(own) => *own,
            Self::Registered { addresses, .. } => addresses.first().copied().unwrap_or(0),
        }
    }

    pub(crate) fn to_row(&self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        match self {
            Self::Free { uniquifier } => {
                row.push(0);
                row.put_u32(*uniquifier);
            }
            Self::Address(address) => {
                row.push(1);
                row.put_u32(*address);
            }
            Self::Registered { uuid, uniquifier, addresses, has_rxgk } => {
                // Older releases do not know 3, so nothing is 3 before a cell has a key for rxgk, which they cannot make.
                row.push(if *has_rxgk { 3 } else { 2 });
                row.put_u32(*uniquifier);
                row.extend_from_slice(uuid);
                addresses.iter().for_each(|address| row.put_u32(*address));
            }
        }
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        if fields.u8()? != ROW_VERSION {
            return Err(BadRow("it is of a version that this program does not know"));
        }
        let kind = fields.u8()?;
        let number = fields.u32()?;
        let server = match kind {
            0 => Self::Free { uniquifier: number },
            1 => Self::Address(number),
            2 | 3 => {
                let mut uuid = [0; 16];
                uuid.copy_from_slice(fields.bytes(16)?);
                let count = (row.len() - 22) / 4;
                if count > MAX_ADDRESSES {
                    return Err(BadRow("it has too many addresses"));
                }
                let addresses = (0..count).map(|_| fields.u32()).collect::<Result<_, _>>()?;
                Self::Registered { uuid, uniquifier: number, addresses, has_rxgk: kind == 3 }
            }
            _ => return Err(BadRow("it is no kind of server that this program knows")),
        };
        fields.finish()?;
        Ok(server)
    }
}

/// Fields that exist once in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The next id that [`crate::vldb::Vldb::next_ids`] looks at.
    pub(crate) max_volume_id: u32,
    /// The place that was freed last.
    pub(crate) free: Option<u32>,
    /// The number of times that a place was taken, and freed.
    pub(crate) allocs: u32,
    pub(crate) frees: u32,
}

impl Header {
    /// The header of a database that is made: ids begin where stock cells begin (VLDB notes 5).
    pub(crate) const NEW: Self = Self { max_volume_id: 0x2000_0000, free: None, allocs: 0, frees: 0 };

    pub(crate) fn to_row(self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        row.put_u32(self.max_volume_id);
        row.put_u32(self.free.map_or(0, |slot| slot + 1));
        row.put_u32(self.allocs);
        row.put_u32(self.frees);
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = Fields::new(row);
        if fields.u8()? != ROW_VERSION {
            return Err(BadRow("it is of a version that this program does not know"));
        }
        let header = Self {
            max_volume_id: fields.u32()?,
            free: fields.u32()?.checked_sub(1),
            allocs: fields.u32()?,
            frees: fields.u32()?,
        };
        fields.finish()?;
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: b"root.cell".to_vec(),
            ids: [0x2000_0003, 0x2000_0004, 0],
            clone_id: 9,
            flags: 0x3010,
            lock_timestamp: 1_700_000_000,
            lock_afs_id: 2,
            sites: vec![
                Site { server: ServerNumber(254), partition: 255, flags: 4 },
                Site { server: ServerNumber(0), partition: 0, flags: 0x80 },
            ],
        }
    }

    #[test]
    fn an_entry_is_the_same_after_its_row() {
        for entry in [entry(), Entry { name: vec![], sites: vec![], ..entry() }] {
            let row = EntryRow::parse(&entry.to_row()).unwrap();
            assert_eq!(row.to_entry(), entry);
            assert_eq!(row.name(), entry.name);
        }
    }

    #[test]
    fn servers_and_the_header_are_the_same_after_their_rows() {
        let registered = |addresses| {
            let has_rxgk = addresses == [1];
            Server::Registered { uuid: [7; 16], uniquifier: 3, addresses, has_rxgk }
        };
        for server in [
            Server::NONE,
            Server::Free { uniquifier: 8 },
            Server::Address(0x0a58_0001),
            registered(vec![]),
            registered(vec![1]),
            registered((1..=15).collect()),
        ] {
            assert_eq!(Server::parse(&server.to_row()), Ok(server));
        }
        let header = Header { max_volume_id: u32::MAX, free: Some(3), allocs: 5, frees: 6 };
        assert_eq!(Header::parse(&header.to_row()), Ok(header));
    }

    #[test]
    fn no_row_that_is_cut_short_or_longer_is_taken() {
        let entry = entry().to_row();
        // Without its last site an entry is an entry.
        for length in (0..entry.len()).filter(|length| !(entry.len() - length).is_multiple_of(3)) {
            assert!(EntryRow::parse(&entry[..length]).is_err(), "{length} bytes");
        }
        let server =
            Server::Registered { uuid: [7; 16], uniquifier: 3, addresses: vec![1], has_rxgk: false }.to_row();
        for length in (0..server.len()).filter(|length| *length != 22) {
            assert!(Server::parse(&server[..length]).is_err(), "{length} bytes");
        }
        let header = Header::NEW.to_row();
        for length in 0..header.len() {
            assert!(Header::parse(&header[..length]).is_err(), "{length} bytes");
        }
        for row in [entry, server, header] {
            let longer = [&row[..], &[0]].concat();
            assert!(EntryRow::parse(&longer).is_err());
            assert!(Server::parse(&longer).is_err());
            assert!(Header::parse(&longer).is_err());
        }
    }
}
