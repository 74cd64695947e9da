//! What `aklog` and `klog` make of cells, paths and tickets; whether the token is that of OpenAFS's `aklog`; and what somebody tries who
//! has an account, a debugger and the wish for another's tokens. What tickets are good for is in `tests/kerberos.rs`.

use crate::mounted::realm::{ALICE, BOB, Local, ROOT, SERVICE, Scene, fail};
use crate::mounted::{self, Process, succeed};
use afs_lab::peers::kdc;
use afs_wire::control::{self, FRAME_HEADER, frame_length, framed};
use rxgen::xdr::{Decoder, Opaque, Xdr, XdrString};
use rxgen::{decode_reply, encode_request};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// A second cell, of which there is no more than its name and its servers' key.
const OTHER_CELL: &str = "other.test";

/// A mount that knows both cells, the first of which is linked to the other.
fn mount_with_two_cells(scene: &Scene) -> (Process, PathBuf) {
    let keytab = scene.realm.join("keytab-of-the-other");
    scene.kdc.add_service(&format!("afs/{OTHER_CELL}"), "aes256-cts", &keytab).unwrap();
    let state = scene.cell.folder.join("state/etc");
    let both = scene.cell.folder.join("etc-of-both");
    fs::create_dir(&both).unwrap();
    fs::copy(state.join("ThisCell"), both.join("ThisCell")).unwrap();
    let text = fs::read_to_string(state.join("CellServDB")).unwrap();
    let linked = text.replace(">afar.local", &format!(">afar.local {OTHER_CELL}"));
    assert_ne!(linked, text);
    fs::write(both.join("CellServDB"), format!("{linked}\n>{OTHER_CELL}\n127.0.0.9 #db.{OTHER_CELL}\n"))
        .unwrap();
    let (process, _) = scene.cell.mount_with("both", "etc-of-both", &[]);
    (process, scene.cell.folder.join("both"))
}

#[test]
fn tokens_are_got_for_the_cells_of_paths_of_xlog_and_of_a_link() {
    let Some(scene) = Scene::new() else { return };
    let (_process, mount) = mount_with_two_cells(&scene);
    let home = scene.realm.join("home");
    fs::create_dir(&home).unwrap();
    mounted::open(&home);
    scene.kinit(ALICE);
    let aklog = |words: &[&str]| {
        let mut command = scene.afar(ALICE, &["aklog", "-noprdb"]);
        command.args(words).env("HOME", &home);
        scene.means(&mut command, "both");
        command.current_dir(&mount);
        command
    };
    let held = || -> Vec<String> {
        let mut command = scene.afar(ALICE, &["tokens", "-json"]);
        scene.means(&mut command, "both");
        let told: serde_json::Value = serde_json::from_str(&succeed(command)).unwrap();
        let mut command = scene.afar(ALICE, &["unlog"]);
        scene.means(&mut command, "both");
        succeed(command);
        let cells = told.as_array().unwrap().iter();
        let mut cells: Vec<_> = cells.map(|token| token["cell"].as_str().unwrap().to_owned()).collect();
        cells.sort();
        cells
    };
    let both = ["afar.local", OTHER_CELL];
    let of_path = mount.join("afar.local/scratch").display().to_string();
    for (words, cells) in [
        (&["-path", &of_path][..], &both[..1]),
        (&[&of_path], &both[..1]),
        (&["-p", "afar.local/scratch/.."], &both[..1]),
        (&[OTHER_CELL], &both[1..]),
        (&[OTHER_CELL, "-path", &of_path], &both),
        // The second was taken for the realm.
        (&["afar.local", OTHER_CELL], &both),
        (&["-cell", "afar.local", "-linked"], &both),
        (&["-cell", "afar.local"], &both[..1]),
        (&["-cell", "afar.local", "-noauth"], &[]),
    ] {
        succeed(aklog(words));
        assert_eq!(held(), cells, "{words:?}");
    }
    let said = fail(aklog(&["a.test", "b.test"]), 2);
    assert!(said.contains("about cell a.test.") && said.contains("about cell b.test."), "{said}");
    // What is not there is told, and the cell is known nevertheless.
    let said = fail(aklog(&["-path", "afar.local/scratch/nothing"]), 6);
    assert!(said.contains("afar.local/scratch/nothing"), "{said}");
    assert_eq!(held(), both[..1]);
    assert!(fail(aklog(&["-path", "/usr"]), 6).contains("/usr"));
    // The cells of .xlog come with that of the machine, and only if none is named.
    fs::write(home.join(".xlog"), format!("\n{OTHER_CELL}\n")).unwrap();
    succeed(aklog(&[]));
    assert_eq!(held(), both);
    succeed(aklog(&["-cell", "afar.local"]));
    assert_eq!(held(), both[..1]);
    fs::write(home.join(".xlog"), "no.such.cell\nother.test\n").unwrap();
    let said = fail(aklog(&[]), 3);
    assert!(said.contains("Can't get information about cell no.such.cell."), "{said}");
    assert_eq!(held(), both, "the others are not lost by it");
}

