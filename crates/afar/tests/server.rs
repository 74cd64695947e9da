//! `afar server` as a process: it starts, stops, starts again, and says what to do when it cannot.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mounted::{Folder, ServerProcess, own_address, run, server_command};
use afs_lab::caller::{AccessList, Client, Credentials};
use afs_wire::abort::{PRPERM, VL_NOENT, VL_PERM, VOLSERBAD_ACCESS};
use afs_wire::afsvol::{AfsVol, Monitor, NukeVolume};
use afs_wire::bos::{Bozo, EnumerateInstance, Exec, GetCellName, GetStatus};
use afs_wire::ids::{AfsFid, HostAddr, PartitionId, ViceId, VolumeId, VolumeType};
use afs_wire::pt::{ListMax, NameToID, NewEntry, PRUSER, Pr};
use afs_wire::rxafs::{GetTime, Rxafs};
use afs_wire::vl::{AddrMask, DeleteEntry, GetAddrsU, GetNewVolumeId, ListAddrByAttributes, ProbeServer, Vl};
use bytes::Bytes;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{SecurityIndex, ServiceId};
use rx_proto::packet::Header;
use rx_proto::security::{ConnectionFacts, Null, SecurityClass};
use rx_security::rxkad::{self, Challenge, codes};
use rx_security::{KeySet, Level};
use rxgen::xdr::{CharVec, XdrArray, XdrString};
use rxgen::{Interface, Rpc};
use serde_json::Value;

