//! Our tools that speak with cells and clients of either make: afsio, which moves bytes without a mount and locks files, cmdebug, which has
//! to print what Debian's does of the same client, and fs in our mount of a cell of OpenAFS's servers.

use afs_lab::real::folder::Folder;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use afar_interop::cell::{self, ADDRESS, CELL_NAME, CLIENT_ADDRESS, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::caller::AccessList;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

use crate::fuse::{AFSIO, scene};
use crate::scene::{Scene, for_both, told};

/// Lengths of files: none, one byte, around the ends of what afsio fetches and stores at once (4 MiB, 32 MiB).
const LENGTHS: [usize; 6] = [0, 1, 70_000, (4 << 20) - 1, (8 << 20) + 1, (32 << 20) + 3];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    type Check = fn(&Lab, &Servers) -> Verdict;
    let checks: [(&str, Check); 3] = [
        ("tools/our_afsio_moves_bytes_both_ways", afsio),
        ("tools/our_afsio_writes_with_the_cells_key_where_others_may_not", afsio_localauth),
        ("tools/our_afsio_and_debians_lock_files_against_each_other", afsio_locks),
    ];
    type Comparison = fn(&Lab) -> Verdict;
    let comparisons: [(&str, Comparison); 3] = [
        ("tools/our_cmdebug_tells_of_afsd_what_debians_does", compare_cmdebug),
        ("tools/our_cmdebug_tells_of_our_mount_what_debians_does", compare_cmdebug_of_ours),
        ("tools/our_fs_tells_and_sets_what_openafs_servers_have", fs_of_stock),
    ];
    let compare = |(name, compare): (&str, Comparison)| {
        let lab = Arc::clone(lab);
        Case::new(name, Weight::Waiting, move || compare(&lab))
    };
    let comparisons = comparisons.into_iter().map(compare);
    checks.into_iter().flat_map(|(name, check)| for_both(lab, name, check)).chain(comparisons).collect()
}

/// What a run of our afsio came to.
struct Done {
    status: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

/// Our afsio in a cell, at the machine `srv`, with its configuration.
struct Afsio<'a> {
    scene: &'a Scene,
    program: String,
}

impl<'a> Afsio<'a> {
    fn new(lab: &Lab, scene: &'a Scene) -> Result<Self, Trouble> {
        let program = PathBuf::from(lab.afar()?.get_program());
        let program = program.canonicalize().map_err(told("our program"))?;
        Ok(Self { scene, program: program.display().to_string() })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut all = vec![self.program.as_str(), "afsio"];
        all.extend(words);
        self.scene.cell.command(&all)
    }

    fn run(&self, words: &[&str], input: Stdio) -> Result<Done, Trouble> {
        let output = self.command(words).stdin(input).output().map_err(told("our afsio"))?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(Done { status: output.status.code(), stdout: output.stdout, stderr })
    }

    /// A run that has to succeed.
    fn expect(&self, words: &[&str], input: Stdio) -> Result<Done, Trouble> {
        let done = self.run(words, input)?;
        match done.status {
            Some(0) => Ok(done),
            status => failed(format!("afsio {}: status {status:?}: {}", words.join(" "), done.stderr)),
        }
    }

    /// A run that has to fail, and to say this.
    fn refuse(&self, words: &[&str], says: &str) -> Verdict {
        let done = self.run(words, Stdio::null())?;
        if done.status == Some(0) || !done.stderr.contains(says) {
            return failed(format!("afsio {} does not say {says:?}: {}", words.join(" "), done.stderr));
        }
        Ok(())
    }

    /// The bytes of a file of the cell have to be these.
    fn check(&self, path: &str, bytes: &[u8]) -> Verdict {
        let read = self.expect(&["read", "-file", path], Stdio::null())?.stdout;
        same(path, &read, bytes)
    }

    /// Writes through a pipe, the end of which nobody knows.
    fn pipe(&self, words: &[&str], bytes: &[u8]) -> Verdict {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(told("our afsio"))?;
        let mut pipe = child.stdin.take().expect("it is piped");
        // Where it ends early, its own words tell more.
        let written = pipe.write_all(bytes);
        drop(pipe);
        let output = child.wait_with_output().map_err(told("our afsio"))?;
        if !output.status.success() || written.is_err() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return failed(format!("afsio {}: {said}", words.join(" ")));
        }
        Ok(())
    }
}

