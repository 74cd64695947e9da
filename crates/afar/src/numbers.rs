//! Numbers as the classic tools read them on their command line.

/// Reads an `i32`: decimal, or octal after a 0, or hexadecimal after 0x; blanks and a minus may stand before. What does not
/// fit wraps around, as there.
pub(crate) fn parse_i32(text: &str) -> Option<i32> {
    let text = text.trim_start_matches([' ', '\t']);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = parse_digits(digits)?.cast_signed();
    Some(if is_negative { value.wrapping_neg() } else { value })
}

/// Reads a `u32`, as [`parse_i32`].
pub(crate) fn parse_u32(text: &str) -> Option<u32> {
    parse_digits(text.trim_start_matches([' ', '\t']))
}

fn parse_digits(text: &str) -> Option<u32> {
    let (base, digits) = match text.strip_prefix('0') {
        Some(rest) => match rest.strip_prefix(['x', 'X']) {
            Some(rest) => (16, rest),
            None => (8, rest),
        },
        None => (10, text),
    };
    digits
        .chars()
        .try_fold(0_u32, |total, digit| Some(total.wrapping_mul(base).wrapping_add(digit.to_digit(base)?)))
}

/// Reads a quantity of KiB, such as `5000`, `10M` or `0x100`: K, M, G and T stand for powers of 1024, from 1 for K.
/// `None` where it is no number or does not fit into 32 bits.
pub(crate) fn parse_kib(text: &str) -> Option<i32> {
    let split = text.len() - text.chars().last().filter(char::is_ascii_alphabetic).map_or(0, char::len_utf8);
    // In 0x1f the last letter is a digit.
    let is_hexadecimal = text.trim_start().starts_with("0x") || text.trim_start().starts_with("0X");
    let (number, unit) = match text[split..].chars().next() {
        Some(unit) if !(is_hexadecimal && unit.is_ascii_hexdigit()) => (&text[..split], Some(unit)),
        Some(_) | None => (text, None),
    };
    let factor: i64 = match unit {
        None | Some('K') => 1,
        Some('M') => 1 << 10,
        Some('G') => 1 << 20,
        Some('T') => 1 << 30,
        Some(_) => return None,
    };
    let (sign, digits) = match number.trim_start().strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number.trim_start()),
    };
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(&digits[1..], 8).ok()?,
        None => digits.parse().ok()?,
    };
    i32::try_from(value.checked_mul(sign * factor)?).ok()
}

/// The number at the beginning of a text, 0 where there is none, as C's `atol` reads it.
pub(crate) fn leading_number(text: &str) -> i64 {
    let text = text.trim_start();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.chars().map_while(|digit| digit.to_digit(10));
    digits.fold(0_i64, |total, digit| total.saturating_mul(10).saturating_add(sign * i64::from(digit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_octal_or_hexadecimal() {
        for (text, value) in [
            ("12", Some(12)),
            ("-12", Some(-12)),
            ("  7", Some(7)),
            ("010", Some(8)),
            ("0x1F", Some(31)),
            ("-0x10", Some(-16)),
            ("0", Some(0)),
            ("08", None),
            ("1a", None),
            ("x", None),
            ("4294967295", Some(-1)),
        ] {
            assert_eq!(parse_i32(text), value, "{text}");
        }
        assert_eq!(parse_u32("4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32("-1"), None);
    }

    #[test]
    fn quantities_have_units() {
        for (text, value) in [
            ("5000", Some(5000)),
            ("5000K", Some(5000)),
            ("2M", Some(2048)),
            ("1G", Some(1 << 20)),
            ("1T", Some(1 << 30)),
            ("2T", None),
            ("0x1f", Some(31)),
            ("0x10M", Some(16 << 10)),
            ("010", Some(8)),
            ("-1", Some(-1)),
            ("5k", None),
            ("", None),
            ("M", None),
            ("1MM", None),
        ] {
            assert_eq!(parse_kib(text), value, "{text}");
        }
    }

    #[test]
    fn a_number_ends_where_its_digits_do() {
        for (text, value) in
            [("12", 12), (" -7x", -7), ("+3 4", 3), ("x", 0), ("", 0), ("99999999999999999999", i64::MAX)]
        {
            assert_eq!(leading_number(text), value, "{text}");
        }
    }
}
