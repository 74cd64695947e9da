//! Users with the tickets of a real KDC: `aklog`, `tokens` and `unlog` at a mount of our client, in a cell whose servers have the key
//! that the KDC has.

use crate::mounted::realm::{ALICE, BOB, Local, NOBODY, ROOT, SERVICE, Scene, fail};
use crate::mounted::{self, Process, open, succeed};
use afs_lab::peers::kdc::{self, Kdc, PASSWORD, Realm};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The service that tokens of rxgk are negotiated with.
const RXGK_SERVICE: &str = "afs-rxgk/_afs.afar.local";
const WRITE: &str = "echo mine > \"$1/scratch/alice/file\"";
const READ: &str = "cat \"$1/scratch/alice/file\"";

#[test]
fn a_ticket_of_a_kdc_lets_its_owner_in_and_nobody_else_until_unlog() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    assert!(!scene.can(ALICE, WRITE), "without a token she is nobody");

    let said = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(
        said.contains("Couldn't determine realm of user:") && said.contains("run 'kinit' first"),
        "{said}"
    );

    scene.kinit(ALICE);
    let said = scene.run(ALICE, &["aklog", "-d"]);
    for line in [
        "Authenticating to cell afar.local (server ",
        "Trying to authenticate to user's realm AFAR.LOCAL.",
        "Getting tickets: afs/afar.local@AFAR.LOCAL",
        "Using Kerberos V5 ticket natively",
        "About to resolve name alice to id in cell afar.local.",
        "Setting tokens. alice @ afar.local",
    ] {
        assert!(said.lines().any(|said| said.starts_with(line)), "{line:?} in:\n{said}");
    }
    assert!(scene.can(ALICE, WRITE));
    assert_eq!(String::from_utf8_lossy(&scene.shell(ALICE, READ).stdout), "mine\n");
    for other in [ROOT, BOB] {
        assert!(!scene.can(other, WRITE) && !scene.can(other, READ), "{} is not alice", other.name);
    }
    scene.kinit(BOB);
    scene.run(BOB, &["aklog"]);
    assert!(!scene.can(BOB, WRITE) && !scene.can(BOB, READ), "bob has a token of his own");

    let tokens = scene.tokens(ALICE);
    assert_eq!(tokens.len(), 1);
    assert_eq!((&tokens[0]["cell"], &tokens[0]["is_expired"]), (&"afar.local".into(), &false.into()));
    let id = tokens[0]["id"].as_i64().unwrap();
    let text = scene.run(ALICE, &["tokens"]);
    assert!(
        text.contains(&format!("\nUser's (AFS ID {id}) rxkad tokens for afar.local [Expires ")),
        "{text}"
    );
    let again = scene.run(ALICE, &["aklog", "-d"]);
    assert!(again.contains("Identical tokens already exist; skipping."), "{again}");
    assert!(!scene.run(ALICE, &["aklog", "-d", "-force"]).contains("Identical"));

    scene.run(ALICE, &["unlog"]);
    assert!(scene.tokens(ALICE).is_empty());
    scene.until(ALICE, READ, false);
    assert!(!scene.can(ALICE, WRITE), "and nobody again");
    assert_eq!(scene.tokens(BOB).len(), 1, "bob's token stays");
    let said = scene.afar(ALICE, &["unlog", "-cell", "afar.local"]);
    assert!(
        String::from_utf8_lossy(&mounted::run(said).stderr).contains("no tokens held for cell afar.local")
    );
    assert!(
        fail(scene.afar(ALICE, &["unlog", "-cell", "no.cell"]), 1).contains("Unrecognized cell name no.cell")
    );
}

#[test]
fn tickets_of_all_kinds_of_keys_are_taken_and_a_new_key_counts_without_a_restart() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    let keytab = scene.cell.folder.join("state/etc/server/rxkad.keytab");
    for kind in ["aes256-cts", "aes128-cts", "aes256-sha2"] {
        // A client that has a ticket of the old key goes on with it.
        scene.kinit(BOB);
        scene.run(BOB, &["aklog"]);
        scene.kdc.add_service(SERVICE, kind, &keytab).unwrap();
        scene.kinit(ALICE);
        scene.run(ALICE, &["aklog"]);
        let write = format!("echo {kind} > \"$1/scratch/alice/file\"");
        // Until the servers have read the key they refuse the token.
        let writes = || {
            let can = scene.can(ALICE, &write);
            if !can {
                scene.run(ALICE, &["aklog"]);
            }
            can
        };
        until!(writes(), "{kind}: {}", scene.cell.log("mnt"));
        assert_eq!(String::from_utf8_lossy(&scene.shell(ALICE, READ).stdout), format!("{kind}\n"));
        assert!(scene.can(BOB, "echo x > \"$1/scratch/bob-$RANDOM\""));
        scene.run(ALICE, &["unlog"]);
    }
}

