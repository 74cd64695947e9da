//! The codes with which calls of AFS are aborted, as one table: number, name, meaning, and the errno that a user's
//! program sees. The codes of Rx itself and of its marshalling are left to `rx` and `rxgen`.
//!
//! A server that fails with an errno number sends it as [`Errno::uae`] says, if the client can read that
//! ([`from_errno`]). A client asks [`errno`] what to tell a program, whatever the code.

use crate::errno::Errno;
use rxgen::Abort;
use std::fmt;

/// A table of codes that belong together.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Its name: from it follows the base, as `com_err` has it.
    pub name: &'static str,
    /// The code of its first line.
    pub base: i32,
    /// Its lines.
    pub codes: &'static [Code],
}

/// A line of a table.
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// The code.
    pub abort: Abort,
    /// Its name, as in the protocol's specification.
    pub name: &'static str,
    /// Its meaning.
    pub sentence: &'static str,
    /// The error that a user's program gets.
    pub errno: Errno,
}

macro_rules! tables {
    ($( $(#[$meta:meta])* $table:ident $base:literal { $(
        $offset:literal $name:ident $errno:ident $sentence:literal;
    )* } )*) => {
        $( $(
            #[doc = concat!("`", stringify!($name), "`: ", $sentence, ".")]
            pub const $name: Abort = Abort($base + $offset);
        )* )*

        /// Every table with a name.
        pub const TABLES: &[Table] = &[ $( Table {
            name: stringify!($table),
            base: $base,
            codes: &[ $( Code {
                abort: $name,
                name: stringify!($name),
                sentence: $sentence,
                errno: Errno::$errno,
            } ),* ],
        } ),* ];
    };
}

/// The base of the `UAE` codes, which stand for errno numbers.
pub const UAE_BASE: i32 = 49_733_376;

