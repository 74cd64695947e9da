//! Calls in virtual time, without a client: servers answer as a closure says.

use super::*;
use crate::config::Config;
use crate::dns::tests::Nobody;
use crate::table::ServerKind;
use afs_config::CellServDb;
use afs_sim::Sim;
use afs_wire::{Uuid, abort};
use rx::{Endpoint, EndpointConfig};
use rx_proto::ids::ServiceId;
use rx_security::Level;
use std::path::Path;
use std::sync::Mutex;

const TIMEOUT: Duration = Duration::from_secs(50);

/// Calls of nobody's, and two file servers of one cell that nothing is known of.
fn calls() -> (Sim, Arc<Calls>, Vec<Arc<Server>>) {
    let sim = Sim::new(Duration::from_millis(5));
    let runtime: Arc<dyn Runtime> = Arc::new(sim.clone());
    let options = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
    let address = SocketAddr::from(([10, 0, 0, 101], 7001));
    let endpoint = Endpoint::bind_with(Arc::clone(&runtime), address, options).unwrap();
    let file = CellServDb::parse(">one.test #\n10.0.0.100 #db\n", Path::new("CellServDB")).unwrap();
    let config = Config {
        runtime,
        endpoint,
        uuid: Uuid::default(),
        seed: [7; 32],
        cells: &file,
        dns: None,
        location_port: 7003,
        file_port: 7000,
        level: Level::Crypt,
        patience: TIMEOUT,
        dead_after: Duration::from_secs(12),
    };
    let calls = Calls::new(config, Arc::default(), Arc::new(Nobody));
    let both = [1, 2].map(|number| {
        let socket = SocketAddr::from(([10, 0, 0, number], 7000));
        calls.servers.get_or_add(ServerKind::File, CellIndex(1), None, &[socket]).unwrap()
    });
    (sim, Arc::new(calls), both.to_vec())
}

fn aborted(peer: SocketAddr, code: Abort) -> RpcError {
    let (service, code) = (ServiceId(1), AbortCode(code.0));
    RpcError::Call { rpc: "Test", source: CallError::Aborted { peer, service, code } }
}

fn silent(peer: SocketAddr) -> RpcError {
    RpcError::Call {
        rpc: "Test",
        source: CallError::Failed { peer, service: ServiceId(1), code: AbortCode::CALL_DEAD },
    }
}

/// Returns the result of an operation whose attempts end so, and the servers that were asked, by the last byte of their
/// address.
fn ask(
    outcome: impl Fn(usize, SocketAddr) -> Result<u32, RpcError> + Send + Sync + 'static,
) -> (Result<u32, Failure>, Vec<u8>) {
    let (sim, calls, servers) = calls();
    sim.block_on(async move {
        let asked = Mutex::new(Vec::new());
        let asking = calls.ask(Asked::Servers(&servers), IdentityIndex::NOBODY, Purpose::Read, |attempt| {
            let std::net::IpAddr::V4(ip) = attempt.socket.ip() else { unreachable!("made of IPv4 above") };
            let mut asked = asked.lock().unwrap();
            asked.push(ip.octets()[3]);
            std::future::ready(outcome(asked.len(), attempt.socket))
        });
        let outcome = asking.await.map(|(reply, _)| reply);
        (outcome, asked.into_inner().unwrap())
    })
}

#[test]
fn the_other_server_is_asked_when_one_is_silent_or_cannot() {
    for cannot in [silent as fn(_) -> _, |peer| aborted(peer, abort::VIO)] {
        let (outcome, asked) = ask(move |n, peer| if n == 1 { Err(cannot(peer)) } else { Ok(7) });
        assert_eq!(outcome.unwrap(), 7);
        assert_eq!(asked.len(), 2);
        assert_ne!(asked[0], asked[1]);
    }
}

#[test]
fn an_answer_that_says_no_is_told_and_nobody_else_is_asked() {
    let (outcome, asked) = ask(|_, peer| Err(aborted(peer, abort::VNOVNODE)));
    assert_eq!(outcome.unwrap_err().code(), Some(abort::VNOVNODE));
    assert_eq!(asked.len(), 1);
}

#[test]
fn a_busy_server_is_asked_until_it_is_not() {
    let (outcome, asked) = ask(|n, peer| if n < 6 { Err(aborted(peer, abort::VBUSY)) } else { Ok(7) });
    assert_eq!(outcome.unwrap(), 7);
    assert_eq!(asked.len(), 6);
}

#[test]
fn servers_that_are_away_are_told_of_when_patience_ends() {
    let (outcome, asked) = ask(|_, peer| Err(silent(peer)));
    let error = outcome.unwrap_err().about("a test".to_owned());
    assert!(matches!(&error, Error::Unreachable { servers, .. } if servers.len() == 2), "{error:?}");
    assert!(asked.contains(&1) && asked.contains(&2), "{asked:?}");
}

#[test]
fn nobody_is_asked_when_the_client_ends() {
    let (sim, calls, servers) = calls();
    calls.closing.begin();
    sim.block_on(async move {
        let asking = calls.ask(Asked::Servers(&servers), IdentityIndex::NOBODY, Purpose::Read, |attempt| {
            std::future::ready(Err::<(), _>(silent(attempt.socket)))
        });
        let error = asking.await.unwrap_err().about("a test".to_owned());
        assert!(matches!(error, Error::Closing), "{error:?}");
        let (error, mut breaks) =
            (Error::Broken { what: String::new(), problem: String::new() }, Breaks::default());
        assert!(
            matches!(breaks.wait(&calls, error).await, Err(Error::Broken { .. })),
            "what broke is not asked for again"
        );
    });
}
