//! `unlog`: throws the caller's tokens away, for all cells or some. What is printed, and the exit status, is that of OpenAFS 1.8.9's.

use crate::classic::{Command, Opt, Parsed};
use crate::fs::client::{Client, Clients, Says};
use crate::fs::errors::Failure;
use crate::output;
use crate::printer::{Printer, complain};
use afs_wire::control;
use afs_wire::ids::Name;
use std::ffi::OsString;
use std::process::ExitCode;

/// `KTC_PIOCTLFAIL`, the code that OpenAFS's has for all that can fail.
const PIOCTL_FAILED: i32 = 11_862_788;

static COMMAND: Command = Command { name: "unlog", options: &[Opt::list("cell", "cell name")] };

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let parsed = COMMAND.parse(args).and_then(|parsed| match parsed {
        Parsed::Run(given) => given.check_text().map(|()| Some(given)),
        Parsed::Help => Ok(None),
    });
    let given = match parsed {
        Ok(Some(given)) => given,
        Ok(None) => return output::print(&COMMAND.classic_usage("unlog")),
        Err(misuse) => {
            eprintln!("{}", misuse.in_classic_words("unlog"));
            return ExitCode::FAILURE;
        }
    };
    let printer = Printer::new("unlog");
    let status = forget(&given.words("cell"), &printer);
    ExitCode::from(printer.finish(status))
}

/// Takes tokens away in all clients. Tickets that a client makes itself from the cell's key go only if its user means just this client: an
/// administrator's mount elsewhere keeps its own.
fn forget(cells: &[&str], printer: &Printer) -> u8 {
    let clients = Clients::find("unlog", Says::All);
    let first = match clients.first() {
        Ok(first) => first,
        Err(failure) => return failed(printer, failure),
    };
    let means_first = first.is_here() || clients.all().len() == 1;
    let others = || clients.of_one_session().skip(usize::from(means_first));
    let mut status = 0;
    for client in clients.all().iter().filter(|client| !client.has_session_of(first)) {
        let at = client.place().display();
        complain!(
            printer,
            "unlog: your tokens in the client of {at} stay: it does not know the PAG of this session\n"
        );
    }
    if cells.is_empty() {
        if means_first && let Err(failure) = first.call(&control::ForgetTokens { cell: Name::default() }) {
            status = failed(printer, &failure);
        }
        for client in others() {
            let forgotten = client.call(&control::ListTokens {}).and_then(|held| {
                held.tokens.iter().try_for_each(|token| forget_given(client, &token.cell).map(drop))
            });
            if let Err(failure) = forgotten {
                status = failed(printer, &failure);
            }
        }
        return status;
    }
    for cell in cells {
        let Ok(name) = Name::try_from(*cell) else {
            complain!(printer, "Unrecognized cell name {cell}\n");
            status = 1;
            continue;
        };
        let of_first = means_first
            .then(|| first.call(&control::ForgetTokens { cell: name.clone() }).map(|reply| reply.count));
        let (mut count, mut is_known) = (0, false);
        for forgotten in of_first.into_iter().chain(others().map(|client| forget_given(client, &name))) {
            match forgotten {
                Ok(forgotten) => (count, is_known) = (count + forgotten, true),
                Err(Failure::Errno(_)) => {}
                Err(failure) => status = failed(printer, &failure),
            }
        }
        match (is_known, count) {
            (false, _) => {
                complain!(printer, "Unrecognized cell name {cell}\n");
                status = 1;
            }
            (true, 0) => complain!(printer, "unlog: Warning - no tokens held for cell {cell}\n"),
            (true, _) => {}
        }
    }
    status
}

/// Takes the token for a cell away that somebody has given a client. Returns how many there were.
fn forget_given(client: &Client, cell: &Name) -> Result<u32, Failure> {
    let caller = client.call(&control::GetCaller { cell: cell.clone() });
    if caller.is_ok_and(|caller| caller.is_made_here) {
        return Ok(0);
    }
    Ok(client.call(&control::ForgetTokens { cell: cell.clone() })?.count)
}

fn failed(printer: &Printer, failure: &Failure) -> u8 {
    complain!(printer, "unlog: could not discard tickets, code {PIOCTL_FAILED}\nunlog: {failure}\n");
    1
}
