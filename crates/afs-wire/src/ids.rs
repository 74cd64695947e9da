//! The ids of things on the wire: volumes, vnodes, fids, users, partitions, times, addresses; and the names of
//! cells and volumes, checked.

use rxgen::xdr::XdrString;
use rxgen::{wire_enum, wire_struct};
use std::fmt;
use std::net::Ipv4Addr;

/// Longest name of a file, in bytes, that a request may carry (`AFSNAMEMAX`; File service notes 6.4).
pub const AFSNAMEMAX: usize = 256;
/// Longest target of a symbolic link, in bytes (`AFSPATHMAX`).
pub const AFSPATHMAX: usize = 1024;
/// Largest opaque of the file service: an access list as text, a message (`AFSOPAQUEMAX`).
pub const AFSOPAQUEMAX: usize = 1024;
/// Most fids, statuses or promises in one call (`AFSCBMAX`).
pub const AFSCBMAX: usize = 50;
/// Words of capabilities in one reply (`AFSCAPABILITIESMAX`).
pub const AFSCAPABILITIESMAX: usize = 196;
/// Addresses of one client or server in `interfaceAddr` (`AFS_MAX_INTERFACE_ADDR`).
pub const AFS_MAX_INTERFACE_ADDR: usize = 32;

/// A name in a directory, of a cell, or of a volume, as requests of the file service carry it.
pub type Name = XdrString<AFSNAMEMAX>;
/// The target of a symbolic link.
pub type Path = XdrString<AFSPATHMAX>;

wire_id! {
    /// A volume of a cell: read-write, read-only and backup have one each. 0 is none.
    VolumeId(u32);
    /// A vnode's number in its volume: odd for directories, even for files and symbolic links (File service notes 5).
    VnodeNumber(u32);
    /// Tells the uses of one vnode number apart: grows for the whole volume with each vnode made.
    Uniquifier(u32);
    /// Counts the changes of a file's data or of a directory's contents (File service notes 13).
    DataVersion(u64);
    /// A user (positive) or group (negative) of the protection service.
    ViceId(i32);
    /// A partition of a server: 0 is `/vicepa`, 26 `/vicepaa` (VLDB notes 3).
    PartitionId(i32);
    /// A transaction of the volume service. 0 is none.
    TransId(i32);
    /// Seconds since 1970, unsigned where the protocol declares them with a sign too. 0 is "never" or "not set".
    AfsTime(u32);
    /// An IPv4 address as a number, so that 10.88.0.1 is `0a580001` on the wire (XDR notes 3, item 4).
    HostAddr(u32);
}

wire_enum! {
    /// The kinds of volume, for the volume service and the VLDB (Volume service notes 2).
    enum VolumeType: i32 {
        /// Any, where one is looked for by its id.
        -1 ANY;
        /// The one that can be written.
        0 READ_WRITE;
        /// The kind of volume that was released.
        1 READ_ONLY;
        /// The state at the last backup.
        2 BACKUP;
    }

    /// How well calls are protected on their way, as rxkad and rxgk number it: of a volume, the least with which its contents are
    /// served (Volume service notes 5.6).
    enum SecurityLevel: u32 {
        /// Anybody on the way can read and change them.
        0 CLEAR;
        /// Nobody can change them unseen.
        1 AUTH;
        /// Nor read them.
        2 CRYPT;
    }
}

impl Default for VolumeType {
    /// Read-write, whose number is 0: what a header that does not say is.
    fn default() -> Self {
        Self::READ_WRITE
    }
}

impl Default for SecurityLevel {
    /// Clear: what a header that does not say is.
    fn default() -> Self {
        Self::CLEAR
    }
}

impl SecurityLevel {
    /// The word for it in settings and commands, if it is a level that there is.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::CLEAR => Some("clear"),
            Self::AUTH => Some("auth"),
            Self::CRYPT => Some("crypt"),
            _ => None,
        }
    }
}

impl VnodeNumber {
    /// The root directory of every volume.
    pub const ROOT: Self = Self(1);

    /// True if this is the number of a directory.
    #[must_use]
    pub const fn is_directory(self) -> bool {
        self.0 % 2 == 1
    }
}

impl Uniquifier {
    /// The root directory's.
    pub const ROOT: Self = Self(1);
}

