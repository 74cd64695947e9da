//! Our Rx against OpenAFS's, in both directions, and our GSS-API against MIT Kerberos's. Each module makes cases of one kind; `cargo test -p afar-interop NAME` runs
//! those with NAME in theirs.

#![forbid(unsafe_code)]

mod calls;
mod celldb;
mod facts;
mod gss;
mod limits;
mod restart;
mod rxdebug;
mod rxkad;
mod rxperf;
mod sides;

use std::process::ExitCode;
use std::sync::Arc;

use afar_interop::lab::Lab;
use afar_interop::suite;

/// Waiting cases at a time: nearly all of them, each with a process or two and some threads.
const AT_ONCE: usize = 40;

fn main() -> ExitCode {
    let lab = Arc::new(Lab::new());
    let mut cases = Vec::new();
    for module in [
        limits::cases,
        restart::cases,
        rxdebug::cases,
        facts::cases,
        gss::cases,
        calls::cases,
        rxkad::cases,
        rxperf::cases,
        celldb::cases,
    ] {
        cases.extend(module(&lab));
    }
    suite::run(cases, AT_ONCE)
}
