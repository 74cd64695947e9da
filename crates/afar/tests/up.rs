//! `afar up`: what it makes, that it goes on with it, how it ends, and what it says when it cannot start; and what `afar doctor` finds
//! beforehand.

use crate::mounted::{self, Folder, Process, afar, can_mount, is_root, own_address, run, script, skip, up};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Somebody without rights.
const NOBODY: u32 = 65534;

fn vos(folder: &Folder, args: &[&str]) -> String {
    let mut command = afar(["vos"]);
    command.args(args).arg("-config").arg(folder.join("state/etc/server")).arg("-localauth");
    let output = run(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_first_run_makes_a_cell_and_the_next_goes_on_with_it() {
    let folder = Folder::new("first");
    let address = own_address();
    let command = up(&folder, address, &["--no-mount", "--cell", "first.test"]);
    let process = Process::start(command, None);
    assert_eq!(process.ready, "ready cell=first.test mount=- scratch=-");
    let listed = vos(&folder, &["listvldb"]);
    let own = if is_root() { "user.admin" } else { "user." };
    for name in ["root.afs", "root.cell", "scratch", own] {
        assert!(listed.contains(&format!("\n{name}")), "{name} in:\n{listed}");
    }
    for file in [
        "ThisCell",
        "CellServDB",
        "server/ThisCell",
        "server/CellServDB",
        "server/KeyFileExt",
        "server/UserList",
    ] {
        assert!(folder.join("state/etc").join(file).exists(), "{file}");
    }
    assert!(process.stop().success());

    let process = Process::start(up(&folder, address, &["--no-mount"]), None);
    assert_eq!(process.ready, "ready cell=first.test mount=- scratch=-");
    assert_eq!(vos(&folder, &["listvldb"]), listed, "nothing is made twice");
    assert!(process.stop().success());
}

#[test]
fn vos_shows_a_partitions_size_and_takes_no_empty_name_for_all() {
    let folder = Folder::new("partition");
    let address = own_address();
    let process = Process::start(up(&folder, address, &["--no-mount"]), None);
    let shown = vos(&folder, &["partinfo", &address.to_string()]);
    let total = shown.trim_end().rsplit(' ').next().unwrap();
    assert!(total.parse::<u64>().is_ok_and(|kib| kib > 0), "{shown}");
    let mut command = afar(["vos", "listvol"]);
    command
        .args([&address.to_string(), ""])
        .arg("-config")
        .arg(folder.join("state/etc/server"))
        .arg("-localauth");
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("could not interpret partition name ''"), "{output:?}");
    assert!(process.stop().success());
}

#[test]
fn a_first_run_that_was_killed_is_gone_on_with() {
    let folder = Folder::new("killed");
    let address = own_address();
    for millis in [50, 200, 400] {
        let mut child =
            up(&folder, address, &["--no-mount"]).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(millis));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let process = Process::start(up(&folder, address, &["--no-mount"]), None);
    let listed = vos(&folder, &["listvldb"]);
    for name in ["root.afs", "root.cell", "scratch"] {
        assert_eq!(listed.matches(&format!("\n{name} ")).count(), 1, "{listed}");
    }
    assert!(process.stop().success());
}

#[test]
fn a_cell_moves_to_another_address() {
    let folder = Folder::new("moved");
    let first = Process::start(up(&folder, own_address(), &["--no-mount"]), None);
    assert!(first.stop().success());
    let address = own_address();
    let second = Process::start(up(&folder, address, &["--no-mount"]), None);
    until!(
        vos(&folder, &["listvldb", "-name", "root.cell"]).contains(&address.to_string()),
        "the VLDB has the old address"
    );
    assert!(second.stop().success());
}

#[test]
fn what_keeps_it_from_starting_is_said_with_what_to_do() {
    let check = |folder: &Folder, address, more: &[&str], parts: &[&str]| {
        let output = run(up(folder, address, more));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part} in: {said}");
        }
    };
    let folder = Folder::new("refused");
    let address = own_address();
    let taken = UdpSocket::bind((address, 7003)).unwrap();
    check(&folder, address, &["--no-mount"], &["role 'vl'", "--bind 127.0.0.2"]);
    drop(taken);

    let process = Process::start(up(&folder, address, &["--no-mount"]), None);
    let pid = format!("(process {})", process.pid());
    check(&folder, address, &["--no-mount"], &["another 'afar up'", &pid, "--state"]);
    assert!(process.stop().success());

    check(&folder, address, &["--no-mount", "--cell", "other.test"], &["has the cell afar.local", "--state"]);
    let not_empty = folder.join("state").display().to_string();
    check(&folder, address, &["--mount", &not_empty], &["is not empty", "choose another mount point"]);
    fs::write(folder.join("state/version"), "99\n").unwrap();
    check(&folder, address, &["--no-mount"], &["a newer afar (version 99", "--state"]);
}

