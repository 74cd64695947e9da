//! A cell of several database servers over an etcd, all of them processes on loopback, for tests.

pub(crate) mod faults;
mod ways;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::process::Output;
use std::time::{Duration, Instant};

use afs_lab::caller::{Credentials, Server};
use afs_lab::peers::etcd::Etcd;
pub(crate) use afs_lab::peers::etcd::is_here;
use afs_wire::abort::{PRDBFAIL, PREXIST, VL_IO, VL_NAMEEXIST};
use afs_wire::ids::{HostAddr, PartitionId, ViceId, VolumeId};
use afs_wire::pt::{NameToID, NewEntry, PRUSER};
use afs_wire::vl::{CreateEntryN, EntryFlags, NMAXNSERVERS, NvldbEntry, SiteFlags};
use rx_security::KeySet;
use rxgen::Abort;
use rxgen::rpc::Rpc;
use rxgen::xdr::{CharVec, XdrArray, XdrString};

use ways::Way;

use crate::mounted::Machines;
pub(crate) use crate::mounted::words as said;

/// How long something may take that takes a moment, on slow machines.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// UNOQUORUM.
pub(crate) const NO_QUORUM: i32 = 5376;

/// Asks a server until it knows: one that had no answer of etcd's for a second has changed nothing, and says so.
pub(crate) async fn at_last<R: Rpc>(server: &Server, args: &R) -> R::Reply {
    settled(server, args, None).await.unwrap()
}

/// Makes what is not there, as [`at_last`] asks. `None` if it was made by an attempt that ended before etcd said what became of it: the server
/// waits five seconds, and then cannot know.
async fn made<R: Rpc>(server: &Server, args: &R, [undecided, exists]: [Abort; 2]) -> Option<R::Reply> {
    settled(server, args, Some([undecided, exists])).await
}

