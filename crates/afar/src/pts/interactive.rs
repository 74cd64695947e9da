//! `pts interactive`, `source` and `quit`: commands that are read from the standard input or from a file, line by line. Each line is what
//! stands behind `pts` in a shell; what a command does is for its own file.
//!
//! As OpenAFS 1.8.9's does: a line that fails does not end it, and the exit status is 0 however the lines ended; `quit` ends all of it,
//! also from a file within a file; on a terminal there is a prompt. The cell, and who calls, are those of the last line that
//! named any of it, at first those of `interactive` or `source` themselves.

use super::{FAILURE, Failed, SUITE, open};
use crate::classic::Given;
use crate::output;
use crate::standard_input;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;

/// Files within files. One that names itself would never end.
const DEPTH_MAX: usize = 100;

/// Options with which a line says anew which cell is meant, and who calls.
const OPTIONS: [&str; 8] = ["cell", "noauth", "test", "localauth", "auth", "encrypt", "clear", "config"];

pub(super) fn interactive(given: &Given) -> u8 {
    match Session::new(given) {
        Ok(mut session) => {
            session.read_input();
            0
        }
        Err(Failed) => FAILURE,
    }
}

pub(super) fn source(given: &Given) -> u8 {
    let read = Session::new(given).and_then(|mut session| session.read_file(given, 0));
    if read.is_ok() { 0 } else { FAILURE }
}

/// Ends the reading of lines. Where none are read there is nothing to end.
pub(super) fn quit(given: &Given) -> u8 {
    if open(given).is_ok() { 0 } else { FAILURE }
}

/// Lines under way.
struct Session {
    /// What each line gets that does not say so itself: the cell, and who calls.
    kept: Vec<OsString>,
    has_quit: bool,
}

impl Session {
    fn new(given: &Given) -> Result<Self, Failed> {
        // What is wrong with the cell is said now and not at each line; that there is no token, too.
        let pts = open(given)?;
        let mut kept = kept(given);
        if !pts.is_authenticated {
            kept.retain(|word| word != "-localauth" && word != "-noauth");
            kept.push("-noauth".into());
        }
        Ok(Self { kept, has_quit: false })
    }

    fn read_input(&mut self) {
        if let Err(error) = standard_input::get() {
            eprintln!("pts: {error}");
            return;
        }
        let input = io::stdin();
        let prompt = if input.is_terminal() { "pts> " } else { "" };
        self.read(&mut input.lock(), prompt, 0);
    }

    fn read_file(&mut self, given: &Given, depth: usize) -> Result<(), Failed> {
        let name = given.value("file").unwrap_or_default();
        let complain = |error: &dyn std::fmt::Display| {
            eprintln!("{}: {error}", name.display());
            Failed
        };
        if depth >= DEPTH_MAX {
            return Err(complain(&format!("the {DEPTH_MAX}th file within another")));
        }
        let file = File::open(Path::new(name)).map_err(|error| complain(&words_of(&error)))?;
        self.read(&mut BufReader::new(file), "", depth);
        Ok(())
    }

    fn read(&mut self, lines: &mut dyn BufRead, prompt: &str, depth: usize) {
        while !self.has_quit {
            output::print(prompt);
            let mut line = Vec::new();
            // What cannot be read, such as a folder, ends there.
            if lines.read_until(b'\n', &mut line).unwrap_or(0) == 0 {
                break;
            }
            self.run(&words(&String::from_utf8_lossy(&line)), depth);
        }
    }

    fn run(&mut self, args: &[OsString], depth: usize) {
        // An empty line is no command, where `pts` alone would be one.
        if args.is_empty() {
            return;
        }
        let Ok((verb, given)) = SUITE.understand(args) else { return };
        let is_about_itself = OPTIONS.iter().any(|option| given.has(option));
        if is_about_itself {
            self.kept = kept(&given);
        }
        let with_kept = [args, &self.kept].concat();
        let Ok((verb, given)) =
            (if is_about_itself { Ok((verb, given)) } else { SUITE.understand(&with_kept) })
        else {
            return;
        };
        match verb.command.name {
            "pts quit" => self.has_quit = true,
            "pts interactive" => self.read_input(),
            // Why it was not read is said, and the lines go on.
            "pts source" => drop(self.read_file(&given, depth + 1)),
            _ => drop((verb.run)(&given)),
        }
    }
}

/// The options that say which cell is meant, and who calls: without any of them, the owner of the token.
fn kept(given: &Given) -> Vec<OsString> {
    let mut kept = Vec::new();
    for name in ["cell", "config"] {
        if let Some(value) = given.value(name) {
            kept.extend([format!("-{name}").into(), value.to_owned()]);
        }
    }
    for name in ["localauth", "noauth", "encrypt", "clear", "test", "json"] {
        if given.has(name) {
            kept.push(format!("-{name}").into());
        }
    }
    kept
}

/// What the system says, without its number.
fn words_of(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The words of a line: blanks part them, but for those between quotation marks. A mark of either kind opens and closes, and none of
/// them belongs to the word.
fn words(line: &str) -> Vec<OsString> {
    let mut words = Vec::new();
    let (mut word, mut is_quoted) = (None::<String>, false);
    for c in line.trim_end_matches('\n').chars() {
        match c {
            '"' | '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            ' ' | '\t' if !is_quoted => words.extend(word.take().map(OsString::from)),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.map(OsString::from));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_both_kinds_keep_blanks_and_vanish() {
        for (line, wanted) in [
            ("examine  admin\n", &["examine", "admin"][..]),
            (" \t\n", &[]),
            ("help \"quit sleep\"", &["help", "quit sleep"]),
            ("he\"l\"p 'qu\"it", &["help", "quit"]),
            ("help \"\" x", &["help", "", "x"]),
            ("help a\"b c'd e", &["help", "ab cd", "e"]),
            ("help \"a b", &["help", "a b"]),
            ("a\\ b", &["a\\", "b"]),
        ] {
            assert_eq!(words(line), wanted, "{line:?}");
        }
    }
}
