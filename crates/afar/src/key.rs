//! `afar key`: the keys of a cell in the folder of a server's configuration: what there is, new ones from a keytab or of chance, old ones removed.
//! A suite of our own, in place of OpenAFS's `asetkey` and `bos listkeys`.
//!
//! Only KeyFileExt is written: keys of an rxkad.keytab beside it are Kerberos's, and `ktutil` changes them. Servers of ours read keys anew within
//! a second. OpenAFS's look at the time of CellServDB, so that is set too. No key is ever printed.

use crate::calls::Caller;
use crate::cell::SERVER_FOLDER;
use crate::classic::{Command, Given, Opt};
use crate::numbers;
use crate::printer::{Printer, complain, say};
use crate::suite::{Suite, Verb};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rx_security::KeySet;
use rx_security::keys::{
    EncType, KEY_FILE, KEY_FILE_EXT, KEYTAB, Key, KeyFileError, KeyType, NEGOTIATION_KEYTAB,
};
use rx_security::rxgk::ENCTYPES;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use zeroize::Zeroizing;

const FAILURE: u8 = 1;

const CONFIG: Opt = Opt::single("config", "folder with KeyFileExt, default /etc/openafs/server");

static SUITE: Suite = Suite {
    name: "key",
    misuse_status: |_| crate::classic::MISUSE,
    verbs: &[
        Verb {
            command: Command {
                name: "key add",
                options: &[
                    Opt::single("keytab", "file with the cell's key, written by kadmin").required(),
                    CONFIG,
                    Opt::single("kvno", "only the key of this version"),
                ],
            },
            about: "add keys from a keytab",
            aliases: &[],
            run: |given| run(given, false, add),
        },
        Verb {
            command: Command {
                name: "key new",
                options: &[
                    CONFIG,
                    Opt::single("enctype", "encryption type, default aes256-cts-hmac-sha1-96"),
                    Opt::single("kvno", "version, default one higher than the newest"),
                ],
            },
            about: "make the cell's next key for rxgk",
            aliases: &[],
            run: |given| run(given, false, new),
        },
        Verb {
            command: Command { name: "key list", options: &[CONFIG, Opt::flag("json", "write JSON")] },
            about: "list the versions and types of the keys",
            aliases: &["ls"],
            run: |given| run(given, given.has("json"), list),
        },
        Verb {
            command: Command {
                name: "key remove",
                options: &[
                    Opt::single("kvno", "version of the key").required(),
                    CONFIG,
                    Opt::single("enctype", "only the key of this encryption type"),
                    Opt::single("type", "rxkad (default) or rxgk"),
                ],
            },
            about: "remove a key, when all tickets or tokens made with it have expired",
            aliases: &["rm"],
            run: |given| run(given, false, remove),
        },
    ],
};

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    crate::private::begin();
    SUITE.run(args)
}

/// A folder of keys, and where results go.
struct Keys<'a> {
    folder: PathBuf,
    printer: &'a Printer,
}

