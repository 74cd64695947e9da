//! The two processes of the experiment `idle`, started by this program as `afar-bench idle-worker ...`: a server that
//! answers and counts, a client that opens connections as it is told and keeps them. The memory of both is looked at
//! from outside.
//!
//!     idle-worker server          prints "ready PORT"; for each line read, "connections N"
//!     idle-worker client PORT     prints "ready"; for each line read, a number, opens connections until there are so
//!                                 many, and prints "opened N"

use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rx::{Abort, CallError, Connection, Endpoint, EndpointConfig, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use tokio::runtime::{Builder, Runtime};

use super::{Failure, print};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "idle-worker";
/// Calls in flight while connections are opened.
pub(crate) const CALLS_AT_ONCE: usize = 32;

/// The service: four bytes there, four bytes back.
const SERVICE: ServiceId = ServiceId(4322);

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["server"] => serve(),
        ["client", port] => call(port),
        _ => Err("for afar-bench's own use: server, or client PORT".into()),
    }
}

fn serve() -> Result<(), Failure> {
    let (_runtime, endpoint) = bind()?;
    let service = Service {
        id: SERVICE,
        security: vec![Arc::new(Null)],
        check_reach: true,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig::new(service, answer));
    print(format_args!("ready {}", endpoint.local_addr().port()))?;
    for line in io::stdin().lock().lines() {
        line?;
        print(format_args!("connections {}", endpoint.connection_count()))?;
    }
    Ok(())
}

fn call(port: &str) -> Result<(), Failure> {
    let (runtime, endpoint) = bind()?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?));
    let mut connections: Vec<Connection> = Vec::new();
    print(format_args!("ready"))?;
    for line in io::stdin().lock().lines() {
        let wanted: usize = line?.trim().parse()?;
        runtime.block_on(open(&endpoint, server, &mut connections, wanted))?;
        print(format_args!("opened {}", connections.len()))?;
    }
    Ok(())
}

/// Opens connections with a call each until there are so many.
async fn open(
    endpoint: &Endpoint,
    server: SocketAddr,
    connections: &mut Vec<Connection>,
    wanted: usize,
) -> Result<(), Failure> {
    while connections.len() < wanted {
        let count = CALLS_AT_ONCE.min(wanted - connections.len());
        let tasks: Vec<_> = (0..count)
            .map(|_| {
                let connection = endpoint.connect(server, SERVICE, Box::new(Null));
                tokio::spawn(async move { use_once(&connection).await.map(|()| connection) })
            })
            .collect();
        for task in tasks {
            connections.push(task.await??);
        }
    }
    Ok(())
}

async fn use_once(connection: &Connection) -> Result<(), CallError> {
    let mut call = connection.call().await?;
    call.write_all(&[0; 4]).await?;
    call.finish()?;
    call.read_to_end(4).await?;
    Ok(())
}

async fn answer(mut call: ServerCall) -> Result<(), Abort> {
    let abort = |error: CallError| Abort(error.code().0);
    let request = call.read_to_end(4).await.map_err(abort)?;
    call.write_all(&request).await.map_err(abort)
}

fn bind() -> Result<(Runtime, Endpoint), Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let endpoint = {
        let _in_runtime = runtime.enter();
        Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), EndpointConfig::default())?
    };
    Ok((runtime, endpoint))
}
