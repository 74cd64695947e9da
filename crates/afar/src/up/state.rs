//! The state folder of `afar up`: whose format it is, that nobody else uses it, and who of this machine's users is who in
//! the cell.

use crate::private;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The version of what is in the folder. To be raised with each change that an older program would not understand.
const VERSION: u32 = 1;

/// A state folder in use. Given up when dropped.
#[derive(Debug)]
pub(super) struct State {
    path: PathBuf,
    lock: File,
}

/// A user of this machine, and who that is in the cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) uid: u32,
    pub(super) name: String,
}

impl State {
    /// Takes a folder, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// When it cannot be used, is in use, or is of a newer version. Each says what to do.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: std::io::Error| {
            let what = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "change its owner to the user that runs afar, or choose another with --state"
                }
                ErrorKind::StorageFull => "free some space on the disk, or choose another with --state",
                _ => "choose another with --state",
            };
            format!("cannot use the state folder {shown}: {error}; {what}")
        };
        private::state_folder(path).map_err(failed)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.join("lock"))
            .map_err(failed)?;
        lock.try_lock().map_err(|_| {
            let mut by = String::new();
            let _ = (&lock).read_to_string(&mut by);
            let by = by.trim();
            format!("another 'afar up' (process {by}) uses the state folder {shown}: stop it, or choose another with --state")
        })?;
        let note_pid = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        note_pid(&mut lock).map_err(failed)?;
        check_version(&path.join("version"), &shown.to_string()).and_then(|is_new| {
            if is_new {
                fs::write(path.join("version"), format!("{VERSION}\n")).map_err(failed)?;
            }
            Ok(())
        })?;
        Ok(Self { path: path.to_owned(), lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// True if all volumes have been made.
    pub(super) fn is_complete(&self) -> bool {
        self.path.join("complete").exists()
    }

    pub(super) fn set_complete(&self) -> Result<(), String> {
        let file = self.path.join("complete");
        fs::write(&file, "").map_err(|error| format!("{}: {error}", file.display()))
    }

    fn users_file(&self) -> PathBuf {
        self.path.join("users")
    }

    /// The people, as the file `users` says.
    ///
    /// # Errors
    ///
    /// Names the line that makes no sense.
    pub(super) fn people(&self, uid_of: impl Fn(&str) -> Option<u32>) -> Result<Vec<Person>, String> {
        let file = self.users_file();
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
        parse_people(&text, uid_of).map_err(|error| format!("{}, {error}", file.display()))
    }

    /// Adds a person.
    pub(super) fn add_person(&self, person: &Person) -> Result<(), String> {
        const HEAD: &str = "# Users of this machine, by name or number, and their names in the cell. Users who are not listed here are\n\
                            # anonymous (system:anyuser). 'afar up' reads this file when it starts.\n";
        let file = self.users_file();
        let add = || {
            let is_new = !file.exists();
            let mut users = OpenOptions::new().append(true).create(true).mode(0o600).open(&file)?;
            if is_new {
                users.write_all(HEAD.as_bytes())?;
            }
            writeln!(users, "{} {}", person.uid, person.name)
        };
        add().map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Closing it is not enough: a child of this process has it open, too, until it executes its program.
        let _ = self.lock.unlock();
    }
}

/// Checks the version of a state folder. Returns whether there is none yet.
fn check_version(file: &Path, folder: &str) -> Result<bool, String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    match text.trim().parse::<u32>() {
        Ok(VERSION) => Ok(false),
        Ok(newer) if newer > VERSION => Err(format!(
            "the state folder {folder} was made by a newer afar (version {newer}; this one knows {VERSION}): use that afar, or \
             choose another folder with --state"
        )),
        _ => Err(format!(
            "{} does not contain '{VERSION}': is {folder} a state folder of afar? choose another with --state",
            file.display()
        )),
    }
}

fn parse_people(text: &str, uid_of: impl Fn(&str) -> Option<u32>) -> Result<Vec<Person>, String> {
    let mut people: Vec<Person> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(local) = words.next() else { continue };
        let (Some(name), None) = (words.next(), words.next()) else {
            return Err(format!(
                "line {}: this must be a user of this machine and a user of the cell",
                number + 1
            ));
        };
        let uid = local.parse().ok().or_else(|| uid_of(local));
        let Some(uid) = uid else {
            return Err(format!("line {}: this machine has no user '{local}'", number + 1));
        };
        if people.iter().any(|person| person.uid == uid) {
            return Err(format!("line {}: an earlier line already has '{local}'", number + 1));
        }
        people.push(Person { uid, name: name.to_owned() });
    }
    Ok(people)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("afar-up-state-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        path
    }

    #[test]
    fn a_folder_is_for_one_at_a_time_and_says_by_whom_it_is_used() {
        let path = folder("lock");
        let state = State::open(&path).unwrap();
        assert!(!state.is_complete());
        state.set_complete().unwrap();
        let error = State::open(&path).unwrap_err();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(state);
        assert!(State::open(&path).unwrap().is_complete());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_folder_of_a_newer_version_is_left_alone() {
        let path = folder("version");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("version"), "2\n").unwrap();
        assert!(State::open(&path).unwrap_err().contains("a newer afar (version 2"));
        fs::write(path.join("version"), "?\n").unwrap();
        assert!(State::open(&path).unwrap_err().contains("is "));
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn people_are_named_by_name_or_number() {
        let parse = |text| parse_people(text, |name| (name == "alice").then_some(1000));
        let person = |uid, name: &str| Person { uid, name: name.to_owned() };
        assert_eq!(
            parse("# who\n0 admin\n\nalice smith # her\n"),
            Ok(vec![person(0, "admin"), person(1000, "smith")])
        );
        assert!(parse("bob x\n").unwrap_err().starts_with("line 1: this machine has no user 'bob'"));
        assert!(parse("0\n").unwrap_err().starts_with("line 1: "));
        assert!(parse("0 a\n0 b\n").unwrap_err().starts_with("line 2: "));
    }

    #[test]
    fn people_who_are_added_are_found_again() {
        let path = folder("people");
        let state = State::open(&path).unwrap();
        assert_eq!(state.people(|_| None).unwrap(), []);
        for person in [Person { uid: 0, name: "admin".into() }, Person { uid: 7, name: "x".into() }] {
            state.add_person(&person).unwrap();
        }
        assert_eq!(state.people(|_| None).unwrap().len(), 2);
        drop(state);
        fs::remove_dir_all(path).unwrap();
    }
}
