//! Work in a mount that takes longer than a ticket lasts: with a ticket that is renewed, nothing of it fails; without, it fails and says why,
//! and nothing of what was written is lost.
//!
//! `AFAR_BUILD_SECONDS` is how long it works (40 without it, with tickets of 20 s; an hour has tickets of 5 minutes).

use crate::mounted::realm::{ALICE, Scene};
use crate::mounted::{self, TIMEOUT};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What a build does, round after round: reads what it has written, makes new files, replaces old ones. A file is open all the time. The
/// last argument is a file elsewhere that says how many rounds have begun.
const BUILD: &str = "exec 3> \"$1/log\" || exit 3; end=$((SECONDS + $2)); round=0\n\
    while [ $SECONDS -lt $end ] || [ $round -lt 11 ]; do\n\
      round=$((round + 1)); echo $round > \"$3\"; object=\"$1/object-$((round % 10))\"\n\
      echo \"round $round\" >&3\n\
      echo \"source $round\" > \"$1/source\" || exit 4\n\
      grep -qx \"source $round\" \"$1/source\" || exit 5\n\
      cp \"$1/source\" \"$object.new\" || exit 6\n\
      mv \"$object.new\" \"$object\" || exit 7\n\
      sleep 0.2\n\
    done\n";

/// How long it works, and how long a ticket lasts.
fn seconds() -> (u64, u64) {
    let work = std::env::var("AFAR_BUILD_SECONDS").map_or(40, |text| text.parse().expect("a number"));
    (work, (work / 12).clamp(20, 300))
}

struct Build {
    scene: Scene,
    folder: PathBuf,
    rounds: PathBuf,
}

impl Build {
    fn new() -> Option<Self> {
        let scene = Scene::new()?;
        scene.private_folder(ALICE);
        let (folder, rounds) =
            (scene.mount.join("scratch/alice"), scene.cache(ALICE).with_file_name("rounds"));
        let life = format!("{}s", seconds().1);
        scene.kinit_as(ALICE, "alice", &["-l", &life, "-r", "7d"]);
        scene.run(ALICE, &["aklog"]);
        Some(Self { scene, folder, rounds })
    }

    fn run(&self, seconds: u64) -> Output {
        let mut command: Command = self.scene.command(ALICE, Path::new("bash"));
        command.args(["-c", BUILD, "bash"]).arg(&self.folder).arg(seconds.to_string()).arg(&self.rounds);
        command.env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").output().unwrap()
    }

    /// How many rounds have begun.
    fn rounds(&self) -> usize {
        fs::read_to_string(&self.rounds).unwrap().trim().parse().unwrap()
    }

    /// Waits until another client sees what the open file has of all rounds: then the servers have it.
    fn check_log(&self) {
        let expected: String = (1..=self.rounds()).map(|round| format!("round {round}\n")).collect();
        let (_second, _) = self.scene.cell.mount("second");
        let second = self.scene.cell.folder.join("second/afar.local");
        let mut command = self.scene.afar(ALICE, &["aklog"]);
        self.scene.means(&mut command, "second");
        mounted::succeed(command);
        let seen = || {
            let mut command = self.scene.command(ALICE, Path::new("cat"));
            command.arg(second.join("scratch/alice/log"));
            String::from_utf8_lossy(&mounted::run(command).stdout).into_owned()
        };
        until!(seen() == expected, "{:?} and not {expected:?}: {}", seen(), self.scene.cell.log("mnt"));
    }
}

#[test]
fn a_build_that_takes_longer_than_a_ticket_that_is_renewed_fails_nowhere() {
    let Some(build) = Build::new() else { return };
    let (work, life) = seconds();
    let is_over = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                if Instant::now() > next {
                    build.scene.run(ALICE, &["aklog", "-renew"]);
                    next = Instant::now() + Duration::from_secs(life / 6);
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        let output = build.run(work);
        is_over.store(true, Ordering::Relaxed);
        output
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{:?} {said}", output.status);
    assert!(build.rounds() > 10, "{}", build.rounds());
    build.check_log();
    let log = build.scene.cell.log("mnt");
    assert!(!log.contains("no longer good"), "{log}");
}

#[test]
fn a_build_whose_ticket_ends_says_why_and_loses_nothing_that_it_has_written() {
    let Some(build) = Build::new() else { return };
    let (_, life) = seconds();
    // It ends where it may open a file no more.
    let output = build.run(life + TIMEOUT.as_secs());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(4..=7)), "{:?} {said}", output.status);
    assert!(said.contains("Permission denied"), "{said}");
    build.scene.cell.logs("mnt", &["aklog", "alice", "expired"]);
    assert!(build.scene.run(ALICE, &["tokens"]).contains("[>> Expired <<]"));
    build.scene.kinit(ALICE);
    build.scene.run(ALICE, &["aklog"]);
    build.check_log();
    let log = build.scene.cell.log("mnt");
    assert!(!log.contains("put aside"), "{log}");
}
