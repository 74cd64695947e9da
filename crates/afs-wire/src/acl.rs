//! Access lists: as text with names, which FetchACL and StoreACL carry, and as ids with rights, which a directory's vnode keeps and
//! dumps contain (File service notes 10). Turning names into ids and back is left to code that can ask the protection service.

use crate::ids::{AFSOPAQUEMAX, ViceId};
use crate::rights::Rights;

/// Most entries of an access list, positive and negative ones together (`ACL_MAXENTRIES`).
pub const ENTRIES_MAX: usize = 20;
/// Longest name in the text, in bytes.
pub const NAME_MAX: usize = 63;
/// Bytes of an access list in a dump.
pub const STORED_SIZE: usize = 192;

const STORED_VERSION: u32 = 1;
/// Bytes of size, version, and three counts.
const STORED_HEADER: usize = 20;
/// Bytes of an id and its rights.
const STORED_ENTRY: usize = 8;

/// The reason why bytes are no access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// More bytes than an access list may have.
    #[error("an access list has at most {AFSOPAQUEMAX} bytes of text")]
    TooLong,
    /// No NUL at the end, without which some servers read on.
    #[error("an access list ends with a NUL")]
    NotTerminated,
    /// A count or rights that are no number, or a number that cannot be.
    #[error("word {word} of the access list is not a number that can be")]
    BadNumber {
        /// The index of the text's word, from 0.
        word: usize,
    },
    /// A name that is longer than names are.
    #[error("word {word} of the access list is no name: at most {NAME_MAX} bytes")]
    LongName {
        /// The index of the text's word, from 0.
        word: usize,
    },
    /// Fewer entries than are counted.
    #[error("the access list has fewer entries than it says")]
    MissingEntries,
    /// More than [`ENTRIES_MAX`] entries.
    #[error("an access list has at most {ENTRIES_MAX} entries")]
    TooManyEntries,
    /// A stored list of another size or version.
    #[error("the stored access list has another format")]
    BadHeader,
}

/// An access list with names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AclText {
    /// The rights that are granted, by name.
    pub positive: Vec<(String, Rights)>,
    /// The rights that are denied, whatever the positive entries say.
    pub negative: Vec<(String, Rights)>,
}

impl AclText {
    /// Reads the text of StoreACL or FetchACL. What comes after the last entry does not count, and any blanks separate,
    /// as in stock servers. Costs no more than [`ENTRIES_MAX`] names.
    ///
    /// # Errors
    ///
    /// [`AclError`]: the place of an errno is `EINVAL`.
    pub fn parse(bytes: &[u8]) -> Result<Self, AclError> {
        if bytes.len() > AFSOPAQUEMAX {
            return Err(AclError::TooLong);
        }
        let end = bytes.iter().position(|&byte| byte == 0).ok_or(AclError::NotTerminated)?;
        let words = bytes[..end].split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let mut words = words.enumerate();
        let mut count = || -> Result<usize, AclError> {
            let (at, word) = words.next().ok_or(AclError::MissingEntries)?;
            number(word).and_then(|n| usize::try_from(n).ok()).ok_or(AclError::BadNumber { word: at })
        };
        let (positive, negative) = (count()?, count()?);
        if positive.saturating_add(negative) > ENTRIES_MAX {
            return Err(AclError::TooManyEntries);
        }
        let mut entry = || -> Result<(String, Rights), AclError> {
            let (at, name) = words.next().ok_or(AclError::MissingEntries)?;
            if name.len() > NAME_MAX {
                return Err(AclError::LongName { word: at });
            }
            let (at, rights) = words.next().ok_or(AclError::MissingEntries)?;
            let rights = number(rights).and_then(bits).ok_or(AclError::BadNumber { word: at })?;
            // Names are ASCII in the protection service; others are found in no database, whatever they become here.
            Ok((String::from_utf8_lossy(name).into_owned(), rights))
        };
        let positive = (0..positive).map(|_| entry()).collect::<Result<_, _>>()?;
        let negative = (0..negative).map(|_| entry()).collect::<Result<_, _>>()?;
        Ok(Self { positive, negative })
    }

