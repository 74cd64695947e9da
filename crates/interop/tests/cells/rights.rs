//! Who may do what, asked by clients with tickets: what the stock FUSE client, which is anonymous, cannot ask. Each case runs
//! on OpenAFS's servers too, which say what is right.

use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use afar_interop::cell::{ADDRESS, CELL_NAME, CLIENT_ADDRESS, Servers};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict};
use afs_lab::caller::{AccessList, Client, Credentials, Error, Heard};
use afs_wire::afsvol::Monitor;
use afs_wire::ids::{AfsFid, Name, ViceId};
use afs_wire::pt::{NameToID, NewEntry, PRUSER};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{DFSSymlink, FlushCPS, FsCmd, FsCmdInputs, IpAddrs, ViceIds};
use afs_wire::status::AfsStoreStatus;
use afs_wire::vl::GetNewVolumeId;
use rx_security::keys::{EncType, Key};
use rx_security::{KeySet, Level, UnixTime};
use rxgen::xdr::{CharVec, XdrArray, XdrString};

use crate::scene::{Scene, for_both, told};

/// EACCES as servers say it to clients that know its universal number (File service notes 12).
const ACCESS: i32 = 49_733_388;

/// RXKADBADTICKET, RXKADUNKNOWNKEY and RXKADEXPIRED (Security notes).
const BAD_TICKET: i32 = 19_270_407;
const UNKNOWN_KEY: i32 = 19_270_408;
const EXPIRED: i32 = 19_270_409;

/// EPERM and EINVAL, which servers say so where they do not translate.
const PLAIN_NOT_OWNER: i32 = 1;
const PLAIN_INVALID: i32 = 22;

/// The user whom bad tickets are to make.
const INTRUDER: &str = "intruder";

/// How long a callback may take that a server owes.
const BREAK_TIMEOUT: Duration = Duration::from_secs(60);

/// More than a packet, and no round number of them.
const SOME_BYTES: usize = 300_001;

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab, &Servers) -> Verdict;
    let checks: [(&str, Check); 6] = [
        ("rights/access_lists_hold_for_users_groups_and_nobody", lists),
        ("rights/every_level_carries_data", levels),
        ("rights/bad_tickets_are_refused", tickets),
        ("rights/others_hear_of_changes", callbacks),
        ("rights/a_host_has_the_rights_of_its_groups", hosts),
        ("rights/groups_are_asked_again_when_a_superuser_says_so", flushes),
    ];
    checks.into_iter().flat_map(|(name, check)| for_both(lab, name, check)).collect()
}

