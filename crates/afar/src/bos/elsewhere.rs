//! The replacements of verbs that `bos` has here for their names only, or that servers of ours refuse.

use super::{Bos, FAILURE};
use crate::classic::Given;
use crate::printer::complain;
use afs_wire::bos::{
    CreateBnode, DeleteBnode, DeleteKey, Exec, Prune, ReBozo, Restart, RestartAll, SetCellName,
    SetNoAuthFlag, SetRestartTime, SetRestrictedMode, SetStatus, SetTStatus, ShutdownAll, UnInstall,
};
use rxgen::Rpc;

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

/// Returns what to do instead of calling a procedure that servers of ours do not have.
pub(super) fn instead_of(procedure: &str) -> Option<&'static str> {
    const TABLE: &[(&[&str], &str)] = &[
        (
            &[CreateBnode::NAME, DeleteBnode::NAME],
            "set 'server.roles' in the server's configuration, and restart it",
        ),
        (&[DeleteKey::NAME], "use 'afar key remove' on each server"),
        (&[Exec::NAME], "use ssh to run the command"),
        (&[Prune::NAME, UnInstall::NAME], "programs come with packages. Use the machine's package manager"),
        (&[SetCellName::NAME], "edit ThisCell in the server's configuration folder, and restart it"),
        (&[SetNoAuthFlag::NAME], "they always ask for authorization"),
        (&[SetRestartTime::NAME], "use a timer of systemd on the machine"),
        (&[SetRestrictedMode::NAME], "they always run as restricted"),
        (
            // All other servers have these.
            &[
                ReBozo::NAME,
                Restart::NAME,
                RestartAll::NAME,
                SetStatus::NAME,
                SetTStatus::NAME,
                ShutdownAll::NAME,
            ],
            "only 'afar up' itself stops or restarts the servers that it runs",
        ),
    ];
    TABLE.iter().find(|(procedures, _)| procedures.contains(&procedure)).map(|(_, instead)| *instead)
}
