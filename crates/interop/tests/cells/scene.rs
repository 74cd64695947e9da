//! A cell with users, volumes and clients, whose servers are ours or OpenAFS's: what most cases here begin with.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use afar_interop::cell::{ADDRESS, CELL_NAME, CLIENT_ADDRESS, Cell, Machine, Servers};
use afar_interop::lab::Lab;
use afar_interop::suite::{Case, Trouble, Verdict, Weight};
use afs_lab::caller::{AccessList, Client, Credentials, FileServer};
use afs_wire::ids::{AfsFid, VolumeId};
use rx_security::KeySet;

use crate::databases::TIMEOUT;

/// Users that every scene has; `admin` is an administrator.
const USERS: &[(&str, i32)] = &[("admin", 1), ("alice", 1001), ("bob", 1002)];

/// What Debian's tools say if no server takes changes (UNOQUORUM).
const NO_QUORUM: &str = "no quorum elected";

/// A cell with users.
pub(crate) struct Scene {
    pub(crate) cell: Cell,
    keys: KeySet,
}

/// A case for OpenAFS's servers, which shows that the case is right, and one for ours.
pub(crate) fn for_both(
    lab: &Arc<Lab>,
    name: &str,
    check: fn(&Lab, &Servers) -> Verdict,
) -> impl Iterator<Item = Case> {
    let stock = Arc::clone(lab);
    let ours = Arc::clone(lab);
    [
        Case::new(format!("{name}/stock"), Weight::Waiting, move || check(&stock, &Servers::Stock)),
        Case::new(format!("{name}/ours"), Weight::Waiting, move || check(&ours, &ours.our_servers()?)),
    ]
    .into_iter()
}

impl Scene {
    /// A fresh cell.
    pub(crate) fn new(lab: &Lab, servers: &Servers) -> Result<Self, Trouble> {
        let scene = Self::without_users(lab.cell(&Machine::new(servers.clone()))?)?;
        scene.make_users()?;
        Ok(scene)
    }

    /// A cell that may have no servers yet.
    pub(crate) fn without_users(cell: Cell) -> Result<Self, Trouble> {
        let folder = cell.folder("srv").join("etc/server");
        let keys = KeySet::load(&folder).map_err(|error| format!("reading the cell's key: {error}"))?;
        Ok(Self { cell, keys })
    }

    /// Makes the users, which [`Self::new`] does by itself.
    pub(crate) fn make_users(&self) -> Verdict {
        for (user, id) in USERS {
            self.change(&format!("pts createuser {user} -id {id}"))?;
        }
        self.change("pts adduser admin system:administrators")?;
        Ok(())
    }

    /// Has Debian's tools change a database, and does so again while the servers have nobody who takes changes: etcd's members
    /// choose a new leader if a busy machine was late. Nothing was done then.
    pub(crate) fn change(&self, line: &str) -> Result<String, Trouble> {
        let until = Instant::now() + 2 * TIMEOUT;
        loop {
            match self.cell.expect(&format!("{line} -localauth")) {
                Err(problem) if problem.contains(NO_QUORUM) && Instant::now() < until => {
                    thread::sleep(Duration::from_millis(200));
                }
                done => return Ok(done?),
            }
        }
    }

    /// Makes a volume on a server and gives its root directory an access list.
    pub(crate) fn volume(
        &self,
        server: Ipv4Addr,
        name: &str,
        list: &AccessList,
    ) -> Result<VolumeId, Trouble> {
        let said = self.change(&format!("vos create {server} a {name} -maxquota 0"))?;
        let number = said.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        let volume = VolumeId(number.ok_or_else(|| format!("vos create {name} says {said:?}"))?);
        self.at_clients(async || {
            let (client, admin) = (self.client()?, self.user("admin")?);
            let server = client.file_server(server, &admin);
            server
                .set_access_list(AfsFid::root_of(volume), list)
                .await
                .map_err(told("setting an access list"))?;
            server.give_up_all().await.map_err(told("giving up callbacks"))
        })?;
        Ok(volume)
    }

    /// Does something with clients, in a tokio runtime of its own, where they are in the network.
    pub(crate) fn at_clients<T: Send>(
        &self,
        work: impl AsyncFnOnce() -> Result<T, Trouble> + Send,
    ) -> Result<T, Trouble> {
        let run = || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
            runtime.map_err(|error| format!("cannot start threads: {error}"))?.block_on(work())
        };
        self.cell.clients()?.run_in(run).map_err(|error| error.to_string())?
    }

    /// A client machine, on a port of its own. Only in [`Self::at_clients`]; so with the rest.
    pub(crate) fn client(&self) -> Result<Client, Trouble> {
        Client::bind(SocketAddr::from((CLIENT_ADDRESS, 0))).map_err(told("a client"))
    }

    /// A user with a ticket that is good for hours.
    pub(crate) fn user(&self, name: &str) -> Result<Credentials, Trouble> {
        Credentials::user(name, CELL_NAME, &self.keys).map_err(told("a ticket"))
    }

    /// The cell's key.
    pub(crate) fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// Makes an empty file `f` in the root directory of a volume of the machine `srv`.
    pub(crate) fn file(&self, volume: VolumeId) -> Result<AfsFid, Trouble> {
        self.at_clients(async || {
            let client = self.client()?;
            let server = self.files(&client, &self.user("admin")?);
            let made =
                server.create_file(AfsFid::root_of(volume), "f").await.map_err(told("making a file"))?;
            server.give_up_all().await.map_err(told("giving up callbacks"))?;
            Ok(made.fid)
        })
    }

    /// The file server of the machine `srv`.
    pub(crate) fn files(&self, client: &Client, who: &Credentials) -> FileServer {
        client.file_server(ADDRESS, who)
    }
}

/// Says what was being done when it failed.
pub(crate) fn told<E: std::fmt::Display>(doing: &str) -> impl FnOnce(E) -> Trouble {
    let doing = doing.to_owned();
    move |error| Trouble::Failed(format!("{doing}: {error}"))
}
