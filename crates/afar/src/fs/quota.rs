//! Commands that tell how full volumes and partitions are: `listquota`, `quota`, `diskfree`.

use super::volumes::Volume;
use super::{Fs, Target};
use crate::classic::Given;
use crate::printer::say;
use afs_wire::rxafs::AfsFetchVolumeStatus;
use serde_json::{Value, json};

/// `fs listquota`.
pub(super) fn list(fs: &Fs, given: &Given) -> u8 {
    let heading = format!(
        "{:<25}{:<11}{:<11}{:<7}{:<11}\n",
        "Volume Name", "      Quota", "       Used", " %Used", "  Partition"
    );
    table(fs, given, &heading, |volume| line_of_quota(&volume.status, &volume.name, given.has("human")))
}

/// `fs diskfree`.
pub(super) fn show_space(fs: &Fs, given: &Given) -> u8 {
    let is_human = given.has("human");
    let total = if is_human { "total" } else { "kbytes" };
    let heading = format!("{:<25}{total:>10}{:>10}{:>10}{:>6}\n", "Volume Name", "used", "avail", "%used");
    table(fs, given, &heading, |volume| line_of_space(&volume.status, &volume.name, is_human))
}

/// `fs quota`.
pub(super) fn show(fs: &Fs, given: &Given) -> u8 {
    table(fs, given, "", |volume| format!("{:2.0}% of quota used.\n", percent_of_quota(&volume.status)))
}

fn table(fs: &Fs, given: &Given, heading: &str, line: impl Fn(&Volume) -> String) -> u8 {
    let is_json = given.has("json");
    if !is_json {
        fs.printer.say(heading);
    }
    let mut told = Vec::new();
    let status = fs.each(&Target::all_or_here(given), |target| {
        let volume = Volume::of(target)?;
        match is_json {
            true => told.push(with_percents(volume.as_json(target), &volume.status)),
            false => say!(fs.printer, "{}", line(&volume)),
        }
        Ok(())
    });
    if is_json {
        fs.printer.say_json(&Value::Array(told));
    }
    status
}

fn with_percents(mut volume: Value, status: &AfsFetchVolumeStatus) -> Value {
    volume["quota_used_percent"] = json!(percent_of_quota(status));
    volume["partition_used_percent"] = json!(percent_of_partition(status));
    volume
}

fn line_of_quota(status: &AfsFetchVolumeStatus, name: &str, is_human: bool) -> String {
    let (quota, used) = (status.max_quota, status.blocks_in_use);
    let sizes = match (quota, is_human) {
        (0, true) => format!("   no limit {}", human(used)),
        (0, false) => format!("   no limit {used:>10}"),
        (quota, true) => format!(" {} {}", human(quota), human(used)),
        (quota, false) => format!(" {quota:>10} {used:>10}"),
    };
    let (of_quota, of_partition) = (percent_of_quota(status), percent_of_partition(status));
    let (is_full, is_partition_full) = (of_quota > 90.0, of_partition > 97.0);
    format!(
        "{name:<25.25}{sizes}{of_quota:5.0}%{}{of_partition:9.0}%{}{}\n",
        mark(is_full),
        mark(is_partition_full),
        warning(is_full || is_partition_full)
    )
}

fn line_of_space(status: &AfsFetchVolumeStatus, name: &str, is_human: bool) -> String {
    let (size, free) = (status.part_max_blocks, status.part_blocks_avail);
    let used = size.wrapping_sub(free);
    let sizes = match is_human {
        true => human(size) + &human(used) + &human(free),
        false => format!("{size:>10}{used:>10}{free:>10}"),
    };
    let percent = percent_of_partition(status);
    let is_full = percent > 90.0;
    format!("{name:<25.25}{sizes} {percent:4.0}%{}{}\n", mark(is_full), warning(is_full))
}

const fn mark(is_full: bool) -> &'static str {
    if is_full { "<<" } else { "  " }
}

