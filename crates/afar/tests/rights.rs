//! Users with different rights in one mount: no data and no names are shown to somebody whose rights do not allow it, whatever of them
//! the kernel and the cache have for somebody else.

use crate::mounted::{self, Folder, LOOKS, Process, can_mount, is_root, own_address};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The user nobody, who is nobody in the cell either.
const NOBODY: u32 = 65534;

/// A cell whose administrator is root, mounted for all users.
struct Up {
    folder: Folder,
    process: Process,
    home: PathBuf,
}

impl Up {
    /// `None`, told as skipped, where there can be none.
    fn new(name: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        if !is_root() {
            return mounted::skip("it takes root to be several users");
        }
        let folder = Folder::new(name);
        fs::set_permissions(folder.join("."), fs::Permissions::from_mode(0o755)).unwrap();
        let process = mounted::start_up(&folder, own_address());
        let home = folder.join("mnt/afar.local/user/admin");
        Some(Self { folder, process, home })
    }

    fn set_rights(&self, dir: &Path, rights: &str) {
        let mut command = mounted::afar(["fs", "setacl"]);
        command.arg(dir).args(["system:anyuser", rights]);
        let output = mounted::run(command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A directory with something of each kind in it, and below.
fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("small"), "secret\n").unwrap();
    fs::write(dir.join("large"), b"secret\n".repeat(500_000)).unwrap();
    fs::write(dir.join("sub/below"), "secret\n").unwrap();
    symlink("secret", dir.join("link")).unwrap();
}

/// Root looks at all of it, so that the kernel and the cache have it. The large file stays open: read by the kernel itself, where it may.
fn look(dir: &Path) -> File {
    let status = Command::new("bash")
        .args(["-euc", "ls -lR \"$1\"; cat \"$1\"/small \"$1\"/large; readlink \"$1\"/link", "bash"])
        .arg(dir)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let mut file = File::open(dir.join("large")).unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 3_500_000);
    file
}

/// What of the attempts shows something to nobody.
fn shown(dir: &Path) -> Vec<&'static str> {
    let shows = |text: &str| {
        let mut command = Command::new("bash");
        command.args(["-uc", text, "bash"]).arg(dir).uid(NOBODY).gid(NOBODY).current_dir("/");
        let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().unwrap();
        !output.stdout.is_empty()
    };
    LOOKS.iter().filter(|(_, text)| shows(text)).map(|(what, _)| *what).collect()
}

fn all() -> Vec<&'static str> {
    LOOKS.iter().map(|(what, _)| *what).collect()
}

#[test]
fn what_the_kernel_and_the_cache_have_for_root_is_not_shown_to_nobody() {
    let Some(up) = Up::new("private") else { return };
    let dir = up.home.join("private");
    fs::create_dir(&dir).unwrap();
    up.set_rights(&dir, "none");
    fill(&dir);
    let held = look(&dir);
    assert_eq!(shown(&dir), Vec::<&str>::new());
    drop(held);
    // With the right to look up, names are shown, and no data.
    up.set_rights(&dir, "l");
    let held = look(&dir);
    let seen = shown(&dir);
    for (what, _) in LOOKS {
        // (A directory below has a list of its own, with which it was made.)
        let is_shown =
            ["ls", "find", "stat of a file", "stat of a large file", "stat of a directory", "a link"];
        assert_eq!(seen.contains(&what), is_shown.contains(&what), "{what}, with lookup alone: {seen:?}");
    }
    drop(held);
    assert!(up.process.stop().success());
}

#[test]
fn rights_that_are_taken_away_are_gone_also_for_what_was_seen_with_them() {
    let Some(up) = Up::new("taken") else { return };
    let dir = up.home.join("shared");
    fs::create_dir(&dir).unwrap();
    up.set_rights(&dir, "read");
    fill(&dir);
    let held = look(&dir);
    assert_eq!(shown(&dir), all(), "the user may read, so all of it is shown");
    up.set_rights(&dir, "none");
    up.set_rights(&dir.join("sub"), "none");
    assert_eq!(shown(&dir), Vec::<&str>::new(), "what was taken away here");
    // And by somebody else, in another mount.
    up.set_rights(&dir, "read");
    up.set_rights(&dir.join("sub"), "read");
    assert_eq!(shown(&dir), all());
    let mount = up.folder.join("other");
    let mut command = mounted::afar(["mount", "--localauth"]);
    command.arg(&mount).arg("--config").arg(up.folder.join("state/etc"));
    command.arg("--cache").arg(up.folder.join("cache-other"));
    let other = Process::start(command, Some(mount.clone()));
    let there = mount.join("afar.local/user/admin/shared");
    up.set_rights(&there, "none");
    up.set_rights(&there.join("sub"), "none");
    let begin = Instant::now();
    while !shown(&dir).is_empty() {
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "what was taken away elsewhere: {:?}",
            shown(&dir)
        );
    }
    println!("rights taken away in another mount are gone here after {:?}", begin.elapsed());
    drop(look(&dir));
    assert_eq!(shown(&dir), Vec::<&str>::new(), "after root has looked again");
    drop(held);
    assert!(other.stop().success() && up.process.stop().success());
}

#[test]
fn what_somebody_else_changes_is_seen_at_once_to_have_lost_its_set_uid_bits() {
    require!(mounted::needs(&["fallocate"]));
    let Some(up) = Up::new("set-uid") else { return };
    let dir = up.home.join("shared");
    fs::create_dir(&dir).unwrap();
    up.set_rights(&dir, "rlidwk");
    for (before, after) in [(0o6777, 0o777), (0o4767, 0o767), (0o2767, 0o767)] {
        for change in
            ["echo more >> \"$1\"", ": > \"$1\"", "fallocate -l 100 \"$1\"", "fallocate -p -o 1 -l 2 \"$1\""]
        {
            let path = dir.join("file");
            fs::write(&path, "some data").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).unwrap();
            let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode(), before);
            let mut command = Command::new("sh");
            command.args(["-c", change, "sh"]).arg(&path).uid(NOBODY).gid(NOBODY).current_dir("/");
            assert!(command.status().unwrap().success(), "{change}");
            assert_eq!(mode(), after, "{before:o}: {change}");
            fs::remove_file(&path).unwrap();
        }
    }
}
