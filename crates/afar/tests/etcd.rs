//! Database servers over an etcd as processes: what they see of each other, what tools show, and what is refused.

use crate::mounted::{Folder, ServerProcess, our_program, own_address, run, server_command, skip};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::etcd_cell::{
    EtcdCell, NO_QUORUM, at_last, checked, id_of, is_here, metrics, new_user, new_volume, said, stock_server,
    volume_entry,
};
use afs_lab::caller::{Client, Credentials};
use afs_lab::peers::etcd::Etcd;
use afs_wire::ids::{Name, ViceId, VolumeId};
use afs_wire::pt::{NameToID, NewEntry, PRUSER};
use afs_wire::rxafs::GetVolumeInfo;
use afs_wire::ubik::vote::{Debug, Vote};
use afs_wire::vl::{GetEntryByNameN, GetNewVolumeId, VlName};
use rx_proto::abort::AbortCode;
use rxgen::xdr::{CharVec, XdrArray, XdrString};

#[tokio::test(flavor = "multi_thread")]
async fn each_server_takes_changes_and_all_show_them_at_once() {
    require!(is_here());
    let mut cell = EtcdCell::start("together", 1, 3, "");
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let superuser = cell.superuser();
    let servers: Vec<_> =
        cell.addresses.iter().map(|address| client.protection_server(*address, &superuser)).collect();
    for round in 0..30 {
        let name = format!("user{round}");
        let id = new_user(&servers[round % 3], &name).await;
        for server in &servers {
            assert_eq!(id_of(server, &name).await, id, "{name}");
        }
    }
    for address in &cell.addresses {
        let vote = client.server::<Vote>(*address, &Credentials::Anonymous);
        let found = async || {
            let state = vote.rpc(&Debug {}).await.unwrap().db.state;
            (state.am_sync_site, state.n_servers, state.recovery_state)
        };
        until!(await found().await == (1, 1, 0x1f), "{:?}", found().await);
        let quorum = "afs_server_database_quorum{database=\"PTDB\"} 1\n";
        until!(await metrics(*address).contains(quorum), "{}", metrics(*address));
    }

    // What alerts and the dashboard ask for; afar/tests/monitoring.rs looks at all that needs no etcd.
    let shown = metrics(cell.addresses[0]);
    let mut asked_for = BTreeSet::new();
    for text in [
        include_str!("../../../packaging/prometheus/afar.rules.yml"),
        include_str!("../../../packaging/grafana/afar.json"),
    ] {
        let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        asked_for.extend(words.filter(|word| word.starts_with("afs_server_database_")));
    }
    assert!(asked_for.len() > 1, "{asked_for:?}");
    for name in asked_for {
        for database in ["VLDB", "PTDB"] {
            assert!(shown.contains(&format!("\n{name}{{database=\"{database}\"}} ")), "no {name} in {shown}");
        }
    }

    let (is_good, text) = checked(|| run(cell.command(1, &["--check"])));
    assert!(is_good, "{text}");

    // One that has made keys of its own is none of them.
    let stranger = Folder::new("stranger");
    let text = std::fs::read_to_string(cell.config(2)).unwrap();
    let own = own_address();
    let text = text.replace(&cell.addresses[2].to_string(), &own.to_string());
    let text = text.replace(cell.states[2].path().to_str().unwrap(), stranger.path().to_str().unwrap());
    let config = stranger.write("server.toml", &text);
    let refused = run(server_command(["--config", config.to_str().unwrap()]));
    assert!(
        !refused.status.success() && said(&refused).contains("copy it from a server of the cell"),
        "{}",
        said(&refused)
    );

    // Without etcd they go on telling what they know, and say so.
    cell.etcd.kill(0);
    let has_quorum = |metrics: String| {
        metrics.lines().any(|line| line.starts_with("afs_server_database_quorum") && line.ends_with(" 1"))
    };
    until!(await !has_quorum(metrics(cell.addresses[0])), "the metrics do not show that etcd is away");
    let state = client
        .server::<Vote>(cell.addresses[0], &Credentials::Anonymous)
        .rpc(&Debug {})
        .await
        .unwrap()
        .db
        .state;
    assert_eq!((state.am_sync_site, state.sync_site_until.0, state.recovery_state), (0, 0, 6));
    let new = NewEntry { name: XdrString::new(b"late".to_vec()).unwrap(), flag: PRUSER, owner: ViceId(0) };
    assert_eq!(servers[0].rpc(&new).await.unwrap_err().code(), Some(NO_QUORUM));
    let names = XdrArray::new(vec![CharVec::from_text("user7").unwrap()]).unwrap();
    assert_ne!(servers[0].rpc(&NameToID { names }).await.unwrap().ids[0].0, 32766);
    let check = run(cell.command(1, &["--check"]));
    assert!(!check.status.success() && said(&check).contains("databases.etcd"), "{}", said(&check));
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_read_everything_anew_after_etcd_was_restored_from_a_snapshot() {
    require!(is_here());
    let mut cell = EtcdCell::start("restored", 1, 2, "");
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let superuser = cell.superuser();
    let [first, second] = [0, 1].map(|server| client.protection_server(cell.addresses[server], &superuser));
    let knows = async |name: &str| {
        let mut known = [false; 2];
        for (known, server) in known.iter_mut().zip([&first, &second]) {
            *known = id_of(server, name).await != ViceId::ANONYMOUS;
        }
        known
    };
    new_user(&first, "before").await;
    let snapshot = cell.etcd.folder().join("snapshot").display().to_string();
    let (is_saved, text) = cell.etcd.control(&["snapshot", "save", &snapshot]);
    assert!(is_saved, "{text}");
    new_user(&second, "lost").await;
    for name in ["before", "lost"] {
        assert_eq!(knows(name).await, [true; 2], "{name}");
    }

    cell.etcd.kill(0);
    let data = cell.etcd.folder().join("m0");
    std::fs::remove_dir_all(&data).unwrap();
    // Nobody asks the only member where others reach it.
    let peer = "http://127.0.0.1:1";
    let (cluster, data) = (format!("m0={peer}"), data.display().to_string());
    let restore = ["snapshot", "restore", &snapshot, "--data-dir", &data, "--name", "m0"];
    let of_cluster = ["--initial-cluster", &cluster, "--initial-advertise-peer-urls", peer];
    let (is_restored, text) = cell.etcd.control(&[&restore[..], &of_cluster].concat());
    assert!(is_restored, "{text}");
    cell.etcd.restart(0);
    cell.etcd.wait_for(0);
    until!(await knows("lost").await == [false; 2], "a server goes on with what etcd does not have");
    assert_eq!(knows("before").await, [true; 2]);
    // Their watches go on too.
    for (server, name) in [(&first, "again"), (&second, "once-more")] {
        new_user(server, name).await;
        assert_eq!(knows(name).await, [true; 2], "{name}");
    }
}

#[test]
fn a_check_refuses_servers_that_do_not_share_the_databases() {
    let state = Folder::new("mixed");
    let (own, other) = (own_address(), own_address());
    let start = |etcd: &str| {
        let text = format!(
            "[server]\nroles = [\"vl\"]\nstate = {:?}\nbind = \"{own}\"\n[databases]\n{etcd}servers = [\"{own}\", \"{other}\"]\n",
            state.path()
        );
        let config = state.write("server.toml", &text);
        run(server_command(["--config", config.to_str().unwrap(), "--check"]))
    };
    // Nobody is there to answer, so it is not asked again.
    let alone = start("");
    let text = said(&alone);
    assert!(!alone.status.success() && text.contains(&other.to_string()), "{text}");
    assert!(text.contains("databases.etcd"), "{text}");
    // A file server does not use the etcd of a server.toml that it shares with others.
    let text = format!("server = {{ roles = [\"file\"], state = {:?} }}\n", state.path());
    let config = state.write("file.toml", &(text + "databases.etcd = [\"http://127.0.0.1:1\"]\n"));
    let output = run(server_command(["--config", config.to_str().unwrap(), "--check"]));
    assert!(output.status.success() && said(&output).is_empty(), "{}", said(&output));
    stock_server(other);
    for etcd in ["", "etcd = [\"http://127.0.0.1:1\"]\n"] {
        let (is_good, mixed) = checked(|| start(etcd));
        assert!(!is_good, "{mixed}");
        assert!(mixed.contains(&other.to_string()) && mixed.contains("OpenAFS 1.8.9"), "{mixed}");
    }
}

/// It took each server of afar for one that shares the databases. Two that do not give out the same ids.
#[test]
fn a_check_finds_a_server_that_keeps_its_databases_elsewhere_also_while_they_are_changed() {
    require!(is_here());
    let mut cell = EtcdCell::start("elsewhere", 1, 2, "");
    let check = |cell: &EtcdCell, server| checked(|| run(cell.command(server, &["--check"])));
    let (made, stops) = (AtomicU32::new(0), AtomicBool::new(false));
    let change = || {
        while !stops.load(Ordering::Relaxed) {
            let mut command = our_program();
            let name = format!("user{}", made.fetch_add(1, Ordering::Relaxed));
            command.args(["pts", "createuser", &name, "-localauth", "-config"]);
            command.arg(cell.states[0].path().join("etc/server"));
            let output = run(command);
            assert!(output.status.success(), "{}", said(&output));
        }
    };
    let checks: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(change);
        let checks = (0..10).map(|round| check(&cell, round % 2)).collect();
        stops.store(true, Ordering::Relaxed);
        checks
    });
    assert_eq!(checks, [const { (true, String::new()) }; 10]);
    assert!(made.load(Ordering::Relaxed) > 1, "there were changes meanwhile");

    let own = std::fs::read_to_string(cell.config(1)).unwrap();
    let first = cell.addresses[0].to_string();
    // By another prefix there is nothing, or what another cell has.
    let prefixed = own.replace("[databases]\n", "[databases]\netcd_prefix = \"another/\"\n");
    cell.states[1].write("server.toml", &prefixed);
    let (is_good, text) = check(&cell, 1);
    assert!(!is_good && text.contains(&first) && text.contains("keeps its databases elsewhere"), "{text}");
    assert!(text.contains("databases.etcd_prefix"), "{text}");
    assert!(text.contains("there are no databases under another/"), "{text}");
    cell.states[1].write("server.toml", &own);
    assert_eq!(check(&cell, 1), (true, String::new()));

    // A server that was started alone, with a file.
    cell.servers[0].take().unwrap().stop();
    let with_file = std::fs::read_to_string(cell.config(0)).unwrap();
    let is_of_database = |line: &&str| !line.starts_with("etcd") && !line.starts_with("servers");
    let with_file: Vec<_> = with_file.lines().filter(is_of_database).collect();
    cell.states[0].write("server.toml", with_file.join("\n"));
    cell.start(0);
    let (is_good, text) = check(&cell, 1);
    assert!(!is_good && text.contains(&first) && text.contains("keeps its databases in a file"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_are_copied_from_a_file_to_etcd_and_back() {
    require!(is_here());
    let etcd = Etcd::start("copied", 1);
    let state = Folder::new("copied");
    let address = own_address();
    let general = format!(
        "[server]\nroles = [\"vl\", \"pt\"]\ncell = \"copied.test\"\nstate = {:?}\nbind = \"{address}\"\n",
        state.path()
    );
    let in_file = state.write("file.toml", &general);
    let members = format!("[databases]\netcd = [{:?}]\n", etcd.endpoints()[0]);
    let in_etcd = state.write("etcd.toml", format!("{general}{members}"));
    let serve = |config: &std::path::Path| {
        let mut command = server_command(["--config"]);
        command.arg(config);
        ServerProcess::of(command, address)
    };
    let copy = |more: &[&str]| {
        let mut command = our_program();
        command.args(["celldb", "copy", "--config"]).arg(&in_etcd).args(more);
        run(command)
    };
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let make = async |name: &str| {
        let keys = rx_security::KeySet::load(&state.path().join("etc/server")).unwrap();
        let pt = client.protection_server(address, &Credentials::superuser(&keys).unwrap());
        new_user(&pt, name).await
    };
    let make_volume = async |name: &str| {
        let keys = rx_security::KeySet::load(&state.path().join("etc/server")).unwrap();
        let vl = client.location_server(address, &Credentials::superuser(&keys).unwrap());
        let id = at_last(&vl, &GetNewVolumeId { bump_count: 1 }).await.new_volid;
        new_volume(&vl, volume_entry(name, id)).await;
        id
    };
    let found = async |users: &[(&str, ViceId)], volumes: &[(&str, VolumeId)]| {
        let pt = client.protection_server(address, &Credentials::Anonymous);
        for (name, id) in users {
            assert_eq!(id_of(&pt, name).await, *id, "{name}");
        }
        let vl = client.location_server(address, &Credentials::Anonymous);
        for (name, id) in volumes {
            let text = VlName::new(name.as_bytes().to_vec()).unwrap();
            let entry = at_last(&vl, &GetEntryByNameN { name: text }).await.entry;
            assert_eq!(entry.volume_id[0], *id, "{name}");
        }
    };
    let server = serve(&in_file);
    let first = make("first").await;
    let volume = make_volume("a.volume").await;
    let refused = copy(&["--to", "etcd"]);
    assert!(!refused.status.success() && said(&refused).contains("another process"), "{}", said(&refused));
    assert!(server.stop().success());

    let copied = copy(&["--to", "etcd"]);
    assert!(copied.status.success() && said(&copied).contains("PTDB: "), "{}", said(&copied));
    let server = serve(&in_etcd);
    let second = make("second").await;
    assert_eq!(second.0, first.0 + 1, "ids go on where they were");
    let another = make_volume("another").await;
    assert!(another.0 > volume.0, "ids of volumes too");
    found(&[("first", first), ("second", second)], &[("a.volume", volume), ("another", another)]).await;
    assert!(server.stop().success());

    let files = [state.path().join("vldb.DB0"), state.path().join("prdb.DB0")];
    let mut command = our_program();
    command
        .arg("export")
        .arg("--config")
        .arg(&in_etcd)
        .arg("--vldb")
        .arg(&files[0])
        .arg("--prdb")
        .arg(&files[1]);
    let exported = run(command);
    assert!(exported.status.success() && said(&exported).contains("2 volumes"), "{}", said(&exported));

    // An etcd that has nothing, as by a wrong address or prefix, replaces nothing.
    let prefixed = state.write("empty.toml", format!("{general}{members}etcd_prefix = \"another/cell\"\n"));
    let mut command = our_program();
    command.args(["celldb", "copy", "--to", "file", "--replace", "--config"]).arg(&prefixed);
    let refused = run(command);
    assert!(
        !refused.status.success() && said(&refused).contains("there is no PTDB in"),
        "{}",
        said(&refused)
    );

    let refused = copy(&["--to", "file"]);
    assert!(!refused.status.success() && said(&refused).contains("--replace"), "{}", said(&refused));
    let copied = copy(&["--to", "file", "--replace"]);
    assert!(copied.status.success(), "{}", said(&copied));
    let server = serve(&in_file);
    assert_eq!(make("third").await.0, second.0 + 1);
    found(&[("first", first), ("second", second)], &[("a.volume", volume), ("another", another)]).await;
    assert!(server.stop().success());
}

/// That databases which servers change just now are not replaced is in `crates/afs-celldb/src/fill.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn databases_that_are_replaced_are_taken_by_running_servers() {
    require!(is_here());
    let cell = EtcdCell::start("replaced", 1, 2, "");
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let superuser = cell.superuser();
    let servers: Vec<_> =
        cell.addresses.iter().map(|address| client.protection_server(*address, &superuser)).collect();
    let make = async |server: usize, name: &str| {
        let name = XdrString::new(name.as_bytes().to_vec()).unwrap();
        servers[server].rpc(&NewEntry { name, flag: PRUSER, owner: ViceId(0) }).await
    };
    let find = async |server: usize, name: &str| id_of(&servers[server], name).await;
    let file = cell.states[0].path().join("prdb.DB0");
    let afar = |verb: &str, more: &[&str]| {
        let mut command = our_program();
        command.arg(verb).arg("--config").arg(cell.config(0)).arg("--prdb").arg(&file).args(more);
        command
    };
    let kept = new_user(&servers[0], "kept").await;
    let exported = run(afar("export", &[]));
    assert!(exported.status.success(), "{}", said(&exported));

    until!(await make(0, "gone").await.is_ok(), "server 0 takes no change");
    let imported = run(afar("import", &["--replace"]));
    assert!(imported.status.success(), "{}", said(&imported));
    for server in 0..2 {
        // Each reads the database anew, and says that it does not know while it does.
        until!(await make(server, &format!("new{server}")).await.is_ok(), "server {server} takes no change");
    }
    for server in 0..2 {
        assert_eq!(find(server, "kept").await, kept);
        assert_eq!(find(server, "new0").await.0, kept.0 + 1);
        assert_eq!(find(server, "gone").await, ViceId::ANONYMOUS);
    }
}

/// A file server answered from its own copy of the VLDB, however old that was.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_server_that_cannot_know_where_a_volume_is_says_so() {
    require!(is_here());
    let etcd = Etcd::start("located", 1);
    let (state, address) = (Folder::new("located"), own_address());
    let text = format!(
        "[server]\nroles = [\"file\", \"vol\", \"vl\", \"pt\"]\ncell = \"located.test\"\nstate = {:?}\nbind = \"{address}\"\n\
         [databases]\netcd = {:?}\nservers = [\"{address}\"]\nmemory_seconds = 0\n",
        state.path(),
        etcd.endpoints(),
    );
    let config = state.write("server.toml", &text);
    let mut start = server_command(["--config"]);
    start.arg(config);
    let _server = ServerProcess::of(start, address);
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let keys = rx_security::KeySet::load(&state.path().join("etc/server")).unwrap();
    let vl = client.location_server(address, &Credentials::superuser(&keys).unwrap());
    let id = at_last(&vl, &GetNewVolumeId { bump_count: 1 }).await.new_volid;
    new_volume(&vl, volume_entry("a.volume", id)).await;
    let files = client.file_server(address, &Credentials::Anonymous);
    let ask = async || {
        let name = Name::new(b"a.volume".to_vec()).unwrap();
        files.rpc(&GetVolumeInfo { name }).await.map(drop).map_err(|error| error.code())
    };
    let until_it_says = async |expected, what: &str| {
        until!(await ask().await == expected, "{what}");
    };
    until_it_says(Ok(()), "it is there").await;
    etcd.stop(0, true);
    // What it knew a moment ago counts for 20 ms.
    until_it_says(Err(Some(NO_QUORUM)), "it goes on telling what it cannot know").await;
    etcd.stop(0, false);
    until_it_says(Ok(()), "etcd is back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_stopped_sends_clients_to_another_server_at_once() {
    require!(is_here());
    let cell = EtcdCell::start("stopped", 1, 2, "");
    let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let config = cell.states[0].path().join("etc/server");
    let does = |words: &[&str]| {
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).args(["-localauth", "-config"]).arg(&config);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        said(&output)
    };
    let afar = env!("CARGO_BIN_EXE_afar");
    let is_stock_here =
        ["pts", "vos"].iter().all(|tool| std::process::Command::new(tool).arg("help").output().is_ok());
    if !is_stock_here {
        skip::<()>("there are none of OpenAFS's tools: Debian's openafs-client has them");
    }
    let [first, second] = [0, 1].map(|server: usize| cell.addresses[server].to_string());
    for (stopped, other) in [(&first, &second), (&second, &first)] {
        does(&[afar, "bos", "stop", stopped, "vlserver", "ptserver", "-wait"]);
        // It says so itself, so nobody waits as for who does not answer.
        let address = stopped.parse().unwrap();
        let role = client.protection_server(address, &Credentials::Anonymous);
        let refused = role.rpc(&NameToID { names: XdrArray::default() }).await.unwrap_err();
        assert_eq!(refused.code(), Some(AbortCode::CALL_DEAD.0), "{refused}");
        let name = format!("user-{stopped}").replace('.', "-");
        let commands: [&[&str]; 4] = [
            &["pts", "createuser", &name],
            &["pts", "examine", &name],
            &["vos", "listvldb"],
            &["pts", "delete", &name],
        ];
        commands.iter().for_each(|words| drop(does(&[&[afar], *words].concat())));
        commands.iter().filter(|_| is_stock_here).for_each(|words| drop(does(words)));
        does(&[afar, "bos", "start", stopped, "vlserver", "ptserver"]);
        for server in [stopped, other] {
            let status = does(&[afar, "bos", "status", server]);
            assert_eq!(status.matches("running normally").count(), 2, "{status}");
        }
    }
}

