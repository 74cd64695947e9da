//! Fields of a dump as the reader has them: numbers, the fields of the volume's header by their tags, and what a page
//! of a directory must have.

use crate::records::VolumeHeader;
use afs_wire::directory::layout::{BUCKETS, HASH_TABLE_AT, PAGE_COUNT_AT, SLOTS, TAG, TAG_AT};
use afs_wire::ids::{AfsTime, ViceId, VolumeId, VolumeType};

impl VolumeHeader {
    /// Takes the value of a tag.
    pub(crate) fn set(&mut self, tag: u8, value: u32) {
        match tag {
            b'i' => self.id = VolumeId(value),
            b'v' => self.version = value,
            b's' => self.in_service = value != 0,
            b'b' => self.blessed = value != 0,
            b'u' => self.next_unique = value,
            b't' => self.kind = VolumeType(value.cast_signed()),
            b'p' => self.parent = VolumeId(value),
            b'c' => self.clone = VolumeId(value),
            b'q' => self.max_quota_kib = value,
            b'm' => self.min_quota_kib = value,
            b'd' => self.used_kib = value,
            b'f' => self.file_count = value,
            b'a' => self.account = value,
            b'o' => self.owner = ViceId(value.cast_signed()),
            b'C' => self.creation_date = AfsTime(value),
            b'A' => self.access_date = AfsTime(value),
            b'U' => self.update_date = AfsTime(value),
            b'E' => self.expiration_date = AfsTime(value),
            b'B' => self.backup_date = AfsTime(value),
            b'D' => self.day_use_date = AfsTime(value),
            b'Z' => self.day_use = value,
            // V is not used.
            _ => {}
        }
    }
}

/// Reads a number of at most eight bytes, the first one highest.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Checks what can be told of a page by itself: its tag; of the first one also the number of pages, and that chains begin
/// within them.
pub(crate) fn check_page(page: &[u8], n: u32, count: u32) -> Result<(), &'static str> {
    let half = |at: usize| number(&page[at..at + 2]) as u32;
    if half(TAG_AT) != u32::from(TAG) {
        return Err("is no page of a directory");
    }
    if n == 0 {
        if half(PAGE_COUNT_AT) != count {
            return Err("says another number of pages than there are");
        }
        if (0..BUCKETS).any(|bucket| half(HASH_TABLE_AT + 2 * bucket) >= count * SLOTS as u32) {
            return Err("has names on pages that are not there");
        }
    }
    Ok(())
}
