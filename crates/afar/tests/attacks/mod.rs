//! Attacks on a cell, each a small program that says what it does and what must not come of it. docs/security.md lists them for
//! administrators. They are made from other addresses of this machine, by strangers and by ordinary users.

mod wire;

use crate::mounted::{self, Cell, Process, TIMEOUT, afar, can_mount, is_root, needs, own_address};
use afs_lab::caller::{Client, Credentials};
use afs_lab::real::proxy::Proxy;
use afs_wire::afsvol::{AfsVol, ListOneVolume, Monitor};
use afs_wire::bos::{Bozo, EnumerateInstance};
use afs_wire::ids::AfsFid;
use afs_wire::pt::{NameToID, Pr};
use afs_wire::rxafs::{GiveUpAllCallBacks, Rxafs, StoreData64};
use afs_wire::rxafscb::{InitCallBackState3, Rxafscb};
use afs_wire::vl::{GetEntryByNameU, ProbeServer, Vl, VlName};
use bytes::Bytes;
use rx_proto::debug::{self, DebugConnection, DebugKind, DebugRequest, DebugVersion};
use rx_proto::ids::{CallNumber, Channel, SecurityIndex, Seq, Serial};
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use rxgen::rpc::{Interface, Rpc};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::{Between, Stranger, ack, first_of_call};

/// The connection of a victim that speaks for itself.
const VICTIM: (u32, u32) = (0x6a5b_4c3d, 0x1234_5678);

fn port(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::from((address, port))
}

