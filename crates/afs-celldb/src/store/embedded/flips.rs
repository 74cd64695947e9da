//! One bit of the databases' files flips while no server has them open: all is there, or the file is refused and the error says where it is
//! damaged. AFAR_FLIPS sets another number of flips.

use std::sync::Arc;

use afs_store::disk::{Flip, SimulatedDisk};

use super::{EmbeddedStore, Reason};
use crate::database::Database;
use crate::vldb::{NewEntry, NewSite, VlError, Vldb};

const FILE: &str = "cell.redb";
const VOLUMES: u32 = 150;

async fn open(disk: &SimulatedDisk) -> Result<Database<Vldb>, String> {
    let store = EmbeddedStore::open_on(Arc::new(disk.clone()), FILE, FILE.as_ref())
        .map_err(|Reason(reason)| reason)?;
    Database::open(Arc::new(store)).await.map_err(|error| error.to_string())
}

async fn take_id(vldb: &Database<Vldb>) -> u32 {
    vldb.change::<_, VlError>(1, |vldb, rows| vldb.take_ids(1, rows)).await.unwrap()
}

/// Databases that were closed, and such whose server was killed; and the ids that they gave out.
async fn make() -> ([SimulatedDisk; 2], Vec<u32>) {
    let disk = SimulatedDisk::new(1 << 30);
    let vldb = open(&disk).await.unwrap();
    let mut taken = Vec::new();
    for _ in 0..VOLUMES {
        let id = take_id(&vldb).await;
        let sites = vec![NewSite { address: 1, partition: 0, flags: 4 }];
        let name = format!("v{id}").into_bytes();
        let new = NewEntry { name, site_count: 1, sites, ids: [id, 0, 0], clone_id: 0, flags: 0x1000 };
        vldb.change::<_, VlError>(1, move |vldb, rows| vldb.create(&new, rows)).await.unwrap();
        taken.push(id);
    }
    let killed = disk.after_kill();
    drop(vldb);
    ([disk, killed], taken)
}

async fn check(disk: &SimulatedDisk, flip: &Flip, taken: &[u32]) -> bool {
    let vldb = match open(disk).await {
        Ok(vldb) => vldb,
        Err(error) => {
            let is_told =
                error.contains("bytes ") || error.contains("restore") || error.contains("cell.sums");
            assert!(is_told, "{flip:?}: {error}");
            return true;
        }
    };
    for id in taken {
        assert!(vldb.read(|vldb| vldb.find_id(*id, None).is_some()), "{flip:?}: {id} is lost");
    }
    let next = take_id(&vldb).await;
    assert!(taken.iter().all(|taken| *taken < next), "{flip:?}: {next} is given again");
    false
}

/// A bit of the file's header took the last change back, and nobody was told.
#[tokio::test]
async fn a_flipped_bit_is_told_or_all_is_there() {
    let flips = std::env::var("AFAR_FLIPS").map_or(100, |text| text.parse().expect("a number"));
    let (disks, taken) = make().await;
    let (mut used, mut told) = (0, 0);
    for seed in 0..flips {
        let disk = disks[seed as usize % 2].after_kill();
        let flip = disk.flip_bit(seed, |_| true);
        used += u64::from(flip.was_used);
        told += u64::from(check(&disk, &flip, &taken).await);
    }
    println!("{flips} flips, {used} of bytes in use, {told} refused");
    assert!(used * 2 > flips, "{used} of {flips} hit bytes in use");
    assert!(told * 4 > flips, "too many hit what nobody reads: {told}");
}
