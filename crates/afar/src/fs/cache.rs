//! Commands about the client's cache: `getcacheparms`, `whatwaits`, `setcachesize`, `flush`, `flushvolume`, `flushall`,
//! `checkvolumes`.

use super::errors::{EMFILE, EROFS, Failure};
use super::place::Links;
use super::{FAILURE, Fs, Served, Target};
use crate::classic::Given;
use crate::numbers::{BadNumber, parse_kib};
use crate::printer::{complain, say};
use afs_wire::control::{self, CacheUse, Waiting};
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};

/// Above this share of the cache in use, in percent, a larger one is recommended.
const MUCH_PERCENT: f64 = 90.0;

/// `fs flush`. Without a path there is nothing to do, and nothing is done.
pub(super) fn flush(fs: &Fs, given: &Given) -> u8 {
    let mut status = 0;
    for target in &Target::all(given, "path") {
        let flushed = Served::at(&target.path, Links::Stay).and_then(|Served { client, place }| {
            if given.has("wait") {
                client.call(&control::SettleVolume { place: place.clone() })?;
            }
            client.call(&control::Flush { place }).map(drop)
        });
        if let Err(failure) = flushed {
            status = FAILURE;
            let path = &target.shown;
            match failure.errno() {
                Some(EMFILE) => complain!(fs.printer, "fs: Can't flush active file {path}\n"),
                _ => complain!(fs.printer, "fs: Error flushing file {path}: {failure}\n"),
            }
        }
    }
    status
}

/// `fs flushvolume`.
pub(super) fn flush_volume(fs: &Fs, given: &Given) -> u8 {
    let mut status = 0;
    for target in &Target::all_or_here(given) {
        let flushed = Served::at(&target.path, Links::Stay)
            .and_then(|Served { client, place }| client.call(&control::FlushVolume { place }).map(drop));
        if let Err(failure) = flushed {
            status = FAILURE;
            complain!(fs.printer, "Error flushing volume {}: {failure}\n", target.shown);
        }
    }
    status
}

/// `fs flushall`.
pub(super) fn flush_all(fs: &Fs, _: &Given) -> u8 {
    match fs.ask(&control::FlushAll {}) {
        Ok(_) => 0,
        Err(Failure::Errno(_)) => {
            complain!(fs.printer, "Error flushing all volumes\n");
            FAILURE
        }
        Err(failure) => fs.done(Err(failure)),
    }
}

/// `fs checkvolumes`.
pub(super) fn check_volumes(fs: &Fs, _: &Given) -> u8 {
    fs.done(fs.ask(&control::CheckVolumes {}).map(|_| {
        say!(fs.printer, "All volumeID/name mappings checked.\n");
    }))
}

/// `fs setcachesize`.
pub(super) fn set_size(fs: &Fs, given: &Given) -> u8 {
    let size_kib = match (given.word("blocks").map(parse_kib), given.has("reset")) {
        (Some(Ok(size)), _) => size,
        (Some(Err(bad @ BadNumber::OutOfRange { .. })), _) => {
            complain!(fs.printer, "fs: -blocks {} {bad}\n", given.word("blocks").unwrap_or_default());
            return FAILURE;
        }
        (Some(Err(BadNumber::NoNumber)), _) => {
            complain!(fs.printer, "fs: bad integer specified for cache size.\n");
            return FAILURE;
        }
        (None, true) => 0,
        (None, false) => {
            complain!(fs.printer, "fs: syntax error in setcachesize cmd.\n");
            return FAILURE;
        }
    };
    // A negative size is none: OpenAFS's client takes it for a very large one.
    let size_kib = u64::try_from(size_kib).unwrap_or(0);
    match fs.ask(&control::SetCacheSize { size_kib }) {
        Ok(_) => {
            say!(fs.printer, "New cache size set.\n");
            0
        }
        Err(Failure::Errno(EROFS)) => {
            say!(fs.printer, "'fs setcache' not allowed on memory cache based cache managers.\n");
            FAILURE
        }
        Err(failure) => fs.done(Err(failure)),
    }
}

/// `fs getcacheparms`.
pub(super) fn show(fs: &Fs, given: &Given) -> u8 {
    let detail = match (given.has("files"), given.has("excessive")) {
        (true, _) => Detail::Files,
        (false, true) => Detail::All,
        (false, false) => Detail::Blocks,
    };
    let told = fs.ask(&control::GetCacheUse {}).map(|reply| {
        let cache = reply.cache;
        if given.has("json") {
            let CacheUse { size_kib, used_kib, dirty_kib, files, conflicts, statuses } = cache;
            fs.printer.say_json(&json!({
                "size_kib": size_kib,
                "used_kib": used_kib,
                "dirty_kib": dirty_kib,
                "files": files,
                "conflicts": conflicts,
                "statuses": statuses,
            }));
        } else {
            fs.printer.say(&described(&cache, detail));
        }
    });
    fs.done(told)
}

