//! Three machines with a database server of ours and a member of etcd each, in cells whose other servers and clients are OpenAFS's: these
//! find the databases in CellServDB as they find their own, and go on when one of the three is down.

use afs_lab::real::folder::Folder;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use afar_interop::cell::{self, ADDRESS, CELL_NAME, CLIENT_ADDRESS, Cell, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::process::{self, Running};
use afar_interop::suite::{Case, Trouble, Verdict, Weight, until};
use afs_lab::caller::{AccessList, Credentials};
use afs_lab::peers::etcd;
use afs_lab::peers::kdc::{self, Kdc, Realm};
use afs_wire::ids::{AfsFid, VolumeId};
use rx_security::ticket::SessionKey;
use rx_security::{Level, Token, UnixTime};
use rxgen::xdr::{DecodeError, Decoder, Opaque, Xdr, XdrString};

use crate::databases::{STATE, TIMEOUT, end, program};
use crate::fuse;
use crate::scene::{Scene, told};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let lab = Arc::clone(lab);
    let name = "database_machines/openafs_goes_on_while_one_of_three_is_down";
    vec![Case::new(name, Weight::Waiting, move || one_is_down(&lab))]
}

/// The configuration of such a server, in its machine.
pub(crate) const CONFIG: &str = "/var/lib/openafs/afar.toml";

/// A machine's name and address.
pub(crate) type Site = (&'static str, Ipv4Addr);

/// Three machines with a member of etcd each, and with a server of ours for the databases; dropped, these processes end.
pub(crate) struct DatabaseMachines<'a> {
    cell: &'a Cell,
    sites: [Site; 3],
    afar: String,
    running: Vec<Running>,
}

impl<'a> DatabaseMachines<'a> {
    /// Starts etcd on machines that are up, and configures servers, which do not run yet.
    pub(crate) fn new(lab: &Lab, cell: &'a Cell, sites: [Site; 3]) -> Result<Self, Trouble> {
        available(lab)?;
        let mut this = Self { cell, sites, afar: program(lab)?, running: Vec::new() };
        let members = sites.map(|(name, address)| format!("{name}=http://{address}:2380")).join(",");
        let endpoints = sites.map(|(_, address)| format!("http://{address}:2379"));
        for (name, address) in sites {
            let [clients, peers] = [2379, 2380].map(|port| format!("http://{address}:{port}"));
            let words = [
                "etcd",
                "--name",
                name,
                "--data-dir",
                "/var/lib/openafs/etcd",
                "--initial-cluster",
                &members,
            ];
            let urls = ["--listen-client-urls", "--advertise-client-urls"].map(|option| [option, &clients]);
            let peers =
                ["--listen-peer-urls", "--initial-advertise-peer-urls"].map(|option| [option, &peers]);
            let urls = [urls, peers].concat().concat();
            this.running.push(process::start(&mut cell.command_at(name, &[&words[..], &urls].concat()))?);
            let etcd = endpoints.each_ref().map(|url| format!("{url:?}")).join(", ");
            let config = format!(
                "[server]\nroles = [\"vl\", \"pt\"]\nstate = \"{STATE}\"\nconfig_dir = \"/etc/openafs/server\"\nbind = \"{address}\"\n\
                 [databases]\netcd = [{etcd}]\n"
            );
            let file = cell.folder(name).join("lib/afar.toml");
            fs::write(&file, config).map_err(told("a configuration"))?;
        }
        let health =
            ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", &endpoints.join(","), "endpoint", "health"];
        until("etcd has three members", || Ok(cell.run(&health)?.status == Some(0)))?;
        Ok(this)
    }

    /// Starts the servers of all machines, and waits until each of them takes changes.
    pub(crate) fn start(&mut self) -> Verdict {
        for (name, _) in self.sites {
            self.begin(name)?;
        }
        self.sites.iter().try_for_each(|site| self.wait_for(*site))
    }

