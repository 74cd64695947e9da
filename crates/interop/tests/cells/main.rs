//! Cells of ours and of OpenAFS's, with stock tools and clients and with ours. Each module makes cases of one kind;
//! `cargo test -p afar-interop --test cells NAME` runs those with NAME in theirs.

#![forbid(unsafe_code)]

mod commands;
mod database_machines;
mod databases;
mod dumps;
mod fuse;
mod kerberos;
mod kernels;
mod migration;
mod mixed;
mod moving;
mod options;
mod posix;
mod programs;
mod rights;
mod rxkad;
mod scene;
mod scripts;
mod suites;
mod tools;
mod volumes;

use std::process::ExitCode;
use std::sync::Arc;

use afar_interop::lab::Lab;
use afar_interop::suite;

fn main() -> ExitCode {
    let lab = Arc::new(Lab::new());
    let mut cases = Vec::new();
    for module in [
        commands::cases,
        database_machines::cases,
        databases::cases,
        dumps::cases,
        rxkad::cases,
        rights::cases,
        migration::cases,
        mixed::cases,
        moving::cases,
        options::cases,
        fuse::cases,
        kerberos::cases,
        kernels::cases,
        posix::cases,
        programs::cases,
        scripts::cases,
        suites::cases,
        tools::cases,
        volumes::cases,
    ] {
        cases.extend(module(&lab));
    }
    suite::run(cases)
}
