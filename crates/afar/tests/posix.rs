//! A mounted cell under programs that were made to find out what is wrong with file systems: fsx, which does random things to one file and
//! knows what must come of them, and pjdfstest, which asks for POSIX, case by case. Both are from crates.io; `scripts/tools.sh` builds
//! them.

use crate::mounted::{self, Folder, can_mount, is_root, own_address, skip};
use afs_lab::cpu::cpu;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Where `scripts/tools.sh` puts programs.
fn tool(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name);
    if !path.exists() {
        return skip(&format!("{name} is not there: scripts/tools.sh builds it"));
    }
    Some(path)
}

#[test]
fn random_operations_on_a_file_give_what_they_must() {
    let _cpu = cpu();
    if !can_mount() || tool("fsx").is_none() {
        return;
    }
    let folder = Folder::new("fsx");
    let process = mounted::start_up(&folder, own_address());
    mounted::program("fsx", &folder.join("mnt/afar.local/scratch"), &folder.join("."));
    assert!(process.stop().success());
}

#[test]
fn what_posix_wants_and_afs_can_do_is_done() {
    let _cpu = cpu();
    let (true, Some(pjdfstest)) = (can_mount(), tool("pjdfstest")) else { return };
    if !is_root() {
        return skip("it takes root to be several users");
    }
    let folder = Folder::new("pjdfstest");
    fs::set_permissions(folder.join("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // What is on another file system, for links and renames.
    let elsewhere = folder.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let process = mounted::start_up(&folder, own_address());
    let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/posix/pjdfstest.toml");
    let output = Command::new(pjdfstest)
        .arg("-c")
        .arg(config)
        .arg("-s")
        .arg(&elsewhere)
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
