//! Our databases of a cell beside OpenAFS's: the same calls must have the same results, and Debian's `vos`, `pts` and
//! `udebug` must print the same. Both servers ask nobody who he is; the stock ones are of `interop/cell`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::cell::{self, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::process::{self, Finished, Server};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};

/// A cell needs some seconds, and as many calls as here take some more.
const PATIENCE: Duration = Duration::from_secs(120);

/// Our server, and the cell's one.
const OURS: &str = "10.88.0.3";
const THEIRS: &str = "10.88.0.1";

/// Random calls of each service, and the seeds of which they are made.
const CALLS: usize = 2000;
const SEEDS: [u64; 3] = [1, 2, 3];

/// What is compared after the calls: both have the same entries then. The places of times are left out of `udebug`'s.
const COMMANDS: &[&str] = &[
    "vos listvldb",
    "vos listvldb -nosort",
    "vos listvldb -locked",
    "vos listvldb -server 10.88.1.1 -noresolve",
    "vos listvldb -server 10.88.1.2 -partition b -noresolve",
    "vos listvldb -name a",
    "vos listvldb -name nothing",
    "vos listaddrs -noresolve",
    "vos lock a",
    "vos lock a",
    "vos listvldb -locked",
    "vos unlock a",
    "vos unlockvldb",
    "vos addsite a 10.88.1.7 c -noresolve",
    "vos addsite a 10.88.1.7 c -noresolve",
    "vos remsite a 10.88.1.7 c -noresolve",
    "vos changeaddr 10.88.1.5 10.88.1.55",
    "vos delentry a",
    "vos delentry a",
    "vos delentry -prefix user",
    "vos listvldb",
    "vos setaddrs -uuid 00000009-0001-0002-03-04-050607080900 -host 10.88.1.70 10.88.1.71",
    "vos listaddrs -noresolve -printuuid",
    "pts listentries -users -groups",
    "pts createuser alice",
    "pts createuser bob -id 77",
    "pts createuser bob",
    "pts createuser alice:b",
    "pts creategroup alice:friends -owner alice",
    "pts creategroup bob:others -owner bob -id -4711",
    "pts creategroup staff -owner admin",
    "pts creategroup nobody:x -owner nobody",
    "pts adduser bob alice:friends",
    "pts adduser bob alice:friends",
    "pts adduser nobody alice:friends",
    "pts adduser staff alice:friends",
    "pts membership bob",
    "pts membership alice:friends",
    "pts membership alice:friends -supergroups",
    "pts membership staff -expandgroups",
    "pts examine alice bob alice:friends staff 32766",
    "pts examine 12345",
    "pts listowned alice",
    "pts listowned bob",
    "pts setfields alice:friends -access SOMar",
    "pts setfields bob -groupquota 5",
    "pts setfields alice -groupquota -1",
    "pts examine alice:friends bob",
    "pts chown alice:friends bob",
    "pts rename alice carol",
    "pts rename staff carol:staff",
    "pts listowned bob",
    "pts removeuser bob alice:friends",
    "pts removeuser bob alice:friends",
    "pts listmax",
    "pts setmax -user 500",
    "pts setmax -group -9000",
    "pts createuser dora",
    "pts creategroup dora:g -owner dora",
    "pts delete bob",
    "pts delete bob",
    "pts delete system:administrators",
    "pts listowned 0",
    "pts listentries -users -groups",
];

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let lab = Arc::clone(lab);
    vec![Case::new("celldb/the_same_calls_and_commands_have_the_same_results", Weight::Busy, move || {
        compare(&lab)
    })]
}

/// A stock cell, with the folders of its clients' configuration; both go when it is dropped.
struct Cell {
    cell: cell::Cell,
    folder: PathBuf,
}

impl Drop for Cell {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}

