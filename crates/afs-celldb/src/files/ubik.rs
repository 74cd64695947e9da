//! Ubik's data around a database: a header before it, and beside it a log with the changes of one transaction, which
//! the next start applies if the transaction was committed (Database file notes 1).

use std::borrow::Cow;

use super::FileError;

/// Bytes before the database.
pub(super) const HEADER_BYTES: usize = 64;

const MAGIC: u32 = 0x0035_4545;

/// Files end with a whole page of this many bytes.
const PAGE_BYTES: usize = 1024;

/// How far behind the end of what is known a log may write: a few pages.
const MAX_GAP: usize = 64 * PAGE_BYTES;

/// Records of a log.
const BEGIN: u32 = 100;
const COMMIT: u32 = 101;
const DATA: u32 = 103;
const TRUNCATE: u32 = 104;

/// The database in a file, with the changes in the log beside it; without the header.
///
/// # Errors
///
/// If it is no such file, or not whole; if the log cannot be applied.
pub(super) fn database<'a>(file: &'a [u8], log: Option<&[u8]>) -> Result<Cow<'a, [u8]>, FileError> {
    let word = |at: usize| {
        file.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_be_bytes(*bytes)).unwrap_or(0)
    };
    if file.len() < 16 {
        return Err(FileError::Short { length: file.len() });
    }
    if word(0) != MAGIC {
        return Err(FileError::NotUbik);
    }
    let data = Cow::Borrowed(file.get(HEADER_BYTES..).unwrap_or_default());
    match log.and_then(changes) {
        Some(changes) => apply(data, &changes, log.map_or(0, <[u8]>::len)),
        None if word(8) == 0 => Err(FileError::Incomplete),
        None => Ok(data),
    }
}

/// A database with Ubik's header, for servers that are started with it. `epoch` is the time in seconds since 1970: of
/// several servers the one with the greatest has its database copied to the others.
pub(super) fn file(database: &[u8], epoch: u32) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_BYTES + database.len().next_multiple_of(PAGE_BYTES));
    file.extend(MAGIC.to_be_bytes());
    file.extend((HEADER_BYTES as u32).to_be_bytes());
    file.extend(epoch.to_be_bytes());
    file.extend(1u32.to_be_bytes());
    file.resize(HEADER_BYTES, 0);
    file.extend_from_slice(database);
    file.resize(HEADER_BYTES + database.len().next_multiple_of(PAGE_BYTES), 0);
    file
}

/// What a log does to the file.
enum Change<'a> {
    Write { at: usize, bytes: &'a [u8] },
    Truncate { length: usize },
}

/// The changes of a committed transaction; `None` if there is none, or not to its end: nothing of it counts then.
fn changes(log: &[u8]) -> Option<Vec<Change<'_>>> {
    let mut rest = log.get(HEADER_BYTES..)?;
    let mut changes = Vec::new();
    loop {
        match take(&mut rest)? {
            BEGIN => {}
            COMMIT => {
                take(&mut rest)?;
                take(&mut rest)?;
                return Some(changes);
            }
            DATA => {
                let (file, at, length) = (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
                let (bytes, behind) = rest.split_at_checked(length as usize)?;
                rest = behind;
                // Databases have the number 0; there are no others.
                if file == 0 {
                    changes.push(Change::Write { at: at as usize, bytes });
                }
            }
            TRUNCATE => {
                let (file, length) = (take(&mut rest)?, take(&mut rest)?);
                if file == 0 {
                    changes.push(Change::Truncate { length: length as usize });
                }
            }
            // Aborted, or damaged.
            _ => return None,
        }
    }
}

fn take(rest: &mut &[u8]) -> Option<u32> {
    let (word, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(u32::from_be_bytes(*word))
}

fn apply<'a>(
    data: Cow<'a, [u8]>,
    changes: &[Change<'_>],
    log_bytes: usize,
) -> Result<Cow<'a, [u8]>, FileError> {
    let mut data = data.into_owned();
    let most = data.len() + log_bytes + MAX_GAP;
    for change in changes {
        match change {
            Change::Write { at, bytes } => {
                let end = at.checked_add(bytes.len()).filter(|end| *end <= most).ok_or(FileError::Log)?;
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[*at..end].copy_from_slice(bytes);
            }
            Change::Truncate { length } => data.truncate(*length),
        }
    }
    Ok(Cow::Owned(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABORT: u32 = 102;

    fn log(words: &[u32], bytes: &[u8], behind: &[u32]) -> Vec<u8> {
        let mut log = vec![0; HEADER_BYTES];
        words.iter().for_each(|word| log.extend(word.to_be_bytes()));
        log.extend(bytes);
        behind.iter().for_each(|word| log.extend(word.to_be_bytes()));
        log
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let written = file(&[1, 2, 3], 77);
        assert_eq!(written.len(), HEADER_BYTES + PAGE_BYTES);
        assert_eq!(&written[..16], &[0, 0x35, 0x45, 0x45, 0, 0, 0, 64, 0, 0, 0, 77, 0, 0, 0, 1]);
        assert_eq!(database(&written, None).unwrap()[..4], [1, 2, 3, 0]);
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_the_reason() {
        let mut other = file(&[1], 1);
        other[2] = 0;
        assert_eq!(database(&other, None), Err(FileError::NotUbik));
        assert_eq!(database(&file(&[1], 0), None), Err(FileError::Incomplete));
        assert_eq!(database(&[0; 9], None), Err(FileError::Short { length: 9 }));
    }

    #[test]
    fn a_log_counts_if_its_transaction_was_committed() {
        let written = file(&[1; 8], 77);
        let first = |log: &[u8]| database(&written, Some(log)).map(|data| data[..8].to_vec());
        let write = [BEGIN, DATA, 0, 2, 3];
        assert_eq!(first(&log(&write, &[9; 3], &[COMMIT, 5, 6])), Ok(vec![1, 1, 9, 9, 9, 1, 1, 1]));
        for not in [
            log(&write, &[9; 3], &[]),
            log(&write, &[9; 3], &[ABORT]),
            log(&write, &[9; 3], &[COMMIT, 5]),
            log(&write, &[9; 2], &[]),
            log(&write, &[9; 3], &[99, 5, 6]),
            vec![],
            vec![0; HEADER_BYTES],
        ] {
            assert_eq!(first(&not), Ok(vec![1; 8]));
        }
        let far = log(&[BEGIN, DATA, 0, 0x7fff_0000, 1], &[9], &[COMMIT, 5, 6]);
        assert_eq!(first(&far), Err(FileError::Log));
        let cut = log(&[BEGIN, TRUNCATE, 0, 3], &[], &[COMMIT, 5, 6]);
        assert_eq!(database(&written, Some(&cut)).unwrap().as_ref(), [1; 3]);
    }
}