#[test]
fn a_cell_is_mounted_and_unmounted() {
    require!(can_mount());
    let folder = Folder::new("mounted");
    let process = mounted::start_up(&folder, own_address());
    let mount = folder.join("mnt");
    let shown = mount.display();
    assert_eq!(
        process.ready,
        format!("ready cell=afar.local mount={shown} scratch={shown}/afar.local/scratch")
    );
    let scratch = mount.join("afar.local/scratch");
    assert_eq!(script(&mount, "ls"), "afar.local\n");
    // Folders that only administrators change do not look as if everybody could.
    assert_eq!(script(&mount, "stat -c %a afar.local afar.local/user afar.local/scratch"), "755\n755\n777\n");
    fs::write(scratch.join("file"), "text").unwrap();
    assert_eq!(fs::read(scratch.join("file")).unwrap(), b"text");
    assert!(process.stop().success());
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0, "it is unmounted");

    let process = mounted::start_up(&folder, own_address());
    assert_eq!(fs::read(scratch.join("file")).unwrap(), b"text", "it is there the next time");
    assert!(process.stop().success());
}

#[test]
fn what_a_crash_has_left_is_removed_and_nothing_is_lost() {
    require!(can_mount());
    let folder = Folder::new("crash");
    let address = own_address();
    let mut process = mounted::start_up(&folder, address);
    let scratch = folder.join("mnt/afar.local/scratch");
    fs::write(scratch.join("file"), "text").unwrap();
    process.kill();
    let error = fs::metadata(folder.join("mnt")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN");
    let next = mounted::start_up(&folder, address);
    assert_eq!(fs::read(scratch.join("file")).unwrap(), b"text");
    assert!(next.stop().success());
}

/// `umount -f` of a mount in use was taken for an unmounting, which it is not: the servers stopped, and the mount stayed, dead.
#[test]
fn a_cell_whose_mount_is_cut_is_mounted_again_and_its_servers_go_on() {
    require!(can_mount());
    if !is_root() {
        return skip("it takes root to cut a mount");
    }
    let folder = Folder::new("cut");
    let (mount, log) = (folder.join("mnt"), folder.join("log-up"));
    let mut command = up(&folder, own_address(), &["--mount"]);
    command.arg(&mount).stderr(fs::File::create(&log).unwrap());
    let process = Process::start(command, Some(mount.clone()));
    let scratch = mount.join("afar.local/scratch");
    for round in 0..3 {
        let file = fs::File::create(scratch.join("open")).unwrap();
        fs::write(scratch.join("file"), format!("text {round}")).unwrap();
        let refused = Command::new("umount").arg("-f").arg(&mount).output().unwrap();
        assert!(!refused.status.success(), "it is in use");
        let said = || fs::read_to_string(&log).unwrap();
        until!(said().matches("is mounted again").count() > round, "{}", said());
        drop(file);
        assert_eq!(fs::read_to_string(scratch.join("file")).unwrap(), format!("text {round}"));
        assert_eq!(
            said().matches("somebody has cut its connection to the kernel").count(),
            round + 1,
            "{}",
            said()
        );
    }
    assert!(process.stop().success());
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0, "it is unmounted");
}

#[test]
fn programs_that_use_it_do_not_keep_it_from_ending() {
    require!(can_mount());
    let folder = Folder::new("busy");
    let process = mounted::start_up(&folder, own_address());
    let scratch = folder.join("mnt/afar.local/scratch");
    let mut shell = std::process::Command::new("sleep").arg("60").current_dir(&scratch).spawn().unwrap();
    let file = fs::File::create(scratch.join("open")).unwrap();
    assert!(process.stop().success());
    drop(file);
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert_eq!(script(&folder.join("."), "ls mnt | wc -l").trim(), "0");
}

