//! A cell of one machine that does as it is told, in virtual time: which calls it gets, and which of them it refuses.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_admin::entry::Entry;
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Login, Offers};
use afs_sim::Sim;
use afs_wire::abort::{UNOQUORUM, VL_IO, VOLSERFAILEDOP};
use afs_wire::afsvol::{
    AfsVol, Clone, CreateVolume, EndTrans, ForwardMultiple, GetName, GetStatus, ListOneVolume, TransCreate,
    VOK,
};
use afs_wire::ids::{PartitionId, VolumeId, VolumeType};
use afs_wire::vl::{GetEntryByIDN, GetNewVolumeId, Vl};
use rx::{Endpoint, EndpointConfig, Runtime, ServerCall, ServiceConfig};
use rx_proto::abort::AbortCode;
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rx_proto::time::Instant;
use rxgen::xdr::{Decoder, Xdr};
use rxgen::{Abort, Interface, Rpc, RpcInfo};

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// What a server says that has no such volume.
const ENODEV: Abort = Abort(19);

/// A volume as it is listed, online or out of service, of this parent.
pub(crate) fn listed(volume: VolumeId, kind: VolumeType, parent: VolumeId, is_in_service: bool) -> Vec<u32> {
    // A name of 32 characters, ids, a state, and whether it is in use; then dates and counts.
    let mut words = vec![1];
    words.extend([0; 32]);
    words.extend([volume.0, kind.0 as u32, 0, parent.0, 0, VOK as u32, 0, u32::from(is_in_service), 0, 0]);
    words.extend([0; 13]);
    words
}

/// Words as they are on the wire.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// How long a call at this time with these arguments takes, and what is answered then, if it is not what follows from the call.
pub(crate) type Hook =
    Arc<dyn Fn(Instant, &'static str, &[u8]) -> (Duration, Option<Result<Vec<u8>, Abort>>) + Send + Sync>;

/// A location server and a volume server on one machine, which do as they are told.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// What is refused.
    pub(crate) refused: HashMap<&'static str, Abort>,
    /// The call during which somebody wants no volume any more.
    pub(crate) cancelled_at: Option<&'static str>,
    /// The same by its number, from 0 on.
    pub(crate) cancelled_at_call: Option<usize>,
    pub(crate) cancel: Cancel,
    pub(crate) asked: Arc<Mutex<Vec<&'static str>>>,
    /// What is replied, where it is not what follows from the call.
    pub(crate) replies: HashMap<&'static str, Vec<u8>>,
    /// The volume of an id on a partition, as words; none where it is to be told that there is none.
    pub(crate) listed: HashMap<(PartitionId, VolumeId), Vec<u32>>,
    /// What is refused as soon as another call has come.
    pub(crate) refused_after: Option<(&'static str, &'static str, Abort)>,
    /// What else is done with a call.
    pub(crate) hook: Option<Hook>,
    /// How many transactions are open, of those that no hook has begun.
    pub(crate) open: Arc<Mutex<i32>>,
    /// The calls with their arguments.
    pub(crate) requests: Arc<Mutex<HashMap<&'static str, Vec<u8>>>>,
}

impl Script {
    /// Has the servers refuse this call.
    pub(crate) fn and_refusing(mut self, name: &'static str) -> Self {
        self.refused.insert(name, VOLSERFAILEDOP);
        self
    }

    /// Has the servers answer for a read-write volume that is online and has this entry.
    pub(crate) fn has_volume(&mut self, entry: &Entry, volume: VolumeId) {
        let mut wire = Vec::new();
        entry.to_wire().unwrap().encode(&mut wire);
        let status = [volume.0, 0, 0, volume.0, 0, 0, 0, 0, 0, 0, 1000, 0, 2000, 0, 0, 0];
        self.replies.extend([
            (GetEntryByIDN::NAME, wire),
            (Clone::NAME, words(&[700])),
            (GetName::NAME, words(&[2, u32::from_be_bytes(*b"v1\0\0")])),
            (GetStatus::NAME, words(&status)),
            (ListOneVolume::NAME, words(&listed(volume, VolumeType::READ_WRITE, volume, true))),
            (ForwardMultiple::NAME, words(&[1, 0])),
        ]);
    }

