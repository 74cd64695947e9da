//! Writes a dump, byte for byte as OpenAFS's volserver does: the same tags in the same order (Volume service notes 5.2), and behind them a
//! volume's schedule and limit of snapshots and its level, if it has them. The caller owns the buffer, and may send data past it.

use crate::records::{DumpHeader, VnodeAttributes, VnodeKind, VnodeRecord, VolumeHeader};
use crate::{CRITICAL, Reader, level, magic, schedule, section};
use afs_wire::acl::AclError;
use afs_wire::directory::PAGE_SIZE;
use afs_wire::ids::{LocalFid, SecurityLevel, VnodeNumber};

/// Something that a dump cannot have. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// A name or message that is too long, or has a NUL.
    #[error("{0} does not fit into a dump")]
    Text(&'static str),
    /// No range of time, or too many.
    #[error("a dump has from 1 to 50 ranges of time")]
    Ranges,
    /// A vnode that cannot be.
    #[error("vnode {fid} {why}")]
    BadVnode {
        /// The vnode.
        fid: LocalFid,
        /// The reason.
        why: &'static str,
    },
    /// A vnode out of order: directories come first, and of a class those with lower numbers.
    #[error("vnode {0} comes too late in the dump")]
    Order(VnodeNumber),
    /// An access list that does not fit.
    #[error("the access list of directory {directory}: {why}")]
    Acl {
        /// The directory.
        directory: LocalFid,
        /// The reason.
        why: AclError,
    },
}

/// Writes a dump: made with both headers, then [`Writer::vnode`] for each vnode with its data behind it, then [`Writer::end`].
#[derive(Debug, Clone)]
pub struct Writer {
    /// The last vnode: whether it was a file, and its number.
    last: (bool, u32),
    /// Bytes of data that the last vnode still lacks.
    lacks: u64,
}

impl Writer {
    /// Writes both headers.
    ///
    /// # Errors
    ///
    /// A text or the ranges do not fit.
    pub fn new(dump: &DumpHeader, volume: &VolumeHeader, out: &mut Vec<u8>) -> Result<Self, WriteError> {
        for (what, text) in [
            ("the volume's name in the dump's header", &dump.name),
            ("the volume's name", &volume.name),
            ("the message of a volume that is offline", &volume.offline_message),
            ("the message of the day", &volume.motd),
        ] {
            if text.contains(&0) || text.len() > Reader::TEXT_MAX {
                return Err(WriteError::Text(what));
            }
        }
        if dump.ranges.is_empty() || dump.ranges.len() > Reader::RANGES_MAX {
            return Err(WriteError::Ranges);
        }
        out.push(section::DUMP);
        word(out, magic::DUMP);
        word(out, magic::VERSION);
        long(out, b'v', dump.volume.0);
        text(out, b'n', &dump.name);
        count(out, b't', 2 * dump.ranges.len());
        for range in &dump.ranges {
            word(out, range.from.0);
            word(out, range.to.0);
        }
        volume.write(out);
        Ok(Self { last: (false, 0), lacks: 0 })
    }

    /// Writes a vnode. If it has a length, its data are to follow.
    ///
    /// # Errors
    ///
    /// It cannot stand here, or not in a dump at all.
    ///
    /// # Panics
    ///
    /// Data of the vnode before are missing.
    pub fn vnode(&mut self, record: &VnodeRecord, out: &mut Vec<u8>) -> Result<(), WriteError> {
        assert_eq!(self.lacks, 0, "all data of a vnode come before the next vnode");
        let LocalFid { vnode, unique } = record.fid;
        let place = (!vnode.is_directory(), vnode.0);
        if place <= self.last {
            return Err(WriteError::Order(vnode));
        }
        let bad = |why| Err(WriteError::BadVnode { fid: record.fid, why });
        if vnode.0 == 0 || unique.0 == 0 {
            return bad("has a number that no vnode has");
        }
        let begin = out.len();
        out.push(section::VNODE);
        word(out, vnode.0);
        word(out, unique.0);
        if let Some(attributes) = &record.attributes {
            if (attributes.kind == VnodeKind::Directory) != vnode.is_directory() {
                out.truncate(begin);
                return bad("has a number of another kind");
            }
            if attributes.kind == VnodeKind::Directory
                && !attributes.length.is_some_and(|n| n > 0 && n.is_multiple_of(PAGE_SIZE as u64))
            {
                out.truncate(begin);
                return bad("is a directory whose length is no number of pages");
            }
            if let Err(why) = attributes.write(out) {
                out.truncate(begin);
                return Err(WriteError::Acl { directory: record.fid, why });
            }
            self.lacks = attributes.length.unwrap_or(0);
        }
        self.last = place;
        Ok(())
    }

