//! The commands of docs/small-cell.md and of the README, as they are written there: a server behind a router that forwards its ports, and a
//! machine elsewhere, for ordinary users. What joining is, is proved in `join.rs`.

use crate::mounted::{self, Folder, Process, can_mount, is_root, needs};
use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The user nobody, whom every system has.
const NOBODY: u32 = 65534;

/// The addresses of the page: the server's own, and the router's.
const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 10);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

/// The ports that everybody needs, as the page says.
const PORTS: [u16; 3] = [7000, 7002, 7003];

/// Longest datagram.
const DATAGRAM_MAX: usize = 65_535;

/// How often the router looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A router: it forwards its ports to the server, which sees each caller at a port of the router's.
struct Router(Arc<AtomicBool>);

impl Router {
    fn start(at: &linkem::Namespace) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        for port in PORTS {
            let ends = Arc::clone(&ends);
            // Threads stay in the namespace of whoever starts them.
            at.run_in(move || drop(thread::spawn(move || forward(port, &ends)))).unwrap();
        }
        Self(ends)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn forward(port: u16, ends: &Arc<AtomicBool>) {
    let outside = Arc::new(UdpSocket::bind((OUTSIDE, port)).unwrap());
    outside.set_read_timeout(Some(LOOK_EVERY)).unwrap();
    let mut mappings: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let mut datagram = vec![0; DATAGRAM_MAX];
    while !ends.load(Ordering::Relaxed) {
        let Ok((length, from)) = outside.recv_from(&mut datagram) else { continue };
        let inside = mappings.entry(from).or_insert_with(|| {
            let inside = Arc::new(UdpSocket::bind((OUTSIDE, 0)).unwrap());
            inside.connect((INSIDE, port)).unwrap();
            inside.set_read_timeout(Some(LOOK_EVERY)).unwrap();
            let (back, outside, ends) = (Arc::clone(&inside), Arc::clone(&outside), Arc::clone(ends));
            thread::spawn(move || {
                let mut datagram = vec![0; DATAGRAM_MAX];
                while !ends.load(Ordering::Relaxed) {
                    let Ok(length) = back.recv(&mut datagram) else { continue };
                    let _ = outside.send_to(&datagram[..length], from);
                }
            });
            inside
        });
        let _ = inside.send(&datagram[..length]);
    }
}

/// A machine, and its user's home folder.
struct Machine<'a> {
    at: &'a linkem::Namespace,
    home: Folder,
}

impl<'a> Machine<'a> {
    fn new(at: &'a linkem::Namespace, name: &str) -> Self {
        let home = Folder::new(name);
        fs::set_permissions(home.join("."), Permissions::from_mode(0o755)).unwrap();
        chown(home.join("."), Some(NOBODY), Some(NOBODY)).unwrap();
        fs::copy(repository().join("README.md"), home.join("README.md")).unwrap();
        Self { at, home }
    }

    /// A command of the page, as the user types it into a shell.
    fn command(&self, program: &Path, text: &str) -> Command {
        let text = format!("exec {}", text.replace("target/release/afar", program.to_str().unwrap()));
        let mut command = self.at.command("setpriv");
        command.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--",
            "bash",
            "-c",
        ]);
        command.arg(text).current_dir(self.home.join("."));
        command.env("HOME", self.home.join(".").canonicalize().unwrap());
        for name in ["XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "NOTIFY_SOCKET", "SUDO_UID"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, program: &Path, text: &str) -> Output {
        mounted::run(self.command(program, text))
    }

    fn file(&self, path: &str) -> PathBuf {
        self.home.join("afs/home.example").join(path)
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The indented lines behind some words of a page, up to the next heading or bold line, without their comments.
fn commands(page: &str, begin: &str) -> Vec<String> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let lines = text.lines().skip_while(|line| !line.starts_with(begin)).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('#') && !line.starts_with("**"));
    let commands = lines.filter_map(|line| line.strip_prefix("    "));
    commands.map(|line| line.split("  #").next().unwrap().trim_end().to_owned()).collect()
}

