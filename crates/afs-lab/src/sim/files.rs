//! Files as programs use them.

use std::path::Path;

use afs_client::config::Cache;
use afs_client::{Client, Config, Error, OpenFile, OpenFlags};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::StdRng;

use super::cell::{Cell, NOBODY, cell_root};

/// The flags of a file that is read.
pub const READ: OpenFlags = OpenFlags { read: true, write: false, truncate: false };
/// The flags of a file that is read and written.
pub const WRITE: OpenFlags = OpenFlags { read: true, write: true, truncate: false };

/// Makes a file in the root directory of the cell, and opens it for writing.
pub async fn make(client: &Client, name: &str) -> OpenFile {
    let root = cell_root(client).await;
    client.create_and_open(NOBODY, (root, name.as_bytes()), 0o644, WRITE, true).await.unwrap().1
}

/// Opens a file in the root directory of the cell.
pub async fn open(client: &Client, name: &str, flags: OpenFlags) -> OpenFile {
    let root = cell_root(client).await;
    let found = client.lookup(NOBODY, root, name.as_bytes()).await.unwrap();
    client.open(NOBODY, found.fid, flags).await.unwrap()
}

/// Reads all as the kernel does: from memory, and else by asking.
pub async fn read_all(file: &OpenFile) -> Vec<u8> {
    try_read_all(file).await.unwrap()
}

/// The same, where that may fail.
pub async fn try_read_all(file: &OpenFile) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 131_072];
    loop {
        let at = bytes.len() as u64;
        let piece = match file.cached_read(at, &mut buffer) {
            Some(read) => Bytes::copy_from_slice(&buffer[..read?]),
            None => file.read(at, buffer.len()).await?,
        };
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

/// So many bytes of chance.
pub fn random_bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes[..]);
    bytes
}

/// How a client with its cache in a folder is set up.
pub fn with_folder(cell: &Cell, number: u8, folder: &Path) -> Config {
    let mut config = cell.config(number);
    config.cache = Some(Cache { folder: folder.to_owned(), limit_bytes: 1 << 30 });
    config
}

/// A change; `stored` is how long the file is at the server.
pub async fn change(file: &OpenFile, (model, stored): (&mut Vec<u8>, usize), random: &mut StdRng) {
    let at = if random.random_bool(0.2) { stored } else { random.random_range(0..600_000) };
    if random.random_bool(0.2) {
        let status = file.truncate(at as u64).await.unwrap();
        model.resize(at, 0);
        assert_eq!(status.length, at as u64);
        return;
    }
    let length = random.random_range(1..5000);
    let bytes = random_bytes(random, length);
    if model.len() < at + length {
        model.resize(at + length, 0);
    }
    model[at..at + length].copy_from_slice(&bytes);
    file.write(at as u64, bytes.into()).await.unwrap();
}
