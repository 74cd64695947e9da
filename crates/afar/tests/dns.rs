//! A cell that is in no CellServDB, and that a real name server tells of (dnsmasq): `afar mount` finds it by its name.
//!
//! The name server listens on an address of its own. The client sees it in /etc/resolv.conf, which is another file in its mount namespace.

use crate::mounted::{self, Cell, Folder, Process, can_mount, is_root, own_address, run};
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Starts a name server that listens at an address, and knows nothing but these lines of its configuration.
fn start_name_server(folder: &Folder, address: Ipv4Addr, lines: &str) -> Process {
    let conf = folder.join("dnsmasq.conf");
    let common = format!(
        "no-resolv\nno-hosts\nkeep-in-foreground\nbind-interfaces\nlisten-address={address}\nuser=root\n\
         pid-file=\nlog-queries\nlog-facility={}\nlocal-ttl=60\nlocal=/test/\nlocal=/local/\n",
        folder.join("dnsmasq.log").display()
    );
    fs::write(&conf, common + lines).unwrap();
    let mut command = Command::new("dnsmasq");
    command.arg(format!("--conf-file={}", conf.display())).stdin(Stdio::null());
    let mut server = Process::of(&mut command);
    // It takes TCP's port when it has UDP's. (To try whether that can be had would take it away from the server.)
    until!(TcpStream::connect((address, 53)).is_ok() || !server.is_running(), "it does not listen");
    assert!(server.is_running(), "it has ended");
    server
}

/// How often the name server was asked for something.
fn asked(folder: &Folder, what: &str) -> usize {
    let log = fs::read_to_string(folder.join("dnsmasq.log")).unwrap();
    log.lines().filter(|line| line.contains("query[") && line.contains(what)).count()
}

/// A client of a cell that is not there, in a mount namespace with another /etc/resolv.conf.
struct Client {
    process: Process,
    mount: std::path::PathBuf,
}