/// Has the realm know the service that tokens of rxgk are negotiated with, and gets one for Alice, who has a ticket.
fn offer_rxgk(scene: &Scene) {
    let keytab = scene.cell.folder.join("state/etc/server/rxgk.keytab");
    scene.kdc.add_service(RXGK_SERVICE, "aes256-cts-hmac-sha1-96", &keytab).unwrap();
    // The servers read the keytab within a second.
    until!(scene.afar(ALICE, &["aklog"]).output().unwrap().status.success(), "no token of rxgk");
}

/// A realm that has the service for rxgk. What can be read on the way then is in `captured.rs`.
#[test]
fn aklog_gets_a_token_of_rxgk_where_the_realm_has_the_service_for_it() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    scene.kinit(ALICE);
    offer_rxgk(&scene);
    let told = scene.run(ALICE, &["tokens"]);
    assert!(
        told.contains("rxgk tokens for afar.local") && told.contains("(crypt, aes256-cts-hmac-sha1-96)"),
        "{told}"
    );
    assert_eq!(scene.tokens(ALICE)[0]["rxgk"]["level"], "crypt");
    assert!(scene.can(ALICE, WRITE));
    // Once there was one there has to be one, until the user says otherwise.
    scene.kdc.admin("delprinc -force afs-rxgk/_afs.afar.local").unwrap();
    scene.kinit(ALICE);
    let refused = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(refused.contains("no token of rxgk") && refused.contains("unlog"), "{refused}");
    scene.run(ALICE, &["unlog"]);
    scene.run(ALICE, &["aklog"]);
    assert!(!scene.run(ALICE, &["tokens"]).contains("rxgk"));
}

/// A realm whose cell has rxgk and no other class: it has no service `afs/afar.local`.
#[test]
fn aklog_needs_no_service_of_rxkads_where_the_realm_has_that_of_rxgk() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    scene.kdc.admin(&format!("delprinc -force {SERVICE}")).unwrap();
    scene.kinit(ALICE);
    let neither = fail(scene.afar(ALICE, &["aklog"]), 4);
    for tried in ["Couldn't get afar.local AFS tickets:", "afs/afar.local@AFAR.LOCAL", RXGK_SERVICE] {
        assert!(neither.contains(tried), "{neither}");
    }
    offer_rxgk(&scene);
    let said = scene.run(ALICE, &["aklog", "-d"]);
    assert!(said.contains("No token of rxkad, only one of rxgk: ") && said.contains("\nId "), "{said}");
    let said = mounted::run(scene.afar(ALICE, &["aklog"]));
    assert_eq!((said.stdout, said.stderr), (vec![], vec![]), "it is no fault");
    let told = scene.run(ALICE, &["tokens"]);
    assert!(told.contains("rxgk tokens for afar.local") && !told.contains("rxkad"), "{told}");
    assert!(scene.can(ALICE, WRITE) && !scene.can(BOB, READ));
    let config = scene.cell.public_config().display().to_string();
    scene.run(ALICE, &["pts", "creategroup", "alice:friends", "-config", &config]);
    // The KDC knows another key than the servers: there is no token, and nothing weaker.
    scene.run(ALICE, &["unlog"]);
    scene.kdc.add_service(SERVICE, "aes256-cts", &scene.realm.join("unused")).unwrap();
    scene.kdc.add_service(RXGK_SERVICE, "aes256-cts-hmac-sha1-96", &scene.realm.join("unused")).unwrap();
    scene.kinit(ALICE);
    let refused = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(
        refused.contains("no token of rxgk for afar.local: ") && scene.tokens(ALICE).is_empty(),
        "{refused}"
    );
}

