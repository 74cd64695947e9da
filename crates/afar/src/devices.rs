//! `afar devices`: an administrator lists, names and revokes the machines that have joined the cell by invitation.

use crate::cell_login::{CellLogin, CellOptions};
use crate::{administrators, arguments, dates, output};
use afs_admin::Error;
use afs_admin::devices::DeviceDb;
use afs_join::PublicKey;
use afs_wire::abort::AJPERM;
use afs_wire::ids::AfsTime;
use afs_wire::join::{DeviceFlags, DeviceInfo, InvitationInfo, JoinFlags, JoinName, JoinUser};
use clap::{Parser, Subcommand};
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;

/// What the command does, as the list of commands says it.
pub(crate) const ABOUT: &str =
    "lists, names and revokes the machines that have joined the cell by invitation";

#[derive(Parser)]
#[command(
    name = "afar devices",
    about = "Lists, names and revokes the machines that have joined the cell by invitation"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Lists devices, and the invitations that nobody has used yet
    List {
        /// Writes JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        cell: CellOptions,
    },
    /// Gives a device another name
    Rename {
        /// The device's number
        device: u32,
        /// Its name
        name: String,
        #[command(flatten)]
        cell: CellOptions,
    },
    /// Makes a device that waits for it an administrator's: the user gets into system:administrators, and into the UserList of each server.
    /// Only on a server of the cell, with --localauth
    Approve {
        /// The device's number
        device: u32,
        /// The code that the device has shown when it joined
        code: String,
        #[command(flatten)]
        cell: CellOptions,
    },
    /// Revokes devices: they get no more tokens. Open invitations for a revoked user are withdrawn
    Revoke {
        /// The devices' numbers
        #[arg(required_unless_present_any = ["user", "all", "invitations"], conflicts_with_all = ["user", "all", "invitations"])]
        device: Vec<u32>,
        /// All devices of a user
        #[arg(long, conflicts_with_all = ["all", "invitations"])]
        user: Option<String>,
        /// All devices of the cell
        #[arg(long, conflicts_with = "invitations")]
        all: bool,
        /// All open invitations, and no device
        #[arg(long)]
        invitations: bool,
        #[command(flatten)]
        cell: CellOptions,
    },
    /// Makes a new key by which devices know the cell. They learn it with their next token
    RotateKey {
        #[command(flatten)]
        cell: CellOptions,
    },
    /// Removes the old keys by which devices know the cell. Open invitations made before the newest key, and devices that have got no token
    /// since, have to be invited again
    RemoveOldKeys {
        #[command(flatten)]
        cell: CellOptions,
    },
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    crate::private::begin();
    arguments::run("afar devices", args, |cli: Cli| match cli.verb {
        Verb::List { json, cell } => list(&open(&cell)?, json),
        Verb::Rename { device, name, cell } => rename(&open(&cell)?, device, &name),
        Verb::Approve { device, code, cell } => approve(&open(&cell)?, device, &code),
        Verb::Revoke { device, user, all, invitations, cell } => {
            let what = match (user, all, invitations) {
                (Some(user), ..) => What::User(user),
                (None, true, _) => What::All,
                (None, false, true) => What::Invitations,
                (None, false, false) => What::Devices(device),
            };
            revoke(&open(&cell)?, what)
        }
        Verb::RotateKey { cell } => rotate(&open(&cell)?),
        Verb::RemoveOldKeys { cell } => remove_old(&open(&cell)?),
    })
}

enum What {
    Devices(Vec<u32>),
    User(String),
    All,
    Invitations,
}

fn open(cell: &CellOptions) -> Result<(CellLogin, DeviceDb), String> {
    let opened = cell.open("afar devices")?;
    let db = DeviceDb::new(opened.caller.endpoint(), &opened.cell.servers, &opened.login);
    Ok((opened, db))
}

fn failed(error: Error) -> String {
    error.to_string()
}

/// A text that is harmless on a terminal: devices choose their names.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn list((opened, db): &(CellLogin, DeviceDb), is_json: bool) -> Result<(), String> {
    let (devices, invitations) =
        opened.caller.run(async { Ok((db.devices().await?, db.invitations().await?)) }).map_err(failed)?;
    let text = match is_json {
        true => format!("{}\n", as_json(&devices, &invitations)),
        false => as_text(&devices, &invitations),
    };
    output::print(&text);
    Ok(())
}

