//! Numbers and strings as rows and log records hold them: big-endian, strings with their length in front. Reading is
//! total: what is too short or too long is an error that says what was being read.

use crate::StoreError;

/// Takes a row's value apart.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Fields<'a> {
    /// Reads the fields of a value. `what` names the value in errors.
    #[must_use]
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    ///
    /// The value ends before, or it is none.
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], StoreError> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(|| self.bad("is cut off"))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StoreError> {
        Ok(self.bytes(N)?.try_into().expect("as long as it was asked to be"))
    }

    /// A byte.
    ///
    /// # Errors
    ///
    /// The value ends before, or it is none.
    pub fn u8(&mut self) -> Result<u8, StoreError> {
        Ok(self.array::<1>()?[0])
    }

    /// A number of two bytes.
    ///
    /// # Errors
    ///
    /// The value ends before, or it is none.
    pub fn u16(&mut self) -> Result<u16, StoreError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// A number of four bytes.
    ///
    /// # Errors
    ///
    /// The value ends before, or it is none.
    pub fn u32(&mut self) -> Result<u32, StoreError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    ///
    /// The value ends before, or it is none.
    pub fn u64(&mut self) -> Result<u64, StoreError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A text, with its length in two bytes before it.
    ///
    /// # Errors
    ///
    /// The value ends before, or it is none.
    pub fn string(&mut self) -> Result<String, StoreError> {
        let length = usize::from(self.u16()?);
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.bad("has a text that is no UTF-8"))
    }

    /// Takes all that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// True if nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    ///
    /// Something is.
    pub fn end(self) -> Result<(), StoreError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.bad("is too long")) }
    }

    /// An error about this value.
    #[must_use]
    pub fn bad(&self, why: &str) -> StoreError {
        StoreError::damaged(self.what, why)
    }
}

/// Puts a row's value together.
#[derive(Debug, Default)]
pub struct Value(pub Vec<u8>);

impl Value {
    /// Adds a byte.
    #[must_use]
    pub fn u8(mut self, v: u8) -> Self {
        self.0.push(v);
        self
    }

    /// Adds a number of two bytes.
    #[must_use]
    pub fn u16(mut self, v: u16) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }

    /// Adds a number of four bytes.
    #[must_use]
    pub fn u32(mut self, v: u32) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }

    /// Adds a number of eight bytes.
    #[must_use]
    pub fn u64(mut self, v: u64) -> Self {
        self.0.extend_from_slice(&v.to_be_bytes());
        self
    }

    /// Adds a text of at most 65535 bytes; the caller has checked its length.
    #[must_use]
    pub fn string(self, v: &str) -> Self {
        let length = u16::try_from(v.len()).expect("texts are checked when they are set");
        let mut this = self.u16(length);
        this.0.extend_from_slice(v.as_bytes());
        this
    }

    /// Adds bytes, without their length.
    #[must_use]
    pub fn bytes(mut self, v: &[u8]) -> Self {
        self.0.extend_from_slice(v);
        self
    }
}
