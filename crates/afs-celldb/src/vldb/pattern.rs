//! Basic regular expressions of POSIX, as stock servers take them for the names of volumes (VLDB notes 13): translated for
//! the crate `regex-lite`, whose searches take time in proportion to what is searched. Back references are not there.

use regex_lite::{Regex, RegexBuilder};

/// What a compiled expression may take: far more than one of 64 bytes needs that does not count repetitions in hundreds.
const MAX_BYTES: usize = 256 << 10;

/// An expression that is to match a whole name.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// `None` if this is no expression, or one that is not supported.
    pub fn new(basic: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(basic).ok().filter(|text| text.is_ascii())?;
        // As stock servers write it, who put the anchors around the text: in "a\|b" each belongs to one side.
        let pattern = translate(&format!("^{text}$"))?;
        RegexBuilder::new(&pattern).size_limit(MAX_BYTES).build().ok().map(Self)
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        std::str::from_utf8(name).is_ok_and(|name| self.0.is_match(name))
    }
}

/// Writes a basic expression as an extended one.
fn translate(basic: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = basic.chars().peekable();
    // A `*` is one where an expression begins, also behind the anchor; the anchor is one only at the very beginning.
    let (mut is_start, mut may_anchor) = (true, true);
    let mut open = 0;
    while let Some(char) = chars.next() {
        let was_start = std::mem::take(&mut is_start);
        let could_anchor = std::mem::take(&mut may_anchor);
        match char {
            '\\' => match chars.next()? {
                '(' => {
                    open += 1;
                    out.push_str("(?:");
                    (is_start, may_anchor) = (true, true);
                }
                ')' => {
                    open -= 1;
                    if open < 0 {
                        return None;
                    }
                    out.push(')');
                }
                '{' if !was_start => translate_count(&mut chars, &mut out)?,
                '|' => {
                    out.push('|');
                    (is_start, may_anchor) = (true, true);
                }
                '+' | '?' if was_start => return None,
                '+' => out.push('+'),
                '?' => out.push('?'),
                '1'..='9' | '{' => return None,
                other => push_literal(&mut out, other),
            },
            '*' if was_start => out.push_str("\\*"),
            // Twice is once: extended expressions would refuse it, or take it for something else.
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
    (open == 0).then_some(out)
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
fn translate_count(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) -> Option<()> {
    let mut count = String::new();
    while let Some(char) = chars.next_if(|char| char.is_ascii_digit() || *char == ',') {
        count.push(char);
    }
    if chars.next()? != '\\' || chars.next()? != '}' || count.matches(',').count() > 1 || count == "," {
        return None;
    }
    let from_zero = if count.starts_with(',') { "0" } else { "" };
    out.push_str(&format!("{{{from_zero}{count}}}"));
    Some(())
}

/// A set of characters, behind its `[`.
fn translate_set(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, out: &mut String) -> Option<()> {
    out.push('[');
    if chars.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut is_first = true;
    loop {
        match chars.next()? {
            ']' if !is_first => break,
            '[' if chars.next_if_eq(&':').is_some() => {
                let mut class = String::new();
                while let Some(char) = chars.next_if(char::is_ascii_lowercase) {
                    class.push(char);
                }
                if chars.next()? != ':' || chars.next()? != ']' {
                    return None;
                }
                out.push_str(&format!("[:{class}:]"));
            }
            '[' if matches!(chars.peek(), Some('.' | '=')) => return None,
            // A range, unless it is the last or the first.
            '-' if !is_first && chars.peek().is_some_and(|next| *next != ']') => out.push('-'),
            other => push_literal(out, other),
        }
        is_first = false;
    }
    out.push(']');
    Some(())
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
    fn what_is_not_supported_or_too_large_is_refused() {
        for pattern in [&b"\\(a\\)\\1"[..], b"\xff", b"[[=a=]]", b"\\(.\\{200\\}\\)\\{200\\}"] {
            assert!(Pattern::new(pattern).is_none(), "{}", pattern.escape_ascii());
        }
    }
}