#[test]
fn a_ticket_that_is_over_or_has_not_begun_is_said_to_be_so() {
    let Some(scene) = Scene::new() else { return };
    scene.kinit_as(ALICE, "alice", &["-l", "2s"]);
    until!(!scene.can(ALICE, "klist -s"), "its ticket does not end");
    let said = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(said.contains("has expired: run 'kinit'"), "{said}");
    scene.kinit_as(ALICE, "alice", &["-s", "1h", "-l", "2h"]);
    let said = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(said.contains("is not valid yet: 'klist' shows from when"), "{said}");
    assert!(scene.tokens(ALICE).is_empty());
}

#[test]
fn klog_leaves_a_ticket_in_a_file_of_its_users_own_if_it_is_told_to() {
    let Some(scene) = Scene::new() else { return };
    let words = ["klog", "-principal", "alice", "-password", kdc::PASSWORD, "-tmp"];
    let said = scene.run(ALICE, &words);
    let file = PathBuf::from(said.trim().strip_prefix("Wrote ticket file to ").expect(&said));
    let metadata = fs::metadata(&file).unwrap();
    let listed = scene.shell(ALICE, &format!("klist '{}'", file.display()));
    let read_by_bob = scene.can(BOB, &format!("cat '{}'", file.display()));
    fs::remove_file(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (ALICE.uid, 0o600));
    assert!(!read_by_bob);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("Default principal: alice@") && listed.contains("krbtgt/"), "{listed}");
    assert_eq!(scene.tokens(ALICE).len(), 1);
}

/// What Debian's `aklog` gives the kernel, by a library that stands for the kernel.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    cell: String,
    id: i32,
    kvno: i32,
    session_key: [u8; 8],
    start: u32,
    end: u32,
    ticket: Vec<u8>,
}

impl Token {
    /// Reads the argument of VIOCSETTOK2.
    fn parse(bytes: &[u8]) -> Self {
        let mut decoder = Decoder::new(bytes);
        let word = |what: &str, decoder: &mut Decoder<'_>| u32::decode(decoder).expect(what);
        assert_eq!(word("flags", &mut decoder), 0);
        let cell = XdrString::<64>::decode(&mut decoder).unwrap().to_string();
        assert_eq!(word("the number of tokens", &mut decoder), 1);
        let token = Opaque::<16_384>::decode(&mut decoder).unwrap();
        let mut decoder = Decoder::new(&token);
        assert_eq!(word("the kind", &mut decoder), 2, "rxkad");
        let (id, kvno) = (word("id", &mut decoder) as i32, word("kvno", &mut decoder) as i32);
        let key = [word("key", &mut decoder).to_be_bytes(), word("key", &mut decoder).to_be_bytes()];
        let (start, end) = (word("start", &mut decoder), word("end", &mut decoder));
        let _is_primary_is_left_to_chance = word("is primary", &mut decoder);
        let ticket = Opaque::<12_000>::decode(&mut decoder).unwrap().to_vec();
        Self { cell, id, kvno, session_key: key.concat().try_into().unwrap(), start, end, ticket }
    }

    /// Asks a client of ours for the caller's.
    fn of_client(socket: &Path, cell: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        let request = encode_request(&control::GetToken { cell: cell.try_into().unwrap() });
        stream.write_all(&framed(&request)).unwrap();
        let mut header = [0; FRAME_HEADER];
        stream.read_exact(&mut header).unwrap();
        let mut answer = vec![0; frame_length(header).unwrap()];
        stream.read_exact(&mut answer).unwrap();
        let (code, results) = answer.split_first_chunk::<4>().unwrap();
        assert_eq!(*code, [0; 4]);
        let token = decode_reply::<control::GetToken>(results).unwrap().token;
        Self {
            cell: token.cell.to_string(),
            id: token.id.0,
            kvno: token.kvno,
            session_key: token.session_key.0,
            start: token.start.0,
            end: token.end.0,
            ticket: token.ticket.to_vec(),
        }
    }
}

