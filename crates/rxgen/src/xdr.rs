//! XDR as rxgen uses it: a decoder that knows where it is, the trait of everything that can be sent, and the
//! integers.
//!
//! Two habits of rxgen differ from the XDR of RFC 4506 and are followed here: everything smaller than four bytes is
//! widened to four, and so a vector of `char` takes four bytes for each of them (see [`CharVec`]).
//!
//! Decoding is total: whatever the bytes, it returns, in time and memory proportional to the bytes given, and an
//! error says where and what. Encoding cannot fail, because the bounded types cannot hold more than they may send.
//!
//! Strings, opaques, arrays and lists with a count are in [`counted`], those without one in
//! [`fixed`]. What a call consists of is left to [`rpc`](crate::rpc).

pub mod counted;
pub mod fixed;

pub use counted::{Opaque, OutOfBounds, XdrArray, XdrList, XdrString};
pub use fixed::{BadUuid, CharVec, OpaqueFixed, Uuid};

use std::fmt;

/// Everything that can be sent in a call.
pub trait Xdr: Sized {
    /// Fewest and most bytes that a value takes on the wire.
    ///
    /// The fewest let an array refuse a count that the input cannot hold before anything is allocated; the most let
    /// a transport limit how much it collects before it decodes.
    const SIZE: WireSize;

    /// Appends this value to `out`: always a multiple of four bytes, padded with zeros.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads one value and leaves `decoder` behind it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] with the place and the reason. With [`Problem::Truncated`] the bytes so far are the
    /// beginning of a value, and decoding may be tried again from its start when more have come.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

/// Fewest and most bytes of something on the wire. The arithmetic saturates, so `usize::MAX` means "no limit".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireSize {
    /// Fewest bytes.
    pub min: usize,
    /// Most bytes; `usize::MAX` when there is no limit.
    pub max: usize,
}

impl WireSize {
    /// Always `bytes`.
    pub const fn exactly(bytes: usize) -> Self {
        Self { min: bytes, max: bytes }
    }

    /// This and then `next`.
    #[must_use]
    pub const fn then(self, next: Self) -> Self {
        Self { min: self.min.saturating_add(next.min), max: self.max.saturating_add(next.max) }
    }

    /// `count` of these.
    #[must_use]
    pub const fn times(self, count: usize) -> Self {
        Self { min: self.min.saturating_mul(count), max: self.max.saturating_mul(count) }
    }

    /// The size of none to `count` of these.
    #[must_use]
    pub const fn up_to(self, count: usize) -> Self {
        Self { min: 0, max: self.max.saturating_mul(count) }
    }
}

/// The reason why bytes could not be decoded, and the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// Bytes from the start of the input to the item that could not be read.
    pub offset: usize,
    /// The item that was being read: a field, as in `"Fid.vnode"`, or the kind of item outside of a structure.
    pub what: &'static str,
    /// The problem.
    pub problem: Problem,
    named: bool,
}

/// A problem with an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// The input ends too early; at least `needed` more bytes (never 0) are necessary to get any further.
    Truncated {
        /// Bytes missing, at least.
        needed: usize,
    },
    /// A count above the item's limit. No more bytes will cure that.
    TooLong {
        /// The count that the peer announced.
        count: usize,
        /// The largest count allowed.
        max: usize,
    },
    /// A string with a NUL byte inside: C programs would see two different strings.
    EmbeddedNul,
    /// A value that is not one of those allowed here.
    BadValue(u32),
    /// Bytes after the last item, where none may be.
    Trailing {
        /// The number of bytes left over.
        left: usize,
    },
}

impl DecodeError {
    /// An error at `offset` in something that has no field name (yet): see [`in_field`](Self::in_field).
    pub fn new(offset: usize, what: &'static str, problem: Problem) -> Self {
        Self { offset, what, problem, named: false }
    }

    /// Names the field that was being read, unless a field further inside was named already.
    #[must_use]
    pub fn in_field(self, field: &'static str) -> Self {
        if self.named { self } else { Self { what: field, named: true, ..self } }
    }

    /// The same place, with another reason.
    pub(crate) fn because(self, problem: Problem) -> Self {
        Self { problem, ..self }
    }

