//! Access lists as text: what FetchACL gives and StoreACL takes (File service notes 10). As strict as the servers are.

use std::fmt::Write as _;

use afs_wire::rights::Rights;
use afs_wire::rxafs::AfsOpaque;

use super::error::Error;

/// An access list of a directory: names of users and groups with their rights, and what is taken away again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessList {
    /// The rights that are granted.
    pub positive: Vec<(String, Rights)>,
    /// The rights that are taken away.
    pub negative: Vec<(String, Rights)>,
}

impl AccessList {
    /// All rights, 127.
    pub const ALL: Rights = Rights(0x7f);
    /// `rl`, 9.
    pub const READ: Rights = Rights(0x9);
    /// `rlidwk`, 63.
    pub const WRITE: Rights = Rights(0x3f);

    /// One that only grants.
    pub fn granting<'a>(entries: impl IntoIterator<Item = (&'a str, Rights)>) -> Self {
        let positive = entries.into_iter().map(|(name, rights)| (name.to_owned(), rights)).collect();
        Self { positive, negative: Vec::new() }
    }

    /// As it is sent, with the NUL that servers want at the end.
    pub(crate) fn to_wire(&self) -> Result<AfsOpaque, Error> {
        let mut text = format!("{}\n{}\n", self.positive.len(), self.negative.len());
        for (name, rights) in self.positive.iter().chain(&self.negative) {
            let _ = writeln!(text, "{name}\t{}", rights.0);
        }
        text.push('\0');
        let length = text.len();
        AfsOpaque::new(text).map_err(|_| Error::Unsayable(format!("an access list of {length} bytes")))
    }

    /// Reads what was sent.
    pub(crate) fn of_wire(bytes: &[u8]) -> Result<Self, Error> {
        let whole = String::from_utf8_lossy(bytes).into_owned();
        let read = |text: &str| {
            let mut lines = text.trim_end_matches('\0').lines();
            let mut count = || lines.next()?.trim().parse::<usize>().ok();
            let (positive, negative) = (count()?, count()?);
            let mut entries = lines.map(|line| {
                let (name, rights) = line.split_once('\t')?;
                Some((name.to_owned(), Rights(rights.trim().parse().ok()?)))
            });
            let mut take = |count| (0..count).map(|_| entries.next()?).collect::<Option<Vec<_>>>();
            let list = Self { positive: take(positive)?, negative: take(negative)? };
            entries.next().is_none().then_some(list)
        };
        read(&whole).ok_or(Error::BadText(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_as_it_was_written() {
        let mut list =
            AccessList::granting([("system:administrators", AccessList::ALL), ("alice", AccessList::READ)]);
        list.negative.push(("bob".to_owned(), Rights(1)));
        let wire = list.to_wire().unwrap();
        assert_eq!(&wire[..], b"2\n1\nsystem:administrators\t127\nalice\t9\nbob\t1\n\0");
        assert_eq!(AccessList::of_wire(&wire).unwrap(), list);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in
            ["", "1\n", "1\n0\n", "0\n0\nalice\t9\n", "1\n0\nalice 9\n", "-1\n0\n", "99999999\n0\nalice\t9\n"]
        {
            assert!(AccessList::of_wire(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(AccessList::granting([("x".repeat(2000).as_str(), AccessList::ALL)]).to_wire().is_err());
    }
}
