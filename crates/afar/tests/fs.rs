//! `afar fs` and `afar tokens` in a mount of `afar up`: what they print, line by line, and that it has happened.

use crate::mounted::{Folder, Process, afar, our_program, own_address, skip, socket_of};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CELL: &str = "fs.test";

/// Somebody who has no token.
const NOBODY: u32 = 65534;

/// A whole cell, mounted; it ends with this.
struct Up {
    process: Process,
    mount: PathBuf,
    address: String,
    socket: PathBuf,
    _state: Folder,
}

impl Up {
    /// `None`, told as skipped, where nothing can be mounted.
    fn start(name: &str) -> Option<Self> {
        Self::start_cell(name, CELL)
    }

    /// The same, of another name.
    fn start_cell(name: &str, cell: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return skip("it takes root and /dev/fuse");
        }
        let state = Folder::new(name);
        let mount = state.path().join("mount");
        let address = own_address().to_string();
        let mut command = afar(["up", "--cell", cell, "--bind", &address, "--state"]);
        command.arg(state.join("state")).arg("--mount").arg(&mount);
        let process = Process::start(command, Some(mount.clone()));
        assert!(process.ready.starts_with(&format!("ready cell={cell} ")), "{}", process.ready);
        let socket = socket_of(&mount);
        Some(Self { process, mount, address, socket, _state: state })
    }

    fn path(&self, name: &str) -> String {
        self.mount.join(CELL).join(name).display().to_string()
    }

    /// A command to this client, whatever others the machine has.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = our_program();
        command.args(words).current_dir(&self.mount).env("AFAR_SOCKET", &self.socket).env("TZ", "UTC");
        command
    }

    /// Runs `afar fs`, which has to end and print so.
    fn check(&self, words: &[&str], status: i32, stdout: &str, stderr: &str) {
        check(&mut self.command(&[&["fs"][..], words].concat()), status, stdout, stderr);
    }

    fn says(&self, words: &[&str], stdout: &str) {
        self.check(words, 0, stdout, "");
    }

    /// What `fs getcacheparms` has under a name, in KiB.
    fn cache(&self, of: &str) -> u64 {
        let told = self.command(&["fs", "getcacheparms", "-json"]).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
        told[of].as_u64().unwrap()
    }
}

fn check(command: &mut Command, status: i32, stdout: &str, stderr: &str) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let found = (done.status.code(), text(&done.stdout), text(&done.stderr));
    assert_eq!(found, (Some(status), stdout.to_owned(), stderr.to_owned()), "{command:?}");
}

