//! `afar join` and `afar leave`: an ordinary user's machine becomes a device of a cell by an invitation, and ends being one.

use crate::calls::Caller;
use crate::joined::{self, Joined};
use crate::{arguments, mount, mount_point, output, private};
use afs_join::{Chance, Invitation, KeyPair, Membership, PublicKey};
use afs_reach::join::{ask, refusal, request, token_of};
use afs_wire::join::{JoinName, JoinOutcome, JoinReply, JoinSecret, JoinWant};
use clap::Parser;
use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use zeroize::Zeroizing;

/// What the commands do, as the list of commands says it.
pub(crate) const ABOUT_JOIN: &str = "makes this machine a device of a cell, by an invitation";
pub(crate) const ABOUT_LEAVE: &str = "ends that this machine is a device of a cell";

/// Longest standard input that is read: an invitation has a few hundred bytes.
const INPUT_MAX: u64 = 4096;

#[derive(Parser)]
#[command(
    name = "afar join",
    about = "Makes this machine a device of a cell, by an invitation that 'afar invite' has printed",
    after_help = "The device's key is made here, and stays here: in the file device.json of the folder, which only you may read. \
                  Whoever copies that file can act as this device; 'afar devices revoke' ends that."
)]
struct JoinCli {
    /// The invitation; without it, it is read from the standard input, where other users of this machine do not see it
    line: Vec<String>,
    /// Keeps the device's key and the cell's configuration here
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// The device's name in the administrator's list, by default that of this machine
    #[arg(long)]
    name: Option<String>,
    /// Mounts the cell there when this machine has joined, until Ctrl-C
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
}

#[derive(Parser)]
#[command(name = "afar leave", about = "Ends that this machine is a device of a cell, and removes its key")]
struct LeaveCli {
    /// The cell; not needed if this machine has joined one only
    cell: Option<String>,
    /// The folder with the device's key
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Removes the key also if the cell does not answer: an administrator has to revoke the device then
    #[arg(long)]
    force: bool,
}

/// Runs `afar join` with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    private::begin();
    let mut mount = None;
    let outcome = arguments::run("afar join", args, |cli: JoinCli| {
        mount = join(cli)?;
        Ok(())
    });
    mount.map_or(outcome, |args| mount::run(&args))
}

/// Runs `afar leave` with the arguments behind its name.
pub(crate) fn run_leave(args: &[OsString]) -> ExitCode {
    private::begin();
    arguments::run("afar leave", args, |cli: LeaveCli| leave(&cli))
}

fn line_of(words: &[String]) -> Result<Zeroizing<String>, String> {
    if !words.is_empty() {
        // A line that was pasted without quotes, with blanks in it.
        return Ok(Zeroizing::new(words.concat()));
    }
    let mut line = Zeroizing::new(String::new());
    let input = std::io::stdin().lock().take(INPUT_MAX);
    for part in std::io::BufReader::new(input).lines() {
        let part = Zeroizing::new(part.map_err(|error| format!("standard input: {error}"))?);
        // What a mail program has wrapped goes on in the next line; a checksum ends it.
        line.push_str(part.trim());
        if line.parse::<Invitation>().is_ok() {
            break;
        }
    }
    Ok(line)
}

fn device_name(given: Option<String>) -> Result<JoinName, String> {
    let own = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let name = given.unwrap_or_else(own);
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    JoinName::new(name).map_err(|error| format!("--name: {error}"))
}

