//! The errno numbers of Linux, and the form in which they travel: `UAE` codes, which are the same whatever system a
//! server runs on (File service notes 12). Which code a call fails with is left to [`abort`](crate::abort).

use crate::abort::UAE_BASE;
use rxgen::Abort;
use std::fmt;

macro_rules! errnos {
    ($($number:literal $index:literal $name:ident $sentence:literal;)*) => {
        /// An errno number of Linux.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct Errno(pub i32);

        impl Errno {
            $( #[doc = concat!("`", stringify!($name), "`: ", $sentence, ".")] pub const $name: Self = Self($number); )*

            /// Those with a name, and their places in the table of `UAE` codes.
            const TABLE: &'static [(Self, i32)] = &[$((Self::$name, $index)),*];

            /// The name, where it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some(stringify!($name)), )*
                    _ => None,
                }
            }

            /// Its meaning, where it has a name.
            #[must_use]
            pub const fn sentence(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some($sentence), )*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
      1   0 EPERM "not permitted";
      2   1 ENOENT "does not exist";
      3   2 ESRCH "no such process";
      4   3 EINTR "interrupted";
      5   4 EIO "input or output failed";
      6   5 ENXIO "no such device or address";
      7   6 E2BIG "arguments too long";
      8   7 ENOEXEC "not an executable";
      9   8 EBADF "not an open file";
     10   9 ECHILD "no child process";
     11  10 EAGAIN "try again";
     12  11 ENOMEM "out of memory";
     13  12 EACCES "permission denied";
     14  13 EFAULT "bad address";
     15  14 ENOTBLK "not a block device";
     16  15 EBUSY "busy";
     17  16 EEXIST "exists already";
     18  17 EXDEV "in another volume or directory";
     19  18 ENODEV "no such device or volume";
     20  19 ENOTDIR "not a directory";
     21  20 EISDIR "is a directory";
     22  21 EINVAL "invalid argument";
     23  22 ENFILE "too many open files in the system";
     24  23 EMFILE "too many open files";
     25  24 ENOTTY "not a terminal";
     26  25 ETXTBSY "program is running";
     27  26 EFBIG "file or directory too large";
     28  27 ENOSPC "no space left";
     29  28 ESPIPE "cannot seek";
     30  29 EROFS "read-only";
     31  30 EMLINK "too many links";
     32  31 EPIPE "nobody reads the pipe";
     33  32 EDOM "argument out of the function's domain";
     34  33 ERANGE "result out of range";
     35  34 EDEADLK "would deadlock";
     36  35 ENAMETOOLONG "name too long";
     37  36 ENOLCK "no locks available";
     38  37 ENOSYS "not implemented";
     39  38 ENOTEMPTY "directory not empty";
     40  39 ELOOP "too many symbolic links, or a directory into itself";
     42  41 ENOMSG "no message of that type";
     43  42 EIDRM "identifier removed";
     44  43 ECHRNG "channel number out of range";
     45  44 EL2NSYNC "level 2 not synchronized";
     46  45 EL3HLT "level 3 halted";
     47  46 EL3RST "level 3 reset";
     48  47 ELNRNG "link number out of range";
     49  48 EUNATCH "protocol driver not attached";
     50  49 ENOCSI "no CSI structure";
     51  50 EL2HLT "level 2 halted";
     52  51 EBADE "invalid exchange";
     53  52 EBADR "invalid request descriptor";
     54  53 EXFULL "exchange full";
     55  54 ENOANO "no anode";
     56  55 EBADRQC "invalid request code";
     57  56 EBADSLT "invalid slot";
     59  57 EBFONT "bad font file";
     60  58 ENOSTR "not a stream";
     61  59 ENODATA "no data";
     62  60 ETIME "timer expired";
     63  61 ENOSR "out of stream resources";
     64  62 ENONET "not on the network";
     65  63 ENOPKG "package not installed";
     66  64 EREMOTE "is remote";
     67  65 ENOLINK "link severed";
     68  66 EADV "advertise failed";
     69  67 ESRMNT "srmount failed";
     70  68 ECOMM "sending failed";
     71  69 EPROTO "protocol error";
     72  70 EMULTIHOP "several hops attempted";
     73  71 EDOTDOT "RFS error";
     74  72 EBADMSG "bad message";
     75  73 EOVERFLOW "value too large for its type";
     76  74 ENOTUNIQ "name not unique";
     77  75 EBADFD "descriptor in a bad state";
     78  76 EREMCHG "remote address changed";
     79  77 ELIBACC "cannot open a shared library";
     80  78 ELIBBAD "damaged shared library";
     81  79 ELIBSCN "damaged section in a program";
     82  80 ELIBMAX "too many shared libraries";
     83  81 ELIBEXEC "cannot run a shared library";
     84  82 EILSEQ "invalid byte sequence";
     85  83 ERESTART "to be restarted";
     86  84 ESTRPIPE "stream pipe error";
     87  85 EUSERS "too many users";
     88  86 ENOTSOCK "not a socket";
     89  87 EDESTADDRREQ "destination required";
     90  88 EMSGSIZE "message too long";
     91  89 EPROTOTYPE "wrong protocol for the socket";
     92  90 ENOPROTOOPT "protocol option not available";
     93  91 EPROTONOSUPPORT "protocol not supported";
     94  92 ESOCKTNOSUPPORT "socket type not supported";
     95  93 EOPNOTSUPP "operation not supported";
     96  94 EPFNOSUPPORT "protocol family not supported";
     97  95 EAFNOSUPPORT "address family not supported";
     98  96 EADDRINUSE "address in use";
     99  97 EADDRNOTAVAIL "address not available";
    100  98 ENETDOWN "network down";
    101  99 ENETUNREACH "network unreachable";
    102 100 ENETRESET "connection reset by the network";
    103 101 ECONNABORTED "connection aborted";
    104 102 ECONNRESET "connection reset";
    105 103 ENOBUFS "no buffer space";
    106 104 EISCONN "connected already";
    107 105 ENOTCONN "not connected";
    108 106 ESHUTDOWN "shut down";
    109 107 ETOOMANYREFS "too many references";
    110 108 ETIMEDOUT "timed out";
    111 109 ECONNREFUSED "connection refused";
    112 110 EHOSTDOWN "host down";
    113 111 EHOSTUNREACH "host unreachable";
    114 112 EALREADY "under way already";
    115 113 EINPROGRESS "under way";
    116 114 ESTALE "no longer exists";
    117 115 EUCLEAN "needs cleaning";
    118 116 ENOTNAM "not a named file";
    119 117 ENAVAIL "not available";
    120 118 EISNAM "is a named file";
    121 119 EREMOTEIO "remote input or output failed";
    122 120 EDQUOT "over quota";
    123 121 ENOMEDIUM "no medium";
    124 122 EMEDIUMTYPE "wrong medium";
    125 123 ECANCELED "canceled";
    131 124 ENOTRECOVERABLE "state cannot be recovered";
    130 127 EOWNERDEAD "owner died";
}

/// Places in the table of `UAE` codes that have no number of their own in Linux: would block, not supported, other,
/// too many processes, graceful shutdown.
const SYNONYMS: &[(i32, Errno)] = &[
    (40, Errno::EAGAIN),
    (125, Errno::EOPNOTSUPP),
    (126, Errno::EIO),
    (128, Errno::EAGAIN),
    (129, Errno::ESHUTDOWN),
];

impl Errno {
    /// A token was rejected. It has a number in Linux alone, and no code on the wire.
    pub const EKEYREJECTED: Self = Self(129);

    /// The code of this number that means the same on every system; `None` for numbers that have none.
    #[must_use]
    pub fn uae(self) -> Option<Abort> {
        let (_, index) = Self::TABLE.iter().find(|(errno, _)| *errno == self)?;
        Some(Abort(UAE_BASE + index))
    }

    /// The number of a `UAE` code; `None` for every other code.
    #[must_use]
    pub fn from_uae(code: Abort) -> Option<Self> {
        let index = code.0.checked_sub(UAE_BASE)?;
        let named = Self::TABLE.iter().map(|(errno, index)| (*index, *errno));
        named.chain(SYNONYMS.iter().copied()).find(|(at, _)| *at == index).map(|(_, errno)| errno)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.sentence(), self.name()) {
            (Some(sentence), Some(name)) => write!(f, "{sentence} ({name})"),
            _ => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// File service notes 12: asked of a server, or read in its tables.
    #[test]
    fn the_codes_are_those_that_stock_servers_send() {
        for (errno, code) in [
            (Errno::EPERM, 49_733_376),
            (Errno::ENOENT, 49_733_377),
            (Errno::EIO, 49_733_380),
            (Errno::EAGAIN, 49_733_386),
            (Errno::EACCES, 49_733_388),
            (Errno::EEXIST, 49_733_392),
            (Errno::EXDEV, 49_733_393),
            (Errno::ENOTDIR, 49_733_395),
            (Errno::EISDIR, 49_733_396),
            (Errno::EINVAL, 49_733_397),
            (Errno::EFBIG, 49_733_402),
            (Errno::ENOSPC, 49_733_403),
            (Errno::EROFS, 49_733_405),
            (Errno::ENAMETOOLONG, 49_733_411),
            (Errno::ENOTEMPTY, 49_733_414),
            (Errno::ELOOP, 49_733_415),
            (Errno::EOPNOTSUPP, 49_733_469),
            (Errno::ECONNREFUSED, 49_733_485),
            (Errno::EDQUOT, 49_733_496),
        ] {
            assert_eq!(errno.uae(), Some(Abort(code)), "{errno:?}");
        }
    }

    #[test]
    fn every_number_comes_back_from_its_code() {
        for (errno, _) in Errno::TABLE {
            assert_eq!(Errno::from_uae(errno.uae().unwrap()), Some(*errno));
        }
        assert_eq!(Errno(9999).uae(), None);
    }

    #[test]
    fn each_place_of_the_table_has_one_meaning() {
        for index in 0..130 {
            let named = Errno::TABLE.iter().filter(|(_, at)| *at == index).count();
            let synonyms = SYNONYMS.iter().filter(|(at, _)| *at == index).count();
            assert_eq!(named + synonyms, 1, "{index}");
        }
        assert_eq!(Errno::from_uae(Abort(UAE_BASE + 130)), None);
        assert_eq!(Errno::from_uae(Abort(i32::MIN)), None);
    }

    /// The order of the table is that of Linux's numbers, but for two that Linux has no use for.
    #[test]
    fn the_table_follows_the_numbers_of_linux() {
        for (Errno(number), index) in Errno::TABLE {
            match number {
                1..=57 => assert_eq!(number - 1, *index),
                59..=125 => assert_eq!(number - 2, *index),
                _ => assert!(*index >= 124),
            }
        }
    }
}
