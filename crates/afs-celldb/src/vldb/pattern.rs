//! Basic regular expressions of POSIX, as stock servers take them for the names of volumes (VLDB notes 13): translated for
//! the crate `regex-lite`, whose searches take time in proportion to what is searched. Back references are not there.

use regex_lite::{Regex, RegexBuilder};

/// What a compiled expression may take: far more than one of 64 bytes needs that does not count repetitions in hundreds.
const MAX_BYTES: usize = 256 << 10;

/// An expression that is to match a name.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// One for whole names. `None` if this is no expression, or one that is not supported.
    pub fn new(basic: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(basic).ok()?;
        // As stock servers write it, who put the anchors around the text: in "a\|b" each belongs to one side.
        Self::within(&format!("^{text}$")).ok()
    }

    /// One for parts of names, if it has no anchors.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in the words of glibc's `regerror`, or that it is not supported.
    pub fn within(basic: &str) -> Result<Self, &'static str> {
        if !basic.is_ascii() {
            return Err("Characters other than those of ASCII are not supported");
        }
        let pattern = translate(basic)?;
        let built = RegexBuilder::new(&pattern).size_limit(MAX_BYTES).build();
        built.map(Self).map_err(|_| "It is too large, or has a range or a count that cannot be")
    }

    /// True if a name matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        std::str::from_utf8(name).is_ok_and(|name| self.0.is_match(name))
    }
}

const UNMATCHED_OPEN: &str = "Unmatched ( or \\(";
const UNMATCHED_CLOSE: &str = "Unmatched ) or \\)";
const UNMATCHED_SET: &str = "Unmatched [, [^, [:, [., or [=";
/// What the system's library says of a set that ends where it begins.
const NO_SET: &str = "Invalid regular expression";
const UNMATCHED_COUNT: &str = "Unmatched \\{";
const BAD_COUNT: &str = "Invalid content of \\{\\}";
const BAD_CLASS: &str = "Invalid character class name";
const BEFORE_NOTHING: &str = "Invalid preceding regular expression";
const TRAILING: &str = "Trailing backslash";
const BACK_REFERENCE: &str = "Back references are not supported";
const COLLATING: &str = "[. and [= are not supported";

/// Writes a basic expression as an extended one.
fn translate(basic: &str) -> Result<String, &'static str> {
    let mut out = String::new();
    let mut chars = basic.chars().peekable();
    // A `*` is one where an expression begins, also behind the anchor; the anchor is one only at the very beginning.
    let (mut is_start, mut may_anchor) = (true, true);
    // Where what a repetition repeats begins, and whether it ends in one; and the same of the groups that are open.
    let (mut operand, mut repeats) = (0, false);
    let mut open = Vec::new();
    while let Some(char) = chars.next() {
        let was_start = std::mem::take(&mut is_start);
        let could_anchor = std::mem::take(&mut may_anchor);
        let is_repetition = match char {
            '\\' => matches!(chars.peek(), Some('+' | '?' | '{')),
            '*' => !was_start,
            _ => false,
        };
        if !is_repetition {
            operand = out.len();
        } else if repeats {
            // A second one would be taken for something else: "a+?" is an "a+" that takes little.
            out.insert_str(operand, "(?:");
            out.push(')');
        }
        repeats = is_repetition;
        match char {
            '\\' => match chars.next().ok_or(TRAILING)? {
                '(' => {
                    open.push(operand);
                    out.push_str("(?:");
                    (is_start, may_anchor) = (true, true);
                }
                ')' => {
                    operand = open.pop().ok_or(UNMATCHED_CLOSE)?;
                    out.push(')');
                }
                '|' => {
                    out.push('|');
                    (is_start, may_anchor) = (true, true);
                }
                '+' | '?' | '{' if was_start => return Err(BEFORE_NOTHING),
                '{' => translate_count(&mut chars, &mut out)?,
                '+' => out.push('+'),
                '?' => out.push('?'),
                '1'..='9' => return Err(BACK_REFERENCE),
                other => push_literal(&mut out, other),
            },
            '*' if was_start => out.push_str("\\*"),
            // Twice is once.
            '*' => {
                while chars.next_if_eq(&'*').is_some() {}
                out.push('*');
            }
            '.' => out.push('.'),
            '^' if could_anchor => {
                out.push('^');
                is_start = true;
            }
            '$' if is_end(&chars) => out.push('$'),
            '[' => translate_set(&mut chars, &mut out)?,
            other => push_literal(&mut out, other),
        }
    }
    if open.is_empty() { Ok(out) } else { Err(UNMATCHED_OPEN) }
}

fn is_end(chars: &std::iter::Peekable<std::str::Chars<'_>>) -> bool {
    let rest: String = chars.clone().take(2).collect();
    rest.is_empty() || rest == "\\)" || rest == "\\|"
}

fn push_literal(out: &mut String, char: char) {
    if !char.is_ascii_alphanumeric() && char != '_' {
        out.push('\\');
    }
    out.push(char);
}

/// A count, behind its `\{`.
fn translate_count(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    out: &mut String,
) -> Result<(), &'static str> {
    let mut count = String::new();
    while let Some(char) = chars.next_if(|char| char.is_ascii_digit() || *char == ',') {
        count.push(char);
    }
    let mut next = || chars.next().ok_or(UNMATCHED_COUNT);
    if next()? != '\\' || next()? != '}' || count.matches(',').count() > 1 || ["", ","].contains(&&*count) {
        return Err(BAD_COUNT);
    }
    let from_zero = if count.starts_with(',') { "0" } else { "" };
    out.push_str(&format!("{{{from_zero}{count}}}"));
    Ok(())
}