    /// The text, with the NUL at its end that counts.
    ///
    /// # Errors
    ///
    /// More entries or longer names than may be sent.
    pub fn to_bytes(&self) -> Result<Vec<u8>, AclError> {
        if self.positive.len() + self.negative.len() > ENTRIES_MAX {
            return Err(AclError::TooManyEntries);
        }
        let mut text = format!("{}\n{}\n", self.positive.len(), self.negative.len());
        for (at, (name, rights)) in self.positive.iter().chain(&self.negative).enumerate() {
            if name.is_empty()
                || name.len() > NAME_MAX
                || name.bytes().any(|b| b.is_ascii_whitespace() || b == 0)
            {
                return Err(AclError::LongName { word: 2 + 2 * at });
            }
            // Signed, as stock servers print it.
            text.push_str(&format!("{name}\t{}\n", rights.0.cast_signed()));
        }
        text.push('\0');
        if text.len() > AFSOPAQUEMAX { Err(AclError::TooLong) } else { Ok(text.into_bytes()) }
    }
}

/// A decimal number, with or without a sign.
fn number(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Rights from a number that may have been printed with a sign.
fn bits(number: i64) -> Option<Rights> {
    let signed = i32::try_from(number).map(i32::cast_unsigned).ok();
    signed.or_else(|| u32::try_from(number).ok()).map(Rights)
}

/// An access list with ids.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Acl {
    /// The rights that are granted, by id.
    pub positive: Vec<(ViceId, Rights)>,
    /// The rights that are denied, whatever the positive entries say.
    pub negative: Vec<(ViceId, Rights)>,
}

impl Acl {
    /// All rights for `system:administrators`, which is what a new volume's root has (Volume service notes 4).
    #[must_use]
    pub fn administrators() -> Self {
        Self { positive: vec![(ViceId::SYSTEM_ADMINISTRATORS, Rights::ALL)], negative: Vec::new() }
    }

