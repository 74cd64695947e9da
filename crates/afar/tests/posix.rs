//! A mounted cell under programs that were made to find out what is wrong with file systems: fsx, which does random things to one file and
//! knows what must come of them, and pjdfstest, which asks for POSIX, case by case. Both are from crates.io; `scripts/tools.sh` builds
//! them.

use crate::mounted::{self, Cell, Folder, Process, can_mount, is_root, own_address, skip};
use afs_lab::cpu::cpu;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where `scripts/tools.sh` puts programs.
fn tool(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin").join(name);
    if !path.exists() {
        return skip(&format!("{name} is not there: scripts/tools.sh builds it"));
    }
    Some(path)
}

/// A mount in which programs do not wait for the server, as an administrator of the cell, with the cell and the place in it.
fn with_write_behind(name: &str) -> (Cell, Process, PathBuf) {
    let cell = Cell::new(name);
    mounted::open(&cell.folder.join("."));
    let (process, scratch) =
        cell.mount_with("one", "state/etc", &["--write-behind", "always", "--localauth"]);
    (cell, process, scratch)
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
fn random_operations_on_a_file_give_what_they_must_with_write_behind() {
    let _cpu = cpu();
    if !can_mount() || tool("fsx").is_none() {
        return;
    }
    let (cell, process, scratch) = with_write_behind("fsx-behind");
    mounted::program("fsx", &scratch, &cell.folder.join("."));
    assert!(process.stop().success());
}

/// Runs pjdfstest in a mounted folder, with `elsewhere`, which is to be made on another file system, for links and renames.
fn pjdfstest(scratch: &Path, elsewhere: &Path) {
    let _cpu = cpu();
    let Some(pjdfstest) = tool("pjdfstest") else { return };
    fs::create_dir(elsewhere).unwrap();
    let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/posix/pjdfstest.toml");
    let mut command = Command::new(pjdfstest);
    command.arg("-c").arg(config).arg("-s").arg(elsewhere).arg("-p").arg(scratch);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong: Vec<_> =
        said.lines().filter(|line| line.contains("FAILED") || line.contains("UNEXPECTEDLY")).collect();
    assert!(wrong.is_empty(), "{} of pjdfstest's cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_posix_wants_and_afs_can_do_is_done() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        return skip("it takes root to be several users");
    }
    let folder = Folder::new("pjdfstest");
    mounted::open(&folder.join("."));
    let process = mounted::start_up(&folder, own_address());
    pjdfstest(&folder.join("mnt/afar.local/scratch"), &folder.join("elsewhere"));
    assert!(process.stop().success());
}

#[test]
fn what_posix_wants_is_done_with_write_behind() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        return skip("it takes root to be several users");
    }
    let (cell, process, scratch) = with_write_behind("pjdfstest-behind");
    pjdfstest(&scratch, &cell.folder.join("elsewhere"));
    assert!(process.stop().success());
}
