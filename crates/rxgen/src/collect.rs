//! Decoding a value from a stream that does not say how long the value is.
//!
//! The arguments of a call have no length in front of them, and in a call split from the client raw data follow them
//! without a mark. So bytes are collected as they come, decoding is tried, and tried again when there are as many as
//! the last attempt found missing. What was read beyond the value is kept and is the beginning of the raw data.
//!
//! Knows nothing of where the bytes come from; [`serve`](crate::serve) reads them from a call.

use crate::xdr::{DecodeError, Decoder, Problem, Xdr};

/// Room offered at least, so that a small value is collected in one read.
const MIN_ROOM_BYTES: usize = 256;

/// Room offered at most: an announced length alone, before its bytes have come, costs no more than this.
const MAX_ROOM_BYTES: usize = 16 * 1024;

/// Attempts to decode as soon as it might succeed. Each costs as much as the value is long up to there, so after
/// these an attempt is made only when half as much again has come: one byte at a time costs a peer more than it
/// costs us. A value of fixed length needs one attempt; one with a few counted fields as many as it has of them.
const EAGER_ATTEMPTS: u32 = 64;

/// Bytes of a value that is on its way.
///
/// Call [`decode`](Self::decode) first: a value may be empty. While it says that there is more to come, read into
/// [`room`](Self::room), report how much with [`filled`](Self::filled), and try again.
#[derive(Debug)]
pub struct Collector {
    /// `..filled` has been received; the rest is room.
    bytes: Vec<u8>,
    filled: usize,
    limit: usize,
    /// The number of bytes that have to be there before the next attempt is worth it.
    attempt_at: usize,
    attempts: u32,
}

impl Collector {
    /// A collector for a value of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), filled: 0, limit, attempt_at: 0, attempts: 0 }
    }

    /// Returns the room for the bytes that come next: never empty, never more than may still be collected.
    ///
    /// # Panics
    ///
    /// When the limit is reached. [`decode`](Self::decode) has returned a value or an error by then.
    pub fn room(&mut self) -> &mut [u8] {
        assert!(self.filled < self.limit, "decode() does not ask for more than the limit");
        let missing = self.attempt_at.saturating_sub(self.filled);
        let room = missing.clamp(MIN_ROOM_BYTES, MAX_ROOM_BYTES).min(self.limit - self.filled);
        if self.bytes.len() < self.filled + room {
            self.bytes.resize(self.filled + room, 0);
        }
        &mut self.bytes[self.filled..self.filled + room]
    }

    /// Says that the first `bytes` of the [`room`](Self::room) now contain what came.
    ///
    /// # Panics
    ///
    /// When that is more than the room there was.
    pub fn filled(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.filled, "more was received than there was room for");
        self.filled += bytes;
    }

    /// The value, if it is all there; `None` if more bytes have to come. `ended` says that none will. After a value
    /// was returned, [`into_rest`](Self::into_rest) has the bytes behind it.
    ///
    /// # Errors
    ///
    /// What no further bytes can cure: bytes that are no such value, an end before the value's, or a value that
    /// does not fit into the limit.
    pub fn decode<T: Xdr>(&mut self, ended: bool) -> Result<Option<T>, DecodeError> {
        if self.attempts == 0 {
            self.attempt_at = T::SIZE.min;
        }
        if self.filled < self.attempt_at.min(self.limit) && !ended {
            return Ok(None);
        }
        self.attempts = self.attempts.saturating_add(1);
        let mut decoder = Decoder::new(&self.bytes[..self.filled]);
        let error = match T::decode(&mut decoder) {
            Ok(value) => {
                self.attempt_at = decoder.offset();
                return Ok(Some(value));
            }
            Err(error) => error,
        };
        let Some(needed) = error.needed().filter(|_| !ended) else { return Err(error) };
        let total = self.filled.saturating_add(needed);
        if total > self.limit {
            return Err(error.because(Problem::TooLong { count: total, max: self.limit }));
        }
        let eager = self.attempts < EAGER_ATTEMPTS;
        self.attempt_at = if eager { total } else { total.max(self.filled + self.filled / 2) };
        Ok(None)
    }

    /// Returns the bytes that were received beyond the value that [`decode`](Self::decode) returned.
    pub fn into_rest(mut self) -> Rest {
        self.bytes.truncate(self.filled);
        Rest { bytes: self.bytes, read: self.attempt_at }
    }
}

/// Bytes that were received before anyone wanted them, to be read before any others.
#[derive(Debug, Default)]
pub struct Rest {
    bytes: Vec<u8>,
    read: usize,
}

impl Rest {
    /// True if all has been read.
    pub fn is_empty(&self) -> bool {
        self.read == self.bytes.len()
    }

