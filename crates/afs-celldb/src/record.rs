//! The bytes of rows: big-endian numbers and short strings one after the other, as in keys, so that rows sort as their
//! numbers do. Reading is total: a row that is cut short or too long is an error, since it was not written by us.

/// The reason why a row is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRow(pub(crate) &'static str);

impl std::fmt::Display for BadRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadRow {}

/// Reads a row from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(row: &'a [u8]) -> Self {
        Self(row)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], BadRow> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(BadRow("it is cut short"))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, BadRow> {
        Ok(self.bytes(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, BadRow> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(crate) fn i32(&mut self) -> Result<i32, BadRow> {
        Ok(self.u32()? as i32)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, BadRow> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// A string of at most 255 bytes, behind its length.
    pub(crate) fn short_bytes(&mut self) -> Result<&'a [u8], BadRow> {
        let length = self.u8()?;
        self.bytes(length.into())
    }

    /// Numbers behind their count.
    pub(crate) fn numbers(&mut self) -> Result<Vec<i32>, BadRow> {
        let count = self.u32()? as usize;
        let bytes = self.bytes(count.checked_mul(4).ok_or(BadRow("a count is too large"))?)?;
        Ok(bytes.chunks_exact(4).map(|n| i32::from_be_bytes([n[0], n[1], n[2], n[3]])).collect())
    }

    pub(crate) fn finish(self) -> Result<(), BadRow> {
        if self.0.is_empty() { Ok(()) } else { Err(BadRow("there are bytes behind its end")) }
    }
}

/// Writes a row.
pub(crate) trait PutFields {
    fn put_u32(&mut self, value: u32);
    fn put_i32(&mut self, value: i32);
    fn put_u64(&mut self, value: u64);
    /// Puts at most 255 bytes.
    fn put_short_bytes(&mut self, value: &[u8]);
    fn put_numbers(&mut self, values: &[i32]);
}

impl PutFields for Vec<u8> {
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_short_bytes(&mut self, value: &[u8]) {
        self.push(u8::try_from(value.len()).expect("names were checked to be shorter"));
        self.extend_from_slice(value);
    }

    fn put_numbers(&mut self, values: &[i32]) {
        self.put_u32(u32::try_from(values.len()).expect("lists are limited"));
        values.iter().for_each(|value| self.put_i32(*value));
    }
}
