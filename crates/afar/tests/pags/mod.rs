//! PAGs in one mount: several people of the cell by one local user, each with their own rights, whatever the kernel and the cache have
//! for another; and what somebody tries who wants into the PAG of somebody else. It takes root, which can be any user in any group.

mod clients;
mod logins;

use crate::mounted::{self, Cell, LOOKS, Process, can_mount, is_root, keytab, open, succeed};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ALICE: u32 = 60_001;
const BOB: u32 = 60_002;
/// A user whom no machine has, and who logs in.
const CAROL: u32 = 60_003;
const NOBODY: u32 = 65_534;
/// A user whom every Debian has.
const DAEMON: u32 = 1;

/// A number of a PAG that no client has made.
const GUESSED: u32 = 0x41_123456;

/// What somebody tries to change, each with a word of success. All is as it was afterwards.
const CHANGES: [(&str, &str); 7] = [
    ("a write", "echo x > \"$1/new-$$\" && rm \"$1/new-$$\" && echo written"),
    ("a rename", "mv \"$1/small\" \"$1/other\" && mv \"$1/other\" \"$1/small\" && echo renamed"),
    ("a removal", "rm \"$1/sub/below\" && echo secret > \"$1/sub/below\" && echo removed"),
    ("a mode", "chmod 640 \"$1/small\" && chmod 644 \"$1/small\" && echo changed"),
    ("a lock", "flock --nonblock \"$1/small\" echo locked"),
    ("a hard link", "ln \"$1/small\" \"$1/hard-$$\" && rm \"$1/hard-$$\" && echo linked"),
    ("a directory", "mkdir \"$1/dir-$$\" && rmdir \"$1/dir-$$\" && echo made"),
];

/// What somebody tries, as [`LOOKS`].
fn attempts() -> impl Iterator<Item = (&'static str, &'static str)> {
    LOOKS.into_iter().chain(CHANGES)
}

/// A process: its user, the group of its PAG, and who it is to the cell.
#[derive(Debug, Clone, Copy)]
struct Identity {
    uid: u32,
    pag: Option<u32>,
    is: &'static str,
}

const fn who(uid: u32, pag: Option<u32>, is: &'static str) -> Identity {
    Identity { uid, pag, is }
}

const ROOT: Identity = who(0, None, "");

/// A cell, mounted for all users of the machine, and its key.
struct Scene {
    mount: PathBuf,
    key: PathBuf,
    program: PathBuf,
    _mounted: Process,
    cell: Cell,
}

impl Scene {
    /// `None`, told as skipped, where there can be none.
    fn new() -> Option<Self> {
        if !can_mount() || !mounted::needs(&["setpriv"]) {
            return None;
        }
        if !is_root() {
            return mounted::skip("it takes root to be several users in any groups");
        }
        let mut cell = Cell::new("pags");
        open(&cell.folder.join("."));
        let (key, program) = (cell.folder.join("keytab"), cell.folder.join("afar"));
        fs::write(&key, keytab()).unwrap();
        mounted::copy_program(&program);
        let config = cell.folder.join("state/etc/server");
        let mut command = mounted::afar(["key", "add"]);
        command.arg("-keytab").arg(&key).arg("-config").arg(&config);
        succeed(command);
        cell.restart();
        for name in ["alice", "bob"] {
            let mut command = mounted::afar(["pts", "createuser", name, "-localauth", "-config"]);
            command.arg(&config);
            succeed(command);
        }
        let (process, _) = cell.mount("mnt");
        let mount = cell.folder.join("mnt/afar.local");
        let scene = Self { mount, key, program, _mounted: process, cell };
        scene.log_in(Identity { is: "admin", ..ROOT });
        for name in ["alice", "bob"] {
            let folder = scene.folder_of(name);
            fs::create_dir(&folder).unwrap();
            scene.set_rights(&folder, name, "all");
        }
        succeed(scene.afar(ROOT, &["unlog"]));
        Some(scene)
    }

    fn folder_of(&self, name: &str) -> PathBuf {
        self.mount.join("scratch").join(name)
    }

