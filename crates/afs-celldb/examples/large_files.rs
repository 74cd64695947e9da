//! Writes a vldb.DB0 and a prdb.DB0 of a large cell into a folder. For measuring `afar import`:
//!
//!     cargo run --release -p afs-celldb --example large_files DIR
#![forbid(unsafe_code)]

mod large;

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use afs_celldb::files::{write_prdb, write_vldb};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("name a folder for the files")?);
    fs::write(folder.join("vldb.DB0"), write_vldb(&large::volumes(), 1_700_000_000)?)?;
    fs::write(folder.join("prdb.DB0"), write_prdb(&large::principals(), 1_700_000_000)?)?;
    Ok(())
}
