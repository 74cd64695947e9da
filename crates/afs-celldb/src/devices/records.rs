//! Invitations, devices and the cell's join keys, and the rows that they are in the store.

use afs_join::{KeyPair, PublicKey};

use crate::record::{BadRow, Fields, PutFields};

/// How they are written: the first byte of their rows.
const ROW_VERSION: u8 = 1;

/// The same of a device that waits. A program that does not know of that gives it no token.
const WAITING_VERSION: u8 = 2;

/// The SHA-256 of an invitation's secret.
pub type Digest = [u8; 32];

/// A key of the cell, which devices know.
#[derive(Clone, Debug)]
pub struct CellKey {
    /// The pair. The store has the private key too: whoever reads the store can pass for the cell's servers to a machine that joins.
    pub pair: KeyPair,
    /// When it was made, in seconds since 1970.
    pub made: u32,
}

/// An invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The user it is for.
    pub user: String,
    /// Its properties, as on the wire.
    pub flags: u32,
    /// The user who made it.
    pub by: String,
    /// When.
    pub made: u32,
    /// Its end: it is good before.
    pub expires: u32,
    /// The device that has used it.
    pub used: Option<u32>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its public key.
    pub key: PublicKey,
    /// Its user.
    pub user: String,
    /// The name that it was given.
    pub name: String,
    /// The address that it joined from.
    pub from: String,
    /// The user who made its invitation.
    pub by: String,
    /// When it joined.
    pub registered: u32,
    /// When it last got a token, to the hour.
    pub seen: u32,
    /// When it was revoked; 0 if it was not.
    pub revoked: u32,
    /// True if it gets no tokens until an administrator approves it.
    pub waits: bool,
}

/// What counts in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the last device that was registered. None is given out twice: it is in tokens.
    pub(crate) last_device: u32,
    /// How often devices were revoked.
    pub(crate) revocations: u64,
}

fn begin(row: &[u8]) -> Result<Fields<'_>, BadRow> {
    let mut fields = Fields::new(row);
    match fields.u8()? {
        ROW_VERSION => Ok(fields),
        _ => Err(BadRow("it is of a version that this program does not know")),
    }
}

fn array<const N: usize>(fields: &mut Fields<'_>) -> Result<[u8; N], BadRow> {
    fields.bytes(N).map(|bytes| bytes.try_into().expect("so many were asked for"))
}

fn text(fields: &mut Fields<'_>) -> Result<String, BadRow> {
    let bytes = fields.short_bytes()?.to_vec();
    String::from_utf8(bytes).map_err(|_| BadRow("a name in it is no text"))
}

impl CellKey {
    pub(crate) fn to_row(&self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        row.extend(self.pair.private());
        row.put_u32(self.made);
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = begin(row)?;
        let key = Self { pair: KeyPair::of_private(array(&mut fields)?), made: fields.u32()? };
        fields.finish().map(|()| key)
    }
}

impl Invitation {
    pub(crate) fn to_row(&self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        row.put_short_bytes(self.user.as_bytes());
        row.put_u32(self.flags);
        row.put_short_bytes(self.by.as_bytes());
        row.put_u32(self.made);
        row.put_u32(self.expires);
        // Devices are numbered from 1.
        row.put_u32(self.used.unwrap_or(0));
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = begin(row)?;
        let invitation = Self {
            user: text(&mut fields)?,
            flags: fields.u32()?,
            by: text(&mut fields)?,
            made: fields.u32()?,
            expires: fields.u32()?,
            used: Some(fields.u32()?).filter(|device| *device != 0),
        };
        fields.finish().map(|()| invitation)
    }
}

impl Device {
    pub(crate) fn to_row(&self) -> Vec<u8> {
        let mut row = vec![if self.waits { WAITING_VERSION } else { ROW_VERSION }];
        row.extend(self.key.0);
        for text in [&self.user, &self.name, &self.from, &self.by] {
            row.put_short_bytes(text.as_bytes());
        }
        for time in [self.registered, self.seen, self.revoked] {
            row.put_u32(time);
        }
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let waits = row.first() == Some(&WAITING_VERSION);
        let mut fields = if waits { Fields::new(&row[1..]) } else { begin(row)? };
        let device = Self {
            key: PublicKey(array(&mut fields)?),
            user: text(&mut fields)?,
            name: text(&mut fields)?,
            from: text(&mut fields)?,
            by: text(&mut fields)?,
            registered: fields.u32()?,
            seen: fields.u32()?,
            revoked: fields.u32()?,
            waits,
        };
        fields.finish().map(|()| device)
    }
}

impl Header {
    pub(crate) fn to_row(self) -> Vec<u8> {
        let mut row = vec![ROW_VERSION];
        row.put_u32(self.last_device);
        row.put_u64(self.revocations);
        row
    }

    pub(crate) fn parse(row: &[u8]) -> Result<Self, BadRow> {
        let mut fields = begin(row)?;
        let header = Self { last_device: fields.u32()?, revocations: fields.u64()? };
        fields.finish().map(|()| header)
    }
}
