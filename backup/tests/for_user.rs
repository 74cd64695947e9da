//! Restores of what one user may read.

use crate::lab::{Lab, contents};
use afs_lab::caller::{AccessList, FileServer};
use afs_lab::real::afar::words;
use afs_wire::ids::AfsFid;
use afs_wire::rights::Rights;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

fn rights(letters: &str) -> Rights {
    Rights::from_letters(letters).expect("letters")
}

/// Makes a folder with these rights besides the administrators'.
fn folder(lab: &Lab, into: AfsFid, name: &str, granted: &[(&str, &str)], denied: &[(&str, &str)]) -> AfsFid {
    let made = lab.run(lab.files.make_dir(into, name)).fid;
    set_list(lab, made, granted, denied);
    made
}

fn set_list(lab: &Lab, folder: AfsFid, granted: &[(&str, &str)], denied: &[(&str, &str)]) {
    let entry = |(name, letters): &(&str, &str)| ((*name).to_owned(), rights(letters));
    let all = [("system:administrators".to_owned(), AccessList::ALL)].into_iter();
    let list = AccessList {
        positive: all.chain(granted.iter().map(entry)).collect(),
        negative: denied.iter().map(entry).collect(),
    };
    lab.run(lab.files.set_access_list(folder, &list));
}

/// A cell with a user alice, who is in a group friends, and files in folders of all kinds of rights: their paths, and the files.
fn filled(name: &str) -> (Lab, Vec<(&'static str, AfsFid)>) {
    let lab = Lab::new(name);
    lab.vos("pts createuser alice");
    lab.vos("pts createuser bob");
    lab.vos("pts creategroup friends system:administrators");
    lab.vos("pts adduser alice friends");
    let root = lab.volume("data");
    set_list(&lab, root, &[("system:anyuser", "rl")], &[]);
    let mut files = Vec::new();
    let mut file = |folder, path: &'static str, mode| {
        let fid = lab.file(
            folder,
            Path::new(path).file_name().and_then(|name| name.to_str()).expect("it has one"),
            path.as_bytes(),
        );
        lab.run(lab.files.chmod(fid, mode));
        files.push((path, fid));
    };
    file(root, "for all", 0o4755);
    file(root, "for its owner", 0o077);
    let listed = folder(&lab, root, "listed", &[("system:anyuser", "l")], &[]);
    file(listed, "listed/names only", 0o644);
    let mine = folder(&lab, listed, "mine", &[("alice", "rl")], &[]);
    file(mine, "listed/mine/hers", 0o600);
    let friends = folder(&lab, root, "friends", &[("friends", "rl")], &[]);
    file(friends, "friends/ours", 0o644);
    let users = folder(&lab, root, "users", &[("system:authuser", "rl")], &[]);
    file(users, "users/text", 0o644);
    let denied = folder(&lab, root, "denied", &[("system:anyuser", "rl")], &[("friends", "r")]);
    file(denied, "denied/text", 0o644);
    let unseen = folder(&lab, root, "unseen", &[("system:anyuser", "r")], &[]);
    file(unseen, "unseen/text", 0o644);
    let below = folder(&lab, unseen, "below", &[("system:anyuser", "rl")], &[]);
    file(below, "unseen/below/text", 0o644);
    let dropped = folder(&lab, root, "dropped", &[("alice", "li")], &[]);
    file(dropped, "dropped/not hers", 0o644);
    let alice = lab.as_user("alice");
    let own = lab.run(alice.create_file(dropped, "hers")).fid;
    lab.run(alice.store(own, 0, b"dropped".to_vec(), 7));
    files.push(("dropped/hers", own));
    lab.run(lab.files.symlink(root, "link", "/etc/passwd"));
    lab.run(lab.files.symlink(root, "out", "../../outside"));
    lab.run(lab.files.symlink(unseen, "link", "target"));
    (lab, files)
}

