//! For the tests of the cell's databases: `celldb serve ADDRESS FOLDER` is a server of VL, PR and VOTE to which
//! everyone is the cell itself, or with `--noauth` no caller is asked for a name; `celldb talk vl|pr ADDRESS SEED
//! COUNT` makes random calls to such a server, or a stock one, and prints what came of each.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use afar_interop::celldb::{Talk, talk};
use afs_celldb::caller::{Authority, Caller, Identity, NoAuth};
use afs_celldb::ptdb::{Administrator, PtService, Ptdb, Rules};
use afs_celldb::store::CellStore;
use afs_celldb::store::memory::MemoryStore;
use afs_celldb::ubik::VoteService;
use afs_celldb::vldb::{RestrictedQuery, VlService, Vldb};
use afs_celldb::{Clock, Database, rx_service};
use afs_wire::pt::Pr;
use afs_wire::ubik::vote::Vote;
use afs_wire::vl::Vl;
use rx::{Endpoint, EndpointConfig};
use rx_proto::security::Null;
use rxgen::Interface;

type Failure = Box<dyn Error + Send + Sync>;

/// Takes everyone for the cell, as stock servers take who has its key.
#[derive(Debug)]
struct EveryoneIsTheCell;

impl Authority for EveryoneIsTheCell {
    fn caller(&self, _peer: SocketAddr, _security: &str) -> Caller {
        Caller { identity: Identity::Cell, is_superuser: true }
    }

    fn is_local_realm(&self, _realm: &str) -> bool {
        false
    }

    fn is_noauth(&self) -> bool {
        false
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => serve(address.parse()?, Arc::new(EveryoneIsTheCell)).await,
        ["serve", "--noauth", address] => serve(address.parse()?, Arc::new(NoAuth)).await,
        ["talk", service, address, seed, count] => {
            let what = if service == "vl" { Talk::Vl } else { Talk::Pr };
            let lines = talk(what, address.parse()?, seed.parse()?, count.parse()?).await?;
            let mut out = io::stdout().lock();
            lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            Ok(())
        }
        _ => Err("usage: celldb serve [--noauth] ADDRESS | talk vl|pr ADDRESS SEED COUNT".into()),
    }
}

/// Serves until standard input ends.
async fn serve(address: Ipv4Addr, authority: Arc<dyn Authority>) -> Result<(), Failure> {
    let store: Arc<dyn CellStore> = Arc::new(MemoryStore::new());
    let clock: Clock =
        Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32));
    let vldb = Arc::new(Database::<Vldb>::open(Arc::clone(&store)).await?);
    let ptdb = Arc::new(Database::<Ptdb>::open(store).await?);
    let (restriction, rules) =
        (RestrictedQuery::AnyUser, Rules { supergroups: Rules::DEBIAN_SUPERGROUPS, ..Rules::default() });
    let vl = VlService::new(Arc::clone(&vldb), Arc::clone(&authority), Arc::clone(&clock), restriction);
    let pt = PtService::new(Arc::clone(&ptdb), authority, Arc::clone(&clock), rules);
    pt.initialize(Some(&Administrator { name: "admin".into(), id: None })).await?;
    let bind = |port| Endpoint::bind((address, port).into(), EndpointConfig::default());
    let (vl_port, pt_port) = (bind(Vl::PORT)?, bind(Pr::PORT)?);
    vl_port.add_service(rx_service::<Vl, _>(Arc::new(vl), vec![Arc::new(Null)]));
    pt_port.add_service(rx_service::<Pr, _>(Arc::new(pt), vec![Arc::new(Null)]));
    let vote = VoteService::new(vldb, vec![address], Arc::clone(&clock));
    vl_port.add_service(rx_service::<Vote, _>(Arc::new(vote), vec![Arc::new(Null)]));
    let vote = VoteService::new(ptdb, vec![address], clock);
    pt_port.add_service(rx_service::<Vote, _>(Arc::new(vote), vec![Arc::new(Null)]));
    println!("ready {}", Vl::PORT);
    tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}
