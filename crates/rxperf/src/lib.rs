//! The rxperf protocol (rxperf notes) as a library: how a call opens and closes, and the service that answers it. What is
//! measured, and by which client, is left to who calls: `afar rxperf` and the benches.
#![forbid(unsafe_code)]

mod protocol;
mod service;

pub use protocol::{MAGIC, MAX_LIST, MAX_SIZE, Request, SERVICE, VERSION};
pub use service::{config, send_zeroes};
