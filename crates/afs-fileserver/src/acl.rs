//! Access lists between text with names and lists of ids (File service notes 10).

use afs_volume::AccessList;
use afs_volume::acl::MAX_ENTRIES;
use afs_wire::ids::ViceId;
use afs_wire::rights::Rights;

/// Longest name in a line.
const MAX_NAME_BYTES: usize = 63;

/// An access list as text has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entries {
    positive: Vec<(Vec<u8>, Rights)>,
    negative: Vec<(Vec<u8>, Rights)>,
}

impl Entries {
    /// All names, positive entries first.
    pub(crate) fn names(&self) -> Vec<Vec<u8>> {
        self.positive.iter().chain(&self.negative).map(|(name, _)| name.clone()).collect()
    }

    /// The list, if each name has an id.
    pub(crate) fn with_ids(&self, ids: &[Option<ViceId>]) -> Option<AccessList> {
        let mut ids = ids.iter();
        let mut list = |entries: &[(Vec<u8>, Rights)]| {
            let with_id = |(_, rights): &(Vec<u8>, Rights)| Some(((*ids.next()?)?, *rights));
            entries.iter().map(with_id).collect::<Option<Vec<_>>>()
        };
        Some(AccessList { positive: list(&self.positive)?, negative: list(&self.negative)? })
    }
}

/// The text of a list whose ids have these names, positive entries first; a NUL is part of it.
pub(crate) fn to_text(list: &AccessList, names: &[Vec<u8>]) -> Vec<u8> {
    let mut text = format!("{}\n{}\n", list.positive.len(), list.negative.len()).into_bytes();
    for ((_, rights), name) in list.positive.iter().chain(&list.negative).zip(names) {
        text.extend(name);
        text.extend(format!("\t{}\n", rights.0).bytes());
    }
    text.push(0);
    text
}

/// Reads a text up to its NUL or its end.
pub(crate) fn parse(text: &[u8]) -> Option<Entries> {
    let text = text.split(|byte| *byte == 0).next()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let mut count = || number::<usize>(lines.next()?).filter(|count| *count <= MAX_ENTRIES);
    let (positive, negative) = (count()?, count()?);
    if positive + negative > MAX_ENTRIES {
        return None;
    }
    let mut entries = |count: usize| (0..count).map(|_| entry(lines.next()?)).collect::<Option<Vec<_>>>();
    Some(Entries { positive: entries(positive)?, negative: entries(negative)? })
}

fn entry(line: &[u8]) -> Option<(Vec<u8>, Rights)> {
    let space = line.iter().position(|byte| matches!(byte, b'\t' | b' '))?;
    let (name, rights) = (&line[..space], line[space..].trim_ascii());
    let is_name = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    // Rights beyond 31 bits are written with a sign by some clients.
    let rights = number::<u32>(rights).or_else(|| number::<i32>(rights).map(|n| n as u32))?;
    is_name.then(|| (name.to_vec(), Rights(rights)))
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_as_it_was_written() {
        let list = AccessList {
            positive: vec![(ViceId::SYSTEM_ADMINISTRATORS, Rights(127)), (ViceId::SYSTEM_ANYUSER, Rights(9))],
            negative: vec![(ViceId(5), Rights(2))],
        };
        let names: Vec<Vec<u8>> =
            [&b"system:administrators"[..], b"system:anyuser", b"user1"].map(<[u8]>::to_vec).into();
        let text = to_text(&list, &names);
        assert_eq!(text, b"2\n1\nsystem:administrators\t127\nsystem:anyuser\t9\nuser1\t2\n\0");
        let entries = parse(&text).unwrap();
        assert_eq!(entries.names(), names);
        let ids = [ViceId::SYSTEM_ADMINISTRATORS, ViceId::SYSTEM_ANYUSER, ViceId(5)].map(Some);
        assert_eq!(entries.with_ids(&ids), Some(list));
        assert_eq!(entries.with_ids(&[ids[0], None, ids[2]]), None);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in [
            &b""[..],
            b"1",
            b"1\n",
            b"1\n0\n",
            b"1\n0\nname\n",
            b"1\n0\nname\tx\n",
            b"1\n0\n\t5\n",
            b"21\n0\n",
            b"11\n10\n",
            b"-1\n0\n",
            b"99999999999999999999\n0\n",
            b"1\n0\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\t1\n",
            b"1\n0\nname\0\t1\n",
        ] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
        assert!(parse(b"0\n0\n").is_some());
        assert!(parse(b"1\n0\nname\t-2147483648\n").is_some());
    }
}