    /// Lets nobody else into a folder.
    fn set_rights(&self, folder: &Path, name: &str, rights: &str) {
        let folder = folder.display().to_string();
        succeed(
            self.afar(ROOT, &["fs", "setacl", &folder, name, rights, "system:anyuser", "none", "-clear"]),
        );
    }

    /// A program as somebody, in the mount and about it: other tests have mounts of their own.
    fn command(&self, who: Identity, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        let uid = who.uid.to_string();
        let groups = who.pag.map_or(uid.clone(), |pag| format!("{uid},{pag}"));
        command.args(["--reuid", &uid, "--regid", &uid, "--groups", &groups]).arg(program);
        command
            .env_remove("NOTIFY_SOCKET")
            .env("HOME", "/nonexistent")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("AFAR_SOCKET", mounted::socket_of(self.mount.parent().unwrap()));
        command.stdin(Stdio::null()).current_dir(&self.mount);
        command
    }

    fn afar(&self, who: Identity, words: &[&str]) -> Command {
        let mut command = self.command(who, &self.program);
        command.args(words);
        command
    }

    /// What a shell of somebody's says, with a folder as its argument.
    fn shell(&self, who: Identity, text: &str, folder: &Path) -> Output {
        let mut command = self.command(who, Path::new("bash"));
        command.args(["-c", text, "bash"]).arg(folder);
        mounted::run(command)
    }

    /// Gives somebody the token of whom they are to be.
    fn log_in(&self, who: Identity) {
        let key = self.key.display().to_string();
        succeed(self.afar(who, &["aklog", "-keytab", &key, "-principal", who.is]));
    }

    /// The group of a new PAG of a user's. `pagsh` is run with the capability that its helper's file has.
    fn new_pag(&self, uid: u32) -> u32 {
        let uid = uid.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]);
        command.args(["--inh-caps", "+setgid", "--ambient-caps", "+setgid"]).arg(&self.program);
        command.args(["pagsh", "-c", "id -G"]).stdin(Stdio::null()).current_dir(&self.mount);
        let said = succeed(command);
        let groups: Vec<u32> = said.split_whitespace().map(|group| group.parse().unwrap()).collect();
        let pags: Vec<u32> = groups.into_iter().filter(|group| group >> 24 == 0x41).collect();
        assert_eq!(pags.len(), 1, "{said}");
        pags[0]
    }

    /// What of the attempts shows something.
    fn shown(&self, who: Identity, folder: &Path) -> Vec<&'static str> {
        let shows = |text: &str| !self.shell(who, text, folder).stdout.is_empty();
        attempts().filter(|(_, text)| shows(text)).map(|(what, _)| what).collect()
    }

    fn tokens(&self, who: Identity) -> usize {
        let told: Value = serde_json::from_str(&succeed(self.afar(who, &["tokens", "-json"]))).unwrap();
        told.as_array().unwrap().len()
    }

    /// Puts something of each kind into a folder.
    fn fill(&self, who: Identity, folder: &Path) {
        let text = "set -e; cd \"$1\"; mkdir sub; echo secret > small; yes secret | head -c 3500000 > large; \
                    echo secret > sub/below; ln -s secret link";
        let output = self.shell(who, text, folder);
        assert!(output.status.success(), "{who:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Somebody looks at all of it, so that the kernel and the cache have it, and keeps a large file open meanwhile.
    fn look(&self, who: Identity, folder: &Path) -> Process {
        self.look_with_rights(who, folder).unwrap_or_else(|| panic!("{who:?}"))
    }

    /// The same, if they may.
    fn look_with_rights(&self, who: Identity, folder: &Path) -> Option<Process> {
        let text = "{ ls -lR \"$1\" && cat \"$1\"/small \"$1\"/large && readlink \"$1\"/link; } > /dev/null";
        if !self.shell(who, text, folder).status.success() {
            return None;
        }
        let mut command = self.command(who, Path::new("bash"));
        command.args(["-c", "exec 3< \"$1/large\" && echo open && exec sleep 1000", "bash"]).arg(folder);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Process::of(&mut command);
        let mut said = [0; 5];
        running.child.stdout.as_mut().unwrap().read_exact(&mut said).ok()?;
        Some(running)
    }

    /// A folder like /etc/pam.d in which `su` lets anybody in, with the module. In place of a ticket, a login has the cell's key and is alice.
    /// Each time that `aklog` is run, its groups are added to the file `logins`.
    fn pam_services(&self, module: &Path) -> PathBuf {
        let (at, program) = (&self.cell.folder, self.cell.folder.join("login"));
        let text = "#!/bin/sh\nid -G >> \"$LOGINS\"; cd \"$MOUNT\" && exec \"$AFAR\" \"$@\" -keytab \"$KEY\" -principal alice\n";
        let logins = at.join("logins");
        fs::write(&logins, "").unwrap();
        fs::set_permissions(&logins, fs::Permissions::from_mode(0o666)).unwrap();
        let values =
            [("$LOGINS", &logins), ("$MOUNT", &self.mount), ("$AFAR", &self.program), ("$KEY", &self.key)];
        let text = values
            .iter()
            .fold(text.to_owned(), |text, (name, path)| text.replace(name, &path.display().to_string()));
        fs::write(&program, text).unwrap();
        open(&program);
        let services = at.join("pam.d");
        fs::create_dir(&services).unwrap();
        let afar = format!(
            "optional {} always_aklog program={} socket={}",
            module.display(),
            program.display(),
            mounted::socket_of(&at.join("mnt")).display()
        );
        let rules = format!(
            "auth required pam_permit.so\nauth {afar}\naccount sufficient pam_permit.so\nsession required pam_permit.so\nsession {afar}\n"
        );
        fs::write(services.join("su"), rules).unwrap();
        services
    }

    /// What the logins of [`Self::pam_services`] had for PAGs, in order.
    fn logins(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.cell.folder.join("logins")).unwrap();
        let groups = text.split_whitespace().map(|group| group.parse::<u32>().unwrap());
        groups.filter(|group| group >> 24 == 0x41).collect()
    }
}

