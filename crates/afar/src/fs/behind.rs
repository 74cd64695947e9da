//! `fs storebehind`: where closes and changes of names do not wait for the server. OpenAFS's options are about bytes of a file that a close
//! leaves to be stored, of which this client leaves none; ours set write-behind for directories and volumes.

use super::errors::{EACCES, ENOSPC, ENOTDIR, EOPNOTSUPP, EROFS, Failure};
use super::explained::refuse;
use super::place::Links;
use super::{FAILURE, Fs, Served, Target};
use crate::classic::Given;
use crate::printer::{complain, say};
use afs_wire::control::{GetStoreBehind, PauseStoreBehind, SetStoreBehind, StoreBehind, reply};
use serde_json::{Value, json};

/// The words of settings.
const WORDS: [(StoreBehind, &str); 4] = [
    (StoreBehind::ALWAYS, "always"),
    (StoreBehind::SECOND, "second"),
    (StoreBehind::OFF, "off"),
    (StoreBehind::INHERIT, "inherit"),
];

/// What no longer holds for other machines: to be said when somebody switches it on.
const NO_LONGER: &str = "O_EXCL, mkdir, link and rename there exclude programs of this machine only: another machine \
                         may make the same name meanwhile. Do not use lock files between machines there.\n";

/// What a pause means.
const PAUSED: &str = "Nothing of what waits for servers is sent before 'fs storebehind -resume', or the next start of the client. \
                      What has to be at a server first, such as a change of an access list, still goes there with all that waits.\n";

/// The same of a loss of power.
const MAY_LOSE: &str = "With 'second', a loss of power may lose what was closed in the last two seconds.\n";

fn word(setting: StoreBehind) -> &'static str {
    WORDS.iter().find(|(known, _)| *known == setting).map_or("unknown", |(_, word)| word)
}

fn setting(word: &str) -> Option<StoreBehind> {
    WORDS.iter().find(|(_, known)| *known == word).map(|(setting, _)| *setting)
}

/// `fs storebehind`.
pub(super) fn store_behind(fs: &Fs, given: &Given) -> u8 {
    let targets: Vec<_> = [("directory", false), ("volume", true)]
        .into_iter()
        .flat_map(|(option, is_volume)| {
            Target::all(given, option).into_iter().map(move |target| (target, is_volume))
        })
        .collect();
    match (given.has("pause"), given.has("resume")) {
        (true, true) => return complain_usage(fs, "give -pause or -resume, not both"),
        (is_paused, is_resumed) if is_paused || is_resumed => return pause(fs, is_paused),
        _ => {}
    }
    match (given.word("set"), targets.is_empty()) {
        (None, true) if given.has("json") => complain_usage(fs, "-json needs -directory or -volume"),
        (None, true) => openafs(fs, given),
        (Some(_), true) => complain_usage(fs, "-set needs the -directory or -volume that it is for"),
        (None, false) => show(fs, &targets, given.has("json")),
        (Some(word), false) => match setting(word) {
            Some(setting) => each(fs, &targets, |target, is_volume| set(fs, target, is_volume, setting)),
            None => complain_usage(fs, &format!("-set {word}: this must be always, second, off or inherit")),
        },
    }
}

/// `-pause` and `-resume`, which are about all that waits.
fn pause(fs: &Fs, is_paused: bool) -> u8 {
    fs.done(fs.ask(&PauseStoreBehind { is_paused }).map(|_| {
        fs.printer.say(match is_paused {
            true => PAUSED,
            false => "What waits for servers is sent again.\n",
        });
    }))
}

fn complain_usage(fs: &Fs, text: &str) -> u8 {
    complain!(fs.printer, "fs: {text}\n");
    FAILURE
}

/// What OpenAFS's options ask for and tell.
fn openafs(fs: &Fs, given: &Given) -> u8 {
    if given.has("kbytes") || given.has("allfiles") {
        let why = "close waits for the store, so that its errors can be told; \
                   'fs storebehind -directory DIR -set always' has it not wait";
        return refuse(fs, why);
    }
    for file in given.values("files") {
        say!(fs.printer, "Will store {} according to default.\n", file.display());
    }
    say!(fs.printer, "Default store asynchrony is 0 kbytes.\n");
    0
}

