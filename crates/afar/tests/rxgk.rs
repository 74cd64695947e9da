//! Cells with a key for rxgk, which new ones have: who comes by it has the rights that they have by rxkad, and what the programs of a cell
//! say to each other cannot be read on the way.

use std::fs;
use std::net::Ipv4Addr;

use crate::mounted::{
    Folder, Process, ServerProcess, afar, can_mount, forget_rxgk, own_address, socket_of, start_up, succeed,
    up,
};
use afs_lab::caller::{Client, Credentials};
use afs_lab::real::capture::Capture;
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

/// A volume with a name, a user, a folder and a file in it, with data; each is told what it is.
const PLANTED: [&str; 5] =
    ["plantedvolume", "planteduser", "planted-folder", "planted-file", "planted data: nobody's business"];

/// Plants all of it, by the commands and in the mount.
fn plant(folder: &Folder, address: Ipv4Addr, more: &[&str]) {
    let [volume, user, dir, file, data] = PLANTED;
    let local = |words: &[&str]| {
        let mut command = afar(words);
        command.arg("-config").arg(folder.join("state/etc/server")).arg("-localauth").args(more);
        succeed(command)
    };
    local(&["vos", "create", &address.to_string(), "a", volume]);
    local(&["vos", "backup", volume]);
    local(&["pts", "createuser", user]);
    local(&["bos", "adduser", &address.to_string(), user]);
    local(&["bos", "removeuser", &address.to_string(), user]);
    let mount = folder.join("mnt/afar.local");
    let scratch = mount.join("scratch");
    let mut mkmount = afar(["fs", "mkmount"]);
    mkmount.arg(scratch.join("m")).arg(volume);
    succeed(mkmount);
    let dir = scratch.join("m").join(dir);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(file), data.repeat(4000)).unwrap();
    assert_eq!(fs::read(dir.join(file)).unwrap().len(), data.len() * 4000);
    local(&["vos", "dump", volume, "-file", &folder.join("dump").display().to_string()]);
    fs::remove_file(dir.join(file)).unwrap();
}

#[test]
fn no_name_and_no_byte_of_a_cell_of_afar_up_can_be_read_on_the_way() {
    require!(can_mount());
    let (folder, address) = (Folder::new("secret"), own_address());
    let capture = Capture::begin().unwrap();
    let process = start_up(&folder, address);
    plant(&folder, address, &[]);
    assert!(process.stop().success());
    assert_eq!(capture.end(&PLANTED), [""; 0]);

    // The search can find all of it: in a cell without the key, whose callers do not want encryption.
    let (folder, address) = (Folder::new("clear"), own_address());
    let process = Process::start(up(&folder, address, &["--no-mount"]), None);
    assert!(process.stop().success());
    forget_rxgk(&folder);
    let capture = Capture::begin().unwrap();
    let process = start_up(&folder, address);
    let mut clear = afar(["fs", "setcrypt", "off"]);
    clear.env("AFAR_SOCKET", socket_of(&folder.join("mnt")));
    succeed(clear);
    plant(&folder, address, &["-clear"]);
    assert!(process.stop().success());
    assert_eq!(capture.end(&PLANTED), PLANTED);
}
