//! The measurements of `afar bench` in a folder: a large file written and read, cold and from the cache, and small files made
//! and opened.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The bytes that are read or written at once.
const BLOCK_BYTES: usize = 128 << 10;
/// The bytes of each small file: two pages.
const SMALL_BYTES: usize = 8192;
/// The number of passes through the small files that time an open.
const PASSES: u32 = 3;

/// Something that is measured.
pub(super) struct What {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
}

const WRITE: What = What { name: "large file written and closed", unit: "MB/s" };
const COLD: What = What { name: "large file read, not cached", unit: "MB/s" };
const CACHED: What = What { name: "large file read, cached", unit: "MB/s" };
const FIRST: What = What { name: "first bytes of large file, not cached", unit: "ms" };
const CREATE: What = What { name: "small files made and closed", unit: "files/s" };
const OPEN: What = What { name: "small file opened, read, closed, cached", unit: "µs" };

/// All of them, in the order in which they are shown.
pub(super) static WHATS: [&What; 6] = [&WRITE, &COLD, &CACHED, &FIRST, &CREATE, &OPEN];

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) bytes: u64,
    pub(super) files: u32,
}

/// A folder in the folder, which is removed with it.
pub(super) struct Scratch {
    path: PathBuf,
    /// This program, for its `fs flush`.
    program: PathBuf,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("afar bench: {} could not be removed: {error}", self.path.display());
        }
    }
}

impl Scratch {
    /// Makes it in this folder.
    pub(super) fn new(folder: &Path, program: &Path) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("afar-bench-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(Self { path, program: program.to_path_buf() })
    }

    /// Measures everything once. What cannot be measured here is left out.
    pub(super) fn measure(&self, size: Size) -> Result<Vec<(&'static What, f64)>, String> {
        let failed =
            |what: &str, error: std::io::Error| format!("{what} in {}: {error}", self.path.display());
        let megabytes = size.bytes as f64 / 1e6;
        let file = self.path.join("large");
        let mut figures = Vec::new();

        let seconds = timed(|| write(&file, size.bytes)).map_err(|error| failed("writing a file", error))?;
        figures.push((&WRITE, megabytes / seconds));
        let reading = |error| failed("reading a file", error);
        if self.forget(&file) {
            figures.push((&FIRST, timed(|| read_first(&file)).map_err(reading)? * 1e3));
            if self.forget(&file) {
                figures.push((&COLD, megabytes / timed(|| read(&file)).map_err(reading)?));
            }
        }
        read(&file).map_err(reading)?;
        figures.push((&CACHED, megabytes / timed(|| read(&file)).map_err(reading)?));
        fs::remove_file(&file).map_err(|error| failed("removing a file", error))?;

        let small = self.path.join("small");
        let making = |error| failed("making small files", error);
        fs::create_dir(&small).map_err(making)?;
        let seconds = timed(|| create(&small, size.files)).map_err(making)?;
        figures.push((&CREATE, f64::from(size.files) / seconds));
        let opening = |error| failed("reading small files", error);
        open_all(&small, size.files).map_err(opening)?;
        let all = || (0..PASSES).try_for_each(|_| open_all(&small, size.files));
        let seconds = timed(all).map_err(opening)?;
        figures.push((&OPEN, seconds * 1e6 / f64::from(size.files * PASSES)));
        fs::remove_dir_all(&small).map_err(|error| failed("removing small files", error))?;
        Ok(figures)
    }

    /// Has the client drop what it has of a file; whether it did.
    fn forget(&self, file: &Path) -> bool {
        let did = |mut command: Command| {
            let command = command
                .arg("flush")
                .arg(file)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let mut ours = Command::new(&self.program);
        ours.arg("fs");
        did(ours) || did(Command::new("fs"))
    }
}

fn timed(work: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64().max(1e-9))
}

/// Writes a file of bytes that no disk or link makes smaller.
fn write(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let block: Vec<u8> = words.take(BLOCK_BYTES / 8).flatten().collect();
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let count = left.min(BLOCK_BYTES as u64) as usize;
        file.write_all(&block[..count])?;
        left -= count as u64;
    }
    // In AFS the close is when it is stored, and says whether it was.
    nix::unistd::close(file).map_err(Into::into)
}

fn read(path: &Path) -> std::io::Result<()> {
    let (mut file, mut buffer) = (File::open(path)?, vec![0; BLOCK_BYTES]);
    while file.read(&mut buffer)? > 0 {}
    black_box(&buffer);
    Ok(())
}

fn read_first(path: &Path) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    let count = File::open(path)?.read(&mut buffer)?;
    black_box(&buffer[..count]);
    Ok(())
}

fn create(folder: &Path, files: u32) -> std::io::Result<()> {
    let data = [7; SMALL_BYTES];
    (0..files).try_for_each(|number| {
        let mut file = File::create(folder.join(number.to_string()))?;
        file.write_all(&data)?;
        nix::unistd::close(file).map_err(Into::into)
    })
}

fn open_all(folder: &Path, files: u32) -> std::io::Result<()> {
    let mut buffer = [0; SMALL_BYTES];
    (0..files).try_for_each(|number| File::open(folder.join(number.to_string()))?.read_exact(&mut buffer))?;
    black_box(&buffer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_folder_is_measured_and_left_as_it_was() {
        let folder = std::env::temp_dir().join(format!("afar-bench-folder-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let scratch = Scratch::new(&folder, Path::new("/nonexistent/afar")).unwrap();
        let figures = scratch.measure(Size { bytes: 3_000_000, files: 10 }).unwrap();
        let names: Vec<_> = figures.iter().map(|(what, _)| what.name).collect();
        for what in [&WRITE, &CACHED, &CREATE, &OPEN] {
            assert!(names.contains(&what.name), "{} in {names:?}", what.name);
        }
        assert!(figures.iter().all(|(_, value)| value.is_finite() && *value > 0.0), "{:?}", names);
        drop(scratch);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir(&folder).unwrap();
    }
}
