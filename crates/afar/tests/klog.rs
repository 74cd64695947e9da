//! Passwords: `klog` at a mount, and a cell of `afar up` that has a realm of its own.

use crate::mounted::realm::{ALICE, BOB, Scene, fail};
use crate::mounted::{self, Folder, Process, can_mount, is_root, own_address, succeed};
use afs_lab::peers::kdc::{self, PASSWORD};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn klog_takes_a_password_or_a_keytab_and_leaves_no_ticket_behind() {
    let Some(scene) = Scene::new() else { return };
    let password = scene.realm.join("given");
    fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let mut command = scene.afar(ALICE, &["klog", "-principal", "alice", "-pipe"]);
    command.stdin(fs::File::open(&password).unwrap());
    succeed(command);
    assert_eq!(scene.tokens(ALICE).len(), 1);
    assert!(!scene.cache(ALICE).exists(), "the tickets were in memory");
    scene.run(ALICE, &["unlog"]);
    let wrong = ["klog", "-principal", "alice", "-password", "another", "-cell", "afar.local"];
    let said = fail(scene.afar(ALICE, &wrong), 1);
    assert!(said.contains("Unable to authenticate in realm AFAR.LOCAL"), "{said}");
    let keytab = scene.realm.join("keytab-of-bob");
    scene.kdc.admin(&format!("ktadd -k {} -norandkey bob", keytab.display())).unwrap();
    chown(&keytab, Some(BOB.uid), Some(BOB.uid)).unwrap();
    scene.run(BOB, &["klog", "-principal", "bob", "-keytab", &keytab.display().to_string()]);
    assert_eq!(scene.tokens(BOB).len(), 1);
    assert!(scene.tokens(ALICE).is_empty());
}

#[test]
fn a_password_that_is_not_given_after_all_leaves_the_terminal_as_it_was() {
    let Some(scene) = Scene::new() else { return };
    let login = scene.afar(ALICE, &["klog", "-principal", "alice"]);
    // `script` (bsdutils) gives it a terminal, which answers the question with Ctrl-C.
    let words = [login.get_program()].into_iter().chain(login.get_args());
    let line: String = words.map(|word| format!("'{}' ", word.display())).collect();
    let shell = format!(
        "trap : INT; {line}; status=$?; trap '' INT; state=$(stty -a | tr ' ;' '\\n\\n' | grep -x -e '-*echo'); \
         stty -isig; echo \"status=$status $state\""
    );
    // Whoever runs the tests in the background ignores Ctrl-C, and so do their children.
    let mut terminal = Command::new("env");
    terminal.args(["--default-signal=INT", "script", "--quiet", "--command", &shell, "/dev/null"]);
    terminal.envs(login.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = terminal.stdout.take().unwrap();
    let mut said = Vec::new();
    let mut piece = [0; 256];
    while !String::from_utf8_lossy(&said).contains("Password for alice@AFAR.LOCAL") {
        let length = output.read(&mut piece).unwrap();
        assert_ne!(length, 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&piece[..length]);
    }
    // One that comes just before the library reads is noted by it and wakes nobody, as with its own programs: a user does it again.
    let mut keyboard = terminal.stdin.take().unwrap();
    let user = std::thread::spawn(move || {
        while keyboard.write_all(b"\x03").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    output.read_to_end(&mut said).unwrap();
    user.join().unwrap();
    mounted::wait(&mut terminal);
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("status=1 echo"), "{said}");
}

#[test]
fn a_newcomer_logs_in_to_a_cell_that_has_its_own_realm() {
    require!(can_mount());
    if let Err(why) = kdc::available() {
        return mounted::skip(&why);
    }
    let folder = Folder::new("own-realm");
    let address = own_address();
    for turn in 0..3 {
        let mount = folder.join("mnt");
        let mut command = mounted::up(&folder, address, &["--realm", "--mount"]);
        command.arg(&mount);
        let mut process = Process::start(command, Some(mount.clone()));
        let realm = folder.join("state/realm");
        let user =
            if is_root() { "admin".to_owned() } else { mounted::script(&mount, "id -un").trim().to_owned() };
        let command = |program: &Path| {
            let mut command = Command::new(program);
            command.env("KRB5_CONFIG", realm.join("krb5.conf"));
            command.env("KRB5CCNAME", format!("FILE:{}", folder.join("ccache").display()));
            command.current_dir(&mount).stdin(Stdio::null());
            command
        };
        let mut kinit = command(Path::new("kinit"));
        kinit.arg(&user).stdin(fs::File::open(realm.join("password")).unwrap());
        succeed(kinit);
        let afar = |words: &[&str]| {
            let mut command = command(Path::new(env!("CARGO_BIN_EXE_afar")));
            command.args(words);
            succeed(command)
        };
        afar(&["aklog"]);
        assert!(afar(&["tokens"]).contains("(AFS ID "), "turn {turn}");
        fs::write(mount.join(format!("afar.local/user/{user}/file")), "mine").unwrap();
        if turn == 1 {
            // Its KDC lived on, and the next start found the port taken.
            process.kill();
            continue;
        }
        assert!(process.stop().success());
        assert!(std::net::TcpStream::connect((address, 7088)).is_err(), "the KDC ends with the cell");
    }
}
