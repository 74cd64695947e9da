//! Output of all commands: text or JSON to the standard output, without a panic when nobody reads it
//! any more, and text of strangers made harmless. What is written is for the commands.

use serde_json::{Map, Value};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

/// Writes text to the standard output.
pub(crate) fn print(text: &str) -> ExitCode {
    finish("afar", write(text))
}

/// Writes one JSON value and a newline to the standard output.
pub(crate) fn write_json(value: &Value) -> io::Result<()> {
    write(&format!("{:#}\n", lossless(value.clone())))
}

/// Writes text to the standard output, at once.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(&bytes_of(text))?;
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
    text.chars().map(|c| if c.is_control() || byte_of(c).is_some() { '\u{fffd}' } else { c }).collect()
}

/// In text that is to be printed, the characters that stand for a byte which is no UTF-8: this one for the byte 0, and so on up to 255.
/// They are the last of a plane for private use.
const BYTE_BASE: u32 = 0x0010_ff00;

fn char_of(byte: u8) -> char {
    char::from_u32(BYTE_BASE + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn byte_of(c: char) -> Option<u8> {
    u8::try_from(u32::from(c).checked_sub(BYTE_BASE)?).ok()
}

/// A path as text, with characters for the bytes that are no UTF-8, which [`bytes_of`] makes bytes again. Where a path has such characters
/// itself, each of their bytes gets one.
pub(crate) fn text_of(path: &OsStr) -> String {
    let mut text = String::new();
    for chunk in path.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match byte_of(c) {
                None => text.push(c),
                Some(_) => text.extend(c.encode_utf8(&mut [0; 4]).bytes().map(char_of)),
            }
        }
        text.extend(chunk.invalid().iter().copied().map(char_of));
    }
    text
}

/// The bytes of a text with [`text_of`]'s characters in it.
pub(crate) fn bytes_of(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(|c| byte_of(c).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// JSON has no bytes. So a field `NAME` whose text is no UTF-8 has U+FFFD in place of what is none, and beside it stands `NAME_hex`, all its
/// bytes as hexadecimal digits.
pub(crate) fn lossless(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(lossless).collect(),
        Value::Object(fields) => {
            let mut all = Map::new();
            for (name, value) in fields {
                if let Value::String(text) = &value
                    && let Cow::Owned(bytes) = bytes_of(text)
                {
                    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    all.insert(format!("{name}_hex"), hex.into());
                    all.insert(name, String::from_utf8_lossy(&bytes).into());
                } else {
                    all.insert(name, lossless(value));
                }
            }
            Value::Object(all)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_utf8_is_printed_as_it_is() {
        for path in
            [&b"plain \xc3\xa9"[..], b"f\xff", b"\xc3", b"a\xf4\x8f\xbf\xbfz", b"\x80\xf4\x8f\xbc\x80\xfe"]
        {
            let text = text_of(OsStr::from_bytes(path));
            assert_eq!(&*bytes_of(&text.to_string()), path, "{text:?}");
        }
        let text = text_of(OsStr::from_bytes(b"f\xff"));
        let told = lossless(serde_json::json!([{ "path": text, "cell": "a" }]));
        assert_eq!(told, serde_json::json!([{ "path": "f\u{fffd}", "path_hex": "66ff", "cell": "a" }]));
        assert_eq!(harmless(&text), "f\u{fffd}", "strangers cannot have bytes printed");
    }

    #[test]
    fn text_of_strangers_commands_no_terminal() {
        assert_eq!(harmless("a\x1b[2J\nb \u{e9}"), "a\u{fffd}[2J\u{fffd}b \u{e9}");
    }
}