/// The root directory of the volume that anybody may write, by the VLDB.
async fn scratch(client: &Client, server: Ipv4Addr) -> AfsFid {
    let volumes = client.location_server(server, &Credentials::Anonymous);
    let name = VlName::try_from("scratch").unwrap();
    let entry = volumes.rpc(&GetEntryByNameU { name }).await.unwrap().entry;
    AfsFid::root_of(entry.volume_id[0])
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

/// Resident memory of a process, in bytes.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Another user of the machine looks through the folders of a cell and of a mount for files that they may read.
#[test]
fn another_user_of_the_machine_finds_nothing_in_the_folders_of_a_cell_and_of_a_cache() {
    require!(can_mount() && needs(&["setpriv"]));
    if !is_root() {
        return mounted::skip("it takes root to be another user");
    }
    let cell = Cell::new("attack-files");
    let cache = cell.cache("one");
    let (mount, place) = cell.mount("one");
    fs::write(place.join("before"), "the secret").unwrap();
    assert!(mount.stop().success());
    // As an older release left it.
    assert!(Command::new("chmod").args(["-R", "a+rX"]).arg(&cache).status().unwrap().success());
    let (mount, place) = cell.mount("one");
    fs::write(place.join("secret"), "the secret".repeat(10_000)).unwrap();
    assert_eq!(fs::read(place.join("before")).unwrap(), b"the secret");
    let look = "find \"$1\" \"$2\" -type f -readable 2> /dev/null; true";
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", look, "sh"])
        .arg(cell.folder.join("state"))
        .arg(&cache)
        .output()
        .unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    let is_public = |path: &&str| path.ends_with("/etc/CellServDB") || path.ends_with("/etc/ThisCell");
    let found: Vec<_> = found.lines().filter(|path| !is_public(path)).collect();
    assert!(found.is_empty(), "{found:?}");
    assert!(mount.stop().success());
}

/// Makes the folder `etc`, by which clients and commands find a cell's servers behind a proxy.
fn config_by_way_of(cell: &Cell, proxy: &Proxy) -> PathBuf {
    let etc = cell.folder.join("etc");
    fs::create_dir(&etc).unwrap();
    fs::create_dir(etc.join("server")).unwrap();
    for name in ["ThisCell", "server/ThisCell", "server/KeyFileExt", "server/UserList"] {
        fs::copy(cell.folder.join("state/etc").join(name), etc.join(name)).unwrap();
    }
    let cells = fs::read_to_string(cell.folder.join("state/etc/CellServDB")).unwrap();
    let cells = cells.replace(&cell.address.to_string(), &proxy.address.to_string());
    fs::write(etc.join("CellServDB"), &cells).unwrap();
    fs::write(etc.join("server/CellServDB"), &cells).unwrap();
    etc
}

/// Somebody on the way reads what a user writes into a file.
#[test]
fn nobody_on_the_way_reads_what_users_read_and_write() {
    const TEXT: &[u8] = b"what only the user may know";
    const AGAIN: &[u8] = b"what nobody else is to hear";
    require!(can_mount());
    let cell = Cell::new("attack-way");
    mounted::forget_rxgk(&cell.folder);
    let proxy = Proxy::start(own_address(), cell.address, 1);
    proxy.look_for(TEXT);
    config_by_way_of(&cell, &proxy);
    let (mount, place) = cell.mount_with("one", "etc", &["-localauth", "-as", "admin"]);
    fs::write(place.join("file"), TEXT).unwrap();
    fs::write(place.join("renamed"), TEXT).unwrap();
    assert!(mount.stop().success());
    let (mount, place) = cell.mount_with("two", "etc", &["-localauth", "-as", "admin"]);
    assert_eq!(fs::read(place.join("file")).unwrap(), TEXT);
    assert_eq!(proxy.found(), 0, "the text went by in the clear");
    let crypt = |words: &[&str]| {
        let mut command = afar([&["fs"], words].concat());
        command.current_dir(&place);
        mounted::succeed(command)
    };
    let level = "Security level is currently";
    assert_eq!(crypt(&["getcrypt"]), format!("{level} crypt (data security).\n"));
    // Root has asked for it, and has it back.
    crypt(&["setcrypt", "off"]);
    assert_eq!(crypt(&["getcrypt"]), format!("{level} clear.\n"));
    fs::write(place.join("clear"), TEXT).unwrap();
    assert!(proxy.found() > 0, "what is not encrypted goes by in the clear");
    crypt(&["setcrypt", "on"]);
    // Another text: the first may be sent again.
    proxy.look_for(AGAIN);
    let seen = proxy.found();
    fs::write(place.join("again"), AGAIN).unwrap();
    assert_eq!(proxy.found(), seen, "the text went by in the clear");
    assert!(mount.stop().success());
}

/// A server that takes nothing but encrypted calls, and a client that was told not to encrypt.
#[test]
fn a_server_that_wants_calls_encrypted_is_served_and_one_who_does_not_encrypt_is_told_how() {
    require!(can_mount());
    let mut cell = Cell::new("attack-level");
    mounted::forget_rxgk(&cell.folder);
    let (state, config) = (cell.folder.join("state"), cell.folder.join("server.toml"));
    let text = format!(
        "[server]\nstate = \"{}\"\nbind = \"{}\"\ncell = \"afar.local\"\n[security]\nmin_level = \"crypt\"\n",
        state.display(),
        cell.address
    );
    fs::write(&config, text).unwrap();
    cell.servers.kill();
    let mut command = afar(["server", "--config"]);
    command.arg(&config);
    cell.servers = Process::start(command, None);
    let (mount, place) = cell.mount_with("one", "state/etc", &["-localauth", "-as", "admin"]);
    fs::write(place.join("file"), "text").unwrap();
    let crypt = |word: &str| {
        let mut command = afar(["fs", "setcrypt", word]);
        // Where nothing is asked of the server.
        command.current_dir(cell.folder.join("one"));
        mounted::succeed(command)
    };
    crypt("off");
    let refused = fs::write(place.join("other"), "text").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}: {}", cell.log("one"));
    cell.logs("one", &[&cell.address.to_string(), "'fs setcrypt on' has calls encrypted"]);
    crypt("on");
    fs::write(place.join("other"), "text").unwrap();
    assert!(mount.stop().success());
}

/// Somebody on the way reads what an administrator's commands ask and hear.
#[test]
fn nobody_on_the_way_reads_what_administrators_do() {
    const USER: &str = "a.user.nobody.has.heard.of";
    let cell = Cell::new("attack-admin");
    let proxy = Proxy::start(own_address(), cell.address, 1);
    let etc = config_by_way_of(&cell, &proxy).join("server");
    let run = |line: &str, more: &str, text: &str| {
        let before = proxy.found();
        // Strings go as they are; arrays of characters, with four bytes for each.
        let wide = || text.bytes().flat_map(|byte| [0, 0, 0, byte]).collect();
        proxy.look_for(&if line.starts_with("bos") { text.as_bytes().to_vec() } else { wide() });
        let line = line.replace("SERVER", &proxy.address.to_string());
        let mut command = afar(line.split(' '));
        command.arg("-config").arg(&etc).arg(more);
        let output = mounted::run(command);
        assert!(output.status.success(), "{line} {more}: {output:?}");
        proxy.found() - before
    };
    for (line, text) in [
        (format!("pts createuser {USER}"), USER),
        (format!("pts examine {USER}"), USER),
        ("bos status SERVER".to_owned(), "ptserver"),
        ("vos partinfo SERVER".to_owned(), "/vicepa"),
    ] {
        assert_eq!(run(&line, "-localauth", text), 0, "'{line}' went by in the clear");
        if !line.contains("createuser") {
            assert!(run(&line, "-noauth", text) > 0, "'{line}' says what is looked for");
        }
    }
}

