//! The ways in which the files of one inode may be open at once, and the effect on them of data that change elsewhere: one
//! table, tested cell by cell against what the kernel was seen to do (FUSE notes 3).
//!
//! The kernel reads a file through its page cache, which we fill and empty, or from a file of our cache by itself
//! ("passthrough"). An inode is one or the other from its first open to its last release: what does not fit is EIO.
//!
//! ```text
//!             open                  release of the last
//!   Closed ----------> Cached  --------------------------> Closed
//!          ----------> Through --------------------------> Closed
//!                         |  the data change elsewhere
//!                         v
//!                      the node is retired: files that are open keep the old data, a new open gets a new node
//! ```

/// The way in which an inode is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mode {
    /// It is not open at all.
    #[default]
    Closed,
    /// Through the page cache, so many times.
    Cached(u32),
    /// Passthrough, so many times.
    Through(u32),
}

/// The way in which one file of it is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenKind {
    /// The file is read; all of it is in the cache, and it is large enough for passthrough to pay.
    ReadWhole,
    /// The file is read.
    Read,
    /// The file is written, and perhaps read.
    Write,
}

/// The way in which it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoPath {
    /// Through the page cache: reads of what is not in it and writes come here.
    Cached,
    /// Passthrough: neither reads nor writes come here.
    Through,
    /// Beside files that are open by passthrough: reads and writes come here and go to the same file of the cache, so that the
    /// ranges that are written are known; mappings are by passthrough.
    Beside,
}

/// The action on data that changed elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnChange {
    /// The kernel forgets what it has of them.
    Forget,
    /// The node stands for the old data from now on, and the fid gets a new one.
    Retire,
}

impl Mode {
    /// One more open.
    pub(crate) fn open(self, kind: OpenKind) -> (Self, IoPath) {
        match (self, kind) {
            (Self::Closed, OpenKind::ReadWhole) => (Self::Through(1), IoPath::Through),
            (Self::Closed, OpenKind::Read | OpenKind::Write) => (Self::Cached(1), IoPath::Cached),
            (Self::Cached(n), _) => (Self::Cached(n + 1), IoPath::Cached),
            (Self::Through(n), OpenKind::ReadWhole | OpenKind::Read) => {
                (Self::Through(n + 1), IoPath::Through)
            }
            (Self::Through(n), OpenKind::Write) => (Self::Through(n + 1), IoPath::Beside),
        }
    }

    /// One less.
    pub(crate) fn release(self) -> Self {
        match self {
            Self::Closed => Self::Closed,
            Self::Cached(n) if n > 1 => Self::Cached(n - 1),
            Self::Through(n) if n > 1 => Self::Through(n - 1),
            Self::Cached(_) | Self::Through(_) => Self::Closed,
        }
    }

    /// The data have changed, and not by a file that is open here.
    pub(crate) fn on_change(self) -> OnChange {
        match self {
            Self::Closed | Self::Cached(_) => OnChange::Forget,
            Self::Through(_) => OnChange::Retire,
        }
    }

    /// True if nobody has it open.
    pub(crate) fn is_closed(self) -> bool {
        self == Self::Closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [OpenKind; 3] = [OpenKind::ReadWhole, OpenKind::Read, OpenKind::Write];

    #[test]
    fn every_mode_meets_every_wish_as_in_this_table() {
        use IoPath as W;
        use Mode::*;
        let table = [
            // mode, then: a whole file to read, a file to read, one to write
            (Closed, [(Through(1), W::Through), (Cached(1), W::Cached), (Cached(1), W::Cached)]),
            (Cached(1), [(Cached(2), W::Cached), (Cached(2), W::Cached), (Cached(2), W::Cached)]),
            (Through(1), [(Through(2), W::Through), (Through(2), W::Through), (Through(2), W::Beside)]),
        ];
        for (mode, row) in table {
            for (kind, expected) in KINDS.into_iter().zip(row) {
                assert_eq!(mode.open(kind), expected, "{mode:?} meets {kind:?}");
            }
        }
    }

    /// True if the kernel takes the second open while the first is there; anything else is EIO (FUSE notes 3).
    fn kernel_takes(first: IoPath, second: IoPath) -> bool {
        match (first, second) {
            (IoPath::Cached, IoPath::Cached) => true,
            (IoPath::Through | IoPath::Beside, IoPath::Through | IoPath::Beside) => true,
            (IoPath::Cached, _) | (_, IoPath::Cached) => false,
        }
    }

    #[test]
    fn no_order_of_opens_makes_a_pair_that_the_kernel_refuses() {
        for orders in 0..3usize.pow(4) {
            let mut mode = Mode::Closed;
            let mut paths: Vec<IoPath> = Vec::new();
            for step in 0..4 {
                let kind = KINDS[orders / 3usize.pow(step) % 3];
                let (next, io) = mode.open(kind);
                assert!(paths.iter().all(|other| kernel_takes(*other, io)), "{paths:?} then {io:?}");
                paths.push(io);
                mode = next;
            }
            for _ in 0..4 {
                assert!(!mode.is_closed());
                mode = mode.release();
            }
            assert!(mode.is_closed());
        }
    }

    #[test]
    fn only_what_the_kernel_reads_by_itself_keeps_its_version() {
        assert_eq!(Mode::Closed.on_change(), OnChange::Forget);
        assert_eq!(Mode::Cached(3).on_change(), OnChange::Forget);
        assert_eq!(Mode::Through(1).on_change(), OnChange::Retire);
        assert_eq!(Mode::Closed.release(), Mode::Closed);
    }
}