#[test]
fn doctor_says_what_it_finds() {
    let output = run(afar(["doctor", "-json", "-bind", &own_address().to_string()]));
    let text = String::from_utf8_lossy(&output.stdout);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let grade =
        |what: &str| findings.iter().find(|f| f["what"] == what).map(|f| f["grade"].as_str().unwrap());
    assert_eq!(grade("ports"), Some("ok"), "{text}");
    assert_eq!(grade("clock").map(|grade| grade == "bad"), Some(false), "{text}");
    assert!(grade("fuse").is_some(), "{text}");
    let any_bad = findings.iter().any(|f| f["grade"] == "bad");
    assert_eq!(output.status.success(), !any_bad, "{text}");
}

/// What `afar doctor` finds, and whether it ends well.
struct Report {
    findings: Vec<serde_json::Value>,
    is_success: bool,
}

impl Report {
    fn of(command: Command) -> Self {
        let output = run(command);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().clone();
        Self { findings, is_success: output.status.success() }
    }

    fn as_root(more: &[&str]) -> Self {
        let mut command = afar(["doctor", "-json", "-bind", &own_address().to_string()]);
        command.args(more);
        Self::of(command)
    }

    /// As a user without rights, whose home is there.
    fn as_nobody(home: &Path) -> Self {
        let mut command = afar(["doctor", "-json", "-config", "/nonexistent"]);
        command.uid(NOBODY).gid(NOBODY).env("HOME", home).current_dir("/");
        Self::of(command)
    }

    /// The grade of something, and what is said of it.
    fn on(&self, what: &str) -> (&str, &str) {
        let found = self.findings.iter().find(|finding| finding["what"] == what);
        let found = found.unwrap_or_else(|| panic!("nothing of {what}: {:?}", self.findings));
        (found["grade"].as_str().unwrap(), found["text"].as_str().unwrap())
    }
}

