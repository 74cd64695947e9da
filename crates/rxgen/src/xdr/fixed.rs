//! Types of constant length: arrays, opaques and vectors of `char` without a count, and UUIDs.

use super::{DecodeError, Decoder, OutOfBounds, WireSize, Xdr};
use std::fmt;
use std::str::FromStr;

/// `T x[N]`: the items one after the other, without a count.
impl<T: Xdr, const N: usize> Xdr for [T; N] {
    const SIZE: WireSize = T::SIZE.times(N);

    fn encode(&self, out: &mut Vec<u8>) {
        for item in self {
            item.encode(out);
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.expect_bytes(Self::SIZE.min, "array")?;
        let mut error = None;
        let items: [Option<T>; N] = std::array::from_fn(|_| {
            if error.is_some() {
                return None;
            }
            T::decode(decoder).map_err(|e| error = Some(e)).ok()
        });
        match error {
            Some(error) => Err(error),
            None => Ok(items.map(|item| item.expect("there was no error, so every item was decoded"))),
        }
    }
}

/// `opaque x[N]`: `N` bytes as they are, padded to four.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpaqueFixed<const N: usize>(pub [u8; N]);

impl<const N: usize> Xdr for OpaqueFixed<N> {
    const SIZE: WireSize = WireSize::exactly(N.next_multiple_of(4));

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
        out.resize(out.len() + N.next_multiple_of(4) - N, 0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(decoder.take_padded(N, "opaque")?);
        Ok(Self(bytes))
    }
}

impl<const N: usize> fmt::Debug for OpaqueFixed<N> {
    /// The length only: opaques are keys and tickets as well as names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpaqueFixed({N} bytes)")
    }
}

/// `char x[N]`: `N` bytes. Each takes four on the wire, sign-extended. In most places this is a C string in a
/// buffer; `char name[65]` takes 260 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CharVec<const N: usize>(pub [u8; N]);

impl<const N: usize> CharVec<N> {
    /// Makes a C string: these bytes, then at least one NUL, up to the end.
    ///
    /// # Errors
    ///
    /// `N` bytes or more, or a NUL among them.
    pub fn from_text(text: impl AsRef<[u8]>) -> Result<Self, OutOfBounds> {
        let text = text.as_ref();
        OutOfBounds::check(text.len(), N.saturating_sub(1))?;
        if text.contains(&0) {
            return Err(OutOfBounds::EmbeddedNul);
        }
        let mut chars = [0; N];
        chars[..text.len()].copy_from_slice(text);
        Ok(Self(chars))
    }

    /// The bytes before the first NUL, or all of them where there is none.
    pub fn text(&self) -> &[u8] {
        self.0.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

impl<const N: usize> Xdr for CharVec<N> {
    const SIZE: WireSize = WireSize::exactly(4).times(N);

    fn encode(&self, out: &mut Vec<u8>) {
        for char in self.0 {
            char.cast_signed().encode(out);
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.expect_bytes(Self::SIZE.min, "char vector")?;
        let mut chars = [0; N];
        for char in &mut chars {
            *char = u8::decode(decoder)?;
        }
        Ok(Self(chars))
    }
}

impl<const N: usize> fmt::Debug for CharVec<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.text().escape_ascii())
    }
}

/// A UUID in the form rxgen gives it: eleven words, 44 bytes. The two clock bytes and the node are `char`s, and so
/// sign-extended (`0xaa` is sent as `ffffffaa`); when they arrive, only the low byte counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid {
    /// Low 32 bits of the time.
    pub time_low: u32,
    /// Middle 16 bits of the time.
    pub time_mid: u16,
    /// High 12 bits of the time, and the version in the top 4.
    pub time_hi_and_version: u16,
    /// High bits of the clock sequence, and the variant.
    pub clock_seq_hi_and_reserved: u8,
    /// Low bits of the clock sequence.
    pub clock_seq_low: u8,
    /// The node.
    pub node: [u8; 6],
}

