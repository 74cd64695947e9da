//! `aklog -kafs`: what Linux's own AFS client is given. A program in the place of `keyctl` keeps it here; crates/interop has the kernel.

use crate::mounted::realm::{ALICE, Local, Scene, fail};
use crate::mounted::{self, open, succeed};
use afs_lab::caller::{Client, Credentials};
use afs_wire::ids::ViceId;
use afs_wire::pt::{NewEntry, PRGRP, PrName};
use rx_security::keys::{EncType, KeySet};
use rx_security::rxgk::{self, Dialect, RxgkTime, Secret};
use rx_security::{Level, UnixTime};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::SystemTime;

/// Says which keyring is the session's, and keeps its arguments and its input.
const KEYCTL: &str = "#!/bin/sh\n[ \"$*\" != 'id @s' ] || { echo 77; exit; }\necho \"$*\" > \"${0%/*}/words\"\nexec cat > \"${0%/*}/payload\"\n";

/// The place of the program.
fn keyctl(scene: &Scene) -> PathBuf {
    let folder = scene.realm.join("bin");
    fs::create_dir(&folder).unwrap();
    open(&folder);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(folder.join("keyctl"), KEYCTL).unwrap();
    fs::set_permissions(folder.join("keyctl"), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

fn aklog(scene: &Scene, user: Local, bin: &std::path::Path, more: &[&str]) -> Command {
    let mut command = scene.afar(user, &[&["aklog", "-kafs"], more].concat());
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command
}

/// The class and the body of each token that the kernel was given for a cell.
fn given(bin: &std::path::Path, cell: &str) -> Vec<(u32, Vec<u8>)> {
    assert_eq!(fs::read_to_string(bin.join("words")).unwrap(), format!("padd rxrpc afs@{cell} 77\n"));
    let payload = fs::read(bin.join("payload")).unwrap();
    let mut at = 0;
    let word = |bytes: &mut usize| {
        let word = u32::from_be_bytes(*payload[*bytes..].first_chunk().unwrap());
        *bytes += 4;
        word as usize
    };
    assert_eq!(word(&mut at), 0);
    let name = word(&mut at);
    assert_eq!(&payload[at..at + name], cell.as_bytes());
    at += name.next_multiple_of(4);
    let tokens = (0..word(&mut at))
        .map(|_| {
            let length = word(&mut at);
            let (class, body) = payload[at..at + length].split_first_chunk::<4>().unwrap();
            at += length;
            (u32::from_be_bytes(*class), body.to_vec())
        })
        .collect();
    assert_eq!(at, payload.len());
    tokens
}

/// A token of rxgk as the kernel reads it.
fn rxgk_token(body: &[u8]) -> rxgk::Token {
    let long = |place: usize| i64::from_be_bytes(*body[8 * place..].first_chunk().unwrap());
    let kind = EncType(long(5) as i32);
    let key = &body[52..][..kind.key_len().unwrap()];
    let ticket = &body[52 + key.len() + 4..];
    rxgk::Token {
        dialect: Dialect::Yfs,
        secret: Secret::new(kind, key).unwrap(),
        level: Level::of_number(long(2) as u32).unwrap(),
        lifetime: long(3) as u32,
        bytelife: long(4) as u32,
        end: RxgkTime(long(1)),
        token: ticket.to_vec(),
    }
}

/// What the owner of a token may do: make a group of this name.
async fn make_group(scene: &Scene, token: rxgk::Token, name: &str) {
    let clock = Arc::new(|| UnixTime::of(SystemTime::now()));
    let owner = Credentials::Rxgk(Arc::new(rxgk::Client::factory(token, clock, [7; 32])));
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let group = NewEntry { name: PrName::new(name).unwrap(), flag: PRGRP, owner: ViceId(0) };
    client.protection_server(scene.cell.address, &owner).rpc(&group).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn linux_is_given_a_token_of_its_dialect_and_behind_it_one_for_its_older_releases() {
    let Some(scene) = Scene::new() else { return };
    let keytab = scene.cell.folder.join("state/etc/server/rxgk.keytab");
    scene.kdc.add_service("afs-rxgk/_afs.afar.local", "aes256-cts-hmac-sha1-96", &keytab).unwrap();
    let bin = keyctl(&scene);
    scene.kinit(ALICE);
    // The servers read the keytab within a second.
    until!(mounted::run(aklog(&scene, ALICE, &bin, &[])).status.success(), "no token of rxgk");
    let tokens = given(&bin, "afar.local");
    assert_eq!(tokens.iter().map(|(class, _)| *class).collect::<Vec<_>>(), [6, 2]);
    let token = rxgk_token(&tokens[0].1);
    assert_eq!(token.level, Level::Crypt);
    make_group(&scene, token, "alice:friends").await;
    assert!(scene.tokens(ALICE).is_empty(), "our mount has none of them");
    // A realm without the service.
    scene.kdc.admin("delprinc -force afs-rxgk/_afs.afar.local").unwrap();
    scene.kinit(ALICE);
    succeed(aklog(&scene, ALICE, &bin, &[]));
    assert_eq!(given(&bin, "afar.local")[0].0, 2);
    // Without the program, and with one that refuses.
    fs::write(bin.join("keyctl"), "#!/bin/sh\necho 'add_key: No such device' >&2\nexit 1\n").unwrap();
    let said = fail(aklog(&scene, ALICE, &bin, &[]), 5);
    assert!(said.contains("aklog: no key for afar.local: keyctl: add_key: No such device; "), "{said}");
    let mut alone = aklog(&scene, ALICE, &bin, &[]);
    alone.env("PATH", scene.realm.join("nothing"));
    let said = fail(alone, 5);
    assert!(said.contains("there is no program keyctl: install keyutils"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn linux_is_given_the_token_of_the_user_for_whom_the_machine_has_joined() {
    let Some(scene) = Scene::new() else { return };
    let bin = keyctl(&scene);
    let config = scene.cell.folder.join("state/etc/server");
    let mut invite = mounted::afar(["invite", "carol", "--localauth", "--config"]);
    invite.arg(&config);
    let line = succeed(invite);
    let device = scene.realm.join("device");
    let mut join = mounted::afar(["join", line.trim(), "--name", "laptop", "--folder"]);
    join.arg(&device);
    succeed(join);
    succeed(aklog(&scene, mounted::realm::ROOT, &bin, &["-config", device.to_str().unwrap()]));
    let tokens = given(&bin, "afar.local");
    assert_eq!(tokens.len(), 1);
    let token = rxgk_token(&tokens[0].1);
    // It ends with the device's rights.
    let content = rxgk::open(&KeySet::load(&config).unwrap(), Dialect::Yfs, &token.token).unwrap();
    assert_eq!(content.names[0].device(), Some(1));
    make_group(&scene, token, "carol:friends").await;
}
