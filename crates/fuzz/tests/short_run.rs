//! Each target for a moment, with a fixed seed, as part of the tests; and that the frame finds what it must find.

use afar_fuzz::alloc::{Counting, is_counting};
use afar_fuzz::engine::{Bound, Failure, Limit, Report, Target, check, cpu_time, fuzz};
use afar_fuzz::shape::Shape;
use afar_fuzz::targets::{CANARY, TARGETS, find};
use std::path::Path;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SEED: u64 = 1;

/// Runs one target for so many inputs and panics with the input if it fails.
fn run(name: &str, runs: u64) -> Report {
    let target = find(name).unwrap();
    let report = fuzz(target, &corpus(name), SEED, Limit::Runs(runs), &mut |_| {});
    report.unwrap_or_else(|crash| {
        panic!("{name}, input {} of seed {SEED}: {}\n{:02x?}", crash.runs, crash.failure, crash.input)
    })
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Inputs for each target: together two or three seconds. A new target needs its line here.
const RUNS: &[(&str, u64)] = &[
    ("rx_packet", 50_000),
    ("rx_ack", 30_000),
    ("rx_jumbo", 50_000),
    ("rx_debug", 10_000),
    ("rx_connection", 2_000),
    ("volume_rows", 50_000),
    ("cache_rows", 50_000),
    ("volume_directory", 3_000),
    ("volume_dump", 10_000),
    ("database_files", 500),
    ("directory", 5_000),
    ("acl_text", 30_000),
    ("rxkad_ticket", 10_000),
    ("rxkad_packet", 10_000),
    ("rxgk_token", 10_000),
    ("rxgk_response", 10_000),
    ("rxgk_packet", 2_000),
    ("gss_message", 3_000),
    ("invitation", 20_000),
    ("join_handshake", 200),
    ("key_file", 20_000),
    ("config_files", 20_000),
    ("xdr", 50_000),
    ("file_service", 300),
    ("admin_services", 400),
    ("client_replies", 150),
];

#[test]
fn no_target_fails() {
    assert!(is_counting(), "the limits on memory mean nothing otherwise");
    for (name, runs) in RUNS {
        let report = run(name, *runs);
        println!("{name}: {report:?}");
        assert!(corpus(name).len() >= 3, "{name} has inputs to start from");
        assert!(report.features > 10, "{name} has seen too little to mean anything: {report:?}");
        assert!(report.peak > 0);
    }
    let tried = RUNS.iter().map(|(name, _)| *name).chain([CANARY]);
    assert!(
        TARGETS.iter().map(|target| target.name).eq(tried),
        "RUNS names every target, in the table's order"
    );
}

#[test]
fn a_planted_panic_is_found_and_found_again() {
    let target = find(CANARY).unwrap();
    let find_it = || fuzz(target, &[], SEED, Limit::Runs(1_000_000), &mut |_| {}).unwrap_err();
    let crash = find_it();
    assert!(crash.input.starts_with(b"afar"), "{crash:?}");
    assert!(matches!(&crash.failure, Failure::Panic(message) if message.contains("planted")), "{crash:?}");
    assert_eq!(crash, find_it(), "the same seed finds the same input");
    assert!(check(target, &crash.input).is_err(), "the input alone shows it");
}

/// As a careless count in a packet would make it.
fn believe_a_count(input: &[u8]) -> u64 {
    let count = input.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
    let table = vec![1u8; count as usize & 0x00ff_ffff];
    std::hint::black_box(&table);
    Shape::EMPTY.feature()
}

#[test]
fn memory_beyond_the_bound_is_a_failure() {
    let target = Target { name: "memory", about: "", run: believe_a_count, bound: Bound::DEFAULT };
    assert!(check(&target, &[0, 0, 0, 9]).unwrap().peak < 1000);
    let failure = check(&target, &[0, 0xff, 0xff, 0xff]).unwrap_err();
    assert!(matches!(failure, Failure::Memory { peak, .. } if peak >= 0x00ff_ffff), "{failure}");
    assert!(fuzz(&target, &[vec![0; 4]], SEED, Limit::Runs(10_000), &mut |_| {}).is_err());
}

#[test]
fn time_beyond_the_bound_is_a_failure() {
    let work = |input: &[u8]| {
        let (begun, time) = (cpu_time(), Duration::from_millis(input.len() as u64));
        while cpu_time() - begun < time {
            std::hint::spin_loop();
        }
        0
    };
    let bound = Bound { time: Duration::from_millis(5), ..Bound::DEFAULT };
    let failure = check(&Target { name: "time", about: "", run: work, bound }, &[0; 20]).unwrap_err();
    assert!(matches!(failure, Failure::Time { took, .. } if took >= Duration::from_millis(20)), "{failure}");
}