#[test]
fn files_say_where_they_are() {
    let Some(up) = Up::start("where") else { return };
    let (scratch, file) = (up.path("scratch"), up.path("scratch/file"));
    fs::write(&file, b"bytes").unwrap();
    up.says(&["wscell"], "This workstation belongs to cell 'fs.test'\n");
    up.says(
        &["whichcell", &file, &scratch],
        &format!("File {file} lives in cell 'fs.test'\nFile {scratch} lives in cell 'fs.test'\n"),
    );
    let cell = format!("Cell fs.test on hosts {}.\n", up.address);
    up.says(&["listcells", "-numeric"], &cell);
    up.says(&["getcellstatus", "fs"], "Cell fs.test status: no setuid allowed\n");
    up.check(
        &["getcellstatus", "nosuch"],
        1,
        "",
        &format!("fs: cell nosuch not in {}/state/etc/CellServDB\n", up.mount.parent().unwrap().display()),
    );
    // Of the address nobody knows a name, so it is shown as it is.
    up.says(&["whereis", &file], &format!("File {file} is on host {} \n", up.address));
    up.says(&["checkservers"], "All servers are running.\n");
    up.says(&["checkvolumes"], "All volumeID/name mappings checked.\n");
    let fid = up.command(&["fs", "getfid", &file]).output().unwrap();
    let fid = String::from_utf8(fid.stdout).unwrap();
    let numbers = fid
        .strip_prefix(&format!("File {file} ("))
        .and_then(|rest| rest.strip_suffix(") located in cell fs.test\n"));
    let numbers: Vec<u32> =
        numbers.expect("the line of a fid").split('.').map(|number| number.parse().unwrap()).collect();
    assert_eq!((numbers.len(), numbers[1] % 2), (3, 0), "files have even vnodes: {fid}");
    up.check(
        &["whichcell", "/proc"],
        1,
        "",
        "fs: Invalid argument; it is possible that /proc is not in AFS.\n",
    );
    up.check(
        &["examine", "/proc"],
        1,
        "",
        "fs: Invalid argument; it is possible that /proc is not in AFS.\n",
    );
    up.check(
        &["listacl", &up.path("nosuch")],
        1,
        "",
        &format!("fs: File '{}' doesn't exist\n", up.path("nosuch")),
    );
    up.check(
        &["getfid", "/proc", &file],
        1,
        &fid,
        "fs: Invalid argument; it is possible that /proc is not in AFS.\n",
    );
    let json = up.command(&["fs", "getfid", &file, "-json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json[0]["vnode"], numbers[1]);
}

#[test]
fn access_lists_are_shown_and_changed() {
    let Some(up) = Up::start("acl") else { return };
    let dir = up.path("scratch/dir");
    fs::create_dir(&dir).unwrap();
    let list = |entries: &str| format!("Access list for {dir} is\n{entries}");
    up.says(&["setacl", &dir, "system:anyuser", "rl", "system:administrators", "all", "-clear"], "");
    // What is new comes first, as in OpenAFS's.
    up.says(
        &["listacl", &dir],
        &list("Normal rights:\n  system:administrators rlidwka\n  system:anyuser rl\n"),
    );
    up.says(&["sa", "-dir", &dir, "-acl", "system:anyuser", "wi+", "system:authuser", "read"], "");
    up.says(&["sa", &dir, "admin", "k", "-negative"], "");
    up.says(
        &["la", &dir],
        &list(
            "Normal rights:\n  system:authuser rl\n  system:administrators rlidwka\n  system:anyuser rliw\n\
             Negative rights:\n  admin k\n",
        ),
    );
    up.says(&["la", "-cmd", &dir], &format!(
        "fs setacl -dir {dir} -acl   system:authuser rl  system:administrators rlidwka  system:anyuser rliw\n\
         fs setacl -dir {dir} -acl   admin k -negative\n"
    ));
    up.says(&["sa", &dir, "system:authuser", "none", "system:anyuser", "w-"], "");
    let other = up.path("scratch/other");
    fs::create_dir(&other).unwrap();
    up.says(&["copyacl", &dir, &other, "-clear"], "");
    let both = [
        "Normal rights:\n  system:administrators rlidwka\n  system:anyuser rli\nNegative rights:\n  admin k\n",
        "Normal rights:\n  system:anyuser rli\n  system:administrators rlidwka\nNegative rights:\n  admin k\n",
    ];
    up.says(&["la", &dir, &other], &format!("{}\nAccess list for {other} is\n{}", list(both[0]), both[1]));
    up.says(&["cleanacl", &dir], &format!("Access list for {dir} is fine.\n"));
    up.check(
        &["sa", &dir, "nosuchuser", "rl"],
        1,
        "",
        "fs: Invalid argument, possible reasons include:\n\
        \t-File not in AFS\n\t-Too many users on access control list\n\
        \t-Tried to add non-existent user to access control list\n",
    );
    up.check(&["sa", &dir, "admin", "rx"], 1, "", "fs: illegal rights character 'x'.\n");
    up.check(&["sa", &dir, "admin"], 1, "", "fs: Missing second half of user/access pair.\n");
    up.says(&["gca", &dir], &format!("Callers access to {dir} is rlidwa\n"));
    // Rights are the caller's: somebody else has what anybody has, and may change nothing.
    let as_nobody = |words: &[&str]| {
        let mut command = up.command(&[&["fs"][..], words].concat());
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    check(&mut as_nobody(&["gca", &dir]), 0, &format!("Callers access to {dir} is rli\n"), "");
    let denied = format!("fs: You don't have the required access rights on '{dir}'\n");
    check(&mut as_nobody(&["sa", &dir, "system:anyuser", "all"]), 1, "", &denied);
}

#[test]
fn mount_points_are_made_shown_and_removed() {
    let Some(up) = Up::start("mounts") else { return };
    let mount = up.path("scratch/mp");
    up.says(&["mkmount", &mount, "root.cell"], "");
    up.says(&["lsmount", &mount], &format!("'{mount}' is a mount point for volume '#root.cell'\n"));
    // Another directory of root.cell than scratch: a volume inside of itself is a loop to the kernel.
    assert!(Path::new(&mount).join("user").is_dir(), "it is followed");
    let slashed = format!("{mount}/");
    up.says(&["lsmount", &slashed], &format!("'{slashed}' is a mount point for volume '#root.cell'\n"));
    let other = up.path("scratch/rw");
    up.check(
        &["mkmount", &other, "nosuch", "-cell", "fs", "-rw"],
        0,
        "",
        "fs: warning, volume nosuch does not exist in cell fs.\n",
    );
    up.says(&["lsmount", &other], &format!("'{other}' is a mount point for volume '%fs.test:nosuch'\n"));
    let link = up.path("scratch/link");
    std::os::unix::fs::symlink("mp", &link).unwrap();
    up.says(
        &["lsmount", &link],
        &format!("'{link}' is a symbolic link, leading to a mount point for volume '#root.cell'\n"),
    );
    let root = up.mount.join(CELL).display().to_string();
    up.says(&["lsmount", &root], &format!("'{root}' is a mount point for volume '#fs.test:root.cell'\n"));
    up.says(&["flushmount", &mount], "");
    let dir = up.path("scratch/plain");
    fs::create_dir(&dir).unwrap();
    up.check(&["lsmount", &dir], 1, "", &format!("'{dir}' is not a mount point.\n"));
    up.check(&["rmmount", &dir], 1, "", &format!("fs: '{dir}' is not a mount point.\n"));
    up.check(
        &["lsmount", &up.path("nosuch")],
        1,
        "",
        &format!("fs: File '{}' doesn't exist\n", up.path("nosuch")),
    );
    up.says(&["rmmount", &mount, &other], "");
    assert!(fs::symlink_metadata(&mount).is_err(), "it is gone");
    up.check(
        &["mkmount", "/proc/x", "root.cell"],
        1,
        "",
        "fs: mount points must be created within the AFS file system\n",
    );
    up.check(&["mkmount", &dir, "root.cell"], 1, "", &format!("fs:'{dir}': File exists\n"));
    up.check(&["mkmount", &mount, "a:b", "-cell", "c"], 1, "", "fs: cellnames do not match.\n");
}

/// Scripts look for a name, make it, and set its access list: the kernel knew that the name was not there, and went on to.
#[test]
fn a_name_that_is_made_or_removed_by_a_command_is_so_for_the_kernel_at_once() {
    let Some(up) = Up::start("at-once") else { return };
    let dir = up.path("scratch/dir");
    fs::create_dir(&dir).unwrap();
    let is_there = |path: &str| fs::metadata(path).is_ok();
    for round in 0..5 {
        let mount = format!("{dir}/mount-{round}");
        for _ in 0..2 {
            assert!(!is_there(&mount), "round {round}: it is not made");
            up.says(&["mkmount", &mount, "root.cell"], "");
            assert!(is_there(&mount), "round {round}: it was made");
            up.says(&["rmmount", &mount], "");
            assert!(!is_there(&mount), "round {round}: it was removed");
        }
        // What others may no longer see, the kernel has forgotten.
        let file = format!("{dir}/file-{round}");
        fs::write(&file, b"text").unwrap();
        let sees = || {
            let mut stat = Command::new("stat");
            stat.arg(&file)
                .uid(NOBODY)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap()
                .success()
        };
        assert!(sees());
        up.says(&["setacl", &dir, "system:anyuser", "none"], "");
        assert!(!sees(), "round {round}");
        up.says(&["setacl", &dir, "system:anyuser", "rl"], "");
        assert!(sees(), "round {round}");
    }
}

#[test]
fn volumes_and_the_cache_are_told_of() {
    let Some(up) = Up::start("volumes") else { return };
    let scratch = up.path("scratch");
    up.says(&["setquota", &scratch, "-max", "10M"], "");
    let examined = up.command(&["fs", "examine", &scratch]).output().unwrap();
    let examined = String::from_utf8(examined.stdout).unwrap();
    for line in [
        "Volume status for vid = ",
        "Current disk quota is 10240\n",
        "Current blocks used are ",
        "The partition has ",
    ] {
        assert!(examined.contains(line), "{line:?} in {examined}");
    }
    let quota = up.command(&["fs", "listquota", &scratch]).output().unwrap();
    let quota = String::from_utf8(quota.stdout).unwrap();
    assert!(
        quota.starts_with("Volume Name                    Quota       Used %Used   Partition\n"),
        "{quota}"
    );
    assert!(quota.contains("      10240 "), "{quota}");
    up.says(&["quota", &scratch], " 0% of quota used.\n");
    up.says(&["sq", &scratch, "-max", "0"], "");
    let quota = up.command(&["fs", "lq", &scratch]).output().unwrap();
    assert!(String::from_utf8(quota.stdout).unwrap().contains("   no limit "));
    up.check(&["sq", &scratch, "-max", "much"], 1, "", "fs: bad integer specified for quota.\n");
    let file = up.path("scratch/file");
    fs::write(&file, b"bytes").unwrap();
    up.says(&["flush", &file], "");
    up.says(&["flushvolume", &scratch], "");
    up.says(&["flushall"], "");
    assert_eq!(fs::read(&file).unwrap(), b"bytes");
    up.check(&["flush", "/proc"], 1, "", "fs: Error flushing file /proc: Invalid argument\n");
    up.check(&["flushvolume", "/proc"], 1, "", "Error flushing volume /proc: Invalid argument\n");
    let cache = up.command(&["fs", "getcacheparms"]).output().unwrap();
    let cache = String::from_utf8(cache.stdout).unwrap();
    assert!(cache.starts_with("AFS using ") && cache.ends_with(" 1K byte blocks.\n"), "{cache}");
}

#[test]
fn a_cache_size_counts_until_it_is_reset() {
    let Some(up) = Up::start("cachesize") else { return };
    let at_start = up.cache("size_kib");
    let file = up.path("scratch/file");
    fs::write(&file, vec![7; 12 << 20]).unwrap();
    assert!(up.cache("used_kib") >= 12 << 10, "what was written is in the cache");
    for (words, size) in [("65536", 65536), ("128M", 128 << 10), ("4096", 4096)] {
        up.says(&["setcachesize", words], "New cache size set.\n");
        assert_eq!(up.cache("size_kib"), size, "{words}");
    }
    // What is too much goes, all of it being stored, and comes again when it is read.
    until!(up.cache("used_kib") <= 4096, "{} KiB stay in a cache of 4096", up.cache("used_kib"));
    let parms = up.command(&["fs", "getcacheparms"]).output().unwrap();
    let parms = String::from_utf8(parms.stdout).unwrap();
    assert!(parms.ends_with(" of the cache's available 4096 1K byte blocks.\n"), "{parms}");
    assert!(fs::read(&file).unwrap() == vec![7; 12 << 20]);
    up.says(&["setcachesize", "-reset"], "New cache size set.\n");
    assert_eq!(up.cache("size_kib"), at_start);
    up.check(&["setcachesize", "much"], 1, "", "fs: bad integer specified for cache size.\n");
    up.check(&["setcachesize"], 1, "", "fs: syntax error in setcachesize cmd.\n");
    assert_eq!(up.cache("size_kib"), at_start);
}

/// With programs that opened files meanwhile, the client stood still for ever.
#[test]
fn the_cache_is_flushed_while_programs_open_files() {
    let Some(up) = Up::start("flushall") else { return };
    let files: Vec<String> = (0..2000).map(|number| up.path(&format!("scratch/file{number}"))).collect();
    files.iter().for_each(|file| fs::write(file, "text").unwrap());
    let (ends, wrong) = (AtomicBool::new(false), AtomicUsize::new(0));
    let is_flushed = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    let is_wrong = |file: &&String| fs::read(file).map_or(true, |bytes| bytes != b"text");
                    wrong.fetch_add(files.iter().filter(is_wrong).count(), Ordering::Relaxed);
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(3);
        let mut is_flushed = true;
        while is_flushed && Instant::now() < until {
            let mut command = Command::new("timeout");
            command.args(["-k", "1", "120", env!("CARGO_BIN_EXE_afar"), "fs", "flushall"]);
            is_flushed = command.current_dir(&up.mount).status().unwrap().success();
        }
        ends.store(true, Ordering::Relaxed);
        if !is_flushed {
            // It does not end otherwise, nor do those who read.
            up.process.signal("KILL");
        }
        is_flushed
    });
    assert!(is_flushed, "it hangs");
    assert_eq!(wrong.into_inner(), 0);
}

#[test]
fn what_is_flushed_is_fetched_again() {
    const KIB: u64 = 8 << 10;
    let Some(up) = Up::start("flush") else { return };
    let bytes: Vec<u8> = (0..KIB << 10).map(|number| (number % 251) as u8).collect();
    let (scratch, file) = (up.path("scratch"), up.path("scratch/file"));
    let (other, empty) = (up.path("scratch/other"), up.cache("used_kib"));
    fs::write(&file, &bytes).unwrap();
    fs::write(&other, &bytes).unwrap();
    let full = up.cache("used_kib");
    assert!(full >= empty + 2 * KIB, "{empty} KiB, then {full}");
    // The one of them.
    up.says(&["flush", &file], "");
    let flushed = up.cache("used_kib");
    assert!(flushed <= full - KIB && flushed >= empty + KIB, "{full} KiB, then {flushed}");
    // Read anew, it is in the cache again: neither the kernel nor anything else had kept it.
    assert!(fs::read(&file).unwrap() == bytes);
    assert!(up.cache("used_kib") >= full, "{} KiB after {full}", up.cache("used_kib"));
    // Both, with their volume.
    up.says(&["flushvolume", &scratch], "");
    let flushed = up.cache("used_kib");
    assert!(flushed <= full - 2 * KIB, "{full} KiB, then {flushed}");
    assert!(fs::read(&file).unwrap() == bytes && fs::read(&other).unwrap() == bytes);
    assert!(up.cache("used_kib") >= full, "{} KiB after {full}", up.cache("used_kib"));
}

#[test]
fn a_server_that_is_down_is_told_of_until_it_is_back() {
    let Some(up) = Up::start("checkservers") else { return };
    let Some(other) = Up::start_cell("checkservers-other", "other.test") else { return };
    let mounted = up.mount.join("other.test");
    // The kernel keeps that there is none, until it is told.
    assert!(!mounted.exists() && !mounted.exists());
    up.says(&["newcell", "other.test", &other.address], "");
    assert!(fs::read_dir(&mounted).unwrap().count() > 0);
    up.says(&["checkservers", "-cell", "other.test"], "All servers are running.\n");
    other.process.signal("STOP");
    let down = format!("These servers unavailable due to network or server problems:  {}.\n", other.address);
    // Nobody is asked for what is known: it is told before anybody has noticed, and when somebody has.
    up.says(&["checkservers", "-all", "-fast"], "All servers are running.\n");
    up.check(&["checkservers", "-cell", "other.test"], 1, &down, "");
    up.check(&["checkservers", "-all", "-fast"], 1, &down, "");
    let json = up.command(&["fs", "checkservers", "-all", "-fast", "-json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["unavailable"], serde_json::json!([other.address]));
    up.says(&["checkservers"], "All servers are running.\n");
    other.process.signal("CONT");
    up.says(&["checkservers", "-cell", "other.test"], "All servers are running.\n");
    up.says(&["checkservers", "-all", "-fast"], "All servers are running.\n");
}

#[test]
fn what_is_for_all_users_takes_root() {
    let Some(up) = Up::start("root") else { return };
    let as_nobody = |words: &[&str]| {
        let mut command = up.command(&[&["fs"][..], words].concat());
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    let denied = "fs: You do not have the required rights to do this operation\n";
    for words in [
        &["sysname", "there"][..],
        &["newalias", "f", "fs.test"],
        &["newcell", "other.test", "192.0.2.1"],
        &["setcachesize", "100000"],
    ] {
        check(&mut as_nobody(words), 1, "", denied);
    }
    check(
        &mut as_nobody(&["setserverprefs", "-servers", "192.0.2.1", "5"]),
        1,
        "",
        "Permission denied: requires root access.\n",
    );
    up.says(&["sysname", "here", "there"], "fs: new sysname list set.\n");
    up.says(&["sysname"], "Current sysname list is 'here' 'there'\n");
    let scratch = up.path("scratch");
    fs::write(format!("{scratch}/there"), b"of there").unwrap();
    assert_eq!(fs::read(format!("{scratch}/@sys")).unwrap(), b"of there");
    let alias = up.mount.join("f");
    assert!(!alias.is_symlink());
    up.says(&["newalias", "f", "fs.test"], "");
    assert_eq!(fs::read_link(&alias).unwrap().to_str(), Some("fs.test"));
    assert!(fs::read_dir(&up.mount).unwrap().any(|entry| entry.unwrap().file_name() == "f"));
    up.says(&["listaliases"], "Alias f for cell fs.test\n");
    up.check(&["newalias", "fs.test", "f"], 1, "", "fs: cell name `fs.test' in use by an existing cell.\n");
    up.says(&["newcell", "other.test", "192.0.2.1"], "");
    up.says(
        &["listcells", "-numeric"],
        &format!("Cell fs.test on hosts {}.\nCell other.test on hosts 192.0.2.1.\n", up.address),
    );
    up.says(&["setserverprefs", "-servers", &up.address, "7"], "");
    up.says(&["getserverprefs", "-numeric"], &format!("{:<50}     7\n", up.address));
    let tokens = up.command(&["tokens"]).output().unwrap();
    let tokens = String::from_utf8(tokens.stdout).unwrap();
    assert!(
        tokens.starts_with(
            "\nTokens held by the Cache Manager:\n\nUser admin's rxkad tokens for fs.test [Expires "
        ),
        "{tokens}"
    );
    let mut none = up.command(&["tokens"]);
    check(none.uid(NOBODY).gid(NOBODY), 0, "\nTokens held by the Cache Manager:\n\n   --End of list--\n", "");
}