tables! {
    // File service notes 12. Below the com_err codes; they take the place of the errno numbers that they equal.
    V 0 {
        -100 VRESTARTING  EBUSY     "the server is starting up";
        101 VSALVAGE      EIO       "the volume is damaged and needs to be salvaged";
        102 VNOVNODE      ENOENT    "no such file: it was removed, or its place is used for another";
        103 VNOVOL        ENODEV    "the volume is not on this server";
        104 VVOLEXISTS    EEXIST    "the volume exists already";
        105 VNOSERVICE    EIO       "the volume is not in service";
        106 VOFFLINE      EIO       "the volume is offline";
        107 VONLINE       EBUSY     "the volume is online already";
        108 VDISKFULL     ENOSPC    "the partition is full";
        109 VOVERQUOTA    EDQUOT    "the volume is at its quota";
        110 VBUSY         EBUSY     "the volume is busy with an operation of the administrator";
        111 VMOVED        ENODEV    "the volume has moved to another server";
        112 VIO           EIO       "the server's disk failed";
        113 VSALVAGING    EBUSY     "the volume is being salvaged";
        120 VRESTRICTED   EPERM     "the volume is not open to this caller";
    }

    // VLDB notes 8.
    VL 363520 {
        0 VL_IDEXIST          EEXIST    "a volume of this id exists already";
        1 VL_IO               EIO       "the database could not be read or written";
        2 VL_NAMEEXIST        EEXIST    "a volume of this name exists already";
        3 VL_CREATEFAIL       EIO       "the entry could not be made";
        4 VL_NOENT            ENODEV    "no such entry in the VLDB";
        5 VL_EMPTY            ENODEV    "the VLDB is empty";
        6 VL_ENTDELETED       ENODEV    "the entry was removed";
        7 VL_BADNAME          EINVAL    "not a name of a volume";
        8 VL_BADINDEX         EINVAL    "no entry has this index";
        9 VL_BADVOLTYPE       EINVAL    "no such kind of volume";
        10 VL_BADSERVER       EINVAL    "the server's number is out of range";
        11 VL_BADPARTITION    EINVAL    "the partition's number is out of range";
        12 VL_REPSFULL        ENOSPC    "the volume has as many sites as an entry can hold";
        13 VL_NOREPSERVER     ENODEV    "the volume has no such site";
        14 VL_DUPREPSERVER    EEXIST    "the volume has this site already";
        15 VL_RWNOTFOUND      ENODEV    "the entry has no read-write volume";
        16 VL_BADREFCOUNT     EINVAL    "the entry's count of references is wrong";
        17 VL_SIZEEXCEEDED    EFBIG     "the list is too long to be sent";
        18 VL_BADENTRY        EINVAL    "the entry contradicts itself";
        19 VL_BADVOLIDBUMP    EINVAL    "so many volume ids cannot be taken at once";
        20 VL_IDALREADYHASHED EEXIST    "the id is in the index already";
        21 VL_ENTRYLOCKED     EBUSY     "the entry is locked by another operation";
        22 VL_BADVOLOPER      EINVAL    "no such operation to lock for";
        23 VL_BADRELLOCKTYPE  EINVAL    "no such way to unlock";
        24 VL_RERELEASE       EBUSY     "the last release was not completed";
        25 VL_BADSERVERFLAG   EINVAL    "no such flag of a site";
        26 VL_PERM            EPERM     "not permitted on the VLDB";
        27 VL_NOMEM           ENOMEM    "the VLDB server is out of memory";
        28 VL_BADVERSION      EINVAL    "the VLDB has another format";
        29 VL_INDEXERANGE     EINVAL    "the index is out of range";
        30 VL_MULTIPADDR      EEXIST    "the addresses belong to several servers";
        31 VL_BADMASK         EINVAL    "no such set of attributes to look for";
        32 VL_DBBAD           EIO       "the VLDB is damaged";
    }

    // PTDB notes 7.
    PT 267264 {
        0 PREXIST             EEXIST    "the name exists already";
        1 PRIDEXIST           EEXIST    "the id exists already, or is in the group already";
        2 PRNOIDS             ENOSPC    "no ids are left";
        3 PRDBFAIL            EIO       "the database could not be read or written";
        4 PRNOENT             ENOENT    "no such user or group";
        5 PRPERM              EPERM     "not permitted on the protection database";
        6 PRNOTGROUP          EINVAL    "not a group";
        7 PRNOTUSER           EINVAL    "not a user";
        8 PRBADNAM            EINVAL    "not a name of a user or group";
        9 PRBADARG            EINVAL    "an argument has no such value";
        10 PRNOMORE           ENOENT    "nothing more is left";
        11 PRDBBAD            EIO       "the protection database is damaged";
        12 PRGROUPEMPTY       ENOENT    "the group is empty";
        13 PRINCONSISTENT     EIO       "the protection database contradicts itself";
        14 PRDBADDR           EIO       "an address in the database is wrong";
        15 PRTOOMANY          E2BIG     "too many entries in one";
        16 PRNOMEM            ENOMEM    "the protection server is out of memory";
        17 PRINTERNAL         EIO       "a fault of the protection server";
        18 PRNAMETOOLONG      ENAMETOOLONG "the name is too long";
    }

    // Volume service notes 8.
    VOLS 1492325120 {
        0 VOLSERTRELE_ERROR          EINVAL "no such transaction";
        1 VOLSERNO_OP                ENOSYS "the operation does not exist";
        2 VOLSERREAD_DUMPERROR       EIO    "the dump could not be read to its end";
        3 VOLSERDUMPERROR            EIO    "the dump could not be written";
        4 VOLSERATTACH_ERROR         EIO    "the volume could not be attached";
        5 VOLSERILLEGAL_PARTITION    EINVAL "no such partition";
        6 VOLSERDETACH_ERROR         EIO    "the volume could not be detached";
        7 VOLSERBAD_ACCESS           EPERM  "only an administrator of the server may do that";
        8 VOLSERVLDB_ERROR           EIO    "the VLDB failed";
        9 VOLSERBADNAME              EINVAL "not a name of a volume";
        10 VOLSERVOLMOVED            ENODEV "the volume has moved to another server";
        11 VOLSERBADOP               EINVAL "not an operation for this volume";
        12 VOLSERBADRELEASE          EIO    "the volume was not released to all sites";
        13 VOLSERVOLBUSY             EBUSY  "another transaction has the volume";
        14 VOLSERNO_MEMORY           ENOMEM "the volume server is out of memory";
        15 VOLSERNOVOL               ENODEV "no such volume";
        16 VOLSERMULTIRWVOL          EIO    "the volume has several read-write sites";
        17 VOLSERFAILEDOP            EIO    "some of the volumes failed";
    }

    // VLDB notes 9.
    U 5376 {
        0 UNOQUORUM           EAGAIN    "no majority of the database servers is up";
        1 UNOTSYNC            EAGAIN    "not the server that takes changes";
        2 UNHOSTS             EINVAL    "too many database servers";
        3 UIOERROR            EIO       "the database could not be read or written";
        4 UINTERNAL           EIO       "a fault of the database server";
        5 USYNC               EAGAIN    "the transaction is not known to all servers";
        6 UNOENT              ENOENT    "no such file of the database";
        7 UBADLOCK            EINVAL    "no such lock";
        8 UBADLOG             EIO       "the log is damaged";
        9 UBADHOST            EINVAL    "not a database server";
        10 UBADTYPE           EINVAL    "not for this kind of transaction";
        11 UTWOENDS           EINVAL    "the transaction has ended already";
        12 UDONE              EINVAL    "the transaction is over";
        13 UNOSERVERS         EAGAIN    "no database server answers";
        14 UEOF               EIO       "the end of the database";
        15 ULOGIO             EIO       "the log could not be read or written";
        16 UBADFAM            EINVAL    "no such address family";
        17 UBADCELL           EINVAL    "no such cell";
        18 UBADSECGRP         EINVAL    "no such security group";
        19 UBADGROUP          EINVAL    "no such group";
        20 UBADUUID           EINVAL    "not a UUID";
        21 UNOMEM             ENOMEM    "the database server is out of memory";
        22 UNOTMEMBER         EPERM     "not a member";
        23 UNBINDINGS         EINVAL    "too many bindings";
        24 UBADPRINNAME       EINVAL    "not a name of a principal";
        25 UPIPE              EPIPE     "the pipe failed";
        26 UDEADLOCK          EDEADLK   "waiting would be for ever";
        27 UEXCEPTION         EIO       "an exception in the database server";
        28 UTPQFAIL           EIO       "the queue of threads failed";
        29 USKEWED            EAGAIN    "the servers' clocks differ too much";
        30 UNOLOCK            ENOLCK    "no lock is left";
        31 UNOACCESS          EACCES    "not from a database server";
        32 UNOSPC             ENOSPC    "no space for the database";
        33 UBADPATH           EINVAL    "not a path";
        34 UBADF              EBADF     "not an open file";
        35 UREINITIALIZE      EAGAIN    "the server is to be initialized anew";
    }

    // Overseer notes 4.
    BZ 39424 {
        0 BZNOTACTIVE         EINVAL    "the process is not active";
        1 BZNOENT             ENOENT    "no such process";
        2 BZBUSY              EBUSY     "the process cannot do that now";
        3 BZEXISTS            EEXIST    "the process exists already";
        4 BZNOCREATE          EINVAL    "the process could not be made";
        5 BZDOM               EDOM      "the index is past the end";
        6 BZACCESS            EPERM     "only an administrator of the server may do that";
        7 BZSYNTAX            EINVAL    "a parameter is wrong";
        8 BZIO                EIO       "a file of the overseer could not be read or written";
        9 BZNET               EIO       "the network failed";
        10 BZBADTYPE          EINVAL    "no such kind of process";
        11 BZKEYINUSE         EEXIST    "a key of this number exists already";
        12 BZENCREQ           EPERM     "only over an encrypted connection";
    }

    // What the security class rxkad refuses a connection or packet with.
    RXK 19270400 {
        0 RXKADINCONSISTENCY  EPROTO    "the security information contradicts itself";
        1 RXKADPACKETSHORT    EPROTO    "a packet of the handshake is too short";
        2 RXKADLEVELFAIL      EACCES    "the level of protection is not accepted";
        3 RXKADTICKETLEN      EACCES    "the ticket is too short or too long";
        4 RXKADOUTOFSEQUENCE  EPROTO    "the answer is to another challenge";
        5 RXKADNOAUTH         EACCES    "not authenticated";
        6 RXKADBADKEY         EACCES    "not a key";
        7 RXKADBADTICKET      EACCES    "the ticket is not for this server, or damaged";
        8 RXKADUNKNOWNKEY     EACCES    "the server has no key of the ticket's number";
        9 RXKADEXPIRED        EACCES    "the ticket has expired";
        10 RXKADSEALEDINCON   EPROTO    "a sealed packet was changed, or sealed with another key";
        11 RXKADDATALEN       EPROTO    "a sealed packet is shorter than it says";
        12 RXKADILLEGALLEVEL  EINVAL    "no such level of protection";
    }

    // What the security class rxgk refuses a connection with, as OpenAFS numbers it.
    RXGK 1233242880 {
        0 RXGK_INCONSISTENCY  EPROTO    "the security information contradicts itself";
        1 RXGK_PACKETSHORT    EPROTO    "a packet of the handshake is too short";
        2 RXGK_BADCHALLENGE   EPROTO    "the challenge is malformed";
        3 RXGK_BADETYPE       EACCES    "no such encryption type";
        4 RXGK_BADLEVEL       EACCES    "the level of protection is not accepted";
        5 RXGK_BADKEYNO       EACCES    "no such key number";
        6 RXGK_EXPIRED        EACCES    "the token has expired";
        7 RXGK_NOTAUTH        EACCES    "not authenticated";
        8 RXGK_BAD_TOKEN      EACCES    "the token is not for this server, or damaged";
        9 RXGK_SEALED_INCON   EPROTO    "a sealed packet was changed, or sealed with another key";
        10 RXGK_DATA_LEN      EPROTO    "a sealed packet is shorter than it says";
        11 RXGK_BAD_QOP       EPROTO    "no such quality of protection";
    }

    // What the service JOIN, which is ours, refuses a call with (Join notes 5).
    AJ 18944 {
        0 AJNOKEY             EACCES    "the cell has no such public key: its keys were changed, or the invitation is of another cell";
        1 AJCOOKIE            EAGAIN    "the cookie is too old, or of another address";
        2 AJBUSY              EBUSY     "too many attempts to join: wait a minute";
        3 AJNOSESSION         EAGAIN    "the attempt to join took too long, or was made at another server";
        4 AJBADMSG            EPROTO    "a message was changed, or made with another key";
        5 AJPERM              EPERM     "only a superuser of the cell may do that";
        6 AJNOENT             ENOENT    "no such device";
        7 AJEXIST             EEXIST    "there is such an invitation already";
        8 AJTOOMANY           ENOSPC    "the cell has as many open invitations as it can";
        9 AJIO                EIO       "the database could not be read or written";
        10 AJBADARG           EINVAL    "an argument has no such value";
        11 AJENCREQ           EPERM     "only over an encrypted connection";
        12 AJNOTOKEN          EIO       "the cell can make no tokens for devices: it has no key for rxgk";
    }

    // Tables of programs that nothing here speaks to; their codes are shown as numbers in them.
    KA 180480 {}
    CMD 3359744 {}
    KTC 11862784 {}
    ZCM 27315456 {}
    ACFG 70354688 {}
    BUCD 156288000 {}
    BUDB 156303872 {}
    BUTC 156566272 {}
}

