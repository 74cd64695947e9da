//! `afar invite`: an administrator makes the line by which a machine joins the cell as a user, and the user with a home if there is none.

use crate::cell_login::CellOptions;
use crate::home::{self, Home, Homes, Made};
use crate::hosts::is_public;
use crate::numbers::{self, BadNumber};
use crate::{arguments, dates, output, private, tree};
use afs_admin::Offers;
use afs_admin::devices::DeviceDb;
use afs_admin::ptdb::ProtectionDb;
use afs_admin::vldb::{LocationDb, ServerKey};
use afs_admin::volumes::VolumeServers;
use afs_join::{Invitation, PublicKey, SERVERS_MAX};
use afs_wire::ids::{AfsTime, CellName, ViceId};
use afs_wire::join::{JOIN_SECRET_BYTES, JoinFlags, JoinSecret, JoinUser};
use afs_wire::pt::Pr;
use clap::Parser;
use rxgen::Interface;
use std::ffi::OsString;
use std::net::SocketAddrV4;
use std::process::ExitCode;
use zeroize::Zeroizing;

/// What the command does, as the list of commands says it.
pub(crate) const ABOUT: &str = "makes an invitation, by which a machine joins the cell without Kerberos";

#[derive(Parser)]
#[command(
    name = "afar invite",
    about = "Makes an invitation, by which one machine joins the cell as a user",
    after_help = "The line on the standard output is a secret: whoever has it first can join as the user, once. Send it in a way that others \
                  do not read. 'afar devices list' shows which machine has used it, and from where."
)]
struct Cli {
    /// The user; one that is new in the cell is made
    user: String,
    /// The time for which the invitation is good: a number with m, h or d
    #[arg(long, default_value = "7d", value_parser = life)]
    expires: u32,
    /// The user is there already, and the device is to act as that user, with all that they have
    #[arg(long)]
    existing: bool,
    /// The user is to administer the cell. The device gets nothing until 'afar devices approve' on a server of the cell, and then the
    /// user is an administrator on all of their devices
    #[arg(long)]
    admin: bool,
    /// Makes no home. Without this, a user who has none gets the volume user.USER, which is mounted at user/USER in the cell
    #[arg(long)]
    no_home: bool,
    /// The most that a new home can hold, such as 500M or 10G; 0 for no limit
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = quota)]
    quota: i32,
    /// The addresses at which machines reach the cell's database servers: ADDRESS or ADDRESS:PORT. Without this, the addresses of the
    /// internet under which these machines are file servers, else those that the configuration has
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', value_parser = server)]
    servers: Vec<SocketAddrV4>,
    #[command(flatten)]
    cell: CellOptions,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    private::begin();
    arguments::run("afar invite", args, |cli: Cli| invite(&cli))
}

/// The seconds that a text such as 7d stands for.
fn life(text: &str) -> Result<u32, String> {
    let wrong = || "this must be a number with m, h or d behind it, such as 7d, and at most 366d".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds: u32 = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|life| (1..=366 * 24 * 3600).contains(life)).ok_or_else(wrong)
}

fn quota(text: &str) -> Result<i32, String> {
    numbers::parse_kib(text).map_err(|bad| match bad {
        BadNumber::NoNumber => "this must be a number of KiB, or one with K, M, G or T behind it".to_owned(),
        BadNumber::OutOfRange { .. } => "this may be from 0 to 2T less 1K".to_owned(),
    })
}

fn server(text: &str) -> Result<SocketAddrV4, String> {
    let with_port = || Some(SocketAddrV4::new(text.parse().ok()?, afs_join::PORT));
    text.parse()
        .ok()
        .or_else(with_port)
        .ok_or_else(|| "this must be an IPv4 address, or one with a port".to_owned())
}