    /// Entries of both kinds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.positive.len() + self.negative.len()
    }

    /// True if it grants nothing to anyone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rights of somebody who is all of these, which are sorted: what the positive entries give less what the negative ones take
    /// (File service notes 6.3). What administrators and owners have besides is the server's matter.
    #[must_use]
    pub fn rights_of(&self, ids: &[ViceId]) -> Rights {
        debug_assert!(ids.is_sorted(), "{ids:?}");
        let union = |entries: &[(ViceId, Rights)]| {
            let mine = entries.iter().filter(|(id, _)| ids.binary_search(id).is_ok());
            mine.fold(Rights::NONE, |rights, (_, more)| rights | *more)
        };
        union(&self.positive).without(union(&self.negative))
    }

    /// The form in which a dump has it: positive entries from the front, negative ones from the end backwards, zeros in
    /// between.
    ///
    /// # Errors
    ///
    /// [`AclError::TooManyEntries`].
    pub fn to_stored(&self) -> Result<[u8; STORED_SIZE], AclError> {
        let total = self.len();
        if total > ENTRIES_MAX {
            return Err(AclError::TooManyEntries);
        }
        let size = STORED_HEADER + STORED_ENTRY * total;
        let mut words = vec![size as u32, STORED_VERSION, total as u32];
        words.extend([self.positive.len() as u32, self.negative.len() as u32]);
        for (id, rights) in self.positive.iter().chain(self.negative.iter().rev()) {
            words.extend([id.0.cast_unsigned(), rights.0]);
        }
        let mut stored = [0; STORED_SIZE];
        for (place, word) in stored.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        Ok(stored)
    }

    /// Reads that form.
    ///
    /// # Errors
    ///
    /// [`AclError::BadHeader`] and [`AclError::TooManyEntries`].
    pub fn from_stored(stored: &[u8; STORED_SIZE]) -> Result<Self, AclError> {
        let word = |at: usize| {
            let bytes = &stored[4 * at..][..4];
            u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let (total, positive, negative) = (word(2), word(3), word(4));
        if total as usize > ENTRIES_MAX {
            return Err(AclError::TooManyEntries);
        }
        if word(1) != STORED_VERSION || positive.checked_add(negative) != Some(total) {
            return Err(AclError::BadHeader);
        }
        let entry = |i: u32| {
            let at = STORED_HEADER / 4 + 2 * i as usize;
            (ViceId(word(at).cast_signed()), Rights(word(at + 1)))
        };
        Ok(Self {
            positive: (0..positive).map(entry).collect(),
            negative: (positive..total).rev().map(entry).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(positive: &[(&str, u32)], negative: &[(&str, u32)]) -> AclText {
        let entries = |list: &[(&str, u32)]| list.iter().map(|(n, r)| (n.to_string(), Rights(*r))).collect();
        AclText { positive: entries(positive), negative: entries(negative) }
    }

    /// File service notes 10.
    #[test]
    fn the_text_is_that_of_stock_servers() {
        let acl = text(&[("system:administrators", 127), ("system:anyuser", 9)], &[]);
        let wire = b"2\n0\nsystem:administrators\t127\nsystem:anyuser\t9\n\0";
        assert_eq!(wire.len(), 48);
        assert_eq!(acl.to_bytes().as_deref(), Ok(&wire[..]));
        assert_eq!(AclText::parse(wire), Ok(acl));
    }

    #[test]
    fn negative_entries_come_after_the_positive_ones() {
        let acl = text(&[("a", 1)], &[("b", 2), ("-1234", 0x8000_0000)]);
        let wire = b"1\n2\na\t1\nb\t2\n-1234\t-2147483648\n\0";
        assert_eq!(acl.to_bytes().as_deref(), Ok(&wire[..]));
        assert_eq!(AclText::parse(wire), Ok(acl.clone()));
        assert_eq!(
            AclText::parse(b" 1 2 a 1 b 2 -1234 2147483648 more\0and more"),
            Ok(acl),
            "blanks are blanks"
        );
    }

    #[test]
    fn what_is_no_access_list_is_refused() {
        for (bytes, error) in [
            (&b"0\n0\n"[..], AclError::NotTerminated),
            (b"\0", AclError::MissingEntries),
            (b"0\0", AclError::MissingEntries),
            (b"x 0\0", AclError::BadNumber { word: 0 }),
            (b"0 -1\0", AclError::BadNumber { word: 1 }),
            (b"99999999999999999999 0\0", AclError::BadNumber { word: 0 }),
            (b"9223372036854775807 9223372036854775807\0", AclError::TooManyEntries),
            (b"20 1\0", AclError::TooManyEntries),
            (b"1 0 a\0", AclError::MissingEntries),
            (b"1 0 a b\0", AclError::BadNumber { word: 3 }),
            (b"1 0 a 4294967296\0", AclError::BadNumber { word: 3 }),
        ] {
            assert_eq!(AclText::parse(bytes), Err(error), "{}", bytes.escape_ascii());
        }
        let long = format!("1 0 {} 1\0", "a".repeat(64));
        assert_eq!(AclText::parse(long.as_bytes()), Err(AclError::LongName { word: 2 }));
        assert_eq!(AclText::parse(&[b' '; 1025]), Err(AclError::TooLong));
    }

    #[test]
    fn what_could_not_be_read_is_not_written() {
        let name = "a".repeat(63);
        let long: Vec<(&str, u32)> = (0..20).map(|_| (name.as_str(), 127)).collect();
        assert_eq!(text(&long, &[]).to_bytes(), Err(AclError::TooLong));
        assert_eq!(text(&long, &[("a", 1)]).to_bytes(), Err(AclError::TooManyEntries));
        assert_eq!(text(&[("a b", 1)], &[]).to_bytes(), Err(AclError::LongName { word: 2 }));
    }

    #[test]
    fn negative_entries_take_what_positive_ones_give() {
        let (user, group) = (ViceId(7), ViceId(-8));
        let acl = Acl {
            positive: vec![(group, Rights::READ | Rights::LOOKUP), (user, Rights::WRITE)],
            negative: vec![(user, Rights::READ)],
        };
        assert_eq!(acl.rights_of(&[group, user]), Rights::LOOKUP | Rights::WRITE);
        assert_eq!(acl.rights_of(&[group]), Rights::READ | Rights::LOOKUP);
        assert_eq!(acl.rights_of(&[]), Rights::NONE);
    }

    #[test]
    fn the_stored_form_keeps_the_order_of_both_lists() {
        let entries = |ids: &[i32]| ids.iter().map(|id| (ViceId(*id), Rights(1))).collect();
        let acl = Acl { positive: entries(&[1, 2, 3]), negative: entries(&[-4, -5]) };
        let stored = acl.to_stored().unwrap();
        assert_eq!(stored[..20], [0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, 2]);
        assert_eq!(Acl::from_stored(&stored), Ok(acl));
        let mut other = stored;
        other[11] = 21;
        assert_eq!(Acl::from_stored(&other), Err(AclError::TooManyEntries));
        other = stored;
        other[15] = 4;
        assert_eq!(Acl::from_stored(&other), Err(AclError::BadHeader));
        assert_eq!(Acl::from_stored(&[0; STORED_SIZE]), Err(AclError::BadHeader));
    }

    #[test]
    fn rights_have_letters() {
        assert_eq!(Rights::ALL.letters(), "rlidwka");
        assert_eq!(Rights(0x8000_0009).letters(), "rlH");
        assert_eq!(Rights::from_letters("wr"), Some(Rights::READ | Rights::WRITE));
        assert_eq!(Rights::from_letters("rx"), None);
    }
}
