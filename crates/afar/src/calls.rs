//! Remote procedures for commands that do one thing after the other: a call blocks until it is answered, and fails with one
//! code, as OpenAFS's tools see it. Which server is asked, and with what security, is for the callers.

use crate::codes::Code;
use afs_admin::{Cancel, Error};
use rx::{Connection, Endpoint, EndpointConfig};
use rx_proto::config::CallLimits;
use rx_proto::ids::ServiceId;
use rx_proto::security::SecurityClass;
use rxgen::Rpc;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// A server that sends nothing at all for so long is taken for dead. Half of what OpenAFS's `vos` waits; a volume server
/// that is busy answers pings meanwhile.
const DEAD_AFTER: Duration = Duration::from_secs(45);

/// The exit status that shells give to a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// One UDP port, from which everything is called.
pub(crate) struct Caller {
    endpoint: Endpoint,
    runtime: Runtime,
}

impl Caller {
    /// Opens a port.
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let endpoint = {
            let _entered = runtime.enter();
            Endpoint::bind(any, EndpointConfig::default())?
        };
        Ok(Self { endpoint, runtime })
    }

    /// Good randomness, for what is to be secret.
    pub(crate) fn seed(&self) -> io::Result<[u8; 32]> {
        self.endpoint.runtime().seed()
    }

    /// A connection to a service of a server.
    pub(crate) fn connect(
        &self,
        server: SocketAddr,
        service: u16,
        security: Box<dyn SecurityClass>,
    ) -> Connection {
        let connection = self.endpoint.connect(server, ServiceId(service), security);
        connection.set_limits(CallLimits { dead: DEAD_AFTER, ..CallLimits::default() });
        connection
    }

    /// A connection to somebody who does no long work: who is silent is taken for dead sooner.
    pub(crate) fn connect_to_client(
        &self,
        client: SocketAddr,
        service: u16,
        security: Box<dyn SecurityClass>,
    ) -> Connection {
        self.endpoint.connect(client, ServiceId(service), security)
    }

    /// The port, for operations that make their connections themselves.
    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Calls a procedure and waits for its results.
    pub(crate) fn call<R: Rpc>(&self, connection: &Connection, args: &R) -> Result<R::Reply, Code> {
        self.run(connection.rpc(args)).map_err(|error| Code(error.code().0))
    }

    /// Has an operation stop in an orderly way at Ctrl-C; the second one ends the program at once.
    pub(crate) fn cancelled_by_interrupt(&self, program: &'static str) -> Cancel {
        let cancel = Cancel::default();
        let told = cancel.clone();
        let _entered = self.runtime.enter();
        // From here on, and not when the task first runs: the caller may hold something by then.
        let Ok(mut interrupts) = signal(SignalKind::interrupt()) else { return cancel };
        self.runtime.spawn(async move {
            if interrupts.recv().await.is_some() {
                eprintln!("{program}: stopping in order; Ctrl-C once more stops at once");
                told.cancel();
                if interrupts.recv().await.is_some() {
                    std::process::exit(INTERRUPTED);
                }
            }
        });
        cancel
    }

    /// Waits until an operation has ended or is to stop. The operation has to be one that loses nothing when it is dropped.
    pub(crate) fn wait_unless_cancelled<T>(
        &self,
        operation: impl Future<Output = Result<T, Error>>,
        cancel: &Cancel,
    ) -> Result<T, Code> {
        self.wait(async {
            cancel.check()?;
            cancel.or_break_off(operation).await
        })
    }

    /// Waits for this time, or until the operation is to stop.
    pub(crate) fn sleep(&self, duration: Duration, cancel: &Cancel) {
        self.run(async {
            // Both are ends of the wait.
            let _ = timeout(duration, cancel.cancelled()).await;
        });
    }

    /// Runs work beside what is waited for, until the handle ends it.
    pub(crate) fn beside(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.runtime.spawn(work).abort_handle()
    }

    /// Waits for whatever comes of an operation.
    pub(crate) fn run<T>(&self, operation: impl Future<Output = T>) -> T {
        // As one type of future, so that the loop of the runtime is compiled once, and not for each operation.
        let mut outcome = None;
        {
            let work: Pin<&mut dyn Future<Output = ()>> = pin!(async { outcome = Some(operation.await) });
            self.runtime.block_on(work);
        }
        outcome.expect("it has ended")
    }

    /// Waits for the end of an operation.
    pub(crate) fn wait<T>(&self, operation: impl Future<Output = Result<T, Error>>) -> Result<T, Code> {
        self.run(operation).map_err(|error| Code(error.code().0))
    }
}

impl Drop for Caller {
    /// Servers are told that their calls are over.
    fn drop(&mut self) {
        self.endpoint.shut_down();
    }
}
