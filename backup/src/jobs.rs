//! The volumes of a run, several at once. Each worker opens the repository anew and loads its index for each volume, as another program would:
//! what two save at the same time may be there twice, and `afar-backup prune` removes one.

use crate::run::{self, Run, Saved};
use rustic_core::repofile::SnapshotFile;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Backs up volumes, so many at once, and tells of each. Gives their names, as one may be asked for by its number, and whether all is well.
pub(crate) fn back_up(
    run: &Run<'_>,
    volumes: &[String],
    jobs: usize,
    now: impl Fn() -> Duration + Sync,
) -> (Vec<String>, bool) {
    let open = || {
        let bars = run.place.bars.of_another();
        (run.place.open_again(run.store, &bars), bars)
    };
    let saved = at_once(jobs, volumes, open, |(store, bars), volume| {
        bars.set_title(volume);
        let store = store.as_ref().map_err(Clone::clone);
        let saved = store.and_then(|store| run::back_up(run, volume, (store, bars), now()));
        let name = saved.as_ref().map_or_else(|_| volume.clone(), |saved| saved.snapshot.label.clone());
        let is_good = bars.print(|| tell(&name, &saved));
        (name, is_good)
    });
    let all_good = saved.iter().all(|(_, is_good)| *is_good);
    (saved.into_iter().map(|(name, _)| name).collect(), all_good)
}

/// Does something with all items, so many at once. Each worker begins with what `begin` makes.
fn at_once<W, T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    begin: impl Fn() -> W + Sync,
    work: impl Fn(&mut W, &T) -> R + Sync,
) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..jobs.min(items.len()) {
            scope.spawn(|| {
                let mut worker = begin();
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(&mut worker, item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Tells what became of a volume's backup, and whether it is good.
pub(crate) fn tell(volume: &str, saved: &Result<Saved, String>) -> bool {
    match saved {
        Err(why) => {
            eprintln!("afar-backup: {volume}: not backed up: {why}");
            false
        }
        Ok(Saved { snapshot, dumped_bytes, failures }) => {
            for failure in failures {
                eprintln!("afar-backup: {volume}: {failure}");
            }
            let whole = if failures.is_empty() { "backed up" } else { "backed up in part" };
            match dumped_bytes {
                None => println!("{volume}: unchanged"),
                Some(dumped) => println!("{volume}: {whole}: {}", counts(snapshot, *dumped)),
            }
            failures.is_empty()
        }
    }
}

fn counts(snapshot: &SnapshotFile, dumped_bytes: u64) -> String {
    let summary = snapshot.summary.clone().unwrap_or_default();
    format!(
        "{} files new, {} changed, {} unchanged; {dumped_bytes} bytes dumped, {} added",
        summary.files_new, summary.files_changed, summary.files_unmodified, summary.data_added_packed
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn so_many_volumes_are_worked_at_at_once_and_no_more() {
        let (meet, now, most) = (Barrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        let items: Vec<usize> = (0..9).collect();
        let mut done = at_once(
            3,
            &items,
            || (),
            |(), item| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                meet.wait();
                now.fetch_sub(1, Ordering::SeqCst);
                *item
            },
        );
        done.sort_unstable();
        assert_eq!((done, most.into_inner()), (items, 3));
        assert!(at_once(3, &[0; 0], || (), |(), _| ()).is_empty());
    }
}
