//! The fields of a message from the kernel, one after the other, in this machine's byte order. Reading is total: a message that
//! is too short is an error that says where.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// A message that is not as the protocol says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// The item that was read.
    pub what: &'static str,
    /// The byte behind the header at which it ended, or was wrong.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a FUSE message ends or is wrong at byte {} of {}", self.at, self.what)
    }
}

impl Error for Malformed {}

/// The bytes that are left to read.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    fn malformed(&self) -> Malformed {
        Malformed { what: self.what, at: self.at }
    }

    /// The next so many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(count).ok_or_else(|| self.malformed())?;
        let bytes = self.bytes.get(self.at..end).ok_or_else(|| self.malformed())?;
        self.at = end;
        Ok(bytes)
    }

    pub(crate) fn skip(&mut self, count: usize) -> Result<(), Malformed> {
        self.bytes(count).map(|_| ())
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.bytes(4)?.try_into().expect("four were taken");
        Ok(u32::from_ne_bytes(bytes))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.bytes(8)?.try_into().expect("eight were taken");
        Ok(u64::from_ne_bytes(bytes))
    }

    /// A text that ends in a NUL.
    pub(crate) fn name(&mut self) -> Result<&'a OsStr, Malformed> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|byte| *byte == 0).ok_or_else(|| self.malformed())?;
        self.at += length + 1;
        Ok(OsStr::from_bytes(&rest[..length]))
    }

    /// True if so many bytes are left.
    pub(crate) fn has(&self, count: usize) -> bool {
        self.bytes.len() - self.at >= count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_its_place() {
        let mut bytes = 7u32.to_ne_bytes().to_vec();
        bytes.extend(b"name\0");
        let mut fields = Fields::new("TEST", &bytes);
        assert_eq!(fields.u32(), Ok(7));
        assert_eq!(fields.name(), Ok(OsStr::new("name")));
        assert_eq!(fields.u32(), Err(Malformed { what: "TEST", at: 9 }));
        assert_eq!(fields.name(), Err(Malformed { what: "TEST", at: 9 }));
        assert_eq!(fields.bytes(usize::MAX), Err(Malformed { what: "TEST", at: 9 }));
        assert!(fields.has(0) && !fields.has(1));
    }
}