    /// The least number of bytes still needed, when that is all that is wrong.
    pub fn needed(&self) -> Option<usize> {
        match self.problem {
            Problem::Truncated { needed } => Some(needed),
            _ => None,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}, {}: ", self.offset, self.what)?;
        match self.problem {
            Problem::Truncated { needed } => {
                write!(f, "the input ends, at least {needed} more bytes are needed")
            }
            Problem::TooLong { count, max } => write!(f, "{count} announced, {max} allowed"),
            Problem::EmbeddedNul => f.write_str("a NUL inside a string"),
            Problem::BadValue(value) => write!(f, "{value} is not allowed here"),
            Problem::Trailing { left } => write!(f, "{left} bytes after the end"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Reads items from bytes, one after the other, and knows how far it is.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    input: &'a [u8],
    offset: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `input`.
    pub fn new(input: &'a [u8]) -> Self {
        Self { input, offset: 0 }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.input.len() - self.offset
    }

    /// The next `length` bytes as they are, for the item called `what`.
    ///
    /// # Errors
    ///
    /// [`Problem::Truncated`]; nothing is read then.
    pub fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        self.expect_bytes(length, what)?;
        let start = self.offset;
        self.offset += length;
        Ok(&self.input[start..self.offset])
    }

    /// The next `length` bytes, and the padding after them up to a multiple of four. What the padding contains is
    /// not looked at, as in every other implementation.
    ///
    /// # Errors
    ///
    /// [`Problem::Truncated`], also when only padding is missing; nothing is read then.
    pub fn take_padded(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let padded = length.checked_next_multiple_of(4).unwrap_or(usize::MAX);
        Ok(&self.take(padded, what)?[..length])
    }

    /// The next four bytes as a number, for the item called `what`.
    ///
    /// # Errors
    ///
    /// [`Problem::Truncated`].
    pub fn word(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        let bytes = self.take(4, what)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a count in front of items called `what`. Each item takes at least `min_item` bytes.
    ///
    /// What it returns is at most `max`, and so many items can be in what remains: it is safe to allocate for them
    /// in proportion.
    ///
    /// # Errors
    ///
    /// [`Problem::TooLong`] above `max`; [`Problem::Truncated`] with all that is missing, when the input cannot hold
    /// so many items.
    pub fn count(&mut self, max: usize, min_item: usize, what: &'static str) -> Result<usize, DecodeError> {
        let offset = self.offset;
        let count = usize::try_from(self.word(what)?).unwrap_or(usize::MAX);
        if count > max {
            return Err(DecodeError::new(offset, what, Problem::TooLong { count, max }));
        }
        self.expect_bytes(count.saturating_mul(min_item), what)?;
        Ok(count)
    }

    /// Checks that `length` bytes are there without reading them.
    ///
    /// # Errors
    ///
    /// [`Problem::Truncated`].
    pub fn expect_bytes(&self, length: usize, what: &'static str) -> Result<(), DecodeError> {
        match length.checked_sub(self.remaining()) {
            None | Some(0) => Ok(()),
            Some(needed) => Err(DecodeError::new(self.offset, what, Problem::Truncated { needed })),
        }
    }

    /// Checks that everything was read.
    ///
    /// # Errors
    ///
    /// [`Problem::Trailing`].
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(DecodeError::new(self.offset, "end", Problem::Trailing { left })),
        }
    }
}

/// `value` alone, encoded.
pub fn to_bytes<T: Xdr>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(T::SIZE.min);
    value.encode(&mut out);
    out
}

/// One value that is all of `bytes`.
///
/// # Errors
///
/// As [`Xdr::decode`], and [`Problem::Trailing`] when bytes are left over.
pub fn from_bytes<T: Xdr>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

macro_rules! integers {
    ($($integer:ident),*) => { $(
        impl Xdr for $integer {
            const SIZE: WireSize = WireSize::exactly(size_of::<$integer>());

            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                let mut bytes = [0; size_of::<$integer>()];
                bytes.copy_from_slice(decoder.take(size_of::<$integer>(), stringify!($integer))?);
                Ok(Self::from_be_bytes(bytes))
            }
        }
    )* };
}

integers!(u32, i32, u64, i64);

