//! How long a start without the server shows what was known, as told by the clock of the day, which may be wrong.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::names_behind::pause;
use crate::offline_start::{End, Laptop, read};
use crate::support::{CELL, Cell, NOBODY, cell_root, names};
use afs_client::Config;
use afs_sim::Sim;
use rx::{BoxFuture, Port, Runtime, SocketOptions};
use rx_proto::time::Instant;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// A machine with a clock of its own.
#[derive(Debug)]
pub(crate) struct Clock(pub(crate) Sim, pub(crate) i64);

impl Runtime for Clock {
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn wall_clock(&self) -> SystemTime {
        let by = Duration::from_secs(self.1.unsigned_abs());
        if self.1 < 0 { self.0.wall_clock() - by } else { self.0.wall_clock() + by }
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture {
        self.0.sleep_until(at)
    }

    fn spawn(&self, task: BoxFuture) {
        self.0.spawn(task);
    }

    fn seed(&self) -> io::Result<[u8; 32]> {
        self.0.seed()
    }

    fn bind(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Arc<dyn Port>> {
        self.0.bind(address, options)
    }
}

#[test]
fn a_start_does_not_begin_the_time_without_the_server_anew() {
    for end in [End::Unmounted, End::Killed] {
        let set = |config| Config { offline_max: Duration::from_secs(DAY), ..config };
        let mut laptop = Laptop::with(Cell::new(), set);
        laptop.world.write(&laptop.client, "file", "text");
        laptop.run(|one| async move {
            assert_eq!(read(&one, NOBODY, cell_root(&one).await, "file").await.unwrap(), "text");
            names(&one, NOBODY, cell_root(&one).await).await;
            pause(&one, 5).await;
        });
        laptop.go_away();
        for _ in 0..3 {
            laptop.restart(end);
            laptop.run(move |one| async move {
                let root = cell_root(&one).await;
                assert_eq!(read(&one, NOBODY, root, "file").await.unwrap(), "text", "{end:?}");
                pause(&one, 7 * HOUR).await;
                assert_eq!(read(&one, NOBODY, root, "file").await.unwrap(), "text", "{end:?}");
            });
        }
        // 21 hours are over.
        laptop.restart(end);
        laptop.run(move |one| async move {
            let root = cell_root(&one).await;
            assert_eq!(read(&one, NOBODY, root, "file").await.unwrap(), "text", "{end:?}");
            pause(&one, 4 * HOUR).await;
            assert!(read(&one, NOBODY, root, "file").await.is_err(), "{end:?}: it is more than a day");
        });
        laptop.restart(end);
        laptop.run(move |one| async move {
            assert!(
                one.read_dir(NOBODY, one.lookup(NOBODY, one.root(), CELL.as_bytes()).await.unwrap().fid)
                    .await
                    .is_err(),
                "{end:?}"
            );
        });
    }
}

#[test]
fn a_clock_that_was_set_back_lengthens_nothing_and_one_that_was_set_forward_ends_it() {
    for (ahead, is_shown) in [
        (-300, true),
        (-(HOUR as i64), false),
        (-(DAY as i64), false),
        (HOUR as i64, true),
        (8 * DAY as i64, false),
    ] {
        let mut laptop = Laptop::new(Cell::new());
        laptop.world.write(&laptop.client, "file", "text");
        laptop.run(|one| async move {
            assert_eq!(read(&one, NOBODY, cell_root(&one).await, "file").await.unwrap(), "text");
            pause(&one, 5).await;
        });
        laptop.go_away();
        laptop.ahead = ahead;
        laptop.restart(End::Unmounted);
        let shown = laptop.run(|one| async move {
            let cell = one.lookup(NOBODY, one.root(), format!(".{CELL}").as_bytes()).await.unwrap().fid;
            read(&one, NOBODY, cell, "file").await
        });
        assert_eq!(shown.is_ok(), is_shown, "ahead by {ahead}: {shown:?}");
    }
}
