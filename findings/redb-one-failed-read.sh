#!/bin/bash
# redb 4.6.0: one read of the file that fails, even if it would succeed the next time and the program only reads, ends all that the open
# database answers: each later read of whatever row fails with PreviousIo, those of pages that were read before included, until the
# database is dropped and opened again. Programs that want to pass over one bad block of a disk have to open it again for each row.
#
# Needs cargo. Fails if a later read succeeds, or if the first does not fail.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir src
cat > Cargo.toml << 'END'
[package]
name = "trial"
version = "0.1.0"
edition = "2021"
[dependencies]
redb = "=4.6.0"
END
cat > src/main.rs << 'END'
use redb::backends::InMemoryBackend;
use redb::{Builder, ReadableDatabase, StorageBackend, TableDefinition};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

const ROWS: TableDefinition<u64, &[u8]> = TableDefinition::new("rows");
/// The next read of the file fails, once.
static FAIL: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct Backend(InMemoryBackend);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> { self.0.len() }
    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        if FAIL.swap(false, Ordering::SeqCst) { return Err(io::Error::other("one bad block")) }
        self.0.read(at, out)
    }
    fn set_len(&self, length: u64) -> io::Result<()> { self.0.set_len(length) }
    fn sync_data(&self) -> io::Result<()> { self.0.sync_data() }
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> { self.0.write(at, bytes) }
    fn close(&self) -> io::Result<()> { Ok(()) }
}

fn main() {
    // Without a cache, so that each row is read from the file.
    let db = Builder::new().set_cache_size(0).create_with_backend(Backend(InMemoryBackend::new())).unwrap();
    let tx = db.begin_write().unwrap();
    for n in 0..1000 { tx.open_table(ROWS).unwrap().insert(n, &[1; 1000][..]).unwrap(); }
    tx.commit().unwrap();
    let get = |n| {
        let read = || -> Result<bool, redb::Error> { Ok(db.begin_read()?.open_table(ROWS)?.get(n)?.is_some()) };
        match read() { Ok(found) => format!("found {found}"), Err(error) => format!("{error:?}") }
    };
    println!("row 7: {}", get(7));
    FAIL.store(true, Ordering::SeqCst);
    println!("row 7, the block is bad once: {}", get(7));
    for n in [7, 900, 7] { println!("row {n}, the file is whole again: {}", get(n)); }
}
END
cargo run --quiet > said 2> cargo.log || { cat cargo.log >&2; exit 2; }
cat said
[ "$(grep -c 'found true' said)" = 1 ] && [ "$(grep -c 'whole again: PreviousIo' said)" = 3 ] && grep -q 'bad once: Io' said \
    || { echo "this is not what was seen before" >&2; exit 1; }
