//! A machine that joins a cell by invitation: what the commands print, what they leave on the disk, and what an administrator sees. Only the
//! program has these texts, files and modes; what invitations and devices are is proved in `crates/afs-celldb/tests/devices.rs`.

use crate::mounted::{Folder, ServerProcess, can_mount, own_address};
use afs_join::{Chance, Invitation, KeyPair, Membership};
use afs_lab::real::afar;
use afs_lab::real::cell::Cell;
use afs_lab::{require, until};
use afs_reach::join::{ask, token_of};
use afs_wire::Errno;
use afs_wire::join::{JoinName, JoinOutcome, JoinRequest, JoinWant};
use afs_wire::rxgk::RxgkEnctypes;
use afs_wire::{pt, rxafs, vl};
use rx::{Endpoint, EndpointConfig};
use rx_proto::ids::ServiceId;
use rx_security::keys::{EncType, Key, KeyType};
use rx_security::rxgk::{self, Token};
use rx_security::time::Clock;
use rx_security::{KeySet, UnixTime};
use rxgen::Interface;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

/// A cell that makes tokens of rxgk.
fn a_cell(name: &str) -> Cell {
    let cell = Cell::new(name);
    let folder = cell.folder.join("state/etc/server");
    let mut keys = KeySet::load(&folder).unwrap();
    if keys.newest(KeyType::RXGK).is_none() {
        keys.insert(Key::rxgk(1, EncType::AES128, &[7; 16])).unwrap();
        keys.save(&folder).unwrap();
    }
    cell
}