/// Codes of one table of `com_err`: the low byte counts in it.
const TABLE_SIZE: i32 = 256;

/// The line of a code; `None` for errno numbers in either form, for Rx's own codes, and for what nobody has named.
#[must_use]
pub fn find(abort: Abort) -> Option<&'static Code> {
    TABLES.iter().flat_map(|table| table.codes).find(|code| code.abort == abort)
}

/// The table that a code is of, whether or not it has a line there.
#[must_use]
pub fn table(abort: Abort) -> Option<&'static Table> {
    if let Some(table) = TABLES.iter().find(|table| table.codes.iter().any(|code| code.abort == abort)) {
        return Some(table);
    }
    TABLES.iter().find(|table| table.base != 0 && (0..TABLE_SIZE).contains(&abort.0.wrapping_sub(table.base)))
}

/// Returns the error that a user's program gets for a call that was aborted: by the tables, then by `UAE` code, then
/// as an errno number that a server sent as it is. `None` for codes that say nothing of the file: those of Rx, and
/// unknown ones.
#[must_use]
pub fn errno(abort: Abort) -> Option<Errno> {
    if let Some(code) = find(abort) {
        return Some(code.errno);
    }
    Errno::from_uae(abort).or_else(|| Some(Errno(abort.0)).filter(|errno| errno.name().is_some()))
}

