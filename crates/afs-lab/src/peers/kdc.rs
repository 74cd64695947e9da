//! A Kerberos realm for tests: MIT's KDC, or Heimdal's, on an address of the test's own, unprivileged, with all that it has in one folder.
//! Dropped, the KDC ends; the folder is the caller's. Tickets are asked for by MIT's `kinit` from both.

mod heimdal;

pub use heimdal::available as heimdal_available;

use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::real::process::{Process, find_in};

/// Where its programs may be that ordinary users do not have in their path.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The port that it listens on: not Kerberos's own, which takes a privilege.
const PORT: u16 = 8888;

/// How long it may take to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A password that all users here have.
pub const PASSWORD: &str = "a-password";

/// The programs that a realm needs; else a test skips itself.
pub const PROGRAMS: [&str; 5] = ["krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist"];

/// Tells why there cannot be a realm on this machine, if so.
///
/// # Errors
///
/// What is missing.
pub fn available() -> Result<(), String> {
    match PROGRAMS.iter().find(|program| find_in(PATH, program).is_none()) {
        None => Ok(()),
        Some(program) => Err(format!(
            "there is no {program}: Debian's krb5-kdc, krb5-admin-server and krb5-user have them"
        )),
    }
}

/// The properties of a realm.
#[derive(Debug, Clone)]
pub struct Realm<'a> {
    /// Its name, such as `LAB.TEST`.
    pub name: &'a str,
    /// The address of its KDC.
    pub address: Ipv4Addr,
    /// More lines of krb5.conf.
    pub more: &'a str,
}

/// A realm with its KDC.
#[derive(Debug)]
pub struct Kdc {
    name: String,
    address: Ipv4Addr,
    folder: PathBuf,
    process: Option<Process>,
    /// Words in front of the KDC's command, such as those of `ip netns exec`.
    wrapper: Vec<String>,
    /// Where Heimdal's programs are, if it is Heimdal's.
    heimdal: Option<PathBuf>,
}

impl Kdc {
    /// Makes a realm in a folder, which must exist, and starts its KDC.
    ///
    /// # Errors
    ///
    /// What of it fails, with what the program said.
    pub fn start(folder: &Path, realm: &Realm<'_>) -> Result<Self, String> {
        Self::start_in(folder, realm, &[])
    }

