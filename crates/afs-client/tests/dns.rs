//! Cells that no file knows, and a scripted DNS does.

use crate::support;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::names_behind::{on_disk, pause, tree, write_new};
use crate::support::{Cell, NOBODY, names};
use afs_client::{Client, Config, Error};
use afs_dns::{Answer, Asking, NoAnswer, Question, Record, Resolver};
use afs_sim::Sim;
use afs_store::disk::SimulatedDisk;
use afs_wire::Errno;
use futures_util::future::join_all;
use rx::Runtime;

const SRV: &str = "SRV of _afs3-vlserver._udp.far.test";
const ADDRESS: &str = "A of db.far.test";

/// A DNS that answers after 100 ms of virtual time, and remembers what it was asked.
#[derive(Debug)]
struct Dns {
    sim: Sim,
    script: Mutex<HashMap<&'static str, Answer>>,
    is_silent: Mutex<bool>,
    asked: Mutex<Vec<String>>,
}

impl Dns {
    /// Knows far.test, whose database server is that of the world, for 600 s.
    fn new(world: &Cell) -> Arc<Self> {
        let dns = Self {
            sim: world.sim.clone(),
            script: Mutex::default(),
            is_silent: Mutex::new(false),
            asked: Mutex::default(),
        };
        let target = "db.far.test".to_owned();
        dns.knows(SRV, Record::Srv { priority: 0, weight: 0, port: 7003, target });
        dns.knows(ADDRESS, Record::Address(Ipv4Addr::new(10, 0, 0, 100)));
        Arc::new(dns)
    }

    fn knows(&self, question: &'static str, record: Record) {
        self.script.lock().unwrap().insert(question, Answer { records: vec![record], ttl_seconds: 600 });
    }

    fn set_silent(&self, is_silent: bool) {
        *self.is_silent.lock().unwrap() = is_silent;
    }

    /// What it was asked since the last look.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Resolver for Dns {
    fn ask(&self, question: Question) -> Asking<'_> {
        let text = question.to_string();
        self.asked.lock().unwrap().push(text.clone());
        Box::pin(async move {
            let pause = if *self.is_silent.lock().unwrap() { 3_600_000 } else { 100 };
            self.sim.sleep_until(self.sim.now() + Duration::from_millis(pause)).await;
            if pause > 100 {
                return Err(NoAnswer("at last".to_owned()));
            }
            Ok(self.script.lock().unwrap().get(&*text).cloned().unwrap_or_default())
        })
    }
}

fn client(world: &Cell, dns: &Arc<Dns>) -> Client {
    let mut config = world.config(1);
    config.dns = Some(Arc::clone(dns) as Arc<dyn Resolver>);
    world.client_with(config)
}

async fn look_up(client: &Client, name: &str) -> Result<(), Error> {
    client.lookup(NOBODY, client.root(), name.as_bytes()).await.map(drop)
}

/// The names in the root directory of the cell's root volume.
async fn list(client: &Client, name: &str) -> Vec<String> {
    let found = client.lookup(NOBODY, client.root(), name.as_bytes()).await.unwrap();
    let dir = client.target(NOBODY, found.fid).await.unwrap();
    names(client, NOBODY, dir).await
}

#[test]
fn a_cell_that_only_the_dns_knows_is_there_when_somebody_looks_for_it() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    world.run(async move {
        let root = client.root();
        assert!(client.cached_lookup(NOBODY, root, b"far.test").is_none(), "that is to be asked");
        assert_eq!(list(&client, "Far.Test").await, [""; 0]);
        assert_eq!(dns.asked(), [SRV, ADDRESS]);
        assert!(names(&client, NOBODY, root).await.contains(&"far.test".to_owned()));
        let found = client.lookup(NOBODY, root, b".far.test").await.unwrap();
        let dir = client.target(NOBODY, found.fid).await.unwrap();
        client.create(NOBODY, dir, b"file", 0o644).await.unwrap();
        assert_eq!(list(&client, "far.test").await, ["file"]);
        assert_eq!(dns.asked(), [""; 0], "it is known");
        assert_eq!(client.find_cell_anywhere("far.test").await.unwrap().name.as_str(), "far.test");
    });
}

#[test]
fn a_mount_point_of_a_cell_that_only_the_dns_knows_is_crossed_and_to_look_at_it_asks_nothing() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    world.run(async move {
        let root = support::cell_root(&client).await;
        client.make_mount(NOBODY, root, b"far", "#far.test:root.cell.").await.unwrap();
        dns.asked();
        let found = client.lookup(NOBODY, root, b"far").await.unwrap();
        assert_eq!(dns.asked(), [""; 0]);
        client.target(NOBODY, found.fid).await.unwrap();
        assert_eq!(dns.asked(), [SRV, ADDRESS]);
    });
}

#[test]
fn a_name_that_is_no_cell_is_asked_for_once_in_half_a_minute() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    let sim = world.sim.clone();
    world.run(async move {
        let questions = ["SRV of _afs3-vlserver._udp.none.test", "AFSDB of none.test"];
        let all = join_all((0..10).map(|_| look_up(&client, "none.test"))).await;
        assert!(all.iter().all(|outcome| outcome.as_ref().unwrap_err().errno() == Errno::ENOENT));
        assert_eq!(dns.asked(), questions);
        let known = client.cached_lookup(NOBODY, client.root(), b"none.test").unwrap().unwrap_err();
        assert_eq!(known.errno(), Errno::ENOENT);
        sim.sleep_until(sim.now() + Duration::from_secs(29)).await;
        look_up(&client, "none.test").await.unwrap_err();
        assert_eq!(dns.asked(), [""; 0]);
        sim.sleep_until(sim.now() + Duration::from_secs(2)).await;
        assert!(client.cached_lookup(NOBODY, client.root(), b"none.test").is_none());
        look_up(&client, "none.test").await.unwrap_err();
        assert_eq!(dns.asked(), questions);
    });
}

