//! Files to be measured with: what is in them, and trees of them; and the kernel's caches, which can be dropped. Used by the
//! experiments through `workers/paths.rs` (a process of its own, which can be pinned and given up), or directly:
//!
//! ```text
//! trees::make_file(path, bytes)                  a file with the pattern that trees::Checker expects
//! trees::make_tree(folder, Shape { .. })         folder/d000/f0000 ...
//! trees::tree_files(folder)                      their paths, in order
//! trees::drop_caches()                           what `echo 3 > /proc/sys/vm/drop_caches` does: of the whole machine!
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The length of the pattern that files repeat, so that data can be checked for nearly nothing: no multiple of a page, packet or
/// chunk, so that a byte from elsewhere shows.
const PATTERN_BYTES: usize = 131_071;

/// The bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// The shape of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) folders: usize,
    /// In each folder.
    pub(crate) files: usize,
    /// The bytes of each file.
    pub(crate) bytes: usize,
}

/// The pattern, twice, so that any window of its length is in one piece.
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    pub(crate) fn new() -> Pattern {
        // The position's digits to two bases that have nothing in common with 256.
        Pattern(
            (0..2 * PATTERN_BYTES)
                .map(|i| i % PATTERN_BYTES)
                .map(|i| (i * 7 % 251 + i / 251) as u8)
                .collect(),
        )
    }

    /// The bytes from a position of a file on, at most so many.
    fn at(&self, pos: u64, most: usize) -> &[u8] {
        let start = (pos % PATTERN_BYTES as u64) as usize;
        &self.0[start..start + most.min(PATTERN_BYTES)]
    }

    /// True if these are the bytes of a file at this position.
    pub(crate) fn is_at(&self, pos: u64, mut bytes: &[u8]) -> bool {
        let mut pos = pos;
        while !bytes.is_empty() {
            let expected = self.at(pos, bytes.len());
            if bytes[..expected.len()] != *expected {
                return false;
            }
            pos += expected.len() as u64;
            bytes = &bytes[expected.len()..];
        }
        true
    }

    fn fill(&self, pos: u64, buffer: &mut [u8]) {
        let mut done = 0;
        while done < buffer.len() {
            let piece = self.at(pos + done as u64, buffer.len() - done);
            buffer[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
    }
}

/// Makes a file of so many bytes of the pattern, or writes it over.
pub(crate) fn make_file(path: &Path, bytes: u64) -> io::Result<()> {
    let pattern = Pattern::new();
    let mut buffer = vec![0; WRITE_BYTES];
    let mut file = File::create(path)?;
    let mut pos = 0;
    while pos < bytes {
        let count = (bytes - pos).min(WRITE_BYTES as u64) as usize;
        pattern.fill(pos, &mut buffer[..count]);
        file.write_all(&buffer[..count])?;
        pos += count as u64;
    }
    Ok(())
}

/// Makes a tree in a folder that is there.
pub(crate) fn make_tree(folder: &Path, shape: Shape) -> io::Result<()> {
    let mut data = vec![0; shape.bytes];
    Pattern::new().fill(0, &mut data);
    for folder in (0..shape.folders).map(|number| folder.join(format!("d{number:03}"))) {
        fs::create_dir(&folder)?;
        for number in 0..shape.files {
            File::create(folder.join(format!("f{number:04}")))?.write_all(&data)?;
        }
    }
    Ok(())
}

/// The files of a tree, in the order of their names.
pub(crate) fn tree_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let names = |folder: &Path| -> io::Result<Vec<PathBuf>> {
        let mut found =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        found.sort();
        Ok(found)
    };
    let mut files = Vec::new();
    for folder in names(folder)? {
        files.extend(names(&folder)?);
    }
    Ok(files)
}

/// Has the kernel forget pages, names and attributes that it can read again. It does so for the whole machine.
#[expect(dead_code, reason = "for experiments with what is in the cache's folder and not in memory")]
pub(crate) fn drop_caches() -> io::Result<()> {
    // What is not on the disk yet is not dropped.
    std::process::Command::new("sync").status()?;
    fs::write("/proc/sys/vm/drop_caches", "3")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_from_elsewhere_shows() {
        let pattern = Pattern::new();
        let mut bytes = vec![0; 300_000];
        pattern.fill(77, &mut bytes);
        assert!(pattern.is_at(77, &bytes));
        for wrong in [76, 78, 77 + 4096, 77 + (1 << 20)] {
            assert!(!pattern.is_at(wrong, &bytes[..4096]), "position {wrong}");
        }
        bytes[299_999] ^= 1;
        assert!(!pattern.is_at(77, &bytes));
    }
}