    /// Moves as much as there is room for to the start of `out` and says how much; 0 when there is nothing left.
    pub fn read(&mut self, out: &mut [u8]) -> usize {
        let left = &self.bytes[self.read..];
        let length = left.len().min(out.len());
        out[..length].copy_from_slice(&left[..length]);
        self.read += length;
        if self.is_empty() {
            *self = Self::default();
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdr::{Opaque, WireSize, XdrArray, XdrString, to_bytes};

    /// Feeds `input` in pieces of `piece` bytes. Returns what came of it, the rest, and how many attempts it took.
    fn collect<T: Xdr>(input: &[u8], piece: usize, limit: usize) -> (Result<T, DecodeError>, Vec<u8>, u32) {
        let mut collector = Collector::new(limit);
        let mut input = input;
        let result = loop {
            match collector.decode::<T>(input.is_empty()) {
                Ok(Some(value)) => break Ok(value),
                Err(error) => break Err(error),
                Ok(None) => {}
            }
            let room = collector.room();
            let length = room.len().min(piece).min(input.len());
            room[..length].copy_from_slice(&input[..length]);
            collector.filled(length);
            input = &input[length..];
        };
        let attempts = collector.attempts;
        let mut rest = vec![0; collector.filled];
        if result.is_ok() {
            let length = collector.into_rest().read(&mut rest);
            rest.truncate(length);
        }
        rest.extend(input);
        (result, rest, attempts)
    }

    #[test]
    fn a_value_is_found_whatever_the_pieces_and_the_rest_is_kept() {
        type Value = XdrArray<XdrString<40>, 9>;
        let strings =
            ["", "a", "some words to be sent", "more"].map(|text| XdrString::try_from(text).unwrap());
        let value = Value::new(strings.to_vec()).unwrap();
        let mut wire = to_bytes(&value);
        wire.extend(b"raw data of no particular length");
        for piece in 1..=wire.len() {
            let (found, rest, _) = collect::<Value>(&wire, piece, 1024);
            assert_eq!(found.as_ref(), Ok(&value), "in pieces of {piece}");
            assert_eq!(rest, b"raw data of no particular length", "in pieces of {piece}");
        }
    }

    #[test]
    fn a_value_of_fixed_length_takes_one_attempt_byte_by_byte() {
        let (found, rest, attempts) = collect::<[u32; 50]>(&[1; 203], 1, 1024);
        assert_eq!((found, rest.as_slice(), attempts), (Ok([0x0101_0101; 50]), &[1, 1, 1][..], 1));
    }

    #[test]
    fn an_opaque_takes_one_attempt_to_learn_its_length() {
        let wire = to_bytes(&Opaque::<100_000>::new(vec![7; 99_999]).unwrap());
        assert!(collect::<Opaque<100_000>>(&wire, 1, 1 << 20).2 <= 3);
    }

    /// Twenty thousand strings. The decoder learns of each only when it has seen the one before: decoding at every
    /// byte would read two gigabytes.
    #[test]
    fn a_trickle_of_many_counted_items_costs_few_attempts() {
        type Value = XdrArray<XdrString<8>, 20_000>;
        let value = Value::new(vec![XdrString::try_from("abc").unwrap(); 20_000]).unwrap();
        let (found, rest, attempts) = collect::<Value>(&to_bytes(&value), 1, 1 << 20);
        assert_eq!((found, rest.len()), (Ok(value), 0));
        assert!(attempts < 100, "{attempts} attempts");
    }

    #[test]
    fn an_empty_value_needs_no_bytes() {
        let (found, rest, _) = collect::<[u32; 0]>(b"data", 1, 1024);
        assert_eq!((found, rest.as_slice()), (Ok([]), &b"data"[..]));
    }

    #[test]
    fn an_end_too_early_says_what_is_missing() {
        let error = collect::<Opaque<100>>(&[0, 0, 0, 9, 1, 2], 4, 1024).0.unwrap_err();
        assert_eq!((error.offset, error.needed()), (4, Some(7)));
    }

    #[test]
    fn a_value_beyond_the_limit_is_refused_when_it_is_announced() {
        const ANY: usize = u32::MAX as usize;
        let mut wire = vec![0xff; 4];
        wire.resize(4096, 0);
        let (result, rest, _) = collect::<Opaque<ANY>>(&wire, 4, 1024);
        assert_eq!(result.unwrap_err().problem, Problem::TooLong { count: 4 + ANY, max: 1024 });
        assert!(rest.len() >= 4092, "nothing was read after the announcement");
    }

    #[test]
    fn a_value_may_be_as_long_as_the_limit_and_no_longer() {
        let wire = to_bytes(&Opaque::<100>::new(vec![7; 100]).unwrap());
        assert!(collect::<Opaque<100>>(&wire, 1, 104).0.is_ok());
        assert!(collect::<Opaque<100>>(&wire, 1, 103).0.is_err());
        assert!(collect::<[u32; 9]>(&[0; 36], 1, 8).0.is_err(), "not even the shortest fits");
    }

    #[test]
    fn an_announced_length_makes_no_room_before_its_bytes_come() {
        let mut collector = Collector::new(usize::MAX);
        assert_eq!(collector.decode::<Opaque<0xffff_fff0>>(false), Ok(None));
        collector.room()[..4].copy_from_slice(&0xffff_fff0u32.to_be_bytes());
        collector.filled(4);
        assert_eq!(collector.decode::<Opaque<0xffff_fff0>>(false), Ok(None));
        assert_eq!(collector.room().len(), MAX_ROOM_BYTES);
        assert!(collector.bytes.capacity() <= 2 * MAX_ROOM_BYTES);
        assert_eq!(Opaque::<8>::SIZE, WireSize { min: 4, max: 12 });
    }
}