fn failed<T>(message: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Failed(message.into()))
}

fn same(what: &str, found: &[u8], wanted: &[u8]) -> Verdict {
    if found == wanted {
        return Ok(());
    }
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    let (found, wanted) = (found.len(), wanted.len());
    failed(format!("{what}: {found} bytes instead of {wanted}, the first that differs is {first:?}"))
}

fn some_bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

fn afsio(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = scene(lab, servers)?;
    let afsio = Afsio::new(lab, &scene)?;
    let local = Folder::new("local");
    let (from, to) = (local.join("from"), local.join("to"));
    let [from_name, to_name] = [&from, &to].map(|path| path.display().to_string());
    for (number, length) in LENGTHS.into_iter().enumerate() {
        let bytes = some_bytes(length, number as u64);
        fs::write(&from, &bytes).map_err(told("a local file"))?;
        let path = format!("/afs/{CELL_NAME}/scratch/f{number}");
        // A new name: that of 1.8.9 crashes there.
        afsio.expect(&["write", "-file", &path, "-from", &from_name], Stdio::null())?;
        afsio.check(&path, &bytes)?;
        afsio.expect(&["read", "-file", &path, "-to", &to_name], Stdio::null())?;
        same(&path, &fs::read(&to).map_err(told("a local file"))?, &bytes)?;
        // Debian's reads what ours has written. Of no bytes it reads none, and fails.
        if length > 0 {
            let words = [&AFSIO[..], &["read", "-file", &path]].concat();
            let output = scene.cell.command(&words).output().map_err(told("afsio"))?;
            same("what Debian's afsio reads", &output.stdout, &bytes)?;
        }
        // Another content, shorter, through a pipe, over the old one.
        let other = some_bytes(length / 2, 100 + number as u64);
        afsio.pipe(&["write", "-file", &path, "-force"], &other)?;
        afsio.check(&path, &other)?;
        let more = some_bytes(1000, 200 + number as u64);
        afsio.pipe(&["append", "-file", &path], &more)?;
        afsio.check(&path, &[other, more].concat())?;
    }
    let path = format!("/afs/{CELL_NAME}/scratch/f2");
    let bytes = some_bytes(100_000, 7);
    fs::write(&from, &bytes).map_err(told("a local file"))?;
    // A file as the standard input, and the path from the cell's root, with the cell's servers named.
    let input = File::open(&from).map_err(told("a local file"))?;
    let address = ADDRESS.to_string();
    let named = ["-cell", CELL_NAME, "-servers", &address, "-config", "/nonexistent"];
    afsio
        .expect(&[&["write", "-file", "scratch/f2", "-force", "-md5"][..], &named].concat(), input.into())?;
    afsio.check(&path, &bytes)?;
    let read =
        afsio.expect(&[&["read", "-file", "scratch/f2", "-md5"][..], &named].concat(), Stdio::null())?;
    let sum = Command::new("md5sum").arg(&from).output().map_err(told("md5sum"))?;
    let sum = String::from_utf8_lossy(&sum.stdout).split_whitespace().next().unwrap_or_default().to_owned();
    if sum.is_empty() || !read.stderr.contains(&format!("{sum}  f2")) {
        return failed(format!("the checksum of the file is {sum}, and afsio says {}", read.stderr));
    }
    afsio.refuse(&["write", "-file", &path, "-from", &from_name], "(use -force to overwrite)")?;
    afsio.refuse(&["read", "-file", &format!("/afs/{CELL_NAME}/nosuch")], "file not found")?;
    afsio.refuse(&["read", "-file", &format!("/afs/{CELL_NAME}/scratch")], "is a directory")?;
    afsio.refuse(&["append", "-file", &format!("/afs/{CELL_NAME}/nosuch")], "non-existent")?;
    afsio.refuse(&["fidread", "-fid", "1.2"], "invalid FID triple")
}

