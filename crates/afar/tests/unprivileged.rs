//! The packaged way to run `afar server`: the systemd unit is one that systemd takes, and with the user, the capabilities and
//! the restrictions that it gives the server works; without any capability, too.

use crate::mounted::{Folder, ServerProcess, our_program, own_address, skip};
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use afs_lab::caller::{Client, Credentials};
use afs_wire::ids::{AfsFid, PartitionId, VolumeId};
use rx_security::KeySet;

/// A user that nobody is.
const UID: u32 = 61_234;
const VOLUME: VolumeId = VolumeId(536_870_915);
/// CAP_NET_BIND_SERVICE and CAP_NET_ADMIN, as the unit gives them.
const UNITS_CAPABILITIES: &str = "+net_bind_service,+net_admin";
/// What the server's ports ask for.
const WANTED_BUFFER_BYTES: u64 = 16 << 20;

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/afar-server.service")
}

/// A command as the user, with these capabilities and no way to more; `None` where that cannot be done, which is noted as a
/// skip.
fn as_user(capabilities: Option<&str>) -> Option<Command> {
    let mut command = Command::new("setpriv");
    let id = UID.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--no-new-privs"]);
    let sets = match capabilities {
        Some(these) => [
            format!("--inh-caps={these}"),
            format!("--ambient-caps={these}"),
            format!("--bounding-set=-all,{these}"),
        ],
        None => ["--inh-caps=-all".into(), "--ambient-caps=-all".into(), "--bounding-set=-all".into()],
    };
    command.args(sets);
    let probe = Command::new(command.get_program()).args(command.get_args()).arg("true").output();
    match probe {
        Ok(output) if output.status.success() => Some(command),
        Ok(output) => skip(String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => skip(&format!("setpriv: {error}")),
    }
}

/// The program, where the user can reach it.
fn program(state: &Folder, as_user: &Command) -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_afar"));
    let mut probe = Command::new(as_user.get_program());
    let reaches = probe.args(as_user.get_args()).args(["test", "-x"]).arg(&built).status().unwrap().success();
    if reaches {
        return built;
    }
    let copy = state.path().join("afar");
    // By another process: one that a test beside this starts at this moment would have the copy open for writing, and that cannot be run.
    assert!(Command::new("cp").arg(&built).arg(&copy).status().unwrap().success());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

/// A server as the user; its log goes to where the test's does.
fn start(state: &Folder, address: Ipv4Addr, mut command: Command) -> ServerProcess {
    chown(state.path(), Some(UID), Some(UID)).unwrap();
    let program = program(state, &command);
    let text = format!(
        "[server]\nstate = \"{state}\"\nbind = \"{address}\"\ncell = \"user.test\"\npartitions = [\"a={state}/vicepa\"]\n\
         [metrics]\nbind = \"{address}:9160\"\n",
        state = state.path().display()
    );
    let config = state.write("server.toml", &text);
    command.arg(program).args(["server", "--config"]).arg(config).env_remove("NOTIFY_SOCKET");
    ServerProcess::of(command, address)
}

/// A metric of the server.
fn metric(address: Ipv4Addr, name: &str) -> u64 {
    let mut stream = TcpStream::connect((address, 9160)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().unwrap()
}

/// A volume is made, written, and read again after the server was started again.
async fn works(state: &Folder, address: Ipv4Addr, server: ServerProcess, again: Command) {
    let keys = KeySet::load(&state.path().join("etc/server")).unwrap();
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let superuser = Credentials::superuser(&keys).unwrap();
    client.volume_server(address, &superuser).create(PartitionId(0), "users", VOLUME).await.unwrap();
    let files = client.file_server(address, &Credentials::user("admin", "user.test", &keys).unwrap());
    let fid = files.create_file(AfsFid::root_of(VOLUME), "f").await.unwrap().fid;
    files.store(fid, 0, vec![5; 100_000], 100_000).await.unwrap();
    assert!(server.stop().success());
    let server = start(state, address, again);
    assert!(files.fetch(fid, 0, 100_000).await.unwrap() == vec![5; 100_000]);
    assert!(server.stop().success());
    for name in ["etc/server/KeyFileExt", "databases/cell.redb", "vicepa/rows.redb", "sysid", "audit.log"] {
        assert_eq!(fs::metadata(state.path().join(name)).unwrap().uid(), UID, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_the_units_user_and_capabilities_works_and_has_large_buffers() {
    let Some(command) = as_user(Some(UNITS_CAPABILITIES)) else { return };
    let (state, address) = (Folder::new("user"), own_address());
    let server = start(&state, address, command);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap().split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(
        (line("Uid:"), line("CapEff:"), line("NoNewPrivs:")),
        (UID.to_string(), "0000000000001400".into(), "1".into())
    );
    // The kernel counts twice what is asked for, on each of five ports.
    assert!(metric(address, "rx_receive_buffer") >= 5 * 2 * WANTED_BUFFER_BYTES, "beyond net.core.rmem_max");
    works(&state, address, server, as_user(Some(UNITS_CAPABILITIES)).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_any_capability_works_too() {
    let Some(command) = as_user(None) else { return };
    let (state, address) = (Folder::new("nobody"), own_address());
    let server = start(&state, address, command);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    works(&state, address, server, as_user(None).unwrap()).await;
}

#[test]
fn the_unit_is_one_that_systemd_takes() {
    let available = Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status();
    if !available.is_ok_and(|status| status.success()) {
        return skip("there is no systemd-analyze");
    }
    let folder = Folder::new("unit");
    let text = fs::read_to_string(unit()).unwrap();
    // The program is not installed where the test runs.
    let text = text.replace("/usr/bin/afar", env!("CARGO_BIN_EXE_afar"));
    let file = folder.write("afar-server.service", &text);
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    // Other units of the machine may be told of, too.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("afar-server")).collect();
    assert!(ours.is_empty(), "{ours:?}");

    for line in [
        "User=afar",
        "AmbientCapabilities=CAP_NET_BIND_SERVICE CAP_NET_ADMIN",
        "Type=notify",
        "NoNewPrivileges=yes",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: the other tests here are about that");
    }
}

#[test]
fn the_packaged_configuration_is_one_that_the_server_takes() {
    let config = unit().with_file_name("server.toml");
    let output = our_program().args(["server", "--check", "--config"]).arg(config).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
