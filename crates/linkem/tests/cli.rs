//! The command `linkem` as a user of the shell sees it. Skipped with a printed reason where links cannot be
//! made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use linkem::Counters;

/// False, with the reason printed, where no link can be made.
fn can_run() -> bool {
    linkem::available().inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
}

fn linkem(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_linkem")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim_end()
}

/// A link by `linkem up` under names of its own; `down` even if the test fails.
struct UpLink {
    a: String,
    b: String,
    state_dir: PathBuf,
}

impl UpLink {
    fn new(test: &str) -> UpLink {
        let (pid, temp) = (std::process::id(), std::env::temp_dir());
        let state_dir = temp.join(format!("linkem-{test}-{pid}"));
        UpLink { a: format!("lkt-{test}-{pid}-a"), b: format!("lkt-{test}-{pid}-b"), state_dir }
    }

    fn verb(&self, verb: &str, options: &[&str]) -> Output {
        let dir = self.state_dir.to_str().unwrap();
        linkem(&[&[verb, &self.a, &self.b, "--state-dir", dir], options].concat())
    }

    fn counters(&self, verb: &str, options: &[&str]) -> Counters {
        let output = self.verb(verb, options);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn is_there(&self) -> bool {
        [&self.a, &self.b].iter().any(|name| Path::new("/run/netns").join(name).exists())
    }
}

impl Drop for UpLink {
    fn drop(&mut self) {
        self.verb("down", &[]);
        let _ = std::fs::remove_dir_all(&self.state_dir);
    }
}

/// Sends datagrams from A without a wish for an answer.
fn send_from(a: &str, count: usize) {
    let script = format!("for i in $(seq {count}); do echo x > /dev/udp/10.99.0.2/9; done");
    let status = Command::new("ip").args(["netns", "exec", a, "bash", "-c", &script]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_link_stays_until_it_is_taken_down() {
    if !can_run() {
        return;
    }
    let link = UpLink::new("stay");
    let up = link.verb("up", &["--rtt", "4", "--rate-ab", "100", "--queue-ms", "20"]);
    assert!(up.status.success(), "{}", text(&up.stderr));
    let pid: u32 = text(&up.stdout).parse().unwrap();
    assert!(Path::new(&format!("/proc/{pid}")).exists());

    send_from(&link.a, 5);
    let counters = link.counters("stat", &[]);
    assert_eq!((counters.a_to_b.packets_in, counters.a_to_b.queue_limit_bytes), (5, 250_000));

    link.counters("set", &["--blackout", "1"]);
    send_from(&link.a, 3);
    assert_eq!(link.counters("stat", &[]).a_to_b.drop_loss, 3);
    let refused = link.verb("set", &["--loss", "7"]);
    assert_eq!(text(&refused.stderr), "linkem: option loss = 7: not a number from 0 to 1");

    let again = link.verb("up", &[]);
    assert!(!again.status.success() && text(&again.stderr).contains("exists already"));

    let last = link.counters("down", &[]);
    assert_eq!((last.a_to_b.packets_in, last.failure), (8, None));
    assert!(!link.is_there());
    let gone = link.verb("down", &[]);
    assert!(!gone.status.success() && text(&gone.stderr).contains("no link between"));
}

#[test]
fn down_removes_what_a_killed_emulator_left() {
    if !can_run() {
        return;
    }
    let link = UpLink::new("killed");
    let up = link.verb("up", &[]);
    let pid = text(&up.stdout).to_string();
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    assert!(link.is_there());
    let down = link.verb("down", &[]);
    assert!(down.status.success() && text(&down.stderr).contains("had ended already"), "{down:?}");
    assert!(!link.is_there());
}

#[test]
fn a_terminated_emulator_cleans_up_by_itself() {
    if !can_run() {
        return;
    }
    let link = UpLink::new("term");
    let pid = text(&link.verb("up", &[]).stdout).to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let gone = (0..1500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        !link.is_there()
    });
    assert!(gone);
}

#[test]
fn run_hands_on_the_status_and_prints_the_counters() {
    if !can_run() {
        return;
    }
    let script = "echo x > /dev/udp/10.99.0.2/9; echo $LINKEM_A $LINKEM_B; exit 7";
    let output = linkem(&["run", "--loss", "1", "--", "bash", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let counters: Counters = serde_json::from_str(text(&output.stderr).lines().next().unwrap()).unwrap();
    assert_eq!(counters.a_to_b.drop_loss, 1);
    for name in text(&output.stdout).split(' ') {
        assert!(name.starts_with("linkem-") && !Path::new("/run/netns").join(name).exists(), "{name}");
    }
}

#[test]
fn a_failed_up_says_why() {
    if !can_run() {
        return;
    }
    let link = UpLink::new("fail");
    let up = link.verb("up", &["--rate", "1e99"]);
    assert!(!up.status.success());
    assert_eq!(text(&up.stderr), "linkem: option rate = 1e99: not a number from 0 to 1000000");
    assert!(!link.is_there());
}
