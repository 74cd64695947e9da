//! Volumes that go from OpenAFS's servers to ours and back, by Debian's `vos` and by ours: dumped, restored, moved, copied, released. What arrives is
//! compared vnode by vnode: modes, times, owners, links, mount points, access lists, data.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use afar_interop::cell::{ADDRESS, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_dump::{DumpHeader, Event, Reader, VnodeRecord, VolumeHeader};
use afs_lab::caller::AccessList;
use afs_wire::ids::{AfsFid, AfsTime, ViceId, VolumeId};
use afs_wire::rxafs::StoreStatus;
use afs_wire::status::{AfsStoreStatus, StoreMask};

use crate::scene::{Scene, told};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab) -> Verdict;
    let checks: [(&str, Check); 6] = [
        ("dumps/go_from_openafs_to_ours_and_back", there_and_back),
        ("dumps/of_what_changed_go_both_ways", increments),
        ("dumps/go_both_ways_in_moves_and_releases", moves),
        ("dumps/go_wherever_our_vos_sends_them", our_vos),
        ("dumps/with_a_security_level_go_to_openafs_by_force_alone", level),
        ("dumps/of_a_partition_without_its_server_restore_at_openafs", without_server),
    ];
    let case = |(name, check): (&str, Check)| {
        let lab = Arc::clone(lab);
        Case::new(name, Weight::Waiting, move || check(&lab))
    };
    checks.into_iter().map(case).collect()
}

/// Where our file server is.
const OURS: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 3);

/// A cell of OpenAFS's with a file server of ours.
fn mixed(lab: &Lab) -> Result<Scene, Trouble> {
    let scene = Scene::new(lab, &Servers::Stock)?;
    let joined = scene.cell.join(3, &Machine::new(lab.our_servers()?))?;
    assert_eq!(joined, OURS);
    Ok(scene)
}

/// A volume with something of every kind.
fn filled(scene: &Scene, server: Ipv4Addr, name: &str) -> Result<VolumeId, Trouble> {
    let all = AccessList::granting([("admin", AccessList::ALL), ("alice", AccessList::WRITE)]);
    let volume = scene.volume(server, name, &all)?;
    scene.at_clients(async || {
        let client = scene.client()?;
        let admin = client.file_server(server, &scene.user("admin")?);
        let root = AfsFid::root_of(volume);
        let doing = "filling a volume";
        let set = async |fid, status| admin.rpc(&StoreStatus { fid, status }).await.map_err(told(doing));
        let mut directory = root;
        for (n, length) in [0_usize, 1, 5000, 100_000, 3_000_000].into_iter().enumerate() {
            let file = admin.create_file(directory, &format!("file {n}")).await.map_err(told(doing))?.fid;
            let bytes: Vec<u8> = (0..length).map(|at| (at * (n + 3) / 7) as u8).collect();
            admin.store(file, 0, bytes, length as u64).await.map_err(told(doing))?;
            let mask = StoreMask::MODE | StoreMask::OWNER | StoreMask::GROUP | StoreMask::MOD_TIME;
            let status = AfsStoreStatus {
                mask,
                client_mod_time: AfsTime(1_000_000_000 + n as u32),
                owner: ViceId(1001 + n as i32 % 2),
                group: ViceId([0, 7][n % 2]),
                unix_mode_bits: [0o644, 0o4755, 0o600, 0, 0o777][n],
                ..AfsStoreStatus::default()
            };
            set(file, status).await?;
            admin.symlink(directory, &format!("link {n}"), "../any/where").await.map_err(told(doing))?;
            if n == 2 {
                admin.link(directory, "another name", file).await.map_err(told(doing))?;
            }
            directory = admin.make_dir(directory, &format!("directory {n}")).await.map_err(told(doing))?.fid;
            let mut list = AccessList::granting([("admin", AccessList::ALL), ("bob", AccessList::READ)]);
            list.negative.push(("alice".to_owned(), AccessList::WRITE));
            admin.set_access_list(directory, &list).await.map_err(told(doing))?;
        }
        admin.symlink(root, "mount", "#root.cell.").await.map_err(told(doing))?;
        for n in 0..150 {
            let name = format!("one of many names, so that the directory has pages: {n}");
            admin.create_file(root, &name).await.map_err(told(doing))?;
        }
        admin
            .remove_file(root, "one of many names, so that the directory has pages: 7")
            .await
            .map_err(told(doing))?;
        admin.give_up_all().await.map_err(told("giving up callbacks"))
    })?;
    Ok(volume)
}

