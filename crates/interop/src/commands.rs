//! A list of commands that is run in two cells, and the comparison of what they print, line by line. What may differ is
//! taken away by named rules ([`rules`]); everything else is a difference. The list is a file for people, interop/cell/commands.txt.

pub mod rules;

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use crate::cell::Cell;
use crate::process;
use rules::Rule;

/// The longest time of a command. The tools give a silent server some 60 s.
const TIMEOUT: Duration = Duration::from_secs(150);

/// The longest time that servers may take until a command that waits for them succeeds: OpenAFS's file server that comes before its
/// ptserver waits for 30 s, and its volserver for it and ten more.
const SERVERS_TIMEOUT: Duration = Duration::from_secs(240);

/// The time after the last try after which such a command is run again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Lines of a difference that are shown.
const SHOWN_LINES: usize = 12;

/// A command of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its line in the list.
    pub line: usize,
    /// The section that it is in.
    pub section: String,
    /// The program and its arguments. There are no spaces in them.
    pub words: Vec<String>,
    /// The rules for what is taken away of its output.
    pub rules: Vec<&'static Rule>,
    /// True if it is run again until it succeeds: servers that start answer later in one cell than in the other.
    pub until: bool,
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its exit status; none if a signal ended it.
    pub status: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A command that did one thing in one cell and another in the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The command.
    pub entry: Entry,
    /// Lines of the one that are not the other's, with "-" before them, and of the other with "+".
    pub lines: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "line {}: {}", self.entry.line, self.entry.words.join(" "))?;
        self.lines.iter().take(SHOWN_LINES).try_for_each(|line| writeln!(f, "    {line}"))?;
        match self.lines.len().checked_sub(SHOWN_LINES) {
            Some(more) if more > 0 => writeln!(f, "    and {more} lines more"),
            _ => Ok(()),
        }
    }
}

/// Reads a list: a command a line, `;;` and names of rules behind it, `until` before one that waits for servers, sections in
/// brackets, comments behind `#`.
///
/// # Errors
///
/// The line that names a rule that there is not.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let mut section = String::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
            continue;
        }
        let (command, named) = line.split_once(";;").unwrap_or((line, ""));
        let find = |name: &str| {
            rules::find(name).ok_or_else(|| format!("line {}: there is no rule {name:?}", index + 1))
        };
        let (until, command) = command.strip_prefix("until ").map_or((false, command), |rest| (true, rest));
        entries.push(Entry {
            line: index + 1,
            section: section.clone(),
            words: command.split_whitespace().map(str::to_owned).collect(),
            rules: named.split_whitespace().map(find).collect::<Result<_, _>>()?,
            until,
        });
    }
    Ok(entries)
}

/// The list as a table for docs/interop.md: the tools, what they were asked to do, and in how many commands.
pub fn table(entries: &[Entry]) -> String {
    let mut tools: Vec<(&str, Vec<&str>, usize)> = Vec::new();
    for entry in entries {
        let tool = entry.words[0].as_str();
        // Tools without verbs have options; of those the first one behind the address tells most.
        let verb = entry
            .words
            .get(1)
            .map(String::as_str)
            .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
        let known = tools.iter().position(|(name, ..)| *name == tool).unwrap_or_else(|| {
            tools.push((tool, Vec::new(), 0));
            tools.len() - 1
        });
        let (_, verbs, count) = &mut tools[known];
        verbs.extend(verb.filter(|verb| !verbs.contains(verb)));
        *count += 1;
    }
    let mut text = String::from("| tool | subcommands | commands |\n| --- | --- | --- |\n");
    for (tool, verbs, count) in tools {
        text += &format!("| {tool} | {} | {count} |\n", verbs.join(", "));
    }
    text
}

/// Runs the commands in a cell, one after the other.
///
/// # Errors
///
/// When one cannot be started or does not end.
pub fn run(cell: &Cell, entries: &[Entry]) -> Result<Vec<Outcome>, String> {
    let run_one = |entry: &Entry| {
        let words: Vec<&str> = entry.words.iter().map(String::as_str).collect();
        let deadline = Instant::now() + SERVERS_TIMEOUT;
        loop {
            let done = process::run(&mut cell.command(&words), TIMEOUT)?;
            if !entry.until || done.status == Some(0) || Instant::now() > deadline {
                return Ok(Outcome { status: done.status, stdout: done.stdout, stderr: done.stderr });
            }
            thread::sleep(AGAIN_AFTER);
        }
    };
    entries.iter().map(run_one).collect()
}

