//! The packaged client under a real systemd: whatever takes its mount away, except an administrator who unmounts it, the cells are there again
//! soon, and users have their tokens. And the mount of a line of fstab. It takes root.

use crate::mounted::{self, Process};
use afs_lab::peers::systemd::Machine;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The servers, with a folder of configuration that all users may read.
const CELL: &str = "[Service]\nType=exec\nExecStart=/usr/bin/afar up --no-mount --state /srv/cell\nStandardOutput=truncate:/run/cell.log\n";

/// A key of the cell's servers, in place of users' tickets.
const KEYTAB: &str = "/srv/keytab";

const SCRATCH: &str = "/afs/afar.local/scratch";

/// Somebody on the machine: their number, and the group of the PAG that they are in.
#[derive(Debug, Clone, Copy)]
struct Who(u32, Option<u32>);

const ROOT: Who = Who(0, None);
const ALICE: Who = Who(60_001, None);
const BOB: u32 = 60_002;
const CAROL: Who = Who(60_003, None);

/// A machine with a cell, where the package of the client was installed.
struct Scene {
    machine: Machine,
}

impl Scene {
    fn new() -> Option<Self> {
        if !mounted::can_mount() {
            return None;
        }
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/afar-client.service");
        let machine = Machine::boot(&[
            (Path::new(env!("CARGO_BIN_EXE_afar")), "/usr/bin/afar"),
            (&unit, "/usr/lib/systemd/system/afar-client.service"),
        ])?;
        machine.succeed(&["rm", "-rf", "/srv/cell", "/var/cache/afar", "/afs"]);
        machine.write("/etc/default/afar-client", "AFAR_CONFIG=/srv/cell/etc\nAFAR_OPTIONS=\"--log info\"\n");
        machine.write("/etc/systemd/system/afar-cell.service", CELL);
        machine.write(KEYTAB, mounted::keytab());
        machine.succeed(&["chmod", "644", KEYTAB]);
        let scene = Self { machine };
        scene.start_servers();
        scene.machine.succeed(&["afar", "key", "add", "-keytab", KEYTAB, "-config", "/srv/cell/etc/server"]);
        scene.start_servers();
        for name in ["alice", "bob"] {
            let words = ["afar", "pts", "createuser", name, "-localauth", "-config", "/srv/cell/etc/server"];
            scene.machine.succeed(&words);
        }
        Some(scene)
    }

    fn start_servers(&self) {
        self.machine.succeed(&["systemctl", "restart", "afar-cell"]);
        self.machine.until(&["grep", "-q", "^ready ", "/run/cell.log"]);
    }

    /// A program as somebody.
    fn command(&self, who: Who, words: &[&str]) -> Command {
        let Who(uid, pag) = who;
        let mut command = self.machine.command("setpriv");
        let groups = pag.map_or(uid.to_string(), |pag| format!("{uid},{pag}"));
        command.args([format!("--reuid={uid}"), format!("--regid={uid}"), format!("--groups={groups}")]);
        command.args(words);
        command
    }

    fn run(&self, who: Who, words: &[&str]) -> Output {
        mounted::run(self.command(who, words))
    }

    fn succeed(&self, who: Who, words: &[&str]) -> String {
        mounted::succeed(self.command(who, words))
    }

    fn log_in(&self, who: Who, name: &str) {
        self.succeed(who, &["afar", "aklog", "-keytab", KEYTAB, "-principal", name]);
    }

    fn tokens(&self, who: Who) -> usize {
        let told: serde_json::Value =
            serde_json::from_str(&self.succeed(who, &["afar", "tokens", "-json"])).unwrap();
        told.as_array().unwrap().len()
    }

    /// Somebody in a new PAG.
    fn session(&self, uid: u32) -> Who {
        let caps = ["--inh-caps=+setgid", "--ambient-caps=+setgid", "afar", "pagsh", "-c", "id -G"];
        let said = self.succeed(Who(uid, None), &caps);
        let pag = said
            .split_whitespace()
            .filter_map(|group| group.parse::<u32>().ok())
            .find(|group| group >> 24 == 0x41);
        Who(uid, Some(pag.unwrap_or_else(|| panic!("{said}"))))
    }