async fn settled<R: Rpc>(server: &Server, args: &R, codes: Option<[Abort; 2]>) -> Option<R::Reply> {
    let until = Instant::now() + TIMEOUT;
    let mut was_undecided = false;
    loop {
        let answer = server.rpc(args).await;
        let code = answer.as_ref().err().and_then(|error| error.code());
        let is = |which: usize| code.is_some() && code == codes.map(|codes| codes[which].0);
        if was_undecided && is(1) {
            return None;
        }
        let is_late = Instant::now() >= until;
        was_undecided |= is(0);
        if is_late || code != Some(NO_QUORUM) && !is(0) {
            return Some(answer.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The number of a name that anybody may look up.
pub(crate) async fn id_of(server: &Server, name: &str) -> ViceId {
    let names = XdrArray::new(vec![CharVec::from_text(name).unwrap()]).unwrap();
    at_last(server, &NameToID { names }).await.ids[0]
}

/// Makes a user.
pub(crate) async fn new_user(server: &Server, name: &str) -> ViceId {
    let new =
        NewEntry { name: XdrString::new(name.as_bytes().to_vec()).unwrap(), flag: PRUSER, owner: ViceId(0) };
    match made(server, &new, [PRDBFAIL, PREXIST]).await {
        Some(reply) => reply.id,
        None => id_of(server, name).await,
    }
}

/// Makes a volume's entry.
pub(crate) async fn new_volume(server: &Server, entry: NvldbEntry) {
    made(server, &CreateEntryN { entry }, [VL_IO, VL_NAMEEXIST]).await;
}

/// What a check of a server finds, once all whom it asks have said something: on a busy machine they may be late.
pub(crate) fn checked(check: impl Fn() -> Output) -> (bool, String) {
    const LATE: [&str; 4] =
        ["did not answer", "did not say", "etcd does not answer it", "no member answered within"];
    let until = Instant::now() + TIMEOUT;
    loop {
        let output = check();
        let text = said(&output);
        if !LATE.iter().any(|late| text.contains(late)) || Instant::now() >= until {
            return (output.status.success(), text);
        }
    }
}

/// What a server tells Prometheus.
pub(crate) fn metrics(address: Ipv4Addr) -> String {
    let mut stream = TcpStream::connect((address, 9160)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Says for ever that it is OpenAFS's.
pub(crate) fn stock_server(address: Ipv4Addr) {
    let socket = UdpSocket::bind((address, 7003)).unwrap();
    std::thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((_, from)) = socket.recv_from(&mut packet) {
            // The header comes back, without the flag of clients, and a text behind it.
            let mut answer = packet[..28].to_vec();
            answer[21] = 0;
            answer.extend(b" OpenAFS 1.8.9-1-debian built  2023-01-01\0");
            answer.resize(28 + 65, 0);
            let _ = socket.send_to(&answer, from);
        }
    });
}

/// What the VLDB is told of a new read-write volume, on a server that nobody asks.
pub(crate) fn volume_entry(name: &str, id: VolumeId) -> NvldbEntry {
    let sites: [u32; NMAXNSERVERS] = std::array::from_fn(|index| if index == 0 { 0x0a01_0101 } else { 0 });
    NvldbEntry {
        name: CharVec::from_text(name).unwrap(),
        n_servers: 1,
        server_number: sites.map(HostAddr),
        server_partition: [PartitionId(0); NMAXNSERVERS],
        server_flags: [SiteFlags(4); NMAXNSERVERS],
        volume_id: [id, VolumeId(0), VolumeId(0)],
        clone_id: VolumeId(0),
        flags: EntryFlags(0x1000),
        match_index: 0,
        spares: [0; 8],
    }
}

/// The cell.
#[derive(Debug)]
pub(crate) struct EtcdCell {
    pub(crate) etcd: Etcd,
    machines: Machines,
    /// The ways of each server to each member, if they can be cut.
    ways: Vec<Vec<Way>>,
}

impl EtcdCell {
    /// So many database servers over so many members of an etcd.
    pub(crate) fn start(name: &'static str, members: usize, servers: usize, more: &'static str) -> Self {
        Self::start_over(Etcd::start(name, members), Vec::new(), name, servers, more)
    }

    /// The same with ways between servers and members that can be cut.
    pub(crate) fn start_with_ways(
        name: &'static str,
        members: usize,
        servers: usize,
        more: &'static str,
    ) -> Self {
        let etcd = Etcd::start(name, members);
        let ways = || (0..members).map(|member| Way::to(etcd.port(member))).collect();
        let ways = (0..servers).map(|_| ways()).collect();
        Self::start_over(etcd, ways, name, servers, more)
    }

    /// The same over members with a network each, which can be cut from each other.
    pub(crate) fn start_apart(
        name: &'static str,
        members: usize,
        servers: usize,
        more: &'static str,
    ) -> Result<Self, String> {
        Ok(Self::start_over(Etcd::start_apart(name, members)?, Vec::new(), name, servers, more))
    }

    fn start_over(
        etcd: Etcd,
        ways: Vec<Vec<Way>>,
        name: &'static str,
        servers: usize,
        more: &'static str,
    ) -> Self {
        let mut machines = Machines::new(name, servers);
        let addresses: Vec<String> = machines.addresses.iter().map(Ipv4Addr::to_string).collect();
        for server in 0..servers {
            let members: Vec<String> = match ways.get(server) {
                Some(ways) => ways.iter().map(Way::address).collect(),
                None => etcd.endpoints(),
            };
            let text = format!(
                "[databases]\netcd = {members:?}\nservers = {addresses:?}\n{more}\n[log]\nfilter = \"warn\"\n[metrics]\nbind = \"{}:9160\"\n",
                machines.addresses[server]
            );
            machines.configure(server, &format!("{name}.test"), &["vl", "pt", "bos"], &text);
        }
        machines.start_all(0);
        Self { etcd, machines, ways }
    }

    /// The credentials of a user who may change everything.
    pub(crate) fn superuser(&self) -> Credentials {
        Credentials::superuser(&KeySet::load(&self.states[0].path().join("etc/server")).unwrap()).unwrap()
    }
}

impl Deref for EtcdCell {
    type Target = Machines;

    fn deref(&self) -> &Machines {
        &self.machines
    }
}

impl DerefMut for EtcdCell {
    fn deref_mut(&mut self) -> &mut Machines {
        &mut self.machines
    }
}