/// A stranger asks a server, by DEBUG, about the connections of others.
#[test]
fn a_stranger_who_asks_for_connections_learns_nothing_that_names_one() {
    let cell = Cell::new("attack-debug");
    let server = port(cell.address, 7000);
    let victim = Stranger::new(own_address(), server);
    victim.send(first_of_call(VICTIM, 0, 1, Rxafs::SERVICE_ID), &StoreData64::OPCODE.to_be_bytes());
    let pings: Vec<_> = victim.hear(Duration::from_millis(300)).into_iter().map(|(h, _)| h.serial).collect();
    let stranger = Stranger::new(own_address(), server);
    let mut asked = 0;
    let mut answered = 0;
    for kind in [DebugKind::CONNECTION, DebugKind::ANY_CONNECTION] {
        for index in 0..50 {
            let header = debug::request_header(PacketType::DEBUG, CallNumber(200 + index as u32));
            let body = DebugRequest { kind, index }.to_bytes();
            asked += HEADER_LEN + body.len();
            stranger.send(header, &body);
            for (_, answer) in stranger.hear(Duration::from_millis(4)) {
                answered += HEADER_LEN + answer.len();
                let Ok(connection) = DebugConnection::parse(&answer, DebugVersion::CURRENT) else { continue };
                assert_ne!(connection.epoch.0, VICTIM.0, "the epoch is told");
                assert!(connection.cid.with_channel(Channel::of(0)) != VICTIM.1, "the cid is told");
                let serial = connection.serial;
                assert!(!pings.contains(&serial) || serial.0 == 0, "the ping's serial is told: {serial:?}");
            }
        }
    }
    assert!(answered <= 20 * asked, "{asked} bytes of questions, {answered} of answers");
}

