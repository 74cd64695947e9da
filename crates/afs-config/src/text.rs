//! Text files as all the formats here have them: bounded, in lines. Some lines say nothing.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{ConfigError, Problem};

/// The largest file that is read, in bytes. The public CellServDB, the largest there is, has some 50,000.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// The text of a file. What is not UTF-8 is only found in comments, and is replaced.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    Ok(String::from_utf8_lossy(&read_bytes(path)?).into_owned())
}

/// The bytes of a file.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| ConfigError::of_io(path, &e))?;
    let size =
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| ConfigError::of_io(path, &e))?;
    if size as u64 > MAX_FILE_BYTES {
        let size = path.metadata().map_or(size as u64, |m| m.len());
        return Err(ConfigError::new(path, None, Problem::TooLarge(size)));
    }
    Ok(bytes)
}

/// The lines that say something, with their numbers from 1: not those that are blank or begin with `#`.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}
