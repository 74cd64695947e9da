//! Our databases of a cell beside OpenAFS's: the same calls must have the same results, and Debian's `vos`, `pts` and
//! `udebug` must print the same. Neither server asks callers for a name; the stock ones are of `interop/cell`.

use afs_lab::real::folder::Folder;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use afar_interop::cell::{self, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::process::{self, Finished, Server};
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_wire::ids::{HostAddr, ViceId};
use afs_wire::{pt, vl};
use rx::{Endpoint, EndpointConfig, RpcError};
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;
use rxgen::xdr::{CharVec, XdrString};

/// A cell needs some seconds, and as many calls as here take some more.
const TIMEOUT: Duration = Duration::from_secs(120);

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
    folder: Folder,
}

impl Cell {
    /// A cell whose servers ask no caller for a name, without its file server.
    fn start(lab: &Lab) -> Result<Self, Trouble> {
        let stock = lab.cell(&Machine::new(Servers::Stock))?;
        let folder = Folder::new("celldb");
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
        let Finished { status, stdout, stderr, .. } = process::run(&mut command, TIMEOUT)?;
        Ok(format!("{status:?}\n{stdout}{stderr}").replace(OURS, "ADDRESS").replace(THEIRS, "ADDRESS"))
    }
}

/// Runs what must succeed.
fn good(command: &mut Command) -> Result<(), String> {
    let Finished { status, stdout, stderr, .. } = process::run(command, TIMEOUT)?;
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
                let done = process::run(command.args(["talk", service, address, &seed, &calls]), TIMEOUT)?;
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
    compare_seldom(&cell)
}

/// What no tool asks: the same calls to both, which have the same entries here.
fn compare_seldom(cell: &Cell) -> Verdict {
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        let runtime = runtime.map_err(|error| format!("cannot start threads: {error}"))?;
        runtime.block_on(async { Ok((seldom(OURS).await?, seldom(THEIRS).await?)) })
    };
    let both: Result<_, String> = cell.cell.clients()?.run_in(run).map_err(|error| error.to_string())?;
    let (ours, theirs) = both?;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        if ours != theirs {
            return Err(format!("we say\n{ours}\nand OpenAFS\n{theirs}").into());
        }
    }
    let is_good = |line: &&String| !line.contains("code");
    if ours.len() != theirs.len() || ours.iter().filter(is_good).count() < 20 {
        return Err(format!("too little was compared: {ours:#?}").into());
    }
    Ok(())
}

/// What a server says to the calls that are seldom made, a line a call. Places where no entry is are left out: for stock servers
/// they are places in a file, which may have an end before them (Ubik's UEOF) or something else there.
async fn seldom(address: &str) -> Result<Vec<String>, String> {
    let address: Ipv4Addr = address.parse().map_err(|_| "an address".to_owned())?;
    let endpoint = Endpoint::bind((Ipv4Addr::UNSPECIFIED, 0).into(), EndpointConfig::default())
        .map_err(|error| format!("cannot bind a port: {error}"))?;
    let connect =
        |service, port| endpoint.connect((address, port).into(), ServiceId(service), Box::new(Null));
    let (vl, pr) = (connect(vl::Vl::SERVICE_ID, vl::Vl::PORT), connect(pt::Pr::SERVICE_ID, pt::Pr::PORT));
    let mut lines = Vec::new();
    let mut say = |what: String, said: Result<String, RpcError>| {
        let said = said.unwrap_or_else(|error| format!("code {}", error.code().0));
        lines.push(format!("{what} -> {said}"));
    };
    say("ProbeServer".to_owned(), vl.rpc(&vl::ProbeServer {}).await.map(|_| "ok".to_owned()));
    let addrs = vl.rpc(&vl::GetAddrs { handle: 0, spare2: 0 }).await;
    // A server of several addresses is a number here that says where they are in the file.
    let is_address = |addr: &&HostAddr| addr.0 >> 24 != 0xff;
    let shown = |reply: vl::reply::GetAddrs| {
        format!("{:?}", reply.addrs.iter().filter(is_address).collect::<Vec<_>>())
    };
    say("GetAddrs".to_owned(), addrs.map(shown));
    for id in (-225..=-200).chain([-102, -101, 0, 32766, 4711, i32::MIN]).chain(1..25).map(ViceId) {
        let found = pr.rpc(&pt::WhereIsIt { id }).await;
        let pos = found.as_ref().map_or(0, |reply| reply.pos);
        say(format!("WhereIsIt {id}"), found.map(|_| "somewhere".to_owned()));
        if pos != 0 {
            let dumped = pr.rpc(&pt::DumpEntry { pos }).await;
            say(format!("DumpEntry of {id}"), dumped.map(|reply| shown_entry(&reply.entry)));
        }
        let groups = pr.rpc(&pt::ListSuperGroups { id }).await;
        say(format!("ListSuperGroups {id}"), groups.map(|reply| format!("{:?} {}", reply.ids, reply.over)));
        let repaired = pr.rpc(&no_update(id, "")).await;
        say(format!("UpdateEntry {id}"), repaired.map(|_| "ok".to_owned()));
    }
    for name in ["carol", "nobody.of.this.name", "system:anyuser"] {
        let repaired = pr.rpc(&no_update(ViceId(0), name)).await;
        say(format!("UpdateEntry {name}"), repaired.map(|_| "ok".to_owned()));
    }
    endpoint.shut_down();
    Ok(lines)
}

/// The entry without what follows from places in the file, and without times.
fn shown_entry(entry: &pt::PrDebugEntry) -> String {
    let pt::PrDebugEntry { flags, id, cellid, owner, creator, ngroups, nusers, count, name, .. } = entry;
    let name = name.text().escape_ascii();
    let owns = entry.owned != 0;
    format!("{name} {id} {flags:#x} {cellid} {owner} {creator} {ngroups} {nusers} {count} owns: {owns}")
}

/// An UpdateEntry that is to update nothing.
fn no_update(id: ViceId, name: &str) -> pt::UpdateEntry {
    let update = pt::PrUpdateEntry {
        mask: pt::PrUpdateMask(0),
        flags: 0,
        id: ViceId(0),
        owner: ViceId(0),
        creator: ViceId(0),
        ngroups: 0,
        nusers: 0,
        count: 0,
        reserved: [0; 5],
        name: CharVec([0; pt::PR_MAXNAMELEN]),
    };
    pt::UpdateEntry { id, name: XdrString::new(name).expect("it is short"), update }
}