/// Where only administrators may write, nobody in particular may not, and who has the cell's key may.
fn afsio_localauth(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = scene(lab, servers)?;
    let closed = AccessList::granting([("system:administrators", AccessList::ALL)]);
    let volume = scene.volume(ADDRESS, "closed", &closed)?;
    let fid = scene.file(volume)?.to_string();
    let afsio = Afsio::new(lab, &scene)?;
    afsio.refuse(&["fidread", "-fid", &fid], "afsio: Permission denied")?;
    let bytes = some_bytes(10_000, 1);
    let as_admin = ["-localauth", "-as", "admin"];
    afsio.pipe(&[&["fidwrite", "-vnode", &fid, "-force"][..], &as_admin].concat(), &bytes)?;
    let read = afsio.expect(&[&["fidread", "-fid", &fid][..], &as_admin].concat(), Stdio::null())?;
    same("the closed file", &read.stdout, &bytes)?;
    let read = afsio.expect(&["fidread", "-fid", &fid, "-localauth", "-clear"], Stdio::null())?;
    same("the closed file, as the superuser", &read.stdout, &bytes)
}

/// A lock stays when the command that set it has ended, keeps the other make's out, and is taken back by either.
fn afsio_locks(lab: &Lab, servers: &Servers) -> Verdict {
    let scene = scene(lab, servers)?;
    let afsio = Afsio::new(lab, &scene)?;
    let admin = ("system:administrators", AccessList::ALL);
    let writable = AccessList::granting([admin, ("system:anyuser", AccessList::WRITE)]);
    let volume = scene.volume(ADDRESS, "locked", &writable)?;
    let fid = scene.file(volume)?.to_string();
    let ours = |words: &[&str]| afsio.expect(words, Stdio::null()).map(drop);
    let in_the_way = "failed to change lock status";
    // Debian's waits without end for what somebody else has.
    let debians = |verb: &str, gets_it: bool| -> Verdict {
        let patience = if gets_it { "60" } else { "3" };
        let words = [&["timeout", patience], &AFSIO[..], &[verb, "-fid", &fid]].concat();
        let output = scene.cell.command(&words).output().map_err(told("Debian's afsio"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match (output.status.code(), said.is_empty()) {
            (Some(0), true) if gets_it => Ok(()),
            (Some(124), true) if !gets_it => Ok(()),
            (status, _) => failed(format!("Debian's afsio {verb}: {status:?} {said}, should it? {gets_it}")),
        }
    };
    ours(&["fidlock", "-fid", &fid])?;
    debians("fidlock", false)?;
    afsio.refuse(&["fidlock", "-fid", &fid, "-waitseconds", "1"], in_the_way)?;
    afsio.refuse(&["fidlock", "-fid", &fid, "-readlock", "-waitseconds", "0"], in_the_way)?;
    ours(&["fidunlock", "-fid", &fid])?;
    debians("fidlock", true)?;
    afsio.refuse(&["fidlock", "-fid", &fid, "-waitseconds", "0"], in_the_way)?;
    ours(&["fidunlock", "-fid", &fid])?;
    ours(&["fidlock", "-fid", &fid, "-waitseconds", "0"])?;
    debians("fidunlock", true)?;
    afsio.refuse(&["fidunlock", "-fid", &fid], in_the_way)?;
    // Two readers, by path, and a writer who waits for both.
    let path = format!("/afs/{CELL_NAME}/scratch/shared");
    afsio.pipe(&["write", "-file", &path], b"bytes")?;
    ours(&["lock", "-file", &path, "-readlock"])?;
    ours(&["lock", "-file", &path, "-readlock", "-waitseconds", "0"])?;
    ours(&["unlock", "-file", &path])?;
    afsio.refuse(&["lock", "-file", &path, "-waitseconds", "0"], in_the_way)?;
    let mut writer =
        afsio.command(&["lock", "-file", &path]).stdin(Stdio::null()).spawn().map_err(told("our afsio"))?;
    std::thread::sleep(std::time::Duration::from_millis(1500));
    if let Some(status) = writer.try_wait().map_err(told("our afsio"))? {
        return failed(format!("the writer did not wait for the reader: {status}"));
    }
    ours(&["unlock", "-file", &path])?;
    let status = writer.wait().map_err(told("our afsio"))?;
    if !status.success() {
        return failed(format!("the writer who waited: {status}"));
    }
    afsio.refuse(&["lock", "-file", &path, "-readlock", "-waitseconds", "0"], in_the_way)?;
    ours(&["unlock", "-file", &path])?;
    afsio.refuse(&["unlock", "-file", &path], in_the_way)?;
    afsio.refuse(&["lock", "-file", &path, "-waitseconds", "x"], "invalid value for waitseconds x")?;
    afsio.refuse(&["lock", "-file", &format!("{path}-not")], "file not found")
}

/// What our fs sets through our mount is what OpenAFS's servers then have, as Debian's vos and who is concerned see it.
fn fs_of_stock(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = scene(lab, &Servers::Stock)?;
    let afsio = Afsio::new(lab, &scene)?;
    let mount = OurMount::start(&scene.cell, &lab.afar()?, &["--localauth"])?;
    let there = mount.path().join(CELL_NAME).join("scratch");
    let run = |words: &[&str]| -> Result<String, Trouble> {
        let mut command = Command::new(lab.afar()?.get_program());
        let output = command.arg("fs").args(words).current_dir(&there).stdin(Stdio::null()).output();
        let output = output.map_err(told("our fs"))?;
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => failed(format!("fs {}: {}: {said}", words.join(" "), output.status)),
        }
    };
    let says = |words: &[&str], wanted: &str| -> Verdict {
        match run(words)? {
            said if said == wanted => Ok(()),
            said => failed(format!("fs {} says {said:?} instead of {wanted:?}", words.join(" "))),
        }
    };
    let has = |words: &[&str], wanted: &str| -> Verdict {
        match run(words)? {
            said if said.contains(wanted) => Ok(()),
            said => failed(format!("fs {} says {said:?} without {wanted:?}", words.join(" "))),
        }
    };
    // Rights.
    let list = "Access list for . is\nNormal rights:\n  system:administrators rlidwka\n  system:anyuser ";
    says(&["listacl", "."], &format!("{list}rlidwk\n"))?;
    let path = format!("/afs/{CELL_NAME}/scratch/file");
    afsio.pipe(&["write", "-file", &path], b"bytes")?;
    says(&["setacl", ".", "system:anyuser", "rl", "alice", "write"], "")?;
    says(&["listacl", "."], &format!("{list}rl\n  alice rlidwk\n"))?;
    afsio.refuse(&["write", "-file", &path, "-force", "-synthesize", "5"], "Permission denied")?;
    says(&["setacl", ".", "bob", "w", "-negative"], "")?;
    has(&["listacl", "."], "Negative rights:\n  bob w\n")?;
    says(&["mkmount", "other", "root.afs"], "")?;
    says(&["lsmount", "other"], "'other' is a mount point for volume '#root.afs'\n")?;
    let mounted: Vec<_> = fs::read_dir(there.join("other"))
        .map_err(told("the new mount point"))?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    if mounted != [CELL_NAME] {
        return failed(format!("what is on the new mount point of root.afs: {mounted:?}"));
    }
    says(&["rmmount", "other"], "")?;
    if there.join("other").symlink_metadata().is_ok() {
        return failed("the mount point is still there");
    }
    fs::create_dir(there.join("sub")).map_err(told("a directory"))?;
    says(&["copyacl", ".", "sub", "-clear"], "")?;
    has(&["listacl", "sub"], "Negative rights:\n  bob w\n")?;
    says(&["setacl", ".", "system:anyuser", "write"], "")?;
    afsio.pipe(&["write", "-file", &path, "-force"], b"other bytes")?;
    // Where it is, and who may do what.
    let vldb = scene.cell.expect("vos listvldb -name scratch -quiet -localauth")?;
    let volume = vldb.split("RWrite: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let volume = volume.ok_or_else(|| format!("no number of scratch: {vldb}"))?;
    says(&["getfid", "."], &format!("File . ({volume}.1.1) located in cell {CELL_NAME}\n"))?;
    has(&["whereis", "file"], &ADDRESS.to_string())?;
    says(&["whichcell", "file"], &format!("File file lives in cell '{CELL_NAME}'\n"))?;
    has(&["getcalleraccess", "."], "rlidwka")?;
    says(&["checkservers"], "All servers are running.\n")?;
    // The volume, as its server and Debian's vos have it.
    says(&["setquota", ".", "-max", "7000"], "")?;
    has(&["listquota", "."], "scratch                         7000 ")?;
    has(&["examine", "."], &format!("Volume status for vid = {volume} named scratch\n"))?;
    has(&["examine", "."], "Current disk quota is 7000\n")?;
    let examined = scene.cell.expect("vos examine scratch -localauth")?;
    if !examined.contains("MaxQuota       7000 K") {
        return failed(format!("vos does not see the quota that fs has set: {examined}"));
    }
    has(&["quota", "."], "% of quota used.\n")?;
    has(&["diskfree", "."], "scratch ")?;
    // What is flushed comes again from the server.
    says(&["flush", "file"], "")?;
    says(&["flushvolume", "."], "")?;
    let bytes = fs::read(there.join("file")).map_err(told("the file in the mount"))?;
    same("a file behind a flush", &bytes, b"other bytes")?;
    Ok(mount.stop()?)
}

fn compare_cmdebug(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = scene(lab, &Servers::Stock)?;
    let mount = scene.cell.mount("one")?;
    mount.within(|| {
        use_a_little(mount.path())?;
        cmdebugs_agree(lab, &scene, &port_of(mount.path())?)
    })
}

fn compare_cmdebug_of_ours(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let scene = scene(lab, &Servers::Stock)?;
    let mount = OurMount::start(&scene.cell, &lab.afar()?, &[])?;
    use_a_little(&mount.path())?;
    cmdebugs_agree(lab, &scene, "7001")?;
    Ok(mount.stop()?)
}

/// So that a client has something to tell of.
fn use_a_little(mount: &Path) -> Verdict {
    let there = mount.join(CELL_NAME).join("scratch");
    fs::write(there.join("file"), b"bytes").map_err(told("a file in the mount"))?;
    fs::read_dir(&there).map_err(told("the folder in the mount"))?.for_each(drop);
    Ok(())
}

/// How often a client is asked until it has not changed from one of Debian's questions to the next.
const ATTEMPTS: usize = 5;

/// Debian's cmdebug and ours have to print the same of a client in the cell, which may not change meanwhile.
fn cmdebugs_agree(lab: &Lab, scene: &Scene, port: &str) -> Verdict {
    let program = PathBuf::from(lab.afar()?.get_program());
    let program = program.canonicalize().map_err(told("our program"))?.display().to_string();
    let address = CLIENT_ADDRESS.to_string();
    for words in
        [&["-long"][..], &["-refcounts"], &["-callbacks"], &[], &["-addrs"], &["-cache"], &["-cellservdb"]]
    {
        let run = |program: &[&str]| -> Result<String, Trouble> {
            let words = [program, &[&address, "-port", port], words].concat();
            let output = scene.cell.command(&words).output().map_err(told("cmdebug"))?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let mut changes = String::new();
        let same = (0..ATTEMPTS).find_map(|_| {
            let attempt =
                || Ok::<_, Trouble>((run(&["cmdebug"])?, run(&[&program, "cmdebug"])?, run(&["cmdebug"])?));
            match attempt() {
                Ok((before, ours, after)) if before == after => Some(Ok((before, ours))),
                Ok((before, _, after)) => {
                    changes = format!("{before}\nand then\n{after}");
                    None
                }
                Err(trouble) => Some(Err(trouble)),
            }
        });
        let Some(same) = same else {
            return failed(format!(
                "Debian's cmdebug {} says each time something else: {changes}",
                words.join(" ")
            ));
        };
        let (debians, ours) = same?;
        if debians != ours {
            return failed(format!("cmdebug {}: ours\n{ours}\nDebian's\n{debians}", words.join(" ")));
        }
        if words == ["-long"] && !ours.contains("** Cache entry @ 0x") {
            return failed(format!("there was nothing to compare: {ours}"));
        }
    }
    Ok(())
}

/// The port of an afsd.fuse, which takes any: that of the only socket in its network.
fn port_of(mount: &Path) -> Result<String, Trouble> {
    let process: PathBuf = mount.iter().take(3).collect();
    let sockets = fs::read_to_string(process.join("net/udp")).map_err(told("the sockets of afsd.fuse"))?;
    let mut lines = sockets.lines().skip(1);
    let local = lines.next().and_then(|line| line.split_whitespace().nth(1)?.split_once(':'));
    let port = local.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
    match (port, lines.next()) {
        (Some(port), None) => Ok(port.to_string()),
        _ => failed(format!("not one socket: {sockets}")),
    }
}
