//! Answers of OpenAFS's servers that are lost: our client, with write-behind, finds out what has become of its changes, whether it goes on or is
//! killed and started again. Another client sees each change made once, and what that has stored meanwhile is kept. `answers_lost.rs` of
//! `afs-client` has the same for our server, and access lists: OpenAFS's get those by the second of two calls, which is sent once the first is answered.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use afar_interop::cell::{self, ADDRESS, CELL_NAME, CLIENT_ADDRESS, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::suite::{Case, Trouble, Verdict, Weight, until};
use afs_lab::caller::{AccessList, Client, Credentials, FileServer};
use afs_wire::directory::Directory;
use afs_wire::ids::{AfsFid, DataVersion, LocalFid, VolumeId};
use afs_wire::status::FileType;

use crate::fuse;
use crate::scene::{Scene, told};

/// The address of the other client, which hears the servers all the time.
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 77);

/// A link-layer address that nobody has.
const NOWHERE: &str = "02:00:00:00:00:77";

/// Our client: the program, and how it is mounted.
struct Ours {
    afar: Command,
    options: &'static [&'static str],
}

/// Options without a ticket, and with one: servers ask a user's new connection who it is.
const ANONYMOUS: &[&str] = &["--write-behind", "always"];
const WITH_TICKET: &[&str] = &["--write-behind", "always", "--localauth", "--as", "alice"];

/// A name in a directory, and what it is.
type Named = (&'static str, &'static str);

/// A directory before the changes.
const BEFORE: [Named; 9] = [
    ("attributes", "1 text"),
    ("below", "directory"),
    ("empty", "directory"),
    ("linked", "1 text"),
    ("moved", "1 text"),
    ("removed", "1 text"),
    ("replaced", "1 old"),
    ("replacing", "1 text"),
    ("stored", "1 text"),
];

/// A change, the name that is gone by it, and what is there.
type Change = (&'static str, &'static str, &'static [Named]);

const CHANGES: [Change; 12] = [
    ("create", "", &[("created", "1 ")]),
    ("create and store", "", &[("written", "1 written")]),
    ("create what both write", "", &[(BOTHS, "1 theirs")]),
    ("mkdir", "", &[("made", "directory")]),
    ("symlink", "", &[("symlink", "-> target")]),
    ("link", "", &[("link", "2 text"), ("linked", "2 text")]),
    ("rename into", "moved", &[]),
    ("rename over", "replacing", &[("replaced", "1 text")]),
    ("remove", "removed", &[]),
    ("rmdir", "empty", &[]),
    (STORE, "", &[("stored", "1 stored anew")]),
    (SETATTR, "", &[("attributes", "1 text, 604")]),
];

/// Changes of no name: all others raise the version of the directory by one.
const STORE: &str = "store";
const SETATTR: &str = "setattr";

/// Changes of a client: they and the question for the room in the volume are as many calls as go with one connection at a time. What begins a new
/// connection to a server is not carried out while the client does not hear the server (File service notes 7.4).
const OF_A_CLIENT: usize = 3;

/// The client that makes what both write.
const WITH_BOTHS: usize = 0;

/// A file that two clients write, and what ours has written.
const BOTHS: &str = "written by both";
const OURS: &str = "ours";

/// What becomes of the client while nobody knows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Then {
    GoesOn,
    IsKilled,
}

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    [
        ("lost/a_change_whose_answer_is_lost_is_made_once/stock", ANONYMOUS),
        ("lost/a_change_of_a_user_whose_answer_is_lost_is_made_once/stock", WITH_TICKET),
    ]
    .map(|(name, options)| {
        let stock = Arc::clone(lab);
        Case::new(name, Weight::Waiting, move || answers(&stock, options))
    })
    .into()
}

fn answers(lab: &Lab, options: &'static [&'static str]) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = Scene::new(lab, &Servers::Stock)?;
    let root = fuse::make_volumes(&scene, ADDRESS)?;
    let all = ["system:administrators", "system:anyuser"].map(|group| (group, AccessList::ALL));
    let list = AccessList::granting(all);
    let volume = scene.volume(ADDRESS, "lost", &list)?;
    fuse::mount_point(&scene, ADDRESS, root, "lost", "lost")?;
    let address = format!("{OTHER}/24");
    ip(scene.cell.clients()?.command("ip"), &["addr", "add", &address, "dev", "cell0"])?;
    let ours = Ours { afar: lab.afar()?, options };
    for then in [Then::GoesOn, Then::IsKilled] {
        let told = |trouble| match trouble {
            Trouble::Failed(why) => Trouble::Failed(format!("the client {then:?}: {why}")),
            other => other,
        };
        lose_answers(&scene, volume, &ours, then).map_err(told)?;
    }
    Ok(())
}

