//! The first exchange of a mount: which version is spoken, and what of the kernel's offers is taken.

use std::io::{self, IoSlice};

use crate::answer::Words;
use crate::device::Device;
use crate::fields::Fields;
use crate::operation::{HEADER_LEN, opcode};

/// The version of the protocol: 7.
const MAJOR: u32 = 7;
/// The newest minor version that this library knows the messages of.
const MINOR: u32 = 45;
/// The oldest that it takes: since 7.31 there is nothing in it that has to be asked for twice (Linux 5.4).
const MINOR_MIN: u32 = 31;

/// Things that the kernel can do and that have to be agreed on; bits of `fuse.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    /// Several reads of a file at once.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// Locks of `fcntl(2)` come here.
    pub const POSIX_LOCKS: Self = Self(1 << 1);
    /// O_TRUNC comes with OPEN, and not as a SETATTR after it.
    pub const ATOMIC_TRUNCATE: Self = Self(1 << 3);
    /// Writes of more than a page.
    pub const BIG_WRITES: Self = Self(1 << 5);
    /// Locks of `flock(2)` come here.
    pub const FLOCK_LOCKS: Self = Self(1 << 10);
    /// READDIRPLUS.
    pub const READDIR_PLUS: Self = Self(1 << 13);
    /// The kernel chooses between READDIR and READDIRPLUS by what is done with the names.
    pub const READDIR_PLUS_AUTO: Self = Self(1 << 14);
    /// Several look-ups and listings in one directory at once.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// Requests of more than 32 pages.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// Set-uid and set-gid bits are removed here when the kernel says so, and it need not ask for attributes at each write.
    pub const HANDLE_KILLPRIV_V2: Self = Self(1 << 28);
    /// Targets of links are kept.
    pub const CACHE_SYMLINKS: Self = Self(1 << 23);
    /// Data are forgotten only when a notice says so, not when a file's time or size looks changed.
    pub const EXPLICIT_INVALIDATION: Self = Self(1 << 25);
    /// More than 32 bits of features.
    const EXTENDED: Self = Self(1 << 30);
    /// [`crate::Notifier::forget_name`] can leave mounts alone.
    pub const EXPIRE_ONLY: Self = Self(1 << 35);
    /// Files that are read past the page cache can be mapped.
    pub const DIRECT_IO_MAPPED: Self = Self(1 << 36);
    /// The kernel reads files of ours by itself.
    pub const PASSTHROUGH: Self = Self(1 << 37);

    /// True if all of these are among them.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags that are in both.
    #[must_use]
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn low(self) -> u32 {
        self.0 as u32
    }

    const fn high(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The wishes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The features that are taken of those that the kernel offers.
    pub features: Features,
    /// The longest write, in bytes; the kernel has a limit of its own (1 MiB, `/proc/sys/fs/fuse/max_pages_limit`).
    pub write_max_bytes: u32,
    /// The bytes that the kernel may read ahead; no more than it offers is taken.
    pub read_ahead_bytes: u32,
    /// The number of reads ahead and writes behind that may be with us at once.
    pub background_max: u16,
    /// The depth to which file systems may be stacked below files for passthrough, plus one: 1 where they are on a
    /// plain one.
    pub stack_depth: u32,
}

/// The agreement with the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The kernel's minor version of the protocol.
    pub minor: u32,
    /// The features that are in effect.
    pub features: Features,
    /// All that the kernel could do.
    pub offered: Features,
}

/// Answers the kernel's INIT. Waits for it.
pub(crate) fn negotiate(device: &Device, settings: &Settings) -> io::Result<Offer> {
    let mut buffer = vec![0; buffer_len(settings.write_max_bytes)];
    loop {
        let Some(length) = device.receive(&mut buffer)? else {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the mount was gone before it began"));
        };
        if let Some(offer) = answer_init(device, settings, &buffer[..length])? {
            return Ok(offer);
        }
    }
}

/// Bytes that a buffer for requests needs: the longest is a WRITE, behind its header and in front of its data's page.
pub(crate) fn buffer_len(write_max_bytes: u32) -> usize {
    (write_max_bytes as usize + 4096).max(8192)
}

/// `None`: the kernel asks again, with a version that we know.
fn answer_init(device: &Device, settings: &Settings, message: &[u8]) -> io::Result<Option<Offer>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let malformed = |error: crate::fields::Malformed| wrong(&error.to_string());
    let mut header = Fields::new("the header", message);
    header.skip(4).map_err(malformed)?;
    let number = header.u32().map_err(malformed)?;
    let unique = header.u64().map_err(malformed)?;
    if number != opcode::INIT {
        return Err(wrong("the kernel's first request is not INIT"));
    }
    let body = message.get(HEADER_LEN..).unwrap_or_default();
    let mut f = Fields::new("INIT", body);
    let mut word = || f.u32().map_err(malformed);
    let (major, minor, ahead, low) = (word()?, word()?, word()?, word()?);
    let high = if f.has(4) { f.u32().map_err(malformed)? } else { 0 };
    let send = |body: &[u8], error: i32| {
        let length = 16 + body.len() as u32;
        let header = Words::<16>::new().u32(length).u32(error.wrapping_neg() as u32).u64(unique);
        device.send(&[IoSlice::new(header.bytes()), IoSlice::new(body)])
    };
    if major > MAJOR {
        send(Words::<64>::new().u32(MAJOR).u32(MINOR).zeros_to(64).bytes(), 0)?;
        return Ok(None);
    }
    if major < MAJOR || minor < MINOR_MIN {
        send(&[], libc::EPROTO)?;
        let what =
            format!("the kernel speaks FUSE {major}.{minor}; it takes {MAJOR}.{MINOR_MIN} (Linux 5.4)");
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    let mut offered = Features(u64::from(low));
    if offered.has(Features::EXTENDED) {
        offered.0 |= u64::from(high) << 32;
    }
    let features = settings.features.and(Features::EXTENDED).and(Features::MAX_PAGES).common(offered);
    let pages = u16::try_from(settings.write_max_bytes.div_ceil(4096)).unwrap_or(u16::MAX);
    let background = settings.background_max.max(1);
    let depth = if features.has(Features::PASSTHROUGH) { settings.stack_depth } else { 0 };
    let words = Words::<64>::new()
        .u32(MAJOR)
        .u32(MINOR)
        .u32(settings.read_ahead_bytes.min(ahead))
        .u32(features.low())
        .u16(background)
        .u16((background / 4 * 3).max(1))
        .u32(settings.write_max_bytes)
        // Times to the nanosecond.
        .u32(1)
        .u16(pages)
        .u16(0)
        .u32(features.high())
        .u32(depth)
        .zeros_to(64);
    send(words.bytes(), 0)?;
    Ok(Some(Offer { minor, features, offered }))
}
