//! Volumes of OpenAFS's servers, in a cell of their own (`interop/cell`).

use crate::lab::{contents, link_afar};
use afs_lab::real::afar::words;
use afs_lab::real::folder::Folder;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The repository of our sources.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A cell of Debian's servers, which goes with its test.
struct Stock(String);

impl Stock {
    /// `None` where there can be none.
    fn up() -> Option<Self> {
        if !Path::new("/usr/lib/openafs/dafileserver").exists() || !rustix::process::geteuid().is_root() {
            return afs_lab::skipped::skip_this("a cell needs root and Debian's openafs-fileserver");
        }
        let cell = Self(format!("bk{}", std::process::id()));
        let output = cell.script("cell-up.sh", &[]).output().expect("there is bash");
        assert!(output.status.success(), "{}", words(&output));
        Some(cell)
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(Path::new(ROOT).join("interop/cell").join(name));
        command.arg(&self.0).args(arguments);
        command
    }

    /// A command on the machine of the servers, and what it says.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.script("cell-run.sh", arguments).output().expect("there is bash");
        assert!(output.status.success(), "{arguments:?}: {}", words(&output));
        words(&output)
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        drop(self.script("cell-down.sh", &[]).output());
    }
}

#[test]
fn volumes_of_openafs_are_backed_up_by_their_changes_and_restored_there() {
    let Some(cell) = Stock::up() else { return };
    let afar = link_afar();
    let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")), "openafs");
    let at = |name: &str| folder.join(name).to_str().expect("it is text").to_owned();
    let password = folder.write("password", "secret");
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let (repository, password) = (at("repository"), at("password"));
    let backup = |arguments: &[&str]| {
        let program = env!("CARGO_BIN_EXE_afar-backup");
        let place = [program, "--repo", &repository, "--password-file", &password];
        cell.run(&[&place, arguments].concat())
    };
    let run = |volume: &str| backup(&["run", volume, "--spool", &at("")]);
    let restored = |volume: &str, name: &str| {
        backup(&["restore", volume, "--to", &at(name)]);
        contents(&folder.join(name).join(volume))
    };
    let dump = format!("{ROOT}/crates/afs-dump/tests/samples/demo.dump");
    cell.run(&["vos", "restore", "10.88.0.1", "a", "root.cell", "-file", &dump, "-localauth"]);
    backup(&["init"]);
    let first = run("root.cell");
    assert!(first.starts_with("root.cell: backed up: 3 files new"), "{first}");
    assert_eq!(run("root.cell"), "root.cell: unchanged\n");
    let before = restored("root.cell", "before");

    let new = folder.write("new", "of the same length as nothing");
    let afar = afar.to_str().expect("it is text");
    let write = [
        "afsio",
        "write",
        "-file",
        "/afs/interop.test/hello",
        "-from",
        new.to_str().expect("it is text"),
        "-force",
    ];
    cell.run(&[&[afar], &write[..], &["-config", "/etc/openafs/server"]].concat());
    let third = run("root.cell");
    assert!(third.starts_with("root.cell: backed up: 0 files new, 2 changed, 1 unchanged;"), "{third}");
    let after = restored("root.cell", "after");
    assert!(after[Path::new("hello")].ends_with(&format!("{:?}", b"of the same length as nothing")));
    assert_eq!(after[Path::new("mnt")], before[Path::new("mnt")]);
    assert_eq!(after.len(), before.len());

    backup(&["restore", "root.cell", "--volume", "copy", "--server", "10.88.0.1", "--partition", "a"]);
    run("copy");
    assert_eq!(restored("copy", "copied"), after);
    backup(&["verify"]);
    let listed = cell.run(&["vos", "listvol", "10.88.0.1", "-localauth"]);
    assert!(listed.contains("Total number of volumes on server 10.88.0.1 partition /vicepa: 2 "), "{listed}");
}
