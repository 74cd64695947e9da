//! A whole cell that moves from OpenAFS's servers to ours, one machine after another, as docs/migration.md tells it, each step with its
//! way back. After each one a client finds its files through the databases, whoever has them.

use std::sync::Arc;

use afar_interop::cell::{ADDRESS, Cell, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::process;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_testclient::{AccessList, Who};
use afs_wire::ids::{AfsFid, VolumeId, VolumeType};
use afs_wire::vl::GetEntryByIDN;

use crate::databases::{FILES, OurDatabases, PATIENCE, STATE, program, set_stock};
use crate::scene::{Scene, told};

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let lab = Arc::clone(lab);
    vec![Case::new("migration/a_cell_moves_one_machine_at_a_time_and_back", Weight::Waiting, move || {
        migrate(&lab)
    })]
}

/// The machine that joins, where the volumes go.
const NEW: &str = "10.88.0.3";
const OLD: &str = "10.88.0.1";

/// What the files of a volume have in them.
const BYTES: usize = 200_000;

/// Look-ups that have to say the same before and after the databases move.
const LOOKUPS: &[&str] = &[
    "vos listvldb -noresolve",
    "vos listaddrs -noresolve",
    "pts examine admin",
    "pts membership system:administrators",
    "pts listentries -users -groups",
];

struct Migration {
    scene: Scene,
    /// A volume with a file, and one that is replicated.
    alone: AfsFid,
    replicated: AfsFid,
}

impl Migration {
    fn cell(&self) -> &Cell {
        &self.scene.cell
    }

    /// A command that has to succeed.
    fn does(&self, line: &str) -> Result<String, Trouble> {
        Ok(self.cell().expect(&format!("{line} -localauth"))?)
    }

    /// Reads both files where the databases say that they are, through a read-only volume if there is one.
    fn check(&self, step: &str) -> Verdict {
        let read = |fid: AfsFid| {
            self.scene.at_clients(async || {
                let client = self.scene.client()?;
                let databases = client.location_server(ADDRESS, &Who::Anonymous);
                let asked = GetEntryByIDN { volid: fid.volume, kind: VolumeType(-1) };
                let entry = databases.rpc(&asked).await.map_err(told("looking a volume up"))?.entry;
                let count = usize::try_from(entry.n_servers).unwrap_or(0);
                // Each site of the kind that is read has it. An entry has the id of a read-only volume before there is one.
                let has_read_only = (0..count).any(|n| entry.server_flags[n].0 & 2 != 0);
                let (volume, flag) = if has_read_only { (entry.volume_id[1], 2) } else { (fid.volume, 4) };
                let mut sites = 0;
                for n in (0..count).filter(|n| entry.server_flags[*n].0 & flag != 0) {
                    let server = client.file_server(entry.server_number[n].ip(), &Who::Anonymous);
                    let fid = AfsFid { volume, ..fid };
                    let bytes = server.fetch(fid, 0, 1 << 20).await.map_err(told("fetching"))?;
                    server.give_up_all().await.map_err(told("giving up callbacks"))?;
                    if bytes != vec![7; BYTES] {
                        return Err(format!("{} other bytes came from site {n}", bytes.len()).into());
                    }
                    sites += 1;
                }
                if sites == 0 { Err("no site has the volume".to_owned().into()) } else { Ok(()) }
            })
        };
        for (name, fid) in [("alone", self.alone), ("replicated", self.replicated)] {
            read(fid).map_err(|error| Trouble::Failed(format!("after {step}, {name}: {error:?}")))?;
        }
        Ok(())
    }

    /// Whether the databases know a file server.
    fn is_listed(&self, address: &str, wanted: bool) -> Verdict {
        let listed = self.does("vos listaddrs -noresolve")?;
        if listed.lines().any(|line| line.trim() == address) != wanted {
            return Err(format!("vos listaddrs says, of {address} too: {listed:?}").into());
        }
        Ok(())
    }

    fn answers(&self) -> Result<Vec<String>, Trouble> {
        LOOKUPS.iter().map(|line| self.does(line)).collect()
    }

    fn compare(&self, whose: &str, before: &[String]) -> Verdict {
        for ((line, now), before) in LOOKUPS.iter().zip(self.answers()?).zip(before) {
            if now != *before {
                return Err(format!("{line}: {whose} say\n{now}\nand before it was\n{before}").into());
            }
        }
        Ok(())
    }

    /// What is on a server, read-write volumes and others, by name.
    fn volumes_on(&self, server: &str) -> Result<Vec<String>, Trouble> {
        let said = self.does(&format!("vos listvldb -server {server} -noresolve -quiet"))?;
        let names = said.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_graphic()));
        Ok(names.map(|line| line.trim().to_owned()).collect())
    }
}

