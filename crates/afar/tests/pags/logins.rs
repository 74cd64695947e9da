//! Logins by PAM, at a terminal and by ssh: each has a PAG and tokens of its own.

use crate::mounted::{self, Process, open, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ALICE, CAROL, DAEMON, Scene, who};

/// A command that finds these services in /etc/pam.d.
pub(crate) fn with_services(services: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", "mount --bind \"$1\" /etc/pam.d; shift; exec \"$@\"", "sh"]);
    command.arg(services).args(words).stdin(Stdio::null()).current_dir("/");
    command
}

/// A login at a terminal, where the shell does what there is to do.
#[test]
fn a_login_at_a_terminal_has_a_pag_and_a_token_of_its_own_until_it_ends() {
    let Some(module) = module() else { return };
    require!(mounted::needs(&["login", "script", "unshare"]));
    let Some(scene) = Scene::new() else { return };
    let alice = who(ALICE, None, "alice");
    scene.log_in(alice);
    let folder = scene.folder_of("alice");
    scene.fill(alice, &folder);
    let services = scene.pam_services(&module);
    fs::copy(services.join("su"), services.join("login")).unwrap();
    let at = |name: &str| scene.cell.folder.join(name);
    fs::write(at("shell"), format!("#!/bin/sh\nid -G; cat '{}/small'\n", folder.display())).unwrap();
    open(&at("shell"));
    let user = format!("carol:x:{CAROL}:{CAROL}::/:{}\n", at("shell").display());
    fs::write(at("passwd"), fs::read_to_string("/etc/passwd").unwrap() + &user).unwrap();
    let start = "mount --bind \"$1\" /etc/passwd; exec script --quiet --command 'login -f carol' /dev/null";
    let words = ["sh", "-euc", start, "sh", &at("passwd").display().to_string()];
    let said = succeed(with_services(&services, &words));
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let groups = lines[0].split(' ').map(|group| group.parse::<u32>().expect(&said));
    let pag = groups.into_iter().find(|group| group >> 24 == 0x41);
    assert_eq!(lines[1..], ["secret"], "{said}");
    assert_eq!(scene.tokens(who(CAROL, Some(pag.expect("a PAG")), "")), 0);
    assert_eq!(scene.shown(who(CAROL, None, ""), &folder), Vec::<&str>::new());
    assert_eq!(scene.tokens(alice), 1, "another's session goes on");
}

/// Debian's ssh server, where `scripts/tools.sh` has unpacked it.
fn ssh_server() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/openssh")
}

