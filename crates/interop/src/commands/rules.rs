//! Differences that two cells may have in what a command prints, and that are taken away before it is compared: a table
//! of named rules, each with its reason.

/// Something that may differ.
#[derive(Debug)]
pub struct Rule {
    /// Its name in the list.
    pub name: &'static str,
    /// The reason why it may differ.
    pub reason: &'static str,
    change: Change,
}

/// Names say which rule it is.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Rule {}

/// The effect of a rule.
#[derive(Debug)]
enum Change {
    /// Replaces what has one of these shapes (see [`length_of`]) by the second.
    Replace(&'static [(&'static str, &'static str)]),
    /// Replaces each number, with the spaces that align it.
    Numbers,
    /// Replaces the rest of a line that begins with the first by the second.
    Rest(&'static str, &'static str),
    /// Leaves out lines that contain one of these.
    Without(&'static [&'static str]),
    /// Sorts the lines.
    Sort,
}

/// Holds for every command.
pub static ALWAYS: Rule = Rule {
    name: "times",
    reason: "the two cells were made one after the other",
    change: Change::Replace(&[("AAA AAA _9 99:99:99 9999", "TIME"), ("AAA AAA _9 99:99:99", "TIME")]),
};

/// The rules that the list may name.
pub static RULES: &[Rule] = &[
    Rule {
        name: "epochs",
        reason: "times as seconds, of which there are ten digits",
        change: Change::Replace(&[("1999999999", "SECONDS")]),
    },
    Rule {
        name: "uuids",
        reason: "a file server makes its own",
        change: Change::Replace(&[("hhhhhhhh-hhhh-hhhh-hh-hh-hhhhhhhhhhhh", "UUID")]),
    },
    Rule {
        name: "numbers",
        reason: "counters, free space and sizes of tables, which change from one second to the next",
        change: Change::Numbers,
    },
    Rule {
        name: "version",
        reason: "ours says its own name",
        change: Change::Rest("AFS version: ", "VERSION"),
    },
    Rule { name: "sorted", reason: "a list whose order nobody promises", change: Change::Sort },
    Rule {
        name: "rxstats",
        reason: "lines that rxdebug prints only of a server that has called somebody",
        change: Change::Without(&["rtt is"]),
    },
    Rule {
        name: "udebug",
        reason: "times and counters of votes; the version of a database counts its changes, of which one may need more than the other",
        change: Change::Numbers,
    },
    Rule {
        name: "starts",
        reason: "what a process of the server's is, and how often it was started, is the server's own affair",
        change: Change::Without(&["Command ", "Process last started"]),
    },
    Rule {
        name: "waits",
        reason: "bos says it each five seconds until the salvager has ended, which on a busy machine may be twice or not at all",
        change: Change::Without(&["waiting for salvage to complete."]),
    },
];

/// The rule of this name.
pub fn find(name: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.name == name)
}

impl Rule {
    /// Takes away what the rule is about.
    pub fn apply(&self, lines: &mut Vec<String>) {
        match self.change {
            Change::Without(parts) => lines.retain(|line| !parts.iter().any(|part| line.contains(part))),
            Change::Sort => lines.sort(),
            Change::Replace(_) | Change::Numbers | Change::Rest(..) => {
                lines.iter_mut().for_each(|line| *line = self.apply_to_line(line));
            }
        }
    }

    /// The same for a line by itself.
    pub fn apply_to_line(&self, line: &str) -> String {
        match self.change {
            Change::Replace(shapes) => {
                shapes.iter().fold(line.to_owned(), |line, (shape, by)| replace(&line, shape, by))
            }
            Change::Numbers => without_numbers(line),
            Change::Rest(start, by) => {
                if line.starts_with(start) {
                    format!("{start}{by}")
                } else {
                    line.to_owned()
                }
            }
            Change::Without(_) | Change::Sort => line.to_owned(),
        }
    }
}