    /// A process of somebody's, in a folder.
    fn process_in(&self, who: Who, folder: &str) -> Process {
        let mut command =
            self.command(who, &["sh", "-c", "cd \"$1\" && echo there && exec sleep 1000", "sh", folder]);
        let mut running = Process::of(command.stdout(Stdio::piped()));
        let mut said = [0; 5];
        std::io::Read::read_exact(running.child.stdout.as_mut().unwrap(), &mut said).unwrap();
        running
    }

    fn unit(&self, property: &str) -> String {
        self.machine
            .succeed(&["systemctl", "show", "--value", "--property", property, "afar-client"])
            .trim()
            .to_owned()
    }

    /// How often the client, or systemd of it, has said something.
    fn said(&self, text: &str) -> usize {
        self.machine.journal(&["--unit=afar-client"]).matches(text).count()
    }

    /// A folder that is somebody's alone, with a file.
    fn make_folder(&self, who: Who, name: &str) {
        let folder = format!("{SCRATCH}/{name}");
        self.log_in(ROOT, "admin");
        self.machine.succeed(&["mkdir", &folder]);
        self.machine.succeed(&[
            "afar",
            "fs",
            "setacl",
            &folder,
            name,
            "all",
            "system:anyuser",
            "none",
            "-clear",
        ]);
        self.machine.succeed(&["afar", "unlog"]);
        self.succeed(who, &["sh", "-c", "echo \"$1\" > \"$2/file\"", "sh", name, &folder]);
    }

    /// Waits until somebody can read their file.
    fn can_read(&self, who: Who, name: &str) {
        let Who(uid, pag) = who;
        let file = format!("{SCRATCH}/{name}/file");
        let groups = pag.map_or(uid.to_string(), |pag| format!("{uid},{pag}"));
        let [uid, gid, groups] =
            [format!("--reuid={uid}"), format!("--regid={uid}"), format!("--groups={groups}")];
        assert_eq!(self.machine.until(&["setpriv", &uid, &gid, &groups, "cat", &file]), format!("{name}\n"));
    }
}