fn invite(cli: &Cli) -> Result<(), String> {
    let user = cli.user.to_lowercase();
    let wire_user = JoinUser::new(user.as_bytes()).map_err(|error| format!("{user}: {error}"))?;
    let opened = cli.cell.open("afar invite")?;
    let (caller, servers) = (&opened.caller, &opened.cell.servers);
    let cell = CellName::new(&opened.cell.name).map_err(|error| error.to_string())?;
    let at_port: Vec<_> = servers.iter().map(|server| SocketAddrV4::new(*server.ip(), Pr::PORT)).collect();
    let users = ProtectionDb::new(caller.endpoint(), &at_port, &opened.login);
    let devices = DeviceDb::new(caller.endpoint(), servers, &opened.login);
    let failed = |error: afs_admin::Error| format!("cannot invite {user}: {error}");
    let mut flags = if cli.no_home { JoinFlags::NO_HOME } else { JoinFlags::NONE };
    if cli.admin {
        flags = flags.union(JoinFlags::ADMIN);
    }

    // What makes the home. What can be wrong with it is said before anything is made.
    let locations = LocationDb::new(caller.endpoint(), servers, &opened.login);
    let volumes =
        VolumeServers::new(caller.endpoint(), Offers::new(caller.endpoint(), servers, &opened.login));
    let offers = match cli.no_home {
        true => None,
        false => Some(Offers::new(caller.endpoint(), servers, &cli.cell.at_file_servers(&opened)?)),
    };
    let homes = offers.as_ref().map(|offers| {
        tree::refuse_callbacks(caller.endpoint());
        Homes { endpoint: caller.endpoint(), locations: &locations, volumes: &volumes, offers }
    });

    let seed = Zeroizing::new(caller.seed().map_err(|error| format!("there are no random bytes: {error}"))?);
    let secret = *seed.first_chunk::<JOIN_SECRET_BYTES>().expect("a seed is longer");
    let secret = JoinSecret(secret);
    let expires = AfsTime(dates::now().saturating_add(cli.expires));
    let (key, reached, made) = caller.run(async {
        if let Some(homes) = &homes {
            home::volume_of(&user)?;
            homes.root().await?;
        }
        let id = users.ids_of(&[&user]).await.map_err(failed)?;
        let is_there = id.first().is_some_and(|id| *id != ViceId::ANONYMOUS);
        if is_there && !cli.existing {
            let known = devices.devices().await.map_err(failed)?.into_iter().any(|device| device.user == wire_user);
            let open = devices.invitations().await.map_err(failed)?.into_iter().any(|open| open.user == wire_user);
            if !known && !open {
                return Err(format!(
                    "the cell has a user {user} already, who has no device: with --existing the machine may act as that user, \
                     else choose another name"
                ));
            }
        }
        let digest = afs_join::digest(&secret);
        let key = devices.invite(digest, wire_user.clone(), expires, flags).await.map_err(failed)?;
        // After that, so that a caller who may not invite makes no user.
        let id = match id.first() {
            Some(id) if is_there => *id,
            _ => users.create_user(&user, None).await.map_err(failed)?,
        };
        let reached = match cli.servers.is_empty() {
            true => reached_from_afar(&locations, servers).await,
            false => cli.servers.clone(),
        };
        let Some(homes) = &homes else { return Ok((key, reached, Made::Nothing)) };
        let made = homes.make(&Home { user: &user, id, quota_kib: cli.quota }).await;
        made.map(|made| (key, reached, made)).map_err(|error| format!("{user} has no home: {error}"))
    })?;
    if let Made::Home { path, needs_release } = made {
        eprintln!("afar invite: made a home for {user}: {path} in {}", opened.cell.name);
        if needs_release {
            eprintln!(
                "afar invite: root.cell has read-only copies: 'afar vos release root.cell' shows the home to all"
            );
        }
    }
    let invitation = Invitation { cell, servers: reached, key: PublicKey(key.0), secret };
    if invitation.servers.iter().any(|server| server.ip().is_loopback()) {
        eprintln!(
            "afar invite: the cell's servers are at addresses of this machine only: others reach them at --servers ADDRESS"
        );
    }
    output::print(&format!("{}\n", *invitation.to_line()));
    Ok(())
}

/// Where machines elsewhere reach the cell's database servers: at the public addresses of each, if it is a file server that has told some
/// (`afar up --public`); else where the configuration says.
async fn reached_from_afar(locations: &LocationDb, servers: &[SocketAddrV4]) -> Vec<SocketAddrV4> {
    let mut reached: Vec<SocketAddrV4> = Vec::new();
    for server in servers {
        let told = locations.server_addresses(ServerKey::Address(*server.ip())).await;
        let told = told.map_or(Vec::new(), |(_, addresses)| addresses);
        let mut public: Vec<_> = told.into_iter().filter(|address| is_public(*address)).collect();
        if public.is_empty() {
            public.push(*server.ip());
        }
        for address in public {
            let address = SocketAddrV4::new(address, server.port());
            if !reached.contains(&address) && reached.len() < SERVERS_MAX {
                reached.push(address);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_an_invitation_is_a_number_with_a_unit() {
        for (text, seconds) in [("7d", 604_800), ("1m", 60), ("36h", 129_600), ("366d", 31_622_400)] {
            assert_eq!(life(text), Ok(seconds), "{text}");
        }
        for text in ["", "d", "7", "0d", "-1d", "367d", "1.5h", "7 d", "99999999999d", "7é"] {
            assert!(life(text).is_err(), "{text}");
        }
    }
}
