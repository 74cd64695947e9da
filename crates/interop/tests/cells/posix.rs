//! pjdfstest in two mounts of one cell of OpenAFS's servers, ours and Debian's afsd.fuse, both as nobody in particular: which of its cases
//! fail. In a mount of `afar up`, where root is an administrator, `crates/afar/tests/posix.rs` runs it.

use afs_lab::real::folder::Folder;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use afar_interop::cell::{self, CELL_NAME, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

use crate::fuse;
use crate::scene::told;

/// How long one run may take, most of which is waiting for times of whole seconds to pass.
const TIMEOUT: Duration = Duration::from_secs(900);

/// What a run has at least; fewer means that its output was not understood.
const CASES_MIN: usize = 350;

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let lab = Arc::clone(lab);
    let name = "posix/our_mount_fails_less_than_afsd_fuse/stock";
    vec![Case::new(name, Weight::Waiting, move || compare(&lab))]
}

/// What became of the cases of one run.
#[derive(Debug, Default)]
struct Outcome {
    failed: BTreeSet<String>,
    held: BTreeSet<String>,
}

fn compare(lab: &Lab) -> Verdict {
    cell::can_mount().map_err(Trouble::Skipped)?;
    let program = lab.root().join("target/tools/bin/pjdfstest");
    if !program.exists() {
        return Err(Trouble::Skipped("pjdfstest is not there: scripts/tools.sh builds it".to_owned()));
    }
    let program = program.canonicalize().map_err(|error| format!("{}: {error}", program.display()))?;
    let config = lab.root().join("crates/afar/tests/posix/pjdfstest.toml");
    // Each has a directory of its own, since both run at once: they wait most of the time.
    let run = |mut command: Command, (seen, name): (&Path, &str), folder: &Path| {
        let made = fs::create_dir(seen.join(name));
        made.and_then(|()| fs::set_permissions(seen.join(name), Permissions::from_mode(0o777)))
            .map_err(told("a directory"))?;
        let local = Folder::new("local");
        command.arg("-c").arg(&config).arg("-s").arg(&*local).arg("-p").arg(folder.join(name));
        outcome(&process::run(&mut command, TIMEOUT)?.stdout)
    };
    let scratch = |mount: &Path| mount.join(CELL_NAME).join("scratch");
    let scene = fuse::scene(lab, &Servers::Stock)?;
    let in_ours = || {
        let mount = OurMount::start(&scene.cell, &lab.afar()?, &[])?;
        let folder = scratch(&mount.path());
        let ours = run(Command::new(&program), (&folder, "ours"), &folder)?;
        mount.stop()?;
        Ok::<_, Trouble>(ours)
    };
    let in_theirs = || {
        let mount = scene.cell.mount("theirs")?;
        mount.within(|| {
            let seen = scratch(mount.path());
            let theirs = run(mount.command(&program), (&seen, "theirs"), &scratch(&mount.inside()))?;
            // What it did not live to see has failed, and is no comparison.
            match mount.path().join(CELL_NAME).is_dir() {
                true => Ok(theirs),
                false => Err("afsd.fuse has gone".to_owned().into()),
            }
        })
    };
    let (ours, theirs) = thread::scope(|scope| {
        let theirs = scope.spawn(in_theirs);
        (in_ours(), theirs.join().unwrap_or_else(|_| Err("a thread panicked".to_owned().into())))
    });
    let (ours, theirs) = (ours?, theirs?);
    println!(
        "posix: of {} cases {} fail in our mount and {} in afsd.fuse's",
        ours.failed.len() + ours.held.len(),
        ours.failed.len(),
        theirs.failed.len()
    );
    let only_ours: Vec<&String> = ours.failed.intersection(&theirs.held).collect();
    println!("posix: these fail in ours and hold in afsd.fuse's: {only_ours:?}");
    match ours.failed.len() < theirs.failed.len() {
        true => Ok(()),
        false => Err(format!("{} fail, in afsd.fuse's {}", ours.failed.len(), theirs.failed.len()).into()),
    }
}

/// What is told of each case: its name and how it went. Cases that need what is not to be tried are told of, too.
fn outcome(said: &str) -> Result<Outcome, Trouble> {
    let mut outcome = Outcome::default();
    for line in said.lines() {
        let Some((name, how)) = line.split_once("  ") else { continue };
        if !name.contains("::") || name.contains(' ') {
            continue;
        }
        match how.trim() {
            "ok" | "PASSED UNEXPECTEDLY" => drop(outcome.held.insert(name.to_owned())),
            "FAILED" | "failed as expected" => drop(outcome.failed.insert(name.to_owned())),
            _ => {}
        }
    }
    match outcome.held.len() + outcome.failed.len() {
        CASES_MIN.. => Ok(outcome),
        few => {
            let last: Vec<&str> = said.lines().rev().take(20).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            Err(format!("pjdfstest told of {few} cases only; its end:\n{}", last.join("\n")).into())
        }
    }
}
