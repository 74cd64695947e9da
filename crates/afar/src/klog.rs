//! `klog`, also `klog.krb5`: a token with a password, or with a key from a keytab, without tickets from elsewhere. Options and exit
//! statuses are those of OpenAFS 1.8.9's `klog.krb5`. What comes behind the password is as in `aklog`.

use crate::aklog::cells::Source;
use crate::aklog::login::{Login, Refusal, complain_of};
use crate::aklog::status;
use crate::classic::{Command, Given, Opt, Parsed};
use crate::fs::client::Client;
use crate::printer::{Printer, complain, say};
use crate::{output, private};
use afs_kerberos::{Credentials, Error, Kerberos, TicketLife};
use nix::unistd::User;
use rustix::process::geteuid;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use zeroize::Zeroizing;

/// Longest password, in bytes.
const PASSWORD_MAX: u64 = 1024;

static COMMAND: Command = Command {
    name: "klog",
    options: &[
        Opt::flag("x", "(obsolete, noop)"),
        Opt::single("principal", "user name"),
        Opt::single("password", "user's password"),
        Opt::single("cell", "cell name"),
        Opt::single("k", "realm"),
        Opt::flag("pipe", "read the password from the standard input"),
        Opt::flag("silent", "silent operation"),
        Opt::single("lifetime", "ticket lifetime in hh[:mm[:ss]]"),
        Opt::flag("setpag", "a new PAG; not there yet"),
        Opt::flag("tmp", "keep the Kerberos ticket in a file"),
        Opt::flag("noprdb", "do not ask the protection database"),
        Opt::flag("unwrap", "another form of the ticket; not there"),
        Opt::flag("insecure_des", "use weak encryption; not there"),
        Opt::single("keytab", "file with the user's key, in place of a password").ours(),
    ],
};

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    private::begin();
    let parsed = COMMAND.parse(args).and_then(|parsed| match parsed {
        Parsed::Run(given) => given.check_text().map(|()| Some(given)),
        Parsed::Help => Ok(None),
    });
    let given = match parsed {
        Ok(Some(given)) => given,
        Ok(None) => return output::print(&COMMAND.classic_help("klog")),
        Err(misuse) => {
            eprintln!("{}", misuse.in_classic_words("klog"));
            return ExitCode::FAILURE;
        }
    };
    let printer = Printer::new("klog");
    let status = match log_in(&given, &printer) {
        Ok(()) => 0,
        Err(Refusal(status)) => status,
    };
    ExitCode::from(printer.finish(status))
}

fn log_in(given: &Given, printer: &Printer) -> Result<(), Refusal> {
    let failed = |why: &dyn std::fmt::Display, status| {
        complain!(printer, "klog: {why}\n");
        Refusal(status)
    };
    for option in ["unwrap", "insecure_des"] {
        if given.has(option) {
            return Err(failed(&format_args!("-{option} is not supported"), status::USAGE));
        }
    }
    if given.has("setpag") {
        complain!(printer, "klog: there are no PAGs yet: the token is for all processes of this user\n");
    }
    let client = Client::for_tokens();
    let source = Source { client: client.as_ref().ok(), folder: None };
    let cell = source.find(given.word("cell")).map_err(|why| failed(&why, status::CONFIGURATION))?;
    let kerberos = Kerberos::open().map_err(|error| failed(&error, status::KERBEROS))?;
    let realm = match given.word("k") {
        Some(realm) => realm.to_owned(),
        None => {
            let of_host = cell.host().and_then(|host| kerberos.host_realm(&host).ok());
            let known = of_host.filter(|realm| !realm.is_empty()).or_else(|| kerberos.default_realm().ok());
            known.unwrap_or_else(|| cell.name.to_uppercase())
        }
    };
    let name = given.word("principal").map(str::to_owned).or_else(own_name);
    let name = name.ok_or_else(|| failed(&"say with -principal who you are", status::USAGE))?;
    let principal = if name.contains('@') { name } else { format!("{name}@{realm}") };
    let mut login = Login {
        printer,
        program: "klog",
        client: client.as_ref(),
        given_realm: given.word("k"),
        asks_database: !given.has("noprdb"),
        is_forced: false,
        says_all: false,
        set_cells: Vec::new(),
    };
    let mut credentials = match first_ticket(given, &kerberos, &principal) {
        Ok(credentials) => credentials,
        Err(Trouble::Password(error)) => {
            return Err(failed(&format_args!("the password cannot be read: {error}"), status::OTHER));
        }
        Err(Trouble::Kerberos(error)) => {
            complain!(printer, "klog: Unable to authenticate in realm {realm}\n");
            complain_of(printer, "klog", &error, "asking for the first ticket");
            return Err(Refusal(1));
        }
    };
    let kind = if given.has("tmp") { "FILE" } else { "MEMORY" };
    let cache = login.kerberos(kerberos.new_cache(kind), "making a credential cache")?;
    login.kerberos(cache.begin_with(&mut credentials), "storing the first ticket")?;
    if given.has("tmp") {
        let name = login.kerberos(cache.name(), "storing the first ticket")?;
        say!(printer, "Wrote ticket file to {}\n", name.strip_prefix("FILE:").unwrap_or(&name));
    }
    login.log_in_by_cache(&cell, &kerberos, &cache)
}

fn own_name() -> Option<String> {
    Some(User::from_uid(geteuid().as_raw().into()).ok()??.name)
}

enum Trouble {
    Password(io::Error),
    Kerberos(Error),
}

fn first_ticket<'a>(
    given: &Given,
    kerberos: &'a Kerberos,
    principal: &str,
) -> Result<Credentials<'a>, Trouble> {
    let life = TicketLife::default();
    if let Some(keytab) = given.word("keytab") {
        return kerberos.log_in_by_keytab(principal, keytab, life).map_err(Trouble::Kerberos);
    }
    let password = match given.word("password") {
        Some(password) => Zeroizing::new(password.to_owned()),
        None if given.has("pipe") => line_of(io::stdin().lock()).map_err(Trouble::Password)?,
        None => ask(principal).map_err(Trouble::Password)?,
    };
    kerberos.log_in_by_password(principal, &password, life).map_err(Trouble::Kerberos)
}

/// A line, without its end.
fn line_of(input: impl BufRead) -> io::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(String::with_capacity(PASSWORD_MAX as usize));
    input.take(PASSWORD_MAX).read_line(&mut line)?;
    let length = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(length);
    Ok(line)
}

/// Asks at the terminal, which does not show what is typed.
fn ask(principal: &str) -> io::Result<Zeroizing<String>> {
    let mut terminal = File::options().read(true).write(true).open("/dev/tty")?;
    write!(terminal, "Password for {}: ", output::harmless(principal))?;
    let before = tcgetattr(terminal.as_fd())?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    tcsetattr(terminal.as_fd(), OptionalActions::Flush, &quiet)?;
    let line = line_of(BufReader::new(&terminal));
    tcsetattr(terminal.as_fd(), OptionalActions::Now, &before)?;
    writeln!(terminal)?;
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_a_line_without_its_end() {
        for (text, want) in [("a b\nc", "a b"), ("x\r\n", "x"), ("", ""), ("no end", "no end")] {
            assert_eq!(*line_of(text.as_bytes()).unwrap(), want);
        }
    }
}