#[test]
fn a_login_by_ssh_has_a_pag_and_a_token_of_its_own_until_it_ends() {
    let Some(module) = module() else { return };
    require!(mounted::needs(&["ssh", "ssh-keygen", "unshare"]));
    let Ok(tools) = ssh_server().canonicalize() else {
        return mounted::skip("there is no ssh server: scripts/tools.sh fetches it");
    };
    let Some(scene) = Scene::new() else { return };
    let alice = who(ALICE, None, "alice");
    scene.log_in(alice);
    let folder = scene.folder_of("alice");
    scene.fill(alice, &folder);
    let services = scene.pam_services(&module);
    fs::copy(services.join("su"), services.join("sshd")).unwrap();
    let at = |name: &str| scene.cell.folder.join(name);
    for key in ["host-key", "user-key"] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(key));
        succeed(command);
    }
    let users = "carol:x:60003:60003::/:/bin/sh\nsshd:x:60099:60099::/run/sshd:/usr/sbin/nologin\n";
    fs::write(at("passwd"), fs::read_to_string("/etc/passwd").unwrap() + users).unwrap();
    let address = mounted::own_address();
    let conf = format!(
        "ListenAddress {address}\nPort 2222\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM yes\nPidFile none\n",
        at("host-key").display(),
        at("user-key.pub").display()
    );
    fs::write(at("sshd_config"), conf).unwrap();
    for name in ["run", "run/sshd", "run/afar"] {
        fs::create_dir(at(name)).unwrap();
        open(&at(name));
    }
    // It wants a user and a folder of its own, which this machine may not have.
    const START: &str = "mount --bind /run/afar \"$1/run/afar\"; mount --rbind \"$1/run\" /run; \
        mount --bind \"$1/passwd\" /etc/passwd; exec \"$2\" -D -e -f \"$1/sshd_config\"";
    let mut command = with_services(&services, &["sh", "-euc", START, "sh", &at("").display().to_string()]);
    command.arg(tools.join("usr/sbin/sshd"));
    command.env("LD_LIBRARY_PATH", tools.join("usr/lib/x86_64-linux-gnu"));
    let log = fs::File::create(at("sshd.log")).unwrap();
    let _server = Process::of(command.stdout(Stdio::null()).stderr(log));
    let begin = std::time::Instant::now();
    while std::net::TcpStream::connect((address, 2222)).is_err() {
        assert!(begin.elapsed() < mounted::TIMEOUT, "{}", fs::read_to_string(at("sshd.log")).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut login = Command::new("ssh");
    for option in
        ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"]
    {
        login.args(["-o", option]);
    }
    login.args(["-F", "none", "-p", "2222", "-i"]).arg(at("user-key")).arg(format!("carol@{address}"));
    login.arg(format!("id -G; cat '{}/small'", folder.display())).stdin(Stdio::null());
    let output = mounted::run(login);
    let said = String::from_utf8_lossy(&output.stdout);
    let log = || fs::read_to_string(at("sshd.log")).unwrap();
    let (groups, content) = said.trim().split_once('\n').unwrap_or_else(|| panic!("{output:?} {}", log()));
    let pag = groups.split(' ').map(|group| group.parse::<u32>().unwrap()).find(|group| group >> 24 == 0x41);
    assert_eq!(content, "secret", "{}", log());
    // The connection may end before the server has closed the session.
    let session = who(CAROL, Some(pag.expect("a PAG")), "");
    while scene.tokens(session) != 0 {
        assert!(begin.elapsed() < mounted::TIMEOUT, "{}", log());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(scene.shown(who(CAROL, None, ""), &folder), Vec::<&str>::new());
    assert_eq!(scene.tokens(alice), 1, "another's session goes on");
}

/// The PAM module, if it is built.
pub(crate) fn module() -> Option<PathBuf> {
    let module = Path::new(env!("CARGO_BIN_EXE_afar")).with_file_name("libpam_afar.so");
    if !module.exists() {
        return mounted::skip("the PAM module is not built");
    }
    Some(module)
}

#[test]
fn a_login_keeps_its_pag_when_its_credentials_are_made_anew_and_loses_its_tokens_with_them() {
    let Some(module) = module() else { return };
    require!(mounted::needs(&["pamtester", "unshare"]));
    let Some(scene) = Scene::new() else { return };
    let services = scene.pam_services(&module);
    let login = ["pamtester", "su", "daemon", "setcred(PAM_ESTABLISH_CRED)", "open_session"];
    let again = "setcred(PAM_REINITIALIZE_CRED)";
    succeed(with_services(&services, &[&login[..], &[again]].concat()));
    let logins = scene.logins();
    assert_eq!(logins.len(), 2, "once for both beginnings, and once anew: {logins:?}");
    assert_eq!(logins[0], logins[1]);
    assert_eq!(scene.tokens(who(DAEMON, Some(logins[0]), "")), 1, "the session was not closed");
    succeed(with_services(&services, &[&login[..], &["close_session"]].concat()));
    let logins = scene.logins();
    assert_ne!(logins[1], logins[2], "another login has another PAG");
    assert_eq!(scene.tokens(who(DAEMON, Some(logins[2]), "")), 0);
    assert_eq!(scene.tokens(who(DAEMON, Some(logins[0]), "")), 1);
}