#[test]
fn names_that_programs_look_for_everywhere_ask_nothing() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    world.run(async move {
        for name in [".Trash", ".git", ".hidden", ".far.test", "autorun.inf", "lib", "CVS"] {
            assert_eq!(look_up(&client, name).await.unwrap_err().errno(), Errno::ENOENT, "{name}");
        }
        assert_eq!(dns.asked(), [""; 0]);
    });
}

#[test]
fn a_silent_dns_is_waited_for_five_seconds_and_then_left_alone_for_a_while() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    let sim = world.sim.clone();
    world.run(async move {
        dns.set_silent(true);
        let begin = client.now();
        assert_eq!(look_up(&client, "far.test").await.unwrap_err().errno(), Errno::ETIMEDOUT);
        assert_eq!(client.now().since(begin), Duration::from_secs(5));
        look_up(&client, "far.test").await.unwrap_err();
        assert_eq!(client.now().since(begin), Duration::from_secs(5), "it is known");
        dns.set_silent(false);
        sim.sleep_until(sim.now() + Duration::from_secs(31)).await;
        look_up(&client, "far.test").await.unwrap();
    });
}

#[test]
fn who_gives_up_waiting_does_not_end_the_look_up_for_others() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    let sim = world.sim.clone();
    world.run(async move {
        let impatient = {
            let client = client.clone();
            let given_up = sim.now() + Duration::from_millis(50);
            let clock = sim.clone();
            async move {
                let asking = std::pin::pin!(look_up(&client, "far.test"));
                futures_util::future::select(asking, clock.sleep_until(given_up)).await;
            }
        };
        let (_, found) = futures_util::future::join(impatient, look_up(&client, "far.test")).await;
        found.unwrap();
        assert_eq!(dns.asked(), [SRV, ADDRESS]);
    });
}

/// A laptop starts before its network is there.
#[test]
fn changes_of_a_cell_that_the_dns_does_not_know_at_the_start_are_made_when_it_does() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let disk = SimulatedDisk::new(64 << 20);
    let client = |number, disk: &SimulatedDisk| {
        let dns = Some(Arc::clone(&dns) as Arc<dyn Resolver>);
        world.client_with(Config { dns, ..on_disk(&world, number, disk) })
    };
    let one = client(1, &disk);
    let root = world.run_with(&one, |one| async move {
        list(&one, "far.test").await;
        let found = one.lookup(NOBODY, one.root(), b".far.test").await.unwrap();
        one.target(NOBODY, found.fid).await.unwrap()
    });
    world.cut_off(&one);
    world.run_with(&one, |one| async move { write_new(&one, root, "file", "text").await });
    dns.set_silent(true);
    let after = disk.after_kill();
    drop(one);
    let (two, three) = (client(2, &after), world.client(3));
    world.let_in();
    world.run(async move {
        pause(&two, 60).await;
        assert_eq!(two.waiting().changes, 1, "that it waits is known");
        dns.set_silent(false);
        pause(&two, 120).await;
        assert_eq!((two.waiting().changes, two.dirty_bytes()), (0, 0));
        assert_eq!(tree(&three, support::cell_root(&three).await).await, ["/file=text"]);
        assert!(two.conflicts().is_empty());
    });
}

#[test]
fn servers_are_asked_for_anew_after_their_time_and_kept_if_the_dns_is_silent() {
    let world = Cell::new();
    let dns = Dns::new(&world);
    let client = client(&world, &dns);
    let sim = world.sim.clone();
    world.run(async move {
        let servers = |client: &Client| {
            client.cells().into_iter().find(|cell| cell.name.as_str() == "far.test").unwrap().servers
        };
        let old = Ipv4Addr::new(10, 0, 0, 100);
        list(&client, "far.test").await;
        assert_eq!((servers(&client), dns.asked().len()), (vec![old], 2));
        dns.set_silent(true);
        sim.sleep_until(sim.now() + Duration::from_secs(601)).await;
        client.forget_locations().await;
        let begin = client.now();
        list(&client, "far.test").await;
        assert!(client.now().since(begin) < Duration::from_secs(6));
        assert_eq!((servers(&client), dns.asked().len()), (vec![old], 1));
        client.forget_locations().await;
        list(&client, "far.test").await;
        assert_eq!(dns.asked().len(), 0, "that it is silent is known");
        // The database has moved.
        dns.set_silent(false);
        let new = Ipv4Addr::new(10, 0, 0, 101);
        dns.knows(ADDRESS, Record::Address(new));
        sim.sleep_until(sim.now() + Duration::from_secs(31)).await;
        client.forget_locations().await;
        drop(client.lookup(NOBODY, client.root(), b"far.test").await);
        let _ =
            client.target(NOBODY, client.lookup(NOBODY, client.root(), b"far.test").await.unwrap().fid).await;
        assert_eq!((servers(&client), dns.asked().len()), (vec![new], 2));
    });
}
