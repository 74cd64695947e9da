//! `afar up --realm`: a Kerberos realm beside the cell, for trying `kinit` and `aklog`. It is Debian's KDC, unprivileged, with all that it has in the
//! state folder's `realm`. Its key for the cell is added to the cell's keys. Who has a password in it is said here; what a ticket is good for,
//! the servers say.

use crate::private;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// The port of the KDC: Kerberos's own port takes a privilege.
const PORT: u16 = 7088;

/// The time within which the KDC must answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The time for which the KDC of a process that was killed is waited for.
const ENDING: Duration = Duration::from_secs(5);

/// Folders with programs that an ordinary user's PATH may lack.
const MORE_FOLDERS: &str = "/usr/sbin:/sbin";

/// Bytes of chance in a password.
const PASSWORD_BYTES: usize = 8;

/// A realm whose KDC runs. Dropped, the KDC ends.
pub(super) struct Realm {
    name: String,
    folder: PathBuf,
    users: Vec<String>,
    child: Option<Child>,
}

/// The cell, the folders, and the users of the realm.
pub(super) struct Plan<'a> {
    /// The state folder.
    pub(super) state: &'a Path,
    /// The folder with the cell's keys.
    pub(super) keys: &'a Path,
    /// The cell; the realm has its name in capitals.
    pub(super) cell: &'a str,
    /// The KDC's address.
    pub(super) address: Ipv4Addr,
    /// The users who get a password.
    pub(super) users: &'a [&'a str],
    /// Good randomness, for passwords.
    pub(super) seed: Zeroizing<[u8; 32]>,
}

