//! `afar up --machines 3`: a cell of three machines, of which any may die.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::etcd_cell::is_here;
use crate::mounted::{Folder, Process, afar, can_mount, is_root, run, script, skip};
use serde_json::Value;

/// How long it may take until something is there again.
const TIMEOUT: Duration = Duration::from_secs(60);

/// There is one network for such cells.
static NETWORK: Mutex<()> = Mutex::new(());

fn can_run() -> bool {
    if !is_root() {
        return skip("only root may make network namespaces");
    }
    if Command::new("ip").args(["netns", "list"]).output().is_err() {
        return skip("there is no ip: Debian's iproute2 has it");
    }
    is_here() && can_mount()
}

#[test]
fn a_cell_of_three_machines_is_read_and_changed_while_one_is_dead() {
    require!(can_run());
    let _network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("machines");
    let start = || {
        let mut command = afar(["up", "--machines", "3", "--cell", "machines.test", "--state"]);
        command.arg(folder.join("state")).arg("--mount").arg(folder.join("mnt"));
        Process::start(command, Some(folder.join("mnt")))
    };
    let process = start();
    let root = folder.join("mnt/machines.test");
    assert!(process.ready.starts_with("ready cell=machines.test mount="), "{}", process.ready);
    script(&root, "echo text > scratch/file; ls user");

    let stock = |program: &str, arguments: &str| {
        let config = folder.join("state/etc/server");
        let program = Path::new("/usr/bin").join(program);
        let mut command = Command::new(&program);
        command.args(arguments.split(' '));
        if program.ends_with("vos") || program.ends_with("pts") {
            command.arg("-config").arg(config).arg("-localauth");
        }
        // Without OpenAFS's tools there is nothing to be seen of them.
        program.exists().then(|| run(command))
    };
    let works = |program: &str, arguments: &str, said: &str| {
        if let Some(output) = stock(program, arguments) {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains(said), "{program} {arguments}: {text}{error}");
        }
    };
    // What `udebug` says in the end.
    let comes_to = |arguments: &str, said: &str| {
        let until = Instant::now() + TIMEOUT;
        while let Some(output) = stock("udebug", arguments) {
            let text = String::from_utf8_lossy(&output.stdout);
            if output.status.success() && text.contains(said) {
                break;
            }
            assert!(Instant::now() < until, "udebug {arguments}: {text}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    works("pts", "createuser one", "User one has id");
    works("vos", "create 10.99.77.1 a one", "created on partition /vicepa");
    comes_to("10.99.77.2 7003", "(3 servers)");

    // What a client shows that has nothing in its cache: it comes from a machine that is there.
    let fresh = |name: &str| {
        let (mount, cache) = (folder.join(format!("mnt-{name}")), folder.join(format!("cache-{name}")));
        let mut command = afar(["mount"]);
        command.arg(&mount).arg("--config").arg(folder.join("state/etc")).arg("--cache").arg(cache);
        let process = Process::start(command, Some(mount.clone()));
        let shown = script(&mount.join("machines.test"), "ls");
        assert!(process.stop().success());
        shown
    };

    // The first has what can be written, so it is not that one.
    for machine in [2, 3] {
        script(&root, &format!("kill -9 $(ip netns pids afar-up-{machine})"));
        let until = Instant::now() + TIMEOUT;
        let made = loop {
            let mut vos = afar(["vos", "create", "10.99.77.1", "a", &format!("made{machine}")]);
            vos.arg("-config").arg(folder.join("state/etc/server")).arg("-localauth");
            let made = run(vos);
            if made.status.success() || machine == 3 || Instant::now() > until {
                break made;
            }
        };
        works("pts", "examine one", "Name: one");
        works("vos", "examine one", "10.99.77.1 /vicepa");
        if machine == 2 {
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            works("pts", "createuser two", "User two has id");
            comes_to("10.99.77.1 7002", "I am sync site until");
        } else {
            let refused = stock("pts", "createuser three");
            assert!(refused.is_none_or(|output| !output.status.success()));
            comes_to("10.99.77.1 7002", "I am not sync site");
            // One of three members is no majority.
            assert!(!made.status.success());
        }
        assert_eq!(script(&root, "ls; cat scratch/file"), "scratch\nuser\ntext\n");
        assert_eq!(fresh(&format!("without-{machine}")), "scratch\nuser\n");
    }
    assert!(process.stop().success());

    // All of them are there again, with what was acknowledged.
    let process = start();
    assert_eq!(script(&root, "cat scratch/file"), "text\n");
    let mut vos = afar(["vos", "examine", "made2"]);
    vos.arg("-config").arg(folder.join("state/etc/server")).arg("-localauth");
    assert!(run(vos).status.success());
    script(&root, "kill -9 $(ip netns pids afar-up-1)");
    // The root volumes have replicas; what was only on this machine is gone until it is back.
    assert_eq!(script(&root, "ls"), "scratch\nuser\n");
    assert_eq!(fresh("without-1"), "scratch\nuser\n");
    assert!(process.stop().success());
    assert!(
        !String::from_utf8_lossy(&Command::new("ip").arg("netns").output().unwrap().stdout)
            .contains("afar-up")
    );
}

/// Restarts a machine's server as docs/administration.md says it, and waits until all of it is there again.
fn restart(machine: u8, state: &Path) {
    let address = format!("10.99.77.{machine}");
    let bos = |verb, more| {
        let mut command = afar(["bos", verb, &address, more]);
        command.arg("-config").arg(state.join("etc/server")).arg("-localauth");
        run(command)
    };
    // When each of its instances was started, if all of them run.
    let starts = || -> Option<Vec<u64>> {
        let status = serde_json::from_slice::<Value>(&bos("status", "-json").stdout).ok()?;
        let instances = status.as_array().filter(|instances| !instances.is_empty())?.iter();
        instances.map(|one| one["started"].as_u64().filter(|_| one["state"] == "normal")).collect()
    };
    let before = starts().expect("the server runs");
    let restarted = bos("restart", "-all");
    assert!(restarted.status.success() && restarted.stderr.is_empty(), "{}", restarted.stderr.escape_ascii());
    let is_new = |now: Vec<u64>| now.iter().zip(&before).all(|(now, before)| now != before);
    until!(starts().is_some_and(is_new), "the server of machine {machine} does not come back");
}

/// A program that writes files and reads them back until it is told to stop. What went wrong.
fn work(folder: &Path, stops: &AtomicBool, rounds: &AtomicU64) -> Vec<String> {
    let mut errors = Vec::new();
    while !stops.load(Ordering::Relaxed) {
        let number = rounds.load(Ordering::Relaxed);
        let text = format!("round {number} in {}", folder.display());
        let (file, renamed) = (folder.join("file.new"), folder.join(format!("file{}", number % 7)));
        let round = || {
            fs::write(&file, &text)?;
            fs::rename(&file, &renamed)?;
            fs::read_to_string(&renamed)
        };
        match round() {
            Ok(read) if read == text => {}
            Ok(read) => errors.push(format!("{read} was read, {text} written")),
            Err(error) => errors.push(format!("{text}: {error}")),
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    errors
}

#[test]
fn one_machine_after_another_is_restarted_while_programs_write_and_read_without_an_error() {
    require!(can_run());
    let _network = NETWORK.lock().unwrap_or_else(PoisonError::into_inner);
    let (folder, cell) = (Folder::new("rolling"), "rolling.test");
    let (state, mount) = (folder.join("state"), folder.join("mnt"));
    let mut command = afar(["up", "--machines", "3", "--cell", cell, "--state"]);
    command.arg(&state).arg("--mount").arg(&mount);
    let process = Process::start(command, Some(mount.clone()));
    let scratch = mount.join(cell).join("scratch");
    let mut folders = Vec::new();
    for machine in 1..=3 {
        let name = format!("of{machine}");
        let mut vos = afar(["vos", "create", &format!("10.99.77.{machine}"), "a", &name]);
        vos.arg("-config").arg(state.join("etc/server")).arg("-localauth");
        assert!(run(vos).status.success());
        let made = run(afar(["fs", "mkmount", scratch.join(&name).to_str().unwrap(), &name]));
        assert!(made.status.success(), "{}", made.stderr.escape_ascii());
        folders.push(scratch.join(name));
    }
    let (stops, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 3]);
    let errors: Vec<_> = std::thread::scope(|scope| {
        let begin = |(folder, rounds)| {
            let stops = &stops;
            scope.spawn(move || work(folder, stops, rounds))
        };
        let workers: Vec<_> = folders.iter().map(PathBuf::as_path).zip(&rounds).map(begin).collect();
        // Waits until each program has done so many rounds more.
        let all_do = |more: u64| {
            let counts = || rounds.each_ref().map(|count| count.load(Ordering::Relaxed));
            let before = counts();
            let have_done = || counts().iter().zip(before).all(|(now, before)| *now >= before + more);
            until!(have_done(), "a program stands still: {before:?}, {:?}", counts());
        };
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            all_do(20);
            for machine in [1, 2, 3] {
                restart(machine, &state);
                all_do(20);
            }
        }));
        stops.store(true, Ordering::Relaxed);
        let errors = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        tried.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        errors
    });
    assert!(process.stop().success());
    for (machine, errors) in (1..).zip(errors) {
        assert!(errors.is_empty(), "machine {machine}: {errors:?}");
    }
}