fn lists(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = Scene::new(lab, servers)?;
    scene.cell.expect("pts creategroup staff -localauth")?;
    scene.cell.expect("pts adduser bob staff -localauth")?;
    let list = AccessList {
        // As servers keep it, and so show it: by id, groups first.
        positive: vec![
            ("staff".to_owned(), AccessList::READ),
            ("system:administrators".to_owned(), AccessList::ALL),
            ("alice".to_owned(), AccessList::WRITE),
        ],
        negative: Vec::new(),
    };
    let volume = scene.volume(ADDRESS, "rights", &list)?;
    scene.at_clients(async || {
        let root = AfsFid::root_of(volume);
        let client = scene.client()?;
        let who = |who: Credentials| scene.files(&client, &who);
        let (admin, alice, bob) =
            (who(scene.user("admin")?), who(scene.user("alice")?), who(scene.user("bob")?));
        let nobody = who(Credentials::Anonymous);

        expect(alice.access_list(root).await, &list)?;
        // The status of a directory is anyone's to see, as OpenAFS has it; not that of a file, nor what is in either.
        expect(nobody.status(root).await.map(|status| status.caller_access), &Rights(0))?;
        refused(nobody.access_list(root).await, ACCESS)?;
        refused(nobody.fetch(root, 0, 2048).await, ACCESS)?;
        let file = ok("alice makes a file", alice.create_file(root, "a").await)?.fid;
        ok("alice writes", alice.store(file, 0, b"text".as_slice(), 4).await)?;
        expect(bob.fetch(file, 0, 100).await, &b"text".to_vec())?;
        refused(bob.store(file, 0, b"TEXT".as_slice(), 4).await, ACCESS)?;
        refused(bob.create_file(root, "b").await, ACCESS)?;
        refused(bob.remove_file(root, "a").await, ACCESS)?;
        refused(nobody.fetch(file, 0, 4).await, ACCESS)?;
        refused(nobody.status(file).await, ACCESS)?;
        refused(alice.set_access_list(root, &list).await, ACCESS)?;
        let status = ok("bob's status", bob.status(file).await)?;
        expect(Ok(status.caller_access), &AccessList::READ)?;
        expect(Ok(status.anonymous_access), &Rights(0))?;
        expect(Ok(status.owner.0), &1001)?;

        // A directory inherits the list, and then has its own.
        let below = ok("alice makes a directory", alice.make_dir(root, "below").await)?.fid;
        expect(bob.access_list(below).await, &list)?;
        expect(nobody.status(below).await.map(|status| status.caller_access), &Rights(0))?;
        let mut narrowed = list.clone();
        narrowed.negative.push(("bob".to_owned(), Rights(1)));
        ok("narrowing the list", admin.set_access_list(below, &narrowed).await)?;
        let hidden = ok("alice makes a file below", alice.create_file(below, "c").await)?.fid;
        refused(bob.fetch(hidden, 0, 1).await, ACCESS)?;
        expect(bob.fetch(file, 0, 100).await, &b"text".to_vec())?;
        ok("alice removes", alice.remove_file(root, "a").await)?;
        expect(admin.access_list(below).await, &narrowed)
    })
}

fn levels(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = Scene::new(lab, servers)?;
    let volume = scene.volume(ADDRESS, "levels", &AccessList::granting([("alice", AccessList::ALL)]))?;
    scene.at_clients(async || {
        let client = scene.client()?;
        for level in Level::ALL {
            let alice = scene.files(&client, &scene.user("alice")?.at(level));
            let name = level.to_string();
            let file = ok("making a file", alice.create_file(AfsFid::root_of(volume), &name).await)?.fid;
            let bytes: Vec<u8> = (0..SOME_BYTES).map(|i| (i * 31 % 251) as u8).collect();
            ok(&format!("storing, {level}"), alice.store(file, 0, bytes.clone(), SOME_BYTES as u64).await)?;
            let fetched = ok(&format!("fetching, {level}"), alice.fetch(file, 0, 1 << 20).await)?;
            if fetched != bytes {
                return Err(format!("level {level}: other bytes came back").into());
            }
        }
        Ok(())
    })
}

fn tickets(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = Scene::new(lab, servers)?;
    let volume =
        scene.volume(ADDRESS, "tickets", &AccessList::granting([("system:anyuser", AccessList::READ)]))?;
    scene.at_clients(async || {
        let root = AfsFid::root_of(volume);
        let client = scene.client()?;
        let ago = |seconds| UnixTime::of(SystemTime::now() - Duration::from_secs(seconds));
        let expired = Credentials::user_between("alice", CELL_NAME, scene.keys(), (ago(7200), ago(3600)));
        let expired = expired.map_err(told("a ticket"))?;
        refused(scene.files(&client, &expired).status(root).await, EXPIRED)?;
        everywhere_refused(&client, &expired, EXPIRED).await?;
        for (kvno, code) in [(1, BAD_TICKET), (77, UNKNOWN_KEY)] {
            let key = Key::rxkad_krb5(kvno, EncType::AES256, &[7; 32]);
            let keys = KeySet::of([key]).map_err(told("a key"))?;
            let forged = Credentials::user("admin", CELL_NAME, &keys).map_err(told("a ticket"))?;
            refused(scene.files(&client, &forged).status(root).await, code)?;
            everywhere_refused(&client, &forged, code).await?;
        }
        // Nothing came of what was asked.
        let nobody = client.protection_server(ADDRESS, &Credentials::Anonymous);
        let name = CharVec::from_text(INTRUDER).map_err(|_| "a name".to_owned())?;
        let names = XdrArray::new(vec![name]).map_err(|_| "names".to_owned())?;
        let ids = ok("NameToID", nobody.rpc(&NameToID { names }).await)?.ids;
        expect(Ok(ids.to_vec()), &vec![ViceId::ANONYMOUS])?;
        // And nobody is still served.
        ok("anonymous", scene.files(&client, &Credentials::Anonymous).status(root).await).map(drop)
    })
}

