//! The status of a vnode as it is told and as it is set, the promise to call back, and the volume's synchronization
//! words (File service notes 2 to 4 and 7.1). Who may see or change what is left to the server.

use crate::ids::{AfsTime, DataVersion, Uniquifier, ViceId, VnodeNumber};
use crate::rights::Rights;
use rxgen::xdr::WireSize;
use rxgen::{DecodeError, Decoder, Xdr, wire_enum, wire_struct};

wire_enum! {
    /// The type of a vnode.
    enum FileType: u32 {
        /// Nothing: an entry that failed in a bulk reply.
        0 INVALID;
        /// A file.
        1 FILE;
        /// A directory.
        2 DIRECTORY;
        /// A symbolic link or mount point.
        3 SYMLINK;
    }

    /// The kind of a callback promise (File service notes 3).
    enum CallBackType: u32 {
        /// No promise, in entries that failed.
        0 NONE;
        /// For one holder only; no longer used.
        1 EXCLUSIVE;
        /// The server will call before somebody else's change shows.
        2 SHARED;
        /// No promise, or it has ended.
        3 DROPPED;
    }
}

/// The status of a vnode, 84 bytes. The two halves of a length and of a data version, which are apart on the wire,
/// are together here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AfsFetchStatus {
    /// Version of this structure; clients must refuse others than [`Self::VERSION`].
    pub interface_version: u32,
    /// Its type.
    pub file_type: FileType,
    /// Names it has; for directories 2 and the number of subdirectories.
    pub link_count: u32,
    /// Bytes of data.
    pub length: u64,
    /// Version of the data.
    pub data_version: DataVersion,
    /// The user who changed the data last.
    pub author: ViceId,
    /// The owner.
    pub owner: ViceId,
    /// The rights of the caller.
    pub caller_access: Rights,
    /// The rights of `system:anyuser`.
    pub anonymous_access: Rights,
    /// The twelve low mode bits, without the type.
    pub unix_mode_bits: u32,
    /// The directory it is in; for directories, OpenAFS gives the directory itself.
    pub parent_vnode: VnodeNumber,
    /// Likewise.
    pub parent_unique: Uniquifier,
    /// 1.
    pub residency_mask: u32,
    /// Modification time, as the client set it.
    pub client_mod_time: AfsTime,
    /// The time when the server saw the last change.
    pub server_mod_time: AfsTime,
    /// A group number, which has no effect.
    pub group: ViceId,
    /// 0.
    pub sync_counter: u32,
    /// -1 locked for writing, or the number of read locks.
    pub lock_count: i32,
    /// In `InlineBulkStatus` the code of this fid's failure, or 0.
    pub error_code: i32,
}

impl AfsFetchStatus {
    /// The only version there is.
    pub const VERSION: u32 = 1;

    /// The entry of a bulk reply for a fid that failed: zeros and the code (File service notes 14).
    #[must_use]
    pub const fn failed(error_code: i32) -> Self {
        Self { error_code, ..Self::ZERO }
    }

    const ZERO: Self = Self {
        interface_version: 0,
        file_type: FileType::INVALID,
        link_count: 0,
        length: 0,
        data_version: DataVersion(0),
        author: ViceId(0),
        owner: ViceId(0),
        caller_access: Rights::NONE,
        anonymous_access: Rights::NONE,
        unix_mode_bits: 0,
        parent_vnode: VnodeNumber(0),
        parent_unique: Uniquifier(0),
        residency_mask: 0,
        client_mod_time: AfsTime(0),
        server_mod_time: AfsTime(0),
        group: ViceId(0),
        sync_counter: 0,
        lock_count: 0,
        error_code: 0,
    };
}

