//! Invitations, devices and the cell's join keys in memory. Reads only.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use afs_join::PublicKey;

use super::records::{CellKey, Device, Digest, Header, Invitation};
use crate::database::Image;
use crate::record::BadRow;

/// The key of the header.
pub(crate) const HEADER_KEY: &[u8] = b"h";
/// What keys of join keys, invitations and devices begin with; a number in four bytes, or the digest, follows.
const CELL_KEY: u8 = b'k';
const INVITATION_KEY: u8 = b'i';
const DEVICE_KEY: u8 = b'd';

pub(crate) fn cell_key_key(number: u32) -> Vec<u8> {
    [&[CELL_KEY][..], &number.to_be_bytes()].concat()
}

pub(crate) fn invitation_key(digest: &Digest) -> Vec<u8> {
    [&[INVITATION_KEY][..], digest].concat()
}

pub(crate) fn device_key(number: u32) -> Vec<u8> {
    [&[DEVICE_KEY][..], &number.to_be_bytes()].concat()
}

/// The database.
#[derive(Debug)]
pub struct Devices {
    header: Header,
    /// The cell's keys by number; the last is the newest.
    keys: BTreeMap<u32, CellKey>,
    invitations: BTreeMap<Digest, Invitation>,
    devices: BTreeMap<u32, Device>,
    by_key: HashMap<PublicKey, u32>,
}

/// A row of the database that was read.
#[derive(Debug)]
pub struct DevicesRow(Parsed);

#[derive(Debug)]
enum Parsed {
    Header(Header),
    CellKey(u32, Option<CellKey>),
    Invitation(Digest, Option<Invitation>),
    Device(u32, Option<Device>),
}

impl Image for Devices {
    type Parsed = DevicesRow;

    const PREFIX: &'static [u8] = b"devices/";
    const NAME: &'static str = "device database";

    fn empty() -> Self {
        Self {
            header: Header::default(),
            keys: BTreeMap::new(),
            invitations: BTreeMap::new(),
            devices: BTreeMap::new(),
            by_key: HashMap::new(),
        }
    }

    fn parse_row(key: &[u8], value: Option<&[u8]>) -> Result<DevicesRow, BadRow> {
        let unknown = BadRow("it is no row that this program knows");
        let (kind, rest) = key.split_first().ok_or(unknown)?;
        let number = || rest.try_into().map(u32::from_be_bytes).map_err(|_| unknown);
        Ok(DevicesRow(match *kind {
            _ if key == HEADER_KEY => Parsed::Header(value.map_or(Ok(Header::default()), Header::parse)?),
            CELL_KEY => Parsed::CellKey(number()?, value.map(CellKey::parse).transpose()?),
            INVITATION_KEY => {
                let digest = rest.try_into().map_err(|_| unknown)?;
                Parsed::Invitation(digest, value.map(Invitation::parse).transpose()?)
            }
            DEVICE_KEY => Parsed::Device(number()?, value.map(Device::parse).transpose()?),
            _ => return Err(unknown),
        }))
    }

    fn set_parsed(&mut self, DevicesRow(row): DevicesRow) -> Result<DevicesRow, BadRow> {
        fn set<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            }
        }
        Ok(DevicesRow(match row {
            Parsed::Header(header) => Parsed::Header(std::mem::replace(&mut self.header, header)),
            Parsed::CellKey(number, key) => Parsed::CellKey(number, set(&mut self.keys, number, key)),
            Parsed::Invitation(digest, invitation) => {
                Parsed::Invitation(digest, set(&mut self.invitations, digest, invitation))
            }
            Parsed::Device(number, device) => {
                let key = device.as_ref().map(|device| device.key);
                let old = set(&mut self.devices, number, device);
                if let Some(old) = &old
                    && self.by_key.get(&old.key) == Some(&number)
                {
                    self.by_key.remove(&old.key);
                }
                if let Some(key) = key {
                    self.by_key.insert(key, number);
                }
                Parsed::Device(number, old)
            }
        }))
    }
}

impl Devices {
    pub(crate) fn header(&self) -> Header {
        self.header
    }

    /// The cell's newest key, with its number; `None` before the first invitation.
    pub fn newest_key(&self) -> Option<(u32, &CellKey)> {
        self.keys.last_key_value().map(|(number, key)| (*number, key))
    }

    /// The cell's key of this id.
    pub fn key_of(&self, id: u64) -> Option<&CellKey> {
        self.keys.values().find(|key| key.pair.public().id() == id)
    }

    /// The numbers of all keys of the cell, the newest last.
    pub fn key_numbers(&self) -> impl Iterator<Item = u32> {
        self.keys.keys().copied()
    }

    /// An invitation by the SHA-256 of its secret.
    pub fn invitation(&self, digest: &Digest) -> Option<&Invitation> {
        self.invitations.get(digest)
    }

    /// All invitations behind one, in the order of their digests.
    pub fn invitations_after(&self, after: Option<Digest>) -> impl Iterator<Item = (&Digest, &Invitation)> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.invitations.range((first, Bound::Unbounded))
    }

    /// A device by its number.
    pub fn device(&self, number: u32) -> Option<&Device> {
        self.devices.get(&number)
    }

    /// A device by its key, with its number.
    pub fn device_of(&self, key: &PublicKey) -> Option<(u32, &Device)> {
        let number = *self.by_key.get(key)?;
        self.devices.get(&number).map(|device| (number, device))
    }

    /// All devices with numbers above one, in their order.
    pub fn devices_after(&self, after: u32) -> impl Iterator<Item = (u32, &Device)> {
        self.devices
            .range((Bound::Excluded(after), Bound::Unbounded))
            .map(|(number, device)| (*number, device))
    }

    /// The number of devices.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// The number of invitations, used ones included.
    pub fn invitation_count(&self) -> usize {
        self.invitations.len()
    }

    /// The version of the list of revoked devices, and the list.
    pub fn revoked(&self) -> (u64, Vec<u32>) {
        let revoked = self.devices.iter().filter(|(_, device)| device.revoked != 0);
        (self.header.revocations, revoked.map(|(number, _)| *number).collect())
    }
}
