//! What was known of volumes and of what is in them: for a start of the client without servers. It counts for nothing while servers answer. Who
//! writes it, and what a start makes of it, is `afs-view`: here it is a row for each volume, and one for each vnode.

use crate::records::{self, Writer};
use crate::{Cache, CacheError, CellNumber, FileKey};
use afs_store::codec::{Fields, Value};
use afs_store::{Batch, StoreError};

/// A server that has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownSite {
    /// Its id, if it has one.
    pub uuid: Option<[u8; 16]>,
    /// What of the volume it has: flags of the VLDB.
    pub flags: u32,
    /// Its addresses and ports.
    pub addresses: Vec<([u8; 4], u16)>,
}

/// A volume: where it is, and how long ago a server of it has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVolume {
    /// The name without what says its kind.
    pub name: String,
    /// The numbers of its kinds.
    pub ids: [u32; 3],
    /// Flags of the VLDB.
    pub flags: u32,
    /// The servers that have it.
    pub sites: Vec<KnownSite>,
    /// When this was written, in seconds since 1970.
    pub noted: u32,
    /// Seconds between the last answer of a server and then.
    pub age: u32,
}

/// A vnode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVnode {
    /// Its status, as servers tell it.
    pub status: Vec<u8>,
    /// True if it is pinned, or on the way to what is.
    pub is_pinned: bool,
    /// The vnode and uniquifier of the directory that it is in.
    pub parent: Option<(u32, u32)>,
    /// The target of a symbolic link or mount point.
    pub link: Option<Vec<u8>>,
    /// The pages of a directory, of the version that the status tells.
    pub pages: Option<Vec<u8>>,
    /// What users may do in a directory.
    pub rights: Vec<(Writer, u32)>,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// A volume's: the key has zeros behind it.
    Volume(KnownVolume),
    /// A vnode's.
    Vnode(KnownVnode),
}

impl KnownVolume {
    /// As its row has it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = Value::default().string(&self.name);
        for number in self.ids.into_iter().chain([self.flags, self.noted, self.age]) {
            value = value.u32(number);
        }
        for site in &self.sites {
            value = value.u8(u8::from(site.uuid.is_some())).bytes(&site.uuid.unwrap_or_default());
            value = value.u32(site.flags).u16(u16::try_from(site.addresses.len()).unwrap_or(u16::MAX));
            for (address, port) in site.addresses.iter().take(usize::from(u16::MAX)) {
                value = value.bytes(address).u16(*port);
            }
        }
        value.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let f = &mut Fields::new("what is known of a volume", bytes);
        let (name, ids) = (f.string()?, [f.u32()?, f.u32()?, f.u32()?]);
        let (flags, noted, age) = (f.u32()?, f.u32()?, f.u32()?);
        let mut sites = Vec::new();
        while !f.is_empty() {
            let (has_uuid, uuid) = (f.u8()? != 0, array(f)?);
            let flags = f.u32()?;
            let count = f.u16()?;
            let addresses =
                (0..count).map(|_| Ok((array(f)?, f.u16()?))).collect::<Result<_, StoreError>>()?;
            sites.push(KnownSite { uuid: has_uuid.then_some(uuid), flags, addresses });
        }
        Ok(Self { name, ids, flags, sites, noted, age })
    }
}

impl KnownVnode {
    /// As its row has it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = put_bytes(Value::default(), &self.status);
        value = value.u8(u8::from(self.is_pinned)).u8(u8::from(self.parent.is_some()));
        if let Some((vnode, unique)) = self.parent {
            value = value.u32(vnode).u32(unique);
        }
        for bytes in [&self.link, &self.pages] {
            value = value.u8(u8::from(bytes.is_some()));
            if let Some(bytes) = bytes {
                value = put_bytes(value, bytes);
            }
        }
        for (writer, rights) in &self.rights {
            value = value.u32(writer.user).string(writer.holder.as_deref().unwrap_or_default()).u32(*rights);
        }
        value.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let f = &mut Fields::new("what is known of a vnode", bytes);
        let (status, is_pinned) = (bytes_of(f)?, f.u8()? != 0);
        let parent = if f.u8()? != 0 { Some((f.u32()?, f.u32()?)) } else { None };
        let link = if f.u8()? != 0 { Some(bytes_of(f)?) } else { None };
        let pages = if f.u8()? != 0 { Some(bytes_of(f)?) } else { None };
        let mut rights = Vec::new();
        while !f.is_empty() {
            rights.push((Writer::new(f.u32()?, f.string()?.into()), f.u32()?));
        }
        Ok(Self { status, is_pinned, parent, link, pages, rights })
    }
}

