//! A program that reads or writes one long file by its path: `afar-bench stream-worker WHAT ...`. A process of its own, so that the bench
//! does not hang with it. What it has found it prints as "end JSON", with `bytes` and `seconds`.
//!
//! ```text
//! read FILE SECONDS           from its beginning on, to its end or so long
//! write FILE BYTES            a new file; the time includes its close
//! film FILE MBIT SECONDS      plays it: reads at this rate, somewhat ahead, for so long; `stalls`, and `stalled_s` in all
//! repeat FILE SECONDS         reads it through to its end, a pass after the other, until so much time has gone
//! change FILE POSITION        writes one byte there; the time includes the close
//! latencies FOLDER EVERY SECONDS  reads the files of a tree, one each so many ms, for so long; `ms` of each, from when it was due
//! ```

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Failure, print};
use crate::{sys, trees};

/// The first argument that makes this program such a process.
pub(crate) const NAME: &str = "stream-worker";

/// The bytes that are read or written at once: as many as `cp` and `cat` of Debian 12 take.
const BLOCK_BYTES: usize = 128 << 10;
/// The bytes that a player reads at once.
const FILM_BYTES: usize = 64 << 10;
/// The part of the film that a player wants to have before it begins.
const FILM_BEGINS_AFTER: Duration = Duration::from_secs(2);
/// The time by which a player reads ahead of its picture.
const FILM_AHEAD: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = match arguments[..] {
        ["read", file, seconds] => read(file, duration(seconds)?)?,
        ["write", file, bytes] => write(file, bytes.parse()?)?,
        ["film", file, mbit, seconds] => film(file, mbit.parse()?, duration(seconds)?)?,
        ["repeat", file, seconds] => repeat(file, duration(seconds)?)?,
        ["latencies", folder, every, seconds] => latencies(folder, every.parse()?, duration(seconds)?)?,
        ["change", file, position] => change(file, position.parse()?)?,
        _ => return Err("for afar-bench's own use: see crates/bench/src/workers/stream.rs".into()),
    };
    print(format_args!("end {report}"))?;
    Ok(())
}

fn duration(seconds: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_secs_f64(seconds.parse()?))
}

/// Reads until the end, or until the time has come; the bytes.
fn read_until(path: &str, end: Instant, buffer: &mut [u8]) -> Result<u64, Failure> {
    let mut file = File::open(path)?;
    let mut bytes = 0;
    while Instant::now() < end {
        let count = file.read(buffer)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
    }
    Ok(bytes)
}

fn read(path: &str, time: Duration) -> Result<Value, Failure> {
    let begin = Instant::now();
    let bytes = read_until(path, begin + time, &mut vec![0; BLOCK_BYTES])?;
    Ok(json!({ "bytes": bytes, "seconds": begin.elapsed().as_secs_f64() }))
}

fn repeat(path: &str, time: Duration) -> Result<Value, Failure> {
    let (begin, mut bytes, mut passes) = (Instant::now(), 0, 0);
    let mut buffer = vec![0; BLOCK_BYTES];
    while begin.elapsed() < time {
        bytes += read_until(path, begin + time, &mut buffer)?;
        passes += 1;
    }
    Ok(json!({ "bytes": bytes, "seconds": begin.elapsed().as_secs_f64(), "passes": passes }))
}

fn write(path: &str, bytes: u64) -> Result<Value, Failure> {
    // Bytes that no link or disk makes smaller.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let block: Vec<u8> = words.take(BLOCK_BYTES / 8).flatten().collect();
    let begin = Instant::now();
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let count = left.min(BLOCK_BYTES as u64) as usize;
        file.write_all(&block[..count])?;
        left -= count as u64;
    }
    let written = begin.elapsed();
    close(file)?;
    Ok(
        json!({ "bytes": bytes, "seconds": begin.elapsed().as_secs_f64(), "written_s": written.as_secs_f64() }),
    )
}

/// Closes a file, telling of what goes wrong then: in AFS that is when it is stored.
fn close(file: File) -> Result<(), Failure> {
    sys::close(file).map_err(|error| format!("close: {error}").into())
}