impl DataVersion {
    /// The version after one more change.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl ViceId {
    /// A caller without a name (`ANONYMOUSID`; PTDB notes 3).
    pub const ANONYMOUS: Self = Self(32766);
    /// The group `system:anyuser`: everybody.
    pub const SYSTEM_ANYUSER: Self = Self(-101);
    /// The group `system:authuser`: everybody of the cell with a name.
    pub const SYSTEM_AUTHUSER: Self = Self(-102);
    /// The group `system:ptsviewers`: may read the whole protection database.
    pub const SYSTEM_PTSVIEWERS: Self = Self(-203);
    /// The group `system:administrators`.
    pub const SYSTEM_ADMINISTRATORS: Self = Self(-204);
    /// The group `system:backup`.
    pub const SYSTEM_BACKUP: Self = Self(-205);
    /// No id (`PRBADID`).
    pub const BAD: Self = Self(i32::MIN);
}

wire_struct! {
    /// A file, directory or symbolic link of a cell.
    #[derive(Copy, Hash, PartialOrd, Ord, Default)]
    struct AfsFid {
        /// Its volume.
        volume: VolumeId,
        /// Its number there.
        vnode: VnodeNumber,
        /// The use of the number.
        unique: Uniquifier,
    }
}

wire_struct! {
    /// A file, directory or symbolic link of a volume that is known: what a directory says of a name.
    #[derive(Copy, Hash, PartialOrd, Ord, Default)]
    struct LocalFid {
        /// Its number in the volume.
        vnode: VnodeNumber,
        /// The use of the number.
        unique: Uniquifier,
    }
}

impl LocalFid {
    /// The root directory of every volume.
    pub const ROOT: Self = Self { vnode: VnodeNumber::ROOT, unique: Uniquifier::ROOT };

    /// The same in a volume.
    #[must_use]
    pub const fn in_volume(self, volume: VolumeId) -> AfsFid {
        AfsFid { volume, vnode: self.vnode, unique: self.unique }
    }
}

impl fmt::Display for LocalFid {
    /// `vnode.unique`, in decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.vnode.0, self.unique.0)
    }
}

impl AfsFid {
    /// The same without the volume.
    #[must_use]
    pub const fn local(self) -> LocalFid {
        LocalFid { vnode: self.vnode, unique: self.unique }
    }

    /// The root directory of a volume.
    #[must_use]
    pub const fn root_of(volume: VolumeId) -> Self {
        Self { volume, vnode: VnodeNumber::ROOT, unique: Uniquifier::ROOT }
    }

    /// Stands for all of a volume in callbacks (File service notes 7.3).
    #[must_use]
    pub const fn whole_volume(volume: VolumeId) -> Self {
        Self { volume, vnode: VnodeNumber(0), unique: Uniquifier(0) }
    }

    /// True if this stands for all of a volume.
    #[must_use]
    pub const fn is_whole_volume(self) -> bool {
        self.vnode.0 == 0 && self.unique.0 == 0
    }
}

impl fmt::Display for AfsFid {
    /// `volume.vnode.unique`, in decimal, as OpenAFS's tools write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.volume.0, self.vnode.0, self.unique.0)
    }
}

macro_rules! displayed_as_numbers {
    ($($name:ident)*) => { $(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )* };
}

displayed_as_numbers!(VolumeId VnodeNumber Uniquifier DataVersion ViceId TransId AfsTime);

impl HostAddr {
    /// The address as an IP address.
    #[must_use]
    pub const fn ip(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0)
    }
}

impl From<Ipv4Addr> for HostAddr {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_bits())
    }
}

impl fmt::Display for HostAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.ip(), f)
    }
}

/// Letters after `/vicep`: `a` to `z`, then `aa` to `iv` (`VOLMAXPARTS` is 255).
pub const PARTITIONS_MAX: i32 = 255;

impl PartitionId {
    /// The partition of a name: `/vicepXX`, `vicepXX`, the letters alone, or a number.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('/').unwrap_or(text);
        let letters = text.strip_prefix("vicep").unwrap_or(text);
        let number = match letters.as_bytes() {
            [a @ b'a'..=b'z'] => i32::from(a - b'a'),
            [a @ b'a'..=b'z', b @ b'a'..=b'z'] => 26 * (i32::from(a - b'a') + 1) + i32::from(b - b'a'),
            digits if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) => letters.parse().ok()?,
            _ => return None,
        };
        (number < PARTITIONS_MAX).then_some(Self(number))
    }
}

impl fmt::Display for PartitionId {
    /// `/vicepa` and so on; a number that no partition can have appears as a number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |n: i32| char::from(b'a' + n as u8);
        match self.0 {
            n @ 0..26 => write!(f, "/vicep{}", letter(n)),
            n @ 26..PARTITIONS_MAX => write!(f, "/vicep{}{}", letter(n / 26 - 1), letter(n % 26)),
            n => write!(f, "partition {n}"),
        }
    }
}

