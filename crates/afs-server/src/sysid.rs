//! The identity of this file server, whatever its addresses: its UUID, kept in `sysid` in the format of OpenAFS (configuration
//! notes 8), so that a server that takes over its partitions and its sysid stays the same to clients and to the VLDB.

use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use afs_wire::Uuid;

/// The first word of the file, in the machine's own byte order.
const MAGIC: u32 = 0x88aa_bbcc;
/// The version that follows it.
const VERSION: u32 = 1;
/// Most addresses that a file has.
const MAX_ADDRESSES: usize = 32;

/// The UUID in the file; made from `seed` and written if there is no file. The file's addresses are brought up to date.
///
/// # Errors
///
/// When the file cannot be read or written, or is none of these.
pub(crate) fn load_or_make(path: &Path, seed: [u8; 32], addresses: &[Ipv4Addr]) -> io::Result<Uuid> {
    let uuid = match fs::read(path) {
        Ok(bytes) => parse(&bytes).ok_or_else(|| {
            let what = "this is no sysid file; if it is damaged, remove it: the server will then be a new one to the VLDB, \
                        and 'vos changeaddr -remove' removes the old one";
            io::Error::new(io::ErrorKind::InvalidData, what)
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Uuid::random(&seed),
        Err(error) => return Err(error),
    };
    let wanted = encode(&uuid, addresses);
    if fs::read(path).ok().as_deref() != Some(&wanted[..]) {
        let new = path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&wanted)?;
        file.sync_all()?;
        fs::rename(new, path)?;
    }
    Ok(uuid)
}

fn encode(uuid: &Uuid, addresses: &[Ipv4Addr]) -> Vec<u8> {
    let count = addresses.len().min(MAX_ADDRESSES);
    let mut out = Vec::new();
    out.extend(MAGIC.to_ne_bytes());
    out.extend(VERSION.to_ne_bytes());
    out.extend(uuid.time_low.to_ne_bytes());
    out.extend(uuid.time_mid.to_ne_bytes());
    out.extend(uuid.time_hi_and_version.to_ne_bytes());
    out.extend([uuid.clock_seq_hi_and_reserved, uuid.clock_seq_low]);
    out.extend(uuid.node);
    out.extend((count as u32).to_ne_bytes());
    addresses[..count].iter().for_each(|address| out.extend(address.octets()));
    out
}

fn parse(bytes: &[u8]) -> Option<Uuid> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let count = word(24)? as usize;
    if word(0)? != MAGIC || word(4)? != VERSION || count > MAX_ADDRESSES || bytes.len() != 28 + 4 * count {
        return None;
    }
    Some(Uuid {
        time_low: word(8)?,
        time_mid: half(12)?,
        time_hi_and_version: half(14)?,
        clock_seq_hi_and_reserved: bytes[16],
        clock_seq_low: bytes[17],
        node: bytes[18..24].try_into().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_uuid_and_writes_its_addresses() {
        let path = std::env::temp_dir().join(format!("afs-server-sysid-{}", std::process::id()));
        let one = [Ipv4Addr::new(10, 0, 0, 1)];
        let made = load_or_make(&path, [7; 32], &one).unwrap();
        assert_eq!(made.time_hi_and_version >> 12, 4);
        assert_eq!(load_or_make(&path, [8; 32], &[]).unwrap(), made, "other chance, the same server");
        assert_eq!(fs::read(&path).unwrap().len(), 28);
        assert_eq!(load_or_make(&path, [9; 32], &one).unwrap(), made);
        assert_eq!(fs::read(&path).unwrap()[28..], [10, 0, 0, 1]);
        fs::write(&path, b"damaged").unwrap();
        let error = load_or_make(&path, [9; 32], &one).unwrap_err();
        assert!(error.to_string().contains("changeaddr"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
