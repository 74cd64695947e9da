//! What databases in etcd cost, measured on this machine: changes of one server and of three at once, how long one takes, look-ups with and
//! without asking whether the image is current, and how long no change can be made after etcd's leader was killed. Starts
//! its own etcd. docs/decisions/0008-etcd.md has what it printed.
//!
//!     cargo run --release -p afs-celldb --features etcd --example etcd_speed

use std::sync::Arc;
use std::time::{Duration, Instant};

use afs_celldb::store::etcd::{Config, EtcdStore};
use afs_celldb::vldb::{VlError, Vldb};
use afs_celldb::{Database, Options};
use afs_lab::peers::etcd::Etcd;

const SECONDS: u64 = 5;

async fn open(etcd: &Etcd, writer: u64) -> Arc<Database<Vldb>> {
    let config = Config::without_credentials(etcd.endpoints(), "/speed/");
    let options = Options { writer, ..Options::default() };
    Arc::new(Database::open_with(Arc::new(EtcdStore::new(config).unwrap()), options).await.unwrap())
}

async fn change(vldb: &Database<Vldb>) -> Result<u32, VlError> {
    vldb.change(1, |vldb, rows| vldb.take_ids(1, rows)).await
}

/// Changes by so many callers at each of the servers: how many a second.
async fn changes(servers: &[Arc<Database<Vldb>>], callers: usize) -> f64 {
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let work = servers.iter().flat_map(|server| std::iter::repeat_n(server, callers)).map(|server| {
        let server = Arc::clone(server);
        tokio::spawn(async move {
            let mut made = 0;
            while Instant::now() < end {
                change(&server).await.unwrap();
                made += 1;
            }
            made
        })
    });
    let mut sum = 0;
    for work in work.collect::<Vec<_>>() {
        sum += work.await.unwrap();
    }
    f64::from(sum) / SECONDS as f64
}

async fn look_ups(vldb: &Database<Vldb>, asks: bool) -> f64 {
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut count = 0;
    while Instant::now() < end {
        for _ in 0..100 {
            if asks {
                vldb.catch_up().await.unwrap();
            }
            std::hint::black_box(vldb.read(|vldb| vldb.find_id(0x2000_0000, None).is_some()));
        }
        count += 100;
    }
    f64::from(count) / SECONDS as f64
}

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    for members in [1, 3] {
        let mut etcd = Etcd::start("speed", members);
        let servers = [open(&etcd, 1).await, open(&etcd, 2).await, open(&etcd, 3).await];
        println!("etcd of {members}");
        for (of, callers) in [(1, 1), (1, 16), (3, 1), (3, 16), (3, 48)] {
            let rate = changes(&servers[..of], callers).await;
            println!("  {of} servers, {callers} callers each: {rate:.0} changes a second");
        }
        for asks in [false, true] {
            println!("  look-ups, asking {asks}: {:.0} a second", look_ups(&servers[0], asks).await);
        }
        let mut slow: Vec<f64> = Vec::new();
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let begun = Instant::now();
            servers[0].catch_up().await.unwrap();
            slow.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        slow.sort_by(f64::total_cmp);
        println!(
            "  the first look-up after a pause: {:.2} ms in the middle, {:.2} at most",
            slow[25], slow[49]
        );
        if members == 3 {
            for _ in 0..3 {
                let leader = etcd.leader().expect("a leader");
                let begun = Instant::now();
                etcd.kill(leader);
                let mut refused = 0;
                while change(&servers[0]).await.is_err() {
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                println!(
                    "  first change {:.2} s after the leader was killed ({refused} refused)",
                    begun.elapsed().as_secs_f64()
                );
                etcd.restart(leader);
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        }
    }
}
