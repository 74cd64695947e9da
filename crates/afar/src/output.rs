//! What all commands share when they write: text or JSON to the standard output, without a panic when nobody reads it
//! any more, and text of strangers made harmless. What is written is for the commands.

use serde_json::Value;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Writes text to the standard output.
pub(crate) fn print(text: &str) -> ExitCode {
    finish("afar", write(text))
}

/// Writes one JSON value and a newline to the standard output.
pub(crate) fn write_json(value: &Value) -> io::Result<()> {
    write(&format!("{value:#}\n"))
}

/// Writes text to the standard output, at once.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The exit status after writing: success only if all was written. A reader that has gone away needs no message.
pub(crate) fn finish(command: &str, written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if error.kind() != ErrorKind::BrokenPipe {
                eprintln!("{command}: cannot write the output: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Text from the network with its control characters replaced, so that it cannot command the terminal.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_strangers_commands_no_terminal() {
        assert_eq!(harmless("a\x1b[2J\nb \u{e9}"), "a\u{fffd}[2J\u{fffd}b \u{e9}");
    }
}