fn name_of(then: Then, number: usize) -> String {
    format!("{then:?}{number}")
}

/// One of our clients, and the directory in which it makes its changes.
struct Party {
    mount: OurMount,
    name: String,
    changes: &'static [Change],
    /// The version that the directory has once each is made once.
    made: DataVersion,
}

impl Party {
    fn start(
        scene: &Scene,
        volume: VolumeId,
        ours: &Ours,
        (then, number): (Then, usize),
    ) -> Result<Self, Trouble> {
        let name = name_of(then, number);
        let (version, before) = look(scene, volume, &name)?;
        expect(&before, BEFORE.into_iter())?;
        let changes = &CHANGES[number * OF_A_CLIENT..][..OF_A_CLIENT];
        let names = changes.iter().filter(|(change, ..)| ![STORE, SETATTR].contains(change)).count();
        let made = DataVersion(version.0 + names as u64);
        let mount = OurMount::start(&scene.cell, &ours.afar, ours.options)?;
        let this = Self { mount, name, changes, made };
        // So that the client knows it all.
        fuse::look(&this.path()).map_err(told("looking"))?;
        Ok(this)
    }

    fn path(&self) -> PathBuf {
        self.mount.path().join(CELL_NAME).join("lost").join(&self.name)
    }

    fn change(&self) -> Verdict {
        let dir = self.path();
        self.changes.iter().try_for_each(|(what, ..)| change(&dir, what).map_err(told(what)))
    }

    /// True if the server has made the changes, but for what is stored into new files later.
    fn are_made(&self, scene: &Scene, volume: VolumeId) -> Result<bool, Trouble> {
        let (version, found) = look(scene, volume, &self.name)?;
        let mut others = self.changes.iter().filter(|(change, ..)| [STORE, SETATTR].contains(change));
        let are_there = others.all(|(.., there)| {
            there.iter().all(|(name, what)| found.get(*name).is_some_and(|found| found == what))
        });
        Ok(version == self.made && are_there)
    }

    /// All is as if each change was made once, and nothing is put aside but what was written into a file that others have written too.
    fn check(&self, scene: &Scene, volume: VolumeId) -> Verdict {
        let said = || format!("; the client: {}", self.mount.said());
        let (version, after) = look(scene, volume, &self.name)?;
        let gone = |name: &str| self.changes.iter().any(|(_, gone, _)| *gone == name);
        let left = BEFORE.into_iter().filter(|(name, _)| !gone(name));
        let there = self.changes.iter().flat_map(|(.., there)| there.iter().copied());
        expect(&after, left.chain(there)).map_err(|trouble| format!("{trouble:?}{}", said()))?;
        if version != self.made {
            return Err(format!("version {version:?} instead of {:?}{}", self.made, said()).into());
        }
        let conflicts = self.mount.conflicts().map_err(told("what was put aside"))?;
        let is_bothers = self.changes.iter().any(|(.., there)| there.iter().any(|(name, _)| *name == BOTHS));
        let expected = if is_bothers { vec![OURS.as_bytes().to_vec()] } else { Vec::new() };
        if conflicts != expected {
            return Err(format!("{conflicts:?} was put aside{}", said()).into());
        }
        Ok(())
    }
}