fn client() -> Client {
    Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_makes_a_cell_and_a_second_one_goes_on_with_it() {
    let state = Folder::new("first");
    let server = ServerProcess::start(&state, &["--cell", "first.test"]);
    let address = server.address;
    for role in ["file", "vol", "vl", "pt", "bos"] {
        assert!(server.ready.contains(&format!(" {role}={address}:700")), "{}", server.ready);
    }
    let file = |name: &str| fs::read(state.path().join(name)).unwrap();
    let mode = |name: &str| fs::metadata(state.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(file("etc/ThisCell"), b"first.test\n");
    assert_eq!(file("etc/server/UserList"), b"admin\n");
    assert_eq!(mode("etc/server/KeyFileExt"), 0o600);
    let before = ["etc/server/KeyFileExt", "etc/server/CellServDB", "sysid"].map(file);

    let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
    let (client, superuser) = (client(), Credentials::superuser(&keys).unwrap());
    let volume = VolumeId(536_870_915);
    client.volume_server(address, &superuser).create(PartitionId(0), "kept", volume).await.unwrap();
    let admin = Credentials::user("admin", "first.test", &keys).unwrap();
    let files = client.file_server(address, &admin);
    let made = files.create_file(AfsFid::root_of(volume), "a file").await.unwrap();
    files.store(made.fid, 0, b"text".as_slice(), 4).await.unwrap();

    let pt = client.protection_server(address, &Credentials::Anonymous);
    let name = |name: &str| XdrArray::new(vec![CharVec::from_text(name).unwrap()]).unwrap();
    let admin_id = pt.rpc(&NameToID { names: name("admin") }).await.unwrap().ids.to_vec();
    assert_ne!(admin_id[0].0, 32766, "the administrator is in the protection database");
    let vl = client.location_server(address, &Credentials::Anonymous);
    let by = ListAddrByAttributes {
        mask: AddrMask::INDEX,
        ipaddr: HostAddr(0),
        index: 1,
        spare1: 0,
        uuid: client.uuid(),
    };
    let until = Instant::now() + Duration::from_secs(20);
    let addresses = loop {
        match vl.rpc(&GetAddrsU { by }).await {
            Ok(reply) => break reply.addrs.to_vec(),
            Err(error) => assert!(Instant::now() < until, "the file server is not registered: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(addresses[0].ip(), address);

    assert!(server.stop().success());
    let server = ServerProcess::start_at(&state, address, &[]);
    assert_eq!(["etc/server/KeyFileExt", "etc/server/CellServDB", "sysid"].map(file), before);
    assert_eq!(files.fetch(made.fid, 0, 100).await.unwrap(), b"text");
    assert_eq!(pt.rpc(&NameToID { names: name("admin") }).await.unwrap().ids.to_vec(), admin_id);
    let audit = String::from_utf8(file("audit.log")).unwrap();
    let line = audit.lines().find(|line| line.contains("CreateVolume")).expect("a line for the volume");
    for part in ["\"caller\":\"afs\"", "\"peer\":\"127.0.0.1:", "\"code\":0", "kept"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(server.stop().success());
}

/// The id of a name, 32766 if there is none.
async fn id_of(address: Ipv4Addr, name: &str) -> i32 {
    let names = XdrArray::new(vec![CharVec::from_text(name).unwrap()]).unwrap();
    let client = client();
    let pt = client.protection_server(address, &Credentials::Anonymous);
    pt.rpc(&NameToID { names }).await.unwrap().ids[0].0
}

/// The server makes the configuration before it binds its ports, and the administrator after. So a first start beside a running
/// OpenAFS failed between the two, and the second start left the cell without an administrator.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_fails_half_way_is_finished_by_the_next() {
    let state = Folder::new("half");
    let address = own_address();
    let folder = state.path().display().to_string();
    let taken = UdpSocket::bind((address, 7002)).unwrap();
    let args = ["--state", &folder, "--bind", &address.to_string(), "--cell", "half.test"];
    fails(&args, &["the port of role 'pt'"]);
    assert!(state.path().join("etc/server/ThisCell").exists(), "it has to fail between the two");
    drop(taken);
    // Without the role, nobody can be made.
    let server = ServerProcess::start_at(&state, address, &["--roles", "vl"]);
    assert!(server.stop().success());
    let _server = ServerProcess::start_at(&state, address, &[]);
    assert_eq!(id_of(address, "admin").await, 1);
    assert!(!state.path().join("etc/server/administrator-to-be-made").exists(), "the administrator is made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_is_killed_anywhere_is_finished_by_the_next() {
    let address = own_address();
    let (mut before, mut between) = (0, 0);
    for kill in 0..24_u32 {
        let state = Folder::new("killed-first");
        let mut command = server_command([std::ffi::OsStr::new("--state"), state.path().as_os_str()]);
        // Most with the database alone, so that the kills come where it is made.
        let roles = if kill % 4 == 3 { "file,vol,vl,pt,bos" } else { "pt" };
        command.args(["--bind", &address.to_string(), "--roles", roles]);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        let (etc, until) = (state.path().join("etc"), Instant::now() + Duration::from_secs(60));
        // Half of them when the configuration is begun, half when it is there; and some time later.
        let seen = if kill % 2 == 0 { etc.clone() } else { etc.join("server/ThisCell") };
        while !seen.exists() {
            assert!(Instant::now() < until, "nothing is made");
        }
        std::thread::sleep(Duration::from_micros(u64::from(kill / 2) * 700));
        child.kill().unwrap();
        child.wait().unwrap();
        match (etc.join("server/ThisCell").exists(), etc.join("server/administrator-to-be-made").exists()) {
            (false, _) => before += 1,
            (true, true) => between += 1,
            (true, false) => {}
        }
        let _server = ServerProcess::start_at(&state, address, &["--roles", roles]);
        assert_eq!(id_of(address, "admin").await, 1, "kill {kill}");
    }
    println!("killed before {before} times, between {between} times");
    assert!(between > 0, "no start was killed where it matters");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overseer_says_what_runs() {
    let state = Folder::new("overseer");
    let server = ServerProcess::start(&state, &[]);
    let client = client();
    let bos = client.server::<afs_wire::bos::Bozo>(server.address, &Credentials::Anonymous);
    let mut names = Vec::new();
    while let Ok(reply) = bos.rpc(&EnumerateInstance { index: names.len() as i32 }).await {
        names.push(reply.name);
    }
    assert_eq!(
        names.iter().map(|name| &name[..]).collect::<Vec<_>>(),
        [&b"ptserver"[..], b"vlserver", b"dafs"]
    );
    for instance in names {
        assert_eq!(bos.rpc(&GetStatus { instance }).await.unwrap().status.0, 1);
    }
}

#[test]
fn a_server_that_was_killed_starts_again() {
    let state = Folder::new("again");
    let mut server = ServerProcess::start(&state, &[]);
    let address = server.address;
    server.kill();
    assert!(ServerProcess::start_at(&state, address, &[]).stop().success());
}

#[test]
fn the_service_manager_is_told_and_signals_are_heard() {
    let state = Folder::new("notify");
    let path = state.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let told = || {
        let mut bytes = [0; 500];
        let len = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    };
    let address = own_address();
    let mut command = server_command([std::ffi::OsStr::new("--state"), state.path().as_os_str()]);
    command.args(["--bind", &address.to_string(), "--roles", "vl,pt"]).env("NOTIFY_SOCKET", &path);
    let server = ServerProcess::of(command, address);
    assert!(told().starts_with("READY=1\nSTATUS="));
    assert!(!server.ready.contains("file="), "{}", server.ready);

    let audit = state.path().join("audit.log");
    fs::rename(&audit, state.path().join("audit.log.1")).unwrap();
    server.signal("HUP");
    until!(audit.exists(), "the audit log is not opened anew");
    assert!(server.stop().success());
    assert_eq!(told(), "STOPPING=1");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_can_be_fetched_when_asked_for() {
    let state = Folder::new("metrics");
    let address = own_address();
    let text = format!(
        "[server]\nstate = \"{}\"\nbind = \"{address}\"\nroles = [\"pt\"]\n[metrics]\nbind = \"{address}:9160\"\n",
        state.path().display()
    );
    let config = state.write("server.toml", &text);
    let _server = ServerProcess::of(server_command(["--config".as_ref(), config.as_os_str()]), address);
    assert_eq!(id_of(address, "admin").await, 1);
    let mut stream = TcpStream::connect((address, 9160)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("# TYPE rx_connections gauge"), "{answer}");
    let counted = "rpcs_ended_total{interface=\"Pr\",rpc=\"NameToID\",result=\"ok\"} 1\n";
    assert!(answer.contains(counted), "{answer}");
    assert!(
        answer.contains("rpc_seconds_count{interface=\"Pr\",rpc=\"NameToID\",result=\"ok\"} 1\n"),
        "{answer}"
    );
}

/// rxkad as of a client that keeps to its level whatever the server demands, as if the demand were lost on the way.
#[derive(Debug)]
struct Stubborn(rxkad::Client);

impl SecurityClass for Stubborn {
    fn index(&self) -> SecurityIndex {
        self.0.index()
    }

    fn plaintext_capacity(&self, body: usize) -> usize {
        self.0.plaintext_capacity(body)
    }

    fn prepare(&mut self, header: &mut Header, plain: &[u8], out: &mut Vec<u8>) {
        self.0.prepare(header, plain, out);
    }

    fn finish(&mut self, bodies: &mut dyn Iterator<Item = &mut [u8]>) {
        self.0.finish(bodies);
    }

    fn open(&mut self, header: &Header, body: Bytes) -> Result<Bytes, AbortCode> {
        self.0.open(header, body)
    }

    fn handle_challenge(&mut self, facts: &ConnectionFacts, body: &[u8]) -> Result<Vec<u8>, AbortCode> {
        let Challenge { nonce, .. } = Challenge::parse(body)?;
        self.0.handle_challenge(facts, &Challenge { nonce, min_level: 0 }.to_bytes())
    }
}

/// What an RPC comes to on a connection of its own: 0, or the code of its end.
async fn code_of<I: Interface, R: Rpc>(
    client: &Client,
    host: Ipv4Addr,
    security: Box<dyn SecurityClass>,
    args: R,
) -> i32 {
    let service = ServiceId(I::SERVICE_ID);
    let connection = client.endpoint().connect((host, I::PORT).into(), service, security);
    connection.rpc(&args).await.map_or_else(|error| error.code().0, |_| 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_level_below_the_configured_one_is_refused_by_every_service() {
    for (least, refused) in [("auth", &[Level::Clear][..]), ("crypt", &[Level::Clear, Level::Auth])] {
        let state = Folder::new("level");
        let address = own_address();
        let text = format!(
            "[server]\nstate = \"{}\"\nbind = \"{address}\"\ncell = \"level.test\"\n[security]\nmin_level = \"{least}\"\n",
            state.path().display()
        );
        let config = state.write("server.toml", &text);
        let _server = ServerProcess::of(server_command(["--config".as_ref(), config.as_os_str()]), address);
        let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
        let Credentials::Token(token, _) = Credentials::user("admin", "level.test", &keys).unwrap() else {
            unreachable!()
        };
        let client = client();
        for level in Level::ALL {
            let expected = if refused.contains(&level) { codes::LEVELFAIL.0 } else { 0 };
            let honest = || rxkad::Client::new(Arc::clone(&token), level);
            for is_honest in [true, false] {
                let security = || -> Box<dyn SecurityClass> {
                    if is_honest { Box::new(honest()) } else { Box::new(Stubborn(honest())) }
                };
                let found = [
                    code_of::<Rxafs, _>(&client, address, security(), GetTime {}).await,
                    code_of::<AfsVol, _>(&client, address, security(), Monitor {}).await,
                    code_of::<Vl, _>(&client, address, security(), ProbeServer {}).await,
                    code_of::<Pr, _>(&client, address, security(), ListMax {}).await,
                    code_of::<Bozo, _>(&client, address, security(), GetCellName {}).await,
                ];
                assert_eq!(found, [expected; 5], "{level} where {least} is the least, honest: {is_honest}");
            }
        }
        let nobodys = code_of::<Rxafs, _>(&client, address, Box::new(Null), GetTime {}).await;
        assert_eq!(nobodys, 0, "who has no ticket is nobody, at any level");
    }
}

/// The lines of the audit log, each with all its fields.
fn audit_lines(state: &Folder) -> Vec<Value> {
    let text = fs::read_to_string(state.path().join("audit.log")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        for field in ["timestamp", "rpc", "what", "caller", "peer"] {
            assert!(line[field].is_string(), "{field} in {line}");
        }
        assert!(line["code"].is_i64(), "code in {line}");
        // How the program calls its types is nothing for those who read the log: `TransId(319)`.
        let what = line["what"].as_str().unwrap();
        let is_of_type = what.as_bytes().windows(2).any(|two| two[0].is_ascii_alphabetic() && two[1] == b'(');
        assert!(!is_of_type && !what.contains('{'), "{line}");
        let time = line["timestamp"].as_str().unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    lines
}

/// Changes of every kind, done and refused: procedure, caller and code of the lines that they leave, with a part of `what`;
/// first those that are always written down, then those of files.
async fn change_everything(state: &Folder, address: Ipv4Addr, cell: &str) -> [Vec<AuditLine>; 2] {
    let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
    let (client, superuser) = (client(), Credentials::superuser(&keys).unwrap());
    let admin = Credentials::user("admin", cell, &keys).unwrap();
    let new = |name: &str| NewEntry { name: XdrString::new(name).unwrap(), flag: PRUSER, owner: ViceId(0) };
    client.protection_server(address, &admin).rpc(&new("dora")).await.unwrap();
    client.protection_server(address, &superuser).rpc(&new("emil")).await.unwrap();
    client.protection_server(address, &Credentials::Anonymous).rpc(&new("mallory")).await.unwrap_err();
    let ids = GetNewVolumeId { bump_count: 3 };
    client.location_server(address, &admin).rpc(&ids).await.unwrap();
    client.location_server(address, &Credentials::Anonymous).rpc(&ids).await.unwrap_err();
    let entry = DeleteEntry { volid: VolumeId(4711), kind: VolumeType::READ_WRITE };
    client.location_server(address, &superuser).rpc(&entry).await.unwrap_err();

    let volume = VolumeId(536_870_915);
    client.volume_server(address, &admin).create(PartitionId(0), "audited", volume).await.unwrap();
    let nuke = NukeVolume { partition: PartitionId(0), volid: volume };
    client.volume_server(address, &Credentials::Anonymous).rpc(&nuke).await.unwrap_err();
    let exec = Exec { cmd: XdrString::new("true").unwrap() };
    client.server::<Bozo>(address, &admin).rpc(&exec).await.unwrap_err();

    let (files, nobody) =
        (client.file_server(address, &admin), client.file_server(address, &Credentials::Anonymous));
    let root = AfsFid::root_of(volume);
    let list = AccessList::granting([("system:administrators", AccessList::ALL), ("dora", AccessList::READ)]);
    files.set_access_list(root, &list).await.unwrap();
    nobody.set_access_list(root, &list).await.unwrap_err();
    let made = files.create_file(root, "noted").await.unwrap().fid;
    files.store(made, 0, b"text".as_slice(), 4).await.unwrap();
    nobody.create_file(root, "refused").await.unwrap_err();
    [
        vec![
            ("NewEntry", "admin", 0, "dora"),
            ("NewEntry", "the cell", 0, "emil"),
            ("NewEntry", "anonymous", PRPERM.0, "mallory"),
            ("GetNewVolumeId", "admin", 0, ""),
            ("GetNewVolumeId", "anonymous", VL_PERM.0, ""),
            ("DeleteEntry", "the cell", VL_NOENT.0, "4711"),
            ("CreateVolume", "admin", 0, "audited"),
            ("SetFlags", "admin", 0, "volume 536870915 (audited) on /vicepa"),
            ("EndTrans", "admin", 0, "volume 536870915 (audited) on /vicepa"),
            ("NukeVolume", "anonymous", VOLSERBAD_ACCESS.0, "536870915"),
            ("Exec", "admin", -455, "refused"),
            ("OldStoreACL", "admin", 0, "dora"),
            ("OldStoreACL", "anonymous", 49_733_388, "dora"),
        ],
        vec![
            ("CreateFile", "admin", 0, "noted"),
            ("StoreData64", "admin", 0, "4"),
            ("CreateFile", "anonymous", 49_733_388, "refused"),
        ],
    ]
}

/// Procedure, caller, code, and a part of `what`.
type AuditLine = (&'static str, &'static str, i32, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_has_every_change_with_who_and_what_came_of_it() {
    for has_files in [true, false] {
        let state = Folder::new("audit");
        let address = own_address();
        let text = format!(
            "[server]\nstate = \"{}\"\nbind = \"{address}\"\ncell = \"audit.test\"\n[audit]\nfiles = {has_files}\n",
            state.path().display()
        );
        let config = state.write("server.toml", &text);
        let server = ServerProcess::of(server_command(["--config".as_ref(), config.as_os_str()]), address);
        let [mut expected, of_files] = change_everything(&state, address, "audit.test").await;
        assert!(server.stop().success());
        if has_files {
            expected.extend(&of_files);
        }
        let lines = audit_lines(&state);
        for (rpc, caller, code, what) in expected {
            let is_it = |line: &&Value| {
                line["rpc"] == rpc
                    && line["caller"] == caller
                    && line["code"] == code
                    && line["what"].as_str().unwrap().contains(what)
            };
            let count = lines.iter().filter(is_it).count();
            assert_eq!(count, 1, "{rpc} of {what:?} by {caller} with code {code}, in {lines:#?}");
        }
        let count = lines.iter().filter(|line| line["rpc"] == "CreateFile").count();
        assert_eq!(count, if has_files { 2 } else { 0 }, "audit.files = {has_files}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_json_has_a_value_with_the_same_fields_on_each_line() {
    let state = Folder::new("json");
    let address = own_address();
    let text = format!(
        "[server]\nstate = \"{}\"\nbind = \"{address}\"\ncell = \"json.test\"\n\
         [log]\nformat = \"json\"\nfilter = \"debug\"\n",
        state.path().display()
    );
    let config = state.write("server.toml", &text);
    let path = state.path().join("stderr");
    let mut command = server_command(["--config".as_ref(), config.as_os_str()]);
    command.stderr(Stdio::from(fs::File::create(&path).unwrap()));
    let server = ServerProcess::of(command, address);
    // A name that would end a string, or a line, if it were written as it is.
    let name = "a\"b\nc";
    let names = XdrArray::new(vec![CharVec::from_text(name).unwrap()]).unwrap();
    let client = client();
    client.protection_server(address, &Credentials::Anonymous).rpc(&NameToID { names }).await.unwrap();
    let files = client.file_server(address, &Credentials::Anonymous);
    files.create_file(AfsFid::root_of(VolumeId(4711)), name).await.unwrap_err();
    server.signal("HUP");
    until!(
        fs::read_to_string(&path).unwrap().contains("the keys were read anew"),
        "nothing is said of the signal"
    );
    assert!(server.stop().success());
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        for field in ["timestamp", "level", "target", "message"] {
            assert!(line[field].is_string(), "{field} in {line}");
        }
    }
    let find = |level: &str, message: &str| {
        lines.iter().find(|line| line["level"] == level && line["message"] == message)
    };
    let made = find("INFO", "a new cell was made").expect("the first start is told of");
    assert_eq!((&made["cell"], &made["administrator"]), (&"json.test".into(), &"admin".into()));
    let refused = find("DEBUG", "refused").expect("a refused call is told of");
    assert_eq!(refused["rpc"], "CreateFile");
}

#[test]
fn a_start_warns_where_other_servers_do_not_share_the_databases() {
    let state = Folder::new("unshared");
    let (address, other) = (own_address(), own_address());
    let text = format!(
        "[server]\nstate = \"{}\"\nbind = \"{address}\"\n[databases]\nservers = [\"{address}\", \"{other}\"]\n",
        state.path().display()
    );
    let config = state.write("server.toml", &text);
    let path = state.path().join("stderr");
    let mut command = server_command(["--config".as_ref(), config.as_os_str()]);
    command.stderr(Stdio::from(fs::File::create(&path).unwrap()));
    assert!(ServerProcess::of(command, address).stop().success());
    let said = fs::read_to_string(&path).unwrap();
    assert!(said.contains("do not share the databases") && said.contains(&other.to_string()), "{said}");
}

/// A server that does not start, and parts of what it says.
fn fails(args: &[&str], parts: &[&str]) {
    let output = run(server_command(args));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} succeeded: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?}: {part} in: {said}");
    }
    assert!(output.stdout.is_empty(), "it did not say that it is ready");
}

#[test]
fn what_keeps_a_server_from_starting_is_said_with_what_to_do() {
    let state = Folder::new("fails");
    let folder = state.path().display().to_string();
    let address = own_address();
    let bind = address.to_string();

    let taken = UdpSocket::bind((address, 7003)).unwrap();
    let args = ["--state", &folder, "--bind", &bind, "--roles", "vl"];
    fails(&args, &["afar server: the port of role 'vl'", &format!("{address}:7003"), "in use"]);
    drop(taken);

    let not_ours = ["--state", &folder, "--bind", "198.51.100.7", "--roles", "vl"];
    fails(&not_ours, &["the port of role 'vl'", "198.51.100.7"]);
    fails(&["--state", "/proc/nowhere"], &["audit log", "/proc/nowhere"]);
    fails(
        &["--state", &folder, "--roles", "file,web"],
        &["'web'", "a role is one of file, vol, vl, pt, bos"],
    );
    fails(&["--state", &folder, "--roles", "vol"], &["server.roles", "add \"file\""]);

    let check = |text: &str, parts: &[&str]| {
        let config = state.write("server.toml", text).display().to_string();
        fails(&["--config", &config, "--state", &folder, "--bind", &bind], parts);
    };
    check("[server]\nrole = [\"vl\"]\n", &["server.toml", "line 2", "`role`", "`roles`"]);
    check("[file]\nbusy_at = -1\n", &["server.toml", "line 2", "busy_at"]);
    check("[server]\npartitions = [\"/vicepzz9\"]\n", &["server.partitions", "/vicepXX, or XX=FOLDER"]);
    // A file where the folder should be, as root may write into any folder.
    let file = state.write("a-file", "").display().to_string();
    let text = format!("[server]\npartitions = [\"a={file}\"]\n");
    check(&text, &["partition /vicepa in", "a-file cannot be opened"]);
    check("[server]\nbos_config = \"/nowhere/BosConfig\"\n", &["/nowhere/BosConfig: there is no such file"]);

    let other = ["--state", &folder, "--bind", &bind, "--cell", "other.test"];
    fails(&other, &["has the cell", "not other.test", "--state"]);

    state.write("etc/server/NoAuth", "");
    fails(&["--state", &folder, "--bind", &bind], &["NoAuth", "everyone could administer", "remove it"]);
    fs::remove_file(state.path().join("etc/server/NoAuth")).unwrap();
    state.write("etc/server/KeyFileExt", "damaged");
    fails(&["--state", &folder, "--bind", &bind], &["KeyFileExt"]);
}

#[test]
fn two_servers_do_not_share_a_state_folder() {
    let state = Folder::new("shared");
    let _server = ServerProcess::start(&state, &[]);
    let folder = state.path().display().to_string();
    fails(&["--state", &folder, "--bind", &own_address().to_string()], &["cell.redb"]);
}

#[test]
fn a_stock_bos_config_is_checked_and_its_options_noted() {
    let state = Folder::new("check");
    let bos = state.write(
        "BosConfig",
        "bnode dafs dafs 1\nparm /usr/lib/openafs/dafileserver -p 23 -busyat 600\nparm /usr/lib/openafs/davolserver\n\
         parm /usr/lib/openafs/salvageserver\nparm /usr/lib/openafs/dasalvager\nend\n",
    );
    let output = run(server_command(["--check", "--bos-config", &bos.display().to_string()]));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("line 2: -p does nothing here: calls are tasks"), "{said}");
    assert!(!said.contains("-busyat"), "that one is honoured: {said}");
}
