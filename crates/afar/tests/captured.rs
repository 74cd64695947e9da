//! What can be read of a cell on the way. Only whole programs say all that they say: each test plants the names of a volume, a user, a folder
//! and a file, and data, and finds none of it in what went over the network. Then it plants others where nothing is encrypted, and
//! finds all of them, so the search can.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use crate::join::join;
use crate::mounted::realm::{ALICE, ROOT, SERVICE, Scene};
use crate::mounted::{
    Cell, Folder, Machines, Process, afar, can_mount, forget_rxgk, own_address, script, socket_of, start_up,
    succeed, up,
};
use afs_lab::real::capture::Capture;

/// Words that are in no packet of another test, and of another turn of this one: a volume, a user, a folder, a file, and data.
struct Planted([String; 5]);

impl Planted {
    fn new(test: &str, is_secret: bool) -> Self {
        let test = format!("{test}{}", if is_secret { "s" } else { "c" });
        let names = ["plvol", "pluser", "planted-folder-", "planted-file-", "planted data of "];
        Self(names.map(|name| format!("{name}{test}")))
    }

    /// Plants all of it: by commands of an administrator's, and by a shell of a user's in the mount, where the volume gets a mount point.
    fn plant(&self, server: Ipv4Addr, does: &dyn Fn(&[&str]), user: &dyn Fn(&str)) {
        let (server, [volume, name, folder, file, data]) = (server.to_string(), self.0.each_ref());
        does(&["vos", "create", &server, "a", volume]);
        does(&["vos", "backup", volume]);
        does(&["pts", "createuser", name]);
        does(&["bos", "adduser", &server, name]);
        does(&["bos", "removeuser", &server, name]);
        let write = format!("for n in {{1..4000}}; do echo {data}; done > {folder}/{file}");
        user(&format!("mkdir {folder}; {write}; [ $(wc -l < {folder}/{file}) = 4000 ]; ls {folder}"));
    }

    /// What went over the network has none of it, or all.
    fn check(&self, capture: Capture, is_secret: bool) {
        let found = capture.end(&self.0.each_ref().map(String::as_str));
        assert_eq!(found, if is_secret { &[][..] } else { &self.0 });
    }
}

/// The command of a superuser by the cell's key; in the clear where the cell has no rxgk.
fn by_key(config: &Path, words: &[&str], is_secret: bool) {
    let mut command = afar(words);
    command.arg("-config").arg(config).arg("-localauth").args((!is_secret).then_some("-clear"));
    succeed(command);
}

fn mkmount(mount: &Path, point: &Path, volume: &str) {
    let mut command = afar(["fs", "mkmount"]);
    succeed_at(mount, command.arg(point).arg(volume));
}

/// Has a mount send in the clear what goes by rxkad.
fn in_the_clear(mount: &Path) {
    succeed_at(mount, &mut afar(["fs", "setcrypt", "off"]));
}

fn succeed_at(mount: &Path, command: &mut Command) {
    let output = command.env("AFAR_SOCKET", socket_of(mount)).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.stderr.escape_ascii());
}

#[test]
fn no_name_and_no_byte_of_a_cell_of_afar_up_can_be_read_on_the_way() {
    require!(can_mount());
    for is_secret in [true, false] {
        let (folder, address) = (Folder::new("captured"), own_address());
        if !is_secret {
            let process = Process::start(up(&folder, address, &["--no-mount"]), None);
            assert!(process.stop().success());
            forget_rxgk(&folder);
        }
        let planted = Planted::new("up", is_secret);
        let capture = Capture::begin().unwrap();
        let process = start_up(&folder, address);
        let (mount, config) = (folder.join("mnt"), folder.join("state/etc/server"));
        let scratch = mount.join("afar.local/scratch");
        if !is_secret {
            in_the_clear(&mount);
        }
        let volume = &planted.0[0];
        let does = |words: &[&str]| by_key(&config, words, is_secret);
        let user = |text: &str| {
            mkmount(&mount, &scratch.join("m"), volume);
            drop(script(&scratch.join("m"), text));
        };
        planted.plant(address, &does, &user);
        does(&["vos", "dump", volume, "-file", &folder.join("dump").display().to_string()]);
        does(&["bos", "salvage", &address.to_string(), "a", volume, "-forceDAFS"]);
        script(&scratch.join("m"), "rm -r *");
        assert!(process.stop().success());
        planted.check(capture, is_secret);
    }
}