const fn warning(is_full: bool) -> &'static str {
    if is_full { "  <<WARNING" } else { "" }
}

/// The part of its quota that a volume uses; nothing where it has none.
fn percent_of_quota(status: &AfsFetchVolumeStatus) -> f64 {
    match status.max_quota {
        0 => 0.0,
        quota => f64::from(status.blocks_in_use) / f64::from(quota) * 100.0,
    }
}

/// The part of a partition that is used; nothing where it has no size.
fn percent_of_partition(status: &AfsFetchVolumeStatus) -> f64 {
    match status.part_max_blocks {
        0 => 0.0,
        size => 100.0 - f64::from(status.part_blocks_avail) / f64::from(size) * 100.0,
    }
}

/// KiB with a letter for the unit, in ten columns. In single precision, as there.
fn human(kib: i32) -> String {
    let mut size = kib as f32;
    let mut units = "KMGTP".chars().peekable();
    let mut unit = 'K';
    while let Some(next) = units.next() {
        unit = next;
        if size < 1024.0 || units.peek().is_none() {
            break;
        }
        size /= 1024.0;
    }
    format!("{size:9.1}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::VolumeId;
    use afs_wire::rxafs::VolumeStatusType;

    fn status(max_quota: i32, blocks_in_use: i32, avail: i32, size: i32) -> AfsFetchVolumeStatus {
        AfsFetchVolumeStatus {
            vid: VolumeId(1),
            parent_id: VolumeId(1),
            online: 1,
            in_service: 1,
            blessed: 1,
            needs_salvage: 0,
            kind: VolumeStatusType::READ_WRITE,
            min_quota: 0,
            max_quota,
            blocks_in_use,
            part_blocks_avail: avail,
            part_max_blocks: size,
        }
    }

    #[test]
    fn lines_of_quota_have_the_columns_of_openafs() {
        for (name, status, is_human, line) in [
            (
                "root.cell",
                status(5000, 5, 7_000_000, 10_000_000),
                false,
                "root.cell                       5000          5    0%         30%  \n",
            ),
            (
                "user.a.name.that.is.longer.than.that",
                status(0, 12, 0, 100),
                false,
                "user.a.name.that.is.longe   no limit         12    0%        100%<<  <<WARNING\n",
            ),
            (
                "full",
                status(1000, 950, 50, 100),
                false,
                "full                            1000        950   95%<<       50%    <<WARNING\n",
            ),
            (
                "human",
                status(5_000_000, 1536, 50, 100),
                true,
                "human                           4.8G       1.5M    0%         50%  \n",
            ),
        ] {
            assert_eq!(line_of_quota(&status, name, is_human), line);
        }
    }

    #[test]
    fn lines_of_space_have_the_columns_of_openafs() {
        for (status, is_human, line) in [
            (
                status(0, 0, 2_500_000, 10_000_000),
                false,
                "root.cell                  10000000   7500000   2500000   75%  \n",
            ),
            (
                status(0, 0, 5, 100),
                true,
                "root.cell                    100.0K     95.0K      5.0K   95%<<  <<WARNING\n",
            ),
        ] {
            assert_eq!(line_of_space(&status, "root.cell", is_human), line);
        }
    }

    #[test]
    fn percents_are_rounded_to_even_halves() {
        for (used, text) in
            [(5, " 0% of quota used.\n"), (15, " 2% of quota used.\n"), (990, "99% of quota used.\n")]
        {
            let percent = percent_of_quota(&status(1000, used, 1, 1));
            assert_eq!(format!("{percent:2.0}% of quota used.\n"), text, "{used}");
        }
    }

    #[test]
    fn sizes_for_people_have_a_unit() {
        for (kib, text) in [
            (0, "      0.0K"),
            (1023, "   1023.0K"),
            (1024, "      1.0M"),
            (i32::MAX, "      2.0T"),
            (-5, "     -5.0K"),
        ] {
            assert_eq!(human(kib), text);
        }
    }
}
