//! Our client's mount of cells of OpenAFS's servers, and what programs do in it: the same as on a local file system, byte by byte. The same
//! scripts (interop/programs) run in the mount of `afar up` in `crates/afar/tests/work.rs`.

use afs_lab::real::folder::Folder;
use afs_lab::real::process::find;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::cell::{self, CELL_NAME, Servers};
use afar_interop::lab::Lab;
use afar_interop::our_mount::{self, OurMount};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

use crate::fuse::{self, look, play, same};
use crate::scene::{Scene, told};

/// Bytes of the large file, unless AFAR_LARGE_BYTES says otherwise: many times what is in memory on the way. Our own servers get 1 GiB.
const LARGE_BYTES: &str = "268435456";

/// How long a script may take, on a slow machine on which others work.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Cases by name, each in a cell of its own: the scripts that run in it, and what they need besides what every Debian has.
const SCRIPTS: [(&str, &[&str], &[&str]); 4] = [
    ("git_and_git_annex", &["git", "annex"], &["git", "git-annex"]),
    ("a_build_and_what_uses_mappings", &["build", "mapped", "renamed"], &["make", "gcc"]),
    ("tar_rsync_and_sqlite", &["tar", "rsync", "sqlite"], &["tar", "rsync", "sqlite3"]),
    ("a_large_file", &["large"], &["gcc"]),
];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, scripts, needs) in SCRIPTS {
        let lab = Arc::clone(lab);
        cases.push(Case::new(format!("programs/{name}/stock"), Weight::Busy, move || {
            with_ticket(&lab, scripts, needs)
        }));
    }
    let anonymous = Arc::clone(lab);
    cases.push(Case::new("programs/who_has_no_ticket/stock", Weight::Busy, move || {
        without_ticket(&anonymous)
    }));
    let random = Arc::clone(lab);
    cases.push(Case::new("programs/fsx/stock", Weight::Busy, move || fsx(&random)));
    let many = Arc::clone(lab);
    cases.push(Case::new(
        "programs/a_thousand_files_also_for_openafs_client/stock",
        Weight::Busy,
        move || a_thousand(&many),
    ));
    cases
}

/// A cell of OpenAFS's servers, mounted by us.
struct Mounted {
    // In this order: the mount goes before its cell.
    mount: OurMount,
    local: Folder,
    root: PathBuf,
    scene: Scene,
}

impl Mounted {
    fn new(lab: &Lab, options: &[&str]) -> Result<Self, Trouble> {
        cell::can_mount().map_err(Trouble::Skipped)?;
        let scene = fuse::scene(lab, &Servers::Stock)?;
        let mount = OurMount::start(&scene.cell, &lab.afar()?, options)?;
        Ok(Self { mount, local: Folder::new("local"), root: lab.root().to_owned(), scene })
    }

    /// The folder that anybody may write.
    fn scratch(&self) -> PathBuf {
        self.mount.path().join(CELL_NAME).join("scratch")
    }

    fn work(&self, script: &str, settings: &[(&str, &str)]) -> Verdict {
        let said = our_mount::work(&self.root, script, &self.scratch(), &self.local, settings, TIMEOUT);
        let said = said.map_err(|error| format!("{error}\nthe client: {}", self.mount.said()))?;
        print!("{said}");
        Ok(())
    }

    fn end(self) -> Verdict {
        Ok(self.mount.stop()?)
    }
}

fn needs(programs: &[&str]) -> Verdict {
    match programs.iter().find(|program| find(program).is_none()) {
        None => Ok(()),
        Some(program) => Err(Trouble::Skipped(format!("{program} is not installed"))),
    }
}

fn with_ticket(lab: &Lab, scripts: &[&str], programs: &[&str]) -> Verdict {
    needs(programs)?;
    let mounted = Mounted::new(lab, &["--localauth", "--cache-size", "4G"])?;
    let bytes = std::env::var("AFAR_LARGE_BYTES").unwrap_or_else(|_| LARGE_BYTES.to_owned());
    scripts.iter().try_for_each(|script| mounted.work(script, &[("AFAR_LARGE_BYTES", &bytes)]))?;
    mounted.end()
}

/// Nobody in particular may do less with owners and groups, and owns what all others do who are nobody.
fn without_ticket(lab: &Lab) -> Verdict {
    needs(&["git", "make", "gcc", "rsync"])?;
    let mounted = Mounted::new(lab, &[])?;
    mounted.work("git", &[])?;
    mounted.work("build", &[])?;
    mounted.work("renamed", &[])?;
    mounted.work("rsync", &[("AFAR_RSYNC_FLAGS", "-rlpt")])?;
    mounted.end()
}

fn fsx(lab: &Lab) -> Verdict {
    let program = lab.root().join("target/tools/bin/fsx");
    if !program.exists() {
        return Err(Trouble::Skipped("fsx is not there: scripts/tools.sh builds it".to_owned()));
    }
    let mounted = Mounted::new(lab, &[])?;
    mounted.work("fsx", &[])?;
    mounted.end()
}

/// What our client has written is seen by one that has nothing in its cache, and by OpenAFS's.
fn a_thousand(lab: &Lab) -> Verdict {
    let mounted = Mounted::new(lab, &[])?;
    let seed = 20_261_122;
    play(&mounted.local, seed).map_err(told("on the local disk"))?;
    play(&mounted.scratch(), seed).map_err(told("in the mount"))?;
    let made = look(&mounted.local).map_err(told("looking at the local disk"))?;
    same(&made, &look(&mounted.scratch()).map_err(told("looking at the mount"))?)?;
    let second = OurMount::start(&mounted.scene.cell, &lab.afar()?, &[])?;
    let there = second.path().join(CELL_NAME).join("scratch");
    same(&made, &look(&there).map_err(told("looking at the second mount"))?)?;
    let theirs = mounted.scene.cell.mount("theirs")?;
    let there = theirs.path().join(CELL_NAME).join("scratch");
    theirs.within(|| same(&made, &look(&there).map_err(told("looking at the mount of afsd.fuse"))?))?;
    drop(theirs);
    second.stop()?;
    mounted.end()
}