impl Client {
    fn start(folder: &Folder, name_server: Ipv4Addr, more: &[&str]) -> Self {
        let at = |name: &str| folder.join(name);
        fs::create_dir_all(at("etc")).unwrap();
        fs::write(at("etc/ThisCell"), "nowhere.test\n").unwrap();
        fs::write(at("etc/CellServDB"), ">nowhere.test #\n127.0.0.1 #db.nowhere.test\n").unwrap();
        fs::write(at("resolv.conf"), format!("nameserver {name_server}\n")).unwrap();
        let mount = at("mnt");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "bash", "-c"]);
        command.arg("mount --bind \"$1\" /etc/resolv.conf && shift && exec \"$@\"").arg("bash");
        command.arg(at("resolv.conf")).arg(env!("CARGO_BIN_EXE_afar")).arg("mount").arg(&mount);
        command.arg("--config").arg(at("etc")).arg("--cache").arg(at("cache")).args(more);
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null());
        Self { process: Process::start(command, None), mount }
    }

    /// Runs one of our commands that asks servers itself, where no folder of configuration names the cell. A command is about the client in
    /// whose mount it is run.
    fn afar(&self, folder: &Folder, line: &str) -> Result<String, String> {
        let (mount, etc) = (self.mount.display(), folder.join("etc"));
        let line =
            format!("env --chdir {mount} {} {line} -config {}", env!("CARGO_BIN_EXE_afar"), etc.display());
        self.enter(&line.split(' ').collect::<Vec<_>>())
    }

    /// Runs something in the mount.
    fn run(&self, program: &str, path: &str) -> Result<String, String> {
        self.enter(&[program, &self.mount.join(path).display().to_string()])
    }

    /// Runs something where the client is. Its output, or what it complains of.
    fn enter(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.process.pid()));
        command.args(["timeout", "60"]).args(words).env("LC_ALL", "C");
        let output = run(command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

/// Waits until a name server's answer comes in time: a late one is as none, for the client for half a minute, and for commands until the next.
fn heard(ask: impl Fn() -> Result<String, String>) -> String {
    let mut said = ask();
    until!(said.is_ok() || std::mem::replace(&mut said, ask()).is_ok(), "{said:?}");
    said.expect("it was heard")
}

fn is_possible() -> bool {
    if !is_root() {
        return mounted::skip("it takes root for another /etc/resolv.conf");
    }
    can_mount()
        && Path::new("/etc/resolv.conf").exists()
        && mounted::needs(&["dnsmasq", "unshare", "nsenter", "bash"])
}

#[test]
fn a_cell_that_is_in_no_cell_serv_db_is_found_by_its_name() {
    require!(is_possible());
    let (cell, folder, name_server) = (Cell::new("dns"), Folder::new("dns-client"), own_address());
    // Behind the cell's own server there is one that has nothing.
    let nobody = own_address();
    let lines = format!(
        "srv-host=_afs3-vlserver._udp.afar.local,db.afar.local,7003,20,0\n\
         srv-host=_afs3-vlserver._udp.afar.local,gone.afar.local,7003,30,0\n\
         address=/db.afar.local/{}\naddress=/gone.afar.local/{nobody}\n",
        cell.address
    );
    let server = start_name_server(&folder, name_server, &lines);
    let client = Client::start(&folder, name_server, &[]);
    let roots = client.run("ls", "").unwrap();
    assert!(!roots.contains("afar.local"), "nobody has asked for it: {roots}");
    let begun = Instant::now();
    let names = heard(|| client.run("ls", "afar.local"));
    assert!(names.lines().any(|name| name == "scratch"), "{names}");
    client.run("touch", ".afar.local/scratch/file").unwrap();
    assert!(client.run("ls", "afar.local/scratch").unwrap().contains("file"));
    assert!(client.run("ls", "").unwrap().contains("afar.local"), "it is known now");
    // The second time for an answer that was late, and both again after half a minute.
    let most = 2 * (1 + begun.elapsed().as_secs() as usize / 30);
    assert!((1..=most).contains(&asked(&folder, "query[SRV] _afs3-vlserver._udp.afar.local")));
    for name in [".Trash", ".git", "autorun.inf", "lib"] {
        assert!(client.run("ls", name).unwrap_err().contains("No such file"), "{name}");
        assert_eq!(asked(&folder, name), 0, "{name}");
    }
    for _ in 0..3 {
        assert!(client.run("ls", "none.test").unwrap_err().contains("No such file"));
    }
    assert!((1..=2).contains(&asked(&folder, "query[SRV] _afs3-vlserver._udp.none.test")));
    for (line, word) in [
        ("vos listvldb -noauth -cell afar.local", "Total entries: "),
        ("pts examine system:anyuser -noauth -cell AFAR.local", "Name: system:anyuser"),
        ("afsio write /afs/afar.local/scratch/by-afsio -synthesize 5 -cell afar.local", ""),
        ("afsio read /afs/.afar.local/scratch/by-afsio -cell afar.local", ""),
        ("aklog -noauth -hosts -cell afar.local", &cell.address.to_string()),
    ] {
        let said = heard(|| client.afar(&folder, line));
        assert!(said.contains(word), "{line}: {said}");
    }
    let said = client.afar(&folder, "vos listvldb -noauth -cell none.test").unwrap_err();
    assert!(said.contains("vos: can't find cell none.test's hosts in "), "{said}");
    drop(server);
    let said = client.afar(&folder, "pts examine anonymous -noauth -cell afar.local").unwrap_err();
    assert!(said.contains("pts: the DNS, which may know afar.local, does not answer: "), "{said}");
    assert!(client.run("ls", "other.test").is_err(), "nobody tells");
    assert!(client.run("ls", "afar.local").is_ok(), "it goes on without the name server");
}

#[test]
fn a_cell_with_afsdb_records_is_found_and_none_with_no_afsdb() {
    require!(is_possible());
    let (cell, folder, name_server) = (Cell::new("afsdb"), Folder::new("afsdb-client"), own_address());
    // Type 18: subtype 1, and the host's name as labels.
    let host = "00:01:02:64:62:04:61:66:61:72:05:6c:6f:63:61:6c:00";
    let lines = format!("dns-rr=afar.local,18,{host}\naddress=/db.afar.local/{}\n", cell.address);
    let _server = start_name_server(&folder, name_server, &lines);
    let client = Client::start(&folder, name_server, &[]);
    // aklog has looked the cell up, and the client has not.
    let keytab = folder.join("keytab");
    fs::write(&keytab, mounted::keytab()).unwrap();
    let line = format!("aklog -keytab {} -principal alice -cell afar.local", keytab.display());
    assert!(client.afar(&folder, &line).is_ok_and(|said| said.is_empty()));
    let names = client.run("ls", "afar.local").unwrap();
    assert!(names.lines().any(|name| name == "scratch"), "{names}");
    drop(client);
    let questions = asked(&folder, "afar.local");
    let client = Client::start(&folder, name_server, &["--no-afsdb"]);
    assert!(client.run("ls", "afar.local").unwrap_err().contains("No such file"));
    assert_eq!(asked(&folder, "afar.local"), questions);
}