impl Cell {
    /// A cell whose servers ask nobody who he is, without its file server.
    fn start(lab: &Lab) -> Result<Self, Trouble> {
        let stock = lab.cell(&Machine::new(Servers::Stock))?;
        let folder = std::env::temp_dir().join(stock.name());
        let cell = Self { cell: stock, folder };
        for command in [
            "bos stop 10.88.0.1 dafs -wait -localauth",
            "vos changeaddr 10.88.0.1 -remove -localauth",
            "pts createuser admin -id 1 -localauth",
            "pts adduser admin system:administrators -localauth",
            "touch /var/lib/openafs/local/NoAuth",
        ] {
            cell.cell.expect(command)?;
        }
        good(cell.inside("ip")?.args(["addr", "add", &format!("{OURS}/24"), "dev", "cell0"]))?;
        for address in [OURS, THEIRS] {
            let folder = cell.folder(address);
            let write = |file: &str, text: String| fs::write(folder.join(file), text);
            fs::create_dir_all(&folder)
                .and_then(|()| write("ThisCell", "interop.test\n".into()))
                .and_then(|()| write("CellServDB", format!(">interop.test\n{address} #{address}\n")))
                .map_err(|error| format!("cannot write to {}: {error}", folder.display()))?;
        }
        Ok(cell)
    }

    /// The configuration of clients of one of the servers.
    fn folder(&self, address: &str) -> PathBuf {
        self.folder.join(address)
    }

    /// A program where both servers can be reached.
    fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command, String> {
        Ok(self.cell.clients()?.command(program))
    }

    /// What a command prints that is one of a server's clients.
    fn client(&self, address: &str, line: &str) -> Result<String, String> {
        let mut words = line.split(' ');
        let program = words.next().unwrap_or_default();
        let mut command = self.inside(program)?;
        command.args(words).args(["-noauth", "-config"]).arg(self.folder(address));
        let Finished { status, stdout, stderr, .. } = process::run(&mut command, PATIENCE)?;
        Ok(format!("{status:?}\n{stdout}{stderr}").replace(OURS, "ADDRESS").replace(THEIRS, "ADDRESS"))
    }
}

/// Runs what must succeed.
fn good(command: &mut Command) -> Result<(), String> {
    let Finished { status, stdout, stderr, .. } = process::run(command, PATIENCE)?;
    if status == Some(0) { Ok(()) } else { Err(format!("{command:?}: {status:?} {stdout}{stderr}")) }
}

fn compare(lab: &Lab) -> Verdict {
    let cell = Cell::start(lab)?;
    let program = Path::new(env!("CARGO_BIN_EXE_celldb"));
    let _server = Server::start(cell.inside(program)?.args(["serve", "--noauth", OURS]))?;
    for service in ["vl", "pr"] {
        for seed in SEEDS {
            let talk = |address: &str| {
                let (seed, calls) = (seed.to_string(), CALLS.to_string());
                let mut command = cell.inside(program)?;
                let done = process::run(command.args(["talk", service, address, &seed, &calls]), PATIENCE)?;
                if done.status == Some(0) { Ok(done.stdout) } else { Err(done.stderr) }
            };
            let (ours, theirs) = (talk(OURS)?, talk(THEIRS)?);
            for (ours, theirs) in ours.lines().zip(theirs.lines()) {
                if ours != theirs {
                    return Err(
                        format!("{service}, seed {seed}: we say\n{ours}\nand OpenAFS\n{theirs}").into()
                    );
                }
            }
            if ours.lines().count() != theirs.lines().count() || ours.lines().count() < CALLS / 2 {
                return Err(format!("{service}, seed {seed}: too few calls were made").into());
            }
        }
    }
    for command in COMMANDS {
        let (ours, theirs) = (cell.client(OURS, command)?, cell.client(THEIRS, command)?);
        if ours != theirs {
            return Err(format!("{command}: with ours it says\n{ours}\nand with OpenAFS's\n{theirs}").into());
        }
    }
    Ok(())
}