#[test]
fn heimdals_tickets_are_as_good_as_mits() {
    let programs = match kdc::heimdal_available() {
        Ok(programs) => programs,
        Err(why) => return mounted::skip(&why),
    };
    let start = |folder: &Path, realm: &Realm<'_>| Kdc::start_heimdal(folder, realm, &programs);
    let Some(scene) = Scene::of("", start) else { return };
    scene.private_folder(ALICE);
    scene.kinit(ALICE);
    scene.run(ALICE, &["aklog"]);
    assert!(scene.can(ALICE, WRITE) && !scene.can(BOB, READ));
    scene.run(ALICE, &["unlog"]);
    scene.until(ALICE, READ, false);
    // The key is changed under the servers: one of each kind, and all at once.
    let keytab = scene.cell.folder.join("state/etc/server/rxkad.keytab");
    let kinds = ["aes256-cts-hmac-sha1-96", "aes128-cts-hmac-sha1-96", "aes256-cts-hmac-sha384-192", ""];
    for kind in kinds {
        scene.kdc.add_service(SERVICE, kind, &keytab).unwrap();
        scene.kinit(ALICE);
        scene.until(ALICE, &format!("{} aklog && {READ}", scene.program.display()), true);
        let listed = scene.shell(ALICE, "klist -e | grep -A2 afs/");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains(&format!(", {kind}")), "{listed}");
        scene.run(ALICE, &["unlog"]);
    }
    let wrong = ["klog", "-principal", "alice", "-password", "another"];
    assert!(fail(scene.afar(ALICE, &wrong), 1).contains("Unable to authenticate in realm AFAR.LOCAL"));
}

#[test]
fn k5start_and_krenew_get_tokens_by_our_aklog() {
    if Command::new("k5start").arg("-h").output().is_err() {
        return mounted::skip("k5start is not installed (Debian's kstart)");
    }
    let Some(scene) = Scene::new() else { return };
    let aklog = scene.realm.join("aklog");
    std::os::unix::fs::symlink(&scene.program, &aklog).unwrap();
    let keytab = scene.realm.join("keytab-of-alice");
    scene.kdc.admin(&format!("ktadd -k {} -norandkey alice", keytab.display())).unwrap();
    chown(&keytab, Some(ALICE.uid), Some(ALICE.uid)).unwrap();
    let cache = format!("FILE:{}", scene.cache(ALICE).display());
    let agent = |program: &str, words: &[&str]| {
        let mut command = scene.command(ALICE, Path::new(program));
        command.args(words).env("AKLOG", &aklog);
        succeed(command)
    };
    agent("k5start", &["-t", "-f", &keytab.display().to_string(), "-k", &cache, "alice"]);
    assert_eq!(scene.tokens(ALICE).len(), 1);
    scene.run(ALICE, &["unlog"]);
    scene.kinit_as(ALICE, "alice", &["-r", "1d"]);
    agent("krenew", &["-t", "-k", &cache]);
    assert_eq!(scene.tokens(ALICE).len(), 1);
}

#[test]
fn a_cache_in_the_kernels_keyring_is_as_good_as_a_file() {
    let Some(scene) = Scene::new() else { return };
    let has_keyrings = Command::new("keyctl").args(["session", "-", "true"]).output();
    if !has_keyrings.is_ok_and(|output| output.status.success()) {
        return mounted::skip("there are no keyrings, or no keyctl (Debian's keyutils)");
    }
    let text = format!(
        "export KRB5CCNAME=KEYRING:session:afar; echo {PASSWORD} | kinit alice && '{}' aklog && klist",
        scene.program.display()
    );
    let mut command = scene.command(ALICE, Path::new("keyctl"));
    command.args(["session", "-", "bash", "-c", &text]).env("PATH", "/usr/bin:/bin");
    let said = succeed(command);
    assert!(said.contains("KEYRING:session:afar") && said.contains("afs/afar.local@AFAR.LOCAL"), "{said}");
    assert_eq!(scene.tokens(ALICE).len(), 1);
    assert!(!scene.cache(ALICE).exists());
}

