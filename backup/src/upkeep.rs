//! Upkeep of a repository: reading all of it, and forgetting backups.

use crate::lock;
use crate::repository::{PARTIAL, Place, Store};
use crate::state;
use clap::Args;
use rustic_core::jiff::{Span, Zoned};
use rustic_core::repofile::{SnapshotFile, SnapshotId};
use rustic_core::{CheckOptions, CheckResults, KeepOptions, PruneOptions, PrunePlan};
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};

/// Data that no backup needs are marked, and removed by a later run after so many days: a backup that runs beside, and began before, may
/// still count on them.
const KEPT_DAYS: i64 = 7;

/// Checks that are begun before one counts as failed.
const CHECKS_MAX: u32 = 5;

/// The whole backups of each volume that stay.
#[derive(Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Keep {
    /// Keeps the last N of each volume
    #[arg(long, value_name = "N")]
    keep_last: Option<i32>,
    /// Keeps the last one of each of the last N hours that have one
    #[arg(long, value_name = "N")]
    keep_hourly: Option<i32>,
    /// Likewise of days
    #[arg(long, value_name = "N")]
    keep_daily: Option<i32>,
    /// Likewise of weeks
    #[arg(long, value_name = "N")]
    keep_weekly: Option<i32>,
    /// Likewise of months
    #[arg(long, value_name = "N")]
    keep_monthly: Option<i32>,
    /// Likewise of years
    #[arg(long, value_name = "N")]
    keep_yearly: Option<i32>,
}

/// Reads everything and checks it. Says whether all is well; rustic tells of what is not.
pub(crate) fn verify(store: &Store) -> Result<bool, String> {
    let results = check(store)?;
    let is_well = results.is_ok().is_ok();
    let snapshots = store.snapshots()?.len();
    match is_well {
        true => println!("{snapshots} backups, and all their data can be read"),
        false => println!("the repository is damaged: back up again with --full, and see docs/backup.md"),
    }
    Ok(is_well)
}

/// Has rustic check everything. It gives threads 100 ms to end and panics if they have not, as on a busy machine: then it is asked again.
fn check(store: &Store) -> Result<CheckResults, String> {
    let mut options = CheckOptions::default();
    options.read_data = true;
    let attempt = || panic::catch_unwind(AssertUnwindSafe(|| store.opened.check(options)));
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let mut checked = attempt();
    for _ in 1..CHECKS_MAX {
        if checked.is_err() {
            checked = attempt();
        }
    }
    panic::set_hook(hook);
    match checked {
        Ok(checked) => checked.map_err(|error| error.display_log()),
        Err(why) => {
            let why = why.downcast_ref::<String>().map_or("", |why| why.split(':').next().unwrap_or(""));
            Err(format!("the check did not come to its end: {why}: try again when the machine is less busy"))
        }
    }
}

/// Forgets backups, and removes data that none needs.
pub(crate) fn prune(place: &Place, store: &Store, keep: &Keep) -> Result<(), String> {
    let _lock = lock::exclusive(place, store)?;
    let snapshots = store.snapshots()?;
    let total = snapshots.len();
    let forgotten = forgotten(snapshots, keep, &Zoned::now())?;
    let failed = |error: Box<rustic_core::RusticError>| error.display_log();
    store.opened.delete_snapshots(&forgotten).map_err(failed)?;
    let mut options = PruneOptions::default();
    options.keep_delete = Span::new().days(KEPT_DAYS);
    let plan = PrunePlan::from_prune_options(&store.opened, &options).map_err(failed)?;
    store.opened.prune(&options, plan).map_err(failed)?;
    println!("kept {} backups and forgot {}", total - forgotten.len(), forgotten.len());
    Ok(())
}

/// The snapshots to be forgotten: whole ones that no rule keeps, and partial ones that are older than a whole one of the same volume.
/// Those of others are none of our business.
fn forgotten(snapshots: Vec<SnapshotFile>, keep: &Keep, now: &Zoned) -> Result<Vec<SnapshotId>, String> {
    let mut rules = KeepOptions::default();
    rules.keep_last = keep.keep_last;
    rules.keep_hourly = keep.keep_hourly;
    rules.keep_daily = keep.keep_daily;
    rules.keep_weekly = keep.keep_weekly;
    rules.keep_monthly = keep.keep_monthly;
    rules.keep_yearly = keep.keep_yearly;
    let mut volumes: BTreeMap<(String, String), (Vec<SnapshotFile>, Vec<SnapshotFile>)> = BTreeMap::new();
    for snapshot in snapshots.into_iter().filter(state::is_ours) {
        let (good, partial) = volumes.entry((snapshot.hostname.clone(), snapshot.label.clone())).or_default();
        if snapshot.tags.contains(PARTIAL) { partial.push(snapshot) } else { good.push(snapshot) }
    }
    let mut forgotten = Vec::new();
    for (good, partial) in volumes.into_values() {
        let newest = good.iter().max().map(|snapshot| snapshot.time.clone());
        let old =
            partial.iter().filter(|snapshot| newest.as_ref().is_some_and(|newest| snapshot.time < *newest));
        forgotten.extend(old.map(|snapshot| snapshot.id));
        let judged = rules.apply(good, now).map_err(|error| error.display_log())?;
        forgotten.extend(judged.iter().filter(|judged| !judged.keep).map(|judged| judged.snapshot.id));
    }
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustic_core::SnapshotOptions;

    const STATE: &str = r#"{"volume":7,"server":"127.0.0.1","partition":0,"created":1,"copied":1,"updated":1,"updates":1,"taken":9}"#;

    fn snapshot(id: u8, volume: &str, hour: i64, tag: Option<&str>, description: &str) -> SnapshotFile {
        let mut options = SnapshotOptions::default();
        options.host = Some("cell".to_owned());
        options.label = Some(volume.to_owned());
        options.description = Some(description.to_owned());
        options.time = Some(Zoned::now().saturating_sub(Span::new().hours(100 - hour)));
        let mut snapshot = options.to_snapshot().expect("it is one");
        tag.into_iter().for_each(|tag| snapshot.tags.add(tag.to_owned()));
        snapshot.id = format!("{id:02x}").repeat(32).parse().expect("it is an id");
        snapshot
    }

    #[test]
    fn rules_count_whole_backups_of_each_volume() {
        let keep = Keep {
            keep_last: Some(1),
            keep_hourly: None,
            keep_daily: None,
            keep_weekly: None,
            keep_monthly: None,
            keep_yearly: None,
        };
        let snapshots = vec![
            snapshot(1, "a", 1, None, STATE),
            snapshot(2, "a", 2, Some(PARTIAL), STATE),
            snapshot(3, "a", 3, None, STATE),
            snapshot(4, "a", 4, Some(PARTIAL), STATE),
            snapshot(5, "b", 1, None, STATE),
            snapshot(6, "c", 1, Some(PARTIAL), STATE),
            snapshot(7, "a", 0, None, "of somebody else's"),
        ];
        let forgotten = forgotten(snapshots, &keep, &Zoned::now()).expect("the rules are valid");
        let mut ids: Vec<String> = forgotten.iter().map(|id| id.to_string()[..2].to_owned()).collect();
        ids.sort();
        assert_eq!(ids, ["01", "02"]);
    }
}
