//! Numbers as the classic tools read them on their command line.

use std::fmt;
use std::ops::RangeInclusive;

/// The reason why a text is not the number that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadNumber {
    /// It is no number at all.
    NoNumber,
    /// It is a number, but below the smallest or above the largest that may stand there. Such a number is never cut to the bits
    /// that fit: those would name a volume or a user of somebody else.
    OutOfRange {
        /// The smallest.
        min: i128,
        /// The largest.
        max: i128,
    },
}

impl fmt::Display for BadNumber {
    /// Writes the words that follow the option and its value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNumber => f.write_str("is not a number"),
            Self::OutOfRange { min, max } => write!(f, "is out of range: it may be from {min} to {max}"),
        }
    }
}

/// Reads a number in a range: decimal, or octal after a 0, or hexadecimal after 0x; blanks and a minus may stand before.
///
/// # Errors
///
/// When it is none, or outside of the range.
pub(crate) fn parse<T>(text: &str, range: RangeInclusive<T>) -> Result<T, BadNumber>
where
    T: Copy + Into<i128> + TryFrom<i128>,
{
    let text = text.trim_start_matches([' ', '\t']);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    in_range(sign * parse_digits(digits)?, range)
}

/// Reads an `i32`, as [`parse`].
///
/// # Errors
///
/// As there.
pub(crate) fn parse_i32(text: &str) -> Result<i32, BadNumber> {
    parse(text, i32::MIN..=i32::MAX)
}

fn in_range<T>(value: i128, range: RangeInclusive<T>) -> Result<T, BadNumber>
where
    T: Copy + Into<i128> + TryFrom<i128>,
{
    let (min, max) = ((*range.start()).into(), (*range.end()).into());
    let bad = BadNumber::OutOfRange { min, max };
    if (min..=max).contains(&value) { T::try_from(value).map_err(|_| bad) } else { Err(bad) }
}

/// More than any range has, and still small enough to be multiplied by a unit.
const BEYOND_ALL: i128 = 1 << 80;

/// Digits alone. What is larger than any range is some number that is.
fn parse_digits(text: &str) -> Result<i128, BadNumber> {
    let (base, digits) = match text.strip_prefix('0') {
        Some(rest) => match rest.strip_prefix(['x', 'X']) {
            Some("") => return Err(BadNumber::NoNumber),
            Some(rest) => (16, rest),
            None => (8, rest),
        },
        None if text.is_empty() => return Err(BadNumber::NoNumber),
        None => (10, text),
    };
    digits.chars().try_fold(0_i128, |total, digit| {
        let digit = digit.to_digit(base).ok_or(BadNumber::NoNumber)?;
        Ok(total.saturating_mul(base.into()).saturating_add(digit.into()).min(BEYOND_ALL))
    })
}

/// Reads a quantity of KiB that is none below 0, such as `5000`, `10M` or `0x100`: K, M, G and T stand for powers of 1024, from 1
/// for K.
///
/// # Errors
///
/// When it is no number, or one that does not fit into 31 bits.
pub(crate) fn parse_kib(text: &str) -> Result<i32, BadNumber> {
    let split = text.len() - text.chars().last().filter(char::is_ascii_alphabetic).map_or(0, char::len_utf8);
    // In 0x1f the last letter is a digit.
    let is_hexadecimal = text.trim_start().starts_with("0x") || text.trim_start().starts_with("0X");
    let (number, unit) = match text[split..].chars().next() {
        Some(unit) if !(is_hexadecimal && unit.is_ascii_hexdigit()) => (&text[..split], Some(unit)),
        Some(_) | None => (text, None),
    };
    let factor: i128 = match unit {
        None | Some('K') => 1,
        Some('M') => 1 << 10,
        Some('G') => 1 << 20,
        Some('T') => 1 << 30,
        Some(_) => return Err(BadNumber::NoNumber),
    };
    let (sign, digits) = match number.trim_start().strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, number.trim_start()),
    };
    in_range(parse_digits(digits)? * sign * factor, 0..=i32::MAX)
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
            ("12", Ok(12)),
            ("-12", Ok(-12)),
            ("  7", Ok(7)),
            ("010", Ok(8)),
            ("0x1F", Ok(31)),
            ("-0x10", Ok(-16)),
            ("0", Ok(0)),
            ("-205", Ok(-205)),
            ("-2147483648", Ok(i32::MIN)),
            ("08", Err(BadNumber::NoNumber)),
            ("1a", Err(BadNumber::NoNumber)),
            ("x", Err(BadNumber::NoNumber)),
            ("", Err(BadNumber::NoNumber)),
            ("-", Err(BadNumber::NoNumber)),
            ("0x", Err(BadNumber::NoNumber)),
        ] {
            assert_eq!(parse_i32(text), value, "{text}");
        }
        assert_eq!(parse("4294967295", 0..=u32::MAX), Ok(u32::MAX));
        assert_eq!(parse("18446744073709551615", 0..=u64::MAX), Ok(u64::MAX));
    }

    #[test]
    fn a_number_too_large_for_an_id_is_not_taken_for_another_id() {
        let signed = BadNumber::OutOfRange { min: i32::MIN.into(), max: i32::MAX.into() };
        for text in ["4294967300", "2147483648", "-2147483649", "0x100000001", "-1844674407370955161605"] {
            assert_eq!(parse_i32(text), Err(signed), "{text}");
        }
        for text in ["4294967297", "-1", "0", "040000000001", &"9".repeat(4000)] {
            let bad = parse(text, 1..=u32::MAX).unwrap_err();
            assert_eq!(bad.to_string(), "is out of range: it may be from 1 to 4294967295", "{text}");
        }
    }

    #[test]
    fn quantities_have_units() {
        let beyond = Err(BadNumber::OutOfRange { min: 0, max: i32::MAX.into() });
        for (text, value) in [
            ("5000", Ok(5000)),
            ("5000K", Ok(5000)),
            ("2M", Ok(2048)),
            ("1G", Ok(1 << 20)),
            ("1T", Ok(1 << 30)),
            ("0x1f", Ok(31)),
            ("0x10M", Ok(16 << 10)),
            ("010", Ok(8)),
            ("2T", beyond),
            ("99999999999999999999999999T", beyond),
            ("-1", beyond),
            ("-5M", beyond),
            ("5k", Err(BadNumber::NoNumber)),
            ("", Err(BadNumber::NoNumber)),
            ("M", Err(BadNumber::NoNumber)),
            ("1MM", Err(BadNumber::NoNumber)),
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