/// A stranger who knows a connection's numbers tries to have the connection's data sent to their own address.
#[test]
fn a_stranger_who_knows_a_connection_does_not_get_its_data() {
    const BYTES: u64 = 20_000_000;
    let cell = Cell::new("attack-takeover");
    let server = port(cell.address, 7000);
    let between = Between::new(own_address(), server);
    wait(async {
        let writer = Client::bind(port(own_address(), 0)).unwrap();
        let files = writer.file_server(cell.address, &Credentials::Anonymous);
        let fid = files.create_file(scratch(&writer, cell.address).await, "large").await.unwrap().fid;
        files.store(fid, 0, Bytes::from(vec![7; BYTES as usize]), BYTES).await.unwrap();
        let victim = Client::bind(port(own_address(), 0)).unwrap();
        let victims = victim.file_server(between.address(), &Credentials::Anonymous);
        victims.status(fid).await.unwrap();
        let fetch = tokio::spawn(async move { victims.fetch(fid, 0, BYTES).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        between.hold(true);
        let call = between.newest_request();
        let heard = tokio::task::spawn_blocking(move || {
            let stranger = Stranger::new(own_address(), server);
            let mut heard = Vec::new();
            for serial in 1..40 {
                let flags = Flags::CLIENT_INITIATED.with(Flags::REQUEST_ACK);
                let forged = Header {
                    kind: PacketType::ACK,
                    flags,
                    seq: Seq(0),
                    serial: Serial(100_000 + serial),
                    ..call
                };
                stranger.send(forged, &ack(Serial(0), 6));
                heard.extend(stranger.hear(Duration::from_millis(25)));
            }
            heard
        })
        .await
        .unwrap();
        between.hold(false);
        let data = heard.iter().filter(|(header, _)| header.kind == PacketType::DATA).count();
        assert_eq!(data, 0, "packets of the file came to the stranger");
        let got = tokio::time::timeout(TIMEOUT * 5, fetch).await.expect("the victim hangs").unwrap().unwrap();
        assert!(got == vec![7; BYTES as usize]);
    });
}

/// A stranger who knows a connection's numbers makes a call on it: that its client gives up what it was promised.
#[test]
fn a_stranger_who_knows_a_connection_makes_no_call_on_it() {
    let cell = Cell::new("attack-call");
    let server = port(cell.address, 7000);
    let between = Between::new(own_address(), server);
    wait(async {
        let writer = Client::bind(port(own_address(), 0)).unwrap();
        let files = writer.file_server(cell.address, &Credentials::Anonymous);
        let fid = files.create_file(scratch(&writer, cell.address).await, "file").await.unwrap().fid;
        let victim = Client::bind(port(own_address(), 0)).unwrap();
        victim.file_server(between.address(), &Credentials::Anonymous).status(fid).await.unwrap();
        let call = between.newest_request();
        tokio::task::spawn_blocking(move || {
            let stranger = Stranger::new(own_address(), server);
            for (channel, number) in [(0, call.call.0 + 1), (1, 1), (1, 2), (2, 1)] {
                let flags = Flags::CLIENT_INITIATED.with(Flags::LAST_PACKET);
                let (channel, call_number) = (Channel::of(channel), CallNumber(number));
                let forged =
                    Header { channel, call: call_number, seq: Seq(1), flags, serial: Serial(900), ..call };
                stranger.send(forged, &GiveUpAllCallBacks::OPCODE.to_be_bytes());
                stranger.hear(Duration::from_millis(50));
            }
        })
        .await
        .unwrap();
        // That it was asked who it is, for one.
        victim.take_heard();
        files.store(fid, 0, b"changed".as_slice(), 7).await.unwrap();
        assert!(victim.hears(TIMEOUT, |_| true).await, "the victim is not told of a change");
    });
}

/// One host begins more calls than a server has places for, and sends no more of them.
#[test]
fn one_host_with_half_open_calls_leaves_room_for_others() {
    const CALLS: u32 = 1200;
    const AT_ONCE: u32 = 40;
    let cell = Cell::new("attack-calls");
    let address = cell.address;
    let services = [
        (Rxafs::PORT, Rxafs::SERVICE_ID, StoreData64::OPCODE),
        (Vl::PORT, Vl::SERVICE_ID, GetEntryByNameU::OPCODE),
        (Pr::PORT, Pr::SERVICE_ID, NameToID::OPCODE),
        (AfsVol::PORT, AfsVol::SERVICE_ID, ListOneVolume::OPCODE),
        (Bozo::PORT, Bozo::SERVICE_ID, EnumerateInstance::OPCODE),
    ];
    wait(async {
        for (number, service, opcode) in services {
            let stop = Arc::new(AtomicBool::new(false));
            let has_begun = Arc::new(AtomicU32::new(0));
            let (is_over, count) = (Arc::clone(&stop), Arc::clone(&has_begun));
            let attack = tokio::task::spawn_blocking(move || {
                let stranger = Stranger::new(own_address(), port(address, number));
                let mut begun = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let next = CALLS.min(begun + AT_ONCE);
                    for call in begun..next {
                        let connection = (0x7000_0000, (call / 4) << 2);
                        stranger.send(first_of_call(connection, call % 4, 1, service), &opcode.to_be_bytes());
                    }
                    begun = next;
                    count.store(begun, Ordering::SeqCst);
                    stranger.hear(Duration::from_millis(5));
                }
                begun
            });
            let until = Instant::now() + TIMEOUT;
            while has_begun.load(Ordering::SeqCst) < CALLS && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            let client = Client::bind(port(own_address(), 0)).unwrap();
            let nobody = Credentials::Anonymous;
            let answer = async {
                match number {
                    n if n == Rxafs::PORT => {
                        let root = scratch(&client, address).await;
                        client.file_server(address, &nobody).status(root).await.map(drop)
                    }
                    n if n == Vl::PORT => {
                        client.location_server(address, &nobody).rpc(&ProbeServer {}).await.map(drop)
                    }
                    n if n == Pr::PORT => {
                        let names = NameToID { names: Default::default() };
                        client.protection_server(address, &nobody).rpc(&names).await.map(drop)
                    }
                    n if n == AfsVol::PORT => {
                        client.server::<AfsVol>(address, &nobody).rpc(&Monitor {}).await.map(drop)
                    }
                    _ => {
                        let bozo = client.server::<Bozo>(address, &nobody);
                        bozo.rpc(&EnumerateInstance { index: 0 }).await.map(drop)
                    }
                }
            };
            // Some services refuse strangers; but they answer, however long the attack goes on.
            let answer = tokio::time::timeout(TIMEOUT, answer).await;
            assert!(answer.is_ok(), "port {number} does not answer others");
            stop.store(true, Ordering::SeqCst);
            assert!(attack.await.unwrap() > 1024, "there were too few calls for an attack");
        }
    });
}

/// A stranger opens very many connections that never prove who they are, and sends calls with holes in them.
#[test]
fn what_strangers_send_takes_little_memory() {
    let cell = Cell::new("attack-memory");
    let stranger = Stranger::new(own_address(), port(cell.address, 7000));
    let before = memory(cell.servers.pid());
    for number in 0..1500 {
        let header = first_of_call((0x7100_0000, number << 2), 0, 1, Rxafs::SERVICE_ID);
        stranger.send(Header { security: SecurityIndex(2), ..header }, &StoreData64::OPCODE.to_be_bytes());
        if number % 20 == 0 {
            stranger.hear(Duration::from_millis(5));
        }
    }
    for number in 0..60u32 {
        for (channel, seq) in (0..4).flat_map(|channel| (1..100).map(move |seq| (channel, seq * 2))) {
            let header = first_of_call((0x7200_0000, number << 2), channel, 1, Rxafs::SERVICE_ID);
            stranger.send(Header { seq: Seq(seq), serial: Serial(seq), ..header }, &[0; 1400]);
        }
        stranger.hear(Duration::from_millis(5));
    }
    stranger.hear(Duration::from_millis(500));
    let more = memory(cell.servers.pid()).saturating_sub(before);
    println!("{} KiB more", more >> 10);
    assert!(more < 40 << 20, "{} MiB more than before", more >> 20);
}

/// A stranger tells a client that all promises of its server are off.
#[test]
fn a_stranger_does_not_make_a_client_forget_what_it_was_promised() {
    require!(can_mount());
    // (A client that stood still asks again by itself.)
    mounted::cell::at_once("attack-reset", |cell| {
        let (mount, place) = cell.mount("one");
        fs::write(place.join("file"), "text").unwrap();
        assert_eq!(fs::read(place.join("file")).unwrap(), b"text");
        let to = port(Ipv4Addr::LOCALHOST, callback_port(mount.pid()));
        let stranger = Stranger::new(own_address(), to);
        for call in 1..4 {
            let flags = Flags::CLIENT_INITIATED.with(Flags::LAST_PACKET);
            let header = first_of_call(VICTIM, 0, call, Rxafscb::SERVICE_ID);
            let body = [&InitCallBackState3::OPCODE.to_be_bytes()[..], &[0; 44]].concat();
            stranger.send(Header { flags, ..header }, &body);
            stranger.hear(Duration::from_millis(200));
        }
        // What is promised is opened and read without a word to the server.
        cell.servers.signal("STOP");
        let (done, is_done) = mpsc::channel();
        let path = place.join("file");
        let reader =
            std::thread::spawn(move || done.send(fs::read(&path).map_err(|error| error.to_string())));
        // A client that asks hears nothing for 12 seconds.
        let read = is_done.recv_timeout(Duration::from_secs(10));
        cell.servers.signal("CONT");
        drop(reader.join());
        assert_eq!(read, Ok(Ok(b"text".to_vec())), "the client asks its server again");
        assert!(mount.stop().success());
    });
}

/// The UDP port on which a client hears its servers.
fn callback_port(pid: u32) -> u16 {
    let link = |entry: fs::DirEntry| fs::read_link(entry.path()).unwrap_or_default();
    let open: Vec<_> =
        fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| link(entry.unwrap())).collect();
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let ports = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let socket = format!("socket:[{}]", fields[9]);
        let (_, port) = fields[1].split_once(':')?;
        open.iter().any(|link| link == Path::new(&socket)).then(|| u16::from_str_radix(port, 16).unwrap())
    });
    ports.max().expect("the client has a port")
}
