//! A cell of our program as it was built for these tests, for what keeps a processor busy.

use super::Cell;
use afs_lab::cpu::cpu;

/// Does something with a cell of its own that keeps a processor busy, and stops its servers.
pub(crate) fn at_once(name: &str, work: impl FnOnce(&mut Cell)) {
    with(Cell::new(name), work);
}

fn with(mut cell: Cell, work: impl FnOnce(&mut Cell)) {
    let _cpu = cpu();
    work(&mut cell);
    assert!(cell.servers.stop().success());
}

/// The same, and no mount waits in vain for its kernel before it answers a server: for ten seconds, which is far more than it may need.
pub(crate) fn answers_in_time(name: &str, work: impl FnOnce(&mut Cell)) {
    with(Cell::waiting(name, Some(10)), |cell| {
        work(cell);
        let logs = cell.all_logs();
        assert!(!logs.contains("answered before the kernel's copies are gone"), "{logs}");
    });
}
