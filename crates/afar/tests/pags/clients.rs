//! Several clients on one machine: which of them a command, a token and a PAG are for, and a client of somebody who wants more than is theirs.

use super::{ALICE, Identity, NOBODY, ROOT, Scene, who};
use crate::mounted::{self, LOOKS, Process, socket_of, succeed, words as said};
use rustix::process::{Gid, Uid};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A command of somebody's that sees the mounts of this scene alone, and finds its clients by itself.
fn alone(scene: &Scene, mut command: Command) -> Command {
    // The list is read whole first: one that changes while it is read leaves some out.
    const SCRIPT: &str = "mounts=$(cat /proc/self/mountinfo); \
        while read -r _ _ _ _ dir rest; do case $rest in *' - fuse.afar '*) \
        case $dir in \"$1\"/*) ;; *) umount -l \"$dir\" ;; esac ;; esac; done <<< \"$mounts\"; shift; cd /; exec \"$@\"";
    command.env_remove("AFAR_SOCKET");
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "--propagation", "private", "bash", "-c", SCRIPT, "bash"]);
    alone.arg(scene.cell.folder.join(".").canonicalize().unwrap());
    alone.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => alone.env(name, value),
            None => alone.env_remove(name),
        };
    }
    alone.current_dir("/").stdin(Stdio::null());
    alone
}

/// The tokens that somebody has in one client.
fn tokens_in(scene: &Scene, who: Identity, mount: &str) -> usize {
    let mut command = scene.afar(who, &["tokens", "-json"]);
    command.env("AFAR_SOCKET", socket_of(&scene.cell.folder.join(mount)));
    let told: serde_json::Value = serde_json::from_str(&succeed(command)).unwrap();
    told.as_array().unwrap().len()
}

/// True if somebody may change rights by the administrator's mount.
fn administers(scene: &Scene, who: Identity) -> bool {
    let folder = scene.cell.folder.join("adm/afar.local/scratch/alice").display().to_string();
    mounted::run(scene.afar(who, &["fs", "setacl", &folder, "bob", "l"])).status.success()
}

/// `pagsh` under the capability that its helper's file has, which sees these mounts alone.
fn pagsh(scene: &Scene, uid: u32, text: &str) -> Command {
    let mut command = Command::new("setpriv");
    let uid = uid.to_string();
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]);
    command.args(["--inh-caps", "+setgid", "--ambient-caps", "+setgid"]).arg(&scene.program);
    command.args(["pagsh", "-c", text]).env("PATH", "/usr/bin:/bin");
    alone(scene, command)
}

/// The helper of `pagsh` believed a client that its caller ran, and gave its caller the group of the client's choice.
#[test]
fn a_client_of_the_callers_gives_no_group_to_a_shell() {
    const GROUP: u32 = 0x410f_0000;
    let Some(scene) = Scene::new() else { return };
    let (secret, socket) = (scene.cell.folder.join("secret"), scene.cell.folder.join("evil"));
    fs::write(&secret, "of the group\n").unwrap();
    std::os::unix::fs::chown(&secret, Some(0), Some(GROUP)).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    std::thread::spawn(move || {
        let (uid, gid) = (Uid::from_raw(ALICE), Gid::from_raw(ALICE));
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        // Who listens is who a peer sees.
        rustix::net::listen(&listener, 8).unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 4];
            while stream.read_exact(&mut length).is_ok() {
                stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize]).unwrap();
                let answer = [0_u32.to_be_bytes(), GROUP.to_be_bytes()].concat();
                stream.write_all(&afs_wire::control::framed(&answer)).unwrap();
            }
        }
    });
    let mut command = pagsh(&scene, ALICE, &format!("id -G; cat '{}'", secret.display()));
    command.env("AFAR_SOCKET", &socket);
    let said = said(&mounted::run(command));
    assert!(!said.contains("of the group") && !said.contains(&GROUP.to_string()), "{said}");
}

