//! An etcd for tests: so many members on loopback, with all that they have in one folder. Members can be killed, stopped and started again
//! one by one. Dropped, they end and the folder is removed.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::real::folder::Folder;
use crate::real::process::{Process, find_in};
use crate::skipped::skip_this;

/// Where its programs may be that ordinary users do not have in their path.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How long it may take to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

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

/// Tells why there cannot be an etcd on this machine, if so.
///
/// # Errors
///
/// What is missing.
pub fn available() -> Result<(), String> {
    match ["etcd", "etcdctl"].iter().find(|program| find_in(PATH, program).is_none()) {
        None => Ok(()),
        Some(program) => {
            Err(format!("there is no {program}: Debian's etcd-server and etcd-client have them"))
        }
    }
}

/// Returns whether there can be one. If not, the test that asks is counted as skipped.
pub fn is_here() -> bool {
    available().map_or_else(|reason| skip_this(&reason), |()| true)
}

/// An etcd of some members.
#[derive(Debug)]
pub struct Etcd {
    /// The ports for clients and for the other members.
    ports: Vec<(u16, u16)>,
    // Before the folder that they write in, and the networks that they are in.
    members: Vec<Option<Process>>,
    folder: Folder,
    /// Each member's own network, if they have some.
    networks: Option<Networks>,
    is_secret: bool,
    /// The cost of a password's check, and the seconds for which tokens are good, if tokens are signed.
    tokens: Option<(u8, u32)>,
}