fn run(given: &Given, is_json: bool, verb: fn(&Keys<'_>, &Given) -> Result<(), String>) -> u8 {
    let printer = Printer::new("key").only_json(is_json);
    let folder = PathBuf::from(given.word("config").unwrap_or(SERVER_FOLDER));
    let status = match verb(&Keys { folder, printer: &printer }, given) {
        Ok(()) => 0,
        Err(why) => {
            complain!(printer, "key: {why}\n");
            FAILURE
        }
    };
    printer.finish(status)
}

type Parse = fn(&[u8]) -> Result<KeySet, KeyFileError>;

/// Keys of a file; none if it is not there.
fn read(path: &Path, parse: Parse) -> Result<KeySet, String> {
    match fs::read(path).map(Zeroizing::new) {
        Ok(bytes) => parse(&bytes).map_err(|error| format!("{}: {error}", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(KeySet::new()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn kind_of(key: &Key) -> (&'static str, String) {
    let name = |number: i32| EncType(number).name().map_or_else(|| number.to_string(), str::to_owned);
    match key.kind {
        KeyType::RXKAD => ("rxkad", "des-cbc-crc".to_owned()),
        KeyType::RXKAD_KRB5 => ("rxkad_krb5", name(key.subtype)),
        KeyType::NEGOTIATION => ("afs-rxgk", name(key.subtype)),
        KeyType::RXGK => ("rxgk", name(key.subtype)),
        KeyType(_) => ("other", key.subtype.to_string()),
    }
}

/// Changes the keys of a folder's KeyFileExt. Others who want to do so at the same time wait.
fn change<T>(folder: &Path, edit: impl FnOnce(&mut KeySet) -> Result<T, String>) -> Result<T, String> {
    let lock = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
    let _lock = lock.map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut keys = read(&folder.join(KEY_FILE_EXT), KeySet::parse_key_file_ext)?;
    let edited = edit(&mut keys)?;
    keys.save(folder).map_err(|error| error.to_string())?;
    if let Ok(file) = File::options().append(true).open(folder.join("CellServDB")) {
        // Servers of OpenAFS's that do not see it read the keys at their next start.
        let _ = file.set_modified(SystemTime::now());
    }
    Ok(edited)
}

/// Adds all keys of a keytab to a folder's KeyFileExt.
///
/// # Errors
///
/// What cannot be read or written; a key would take the place of another.
pub(crate) fn add_keytab(folder: &Path, keytab: &Path) -> Result<(), String> {
    let wanted: Vec<Key> = read(keytab, KeySet::parse_keytab)?.iter().cloned().collect();
    change(folder, |own| add_all(own, &wanted))
}

impl Keys<'_> {
    fn tell(&self, done: &str, keys: &[Key]) {
        for key in keys {
            let (kind, enctype) = kind_of(key);
            say!(self.printer, "{done} {kind} kvno {} {enctype}\n", key.kvno);
        }
    }
}

fn list(keys: &Keys<'_>, given: &Given) -> Result<(), String> {
    let files: [(&str, Parse); 4] = [
        (KEY_FILE_EXT, KeySet::parse_key_file_ext),
        (KEY_FILE, KeySet::parse_key_file),
        (KEYTAB, KeySet::parse_keytab),
        (NEGOTIATION_KEYTAB, KeySet::parse_negotiation_keytab),
    ];
    let mut told: Vec<Value> = Vec::new();
    for (name, parse) in files {
        let all = read(&keys.folder.join(name), parse)?;
        let mut all: Vec<_> = all.iter().collect();
        all.sort_by_key(|key| key.kvno);
        for key in all {
            let (kind, enctype) = kind_of(key);
            say!(keys.printer, "{kind:<11} kvno {:<5} {enctype:<26} {name}\n", key.kvno);
            told.push(json!({ "type": kind, "kvno": key.kvno, "enctype": enctype, "file": name }));
        }
    }
    if told.is_empty() {
        return Err(format!("no keys in {}: add one with 'afar key add KEYTAB'", keys.folder.display()));
    }
    if given.has("json") {
        keys.printer.say_json(&Value::Array(told));
    }
    Ok(())
}

fn add(keys: &Keys<'_>, given: &Given) -> Result<(), String> {
    let keytab = Path::new(given.word("keytab").unwrap_or_default());
    let kvno = given.word("kvno").map(numbers::parse_i32).transpose().map_err(|error| error.to_string())?;
    if !keytab.exists() {
        return Err(format!("{}: there is no such file", keytab.display()));
    }
    let mut wanted: Vec<Key> = Vec::new();
    for key in read(keytab, KeySet::parse_keytab)?.iter() {
        if kvno.is_some_and(|kvno| kvno != key.kvno) {
            continue;
        }
        if key.kind == KeyType::RXKAD {
            complain!(keys.printer, "key: kvno {} is a DES key and was skipped\n", key.kvno);
            continue;
        }
        wanted.push(key.clone());
    }
    if wanted.is_empty() {
        return Err(format!(
            "{} has no key for afs/CELL: extract one with kadmin's 'ktadd -k {} afs/CELL'",
            keytab.display(),
            keytab.display()
        ));
    }
    change(&keys.folder, |own| add_all(own, &wanted))?;
    keys.tell("added", &wanted);
    Ok(())
}

/// Adds keys, unless one would take the place of another: servers would refuse the tickets that the other one has encrypted.
fn add_all(own: &mut KeySet, wanted: &[Key]) -> Result<(), String> {
    for key in wanted {
        let number = |key: &Key| (key.kind, key.kvno, key.subtype);
        if own.iter().any(|old| number(old) == number(key) && old.secret != key.secret) {
            let (_, enctype) = kind_of(key);
            return Err(format!(
                "{KEY_FILE_EXT} already has a different key with kvno {} and {enctype}: run ktadd again (with Heimdal, \
                 cpw --random-key first) so that the key gets a new number, then add the new keytab",
                key.kvno
            ));
        }
        own.insert(key.clone()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Makes a key of chance, which Kerberos knows nothing of. Servers seal tokens with the newest at once.
fn new(keys: &Keys<'_>, given: &Given) -> Result<(), String> {
    let wanted = given.word("enctype").unwrap_or("aes256-cts-hmac-sha1-96");
    let kind = ENCTYPES.into_iter().find(|kind| is_named(*kind, wanted));
    let kind = kind.ok_or_else(|| {
        let names: Vec<_> = ENCTYPES.iter().filter_map(|kind| kind.name()).collect();
        format!("rxgk has no encryption type {wanted}: choose one of {}", names.join(", "))
    })?;
    let kvno = given.word("kvno").map(numbers::parse_i32).transpose().map_err(|error| error.to_string())?;
    let seed = Caller::new().and_then(|caller| caller.seed());
    let seed = Zeroizing::new(seed.map_err(|error| format!("there are no random numbers: {error}"))?);
    let key = change(&keys.folder, |own| {
        let newest = own.iter().filter(|key| key.kind == KeyType::RXGK).map(|key| key.kvno).max();
        let kvno = kvno.unwrap_or(newest.unwrap_or(0).saturating_add(1));
        if newest.is_some_and(|newest| kvno <= newest) {
            return Err(format!(
                "{KEY_FILE_EXT} has a key for rxgk of kvno {}: the next is higher",
                newest.unwrap_or_default()
            ));
        }
        let mut secret = Zeroizing::new(vec![0; kind.key_len().unwrap_or_default()]);
        StdRng::from_seed(*seed).fill_bytes(&mut secret);
        let key = Key::rxgk(kvno, kind, &secret);
        own.insert(key.clone()).map_err(|error| error.to_string())?;
        Ok(key)
    })?;
    keys.tell("made", &[key]);
    Ok(())
}

fn is_named(kind: EncType, name: &str) -> bool {
    kind.name() == Some(name) || kind.0.to_string() == name
}

fn remove(keys: &Keys<'_>, given: &Given) -> Result<(), String> {
    let number = |option| given.word(option).map(numbers::parse_i32).transpose();
    let kvno = number("kvno").map_err(|error| error.to_string())?.unwrap_or_default();
    let wanted = given.word("enctype");
    let is_rxgk = match given.word("type") {
        None | Some("rxkad") => false,
        Some("rxgk") => true,
        Some(other) => return Err(format!("there are no keys of type {other}: rxkad and rxgk")),
    };
    let gone = change(&keys.folder, |own| {
        let gone: Vec<Key> = own
            .iter()
            .filter(|key| key.kvno == kvno && (key.kind == KeyType::RXGK) == is_rxgk)
            .filter(|key| wanted.is_none_or(|name| kind_of(key).1 == name || key.subtype.to_string() == name))
            .cloned()
            .collect();
        if gone.is_empty() {
            return Err(format!("{KEY_FILE_EXT} has no such key: 'afar key list' shows all keys"));
        }
        for key in &gone {
            own.remove(key.kind, key.kvno, key.subtype);
        }
        // Without one for rxgk, servers call each other by rxkad again, which is a choice.
        if !is_rxgk && own.iter().all(|key| key.kind == KeyType::RXGK) {
            return Err(format!(
                "this is the last key in {KEY_FILE_EXT}, and without it nobody could log in: add another key first"
            ));
        }
        Ok(gone)
    })?;
    keys.tell("removed", &gone);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    #[test]
    fn keys_are_told_by_the_names_that_asetkey_and_kerberos_have() {
        let key = Key::rxkad_krb5(2, EncType::AES256, &[7; 32]);
        assert_eq!(kind_of(&key), ("rxkad_krb5", "aes256-cts-hmac-sha1-96".to_owned()));
        assert_eq!(kind_of(&Key::rxkad(2, [1; 8])), ("rxkad", "des-cbc-crc".to_owned()));
    }

    #[test]
    fn a_key_takes_the_place_of_no_other() {
        let mut keys = KeySet::new();
        let key = |byte| Key::rxkad_krb5(1, EncType::AES256, &[byte; 32]);
        add_all(&mut keys, &[key(1)]).unwrap();
        add_all(&mut keys, &[key(1)]).unwrap();
        let error = add_all(&mut keys, &[key(2)]).unwrap_err();
        assert!(error.contains("a different key with kvno 1 and aes256-cts-hmac-sha1-96"), "{error}");
    }

    #[test]
    fn two_who_change_the_keys_at_once_lose_none() {
        let folder = Folder::new("keys");
        let change = |kvno| {
            let printer = Printer::new("key");
            let keys = Keys { folder: folder.to_path_buf(), printer: &printer };
            let key = Key::rxkad_krb5(kvno, EncType::AES256, &[7; 32]);
            change(&keys.folder, |own| own.insert(key).map_err(|error| error.to_string())).unwrap();
        };
        std::thread::scope(|scope| (1..=16).for_each(|kvno| drop(scope.spawn(move || change(kvno)))));
        assert_eq!(KeySet::load(&folder).unwrap().iter().count(), 16);
    }
}
