//! `unlog`: throws the caller's tokens away, for all cells or some. What is printed, and the exit status, is that of OpenAFS 1.8.9's.

use crate::classic::{Command, Opt, Parsed};
use crate::fs::client::Client;
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

fn forget(cells: &[&str], printer: &Printer) -> u8 {
    let client = match Client::for_tokens() {
        Ok(client) => client,
        Err(failure) => return failed(printer, &failure),
    };
    if cells.is_empty() {
        return match client.call(&control::ForgetTokens { cell: Name::default() }) {
            Ok(_) => 0,
            Err(failure) => failed(printer, &failure),
        };
    }
    let mut status = 0;
    for cell in cells {
        let forgotten = Name::try_from(*cell)
            .map_err(|_| Failure::Errno(crate::fs::errors::ENOENT))
            .and_then(|name| client.call(&control::ForgetTokens { cell: name }));
        match forgotten {
            Ok(reply) if reply.count == 0 => {
                complain!(printer, "unlog: Warning - no tokens held for cell {cell}\n");
            }
            Ok(_) => {}
            Err(Failure::Errno(_)) => {
                complain!(printer, "Unrecognized cell name {cell}\n");
                status = 1;
            }
            Err(failure) => return failed(printer, &failure),
        }
    }
    status
}

fn failed(printer: &Printer, failure: &Failure) -> u8 {
    complain!(printer, "unlog: could not discard tickets, code {PIOCTL_FAILED}\nunlog: {failure}\n");
    1
}
