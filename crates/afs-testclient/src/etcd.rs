//! An etcd for tests: so many members on loopback, with all that they have in one folder. Members can be killed, stopped and started again
//! one by one. Dropped, they end and the folder is removed.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where its programs may be that ordinary users do not have in their path.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The files of a member's and a client's certificates.
const CERTIFICATES: &str = "
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.pem
    printf 'subjectAltName=IP:127.0.0.1\\n' > names
    for who in server client; do
        openssl req -newkey rsa:2048 -nodes -subj /CN=$who -keyout $who.key -out $who.csr
        openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out $who.pem
    done";

/// The keys with which it signs tokens.
const TOKEN_KEYS: &str = "
    openssl genrsa -out jwt.key 2048
    openssl rsa -in jwt.key -pubout -out jwt.pub";

/// Why there cannot be an etcd on this machine, if so.
///
/// # Errors
///
/// What is missing.
pub fn available() -> Result<(), String> {
    let is_there = |program: &&str| std::env::split_paths(PATH).any(|folder| folder.join(program).exists());
    match ["etcd", "etcdctl"].iter().find(|program| !is_there(program)) {
        None => Ok(()),
        Some(program) => {
            Err(format!("there is no {program}: Debian's etcd-server and etcd-client have them"))
        }
    }
}

/// An etcd of some members.
#[derive(Debug)]
pub struct Etcd {
    folder: PathBuf,
    /// The ports for clients and for the other members.
    ports: Vec<(u16, u16)>,
    members: Vec<Option<Child>>,
    is_secret: bool,
    signs_tokens: bool,
}

impl Etcd {
    /// Starts so many members, and waits until they have a leader. `name` is part of the folder's name.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn start(name: &str, members: usize) -> Self {
        Self::start_as(name, members, false, false)
    }

    /// The same for clients with certificates, which are `ca.pem`, `client.pem` and `client.key` in the folder. openssl makes
    /// them.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn start_with_certificates(name: &str, members: usize) -> Self {
        Self::start_as(name, members, true, false)
    }

    /// The same for clients with passwords, whose tokens are signed (JWT). openssl makes the keys.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn start_with_signed_tokens(name: &str, members: usize) -> Self {
        Self::start_as(name, members, false, true)
    }

    fn start_as(name: &str, members: usize, is_secret: bool, signs_tokens: bool) -> Self {
        let folder = std::env::temp_dir().join(format!("afar-etcd-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder for etcd");
        for commands in
            is_secret.then_some(CERTIFICATES).into_iter().chain(signs_tokens.then_some(TOKEN_KEYS))
        {
            let script = format!("set -e; cd '{}'; {commands}", folder.display());
            let made = Command::new("sh").arg("-c").arg(script).output().expect("a shell");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        // All are bound before one is let go, so that none is given twice.
        let bound: Vec<_> = (0..2 * members).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
        let port = |index: usize| bound[index].as_ref().expect("a port").local_addr().expect("bound").port();
        let ports: Vec<_> = (0..members).map(|member| (port(2 * member), port(2 * member + 1))).collect();
        drop(bound);
        let stopped = (0..members).map(|_| None).collect();
        let mut etcd = Self { folder, ports, members: stopped, is_secret, signs_tokens };
        (0..members).for_each(|member| etcd.restart(member));
        let begun = Instant::now();
        while !etcd.control(&["endpoint", "health"]).0 {
            assert!(
                begun.elapsed() < PATIENCE,
                "etcd has no leader: {}",
                etcd.control(&["endpoint", "health"]).1
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        etcd
    }

    /// The folder with all that belongs to it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn scheme(&self) -> &str {
        if self.is_secret { "https" } else { "http" }
    }

    /// The addresses of the members.
    pub fn endpoints(&self) -> Vec<String> {
        self.ports.iter().map(|(port, _)| format!("{}://127.0.0.1:{port}", self.scheme())).collect()
    }

    /// A member's port for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.ports[member].0
    }

    /// Starts a member that does not run.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    pub fn restart(&mut self, member: usize) {
        let (client, peer) = self.ports[member];
        let cluster: Vec<_> = self
            .ports
            .iter()
            .enumerate()
            .map(|(n, ports)| format!("m{n}=http://127.0.0.1:{}", ports.1))
            .collect();
        let log = File::options().create(true).append(true).open(self.folder.join(format!("m{member}.log")));
        let log = log.expect("a log");
        let url = format!("{}://127.0.0.1:{client}", self.scheme());
        let peer = format!("http://127.0.0.1:{peer}");
        let data = self.folder.join(format!("m{member}"));
        let mut command = Command::new("etcd");
        command.env("PATH", PATH).args(["--name", &format!("m{member}"), "--data-dir"]).arg(data);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
        if self.is_secret {
            for (option, file) in
                [("--trusted-ca-file", "ca.pem"), ("--cert-file", "server.pem"), ("--key-file", "server.key")]
            {
                command.arg(option).arg(self.folder.join(file));
            }
            command.arg("--client-cert-auth");
        }
        if self.signs_tokens {
            let key = |name: &str| self.folder.join(name).display().to_string();
            let keys = format!("pub-key={},priv-key={}", key("jwt.pub"), key("jwt.key"));
            command.args(["--auth-token", &format!("jwt,{keys},sign-method=RS256,ttl=10m")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[member] = Some(command.spawn().expect("etcd starts"));
    }

    /// Waits until a member takes connections again.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_for(&self, member: usize) {
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port(member))).is_err() {
            assert!(begun.elapsed() < PATIENCE, "member {member} does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills a member as kill -9 does.
    pub fn kill(&mut self, member: usize) {
        if let Some(mut child) = self.members[member].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops a member as SIGSTOP does, or lets it go on.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn stop(&self, member: usize, is_stopped: bool) {
        let child = self.members[member].as_ref().expect("it runs");
        let signal = if is_stopped { "-STOP" } else { "-CONT" };
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "a signal for etcd");
    }

    /// Which member leads, if one does.
    pub fn leader(&self) -> Option<usize> {
        (0..self.ports.len()).filter(|member| self.members[*member].is_some()).find(|member| {
            let endpoint = format!("http://127.0.0.1:{}", self.port(*member));
            let (_, status) =
                self.run(&["--endpoints", &endpoint, "--command-timeout=1s", "endpoint", "status"]);
            // Address, id, version, size, whether it leads, ...
            status.split(", ").nth(4) == Some("true")
        })
    }

    /// Runs etcdctl for all members: whether it succeeded, and what it printed.
    pub fn control(&self, arguments: &[&str]) -> (bool, String) {
        let endpoints = self.endpoints().join(",");
        self.run(&[&["--endpoints", &endpoints][..], arguments].concat())
    }

    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new("etcdctl");
        command.env("PATH", PATH).env("ETCDCTL_API", "3");
        if self.is_secret {
            for (option, file) in [("--cacert", "ca.pem"), ("--cert", "client.pem"), ("--key", "client.key")]
            {
                command.arg(option).arg(self.folder.join(file));
            }
        }
        let output = command.args(arguments).output().expect("etcdctl runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Says that a test cannot run here, where `make test` counts it.
///
/// # Panics
///
/// If the list of such tests cannot be written.
pub fn skip(test: &str, reason: &str) {
    println!("SKIPPED: {reason}");
    if let Some(log) = std::env::var_os("AFAR_SKIP_LOG") {
        let file = File::options().append(true).create(true).open(log);
        file.and_then(|mut file| file.write_all(format!("{test}: {reason}\n").as_bytes()))
            .expect("the list of skipped tests");
    }
}
