//! Types that carry their own length: strings, opaques, arrays with a count, and linked lists.
//!
//! Each has its limit in its type. A count above the limit is refused before anything is allocated, and one that the
//! input cannot hold is [`Problem::Truncated`]: `ffffffff` in front of an array costs a comparison. Every decoder
//! here is a loop, so that no input can exhaust the stack. Fixed lengths are left to [`fixed`](super::fixed).

use super::{DecodeError, Decoder, Problem, WireSize, Xdr};
use std::fmt;
use std::ops::Deref;

/// The reason why a value was not made into a bounded string, opaque, array or list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfBounds {
    /// More bytes or items than the type may send.
    TooLong {
        /// Bytes or items given.
        length: usize,
        /// Bytes or items allowed.
        max: usize,
    },
    /// A string with a NUL byte in it, which peers refuse.
    EmbeddedNul,
}

impl OutOfBounds {
    pub(super) fn check(length: usize, max: usize) -> Result<(), Self> {
        if length > max { Err(Self::TooLong { length, max }) } else { Ok(()) }
    }
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length, max } => write!(f, "{length} long, at most {max} can be sent"),
            Self::EmbeddedNul => f.write_str("contains a NUL byte, which cannot be sent in a string"),
        }
    }
}

impl std::error::Error for OutOfBounds {}

fn encode_counted_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    encode_count(bytes.len(), out);
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}

fn encode_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).expect("MAX of the type was checked to fit a u32 word").encode(out);
}

/// Sizes of a count and at most `max` bytes after it.
const fn counted_bytes(max: usize) -> WireSize {
    let padded = match max.checked_next_multiple_of(4) {
        Some(padded) => padded,
        None => usize::MAX,
    };
    WireSize::exactly(4).then(WireSize::exactly(1).up_to(padded))
}

/// `string s<MAX>`: at most `MAX` bytes without a NUL, padded to four. Not necessarily UTF-8: names on the wire are
/// bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct XdrString<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> XdrString<MAX> {
    /// A string of these bytes.
    ///
    /// # Errors
    ///
    /// More than `MAX` of them, or a NUL among them.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, OutOfBounds> {
        let bytes = bytes.into();
        OutOfBounds::check(bytes.len(), MAX)?;
        if bytes.contains(&0) { Err(OutOfBounds::EmbeddedNul) } else { Ok(Self(bytes)) }
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<const MAX: usize> Xdr for XdrString<MAX> {
    const SIZE: WireSize = counted_bytes(MAX);

    fn encode(&self, out: &mut Vec<u8>) {
        const { assert!(MAX <= u32::MAX as usize, "a count is a u32 word") };
        encode_counted_bytes(&self.0, out);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let start = decoder.offset();
        let length = decoder.count(MAX, 1, "string")?;
        let bytes = decoder.take_padded(length, "string")?;
        if bytes.contains(&0) {
            return Err(DecodeError::new(start, "string", Problem::EmbeddedNul));
        }
        Ok(Self(bytes.to_vec()))
    }
}

impl<const MAX: usize> Deref for XdrString<MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> TryFrom<&str> for XdrString<MAX> {
    type Error = OutOfBounds;

    fn try_from(text: &str) -> Result<Self, OutOfBounds> {
        Self::new(text)
    }
}

