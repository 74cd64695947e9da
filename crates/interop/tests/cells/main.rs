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
mod kernels_rxgk;
mod lost;
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

/// Waiting cases at a time: each has a cell of its own or two, whose servers wait for each other most of the time. So many keep two
/// processors busy, beside the tests of afar alone.
const AT_ONCE: usize = 8;

/// The beginnings of the names of the cases that take longest, the longest first. The others come behind them, as they are in their
/// modules.
const LONGEST: [&str; 16] = [
    "databases/go_from",
    "database_machines/",
    "posix/",
    "dumps/go_wherever",
    "suites/print_and_do",
    "databases/a_group",
    "migration/a_cell",
    "suites/move_volumes",
    "commands/",
    "dumps/go_both_ways",
    "kernels/",
    "dumps/of_what_changed",
    "dumps/",
    "programs/git",
    "programs/who_has_no_ticket",
    "programs/",
];

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
        lost::cases,
        posix::cases,
        programs::cases,
        scripts::cases,
        suites::cases,
        tools::cases,
        volumes::cases,
    ] {
        cases.extend(module(&lab));
    }
    let place = |name: &str| LONGEST.iter().position(|begin| name.starts_with(begin));
    let are_there = |begin: &&str| cases.iter().any(|case| case.name().starts_with(begin));
    assert!(LONGEST.iter().all(are_there), "the longest cases are not called so: {LONGEST:?}");
    cases.sort_by_key(|case| place(case.name()).unwrap_or(LONGEST.len()));
    suite::run(cases, AT_ONCE)
}