#[test]
fn a_token_reaches_all_clients_of_roots_and_a_session_is_one_in_all() {
    let Some(scene) = Scene::new() else { return };
    let at = |mount: &str| scene.cell.folder.join(mount).join("afar.local/scratch/alice");
    // A cell of the same name that is another one.
    let foreign = mounted::Cell::new("foreign");
    let foreign_mount = scene.cell.folder.join("foreign");
    let mut command = mounted::afar(["mount"]);
    command.arg(&foreign_mount).arg("--config").arg(foreign.folder.join("state/etc"));
    command.arg("--cache").arg(scene.cell.folder.join("cache-foreign"));
    let _foreign = mounted::Process::start(command, Some(foreign_mount));
    let (_other, _) = scene.cell.mount("other");
    let (_adm, _) = scene.cell.mount_with("adm", "state/etc", &["-localauth", "-as", "admin"]);

    let key = scene.key.display().to_string();
    let words = ["aklog", "-keytab", &key, "-principal", "alice"];
    let alice = who(ALICE, None, "alice");
    let by = |who: Identity, words: &[&str]| mounted::run(alone(&scene, scene.afar(who, words)));
    let output = by(alice, &words);
    assert!(output.status.success(), "{}", said(&output));
    let held = |who: Identity| ["mnt", "other", "foreign"].map(|mount| tokens_in(&scene, who, mount));
    assert_eq!(held(alice), [1, 1, 0], "the newest mount had it, and no other");
    scene.fill(alice, &at("mnt"));
    assert_eq!(scene.shell(alice, "cat \"$1/small\"", &at("other")).stdout, b"secret\n");
    assert!(by(alice, &["unlog"]).status.success());
    assert_eq!(held(alice), [0, 0, 0]);

    // Root's own tokens leave the administrator's mount as it is.
    assert!(by(ROOT, &words).status.success());
    assert_eq!(held(ROOT), [1, 1, 0]);
    assert!(administers(&scene, ROOT));
    assert!(by(ROOT, &["unlog"]).status.success());
    assert!(administers(&scene, ROOT));

    // A session is one to all clients that root has: what was set in it is in it alone.
    let text = format!("id -G && '{}' {}; exec sleep 1000", scene.program.display(), words.join(" "));
    let mut session = Process::of(pagsh(&scene, ALICE, &text).stdout(Stdio::piped()));
    let mut groups = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(session.child.stdout.as_mut().unwrap()),
        &mut groups,
    )
    .unwrap();
    let pag = groups
        .split_whitespace()
        .find_map(|group| group.parse().ok().filter(|group: &u32| group >> 24 == 0x41));
    let inside = who(ALICE, Some(pag.expect(&groups)), "alice");
    until!(held(inside) == [1, 1, 0], "{:?}", held(inside));
    assert_eq!(held(alice), [0, 0, 0]);
    for mount in ["mnt", "other"] {
        let shown = |who: Identity| {
            LOOKS.iter().any(|(_, look)| !scene.shell(who, look, &at(mount)).stdout.is_empty())
        };
        assert!(shown(inside) && !shown(alice), "{mount}");
    }
    assert!(by(inside, &["unlog"]).status.success());
    assert_eq!(held(inside), [0, 0, 0]);
}

/// In an empty PAG, which a login had without tickets, root was nobody in a mount with the cell's key.
#[test]
fn a_mount_with_the_cells_key_is_good_in_a_session_without_a_token() {
    let Some(scene) = Scene::new() else { return };
    let (_adm, _) = scene.cell.mount_with("adm", "state/etc", &["-localauth", "-as", "admin"]);
    let root = who(0, Some(scene.new_pag(0)), "admin");
    assert!(administers(&scene, ROOT) && administers(&scene, root));
    assert!(!administers(&scene, who(NOBODY, Some(scene.new_pag(NOBODY)), "")));
}

#[test]
fn clients_that_hang_or_have_ended_are_passed_over_with_a_word() {
    let Some(scene) = Scene::new() else { return };
    let (mut dead, _) = scene.cell.mount("dead");
    let (hanging, _) = scene.cell.mount("hanging");
    dead.kill();
    hanging.signal("STOP");
    let key = scene.key.display().to_string();
    let alice = who(ALICE, None, "alice");
    let by = |words: &[&str]| mounted::run(alone(&scene, scene.afar(alice, words)));
    let told = |output: &Output| {
        let said = said(output);
        [("hanging is passed over", "has not answered in time"), ("dead is passed over", "refused")]
            .map(|(what, why)| said.lines().any(|line| line.contains(what) && line.contains(why)))
    };
    let output = by(&["aklog", "-keytab", &key, "-principal", "alice"]);
    assert!(output.status.success(), "{}", said(&output));
    let is_mounted = |name: &str| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.contains(&format!(" {} ", scene.cell.folder.join(name).display()))
    };
    assert_eq!(told(&output), [true, is_mounted("dead")], "{}", said(&output));
    assert_eq!(tokens_in(&scene, alice, "mnt"), 1);
    let output = by(&["fs", "wscell"]);
    assert!(output.status.success() && told(&output)[0], "{}", said(&output));
    let config = scene.cell.public_config().display().to_string();
    let output = by(&["pts", "examine", "alice", "-config", &config]);
    assert!(output.status.success() && told(&output)[0], "{}", said(&output));
    hanging.signal("CONT");
    assert!(Path::new(&key).exists());
}
