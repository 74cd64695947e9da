//! Makes a user an administrator of the whole cell: a member of system:administrators, and in the UserList of each server, by the servers'
//! overseers. What cannot be done is listed, and the rest is done all the same.

use crate::cell_login::CellLogin;
use crate::output;
use afs_admin::ptdb::ProtectionDb;
use afs_admin::vldb::{LocationDb, ServerKey};
use afs_admin::{Error, Offers};
use afs_wire::Errno;
use afs_wire::abort::{VL_INDEXERANGE, VL_NOENT};
use afs_wire::bos::{AddSUser, Bozo, BozoString};
use afs_wire::pt::Pr;
use rxgen::{Abort, Interface};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

/// The group of those who administer users and files.
const GROUP: &str = "system:administrators";

/// Most file servers that are asked: a cell has no more.
const SERVERS_MAX: i32 = 4096;

/// Makes the user one, and says what was done.
///
/// # Errors
///
/// If anything could not be done: what, and where.
pub(crate) fn add(opened: &CellLogin, user: &str) -> Result<(), String> {
    let mut missing = Vec::new();
    match opened.caller.run(add_to_group(opened, user)) {
        Ok(()) => drop(output::print(&format!("{user} is a member of {GROUP}\n"))),
        Err(error) => missing.push(format!("{GROUP}: {error}")),
    }
    let (servers, error) = opened.caller.run(servers(opened));
    missing.extend(error.map(|error| format!("the list of file servers: {error}")));
    let offers = Offers::new(opened.caller.endpoint(), &opened.cell.servers, &opened.login);
    for server in servers {
        match opened.caller.run(add_to_list((opened, &offers), server, user)) {
            Ok(()) => drop(output::print(&format!("{user} is in the UserList of {server}\n"))),
            Err(error) => missing.push(format!("the UserList of {server}: {error}")),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{user} is not an administrator everywhere: when this is mended, run the command again\n  {}",
        missing.join("\n  ")
    ))
}

/// True for the answer that it is so already.
fn is_there(code: Abort) -> bool {
    afs_wire::abort::errno(code) == Some(Errno::EEXIST)
}

async fn add_to_group(opened: &CellLogin, user: &str) -> Result<(), Error> {
    let at_port = |server: &SocketAddrV4| SocketAddrV4::new(*server.ip(), Pr::PORT);
    let machines: Vec<_> = opened.cell.servers.iter().map(at_port).collect();
    let users = ProtectionDb::new(opened.caller.endpoint(), &machines, &opened.login);
    match users.add(user, GROUP).await {
        Err(error) if is_there(error.code()) => Ok(()),
        other => other,
    }
}

/// One address of each server of the cell, and what keeps the list from being whole.
async fn servers(opened: &CellLogin) -> (Vec<Ipv4Addr>, Option<Error>) {
    let locations = LocationDb::new(opened.caller.endpoint(), &opened.cell.servers, &opened.login);
    let mut servers: Vec<Ipv4Addr> = opened.cell.servers.iter().map(|server| *server.ip()).collect();
    for index in 1..=SERVERS_MAX {
        match locations.server_addresses(ServerKey::Index(index)).await {
            Ok((_, addresses)) => {
                // A database server may be a file server too, at any of its addresses.
                if !addresses.iter().any(|address| servers.contains(address)) {
                    servers.extend(addresses.first());
                }
            }
            // A place that is free.
            Err(error) if error.code() == VL_NOENT => {}
            Err(error) if error.code() == VL_INDEXERANGE => break,
            Err(error) => return (servers, Some(error)),
        }
    }
    (servers, None)
}

async fn add_to_list(
    (opened, offers): (&CellLogin, &Offers),
    server: Ipv4Addr,
    user: &str,
) -> Result<(), String> {
    let name = BozoString::new(user).map_err(|error| error.to_string())?;
    let login = offers.login_for(server).await.map_err(|error| error.to_string())?;
    let to = SocketAddr::from((server, Bozo::PORT));
    let overseer = opened.caller.connect_to_client(to, Bozo::SERVICE_ID, login.security());
    match overseer.rpc(&AddSUser { name }).await {
        Err(error) if !is_there(Abort(error.code().0)) => Err(error.to_string()),
        _ => Ok(()),
    }
}
