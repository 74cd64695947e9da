//! The arguments of commands of our own, which are declared with clap, and how such a command ends. The suites have OpenAFS's words (`classic`).

use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Parses the arguments behind a command's name, such as `afar up`. For help, and where they make no sense, this prints what there is
/// to be said; the status is the process's then.
pub(crate) fn parse<C: Parser>(name: &str, args: &[OsString]) -> Result<C, ExitCode> {
    let name = OsString::from(name);
    C::try_parse_from(std::iter::once(&name).chain(args)).map_err(|error| {
        // Nobody may be listening.
        let _ = error.print();
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(crate::classic::MISUSE))
    })
}

/// The same, then does it, and says what it fails with.
pub(crate) fn run<C: Parser>(
    name: &str,
    args: &[OsString],
    work: impl FnOnce(C) -> Result<(), String>,
) -> ExitCode {
    let cli = match parse(name, args) {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    match work(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}
