//! Invitations in an etcd that several servers change: a race for each.

use std::sync::Arc;
use std::time::Instant;

use afs_celldb::database::ChangeError;
use afs_celldb::devices::{Admitted, Denied, DeviceError, Devices, NewDevice, NewInvitation};
use afs_celldb::{Database, Options};
use afs_join::{Chance, KeyPair};
use afs_lab::peers::etcd::{Etcd, is_here};
use afs_lab::require;
use tokio::time::sleep;

use super::{TIMEOUT, WRITERS, store};

const TODAY: u32 = 1_700_000_000;
const ROUNDS: u8 = 30;

/// A refusal, or a store that was too slow on a busy machine.
#[derive(Debug)]
enum No {
    Denied(Denied),
    Store,
}

impl From<ChangeError> for No {
    fn from(_: ChangeError) -> Self {
        Self::Store
    }
}

async fn open(etcd: &Etcd) -> Arc<Database<Devices>> {
    let store = store(etcd.endpoints(), "/afar/a.cell/");
    let writer = WRITERS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let begun = Instant::now();
    loop {
        match Database::open_with(store.clone(), Options { writer, ..Options::default() }).await {
            Err(_) if begun.elapsed() < TIMEOUT => sleep(std::time::Duration::from_millis(20)).await,
            opened => return Arc::new(opened.unwrap()),
        }
    }
}

async fn join(server: &Database<Devices>, round: u8, machine: u8) -> Result<Admitted, Denied> {
    let key = KeyPair::generate(Chance::new([machine; 32])).public();
    let new = NewDevice { digest: [round; 32], key, name: String::new(), from: String::new() };
    let begun = Instant::now();
    loop {
        let new = new.clone();
        let joined =
            server.change(TODAY, move |devices, rows| devices.join(&new, TODAY, rows).map_err(No::Denied));
        match joined.await {
            Err(No::Store) if begun.elapsed() < TIMEOUT => sleep(std::time::Duration::from_millis(20)).await,
            Err(No::Store) => panic!("etcd does not answer"),
            Err(No::Denied(denied)) => return Err(denied),
            Ok(admitted) => return Ok(admitted),
        }
    }
}

/// The invitation is made at a third server. A server that has not heard of it yet asks etcd before it says that there is none.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_machines_that_use_an_invitation_at_two_servers_one_joins() {
    require!(is_here());
    let etcd = Etcd::start("joins", 1);
    let (inviting, one, other) = (open(&etcd).await, open(&etcd).await, open(&etcd).await);
    let mut numbers = Vec::new();
    for round in 1..=ROUNDS {
        let new = NewInvitation {
            digest: [round; 32],
            user: "alice".to_owned(),
            flags: 0,
            by: "admin".to_owned(),
            expires: TODAY + 3600,
        };
        let spare = KeyPair::generate(Chance::new([100; 32]));
        let invite = || {
            let (new, spare) = (new.clone(), spare.clone());
            inviting.change(TODAY, move |devices, rows| devices.invite(&new, &spare, TODAY, rows))
        };
        let begun = Instant::now();
        while let Err(error) = invite().await {
            if error == DeviceError::Exists {
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "{error:?}");
        }
        let machine = |server: &Arc<Database<Devices>>, machine| {
            let server = Arc::clone(server);
            tokio::spawn(async move { join(&server, round, machine).await })
        };
        // Keys of their own each time: a device joins once.
        let (first, second) = (machine(&one, round), machine(&other, 200 - round));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let (winner, loser) = if first.is_ok() { (first, second) } else { (second, first) };
        let number = winner.expect("one of them joins").number;
        assert_eq!(loser, Err(Denied::Used(number)), "in round {round}");
        numbers.push(number);
    }
    assert_eq!(numbers, (1..=u32::from(ROUNDS)).collect::<Vec<_>>(), "each has a number of its own");
}