/// Returns the differences between the two, after the rules.
///
/// # Panics
///
/// When the outcomes are not those of the entries.
pub fn compare(entries: &[Entry], one: &[Outcome], other: &[Outcome]) -> Vec<Difference> {
    assert!(entries.len() == one.len() && one.len() == other.len(), "an outcome for each command");
    let pairs = entries.iter().zip(one).zip(other);
    pairs.filter_map(|((entry, one), other)| difference(entry, one, other)).collect()
}

fn difference(entry: &Entry, one: &Outcome, other: &Outcome) -> Option<Difference> {
    let [one, other] = [one, other].map(|outcome| compared(entry, outcome));
    if one == other {
        return None;
    }
    // What begins and ends alike is left out: outputs are short, and what is between is what one wants to see.
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[same..], &other[same..]);
    let same = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let mark = |sign: &'static str| move |line: &String| format!("{sign} {line}");
    let mut lines: Vec<String> = one[..one.len() - same].iter().map(mark("-")).collect();
    lines.extend(other[..other.len() - same].iter().map(mark("+")));
    Some(Difference { entry: entry.clone(), lines })
}

/// The lines that are compared.
fn compared(entry: &Entry, outcome: &Outcome) -> Vec<String> {
    let mut lines = vec![match outcome.status {
        Some(status) => format!("status {status}"),
        None => "ended by a signal".to_owned(),
    }];
    for (name, text) in [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)] {
        let mut text: Vec<String> = text.lines().map(|line| rules::ALWAYS.apply_to_line(line)).collect();
        entry.rules.iter().for_each(|rule| rule.apply(&mut text));
        lines.extend(text.into_iter().map(|line| format!("{name}: {line}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: i32, stdout: &str, stderr: &str) -> Outcome {
        Outcome { status: Some(status), stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    fn differences(list: &str, one: &Outcome, other: &Outcome) -> Vec<String> {
        let entries = parse(list).unwrap();
        let found = compare(&entries, std::slice::from_ref(one), std::slice::from_ref(other));
        found.into_iter().flat_map(|difference| difference.lines).collect()
    }

    #[test]
    fn a_list_is_read_as_it_is_written() {
        let entries =
            parse("# all\n[first]\nuntil vos listvldb -localauth\n\nudebug a 7003 ;; udebug sorted\n")
                .unwrap();
        assert_eq!(entries[0].words, ["vos", "listvldb", "-localauth"]);
        assert_eq!((entries[0].until, entries[1].until), (true, false));
        assert_eq!((entries[1].line, &*entries[1].section), (5, "first"));
        let names: Vec<&str> = entries[1].rules.iter().map(|rule| rule.name).collect();
        assert_eq!(names, ["udebug", "sorted"]);
        assert_eq!(parse("a ;; nosuchrule").unwrap_err(), "line 1: there is no rule \"nosuchrule\"");
    }

    #[test]
    fn the_documentation_has_the_lists_own_table() {
        let table = table(&parse(include_str!("../../../interop/cell/commands.txt")).unwrap());
        let document = include_str!("../../../docs/interop.md");
        assert!(document.contains(&table), "docs/interop.md is to have this table:\n{table}");
    }

    #[test]
    fn times_are_no_difference_and_anything_else_is() {
        let one = outcome(0, "a\nCreation Sat Nov 21 16:47:30 2026\nRWrite 536870912\nb\n", "");
        let later = outcome(0, "a\nCreation Sun Nov 22 06:07:08 2026\nRWrite 536870912\nb\n", "");
        assert_eq!(differences("vos x", &one, &later), [""; 0]);
        let other_id = outcome(0, "a\nCreation Sun Nov 22 06:07:08 2026\nRWrite 536870915\nb\n", "");
        let said = ["- stdout: RWrite 536870912", "+ stdout: RWrite 536870915"];
        assert_eq!(differences("vos x", &one, &other_id), said);
        assert_eq!(differences("vos x", &one, &outcome(1, &one.stdout, "")), ["- status 0", "+ status 1"]);
        assert_eq!(differences("vos x", &one, &outcome(0, &one.stdout, "no\n")), ["+ stderr: no"]);
        assert_eq!(differences("vos x", &one, &outcome(0, "a\n", "")).len(), 3);
    }
}