    fn begin(&mut self, name: &str) -> Verdict {
        let log = format!("exec {} server --config {CONFIG} >> /var/log/openafs/databases 2>&1", self.afar);
        self.running.push(process::start(&mut self.cell.command_at(name, &["sh", "-c", &log]))?);
        Ok(())
    }

    fn wait_for(&self, (name, address): Site) -> Verdict {
        let takes = |port: u16| {
            let said = self.cell.run(&["udebug", &address.to_string(), &port.to_string()])?;
            Ok::<_, Trouble>(said.stdout.contains("I am sync site"))
        };
        let waited = until("it takes changes", || Ok(takes(7002)? && takes(7003)?));
        waited.map_err(|trouble| {
            let log = fs::read_to_string(self.cell.folder(name).join("log/databases")).unwrap_or_default();
            Trouble::Failed(format!("the database server of {name}: {trouble:?}\n{log}"))
        })
    }

    /// Ends the server of a machine as a crash would; etcd stays.
    pub(crate) fn kill(&self, site: Site) -> Verdict {
        end(self.cell, site.0, "afar", "-KILL")
    }

    /// Stops all servers in order; etcd stays.
    pub(crate) fn stop(&self) -> Verdict {
        self.sites.iter().try_for_each(|(name, _)| end(self.cell, name, "afar", "-TERM"))
    }
}

impl Drop for DatabaseMachines<'_> {
    fn drop(&mut self) {
        for (name, _) in self.sites {
            // Before those that wait for them outside of the machine, and reap them.
            let _ = end(self.cell, name, "afar", "-KILL");
            let _ = end(self.cell, name, "etcd", "-KILL");
        }
    }
}

/// Whether there can be such machines here.
pub(crate) fn available(lab: &Lab) -> Verdict {
    etcd::available().map_err(Trouble::Skipped)?;
    lab.etcd_feature()
}

/// Writes which database servers there are into the configuration of a machine's servers, or of its clients.
pub(crate) fn name_database_servers(cell: &Cell, machine: &str, folder: &str, sites: &[Site]) -> Verdict {
    let lines: String = sites.iter().map(|(name, address)| format!("{address} #{name}\n")).collect();
    let file = cell.folder(machine).join(folder).join("CellServDB");
    fs::write(&file, format!(">{CELL_NAME}\n{lines}")).map_err(told("CellServDB"))
}

/// The machines with databases, and the one with OpenAFS's file server.
const SITES: [Site; 3] =
    [("srv", ADDRESS), ("fs3", Ipv4Addr::new(10, 88, 0, 3)), ("fs4", Ipv4Addr::new(10, 88, 0, 4))];
const FILES: Site = ("fs5", Ipv4Addr::new(10, 88, 0, 5));

const REALM: &str = "INTEROP.TEST";

/// What a file has in it.
const BYTES: usize = 100_000;