    /// The same, where the KDC is started by other words, such as `ip netns exec NAME`.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_in(folder: &Path, realm: &Realm<'_>, wrapper: &[&str]) -> Result<Self, String> {
        let Realm { name, address, more } = realm;
        let at = folder.display();
        let conf = format!(
            "[libdefaults]\n default_realm = {name}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n \
             dns_canonicalize_hostname = false\n default_ccache_name = FILE:{at}/ccache\n{more}\n\
             [realms]\n {name} = {{\n  kdc = {address}:{PORT}\n }}\n[domain_realm]\n"
        );
        let kdc_conf = format!(
            "[kdcdefaults]\n kdc_listen = {address}:{PORT}\n kdc_tcp_listen = {address}:{PORT}\n[realms]\n {name} = {{\n  \
             database_name = {at}/principal\n  key_stash_file = {at}/stash\n  acl_file = {at}/acl\n  max_life = 10h\n  \
             max_renewable_life = 7d\n  master_key_type = aes256-cts\n  \
             supported_enctypes = aes256-cts:normal aes128-cts:normal aes256-sha2:normal\n }}\n\
             [logging]\n kdc = FILE:{at}/kdc.log\n default = FILE:{at}/kdc.log\n"
        );
        let write = |file: &str, text: &str| {
            fs::write(folder.join(file), text).map_err(|error| format!("{at}/{file}: {error}"))
        };
        write("krb5.conf", &conf)?;
        write("kdc.conf", &kdc_conf)?;
        write("acl", "")?;
        let wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        let (name, folder) = ((*name).to_owned(), folder.to_owned());
        let mut kdc = Self { name, address: *address, folder, process: None, wrapper, heimdal: None };
        run(kdc.command("kdb5_util").args(["create", "-s", "-P", "the-master", "-r"]).arg(&kdc.name))?;
        kdc.begin()?;
        Ok(kdc)
    }

    /// Starts the KDC, if it does not run.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn begin(&mut self) -> Result<(), String> {
        if self.process.is_some() {
            return Ok(());
        }
        let mut command = match (&self.heimdal, self.wrapper.split_first()) {
            (Some(programs), _) => heimdal::kdc(self, programs),
            (None, None) => self.command("krb5kdc"),
            (None, Some((first, rest))) => {
                let mut command = self.command(first);
                command.args(rest).arg("krb5kdc");
                command
            }
        };
        if self.heimdal.is_none() {
            command.arg("-n");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(Process::spawn(&mut command)?);
        let until = Instant::now() + TIMEOUT;
        while !self.answers() {
            if Instant::now() > until {
                let log = fs::read_to_string(self.folder.join("kdc.log")).unwrap_or_default();
                return Err(format!("the KDC does not answer: {log}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// True if it takes connections. In another network only its log tells.
    fn answers(&self) -> bool {
        if self.wrapper.is_empty() {
            return TcpStream::connect((self.address, PORT)).is_ok();
        }
        let log = fs::read_to_string(self.folder.join("kdc.log")).unwrap_or_default();
        log.contains("commencing operation")
    }

    /// Ends the KDC; the realm stays.
    pub fn end(&mut self) {
        self.process = None;
    }

    /// The realm's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that knows this realm and no other, with the credential cache `ccache` of the folder.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.prepare(&mut command);
        command.env("PATH", PATH);
        command
    }

    /// Has any command know this realm.
    pub fn prepare(&self, command: &mut Command) {
        command.env("KRB5_CONFIG", self.folder.join("krb5.conf"));
        command.env("KRB5_KDC_PROFILE", self.folder.join("kdc.conf"));
        command.env("KRB5CCNAME", format!("FILE:{}", self.folder.join("ccache").display()));
    }

    /// Asks the database of the realm directly, in kadmin's words.
    ///
    /// # Errors
    ///
    /// What `kadmin.local` complains of.
    pub fn admin(&self, query: &str) -> Result<String, String> {
        let said = run(self.command("kadmin.local").arg("-r").arg(&self.name).arg("-q").arg(query))?;
        // It succeeds whatever becomes of the query.
        let complaint = String::from_utf8_lossy(&said.stderr);
        let is_failure = |line: &&str| line.contains(" while ") || line.contains("does not exist");
        if let Some(line) = complaint.lines().find(is_failure) {
            return Err(format!("{query}: {line}"));
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }

    /// Makes a user with [`PASSWORD`].
    ///
    /// # Errors
    ///
    /// As [`Self::admin`].
    pub fn add_user(&self, name: &str) -> Result<(), String> {
        if let Some(programs) = &self.heimdal {
            return heimdal::add_user(self, programs, name);
        }
        self.admin(&format!("addprinc -pw {PASSWORD} {name}")).map(drop)
    }

    /// Gives a service a new key of a kind, such as `aes256-cts`, and writes it to a keytab; the service is made if it is not there. Heimdal
    /// wants the kind's whole name, and without one gives it keys of all its kinds.
    ///
    /// # Errors
    ///
    /// As [`Self::admin`].
    pub fn add_service(&self, name: &str, kind: &str, keytab: &Path) -> Result<(), String> {
        if let Some(programs) = &self.heimdal {
            return heimdal::add_service(self, programs, name, kind, keytab);
        }
        if !self.admin("listprincs")?.lines().any(|line| line.split('@').next() == Some(name)) {
            self.admin(&format!("addprinc -randkey -e {kind}:normal {name}"))?;
        }
        self.admin(&format!("ktadd -k {} -e {kind}:normal {name}", keytab.display())).map(drop)
    }

    /// `kinit`, with a password that this gives.
    ///
    /// # Errors
    ///
    /// What it says when it fails.
    pub fn kinit(&self, name: &str, options: &[&str]) -> Result<(), String> {
        let password = self.folder.join("password");
        fs::write(&password, format!("{PASSWORD}\n")).map_err(|error| error.to_string())?;
        let input = fs::File::open(&password).map_err(|error| error.to_string())?;
        let mut command = match self.wrapper.split_first() {
            None => self.command("kinit"),
            Some((first, rest)) => {
                let mut command = self.command(first);
                command.args(rest).arg("kinit");
                command
            }
        };
        run(command.args(options).arg(name).stdin(input)).map(drop)
    }
}

/// Makes the program of `kdc/ticket.c`, which gets tickets as no other program does; anybody may run it. It takes gcc.
///
/// # Errors
///
/// What gcc says.
pub fn ticket_program(to: &Path) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/peers/kdc/ticket.c");
    run(Command::new("gcc").arg("-o").arg(to).arg(source).arg("-l:libkrb5.so.3"))?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(to, mode).map_err(|error| format!("{}: {error}", to.display()))
}

fn run(command: &mut Command) -> Result<Output, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program} cannot be started: {error}"))?;
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
