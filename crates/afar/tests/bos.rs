//! What superusers change and order with `bos` at a server of ours: database servers, logs, which roles run, and that it starts
//! again.

use crate::mounted::{Folder, ServerProcess, our_program, own_address, suite, words};
use std::collections::HashSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::two_servers::{DATABASES, TwoServers};
use afs_lab::caller::{Client, Credentials};
use afs_lab::real::process::Running;
use afs_lab::real::relay::{Relay, Way};
use afs_lab::real::wait::PATIENCE;
use afs_wire::bos::Bozo;
use afs_wire::ids::{AfsFid, VolumeId};
use afs_wire::vl::ProbeServer;
use rx_proto::abort::AbortCode;
use rx_proto::packet::Header;
use rx_security::keys::{EncType, Key, KeySet};
use rxgen::Interface;

struct Site {
    state: Folder,
    server: ServerProcess,
}

impl Site {
    fn new() -> Self {
        let state = Folder::new("bos");
        let server = ServerProcess::start(&state, &[]);
        Self { state, server }
    }

    fn address(&self) -> Ipv4Addr {
        self.server.address
    }

    /// A verb of `bos`, with the arguments behind the server.
    fn command(&self, verb: &str, more: &str, who: &str) -> Command {
        suite(&self.state, &format!("bos {verb} SERVER {more}"), &[("SERVER", self.address())], who)
    }

    fn bos(&self, verb: &str, more: &str, who: &str) -> Output {
        self.command(verb, more, who).output().unwrap()
    }

