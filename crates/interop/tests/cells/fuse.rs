//! Debian's afsd.fuse mounts a cell of our servers, and a thousand files go through it: the same is done to a local folder, and both have
//! to be equal, also for a client that comes later and has nothing in its cache. And `afsio`, as far as that of 1.8.9 works: it
//! crashes on new names, and damages files over 64 MiB. And afsd.fuse reads a snapshot that was published.

use afs_lab::real::folder::Folder;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use afar_interop::cell::{self, ADDRESS, CELL_NAME, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::caller::{AccessList, Credentials};
use afs_wire::ids::{AfsFid, VolumeId};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::scene::{Scene, for_both, told};

/// Directories of the workload, and files in each. A directory of AFS with so many, of such names, has several pages.
const DIRECTORIES: usize = 10;
const FILES: usize = 100;

/// Changes behind the making of the files.
const CHANGES: usize = 500;

/// What `afsio` writes and reads: more than one call of its takes.
const AFSIO_BYTES: usize = 5_000_000;

/// The program, without a Kerberos configuration: with one, but no ticket, it frees what it never made, and crashes as often as not.
pub(crate) const AFSIO: [&str; 3] = ["env", "KRB5_CONFIG=/nonexistent", "afsio"];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let ours = Arc::clone(lab);
    let files = move || workload(&ours, &ours.our_servers()?);
    let mut cases = vec![Case::new("fuse/a_thousand_files_are_as_on_a_local_disk/ours", Weight::Busy, files)];
    let ours = Arc::clone(lab);
    let name = "fuse/a_published_snapshot_is_mounted_by_its_name_and_read_as_it_was/ours";
    cases.push(Case::new(name, Weight::Waiting, move || published(&ours)));
    cases.extend(for_both(lab, "fuse/afsio_reads_and_writes", afsio));
    cases
}

/// A cell with root.afs, in it the cell's name for root.cell, and in that `scratch`, which anyone may write.
pub(crate) fn scene(lab: &Lab, servers: &Servers) -> Result<Scene, Trouble> {
    let scene = Scene::new(lab, servers)?;
    make_volumes(&scene, ADDRESS)?;
    Ok(scene)
}

/// Makes these volumes on a server, and gives that of root.cell.
pub(crate) fn make_volumes(scene: &Scene, server: Ipv4Addr) -> Result<VolumeId, Trouble> {
    let admin = ("system:administrators", AccessList::ALL);
    let readable = AccessList::granting([admin, ("system:anyuser", AccessList::READ)]);
    let writable = AccessList::granting([admin, ("system:anyuser", AccessList::WRITE)]);
    let afs = scene.volume(server, "root.afs", &readable)?;
    let root = scene.volume(server, "root.cell", &readable)?;
    scene.volume(server, "scratch", &writable)?;
    mount_point(scene, server, afs, CELL_NAME, "root.cell")?;
    mount_point(scene, server, root, "scratch", "scratch")?;
    Ok(root)
}

/// Makes a mount point in the root directory of a volume of this server.
pub(crate) fn mount_point(
    scene: &Scene,
    server: Ipv4Addr,
    parent: VolumeId,
    name: &str,
    volume: &str,
) -> Verdict {
    scene.at_clients(async || {
        let client = scene.client()?;
        let admin = client.file_server(server, &scene.user("admin")?);
        let made = admin.symlink(AfsFid::root_of(parent), name, &format!("#{volume}.")).await;
        made.map_err(told("a mount point"))?;
        admin.give_up_all().await.map_err(told("giving up callbacks"))
    })
}

fn workload(lab: &Lab, servers: &Servers) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = scene(lab, servers)?;
    let local = Folder::new("local");
    let seed = 20_260_617;
    let made = {
        let mount = scene.cell.mount("one")?;
        let there = mount.path().join(CELL_NAME).join("scratch");
        play(&local, seed).map_err(told("on the local disk"))?;
        let made = look(&local).map_err(told("looking at the local disk"))?;
        mount.within(|| {
            play(&there, seed).map_err(told("in the mount"))?;
            same(&made, &look(&there).map_err(told("looking at the mount"))?)
        })?;
        made
    };
    if made.len() < DIRECTORIES * FILES / 2 {
        return Err(format!("the workload left {} entries, which is not what it is for", made.len()).into());
    }
    let mount = scene.cell.mount("two")?;
    let there = mount.path().join(CELL_NAME).join("scratch");
    mount.within(|| same(&made, &look(&there).map_err(told("looking at the second mount"))?))
}

