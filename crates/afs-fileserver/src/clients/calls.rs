//! Calls to clients, each with an end in time: who are you, and what they are told. What is said to whom is left to the parent.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use afs_wire::abort::RXGK_NOTAUTH;
use afs_wire::rxafs::{AfsCbFids, AfsCbs};
use afs_wire::rxafscb;
use rx::{CallError, Connection, RpcError};
use rx_proto::ids::ServiceId;
use rx_proto::security::{Null, SecurityClass};
use rx_proto::time::Instant;
use rxgen::{Abort, Interface, Rpc};

use super::{Clients, MakeClass, Protection};
use crate::hosts::{Delivery, Identity, Message, Outcome};

/// The answer of a client to a message for another (`ProbeUuid`).
const NOT_ME: i32 = 1;

impl Clients {
    pub(super) async fn ask(&self, address: SocketAddr) -> Option<Identity> {
        let until = self.now() + self.introduction_wait;
        let words = |addr: rxafscb::InterfaceAddr, capabilities: u32| Identity {
            uuid: Some(addr.uuid),
            capabilities,
        };
        match self.call((address, Protection::Open), until, &rxafscb::TellMeAboutYourself {}).await {
            Ok(reply) => {
                let capabilities = reply.capabilities.first().copied().unwrap_or(0);
                return Some(words(reply.addr, capabilities));
            }
            Err(Unheard::Refused(code)) if code == Abort::OPCODE.0 => {}
            Err(_) => return None,
        }
        match self.call((address, Protection::Open), until, &rxafscb::WhoAreYou {}).await {
            Ok(reply) => Some(words(reply.addr, 0)),
            Err(Unheard::Refused(code)) if code == Abort::OPCODE.0 => {
                Some(Identity { uuid: None, capabilities: 0 })
            }
            Err(_) => None,
        }
    }

    /// Gives a message, and waits for its answer at most so long.
    pub(super) async fn tell(&self, delivery: &Delivery, wait: Duration) -> Outcome {
        let until = self.now() + wait;
        let [open, keyed] = [Protection::Open, Protection::Keyed].map(|by| (delivery.address, by));
        let result = match &delivery.message {
            Message::Reset => {
                let reset = rxafscb::InitCallBackState3 { server_uuid: self.uuid };
                match self.call(keyed, until, &reset).await.map(drop) {
                    Err(Unheard::Refused(code)) if code == Abort::OPCODE.0 => {
                        self.call(keyed, until, &rxafscb::InitCallBackState {}).await.map(drop)
                    }
                    result => result,
                }
            }
            Message::Break(fids) => {
                let mut result = Ok(());
                for fids in fids.chunks(afs_wire::ids::AFSCBMAX) {
                    let fids = AfsCbFids::new(fids.to_vec()).expect("no more than fit into a message");
                    let message = rxafscb::CallBack { fids, callbacks: AfsCbs::default() };
                    result = self.call(keyed, until, &message).await.map(drop);
                    if matches!(result, Err(Unheard::NoAnswer | Unheard::NOT_BELIEVED)) {
                        break;
                    }
                }
                result
            }
            Message::Probe => match delivery.uuid {
                Some(client_uuid) => {
                    self.call(open, until, &rxafscb::ProbeUuid { client_uuid }).await.map(drop)
                }
                None => self.call(open, until, &rxafscb::Probe {}).await.map(drop),
            },
        };
        match result {
            // A client that refuses a message has received it.
            Ok(()) => Outcome::Delivered,
            Err(Unheard::Refused(NOT_ME)) if delivery.message == Message::Probe => Outcome::SomebodyElse,
            // It brings what it believes, and is told then.
            Err(Unheard::NoAnswer | Unheard::NOT_BELIEVED) => Outcome::NoAnswer,
            Err(Unheard::Refused(_)) => Outcome::Delivered,
        }
    }

    async fn call<R: Rpc>(
        &self,
        to: (SocketAddr, Protection),
        until: Instant,
        args: &R,
    ) -> Result<R::Reply, Unheard> {
        let connection = self.connection(to).ok_or(Unheard::NoAnswer)?;
        let result = self.call_on(&connection, until, args).await;
        if result.is_err() {
            // It may be the connection that is at fault: forgotten after long silence, or refused.
            self.connections.lock().unwrap_or_else(PoisonError::into_inner).pop(&to);
        }
        result
    }

    async fn call_on<R: Rpc>(
        &self,
        connection: &Connection,
        until: Instant,
        args: &R,
    ) -> Result<R::Reply, Unheard> {
        let work = pin!(async {
            let call = connection.call().await.map_err(|_| Unheard::NoAnswer)?;
            call.rpc(args).await.map_err(Unheard::of)
        });
        // A free channel has to be waited for too, and has no deadline of its own.
        rx::in_time(&*self.runtime, until, work).await.unwrap_or(Err(Unheard::NoAnswer))
    }

    fn connection(&self, (address, protection): (SocketAddr, Protection)) -> Option<Connection> {
        let endpoint = self.endpoint.upgrade()?;
        let class = match protection {
            Protection::Open => None,
            Protection::Keyed => {
                self.classes.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
            }
        };
        let key = (address, if class.is_some() { Protection::Keyed } else { Protection::Open });
        let is_same = |theirs: &Option<MakeClass>| match (theirs, &class) {
            (Some(theirs), Some(class)) => Arc::ptr_eq(theirs, class),
            (None, None) => true,
            _ => false,
        };
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, connection)) = connections.get(&key).filter(|(theirs, _)| is_same(theirs)) {
            return Some(connection.clone());
        }
        let service = ServiceId(rxafscb::Rxafscb::SERVICE_ID);
        let end = class.as_ref().map_or_else(|| Box::new(Null) as Box<dyn SecurityClass>, |make| make());
        let connection = endpoint.connect(address, service, end);
        connections.put(key, (class, connection.clone()));
        Some(connection)
    }
}

/// The reason why a message had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unheard {
    /// The client aborted the call with this code.
    Refused(i32),
    /// It did not answer.
    NoAnswer,
}

impl Unheard {
    /// The client takes this from the server only by the class that it has asked for.
    const NOT_BELIEVED: Self = Self::Refused(RXGK_NOTAUTH.0);

    fn of(error: RpcError) -> Self {
        match error {
            RpcError::Call { source: CallError::Aborted { code, .. }, .. } => Self::Refused(code.0),
            // It answered, if nothing that can be understood.
            RpcError::Reply { .. } => Self::Refused(Abort::CC_UNMARSHAL.0),
            RpcError::Call { .. } => Self::NoAnswer,
        }
    }
}