/// Joins. Returns the arguments of `afar mount`, if that is to follow.
fn join(cli: JoinCli) -> Result<Option<Vec<OsString>>, String> {
    if let Some(path) = &cli.mount {
        // What keeps it from being mounted is found out before the invitation is used.
        for note in mount_point::prepare(path)? {
            eprintln!("afar join: {note}");
        }
    }
    let invitation: Invitation = line_of(&cli.line)?.parse().map_err(|error| format!("{error}"))?;
    let folder = match cli.folder {
        Some(folder) => {
            std::path::absolute(&folder).map_err(|error| format!("{}: {error}", folder.display()))?
        }
        None => joined::folder_of(&invitation.cell)?,
    };
    let caller = Caller::new().map_err(|error| format!("cannot open a socket: {error}"))?;
    let seed = caller.seed().map_err(|error| format!("there are no random bytes: {error}"))?;
    let earlier = Joined::read(&folder)?;
    if let Some(Joined { member, registered: Some((user, number)), .. }) = &earlier {
        return Err(format!(
            "this machine is device {number} of {user} in {} already ({}): end that with 'afar leave' first",
            member.cell,
            folder.display()
        ));
    }
    // An attempt that was cut off may have registered its key.
    let key =
        earlier.filter(|earlier| earlier.member.cell == invitation.cell).map(|earlier| earlier.member.device);
    let device = key.unwrap_or_else(|| KeyPair::generate(Chance::new(seed)));
    let Invitation { cell, servers, key, secret } = invitation;
    let mut joined = Joined { member: Membership { cell, key, device }, servers, registered: None };
    let request = request(JoinWant::JOIN, secret, device_name(cli.name)?);
    joined.write(&folder)?;
    let asked = caller.run(ask(caller.endpoint(), &joined.servers, &joined.member, &request));
    let reply = asked.map_err(|error| {
        format!(
            "no server of {} answers for it: {error}; the invitation can still be used",
            joined.member.cell
        )
    })?;
    if reply.outcome == JoinOutcome::NOT_APPROVED {
        let code = joined.member.device.public().code();
        take(&mut joined, &reply);
        joined.write(&folder)?;
        let (user, number) = joined.registered.unwrap_or_default();
        output::print(&format!(
            "this machine is device {number} of {user} in {}, and waits: it is to be an administrator's.\n\
             On a server of the cell, its administrator runs 'afar devices approve {number} {code} --localauth --config DIR'\n",
            joined.member.cell
        ));
        return Ok(mount_args(cli.mount, &folder));
    }
    if reply.outcome != JoinOutcome::DONE {
        if reply.outcome != JoinOutcome::TRY_LATER {
            Joined::forget(&folder)?;
        }
        return Err(refusal(reply.outcome).to_owned());
    }
    if token_of(&reply).is_none() {
        return Err(
            "the cell's token is none that this release of afar knows: use a later release".to_owned()
        );
    }
    take(&mut joined, &reply);
    joined.write(&folder)?;
    let (user, number) = joined.registered.unwrap_or_default();
    let (cell, shown) = (&joined.member.cell, folder.display());
    let told = format!("this machine is device {number} of {user} in {cell}; its key is in {shown}\n");
    let next = match cli.mount {
        Some(_) => String::new(),
        None => format!("'afar mount DIR --config {shown}' mounts the cell as {user}\n"),
    };
    output::print(&(told + &next));
    Ok(mount_args(cli.mount, &folder))
}

fn mount_args(dir: Option<PathBuf>, folder: &Path) -> Option<Vec<OsString>> {
    dir.map(|dir| vec![dir.into(), "--config".into(), folder.into()])
}

/// Takes what the cell says of the device.
fn take(joined: &mut Joined, reply: &JoinReply) {
    let user = String::from_utf8_lossy(&reply.user).into_owned();
    joined.registered = Some((user, reply.device));
    joined.member.key = PublicKey(reply.key.0);
}

fn leave(cli: &LeaveCli) -> Result<(), String> {
    let folder = folder_to_leave(cli)?;
    let Some(joined) = Joined::read(&folder)? else {
        return Err(format!("there is no device's key in {}", folder.display()));
    };
    let caller = Caller::new().map_err(|error| format!("cannot open a socket: {error}"))?;
    let zeros = JoinSecret([0; afs_wire::join::JOIN_SECRET_BYTES]);
    let request = request(JoinWant::LEAVE, zeros, JoinName::default());
    let asked = caller.run(ask(caller.endpoint(), &joined.servers, &joined.member, &request));
    let told = match asked {
        Ok(reply) => match reply.outcome {
            // It was revoked before, or its join was cut off.
            JoinOutcome::DONE | JoinOutcome::REVOKED | JoinOutcome::UNKNOWN_DEVICE => None,
            outcome => Some(refusal(outcome).to_owned()),
        },
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = &told
        && !cli.force
    {
        return Err(format!(
            "{} did not take this device out: {why}; --force removes its key nevertheless",
            joined.member.cell
        ));
    }
    Joined::forget(&folder)?;
    let mut text = format!("this machine has left {}, and its key is removed\n", joined.member.cell);
    if told.is_some() {
        text += "the cell was not told: ask its administrator to revoke the device\n";
    }
    output::print(&text);
    Ok(())
}

fn folder_to_leave(cli: &LeaveCli) -> Result<PathBuf, String> {
    if let Some(folder) = &cli.folder {
        return Ok(folder.clone());
    }
    let all = joined::all_folders()?;
    let is_of =
        |folder: &Path, cell: &str| folder.file_name().is_some_and(|name| name.eq_ignore_ascii_case(cell));
    match (&cli.cell, &all[..]) {
        (Some(cell), _) => {
            let found = all.iter().find(|folder| is_of(folder, cell));
            found.cloned().ok_or_else(|| format!("this user has not joined {cell} here"))
        }
        (None, [one]) => Ok(one.clone()),
        (None, []) => Err("this user has joined no cell here".to_owned()),
        (None, _) => Err("this user has joined several cells here: name one".to_owned()),
    }
}
