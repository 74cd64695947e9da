//! Making a volume: which calls it takes, what is told meanwhile, and what is left behind when one of them fails. The servers are
//! scripted, in virtual time.

#[path = "../../rx/tests/support/sim.rs"]
mod sim;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afs_admin::create::{CreateFailure, Event, Ids, NewVolume, Step, create};
use afs_admin::vldb::LocationDb;
use afs_admin::volumes::VolumeServers;
use afs_admin::{Cancel, Error, Login};
use afs_wire::abort::{VL_NAMEEXIST, VL_NOENT, VOLSERFAILEDOP};
use afs_wire::afsvol::{AfsVol, CreateVolume, DeleteVolume, EndTrans, SetFlags, SetInfo};
use afs_wire::ids::{PartitionId, VolumeId};
use afs_wire::vl::{CreateEntryN, GetEntryByIDN, GetNewVolumeId, Vl};
use rx::{Endpoint, EndpointConfig, ServerCall, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::{Abort, Interface, Rpc, RpcInfo};
use sim::Sim;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// The calls that make a volume whose ids come from the database.
const ALL: [&str; 8] = [
    GetNewVolumeId::NAME,
    GetNewVolumeId::NAME,
    GetNewVolumeId::NAME,
    CreateVolume::NAME,
    SetInfo::NAME,
    SetFlags::NAME,
    CreateEntryN::NAME,
    EndTrans::NAME,
];

/// A location server and a volume server on one machine, which do as they are told.
#[derive(Clone, Default)]
struct Script {
    /// What is refused.
    refused: HashMap<&'static str, Abort>,
    /// The call during which somebody wants no volume any more.
    cancelled_at: Option<&'static str>,
    cancel: Cancel,
    asked: Arc<Mutex<Vec<&'static str>>>,
}

/// What came of making a volume.
struct Made {
    result: Result<Ids, CreateFailure>,
    told: Vec<String>,
    asked: Vec<&'static str>,
}

impl Script {
    fn refusing(refused: &[(&'static str, Abort)]) -> Self {
        Self { refused: refused.iter().copied().collect(), ..Self::default() }
    }

    async fn answer(self, rpcs: &'static [RpcInfo], call: &mut ServerCall) -> Result<(), Abort> {
        let request = call.read_to_end(10_000).await.map_err(|error| Abort(error.code().0))?;
        let opcode = u32::from_be_bytes(request[..4].try_into().unwrap());
        let name = rpcs.iter().find(|rpc| rpc.opcode == opcode).unwrap().name;
        let number = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(name);
            100 + asked.len() as u32
        };
        if self.cancelled_at == Some(name) {
            self.cancel.cancel();
        }
        if let Some(code) = self.refused.get(name) {
            return Err(*code);
        }
        let reply: &[u32] = match name {
            GetNewVolumeId::NAME => &[number],
            // The id that was asked for, and a transaction.
            CreateVolume::NAME => &[u32::from_be_bytes(request[request.len() - 4..].try_into().unwrap()), 7],
            EndTrans::NAME => &[0],
            _ => &[],
        };
        let reply: Vec<u8> = reply.iter().flat_map(|word| word.to_be_bytes()).collect();
        call.write_all(&reply).await.map_err(|error| Abort(error.code().0))
    }

    fn serve<I: Interface>(&self, sim: &Sim) -> Endpoint {
        let id = ServiceId(I::SERVICE_ID);
        let (security, limits) = (vec![Arc::new(Null) as _], CallLimits::default());
        let service = Service { id, security, check_reach: false, upgrades_to: None, limits };
        let endpoint = bind(sim, SERVER, I::PORT);
        let script = self.clone();
        endpoint.add_service(ServiceConfig::new(service, move |mut call: ServerCall| {
            let script = script.clone();
            async move { script.answer(I::RPCS, &mut call).await }
        }));
        endpoint
    }

    /// Makes a volume, with an id if one is given.
    fn make(self, id: Option<u32>) -> Made {
        let sim = Sim::new(Duration::from_millis(1));
        let _servers = (self.serve::<Vl>(&sim), self.serve::<AfsVol>(&sim));
        let caller = bind(&sim, Ipv4Addr::new(10, 0, 0, 2), 4000);
        let cancel = self.cancel.clone();
        let (result, told) = sim.block_on(async move {
            let vldb = LocationDb::new(&caller, &[SERVER], &Login::anonymous());
            let volumes = VolumeServers::new(&caller, &Login::anonymous());
            let new = NewVolume {
                name: "user.alice",
                server: SERVER,
                partition: PartitionId(0),
                quota_kib: 5000,
                id: id.map(VolumeId),
                read_only_id: None,
            };
            let mut told = Vec::new();
            let tell = |event: Event<'_>| {
                told.push(match event {
                    Event::IdIsFree(id) => format!("{id} is free"),
                    Event::NoQuota(error) => format!("no quota: {}", error.code().0),
                    Event::IsOnline(id) => format!("{id} is online"),
                    Event::HasEntry(id) => format!("{id} has its entry"),
                });
            };
            (create(&vldb, &volumes, new, &cancel, tell).await, told)
        });
        let asked = self.asked.lock().unwrap().clone();
        Made { result, told, asked }
    }
}

fn bind(sim: &Sim, address: Ipv4Addr, port: u16) -> Endpoint {
    let config = EndpointConfig { publish_every: None, shards: Some(1), ..EndpointConfig::default() };
    Endpoint::bind_with(Arc::new(sim.clone()), SocketAddr::from((address, port)), config).unwrap()
}

#[test]
fn a_volume_is_online_before_it_has_an_entry() {
    let made = Script::default().make(None);
    let ids = made.result.unwrap();
    assert_eq!([ids.read_write, ids.read_only, ids.backup], [101, 102, 103].map(VolumeId));
    assert_eq!(made.asked, ALL);
    assert_eq!(made.told, ["101 is online", "101 has its entry"]);
}

#[test]
fn a_volume_without_an_entry_is_removed_again() {
    let made = Script::refusing(&[(CreateEntryN::NAME, VL_NAMEEXIST)]).make(None);
    let failure = made.result.unwrap_err();
    assert_eq!((failure.step, failure.error.code()), (Step::MakeEntry(VolumeId(101)), VL_NAMEEXIST));
    assert_eq!(failure.left, None, "{failure}");
    assert_eq!(made.asked[6..], [CreateEntryN::NAME, DeleteVolume::NAME, EndTrans::NAME]);
}

#[test]
fn a_volume_that_cannot_be_removed_is_named() {
    let refused = [(CreateEntryN::NAME, VL_NAMEEXIST), (DeleteVolume::NAME, VOLSERFAILEDOP)];
    let failure = Script::refusing(&refused).make(None).result.unwrap_err();
    assert_eq!(failure.left, Some(VolumeId(101)));
    assert_eq!(failure.error.code(), VL_NAMEEXIST, "the first failure counts");
    let text = failure.to_string();
    assert!(text.contains("keeps volume 101") && text.contains("vos zap"), "{text}");
}

#[test]
fn a_volume_that_stays_offline_gets_no_entry() {
    let made = Script::refusing(&[(SetFlags::NAME, VOLSERFAILEDOP)]).make(None);
    let failure = made.result.unwrap_err();
    assert_eq!((failure.step, failure.left), (Step::BringOnline(VolumeId(101)), Some(VolumeId(101))));
    assert!(!made.asked.contains(&CreateEntryN::NAME));
    assert_eq!(made.asked.last(), Some(&EndTrans::NAME), "nobody else has to wait for it");
}

#[test]
fn a_quota_that_is_refused_is_told_of_and_the_volume_made() {
    let made = Script::refusing(&[(SetInfo::NAME, VOLSERFAILEDOP)]).make(None);
    assert!(made.result.is_ok());
    assert_eq!(made.told[0], format!("no quota: {}", VOLSERFAILEDOP.0));
}

#[test]
fn a_transaction_that_cannot_be_ended_leaves_the_volume() {
    let failure = Script::refusing(&[(EndTrans::NAME, VOLSERFAILEDOP)]).make(None).result.unwrap_err();
    assert_eq!((failure.step, failure.left), (Step::End(VolumeId(101)), Some(VolumeId(101))));
}

#[test]
fn an_id_that_is_given_must_be_free_and_its_clones_follow_it() {
    let made = Script::refusing(&[(GetEntryByIDN::NAME, VL_NOENT)]).make(Some(500));
    let ids = made.result.unwrap();
    assert_eq!([ids.read_write, ids.read_only, ids.backup], [500, 501, 502].map(VolumeId));
    assert_eq!(made.told[0], "500 is free");
    assert_eq!(made.asked[..2], [GetEntryByIDN::NAME, CreateVolume::NAME]);
}

#[test]
fn a_volume_that_nobody_wants_any_more_is_removed_unless_it_has_its_entry() {
    let cancelled = |at| Script { cancelled_at: Some(at), ..Script::default() }.make(None);
    for at in [CreateVolume::NAME, SetInfo::NAME, SetFlags::NAME] {
        let made = cancelled(at);
        let failure = made.result.unwrap_err();
        assert!(matches!(failure.error, Error::Cancelled), "{at}: {failure}");
        assert_eq!(failure.left, None, "{at}");
        assert_eq!(made.asked[made.asked.len() - 2..], [DeleteVolume::NAME, EndTrans::NAME], "{at}");
        assert!(!made.asked.contains(&CreateEntryN::NAME), "{at}");
    }
    let made = cancelled(GetNewVolumeId::NAME);
    assert!(made.result.is_err() && !made.asked.contains(&CreateVolume::NAME));
    assert!(cancelled(CreateEntryN::NAME).result.is_ok());
}
