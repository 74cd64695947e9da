//! `vos partinfo`: how much room the partitions of a server have.

use super::{Done, Stop, Vos};
use crate::classic::Given;
use crate::printer::{complain, say};
use serde_json::json;

pub(super) fn run(vos: &Vos, given: &Given) -> Done {
    let server = vos.server(given.word("server").unwrap_or_default(), "server", Stop::EXITED)?;
    let partitions = match given.word("partition") {
        Some(name) => {
            let partition = vos.partition(name, Stop::EXITED)?;
            vos.check_partition(server, partition, name, Stop::EXITED)?;
            vec![partition]
        }
        None => vos.partitions(server).map_err(|code| {
            vos.print_diagnostics("listpart", code);
            Stop::EXITED
        })?,
    };
    let mut shown = Vec::new();
    let (mut free, mut total) = (0_u64, 0_u64);
    for partition in &partitions {
        let info = vos.partition_info(server, *partition).map_err(|code| {
            complain!(vos.printer, "Could not get information on partition {partition}\n");
            vos.print_error(code);
            Stop::EXITED
        })?;
        // Where the size should be, servers have something else, and the size in this field.
        let size = info.min_free;
        if vos.json {
            let name = partition.to_string();
            shown.push(json!({ "partition": name, "free_kib": info.free, "total_kib": size }));
        } else {
            let free = info.free;
            say!(vos.printer, "Free space on partition {partition}: {free} K blocks out of total {size}\n");
        }
        free = free.wrapping_add(info.free.cast_unsigned());
        total = total.wrapping_add(size.cast_unsigned());
    }
    if vos.json {
        vos.printer.say_json(&json!({ "server": server.to_string(), "partitions": shown }));
    } else if given.has("summary") {
        let (free, total) = (rounded(free), rounded(total));
        say!(vos.printer, "Summary: {free} free out of {total} on {} partitions\n", partitions.len());
    }
    Ok(())
}

/// KiB in the unit in which the number fits into 32 bits, rounded down.
fn rounded(kib: u64) -> String {
    let (shift, unit) = match kib >> 32 {
        0 => (0, "KB"),
        1..=0x3ff => (10, "MB"),
        0x400..=0xf_ffff => (20, "GB"),
        0x10_0000..=0x3fff_ffff => (30, "TB"),
        _ => (40, "PB"),
    };
    format!("{} {unit}", kib >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_to_a_unit_that_fits() {
        for (kib, text) in [
            (0, "0 KB"),
            (u64::from(u32::MAX), "4294967295 KB"),
            (1 << 32, "4194304 MB"),
            (1 << 42, "4194304 GB"),
            (1 << 52, "4194304 TB"),
            (1 << 62, "4194304 PB"),
        ] {
            assert_eq!(rounded(kib), text);
        }
    }
}