fn lose_answers(scene: &Scene, volume: VolumeId, ours: &Ours, then: Then) -> Verdict {
    let numbers = 0..CHANGES.len() / OF_A_CLIENT;
    // Before any of our clients is told a promise that this breaks.
    numbers.clone().try_for_each(|number| prepare(scene, volume, &name_of(then, number)))?;
    let parties = numbers.map(|number| Party::start(scene, volume, ours, (then, number)));
    let mut parties = parties.collect::<Result<Vec<_>, _>>()?;
    let neighbour = CLIENT_ADDRESS.to_string();
    // What the clients say arrives, and what the server says does not.
    let deaf = ["neigh", "replace", &neighbour, "lladdr", NOWHERE, "nud", "permanent", "dev", "cell0"];
    ip(scene.cell.servers()?.command("ip"), &deaf)?;
    parties.iter().try_for_each(Party::change)?;
    for party in &parties {
        until("the server has made the changes", || party.are_made(scene, volume)).map_err(|trouble| {
            format!("{trouble:?} of {}; the client: {}", party.name, party.mount.said())
        })?;
    }
    thread::scope(|scope| {
        // Servers answer this once they have told our client of it.
        let of_both = parties[WITH_BOTHS].name.clone();
        let theirs = scope.spawn(move || store_theirs(scene, volume, &of_both));
        if then == Then::GoesOn {
            let gives_up = |party: &Party| party.mount.said().contains("the server does not answer");
            until("the clients give the calls up", || Ok(parties.iter().all(gives_up)))?;
        }
        let stored = || {
            Ok(look(scene, volume, &parties[WITH_BOTHS].name)?
                .1
                .get(BOTHS)
                .is_some_and(|what| what == "1 theirs"))
        };
        until("the other client has stored too", stored)?;
        let hear = || ip(scene.cell.servers()?.command("ip"), &["neigh", "del", &neighbour, "dev", "cell0"]);
        if then == Then::IsKilled {
            let killed: Vec<_> = parties
                .drain(..)
                .map(|Party { mount, name, changes, made }| (mount.kill(), name, changes, made))
                .collect();
            hear()?;
            for (folder, name, changes, made) in killed {
                let mount = OurMount::start_on(folder, &scene.cell, &ours.afar, ours.options)?;
                parties.push(Party { mount, name, changes, made });
            }
        } else {
            hear()?;
        }
        theirs.join().map_err(|_| "the other client has panicked".to_owned())??;
        for party in &parties {
            until("all is at the server", || Ok(flush(&ours.afar, &party.mount, &party.path()).is_ok()))?;
        }
        Ok::<_, Trouble>(())
    })?;
    parties.iter().try_for_each(|party| party.check(scene, volume))?;
    parties.into_iter().try_for_each(|party| Ok(party.mount.stop()?))
}

fn ip(mut command: Command, words: &[&str]) -> Verdict {
    let status = command.args(words).status().map_err(told("ip"))?;
    if status.success() { Ok(()) } else { Err(format!("ip {}: {status}", words.join(" ")).into()) }
}

/// Makes what there is before the changes, as nobody in particular too.
fn prepare(scene: &Scene, volume: VolumeId, name: &str) -> Verdict {
    scene.at_clients(async || {
        let client = Client::bind((OTHER, 0).into()).map_err(told("a client"))?;
        let server = scene.files(&client, &Credentials::Anonymous);
        let dir = server.make_dir(AfsFid::root_of(volume), name).await.map_err(told("a directory"))?.fid;
        for (name, what) in BEFORE {
            let Some((_, text)) = what.split_once(' ') else {
                server.make_dir(dir, name).await.map_err(told(name))?;
                continue;
            };
            let fid = server.create_file(dir, name).await.map_err(told(name))?.fid;
            server.store(fid, 0, text.as_bytes(), text.len() as u64).await.map_err(told(name))?;
        }
        server.give_up_all().await.map_err(told("giving up callbacks"))
    })
}

fn change(dir: &Path, what: &str) -> std::io::Result<()> {
    let at = |name: &str| dir.join(name);
    match what {
        "create" => File::create_new(at("created")).map(drop),
        "create and store" => fs::write(at("written"), "written"),
        "create what both write" => fs::write(at(BOTHS), OURS),
        "mkdir" => fs::create_dir(at("made")),
        "symlink" => symlink("target", at("symlink")),
        "link" => fs::hard_link(at("linked"), at("link")),
        "rename into" => fs::rename(at("moved"), at("below/moved")),
        "rename over" => fs::rename(at("replacing"), at("replaced")),
        "remove" => fs::remove_file(at("removed")),
        "rmdir" => fs::remove_dir(at("empty")),
        STORE => OpenOptions::new().write(true).open(at("stored"))?.write_all(b"stored anew"),
        SETATTR => fs::set_permissions(at("attributes"), Permissions::from_mode(0o604)),
        other => unreachable!("{other} is not in the table"),
    }
}

