//! State folders of older releases, with the cell's databases, a partition and a client's cache in them, are read by this one.
//!
//! `releases/state-VERSION.tar.gz` was made by that release: `afar up --mount` with what [`check`] looks for, stopped by SIGTERM.
//! Its cache has all of it, and was closed in order: the machine has another boot id now. A new release adds its own and changes none.
//! 3b2fa33d is no release, but the last commit before rows got checksums.

use crate::mounted::{Folder, Process, afar, can_mount, own_address, run, script, up};
use afs_lab::cpu::cpu;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const RELEASES: [&str; 2] = ["0.1.0", "3b2fa33d"];

/// The folder's cell, mounted.
struct Cell {
    process: Process,
    address: Ipv4Addr,
}

impl Cell {
    fn start(folder: &Folder) -> Self {
        let address = own_address();
        let mut command = up(folder, address, &["--metrics", &format!("{address}:9160"), "--mount"]);
        let mount = folder.join("mnt");
        command.arg(&mount);
        Self { process: Process::start(command, Some(mount)), address }
    }

    /// Bytes of files that the server has sent since it started.
    fn fetched_bytes(&self) -> u64 {
        let mut stream = TcpStream::connect(SocketAddr::from((self.address, 9160))).unwrap();
        stream.write_all(b"GET /top.json HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let told: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        told["total"]["fetched_bytes"].as_u64().unwrap()
    }
}

fn ask(folder: &Folder, words: &str) -> String {
    let mut command = afar(words.split(' '));
    command.arg("-config").arg(folder.join("state/etc/server")).arg("-localauth");
    let output = run(command);
    assert!(output.status.success(), "{words}: {}", output.stderr.escape_ascii());
    String::from_utf8(output.stdout).unwrap()
}

/// What the release had written.
fn check(scratch: &Path, release: &str) {
    for number in 0..200 {
        let text = fs::read_to_string(scratch.join(format!("numbers/{number}"))).unwrap();
        assert_eq!(text, format!("file {number} of release {release}\n"));
    }
    assert_eq!(fs::read_dir(scratch.join("numbers")).unwrap().count(), 200);
    let large = fs::read(scratch.join("large")).unwrap();
    let line = b"a line of a large file\n";
    assert_eq!(large.len(), 3_000_000);
    assert!(large.chunks(line.len()).all(|piece| *piece == line[..piece.len()]));
    let link = fs::metadata(scratch.join("hardlink")).unwrap();
    assert_eq!((link.nlink(), link.ino()), (2, fs::metadata(scratch.join("large")).unwrap().ino()));
    let below = scratch.join("deep/er/est/file");
    assert_eq!(fs::read_to_string(below).unwrap(), "bottom\n");
    assert_eq!(fs::read_link(scratch.join("deep/link")).unwrap(), Path::new("../large"));
    assert_eq!(fs::read_to_string(scratch.join("a name with blanks, é and 名")).unwrap(), "named\n");
    let script = fs::metadata(scratch.join("script")).unwrap();
    assert_eq!((script.mode() & 0o777, script.mtime()), (0o750, 1_580_608_922));
    assert!(!scratch.join("gone").exists());
    assert_eq!(fs::read_to_string(scratch.join("replicated/file")).unwrap(), "in a volume\n");
}

#[test]
fn a_state_folder_of_an_older_release_is_read_whole() {
    let _cpu = cpu();
    require!(can_mount());
    for release in RELEASES {
        let folder = Folder::new("release");
        let state = folder.join("state");
        fs::create_dir(&state).unwrap();
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/releases/state-{release}.tar.gz"));
        let unpacked = Command::new("tar").arg("xzf").arg(file).arg("-C").arg(&state).status().unwrap();
        assert!(unpacked.success());

        let cell = Cell::start(&folder);
        let scratch = folder.join("mnt/afar.local/scratch");
        check(&scratch, release);
        // The client's cache had all of it, and is used: what the server sends is what only its status has.
        let fetched = cell.fetched_bytes();
        assert!(fetched < 100_000, "{fetched} bytes were fetched, though the cache has the files");
        assert_eq!(ask(&folder, "pts membership alice").lines().last().unwrap().trim(), "alice:friends");
        let volumes = ask(&folder, "vos examine replicated");
        assert!(volumes.contains("ROnly: 536870925") && volumes.contains("Backup: 536870926"), "{volumes}");
        let rights = run(afar(["fs", "listacl", scratch.join("deep").to_str().unwrap()]));
        assert!(String::from_utf8(rights.stdout).unwrap().contains("  alice rlidwk\n"));

        // It goes on from there.
        script(&scratch, "echo new > numbers/new; echo more >> 'a name with blanks, é and 名'; rm script");
        ask(&folder, "vos release replicated");
        assert!(cell.process.stop().success());
        let checked = run(afar(["fsck", state.join("vicepa").to_str().unwrap()]));
        assert!(checked.status.success(), "{}", checked.stdout.escape_ascii());
        let cell = Cell::start(&folder);
        assert_eq!(
            script(&scratch, "cat numbers/new numbers/7"),
            format!("new\nfile 7 of release {release}\n")
        );
        assert!(!scratch.join("script").exists());
        assert!(cell.process.stop().success());
    }
}
