//! A mount whose servers are behind a bad link, emulated between two network namespaces: what is written and read over it is the same.

use crate::mounted::{self, Folder, Process, TIMEOUT, can_mount, needs, script};
use afs_lab::cpu::cpu;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// `afar` at one end of the link.
fn afar_at(end: &linkem::Namespace, words: &[&str]) -> Command {
    let mut command = end.command(env!("CARGO_BIN_EXE_afar"));
    command.args(words).env_remove("NOTIFY_SOCKET").env_remove("SUDO_UID").stdin(Stdio::null());
    command
}

/// A mount at one end, with a cache of its own.
fn mount(end: &linkem::Namespace, folder: &Folder, name: &str) -> (Process, PathBuf) {
    let mount = folder.join(name);
    let mut command = afar_at(end, &["mount"]);
    command.arg(&mount).arg("--config").arg(folder.join("state/etc"));
    command.arg("--cache").arg(folder.join(format!("cache-{name}")));
    (Process::start(command, Some(mount.clone())), mount.join("afar.local/scratch"))
}

/// A repository with files in folders and a history.
fn make_repository(folder: &Path) {
    fs::create_dir(folder).unwrap();
    script(
        folder,
        "git init -q -b main .
         for n in $(seq 24); do mkdir -p d$((n % 7)); seq $n $((n * 40)) > d$((n % 7))/f$n; done
         head -c 1500000 /dev/urandom > large
         commit() { git -c user.name=a -c user.email=a@b.test commit -q -m \"$1\"; }
         git add .; commit first
         for n in $(seq 5); do seq $n > d1/g$n; git add .; commit $n; done",
    );
}

#[test]
fn a_clone_and_a_tree_of_files_are_whole_over_a_link_that_loses_one_datagram_in_twenty() {
    let _cpu = cpu();
    require!(can_mount() && needs(&["git", "tar"]));
    if let Err(why) = linkem::available() {
        return mounted::skip(&why);
    }
    let link = linkem::Link::builder().rtt(Duration::from_millis(10)).rate_mbit(200.0).start().unwrap();
    let folder = Folder::new("lossy");
    let mut command = afar_at(link.b(), &["up", "--no-mount", "--bind", &linkem::ADDRESS_B.to_string()]);
    command.arg("--state").arg(folder.join("state"));
    let servers = Process::start(command, None);
    let ((one, here), (two, there)) = (mount(link.a(), &folder, "one"), mount(link.a(), &folder, "two"));
    let source = folder.join("source");
    make_repository(&source);
    let from = source.display();
    // The files of a mount are nobody's; git takes only what is one's own.
    let trust = "export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'";
    let clone_into = |folder: &Path| {
        script(
            folder,
            &format!("{trust}; git clone -q --no-hardlinks file://{from} clone; git -C clone fsck --strict"),
        );
    };
    let write_into = |folder: &Path| {
        script(folder, &format!("mkdir tree; tar cf - -C {from} . | tar xf - --no-same-owner -C tree"));
    };
    // How long this machine takes without losses.
    let begin = Instant::now();
    let before = here.join("before");
    fs::create_dir(&before).unwrap();
    clone_into(&before);
    write_into(&before);
    let undisturbed = begin.elapsed();
    link.set(|direction| direction.loss = 0.05).unwrap();
    let begin = Instant::now();
    clone_into(&here);
    let cloned = begin.elapsed();
    write_into(&here);
    let written = begin.elapsed() - cloned;
    // The other has none of it in its cache.
    script(
        &there,
        &format!("{trust}; diff -r {from} tree; git -C clone fsck --strict; git -C clone status --porcelain"),
    );
    script(&there, &format!("diff -r --exclude=.git {from} clone"));
    let read = begin.elapsed() - cloned - written;
    let counters = link.counters();
    let lost = [counters.a_to_b.drop_loss, counters.b_to_a.drop_loss];
    println!("cloned in {cloned:?}, written in {written:?}, read in {read:?}; {lost:?} datagrams lost");
    assert!(lost.iter().all(|lost| *lost > 50), "hardly anything was lost: {lost:?}");
    link.set(|direction| direction.loss = 0.0).unwrap();
    let took = begin.elapsed();
    assert!(
        took < TIMEOUT * 2 + 5 * undisturbed,
        "losses do not account for {took:?}: {undisturbed:?} without"
    );
    assert!(one.stop().success() && two.stop().success() && servers.stop().success());
}
