//! A mounted cell under programs that were made to find out what is wrong with file systems: fsx, which does random things to one file and
//! knows what must come of them, and pjdfstest, which asks for POSIX, case by case. Both are from crates.io; `scripts/tools.sh` builds
//! them.

mod mounted;

use mounted::{Folder, Process, can_mount, is_root, own_address, skip};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Where `scripts/tools.sh` puts programs.
fn tool(test: &str, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name);
    if !path.exists() {
        skip(test, &format!("{name} is not there: scripts/tools.sh builds it"));
        return None;
    }
    Some(path)
}

/// How many operations of fsx: enough to find what it finds at all within a minute; `AFAR_FSX_OPERATIONS` for more.
fn operations() -> u64 {
    std::env::var("AFAR_FSX_OPERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000)
}

#[test]
fn random_operations_on_a_file_give_what_they_must() {
    const NAME: &str = "random_operations_on_a_file_give_what_they_must";
    let (true, Some(fsx)) = (can_mount(NAME), tool(NAME, "fsx")) else { return };
    let folder = Folder::new("fsx");
    let process = Process::up(&folder, own_address());
    let config = folder.join("fsx.toml");
    let text = "flen = 3000000\n[opsize]\nmax = 100000\n[weights]\nclose_open = 1.0\ninvalidate = 1.0\nmapread = 5.0\nmapwrite = 5.0\n\
                read = 10.0\nwrite = 10.0\ntruncate = 5.0\nfsync = 0.5\nfdatasync = 0.5\nposix_fallocate = 0.5\npunch_hole = 1.0\n\
                sendfile = 1.0\nposix_fadvise = 1.0\ncopy_file_range = 1.0\n";
    fs::write(&config, text).unwrap();
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let output = Command::new(fsx)
        .args(["-N", &operations().to_string(), "-S", &seed.to_string(), "-f"])
        .arg(&config)
        .arg("-P")
        .arg(folder.join("."))
        .arg(folder.join("mnt/afar.local/scratch/file"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let last: Vec<_> = said.lines().rev().take(60).collect();
    assert!(output.status.success(), "{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    assert!(process.stop().success());
}

#[test]
fn what_posix_wants_and_afs_can_do_is_done() {
    const NAME: &str = "what_posix_wants_and_afs_can_do_is_done";
    let (true, Some(pjdfstest)) = (can_mount(NAME), tool(NAME, "pjdfstest")) else { return };
    if !is_root() {
        return skip(NAME, "it takes root to be several users");
    }
    let folder = Folder::new("pjdfstest");
    fs::set_permissions(folder.join("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let process = Process::up(&folder, own_address());
    let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/posix/pjdfstest.toml");
    let output = Command::new(pjdfstest)
        .arg("-c")
        .arg(config)
        .arg("-p")
        .arg(folder.join("mnt/afar.local/scratch"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong: Vec<_> =
        said.lines().filter(|line| line.contains("FAILED") || line.contains("UNEXPECTEDLY")).collect();
    assert!(wrong.is_empty(), "{} of pjdfstest's cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(process.stop().success());
}