fn one_is_down(lab: &Lab) -> Verdict {
    kdc::available().map_err(Trouble::Skipped)?;
    cell::can_mount().map_err(Trouble::Skipped)?;
    available(lab)?;
    let folder = Folder::new("local");
    let cell = lab.idle_cell()?;
    for folder in ["etc", "etc/server"] {
        name_database_servers(&cell, "srv", folder, &SITES)?;
    }
    let users = Users::new(&cell, &folder)?;
    // The others have what `srv` has now, the key of Kerberos too.
    for (number, (name, _)) in [(3, SITES[1]), (4, SITES[2])] {
        cell.join_idle(number).map_err(told(name))?;
    }
    let scene = Scene::without_users(cell)?;
    let mut databases = DatabaseMachines::new(lab, &scene.cell, SITES)?;
    databases.start()?;
    scene.make_users()?;
    let (machine, server) = FILES;
    scene.cell.join(5, &Machine::new(Servers::Stock))?;
    scene.change("pts creategroup staff -owner admin")?;
    scene.change("pts adduser alice staff")?;
    let root = fuse::make_volumes(&scene, server)?;
    let admin = ("system:administrators", AccessList::ALL);
    let of_staff =
        scene.volume(server, "of.staff", &AccessList::granting([admin, ("staff", AccessList::WRITE)]))?;

    let place = |mount: &Path| mount.join(CELL_NAME).join("scratch");
    let old = scene.cell.mount("old")?;
    old.within(|| {
        fs::write(place(old.path()).join("before"), vec![1; BYTES])
            .map_err(told("a file, with three servers"))
    })?;
    let alice = users.aklog(&scene.cell, machine, "alice", 1001)?;
    write_as(&scene, server, of_staff, &alice, "by-alice").map_err(|trouble| said(&trouble, "alice"))?;

    databases.kill(SITES[0])?;
    // Clients that were there before go on, and so do changes.
    old.within(|| {
        fs::write(place(old.path()).join("after"), vec![2; BYTES]).map_err(told("a file, with two servers"))
    })?;
    for line in ["pts adduser bob staff", "pts createuser carol", &format!("vos create {server} a new")] {
        scene.change(line)?;
    }
    // The file server's own machine asks as well, and the file server asks for a user whom it does not know.
    let mut examine = scene.cell.command_at(machine, &["vos", "examine", "new", "-localauth"]);
    let examined = process::run(&mut examine, TIMEOUT)?;
    if examined.status != Some(0) || !examined.stdout.contains("On-line") {
        return Err(format!("vos examine on {machine} says {examined:?}").into());
    }
    let bob = users.aklog(&scene.cell, machine, "bob", 1002)?;
    write_as(&scene, server, of_staff, &bob, "by-bob").map_err(|trouble| said(&trouble, "bob"))?;
    // A client that knows nothing yet looks all volumes up, the new one too.
    let everybody = AccessList::granting([admin, ("system:anyuser", AccessList::WRITE)]);
    scene.volume(server, "newest", &everybody)?;
    fuse::mount_point(&scene, server, root, "newest", "newest")?;
    let fresh = scene.cell.mount("fresh")?;
    fresh.within(|| {
        for (name, byte) in [("before", 1), ("after", 2)] {
            let read =
                fs::read(place(fresh.path()).join(name)).map_err(told("a file, with a fresh client"))?;
            if read != vec![byte; BYTES] {
                return Err(format!("{name} has {} other bytes", read.len()).into());
            }
        }
        let file = fresh.path().join(CELL_NAME).join("newest/file");
        fs::write(&file, "text").map_err(told("a file in a new volume, with a fresh client"))
    })?;

    // The server that comes back has what was changed meanwhile.
    databases.begin(SITES[0].0)?;
    databases.wait_for(SITES[0])?;
    let versions = SITES.map(|(_, address)| version(&scene.cell, address));
    let versions = versions.into_iter().collect::<Result<Vec<_>, _>>()?;
    if versions.iter().any(|version| *version != versions[0]) {
        return Err(format!("udebug shows different versions of the database: {versions:?}").into());
    }
    Ok(())
}

/// The version of the protection database, as `udebug` shows it.
fn version(cell: &Cell, address: Ipv4Addr) -> Result<String, Trouble> {
    let said = cell.expect(&format!("udebug {address} 7002"))?;
    let line = said.lines().find(|line| line.starts_with("Local db version is "));
    Ok(line.ok_or_else(|| format!("udebug {address} 7002 says {said}"))?.to_owned())
}

fn said(trouble: &Trouble, who: &str) -> Trouble {
    Trouble::Failed(format!("{who}: {trouble:?}"))
}

/// Makes a file with something in it in the root directory of a volume.
fn write_as(scene: &Scene, server: Ipv4Addr, volume: VolumeId, who: &Credentials, name: &str) -> Verdict {
    scene.at_clients(async || {
        let client = scene.client()?;
        let server = client.file_server(server, who);
        let made = server.create_file(AfsFid::root_of(volume), name).await.map_err(told("making a file"))?;
        server.store(made.fid, 0, vec![3; BYTES], BYTES as u64).await.map_err(told("storing"))?;
        server.give_up_all().await.map_err(told("giving up callbacks"))
    })
}

