//! As much of DER as tickets need: reading tagged values of definite length, and writing them.

/// A value's tag. Kerberos has only those that fit into a byte.
pub(crate) type Tag = u8;

pub(crate) const INTEGER: Tag = 0x02;
pub(crate) const BIT_STRING: Tag = 0x03;
pub(crate) const OCTET_STRING: Tag = 0x04;
pub(crate) const GENERALIZED_TIME: Tag = 0x18;
pub(crate) const GENERAL_STRING: Tag = 0x1b;
pub(crate) const SEQUENCE: Tag = 0x30;

/// [APPLICATION n], constructed.
pub(crate) const fn application(n: u8) -> Tag {
    0x60 | n
}

/// The explicit tag `[n]`.
pub(crate) const fn context(n: u8) -> Tag {
    0xa0 | n
}

/// Reads values from the front of some bytes.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next value, which must have this tag.
    pub(crate) fn value(&mut self, tag: Tag) -> Option<&'a [u8]> {
        let (&found, rest) = self.rest.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        if found != tag {
            return None;
        }
        let mut len = usize::from(first);
        if first & 0x80 != 0 {
            // Two bytes of length are more than a ticket has, three are what some write all the same.
            let count = usize::from(first & 0x7f);
            if !(1..=3).contains(&count) {
                return None;
            }
            let (bytes, tail) = rest.split_at_checked(count)?;
            len = bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
            rest = tail;
        }
        let (value, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some(value)
    }

    /// Returns the content of the next value.
    pub(crate) fn within(&mut self, tag: Tag) -> Option<Self> {
        self.value(tag).map(Self::new)
    }

    /// Returns the content of the next value if it has this tag; else nothing is read.
    pub(crate) fn optional(&mut self, tag: Tag) -> Option<Option<Self>> {
        if self.rest.first() == Some(&tag) { self.within(tag).map(Some) } else { Some(None) }
    }

    /// An integer of at most 32 bits. One that does not fit is none.
    pub(crate) fn integer(&mut self) -> Option<i32> {
        let bytes = self.value(INTEGER)?;
        // Unsigned ones of 32 bits come with a byte of zero in front.
        let bytes = match bytes {
            [0, rest @ ..] if rest.len() == 4 => rest,
            all => all,
        };
        if bytes.is_empty() || bytes.len() > 4 {
            return None;
        }
        let sign = if bytes[0] & 0x80 != 0 { -1 } else { 0 };
        Some(bytes.iter().fold(sign, |value: i32, byte| value << 8 | i32::from(*byte)))
    }

    /// A string that is text.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.value(GENERAL_STRING)?).ok()
    }
}

/// Appends a value with its tag and length.
pub(crate) fn put(out: &mut Vec<u8>, tag: Tag, value: &[u8]) {
    out.push(tag);
    let len = value.len();
    let bytes = len.to_be_bytes();
    if len < 0x80 {
        out.push(len as u8);
    } else {
        let skip = len.leading_zeros() as usize / 8;
        out.push(0x80 | (bytes.len() - skip) as u8);
        out.extend_from_slice(&bytes[skip..]);
    }
    out.extend_from_slice(value);
}

/// A value with its tag and length.
pub(crate) fn tagged(tag: Tag, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 4);
    put(&mut out, tag, value);
    out
}

/// An integer.
pub(crate) fn integer(value: i32) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    // As few bytes as keep the sign.
    let is_needless = |at: usize| {
        let sign = bytes[at + 1] & 0x80 != 0;
        bytes[at] == if sign { 0xff } else { 0 }
    };
    let skip = (0..3).take_while(|at| is_needless(*at)).count();
    tagged(INTEGER, &bytes[skip..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_in_as_few_bytes_as_can_be() {
        for (value, len) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (-128, 1),
            (-129, 2),
            (213, 2),
            (65_535, 3),
            (i32::MAX, 4),
            (i32::MIN, 4),
        ] {
            let bytes = integer(value);
            assert_eq!(bytes.len(), 2 + len, "{value}");
            assert_eq!(Reader::new(&bytes).integer(), Some(value));
        }
        assert_eq!(Reader::new(&[2, 5, 0, 0xff, 0, 0, 1]).integer(), Some(0xff00_0001_u32 as i32));
        assert_eq!(Reader::new(&[2, 5, 1, 0, 0, 0, 1]).integer(), None);
        assert_eq!(Reader::new(&[2, 0]).integer(), None);
    }

    #[test]
    fn lengths_of_all_sizes_come_back() {
        for len in [0, 1, 127, 128, 255, 256, 12_000, 70_000] {
            let bytes = tagged(OCTET_STRING, &vec![7; len]);
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.value(OCTET_STRING).map(<[u8]>::len), Some(len));
            assert!(reader.is_empty());
            assert!(Reader::new(&bytes[..bytes.len() - 1]).value(OCTET_STRING).is_none());
        }
        assert!(Reader::new(&[4, 0x80, 0, 0]).value(OCTET_STRING).is_none(), "a length that is left open");
        assert!(Reader::new(&[4, 0x84, 0, 0, 0, 0]).value(OCTET_STRING).is_none());
        assert!(Reader::new(&[5, 0]).value(OCTET_STRING).is_none());
    }
}