fn as_text(devices: &[DeviceInfo], invitations: &[InvitationInfo]) -> String {
    let zone = TimeZone::system();
    let date = |time: AfsTime| dates::date_of(time.0.into(), &zone);
    let mut out = String::new();
    for device in devices {
        let _ = write!(
            out,
            "device {} of {}, {}: joined {} from {}, invited by {}, last seen {}",
            device.number,
            text(&device.user),
            text(&device.name),
            date(device.registered),
            text(&device.from),
            text(&device.invited_by),
            date(device.last_seen),
        );
        if device.flags.contains(DeviceFlags::WAITS) && device.revoked.0 == 0 {
            out.push_str("; waits to be approved as an administrator's");
        }
        match device.revoked.0 {
            0 => out.push('\n'),
            _ => {
                let _ = writeln!(out, "; revoked {}", date(device.revoked));
            }
        }
    }
    for invitation in invitations {
        let _ = writeln!(
            out,
            "open invitation for {}{}, made {} by {}, good until {}",
            text(&invitation.user),
            if invitation.flags.contains(JoinFlags::ADMIN) { ", as an administrator" } else { "" },
            date(invitation.made),
            text(&invitation.by),
            date(invitation.expires)
        );
    }
    if out.is_empty() { "no devices, and no open invitations\n".to_owned() } else { out }
}

fn as_json(devices: &[DeviceInfo], invitations: &[InvitationInfo]) -> Value {
    let devices: Vec<_> = devices
        .iter()
        .map(|device| {
            json!({
                "device": device.number, "user": text(&device.user), "name": text(&device.name),
                "joined": device.registered.0, "from": text(&device.from), "invited_by": text(&device.invited_by),
                "last_seen": device.last_seen.0,
                "revoked": Some(device.revoked.0).filter(|time| *time != 0),
                "waits": device.flags.contains(DeviceFlags::WAITS),
            })
        })
        .collect();
    let invitations: Vec<_> = invitations
        .iter()
        .map(|open| {
            json!({
                "user": text(&open.user), "made": open.made.0, "by": text(&open.by), "expires": open.expires.0,
                "admin": open.flags.contains(JoinFlags::ADMIN),
            })
        })
        .collect();
    json!({ "devices": devices, "invitations": invitations })
}

fn rename((opened, db): &(CellLogin, DeviceDb), device: u32, name: &str) -> Result<(), String> {
    let name = JoinName::new(name).map_err(|error| format!("{name}: {error}"))?;
    opened.caller.run(db.rename(device, name)).map_err(failed)
}

fn approve((opened, db): &(CellLogin, DeviceDb), number: u32, code: &str) -> Result<(), String> {
    let devices = opened.caller.run(db.devices()).map_err(failed)?;
    let device = devices.iter().find(|device| device.number == number && device.revoked.0 == 0);
    let device = device.ok_or_else(|| format!("there is no device {number} that was not revoked"))?;
    // People write a code in their own way.
    let digits =
        |code: &str| code.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    if digits(code) != digits(&PublicKey(device.key.0).code()) {
        return Err(format!(
            "device {number} shows another code: it is not the one that showed this. If nobody has mistyped it, somebody else has used the \
             invitation: 'afar devices revoke {number}' ends that"
        ));
    }
    let user = text(&device.user);
    opened.caller.run(db.approve(number)).map_err(|error| match error.code() {
        AJPERM => format!(
            "only who has the cell's key may approve a device: use --localauth on a server of {}",
            opened.cell.name
        ),
        _ => failed(error),
    })?;
    output::print(&format!("device {number} of {user} is approved\n"));
    let others = devices.iter().filter(|other| other.user == device.user && other.revoked.0 == 0);
    let others: Vec<_> =
        others.filter(|other| other.number != number).map(|other| other.number.to_string()).collect();
    if !others.is_empty() {
        output::print(&format!("{user} is an administrator on these devices too: {}\n", others.join(", ")));
    }
    administrators::add(opened, &user)
}

fn revoke((opened, db): &(CellLogin, DeviceDb), what: What) -> Result<(), String> {
    let (devices, invitations) = match what {
        What::Devices(numbers) => {
            let mut total = 0;
            for number in numbers {
                let revoked = opened.caller.run(db.revoke_device(number));
                total += revoked.map_err(|error| format!("device {number}: {error}"))?.0;
            }
            (total, 0)
        }
        What::User(user) => {
            let user = JoinUser::new(user.as_bytes()).map_err(|error| format!("{user}: {error}"))?;
            opened.caller.run(db.revoke_user(user)).map_err(failed)?
        }
        What::All => opened.caller.run(db.revoke_all()).map_err(failed)?,
        What::Invitations => opened.caller.run(db.revoke_invitations()).map_err(failed)?,
    };
    output::print(&format!("devices revoked: {devices}, invitations withdrawn: {invitations}\n"));
    Ok(())
}

fn rotate((opened, db): &(CellLogin, DeviceDb)) -> Result<(), String> {
    opened.caller.run(db.rotate_key()).map_err(failed)?;
    output::print(
        "the cell has a new key; devices learn it with their next token, within ten hours while they run\n",
    );
    Ok(())
}

fn remove_old((opened, db): &(CellLogin, DeviceDb)) -> Result<(), String> {
    let removed = opened.caller.run(db.remove_old_keys()).map_err(failed)?;
    output::print(&format!("old keys removed: {removed}\n"));
    Ok(())
}