/// Replaces what has the shape.
fn replace(line: &str, shape: &str, by: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    let mut last = ' ';
    while let Some(first) = rest.chars().next() {
        // Not the end of a longer word or number.
        let length = if last.is_ascii_alphanumeric() { None } else { length_of(shape, rest) };
        let length = match length {
            Some(length) => {
                out.push_str(by);
                length
            }
            None => {
                out.push(first);
                first.len_utf8()
            }
        };
        last = rest[..length].chars().next_back().unwrap_or(' ');
        rest = &rest[length..];
    }
    out
}

/// The length of what has the shape at the start of the text: `A` is a letter, `9` a digit, `_` a digit or a space, `h` a
/// hexadecimal digit, anything else itself; and no longer word or number.
fn length_of(shape: &str, text: &str) -> Option<usize> {
    let mut chars = text.chars();
    for wanted in shape.chars() {
        let found = chars.next()?;
        let fits = match wanted {
            'A' => found.is_ascii_alphabetic(),
            '9' => found.is_ascii_digit(),
            '_' => found.is_ascii_digit() || found == ' ',
            'h' => found.is_ascii_hexdigit(),
            literal => found == literal,
        };
        if !fits {
            return None;
        }
    }
    let rest = chars.as_str();
    (!rest.starts_with(|c: char| c.is_ascii_alphanumeric())).then_some(text.len() - rest.len())
}

/// The text before the one number that a command (rxdebug) prints in hexadecimal: an address, which may begin with a letter.
const BEFORE_HEXADECIMAL: &str = "(last from host ";

/// Each number as N, its sign gone, with one space before it where there were more.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        if out.ends_with(BEFORE_HEXADECIMAL) {
            out.push('N');
            rest = rest.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            continue;
        }
        if !first.is_ascii_digit() {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let is_signed = out.ends_with('-') && (out.len() == 1 || out.ends_with(" -"));
        out.truncate(out.len() - usize::from(is_signed));
        let aligned = out.trim_end_matches(' ').len();
        out.truncate(out.len().min(aligned + 1));
        out.push('N');
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        // The point that ends a sentence is no part of it.
        rest = &rest[rest[..end].trim_end_matches('.').len()..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: &Rule, cases: &[(&str, &str)]) {
        for (line, expected) in cases {
            assert_eq!(rule.apply_to_line(line), *expected, "{}", rule.name);
        }
    }

    #[test]
    fn times_have_a_shape_and_nothing_else_has_it() {
        check(
            &ALWAYS,
            &[
                ("  Creation    Sat Nov 21 16:47:30 2026", "  Creation    TIME"),
                ("at Sat Nov  1 06:47:30 2026 (x)", "at TIME (x)"),
                ("Last update Never", "Last update Never"),
                ("Sat Nov 21 16:47:30 20261", "TIME 20261"),
            ],
        );
    }

    #[test]
    fn rules_take_away_what_they_are_about_and_no_more() {
        check(
            find("epochs").unwrap(),
            &[("creationDate\t1795279650\tx 12345678901", "creationDate\tSECONDS\tx 12345678901")],
        );
        check(find("uuids").unwrap(), &[("UUID: 006e9ace-cb1e-1b01-b9-33-0100580aaa77", "UUID: UUID")]);
        check(
            find("version").unwrap(),
            &[("AFS version: OpenAFS 1.8.9", "AFS version: VERSION"), ("x", "x")],
        );
        check(
            find("numbers").unwrap(),
            &[
                ("Free space:   534 K of 95.5, or -3.", "Free space: N K of N, or N."),
                ("no number  ", "no number  "),
                ("bogusReads 1 (last from host b00580a), x", "bogusReads N (last from host N), x"),
                ("a-4 b", "a-N b"),
                ("", ""),
            ],
        );
        let mut lines: Vec<String> = ["b", "  Command 1 is 'x'", "a"].map(str::to_owned).to_vec();
        find("starts").unwrap().apply(&mut lines);
        lines.push("bos: waiting for salvage to complete.".to_owned());
        find("waits").unwrap().apply(&mut lines);
        find("sorted").unwrap().apply(&mut lines);
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn no_two_rules_have_one_name() {
        let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RULES.len());
    }
}
