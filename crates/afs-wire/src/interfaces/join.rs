//! JOIN, an interface of our own: a machine joins a cell by an invitation, and gets tokens by its device key from then on
//! (docs/notes/join.md). It is served on the port of the volume location database.
//!
//! The first three procedures are called without a security class. They carry the messages of a Noise_XK handshake, which
//! shows each end the other: [`JoinRequest`] is in its third message, and [`JoinReply`] in what follows. The others are of
//! administrators and servers.

use super::rxgk::RxgkEnctypes;
use crate::ids::AfsTime;
use rxgen::xdr::{DecodeError, Decoder, Opaque, OpaqueFixed, WireSize, Xdr, XdrArray, XdrString};
use rxgen::{interface, wire_enum, wire_struct};
use std::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of an X25519 key, private or public.
pub const JOIN_KEY_BYTES: usize = 32;
/// Random bytes of an invitation: 160 bits.
pub const JOIN_SECRET_BYTES: usize = 20;
/// Bytes of a cookie.
pub const JOIN_COOKIE_BYTES: usize = 16;
/// Longest message of the handshake, and longest sealed answer, in bytes: a token is the longest part of it. A message of Noise has at
/// most 65535.
pub const JOIN_MESSAGE_MAX: usize = 16_384;
/// Longest name of a device, in bytes.
pub const JOIN_NAME_MAX: usize = 64;
/// Longest name of a user, in bytes.
pub const JOIN_USER_MAX: usize = 255;
/// Longest token, in bytes (Security notes 2.3).
pub const JOIN_TOKEN_MAX: usize = 12_000;
/// Longest K0, in bytes.
pub const JOIN_K0_MAX: usize = 64;
/// Most devices and invitations in one answer: some 100 KiB.
pub const JOIN_LIST_MAX: usize = 256;
/// Most numbers of devices in one answer.
pub const JOIN_REVOKED_MAX: usize = 65_536;

/// An X25519 public key.
pub type JoinKey = OpaqueFixed<JOIN_KEY_BYTES>;
/// What an address shows to prove that it gets answers.
pub type JoinCookie = OpaqueFixed<JOIN_COOKIE_BYTES>;
/// The SHA-256 of these.
pub type JoinDigest = OpaqueFixed<32>;
/// A message of the handshake, or what is sealed after it.
pub type JoinMessage = Opaque<JOIN_MESSAGE_MAX>;
/// The name of a device, which its owner has given it.
pub type JoinName = XdrString<JOIN_NAME_MAX>;
/// The name of a user of the cell, in lower case.
pub type JoinUser = XdrString<JOIN_USER_MAX>;

/// The random bytes of an invitation. Forgotten when dropped, and never printed.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct JoinSecret(pub [u8; JOIN_SECRET_BYTES]);

/// K0, the secret of a token. Forgotten when dropped, and never printed.
#[derive(Clone, PartialEq, Eq, Default, Zeroize, ZeroizeOnDrop)]
pub struct JoinK0(pub Vec<u8>);

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinSecret(..)")
    }
}

impl fmt::Debug for JoinK0 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinK0(..)")
    }
}

impl Xdr for JoinSecret {
    const SIZE: WireSize = OpaqueFixed::<JOIN_SECRET_BYTES>::SIZE;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        OpaqueFixed::decode(decoder).map(|bytes| Self(bytes.0))
    }
}

impl Xdr for JoinK0 {
    const SIZE: WireSize = Opaque::<JOIN_K0_MAX>::SIZE;