/// A first start that was killed after the databases were made in etcd and before it had noted so took them for those of another
/// cell the next time, and said how to begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_that_ends_when_the_databases_are_made_is_finished_by_the_next() {
    require!(is_here());
    let etcd = Etcd::start("cut", 1);
    let (state, address) = (Folder::new("cut"), own_address());
    let (folder, members) = (state.path().display(), etcd.endpoints());
    let config = |folder: &dyn std::fmt::Display| {
        format!(
            "[server]\nroles = [\"pt\"]\ncell = \"cut.test\"\nstate = \"{folder}\"\nbind = \"{address}\"\n[databases]\n\
             etcd = {members:?}\nservers = [\"{address}\"]\n"
        )
    };
    let file = state.write("server.toml", config(&folder));
    let start = || server_command([std::ffi::OsStr::new("--config"), file.as_os_str()]);
    // The configuration is made before the ports are bound.
    let taken = UdpSocket::bind((address, 7002)).unwrap();
    let output = run(start());
    assert!(!output.status.success() && said(&output).contains("the port of role 'pt'"), "{}", said(&output));
    drop(taken);
    // The note cannot be removed, as something is mounted there: that is where the second start ends.
    let note = state.path().join("etc/server/administrator-to-be-made");
    let mount = |args: &[&str]| {
        let status = std::process::Command::new(args[0]).args(&args[1..]).arg(&note).status();
        status.is_ok_and(|status| status.success())
    };
    if !mount(&["mount", "--bind", note.to_str().unwrap()]) {
        return skip("nothing can be mounted here");
    }
    let output = run(start());
    assert!(mount(&["umount"]));
    assert!(
        !output.status.success() && said(&output).contains("administrator-to-be-made"),
        "{}",
        said(&output)
    );
    {
        let _server = ServerProcess::of(start(), address);
        assert!(!note.exists());
        let client = Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let pt = client.protection_server(address, &Credentials::Anonymous);
        assert_eq!(id_of(&pt, "admin").await, ViceId(1));
    }
    // Another one that begins with a key of its own is still told that it has the wrong one.
    let other = Folder::new("cut-other");
    let file = other.write("server.toml", config(&other.path().display()));
    let output = run(server_command([std::ffi::OsStr::new("--config"), file.as_os_str()]));
    assert!(!output.status.success() && said(&output).contains("another key"), "{}", said(&output));
}