/// A dump, read.
struct Dump {
    header: DumpHeader,
    volume: VolumeHeader,
    vnodes: Vec<(VnodeRecord, Vec<u8>)>,
}

fn parse(stream: &[u8]) -> Result<Dump, Trouble> {
    let (mut reader, mut input) = (Reader::new(), stream);
    let mut dump =
        Dump { header: DumpHeader::default(), volume: VolumeHeader::default(), vnodes: Vec::new() };
    loop {
        let event = reader.next(&mut input).map_err(told("reading a dump"))?;
        match event {
            None => break,
            Some(Event::Dump(header)) => dump.header = header.clone(),
            Some(Event::Volume(volume)) => dump.volume = volume.clone(),
            Some(Event::Vnode(record)) => dump.vnodes.push((record.clone(), Vec::new())),
            Some(Event::Data(data)) => {
                let last = dump.vnodes.last_mut().ok_or_else(|| "data without a vnode".to_owned())?;
                last.1.extend_from_slice(data);
            }
            Some(Event::End) => {}
        }
    }
    reader.finish().map_err(told("reading a dump"))?;
    Ok(dump)
}

impl Scene {
    /// A file that the machine `srv` sees too.
    fn dump_file(&self, name: &str) -> PathBuf {
        self.cell.folder("srv").join(name)
    }

    /// What Debian's `vos dump` writes; `options` are more of its words.
    fn dump(&self, volume: &str, options: &[&str]) -> Result<Dump, Trouble> {
        let file = self.dump_file(&format!("{volume}.dump"));
        let path = file.display().to_string();
        let words = ["vos", "dump", volume, "-file", &path, "-localauth"];
        let finished = self.cell.run(&[&words, options].concat())?;
        if finished.status != Some(0) {
            return Err(format!("vos dump {volume}: {} {}", finished.stdout, finished.stderr).into());
        }
        parse(&fs::read(&file).map_err(told("reading the file of a dump"))?)
    }

    /// Has Debian's `vos restore` make a volume of what was dumped last of another one.
    fn restore(&self, server: Ipv4Addr, from: &str, to: &str, options: &str) -> Result<(), Trouble> {
        let file = self.dump_file(&format!("{from}.dump"));
        self.cell
            .expect(&format!("vos restore {server} a {to} -file {} {options} -localauth", file.display()))?;
        Ok(())
    }
}

/// The volumes have the same vnodes.
fn compare(what: &str, one: &Dump, other: &Dump) -> Verdict {
    if one.vnodes.len() != other.vnodes.len() || one.vnodes.len() < 4 {
        return Err(format!("{what}: {} and {} vnodes", one.vnodes.len(), other.vnodes.len()).into());
    }
    for ((a, data_a), (b, data_b)) in one.vnodes.iter().zip(&other.vnodes) {
        if a != b {
            return Err(format!("{what}: {a:#?}\nbecame\n{b:#?}").into());
        }
        if data_a != data_b {
            return Err(format!("{what}: the data of {} are not the same", a.fid).into());
        }
    }
    Ok(())
}

fn is(what: &str, one: impl PartialEq + std::fmt::Debug, other: impl PartialEq + std::fmt::Debug) -> Verdict {
    let (one, other) = (format!("{one:?}"), format!("{other:?}"));
    if one == other { Ok(()) } else { Err(format!("{what}: {one}, {other}").into()) }
}

fn there_and_back(lab: &Lab) -> Verdict {
    let scene = mixed(lab)?;
    for (begin, other) in [(ADDRESS, OURS), (OURS, ADDRESS)] {
        let name = |step: &str| format!("{}.{step}", if begin == OURS { "ours" } else { "stock" });
        let (first, second, third) = (name("1"), name("2"), name("3"));
        let volume = filled(&scene, begin, &first)?;
        let original = scene.dump(&first, &[])?;
        is("the volume's id", original.header.volume, volume)?;
        scene.restore(other, &first, &second, "")?;
        let there = scene.dump(&second, &[])?;
        compare("from one to the other", &original, &there)?;
        scene.restore(begin, &second, &third, "-creation keep")?;
        let back = scene.dump(&third, &[])?;
        compare("and back", &original, &back)?;
        for (what, of) in [("there", &there), ("back", &back)] {
            is(what, of.volume.used_kib, original.volume.used_kib)?;
            is(what, of.volume.max_quota_kib, original.volume.max_quota_kib)?;
            is(what, of.volume.next_unique, original.volume.next_unique)?;
            is(what, of.volume.update_date, original.volume.update_date)?;
            is(what, (of.volume.in_service, of.volume.blessed), (true, true))?;
        }
        // A dump of a clone, and one of a read-only volume.
        let clone = scene.dump(&third, &["-clone"])?;
        compare("by way of a clone", &original, &clone)?;
        scene.cell.expect(&format!("vos backup {third} -localauth"))?;
        let backup = scene.dump(&format!("{third}.backup"), &[])?;
        compare("of the backup volume", &original, &backup)?;
        // A volume that is there is replaced.
        scene.restore(other, &first, &second, "-overwrite full")?;
        compare("once more", &original, &scene.dump(&second, &[])?)?;
    }
    Ok(())
}