/// `fs whatwaits`, which OpenAFS does not have.
pub(super) fn show_waiting(fs: &Fs, given: &Given) -> u8 {
    let told = fs.ask(&control::GetWaiting {}).map(|reply| {
        let waiting = reply.waiting;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if given.has("json") {
            let Waiting { changes, oldest, files, bytes, conflicts, is_paused } = waiting;
            let age = (oldest.0 > 0).then(|| now.saturating_sub(oldest.0.into()));
            fs.printer.say_json(&json!({
                "changes": changes,
                "oldest_seconds": age,
                "files": files,
                "bytes": bytes,
                "conflicts": conflicts,
                "paused": is_paused,
            }));
        } else {
            fs.printer.say(&waiting_in_words(&waiting, now));
        }
    });
    fs.done(told)
}

/// What waits, at a time in seconds since 1970.
fn waiting_in_words(waiting: &Waiting, now: u64) -> String {
    let Waiting { changes, oldest, files, bytes, conflicts, is_paused } = *waiting;
    let mut text = String::new();
    if changes > 0 {
        text += &format!("Changes of names and attributes that no server has yet: {changes}\n");
    }
    if files > 0 {
        text += &format!("Files with data that no server has yet: {files}, with {bytes} bytes\n");
    }
    if oldest.0 > 0 {
        text += &format!("The oldest has waited for {} s\n", now.saturating_sub(oldest.0.into()));
    }
    if text.is_empty() {
        text += "Nothing waits for servers.\n";
    }
    if is_paused {
        text += "Nothing is sent before 'fs storebehind -resume'.\n";
    }
    if conflicts > 0 {
        text += &format!("Files that were put aside: {conflicts}; 'afar conflicts list' tells which\n");
    }
    text
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    Blocks,
    Files,
    All,
}

/// The cache in words. The number of files has no limit of its own here, so what OpenAFS tells of that limit, and of its chunk
/// files, is left out, as it does for a cache without files.
fn described(cache: &CacheUse, detail: Detail) -> String {
    let CacheUse { size_kib: size, used_kib: used, dirty_kib, files, conflicts, statuses } = *cache;
    if detail == Detail::Blocks {
        let mut text = format!("AFS using {used} of the cache's available {size} 1K byte blocks.\n");
        if used > size {
            text += "[Cache guideline temporarily deliberately exceeded; it will be adjusted down but you may wish to \
                     increase the cache size.]\n";
        }
        return text;
    }
    let percent = if size == 0 { 0.0 } else { used as f64 / size as f64 * 100.0 };
    let mut text = format!("AFS using {percent:5.0}% of cache blocks ({used} of {size} 1k blocks)\n");
    if detail == Detail::All {
        text += &format!("\tfiles:          {files:>10}\n");
        text += &format!("\tdirty blocks:   {dirty_kib:>10}\n");
        text += &format!("\tput aside:      {conflicts:>10}\n");
        text += &format!("\tstatus entries: {statuses:>10}\n");
    }
    if percent > MUCH_PERCENT {
        text += "[cache size usage over 90%, consider increasing cache size]\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::AfsTime;

    #[test]
    fn what_waits_is_told_with_its_age() {
        let none = Waiting::default();
        assert_eq!(waiting_in_words(&none, 1000), "Nothing waits for servers.\n");
        let some =
            Waiting { changes: 2, oldest: AfsTime(986), files: 3, bytes: 20, conflicts: 1, is_paused: true };
        assert_eq!(
            waiting_in_words(&some, 1000),
            "Changes of names and attributes that no server has yet: 2\n\
             Files with data that no server has yet: 3, with 20 bytes\n\
             The oldest has waited for 14 s\n\
             Nothing is sent before 'fs storebehind -resume'.\n\
             Files that were put aside: 1; 'afar conflicts list' tells which\n"
        );
    }

    #[test]
    fn the_cache_is_described_as_openafs_does() {
        let cache =
            CacheUse { size_kib: 1000, used_kib: 20, dirty_kib: 3, files: 7, conflicts: 0, statuses: 9 };
        for (cache, detail, text) in [
            (cache, Detail::Blocks, "AFS using 20 of the cache's available 1000 1K byte blocks.\n"),
            (cache, Detail::Files, "AFS using     2% of cache blocks (20 of 1000 1k blocks)\n"),
            (
                CacheUse { used_kib: 1001, ..cache },
                Detail::Blocks,
                "AFS using 1001 of the cache's available 1000 1K byte blocks.\n[Cache guideline temporarily \
                 deliberately exceeded; it will be adjusted down but you may wish to increase the cache size.]\n",
            ),
            (
                CacheUse { used_kib: 950, ..cache },
                Detail::Files,
                "AFS using    95% of cache blocks (950 of 1000 1k blocks)\n\
                 [cache size usage over 90%, consider increasing cache size]\n",
            ),
        ] {
            assert_eq!(described(&cache, detail), text);
        }
        assert!(described(&cache, Detail::All).ends_with("\tstatus entries:          9\n"));
    }
}