/// What is cached for somebody whose token ends is theirs no longer than that.
#[test]
fn a_session_whose_token_has_ended_is_not_shown_what_it_has_cached_until_the_next_one() {
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["gcc"]));
    let folder = scene.folder_of("alice");
    let outside = who(ALICE, None, "alice");
    scene.log_in(outside);
    scene.fill(outside, &folder);
    let session = who(ALICE, Some(scene.new_pag(ALICE)), "alice");
    scene.log_in(session);
    let has_ended = || succeed(scene.afar(session, &["tokens"])).contains("[>> Expired <<]");
    let key = scene.key.display().to_string();
    let words = ["aklog", "-keytab", &key, "-principal", "alice", "-token-lifetime", "1"];
    let held = scene.look_with_rights(session, &folder).expect("rights");
    // The shortest life is an hour, and by this clock almost all of it is over. On a busy machine all is, before there is more to be cached.
    let library = mounted::clock_that_is_ahead(&scene.cell.folder, 12 - 3600);
    let mut command = scene.afar(session, &words);
    command.env("LD_PRELOAD", &library);
    succeed(command);
    let held_later = scene.look_with_rights(session, &folder);
    assert!(held_later.is_some() || has_ended(), "{}", scene.cell.log("mnt"));
    until!(has_ended(), "{}", scene.cell.log("mnt"));
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(scene.shown(session, &folder), Vec::<&str>::new());
    assert_eq!(scene.shown(outside, &folder).len(), attempts().count(), "another session of hers goes on");
    assert_eq!(scene.shown(session, &folder), Vec::<&str>::new());
    scene.log_in(session);
    assert_eq!(scene.shown(session, &folder).len(), attempts().count());
    drop((held, held_later));
}

