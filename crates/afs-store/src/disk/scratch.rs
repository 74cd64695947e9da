//! A disk to try things on: it reads another disk, and keeps in memory what is written. So whoever looks at what a crash has left, or
//! tries a repair, leaves every byte below as it is.

use super::{Disk, DiskFile};
use crate::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};

/// Bytes that are kept together.
const BLOCK: usize = 4096;
/// Files that are known at least before those that nobody needs are forgotten.
const FILES: usize = 64;

/// A disk over another one, which it never changes. Its memory grows with what is written, and not with what is read.
#[derive(Debug)]
pub struct ScratchDisk {
    below: Arc<dyn Disk>,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    /// Files that are open or differ from those below; `None` is one that was removed.
    known: BTreeMap<String, Option<Arc<ScratchFile>>>,
    /// Those that nobody needs are forgotten when so many are known.
    limit: usize,
}

impl ScratchDisk {
    /// A disk that begins with the files of another.
    #[must_use]
    pub fn over(below: Arc<dyn Disk>) -> Self {
        Self { below, files: Mutex::new(Files { known: BTreeMap::new(), limit: FILES }) }
    }

    fn find(&self, files: &mut Files, name: &str) -> io::Result<Arc<ScratchFile>> {
        match files.known.get(name) {
            Some(Some(file)) => return Ok(file.clone()),
            Some(None) => return Err(io::ErrorKind::NotFound.into()),
            None => {}
        }
        let below = self.below.open(name)?;
        let length = below.length()?;
        let content = Content { length, of_below: length, ..Content::default() };
        let file = Arc::new(ScratchFile { below: Some(below), content: Mutex::new(content) });
        if files.known.len() >= files.limit {
            files.known.retain(|_, file| {
                file.as_ref().is_none_or(|file| Arc::strong_count(file) > 1 || lock(&file.content).is_changed)
            });
            files.limit = 2 * files.known.len() + FILES;
        }
        files.known.insert(name.to_owned(), Some(file.clone()));
        Ok(file)
    }
}

impl Disk for ScratchDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.find(&mut lock(&self.files), name)?)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let content = Content { is_changed: true, ..Content::default() };
        let file = Arc::new(ScratchFile { below: None, content: Mutex::new(content) });
        lock(&self.files).known.insert(name.to_owned(), Some(file.clone()));
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut files = lock(&self.files);
        self.find(&mut files, name)?;
        files.known.insert(name.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = lock(&self.files);
        let file = self.find(&mut files, from)?;
        lock(&file.content).is_changed = true;
        files.known.insert(from.to_owned(), None);
        files.known.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names: BTreeSet<String> = self.below.list(folder)?.into_iter().collect();
        for (path, file) in &lock(&self.files).known {
            let Some(rest) = (match folder {
                "" => Some(path.as_str()),
                _ => path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')),
            }) else {
                continue;
            };
            match (rest.split_once('/'), file) {
                (Some((folder, _)), Some(_)) => _ = names.insert(folder.to_owned()),
                (Some(_), None) => {}
                (None, Some(_)) => _ = names.insert(rest.to_owned()),
                (None, None) => _ = names.remove(rest),
            }
        }
        Ok(names.into_iter().collect())
    }

    fn sync_folder(&self, _folder: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_files(&self, _names: &[String]) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<(u64, u64)> {
        self.below.space()
    }

    fn is_scratch(&self) -> bool {
        true
    }

    fn boot(&self) -> io::Result<String> {
        self.below.boot()
    }
}

/// A file of it.
#[derive(Debug)]
struct ScratchFile {
    below: Option<Arc<dyn DiskFile>>,
    content: Mutex<Content>,
}

#[derive(Debug, Default)]
struct Content {
    length: u64,
    /// The bytes of the file below that still count, where no block is.
    of_below: u64,
    /// Blocks that were written, by their numbers.
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
    is_changed: bool,
}

