//! The codes by which calls fail, in the words of OpenAFS's tools, which scripts look for: Rx's negative codes, errno, and
//! the tables of the database, volume and overseer services. What a tool puts around the words is for the tool.

use std::fmt;
use std::io;

/// The reason why something failed, as one number: negative from Rx, small an errno or a volume's code, else from a
/// service's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

macro_rules! codes {
    ($( $(#[$meta:meta])* $name:ident = $value:expr; )*) => {
        impl Code { $( $(#[$meta])* pub(crate) const $name: Self = Self($value); )* }
    };
}

codes! {
    /// Nothing comes from the peer.
    DEAD = -1;
    /// The peer does not know the procedure.
    NO_SUCH_PROCEDURE = -455;
    ENOENT = 2;
    EINTR = 4;
    EIO = 5;
    E2BIG = 7;
    EAGAIN = 11;
    EACCES = 13;
    EEXIST = 17;
    EXDEV = 18;
    ENODEV = 19;
    ENOTDIR = 20;
    EISDIR = 21;
    EINVAL = 22;
    ELOOP = 40;
    /// The volume is not there.
    VNOVOL = 103;
    VVOLEXISTS = 104;
    BZNOENT = BZ + 1;
    BZDOM = BZ + 5;
    PRNOENT = PT + 4;
    PRBADARG = PT + 9;
    VL_NOENT = VL + 4;
    VL_BADENTRY = VL + 18;
    VL_INDEXERANGE = VL + 29;
    VOLSERREAD_DUMPERROR = VOLS + 2;
    VOLSERVLDB_ERROR = VOLS + 8;
    VOLSERBADNAME = VOLS + 9;
    VOLSERBADOP = VOLS + 11;
    VOLSERNOVOL = VOLS + 15;
    VOLSERFAILEDOP = VOLS + 17;
    ACFG_NOTFOUND = ACFG + 1;
    ACFG_NO_SECURITY_CLASS = ACFG + 8;
}

/// The first codes of the tables: a table's name, six bits a letter, shifted by eight.
const U: i32 = 5376;
const BZ: i32 = 39_424;
const PT: i32 = 267_264;
const VL: i32 = 363_520;
const KTC: i32 = 11_862_784;
const RXK: i32 = 19_270_400;
const ACFG: i32 = 70_354_688;
const VOLS: i32 = 1_492_325_120;

/// Those that OpenAFS's tools have words for. `vos` lacks the last: what it knows of it is in its own file.
const TABLES: &[(i32, &[&str])] = &[
    (U, UBIK),
    (BZ, OVERSEER),
    (PT, PROTECTION),
    (VL, LOCATION),
    (KTC, TOKENS),
    (RXK, RXKAD),
    (ACFG, CONFIGURATION),
];

const UBIK: &[&str] = &[
    "no quorum elected",
    "not synchronization site (should work on sync site)",
    "too many hosts",
    "I/O error writing dbase or log",
    "mysterious internal error",
    "major synchronization error",
    "file not found when processing dbase",
    "bad lock range size (must be 1)",
    "read error reprocessing log",
    "problems with host name",
    "bad operation for this transaction type",
    "two commits or aborts done to transaction",
    "operation done after abort (or commmit)",
    "no servers appear to be up",
    "premature EOF",
    "error writing log file",
];

const OVERSEER: &[&str] = &[
    "process not active",
    "no such entity",
    "can't do operation now",
    "entity already exists",
    "failed to create entity",
    "index out of range",
    "you are not authorized for this operation",
    "syntax error in create parameter",
    "I/O error",
    "network problem",
    "unrecognized bnode type",
    "kvno already used - have to remove existing kvno's before reuse",
    "this function requires encrypted input, use a newer client program",
];

const PROTECTION: &[&str] = &[
    "Entry for name already exists",
    "Entry for id already exists",
    "Couldn't allocate an id for this entry",
    "Couldn't read/write the database",
    "User or group doesn't exist",
    "Permission denied",
    "No group specified",
    "No user specified",
    "Badly formed name (group prefix doesn't match owner?)",
    "argument illegal or out of range",
    "may not create more groups",
    "database needs rebuilding",
    "can't make owner an empty group",
    "database is inconsistent",
    "bad database address",
    "too many elements in group",
    "malloc failed to alloc enough memory",
    "Protection library internal error",
    "name is too long (maximum 63 characters)",
];

const LOCATION: &[&str] = &[
    "Volume Id entry exists in vl database",
    "I/O related error",
    "Volume name entry exists in vl database",
    "Internal creation failure",
    "No such entry",
    "Vl database is empty",
    "Entry is deleted (soft delete)",
    "Volume name is illegal",
    "Index is out of range",
    "Bad volume type",
    "Illegal server number (out of range)",
    "Bad partition number",
    "Run out of space for Replication sites",
    "No such Replication server site exists",
    "Replication site already exists",
    "Parent R/W entry not found",
    "Illegal Reference Count number",
    "Vl size for attributes exceeded",
    "Bad incoming vl entry",
    "Illegal max volid increment",
    "RO/BACK id already hashed",
    "Vl entry is already locked",
    "Bad volume operation code",
    "Bad release lock type",
    "Status report: last release was aborted",
    "Invalid replication site server flag",
    "No permission access",
    "malloc(realloc) failed to alloc enough memory",
    "Wrong vldb version",
    "Index out of range",
    "Servers have the same ip address",
    "Illegal attribute mask value",
    "Database is inconsistent",
];

const TOKENS: &[&str] = &[
    "an unexpected error was encountered",
    "a buffer was too small for the response",
    "an invalid argument was passed in",
    "no such entry",
    "a pioctl failed",
    "AFS kernel pioctl doesn't exist",
    "unknown cell was passed to SetToken",
    "Cache Manager is not initialized / afsd is not running",
];

const RXKAD: &[&str] = &[
    "Security module structure inconsistent",
    "Packet too short for security challenge",
    "Security level negotiation failed",
    "Ticket length too long or too short",
    "packet had bad sequence number",
    "caller not authorized",
    "illegal key: bad parity or weak",
    "security object was passed a bad ticket",
    "ticket contained unknown key version number",
    "authentication expired",
    "sealed data inconsistent",
    "user data too long",
    "caller not authorized to use encrypted connections",
];

const CONFIGURATION: &[&str] = &[
    "mysterious failure",
    "could not find entry",
    "do not know that information",
    "line appears before a cell has been defined",
    "syntax error",
    "a database file is missing",
    "no more entries",
    "unable to open cell database",
    "unable to build security class",
    "key doesn't meet requirements",
    "cannot determine local cell name",
];

/// The alphabet of the tables' names, which are printed in lower case.
const LETTERS: &[u8; 64] = b"?abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz0123456789_";

impl Code {
    /// The code in words.
    pub(crate) fn message(self) -> String {
        let code = self.0;
        if code < 0 {
            return negative(code);
        }
        let (offset, base) = (code & 0xff, code & !0xff);
        if base == 0 {
            let text = io::Error::from_raw_os_error(offset).to_string();
            return text.rsplit_once(" (os error").map_or(text.clone(), |(text, _)| text.to_owned());
        }
        let words = TABLES.iter().find(|(of, _)| *of == base).and_then(|(_, words)| {
            let index = usize::try_from(offset).ok()?;
            words.get(index)
        });
        match words {
            Some(words) => (*words).to_owned(),
            None => format!("Unknown code {} {offset}{}", table_name(base), number_of_small(code)),
        }
    }

    /// The name of the table that it is from, as `vos` prints it before the words.
    pub(crate) fn table(self) -> String {
        match self.0 & !0xff {
            0 => String::new(),
            base => table_name(base),
        }
    }

    /// Success is no failure.
    pub(crate) fn check(self) -> Result<(), Self> {
        if self == Self(0) { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl std::error::Error for Code {}

fn negative(code: i32) -> String {
    match code {
        -1 => "server or network not responding".to_owned(),
        -2 => "invalid RPC (RX) operation".to_owned(),
        -3 => "server not responding promptly".to_owned(),
        -7 => "port address already in use".to_owned(),
        -499..=-450 => format!("RPC interface mismatch ({code})"),
        _ => format!("unknown RPC error ({code})"),
    }
}

/// The number that follows a code without words, unless it is far below zero: then none does.
fn number_of_small(code: i32) -> String {
    if code > -10_000 { format!(" ({code})") } else { String::new() }
}

fn table_name(base: i32) -> String {
    let number = base.cast_unsigned() >> 8;
    let letters = (0..5u32).rev().map(|i| (number >> (6 * i)) & 0x3f).filter(|letter| *letter != 0);
    letters.map(|letter| char::from(LETTERS[letter as usize])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_words_of_openafs() {
        for (code, table, words) in [
            (Code::DEAD, "", "server or network not responding"),
            (Code::NO_SUCH_PROCEDURE, "", "RPC interface mismatch (-455)"),
            (Code(-12), "", "unknown RPC error (-12)"),
            (Code::EACCES, "", "Permission denied"),
            (Code::VNOVOL, "", "Software caused connection abort"),
            (Code::PRNOENT, "pt", "User or group doesn't exist"),
            (Code(267_264 + 19), "pt", "Unknown code pt 19 (267283)"),
            (Code(1_492_325_121), "vols", "Unknown code vols 1 (1492325121)"),
            (Code(19_270_405), "rxk", "caller not authorized"),
            (Code(363_520 + 29), "vl", "Index out of range"),
            (Code(49_733_376), "uae", "Unknown code uae 0 (49733376)"),
        ] {
            assert_eq!(code.message(), words, "{}", code.0);
            if code.0 > 0 {
                assert_eq!(code.table(), table, "{}", code.0);
            }
        }
    }
}
