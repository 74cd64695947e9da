//! The serving end: services, their handlers, and how many calls run and wait. Whose calls run, and in which order the others
//! wait, is in `server/slots.rs`.

mod slots;

use std::fmt;
use std::future::{Future, poll_fn};
use std::iter;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use rx_proto::abort::AbortCode;
use rx_proto::endpoint::{CallHandle, Service};
use rx_proto::fair::Owner;
use rx_proto::ids::{Epoch, SecurityIndex, SecurityLevel, ServiceId};
use rxgen::Abort;

use crate::call::{Call, ending_of};
use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::metrics::{CallMeters, Measured, add};
use crate::runtime::{BoxFuture, Runtime};
use crate::shard::{Incoming, Shard};
use slots::{Admission, Slots};

/// The work of a handler, and its result.
type Work = Pin<Box<dyn Future<Output = Result<(), Abort>> + Send>>;

/// Answers the calls of a service. Implemented for functions that take a [`ServerCall`] and return a future.
pub trait Handler: Send + Sync + 'static {
    /// Answers a call: with `Ok` its reply is ended, with `Err` it is aborted with the code. A panic aborts it too.
    fn handle(&self, call: ServerCall) -> Pin<Box<dyn Future<Output = Result<(), Abort>> + Send>>;
}

impl<F, W> Handler for F
where
    F: Fn(ServerCall) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Abort>> + Send + 'static,
{
    fn handle(&self, call: ServerCall) -> Work {
        Box::pin(self(call))
    }
}

/// A service with its handler and limits.
pub struct ServiceConfig {
    /// The facts that the protocol needs: number, security classes, time limits.
    pub service: Service,
    /// The handler that answers calls.
    pub handler: Arc<dyn Handler>,
    /// Calls that run at once. An owner (a user, else a host) has at most as many of them as it leaves free, so one alone has
    /// half. Default 1024: a running call holds a task and what its handler needs, and at most its windows.
    pub max_calls: usize,
    /// Calls that wait for one of those to end, owners taking turns; beyond it the newest of the owner
    /// with the most are refused with `busy_code`, so that clients go elsewhere or come later. Default 4096.
    pub max_waiting: usize,
    /// The code that refuses them. Default: Rx's [`AbortCode::RESTARTING`]; a file server says VBUSY, 110.
    pub busy_code: AbortCode,
    /// The code of a call whose handler has panicked. Default: Rx's [`AbortCode::USER_ABORT`].
    pub panic_code: AbortCode,
    /// Begin to answer on the thread that brought the call, going on as a task if the handler waits. Saves some 20 to
    /// 40 µs a call, and is only right for handlers that never block or compute for long, as they keep the port from its
    /// other packets. Default: false.
    pub answers_at_once: bool,
}

impl ServiceConfig {
    /// A service with the default limits.
    pub fn new(service: Service, handler: impl Handler) -> Self {
        Self {
            service,
            handler: Arc::new(handler),
            max_calls: 1024,
            max_waiting: 4096,
            busy_code: AbortCode::RESTARTING,
            panic_code: AbortCode::USER_ABORT,
            answers_at_once: false,
        }
    }
}

impl fmt::Debug for ServiceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceConfig").field("service", &self.service).finish_non_exhaustive()
    }
}

/// A call as its handler has it: the request is received, the reply sent. It is over when the handler is.
pub struct ServerCall {
    call: Call,
    epoch: Epoch,
    identity: Option<String>,
    class: SecurityIndex,
    level: SecurityLevel,
}

impl ServerCall {
    /// The caller, as the security class has established it and in its notation; `None` for nobody in particular. For
    /// rxkad it is a name such as `user.admin`, which `rx_security::Identity::parse` takes apart.
    pub fn identity(&self) -> Option<&str> {
        self.identity.as_deref()
    }

    /// The security class of the caller's connection.
    pub fn class(&self) -> SecurityIndex {
        self.class
    }

    /// How well what the caller and this end say is protected.
    pub fn level(&self) -> SecurityLevel {
        self.level
    }

    /// The epoch of the caller's connection: another one at the same address says that the caller was started anew, or is
    /// another.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The endpoint that took the call, for calls back from the same port; `None` when it is being shut down.
    pub fn endpoint(&self) -> Option<Endpoint> {
        self.call.driver.owner.get()?.upgrade().map(Endpoint::from_handle)
    }
}

impl fmt::Debug for ServerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerCall").field(&self.call).finish()
    }
}

impl Deref for ServerCall {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}

impl DerefMut for ServerCall {
    fn deref_mut(&mut self) -> &mut Call {
        &mut self.call
    }
}

/// A service that is offered.
pub(crate) struct ServiceEntry {
    config: ServiceConfig,
    slots: Mutex<Slots<Accepted>>,
    meters: Arc<CallMeters>,
}

/// A call, and what sees to its end.
struct Accepted {
    call: ServerCall,
    end: End,
}

impl ServiceEntry {
    pub(crate) fn new(config: ServiceConfig, meters: Arc<CallMeters>) -> Self {
        let slots = Mutex::new(Slots::new(config.max_calls, config.max_waiting));
        Self { config, slots, meters }
    }

    pub(crate) fn id(&self) -> ServiceId {
        self.config.service.id
    }

    fn lock(&self) -> MutexGuard<'_, Slots<Accepted>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of calls that run or wait.
    pub(crate) fn calls(&self) -> usize {
        self.lock().calls()
    }

