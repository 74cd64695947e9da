//! Words in a file: big-endian, at addresses that count from behind the header of Ubik. What lies behind the end reads as
//! zeros, as servers read it.

/// A database's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn len(self) -> usize {
        self.0.len()
    }

    pub(super) fn u32(self, at: u32) -> u32 {
        self.bytes::<4>(at).map_or(0, u32::from_be_bytes)
    }

    pub(super) fn i32(self, at: u32) -> i32 {
        self.u32(at) as i32
    }

    /// So many bytes; `None` if the file ends within them.
    pub(super) fn bytes<const N: usize>(self, at: u32) -> Option<[u8; N]> {
        self.0.get(at as usize..)?.first_chunk().copied()
    }

    /// A text in a field of so many bytes, the last of which is a NUL at least.
    pub(super) fn text(self, at: u32, field: usize) -> &'a [u8] {
        let rest = self.0.get(at as usize..).unwrap_or_default();
        let field = &rest[..rest.len().min(field.saturating_sub(1))];
        &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
    }
}

/// The buffer in which a file that is written is put together.
#[derive(Debug)]
pub(super) struct Image(Vec<u8>);

impl Image {
    /// Zeros, whose addresses begin at 0.
    pub(super) fn new(length: usize) -> Self {
        Self(vec![0; length])
    }

    pub(super) fn put_u32(&mut self, at: u32, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn put_i32(&mut self, at: u32, value: i32) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn put(&mut self, at: u32, bytes: &[u8]) {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn u32(&self, at: u32) -> u32 {
        Data::new(&self.0).u32(at)
    }

    /// Puts an entry at the head of a hash chain: `head` is the bucket's address, `next` where the entry has the next one's.
    pub(super) fn link(&mut self, head: u32, next: u32, entry: u32) {
        let first = self.u32(head);
        self.put_u32(next, first);
        self.put_u32(head, entry);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Buckets of each hash table.
pub(super) const BUCKETS: u32 = 8191;

/// The bucket of a name. The factor is 63 in the VLDB and 31 in the PTDB.
pub(super) fn name_bucket(name: &[u8], factor: u32) -> u32 {
    let step =
        |hash: u32, byte: &u8| hash.wrapping_mul(factor).wrapping_add(u32::from(*byte)).wrapping_sub(factor);
    name.iter().rev().fold(0, step) % BUCKETS
}

/// The bucket of an id.
pub(super) fn id_bucket(id: u32) -> u32 {
    (id as i32).unsigned_abs() % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ids_have_the_buckets_that_openafs_gives_them() {
        for (name, vldb) in [
            ("root.cell", 7485),
            ("col.4055", 7485),
            ("root.afs", 306),
            ("user.alice", 4272),
            ("a", 34),
            ("ab", 2239),
        ] {
            assert_eq!(name_bucket(name.as_bytes(), 63), vldb, "{name}");
        }
        for (name, prdb) in [
            ("alice", 5557),
            ("c9997", 5557),
            ("system:administrators", 3432),
            ("alice:big", 1728),
            ("joe@other.test", 4086),
            ("a", 66),
            ("ab", 2143),
        ] {
            assert_eq!(name_bucket(name.as_bytes(), 31), prdb, "{name}");
        }
        for (id, bucket) in
            [(536_870_912, 8), (536_870_915, 11), (536_879_106, 11), (-204, 204), (130_845, 7980)]
        {
            assert_eq!(id_bucket(id as u32), bucket, "{id}");
        }
        assert!(id_bucket(0x8000_0000) < BUCKETS);
    }

    #[test]
    fn behind_the_end_there_are_zeros() {
        let data = Data::new(&[1, 2, 3, 4, 5]);
        assert_eq!(
            (data.u32(0), data.u32(1), data.u32(2), data.u32(u32::MAX)),
            (0x0102_0304, 0x0203_0405, 0, 0)
        );
        assert_eq!((data.text(1, 3), data.text(4, 9), data.text(9, 9)), (&[2, 3][..], &[5][..], &[][..]));
    }
}
