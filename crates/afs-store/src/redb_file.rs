//! Whether a file can be one of redb's, looked at before redb is: redb 2.6.4 asserts what it expects of a file, and panics over
//! one that was cut short. What is in the file is redb's to check.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a file of redb's begins with, once it is one: written last when it is made.
pub(crate) const MAGIC: &[u8; 9] = b"redb\x1A\x0A\xA9\x0D\x0A";

/// Bytes of the header that are looked at, and those that redb reads first.
pub const HEADER_BYTES: usize = 32;
/// Where the header has its page size, the pages of a region's header, the most pages of its data, full regions, and the data pages
/// of one more region: four bytes each, the least one first.
const FIELDS_AT: usize = 12;

/// Says what is wrong with a file that begins so and has so many bytes, unless it has all bytes that its header speaks of. A file
/// that is not one of redb's passes: redb says so itself.
///
/// # Errors
///
/// In words, as "it was cut short: ...".
pub fn check_length(begin: &[u8], length: u64) -> Result<(), String> {
    if length == 0 {
        return Err("it is empty".into());
    }
    let (Some(header), true) = (begin.get(..HEADER_BYTES), length >= HEADER_BYTES as u64) else {
        return Err(format!("it was cut short: it has {length} bytes only"));
    };
    if !header.starts_with(MAGIC) {
        return Ok(());
    }
    let field = |n: usize| {
        let at = FIELDS_AT + 4 * n;
        u64::from(u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes")))
    };
    let [page, region_header, region_data, full, rest] = [0, 1, 2, 3, 4].map(field);
    let rest = if rest > 0 { region_header + rest } else { 0 };
    // Beyond 64 bits only where the header is damaged.
    let pages = (region_header + region_data).checked_mul(full).and_then(|pages| pages.checked_add(rest + 1));
    match pages.and_then(|pages| pages.checked_mul(page)) {
        Some(wanted) if wanted <= length => Ok(()),
        Some(wanted) => Err(format!("it was cut short: it has {length} of {wanted} bytes")),
        None => Err("its header is damaged".into()),
    }
}

/// Opens with redb; a panic of it over what is in the file is an error too. Where the length was right, it has been seen over
/// damaged headers only.
///
/// # Errors
///
/// `open`'s own, or what stands for a panic.
pub fn without_panic<T, E>(
    open: impl FnOnce() -> Result<T, E>,
    panicked: impl FnOnce() -> E,
) -> Result<T, E> {
    // Nothing of what it has begun is used after a panic.
    catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| Err(panicked()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_nonsense_are_no_panic() {
        let mut header = [0xff; HEADER_BYTES];
        header[..MAGIC.len()].copy_from_slice(MAGIC);
        assert!(check_length(&header, u64::MAX).is_err());
        assert!(check_length(&header[..20], 20).is_err());
        assert!(check_length(b"", 0).is_err());
        assert_eq!(check_length(&[7; 100], 100), Ok(()), "that is redb's to say");
    }
}
