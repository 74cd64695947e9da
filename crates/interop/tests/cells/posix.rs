//! pjdfstest in two mounts of one cell of OpenAFS's servers, ours and Debian's afsd.fuse, both as nobody in particular: which of its cases
//! fail. In a mount of `afar up`, where root is an administrator, `crates/afar/tests/posix.rs` runs it.

use afs_lab::real::folder::Folder;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::cell::{self, CELL_NAME, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::OurMount;
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

use crate::fuse;

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
    let local = Folder::new("local");
    let run = |mut command: Command, folder: &Path| {
        command.arg("-c").arg(&config).arg("-s").arg(&local).arg("-p").arg(folder);
        outcome(&process::run(&mut command, TIMEOUT)?.stdout)
    };
    let scene = fuse::scene(lab, &Servers::Stock)?;
    let ours = {
        let mount = OurMount::start(&scene.cell, &lab.afar()?, &[])?;
        let ours = run(Command::new(&program), &mount.path().join(CELL_NAME).join("scratch"))?;
        mount.stop()?;
        ours
    };
    let theirs = fuse::despite_a_crash(|crashes| {
        let mount = scene.cell.mount("theirs")?;
        let folder = mount.inside().join(CELL_NAME).join("scratch");
        crashes.within(&mount, || {
            let theirs = run(mount.command(&program), &folder)?;
            // What it did not live to see has failed, and is no comparison.
            match mount.path().join(CELL_NAME).is_dir() {
                true => Ok(theirs),
                false => Err("afsd.fuse has gone".to_owned().into()),
            }
        })
    })?;
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