/// What our vos publishes of a volume, on a mount point that `fs mkmount` has made.
fn published(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = scene(lab, &lab.our_servers()?)?;
    let afar = PathBuf::from(lab.afar()?.get_program()).canonicalize().map_err(told("our program"))?;
    let vos = |line: &str| scene.cell.expect(&format!("{} vos {line} -localauth", afar.display()));
    let ours = OurMount::start(&scene.cell, &lab.afar()?, &["--localauth"])?;
    let scratch = ours.path().join(CELL_NAME).join("scratch");
    let local = Folder::new("local");
    for root in [&*local, &*scratch] {
        write_some(root).map_err(told("writing files"))?;
    }
    let then = look(&local).map_err(told("looking at the local disk"))?;
    let said = vos("snapshot create scratch")?;
    let time = said.split_whitespace().nth(2).ok_or_else(|| format!("vos snapshot create says {said}"))?;
    change_some(&scratch).map_err(told("changing files"))?;
    vos(&format!("snapshot publish scratch {time} -name scratch.then -force"))?;
    let made =
        Command::new(&afar).args(["fs", "mkmount", "then", "scratch.then"]).current_dir(&scratch).output();
    let made = made.map_err(told("our fs"))?;
    if !made.status.success() {
        return Err(format!("fs mkmount: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    let check = |scratch: &Path| -> Verdict {
        same(&then, &look(&scratch.join("then")).map_err(told("looking at the snapshot"))?)?;
        if fs::read(scratch.join("short")).map_err(told("the file of now"))? != b"of now" {
            return Err("the volume itself is not as it is now".to_owned().into());
        }
        match ["short", "new"]
            .into_iter()
            .find(|name| fs::write(scratch.join("then").join(name), "new").is_ok())
        {
            None => Ok(()),
            Some(name) => Err(format!("'{name}' can be written in the snapshot").into()),
        }
    };
    check(&scratch)?;
    let stock = scene.cell.mount("one")?;
    let there = stock.path().join(CELL_NAME).join("scratch");
    stock.within(|| check(&there))?;
    Ok(ours.stop()?)
}

/// Something of each kind.
fn write_some(root: &Path) -> std::io::Result<()> {
    fs::create_dir_all(root.join("folder/below"))?;
    fs::write(root.join("empty"), "")?;
    fs::write(root.join("short"), "of then")?;
    fs::write(root.join("folder/below/long"), (0..3_000_000_u32).map(|n| (n / 7) as u8).collect::<Vec<_>>())?;
    symlink("below/long", root.join("folder/link"))
}

/// Changes, renames and removes what [`write_some`] has written.
fn change_some(root: &Path) -> std::io::Result<()> {
    fs::write(root.join("short"), "of now")?;
    fs::write(root.join("folder/below/long"), "not long")?;
    fs::rename(root.join("folder/below"), root.join("above"))?;
    fs::remove_file(root.join("folder/link"))?;
    fs::remove_file(root.join("empty"))
}

fn afsio(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = scene(lab, servers)?;
    let volume = scene.cell.expect("vos listvldb -name scratch -quiet -localauth")?;
    let number =
        volume.split("RWrite: ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    let root = AfsFid::root_of(VolumeId(number.ok_or("no number of scratch".to_owned())?));
    scene.at_clients(async || {
        let client = scene.client()?;
        let server = scene.files(&client, &Credentials::Anonymous);
        server.create_file(root, "io").await.map_err(told("making a file"))?;
        server.give_up_all().await.map_err(told("giving up callbacks"))
    })?;
    let mut bytes = vec![0; AFSIO_BYTES];
    StdRng::seed_from_u64(4).fill_bytes(&mut bytes);
    let local = Folder::new("local");
    let file = local.join("bytes");
    fs::write(&file, &bytes).map_err(told("a local file"))?;
    let path = format!("/afs/{CELL_NAME}/scratch/io");
    let run = |words: &[&str], input: Stdio| {
        let output = scene.cell.command(words).stdin(input).output().map_err(told("afsio"))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(Trouble::Failed(format!(
                "{}: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr)
            ))),
        }
    };
    let input = File::open(&file).map_err(told("a local file"))?;
    run(&[&AFSIO[..], &["write", "-file", &path, "-force"]].concat(), input.into())?;
    if run(&[&AFSIO[..], &["read", "-file", &path]].concat(), Stdio::null())? != bytes {
        return Err("afsio read gives other bytes than afsio write was given".to_owned().into());
    }
    Ok(())
}

// ---- the workload

/// A length as files have them: mostly small, some of no bytes, some around a page's and a chunk's ends.
fn length(rng: &mut StdRng) -> usize {
    match rng.random_range(0..100) {
        0..5 => 0,
        5..60 => rng.random_range(1..4096),
        60..70 => 4096 * rng.random_range(1..4),
        70..95 => rng.random_range(4096..30_000),
        95..99 => rng.random_range(100_000..300_000),
        _ => (1 << 20) - 2 + rng.random_range(0..5),
    }
}

fn some_bytes(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; length(rng)];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Makes directories and files, then changes them, the same for the same seed. Fails where a file system does.
pub(crate) fn play(root: &Path, seed: u64) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut files = Vec::new();
    for directory in 0..DIRECTORIES {
        let folder = PathBuf::from(format!("d{}/e{directory}", directory % 4));
        fs::create_dir_all(root.join(&folder))
            .map_err(|error| format!("making {}: {error}", folder.display()))?;
        for number in 0..FILES {
            // Short names, and some that take several slots of a directory.
            let name = if number % 9 == 0 {
                format!("{number}-{}", "n".repeat(number))
            } else {
                format!("f{number}")
            };
            let file = folder.join(name);
            let bytes = some_bytes(&mut rng);
            fs::write(root.join(&file), bytes)
                .map_err(|error| format!("writing {}: {error}", file.display()))?;
            files.push(file);
        }
    }
    for number in 0..CHANGES {
        let chosen = rng.random_range(0..files.len());
        let kind = rng.random_range(0..10);
        change(root, &mut files, chosen, kind, number, &mut rng)
            .map_err(|error| format!("change {number} of kind {kind}: {error}"))?;
    }
    Ok(())
}

fn change(
    root: &Path,
    files: &mut Vec<PathBuf>,
    chosen: usize,
    kind: usize,
    number: usize,
    rng: &mut StdRng,
) -> std::io::Result<()> {
    let file = files[chosen].clone();
    let at = root.join(&file);
    let beside = |name: String| file.with_file_name(name);
    match kind {
        0 => fs::write(&at, some_bytes(rng))?,
        1 => OpenOptions::new().append(true).open(&at)?.write_all(&some_bytes(rng))?,
        2 => {
            let length = fs::metadata(&at)?.len();
            OpenOptions::new().write(true).open(&at)?.set_len(rng.random_range(0..=length))?;
        }
        // In the midst of it, or beyond its end.
        3 => {
            let mut open = OpenOptions::new().write(true).open(&at)?;
            open.seek(SeekFrom::Start(rng.random_range(0..40_000)))?;
            open.write_all(&some_bytes(rng))?;
        }
        4 => {
            let to = beside(format!("renamed-{number}"));
            fs::rename(&at, root.join(&to))?;
            files[chosen] = to;
        }
        5 => {
            let to = PathBuf::from(format!("d1/moved-{number}"));
            fs::rename(&at, root.join(&to))?;
            files[chosen] = to;
        }
        6 => {
            let other = rng.random_range(0..files.len());
            if other != chosen {
                fs::rename(&at, root.join(&files[other]))?;
                files.swap_remove(chosen);
            }
        }
        7 => {
            fs::remove_file(&at)?;
            files.swap_remove(chosen);
        }
        8 => symlink(format!("somewhere/{number}"), root.join(beside(format!("link-{number}"))))?,
        _ => {
            let folder = root.join(beside(format!("empty-{number}")));
            fs::create_dir(&folder)?;
            if number.is_multiple_of(2) {
                fs::remove_dir(&folder)?;
            }
        }
    }
    Ok(())
}

/// What there is at a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Directory,
    File { length: u64, bytes: Vec<u8> },
    Link(PathBuf),
}