fn put_bytes(value: Value, bytes: &[u8]) -> Value {
    value.u32(u32::try_from(bytes.len()).expect("no directory is so long")).bytes(bytes)
}

fn bytes_of(f: &mut Fields<'_>) -> Result<Vec<u8>, StoreError> {
    let length = f.u32()?;
    Ok(f.bytes(length as usize)?.to_vec())
}

fn array<const N: usize>(f: &mut Fields<'_>) -> Result<[u8; N], StoreError> {
    Ok(f.bytes(N)?.try_into().expect("as long as it was asked to be"))
}

fn decode(key: FileKey, bytes: &[u8]) -> Option<Known> {
    match key.vnode {
        0 => KnownVolume::decode(bytes).ok().map(Known::Volume),
        _ => KnownVnode::decode(bytes).ok().map(Known::Vnode),
    }
}

/// What was known.
impl Cache {
    /// Keeps rows of what is known, or removes those that there is `None` for. They outlast the process; a loss of power from the cache's next
    /// sync on.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn keep_known(&self, rows: Vec<(FileKey, Option<Vec<u8>>)>) -> Result<(), CacheError> {
        let mut batch = Batch::default();
        for (key, row) in rows {
            match row {
                Some(row) => records::put(&mut batch, records::known(key), row),
                None => batch.delete(records::known(key)),
            }
        }
        self.inner.shared.commit_changes(batch)
    }

    /// Removes what is known of a volume; without one, all.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn forget_known(&self, volume: Option<(CellNumber, u32)>) -> Result<(), CacheError> {
        let shared = &self.inner.shared;
        let mut batch = Batch::default();
        let prefix = records::all_known(volume);
        shared.scan_or_drop(&prefix, |key, _| {
            batch.delete(key.clone());
            Some(())
        })?;
        match batch.rows.is_empty() {
            true => Ok(()),
            false => shared.commit_changes(batch),
        }
    }

    /// Tells what was known, each volume before what is in it. A row that makes no sense is dropped, and told in the log.
    ///
    /// # Errors
    ///
    /// The disk's.
    pub fn known(&self, mut tell: impl FnMut(FileKey, Known)) -> Result<(), CacheError> {
        self.inner.shared.scan_or_drop(&records::all_known(None), |key, row| {
            let of = records::file_of(key)?;
            tell(of, decode(of, records::unsealed(key, row)?)?);
            Some(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, MemoryDisk};
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn what_was_known_is_read_again_volumes_first_and_what_makes_no_sense_is_dropped() {
        let disk = Arc::new(MemoryDisk::new());
        let open = || Cache::open_on(disk.clone(), Path::new("F"), Config::new(1 << 20)).unwrap();
        let key = |volume, vnode| FileKey { cell: CellNumber(1), volume, vnode, unique: vnode };
        let vnode = KnownVnode {
            is_pinned: true,
            status: vec![7; 84],
            parent: None,
            link: None,
            pages: Some(vec![0; 2048]),
            rights: vec![(Writer::new(1000, "alice".into()), 127)],
        };
        let volume = KnownVolume {
            name: "v".into(),
            ids: [7, 8, 0],
            flags: 1,
            sites: vec![KnownSite { uuid: None, flags: 1, addresses: vec![([192, 0, 2, 1], 7000)] }],
            noted: 1,
            age: 0,
        };
        let cache = open();
        let mut rows = vec![(key(7, 3), Some(vnode.encode())), (key(7, 0), Some(volume.encode()))];
        rows.push((key(8, 3), Some(vnode.encode())));
        rows.push((key(7, 5), Some(b"nonsense".to_vec())));
        cache.keep_known(rows).unwrap();
        cache.forget_known(Some((CellNumber(1), 8))).unwrap();
        drop(cache);
        let expected = [(key(7, 0), Known::Volume(volume)), (key(7, 3), Known::Vnode(vnode))];
        for _ in 0..2 {
            let cache = open();
            let mut found = Vec::new();
            cache.known(|key, known| found.push((key, known))).unwrap();
            assert_eq!(found, expected);
        }
        open().forget_known(None).unwrap();
        open().known(|key, _| panic!("{key:?} is there")).unwrap();
    }
}