/// Changes a volume that was filled.
fn change(scene: &Scene, server: Ipv4Addr, volume: VolumeId) -> Result<(), Trouble> {
    let doing = "changing a volume";
    scene.at_clients(async || {
        let client = scene.client()?;
        let admin = client.file_server(server, &scene.user("admin")?);
        let root = AfsFid::root_of(volume);
        let new = admin.create_file(root, "a new file").await.map_err(told(doing))?.fid;
        admin.store(new, 0, vec![9; 50_000], 50_000).await.map_err(told(doing))?;
        admin.remove_file(root, "file 0").await.map_err(told(doing))?;
        admin.rename((root, "mount"), (root, "mounted")).await.map_err(told(doing))?;
        admin.make_dir(root, "a new directory").await.map_err(told(doing))?;
        admin.give_up_all().await.map_err(told("giving up callbacks"))
    })
}

fn increments(lab: &Lab) -> Verdict {
    let scene = mixed(lab)?;
    let places = [("stock", ADDRESS, OURS), ("ours", OURS, ADDRESS)];
    let mut volumes = Vec::new();
    for (name, begin, other) in places {
        volumes.push(filled(&scene, begin, name)?);
        scene.dump(name, &[])?;
        scene.restore(other, name, &format!("{name}.copy"), "")?;
    }
    // vos takes whole minutes.
    let now = || scene.cell.expect("date +%m/%d/%Y_%H:%M");
    let minute = now()?;
    while now()? == minute {
        thread::sleep(Duration::from_millis(500));
    }
    let since = now()?.trim().replace('_', " ");
    for ((name, begin, other), volume) in places.into_iter().zip(volumes) {
        let copy = format!("{name}.copy");
        change(&scene, begin, volume)?;
        let increment = scene.dump(name, &["-time", &since])?;
        let whole = increment.vnodes.iter().filter(|(record, _)| record.attributes.is_some()).count();
        let named = increment.vnodes.len();
        // All directories, the new file and nothing else.
        is("vnodes with all that they have", (whole, named > 150), (5 + 1 + 1 + 1, true))?;
        scene.restore(other, name, &copy, "-overwrite incremental")?;
        compare("what changed", &scene.dump(name, &[])?, &scene.dump(&copy, &[])?)?;
    }
    Ok(())
}

fn moves(lab: &Lab) -> Verdict {
    let scene = mixed(lab)?;
    let places = [("stock", ADDRESS, OURS), ("ours", OURS, ADDRESS)];
    let mut released = Vec::new();
    for (name, begin, _) in places {
        released.push(filled(&scene, begin, name)?);
    }
    // vos takes a volume that is not older than two seconds at its release for another one at the next.
    thread::sleep(Duration::from_secs(4));
    for ((name, begin, other), volume) in places.into_iter().zip(released) {
        let replica = format!("{name}.readonly");
        for line in [format!("vos addsite {other} a {name}"), format!("vos release {name}")] {
            scene.cell.expect(&format!("{line} -localauth"))?;
        }
        compare("a release", &scene.dump(name, &[])?, &scene.dump(&replica, &[])?)?;
        change(&scene, begin, volume)?;
        let said = scene.cell.expect(&format!("vos release {name} -verbose -localauth"))?;
        if !said.contains("(as of ") {
            return Err(format!("the second release is not incremental: {said}").into());
        }
        compare("a second release", &scene.dump(name, &[])?, &scene.dump(&replica, &[])?)?;

        let moved = format!("{name}.moved");
        filled(&scene, begin, &moved)?;
        let before = scene.dump(&moved, &[])?;
        scene.cell.expect(&format!("vos move {moved} {begin} a {other} a -localauth"))?;
        let examined = scene.cell.expect(&format!("vos examine {moved} -noresolve -localauth"))?;
        if !examined.contains(&format!("server {other} partition /vicepa RW Site"))
            || !examined.contains("On-line")
        {
            return Err(format!("vos examine says {examined}").into());
        }
        compare("a move", &before, &scene.dump(&moved, &[])?)?;
        let left = scene.cell.expect(&format!("vos listvol {begin} a -localauth"))?;
        if left.contains(&moved) {
            return Err(format!("{moved} is still where it was: {left}").into());
        }
    }
    Ok(())
}

