//! `klog`, also `klog.krb5`: a token with a password, or with a key from a keytab, without tickets from elsewhere. Options and exit
//! statuses are those of OpenAFS 1.8.9's `klog.krb5`. What comes behind the password is as in `aklog`.

use crate::aklog::cells::Source;
use crate::aklog::login::{Login, Refusal, complain_of};
use crate::aklog::status;
use crate::classic::{Command, Given, Opt, Parsed};
use crate::fs::client::{Clients, Says};
use crate::printer::{Printer, complain, say};
use crate::{output, private};
use afs_kerberos::{Credentials, Error, Kerberos, TicketLife};
use nix::unistd::User;
use rustix::process::geteuid;
use std::ffi::OsString;
use std::io::{self, BufRead};
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
        Opt::flag("setpag", "not supported; use pagsh for a new PAG"),
        Opt::flag("tmp", "keep the Kerberos ticket in a file"),
        Opt::flag("noprdb", "do not ask the protection database"),
        Opt::flag("unwrap", "another form of the ticket; not supported"),
        Opt::flag("insecure_des", "use weak encryption; not supported"),
        Opt::single("keytab", "file with the user's key, in place of a password").ours(),
    ],
};

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    run_as("klog", args)
}

/// The same under another name.
pub(crate) fn run_as(called: &str, args: &[OsString]) -> ExitCode {
    private::begin();
    let parsed = COMMAND.parse(args).and_then(|parsed| match parsed {
        Parsed::Run(given) => given.check_text().map(|()| Some(given)),
        Parsed::Help => Ok(None),
    });
    let given = match parsed {
        Ok(Some(given)) => given,
        Ok(None) => return output::print(&COMMAND.classic_help(called)),
        Err(misuse) => {
            eprintln!("{}", misuse.in_classic_words(called));
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
        complain!(printer, "klog: -setpag is not supported: use 'pagsh' to start a shell with a new PAG\n");
    }
    let seconds = match given.word("lifetime") {
        Some(text) => Some(lifetime(text).ok_or_else(|| {
            failed(&format_args!("-lifetime {text} is not a time of the form hh[:mm[:ss]]"), status::USAGE)
        })?),
        None => None,
    };
    let life = TicketLife { seconds, renewable_seconds: None };
    let clients = Clients::find("klog", Says::All);
    let source = Source { clients: Some(&clients), folder: None };
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
        clients: &clients,
        given_realm: given.word("k"),
        asks_database: !given.has("noprdb"),
        is_forced: false,
        says_all: false,
        is_for_linux: false,
        set_cells: Vec::new(),
    };
    let mut credentials = match first_ticket(given, &kerberos, &principal, life) {
        Ok(credentials) => credentials,
        Err(Failure::Password(error)) => {
            return Err(failed(&format_args!("the password cannot be read: {error}"), status::OTHER));
        }
        Err(Failure::Kerberos(error)) => {
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

enum Failure {
    Password(io::Error),
    Kerberos(Error),
}

fn first_ticket<'a>(
    given: &Given,
    kerberos: &'a Kerberos,
    principal: &str,
    life: TicketLife,
) -> Result<Credentials<'a>, Failure> {
    if let Some(keytab) = given.word("keytab") {
        return kerberos.log_in_by_keytab(principal, keytab, life).map_err(Failure::Kerberos);
    }
    let password = match given.word("password") {
        Some(password) => Some(Zeroizing::new(password.to_owned())),
        None if given.has("pipe") => Some(line_of(io::stdin().lock()).map_err(Failure::Password)?),
        None => None,
    };
    kerberos.log_in_by_password(principal, password.as_ref(), life).map_err(Failure::Kerberos)
}

/// A line, without its end.
fn line_of(input: impl BufRead) -> io::Result<Zeroizing<String>> {
    let mut line = Zeroizing::new(String::with_capacity(PASSWORD_MAX as usize));
    input.take(PASSWORD_MAX).read_line(&mut line)?;
    let length = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(length);
    Ok(line)
}

/// A time as `hh[:mm[:ss]]`, in seconds.
fn lifetime(text: &str) -> Option<u32> {
    let mut parts = text.split(':');
    let hours: u32 = parts.next()?.parse().ok()?;
    let mut seconds = hours.checked_mul(3600)?;
    for unit in [60, 1] {
        let Some(part) = parts.next() else { break };
        let count: u32 = part.parse().ok().filter(|&count| count < 60)?;
        seconds = seconds.checked_add(count * unit)?;
    }
    (parts.next().is_none() && seconds > 0).then_some(seconds)
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

    #[test]
    fn a_lifetime_has_hours_and_perhaps_minutes_and_seconds() {
        for (text, want) in [("10", Some(36_000)), ("0:30", Some(1800)), ("1:02:03", Some(3723))] {
            assert_eq!(lifetime(text), want, "{text}");
        }
        for text in ["", "0", "1:60", "1:0:0:0", "-1", "1193047:00", "x"] {
            assert_eq!(lifetime(text), None, "{text}");
        }
    }
}