    fn does(&self, verb: &str, more: &str) -> String {
        let output = self.bos(verb, more, "-localauth");
        assert!(output.status.success() && output.stderr.is_empty(), "{verb} {more}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The code in what is complained of.
    fn refuses(&self, verb: &str, more: &str, who: &str) -> String {
        let output = self.bos(verb, more, who);
        assert!(!output.stderr.is_empty(), "{verb} {more}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A command about the cell.
    fn tool(&self, suite: &str, args: &[&str]) -> Output {
        let mut command = our_program();
        command.arg(suite).args(args).arg("-config").arg(self.state.path().join("etc/server"));
        command.output().unwrap()
    }

    fn audit(&self) -> String {
        std::fs::read_to_string(self.state.path().join("audit.log")).unwrap()
    }
}

#[test]
fn database_servers_are_added_to_cellservdb_and_removed() {
    let site = Site::new();
    let file = site.state.path().join("etc/server/CellServDB");
    let before = std::fs::read_to_string(&file).unwrap();
    site.does("addhost", "192.0.2.77");
    site.does("addhost", "192.0.2.78 -clone");
    let listed = site.does("listhosts", "");
    assert!(listed.contains("192.0.2.77") && listed.contains("[192.0.2.78]"), "{listed}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, format!("{before}192.0.2.77 #192.0.2.77\n[192.0.2.78] #192.0.2.78\n"));
    site.does("removehost", "192.0.2.77 192.0.2.78");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    assert!(site.refuses("removehost", "192.0.2.77", "-localauth").contains("could not find entry"));
    assert!(site.refuses("addhost", "192.0.2.79", "-noauth").contains("you are not authorized"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
    let audit = site.audit();
    for begin in ["\"rpc\":\"AddCellHost\",\"what\":\"192.0.2.77\"", "\"rpc\":\"DeleteCellHost\""] {
        assert!(audit.contains(begin), "{audit}");
    }
}

#[test]
fn logs_are_told_to_superusers_by_the_names_that_they_have_with_openafs() {
    let site = Site::new();
    let log = site.does("getlog", "BosLog");
    assert!(log.contains("ready"), "{log}");
    site.does("adduser", "bob");
    assert!(site.does("getlog", "AuditLog").contains("\"rpc\":\"AddSUser\",\"what\":\"bob\""));
    let log = site.does("getlog", "/var/log/openafs/FileLog");
    assert!(log.contains("Partition /vicepa: volumes attached: "), "{log}");
    let server = site.address().to_string();
    let made = site.tool("vos", &["create", &server, "a", "user.x", "-localauth"]);
    assert!(made.status.success(), "{made:?}");
    let log = site.does("getlog", "VolserLog");
    let line = log.lines().find(|line| line.contains("Volser: CreateVolume: volume ")).unwrap_or_default();
    assert!(line.contains("(user.x) on /vicepa") && line.contains(", by "), "{log}");
    site.refuses("getlog", "../../etc/passwd", "-localauth");
    assert!(site.refuses("getlog", "BosLog", "-noauth").contains("not authorized"));
}

#[test]
fn it_starts_again_as_the_same_process() {
    let site = Site::new();
    let pid = site.server.pid();
    site.refuses("restart", "-all", "-noauth");
    for more in ["-all", "-bosserver", "dafs"] {
        site.does("restart", more);
        let line = site.server.next_line();
        assert!(line.starts_with("ready "), "{more}: {line}");
        assert_eq!(site.server.pid(), pid);
        assert!(site.does("status", "").contains("vlserver"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_role_is_not_there_until_it_is_started_also_after_a_restart() {
    let site = Site::new();
    site.refuses("stop", "vlserver", "-noauth");
    assert!(site.refuses("stop", "upserver", "-localauth").contains("no such"));
    let lookup = |site: &Site| site.tool("vos", &["listvldb", "-noauth"]);
    assert!(lookup(&site).status.success());
    site.does("stop", "vlserver -wait");
    assert!(!lookup(&site).status.success());
    // It says so itself, so nobody waits as for a server that says nothing.
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let role = client.location_server(site.address(), &Credentials::Anonymous);
    let refused = role.rpc(&ProbeServer {}).await.unwrap_err();
    assert_eq!(refused.code(), Some(AbortCode::CALL_DEAD.0), "{refused}");
    let disabled = "Instance vlserver, disabled, currently shutdown.\n";
    assert_eq!(site.does("status", "vlserver"), disabled);
    assert!(site.tool("pts", &["listmax", "-noauth"]).status.success(), "other roles go on");
    for more in ["-all", "ptserver"] {
        site.does("restart", more);
        site.server.next_line();
        assert_eq!(site.does("status", "vlserver"), disabled);
        assert!(!lookup(&site).status.success());
    }
    site.does("start", "vlserver");
    assert!(lookup(&site).status.success());
    let status = site.does("status", "vlserver -long");
    assert!(status.contains("currently running normally") && status.contains("(1 proc starts)"), "{status}");
    site.does("shutdown", "vlserver -wait");
    site.does("startup", "vlserver");
    let status = site.does("status", "vlserver -long");
    assert!(status.contains("Last exit at") && status.contains("(2 proc starts)"), "{status}");
    site.does("restart", "-all");
    site.server.next_line();
    assert!(lookup(&site).status.success());
    assert!(site.audit().contains("\"rpc\":\"SetStatus\",\"what\":\"vlserver\""));
}

#[test]
fn keys_of_des_are_refused_and_it_is_said_what_to_use() {
    let site = Site::new();
    assert!(site.refuses("addkey", "-key secret -kvno 5", "-localauth").contains("afar key add"));
    assert!(site.does("listkeys", "").contains("All done"), "and there is none");
}

/// It said "RPC interface mismatch (-455)" and nothing else.
#[test]
fn what_a_server_does_not_do_is_refused_with_what_to_use_instead() {
    let site = Site::new();
    for (verb, more, instead) in [
        ("create", "cron cron /bin/true", "set 'server.roles' in the server's configuration, and restart it"),
        ("delete", "dafs", "set 'server.roles' in the server's configuration, and restart it"),
        ("exec", "/bin/true", "use ssh to run the command"),
        ("prune", "-all", "programs come with packages. Use the machine's package manager"),
        ("removekey", "7 8", "use 'afar key remove' on each server"),
        ("setauth", "off", "they always ask for authorization"),
        ("setcellname", "other.test", "edit ThisCell in the server's configuration folder, and restart it"),
        ("setrestart", "never", "use a timer of systemd on the machine"),
        ("setrestricted", "0", "they always run as restricted"),
        ("uninstall", "fileserver", "programs come with packages. Use the machine's package manager"),
    ] {
        let said = site.refuses(verb, more, "-localauth");
        let hint = format!("bos: servers of afar do not do this: {instead}\n");
        assert!(said.contains("RPC interface mismatch (-455)") && said.ends_with(&hint), "{verb}: {said}");
        let said = site.refuses(verb, more, "-noauth");
        assert!(said.contains("you are not authorized") && !said.contains("of afar"), "{verb}: {said}");
    }
}

#[test]
fn a_shutdown_holds_until_the_next_start_of_the_process() {
    let site = Site::new();
    site.refuses("shutdown", "", "-noauth");
    site.does("shutdown", "dafs -wait");
    let status = site.does("status", "dafs");
    assert!(status.starts_with("Instance dafs, temporarily disabled, currently shutdown.\n"), "{status}");
    assert!(!site.tool("vos", &["listvol", &site.address().to_string(), "-noauth"]).status.success());
    site.does("restart", "dafs");
    assert!(site.does("status", "dafs").contains("currently running normally"), "it alone is started");
    site.does("stop", "ptserver");
    site.does("shutdown", "-wait");
    let status = site.does("status", "");
    assert_eq!(status.matches("currently shutdown").count(), 3, "{status}");
    site.does("startup", "");
    let status = site.does("status", "");
    assert_eq!(status.matches("currently running normally").count(), 2, "{status}");
    assert!(status.contains("Instance ptserver, disabled, currently shutdown"), "{status}");
    site.does("startup", "ptserver");
    let status = site.does("status", "ptserver");
    assert_eq!(status, "Instance ptserver, temporarily enabled, currently running normally.\n");
    site.does("shutdown", "vlserver");
    site.does("restart", "-bosserver");
    site.server.next_line();
    let status = site.does("status", "");
    assert_eq!(status.matches("currently running normally").count(), 2, "{status}");
    assert!(site.audit().contains("\"rpc\":\"ShutdownAll\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_replica_go_to_another_file_server_while_theirs_is_stopped() {
    let cell = TwoServers::new("bos-replica");
    for line in ["create ONE a root.cell", "addsite ONE a root.cell", "addsite TWO a root.cell"] {
        cell.does(line);
    }
    let afsio = |args: &[&str], input: &[u8]| {
        let mut command = cell.afar(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    };
    let written = afsio(&["afsio", "write", "-file", "film", "-localauth"], b"the film");
    assert!(written.status.success(), "{written:?}");
    cell.does("release root.cell");
    let bos = |verb: &str| {
        let address = cell.address(0).to_string();
        let output = cell.afar(&["bos", verb, &address, "dafs", "-localauth"]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    };
    bos("stop");
    assert!(!cell.vos("status ONE").output().unwrap().status.success());
    // It says so itself, so nobody waits as for a server that says nothing.
    let refused = cell.files(0).status(AfsFid::root_of(VolumeId(1))).await.unwrap_err();
    assert_eq!(refused.code(), Some(AbortCode::CALL_DEAD.0), "{refused}");
    let read = afsio(&["afsio", "read", "-file", "film", "-localauth"], b"");
    assert_eq!(read.stdout, b"the film", "{read:?}");
    bos("start");
    assert!(cell.does("status ONE").contains("No active transactions"));
}

/// It said that the salvage was completed, though nothing was checked to its end.
#[test]
fn salvage_says_so_when_the_server_is_started_again_meanwhile() {
    let mut site = Site::new();
    site.does("salvage", "-all -forceDAFS");
    // What `bos` says when the server is started again before it is asked whether the check is done.
    let salvage = |site: &mut Site, more: &str| {
        // `bos` knows a start of the server by its second.
        std::thread::sleep(Duration::from_millis(1100));
        let audit = site.state.path().join("audit.log");
        let created = move || {
            let text = std::fs::read_to_string(&audit).unwrap();
            text.matches("\"rpc\":\"CreateBnode\"").count()
        };
        let (before, front, is_back) = (created(), own_address(), Arc::<AtomicBool>::default());
        let (has_begun, opens) = (created.clone(), Arc::clone(&is_back));
        // Calls that come later than the order do not get to the server until it was started again.
        let passed = Mutex::new(HashSet::new());
        let fate = move |way, _, datagram: &mut [u8]| {
            let header = Header::parse(datagram).unwrap();
            let (call, mut passed) = ((header.channel, header.call), passed.lock().unwrap());
            if opens.load(Ordering::SeqCst) || has_begun() == before {
                passed.insert(call);
            }
            (way == Way::ToClient || passed.contains(&call)).then_some(Duration::ZERO)
        };
        let (at, server) = ((front, Bozo::PORT).into(), (site.address(), Bozo::PORT).into());
        let _relay = Relay::start(at, server, Arc::new(fate)).unwrap();
        let line = format!("bos salvage SERVER {more}");
        let mut salvage = suite(&site.state, &line, &[("SERVER", front)], "-localauth");
        let salvage = Running::start(&mut salvage).unwrap();
        until!(created() > before, "the check does not begin");
        site.does("restart", "-all");
        assert!(site.server.next_line().starts_with("ready "));
        is_back.store(true, Ordering::SeqCst);
        salvage.finish(PATIENCE).unwrap()
    };
    for more in ["-all -forceDAFS", "-partition a -volume 536870999 -forceDAFS"] {
        let output = salvage(&mut site, more);
        let said = words(&output);
        assert!(!output.status.success() && !said.contains("completed"), "{said}");
        assert!(said.contains("bos: salvage failed: the server was started again"), "{said}");
    }
    assert!(site.does("salvage", "-all -forceDAFS").contains("bos: salvage completed\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn salvage_checks_a_volume_in_service_and_a_partition_while_the_file_server_is_stopped() {
    let cell = TwoServers::new("bos-salvage");
    for line in ["create ONE a root.cell", "create ONE a user.x"] {
        cell.does(line);
    }
    let address = cell.address(0).to_string();
    let bos = |args: &str| {
        let args: Vec<&str> = ["bos"].into_iter().chain(args.split(' ')).collect();
        let mut line: Vec<&str> = args[..2].to_vec();
        line.push(&address);
        line.extend(&args[2..]);
        line.push("-localauth");
        let output = cell.afar(&line).output().unwrap();
        let [said, complained] =
            [&output.stdout, &output.stderr].map(|t| String::from_utf8_lossy(t).into_owned());
        (output.status.code().unwrap(), said, complained)
    };
    let log = "getlog SalvageLog";
    assert_ne!(bos(log).0, 0, "nothing was checked yet");
    let (status, said, complained) = bos("salvage -partition a -volume user.x -showlog -forceDAFS");
    assert_eq!((status, complained.as_str()), (0, ""), "{said}");
    assert!(said.starts_with("Starting salvage.\nbos: salvage completed\nSalvageLog:\nvolume "), "{said}");
    assert!(said.contains("nothing is wrong") && !said.contains("shutting down"), "{said}");
    assert!(bos(log).1.contains("nothing is wrong"));
    let (status, _, complained) = bos("salvage -partition a -volume user.x");
    assert!(status != 0 && complained.contains("-forceDAFS"), "{complained}");
    let (status, _, complained) = bos("salvage -partition a -volume nobody.has -forceDAFS");
    assert_eq!(
        (status, complained.as_str()),
        (255, "bos: can't interpret nobody.has as volume name or ID\n")
    );

    let mut child =
        cell.afar(&["afsio", "write", "-file", "film", "-localauth"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[1; 1_500_000]).unwrap();
    assert!(child.wait().unwrap().success());
    let (status, said, complained) = bos("salvage -partition /vicepa -showlog -forceDAFS");
    assert_eq!((status, complained.as_str()), (0, ""), "{said}");
    let steps = "bos: shutting down 'dafs'.\nStarting salvage.\nbos: salvage completed\nSalvageLog:\n/vicepa: 2 volumes, ";
    assert!(said.starts_with(steps) && said.contains("nothing is wrong"), "{said}");
    assert!(said.ends_with("bos: restarting 'dafs'.\n"), "{said}");
    assert!(bos("status dafs").1.contains("currently running normally"));

    let data = std::fs::read_dir(cell.state(0).join("vicepa/data")).unwrap();
    for file in data.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap()) {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    // Something is wrong with a volume in service, which is served all the while that this is found out.
    std::thread::scope(|scope| {
        let check = scope.spawn(|| bos("salvage -partition a -volume root.cell -showlog -forceDAFS"));
        while !check.is_finished() {
            let listed = cell.does("listvol ONE");
            assert!(!listed.contains("Off-line") && !listed.contains("is busy"), "{listed}");
        }
        let (status, said, _) = check.join().unwrap();
        assert!(status == 0 && said.contains("is not there") && said.contains("things are wrong"), "{said}");
    });
    let file = cell.state(0).join("found");
    let (status, said, complained) = bos(&format!("salvage -all -forceDAFS -file {}", file.display()));
    assert_eq!((status, complained.as_str()), (0, ""), "{said}");
    let found = std::fs::read_to_string(file).unwrap();
    assert!(found.starts_with("SalvageLog:\nvolume ") && found.contains("is not there"), "{found}");
    assert!(found.contains("/vicepa: 2 volumes, ") && found.contains("things are wrong"), "{found}");
    assert!(found.contains("/vicepb: 0 volumes, 0 vnodes: nothing is wrong"), "{found}");
    // One that is stopped already is checked too, and stays stopped.
    assert_eq!(bos("stop dafs -wait").0, 0);
    let (status, said, complained) = bos("salvage -partition b -showlog -forceDAFS");
    assert_eq!((status, complained.as_str()), (0, ""), "{said}");
    assert!(said.starts_with("Starting salvage.\n") && said.ends_with("nothing is wrong\n"), "{said}");
    assert!(bos("status dafs").1.contains("currently shutdown"), "{}", bos("status dafs").1);
    assert_eq!(bos("start dafs").0, 0);
    // The file server serves what is left.
    assert!(cell.does("listvol ONE").contains("user.x"));
    let other = cell.afar(&["bos", "create", &address, "salvage", "cron", "rm -rf x", "now", "-localauth"]);
    assert!(!{ other }.output().unwrap().stderr.is_empty());
}

/// `bos listkeys` showed the keys that there were when the server started.
#[test]
fn a_key_that_is_added_is_listed_without_a_restart() {
    let site = Site::new();
    assert!(!site.does("listkeys", "").contains("key version is 66"));
    let folder = site.state.path().join("etc/server");
    let mut keys = KeySet::load(&folder).unwrap();
    keys.insert(Key::rxkad(66, [0x13, 0x34, 0x57, 0x79, 0x9b, 0xbc, 0xdf, 0xf1])).unwrap();
    keys.save(&folder).unwrap();
    until!(site.does("listkeys", "").contains("key version is 66"), "{}", site.does("listkeys", ""));
}

/// A file server made one ticket for the cell's databases when it started: with the key of that ticket gone, and a database server started
/// anew, all its users were nobody.
#[tokio::test(flavor = "multi_thread")]
async fn users_stay_who_they_are_after_the_key_was_rotated_and_a_database_server_began_anew() {
    let mut cell = TwoServers::beside_databases("rotated");
    let volume = cell.create("ONE", "rotated");
    let folders: Vec<_> = (0..3).map(|server| cell.state(server).join("etc/server")).collect();
    let mut keys = KeySet::load(&folders[0]).unwrap();
    let old: Vec<_> = keys.iter().map(|key| (key.kind, key.kvno, key.subtype)).collect();
    keys.insert(Key::rxkad_krb5(77, EncType::AES256, &[7; 32])).unwrap();
    let rotate = |keys: &KeySet| {
        folders.iter().for_each(|folder| keys.save(folder).unwrap());
        std::thread::sleep(Duration::from_millis(2500));
    };
    rotate(&keys);
    for (kind, kvno, subtype) in old {
        keys.remove(kind, kvno, subtype);
    }
    rotate(&keys);
    cell.restart(DATABASES);
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let admin = Credentials::user("admin", "two.test", &keys).unwrap();
    let files = client.file_server(cell.address(0), &admin);
    let until = Instant::now() + Duration::from_secs(60);
    // On a busy machine the servers read the keys later. One whose answer does not come may have been made.
    let mut attempt = 0;
    while let Err(error) = files.create_file(AfsFid::root_of(volume), &format!("file{attempt}")).await {
        assert!(Instant::now() < until, "{error}");
        attempt += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
