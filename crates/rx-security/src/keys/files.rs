//! KeyFileExt and KeyFile (Security notes 3.4), and the folder that they are in.

use super::keytab;
use super::{KEYS_MAX, Key, KeySet, KeyType};
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file of all keys but DES ones.
pub const KEY_FILE_EXT: &str = "KeyFileExt";
/// The file of DES keys.
pub const KEY_FILE: &str = "KeyFile";
/// Kerberos keys in Kerberos's own format.
pub const KEYTAB: &str = "rxkad.keytab";
/// The keys of the service with which tokens of rxgk are negotiated, in the same format.
pub const NEGOTIATION_KEYTAB: &str = "rxgk.keytab";

/// Longest file that is read, in bytes: far beyond [`KEYS_MAX`] keys.
const FILE_MAX: u64 = 1 << 20;
/// Length of a record of KeyFileExt before the key, itself included: OpenAFS writes no other.
const RECORD_LEN: u32 = 16;
/// Most keys in a KeyFile, and its length: OpenAFS writes all eight places (AFSCONF_MAXKEYS).
const KEY_FILE_KEYS: usize = 8;
const KEY_FILE_ENTRY_LEN: usize = 12;

/// The reason why keys could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file cannot be read or written.
    Io {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file is not what its name says.
    BadFile {
        /// The problem with it.
        what: &'static str,
    },
    /// A key has not the length of its kind.
    BadKeyLength {
        /// Type, version, subtype.
        key: (KeyType, i32, i32),
        /// Its length in bytes.
        found: usize,
    },
    /// More than [`KEYS_MAX`] keys, or more DES keys than a KeyFile has places.
    TooManyKeys,
    /// None of the files is there, or all are empty.
    NoKeys {
        /// The folder that was searched.
        folder: PathBuf,
    },
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, error } => write!(f, "{}: {error}", file.display()),
            Self::BadFile { what } => write!(
                f,
                "not a file of keys: {what}; move it away ('afar key add KEYTAB' makes a new {KEY_FILE_EXT})"
            ),
            Self::BadKeyLength { key: (kind, kvno, subtype), found } => {
                write!(f, "the key of type {}, kvno {kvno}, subtype {subtype} has {found} bytes", kind.0)
            }
            Self::TooManyKeys => write!(f, "too many keys: take old ones out"),
            Self::NoKeys { folder } => write!(
                f,
                "no keys in {}: add one with 'afar key add KEYTAB', or put an {KEYTAB} there",
                folder.display()
            ),
        }
    }
}

impl std::error::Error for KeyFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::BadFile { .. } | Self::BadKeyLength { .. } | Self::TooManyKeys | Self::NoKeys { .. } => {
                None
            }
        }
    }
}

impl KeySet {
    /// Reads the keys of a server configuration folder: of [`KEY_FILE_EXT`], [`KEY_FILE`], [`KEYTAB`] and [`NEGOTIATION_KEYTAB`] those that are there.
    /// What several have, the first of these decides.
    ///
    /// # Errors
    /// If a file that is there cannot be read or is damaged, or there is no key at all.
    pub fn load(folder: &Path) -> Result<Self, KeyFileError> {
        type Parse = fn(&[u8]) -> Result<KeySet, KeyFileError>;
        let files: [(&str, Parse); 4] = [
            (NEGOTIATION_KEYTAB, keytab::parse_negotiation),
            (KEYTAB, keytab::parse),
            (KEY_FILE, Self::parse_key_file),
            (KEY_FILE_EXT, Self::parse_key_file_ext),
        ];
        let mut keys = Self::new();
        for (name, parse) in files {
            let file = folder.join(name);
            let bytes = read(&file).map_err(|error| KeyFileError::Io { file: file.clone(), error })?;
            let Some(bytes) = bytes else { continue };
            let found = parse(&bytes).map_err(|error| KeyFileError::Io {
                file,
                error: io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
            })?;
            found.keys.into_iter().try_for_each(|key| keys.insert(key))?;
        }
        if keys.is_empty() { Err(KeyFileError::NoKeys { folder: folder.to_owned() }) } else { Ok(keys) }
    }

    /// Writes [`KEY_FILE_EXT`], and [`KEY_FILE`] if there are DES keys, each in place of the old one at once, and readable by
    /// their owner only, or by the group that could read the old one.
    ///
    /// # Errors
    /// If one cannot be written; what was written before stays.
    pub fn save(&self, folder: &Path) -> Result<(), KeyFileError> {
        let write = |name: &str, bytes: &[u8]| {
            let file = folder.join(name);
            replace(&file, bytes).map_err(|error| KeyFileError::Io { file, error })
        };
        if self.keys.iter().any(|key| key.kind == KeyType::RXKAD) {
            write(KEY_FILE, &self.to_key_file()?)?;
        }
        write(KEY_FILE_EXT, &self.to_key_file_ext())
    }