/// Runs a command with this on its standard input. Of the mounts of tests beside this one it knows nothing: it would have their tokens.
fn run(args: &[&str], input: &str) -> Output {
    let mut command = afar::command(args);
    command.env("AFAR_SOCKET", "");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end without reading it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn well(args: &[&str], input: &str) -> String {
    let output = run(args, input);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn badly(args: &[&str], input: &str, why: &str) {
    let output = run(args, input);
    assert!(!output.status.success() && said(&output).contains(why), "{args:?}: {}", said(&output));
}

/// Runs a command of the cell's administrator, by the cell's key.
fn administrator(cell: &Cell, args: &[&str]) -> String {
    let config = cell.folder.join("state/etc/server");
    well(&[args, &["--localauth", "--config", config.to_str().unwrap()]].concat(), "")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The servers read a key that was added within a second.
pub(crate) fn join(line: &str, folder: &Path) -> String {
    let args = ["join", "--name", "laptop", "--folder", folder.to_str().unwrap()];
    let mut output = run(&args, line);
    until!(
        {
            if said(&output).contains("try again in a minute") {
                output = run(&args, line);
            }
            !said(&output).contains("try again in a minute")
        },
        "{}",
        said(&output)
    );
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_machine_joins_by_a_line_and_leaves_and_the_administrator_sees_it() {
    let cell = a_cell("join");
    let line = administrator(&cell, &["invite", "Alice"]);
    assert!(line.starts_with("afar1/afar.local/") && line.lines().count() == 1, "{line}");
    let folder = cell.folder.join("device");
    let told = join(&line, &folder);
    assert!(told.starts_with("this machine is device 1 of alice in afar.local; its key is in "), "{told}");
    assert_eq!((mode(&folder), mode(&folder.join("device.json"))), (0o700, 0o600));
    assert_eq!(fs::read_to_string(folder.join("ThisCell")).unwrap(), "afar.local\n");
    assert!(fs::read_to_string(folder.join("CellServDB")).unwrap().starts_with(">afar.local\n"));
    let folder = folder.to_str().unwrap();
    badly(&["join", "--folder", folder], &line, "this machine is device 1 of alice in afar.local already");

    let listed = administrator(&cell, &["devices", "list"]);
    assert!(listed.starts_with("device 1 of alice, laptop: joined "), "{listed}");
    assert!(
        listed.contains(" from 127.") && listed.contains(", invited by ") && listed.lines().count() == 1,
        "{listed}"
    );
    administrator(&cell, &["devices", "rename", "1", "desk"]);
    let listed: serde_json::Value =
        serde_json::from_str(&administrator(&cell, &["devices", "list", "--json"])).unwrap();
    assert_eq!(
        (&listed["devices"][0]["name"], &listed["devices"][0]["revoked"]),
        (&"desk".into(), &serde_json::Value::Null)
    );

    let left = well(&["leave", "--folder", folder], "");
    assert_eq!(left, "this machine has left afar.local, and its key is removed\n");
    assert!(!Path::new(folder).exists());
    let listed = administrator(&cell, &["devices", "list"]);
    assert!(listed.contains("; revoked "), "{listed}");
    badly(&["leave", "--folder", folder], "", "there is no device's key in ");
}

/// The second, alice or the thief, is told what it means, and keeps no key.
#[test]
fn a_line_that_was_used_mistyped_or_withdrawn_is_refused_with_what_to_do() {
    let cell = a_cell("refused");
    let line = administrator(&cell, &["invite", "alice"]);
    let (first, second) = (cell.folder.join("first"), cell.folder.join("second"));
    join(&line, &first);
    let to = ["join", "--folder", second.to_str().unwrap()];
    badly(&to, &line, "another device has used this invitation. If it was not one of yours,");
    assert!(!second.exists(), "no key is kept for nothing");
    let mistyped = line.replacen("/afar.local/", "/afar.locol/", 1);
    badly(&to, &mistyped, "the invitation was mistyped");
    badly(&to, "hello\n", "this is no invitation");

    // Another device of a user who has one; a user who has none may be somebody else.
    let another = administrator(&cell, &["invite", "alice"]);
    assert_eq!(
        administrator(&cell, &["devices", "revoke", "--user", "alice"]),
        "devices revoked: 1, invitations withdrawn: 1\n"
    );
    badly(&to, &another, "it was withdrawn");
    let config = cell.folder.join("state/etc/server");
    let config = config.to_str().unwrap();
    let of_admin = ["invite", "admin", "--localauth", "--config", config];
    badly(&of_admin, "", "the cell has a user admin already, who has no device");
    badly(&["invite", "bob", "--config", config], "", "there is no token");
    let listed = administrator(&cell, &["devices", "list"]);
    assert!(!listed.contains("open invitation"), "{listed}");
}

/// A device of this test's own, as a client is to be one: it joins by a line, and calls the cell's servers by rxgk.
fn device_of(cell: &Cell, line: &str, endpoint: &Endpoint, runtime: &tokio::runtime::Runtime) -> Token {
    let Invitation { cell: name, servers, key, secret } = line.parse().unwrap();
    let device = KeyPair::generate(Chance::new([cell.address.octets()[3]; 32]));
    let member = Membership { cell: name, key, device };
    let enctypes = RxgkEnctypes::new(vec![18, 17]).unwrap();
    let request =
        JoinRequest { want: JoinWant::JOIN, secret, name: JoinName::new("test").unwrap(), enctypes };
    let reply = runtime.block_on(ask(endpoint, &servers, &member, &request)).unwrap();
    assert_eq!(reply.outcome, JoinOutcome::DONE);
    token_of(&reply).unwrap()
}

/// The servers are those of a whole cell, each on a port of its own: location, protection and files.
#[test]
fn a_devices_token_is_its_users_at_all_servers_until_it_is_revoked_also_on_connections_that_stand() {
    let cell = a_cell("revoked");
    let line = administrator(&cell, &["invite", "alice"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let endpoint = {
        let _entered = runtime.enter();
        Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), EndpointConfig::default()).unwrap()
    };
    let token = Arc::new(device_of(&cell, &line, &endpoint, &runtime));
    let clock: Clock = Arc::new(|| UnixTime::of(SystemTime::now()));
    let connect = |port: u16, service: u16| {
        let client = rxgk::Client::new(Arc::clone(&token), Arc::clone(&clock), [9; 32]);
        endpoint.connect((cell.address, port).into(), ServiceId(service), Box::new(client))
    };
    let users = connect(pt::Pr::PORT, pt::Pr::SERVICE_ID);
    let volumes = connect(vl::Vl::PORT, vl::Vl::SERVICE_ID);
    let files = connect(rxafs::Rxafs::PORT, rxafs::Rxafs::SERVICE_ID);
    // Only alice may make this group.
    let group = pt::NewEntry {
        name: pt::PrName::new("alice:friends").unwrap(),
        flag: pt::PRGRP,
        owner: afs_wire::ids::ViceId(0),
    };
    runtime.block_on(users.rpc(&group)).unwrap();
    let ask = || {
        [
            runtime.block_on(users.rpc(&pt::ListMax {})).map(drop),
            runtime.block_on(volumes.rpc(&vl::ProbeServer {})).map(drop),
            runtime.block_on(files.rpc(&rxafs::GetTime {})).map(drop),
        ]
    };
    assert_eq!(ask(), [Ok(()), Ok(()), Ok(())]);
    administrator(&cell, &["devices", "revoke", "1"]);
    until!(ask().iter().all(Result::is_err), "{:?}", ask());
    let expired = rxgk::Fault::Expired.code(token.dialect);
    let anew = connect(pt::Pr::PORT, pt::Pr::SERVICE_ID);
    let refused = runtime.block_on(anew.rpc(&pt::ListMax {})).unwrap_err();
    assert_eq!(refused.code(), expired, "a new connection: {refused}");
    endpoint.shut_down();
}

#[test]
fn who_is_invited_gets_a_home_that_only_they_enter_and_another_invitation_leaves_it_as_it_is() {
    require!(can_mount());
    let cell = a_cell("home");
    let config = cell.folder.join("state/etc/server");
    let local = ["--localauth", "--config", config.to_str().unwrap()];
    let invite = |args: &[&str]| run(&[&["invite"], args, &local].concat(), "");
    let first = invite(&["alice", "--quota", "20M"]);
    assert!(first.status.success(), "{}", said(&first));
    let told = String::from_utf8(first.stderr).unwrap();
    assert!(told.contains("made a home for alice: user/alice in afar.local"), "{told}");
    let again = invite(&["alice", "--quota", "1G"]);
    assert!(again.status.success() && !said(&again).contains("made a home"), "{}", said(&again));

    join(&String::from_utf8(first.stdout).unwrap(), &cell.folder.join("device"));
    let (_alice, _) = cell.mount_with("alice", "device", &[]);
    let home = cell.folder.join("alice/afar.local/user/alice");
    fs::write(home.join("letter"), "alice's").unwrap();
    let shown = |args: &[&str]| well(&[&["fs"], args, &[home.to_str().unwrap()]].concat(), "");
    let quota = shown(&["listquota"]);
    assert!(quota.contains("user.alice") && quota.contains("20480"), "{quota}");
    let rights = shown(&["listacl"]);
    assert!(rights.contains("  alice rlidwka") && !rights.contains("system:anyuser"), "{rights}");
    let (_nobody, _) = cell.mount("nobody");
    let elsewhere = cell.folder.join("nobody/afar.local/user/alice");
    assert_eq!(fs::read_dir(&elsewhere).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);

    // What is somebody else's is left alone, and said before or after.
    let (_admin, _) = cell.mount_with("admin", "state/etc", &["-localauth", "-as", "admin"]);
    let users = cell.folder.join("admin/afar.local/user");
    let address = cell.address.to_string();
    for user in ["bob", "eve"] {
        let volume = format!("user.{user}");
        well(&["vos", "create", &address, "a", &volume, "-localauth", "-config", local[2]], "");
    }
    let point = users.join("bobs");
    well(&["fs", "mkmount", point.to_str().unwrap(), "user.bob"], "");
    fs::write(point.join("old"), "of an earlier bob").unwrap();
    fs::create_dir(users.join("dora")).unwrap();
    let refused = |args: &[&str], why: &str| {
        let output = invite(args);
        assert!(!output.status.success() && said(&output).contains(why), "{args:?}: {}", said(&output));
        assert!(output.stdout.is_empty(), "no line is shown");
    };
    refused(&["bob"], "the cell has a volume user.bob that is not bob's");
    refused(&["dora"], "there is something else at user/dora in the cell already");
    refused(&["a-name-of-many-letters"], "no volume can be called user.a-name-of-many-letters");
    refused(&["alice", "--quota", "much"], "a number of KiB");
    // One that was cut off is gone on with.
    let finished = invite(&["eve"]);
    assert!(said(&finished).contains("made a home for eve"), "{}", said(&finished));
    let without = invite(&["frank", "--no-home"]);
    assert!(without.status.success(), "{}", said(&without));
    assert!(!users.join("frank").exists());
    let volumes = well(&["vos", "listvldb", "-localauth", "-config", local[2]], "");
    assert!(!volumes.contains("user.frank") && volumes.contains("user.eve"), "{volumes}");
}

/// The cell was made by 'afar server', which makes no volumes.
#[test]
fn an_invitation_for_a_cell_without_volumes_says_what_is_missing_and_makes_no_user() {
    let folder = Folder::new("rootless");
    let _server = ServerProcess::start(&folder, &["--cell", "rootless.test"]);
    let config = folder.join("etc/server");
    let local = ["--localauth", "--config", config.to_str().unwrap()];
    badly(&[&["invite", "alice"][..], &local].concat(), "", "the cell has no volume root.cell yet");
    let users = well(&["pts", "listentries", "-localauth", "-config", local[2]], "");
    assert!(!users.contains("alice"), "{users}");
    well(&[&["invite", "alice", "--no-home"][..], &local].concat(), "");
}

/// A second server of the cell does not run: it is named, and a second call of the same command mends the rest.
#[test]
fn an_administrators_device_is_nobody_until_it_is_approved_with_its_code_and_what_failed_is_listed() {
    let cell = a_cell("approved");
    let config = cell.folder.join("state/etc/server");
    let local = ["--localauth", "--config", config.to_str().unwrap()];
    let line = administrator(&cell, &["invite", "alice", "--admin"]);
    assert!(
        administrator(&cell, &["devices", "list"])
            .starts_with("open invitation for alice, as an administrator, ")
    );
    let folder = cell.folder.join("device");
    let told = join(&line, &folder);
    let code = told.split("approve 1 ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(told.starts_with("this machine is device 1 of alice in afar.local, and waits"), "{told}");
    assert!(administrator(&cell, &["devices", "list"]).contains("; waits to be approved"));
    let listed = || fs::read_to_string(config.join("UserList")).unwrap();
    let members =
        || well(&["pts", "membership", "system:administrators", "-localauth", "-config", local[2]], "");
    assert!(!listed().contains("alice") && !members().contains("alice"));

    let approve = |code: &str| run(&[&["devices", "approve", "1", code][..], &local].concat(), "");
    let wrong = approve("00000-00000");
    assert!(
        !wrong.status.success() && said(&wrong).contains("device 1 shows another code"),
        "{}",
        said(&wrong)
    );
    assert!(!listed().contains("alice") && administrator(&cell, &["devices", "list"]).contains("; waits"));

    let gone = own_address().to_string();
    let uuid = "00deadbe-0000-4000-80-00-000000000007";
    well(&["vos", "setaddrs", "-uuid", uuid, "-host", &gone, "-localauth", "-config", local[2]], "");
    let partly = approve(&code.to_uppercase().replace('-', " "));
    let report = said(&partly);
    assert!(!partly.status.success(), "{report}");
    assert!(
        report.contains("device 1 of alice is approved\nalice is a member of system:administrators"),
        "{report}"
    );
    assert!(report.contains(&format!("alice is in the UserList of {}\n", cell.address)), "{report}");
    assert!(report.contains(&format!("\n  the UserList of {gone}: ")), "{report}");
    assert!(listed().contains("alice") && members().contains("alice"));
    well(&["vos", "remaddrs", "-uuid", uuid, "-localauth", "-config", local[2]], "");
    let again = approve(code);
    assert!(again.status.success(), "{}", said(&again));
    assert!(!administrator(&cell, &["devices", "list"]).contains("waits"));
}

/// The device's folder, mount and cache are a second machine's part.
#[test]
fn who_mounts_with_a_devices_key_is_its_user_until_it_is_revoked_and_others_are_nobody() {
    require!(can_mount());
    let cell = a_cell("joined-mount");
    let line = administrator(&cell, &["invite", "alice"]);
    let told = join(&line, &cell.folder.join("device"));
    assert!(told.contains("\n'afar mount DIR --config /") && told.ends_with(" mounts the cell as alice\n"));
    let (_admin, scratch) = cell.mount_with("admin", "state/etc", &["-localauth", "-as", "admin"]);
    let folder = scratch.join("alices");
    fs::create_dir(&folder).unwrap();
    well(&["fs", "setacl", folder.to_str().unwrap(), "alice", "all", "-clear"], "");

    let (mounted, scratch) = cell.mount_with("alice", "device", &[]);
    let own = scratch.join("alices");
    fs::write(own.join("letter"), "alice's").unwrap();
    assert_eq!(fs::read_to_string(own.join("letter")).unwrap(), "alice's");
    let (_nobody, elsewhere) = cell.mount("nobody");
    let why = |outcome: std::io::Result<()>| outcome.err().and_then(|error| error.raw_os_error());
    let denied = Some(Errno::EACCES.0);
    assert_eq!(why(fs::read(elsewhere.join("alices/letter")).map(drop)), denied);
    // Commands find the client by their current folder.
    let here = |args: &[&str]| {
        let output = afar::command(args).current_dir(&scratch).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        said(&output)
    };
    let tokens = here(&["tokens"]);
    assert!(tokens.contains("\nUser alice's rxgk tokens for afar.local [Expires "), "{tokens}");
    assert!(tokens.contains("] (crypt, aes256-cts-hmac-sha1-96)") && !tokens.contains("rxkad"), "{tokens}");
    let config = cell.folder.join("device");
    let config = config.to_str().unwrap();
    here(&["pts", "creategroup", "alice:friends", "-config", config]);
    let group = here(&["pts", "examine", "alice:friends", "-config", config]);
    assert!(group.contains("creator: alice"), "{group}");

    administrator(&cell, &["devices", "revoke", "1"]);
    // Programs say "Key was rejected by service": nothing is read as nobody in alice's place, also not what anybody may read.
    let rejected = Some(Errno::EKEYREJECTED.0);
    until!(why(fs::write(own.join("more"), "")) == rejected, "{}", cell.log("alice"));
    cell.logs("alice", &["this device has got no token", "an administrator has revoked this device"]);
    until!(why(fs::read(own.join("letter")).map(drop)) == rejected, "{}", cell.log("alice"));
    assert_eq!(why(fs::read_dir(&scratch).map(drop)), rejected);
    assert!(mounted.stop().success());
    let (_again, scratch) = cell.mount_with("again", "device", &[]);
    cell.logs("again", &["this device has got no token", "an administrator has revoked this device"]);
    assert_eq!(why(fs::read(scratch.join("alices/letter")).map(drop)), rejected);
}