/// Asks the services beside the file service for what an administrator may.
async fn everywhere_refused(client: &Client, who: &Credentials, code: i32) -> Verdict {
    let name = XdrString::new(INTRUDER).map_err(|_| "a name".to_owned())?;
    let (ids, monitor) = (GetNewVolumeId { bump_count: 1 }, Monitor {});
    refused(client.location_server(ADDRESS, who).rpc(&ids).await, code)?;
    let new = NewEntry { name, flag: PRUSER, owner: ViceId(0) };
    refused(client.protection_server(ADDRESS, who).rpc(&new).await, code)?;
    refused(client.volume_server(ADDRESS, who).rpc(&monitor).await, code)
}

/// A host is a user of the protection database whose name is its address; one that ends in zeros is that of a network.
fn hosts(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = Scene::new(lab, servers)?;
    for command in [
        format!("pts createuser {CLIENT_ADDRESS} -localauth"),
        "pts creategroup machines -localauth".to_owned(),
        format!("pts adduser {CLIENT_ADDRESS} machines -localauth"),
    ] {
        scene.cell.expect(&command)?;
    }
    let other = Ipv4Addr::new(10, 88, 0, 77);
    let mut command = scene.cell.clients()?.command("ip");
    let status = command.args(["addr", "add", &format!("{other}/24"), "dev", "cell0"]).status();
    if !status.map_err(|error| error.to_string())?.success() {
        return Err("a second address cannot be had".to_owned().into());
    }
    let list = AccessList::granting([("machines", AccessList::READ), ("alice", AccessList::WRITE)]);
    let volume = scene.volume(ADDRESS, "machines", &list)?;
    scene.at_clients(async || {
        let root = AfsFid::root_of(volume);
        let (there, elsewhere) =
            (scene.client()?, Client::bind((other, 0).into()).map_err(told("a client"))?);
        let alice = scene.files(&elsewhere, &scene.user("alice")?);
        let file = ok("alice makes a file", alice.create_file(root, "a").await)?.fid;
        ok("alice writes", alice.store(file, 0, b"text".as_slice(), 4).await)?;
        for who in [Credentials::Anonymous, scene.user("bob")?] {
            let (here, away) = (scene.files(&there, &who), scene.files(&elsewhere, &who));
            expect(here.fetch(file, 0, 100).await, &b"text".to_vec())?;
            refused(here.store(file, 0, b"TEXT".as_slice(), 4).await, ACCESS)?;
            refused(here.create_file(root, "b").await, ACCESS)?;
            refused(away.fetch(file, 0, 100).await, ACCESS)?;
            refused(away.status(file).await, ACCESS)?;
        }
        // What the host may comes on top of what the user may.
        let alice = scene.files(&there, &scene.user("alice")?);
        ok("alice writes there", alice.store(file, 0, b"TEXT".as_slice(), 4).await)?;
        let status = ok("bob's status", scene.files(&there, &scene.user("bob")?).status(file).await)?;
        expect(Ok((status.caller_access, status.anonymous_access)), &(AccessList::READ, AccessList::READ))
    })
}

