//! rxkad.keytab: a Kerberos keytab of format 0x0502. Only the keys of AFS's service principals are taken from it (Security
//! notes 3.4).

use super::files::take;
use super::{EncType, Key, KeyFileError, KeySet};

/// The first two bytes.
const FORMAT: [u8; 2] = [5, 2];

/// Reads a keytab. Entries that are not for AFS, and kinds of keys that nothing here can use, are passed over.
pub(super) fn parse(bytes: &[u8]) -> Result<KeySet, KeyFileError> {
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
                if let Some(key) = parse_entry(entry)? {
                    keys.insert(key)?;
                }
            }
            _ => {}
        }
    }
    Ok(keys)
}

fn parse_entry(mut entry: &[u8]) -> Result<Option<Key>, KeyFileError> {
    let rest = &mut entry;
    let components = u16::from_be_bytes(array(take(rest, 2)?));
    counted(rest)?; // the realm
    let mut service: &[u8] = b"";
    for i in 0..components {
        let name = counted(rest)?;
        if i == 0 {
            service = name;
        }
    }
    take(rest, 4 + 4)?; // the kind of name, the time
    let short_kvno = take(rest, 1)?[0];
    let kind = EncType(i32::from(u16::from_be_bytes(array(take(rest, 2)?))));
    let secret = counted(rest)?;
    // Newer keytabs say the version again, in 32 bits; 0 there is none.
    let kvno = rest.first_chunk().map_or(0, |bytes| i32::from_be_bytes(*bytes));
    let kvno = if kvno == 0 { i32::from(short_kvno) } else { kvno };
    if service != b"afs" || !(1..=2).contains(&components) || kind.key_len() != Some(secret.len()) {
        return Ok(None);
    }
    Ok(Some(match kind {
        EncType::DES_CBC_CRC | EncType::DES_CBC_MD5 => Key::rxkad(kvno, array(secret)),
        _ => Key::rxkad_krb5(kvno, kind, secret),
    }))
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
