//! Declared interfaces as services: each call is answered by the handler of its procedure, and counted and timed under the
//! procedure's name. What the numbers are called is in [`metrics`](crate::metrics).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Counter, Histogram};
use rxgen::serve::receive_opcode;
use rxgen::{Abort, Dispatch, Interface};

use crate::metrics::{RPC_SECONDS, RPCS_ENDED};
use crate::runtime::Runtime;
use crate::server::ServerCall;

/// The name under which calls of procedures that there are not are counted.
const UNKNOWN: &str = "unknown";

/// Counts and times the calls of an interface by its procedures.
pub struct Procedures {
    interface: &'static str,
    by_opcode: BTreeMap<u32, Meters>,
    unknown: Meters,
}

/// The metrics of a procedure. They are made when there is something to publish, so that the hundreds that nobody calls take
/// no room in what is shown.
struct Meters {
    name: &'static str,
    ok: OnceLock<(Counter, Histogram)>,
    failed: OnceLock<(Counter, Histogram)>,
}

impl Meters {
    fn of(name: &'static str) -> Self {
        Self { name, ok: OnceLock::new(), failed: OnceLock::new() }
    }

    fn note(&self, interface: &'static str, is_ok: bool, took: Duration) {
        let (result, meters) = if is_ok { ("ok", &self.ok) } else { ("failed", &self.failed) };
        let (ended, seconds) = meters.get_or_init(|| {
            let name = self.name;
            let labels = [("interface", interface), ("rpc", name), ("result", result)];
            (metrics::counter!(RPCS_ENDED, &labels), metrics::histogram!(RPC_SECONDS, &labels))
        });
        ended.increment(1);
        seconds.record(took);
    }
}

impl Procedures {
    /// Makes the metrics of an interface. Nothing is published before the first call.
    pub fn of<I: Interface>() -> Self {
        let meters = |rpc: &rxgen::RpcInfo| (rpc.opcode, Meters::of(rpc.name));
        let by_opcode = I::RPCS.iter().map(meters).collect();
        Self { interface: I::NAME, by_opcode, unknown: Meters::of(UNKNOWN) }
    }

    /// Answers a call from its first byte with the handlers of `server`, as [`rxgen::serve::serve_call`] does.
    ///
    /// # Errors
    ///
    /// The code with which the call is to be aborted.
    pub async fn serve<I, S>(
        &self,
        server: &S,
        call: &mut ServerCall,
        max_argument_bytes: usize,
    ) -> Result<(), Abort>
    where
        I: Dispatch<S>,
        S: Sync + ?Sized,
    {
        let opcode = receive_opcode(call).await?;
        let driver = std::sync::Arc::clone(&call.driver);
        self.measure(opcode, &*driver.runtime, I::dispatch(server, opcode, call, max_argument_bytes)).await
    }

    /// Counts and times the work of a call whose opcode has been read. A call that ends before its work, because the client
    /// went away, is not counted here.
    ///
    /// # Errors
    ///
    /// Those of the work.
    pub async fn measure<T>(
        &self,
        opcode: u32,
        runtime: &dyn Runtime,
        work: impl Future<Output = Result<T, Abort>> + Send,
    ) -> Result<T, Abort> {
        let begun = runtime.now();
        let result = work.await;
        let meters = self.by_opcode.get(&opcode).unwrap_or(&self.unknown);
        meters.note(self.interface, result.is_ok(), runtime.now().since(begun));
        result
    }
}

impl fmt::Debug for Procedures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Procedures({}, {})", self.interface, self.by_opcode.len())
    }
}
