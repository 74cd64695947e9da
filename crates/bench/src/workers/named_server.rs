//! An rxperf server whose clients say their names: started as `afar-bench named-server PORT`, prints "ready PORT", and serves
//! until its standard input ends.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rx::{Endpoint, EndpointConfig};
use tokio::runtime::Builder;

use super::{Failure, hear, print};
use afs_lab::caller::named::NamedServer;

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "named-server";

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let [port] = arguments else { return Err("for afar-bench's own use: PORT".into()) };
    // As many threads as `afar rxperf` has.
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let endpoint = {
        let _in_runtime = runtime.enter();
        Endpoint::bind((Ipv4Addr::UNSPECIFIED, port.parse()?).into(), EndpointConfig::default())?
    };
    endpoint.add_service(rxperf::config(vec![Arc::new(NamedServer)]));
    print(format_args!("ready {}", endpoint.local_addr().port()))?;
    while hear()?.is_some() {}
    Ok(())
}