    /// Forgets the calls that wait.
    pub(crate) fn clear(&self) {
        let waiting = self.lock().drain();
        drop(waiting);
    }
}

impl Driver {
    /// Gives a new call to its service.
    pub(crate) fn dispatch(&self, shard: &Shard, incoming: Incoming, may_run_handlers: bool) {
        let Incoming { handle, service, peer, epoch, identity, class, level } = incoming;
        let Some(driver) = self.me.upgrade() else { return };
        let mut end =
            End { driver: Arc::clone(&driver), shard: shard.index, handle, is_over: false, measured: None };
        let entry = {
            let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
            services.get(&service).map(Arc::clone)
        };
        let Some(entry) = entry else {
            return end.end(Err(AbortCode::INVALID_OPERATION));
        };
        let measured = Measured { started: self.runtime.now(), meters: Arc::clone(&entry.meters) };
        end.measured = Some(measured.clone());
        let call = Call::new(driver, shard.index, handle, peer, service, false, measured);
        let accepted = Accepted { call: ServerCall { call, epoch, identity, class, level }, end };
        let owner = self.owners.owner(accepted.call.identity(), peer.ip());
        let admission = entry.lock().admit(owner, accepted);
        let accepted = match admission {
            Admission::Runs(accepted) => accepted,
            Admission::Waits => return add(&self.counters.calls_waited, 1),
            Admission::Refused(Accepted { call, mut end }) => {
                add(&self.counters.calls_refused, 1);
                end.end(Err(entry.config.busy_code));
                return drop(call);
            }
        };
        let at_once = entry.config.answers_at_once && may_run_handlers;
        let mut task = serve(Slot { entry, owner, runtime: Arc::clone(&self.runtime) }, accepted);
        // A task is always polled when it starts, so nothing is lost by the waker that does nothing.
        if at_once && task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        self.runtime.spawn(task);
    }
}

/// Answers a call in a slot. When that is over, the calls for which there is room then begin as tasks.
fn serve(slot: Slot, accepted: Accepted) -> BoxFuture {
    Box::pin(async move {
        let Accepted { call, mut end } = accepted;
        let config = &slot.entry.config;
        add(&end.driver.counters.calls_served, 1);
        call.note_handler_begins();
        let peer = call.peer();
        let result = match catch(&*config.handler, call).await {
            Ok(result) => result.map_err(|Abort(code)| AbortCode(code)),
            Err(message) => {
                add(&end.driver.counters.handler_panics, 1);
                let service = config.service.id.0;
                tracing::error!(service, %peer, message, "a handler panicked; its call was aborted");
                Err(config.panic_code)
            }
        };
        end.end(result);
        slot.pass_on();
    })
}

/// Runs a handler; a panic becomes its message.
async fn catch(handler: &dyn Handler, call: ServerCall) -> Result<Result<(), Abort>, String> {
    // What a handler that panicked leaves behind is dropped, and what it shares with others has to bear it.
    let mut work = panic::catch_unwind(AssertUnwindSafe(|| handler.handle(call))).map_err(message_of)?;
    poll_fn(move |cx| match panic::catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(payload) => std::task::Poll::Ready(Err(message_of(payload))),
    })
    .await
}

fn message_of(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => {
            payload.downcast_ref::<&str>().map_or_else(|| "no message".to_owned(), |s| (*s).to_owned())
        }
    }
}

/// One of the calls that a service runs at once.
struct Slot {
    entry: Arc<ServiceEntry>,
    owner: Owner,
    runtime: Arc<dyn Runtime>,
}

impl Slot {
    /// Lets go of the slot, and begins what may run now.
    fn pass_on(self) {
        let Self { entry, runtime, .. } = &self;
        let (entry, runtime) = (Arc::clone(entry), Arc::clone(runtime));
        drop(self);
        let next: Vec<_> = {
            let mut slots = entry.lock();
            iter::from_fn(|| slots.next()).collect()
        };
        for (owner, accepted) in next {
            let slot = Slot { entry: Arc::clone(&entry), owner, runtime: Arc::clone(&runtime) };
            runtime.spawn(serve(slot, accepted));
        }
    }
}

/// Frees the slot also where the task was dropped, as at the end of a runtime: then nothing begins any more.
impl Drop for Slot {
    fn drop(&mut self) {
        self.entry.lock().release(self.owner);
    }
}

/// Ends a call: by its handler's result, or, if it is dropped before, by an abort.
struct End {
    driver: Arc<Driver>,
    shard: usize,
    handle: CallHandle,
    is_over: bool,
    /// `None` for a call of a service that there is not.
    measured: Option<Measured>,
}

impl End {
    fn end(&mut self, result: Result<(), AbortCode>) {
        if mem::replace(&mut self.is_over, true) {
            return;
        }
        let handle = self.handle;
        let measured = self.measured.take();
        let ending = self.driver.with(&self.driver.shards[self.shard], |state, now| {
            let ending = measured.map(|m| {
                (ending_of(&state.endpoint, handle, now.since(m.started), Some(result.is_ok())), m.meters)
            });
            match result {
                // It may have failed meanwhile: then nobody waits for the end.
                Ok(()) => drop(state.endpoint.finish(now, handle)),
                Err(code) => state.endpoint.abort(now, handle, code),
            }
            state.endpoint.release(now, handle);
            state.remove_call(handle);
            ending
        });
        if let Some((ending, meters)) = ending {
            meters.note_end(&ending);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.end(Err(AbortCode::USER_ABORT));
    }
}