/// The reason why a text is no name of a cell or volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadName {
    /// No byte at all.
    Empty,
    /// More bytes than such a name may have.
    TooLong {
        /// Bytes allowed.
        max: usize,
    },
    /// A character that such a name may not have.
    BadCharacter(char),
    /// A volume's name of digits only, which would be taken for its id.
    OnlyDigits,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty: give a name"),
            Self::TooLong { max } => write!(f, "is too long: at most {max} bytes"),
            Self::BadCharacter(c) => write!(f, "contains {c:?}, which such a name may not have"),
            Self::OnlyDigits => f.write_str("consists of digits only and would be taken for an id"),
        }
    }
}

impl std::error::Error for BadName {}

macro_rules! checked_name {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

checked_name! {
    /// The name of a cell: a domain name in lower case.
    CellName
}

impl CellName {
    /// Longest name, in bytes: that of a domain name.
    pub const MAX: usize = 253;

    /// A cell's name in its canonical form, which is lower case.
    ///
    /// # Errors
    ///
    /// Empty, too long, or with characters that no domain name has.
    pub fn new(text: impl AsRef<str>) -> Result<Self, BadName> {
        let text = text.as_ref();
        check_name(text, Self::MAX, |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))?;
        Ok(Self(text.to_ascii_lowercase()))
    }
}

checked_name! {
    /// The name of a volume, with or without the suffix of a clone.
    VolumeName
}

impl VolumeName {
    /// Longest name in the VLDB, in bytes (`VL_MAXNAMELEN` less the NUL). A volume's own header holds 31.
    pub const MAX: usize = 64;

    /// A volume's name.
    ///
    /// # Errors
    ///
    /// Empty, too long, of digits only, or with other characters than the VLDB takes: letters, digits, `.`, `-` and
    /// `_` (VLDB notes 8).
    pub fn new(text: impl AsRef<str>) -> Result<Self, BadName> {
        let text = text.as_ref();
        check_name(text, Self::MAX, |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))?;
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadName::OnlyDigits);
        }
        Ok(Self(text.to_owned()))
    }

    /// The name without `.readonly` or `.backup`, which is what the VLDB keeps.
    #[must_use]
    pub fn base(&self) -> &str {
        let name = &self.0;
        name.strip_suffix(".readonly").or_else(|| name.strip_suffix(".backup")).unwrap_or(name)
    }
}

fn check_name(text: &str, max: usize, allowed: impl Fn(char) -> bool) -> Result<(), BadName> {
    if text.is_empty() {
        return Err(BadName::Empty);
    }
    if text.len() > max {
        return Err(BadName::TooLong { max });
    }
    text.chars().find(|&c| !allowed(c)).map_or(Ok(()), |c| Err(BadName::BadCharacter(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_named_as_servers_name_them() {
        for (number, name) in
            [(0, "/vicepa"), (25, "/vicepz"), (26, "/vicepaa"), (51, "/vicepaz"), (254, "/vicepiu")]
        {
            assert_eq!(PartitionId(number).to_string(), name);
            assert_eq!(PartitionId::parse(name), Some(PartitionId(number)));
            assert_eq!(PartitionId::parse(&name[6..]), Some(PartitionId(number)));
        }
        assert_eq!(PartitionId::parse("7"), Some(PartitionId(7)));
        for bad in ["", "/vicep", "iv", "zz", "A", "255", "99999999999", "/vicepaaa"] {
            assert_eq!(PartitionId::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_cell_name_becomes_lower_case() {
        assert_eq!(CellName::new("Lab.TEST").map(|c| c.to_string()), Ok("lab.test".into()));
        assert_eq!(CellName::new(""), Err(BadName::Empty));
        assert_eq!(CellName::new("a/b"), Err(BadName::BadCharacter('/')));
    }

    #[test]
    fn a_volume_name_is_no_number_and_loses_the_suffix_of_a_clone() {
        assert_eq!(VolumeName::new("536870915"), Err(BadName::OnlyDigits));
        assert_eq!(VolumeName::new("a:b"), Err(BadName::BadCharacter(':')));
        assert_eq!(VolumeName::new("a".repeat(65)), Err(BadName::TooLong { max: 64 }));
        assert_eq!(VolumeName::new("root.cell.readonly").unwrap().base(), "root.cell");
        assert_eq!(VolumeName::new("user.x.backup").unwrap().base(), "user.x");
        assert_eq!(VolumeName::new("user.x").unwrap().base(), "user.x");
    }

    #[test]
    fn an_address_reads_as_it_is_written() {
        assert_eq!(HostAddr(0x0a58_0001).to_string(), "10.88.0.1");
        assert_eq!(HostAddr::from(Ipv4Addr::new(10, 88, 0, 1)), HostAddr(0x0a58_0001));
    }
}