/// A server of ours that does not come up again: `afar fsck` writes its volumes as dumps that a stock server takes, before and after a
/// repair, and what is left of a damaged one.
fn without_server(lab: &Lab) -> Verdict {
    let scene = mixed(lab)?;
    filled(&scene, OURS, "saved")?;
    let original = scene.dump("saved", &[])?;
    let mut kill = scene.cell.command_at("fs3", &["pkill", "-KILL", "-x", "afar"]);
    kill.status().map_err(told("killing our server"))?;
    let partition = scene.cell.folder("fs3").join("vicepa");
    let fsck = |words: &[&str], status: i32| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let done =
                lab.afar()?.arg("fsck").arg(&partition).args(words).output().map_err(told("running fsck"))?;
            let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            if done.status.code() == Some(status) {
                return Ok::<String, Trouble>(said);
            }
            // The process is gone some time after it was killed.
            if !said.contains("has it open") || Instant::now() > deadline {
                return Err(format!("fsck {words:?}: {said}").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    };
    let file = scene.dump_file("saved.dump").display().to_string();
    let dump = ["-dump", "saved", "-file", &file];
    fsck(&dump, 0)?;
    scene.restore(ADDRESS, "saved", "saved.1", "")?;
    compare("from the partition", &original, &scene.dump("saved.1", &[])?)?;

    // A file of data that nobody names is put apart, and nothing else changes.
    fs::write(partition.join("data/00000000/stray"), "x").map_err(told("damaging the partition"))?;
    fsck(&["-repair"], 0)?;
    fsck(&dump, 0)?;
    scene.restore(ADDRESS, "saved", "saved.2", "")?;
    compare("after a repair", &original, &scene.dump("saved.2", &[])?)?;

    // A chunk of the longest file is lost: all else is there.
    let data = fs::read_dir(partition.join("data/00000000")).map_err(told("looking for files of data"))?;
    let chunk = data.filter_map(|entry| Some(entry.ok()?.path())).max();
    let chunk = chunk.ok_or_else(|| "no file of data".to_owned())?;
    fs::remove_file(&chunk).map_err(told("damaging the partition"))?;
    let said = fsck(&dump, 1)?;
    if !said.contains("/directory 3/file 4: bytes 2097152 to 3000000 are zeros") {
        return Err(format!("the loss is not told: {said}").into());
    }
    scene.restore(ADDRESS, "saved", "saved.3", "")?;
    let mut expected = original;
    for (_, data) in &mut expected.vnodes {
        if data.len() == 3_000_000 {
            data[2 << 20..].fill(0);
        }
    }
    compare("of a damaged volume", &expected, &scene.dump("saved.3", &[])?)
}

/// Our vos, with servers of OpenAFS's, of ours, and one of each; what one vos has begun the other goes on with.
fn our_vos(lab: &Lab) -> Verdict {
    let scene = mixed(lab)?;
    let stock = scene.cell.join(4, &Machine::new(Servers::Stock))?;
    let ours = scene.cell.join(5, &Machine::new(lab.our_servers()?))?;
    let afar = PathBuf::from(lab.afar()?.get_program());
    let afar = afar.canonicalize().map_err(told("looking for our program"))?.display().to_string();
    let vos = |line: String| {
        let said = scene.cell.expect(&format!("{afar} vos {line} -localauth"))?;
        Ok::<String, Trouble>(said)
    };
    for (name, from, to) in
        [("alike", ADDRESS, stock), ("same", OURS, ours), ("there", ADDRESS, OURS), ("back", OURS, ADDRESS)]
    {
        let volume = filled(&scene, from, name)?;
        thread::sleep(Duration::from_secs(3));
        let original = scene.dump(name, &[])?;
        vos(format!("copy {name} {from} a {name}.copy {to} a"))?;
        compare("a copy", &original, &scene.dump(&format!("{name}.copy"), &[])?)?;
        for site in [from, to] {
            vos(format!("addsite {site} a {name}"))?;
        }
        vos(format!("release {name}"))?;
        let replica = |server: Ipv4Addr| {
            let server = server.to_string();
            scene.dump(&format!("{name}.readonly"), &["-server", &server, "-partition", "a"])
        };
        for site in [from, to] {
            compare("a release", &original, &replica(site)?)?;
        }
        change(&scene, from, volume)?;
        let said = vos(format!("release {name} -verbose"))?;
        if !said.contains("(as of ") {
            return Err(format!("the second release of {name} is not incremental: {said}").into());
        }
        let changed = scene.dump(name, &[])?;
        for site in [from, to] {
            compare("a second release", &changed, &replica(site)?)?;
        }
        // Debian's goes on with what ours has left, and ours with what it has left.
        scene.cell.expect(&format!("vos release {name} -localauth"))?;
        vos(format!("release {name} -force"))?;
        for site in [from, to] {
            compare("releases by both", &changed, &replica(site)?)?;
        }
        scene.cell.expect(&format!("vos remove {to} a {name}.readonly -localauth"))?;
        vos(format!("move {name} {from} a {to} a"))?;
        compare("a move", &changed, &scene.dump(name, &[])?)?;
        vos(format!("move {name} {to} a {from} a -live"))?;
        compare("a move back", &changed, &scene.dump(name, &[])?)?;
        scene.cell.expect(&format!("vos release {name} -localauth"))?;
        vos(format!("zap {from} a {name}"))?;
        vos(format!("convertROtoRW {from} a {name} -force"))?;
        compare("a conversion", &changed, &scene.dump(name, &[])?)?;
        let entry = scene.cell.expect(&format!("vos listvldb {name} -noresolve -localauth"))?;
        if !entry.contains("number of sites -> 1") || !entry.contains("RW Site") || entry.contains("LOCKED") {
            return Err(format!("after the conversion of {name}, vos listvldb says {entry}").into());
        }
    }
    Ok(())
}

/// OpenAFS's servers know no levels: a volume that has one goes to them only if it may lose it.
fn level(lab: &Lab) -> Verdict {
    let scene = mixed(lab)?;
    let volume = filled(&scene, OURS, "secret")?;
    let original = scene.dump("secret", &[])?;
    let afar = PathBuf::from(lab.afar()?.get_program());
    let afar = afar.canonicalize().map_err(told("looking for our program"))?.display().to_string();
    let vos = |line: &str| {
        let line = format!("{afar} vos {line} -localauth");
        Ok::<_, Trouble>(scene.cell.run(&line.split(' ').collect::<Vec<_>>())?)
    };
    let succeeds = |line: &str| match vos(line)? {
        done if done.status == Some(0) => Ok(done.stdout),
        failed => Err(Trouble::Failed(format!("vos {line}: {failed:?}"))),
    };
    succeeds("setfields secret -level crypt")?;
    for line in [
        format!("move secret {OURS} a {ADDRESS} a"),
        format!("copy secret {OURS} a secret.copy {ADDRESS} a"),
        format!("shadow secret {OURS} a {ADDRESS} a"),
    ] {
        let refused = vos(&line)?;
        if refused.status == Some(0) || !refused.stderr.contains("has a security level") {
            return Err(format!("vos {line} is not refused: {refused:?}").into());
        }
        let left = scene.cell.expect(&format!("vos listvol {ADDRESS} a -noresolve -localauth"))?;
        if left.contains("secret") {
            return Err(format!("after vos {line}, OpenAFS's server has {left}").into());
        }
    }
    // OpenAFS's vos knows nothing of it, and our server refuses.
    let stock = format!("vos move secret {OURS} a {ADDRESS} a -localauth");
    let refused = scene.cell.run(&stock.split(' ').collect::<Vec<_>>())?;
    if refused.status == Some(0) {
        return Err(format!("OpenAFS's vos moves it: {refused:?}").into());
    }
    let examined = succeeds("examine secret -noresolve")?;
    if !examined.contains("crypt") || !examined.contains(&OURS.to_string()) {
        return Err(format!("after moves that were refused, vos examine says {examined}").into());
    }
    succeeds(&format!("move secret {OURS} a {ADDRESS} a -force"))?;
    compare("a move by force", &original, &scene.dump("secret", &[])?)?;
    succeeds(&format!("move secret {ADDRESS} a {OURS} a"))?;
    let examined = succeeds(&format!("examine {}", volume.0))?;
    if examined.contains("crypt") {
        return Err(format!("back from OpenAFS's server it has a level: {examined}").into());
    }
    Ok(())
}