#[test]
fn six_commands_lead_from_two_fresh_machines_to_a_file_that_both_see() {
    let all = commands("docs/small-cell.md", "## From `make`");
    assert_eq!(all, commands("README.md", "**Run a small cell over the internet"), "both pages say the same");
    let [make, up, invite, make_again, join, copy] = &all[..] else { panic!("{all:?}") };
    assert_eq!([make, make_again], ["make", "make"]);
    require!(can_mount() && needs(&["setpriv", "fusermount3", "ip"]));
    if !is_root() {
        return mounted::skip("only root may make network namespaces");
    }
    if let Err(why) = linkem::available() {
        return mounted::skip(&why);
    }
    let (elsewhere, here) = ("203.0.113.77/24", format!("{OUTSIDE}/24"));
    let link =
        linkem::Link::builder().rtt(Duration::from_millis(12)).addresses(elsewhere, &here).start().unwrap();
    let mut own = link.b().command("ip");
    assert!(own.args(["addr", "add", &format!("{INSIDE}/32"), "dev", "lo"]).status().unwrap().success());
    let (server, alice) = (Machine::new(link.b(), "small-server"), Machine::new(link.a(), "small-alice"));
    let program = server.home.join("afar");
    mounted::copy_program(&program);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();

    let servers = Process::start(server.command(&program, up), Some(server.home.join("afs")));
    assert!(servers.ready.starts_with("ready cell=home.example mount="), "{}", servers.ready);
    let invited = server.run(&program, invite);
    let line = String::from_utf8(invited.stdout).unwrap();
    let said = String::from_utf8_lossy(&invited.stderr);
    assert!(line.starts_with("afar1/home.example/203.0.113.5/"), "{line}{said}");

    let _router = Router::start(link.b());
    let pasted = alice.home.write("pasted", &line);
    let mut joining = alice.command(&program, join);
    joining.stdin(File::open(&pasted).unwrap());
    let mounted = Process::saying(&mut joining, "this machine is device 1 of alice in home.example");
    let mounted = mounted.unwrap_or_else(|problem| panic!("{problem}")).mounting(alice.home.join("afs"));
    assert!(mounted.next_line().starts_with("ready cell=home.example mount="));
    let copied = alice.run(&program, copy);
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    let file = "user/alice/README.md";
    let expected = fs::read_to_string(repository().join("README.md")).unwrap();
    // The mounts are for their users alone: this is root.
    let seen = |machine: &Machine<'_>, path: &str| {
        let output = machine.run(&program, &format!("cat {}", machine.file(path).display()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(seen(&server, file), expected);

    // The other way round, also for what alice's machine has in its cache: the server's message gets through the router.
    let write = |machine: &Machine<'_>, path: &str, text: &str| {
        let output =
            machine.run(&program, &format!("bash -c 'echo {text} > {}'", machine.file(path).display()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    assert_eq!(seen(&alice, file), expected);
    write(&server, file, "new");
    until!(seen(&alice, file) == "new\n", "it shows {:?}", seen(&alice, file));

    // Strangers who know the cell and its address read nothing, and write nowhere.
    let config = alice.home.join(".local/state/afar/joined/home.example");
    let stranger = "mkdir ~/etc && cp CONFIG/ThisCell CONFIG/CellServDB ~/etc/";
    let stranger = stranger.replace("CONFIG", config.to_str().unwrap());
    assert!(alice.run(&program, &format!("bash -c '{stranger}'")).status.success());
    let mut mount =
        alice.command(&program, "target/release/afar mount ~/stranger --config ~/etc --cache ~/other");
    mount.stderr(Stdio::inherit());
    let strangers = Process::start(mount, Some(alice.home.join("stranger")));
    for tried in [
        "ls ~/stranger/home.example",
        "ls ~/stranger/home.example/scratch",
        "touch ~/stranger/home.example/scratch/x",
    ] {
        let output = alice.run(&program, tried);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("Permission denied"), "{tried}: {said}");
    }
    assert!(strangers.stop().success() && mounted.stop().success() && servers.stop().success());
}
