//! The mounts of ours that this process sees, by the kernel's list of mounts. Names in it are bytes, and anybody may choose some of them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The kind of file system that our mounts are, as the kernel shows it.
pub const FILE_SYSTEM: &str = "fuse.afar";

/// The beginning of the source of a mount of ours; the path of its client's socket follows.
pub const SOURCE: &str = "afs:";

/// The file in which the kernel lists mounts.
const MOUNT_INFO: &str = "/proc/self/mountinfo";

/// The option in which the kernel tells whose mount it is.
const OWNER: &[u8] = b"user_id=";

/// A mount of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its path.
    pub folder: PathBuf,
    /// The socket on which its client listens.
    pub socket: PathBuf,
    /// The user who has made it.
    pub owner: u32,
    /// The device of all files in it.
    device: u64,
}

impl Mount {
    /// All mounts of ours that this process sees, the newest last.
    #[must_use]
    pub fn all() -> Vec<Self> {
        Self::all_in(&fs::read(MOUNT_INFO).unwrap_or_default())
    }

    pub(crate) fn all_in(list: &[u8]) -> Vec<Self> {
        list.split(|byte| *byte == b'\n').filter_map(Self::parse).collect()
    }

    /// The mount that a file of this device is in.
    #[must_use]
    pub fn of_device(device: u64) -> Option<Self> {
        Self::all().into_iter().rev().find(|mount| mount.device == device)
    }

    /// Reads a line: number, number of the parent, device, root, folder, options, any number of more fields, a dash, the kind,
    /// the source, options. Blanks in a field are written as `\040`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let folder = unescaped(fields.nth(1)?);
        let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
        if fields.next()? != FILE_SYSTEM.as_bytes() {
            return None;
        }
        let source = unescaped(fields.next()?);
        let socket = OsStr::from_bytes(source.as_bytes().strip_prefix(SOURCE.as_bytes())?);
        let device = device_number(major.parse().ok()?, minor.parse().ok()?);
        let mut options = fields.next()?.split(|byte| *byte == b',');
        let owner = std::str::from_utf8(options.find_map(|option| option.strip_prefix(OWNER))?).ok()?;
        Some(Self { folder: folder.into(), socket: socket.into(), owner: owner.parse().ok()?, device })
    }
}

/// A device as `stat` tells it.
const fn device_number(major: u64, minor: u64) -> u64 {
    ((major & 0xffff_f000) << 32) | ((major & 0xfff) << 8) | ((minor & 0xffff_ff00) << 12) | (minor & 0xff)
}

fn unescaped(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let escaped = match rest {
            [b'\\', digits @ ..] => digits.get(..3).and_then(octal),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                plain.push(byte);
                rest = &rest[4..];
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(plain)
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn mounts_of_ours_are_found_among_the_others() {
        let ours =
            b"61 28 0:50 / /home/a\\040b/afs rw,nosuid shared:3 - fuse.afar afs:/run/x\\134y/control rw,user_id=7";
        let mount = Mount::parse(ours).unwrap();
        assert_eq!(mount.folder, Path::new("/home/a b/afs"));
        assert_eq!(mount.socket, Path::new("/run/x\\y/control"));
        assert_eq!((mount.device, mount.owner), (50, 7));
        for other in [
            &b"61 28 0:50 / /afs rw - fuse.other afs:/run/control rw,user_id=0"[..],
            b"61 28 0:50 / /afs rw fuse.afar afs:/run/control rw,user_id=0",
            b"61 28 x / /afs rw - fuse.afar afs:/run/control rw,user_id=0",
            b"61 28 0:50 / /afs rw - fuse.afar afs rw,user_id=0",
            b"61 28 0:50 / /afs rw - fuse.afar afs:/run/control rw",
            b"61 28 0:50 / /afs rw -",
            b"",
        ] {
            assert_eq!(Mount::parse(other), None, "{}", other.escape_ascii());
        }
    }

    /// The list was read as a text, and nobody got a PAG any more.
    #[test]
    fn a_mount_with_an_odd_name_hides_no_other() {
        let line = |place: &[u8], kind: &str, rest: &str| {
            [b"36 35 0:40 / ", place, format!(" rw - {kind} {rest}\n").as_bytes()].concat()
        };
        let mounts = [
            line(b"/a", FILE_SYSTEM, "afs:/run/a\\040b rw,user_id=0,group_id=0"),
            line(b"/\xff\xfe", "fuse", "odd\u{fffd} rw,user_id=1000"),
            line(b"/-", FILE_SYSTEM, "afs:/run/d rw,user_id=0"),
        ];
        let sockets: Vec<_> = Mount::all_in(&mounts.concat()).into_iter().map(|mount| mount.socket).collect();
        assert_eq!(sockets, [PathBuf::from("/run/a b"), PathBuf::from("/run/d")]);
    }

    #[test]
    fn devices_have_the_numbers_of_stat() {
        assert_eq!(device_number(0, 50), 50);
        assert_eq!(device_number(8, 1), 0x801);
        assert_eq!(device_number(0, 256), 0x0010_0000);
        assert_eq!(device_number(0x1000, 0), 0x1000_0000_0000);
    }

    #[test]
    fn only_octal_digits_are_escapes() {
        assert_eq!(unescaped(b"a\\040b\\"), "a b\\");
        assert_eq!(unescaped(b"\\04"), "\\04");
        assert_eq!(unescaped(b"\\999x"), "\\999x");
    }
}