impl ScratchFile {
    /// Part of a block as it is now.
    fn read_block(&self, content: &Content, position: u64, out: &mut [u8]) -> io::Result<()> {
        let (number, from) = (position / BLOCK as u64, (position % BLOCK as u64) as usize);
        if let Some(block) = content.blocks.get(&number) {
            out.copy_from_slice(&block[from..from + out.len()]);
            return Ok(());
        }
        let there = content.of_below.saturating_sub(position).min(out.len() as u64) as usize;
        let (bytes, zeros) = out.split_at_mut(there);
        zeros.fill(0);
        if let Some(below) = &self.below
            && below.read_at(position, bytes)? < there
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// The pieces of a range that lie in one block each: their places in it, relative to its beginning.
fn pieces(position: u64, length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = BLOCK - ((position + at as u64) % BLOCK as u64) as usize;
        let piece = at..(at + left).min(length);
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

impl DiskFile for ScratchFile {
    fn read_at(&self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        let content = lock(&self.content);
        let length = content.length.saturating_sub(position).min(out.len() as u64) as usize;
        if content.blocks.is_empty()
            && position + length as u64 <= content.of_below
            && let Some(below) = &self.below
        {
            drop(content);
            return below.read_at(position, &mut out[..length]);
        }
        for piece in pieces(position, length) {
            let at = position + piece.start as u64;
            self.read_block(&content, at, &mut out[piece])?;
        }
        Ok(length)
    }

    fn write_at(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let mut content = lock(&self.content);
        for piece in pieces(position, bytes.len()) {
            let at = position + piece.start as u64;
            let (number, from) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            if !content.blocks.contains_key(&number) {
                let mut block = Box::new([0; BLOCK]);
                if piece.len() < BLOCK {
                    self.read_block(&content, number * BLOCK as u64, &mut block[..])?;
                }
                content.blocks.insert(number, block);
            }
            let block = content.blocks.get_mut(&number).expect("it was just put there");
            block[from..from + piece.len()].copy_from_slice(&bytes[piece]);
        }
        content.length = content.length.max(position + bytes.len() as u64);
        content.is_changed = true;
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(lock(&self.content).length)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut content = lock(&self.content);
        if length < content.length {
            content.of_below = content.of_below.min(length);
            drop(content.blocks.split_off(&length.div_ceil(BLOCK as u64)));
            if let Some(block) = content.blocks.get_mut(&(length / BLOCK as u64)) {
                block[(length % BLOCK as u64) as usize..].fill(0);
            }
        }
        content.length = length;
        content.is_changed = true;
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let now = self.length()?;
        if length > now { self.set_length(length) } else { Ok(()) }
    }

    fn punch(&self, position: u64, length: u64) -> io::Result<()> {
        let end = position.saturating_add(length).min(self.length()?);
        let zeros = [0; BLOCK];
        let mut at = position;
        while at < end {
            let n = (BLOCK as u64 - at % BLOCK as u64).min(end - at);
            self.write_at(at, &zeros[..n as usize])?;
            at += n;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::SimulatedDisk;

    fn bytes(disk: &dyn Disk, name: &str) -> Vec<u8> {
        let file = disk.open(name).unwrap();
        let mut out = vec![0; file.length().unwrap() as usize];
        assert_eq!(file.read_at(0, &mut out).unwrap(), out.len());
        out
    }

    #[test]
    fn what_is_written_is_read_and_the_disk_below_stays_as_it_is() {
        let below = SimulatedDisk::new(1 << 20);
        let old: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        for name in ["log.1", "data/0/a", "data/0/b"] {
            below.create(name).unwrap().write_at(0, &old).unwrap();
        }
        let disk = ScratchDisk::over(Arc::new(below.clone()));
        let (file, twin) = (disk.open("log.1").unwrap(), disk.open("log.1").unwrap());
        let mut expected = old.clone();
        file.write_at(4000, &[1; 200]).unwrap();
        expected[4000..4200].fill(1);
        twin.set_length(5000).unwrap();
        file.set_length(9000).unwrap();
        expected.truncate(5000);
        expected.resize(9000, 0);
        file.punch(10, 5).unwrap();
        expected[10..15].fill(0);
        file.write_at(9000, b"end").unwrap();
        expected.extend(b"end");
        assert_eq!(bytes(&disk, "log.1"), expected);
        disk.rename("data/0/a", "apart/a").unwrap();
        disk.remove("data/0/b").unwrap();
        disk.create("data/1/c").unwrap().reserve(70).unwrap();
        let listed = |folder: &str| disk.list(folder).unwrap();
        assert_eq!((listed("data/0"), listed("data/1")), (vec![], vec!["c".to_owned()]));
        assert!(listed("").contains(&"apart".to_owned()) && listed("data").contains(&"1".to_owned()));
        assert_eq!((bytes(&disk, "apart/a"), bytes(&disk, "data/1/c")), (old.clone(), vec![0; 70]));
        for gone in ["data/0/a", "data/0/b"] {
            assert_eq!(disk.open(gone).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert_eq!(disk.remove(gone).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        let below: &dyn Disk = &below;
        assert!(["log.1", "data/0/a", "data/0/b"].iter().all(|name| bytes(below, name) == old));
        assert_eq!(below.list("data").unwrap(), ["0"]);
    }

    #[test]
    fn files_that_are_only_read_cost_no_memory_for_long() {
        let below = SimulatedDisk::new(1 << 20);
        let name = |n: usize| format!("data/0/{n}");
        (0..1000).for_each(|n| _ = below.create(&name(n)).unwrap());
        let disk = ScratchDisk::over(Arc::new(below));
        disk.open(&name(7)).unwrap().write_at(0, b"changed").unwrap();
        (0..1000).for_each(|n| _ = disk.open(&name(n)).unwrap());
        assert!(lock(&disk.files).known.len() <= 2 * FILES + 2);
        assert_eq!(bytes(&disk, &name(7)), b"changed");
    }
}
