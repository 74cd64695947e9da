//! What changes invitations and devices. Each change is one transaction: of two devices that use an invitation at two servers, one is
//! registered, and the other is refused.

use afs_join::{KeyPair, PublicKey};
use afs_wire::join::JoinFlags;

use super::errors::DeviceError;
use super::image::{Devices, HEADER_KEY, cell_key_key, device_key, invitation_key};
use super::records::{CellKey, Device, Digest, Invitation};
use crate::database::Rows;

/// Most devices, revoked ones included: the list of all is some 10 MB in memory.
pub(crate) const DEVICES_MAX: usize = afs_wire::join::JOIN_REVOKED_MAX;

/// Most invitations, used ones included.
const INVITATIONS_MAX: usize = 4096;

/// How long an invitation is kept when it is used or has expired, so that a machine that comes late is told so, and a thief is found.
const KEPT_SECONDS: u32 = 90 * 24 * 3600;

/// How exactly it is kept when a device was seen last: a change of the database for each is made no more often.
const SEEN_SECONDS: u32 = 3600;

/// Longest life of an invitation.
const LIFE_MAX_SECONDS: u32 = 366 * 24 * 3600;

/// A new invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInvitation {
    /// The SHA-256 of its secret.
    pub digest: Digest,
    /// The user it is for.
    pub user: String,
    /// Its properties, as on the wire.
    pub flags: u32,
    /// Its maker.
    pub by: String,
    /// Its end.
    pub expires: u32,
}

/// A device that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// The SHA-256 of the secret that it has shown.
    pub digest: Digest,
    /// The key that it has shown.
    pub key: PublicKey,
    /// The name that it was given.
    pub name: String,
    /// The address that it calls from.
    pub from: String,
}

/// A device that may have a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its number.
    pub number: u32,
    /// Its user.
    pub user: String,
    /// True if it may have it only when an administrator has approved the device.
    pub waits: bool,
}

/// The reason why a device gets no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no such invitation.
    UnknownInvitation,
    /// This other device has used it.
    Used(u32),
    /// It has expired.
    Expired,
    /// No device has this key.
    UnknownDevice,
    /// This device was revoked.
    Revoked(u32),
    /// There are as many devices as there can be.
    TooMany,
}

/// What is revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A device.
    Device(u32),
    /// All devices of a user, and the open invitations for the user.
    User(String),
    /// All devices and all open invitations.
    All,
    /// All open invitations.
    Invitations,
}

impl Devices {
    /// Adds an invitation; the cell's public key. The first makes that key, of `spare`.
    ///
    /// # Errors
    /// If there is one of this digest, or there are too many, or its end is not to come within a year.
    pub fn invite(
        &self,
        new: &NewInvitation,
        spare: &KeyPair,
        now: u32,
        rows: &mut Rows,
    ) -> Result<PublicKey, DeviceError> {
        if new.expires <= now || new.expires - now > LIFE_MAX_SECONDS {
            return Err(DeviceError::BadArgument);
        }
        if self.invitation(&new.digest).is_some() {
            return Err(DeviceError::Exists);
        }
        let gone = self.invitations_after(None).filter(|(_, old)| old.is_over(now));
        let gone: Vec<Digest> = gone.map(|(digest, _)| *digest).collect();
        if self.invitation_count() - gone.len() >= INVITATIONS_MAX {
            return Err(DeviceError::TooMany);
        }
        gone.iter().for_each(|digest| rows.remove(invitation_key(digest)));
        let NewInvitation { user, flags, by, expires, .. } = new.clone();
        let invitation = Invitation { user, flags, by, made: now, expires, used: None };
        rows.put(invitation_key(&new.digest), invitation.to_row());
        if let Some((_, key)) = self.newest_key() {
            return Ok(key.pair.public());
        }
        Ok(self.add_key(spare, now, rows))
    }

    /// Makes this the newest key of the cell. Devices learn it when they next get a token by an older one.
    pub fn add_key(&self, pair: &KeyPair, now: u32, rows: &mut Rows) -> PublicKey {
        let number = self.newest_key().map_or(1, |(number, _)| number.saturating_add(1));
        rows.put(cell_key_key(number), CellKey { pair: pair.clone(), made: now }.to_row());
        pair.public()
    }

    /// Removes all keys of the cell but the newest; how many.
    pub fn remove_old_keys(&self, rows: &mut Rows) -> u32 {
        let newest = self.newest_key().map(|(number, _)| number);
        let old: Vec<u32> = self.key_numbers().filter(|number| Some(*number) != newest).collect();
        old.iter().for_each(|number| rows.remove(cell_key_key(*number)));
        old.len() as u32
    }