impl<const MAX: usize> fmt::Display for XdrString<MAX> {
    /// Writes the text; bytes that are no UTF-8 appear as replacement characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl<const MAX: usize> fmt::Debug for XdrString<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// `opaque x<MAX>`: at most `MAX` bytes of any kind, padded to four.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Opaque<const MAX: usize>(Vec<u8>);

impl<const MAX: usize> Opaque<MAX> {
    /// An opaque of these bytes.
    ///
    /// # Errors
    ///
    /// More than `MAX` of them.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, OutOfBounds> {
        let bytes = bytes.into();
        OutOfBounds::check(bytes.len(), MAX)?;
        Ok(Self(bytes))
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<const MAX: usize> Xdr for Opaque<MAX> {
    const SIZE: WireSize = counted_bytes(MAX);

    fn encode(&self, out: &mut Vec<u8>) {
        const { assert!(MAX <= u32::MAX as usize, "a count is a u32 word") };
        encode_counted_bytes(&self.0, out);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let length = decoder.count(MAX, 1, "opaque")?;
        Ok(Self(decoder.take_padded(length, "opaque")?.to_vec()))
    }
}

impl<const MAX: usize> Deref for Opaque<MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> fmt::Debug for Opaque<MAX> {
    /// Writes the length only: opaques are tokens, tickets and file data, and none of these belongs in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opaque({} bytes)", self.0.len())
    }
}

macro_rules! sequence {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name<T, const MAX: usize>(Vec<T>);

        impl<T, const MAX: usize> $name<T, MAX> {
            /// These items, in the order in which they are sent.
            ///
            /// # Errors
            ///
            /// More than `MAX` of them.
            pub fn new(items: Vec<T>) -> Result<Self, OutOfBounds> {
                OutOfBounds::check(items.len(), MAX)?;
                Ok(Self(items))
            }

            /// The items, without a copy.
            pub fn into_vec(self) -> Vec<T> {
                self.0
            }
        }

        impl<T, const MAX: usize> Default for $name<T, MAX> {
            fn default() -> Self {
                Self(Vec::new())
            }
        }

        impl<T, const MAX: usize> Deref for $name<T, MAX> {
            type Target = [T];

            fn deref(&self) -> &[T] {
                &self.0
            }
        }

        impl<T, const MAX: usize> TryFrom<Vec<T>> for $name<T, MAX> {
            type Error = OutOfBounds;

            fn try_from(items: Vec<T>) -> Result<Self, OutOfBounds> {
                Self::new(items)
            }
        }

        impl<T, const MAX: usize> IntoIterator for $name<T, MAX> {
            type Item = T;
            type IntoIter = std::vec::IntoIter<T>;

            fn into_iter(self) -> Self::IntoIter {
                self.0.into_iter()
            }
        }
    };
}

sequence! {
    /// `T x<MAX>`: a count and so many items, at most `MAX`.
    XdrArray
}

sequence! {
    /// A chain of pointers to the same structure: before each item a word that is not 0, after the last a 0. Kept
    /// and read as a sequence of at most `MAX` items; in C it would be a recursion as deep as the peer likes.
    XdrList
}

impl<T: Xdr, const MAX: usize> Xdr for XdrArray<T, MAX> {
    const SIZE: WireSize = WireSize::exactly(4).then(T::SIZE.up_to(MAX));

    fn encode(&self, out: &mut Vec<u8>) {
        const { assert!(MAX <= u32::MAX as usize, "a count is a u32 word") };
        encode_count(self.0.len(), out);
        for item in &self.0 {
            item.encode(out);
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        const { assert!(T::SIZE.min > 0, "items of no size would make any count plausible") };
        let count = decoder.count(MAX, T::SIZE.min, "array")?;
        // An item can be larger in memory than on the wire (an empty string: 24 bytes for 4), so room is made for as
        // many as the input has bytes for, and for more only when they have really been read.
        let plausible = decoder.remaining() / T::SIZE.min.max(size_of::<T>());
        let mut items = Vec::with_capacity(count.min(plausible));
        for _ in 0..count {
            items.push(T::decode(decoder)?);
        }
        Ok(Self(items))
    }
}

impl<T: Xdr, const MAX: usize> Xdr for XdrList<T, MAX> {
    const SIZE: WireSize = WireSize::exactly(4).then(WireSize::exactly(4).then(T::SIZE).up_to(MAX));