#[test]
fn a_cache_of_a_kcm_daemon_is_as_good_as_a_file() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/heimdal/usr/sbin/kcm");
    if !program.exists() {
        return mounted::skip("there is no KCM daemon: scripts/tools.sh fetches Heimdal's");
    }
    let Some(scene) = Scene::new() else { return };
    let run = scene.realm.join("run");
    fs::create_dir(&run).unwrap();
    open(&run);
    // It listens in /run, whatever place is asked of it.
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount --bind \"$1\" /run && exec \"$2\"").arg("sh").arg(&run).arg(&program);
    scene.kdc.prepare(&mut command);
    let _daemon = Process::of(command.stdin(Stdio::null()));
    let socket = run.join(".heim_org.h5l.kcm-socket");
    until!(UnixStream::connect(&socket).is_ok(), "it does not listen");
    let conf = scene.realm.join("krb5.conf");
    let more = format!("\n[libdefaults]\n kcm_socket = {}\n", socket.display());
    fs::write(&conf, fs::read_to_string(&conf).unwrap() + &more).unwrap();
    let text = format!("echo {PASSWORD} | kinit alice && '{}' aklog && klist", scene.program.display());
    let mut command = scene.command(ALICE, Path::new("bash"));
    command.args(["-c", &text]).env("PATH", "/usr/bin:/bin").env("KRB5CCNAME", "KCM:");
    let said = succeed(command);
    assert!(said.contains("KCM:") && said.contains("afs/afar.local@AFAR.LOCAL"), "{said}");
    assert_eq!(scene.tokens(ALICE).len(), 1);
    assert!(!scene.cache(ALICE).exists());
    // Nobody else gets tickets from it by the name of the cache.
    let mut command = scene.afar(BOB, &["aklog"]);
    command.env("KRB5CCNAME", format!("KCM:{}", ALICE.uid));
    fail(command, 4);
    assert!(scene.tokens(BOB).is_empty());
}

#[test]
fn a_key_of_the_realm_is_added_and_an_old_one_removed_while_servers_run() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    let config = scene.cell.folder.join("state/etc/server").display().to_string();
    let key = |words: &[&str]| mounted::afar([&["key"], words, &["-config", &config]].concat());
    let listed = || -> Value { serde_json::from_str(&succeed(key(&["list", "-json"]))).unwrap() };
    let before = listed().as_array().unwrap().len();
    assert_eq!(before, 3, "two of the cell's first start, and one in rxkad.keytab");
    let keytab = scene.realm.join("new-keytab");
    scene.kdc.add_service(SERVICE, "aes128-cts", &keytab).unwrap();
    let added = succeed(key(&["add", &keytab.display().to_string()]));
    let kvno = added.split_whitespace().nth(3).unwrap().to_owned();
    assert!(added.ends_with("aes128-cts-hmac-sha1-96\n"), "{added}");
    assert_eq!(listed().as_array().unwrap().len(), before + 1);
    scene.kinit(ALICE);
    let has_written = || {
        scene.run(ALICE, &["aklog"]);
        scene.can(ALICE, WRITE)
    };
    until!(has_written(), "{}", scene.cell.log("mnt"));
    assert!(succeed(key(&["remove", &kvno])).starts_with("removed rxkad_krb5 kvno "));
    assert_eq!(listed().as_array().unwrap().len(), before);
    assert!(fail(key(&["remove", &kvno]), 1).contains("has no such key"));
    assert!(fail(key(&["remove", "1"]), 1).contains("this is the last key"));
    // Keys for rxgk have versions of their own.
    assert_eq!(succeed(key(&["new"])), "made rxgk kvno 2 aes256-cts-hmac-sha1-96\n");
    assert!(fail(key(&["new", "-kvno", "2"]), 1).contains("the next is higher"));
    assert!(fail(key(&["new", "-enctype", "rc4"]), 1).contains("aes128-cts-hmac-sha256-128"));
    assert_eq!(
        succeed(key(&["remove", "1", "-type", "rxgk"])),
        "removed rxgk kvno 1 aes256-cts-hmac-sha1-96\n"
    );
    assert_eq!(listed().as_array().unwrap().len(), before);
    let said = fail(key(&["add", "/nonexistent"]), 1);
    assert!(said.contains("there is no such file"), "{said}");
}

#[test]
fn a_key_that_the_servers_lack_makes_its_users_nobody_until_it_is_there() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    let keytab = scene.realm.join("only-the-kdc-has-it");
    scene.kdc.add_service(SERVICE, "aes256-cts", &keytab).unwrap();
    scene.kinit(ALICE);
    scene.run(ALICE, &["aklog"]);
    assert!(!scene.can(ALICE, WRITE), "a ticket of an unknown kvno");
    assert!(scene.can(ALICE, "ls \"$1/scratch\""), "what anybody may do she still may");
    scene.cell.logs("mnt", &["alice", "a server refuses it"]);
    let config = scene.cell.folder.join("state/etc/server").display().to_string();
    succeed(mounted::afar(["key", "add", &keytab.display().to_string(), "-config", &config]));
    // The same ticket: it was refused, so it is not passed over as one that is there already.
    let writes = || {
        let can = scene.can(ALICE, WRITE);
        if !can {
            scene.run(ALICE, &["aklog"]);
        }
        can
    };
    until!(writes(), "{}", scene.cell.log("mnt"));
}

