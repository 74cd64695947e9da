//! Writes into a file of a cache until it is killed, and says after each write that it was done: for the test of that. Not for
//! users.

use std::io::Write;
use std::path::Path;

use afs_cache::{Cache, CellNumber, Config, FileKey, Held, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), Some(round)) = (args.next(), args.next()) else {
        return Err("usage: afs-cache-load FOLDER ROUND".into());
    };
    let round: u32 = round.parse()?;
    let cache = Cache::open(Path::new(&folder), Config { log_bytes: 1 << 20, ..Config::new(1 << 30) })?;
    let key = FileKey { cell: CellNumber(1), volume: 7, vnode: 2 * round + 2, unique: 3 };
    let Held::Current(file) = cache.file(key, 1, 0)? else { return Err("the file is there already".into()) };
    let writer = Writer::new(round, "".into());
    let mut out = std::io::stdout().lock();
    // Pieces with gaps between them: each is a range of its own.
    for n in 0..1_000_000u64 {
        file.write(n * 150, &[n as u8 ^ 0x5a; 100], &writer)?;
        writeln!(out, "{n}")?;
        out.flush()?;
    }
    Ok(())
}
