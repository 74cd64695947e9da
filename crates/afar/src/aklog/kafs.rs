//! `aklog -kafs`: tokens for Linux's own AFS client, in the caller's session keyring. Linux since 6.16 uses that of rxgk, and older releases
//! pass over it and use that of rxkad. Clients of afar get nothing.
//!
//! `keyctl` adds the key: the client needs Debian's keyutils anyway, and no crate with safe functions adds keys of this type.

use super::cells::KnownCell;
use super::login::{Login, Refusal};
use super::status;
use crate::calls::Caller;
use crate::login::clock;
use crate::mount::device;
use crate::output::harmless;
use crate::printer::complain;
use afs_admin::Login as DatabaseLogin;
use afs_admin::offers::for_linux;
use afs_client::join::Device;
use rx_security::linux_key::{self, Tokens};
use rx_security::{UnixTime, rxgk};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// Adds the key of a cell to the session keyring, or where there is none to that of the user's sessions, in place of an older one.
///
/// # Errors
///
/// What is wrong, in words.
pub(super) fn add(cell: &str, tokens: Tokens<'_>) -> Result<(), String> {
    let payload = linux_key::payload(cell, tokens, UnixTime::of(SystemTime::now()));
    let payload = payload.map_err(|error| error.to_string())?;
    // A keyctl that adds to "@s" where there is no session would make one, and it would go with it. This is the user's then.
    let ring = keyctl(&["id", "@s"], &[])?;
    keyctl(&["padd", "rxrpc", &linux_key::description(cell), ring.trim()], &payload).map(drop)
}

/// Runs `keyctl` with an input, and returns what it prints.
fn keyctl(words: &[&str], input: &[u8]) -> Result<String, String> {
    let mut command = Command::new("keyctl");
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "there is no program keyctl: install keyutils".to_owned(),
        _ => format!("keyctl does not start: {error}"),
    })?;
    let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input));
    let ended = child.wait_with_output().map_err(|error| format!("keyctl: {error}"))?;
    if !ended.status.success() {
        let said = harmless(String::from_utf8_lossy(&ended.stderr).trim());
        return Err(format!(
            "keyctl: {said}; the kernel must have keys of type rxrpc ('modprobe kafs' as root)"
        ));
    }
    written.map_err(|error| format!("keyctl: {error}"))?;
    Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// The token for Linux that is made of a user's token of rxgk.
///
/// # Errors
///
/// What the database servers say.
pub(super) fn linux_token(
    caller: &Caller,
    cell: &KnownCell,
    token: rxgk::Token,
    seed: [u8; 32],
) -> Result<rxgk::Token, String> {
    let login = DatabaseLogin::anonymous().and_rxgk(token, clock(), seed);
    let made = caller.run(for_linux(caller.endpoint(), &cell.servers, &login));
    made.map_err(|error| format!("no token for Linux's AFS client: {error}"))
}

impl Login<'_> {
    /// Gives Linux a token of the user for whom this machine has joined a cell.
    pub(super) fn log_in_by_device(
        &self,
        cell: &KnownCell,
        (folder, device): &mut (PathBuf, Device),
    ) -> Result<(), Refusal> {
        let mut get = || {
            if device.member.cell.as_str() != cell.name {
                return Err(format!("{} is for the cell {}", folder.display(), device.member.cell));
            }
            let caller = Caller::new().map_err(|error| error.to_string())?;
            let seed = caller.seed().map_err(|error| error.to_string())?;
            let token = caller.run(device.renew(caller.endpoint())).map_err(|refused| refused.why)?;
            device::keep(folder, device);
            let token = linux_token(&caller, cell, token, seed)?;
            add(&cell.name, Tokens { rxgk: Some(&token), rxkad: None })
        };
        get().map_err(|why| {
            let (program, cell) = (self.program, &cell.name);
            complain!(self.printer, "{program}: no key for {cell}: {}\n", harmless(&why));
            Refusal(status::TOKEN)
        })
    }
}