    fn encode(&self, out: &mut Vec<u8>) {
        for item in &self.0 {
            true.encode(out);
            item.encode(out);
        }
        false.encode(out);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut items = Vec::new();
        loop {
            let start = decoder.offset();
            if decoder.word("list")? == 0 {
                return Ok(Self(items));
            }
            if items.len() == MAX {
                return Err(DecodeError::new(start, "list", Problem::TooLong { count: MAX + 1, max: MAX }));
            }
            items.push(T::decode(decoder)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{from_bytes, to_bytes};
    use super::*;

    fn check<T: Xdr + PartialEq + fmt::Debug>(value: T, wire: &[u8]) {
        assert_eq!(to_bytes(&value), wire, "encoding {value:?}");
        assert_eq!(from_bytes::<T>(wire).as_ref(), Ok(&value), "decoding {wire:02x?}");
        assert!((T::SIZE.min..=T::SIZE.max).contains(&wire.len()), "{value:?} is outside of its own SIZE");
    }

    fn problem<T: Xdr + fmt::Debug>(wire: &[u8]) -> Problem {
        from_bytes::<T>(wire).unwrap_err().problem
    }

    #[test]
    fn strings_and_opaques_are_padded_to_words() {
        check(XdrString::<8>::try_from("hello").unwrap(), b"\0\0\0\x05hello\0\0\0");
        check(XdrString::<8>::try_from("four").unwrap(), b"\0\0\0\x04four");
        check(XdrString::<8>::default(), &[0; 4]);
        check(Opaque::<3>::new([0, 1, 2]).unwrap(), &[0, 0, 0, 3, 0, 1, 2, 0]);
    }

    #[test]
    fn padding_is_started_anew_after_data_of_any_length() {
        let mut out = vec![7; 5];
        XdrString::<8>::try_from("ab").unwrap().encode(&mut out);
        assert_eq!(out, b"\x07\x07\x07\x07\x07\0\0\0\x02ab\0\0", "raw data before an argument is not padded");
    }

    #[test]
    fn what_the_padding_contains_does_not_matter() {
        assert_eq!(from_bytes::<XdrString<8>>(b"\0\0\0\x01axyz").unwrap().to_string(), "a");
    }

    #[test]
    fn missing_padding_is_missing_input() {
        assert_eq!(problem::<Opaque<8>>(&[0, 0, 0, 1, 9, 0]), Problem::Truncated { needed: 2 });
    }

    #[test]
    fn counts_above_the_limit_are_refused_even_when_the_items_are_there() {
        let mut wire = vec![0, 0, 0, 9];
        wire.extend([b'a'; 12]);
        assert_eq!(problem::<XdrString<8>>(&wire), Problem::TooLong { count: 9, max: 8 });
        assert_eq!(problem::<XdrArray<u32, 1>>(&[0, 0, 0, 2, 0, 0]), Problem::TooLong { count: 2, max: 1 });
    }

    #[test]
    fn what_could_not_be_sent_is_not_made() {
        assert_eq!(XdrString::<3>::try_from("four"), Err(OutOfBounds::TooLong { length: 4, max: 3 }));
        assert_eq!(XdrString::<3>::try_from("a\0b"), Err(OutOfBounds::EmbeddedNul));
        assert!(Opaque::<3>::new([0; 4]).is_err());
        assert!(XdrArray::<u32, 1>::new(vec![1, 2]).is_err());
        assert!(XdrList::<u32, 1>::new(vec![1, 2]).is_err());
    }

    #[test]
    fn a_nul_inside_a_string_is_refused() {
        assert_eq!(problem::<XdrString<8>>(b"\0\0\0\x03a\0b\0"), Problem::EmbeddedNul);
    }

    /// With counts believed, these four bytes would have asked for 96 GiB.
    #[test]
    fn a_hostile_count_costs_no_memory() {
        const ANY: usize = u32::MAX as usize;
        let wire = [0xff; 4];
        assert_eq!(problem::<Opaque<ANY>>(&wire), Problem::Truncated { needed: ANY });
        assert_eq!(problem::<XdrArray<u32, ANY>>(&wire), Problem::Truncated { needed: 4 * ANY });
        assert_eq!(problem::<XdrArray<XdrString<9>, ANY>>(&wire), Problem::Truncated { needed: 4 * ANY });
        assert_eq!(problem::<XdrList<u32, ANY>>(&wire), Problem::Truncated { needed: 4 });
    }

    #[test]
    fn a_list_is_a_chain_of_items_each_announced() {
        check(
            XdrList::<u32, 2>::new(vec![7, 8]).unwrap(),
            &[0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0],
        );
        check(XdrList::<u32, 2>::default(), &[0; 4]);
        let mut wire = [0, 0, 0, 1, 0, 0, 0, 7].repeat(3);
        wire.extend([0; 4]);
        assert_eq!(problem::<XdrList<u32, 2>>(&wire), Problem::TooLong { count: 3, max: 2 });
    }

    #[test]
    fn a_list_of_a_million_items_needs_no_stack() {
        let wire: Vec<u8> = [0, 0, 0, 1, 0, 0, 0, 7].repeat(1_000_000).into_iter().chain([0; 4]).collect();
        assert_eq!(from_bytes::<XdrList<u32, 1_000_000>>(&wire).unwrap().len(), 1_000_000);
    }

    #[test]
    fn an_opaque_does_not_show_its_bytes() {
        assert_eq!(format!("{:?}", Opaque::<9>::new(*b"secret").unwrap()), "Opaque(6 bytes)");
        assert_eq!(format!("{:?}", XdrString::<9>::new([b'a', 0xff]).unwrap()), "\"a\\xff\"");
    }
}