#[test]
fn what_is_cached_for_one_session_is_not_shown_to_another_that_may_not_have_it() {
    let Some(scene) = Scene::new() else { return };
    // Before there are PAGs: what is kept of that must not count for them.
    let (alice, bob) = (who(ALICE, None, "alice"), who(BOB, None, "bob"));
    scene.log_in(alice);
    scene.fill(alice, &scene.folder_of("alice"));
    drop(scene.look(alice, &scene.folder_of("alice")));
    let alice_as_bob = who(ALICE, Some(scene.new_pag(ALICE)), "bob");
    let alice_as_nobody = who(ALICE, Some(scene.new_pag(ALICE)), "");
    let bob_as_alice = who(BOB, Some(scene.new_pag(BOB)), "alice");
    for somebody in [bob, alice_as_bob, bob_as_alice] {
        scene.log_in(somebody);
    }
    let all = [alice, bob, alice_as_bob, alice_as_nobody, bob_as_alice, ROOT, who(NOBODY, None, "")];
    let everything: Vec<_> = attempts().map(|(what, _)| what).collect();
    let check = |folder: &Path, may: &dyn Fn(Identity) -> bool, when: &str| {
        for asker in all {
            let expected = if may(asker) { &everything[..] } else { &[] };
            assert_eq!(scene.shown(asker, folder), expected, "{when}: {asker:?}");
        }
    };
    let folder = scene.folder_of("alice");
    for asker in all {
        succeed(scene.afar(ROOT, &["fs", "flushall"]));
        let expected = if asker.is == "alice" { &everything[..] } else { &[] };
        assert_eq!(scene.shown(asker, &folder), expected, "not cached: {asker:?}");
    }
    for cacher in [alice, bob_as_alice] {
        let _held = scene.look(cacher, &folder);
        check(&folder, &|asker| asker.is == "alice", &format!("cached by {cacher:?}"));
    }
    // A session that throws its token away is nobody, and the others are who they were.
    let held = scene.look(alice, &folder);
    succeed(scene.afar(alice, &["unlog"]));
    assert_eq!([alice, alice_as_bob, bob_as_alice].map(|who| scene.tokens(who)), [0, 1, 1]);
    check(&folder, &|asker| asker.uid == BOB && asker.is == "alice", "after unlog");
    // Rights that are taken away are gone in all sessions.
    scene.log_in(Identity { is: "admin", ..ROOT });
    for folder in [folder.join("sub"), folder.clone()] {
        scene.set_rights(&folder, "bob", "none");
    }
    succeed(scene.afar(ROOT, &["unlog"]));
    check(&folder, &|_| false, "after the right is gone");
    drop(held);
}

