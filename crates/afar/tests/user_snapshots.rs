//! Snapshots as users meet them in a mount: `.snapshots`, `fs snapshots` and `fs restore`, by a user without privilege, tickets or rights beyond
//! those of everybody. What a snapshot is, is tested in `snapshots.rs`.

use crate::mounted::{
    Folder, Process, can_mount, copy_program, interruptible, is_root, needs, own_address, run, signal,
    start_up, succeed, suite, words,
};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A cell, mounted for all users, with a folder of an ordinary user's.
struct Site {
    // Before the folder, in which it is mounted.
    _up: Process,
    folder: Folder,
    program: PathBuf,
}

impl Site {
    /// `None`, told as skipped, where nothing can be mounted for others.
    fn new(name: &str) -> Option<Self> {
        if !can_mount() || !needs(&["setpriv"]) {
            return None;
        }
        if !is_root() {
            return crate::mounted::skip("it takes root to be another user");
        }
        let folder = Folder::new(name);
        fs::set_permissions(folder.join("."), fs::Permissions::from_mode(0o755)).unwrap();
        let program = folder.join("afar");
        copy_program(&program);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let up = start_up(&folder, own_address());
        Some(Self { _up: up, folder, program })
    }

    /// A path in the volume to which everybody may write.
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join("mnt/afar.local/scratch").join(name)
    }

    /// A shell of the user nobody, in that volume.
    fn nobody(&self, text: &str) -> Output {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
        command.args(["bash", "-euo", "pipefail", "-c", text]).current_dir(self.at("."));
        command.env("PATH", format!("{}:/usr/bin:/bin", self.folder.join(".").display()));
        command.env("HOME", self.at(".")).env_remove("AFAR_SOCKET").stdin(Stdio::null());
        run(command)
    }

    /// The same of what has to succeed; what it prints.
    fn says(&self, text: &str) -> String {
        let output = self.nobody(text);
        assert!(output.status.success(), "{text}: {}", words(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same of what has to fail; what it complains.
    fn complains(&self, text: &str) -> String {
        let output = self.nobody(text);
        assert!(!output.status.success(), "{text}: {}", words(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    /// `afar fs` of the administrator's.
    fn fs(&self, args: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        command.arg("fs").args(args).current_dir(self.at(".")).stdin(Stdio::null());
        succeed(command)
    }

    /// The administrator makes a snapshot; its time. In the second of the last one there is none.
    fn snapshot(&self) -> String {
        loop {
            let output =
                run(suite(&self.folder.join("state"), "vos snapshot create scratch", &[], "-localauth"));
            let said = words(&output);
            if output.status.success() {
                return said.split(' ').nth(2).unwrap().to_owned();
            }
            assert!(said.contains("has a snapshot of this second already"), "{said}");
        }
    }
}

/// The indented lines of the README behind its bold words on this.
fn readme() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = fs::read_to_string(page).unwrap();
    let lines =
        text.lines().skip_while(|line| !line.starts_with("**Get back a folder that you have deleted"));
    let lines = lines.skip(1).take_while(|line| !line.starts_with('#') && !line.starts_with("**"));
    let commands = lines.filter_map(|line| line.strip_prefix("    "));
    commands.map(|line| line.split("  #").next().unwrap().trim_end().to_owned()).collect()
}

#[test]
fn a_user_gets_a_deleted_folder_back_with_the_three_lines_of_the_readme() {
    let Some(site) = Site::new("get-back") else { return };
    let make = "mkdir -p thesis/chapters && echo one > thesis/chapters/1.tex && chmod 640 thesis/chapters/1.tex \
         && ln thesis/chapters/1.tex thesis/chapters/same.tex && : > thesis/empty \
         && head -c 3000000 /dev/urandom > thesis/figure && ln -s chapters/1.tex thesis/newest \
         && touch -d 2020-02-02T02:02:02Z thesis/chapters/1.tex thesis/chapters && cp -a thesis /tmp/$1";
    let copy = format!("afar-test-{}", std::process::id());
    site.says(&make.replace("$1", &copy));
    let time = site.snapshot();
    site.says("rm -r thesis");

    let lines = readme();
    let [look, versions, restore] = &lines[..] else { panic!("{lines:?}") };
    let typed = |line: &str| {
        let line = line.replace("~/afs/home.example/user/alice", site.at(".").to_str().unwrap());
        line.replace("2026-11-28T030000Z", &time)
    };
    assert_eq!(site.says(&typed(look)), format!("{time}\n"));
    let told = site.says(&typed(versions));
    assert!(told.contains("in 1 of 1 snapshots: 1\n") && told.contains(&time), "{told}");
    let told = site.says(&typed(restore));
    assert!(told.contains(": 5 files, 2 directories, "), "{told}");
    let compare = "diff -r --no-dereference thesis /tmp/$1; stat -c '%n %A %Y' thesis/chapters thesis/chapters/*; \
         stat -c %h thesis/chapters/1.tex; readlink thesis/newest; ls -A thesis; rm -r /tmp/$1";
    assert_eq!(
        site.says(&format!("TZ=UTC; {}", compare.replace("$1", &copy))),
        "thesis/chapters drwxr-xr-x 1580608922\nthesis/chapters/1.tex -rw-r----- 1580608922\n\
         thesis/chapters/same.tex -rw-r----- 1580608922\n2\nchapters/1.tex\nchapters\nempty\nfigure\nnewest\n"
    );
    assert_eq!(
        site.says("find . -name .snapshots; ls -A"),
        "thesis\n",
        "nobody meets the snapshots who goes through"
    );
}

#[test]
fn versions_are_listed_once_each_and_one_is_restored_beside_the_file_or_in_its_place() {
    let Some(site) = Site::new("versions") else { return };
    site.says("echo one > file && touch -d 2020-02-02T02:02:02Z file");
    let first = site.snapshot();
    let second = site.snapshot();
    site.says("echo two, longer > file && touch -d 2021-02-02T02:02:02Z file");
    let third = site.snapshot();
    assert_eq!(
        site.says("afar fs snapshots file"),
        format!(
            "Versions of file in 3 of 3 snapshots: 2\n\
             {second}            4 bytes, modified 2020-02-02T020202Z, in 2 since {first}\n\
             {third}           12 bytes, modified 2021-02-02T020202Z, as it is now\n"
        )
    );
    let json: serde_json::Value = serde_json::from_str(&site.says("afar fs snapshots file -json")).unwrap();
    assert_eq!(json[0]["versions"][0]["snapshots"], 2);
    assert_eq!(json[0]["versions"][1]["is_now"], true);

    let told = site.says(&format!("afar fs restore file -at {first}"));
    let beside = site.at(&format!("file.{first}"));
    assert_eq!(
        told,
        format!("Restored file of {first} as {}: 1 files, 0 directories, 1 KiB\n", beside.display())
    );
    assert_eq!(fs::read(&beside).unwrap(), b"one\n");
    assert_eq!(fs::metadata(&beside).unwrap().mtime(), 1_580_608_922);
    let said = site.complains(&format!("afar fs restore file -at {first}"));
    assert!(said.contains("is there already"), "{said}");
    assert_eq!(fs::read(site.at("file")).unwrap(), b"two, longer\n");

    site.says(&format!("afar fs restore file -at {second} -over"));
    assert_eq!(fs::read(site.at("file")).unwrap(), b"one\n");
    let told =
        site.says(&format!("afar fs restore file -at {third} -over; afar fs restore . -at {third} -over"));
    assert!(told.ends_with(": 1 files, 0 directories, 1 KiB; 0 were as they are\n"), "{told}");

    for (command, expected) in [
        ("afar fs restore file".to_owned(), "say which snapshot, with -at TIME"),
        ("afar fs restore file -at yesterday".to_owned(), "'yesterday' is no time of a snapshot"),
        (format!("afar fs restore nosuch -at {first}"), "nosuch is in no snapshot"),
        ("afar fs restore file -at 2001-01-01T000000Z".to_owned(), "file is in no snapshot"),
        (format!("rm file; mkdir file; afar fs restore file -at {first} -over"), "Is a directory"),
        ("cd /; afar fs snapshots /usr".to_owned(), "has no snapshots: it is in no volume"),
        (format!("cd /; afar fs restore /usr -at {first}"), "has no snapshots: it is in no volume"),
    ] {
        let said = site.complains(&command);
        assert!(said.contains(expected), "{command}: {said}");
    }
    let (file, then) = (site.at("."), site.at(&format!(".snapshots/{first}")));
    assert_ne!(fs::metadata(file).unwrap().ino(), fs::metadata(&then).unwrap().ino());
    assert_eq!(fs::write(then.join("file"), "x").unwrap_err().raw_os_error(), Some(30), "it is read-only");
}

#[test]
fn a_tree_comes_back_with_its_mount_points_and_access_lists_and_a_list_of_now_stays() {
    let Some(site) = Site::new("lists") else { return };
    fs::create_dir_all(site.at("tree/private")).unwrap();
    fs::create_dir_all(site.at("tree/open")).unwrap();
    fs::write(site.at("tree/private/file"), "secret").unwrap();
    fs::write(site.at("tree/open/file"), "then").unwrap();
    symlink("nowhere", site.at("tree/link")).unwrap();
    site.fs(&["setacl", "tree/private", "system:administrators", "all", "-clear"]);
    site.fs(&["mkmount", "tree/cell", "root.cell"]);
    let time = site.snapshot();
    let listed = site.fs(&["listacl", "tree/private"]);
    site.fs(&["setacl", "tree/open", "system:administrators", "all", "-clear"]);

    let said = site.complains(&format!("afar fs restore tree -at {time}"));
    assert!(
        said.contains("tree/private: Permission denied\n") && said.contains("tree/open: Permission denied\n")
    );
    assert!(said.contains("were not restored, for the reasons above"), "{said}");
    site.says(&format!("rm -r tree.{time}"));
    site.fs(&["restore", "tree", "-at", &time]);
    let beside = format!("tree.{time}");
    assert_eq!(site.fs(&["listacl", &format!("{beside}/private")]).replace(&beside, "tree"), listed);
    let open = site.fs(&["listacl", &format!("{beside}/open")]);
    assert!(!open.contains("anyuser"), "what was closed since is not opened again: {open}");
    assert_eq!(site.says(&format!("cat {beside}/open/file || echo none")), "none\n");
    let mount = site.fs(&["lsmount", &format!("{beside}/cell")]);
    assert!(mount.ends_with("is a mount point for volume '#root.cell'\n"), "{mount}");
    assert_eq!(fs::read_link(site.at(&beside).join("link")).unwrap(), Path::new("nowhere"));
    assert_eq!(fs::read(site.at(&beside).join("private/file")).unwrap(), b"secret");
}

#[test]
fn what_the_quota_has_no_room_for_is_refused_before_anything_is_written() {
    let Some(site) = Site::new("no-room") else { return };
    site.says("mkdir tree && head -c 300000 /dev/zero > tree/large && echo x > tree/small");
    let time = site.snapshot();
    site.says("rm -r tree && head -c 100000 /dev/zero > other");
    site.fs(&["setquota", ".", "200"]);
    let said = site.complains(&format!("afar fs restore tree -at {time}"));
    assert!(said.contains("KiB left of its quota: nothing was restored"), "{said}");
    assert!(!site.at("tree").exists());
    site.fs(&["setquota", ".", "500"]);
    site.says(&format!("afar fs restore tree -at {time}"));
    assert_eq!(fs::metadata(site.at("tree/large")).unwrap().len(), 300_000);
}

#[test]
fn ctrl_c_says_what_is_there_and_the_rest_is_restored_over_it() {
    let Some(site) = Site::new("restore-ctrl-c") else { return };
    site.says("mkdir tree && for n in {1..1000}; do echo $n > tree/$n; done");
    let time = site.snapshot();
    site.says("rm -r tree");
    let mut restore = interruptible(&site.program);
    restore.args(["fs", "restore"]).arg(site.at("tree")).args(["-at", &time]);
    let restore = restore.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until!(site.at("tree/1").exists(), "nothing is restored");
    signal(restore.id(), "INT");
    let output = restore.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.starts_with("fs: interrupted\nfs: so far "), "{said}");
    let count = fs::read_dir(site.at("tree")).unwrap().count();
    assert!(
        (1..1000).contains(&count) && said.contains(&format!(" {count} files, each of them whole,")),
        "{said}"
    );
    let (_, next) =
        said.trim_end().rsplit_once('\'').map(|(start, _)| start.rsplit_once('\'').unwrap()).unwrap();
    assert!(next.starts_with("fs restore ") && next.ends_with(" -over"), "{next}");
    let told = site.says(&format!("afar {next}"));
    assert!(told.contains(": 1000 files, "), "{told}");
    assert_eq!(fs::read_to_string(site.at("tree/1000")).unwrap(), "1000\n");
}
