//! The verbs that `bos` has here for their names only: they say what does the same.

use super::{Bos, FAILURE};
use crate::classic::Given;
use crate::printer::complain;

pub(super) fn addkey(bos: &Bos, _given: &Given) -> u8 {
    refuse(
        bos,
        "addkey",
        "it knows keys of DES only. Add a key from a keytab with 'afar key add' on each server",
    )
}

pub(super) fn install(bos: &Bos, _given: &Given) -> u8 {
    refuse(bos, "install", "programs come with packages. Install them with the machine's package manager")
}

fn refuse(bos: &Bos, verb: &str, what: &str) -> u8 {
    complain!(bos.printer, "bos: there is no {verb} here: {what}\n");
    FAILURE
}