impl Realm {
    /// Makes what the realm lacks, and starts its KDC. Returns whether the cell has a new key.
    ///
    /// # Errors
    ///
    /// What is missing or fails, and what to do.
    pub(super) fn start(plan: &Plan<'_>) -> Result<(Self, bool), String> {
        let folder = plan.state.join("realm");
        private::folder(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let users = plan.users.iter().map(|user| (*user).to_owned()).collect();
        let mut realm = Self { name: plan.cell.to_uppercase(), folder, users, child: None };
        realm.configure(plan.address)?;
        let is_new = !realm.folder.join("complete").exists();
        if is_new {
            realm.make(plan)?;
        }
        realm.serve(plan.address)?;
        Ok((realm, is_new))
    }

    /// The text on how to use it, for people.
    pub(super) fn note(&self) -> String {
        let at = self.folder.display();
        format!(
            "\nKerberos realm {}. The password of {} is in {at}/password:\n  export KRB5_CONFIG={at}/krb5.conf\n  kinit {} < {at}/password\n  afar aklog && afar tokens\n",
            self.name,
            self.users.join(" and "),
            self.users.first().map_or("", String::as_str),
        )
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let file = self.folder.join(name);
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file);
        made.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| format!("{}: {error}", file.display()))
    }

    fn configure(&self, address: Ipv4Addr) -> Result<(), String> {
        let (name, at) = (&self.name, self.folder.display());
        self.write(
            "krb5.conf",
            &format!(
                "[libdefaults]\n default_realm = {name}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n\
                 [realms]\n {name} = {{\n  kdc = {address}:{PORT}\n }}\n"
            ),
        )?;
        self.write(
            "kdc.conf",
            &format!(
                "[kdcdefaults]\n kdc_listen = {address}:{PORT}\n kdc_tcp_listen = {address}:{PORT}\n[realms]\n {name} = {{\n  \
                 database_name = {at}/principal\n  key_stash_file = {at}/stash\n  acl_file = {at}/acl\n  max_life = 1d\n  \
                 max_renewable_life = 7d\n  supported_enctypes = aes256-cts:normal\n }}\n[logging]\n kdc = FILE:{at}/kdc.log\n"
            ),
        )?;
        self.write("acl", "")
    }

    fn command(&self, program: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(std::env::split_paths(MORE_FOLDERS));
        let found = folders.map(|folder| folder.join(program)).find(|file| file.exists());
        let mut command = Command::new(found.unwrap_or_else(|| program.into()));
        command.env("KRB5_CONFIG", self.folder.join("krb5.conf"));
        command.env("KRB5_KDC_PROFILE", self.folder.join("kdc.conf"));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null());
        command
    }

    fn missing(program: &str, error: &std::io::Error) -> String {
        format!(
            "cannot start {program}: {error}; --realm needs Debian's packages krb5-kdc, krb5-admin-server and krb5-user"
        )
    }

    /// Runs a program to its end. What is secret it reads: others see the words of a command.
    fn run(&self, program: &str, words: &[&str], input: &str) -> Result<(), String> {
        let mut command = self.command(program);
        let mut child = command
            .args(words)
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| Self::missing(program, &error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that ends without reading says why below.
            let _ = stdin.write_all(input.as_bytes());
        }
        let done = child.wait_with_output().map_err(|error| Self::missing(program, &error))?;
        let said = String::from_utf8_lossy(&done.stderr);
        let complaint = said.lines().find(|line| line.contains(" while "));
        match complaint {
            None if done.status.success() => Ok(()),
            line => Err(format!("{program}: {}", line.unwrap_or(said.trim()))),
        }
    }

    /// Makes its database, its users, and a key for the cell. What a start that was cut off has left is made again.
    fn make(&self, plan: &Plan<'_>) -> Result<(), String> {
        for left in
            ["principal", "principal.ok", "principal.kadm5", "principal.kadm5.lock", "stash", "keytab"]
        {
            let _ = fs::remove_file(self.folder.join(left));
        }
        let hex =
            |bytes: &[u8]| Zeroizing::new(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        let (password, master) = plan.seed.split_at(PASSWORD_BYTES);
        let (password, master) = (hex(password), hex(master));
        let twice = Zeroizing::new(format!("{}\n{}\n", *master, *master));
        self.run("kdb5_util", &["create", "-s", "-r", &self.name], &twice)?;
        let service = format!("afs/{}", plan.cell);
        let keytab = self.folder.join("keytab");
        let mut queries = Zeroizing::new(format!("addprinc -randkey {service}\n"));
        for user in &self.users {
            queries.push_str(&format!("addprinc -pw {} {user}\n", *password));
        }
        queries.push_str(&format!("ktadd -k {} {service}\n", keytab.display()));
        self.run("kadmin.local", &["-r", &self.name], &queries)?;
        crate::key::add_keytab(plan.keys, &keytab)
            .map_err(|error| format!("cannot add the realm's key to the cell's keys: {error}"))?;
        let _ = fs::remove_file(&keytab);
        self.write("password", &format!("{}\n", *password))?;
        self.write("complete", "")
    }

    fn serve(&mut self, address: Ipv4Addr) -> Result<(), String> {
        // The KDC of a process that was killed is about to end, too.
        let until = Instant::now() + ENDING;
        while TcpStream::connect((address, PORT)).is_ok() {
            if Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            return Err(format!(
                "the realm's KDC needs {address}:{PORT}, but another program listens there: stop it, or choose another \
                 address with --bind"
            ));
        }
        let kdc = self.command("krb5kdc");
        let program = Path::new(kdc.get_program());
        if !program.is_absolute() {
            return Err(Self::missing("krb5kdc", &std::io::ErrorKind::NotFound.into()));
        }
        // It ends with this process, however that ends: else it would keep the port. It is the end of the thread that counts, and this is the
        // first.
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).arg("-n").stderr(Stdio::null());
        let child = command.spawn();
        self.child = Some(child.map_err(|error| Self::missing("krb5kdc", &error))?);
        let until = Instant::now() + TIMEOUT;
        while TcpStream::connect((address, PORT)).is_err() {
            let has_ended = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))));
            if has_ended || Instant::now() > until {
                return Err(format!("the KDC did not start: see {}/kdc.log", self.folder.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It writes its database at each change, and nothing at its end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