#[test]
fn nobody_gets_into_the_pag_of_somebody_else() {
    let Some(scene) = Scene::new() else { return };
    let pag = scene.new_pag(ALICE);
    let (alice, bob) = (who(ALICE, Some(pag), "alice"), who(BOB, None, "bob"));
    for somebody in [alice, bob] {
        scene.log_in(somebody);
    }
    let folder = scene.folder_of("alice");
    scene.fill(alice, &folder);
    let held = scene.look(alice, &folder);
    // With the number alone one has nothing, not even what is one's own. One can set tokens there, and has these alone.
    let guesser = who(BOB, Some(pag), "bob");
    assert_eq!(scene.shown(guesser, &folder), Vec::<&str>::new(), "{guesser:?}");
    assert_eq!(scene.tokens(guesser), 0);
    // Nor is a command given the token of the session that it is not in.
    let config = scene.cell.public_config().display().to_string();
    let output = mounted::run(scene.afar(guesser, &["pts", "creategroup", "alice:own", "-config", &config]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("running unauthenticated"), "{said}");
    scene.log_in(guesser);
    succeed(scene.afar(guesser, &["unlog"]));
    // One that this client has not made is another client's, and changes nothing here.
    let elsewhere = who(BOB, Some(GUESSED), "bob");
    assert_eq!(scene.shown(elsewhere, &folder), Vec::<&str>::new(), "{elsewhere:?}");
    assert_eq!(scene.tokens(elsewhere), 1, "bob's own");
    assert_eq!(scene.tokens(alice), 1);
    // The user's own processes that are not in it have none of its tokens, and cannot ask for the number as a group.
    let outside = who(ALICE, None, "");
    assert_eq!(scene.shown(outside, &folder), Vec::<&str>::new());
    // These fail in the kernel already: no way leads to the number.
    for thief in [bob, outside] {
        for way in [
            format!("unshare -U --map-root-user setpriv --groups {pag} cat \"$1/small\""),
            format!("unshare -U setpriv --groups {pag} cat \"$1/small\""),
            format!("setpriv --groups {pag} cat \"$1/small\""),
            format!("setpriv --regid {pag} --clear-groups cat \"$1/small\""),
            format!("sg {pag} -c \"cat '$1/small'\" < /dev/null"),
            format!("echo \"cat '$1/small'\" | newgrp {pag}"),
        ] {
            let output = scene.shell(thief, &way, &folder);
            assert!(output.stdout.is_empty(), "{thief:?}: {way}: {output:?}");
        }
    }
    let seen = scene.shell(alice, "cat \"$1/small\"", &folder);
    assert_eq!(seen.stdout, b"secret\n", "its own processes go on");
    drop(held);
}

#[test]
fn a_shell_in_a_pag_has_no_privilege_and_one_number() {
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["setcap"]));
    let helper = scene.cell.folder.join("afar-pagsh");
    mounted::copy_program(&helper);
    if !Command::new("setcap").arg("cap_setgid+ep").arg(&helper).status().unwrap().success() {
        return mounted::skip("this file system keeps no capabilities");
    }
    let bob = who(BOB, None, "bob");
    // Without the capability, `afar pagsh` has the helper do it.
    let script = "grep -h '^Cap[IPEA]' /proc/self/status | grep -v ':[[:space:]]0*$'; id -G";
    let said = succeed(scene.afar(bob, &["pagsh", "-c", script]));
    let groups: Vec<u32> =
        said.split_whitespace().map(|group| group.parse().expect("no capability")).collect();
    assert_eq!(groups.iter().filter(|group| *group >> 24 == 0x41).count(), 1);
    assert!(groups.contains(&BOB), "the others stay");
    // One in another has the newer one's number only.
    let inner = format!("exec '{}' pagsh -c 'id -G'", scene.program.display());
    let inside = succeed(scene.afar(bob, &["pagsh", "-c", &format!("id -G; {inner}")]));
    let (outer, inner) = inside.trim().split_once('\n').unwrap();
    assert_ne!(outer, inner);
    assert_eq!(outer.split(' ').count(), inner.split(' ').count());
    // The helper is for nothing else: another command of it has no more than the user.
    let mut command = scene.command(bob, &helper);
    let mut serving = Process::of(command.args(["rxperf", "server", "-p", "0"]).stdout(Stdio::null()));
    let capabilities = || {
        let status = fs::read_to_string(format!("/proc/{}/status", serving.pid())).unwrap();
        let is_running = status.contains("afar-pagsh");
        let of = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap().trim().to_owned();
        (is_running, u64::from_str_radix(&of, 16).unwrap())
    };
    let begin = std::time::Instant::now();
    while capabilities() != (true, 0) {
        assert!(begin.elapsed() < mounted::TIMEOUT, "{:?}", capabilities());
    }
    assert!(serving.child.try_wait().unwrap().is_none(), "it serves");
    drop(serving);
    fs::remove_file(&helper).unwrap();
    let refused = mounted::run(scene.afar(bob, &["pagsh", "-c", "echo ran"]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "nothing is run outside of the PAG");
    assert!(said.contains("CAP_SETGID"), "{said}");
}

#[test]
fn a_session_that_outlives_its_client_does_not_get_its_users_tokens() {
    let Some(scene) = Scene::new() else { return };
    let old = who(ALICE, Some(scene.new_pag(ALICE)), "");
    let _session = Process::of(scene.command(old, Path::new("sleep")).arg("1000"));
    let (_other, _) = scene.cell.mount("other");
    let mount = scene.cell.folder.join("other/afar.local");
    let alice = who(ALICE, None, "alice");
    let key = scene.key.display().to_string();
    let mut command = scene.afar(alice, &["aklog", "-keytab", &key, "-principal", "alice"]);
    command.env("AFAR_SOCKET", mounted::socket_of(&scene.cell.folder.join("other"))).current_dir(&mount);
    succeed(command);
    let folder = mount.join("scratch/alice");
    scene.fill(alice, &folder);
    // (It has looked for such sessions when it began.)
    assert_eq!(scene.shown(old, &folder), Vec::<&str>::new());
    assert_eq!(scene.shown(alice, &folder).len(), attempts().count());
}