impl Uuid {
    /// A UUID of version 4, of the first half of a random seed: nothing in it tells of the machine.
    pub fn random(seed: &[u8; 32]) -> Self {
        let mut bytes: [u8; 16] = *seed.first_chunk().expect("16 of 32");
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self::from_bytes(bytes)
    }

    /// The UUID of 16 bytes in the order in which they are printed.
    pub fn from_bytes([a, b, c, d, e, f, g, h, i, j, node @ ..]: [u8; 16]) -> Self {
        Self {
            time_low: u32::from_be_bytes([a, b, c, d]),
            time_mid: u16::from_be_bytes([e, f]),
            time_hi_and_version: u16::from_be_bytes([g, h]),
            clock_seq_hi_and_reserved: i,
            clock_seq_low: j,
            node,
        }
    }

    /// Its 16 bytes in the order in which they are printed.
    pub fn to_bytes(self) -> [u8; 16] {
        let [a, b, c, d] = self.time_low.to_be_bytes();
        let ([e, f], [g, h]) = (self.time_mid.to_be_bytes(), self.time_hi_and_version.to_be_bytes());
        let [k, l, m, n, o, p] = self.node;
        [a, b, c, d, e, f, g, h, self.clock_seq_hi_and_reserved, self.clock_seq_low, k, l, m, n, o, p]
    }
}

/// This is no UUID as it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadUuid;

impl fmt::Display for BadUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is no UUID, such as 0093038c-c612-1b01-90-44-0100580aaa77")
    }
}

impl std::error::Error for BadUuid {}

impl FromStr for Uuid {
    type Err = BadUuid;

    /// Reads the six groups that are printed. Zeros at the beginning of a group may be missing, but not of the node.
    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let mut bytes = [0; 16];
        let (mut at, mut groups) = (0, text.split('-'));
        for length in [4, 2, 2, 1, 1, 6] {
            let group = groups.next().ok_or(BadUuid)?;
            let is_number = group.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u64::from_str_radix(group, 16).map_err(|_| BadUuid)?;
            if !is_number || length == 6 && group.len() != 12 || number >> (8 * length) != 0 {
                return Err(BadUuid);
            }
            bytes[at..at + length].copy_from_slice(&number.to_be_bytes()[8 - length..]);
            at += length;
        }
        if groups.next().is_some() { Err(BadUuid) } else { Ok(Self::from_bytes(bytes)) }
    }
}

impl Xdr for Uuid {
    const SIZE: WireSize = WireSize::exactly(44);

    fn encode(&self, out: &mut Vec<u8>) {
        self.time_low.encode(out);
        self.time_mid.encode(out);
        self.time_hi_and_version.encode(out);
        CharVec([self.clock_seq_hi_and_reserved, self.clock_seq_low]).encode(out);
        CharVec(self.node).encode(out);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.expect_bytes(Self::SIZE.min, "UUID")?;
        Ok(Self {
            time_low: u32::decode(decoder)?,
            time_mid: u16::decode(decoder)?,
            time_hi_and_version: u16::decode(decoder)?,
            clock_seq_hi_and_reserved: u8::decode(decoder)?,
            clock_seq_low: u8::decode(decoder)?,
            node: CharVec::decode(decoder)?.0,
        })
    }
}