impl Etcd {
    /// Starts so many members, and waits until they have a leader. `name` is part of the folder's name.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn start(name: &str, members: usize) -> Self {
        Self::start_as(name, members, false, None, None)
    }

    /// The same for clients with certificates, which are `ca.pem`, `client.pem` and `client.key` in the folder. openssl makes
    /// them.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn start_with_certificates(name: &str, members: usize) -> Self {
        Self::start_as(name, members, true, None, None)
    }

    /// The same for clients with passwords, whose tokens are signed (JWT) and good for `seconds`. openssl makes the keys. A password is
    /// checked with this cost of bcrypt's: etcd's own is 10, each more takes twice as long.
    ///
    /// # Panics
    ///
    /// If it does not come to that.
    pub fn start_with_signed_tokens(name: &str, members: usize, cost: u8, seconds: u32) -> Self {
        Self::start_as(name, members, false, Some((cost, seconds)), None)
    }

    /// The same with a network for each member, so that members can be [cut from each other](Self::cut). For root.
    ///
    /// # Errors
    ///
    /// Why there can be no networks here.
    ///
    /// # Panics
    ///
    /// If it does not come to a leader.
    pub fn start_apart(name: &str, members: usize) -> Result<Self, String> {
        let networks = Networks::new(members)?;
        Ok(Self::start_as(name, members, false, None, Some(networks)))
    }

    fn start_as(
        name: &str,
        members: usize,
        is_secret: bool,
        tokens: Option<(u8, u32)>,
        networks: Option<Networks>,
    ) -> Self {
        let folder = Folder::new(&format!("etcd-{name}"));
        for commands in is_secret.then_some(CERTIFICATES).into_iter().chain(tokens.map(|_| TOKEN_KEYS)) {
            make_keys(&folder, commands);
        }
        // All are bound before one is let go, so that none is given twice.
        let bound: Vec<_> = (0..2 * members).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
        let port = |index: usize| bound[index].as_ref().expect("a port").local_addr().expect("bound").port();
        let ports: Vec<_> = (0..members).map(|member| (port(2 * member), port(2 * member + 1))).collect();
        drop(bound);
        let stopped = (0..members).map(|_| None).collect();
        let mut etcd = Self { folder, ports, members: stopped, networks, is_secret, tokens };
        (0..members).for_each(|member| etcd.restart(member));
        let begun = Instant::now();
        while !etcd.control(&["endpoint", "health"]).0 {
            assert!(
                begun.elapsed() < TIMEOUT,
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
        let members = self.ports.iter().enumerate();
        let url = |(member, (port, _)): (usize, &(u16, u16))| {
            format!("{}://{}:{port}", self.scheme(), self.host(member))
        };
        members.map(url).collect()
    }

    /// Where a member is.
    fn host(&self, member: usize) -> Ipv4Addr {
        self.networks.as_ref().map_or(Ipv4Addr::LOCALHOST, |networks| networks.address(member))
    }

    /// Has nothing come through any more from one member to another, or lets it. Clients reach both.
    ///
    /// # Panics
    ///
    /// If the members have no networks of their own.
    pub fn cut(&self, from: usize, to: usize, is_cut: bool) {
        self.networks.as_ref().expect("networks of their own").cut(from, to, is_cut);
    }

    /// Lets so many kilobits a second leave a member's network, and keeps what comes faster for up to a second; or lets all leave.
    ///
    /// # Errors
    ///
    /// Why that cannot be done here.
    ///
    /// # Panics
    ///
    /// If the members have no networks of their own.
    pub fn slow_network(&self, member: usize, kilobits: Option<u32>) -> Result<(), String> {
        self.networks.as_ref().expect("networks of their own").slow(member, kilobits)
    }

    /// Has each sync of a member's disk take so much longer, for as long as what is returned is there; strace does it.
    ///
    /// # Errors
    ///
    /// Why that cannot be done here.
    ///
    /// # Panics
    ///
    /// If the member does not run.
    pub fn slow_disk(&self, member: usize, delay: Duration) -> Result<SlowDisk, String> {
        let runs = self.members[member].as_ref().expect("it runs");
        let inject = format!("inject=fsync,fdatasync:delay_enter={}", delay.as_micros());
        let mut strace = Command::new("strace");
        strace.args(["-f", "-p", &runs.pid().to_string(), "-e", "trace=fsync,fdatasync", "-e", &inject]);
        let out = self.folder.join(format!("strace{member}"));
        // It says more with each thread that begins, and a pipe that nobody reads would end it.
        let log = self.folder.join(format!("strace{member}.log"));
        let stderr = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        strace.arg("-o").arg(&out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let mut tracing = strace.spawn().map_err(|error| format!("strace: {error}"))?;
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("attached") {
                return Ok(SlowDisk { tracing, out });
            }
            if tracing.try_wait().map_err(|error| error.to_string())?.is_some() {
                return Err(format!("strace: {}", said.trim()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A member's port for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.ports[member].0
    }

    /// Makes another authority, and certificates of members and clients that it signs, in the place of those in the folder. A member
    /// knows them when it is started again.
    ///
    /// # Panics
    ///
    /// If openssl cannot make them.
    pub fn renew_certificates(&self) {
        make_keys(&self.folder, CERTIFICATES);
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
            .map(|(n, ports)| format!("m{n}=http://{}:{}", self.host(n), ports.1))
            .collect();
        let log = File::options().create(true).append(true).open(self.folder.join(format!("m{member}.log")));
        let log = log.expect("a log");
        let host = self.host(member);
        let url = format!("{}://{host}:{client}", self.scheme());
        let peer = format!("http://{host}:{peer}");
        let data = self.folder.join(format!("m{member}"));
        let mut command = match &self.networks {
            None => Command::new("etcd"),
            // Which becomes it.
            Some(networks) => networks.command(member, "etcd"),
        };
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
        if let Some((cost, seconds)) = self.tokens {
            command.args(["--bcrypt-cost", &cost.to_string()]);
            let key = |name: &str| self.folder.join(name).display().to_string();
            let keys = format!("pub-key={},priv-key={}", key("jwt.pub"), key("jwt.key"));
            command.args(["--auth-token", &format!("jwt,{keys},sign-method=RS256,ttl={seconds}s")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[member] = Some(Process::of(&mut command));
    }

    /// Waits until a member takes connections again.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_for(&self, member: usize) {
        let begun = Instant::now();
        while TcpStream::connect((self.host(member), self.port(member))).is_err() {
            assert!(begun.elapsed() < TIMEOUT, "member {member} does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills a member as kill -9 does.
    pub fn kill(&mut self, member: usize) {
        self.members[member] = None;
    }

    /// Stops a member as SIGSTOP does, or lets it go on.
    ///
    /// # Panics
    ///
    /// If it does not run.
    pub fn stop(&self, member: usize, is_stopped: bool) {
        let member = self.members[member].as_ref().expect("it runs");
        member.signal(if is_stopped { "STOP" } else { "CONT" });
    }

    /// The member that leads, if one does.
    pub fn leader(&self) -> Option<usize> {
        (0..self.ports.len()).filter(|member| self.members[*member].is_some()).find(|member| {
            let endpoint = format!("http://{}:{}", self.host(*member), self.port(*member));
            let (_, status) =
                self.run(&["--endpoints", &endpoint, "--command-timeout=1s", "endpoint", "status"]);
            // Address, id, version, size, whether it leads, ...
            status.split(", ").nth(4) == Some("true")
        })
    }

    /// Runs etcdctl for all members: whether it succeeded, and what it printed.
    pub fn control(&self, arguments: &[&str]) -> (bool, String) {
        let endpoints = self.endpoints().join(",");
        self.run(&[&["--endpoints", &endpoints, "--command-timeout", "60s"][..], arguments].concat())
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

fn make_keys(folder: &Path, commands: &str) {
    let script = format!("set -e; cd '{}'; {commands}", folder.display());
    let made = Command::new("sh").arg("-c").arg(script).output().expect("a shell");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A member's disk that is slow. Dropped, it is as fast as before.
#[derive(Debug)]
pub struct SlowDisk {
    tracing: Child,
    out: PathBuf,
}

impl SlowDisk {
    /// The number of syncs that were slow so far.
    ///
    /// # Panics
    ///
    /// If what makes them slow has ended.
    pub fn syncs(&mut self) -> usize {
        assert!(self.tracing.try_wait().expect("a child").is_none(), "strace has ended");
        fs::read_to_string(&self.out)
            .map_or(0, |text| text.lines().filter(|line| line.contains("DELAYED")).count())
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // It has to let go of what it traces.
        let _ = Command::new("kill").args(["-INT", &self.tracing.id().to_string()]).status();
        let _ = self.tracing.wait();
    }
}

/// A network for each member: a namespace with an interface at a bridge of this machine, which reaches all of them.
#[derive(Debug)]
struct Networks {
    name: String,
    /// The first three bytes of all addresses.
    net: [u8; 3],
    members: usize,
}

impl Networks {
    fn new(members: usize) -> Result<Self, String> {
        let process = std::process::id();
        // One of some thousand networks of 198.18.0.0/15, which is for tests.
        let [.., high, low] = process.to_be_bytes();
        let networks = Self { name: format!("afe{process}"), net: [198, 18 | high & 1, low], members };
        let Self { name, .. } = &networks;
        let host = networks.last(254);
        let mut script = format!(
            "set -e; ip link add {name} type bridge; ip addr add {host}/24 dev {name}; ip link set {name} up\n"
        );
        for member in 0..members {
            let address = networks.address(member);
            let space = format!("{name}-{member}");
            script += &format!(
                "ip netns add {space}; ip link add {name}v{member} type veth peer name eth0 netns {space}\n\
                 ip link set {name}v{member} master {name} up; ip -n {space} addr add {address}/24 dev eth0\n\
                 ip -n {space} link set eth0 up; ip -n {space} link set lo up\n"
            );
        }
        networks.run(&script).map(|()| networks)
    }

    fn last(&self, byte: u8) -> Ipv4Addr {
        let [a, b, c] = self.net;
        Ipv4Addr::new(a, b, c, byte)
    }

    fn address(&self, member: usize) -> Ipv4Addr {
        self.last(member as u8 + 1)
    }

    fn command(&self, member: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{member}", self.name), program]);
        command
    }

    /// A route to nowhere takes what one member sends to another.
    fn cut(&self, from: usize, to: usize, is_cut: bool) {
        let verb = if is_cut { "replace" } else { "del" };
        let route = format!("ip -n {}-{from} route {verb} blackhole {}/32", self.name, self.address(to));
        self.run(&route).expect("a route");
    }

    fn slow(&self, member: usize, kilobits: Option<u32>) -> Result<(), String> {
        let queue = format!("{}-{member} qdisc", self.name);
        self.run(&match kilobits {
            Some(rate) => {
                format!("tc -n {queue} replace dev eth0 root tbf rate {rate}kbit burst 4kb latency 1s")
            }
            None => format!("tc -n {queue} del dev eth0 root"),
        })
    }

    fn run(&self, script: &str) -> Result<(), String> {
        let output = Command::new("sh").env("PATH", PATH).arg("-c").arg(script).output();
        let output = output.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for member in 0..self.members {
            let _ = self.run(&format!("ip netns del {}-{member}", self.name));
        }
        let _ = self.run(&format!("ip link del {}", self.name));
    }
}