#[test]
fn the_token_is_that_of_openafss_aklog_for_the_same_ticket() {
    const FOLDER: &str = "/etc/openafs";
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["gcc", "aklog", "unshare"]));
    if !Path::new(FOLDER).is_dir() {
        return mounted::skip("openafs-client is not installed");
    }
    let library = mounted::c_library("pioctl.c", &scene.realm.join("pioctl.so"), &[]);
    for kind in ["aes256-cts", "aes128-cts", "aes256-sha2"] {
        let keytab = scene.cell.folder.join("state/etc/server/rxkad.keytab");
        scene.kdc.add_service(SERVICE, kind, &keytab).unwrap();
        scene.kinit(ROOT);
        let given = scene.realm.join(format!("pioctls-{kind}"));
        let mut command = scene.command(ROOT, Path::new("unshare"));
        let script = "mount --bind \"$1\" /etc/openafs && LD_PRELOAD=\"$2\" exec aklog -d";
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(scene.cell.folder.join("state/etc")).arg(&library);
        command.env("PIOCTLS", &given).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let said = succeed(command);
        let theirs = Token::parse(&fs::read(&given).unwrap());
        assert!(!theirs.ticket.is_empty(), "{said}");
        // The ticket is in the cache now.
        scene.run(ROOT, &["aklog", "-force"]);
        let mut ours = Token::of_client(&scene.socket(), "afar.local");
        // An odd life tells the kernel module that the number is its owner's. It begins a second later for that; here it is told otherwise.
        ours.start += u32::from((ours.end - ours.start).is_multiple_of(2));
        // OpenAFS's counts from the moment at which it runs, and a slow machine has time between that and the ticket's.
        assert!((ours.start..ours.start + 300).contains(&theirs.start), "{kind}: {ours:?}, {theirs:?}");
        ours.start = theirs.start;
        assert_eq!(ours, theirs, "{kind}");
    }
}

#[test]
fn a_credential_cache_with_another_owners_name_on_it_makes_nobody_that_owner() {
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["gcc"]));
    let program = scene.realm.join("ticket");
    kdc::ticket_program(&program).unwrap();
    scene.private_folder(ALICE);
    scene.kinit(ALICE);
    scene.run(ALICE, &["aklog"]);
    // She has it open and in the cache.
    let file = "\"$1/scratch/alice/file\"";
    assert!(scene.can(ALICE, &format!("echo mine > {file}; ls -l {file} && cat {file}")));
    scene.kinit(BOB);
    let mut command = scene.command(BOB, &program);
    command.args([SERVICE, "0", "alice"]);
    succeed(command);
    assert!(String::from_utf8_lossy(&scene.shell(BOB, "klist").stdout).contains("principal: alice@"));
    scene.run(BOB, &["aklog"]);
    assert_eq!(scene.tokens(BOB).len(), 1, "it is a ticket");
    for attempt in ["cat", "ls -l", "echo x >", "rm -f", "touch"] {
        let output = scene.shell(BOB, &format!("{attempt} {file}"));
        assert!(!output.status.success() && output.stdout.is_empty(), "{attempt}: {output:?}");
    }
    assert!(scene.can(ALICE, &format!("cat {file}")));
}

#[test]
fn somebody_with_a_debugger_does_not_get_at_the_tokens_or_files_of_another() {
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["gcc", "unshare"]));
    let debugger = mounted::c_program("debugger.c", &scene.realm.join("debugger"), &[]);
    scene.private_folder(ALICE);
    scene.kinit(ALICE);
    scene.run(ALICE, &["aklog"]);
    assert!(scene.can(ALICE, "echo secret > \"$1/scratch/alice/file\""));
    // A session of hers with the file open, and a login of hers that waits for the password.
    let mut command = scene.command(ALICE, Path::new("bash"));
    command.args(["-c", "exec 3< scratch/alice/file; echo ready; exec sleep 1000"]);
    let mut session = Process::of(command.stdout(Stdio::piped()));
    session.child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let mut command = scene.afar(ALICE, &["klog", "-principal", "alice", "-pipe"]);
    let login = Process::of(command.stdin(Stdio::piped()));
    let hidden = format!("cat /proc/{}/environ", login.pid());
    scene.until(ALICE, &hidden, false);
    let tries = |who: Local, pid: u32, what: &str| {
        let plain = format!("'{}' {what} {pid} 3", debugger.display());
        for way in [plain.clone(), format!("unshare --user --map-root-user {plain}")] {
            let output = scene.shell(who, &way);
            assert!(output.stdout.is_empty(), "{}: {way}: {output:?}", who.name);
        }
    };
    let client = scene.client();
    for (who, pid) in
        [(BOB, session.pid()), (BOB, login.pid()), (BOB, client), (ALICE, login.pid()), (ALICE, client)]
    {
        for what in ["attach", "seize", "read", "descriptor"] {
            tries(who, pid, what);
        }
        for entry in
            ["mem", "environ", "fd/3", "cwd/scratch/alice/file", "root/etc/passwd", "maps", "map_files"]
        {
            let output = scene
                .shell(who, &format!("exec 2>&1; head -c 1 /proc/{pid}/{entry} || ls /proc/{pid}/{entry}/"));
            assert!(!output.status.success(), "{}: /proc/{pid}/{entry}: {output:?}", who.name);
        }
    }
    // It is a debugger: it gets at what is one's own.
    let mut command = scene.command(BOB, Path::new("sleep"));
    let own = Process::of(command.arg("1000").stdin(fs::File::open("/etc/passwd").unwrap()));
    let said = scene.shell(BOB, &format!("'{}' descriptor {} 0", debugger.display(), own.pid()));
    assert!(said.stdout.starts_with(b"root:"), "{said:?}");
}