/// Classes of characters that a set may name.
const CLASSES: [&str; 12] = [
    "alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper",
    "xdigit",
];

/// A set of characters, behind its `[`.
fn translate_set(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    out: &mut String,
) -> Result<(), &'static str> {
    out.push('[');
    if chars.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    if chars.peek().is_none() {
        return Err(NO_SET);
    }
    let mut is_first = true;
    loop {
        match chars.next().ok_or(UNMATCHED_SET)? {
            ']' if !is_first => break,
            '[' if chars.next_if_eq(&':').is_some() => {
                let mut class = String::new();
                while let Some(char) = chars.next_if(char::is_ascii_lowercase) {
                    class.push(char);
                }
                if (chars.next(), chars.next()) != (Some(':'), Some(']')) {
                    return Err(UNMATCHED_SET);
                }
                if !CLASSES.contains(&&*class) {
                    return Err(BAD_CLASS);
                }
                out.push_str(&format!("[:{class}:]"));
            }
            '[' if matches!(chars.peek(), Some('.' | '=')) => return Err(COLLATING),
            // A range, unless it is the last or the first.
            '-' if !is_first && chars.peek().is_some_and(|next| *next != ']') => out.push('-'),
            other => push_literal(out, other),
        }
        is_first = false;
    }
    out.push(']');
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    const NAMES: [&str; 12] = [
        "root.cell",
        "user.a",
        "user.ab",
        "user.abb.readonly",
        "a",
        "b",
        "a+b",
        "a*b",
        "{a}",
        "USER-1_2",
        "1234",
        "",
    ];

    /// `grep -x` has the same expressions; it is there wherever these tests run.
    fn grep(pattern: &str, name: &str) -> Option<bool> {
        let mut grep = Command::new("grep");
        grep.env("LC_ALL", "C").args(["-q", "-e", &format!("^{pattern}$")]);
        let mut child = grep.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("grep");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        // It may have gone, if the expression is none.
        let _ = stdin.write_all(format!("{name}\n").as_bytes());
        drop(stdin);
        match child.wait().expect("grep").code() {
            Some(0) => Some(true),
            Some(1) => Some(false),
            _ => None,
        }
    }

    #[test]
    fn expressions_match_as_grep_has_them() {
        for pattern in [
            "root.cell",
            "root\\.cell",
            "user\\..*",
            "user.[a-b]*",
            "user.[^c]*",
            "[[:alpha:]]*",
            "[]a]",
            "[a\\b]",
            "[a-]",
            "[-b]",
            "a\\{1,2\\}",
            "user.ab\\{2\\}.*",
            "user.ab\\{,1\\}",
            "\\(a\\|b\\)",
            "a\\|b",
            "a+b",
            "a*b",
            "*b",
            "{a}",
            "a\\+b",
            "a\\?b",
            "\\(user\\).*",
            ".*-[0-9]_[[:digit:]]",
            "a**b",
            "a$",
            "^a",
            "(a)",
            "a|b",
            ".\\{4\\}",
            "x*",
            "a\\+\\?",
            "a\\{2\\}\\?",
            "user.a\\(b\\)\\{2\\}\\?.*",
            "\\(a\\|b\\)\\?\\+",
            "[0-9]\\{2\\}\\{2\\}",
            "a*\\?",
            "a\\?*",
        ] {
            let compiled = Pattern::new(pattern.as_bytes()).unwrap_or_else(|| panic!("{pattern} is refused"));
            for name in NAMES {
                let expected = grep(pattern, name);
                assert_eq!(Some(compiled.matches(name.as_bytes())), expected, "{pattern} against {name:?}");
            }
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_by_both() {
        for pattern in ["[a", "\\(a", "a\\)", "a\\{", "a\\{1", "a\\{2,1\\}", "[[:nothing:]]", "a\\{,,\\}"] {
            assert!(Pattern::new(pattern.as_bytes()).is_none(), "{pattern}");
            assert_eq!(grep(pattern, "a"), None, "{pattern}");
        }
    }

    #[test]
    fn without_anchors_a_part_is_enough_and_what_is_wrong_is_told() {
        let matches = |basic: &str, name: &str| Pattern::within(basic).unwrap().matches(name.as_bytes());
        assert!(matches("^user\\.[a-c]", "user.alice") && !matches("^user\\.[a-c]", "user.zoe"));
        assert!(matches("^root\\|b", "user.bob") && !matches("^oot", "root.cell"));
        for (basic, wrong) in [
            ("^user[", NO_SET),
            ("^user[^", NO_SET),
            ("^user[a", UNMATCHED_SET),
            ("^\\(a", UNMATCHED_OPEN),
            ("^a\\)", UNMATCHED_CLOSE),
            ("^a\\{1", UNMATCHED_COUNT),
            ("^a\\{x\\}", BAD_COUNT),
            ("^[[:none:]]", BAD_CLASS),
            ("^a\\", TRAILING),
            ("^\\(a\\)\\1", BACK_REFERENCE),
        ] {
            assert_eq!(Pattern::within(basic).unwrap_err(), wrong, "{basic}");
        }
    }

    #[test]
    fn what_is_not_supported_or_too_large_is_refused() {
        for pattern in [&b"\\(a\\)\\1"[..], b"\xff", b"[[=a=]]", b"\\(.\\{200\\}\\)\\{200\\}"] {
            assert!(Pattern::new(pattern).is_none(), "{}", pattern.escape_ascii());
        }
    }
}