fn each(
    fs: &Fs,
    targets: &[(Target, bool)],
    mut work: impl FnMut(&Target, bool) -> Result<(), Failure>,
) -> u8 {
    let mut status = 0;
    for (target, is_volume) in targets {
        let Err(failure) = work(target, *is_volume) else { continue };
        status = FAILURE;
        let path = &target.shown;
        match failure.errno() {
            Some(EACCES) => complain!(
                fs.printer,
                "fs: to set write-behind for {path} you need the right to administer it (a); for a volume, its root directory\n"
            ),
            Some(ENOTDIR) => complain!(fs.printer, "fs: {path} is not a directory\n"),
            Some(EROFS) => {
                complain!(
                    fs.printer,
                    "fs: {path} is in a backup or readonly volume, which nobody writes to\n"
                );
            }
            Some(ENOSPC) => complain!(
                fs.printer,
                "fs: write-behind is set for too many directories already; unset some with -set inherit\n"
            ),
            Some(EOPNOTSUPP) => complain!(
                fs.printer,
                "fs: the client has no cache folder, where what is not stored yet could outlast it; mount with --cache DIR\n"
            ),
            _ => fs.complain(&failure, Some(path)),
        }
    }
    status
}

fn show(fs: &Fs, targets: &[(Target, bool)], is_json: bool) -> u8 {
    let mut all = Vec::new();
    let status = each(fs, targets, |target, _| {
        let Served { client, place } = Served::at(&target.path, Links::Follow)?;
        let told = client.call(&GetStoreBehind { dir: place })?;
        match is_json {
            true => all.push(as_json(&target.shown, &told)),
            false => fs.printer.say(&in_words(&target.shown, &told)),
        }
        Ok(())
    });
    if is_json {
        fs.printer.say_json(&Value::Array(all));
    }
    status
}

fn as_json(path: &str, told: &reply::GetStoreBehind) -> Value {
    json!({
        "path": path,
        "counts": word(told.counts),
        "directory": word(told.own),
        "volume": word(told.volume),
        "mount": word(told.mount),
    })
}

fn in_words(path: &str, told: &reply::GetStoreBehind) -> String {
    let mut text = format!(
        "{path}: write-behind is {} (set for the directory: {}, for its volume: {}, for the mount: {})\n",
        word(told.counts),
        word(told.own),
        word(told.volume),
        word(told.mount),
    );
    if told.counts == StoreBehind::SECOND {
        text += MAY_LOSE;
    }
    text
}

fn set(fs: &Fs, target: &Target, is_volume: bool, setting: StoreBehind) -> Result<(), Failure> {
    let Served { client, place } = Served::at(&target.path, Links::Follow)?;
    client.call(&SetStoreBehind { dir: place.clone(), is_volume, setting })?;
    let told = client.call(&GetStoreBehind { dir: place })?;
    fs.printer.say(&set_in_words(&target.shown, is_volume, setting, told.counts));
    Ok(())
}

fn set_in_words(path: &str, is_volume: bool, setting: StoreBehind, counts: StoreBehind) -> String {
    let place = match is_volume {
        true => format!("the volume of {path}"),
        false => format!("{path} and what is below it in its volume"),
    };
    let mut text = match setting {
        StoreBehind::INHERIT => {
            format!(
                "For {place}, what is set above counts again: write-behind is {} in {path}.\n",
                word(counts)
            )
        }
        _ => format!("For {place}, write-behind is {}.\n", word(setting)),
    };
    match counts {
        StoreBehind::ALWAYS => text += NO_LONGER,
        StoreBehind::SECOND => text += &format!("{NO_LONGER}{MAY_LOSE}"),
        _ => {
            text += "Closes and changes of names wait for the server. What waits already is sent, in order.\n"
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_switches_it_on_is_told_what_no_longer_excludes_other_machines() {
        for (setting, loses) in [(StoreBehind::ALWAYS, false), (StoreBehind::SECOND, true)] {
            let text = set_in_words("work", false, setting, setting);
            assert!(
                text.starts_with("For work and what is below it in its volume, write-behind is "),
                "{text}"
            );
            assert!(
                text.contains("O_EXCL, mkdir, link and rename there exclude programs of this machine only")
            );
            assert_eq!(text.contains("may lose"), loses, "{text}");
        }
        let text = set_in_words("work", true, StoreBehind::OFF, StoreBehind::OFF);
        assert!(text.starts_with("For the volume of work, write-behind is off.\n"), "{text}");
        assert!(!text.contains("O_EXCL"), "{text}");
    }

    #[test]
    fn each_setting_has_one_word() {
        for &known in StoreBehind::NAMED {
            assert_eq!(setting(word(known)), Some(known));
        }
        assert_eq!(setting("on"), None);
    }
}
