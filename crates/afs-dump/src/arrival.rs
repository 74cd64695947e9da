//! A server's record of a dump that broke off: the vnodes that came, each with a digest of what it was. The sender of the dump names those
//! alone when it sends it once more (Volume service notes 5.5). Ours; no part of the stream.

use afs_wire::acl::AclError;
use afs_wire::ids::VnodeNumber;
use sha2::{Digest, Sha256};

use crate::records::{VnodeAttributes, VnodeKind, VnodeRecord};

/// Vnodes that are told of. With more, the others are sent again: a sender keeps 28 bytes for each.
pub const ARRIVALS_MAX: usize = 1 << 20;

/// A vnode that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub vnode: VnodeNumber,
    /// The number of bytes of its data that came. `None`: all of it.
    pub bytes: Option<u64>,
    /// The digest of what came: see [`VnodeDigest`].
    pub digest: [u8; Self::DIGEST_BYTES],
}

impl Arrival {
    /// Bytes of a digest.
    pub const DIGEST_BYTES: usize = 16;
    /// Bytes of an arrival in a stream of them.
    pub const BYTES: usize = 4 + 8 + Self::DIGEST_BYTES;

    /// The bytes that are sent.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.vnode.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.bytes.unwrap_or(u64::MAX).to_be_bytes());
        bytes[12..].copy_from_slice(&self.digest);
        bytes
    }

    /// The reverse. Any bytes are an arrival.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (mut vnode, mut length) = ([0; 4], [0; 8]);
        let mut digest = [0; Self::DIGEST_BYTES];
        vnode.copy_from_slice(&bytes[..4]);
        length.copy_from_slice(&bytes[4..12]);
        digest.copy_from_slice(&bytes[12..]);
        let bytes = Some(u64::from_be_bytes(length)).filter(|length| *length != u64::MAX);
        Self { vnode: VnodeNumber(u32::from_be_bytes(vnode)), bytes, digest }
    }
}

/// A digest of a vnode: SHA-256 of its number, its uniquifier and all its attributes, as a dump of OpenAFS's would have them, and of the data that
/// are added; the first half of that.
///
/// Two vnodes of one volume with the same attributes have the same data, as each change has a data version of its own. Who cannot
/// trust in that adds the data.
#[derive(Debug, Clone)]
pub struct VnodeDigest(Sha256);

impl VnodeDigest {
    /// Makes the digest of a vnode without data. There is none if only the number is said.
    ///
    /// # Errors
    ///
    /// Its access list is longer than any can be.
    pub fn of(record: &VnodeRecord) -> Result<Option<Self>, AclError> {
        let Some(attributes) = &record.attributes else { return Ok(None) };
        let vnode = record.fid.vnode;
        let is_directory = attributes.kind == VnodeKind::Directory;
        let acl = is_directory.then(|| attributes.acl.clone().unwrap_or_default());
        // What servers do not keep is the same for all.
        let normal = VnodeAttributes {
            mode: attributes.mode & 0o7777,
            parent: if vnode == VnodeNumber::ROOT { VnodeNumber(0) } else { attributes.parent },
            acl,
            length: Some(attributes.length.unwrap_or(0)),
            ..attributes.clone()
        };
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&vnode.0.to_be_bytes());
        bytes.extend_from_slice(&record.fid.unique.0.to_be_bytes());
        normal.write(&mut bytes)?;
        Ok(Some(Self(Sha256::new_with_prefix(bytes))))
    }

    /// Adds some of its data.
    pub fn add(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// The digest of all that.
    #[must_use]
    pub fn end(self) -> [u8; Arrival::DIGEST_BYTES] {
        let mut half = [0; Arrival::DIGEST_BYTES];
        half.copy_from_slice(&self.0.finalize()[..Arrival::DIGEST_BYTES]);
        half
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::{AfsTime, DataVersion, LocalFid, Uniquifier, ViceId};

    fn record(change: impl FnOnce(&mut VnodeAttributes)) -> VnodeRecord {
        let mut attributes = VnodeAttributes {
            kind: VnodeKind::File,
            link_count: 1,
            data_version: DataVersion(3),
            client_mod_time: AfsTime(4),
            author: ViceId(5),
            owner: ViceId(6),
            group: ViceId(0),
            mode: 0o644,
            parent: VnodeNumber(1),
            server_mod_time: AfsTime(7),
            acl: None,
            length: Some(8),
        };
        change(&mut attributes);
        let fid = LocalFid { vnode: VnodeNumber(2), unique: Uniquifier(9) };
        VnodeRecord { fid, attributes: Some(attributes) }
    }

    fn digest(record: &VnodeRecord) -> [u8; 16] {
        VnodeDigest::of(record).unwrap().unwrap().end()
    }

    #[test]
    fn whatever_differs_is_seen() {
        let one = digest(&record(|_| {}));
        let mut all = vec![
            digest(&record(|a| a.data_version = DataVersion(4))),
            digest(&record(|a| a.server_mod_time = AfsTime(8))),
            digest(&record(|a| a.length = Some(9))),
            digest(&record(|a| a.mode = 0o600)),
            digest(&record(|a| a.owner = ViceId(7))),
        ];
        let mut other = record(|_| {});
        other.fid.unique = Uniquifier(10);
        all.push(digest(&other));
        let mut with_data = VnodeDigest::of(&record(|_| {})).unwrap().unwrap();
        with_data.add(b"data");
        all.push(with_data.end());
        assert!(!all.contains(&one));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn what_servers_do_not_keep_makes_no_difference() {
        assert_eq!(digest(&record(|a| a.mode = 0o100_644)), digest(&record(|_| {})));
        assert_eq!(digest(&record(|a| a.length = None)), digest(&record(|a| a.length = Some(0))));
    }

    #[test]
    fn an_arrival_is_what_was_sent() {
        for bytes in [None, Some(0), Some(1 << 40)] {
            let arrival = Arrival { vnode: VnodeNumber(7), bytes, digest: [3; 16] };
            assert_eq!(Arrival::from_bytes(&arrival.to_bytes()), arrival);
        }
    }
}