#[test]
fn a_clock_that_is_ten_minutes_off_is_named_as_the_cause() {
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["gcc"]));
    let library = mounted::clock_that_is_ahead(&scene.realm, 600);
    scene.kinit(ALICE);
    let mut command = scene.afar(ALICE, &["aklog"]);
    command.env("LD_PRELOAD", &library);
    let said = fail(command, 4);
    assert!(said.contains("Clock skew too great") && said.contains("set the clock"), "{said}");
    assert!(scene.tokens(ALICE).is_empty());
    scene.run(ALICE, &["aklog"]);
}

/// As those of realms that put many groups into a ticket.
#[test]
fn a_ticket_is_as_good_up_to_the_longest_that_afs_takes_and_a_longer_one_is_refused_at_once() {
    const LONGEST: usize = 12_000;
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["gcc"]));
    let program = scene.realm.join("ticket");
    kdc::ticket_program(&program).unwrap();
    scene.private_folder(ALICE);
    // The length of a ticket with so much in it.
    let get = |more: usize| -> usize {
        scene.kinit(ALICE);
        let mut command = scene.command(ALICE, &program);
        command.args([SERVICE, &more.to_string()]);
        succeed(command).trim().parse().unwrap()
    };
    // A ticket has 19 bytes more if it begins in a later second than its owner logged in.
    let mut overhead = get(11_000) - 11_000;
    let mut get_of = |length: usize| {
        for _ in 0..10 {
            let got = get(length - overhead);
            if got == length {
                return;
            }
            overhead = overhead + got - length;
        }
        panic!("no ticket of {length} bytes");
    };
    get_of(LONGEST);
    let output = mounted::run(scene.afar(ALICE, &["aklog"]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("servers of OpenAFS do not answer"), "{said}");
    assert!(scene.can(ALICE, WRITE), "{}", scene.cell.log("mnt"));
    assert!(!scene.can(BOB, READ));
    scene.run(ALICE, &["unlog"]);
    get_of(LONGEST + 1);
    let said = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(said.contains("its length, is of no use to AFS"), "{said}");
    assert!(scene.tokens(ALICE).is_empty());
    // It keeps nobody from a token of rxgk.
    offer_rxgk(&scene);
    let told = scene.run(ALICE, &["tokens"]);
    assert!(told.contains("rxgk tokens for afar.local") && !told.contains("rxkad"), "{told}");
    assert!(scene.can(ALICE, WRITE) && !scene.can(BOB, READ));
}

#[test]
fn a_cache_that_is_a_folder_is_as_good_as_a_file_and_one_of_somebody_else_is_not_read() {
    let Some(scene) = Scene::new() else { return };
    let folder = scene.realm.join("of-alice-too");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    chown(&folder, Some(ALICE.uid), Some(ALICE.uid)).unwrap();
    let cache = format!("DIR:{}", folder.display());
    scene.kdc.kinit("alice", &["-c", &cache]).unwrap();
    for file in fs::read_dir(&folder).unwrap() {
        chown(file.unwrap().path(), Some(ALICE.uid), Some(ALICE.uid)).unwrap();
    }
    let with_cache = |user: Local, cache: &str| {
        let mut command = scene.afar(user, &["aklog"]);
        command.env("KRB5CCNAME", cache);
        command
    };
    succeed(with_cache(ALICE, &cache));
    assert_eq!(scene.tokens(ALICE).len(), 1);
    fail(with_cache(BOB, &cache), 4);
    // Nor does a link of Bob's lead to a file that Bob may not read.
    let link = scene.cache(BOB).with_file_name("link");
    scene.kinit(ALICE);
    std::os::unix::fs::symlink(scene.cache(ALICE), &link).unwrap();
    fail(with_cache(BOB, &format!("FILE:{}", link.display())), 4);
    assert!(scene.tokens(BOB).is_empty());
}