#[test]
fn doctor_tells_database_servers_that_answer_from_those_that_do_not() {
    require!(can_mount());
    let folder = Folder::new("doctor-cells");
    let (answers, silent) = (own_address(), own_address());
    let process = mounted::start_up(&folder, answers);
    let mut beside = afar(["doctor", "-json", "-bind", &answers.to_string()]);
    beside.env("HOME", folder.join("."));
    let beside = Report::of(beside);
    let (grade, text) = beside.on("ports");
    assert!(grade == "ok" && text.starts_with(&format!("servers of a cell answer at {answers}")), "{text}");
    // Whatever cells this machine's configuration names: the cell that is served does not need them.
    assert!(
        beside
            .findings
            .iter()
            .all(|of| !of["what"].as_str().unwrap().starts_with("cell") || of["grade"] != "bad")
    );
    // Who answers nothing, and does not say that nobody is there either.
    let _silent = UdpSocket::bind((silent, 7003)).unwrap();
    let etc = folder.join("etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("ThisCell"), "afar.local\n").unwrap();
    for (servers, grade, text) in [
        (&[answers][..], "ok", "afar.local: all servers answer, the first in ".to_owned()),
        (&[answers, silent], "poor", format!("afar.local: no answer from {silent}; the first in ")),
        (&[silent], "bad", "afar.local: none of its 1 database servers answers".to_owned()),
    ] {
        let lines: String = servers.iter().map(|server| format!("{server} #db\n")).collect();
        fs::write(etc.join("CellServDB"), format!(">afar.local #ours\n{lines}")).unwrap();
        let look = || Report::as_root(&["-config", etc.to_str().unwrap()]);
        let mut report;
        // On a busy machine one that answers may be late.
        until!(
            {
                report = look();
                report.on("cell").0 == grade
            },
            "{servers:?}: {:?}",
            report.on("cell")
        );
        let (found, said) = report.on("cell");
        assert!(found == grade && said.starts_with(&text), "{servers:?}: {found} {said}");
        assert!(grade != "bad" || !report.is_success);
    }
    assert!(process.stop().success());
}

#[test]
fn doctor_knows_a_dead_mount_a_living_one_and_folders() {
    require!(can_mount());
    let folder = Folder::new("doctor-mount");
    let mount = folder.join("mnt");
    let shown = mount.display().to_string();
    let look = || {
        let report = Report::as_root(&["-config", "/nonexistent", "-mount", &shown]);
        let (grade, text) = report.on("mount point");
        (grade.to_owned(), text.to_owned())
    };
    assert_eq!(look(), ("ok".to_owned(), format!("{shown} will be made")));
    let mut process = mounted::start_up(&folder, own_address());
    let (grade, text) = look();
    assert!(grade == "ok" && text.starts_with(&format!("{shown} is mounted by afar: ")), "{grade} {text}");
    process.kill();
    assert_eq!(look(), ("ok".to_owned(), format!("{shown} has a dead mount, which will be removed")));
    drop(process);
    assert_eq!(look(), ("ok".to_owned(), format!("{shown} is free")));
    fs::write(mount.join("file"), "text").unwrap();
    let (grade, text) = look();
    assert!(grade == "bad" && text.contains(" is not empty"), "{grade} {text}");
}

#[test]
fn doctor_weighs_what_root_may_and_others_may_not() {
    require!(can_mount());
    if !is_root() {
        return skip("it takes root to be several users");
    }
    let folder = Folder::new("doctor-space");
    let (root, home) = (Report::as_root(&["-config", "/nonexistent"]), folder.join("home"));
    fs::create_dir(&home).unwrap();
    // Buffers: root has them made as large as is useful, others get what the kernel allows.
    assert_eq!(root.on("buffers"), ("ok", "UDP buffers can be made as large as is useful"));
    let allowed = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let allowed: u64 = allowed.trim().parse().unwrap();
    // Linux 6.9 and newer let root's client have the kernel read by itself.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (grade, text) = root.on("passthrough");
    match version >= (6, 9) {
        true => assert_eq!((grade, text.contains("at the speed of the disk's")), ("ok", true), "{text}"),
        false => assert_eq!((grade, text.contains("this kernel has none")), ("poor", true), "{text}"),
    }
    // Space: that of the user's home, which is too small for a cache, then large enough.
    for (size, wanted, end) in [("64m", "poor", ": little for a cache"), ("2g", "ok", "")] {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=777"), "afar-doctor"]).arg(&home);
        assert!(mount.status().unwrap().success());
        let nobody = Report::as_nobody(&home);
        assert!(Command::new("umount").arg(&home).status().unwrap().success());
        let mib = if size == "2g" { 2048 } else { 64 };
        assert_eq!(nobody.on("space"), (wanted, &*format!("{mib} MiB are free in {}{end}", home.display())));
        let (grade, text) = nobody.on("buffers");
        match allowed >= 16 << 20 {
            true => {
                assert_eq!((grade, text), ("ok", &*format!("UDP buffers of up to {} MiB", allowed >> 20)))
            }
            false => {
                assert!(grade == "poor" && text.contains("sysctl -w net.core.rmem_max=16777216"), "{text}");
            }
        }
        // Where others may mount at all, it is without that.
        if nobody.on("fuse").0 == "ok" {
            assert_eq!(nobody.on("passthrough").0, "poor");
        }
    }
}

/// Closing the terminal ended the process at once, and left a mount whose process is gone.
#[test]
fn closing_the_terminal_unmounts_and_stops() {
    require!(can_mount());
    let folder = Folder::new("hangup");
    let mut process = mounted::start_up(&folder, own_address());
    let mount = folder.join("mnt");
    fs::write(mount.join("afar.local/scratch/file"), "text").unwrap();
    process.signal("HUP");
    assert!(process.wait(mounted::TIMEOUT).is_some_and(|status| status.success()));
    assert!(fs::read_dir(&mount).unwrap().next().is_none(), "something is mounted there");
    // With nohup it goes on.
    let address = own_address();
    let mut command = std::process::Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_afar")).args([
        "up",
        "--no-mount",
        "--bind",
        &address.to_string(),
        "--state",
    ]);
    command.arg(folder.join("state-nohup")).stdin(std::process::Stdio::null());
    let mut process = Process::start(command, None);
    process.signal("HUP");
    assert!(process.wait(std::time::Duration::from_secs(1)).is_none(), "nohup did not help");
    assert!(process.stop().success());
}