/// Everything below a folder.
pub(crate) fn look(root: &Path) -> std::io::Result<BTreeMap<PathBuf, Entry>> {
    let mut found = BTreeMap::new();
    let mut unseen = vec![PathBuf::new()];
    while let Some(folder) = unseen.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let name = folder.join(entry?.file_name());
            let at = root.join(&name);
            let metadata = fs::symlink_metadata(&at)?;
            let entry = if metadata.is_dir() {
                unseen.push(name.clone());
                Entry::Directory
            } else if metadata.is_symlink() {
                // afsd.fuse shows relative targets below its own idea of /afs, whatever the server says.
                let target = fs::read_link(&at)?;
                Entry::Link(target.strip_prefix("/afs").map_or(target.clone(), Path::to_path_buf))
            } else {
                let mut bytes = Vec::new();
                File::open(&at)?.read_to_end(&mut bytes)?;
                Entry::File { length: metadata.size(), bytes }
            };
            found.insert(name, entry);
        }
    }
    Ok(found)
}

/// Whether both are the same; if not, where.
pub(crate) fn same(local: &BTreeMap<PathBuf, Entry>, there: &BTreeMap<PathBuf, Entry>) -> Verdict {
    let mut names: Vec<&PathBuf> = local.keys().chain(there.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let brief = |entry: Option<&Entry>| match entry {
        None => "nothing".to_owned(),
        Some(Entry::File { length, bytes }) => {
            format!("a file of {length} bytes, of which {} can be read", bytes.len())
        }
        Some(other) => format!("{other:?}"),
    };
    let differ: Vec<_> = names.into_iter().filter(|name| local.get(*name) != there.get(*name)).collect();
    let Some(first) = differ.first() else { return Ok(()) };
    let (ours, theirs) = (brief(local.get(*first)), brief(there.get(*first)));
    Err(format!("{} entries differ; {} is {ours} here and {theirs} there", differ.len(), first.display())
        .into())
}