/// Users who log in by Kerberos, whose own messages have the user's name: their tickets are there before.
#[test]
fn no_name_and_no_byte_of_a_cell_with_a_realm_can_be_read_on_the_way() {
    let Some(scene) = Scene::new() else { return };
    in_the_clear(&scene.cell.folder.join("mnt"));
    let config = scene.cell.public_config();
    for is_secret in [false, true] {
        let planted = Planted::new("realm", is_secret);
        let volume = &planted.0[0];
        let mut services = SERVICE.to_owned();
        if is_secret {
            let keytab = scene.cell.folder.join("state/etc/server/rxgk.keytab");
            scene.kdc.add_service("afs-rxgk/_afs.afar.local", "aes256-cts", &keytab).unwrap();
            services += " afs-rxgk/_afs.afar.local";
            scene.kinit(ROOT);
            // The servers read the keytab within a second.
            until!(scene.can(ROOT, &format!("{} aklog", scene.program.display())), "no token of rxgk");
            scene.run(ROOT, &["unlog"]);
        }
        scene.kdc.add_user(&planted.0[1]).unwrap();
        scene.kinit(ROOT);
        scene.kinit_as(ALICE, &planted.0[1], &[]);
        for user in [ROOT, ALICE] {
            assert!(scene.can(user, &format!("kvno {services}")));
        }
        let capture = Capture::begin().unwrap();
        scene.run(ROOT, &["aklog"]);
        let does = |words: &[&str]| {
            let mut command = scene.afar(ROOT, words);
            if words[0] != "fs" {
                command.arg("-config").arg(&config).args((!is_secret).then_some("-clear"));
            }
            succeed(command);
        };
        let user = |text: &str| {
            does(&["fs", "mkmount", &scene.mount.join("scratch").join(volume).display().to_string(), volume]);
            let text = format!("set -e; {} aklog; cd \"$1/scratch\"; {text}", scene.program.display());
            let said = scene.shell(ALICE, &text);
            assert!(said.status.success(), "{text}: {}", said.stderr.escape_ascii());
        };
        planted.plant(scene.cell.address, &does, &user);
        for user in [ROOT, ALICE] {
            scene.run(user, &["unlog"]);
        }
        planted.check(capture, is_secret);
    }
}

/// A machine with the databases and two more with files, between which volumes go.
#[test]
fn no_name_and_no_byte_of_a_cell_of_three_machines_can_be_read_on_the_way() {
    require!(can_mount());
    for is_secret in [true, false] {
        let mut cell = Cell::new("three");
        let config = cell.folder.join("state/etc/server");
        if !is_secret {
            forget_rxgk(&cell.folder);
            cell.restart();
        }
        let planted = Planted::new("three", is_secret);
        let volume = &planted.0[0];
        let capture = Capture::begin().unwrap();
        let mut machines = Machines::new("three", 2);
        for machine in 0..2 {
            let partitions = format!("partitions = [\"a={}/vicepa\"]\n", machines.states[machine].display());
            machines.configure(machine, "afar.local", &["file", "vol", "bos"], &partitions);
            let keys = machines.states[machine].inner("etc").join("server");
            let mut copy = Command::new("cp");
            copy.arg("-a").arg(&config).arg(keys);
            succeed(copy);
            machines.start(machine);
        }
        let (process, scratch) = cell.mount_with("mnt", "state/etc", &["-localauth", "-as", "admin"]);
        let mount = cell.folder.join("mnt");
        if !is_secret {
            in_the_clear(&mount);
        }
        let does = |words: &[&str]| by_key(&config, words, is_secret);
        let user = |text: &str| {
            mkmount(&mount, &scratch.join("m"), volume);
            drop(script(&scratch.join("m"), text));
        };
        planted.plant(machines.addresses[0], &does, &user);
        // The user mounts the cell too, by its key.
        let (other, _) = cell.mount_with("other", "state/etc", &["-localauth", "-as", &planted.0[1]]);
        assert!(other.stop().success());
        let [one, two] = [0, 1].map(|machine| machines.addresses[machine].to_string());
        does(&["vos", "move", volume, &one, "a", &two, "a"]);
        for server in [&one, &two] {
            does(&["vos", "addsite", server, "a", volume]);
        }
        does(&["vos", "release", volume]);
        assert!(process.stop().success());
        planted.check(capture, is_secret);
    }
}

/// A machine that joins by a line, and its user, whom the invitation names.
#[test]
fn no_name_and_no_byte_of_a_cell_by_invitation_can_be_read_on_the_way() {
    require!(can_mount());
    for is_secret in [true, false] {
        let mut cell = Cell::new("invited");
        let config = cell.folder.join("state/etc/server");
        if !is_secret {
            forget_rxgk(&cell.folder);
            cell.restart();
        }
        let planted = Planted::new("invited", is_secret);
        let [volume, name, ..] = &planted.0;
        let capture = Capture::begin().unwrap();
        let does = |words: &[&str]| by_key(&config, words, is_secret);
        let mount = cell.folder.join("mnt");
        let (process, home) = if is_secret {
            // The name of another user begins with the planted one.
            let guest = format!("{name}x");
            let mut invite = afar(["invite", &guest, "--localauth", "--config"]);
            invite.arg(&config);
            join(&succeed(invite), &cell.folder.join("device"));
            let (process, _) = cell.mount_with("mnt", "device", &[]);
            (process, mount.join("afar.local/user").join(guest))
        } else {
            let mounted = cell.mount_with("mnt", "state/etc", &["-localauth", "-as", "admin"]);
            in_the_clear(&mount);
            mounted
        };
        let user = |text: &str| {
            mkmount(&mount, &home.join("m"), volume);
            drop(script(&home, text));
        };
        planted.plant(cell.address, &does, &user);
        assert!(process.stop().success());
        planted.check(capture, is_secret);
    }
}