    /// Reads a KeyFileExt.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn parse_key_file_ext(bytes: &[u8]) -> Result<Self, KeyFileError> {
        let mut rest = bytes;
        let count = word(&mut rest)?;
        let mut keys = Self::new();
        if count as usize > KEYS_MAX {
            return Err(KeyFileError::TooManyKeys);
        }
        for _ in 0..count {
            let record = word(&mut rest)?;
            let more = record.checked_sub(RECORD_LEN).ok_or(CUT_RECORD)?;
            let [kind, kvno, subtype] =
                [word(&mut rest)?, word(&mut rest)?, word(&mut rest)?].map(|w| w as i32);
            take(&mut rest, more as usize)?;
            let len = word(&mut rest)?;
            let secret = Zeroizing::new(take(&mut rest, len as usize)?.to_vec());
            keys.insert(Key { kind: KeyType(kind), kvno, subtype, secret })?;
        }
        Ok(keys)
    }

    /// Writes a KeyFileExt: all keys but the DES ones, which are in the KeyFile, and those that are in a keytab only.
    pub fn to_key_file_ext(&self) -> Zeroizing<Vec<u8>> {
        let is_elsewhere = |key: &&Key| [KeyType::RXKAD, KeyType::NEGOTIATION].contains(&key.kind);
        let keys: Vec<&Key> = self.keys.iter().filter(|key| !is_elsewhere(key)).collect();
        let len = 4 + keys.iter().map(|key| 20 + key.secret.len()).sum::<usize>();
        // With room for all, so that it is not moved and leaves no copy behind.
        let mut out = Zeroizing::new(Vec::with_capacity(len));
        out.extend_from_slice(&(keys.len() as u32).to_be_bytes());
        for key in keys {
            for word in [RECORD_LEN as i32, key.kind.0, key.kvno, key.subtype, key.secret.len() as i32] {
                out.extend_from_slice(&word.to_be_bytes());
            }
            out.extend_from_slice(&key.secret);
        }
        out
    }

    /// Reads a keytab. Entries that are not for AFS, and kinds of keys that nothing here can use, are passed over.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn parse_keytab(bytes: &[u8]) -> Result<Self, KeyFileError> {
        keytab::parse(bytes)
    }

    /// Reads the keytab of the service with which tokens of rxgk are negotiated. Other entries are passed over.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn parse_negotiation_keytab(bytes: &[u8]) -> Result<Self, KeyFileError> {
        keytab::parse_negotiation(bytes)
    }

    /// Reads a KeyFile.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn parse_key_file(bytes: &[u8]) -> Result<Self, KeyFileError> {
        let mut rest = bytes;
        let count = word(&mut rest)?;
        let mut keys = Self::new();
        if count as usize > KEY_FILE_KEYS {
            return Err(KeyFileError::TooManyKeys);
        }
        for _ in 0..count {
            let kvno = word(&mut rest)? as i32;
            let secret = take(&mut rest, 8)?.try_into().expect("eight bytes were taken");
            keys.insert(Key::rxkad(kvno, secret))?;
        }
        Ok(keys)
    }

    /// Writes a KeyFile: the DES keys.
    ///
    /// # Errors
    /// If there are more than eight.
    pub fn to_key_file(&self) -> Result<Zeroizing<Vec<u8>>, KeyFileError> {
        let keys: Vec<&Key> = self.keys.iter().filter(|key| key.kind == KeyType::RXKAD).collect();
        if keys.len() > KEY_FILE_KEYS {
            return Err(KeyFileError::TooManyKeys);
        }
        let mut out = Zeroizing::new(vec![0; 4 + KEY_FILE_KEYS * KEY_FILE_ENTRY_LEN]);
        out[..4].copy_from_slice(&(keys.len() as u32).to_be_bytes());
        for (key, place) in keys.iter().zip(out[4..].chunks_exact_mut(KEY_FILE_ENTRY_LEN)) {
            place[..4].copy_from_slice(&key.kvno.to_be_bytes());
            place[4..].copy_from_slice(&key.secret);
        }
        Ok(out)
    }
}

const CUT: KeyFileError = KeyFileError::BadFile { what: "it is cut short" };
const CUT_RECORD: KeyFileError = KeyFileError::BadFile { what: "a record is too short" };

pub(super) fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], KeyFileError> {
    let (head, tail) = rest.split_at_checked(len).ok_or(CUT)?;
    *rest = tail;
    Ok(head)
}

fn word(rest: &mut &[u8]) -> Result<u32, KeyFileError> {
    Ok(u32::from_be_bytes(take(rest, 4)?.try_into().expect("four bytes were taken")))
}

/// The contents of a file; `None` if there is none of that name.
fn read(path: &Path) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // As much room as there will be bytes, so that it is not moved and leaves no copy behind.
    let len = file.metadata()?.len().min(FILE_MAX) as usize;
    let mut bytes = Zeroizing::new(Vec::with_capacity(len + 1));
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too long for a file of keys"));
    }
    Ok(Some(bytes))
}