#[test]
fn a_login_has_a_pag_and_a_token_of_its_own_until_it_ends() {
    let Some(module) = logins::module() else { return };
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["su", "unshare"]));
    let alice = who(ALICE, None, "alice");
    scene.log_in(alice);
    let folder = scene.folder_of("alice");
    scene.fill(alice, &folder);
    let services = scene.pam_services(&module);
    let session = "id -G; cat \"$1/small\"";
    let inside =
        format!("cd '{}' && {session}", scene.mount.display()).replace("$1", &folder.display().to_string());
    let said = succeed(logins::with_services(&services, &["su", "-s", "/bin/sh", "daemon", "-c", &inside]));
    let (groups, content) = said.trim().split_once('\n').unwrap();
    let pag = groups.split(' ').map(|group| group.parse::<u32>().unwrap()).find(|group| group >> 24 == 0x41);
    assert_eq!(content, "secret");
    // It is for that login alone, and ends with it.
    assert_eq!(scene.tokens(who(DAEMON, Some(pag.expect("a PAG")), "")), 0);
    assert_eq!(scene.shown(who(DAEMON, None, ""), &folder), Vec::<&str>::new());
}

/// The numbers of processes are used again. Somebody waits for a process of a session to end, and begins one with its number.
#[test]
fn a_process_with_the_number_of_one_that_was_in_a_pag_is_not_in_it() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let Some(scene) = Scene::new() else { return };
    let alice = who(ALICE, Some(scene.new_pag(ALICE)), "alice");
    scene.log_in(alice);
    let folder = scene.folder_of("alice");
    scene.fill(alice, &folder);
    let begin = |who: Identity| {
        let mut command = scene.command(who, Path::new("cat"));
        command.arg(folder.join("small")).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut same = 0;
    for _ in 0..200 {
        let hers = begin(alice);
        let number = hers.id();
        assert_eq!(hers.wait_with_output().unwrap().stdout, b"secret\n");
        if fs::write(LAST, (number - 1).to_string()).is_err() {
            return mounted::skip("this kernel does not let root choose the number of a process");
        }
        // The user is the same: only the group tells them apart.
        let thiefs = begin(who(ALICE, None, ""));
        same += u32::from(thiefs.id() == number);
        assert!(thiefs.wait_with_output().unwrap().stdout.is_empty());
        if same == 5 {
            return;
        }
    }
    assert!(same > 0, "others were always faster");
}

/// A mount for one user keeps also names that not everybody may see.
#[test]
fn a_mount_for_one_user_shows_no_session_what_another_has_looked_up() {
    let Some(mut scene) = Scene::new() else { return };
    let (_private, _) = scene.cell.mount_with("private", "state/etc", &["--private"]);
    scene.mount = scene.cell.folder.join("private/afar.local");
    let (folder, alice) = (scene.folder_of("alice"), Identity { is: "alice", ..ROOT });
    scene.log_in(alice);
    scene.fill(alice, &folder);
    let held = scene.look(alice, &folder);
    let session = who(0, Some(scene.new_pag(0)), "");
    assert_eq!(scene.shown(session, &folder), Vec::<&str>::new());
    drop(scene.look(alice, &folder));
    assert_eq!(scene.shown(session, &folder), Vec::<&str>::new(), "what was looked up since");
    assert_eq!(scene.shown(alice, &folder).len(), attempts().count());
    // Nor is anything shown to those who have thrown their tokens away.
    scene.log_in(Identity { is: "alice", ..session });
    succeed(scene.afar(ROOT, &["unlog"]));
    assert_eq!(scene.shown(ROOT, &folder), Vec::<&str>::new());
    assert_eq!(scene.shown(session, &folder).len(), attempts().count());
    drop(held);
}
