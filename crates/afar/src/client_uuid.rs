//! Who a client is to servers, over restarts: so that a server that still has promises to it knows that it is the same.

use afs_wire::Uuid;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The file in the folder of the cache.
const FILE: &str = "uuid";

/// The UUID of the client of this folder; made from `seed` if it has none.
///
/// # Errors
///
/// When the file cannot be read or written.
pub(crate) fn of_folder(folder: &Path, seed: [u8; 32]) -> io::Result<Uuid> {
    let file = folder.join(FILE);
    match fs::read_to_string(&file) {
        Ok(text) => match parse(text.trim()) {
            Some(uuid) => return Ok(uuid),
            None => tracing::warn!(file = %file.display(), "this is no UUID; the client gets a new one"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // Version 4: nothing in it tells of this machine.
    let mut bytes: [u8; 16] = seed[..16].try_into().expect("a half of it");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let new = folder.join("uuid.new");
    fs::write(&new, format!("{text}\n"))?;
    fs::rename(new, file)?;
    Ok(of_bytes(bytes))
}

fn parse(text: &str) -> Option<Uuid> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(of_bytes(bytes))
}

fn of_bytes([a, b, c, d, e, f, g, h, i, j, node @ ..]: [u8; 16]) -> Uuid {
    Uuid {
        time_low: u32::from_be_bytes([a, b, c, d]),
        time_mid: u16::from_be_bytes([e, f]),
        time_hi_and_version: u16::from_be_bytes([g, h]),
        clock_seq_hi_and_reserved: i,
        clock_seq_low: j,
        node,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_stays_the_same_over_restarts() {
        let folder = std::env::temp_dir().join(format!("afar-client-uuid-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let first = of_folder(&folder, [0xff; 32]).unwrap();
        assert_eq!(first.time_hi_and_version, 0x4fff);
        assert_eq!(of_folder(&folder, [1; 32]).unwrap(), first);
        fs::write(folder.join(FILE), "damaged").unwrap();
        assert_ne!(of_folder(&folder, [1; 32]).unwrap(), first);
        fs::remove_dir_all(folder).unwrap();
    }
}