/// Users of a Kerberos realm, whose tickets Debian's `aklog` makes tokens of. In place of the kernel module, a library takes them.
struct Users {
    kdc: Kdc,
    library: PathBuf,
    tokens: PathBuf,
}

impl Users {
    /// Makes the realm, and puts the cell's key in it into the configuration of `srv`.
    fn new(cell: &Cell, folder: &Path) -> Result<Self, Trouble> {
        let realm = folder.join("realm");
        fs::create_dir(&realm).map_err(told("a folder for the realm"))?;
        let network = format!("{}-cli", cell.name());
        // All machines reach it.
        let kdc = Realm { name: REALM, address: CLIENT_ADDRESS, more: "" };
        let kdc = Kdc::start_in(&realm, &kdc, &["ip", "netns", "exec", &network])?;
        for user in ["alice", "bob"] {
            kdc.add_user(user)?;
        }
        let keytab = folder.join("keytab");
        kdc.add_service(&format!("afs/{CELL_NAME}"), "aes256-cts", &keytab)?;
        // The first key of a principal that is made anew and then put into a keytab is its second.
        let add = format!("asetkey add rxkad_krb5 2 18 {} afs/{CELL_NAME}@{REALM}", keytab.display());
        cell.expect(&add)?;
        let library = folder.join("pioctl.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../afar/tests/mounted/pioctl.c");
        let mut gcc = Command::new("gcc");
        gcc.arg("-o").arg(&library).arg(&source).args(["-shared", "-fPIC", "-ldl"]);
        let made = gcc.output().map_err(|error| Trouble::Skipped(format!("there is no gcc: {error}")))?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).into_owned();
            return Err(format!("{}: {said}", source.display()).into());
        }
        Ok(Self { kdc, library, tokens: folder.join("tokens") })
    }

    /// Gets a user a token on a machine, which `aklog` writes the user's id on.
    fn aklog(&self, cell: &Cell, machine: &str, user: &str, id: i32) -> Result<Credentials, Trouble> {
        self.kdc.kinit(user, &[])?;
        let _ = fs::remove_file(&self.tokens);
        let preload = format!("LD_PRELOAD={}", self.library.display());
        let tokens = format!("PIOCTLS={}", self.tokens.display());
        let mut aklog = cell.command_at(machine, &["env", &preload, &tokens, "aklog", "-d"]);
        self.kdc.prepare(&mut aklog);
        let done = process::run(&mut aklog, TIMEOUT)?;
        if done.status != Some(0) {
            return Err(format!("aklog of {user}: {done:?}").into());
        }
        let bytes = fs::read(&self.tokens).map_err(told("aklog's token"))?;
        let (whose, token) = parse_token(&bytes).map_err(told("aklog's token"))?;
        if whose != id {
            return Err(format!("aklog takes {user} for {whose}: {done:?}").into());
        }
        Ok(Credentials::Token(Arc::new(token), Level::Clear))
    }
}

/// The argument of VIOCSETTOK2 with one token of rxkad: whose it is, and the token.
fn parse_token(bytes: &[u8]) -> Result<(i32, Token), DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let _flags = u32::decode(&mut decoder)?;
    let _cell = XdrString::<64>::decode(&mut decoder)?;
    let _one = u32::decode(&mut decoder)?;
    let token = Opaque::<16_384>::decode(&mut decoder)?;
    let mut decoder = Decoder::new(&token);
    let mut word = || u32::decode(&mut decoder);
    let (_kind, id, kvno) = (word()?, word()?, word()?);
    let key = [word()?.to_be_bytes(), word()?.to_be_bytes()].concat();
    let (start, end, _is_primary) = (word()?, word()?, word()?);
    let ticket = Opaque::<12_000>::decode(&mut decoder)?.to_vec();
    let session_key = SessionKey::new(std::array::from_fn(|n| key[n]));
    let token = Token { session_key, ticket, kvno: kvno as i32, start: UnixTime(start), end: UnixTime(end) };
    Ok((id as i32, token))
}
