//! `fs pin` as somebody at a terminal uses it, with a mount of a cell: what is said, and that the kernel shows what is pinned when the servers have
//! ended. What counts without a server, and for whom, is proved in the simulated cell (`crates/afs-client/tests/pin.rs`).

use crate::mounted::{Cell, can_mount, our_program, socket_of};
use std::fs;
use std::process::Command;

#[test]
fn what_is_pinned_is_listed_and_read_when_the_servers_have_ended() {
    require!(can_mount());
    let cell = Cell::new("pin");
    let (writer, there) = cell.mount_with("one", "state/etc", &[]);
    let (process, here) = cell.mount_with("two", "state/etc", &[]);
    let socket = socket_of(&cell.folder.join("two"));
    let command = |words: &[&str]| -> Command {
        let mut command = our_program();
        command.args(words).env("AFAR_SOCKET", &socket);
        command
    };
    let said = |words: &[&str]| {
        let output = command(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", output.stderr.escape_ascii());
        String::from_utf8(output.stdout).unwrap()
    };
    let refused = |words: &[&str]| {
        let output = command(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}: {}", output.stdout.escape_ascii());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(said(&["fs", "pin"]), "Nothing is pinned.\n");
    fs::create_dir_all(there.join("work/below")).unwrap();
    fs::write(there.join("work/file"), b"text").unwrap();
    fs::write(there.join("work/below/deep"), b"deep text").unwrap();
    let work = here.join("work");
    let path = work.display().to_string();
    let told = said(&["fs", "pin", &path]);
    assert_eq!(
        told,
        format!("{path} is pinned and is being fetched; 'fs pin -list' tells how much of it is here.\n")
    );
    let listed =
        || -> serde_json::Value { serde_json::from_str(&said(&["fs", "pin", "-list", "-json"])).unwrap() };
    until!(!listed()[0]["complete"].is_null(), "{}", listed());
    let all = listed();
    assert_eq!(
        (&all[0]["path"], &all[0]["files"], &all[0]["bytes_here"]),
        (&path.as_str().into(), &2.into(), &13.into()),
        "{all}"
    );
    let told = said(&["fs", "pin", "-list"]);
    assert!(
        told.starts_with(&format!(
            "{path}: 2 of 2 files are here, with 13 of 13 bytes\n    It was last complete at "
        )),
        "{told}"
    );
    assert!(refused(&["fs", "pin", "/"]).contains("is not in AFS"));
    assert!(refused(&["fs", "pin", "-remove"]).contains("-remove needs the paths"));
    let below = work.join("below").display().to_string();
    assert!(said(&["fs", "help", "pin"]).contains("-remove"));
    assert!(cell.servers.stop().success());
    assert_eq!(fs::read(work.join("below/deep")).unwrap(), b"deep text");
    assert!(
        refused(&["fs", "pin", "-remove", &below]).ends_with("is not pinned; 'fs pin -list' shows what is\n")
    );
    assert_eq!(said(&["fs", "pin", "-remove", &path]), format!("{path} is pinned no longer.\n"));
    assert_eq!(said(&["fs", "pin", "-list"]), "Nothing is pinned.\n");
    assert!(process.stop().success() && writer.stop().success());
}
