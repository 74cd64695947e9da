//! Text that servers send.

/// A name from the network, fit to be shown: bytes that are no UTF-8, control characters, which could command a terminal, and
/// the characters of the planes for private use, which mean nothing to others, are replaced.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let is_private = |c: char| u32::from(c) >= 0xf_0000;
    let text = String::from_utf8_lossy(bytes);
    text.chars()
        .map(|c| if c.is_control() || is_private(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_command_a_terminal() {
        assert_eq!(shown(b"root.cell"), "root.cell");
        assert_eq!(shown("Größe".as_bytes()), "Größe");
        assert_eq!(shown(b"a\x1b[2Jb\xffc\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(shown("\u{10ff07}".as_bytes()), "\u{fffd}");
    }
}