fn low(value: u64) -> u32 {
    value as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

impl Xdr for AfsFetchStatus {
    const SIZE: WireSize = WireSize::exactly(84);

    fn encode(&self, out: &mut Vec<u8>) {
        self.interface_version.encode(out);
        self.file_type.encode(out);
        self.link_count.encode(out);
        low(self.length).encode(out);
        low(self.data_version.0).encode(out);
        self.author.encode(out);
        self.owner.encode(out);
        self.caller_access.encode(out);
        self.anonymous_access.encode(out);
        self.unix_mode_bits.encode(out);
        self.parent_vnode.encode(out);
        self.parent_unique.encode(out);
        self.residency_mask.encode(out);
        self.client_mod_time.encode(out);
        self.server_mod_time.encode(out);
        self.group.encode(out);
        self.sync_counter.encode(out);
        high(self.data_version.0).encode(out);
        self.lock_count.encode(out);
        high(self.length).encode(out);
        self.error_code.encode(out);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.expect_bytes(Self::SIZE.min, "AfsFetchStatus")?;
        let mut status = Self {
            interface_version: Xdr::decode(decoder)?,
            file_type: Xdr::decode(decoder)?,
            link_count: Xdr::decode(decoder)?,
            length: u32::decode(decoder)?.into(),
            data_version: DataVersion(u32::decode(decoder)?.into()),
            author: Xdr::decode(decoder)?,
            owner: Xdr::decode(decoder)?,
            caller_access: Xdr::decode(decoder)?,
            anonymous_access: Xdr::decode(decoder)?,
            unix_mode_bits: Xdr::decode(decoder)?,
            parent_vnode: Xdr::decode(decoder)?,
            parent_unique: Xdr::decode(decoder)?,
            residency_mask: Xdr::decode(decoder)?,
            client_mod_time: Xdr::decode(decoder)?,
            server_mod_time: Xdr::decode(decoder)?,
            group: Xdr::decode(decoder)?,
            sync_counter: Xdr::decode(decoder)?,
            ..Self::ZERO
        };
        status.data_version = DataVersion(joined(Xdr::decode(decoder)?, low(status.data_version.0)));
        status.lock_count = Xdr::decode(decoder)?;
        status.length = joined(Xdr::decode(decoder)?, low(status.length));
        status.error_code = Xdr::decode(decoder)?;
        Ok(status)
    }
}

wire_bits! {
    /// The fields of an [`AfsStoreStatus`] that are to be set (File service notes 4).
    StoreMask(u32) {
        /// `client_mod_time`.
        1 MOD_TIME;
        /// `owner`.
        2 OWNER;
        /// `group`.
        4 GROUP;
        /// `unix_mode_bits`.
        8 MODE;
        /// `seg_size`, which nobody looks at.
        16 SEG_SIZE;
        /// In StoreData: the data are to be on disk before the reply.
        1024 FSYNC;
    }
}

wire_struct! {
    /// Status to be set.
    #[derive(Copy, Hash, Default)]
    struct AfsStoreStatus {
        /// The fields that count.
        mask: StoreMask,
        /// Modification time.
        client_mod_time: AfsTime,
        /// Owner.
        owner: ViceId,
        /// Group number.
        group: ViceId,
        /// The twelve low mode bits.
        unix_mode_bits: u32,
        /// Is not used.
        seg_size: u32,
    }

    /// A promise to call back (File service notes 7.1).
    #[derive(Copy, Hash)]
    struct AfsCallBack {
        /// [`AfsCallBack::VERSION`].
        version: u32,
        /// Seconds from now, in replies. What clients send back in `GiveUpCallBacks` means nothing.
        expiration_seconds: u32,
        /// The kind of promise.
        kind: CallBackType,
    }

    /// The facts about the volume that come with each status: six words, one of them in use.
    #[derive(Copy, Hash, Default)]
    struct AfsVolSync {
        /// The volume's creation date: for a read-only volume a change says that it was released anew.
        creation: AfsTime,
        /// 0.
        spares: [u32; 5],
    }
}

impl AfsCallBack {
    /// The only version there is.
    pub const VERSION: u32 = 1;

    /// No promise: what goes with a fid that failed in a bulk reply.
    pub const NONE: Self = Self { version: 0, expiration_seconds: 0, kind: CallBackType::NONE };

    /// A promise for so many seconds.
    #[must_use]
    pub const fn shared(expiration_seconds: u32) -> Self {
        Self { version: Self::VERSION, expiration_seconds, kind: CallBackType::SHARED }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxgen::xdr::{from_bytes, to_bytes};

    /// Words that all differ end up where they came from: no field is swapped with another.
    #[test]
    fn each_word_of_a_status_has_its_place() {
        let wire: Vec<u8> = (1u32..=21).flat_map(u32::to_be_bytes).collect();
        let status: AfsFetchStatus = from_bytes(&wire).unwrap();
        assert_eq!(to_bytes(&status), wire);
        assert_eq!((status.length, status.data_version.0), (20 << 32 | 4, 18 << 32 | 5));
        assert_eq!((status.lock_count, status.error_code), (19, 21));
    }

    #[test]
    fn a_failed_entry_is_zeros_and_the_code() {
        let wire = to_bytes(&AfsFetchStatus::failed(102));
        assert!(wire[..80].iter().all(|&byte| byte == 0));
        assert_eq!(wire[80..], [0, 0, 0, 102]);
    }

    #[test]
    fn bits_are_shown_by_name_and_unknown_ones_as_a_number() {
        let mask = StoreMask::OWNER | StoreMask::FSYNC | StoreMask(0x8000);
        assert_eq!(format!("{mask:?}"), "StoreMask(OWNER | FSYNC | 0x8000)");
        assert_eq!(format!("{:?}", StoreMask::NONE), "StoreMask(0x0)");
    }
}