fn may_fetch(lab: &Lab, user: &FileServer, fid: AfsFid) -> bool {
    lab.try_run(user.fetch(fid, 0, 100)).is_ok()
}

#[test]
fn a_user_gets_from_a_backup_what_the_server_lets_them_read_and_no_more() {
    let (lab, files) = filled("backup-user");
    lab.backup(&["run", "data"]);
    for (name, counts) in [
        ("alice", ["5 files, 6 folders, 2 links", "4 files, and 1 folders"]),
        ("bob", ["3 files, 3 folders, 2 links", "2 files, and 4 folders"]),
    ] {
        let user = lab.as_user(name);
        let to = lab.folder.join(name);
        let text = to.to_str().expect("it is text");
        let told = lab.backup(&["restore", "data", "--to", text, "--for", name]);
        for (path, fid) in &files {
            // A server lets in who knows a number, and a path leads nowhere without a list.
            let may = may_fetch(&lab, &user, *fid) && !path.starts_with("unseen/");
            assert_eq!(to.join("data").join(path).exists(), may, "{name}: {path}: {told}");
        }
        assert!(counts.iter().all(|counts| told.contains(counts)), "{told}");
        assert_eq!(fs::read_dir(&to).expect("it was made").count(), 1, "the header is the administrators'");
        assert_eq!(to.join("data").metadata().expect("it was made").mode() & 0o7777, 0o700);
        let restored = contents(&to.join("data"));
        let us = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for (path, what) in &restored {
            assert!(!what.contains("rlidwka"), "{path:?} {what}");
            assert!(what.starts_with("link ") || what.contains(&format!("of {us:?} ")), "{path:?} {what}");
        }
        assert!(restored[Path::new("for all")].starts_with("file 755 "), "no set-uid");
        assert_eq!(restored[Path::new("link")], "link to /etc/passwd");
    }
    // Groups are those of now.
    lab.vos("pts removeuser alice friends");
    let later = lab.folder.join("later");
    let told =
        lab.backup(&["restore", "data", "--to", later.to_str().expect("it is text"), "--for", "alice"]);
    assert!(!later.join("data/friends").exists() && later.join("data/denied/text").exists(), "{told}");
}

#[test]
fn nothing_is_restored_for_a_user_over_what_is_there_or_through_what_they_may_not_see() {
    let (lab, _) = filled("backup-user-refused");
    lab.backup(&["run", "data"]);
    let (to, elsewhere) = (lab.folder.join("to"), lab.folder.join("elsewhere"));
    let refused = |more: &[&str], why: &str| {
        let base = ["restore", "data", "--to", to.to_str().expect("it is text")];
        let output = lab.try_backup(&[&base, more].concat());
        assert!(!output.status.success() && words(&output).contains(why), "{}", words(&output));
    };
    refused(&["--for", "nobody"], "no user or group is called nobody");
    refused(&["--for", "friends"], "friends is a group");
    refused(&["--for", "alice", "--path", "unseen/below"], "alice may not see what is in unseen");
    refused(&["--for", "alice", "--path", "users/none"], "has no users/none");
    assert!(!to.exists());
    fs::create_dir(&to).and_then(|()| fs::create_dir(&elsewhere)).expect("there is room");
    symlink(&elsewhere, to.join("data")).expect("there is room");
    refused(&["--for", "alice"], "/data is there");
    refused(&[], "/data is there");
    assert_eq!(fs::read_dir(&elsewhere).expect("it is there").count(), 0);
    fs::remove_file(to.join("data")).expect("it is ours");

    let text = to.to_str().expect("it is text");
    lab.backup(&["restore", "data", "--to", text, "--for", "alice", "--path", "listed/mine"]);
    let restored: Vec<_> = contents(&to).into_keys().collect();
    let expected = ["data", "data/listed", "data/listed/mine", "data/listed/mine/hers"];
    assert_eq!(restored, expected.map(PathBuf::from));
}
