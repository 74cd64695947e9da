//! A cell that is in no CellServDB, and that a real name server tells of (dnsmasq): `afar mount` finds it by its name.
//!
//! The name server listens on an address of its own. The client sees it in /etc/resolv.conf, which is another file in its mount namespace.

use crate::mounted::{self, Cell, Folder, Process, TIMEOUT, can_mount, is_root, own_address, run};
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    let until = Instant::now() + TIMEOUT;
    // It takes TCP's port when it has UDP's. (To try whether that can be had would take it away from the server.)
    while TcpStream::connect((address, 53)).is_err() {
        assert_eq!(server.child.try_wait().unwrap(), None, "it has ended");
        assert!(Instant::now() < until, "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
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

    /// Runs one of our commands that asks servers itself, where no folder of configuration names the cell.
    fn afar(&self, folder: &Folder, line: &str) -> Result<String, String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.process.pid()));
        // A command is about the client in whose mount it is run.
        command.args(["timeout", "60", "env", "--chdir"]).arg(&self.mount);
        command.arg(env!("CARGO_BIN_EXE_afar")).args(line.split(' '));
        command.arg("-config").arg(folder.join("etc"));
        let output = run(command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Runs something in the mount. Its output, or what it complains of.
    fn run(&self, program: &str, path: &str) -> Result<String, String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.process.pid()));
        command.args(["timeout", "60", program]).arg(self.mount.join(path)).env("LC_ALL", "C");
        let output = run(command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
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
    // On a busy machine the answer may come too late, and is asked for again after half a minute.
    let (mut found, mut tries) = (client.run("ls", "afar.local"), 1);
    while found.is_err() && tries < 3 && asked(&folder, "query[SRV] _afs3-vlserver._udp.afar.local") > 0 {
        std::thread::sleep(Duration::from_secs(31));
        (found, tries) = (client.run("ls", "afar.local"), tries + 1);
    }
    let names = found.unwrap();
    assert!(names.lines().any(|name| name == "scratch"), "{names}");
    client.run("touch", ".afar.local/scratch/file").unwrap();
    assert!(client.run("ls", "afar.local/scratch").unwrap().contains("file"));
    assert!(client.run("ls", "").unwrap().contains("afar.local"), "it is known now");
    // On a busy machine the resolver asks once more.
    assert!((1..=2 * tries).contains(&asked(&folder, "query[SRV] _afs3-vlserver._udp.afar.local")));
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
        let mut said = client.afar(&folder, line);
        for _ in 0..2 {
            if said.as_ref().is_err_and(|said| said.contains("does not answer")) {
                said = client.afar(&folder, line);
            }
        }
        assert!(said.as_ref().is_ok_and(|said| said.contains(word)), "{line}: {said:?}");
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