    pub(crate) fn refusing(refused: &[(&'static str, Abort)]) -> Self {
        Self { refused: refused.iter().copied().collect(), ..Self::default() }
    }

    async fn answer(self, sim: Sim, rpcs: &'static [RpcInfo], call: &mut ServerCall) -> Result<(), Abort> {
        let request = call.read_to_end(10_000).await.map_err(|error| Abort(error.code().0))?;
        let opcode = u32::from_be_bytes(request[..4].try_into().unwrap());
        let name = rpcs.iter().find(|rpc| rpc.opcode == opcode).unwrap().name;
        let number = {
            let mut asked = self.asked.lock().unwrap();
            if self.cancelled_at_call == Some(asked.len()) {
                self.cancel.cancel();
            }
            asked.push(name);
            self.requests.lock().unwrap().insert(name, request[4..].to_vec());
            100 + asked.len() as u32
        };
        if self.cancelled_at == Some(name) {
            self.cancel.cancel();
        }
        if let Some(code) = self.refused.get(name) {
            return Err(*code);
        }
        if let Some((after, refused, code)) = self.refused_after
            && refused == name
            && self.asked.lock().unwrap().contains(&after)
        {
            return Err(code);
        }
        if name == ListOneVolume::NAME {
            let ListOneVolume { partition, volid } =
                ListOneVolume::decode(&mut Decoder::new(&request[4..])).unwrap();
            match self.listed.get(&(partition, volid)) {
                Some(none) if none.is_empty() => return Err(ENODEV),
                Some(listed) => {
                    let listed: Vec<u8> = listed.iter().flat_map(|word| word.to_be_bytes()).collect();
                    return call.write_all(&listed).await.map_err(|error| Abort(error.code().0));
                }
                None => {}
            }
        }
        if let Some(hook) = &self.hook {
            let (wait, answer) = hook(sim.now(), name, &request[4..]);
            sim.sleep_until(sim.now() + wait).await;
            if let Some(answer) = answer {
                return call.write_all(&answer?).await.map_err(|error| Abort(error.code().0));
            }
        }
        match name {
            CreateVolume::NAME | TransCreate::NAME => *self.open.lock().unwrap() += 1,
            EndTrans::NAME => *self.open.lock().unwrap() -= 1,
            _ => {}
        }
        let reply: &[u32] = match name {
            GetNewVolumeId::NAME => &[number],
            // The id that was asked for, and a transaction.
            CreateVolume::NAME => &[u32::from_be_bytes(request[request.len() - 4..].try_into().unwrap()), 7],
            TransCreate::NAME => &[7],
            EndTrans::NAME => &[0],
            _ => &[],
        };
        let reply = match self.replies.get(name) {
            Some(reply) => reply.clone(),
            None => reply.iter().flat_map(|word| word.to_be_bytes()).collect(),
        };
        call.write_all(&reply).await.map_err(|error| Abort(error.code().0))
    }

    fn serve<I: Interface>(&self, sim: &Sim) -> Endpoint {
        let id = ServiceId(I::SERVICE_ID);
        let (security, limits) = (vec![Arc::new(Null) as _], CallLimits::default());
        let service = Service { id, security, check_reach: false, upgrades_to: None, limits };
        let endpoint = bind(sim, SERVER, I::PORT);
        let (script, sim) = (self.clone(), sim.clone());
        endpoint.add_service(ServiceConfig::new(service, move |mut call: ServerCall| {
            let (script, sim) = (script.clone(), sim.clone());
            async move { script.answer(sim, I::RPCS, &mut call).await }
        }));
        endpoint
    }

    /// What comes of an operation, and which calls it makes.
    pub(crate) fn run<F, T>(
        self,
        operation: impl FnOnce(LocationDb, VolumeServers) -> F + Send + 'static,
    ) -> (T, Vec<&'static str>)
    where
        F: Future<Output = T> + Send,
        T: Send + 'static,
    {
        let sim = Sim::new(Duration::from_millis(1));
        let _servers = (self.serve::<Vl>(&sim), self.serve::<AfsVol>(&sim));
        let caller = bind(&sim, Ipv4Addr::new(10, 0, 0, 2), 4000);
        let result = sim.block_on(async move {
            let vldb = LocationDb::new(&caller, &[SERVER], &Login::anonymous());
            let volumes = VolumeServers::new(&caller, Offers::all(&Login::anonymous()));
            operation(vldb, volumes).await
        });
        let asked = self.asked.lock().unwrap().clone();
        (result, asked)
    }
}

fn bind(sim: &Sim, address: Ipv4Addr, port: u16) -> Endpoint {
    let config = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
    Endpoint::bind_with(Arc::new(sim.clone()), SocketAddr::from((address, port)), config).unwrap()
}

/// What has become of a change in a database whose servers do not know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was made: another server, which is asked next, refuses with this code as it is there already, or knows no more.
    Made(Option<Abort>),
    /// It was not made, as the next change shows.
    NotMade,
    /// The database takes no more changes, and answers from memory, where the change is not.
    Open,
}

impl Script {
    /// Has the database not know what became of this change, after which the entry is `after`.
    pub(crate) fn with_doubt(mut self, change: &'static str, fate: Fate, after: &Entry) -> Self {
        let mut wire = Vec::new();
        after.to_wire().unwrap().encode(&mut wire);
        let (earlier, asked) = (self.hook.take(), Arc::clone(&self.asked));
        self.hook = Some(Arc::new(move |now, name, args| {
            let count = asked.lock().unwrap().iter().filter(|asked| **asked == change).count();
            let answer = match (name, fate) {
                (name, Fate::Made(Some(_))) if name == change && count == 1 => Err(Abort(AbortCode::EOF.0)),
                (name, Fate::Made(Some(code))) if name == change => Err(code),
                (name, _) if name == change => Err(VL_IO),
                (GetEntryByIDN::NAME, Fate::Made(_)) if count > 0 => Ok(wire.clone()),
                (GetNewVolumeId::NAME, Fate::Open) if count > 0 => Err(UNOQUORUM),
                _ => {
                    let earlier = earlier.as_ref().map(|hook| hook(now, name, args));
                    return earlier.unwrap_or((Duration::ZERO, None));
                }
            };
            (Duration::ZERO, Some(answer))
        }));
        self
    }
}
