//! rxkad in a cell. Our client, with tokens made from the cell's KeyFileExt, at OpenAFS's servers and at ours: as superuser, as a
//! user of UserList, as anybody, and refused. And OpenAFS's `vos -localauth` at a volume server of ours.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use afar_interop::cell::{ADDRESS, CELL_NAME, CLIENT_ADDRESS, Cell, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_wire::abort::{PRPERM, VL_PERM, VNOVOL, VOLSERBAD_ACCESS};
use afs_wire::ids::{PartitionId, ViceId, VolumeId};
use afs_wire::interfaces::{afsvol, pt, vl};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx::{Abort, Connection, Endpoint, EndpointConfig, ServerCall, ServiceConfig};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass};
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxkad::{Client, Level, Server, ServerOptions, codes};
use rx_security::ticket::{self, Token};
use rx_security::{Identity, UnixTime};
use rxgen::{Interface, Rpc, Xdr};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let (stock, ours) = (Arc::clone(lab), Arc::clone(lab));
    vec![
        Case::new("rxkad/tokens_of_the_cells_key_and_tools_with_it", Weight::Waiting, move || {
            check(&stock, &Servers::Stock)
        }),
        Case::new("rxkad/tokens_of_the_cells_key/ours", Weight::Waiting, move || {
            check(&ours, &ours.our_servers()?)
        }),
    ]
}

fn check(lab: &Lab, servers: &Servers) -> Verdict {
    let cell = lab.cell(&Machine::new(servers.clone()))?;
    let folder = cell.key_file();
    let folder = folder.parent().ok_or_else(|| "the key file is in a folder".to_owned())?;
    let keys = KeySet::load(folder).map_err(|error| error.to_string())?;
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        let runtime = runtime.map_err(|error| format!("cannot start threads: {error}"))?;
        runtime.block_on(async {
            ask_servers(&keys).await?;
            match servers {
                Servers::Stock => stock_tools(&cell, &keys).await,
                Servers::Afar(_) => Ok(()),
            }
        })
    };
    cell.clients()?.run_in(run).map_err(|error| error.to_string())?
}

fn now() -> UnixTime {
    UnixTime::of(SystemTime::now())
}

fn bind(port: u16) -> Result<Endpoint, Trouble> {
    let address = SocketAddr::from((CLIENT_ADDRESS, port));
    Ok(Endpoint::bind(address, EndpointConfig::default()).map_err(|error| error.to_string())?)
}

/// Binds a port that was just closed. A program that another case starts at that moment has a copy of the closed socket until
/// its exec, and the port is taken for as long.
fn bind_again(port: u16) -> Result<Endpoint, Trouble> {
    for _ in 0..1500 {
        if let Ok(endpoint) = bind(port) {
            return Ok(endpoint);
        }
        thread::sleep(Duration::from_millis(20));
    }
    bind(port)
}

fn connect<I: Interface>(endpoint: &Endpoint, security: Box<dyn SecurityClass>) -> Connection {
    endpoint.connect((ADDRESS, I::PORT).into(), ServiceId(I::SERVICE_ID), security)
}

/// What came of an RPC: 0 or the code of its abort.
async fn code_of<R: Rpc>(connection: &Connection, args: &R) -> i32 {
    connection.rpc(args).await.map_or_else(|error| error.code().0, |_| 0)
}

fn expect(what: &str, got: i32, want: i32) -> Verdict {
    if got == want { Ok(()) } else { Err(format!("{what}: code {got}, expected {want}").into()) }
}

// ---- our client at the cell's servers