/// The code for an errno number: the same on every system where the client can read that (it has the capability
/// `ERRORTRANS`), else the number as it is.
#[must_use]
pub fn from_errno(errno: Errno, translated: bool) -> Abort {
    match errno.uae() {
        Some(uae) if translated => uae,
        Some(_) | None => Abort(errno.0),
    }
}

/// A code with all that is known of it, for messages: meaning, name and number.
#[derive(Debug, Clone, Copy)]
pub struct Described(pub Abort);

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.0;
        if let Some(code) = find(self.0) {
            return write!(f, "{} ({}, {number})", code.sentence, code.name);
        }
        if let Some(errno) = Errno::from_uae(self.0) {
            return write!(f, "{} (UA{errno:?}, {number})", errno.sentence().unwrap_or("unknown"));
        }
        if let Some(table) = table(self.0) {
            return write!(f, "code {} of {} ({number})", number - table.base, table.name);
        }
        match errno(self.0) {
            Some(errno) => write!(f, "{} ({errno:?}, {number})", errno.sentence().unwrap_or("unknown")),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule of `com_err` (Overseer notes 6): six bits for each letter of the name, then eight bits.
    fn base_of(name: &str) -> i32 {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
        let number = name.bytes().fold(0i64, |number, byte| {
            let place = alphabet.iter().position(|&letter| letter == byte).expect("a letter of com_err") + 1;
            number << 6 | place as i64
        });
        (number << 8) as i32
    }

    #[test]
    fn bases_follow_from_the_tables_names() {
        for table in TABLES.iter().filter(|table| table.base != 0) {
            assert_eq!(base_of(table.name), table.base, "{}", table.name);
        }
        assert_eq!(base_of("uae"), UAE_BASE);
    }

    #[test]
    fn no_code_has_two_lines() {
        let mut codes: Vec<_> = TABLES.iter().flat_map(|table| table.codes).collect();
        codes.sort_by_key(|code| code.abort);
        for pair in codes.windows(2) {
            assert!(pair[0].abort != pair[1].abort, "{} and {}", pair[0].name, pair[1].name);
        }
    }

    #[test]
    fn codes_have_the_numbers_that_were_seen() {
        assert_eq!((VL_NOENT.0, VL_BADMASK.0, PRPERM.0, BZDOM.0), (363_524, 363_551, 267_269, 39_429));
        assert_eq!((VOLSERBAD_ACCESS.0, RXKADBADTICKET.0), (1_492_325_127, 19_270_407));
    }

    #[test]
    fn a_number_of_the_volume_codes_is_not_taken_for_an_errno() {
        assert_eq!(errno(VBUSY), Some(Errno::EBUSY), "110 is ETIMEDOUT elsewhere");
        assert_eq!(errno(VNOVNODE), Some(Errno::ENOENT));
        assert_eq!(errno(Abort(30)), Some(Errno::EROFS), "an errno as it is");
        assert_eq!(errno(Abort(49_733_388)), Some(Errno::EACCES));
        assert_eq!(errno(Abort(-1)), None);
        assert_eq!(errno(Abort(1 << 20)), None);
    }

    #[test]
    fn an_errno_is_translated_for_who_can_read_that() {
        assert_eq!(from_errno(Errno::EACCES, true), Abort(49_733_388));
        assert_eq!(from_errno(Errno::EACCES, false), Abort(13));
        assert_eq!(from_errno(Errno(9999), true), Abort(9999));
    }

    #[test]
    fn a_code_is_described_by_what_is_known_of_it() {
        for (code, text) in [
            (363_524, "no such entry in the VLDB (VL_NOENT, 363524)"),
            (49_733_388, "permission denied (UAEACCES, 49733388)"),
            (156_303_873, "code 1 of BUDB (156303873)"),
            (17, "exists already (EEXIST, 17)"),
            (-455, "the server has no procedure of that opcode (RXGEN_OPCODE, -455)"),
            (-7, "aborted with code -7"),
        ] {
            assert_eq!(Described(Abort(code)).to_string(), text);
        }
    }
}