    /// Writes some of the last vnode's data.
    ///
    /// # Panics
    ///
    /// They are more than its length.
    pub fn data(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.pass(data.len() as u64);
        out.extend_from_slice(data);
    }

    /// Notes that the caller sends so many bytes of the last vnode's data itself, so that they need not be copied.
    ///
    /// # Panics
    ///
    /// They are more than its length.
    pub fn pass(&mut self, bytes: u64) {
        self.lacks = self.lacks.checked_sub(bytes).expect("no more data than the vnode's length");
    }

    /// Writes the end.
    ///
    /// # Panics
    ///
    /// Data of the last vnode are missing.
    pub fn end(self, out: &mut Vec<u8>) {
        assert_eq!(self.lacks, 0, "all data of a vnode come before the end");
        out.push(section::END);
        word(out, magic::END);
    }
}

impl VolumeHeader {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(section::VOLUME);
        long(out, b'i', self.id.0);
        long(out, b'v', self.version);
        text(out, b'n', &self.name);
        byte(out, b's', self.in_service.into());
        byte(out, b'b', self.blessed.into());
        long(out, b'u', self.next_unique);
        byte(out, b't', self.kind.0 as u8);
        long(out, b'p', self.parent.0);
        long(out, b'c', self.clone.0);
        long(out, b'q', self.max_quota_kib);
        long(out, b'm', self.min_quota_kib);
        long(out, b'd', self.used_kib);
        long(out, b'f', self.file_count);
        long(out, b'a', self.account);
        long(out, b'o', self.owner.0.cast_unsigned());
        long(out, b'C', self.creation_date.0);
        long(out, b'A', self.access_date.0);
        long(out, b'U', self.update_date.0);
        long(out, b'E', self.expiration_date.0);
        long(out, b'B', self.backup_date.0);
        text(out, b'O', &self.offline_message);
        text(out, b'M', &self.motd);
        count(out, b'W', self.week_use.len());
        self.week_use.iter().for_each(|&uses| word(out, uses));
        long(out, b'D', self.day_use_date.0);
        long(out, b'Z', self.day_use);
        if let Some(counts) = self.schedule {
            out.extend_from_slice(&[schedule::TAG, schedule::LENGTH]);
            out.extend_from_slice(&schedule::MARK);
            counts.iter().for_each(|count| out.extend_from_slice(&count.to_be_bytes()));
        }
        if let Some(limit_kib) = self.snapshot_limit_kib {
            out.extend_from_slice(&[schedule::TAG, schedule::LENGTH_OF_LIMIT]);
            out.extend_from_slice(&schedule::MARK);
            out.extend_from_slice(&limit_kib.to_be_bytes());
        }
        if self.level != SecurityLevel::CLEAR {
            out.push(CRITICAL);
            long(out, level::TAG, level::MARK << 8 | self.level.0);
        }
    }
}

impl VnodeAttributes {
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Result<(), AclError> {
        let kind = match self.kind {
            VnodeKind::File => 1,
            VnodeKind::Directory => 2,
            VnodeKind::Symlink => 3,
        };
        byte(out, b't', kind);
        count(out, b'l', self.link_count.into());
        // The upper half of a version does not fit; no volume has so many.
        long(out, b'v', self.data_version.0 as u32);
        long(out, b'm', self.client_mod_time.0);
        long(out, b'a', self.author.0.cast_unsigned());
        long(out, b'o', self.owner.0.cast_unsigned());
        if self.group.0 != 0 {
            long(out, b'g', self.group.0.cast_unsigned());
        }
        count(out, b'b', self.mode.into());
        long(out, b'p', self.parent.0);
        long(out, b's', self.server_mod_time.0);
        if let Some(acl) = &self.acl {
            out.push(b'A');
            out.extend_from_slice(&acl.to_stored()?);
        }
        match self.length.map(|length| (length, u32::try_from(length))) {
            None => {}
            Some((_, Ok(length))) => long(out, b'f', length),
            Some((length, Err(_))) => {
                out.push(b'h');
                out.extend_from_slice(&length.to_be_bytes());
            }
        }
        Ok(())
    }
}

fn word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn byte(out: &mut Vec<u8>, tag: u8, value: u8) {
    out.extend_from_slice(&[tag, value]);
}

fn long(out: &mut Vec<u8>, tag: u8, value: u32) {
    out.push(tag);
    word(out, value);
}

/// A value of 16 bits.
fn count(out: &mut Vec<u8>, tag: u8, value: usize) {
    out.push(tag);
    out.extend_from_slice(&(value as u16).to_be_bytes());
}

fn text(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.extend_from_slice(value);
    out.push(0);
}
