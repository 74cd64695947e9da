//! `bos getrestart`, `setrestart`, `getrestricted`, `setrestricted`, `setauth`, `setcellname`, `addhost`, `removehost`: what an overseer is set to.

use super::{Bos, FAILURE, argument, status_of, words};
use crate::classic::Given;
use crate::codes::Code;
use crate::output::harmless;
use crate::printer::{complain, say};
use afs_wire::bos::{
    AddCellHost, BozoNetKTime, DeleteCellHost, GetRestartTime, GetRestrictedMode, KTimeMask, RestartTimeKind,
    SetCellName, SetNoAuthFlag, SetRestartTime, SetRestrictedMode,
};
use serde_json::json;

const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The status of OpenAFS's `bos` where a time cannot be read.
const BAD_TIME: Code = Code(-1);

pub(super) fn getrestart(bos: &Bos, given: &Given) -> u8 {
    let server = harmless(given.word("server").unwrap_or_default());
    let mut told = serde_json::Map::new();
    for (kind, key, what) in [
        (RestartTimeKind::GENERAL, "general", "restarts"),
        (RestartTimeKind::NEW_BINARY, "new_binaries", "restarts for new binaries"),
    ] {
        match bos.call(&GetRestartTime { kind }) {
            Ok(reply) => {
                let time = text_of(&reply.time);
                if !bos.json {
                    say!(bos.printer, "Server {server} {what} {time}\n");
                }
                told.insert(key.to_owned(), json!(time));
            }
            Err(code) => {
                complain!(bos.printer, "bos: failed to retrieve restart information ({})\n", words(code));
                return status_of(code);
            }
        }
    }
    if bos.json {
        bos.printer.say_json(&told.into());
    }
    0
}

pub(super) fn setrestart(bos: &Bos, given: &Given) -> u8 {
    if given.has("general") && given.has("newbinary") {
        complain!(bos.printer, "bos: can't specify more than one restart time at a time\n");
        return status_of(BAD_TIME);
    }
    let kind = if given.has("newbinary") { RestartTimeKind::NEW_BINARY } else { RestartTimeKind::GENERAL };
    let text = given.word("time").unwrap_or_default();
    let Some(time) = parse(text) else {
        let words = words(BAD_TIME);
        complain!(bos.printer, "bos: failed to parse '{text}' as periodic restart time({words})\n");
        return status_of(BAD_TIME);
    };
    bos.call(&SetRestartTime { kind, time }).map_or_else(
        |code| {
            complain!(bos.printer, "bos: failed to set restart time at server ({})\n", words(code));
            status_of(code)
        },
        |_| 0,
    )
}

/// A time of the day or week, as `bos` shows it.
fn text_of(time: &BozoNetKTime) -> String {
    if time.mask.contains(KTimeMask::NEVER) {
        return "never".to_owned();
    }
    if time.mask.contains(KTimeMask::NOW) {
        return "now".to_owned();
    }
    let day = usize::try_from(time.day).ok().and_then(|day| DAYS.get(day));
    let day = match day {
        Some(day) if time.mask.contains(KTimeMask::DAY) => format!("{day} "),
        _ => String::new(),
    };
    let (hour, half) = match time.hour {
        0 => (12, "am"),
        hour @ 1..12 => (hour, "am"),
        12 => (12, "pm"),
        hour => (hour - 12, "pm"),
    };
    let seconds = match time.second {
        second if time.mask.contains(KTimeMask::SECOND) && second != 0 => format!(":{second:02}"),
        _ => String::new(),
    };
    format!("at {day}{hour}:{:02}{seconds} {half}", time.minute)
}

