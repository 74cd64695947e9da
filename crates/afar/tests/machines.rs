//! `afar up --machines 3`: a cell of three machines, of which any may die.

mod mounted;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mounted::{Folder, Process, afar, can_mount, is_root, run, script, skip};

/// How long it may take until something is there again.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_cell_of_three_machines_is_read_and_changed_while_one_is_dead() {
    let test = "a_cell_of_three_machines_is_read_and_changed_while_one_is_dead";
    if !is_root() || !can_mount(test) {
        return if !is_root() {
            skip(test, "only root may make network namespaces")
        };
    }
    if let Err(reason) = afs_testclient::etcd::available() {
        return skip(test, &reason);
    }
    if Command::new("ip").args(["netns", "list"]).output().is_err() {
        return skip(test, "there is no ip: Debian's iproute2 has it");
    }
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
    works("pts", "createuser one", "User one has id");
    works("vos", "create 10.99.77.1 a one", "created on partition /vicepa");
    works("udebug", "10.99.77.2 7003", "(3 servers)");

    // What a client shows that has nothing in its cache: it comes from a machine that is there.
    let fresh = |name: &str| {
        let (mount, cache) = (folder.join(&format!("mnt-{name}")), folder.join(&format!("cache-{name}")));
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
        let until = Instant::now() + PATIENCE;
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
            works("udebug", "10.99.77.1 7002", "I am sync site until");
        } else {
            let refused = stock("pts", "createuser three");
            assert!(refused.is_none_or(|output| !output.status.success()));
            works("udebug", "10.99.77.1 7002", "I am not sync site");
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