/// A crash took /afs from the machine until root ran `umount -l`; `umount -f` of a busy mount did so without a word; and each start of the
/// client took everybody's tokens away.
#[test]
fn afs_and_everybody_s_tokens_are_back_whatever_has_happened_to_the_client() {
    let Some(scene) = Scene::new() else { return };
    let machine = &scene.machine;
    machine.succeed(&["systemctl", "start", "afar-client"]);
    scene.log_in(ALICE, "alice");
    scene.make_folder(ALICE, "alice");
    let [bob, over] = [(), ()].map(|()| scene.session(BOB));
    let _bob_s = scene.process_in(bob, "/");
    for session in [bob, over] {
        scene.log_in(session, "bob");
    }
    scene.make_folder(bob, "bob");
    scene.log_in(CAROL, "alice");
    scene.succeed(CAROL, &["afar", "unlog"]);
    assert_eq!(machine.succeed(&["stat", "-c", "%a %u", "/run/afar/tokens"]), "700 0\n");
    let modes = machine.succeed(&["find", "/run/afar/tokens", "-type", "f", "-printf", "%m %U\\n"]);
    assert!(!modes.is_empty() && modes.lines().all(|line| line == "600 0"), "{modes}");

    let connection = || {
        let mounts = machine.succeed(&["cat", "/proc/self/mountinfo"]);
        let line = mounts.lines().find(|line| line.contains(" /afs ")).unwrap_or_else(|| panic!("{mounts}"));
        line.split(' ').nth(2).unwrap().split_once(':').unwrap().1.to_owned()
    };
    let cut = "somebody has cut its connection to the kernel";
    let kill = || drop(machine.succeed(&["kill", "-KILL", &scene.unit("MainPID")]));
    let abort = || machine.write(&format!("/sys/fs/fuse/connections/{}/abort", connection()), "1");
    let force = || {
        let _busy = scene.process_in(ALICE, &format!("{SCRATCH}/alice"));
        assert!(!machine.run(&["umount", "-f", "/afs"]).status.success(), "it is in use");
    };
    let restart = || drop(machine.succeed(&["systemctl", "restart", "afar-client"]));
    let blows: [(&str, &dyn Fn(), &str); 5] = [
        ("kill -9", &kill, "removed a dead mount"),
        ("abort", &abort, cut),
        ("umount -f", &force, cut),
        ("restart", &restart, "Stopped afar-client.service"),
        ("kill -9 once more", &kill, "removed a dead mount"),
    ];
    for (what, blow, text) in blows {
        println!("{what}");
        let (before, said) = (scene.unit("MainPID"), scene.said(text));
        blow();
        machine.until(&["sh", "-c", "test \"$(systemctl show --value --property MainPID afar-client)\" -gt 1 && test \"$(systemctl show \
            --value --property MainPID afar-client)\" != \"$1\" && systemctl is-active afar-client", "sh", &before]);
        scene.can_read(ALICE, "alice");
        scene.can_read(bob, "bob");
        assert_eq!([ALICE, bob, over, CAROL].map(|who| scene.tokens(who)), [1, 1, 0, 0], "{what}");
        let file = format!("{SCRATCH}/alice/file");
        for other in [CAROL, over, ROOT] {
            assert!(!scene.run(other, &["cat", &file]).status.success(), "{what}: {other:?}");
        }
        assert!(scene.said(text) > said, "{what}: {}", machine.journal(&["--unit=afar-client"]));
    }

    machine.until(&["umount", "/afs"]);
    machine.until(&["sh", "-c", "test \"$(systemctl is-active afar-client)\" = inactive"]);
    assert_eq!(
        (&*scene.unit("SubState"), &*scene.unit("Result")),
        ("dead", "success"),
        "it was not wanted any more"
    );
}

#[test]
fn a_line_of_fstab_mounts_the_cells_as_a_network_file_system() {
    let Some(scene) = Scene::new() else { return };
    let machine = &scene.machine;
    machine.succeed(&["ln", "-s", "../bin/afar", "/usr/sbin/mount.afar"]);
    machine.write(
        "/etc/fstab",
        "/srv/cell/etc /afs afar _netdev,nofail,cache=/var/cache/afar,cache-size=1G 0 0\n",
    );
    machine.succeed(&["systemctl", "daemon-reload"]);
    let of = |property: &str| {
        machine.succeed(&["systemctl", "show", "--value", "--property", property, "afs.mount"])
    };
    assert!(of("WantedBy").contains("remote-fs.target"), "{}", of("WantedBy"));
    let after = of("After");
    assert!(after.contains("network.target") && after.contains("remote-fs-pre.target"), "{after}");
    machine.succeed(&["systemctl", "start", "afs.mount"]);
    assert_eq!(machine.succeed(&["ls", "/afs"]), "afar.local\n");
    machine.succeed(&["sh", "-c", &format!("echo hello > {SCRATCH}/file")]);
    machine.succeed(&["systemctl", "stop", "afs.mount"]);
    machine.until(&["sh", "-c", "! pgrep --full 'afar [m]ount /afs'"]);
    // By hand, too: it comes back when the client is ready, and the client goes on.
    machine.succeed(&["mount", "/afs"]);
    assert_eq!(machine.succeed(&["cat", &format!("{SCRATCH}/file")]), "hello\n");
    machine.succeed(&["umount", "/afs"]);
    let refused = machine.run(&["mount", "-t", "afar", "-o", "ro", "/srv/cell/etc", "/afs"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("the option ro cannot be had"), "{said}");
}