async fn ask_servers(keys: &KeySet) -> Verdict {
    let endpoint = bind(0)?;
    // A cell is up when its file server is known, and the volume server may come a moment later.
    for _ in 0..100 {
        let volser = connect::<afsvol::AfsVol>(&endpoint, Box::new(Null));
        if code_of(&volser, &no_such_volume()).await != AbortCode::CALL_DEAD.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut rng = StdRng::from_os_rng();
    let superuser = ticket::local_superuser(keys, &mut rng).map_err(|error| error.to_string())?;
    for level in Level::ALL {
        let client = Client::factory(superuser.clone(), level);
        let vl = connect::<vl::Vl>(&endpoint, client());
        expect("GetNewVolumeId", code_of(&vl, &vl::GetNewVolumeId { bump_count: 1 }).await, 0)?;
        let pr = connect::<pt::Pr>(&endpoint, client());
        expect("NewEntry", code_of(&pr, &new_user(&format!("of-{level}"))?).await, 0)?;
        // Much in one call: the answer has as many packets as the padding of the level wants.
        let many =
            vec![pt::PrNameVec::from_text("nobody-of-that-name").map_err(|_| "a name".to_owned())?; 2000];
        let names = pt::NameToID { names: many.try_into().map_err(|_| "names".to_owned())? };
        expect("NameToID", code_of(&pr, &names).await, 0)?;
        let volser = connect::<afsvol::AfsVol>(&endpoint, client());
        expect("TransCreate", code_of(&volser, &no_such_volume()).await, VNOVOL.0)?;
    }
    let null = || Box::new(Null) as Box<dyn SecurityClass>;
    expect_refused(&endpoint, "nobody", null).await?;
    let good = (UnixTime(now().0 - 60), UnixTime(now().0 + 3600));
    let mut token = |keys: &KeySet, name: &str, times| {
        let who = Identity::parse(name).ok_or_else(|| "a good name".to_owned())?;
        ticket::for_user(keys, &who, CELL_NAME, times, &mut rng).map_err(|error| error.to_string())
    };
    // In UserList, which interop/cell writes.
    let admin = Client::factory(token(keys, "admin", good)?, Level::Crypt);
    let vl = connect::<vl::Vl>(&endpoint, admin());
    expect("admin's GetNewVolumeId", code_of(&vl, &vl::GetNewVolumeId { bump_count: 1 }).await, 0)?;
    let volser = connect::<afsvol::AfsVol>(&endpoint, admin());
    expect("admin's TransCreate", code_of(&volser, &no_such_volume()).await, VNOVOL.0)?;
    // Who administers the protection database is in a group of it, which he is not.
    let pr = connect::<pt::Pr>(&endpoint, admin());
    expect("admin's NewEntry", code_of(&pr, &new_user("of-admin")?).await, PRPERM.0)?;
    for name in ["user1", "admin.x", "admin@elsewhere.org", "afs@elsewhere.org"] {
        let client = Client::factory(token(keys, name, good)?, Level::Crypt);
        expect_refused(&endpoint, name, client).await?;
    }
    let other =
        KeySet::of([Key::rxkad_krb5(1, EncType::AES256, &[5; 32])]).map_err(|error| error.to_string())?;
    let expired = (UnixTime(now().0 - 7200), UnixTime(now().0 - 3600));
    for (what, bad, want) in [
        ("a forged ticket", token(&other, "admin", good)?, codes::BADTICKET),
        ("an expired ticket", token(keys, "admin", expired)?, codes::EXPIRED),
        ("an unknown form of ticket", Token { kvno: 400, ..superuser.clone() }, codes::UNKNOWNKEY),
    ] {
        let client = Client::factory(bad, Level::Auth);
        let vl = connect::<vl::Vl>(&endpoint, client());
        expect(what, code_of(&vl, &vl::GetNewVolumeId { bump_count: 1 }).await, want.0)?;
        let pr = connect::<pt::Pr>(&endpoint, client());
        expect(what, code_of(&pr, &new_user("intruder")?).await, want.0)?;
        let volser = connect::<afsvol::AfsVol>(&endpoint, client());
        expect(what, code_of(&volser, &no_such_volume()).await, want.0)?;
    }
    // Nothing came of those that were refused.
    let pr = connect::<pt::Pr>(&endpoint, Client::factory(superuser, Level::Crypt)());
    for name in ["intruder", "of-admin"] {
        let name = pt::PrNameVec::from_text(name).map_err(|_| "a name".to_owned())?;
        let names = pt::NameToID { names: vec![name].try_into().map_err(|_| "names".to_owned())? };
        let ids = pr.rpc(&names).await.map_err(|error| error.to_string())?.ids;
        expect("the id of nobody", ids[0].0, ViceId::ANONYMOUS.0)?;
    }
    Ok(())
}

fn new_user(name: &str) -> Result<pt::NewEntry, Trouble> {
    let name = name.try_into().map_err(|_| "a name".to_owned())?;
    Ok(pt::NewEntry { name, flag: 0, owner: ViceId(0) })
}

fn no_such_volume() -> afsvol::TransCreate {
    let (volume, partition) = (VolumeId(77_777), PartitionId(0));
    afsvol::TransCreate { volume, partition, flags: afsvol::AttachFlags::BUSY }
}

/// Expects that a user who may connect but is no superuser is refused.
async fn expect_refused(
    endpoint: &Endpoint,
    who: &str,
    client: impl Fn() -> Box<dyn SecurityClass>,
) -> Verdict {
    let vl = connect::<vl::Vl>(endpoint, client());
    let code = code_of(&vl, &vl::GetNewVolumeId { bump_count: 1 }).await;
    expect(&format!("{who}'s GetNewVolumeId"), code, VL_PERM.0)?;
    let pr = connect::<pt::Pr>(endpoint, client());
    expect(&format!("{who}'s NewEntry"), code_of(&pr, &new_user("intruder")?).await, PRPERM.0)?;
    let volser = connect::<afsvol::AfsVol>(endpoint, client());
    let code = code_of(&volser, &no_such_volume()).await;
    expect(&format!("{who}'s TransCreate"), code, VOLSERBAD_ACCESS.0)
}

// ---- stock tools at a server of ours

/// A volume server that can do one thing: say that it has two partitions.
fn small_volserver(
    keys: &KeySet,
    min_level: Level,
    callers: &Arc<Mutex<Vec<String>>>,
) -> Result<Endpoint, Trouble> {
    let endpoint = bind_again(afsvol::AfsVol::PORT)?;
    let options = ServerOptions { min_level, ..ServerOptions::of_cell(CELL_NAME) };
    let service = Service {
        id: ServiceId(afsvol::AfsVol::SERVICE_ID),
        security: vec![Arc::new(Server::new(keys.clone(), options, Arc::new(now)))],
        check_reach: true,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    let callers = Arc::clone(callers);
    endpoint.add_service(ServiceConfig::new(service, move |mut call: ServerCall| {
        let caller = call.identity().unwrap_or("nobody").to_owned();
        callers.lock().unwrap_or_else(PoisonError::into_inner).push(caller);
        async move {
            let mut opcode = [0; 4];
            call.read_exact(&mut opcode).await.map_err(|error| Abort(error.code().0))?;
            if u32::from_be_bytes(opcode) != afsvol::XListPartitions::OPCODE {
                return Err(Abort::OPCODE);
            }
            let part_ids = vec![PartitionId::parse("a"), PartitionId::parse("z")];
            let part_ids: Vec<PartitionId> = part_ids.into_iter().flatten().collect();
            let mut reply = Vec::new();
            let part_ids = part_ids.try_into().map_err(|_| Abort::SS_MARSHAL)?;
            afsvol::reply::XListPartitions { part_ids }.encode(&mut reply);
            call.write_all(&reply).await.map_err(|error| Abort(error.code().0))
        }
    }));
    Ok(endpoint)
}

async fn stock_tools(cell: &Cell, keys: &KeySet) -> Verdict {
    let address = CLIENT_ADDRESS.to_string();
    for (min_level, options, is_served) in [
        (Level::Clear, &["-localauth"][..], true),
        (Level::Clear, &["-localauth", "-encrypt"], true),
        (Level::Auth, &["-localauth"], false),
        (Level::Crypt, &["-localauth"], false),
        (Level::Crypt, &["-localauth", "-encrypt"], true),
        (Level::Clear, &["-noauth"], false),
    ] {
        let callers = Arc::default();
        let endpoint = small_volserver(keys, min_level, &callers)?;
        let words = [&["vos", "listpart", &address], options].concat();
        let said = tokio::task::block_in_place(|| cell.run(&words))?;
        endpoint.close().await;
        let callers = std::mem::take(&mut *callers.lock().unwrap_or_else(PoisonError::into_inner));
        let what = format!("{words:?} at a server that wants {min_level}: {said:?}, callers {callers:?}");
        let is_shown =
            said.status == Some(0) && said.stdout.contains("/vicepa") && said.stdout.contains("/vicepz");
        if is_shown != is_served
            || callers.is_empty() == is_served
            || callers.iter().any(|caller| caller != "afs")
        {
            return Err(what.into());
        }
        let is_level = options.contains(&"-localauth") && !is_served;
        if is_level && !said.stderr.contains("Security level negotiation failed") {
            return Err(format!("no word about the level: {what}").into());
        }
    }
    Ok(())
}