/// The reverse: `never`, `now`, or a day, a time, or both.
fn parse(text: &str) -> Option<BozoNetKTime> {
    let mut time = BozoNetKTime { mask: KTimeMask(0), hour: 0, minute: 0, second: 0, day: 0 };
    let text = text.to_ascii_lowercase();
    let mut half = None;
    for word in text.split_whitespace() {
        let bits = match word {
            "never" => KTimeMask::NEVER,
            "now" => KTimeMask::NOW,
            "at" => continue,
            "am" | "pm" => {
                half = Some(word);
                continue;
            }
            word if word.contains(':') => {
                let numbers: Option<Vec<i16>> = word.split(':').map(|part| part.parse().ok()).collect();
                let (hour, minute, second) = match numbers?[..] {
                    [hour, minute] => (hour, minute, None),
                    [hour, minute, second] => (hour, minute, Some(second)),
                    _ => return None,
                };
                let is_time = (0..24).contains(&hour)
                    && (0..60).contains(&minute)
                    && (0..60).contains(&second.unwrap_or(0));
                if !is_time {
                    return None;
                }
                (time.hour, time.minute, time.second) = (hour, minute, second.unwrap_or(0));
                KTimeMask(KTimeMask::HOUR.0 | KTimeMask::MINUTE.0 | second.map_or(0, |_| KTimeMask::SECOND.0))
            }
            word => {
                let day = DAYS.iter().position(|day| word.len() >= 3 && word.starts_with(day))?;
                time.day = day as i16;
                KTimeMask::DAY
            }
        };
        time.mask = KTimeMask(time.mask.0 | bits.0);
    }
    match half {
        Some(_) if !(1..=12).contains(&time.hour) => return None,
        Some("am") => time.hour %= 12,
        Some(_) => time.hour = time.hour % 12 + 12,
        None => {}
    }
    (time.mask.0 != 0).then_some(time)
}

pub(super) fn getrestricted(bos: &Bos, _given: &Given) -> u8 {
    match bos.call(&GetRestrictedMode {}) {
        Ok(reply) if bos.json => bos.printer.say_json(&json!({ "restricted": reply.mode != 0 })),
        Ok(reply) => say!(bos.printer, "Restricted mode is {}\n", if reply.mode == 0 { "off" } else { "on" }),
        Err(code) => complain!(bos.printer, "bos: failed to get restricted mode ({})\n", words(code)),
    }
    0
}

pub(super) fn setrestricted(bos: &Bos, given: &Given) -> u8 {
    let mode = match given.word("mode").unwrap_or_default() {
        "0" | "off" => 0,
        "1" | "on" => 1,
        other => {
            complain!(bos.printer, "bos: '{other}' is no mode: 0 or 1\n");
            return FAILURE;
        }
    };
    if let Err(code) = bos.call(&SetRestrictedMode { mode }) {
        complain!(bos.printer, "bos: failed to set restricted mode ({})\n", words(code));
    }
    0
}

pub(super) fn setauth(bos: &Bos, given: &Given) -> u8 {
    let flag = match given.word("authrequired").unwrap_or_default() {
        "on" => 0,
        "off" => 1,
        other => {
            complain!(
                bos.printer,
                "bos: illegal authentication specifier '{other}', must be 'off' or 'on'.\n"
            );
            return FAILURE;
        }
    };
    if let Err(code) = bos.call(&SetNoAuthFlag { flag }) {
        complain!(bos.printer, "bos: {} (failed to set authentication flag)\n\r", words(code));
    }
    0
}

pub(super) fn setcellname(bos: &Bos, given: &Given) -> u8 {
    let set =
        argument(given.word("name").unwrap_or_default()).and_then(|name| bos.call(&SetCellName { name }));
    if let Err(code) = set {
        complain!(bos.printer, "bos: failed to set cell ({})\n", words(code));
    }
    0
}

pub(super) fn addhost(bos: &Bos, given: &Given) -> u8 {
    for host in given.words("host") {
        let name = if given.has("clone") { format!("[{host}]") } else { (*host).to_owned() };
        if let Err(code) = argument(&name).and_then(|name| bos.call(&AddCellHost { name })) {
            complain!(bos.printer, "bos: failed to add host {host} ({})\n", words(code));
        }
    }
    0
}

pub(super) fn removehost(bos: &Bos, given: &Given) -> u8 {
    for host in given.words("host") {
        if let Err(code) = argument(host).and_then(|name| bos.call(&DeleteCellHost { name })) {
            complain!(bos.printer, "bos: failed to delete host {host} ({})\n", words(code));
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_times_are_read_as_they_are_shown() {
        for (text, shown) in [
            ("never", "never"),
            ("now", "now"),
            ("4:00", "at 4:00 am"),
            ("0:05", "at 12:05 am"),
            ("12:30", "at 12:30 pm"),
            ("sun 16:00", "at sun 4:00 pm"),
            ("Saturday 4:00 pm", "at sat 4:00 pm"),
            ("at 12:00 am", "at 12:00 am"),
            ("3:04:05", "at 3:04:05 am"),
        ] {
            assert_eq!(parse(text).as_ref().map(text_of).as_deref(), Some(shown), "{text}");
        }
        for text in ["", "nonsense", "25:00", "4:60", "4", "4:00:00:00", "13:00 pm", "0:00 am", "su 4:00"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
