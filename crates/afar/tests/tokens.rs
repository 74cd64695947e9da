//! The token of whoever runs `vos`, `pts`, `bos` or `afsio`: they call servers with it, and give it to nobody else.

use crate::mounted;
use crate::mounted::realm::{ALICE, BOB, Local, ROOT, Scene};
use std::fs;
use std::process::{Command, Output};

/// What OpenAFS's commands say, too, where there is no token.
const ANONYMOUS: &str = "running unauthenticated";

/// What `bos` says of something that is not for its user, and that it has failed is not in its exit status.
const REFUSED: &str = "not authorized";

/// A command line as a user, with the cell's client configuration at its end.
fn command(scene: &Scene, user: Local, line: &str) -> Command {
    let address = scene.cell.address.to_string();
    let config = scene.cell.public_config().display().to_string();
    let line = line.replace("SERVER", &address);
    let words: Vec<_> = line.split(' ').chain(["-config", &config]).collect();
    scene.afar(user, &words)
}

/// Runs it; whether it succeeded, and what it said.
fn run(scene: &Scene, user: Local, line: &str) -> (bool, String) {
    told(&mounted::run(command(scene, user, line)))
}

fn told(output: &Output) -> (bool, String) {
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs it with a token or without: it works, and nothing is said about tokens; or it is refused.
fn works(scene: &Scene, user: Local, line: &str) -> String {
    let (success, said) = run(scene, user, line);
    assert!(success && !said.contains(ANONYMOUS), "{}: {line}: {said}", user.name);
    assert!(!said.contains(REFUSED), "{}: {line}: {said}", user.name);
    said
}

fn is_refused(scene: &Scene, user: Local, line: &str, has_token: bool) {
    let (success, said) = run(scene, user, line);
    assert!(!success || said.contains(REFUSED), "{}: {line}: {said}", user.name);
    assert_eq!(!said.contains(ANONYMOUS), has_token, "{}: {line}: {said}", user.name);
}

#[test]
fn commands_call_with_the_token_of_who_runs_them_and_as_nobody_without_one() {
    let Some(scene) = Scene::new() else { return };
    scene.private_folder(ALICE);
    let administration =
        ["vos create SERVER a made.by.token", "pts createuser carol", "bos addhost SERVER -host 192.0.2.7"];
    for line in administration {
        is_refused(&scene, ROOT, line, false);
    }
    is_refused(&scene, ALICE, "pts creategroup alice:friends", false);

    for user in [ALICE, BOB, ROOT] {
        scene.kinit(user);
        scene.run(user, &["aklog"]);
    }
    works(&scene, ALICE, "pts creategroup alice:friends");
    works(&scene, ALICE, "pts adduser bob alice:friends");
    is_refused(&scene, BOB, "pts removeuser bob alice:friends", true);
    for line in administration {
        is_refused(&scene, ALICE, line, true);
        works(&scene, ROOT, line);
    }
    // An exit status says nothing about the host.
    assert!(works(&scene, ROOT, "bos listhosts SERVER").contains("192.0.2.7"));
    is_refused(&scene, ALICE, "bos removehost SERVER -host 192.0.2.7", true);
    works(&scene, ROOT, "bos removehost SERVER -host 192.0.2.7");
    assert!(!works(&scene, ROOT, "bos listhosts SERVER").contains("192.0.2.7"));
    works(&scene, ROOT, "vos remove -id made.by.token -clear");
    let owned = works(&scene, BOB, "pts examine alice:friends");
    assert!(owned.contains("owner: alice") && owned.contains("creator: alice"), "{owned}");

    // Commands that are read from a file are those of the same user, until one says otherwise: of the cell too, then.
    let lines = scene.realm.join("lines");
    let config = scene.cell.public_config().display().to_string();
    let text = format!("cg alice:first\ncg alice:second -noauth -config {config}\ncg alice:third\n");
    fs::write(&lines, text).unwrap();
    let (_, said) = run(&scene, ALICE, &format!("pts source {}", lines.display()));
    assert_eq!(said.matches("denied").count(), 2, "{said}");
    assert!(works(&scene, ALICE, "pts examine alice:first").contains("creator: alice"));

    // A file that is for one user alone, without the mount.
    let from = scene.realm.join("given");
    fs::write(&from, "mine\n").unwrap();
    let write = format!("afsio write /afs/afar.local/scratch/alice/file -from {}", from.display());
    is_refused_by_files(&scene, BOB, &write);
    works(&scene, ALICE, &write);
    let read = "afsio read /afs/afar.local/scratch/alice/file";
    assert!(works(&scene, ALICE, read).starts_with("mine\n"));
    is_refused_by_files(&scene, BOB, read);

    scene.run(ALICE, &["unlog"]);
    is_refused(&scene, ALICE, "pts creategroup alice:others", false);
    is_refused_by_files(&scene, ALICE, read);
    let (_, said) = run(&scene, ROOT, "pts createuser dave -noauth");
    assert!(said.contains("denied"), "her own wish: {said}");
    works(&scene, ROOT, "pts createuser dave");
}

/// `afsio` says nothing of tokens: without one, files may be for everybody.
fn is_refused_by_files(scene: &Scene, user: Local, line: &str) {
    let (success, said) = run(scene, user, line);
    assert!(!success && said.contains("denied"), "{}: {line}: {said}", user.name);
}

#[test]
fn a_session_has_its_own_token_in_commands_and_one_that_has_ended_is_told() {
    let Some(scene) = Scene::new() else { return };
    scene.kinit(ROOT);
    scene.run(ROOT, &["aklog"]);
    let in_pag = |text: &str| {
        let pts = command(&scene, ROOT, "pts");
        let words: Vec<_> = pts.get_args().map(|word| word.display().to_string()).collect();
        let program = scene.program.display();
        let text = text
            .replace("PTS", &format!("{program} pts"))
            .replace("CONFIG", &words[1..].join(" "))
            .replace("AKLOG", &format!("{program} aklog"));
        told(&mounted::run(scene.afar(ROOT, &["pagsh", "-c", &text])))
    };
    let (success, said) = in_pag("PTS createuser carol CONFIG");
    assert!(!success && said.contains(ANONYMOUS), "the user's token is not the session's: {said}");
    scene.kinit_as(ROOT, "alice", &[]);
    let (success, said) = in_pag("AKLOG && PTS creategroup alice:friends CONFIG");
    assert!(success, "{said}");
    works(&scene, ROOT, "pts createuser carol");

    scene.kinit_as(BOB, "bob", &["-l", "10s"]);
    scene.run(BOB, &["aklog"]);
    while scene.tokens(BOB)[0]["is_expired"] != true {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let (success, said) = run(&scene, BOB, "pts creategroup bob:friends");
    assert!(!success, "{said}");
    assert!(said.contains("pts: your token for afar.local has expired; 'aklog'"), "{said}");
    assert!(said.contains(ANONYMOUS), "{said}");
}