fn migrate(lab: &Lab) -> Verdict {
    let afar = program(lab)?;
    let scene = Scene::new(lab, &Servers::Stock)?;
    let everybody = AccessList::granting([("system:anyuser", AccessList::WRITE)]);
    let make = |name: &str| -> Result<AfsFid, Trouble> {
        let volume: VolumeId = scene.volume(ADDRESS, name, &everybody)?;
        scene.at_clients(async || {
            let client = scene.client()?;
            let server = client.file_server(ADDRESS, &Who::Anonymous);
            let made =
                server.create_file(AfsFid::root_of(volume), "f").await.map_err(told("making a file"))?;
            let stored = server.store(made.fid, 0, vec![7; BYTES], BYTES as u64).await;
            stored.map_err(told("storing"))?;
            server.give_up_all().await.map_err(told("giving up callbacks"))?;
            Ok(made.fid)
        })
    };
    let (alone, replicated) = (make("test.volume")?, make("test.root")?);
    let migration = Migration { scene, alone, replicated };
    migration.does(&format!("vos addsite {OLD} a test.root"))?;
    migration.does("vos release test.root")?;
    migration.check("the beginning")?;

    // 1. Look: at the servers that run, and at copies of their files.
    let state = format!("--state {STATE}");
    let files = format!("--vldb {FILES}/vldb.DB0 --prdb {FILES}/prdb.DB0");
    for from in [format!("--from {OLD}"), files.clone()] {
        let told = migration.cell().expect(&format!("{afar} import {from} {state} --dry-run"))?;
        if !told.contains("volumes on 1 servers") || !told.ends_with("nothing was changed\n") {
            return Err(format!("a dry run {from} says {told}").into());
        }
    }

    // 2. A file server joins, and goes again.
    for (number, address) in [(3, NEW), (4, "10.88.0.4")] {
        migration.cell().join(number, &Machine::new(lab.our_servers()?))?;
        migration.is_listed(address, true)?;
    }
    let mut stop = migration.cell().command_at("fs4", &["pkill", "-TERM", "-x", "afar"]);
    process::run(&mut stop, PATIENCE)?;
    migration.does("vos changeaddr 10.88.0.4 -remove")?;
    migration.is_listed("10.88.0.4", false)?;
    migration.check("a file server joined")?;

    // 3. Volumes move, there and back and there.
    for (from, to) in [(OLD, NEW), (NEW, OLD), (OLD, NEW)] {
        migration.does(&format!("vos move test.volume {from} a {to} a"))?;
        migration.check(&format!("test.volume moved to {to}"))?;
    }
    for (from, to) in [(OLD, NEW), (NEW, OLD), (OLD, NEW)] {
        migration.does(&format!("vos addsite {to} a test.root"))?;
        migration.does("vos release test.root")?;
        migration.does(&format!("vos remove {from} a test.root.readonly"))?;
        migration.check(&format!("test.root released to {to}"))?;
    }
    migration.does(&format!("vos move test.root {OLD} a {NEW} a"))?;
    migration.check("test.root moved")?;

    // 4. The databases move, back, and again.
    let before = migration.answers()?;
    let import = format!("{afar} import {files} {state}");
    set_stock(migration.cell(), false, "test.root")?;
    migration.cell().expect(&import)?;
    let ours = OurDatabases::start(migration.cell(), &afar)?;
    migration.compare("our databases", &before)?;
    migration.check("the databases moved")?;
    migration.does("pts createuser carol")?;
    migration.does(&format!("vos move test.volume {NEW} a {OLD} a"))?;
    ours.stop()?;
    migration.cell().expect(&format!("{afar} export {files} {state} --force"))?;
    migration.cell().expect(&format!("rm -f {FILES}/vldb.DBSYS1 {FILES}/prdb.DBSYS1"))?;
    set_stock(migration.cell(), true, "test.root")?;
    migration.does("pts examine carol")?;
    migration.check("the databases moved back")?;
    migration.does(&format!("vos move test.volume {OLD} a {NEW} a"))?;
    let before = migration.answers()?;
    set_stock(migration.cell(), false, "test.root")?;
    migration.cell().expect(&format!("{import} --replace"))?;
    let ours = OurDatabases::start(migration.cell(), &afar)?;
    migration.compare("our databases, the second time,", &before)?;
    migration.check("the databases moved again")?;

    // 5. The last file server of OpenAFS's goes.
    for name in migration.volumes_on(OLD)? {
        migration.does(&format!("vos move {name} {OLD} a {NEW} a"))?;
    }
    migration.does(&format!("bos shutdown {OLD} -wait"))?;
    migration.does(&format!("vos changeaddr {OLD} -remove"))?;
    migration.is_listed(OLD, false)?;
    migration.check("the old file server went")?;
    ours.stop()
}
