//! rxkad.keytab and rxgk.keytab: Kerberos keytabs of format 0x0502. Only the keys of AFS's service principals are taken from them (Security
//! notes 3.4, rxgk notes 7.1).

use super::files::take;
use super::{EncType, Key, KeyFileError, KeySet, KeyType};
use crate::rxgk::ENCTYPES;

/// The first two bytes.
const FORMAT: [u8; 2] = [5, 2];

/// A key with its principal, without the realm.
struct Entry<'a> {
    names: Vec<&'a [u8]>,
    kvno: i32,
    kind: EncType,
    secret: &'a [u8],
}

/// Reads a keytab. Entries that are not for AFS, and kinds of keys that nothing here can use, are passed over.
pub(super) fn parse(bytes: &[u8]) -> Result<KeySet, KeyFileError> {
    parse_entries(bytes, |entry| {
        let is_ours = matches!(&entry.names[..], [b"afs"] | [b"afs", _]);
        is_ours.then(|| match entry.kind {
            EncType::DES_CBC_CRC | EncType::DES_CBC_MD5 => Key::rxkad(entry.kvno, array(entry.secret)),
            kind => Key::rxkad_krb5(entry.kvno, kind, entry.secret),
        })
    })
}

/// The same of the service with which tokens of rxgk are negotiated.
pub(super) fn parse_negotiation(bytes: &[u8]) -> Result<KeySet, KeyFileError> {
    parse_entries(bytes, |entry| {
        let is_ours = matches!(&entry.names[..], [b"afs-rxgk", cell] if cell.starts_with(b"_afs."))
            && ENCTYPES.contains(&entry.kind);
        is_ours.then(|| Key {
            kind: KeyType::NEGOTIATION,
            ..Key::rxkad_krb5(entry.kvno, entry.kind, entry.secret)
        })
    })
}

fn parse_entries(bytes: &[u8], key_of: impl Fn(Entry<'_>) -> Option<Key>) -> Result<KeySet, KeyFileError> {
    let mut rest =
        bytes.strip_prefix(&FORMAT).ok_or(KeyFileError::BadFile { what: "no keytab of format 5.2" })?;
    let mut keys = KeySet::new();
    while !rest.is_empty() {
        let len = i32::from_be_bytes(array(take(&mut rest, 4)?));
        // A negative length is a hole that an entry has left; 0 is the end.
        let entry = take(&mut rest, len.unsigned_abs() as usize)?;
        match len {
            0 => break,
            1.. => {
                if let Some(key) = parse_entry(entry)?.and_then(&key_of) {
                    keys.insert(key)?;
                }
            }
            _ => {}
        }
    }
    Ok(keys)
}

/// An entry of a kind whose keys have such a length.
fn parse_entry(mut entry: &[u8]) -> Result<Option<Entry<'_>>, KeyFileError> {
    let rest = &mut entry;
    let components = u16::from_be_bytes(array(take(rest, 2)?));
    counted(rest)?; // the realm
    let names = (0..components).map(|_| counted(rest)).collect::<Result<Vec<_>, _>>()?;
    take(rest, 4 + 4)?; // the kind of name, the time
    let short_kvno = take(rest, 1)?[0];
    let kind = EncType(i32::from(u16::from_be_bytes(array(take(rest, 2)?))));
    let secret = counted(rest)?;
    // Newer keytabs say the version again, in 32 bits; 0 there is none.
    let kvno = rest.first_chunk().map_or(0, |bytes| i32::from_be_bytes(*bytes));
    let kvno = if kvno == 0 { i32::from(short_kvno) } else { kvno };
    Ok((kind.key_len() == Some(secret.len())).then_some(Entry { names, kvno, kind, secret }))
}

fn counted<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], KeyFileError> {
    let len = u16::from_be_bytes(array(take(rest, 2)?));
    take(rest, len.into())
}

/// The bytes as an array of the length that they were taken in.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("of that length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyType;

    fn entry(names: &[&str], kvno: u8, long_kvno: Option<u32>, kind: EncType, secret: &[u8]) -> Vec<u8> {
        let mut entry = (names.len() as u16).to_be_bytes().to_vec();
        for name in ["LAB.TEST"].iter().chain(names) {
            entry.extend_from_slice(&(name.len() as u16).to_be_bytes());
            entry.extend_from_slice(name.as_bytes());
        }
        entry.extend_from_slice(&[0; 8]);
        entry.push(kvno);
        entry.extend_from_slice(&(kind.0 as u16).to_be_bytes());
        entry.extend_from_slice(&(secret.len() as u16).to_be_bytes());
        entry.extend_from_slice(secret);
        entry.extend(long_kvno.map(u32::to_be_bytes).into_iter().flatten());
        let mut out = (entry.len() as u32).to_be_bytes().to_vec();
        out.extend(entry);
        out
    }

    #[test]
    fn keys_of_afs_are_taken_and_others_left() {
        let mut file = FORMAT.to_vec();
        file.extend(entry(&["afs", "lab.test"], 4, None, EncType::AES256, &[4; 32]));
        file.extend((-6i32).to_be_bytes());
        file.extend([0; 6]);
        file.extend(entry(&["afs"], 1, Some(257), EncType::AES128, &[5; 16]));
        file.extend(entry(&["host", "server"], 1, Some(9), EncType::AES128, &[6; 16]));
        file.extend(entry(&["afs", "lab.test"], 2, Some(0), EncType::DES_CBC_CRC, &[7; 8]));
        file.extend(entry(&["afs", "lab.test"], 2, None, EncType(77), &[7; 8]));
        let keys = parse(&file).unwrap();
        assert_eq!(keys.iter().count(), 3);
        assert!(keys.get(KeyType::RXKAD_KRB5, 4, 18).is_some());
        assert!(keys.get(KeyType::RXKAD_KRB5, 257, 17).is_some());
        assert!(keys.get(KeyType::RXKAD, 2, 0).is_some());
        assert_eq!(parse(b"\x05\x02\0\0\0\0rest").unwrap(), KeySet::new());
    }

    #[test]
    fn keys_of_the_negotiation_are_for_nothing_else() {
        let mut file = FORMAT.to_vec();
        file.extend(entry(&["afs", "lab.test"], 4, None, EncType::AES256, &[4; 32]));
        file.extend(entry(&["afs-rxgk", "_afs.lab.test"], 3, None, EncType::AES256, &[5; 32]));
        file.extend(entry(&["afs-rxgk", "_afs.lab.test"], 3, None, EncType::RC4, &[6; 16]));
        file.extend(entry(&["afs-rxgk", "server"], 3, None, EncType::AES128, &[7; 16]));
        let keys = parse_negotiation(&file).unwrap();
        assert_eq!(keys.iter().count(), 1);
        assert_eq!(keys.get(KeyType::NEGOTIATION, 3, 18).unwrap().secret[..], [5; 32]);
        assert_eq!(keys.to_key_file_ext()[..], [0; 4], "it stays in its keytab");
        assert_eq!(parse(&file).unwrap().iter().count(), 1);
    }

    #[test]
    fn a_damaged_keytab_is_refused() {
        let mut file = FORMAT.to_vec();
        file.extend(entry(&["afs", "lab.test"], 4, None, EncType::AES256, &[4; 32]));
        for len in (0..file.len()).filter(|len| *len != FORMAT.len()) {
            assert!(parse(&file[..len]).is_err(), "{len} bytes of it");
        }
        assert!(parse(b"\x05\x01").is_err());
        assert!(parse(b"\x05\x02\x80\0\0\0").is_err());
    }
}
