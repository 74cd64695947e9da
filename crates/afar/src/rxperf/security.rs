//! Encrypted calls of rxperf: with a folder of a cell's keys, the server also takes them and the client makes them, as the cell's superuser.

use crate::login;
use afs_admin::Login;
use clap::ValueEnum;
use rx_proto::security::{Null, ServerSecurity};
use rx_security::rxgk::{self, Dialect};
use rx_security::{KeySet, Level, rxkad};
use std::path::Path;
use std::sync::Arc;

/// A class that encrypts.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Class {
    /// AES, if the folder has a key for it
    Rxgk,
    /// The cipher of OpenAFS
    Rxkad,
}

fn seed(endpoint: &rx::Endpoint) -> Result<[u8; 32], String> {
    endpoint.runtime().seed().map_err(|error| format!("there are no random bytes: {error}"))
}

/// What a server takes: calls in the clear, and with keys also those of both classes.
pub(super) fn offered(
    endpoint: &rx::Endpoint,
    folder: Option<&Path>,
) -> Result<Vec<Arc<dyn ServerSecurity>>, String> {
    let mut offered: Vec<Arc<dyn ServerSecurity>> = vec![Arc::new(Null)];
    if let Some(folder) = folder {
        let keys = KeySet::load(folder).map_err(|error| error.to_string())?;
        let kad = rxkad::ServerOptions::of_cell("");
        offered.push(Arc::new(rxkad::Server::new(keys.clone(), kad, login::clock())));
        let gk = rxgk::ServerOptions::of_cell("");
        offered.push(Arc::new(rxgk::Server::new(Dialect::OURS, keys, gk, login::clock(), seed(endpoint)?)));
    }
    Ok(offered)
}

/// The caller: nobody without keys.
pub(super) fn caller(endpoint: &rx::Endpoint, folder: Option<&Path>, class: Class) -> Result<Login, String> {
    let Some(folder) = folder else { return Ok(Login::anonymous()) };
    let login = login::superuser(folder, Level::Crypt, seed(endpoint)?)
        .map_err(|_| format!("{} has no key that you may read", folder.display()))?;
    match class {
        Class::Rxgk if login.rxgk().is_some() => Ok(login),
        Class::Rxgk => Err(format!("{} has no key for rxgk: 'afar key new' makes one", folder.display())),
        Class::Rxkad => login.without_rxgk().ok_or(format!("{} has no key for rxkad", folder.display())),
    }
}
