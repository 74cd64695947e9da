//! Calls of servers to the client: who it is, whether it is there, and to drop promises (File service notes 7.3). It answers
//! as a cache manager does and remembers what it heard.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afs_wire::Uuid;
use afs_wire::ids::{AfsFid, HostAddr};
use afs_wire::rxafs::{Capabilities, CapabilityWords};
use afs_wire::rxafscb::{
    CallBack, InitCallBackState, InitCallBackState2, InitCallBackState3, InterfaceAddr, Probe, ProbeUuid,
    Rxafscb, TellMeAboutYourself, WhoAreYou, reply,
};
use rx::{Endpoint, ServiceConfig};
use rx_proto::config::CallLimits;
use rx_proto::endpoint::Service;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::serve::{MAX_ARGUMENT_BYTES, answer, receive_opcode};
use rxgen::{Abort, Interface, Rpc, Serve, ServerCall};
use tokio::sync::Notify;

/// The most calls that a client remembers of what it heard; more is counted, not kept. Tests look at tens.
pub const HEARD_MAX: usize = 100_000;

/// Something that a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// The promises for these are off.
    Broken(Vec<AfsFid>),
    /// All promises of this server are off; it gave its UUID, or is too old to have one.
    ForgetAll(Option<Uuid>),
    /// A question whether the client is there.
    Probe,
    /// A question who the client is.
    WhoAreYou,
}

/// The calls that servers have made, shared by the service and the client.
#[derive(Debug, Default)]
pub(crate) struct CallbackLog {
    heard: Mutex<Vec<Heard>>,
    /// Told at each thing that is heard.
    pub(crate) more: Notify,
}

impl CallbackLog {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: Heard) {
        let mut heard = self.lock();
        if heard.len() < HEARD_MAX {
            heard.push(what);
        }
        drop(heard);
        self.more.notify_waiters();
    }
}

/// The client as its servers see it.
#[derive(Debug)]
struct Ourselves {
    uuid: Uuid,
    addresses: Vec<HostAddr>,
    log: Arc<CallbackLog>,
}

/// Answers servers on this endpoint.
pub(crate) fn offer(endpoint: &Endpoint, uuid: Uuid, log: Arc<CallbackLog>) {
    let addresses = match endpoint.local_addr().ip() {
        IpAddr::V4(address) if !address.is_unspecified() => vec![HostAddr::from(address)],
        _ => Vec::new(),
    };
    let ourselves = Arc::new(Ourselves { uuid, addresses, log });
    let service = Service {
        id: ServiceId(Rxafscb::SERVICE_ID),
        security: vec![Arc::new(Null)],
        check_reach: false,
        upgrades_to: None,
        limits: CallLimits::default(),
    };
    endpoint.add_service(ServiceConfig::new(service, move |call| serve(Arc::clone(&ourselves), call)));
}

async fn serve(ourselves: Arc<Ourselves>, mut call: rx::ServerCall) -> Result<(), Abort> {
    let opcode = receive_opcode(&mut call).await?;
    macro_rules! among {
        ($($rpc:ty),*) => {
            match opcode {
                $( <$rpc as Rpc>::OPCODE => answer::<$rpc, _>(&*ourselves, &mut call, MAX_ARGUMENT_BYTES).await, )*
                // What only debuggers ask.
                _ => Err(Abort::OPCODE),
            }
        };
    }
    among!(
        CallBack,
        InitCallBackState,
        InitCallBackState2,
        InitCallBackState3,
        Probe,
        ProbeUuid,
        WhoAreYou,
        TellMeAboutYourself
    )
}

impl Ourselves {
    fn interface(&self) -> InterfaceAddr {
        InterfaceAddr::new(self.uuid, &self.addresses)
    }
}

impl Serve<CallBack> for Ourselves {
    async fn serve(&self, _: ServerCall<'_, CallBack>, args: CallBack) -> Result<reply::CallBack, Abort> {
        self.log.note(Heard::Broken(args.fids.into_vec()));
        Ok(reply::CallBack {})
    }
}

impl Serve<InitCallBackState> for Ourselves {
    async fn serve(
        &self,
        _: ServerCall<'_, InitCallBackState>,
        _: InitCallBackState,
    ) -> Result<reply::InitCallBackState, Abort> {
        self.log.note(Heard::ForgetAll(None));
        Ok(reply::InitCallBackState {})
    }
}

impl Serve<InitCallBackState2> for Ourselves {
    async fn serve(
        &self,
        _: ServerCall<'_, InitCallBackState2>,
        _: InitCallBackState2,
    ) -> Result<reply::InitCallBackState2, Abort> {
        self.log.note(Heard::ForgetAll(None));
        Ok(reply::InitCallBackState2 { addr: self.interface() })
    }
}

impl Serve<InitCallBackState3> for Ourselves {
    async fn serve(
        &self,
        _: ServerCall<'_, InitCallBackState3>,
        args: InitCallBackState3,
    ) -> Result<reply::InitCallBackState3, Abort> {
        self.log.note(Heard::ForgetAll(Some(args.server_uuid)));
        Ok(reply::InitCallBackState3 {})
    }
}

impl Serve<Probe> for Ourselves {
    async fn serve(&self, _: ServerCall<'_, Probe>, _: Probe) -> Result<reply::Probe, Abort> {
        self.log.note(Heard::Probe);
        Ok(reply::Probe {})
    }
}

impl Serve<ProbeUuid> for Ourselves {
    async fn serve(&self, _: ServerCall<'_, ProbeUuid>, args: ProbeUuid) -> Result<reply::ProbeUuid, Abort> {
        self.log.note(Heard::Probe);
        // 1: somebody else lives here now.
        if args.client_uuid == self.uuid { Ok(reply::ProbeUuid {}) } else { Err(Abort(1)) }
    }
}

impl Serve<WhoAreYou> for Ourselves {
    async fn serve(&self, _: ServerCall<'_, WhoAreYou>, _: WhoAreYou) -> Result<reply::WhoAreYou, Abort> {
        self.log.note(Heard::WhoAreYou);
        Ok(reply::WhoAreYou { addr: self.interface() })
    }
}

impl Serve<TellMeAboutYourself> for Ourselves {
    async fn serve(
        &self,
        _: ServerCall<'_, TellMeAboutYourself>,
        _: TellMeAboutYourself,
    ) -> Result<reply::TellMeAboutYourself, Abort> {
        self.log.note(Heard::WhoAreYou);
        let capabilities =
            CapabilityWords::new(vec![Capabilities::ERRORTRANS.0]).expect("one word is not too many");
        Ok(reply::TellMeAboutYourself { addr: self.interface(), capabilities })
    }
}