impl fmt::Display for Uuid {
    /// Writes the six groups that administrators of such servers know: the clock bytes stand apart.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:02x}-{:02x}-",
            self.time_low,
            self.time_mid,
            self.time_hi_and_version,
            self.clock_seq_hi_and_reserved,
            self.clock_seq_low
        )?;
        self.node.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{from_bytes, to_bytes};
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_printed_and_keeps_its_bytes() {
        let text = "0093038c-c612-1b01-90-44-0100580aaa77";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!("93038c-c612-1b01-90-44-0100580aaa77".parse(), Ok(uuid));
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8 * 16 + 1);
        assert_eq!(Uuid::from_bytes(bytes).to_bytes(), bytes);
        assert_eq!(Uuid::from_bytes(bytes).time_low, 0x0111_2131);
        assert_eq!(Uuid::random(&[0xff; 32]).to_string(), "ffffffff-ffff-4fff-bf-ff-ffffffffffff");
        for wrong in [
            "",
            "-----",
            "0093038c-c612-1b01-9044-0100580aaa77",
            "0093038c-c612-1b01-90-44-0100580aaa7g",
            "0093038c-c612-1b01-90-44-100580aaa77",
            "10093038c-c612-1b01-90-44-0100580aaa77",
            "+093038c-c612-1b01-90-44-0100580aaa77",
            "0093038c-c612-1b01-90-44-0100580aaa77-",
        ] {
            assert_eq!(wrong.parse::<Uuid>(), Err(BadUuid), "{wrong}");
        }
    }

    fn check<T: Xdr + PartialEq + fmt::Debug>(value: T, wire: &[u8]) {
        assert_eq!(to_bytes(&value), wire, "encoding {value:?}");
        assert_eq!(from_bytes::<T>(wire).as_ref(), Ok(&value), "decoding {wire:02x?}");
        assert_eq!(T::SIZE, WireSize::exactly(wire.len()));
    }

    #[test]
    fn a_fixed_opaque_is_raw_bytes_and_a_char_vector_is_words() {
        check(OpaqueFixed(*b"abcde"), b"abcde\0\0\0");
        check(CharVec([b'a', 0xff]), &[0, 0, 0, b'a', 0xff, 0xff, 0xff, 0xff]);
        check([1u16, 2], &[0, 0, 0, 1, 0, 0, 0, 2]);
        check([0u32; 0], &[]);
    }

    #[test]
    fn char_vectors_have_the_sizes_of_the_well_known_names() {
        for (size, wire) in
            [(CharVec::<65>::SIZE, 260), (CharVec::<64>::SIZE, 256), (CharVec::<32>::SIZE, 128)]
        {
            assert_eq!(size, WireSize::exactly(wire));
        }
    }

    #[test]
    fn a_char_vector_holds_a_c_string_with_its_nul() {
        let name = CharVec::<4>::from_text("abc").unwrap();
        assert_eq!((name.text(), &name.0), (&b"abc"[..], b"abc\0"));
        assert_eq!(CharVec::<4>::from_text("abcd"), Err(OutOfBounds::TooLong { length: 4, max: 3 }));
        assert_eq!(CharVec::<4>::from_text("a\0"), Err(OutOfBounds::EmbeddedNul));
        assert_eq!(CharVec(*b"full").text(), b"full", "a peer may leave the NUL out");
        assert_eq!(CharVec::<0>([]).text(), b"");
    }

    #[test]
    fn an_array_says_which_of_its_bytes_are_missing() {
        let error = from_bytes::<[u64; 3]>(&[0; 20]).unwrap_err();
        assert_eq!((error.offset, error.what, error.needed()), (0, "array", Some(4)));
    }

    #[test]
    fn an_array_of_counted_items_stops_at_the_first_error() {
        type Pair = [super::super::XdrArray<u32, 1>; 2];
        let error = from_bytes::<Pair>(&[0, 0, 0, 9, 0, 0, 0, 9]).unwrap_err();
        assert_eq!(error.offset, 0);
    }

    #[test]
    fn a_uuid_is_eleven_words_with_signed_bytes() {
        let uuid = Uuid {
            time_low: 0x0006_3ad8,
            time_mid: 0x6948,
            time_hi_and_version: 0x1b00,
            clock_seq_hi_and_reserved: 0xaa,
            clock_seq_low: 0xce,
            node: [0x01, 0, 0, 0x7f, 0xaa, 0x77],
        };
        let words: [u32; 11] =
            [0x0006_3ad8, 0x6948, 0x1b00, 0xffff_ffaa, 0xffff_ffce, 1, 0, 0, 0x7f, 0xffff_ffaa, 0x77];
        let wire: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        check(uuid, &wire);
        let mut unsigned = wire.clone();
        unsigned[12..].chunks_exact_mut(4).for_each(|word| word[..3].fill(0));
        assert_eq!(from_bytes(&unsigned), Ok(uuid), "peers that do not sign-extend are understood too");
        assert_eq!(uuid.to_string(), "00063ad8-6948-1b00-aa-ce-0100007faa77");
    }
}
