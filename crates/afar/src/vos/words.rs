//! The words that `vos` has for codes, which are its own for many, and the forms in which it complains.

use super::Vos;
use crate::codes::Code;
use crate::printer::complain;

/// The first codes of the tables of the two services.
const VL: i32 = 363_520;
const VOLS: i32 = 1_492_325_120;

/// The words of `vos` itself in place of those of the tables.
const WORDS: &[(i32, &str)] = &[
    (-1, "Possible communication failure"),
    (101, "Volume needs to be salvaged"),
    (102, "Bad vnode number quoted"),
    (103, "Volume not attached, does not exist, or not on line"),
    (104, "Volume already exists"),
    (105, "Volume is not in service"),
    (106, "Volume is off line"),
    (107, "Volume is already on line"),
    (108, "Partition is full"),
    (109, "Volume max quota exceeded"),
    (110, "Volume temporarily unavailable"),
    (111, "Volume has moved to another server"),
    (VL, "VLDB: volume Id exists in the vldb"),
    (VL + 1, "VLDB: a read terminated too early"),
    (VL + 2, "VLDB: volume entry exists in the vldb"),
    (VL + 3, "VLDB: internal creation failure"),
    (VL + 4, "VLDB: no such entry"),
    (VL + 5, "VLDB: vldb database is empty"),
    (VL + 6, "VLDB: entry is deleted (soft delete)"),
    (VL + 7, "VLDB: volume name is illegal"),
    (VL + 8, "VLDB: index was out of range"),
    (VL + 9, "VLDB: bad volume type"),
    (VL + 10, "VLDB: illegal server number (not within limits)"),
    (VL + 11, "VLDB: bad partition number"),
    (VL + 12, "VLDB: run out of space for replication sites"),
    (VL + 13, "VLDB: no such repsite server exists"),
    (VL + 14, "VLDB: replication site server already exists"),
    (VL + 15, "VLDB: parent r/w entry not found"),
    (VL + 16, "VLDB: illegal reference count number"),
    (VL + 17, "VLDB: vldb size for attributes exceeded"),
    (VL + 18, "VLDB: bad incoming vldb entry"),
    (VL + 19, "VLDB: illegal max volid increment"),
    (VL + 20, "VLDB: (RO/BACK) Id already hashed"),
    (VL + 21, "VLDB: vldb entry is already locked"),
    (VL + 22, "VLDB: bad volume operation code"),
    (VL + 23, "VLDB: bad release lock type"),
    (VL + 24, "VLDB: status report: last release was aborted"),
    (VL + 25, "VLDB: invalid replication site server flag"),
    (VL + 26, "VLDB: no permission access for call"),
    (VOLS + 2, "VOLSER:  Problems encountered in reading the dump file !"),
    (VOLS + 3, "VOLSER: Problems encountered in doing the dump !"),
    (VOLS + 4, "VOLSER: Could not attach the volume"),
    (VOLS + 5, "VOLSER: encountered illegal partition number"),
    (VOLS + 6, "VOLSER: Could not detach the volume"),
    (VOLS + 7, "VOLSER: permission denied, not a super user"),
    (VOLS + 8, "VOLSER: error detected in the VLDB"),
    (VOLS + 9, "VOLSER: error in volume name"),
    (VOLS + 10, "VOLSER: volume has moved"),
    (VOLS + 11, "VOLSER: illegal operation"),
    (VOLS + 12, "VOLSER: release could not be completed"),
    (VOLS + 13, "VOLSER: volume is busy"),
    (VOLS + 14, "VOLSER: volume server is out of memory"),
    (VOLS + 15, "VOLSER: no such volume - location specified incorrectly or volume does not exist"),
    (VOLS + 16, "VOLSER: multiple RW volumes with same ID, one of which should be deleted"),
    (VOLS + 17, "VOLSER: not all entries were successfully processed"),
];

/// A code in the words of `vos`, with the name of its table before those of the tables.
fn words(code: Code) -> String {
    match WORDS.iter().find(|(of, _)| *of == code.0) {
        Some((_, words)) => (*words).to_owned(),
        None => format!("{}: {}", code.table(), code.message()),
    }
}

impl Vos {
    /// Says what a code means, on a line.
    pub(super) fn print_error(&self, code: Code) {
        complain!(self.printer, "{}\n", words(code));
    }

    /// Says what could not be done, then what the code means.
    pub(super) fn print_failure(&self, code: Code, what: &str) {
        complain!(self.printer, "\n{what}   {}\n", words(code));
    }

    /// Says that a verb did not work.
    pub(super) fn print_diagnostics(&self, verb: &str, code: Code) {
        match code {
            Code::EACCES => complain!(
                self.printer,
                "You are not authorized to perform the 'vos {verb}' command ({})\n",
                code.0
            ),
            Code::EXDEV => complain!(
                self.printer,
                "Error in vos {verb} command.\nClone volume is not in the same partition as the read-write volume.\n"
            ),
            code => {
                complain!(self.printer, "Error in vos {verb} command.\n");
                self.print_error(code);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_without_words_of_its_own_name_their_table() {
        for (code, text) in [
            (Code::DEAD, "Possible communication failure"),
            (Code::VL_NOENT, "VLDB: no such entry"),
            (Code::ENODEV, ": No such device"),
            (Code(5376), "u: no quorum elected"),
            (Code(1_492_325_121), "vols: Unknown code vols 1 (1492325121)"),
        ] {
            assert_eq!(words(code), text);
        }
    }
}