    /// Registers a device by an invitation, which is used up by that. A device whose answer was lost shows the invitation again, with the
    /// same key: it is the one that has used it.
    ///
    /// # Errors
    /// Why not.
    pub fn join(&self, new: &NewDevice, now: u32, rows: &mut Rows) -> Result<Admitted, Denied> {
        let invitation = self.invitation(&new.digest).ok_or(Denied::UnknownInvitation)?;
        if let Some(number) = invitation.used {
            return match self.device_of(&new.key) {
                Some((own, _)) if own == number => self.renew(&new.key, now, rows),
                _ => Err(Denied::Used(number)),
            };
        }
        if invitation.expires <= now {
            return Err(Denied::Expired);
        }
        // A device has a user and a number for good: one that joins again does so with a new key.
        if let Some((number, device)) = self.device_of(&new.key) {
            return Err(if device.revoked != 0 { Denied::Revoked(number) } else { Denied::Used(number) });
        }
        let mut header = self.header();
        let number = header.last_device.checked_add(1).ok_or(Denied::TooMany)?;
        if self.device_count() >= DEVICES_MAX {
            return Err(Denied::TooMany);
        }
        header.last_device = number;
        let device = Device {
            key: new.key,
            user: invitation.user.clone(),
            name: new.name.clone(),
            from: new.from.clone(),
            by: invitation.by.clone(),
            registered: now,
            seen: now - now % SEEN_SECONDS,
            revoked: 0,
            waits: JoinFlags(invitation.flags).contains(JoinFlags::ADMIN),
        };
        let used = Invitation { used: Some(number), ..invitation.clone() };
        rows.put(HEADER_KEY.to_vec(), header.to_row());
        rows.put(invitation_key(&new.digest), used.to_row());
        rows.put(device_key(number), device.to_row());
        Ok(Admitted { number, user: device.user, waits: device.waits })
    }

    /// Checks that a device may have a token, and notes that it was seen.
    ///
    /// # Errors
    /// Why not.
    pub fn renew(&self, key: &PublicKey, now: u32, rows: &mut Rows) -> Result<Admitted, Denied> {
        let (number, device) = self.device_of(key).ok_or(Denied::UnknownDevice)?;
        if device.revoked != 0 {
            return Err(Denied::Revoked(number));
        }
        let seen = now - now % SEEN_SECONDS;
        if seen > device.seen {
            rows.put(device_key(number), Device { seen, ..device.clone() }.to_row());
        }
        Ok(Admitted { number, user: device.user.clone(), waits: device.waits })
    }

    /// Approves a device, which gets tokens from then on; its user.
    ///
    /// # Errors
    /// If there is none of this number, or it was revoked.
    pub fn approve(&self, number: u32, rows: &mut Rows) -> Result<String, DeviceError> {
        let device = self.device(number).filter(|device| device.revoked == 0).ok_or(DeviceError::NoEntry)?;
        if device.waits {
            rows.put(device_key(number), Device { waits: false, ..device.clone() }.to_row());
        }
        Ok(device.user.clone())
    }

    /// Gives a device another name.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn rename(&self, number: u32, name: &str, rows: &mut Rows) -> Result<(), DeviceError> {
        let device = self.device(number).ok_or(DeviceError::NoEntry)?;
        rows.put(device_key(number), Device { name: name.to_owned(), ..device.clone() }.to_row());
        Ok(())
    }

    /// Revokes devices and withdraws open invitations; how many of each there were.
    ///
    /// # Errors
    /// If one device is to be, and there is none of this number.
    pub fn revoke(&self, target: &Target, now: u32, rows: &mut Rows) -> Result<(u32, u32), DeviceError> {
        if let Target::Device(number) = target
            && self.device(*number).is_none()
        {
            return Err(DeviceError::NoEntry);
        }
        let is_meant = |number: u32, device: &Device| match target {
            Target::Device(only) => number == *only,
            Target::User(user) => device.user == *user,
            Target::All => true,
            Target::Invitations => false,
        };
        let devices = self.devices_after(0).filter(|(number, device)| is_meant(*number, device));
        let devices: Vec<_> = devices.filter(|(_, device)| device.revoked == 0).collect();
        for (number, device) in &devices {
            rows.put(device_key(*number), Device { revoked: now.max(1), ..(*device).clone() }.to_row());
        }
        if !devices.is_empty() {
            let mut header = self.header();
            header.revocations += 1;
            rows.put(HEADER_KEY.to_vec(), header.to_row());
        }
        let is_withdrawn = |invitation: &Invitation| match target {
            Target::Device(_) => false,
            Target::User(user) => invitation.user == *user,
            Target::All | Target::Invitations => true,
        };
        let open = self.invitations_after(None).filter(|(_, invitation)| invitation.used.is_none());
        let open: Vec<_> =
            open.filter(|(_, invitation)| is_withdrawn(invitation)).map(|(digest, _)| *digest).collect();
        open.iter().for_each(|digest| rows.remove(invitation_key(digest)));
        Ok((devices.len() as u32, open.len() as u32))
    }
}

impl Invitation {
    /// True if it can be used.
    pub fn is_open(&self, now: u32) -> bool {
        self.used.is_none() && self.expires > now
    }

    /// True if nobody need be told any more that it was used or has expired.
    fn is_over(&self, now: u32) -> bool {
        self.expires.saturating_add(KEPT_SECONDS) <= now
    }
}
