//! Cells with a key for rxgk, which new ones have: who comes by it has the rights that they have by rxkad. What can be read on the way is in
//! `captured.rs`.

use std::net::Ipv4Addr;

use crate::mounted::realm::fail;
use crate::mounted::{Folder, Process, ServerProcess, afar, succeed};
use afs_lab::caller::{Client, Credentials};
use afs_wire::abort::{RXGK_BADKEYNO, VL_PERM};
use afs_wire::bos::{Bozo, ListSUsers};
use afs_wire::ids::{AfsFid, PartitionId, ViceId, VolumeId};
use afs_wire::pt::{NewEntry, PRUSER};
use afs_wire::vl::GetNewVolumeId;
use rx_security::KeySet;
use rx_security::keys::{EncType, Key};
use rx_security::rxgk::Dialect;
use rxgen::xdr::XdrString;

fn client() -> Client {
    Client::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

fn keys(state: &Folder) -> KeySet {
    KeySet::load(&state.path().join("etc/server")).unwrap()
}

/// All services, both dialects: what only a superuser may do, what only a user may, and what neither may who has no name here.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_by_rxgk_may_do_what_they_may_do_by_rxkad() {
    let state = Folder::new("rxgk");
    let server = ServerProcess::start(&state, &["--cell", "rxgk.test"]);
    let (address, keys, client) = (server.address, keys(&state), client());
    for (number, dialect) in (0..).zip(Dialect::ALL) {
        let superuser = Credentials::superuser_by_rxgk(&keys, dialect).unwrap();
        let user = |name| Credentials::user_by_rxgk(name, "rxgk.test", &keys, dialect).unwrap();
        let (admin, mallory) = (user("admin"), user("mallory"));
        let volume = VolumeId(536_870_915 + 3 * number);
        let name = format!("kept{number}");
        client.volume_server(address, &superuser).create(PartitionId(0), &name, volume).await.unwrap();
        let files = client.file_server(address, &admin);
        let made = files.create_file(AfsFid::root_of(volume), "a file").await.unwrap();
        files.store(made.fid, 0, b"text".as_slice(), 4).await.unwrap();
        assert_eq!(files.fetch(made.fid, 0, 100).await.unwrap(), b"text");
        client.file_server(address, &mallory).create_file(AfsFid::root_of(volume), "no").await.unwrap_err();
        let new = NewEntry {
            name: XdrString::new(format!("dora{number}")).unwrap(),
            flag: PRUSER,
            owner: ViceId(0),
        };
        client.protection_server(address, &admin).rpc(&new).await.unwrap();
        let ids = GetNewVolumeId { bump_count: 3 };
        client.location_server(address, &superuser).rpc(&ids).await.unwrap();
        let refused = client.location_server(address, &mallory).rpc(&ids).await.unwrap_err();
        assert_eq!(refused.code(), Some(VL_PERM.0));
        client.server::<Bozo>(address, &admin).rpc(&ListSUsers { index: 0 }).await.unwrap();
    }
    let foreign = KeySet::of([Key::rxgk(9, EncType::AES256, &[1; 32])]).unwrap();
    let stranger = Credentials::superuser_by_rxgk(&foreign, Dialect::OURS).unwrap();
    let refused = client.location_server(address, &stranger).rpc(&GetNewVolumeId { bump_count: 1 }).await;
    assert_eq!(refused.unwrap_err().code(), Some(RXGK_BADKEYNO.0));
    assert!(server.stop().success());
}

#[test]
fn rxperf_encrypts_with_a_cells_keys_and_refuses_who_has_others() {
    let folder = Folder::new("rxperf");
    let keys = |name: &str, secret: u8, kvno: i32| {
        let keys = folder.join(name);
        std::fs::create_dir(&keys).unwrap();
        let kad = Key::rxkad_krb5(kvno, EncType::AES256, &[secret; 32]);
        KeySet::of([kad, Key::rxgk(kvno, EncType::AES128, &[secret; 16])]).unwrap().save(&keys).unwrap();
        keys.display().to_string()
    };
    let (own, other) = (keys("own", 1, 1), keys("other", 2, 2));
    let server =
        Process::start(afar(["rxperf", "server", "-p", "0", "--bind", "127.0.0.1", "--keys", &own]), None);
    let port = server.ready.trim_start_matches("ready ").to_owned();
    let client = |more: &[&str]| {
        let mut command =
            afar(["rxperf", "client", "-c", "rpc", "-S", "50000", "-R", "70000", "-s", "127.0.0.1"]);
        command.args(["-p", &port]).args(more);
        command
    };
    for options in [&["--keys", &own][..], &["--keys", &own, "--class", "rxkad"], &[]] {
        let said = succeed(client(options));
        assert!(said.contains("bytes\t120000"), "{options:?}: {said}");
    }
    for class in ["rxgk", "rxkad"] {
        let said = fail(client(&["--keys", &other, "--class", class]), 1);
        assert!(said.contains("failed"), "{class}: {said}");
    }
    let nothing = folder.join("nothing").display().to_string();
    assert!(fail(client(&["--keys", &nothing]), 1).contains("nothing has no key"));
}