#[test]
fn another_process_of_the_same_user_does_not_look_into_one_that_logs_in() {
    let Some(scene) = Scene::new() else { return };
    let mut command = scene.afar(ALICE, &["klog", "-principal", "alice", "-pipe"]);
    // It waits for the password.
    let mut login = command.stdin(Stdio::piped()).spawn().unwrap();
    let look = format!("cat /proc/{}/environ", login.id());
    scene.until(ALICE, &look, false);
    assert!(login.try_wait().unwrap().is_none(), "it runs, and is not to be looked into");
    drop(login.stdin.take());
    assert!(!mounted::wait(&mut login).success(), "an empty password");
}

#[test]
fn what_kerberos_refuses_is_told_with_what_to_do() {
    let Some(mut scene) = Scene::new() else { return };
    scene.kinit(ALICE);
    let said = fail(scene.afar(ALICE, &["aklog", "-cell", "nosuch.cell"]), 3);
    assert!(said.contains("aklog: Can't get information about cell nosuch.cell."), "{said}");
    let said = fail(scene.afar(ALICE, &["aklog", "-k", "NO.REALM"]), 4);
    assert!(said.contains("Couldn't get afar.local AFS tickets:"), "{said}");
    scene.kdc.admin("delprinc -force afs/afar.local").unwrap();
    let said = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(said.contains("not found in Kerberos database") && said.contains("with -k"), "{said}");
    scene.kdc.end();
    let said = fail(scene.afar(ALICE, &["aklog"]), 4);
    assert!(said.contains("no Kerberos server answers"), "{said}");
    assert_eq!(scene.tokens(ALICE), Vec::<Value>::new());
    let said = fail(scene.afar(ALICE, &["aklog", "-nosuch"]), 1);
    assert!(said.contains("Unrecognized or ambiguous switch '-nosuch'"), "{said}");
}

#[test]
fn a_token_that_has_ended_makes_its_owner_nobody_and_a_new_one_makes_good() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    let write_with_one_of = |life: &str| {
        scene.kinit_as(ALICE, "alice", &["-l", life]);
        scene.run(ALICE, &["aklog"]);
        scene.can(ALICE, WRITE)
    };
    assert!(write_with_one_of("1h"));
    // It may be over before it is used.
    write_with_one_of("5s");
    scene.until(ALICE, WRITE, false);
    assert!(scene.run(ALICE, &["tokens"]).contains("[>> Expired <<]"));
    scene.cell.logs("mnt", &["aklog", "alice", "expired"]);
    scene.kinit(ALICE);
    scene.run(ALICE, &["aklog"]);
    assert!(scene.can(ALICE, WRITE));
}

#[test]
fn what_was_written_when_a_token_ended_is_stored_with_the_next_one() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    scene.kinit_as(ALICE, "alice", &["-l", "30s"]);
    scene.run(ALICE, &["aklog"]);
    // A program has the file open when the token ends, writes then, and is told at the end that this is not stored.
    let mut command = scene.command(ALICE, Path::new("bash"));
    let text = "exec 3> \"$1/scratch/alice/file\" || exit 9; echo open; until [ -e \"$2\" ]; do sleep 0.1; done; \
                echo kept | dd conv=fsync status=none >&3 && exit 7; exit 0";
    let ended = scene.realm.join("the-token-has-ended");
    command.args(["-c", text, "bash"]).arg(&scene.mount).arg(&ended).env("PATH", "/usr/bin:/bin");
    let mut writer = command.stdout(Stdio::piped()).spawn().unwrap();
    writer.stdout.as_mut().unwrap().read_exact(&mut [0; "open\n".len()]).expect("the file is open");
    until!(scene.tokens(ALICE)[0]["is_expired"] == true, "the token does not end");
    std::thread::sleep(Duration::from_secs(1));
    fs::write(&ended, "").unwrap();
    assert_eq!(mounted::wait(&mut writer).code(), Some(0), "{}", scene.cell.log("mnt"));
    let waits = |who| {
        let said = mounted::run(scene.afar(who, &["tokens"])).stderr;
        String::from_utf8_lossy(&said).contains(
            "tokens: 1 file that you have written (5 bytes) will be stored when you have a token again",
        )
    };
    assert!(waits(ALICE) && !waits(BOB));
    scene.kinit(ALICE);
    scene.run(ALICE, &["aklog"]);
    // Another client sees what the server has.
    let (_second, _) = scene.cell.mount("second");
    let second = scene.cell.folder.join("second/afar.local");
    let mut command = scene.afar(ALICE, &["aklog"]);
    scene.means(&mut command, "second");
    succeed(command);
    let seen = || {
        let mut command = scene.command(ALICE, Path::new("cat"));
        command.arg(second.join("scratch/alice/file"));
        mounted::run(command).stdout
    };
    until!(seen() == b"kept\n", "{}", scene.cell.log("mnt"));
    assert_eq!(String::from_utf8_lossy(&scene.shell(ALICE, READ).stdout), "kept\n");
    assert!(!waits(ALICE));
    let log = scene.cell.log("mnt");
    assert!(!log.contains("put aside"), "{log}");
}