/// A command of `fs` for the client of a mount.
fn fs_command(afar: &Command, mount: &OurMount) -> Result<Command, Trouble> {
    let mut command = Command::new(afar.get_program());
    command.arg("fs").env("AFAR_SOCKET", mount.socket()?);
    Ok(command)
}

/// Waits until the server has all of a volume.
fn flush(afar: &Command, mount: &OurMount, dir: &Path) -> Verdict {
    let output = fs_command(afar, mount)?.args(["flush", "-wait"]).arg(dir).output().map_err(told("fs"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

/// The other client, only in [`Scene::at_clients`].
fn other(scene: &Scene) -> Result<(Client, FileServer), Trouble> {
    let client = Client::bind((OTHER, 0).into()).map_err(told("a client"))?;
    let server = scene.files(&client, &scene.user("admin")?);
    Ok((client, server))
}

/// Stores into the file that our client has made, and has something to store into too.
fn store_theirs(scene: &Scene, volume: VolumeId, name: &str) -> Verdict {
    scene.at_clients(async || {
        let (_client, other) = other(scene)?;
        let (_, names) = names(&other, volume, name).await?;
        let fid = names.get(BOTHS).copied().ok_or_else(|| "it is not made".to_owned())?;
        other.store(fid, 0, b"theirs".as_slice(), 6).await.map_err(told("the other client's store"))?;
        other.give_up_all().await.map_err(told("giving up callbacks"))
    })
}

/// The version of a directory of a volume's root, and what is in it.
async fn names(
    other: &FileServer,
    volume: VolumeId,
    name: &str,
) -> Result<(DataVersion, BTreeMap<String, AfsFid>), Trouble> {
    let pages = async |dir| {
        let bytes = other.fetch(dir, 0, 1 << 20).await.map_err(told("a directory"))?;
        Directory::parse(bytes).map_err(told("a directory's pages"))
    };
    let of_volume = |fid: LocalFid| AfsFid { volume, vnode: fid.vnode, unique: fid.unique };
    let root = pages(AfsFid::root_of(volume)).await?;
    let dir = root.lookup(name.as_bytes()).map(|entry| of_volume(entry.fid));
    let dir = dir.ok_or_else(|| format!("there is no {name}"))?;
    let version = other.status(dir).await.map_err(told("a directory's status"))?.data_version;
    let pages = pages(dir).await?;
    let entries = pages.entries().filter(|entry| !entry.is_dot());
    let names = entries.map(|entry| (String::from_utf8_lossy(entry.name).into_owned(), of_volume(entry.fid)));
    Ok((version, names.collect()))
}

/// The same with what each name is: the links and the text of a file, and attributes that were set.
fn look(
    scene: &Scene,
    volume: VolumeId,
    name: &str,
) -> Result<(DataVersion, BTreeMap<String, String>), Trouble> {
    scene.at_clients(async || {
        let (_client, other) = other(scene)?;
        let (version, names) = names(&other, volume, name).await?;
        let mut all = BTreeMap::new();
        for (name, fid) in names {
            let status = other.status(fid).await.map_err(told("a status"))?;
            let text = match status.file_type {
                FileType::DIRECTORY => Vec::new(),
                _ => other.fetch(fid, 0, 1 << 20).await.map_err(told("a file"))?,
            };
            let text = String::from_utf8_lossy(&text);
            let mut what = match status.file_type {
                FileType::DIRECTORY => "directory".to_owned(),
                FileType::SYMLINK => format!("-> {text}"),
                _ => format!("{} {text}", status.link_count),
            };
            if status.unix_mode_bits & 0o7777 == 0o604 {
                what += ", 604";
            }
            all.insert(name, what);
        }
        other.give_up_all().await.map_err(told("giving up callbacks"))?;
        Ok((version, all))
    })
}

fn expect<'a>(
    found: &BTreeMap<String, String>,
    expected: impl Iterator<Item = (&'a str, &'a str)>,
) -> Verdict {
    let expected: BTreeMap<_, _> = expected.map(|(name, what)| (name.to_owned(), what.to_owned())).collect();
    if *found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}").into()) }
}