    fn encode(&self, out: &mut Vec<u8>) {
        (self.0.len() as u32).encode(out);
        out.extend_from_slice(&self.0);
        out.resize(out.len() + self.0.len().next_multiple_of(4) - self.0.len(), 0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let length = decoder.count(JOIN_K0_MAX, 1, "K0")?;
        decoder.take_padded(length, "K0").map(|bytes| Self(bytes.to_vec()))
    }
}

wire_enum! {
    /// What a device wants.
    enum JoinWant: u32 {
        /// Registration by an invitation, and a token.
        1 JOIN;
        /// A token for a device that is registered.
        2 RENEW;
        /// An end: its number is revoked.
        3 LEAVE;
    }

    /// What becomes of it.
    enum JoinOutcome: u32 {
        /// It has what it wants.
        0 DONE;
        /// There is no such invitation, or it was withdrawn.
        1 UNKNOWN_INVITATION;
        /// The invitation was used by another device.
        2 USED;
        /// The invitation has expired.
        3 EXPIRED;
        /// No device has this key.
        4 UNKNOWN_DEVICE;
        /// The device was revoked.
        5 REVOKED;
        /// The cell has as many devices as it can.
        6 TOO_MANY;
        /// The server could not do it now; another server, or a later attempt, may.
        7 TRY_LATER;
        /// The server makes no tokens of the kinds that are wanted.
        8 NO_ENCTYPE;
        /// The device waits until an administrator approves it.
        9 NOT_APPROVED;
    }

    /// What is revoked.
    enum JoinTarget: u32 {
        /// A device, by its number.
        1 DEVICE;
        /// All devices of a user, and the open invitations for the user.
        2 USER;
        /// All devices and all open invitations.
        3 ALL;
        /// All open invitations.
        4 INVITATIONS;
    }
}

wire_bits! {
    /// Properties of an invitation.
    JoinFlags(u32) {
        /// The user is to be an administrator, once the device is approved.
        1 ADMIN;
        /// The user has no home volume.
        2 NO_HOME;
    }
}

wire_bits! {
    /// Properties of a device.
    DeviceFlags(u32) {
        /// It gets no tokens until an administrator approves it.
        1 WAITS;
    }
}

wire_struct! {
    /// What a device says in the third message of the handshake.
    struct JoinRequest {
        /// What it wants.
        want: JoinWant,
        /// The invitation; zeros if it does not join.
        secret: JoinSecret,
        /// Its name for lists; empty keeps the one that it has.
        name: JoinName,
        /// Enctypes of a token's secret, the preferred one first.
        enctypes: RxgkEnctypes,
    }

    /// What a device is answered. Unless the outcome is [`JoinOutcome::DONE`], all but that is empty; if it leaves, the token is. One that waits
    /// ([`JoinOutcome::NOT_APPROVED`]) is told all but the token.
    struct JoinReply {
        /// What became of it.
        outcome: JoinOutcome,
        /// Its number in the cell.
        device: u32,
        /// The user it is registered for.
        user: JoinUser,
        /// The cell's public key that the device is to expect from now on.
        key: JoinKey,
        /// The security index of the token's dialect.
        dialect: u32,
        /// The enctype of K0.
        enctype: i32,
        /// The level of connections.
        level: u32,
        /// Seconds for which a transport key is used.
        lifetime: u32,
        /// Bytes for which it is used, as a power of two.
        bytelife: u32,
        /// The token's end, in steps of 100 ns since 1970.
        expiration: i64,
        /// K0.
        secret: JoinK0,
        /// The token.
        token: Opaque<JOIN_TOKEN_MAX>,
    }

    /// An invitation, as administrators see it. What it was made with is never shown again.
    struct InvitationInfo {
        /// The SHA-256 of its secret.
        digest: JoinDigest,
        /// The user it is for.
        user: JoinUser,
        /// Its properties.
        flags: JoinFlags,
        /// The user who made it.
        by: JoinUser,
        /// When.
        made: AfsTime,
        /// Its end.
        expires: AfsTime,
    }

    /// A device, as administrators see it.
    struct DeviceInfo {
        /// Its number.
        number: u32,
        /// Its user.
        user: JoinUser,
        /// The name that it was given.
        name: JoinName,
        /// Its public key.
        key: JoinKey,
        /// When it joined.
        registered: AfsTime,
        /// The address that it joined from, and 0 as the port.
        from: XdrString<64>,
        /// The user who made its invitation.
        invited_by: JoinUser,
        /// When it last got a token, to the hour.
        last_seen: AfsTime,
        /// When it was revoked; 0 if it was not.
        revoked: AfsTime,
        /// What is to be known of it besides.
        flags: DeviceFlags,
    }
}

interface! {
    /// Procedures by which machines join a cell.
    Join on service 34568 port 7003 {
        /// Proves that the caller gets answers at its address. It costs a hash.
        1 JoinHello (key: u64) -> (cookie: JoinCookie);
        /// The first message of the handshake, to the key of the cell with this id; the second comes back.
        2 JoinBegin (cookie: JoinCookie, key: u64, message: JoinMessage) -> (session: u64, message: JoinMessage);
        /// The third message; the sealed answer comes back.
        3 JoinFinish (session: u64, message: JoinMessage) -> (message: JoinMessage);

        /// Adds an invitation, by the SHA-256 of its secret. The cell's public key goes into its line.
        20 JoinInvite (digest: JoinDigest, user: JoinUser, expires: AfsTime, flags: JoinFlags) -> (key: JoinKey);
        /// Lists open invitations, behind one of them; the first for zeros.
        21 JoinListInvitations (after: JoinDigest) -> (invitations: XdrArray<InvitationInfo, JOIN_LIST_MAX>);
        /// Lists devices whose numbers are above one.
        22 JoinListDevices (after: u32) -> (devices: XdrArray<DeviceInfo, JOIN_LIST_MAX>);
        /// Gives a device another name.
        23 JoinRename (device: u32, name: JoinName);
        /// Revokes devices and open invitations; how many were there.
        24 JoinRevoke (target: JoinTarget, device: u32, user: JoinUser) -> (devices: u32, invitations: u32);
        /// Makes a new key of the cell. The old ones stay until they are removed, so that devices learn the new one.
        25 JoinRotateKey () -> (key: JoinKey);
        /// Removes all keys of the cell but the newest. Open invitations, and devices that have not called since it was made, are lost.
        26 JoinRemoveOldKeys () -> (removed: u32);
        /// Approves a device that waits for it; whom it is of. Only who has the cell's key may, as on a server: no user.
        27 JoinApprove (device: u32) -> (user: JoinUser);
        /// The numbers of revoked devices, if the list has changed since a version; how the list is now.
        40 JoinRevoked (since: u64) -> (version: u64, devices: XdrArray<u32, JOIN_REVOKED_MAX>);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxgen::xdr::{from_bytes, to_bytes};

    /// Both ends are ours, but of different releases.
    #[test]
    fn what_a_device_says_reads_back_from_its_bytes() {
        let request = JoinRequest {
            want: JoinWant::JOIN,
            secret: JoinSecret([7; JOIN_SECRET_BYTES]),
            name: JoinName::new("laptop").unwrap(),
            enctypes: RxgkEnctypes::new(vec![18, 17]).unwrap(),
        };
        let bytes = [
            &1u32.to_be_bytes()[..],
            &[7; 20],
            &6u32.to_be_bytes(),
            b"laptop\0\0",
            &[2u32, 18, 17].map(u32::to_be_bytes).concat(),
        ]
        .concat();
        assert_eq!(to_bytes(&request), bytes);
        assert_eq!(from_bytes(&bytes), Ok(request));
    }
}