fn film(path: &str, mbit: f64, time: Duration) -> Result<Value, Failure> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; FILM_BYTES];
    let block_time = Duration::from_secs_f64(FILM_BYTES as f64 * 8.0 / (mbit * 1e6));
    let blocks = (time.as_secs_f64() / block_time.as_secs_f64()).ceil() as u32;
    let begin = Instant::now();
    // When the first block's picture is due; a stall moves all that follow.
    let mut start: Option<Instant> = None;
    let (mut stalls, mut stalled, mut bytes, mut least) = (0u32, Duration::ZERO, 0, f64::INFINITY);
    for number in 0..blocks {
        let mut filled = 0;
        while filled < buffer.len() {
            let count = file.read(&mut buffer[filled..])?;
            if count == 0 {
                return Err(format!("{path} is shorter than the film").into());
            }
            filled += count;
        }
        bytes += filled as u64;
        let now = Instant::now();
        match start {
            // It begins when enough of it is there.
            None if block_time * (number + 1) >= FILM_BEGINS_AFTER => start = Some(now),
            None => {}
            Some(first) => {
                let due = first + block_time * number;
                if now > due {
                    stalls += 1;
                    stalled += now - due;
                    start = Some(first + (now - due));
                } else {
                    least = least.min((due - now).as_secs_f64());
                    let wait = (due - now).saturating_sub(FILM_AHEAD);
                    thread::sleep(wait);
                }
            }
        }
    }
    let begins_s = start.map(|start| (start - begin).as_secs_f64() - stalled.as_secs_f64());
    Ok(json!({
        "bytes": bytes, "seconds": begin.elapsed().as_secs_f64(), "stalls": stalls, "stalled_s": stalled.as_secs_f64(),
        "begins_s": begins_s, "least_ahead_s": if least.is_finite() { Some(least) } else { None },
    }))
}

fn change(path: &str, position: u64) -> Result<Value, Failure> {
    let begin = Instant::now();
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, position)?;
    file.write_all_at(&[byte[0].wrapping_add(1)], position)?;
    close(file)?;
    Ok(json!({ "bytes": 1, "seconds": begin.elapsed().as_secs_f64() }))
}

fn latencies(folder: &str, every_ms: u64, time: Duration) -> Result<Value, Failure> {
    let files = trees::tree_files(folder.as_ref())?;
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut ms = Vec::new();
    let begin = Instant::now();
    // None is left out: what is late makes the next ones late.
    let due = (0..).map(|number| Duration::from_millis(every_ms) * number);
    for (due, path) in due.take_while(|due| *due < time).zip(files.iter().cycle()) {
        thread::sleep((begin + due).saturating_duration_since(Instant::now()));
        let count = File::open(path)?.read(&mut buffer)?;
        black_box(&buffer[..count]);
        ms.push((begin.elapsed() - due).as_secs_f64() * 1e3);
    }
    Ok(json!({ "ms": ms }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Scratch(String);

    impl Scratch {
        fn new(name: &str, bytes: usize) -> Scratch {
            let path = std::env::temp_dir().join(format!("afar-bench-{name}-{}", std::process::id()));
            fs::write(&path, vec![1; bytes]).unwrap();
            Scratch(path.display().to_string())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_film_from_a_disk_begins_and_does_not_stall() {
        let file = Scratch::new("film", 10 << 20);
        // 2 s are some 6 MB of it, which are there at once.
        let report = film(&file.0, 25.0, Duration::from_millis(2400)).unwrap();
        assert_eq!((&report["stalls"], &report["stalled_s"]), (&json!(0), &json!(0.0)));
        assert!(report["begins_s"].as_f64().unwrap() < 1.0);
        assert!(film(&file.0, 25.0, Duration::from_secs(60)).is_err(), "it is too short");
    }

    #[test]
    fn one_byte_is_changed_and_no_other() {
        let file = Scratch::new("change", 1000);
        change(&file.0, 500).unwrap();
        let mut expected = vec![1; 1000];
        expected[500] = 2;
        assert_eq!(fs::read(&file.0).unwrap(), expected);
    }

    #[test]
    fn a_read_ends_with_the_file_or_the_time() {
        let file = Scratch::new("read", 1_000_000);
        assert_eq!(read(&file.0, Duration::from_secs(10)).unwrap()["bytes"], json!(1_000_000));
        assert_eq!(read(&file.0, Duration::ZERO).unwrap()["bytes"], json!(0));
        let passes = || repeat(&file.0, Duration::from_millis(50)).unwrap()["passes"].as_u64().unwrap();
        assert!((0..20).any(|_| passes() > 1), "a busy machine takes the time for one pass now and then");
    }
}