#[test]
fn a_renewed_ticket_gives_a_newer_token_by_one_command() {
    let Some(scene) = Scene::new() else { return };
    scene.kinit_as(ALICE, "alice", &["-l", "1h", "-r", "2h"]);
    scene.run(ALICE, &["aklog"]);
    let before = scene.tokens(ALICE)[0]["expires"].as_i64().unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    scene.run(ALICE, &["aklog", "-renew"]);
    let after = scene.tokens(ALICE)[0]["expires"].as_i64().unwrap();
    assert!(after > before, "{before} {after}");
    scene.kinit_as(ALICE, "alice", &["-l", "1h"]);
    let said = fail(scene.afar(ALICE, &["aklog", "-renew"]), 4);
    assert!(said.contains("while renewing the Kerberos ticket"), "{said}");
}

/// Runs a command as somebody who sees no other mounts of ours than those in these folders.
fn seeing_only(folders: &[&Path], user: Local, command: &Command) -> Command {
    // The list is read whole first: one that changes while it is read leaves some out.
    const SCRIPT: &str = "mounts=$(cat /proc/self/mountinfo); \
        while read -r _ _ _ _ dir rest; do case $rest in *' - fuse.afar '*) \
        case $dir in \"$1\"/*|\"$2\"/*) ;; *) umount -l \"$dir\" ;; esac ;; esac; done <<< \"$mounts\"; \
        uid=$3; shift 3; exec setpriv --reuid=\"$uid\" --regid=\"$uid\" --clear-groups \"$@\"";
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "--propagation", "private", "bash", "-c", SCRIPT, "bash"]).args(folders);
    alone.arg(user.uid.to_string()).arg(command.get_program()).args(command.get_args());
    alone.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)))
            .filter(|(name, _)| *name != "AFAR_SOCKET"),
    );
    alone.current_dir("/").stdin(Stdio::null());
    alone
}

#[test]
fn a_mount_of_somebody_else_is_not_given_tokens() {
    let Some(scene) = Scene::new() else { return };
    require!(mounted::needs(&["fusermount3", "setpriv", "unshare"]));
    let folder = scene.realm.join("mount-of-nobody");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(NOBODY.uid), Some(NOBODY.uid)).unwrap();
    let config = scene.realm.join("etc");
    fs::create_dir(&config).unwrap();
    for name in ["ThisCell", "CellServDB"] {
        fs::copy(scene.cell.folder.join("state/etc").join(name), config.join(name)).unwrap();
    }
    let mount = folder.join("mnt");
    let mut command = scene.afar(NOBODY, &["mount"]);
    command.arg(&mount).arg("--config").arg(&config);
    command.arg("--cache").arg(folder.join("cache")).current_dir("/");
    let other = Process::start(command, Some(mount.clone()));
    // One who wants to be given tokens lets others at the socket.
    open(&folder.join("cache"));
    scene.kinit(ALICE);
    let (ours, theirs) = (scene.cell.folder.join("."), folder.join("."));
    let (ours, theirs) = (ours.canonicalize().unwrap(), theirs.canonicalize().unwrap());
    // The newest mount is not hers nor root's: it is passed over.
    succeed(seeing_only(&[&ours, &theirs], ALICE, &scene.afar(ALICE, &["aklog"])));
    assert_eq!(scene.tokens(ALICE).len(), 1, "the mount of root has it");
    let said = fail(
        seeing_only(&[&theirs, &theirs], ALICE, &scene.afar(ALICE, &["aklog", "afar.local", "-force"])),
        3,
    );
    assert!(said.contains("Can't"), "{said}");
    let words = ["aklog", "-force", "-config", &config.display().to_string()];
    let said = fail(seeing_only(&[&theirs, &theirs], ALICE, &scene.afar(ALICE, &words)), 5);
    assert!(said.contains("who could use your tokens"), "{said}");
    drop(other);
}
