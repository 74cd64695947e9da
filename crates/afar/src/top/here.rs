//! The client of this machine in `afar top`: what it has that no server has yet.

use crate::fs::client::Client;
use afs_wire::control::{GetWaiting, Waiting};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Asks the client again and again, for as long as somebody listens: the line, if there is something to tell.
pub(super) fn look(interval: Duration) -> Receiver<Option<String>> {
    let (found, looks) = channel();
    std::thread::spawn(move || {
        while found.send(line()).is_ok() {
            std::thread::sleep(interval);
        }
    });
    looks
}

fn line() -> Option<String> {
    let client = Client::silently()?;
    let waiting = client.call(&GetWaiting {}).ok()?.waiting;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    in_words(&client.place().display().to_string(), &waiting, now)
}

/// The line of what waits, at a time in seconds since 1970.
fn in_words(place: &str, waiting: &Waiting, now: u64) -> Option<String> {
    let Waiting { changes, oldest, files, bytes, conflicts, is_paused } = *waiting;
    if changes + files + conflicts == 0 {
        return None;
    }
    let mut text = format!("{place}: {changes} changes and {files} files of {bytes} bytes wait for servers");
    if oldest.0 > 0 {
        text += &format!(", the oldest for {} s", now.saturating_sub(oldest.0.into()));
    }
    if is_paused {
        text += ", paused";
    }
    if conflicts > 0 {
        text += &format!("; {conflicts} files were put aside");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::AfsTime;

    #[test]
    fn the_line_tells_what_waits_and_for_how_long_or_is_not_there() {
        assert_eq!(in_words("/afs", &Waiting::default(), 1000), None);
        let waiting =
            Waiting { changes: 2, oldest: AfsTime(986), files: 3, bytes: 20, conflicts: 1, is_paused: true };
        assert_eq!(
            in_words("/afs", &waiting, 1000).unwrap(),
            "/afs: 2 changes and 3 files of 20 bytes wait for servers, the oldest for 14 s, paused; 1 files were put aside"
        );
    }
}