/// Small integers travel as a word, sign-extended when they have a sign. Of a word that arrives only the low bits
/// count, since peers differ in how they widen a `char` above 127.
macro_rules! widened {
    ($($small:ident as $word:ident),*) => { $(
        impl Xdr for $small {
            const SIZE: WireSize = WireSize::exactly(4);

            fn encode(&self, out: &mut Vec<u8>) {
                $word::from(*self).encode(out);
            }

            fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(decoder.word(stringify!($small))? as $small)
            }
        }
    )* };
}

widened!(u8 as u32, u16 as u32, i8 as i32, i16 as i32);

impl Xdr for bool {
    const SIZE: WireSize = WireSize::exactly(4);

    fn encode(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode(out);
    }

    /// Anything but 0 is true, as rxgen's own decoder has it.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(decoder.word("bool")? != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Xdr + PartialEq + fmt::Debug>(value: T, wire: &[u8]) {
        assert_eq!(to_bytes(&value), wire, "encoding {value:?}");
        assert_eq!(from_bytes::<T>(wire).as_ref(), Ok(&value), "decoding {wire:02x?}");
        assert!((T::SIZE.min..=T::SIZE.max).contains(&wire.len()), "{value:?} is outside of its own SIZE");
    }

    #[test]
    fn integers_are_big_endian() {
        check(0x0102_0304u32, &[1, 2, 3, 4]);
        check(-2i32, &[0xff, 0xff, 0xff, 0xfe]);
        check(0x0102_0304_0506_0708u64, &[1, 2, 3, 4, 5, 6, 7, 8]);
        check(i64::MIN, &[0x80, 0, 0, 0, 0, 0, 0, 0]);
        check(true, &[0, 0, 0, 1]);
        check(false, &[0; 4]);
    }

    #[test]
    fn small_integers_are_widened_and_signed_ones_sign_extended() {
        check(0xaau8, &[0, 0, 0, 0xaa]);
        check(-1i8, &[0xff; 4]);
        check(0xfffeu16, &[0, 0, 0xff, 0xfe]);
        check(-2i16, &[0xff, 0xff, 0xff, 0xfe]);
    }

    #[test]
    fn of_a_widened_integer_only_the_low_bits_count() {
        assert_eq!(from_bytes::<u8>(&[0xff, 0xff, 0xff, 0xaa]), Ok(0xaa));
        assert_eq!(from_bytes::<i8>(&[0, 0, 0, 0xff]), Ok(-1));
        assert_eq!(from_bytes::<u16>(&[0xff, 0xff, 0x80, 0]), Ok(0x8000));
        assert_eq!(from_bytes::<bool>(&[0x80, 0, 0, 0]), Ok(true));
    }

    #[test]
    fn an_error_says_where_what_and_how_much_is_missing() {
        let mut decoder = Decoder::new(&[0, 0, 0, 1, 9, 9]);
        assert_eq!(u32::decode(&mut decoder), Ok(1));
        let error = u64::decode(&mut decoder).unwrap_err();
        assert_eq!((error.offset, error.what, error.needed()), (4, "u64", Some(6)));
        assert_eq!(decoder.remaining(), 2, "a failed read reads nothing");
        let error = error.in_field("Fid.vnode").in_field("Args.fid");
        assert_eq!(
            error.to_string(),
            "byte 4, Fid.vnode: the input ends, at least 6 more bytes are needed",
            "the innermost field is the one named"
        );
    }

    #[test]
    fn trailing_bytes_are_an_error_only_at_the_end() {
        let error = from_bytes::<u32>(&[0; 7]).unwrap_err();
        assert_eq!((error.offset, error.problem), (4, Problem::Trailing { left: 3 }));
        assert_eq!(error.needed(), None);
    }

    #[test]
    fn the_arithmetic_of_sizes_saturates() {
        let word = WireSize::exactly(4);
        assert_eq!(word.then(word.up_to(3)), WireSize { min: 4, max: 16 });
        assert_eq!(word.times(usize::MAX), WireSize { min: usize::MAX, max: usize::MAX });
        assert_eq!(word.up_to(usize::MAX).then(word), WireSize { min: 4, max: usize::MAX });
    }

    #[test]
    fn lengths_near_the_end_of_the_address_space_do_not_overflow() {
        let error = Decoder::new(&[0; 8]).take_padded(usize::MAX, "opaque").unwrap_err();
        assert_eq!(error.needed(), Some(usize::MAX - 8));
    }
}