/// Puts a new file in the place of an old one, at once and for good. It belongs to whom the old one belonged, else to the folder's owner, and
/// its group may do what it could: servers that are not root's have to read what root writes.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("NEW");
    let _ = fs::remove_file(&new);
    let folder = path.parent().unwrap_or(Path::new("."));
    let old = fs::metadata(path).ok();
    let owner = old.clone().map_or_else(|| fs::metadata(folder), Ok)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let own = file.metadata()?;
    let is_theirs = (own.uid(), own.gid()) == (owner.uid(), owner.gid())
        // Somebody without the right to give files away makes one that is theirs, as ever.
        || fchown(&file, Some(owner.uid()), Some(owner.gid())).is_ok();
    if let Some(old) = old.filter(|_| is_theirs) {
        // Never for everybody; and not for another group than the old one was for.
        file.set_permissions(Permissions::from_mode(0o600 | (old.mode() & 0o060)))?;
    }
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::EncType;

    /// As asetkey of OpenAFS 1.8.9 wrote it, of a cell that is no more.
    const CAPTURED: &[u8] = include_bytes!("../../tests/captures/KeyFileExt");

    #[test]
    fn asetkeys_file_reads_and_writes_back() {
        let keys = KeySet::parse_key_file_ext(CAPTURED).unwrap();
        let key = keys.get(KeyType::RXKAD_KRB5, 2, EncType::AES256.0).unwrap();
        assert_eq!((keys.iter().count(), key.secret.len(), key.secret[0]), (1, 32, 0x9c));
        assert_eq!(&keys.to_key_file_ext()[..], CAPTURED);
    }

    #[test]
    fn a_longer_record_is_read_and_what_is_not_known_in_it_passed_over() {
        let mut longer = CAPTURED.to_vec();
        longer[7] = 20;
        longer.splice(20..20, [9; 4]);
        assert_eq!(
            KeySet::parse_key_file_ext(&longer).unwrap(),
            KeySet::parse_key_file_ext(CAPTURED).unwrap()
        );
    }

    #[test]
    fn a_damaged_file_is_refused() {
        for len in 0..CAPTURED.len() {
            assert!(KeySet::parse_key_file_ext(&CAPTURED[..len]).is_err(), "{len} bytes of it");
        }
        for (at, value) in [(0, 0xff), (7, 15), (20, 0xff), (23, 31)] {
            let mut bad = CAPTURED.to_vec();
            bad[at] = value;
            assert!(KeySet::parse_key_file_ext(&bad).is_err(), "{value} at {at}");
        }
    }

    #[test]
    fn des_keys_are_kept_in_the_key_file() {
        let keys = KeySet::of([Key::rxkad(3, *b"12345678"), Key::rxkad(4, *b"abcdefgh")]).unwrap();
        let file = keys.to_key_file().unwrap();
        assert_eq!(file.len(), 100);
        assert_eq!(&file[..16], b"\0\0\0\x02\0\0\0\x0312345678");
        assert_eq!(KeySet::parse_key_file(&file).unwrap(), keys);
        assert_eq!(&keys.to_key_file_ext()[..], [0; 4]);
        assert!(KeySet::parse_key_file(&file[..20]).is_err());
        assert!(KeySet::parse_key_file(&[0, 0, 0, 9]).is_err());
        let many = KeySet::of((0..9).map(|kvno| Key::rxkad(kvno, [1; 8]))).unwrap();
        assert!(many.to_key_file().is_err());
    }

    #[test]
    fn a_folder_gives_what_it_was_given() {
        let folder = std::env::temp_dir().join(format!("afar-keys-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(matches!(KeySet::load(&folder), Err(KeyFileError::NoKeys { .. })));
        let mut keys = KeySet::of([Key::rxkad(3, *b"12345678")]).unwrap();
        keys.insert(Key::rxkad_krb5(5, EncType::AES128, &[7; 16])).unwrap();
        keys.save(&folder).unwrap();
        keys.save(&folder).unwrap();
        assert_eq!(KeySet::load(&folder).unwrap(), keys);
        let file = folder.join(KEY_FILE_EXT);
        let mode = || fs::metadata(&file).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        // A server may read it by its group; nobody else ever.
        for (before, after) in [(0o640, 0o640), (0o664, 0o660), (0o604, 0o600)] {
            fs::set_permissions(&file, Permissions::from_mode(before)).unwrap();
            keys.save(&folder).unwrap();
            assert_eq!(mode(), after, "{before:o}");
        }
        fs::write(folder.join(KEY_FILE_EXT), b"\0\0\0\x01").unwrap();
        let error = KeySet::load(&folder).unwrap_err().to_string();
        assert!(error.contains(KEY_FILE_EXT) && error.contains("cut short"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