/// A user who is put into a group has what it gives when the file server asks again: after a while, or when it is told to.
fn flushes(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = Scene::new(lab, servers)?;
    scene.cell.expect("pts creategroup staff -localauth")?;
    let volume = scene.volume(ADDRESS, "flushes", &AccessList::granting([("staff", AccessList::READ)]))?;
    let root = AfsFid::root_of(volume);
    let flush = |id: i32| FlushCPS {
        ids: ViceIds::new(vec![ViceId(id)]).expect("one fits"),
        addrs: IpAddrs::default(),
        spare1: 0,
    };
    scene.at_clients(async || {
        let client = scene.client()?;
        let (bob, admin) =
            (scene.files(&client, &scene.user("bob")?), scene.files(&client, &scene.user("admin")?));
        refused(bob.access_list(root).await, ACCESS)?;
        tokio::task::block_in_place(|| scene.cell.expect("pts adduser bob staff -localauth"))?;
        refused(bob.access_list(root).await, ACCESS)?;
        refused(bob.rpc(&flush(1002)).await, PLAIN_NOT_OWNER)?;
        ok("the superuser's FlushCPS", admin.rpc(&flush(1002)).await)?;
        ok("bob sees the list", bob.access_list(root).await)?;
        // And what no server has.
        let (name, contents) =
            (told_name("a")?, XdrString::new("target").map_err(|_| "a target".to_owned())?);
        let link = DFSSymlink { dir: root, name, contents, status: AfsStoreStatus::default() };
        let inputs =
            FsCmdInputs { command: 1, fid: root, int64s: [0; 3], int32s: [0; 200], chars: CharVec([0; 256]) };
        let found = [
            admin.rpc(&link).await.map_or_else(|error| error.code(), |_| None),
            admin.rpc(&FsCmd { fid: root, inputs }).await.map_or_else(|error| error.code(), |_| None),
        ];
        expect(Ok(found), &[Some(PLAIN_INVALID); 2])
    })
}

fn told_name(name: &str) -> Result<Name, Trouble> {
    Ok(Name::new(name).map_err(|_| "a name".to_owned())?)
}

fn callbacks(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = Scene::new(lab, servers)?;
    let volume =
        scene.volume(ADDRESS, "callbacks", &AccessList::granting([("system:anyuser", AccessList::WRITE)]))?;
    scene.at_clients(async || {
        let root = AfsFid::root_of(volume);
        let (reader, writer) = (scene.client()?, scene.client()?);
        let (reading, writing) =
            (scene.files(&reader, &Credentials::Anonymous), scene.files(&writer, &Credentials::Anonymous));
        let file = ok("making a file", writing.create_file(root, "f").await)?.fid;
        for fid in [file, root] {
            ok("a promise", reading.status(fid).await)?;
        }
        reader.take_heard();
        writer.take_heard();
        ok("a store", writing.store(file, 0, b"new".as_slice(), 3).await)?;
        hears(&reader, file).await?;
        ok("a new name", writing.create_file(root, "g").await)?;
        hears(&reader, root).await?;
        // Once broken, a promise is gone: the next change is told to nobody.
        reader.take_heard();
        ok("another store", writing.store(file, 0, b"NEW".as_slice(), 3).await)?;
        let is_broken = |heard: &Heard| matches!(heard, Heard::Broken(_));
        let again = reader.hears(Duration::from_secs(1), is_broken).await;
        let to_writer = writer.heard().iter().any(is_broken);
        if again || to_writer {
            return Err(format!("told without a promise: reader {again}, writer {to_writer}").into());
        }
        Ok(())
    })
}

async fn hears(client: &afs_lab::caller::Client, fid: AfsFid) -> Verdict {
    let is_it = |heard: &Heard| matches!(heard, Heard::Broken(fids) if fids.contains(&fid));
    if client.hears(BREAK_TIMEOUT, is_it).await {
        return Ok(());
    }
    Err(format!("no callback for {fid}, only {:?}", client.heard()).into())
}

fn ok<T>(doing: &str, result: Result<T, Error>) -> Result<T, Trouble> {
    result.map_err(told(doing))
}

fn expect<T: PartialEq + Debug>(result: Result<T, Error>, expected: &T) -> Verdict {
    let found = ok("a call that has to succeed", result)?;
    if found == *expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}

#[track_caller]
fn refused<T: Debug>(result: Result<T, Error>, code: i32) -> Verdict {
    let line = std::panic::Location::caller().line();
    match result {
        Err(error) if error.code() == Some(code) => Ok(()),
        Err(error) => Err(format!("line {line}: {error} instead of code {code}").into()),
        Ok(found) => Err(format!("line {line}: {found:?} instead of code {code}").into()),
    }
}
