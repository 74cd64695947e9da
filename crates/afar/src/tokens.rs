//! `tokens`: what the caller has to show to servers, as the client of this machine knows it. How one comes by tokens is for
//! others.
//!
//! What is printed is what OpenAFS 1.8.9's `tokens` prints. Where no client is mounted there are no tokens, which is no error
//! there, and neither here; but it is said.

use crate::classic::{Command, Opt, Parsed};
use crate::fs::client::{Clients, Says};
use crate::fs::errors::Failure;
use crate::output::{self, harmless};
use crate::printer::{Printer, complain, say};
use afs_wire::control::{self, HeldToken};
use afs_wire::ids::{AfsTime, ViceId};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rx_security::Level;
use rx_security::keys::EncType;
use rx_security::rxgk::RxgkTime;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;

static COMMAND: Command =
    Command { name: "tokens", options: &[Opt::flag("json", "write one JSON array").ours()] };

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let given = match COMMAND.parse(args) {
        Ok(Parsed::Run(given)) => given,
        // Whatever stands there, theirs shows how it is called.
        Ok(Parsed::Help) | Err(_) => return output::print(&COMMAND.classic_usage("tokens")),
    };
    let printer = Printer::new("tokens");
    let mut status = 0;
    let clients = Clients::find("tokens", Says::All);
    let mut none = |failure: &Failure| {
        status = u8::from(!matches!(failure, Failure::NoClient));
        complain!(printer, "tokens: {failure}\n");
        Vec::new()
    };
    let tokens = match (clients.first(), ask(&clients)) {
        (Err(failure), _) => none(failure),
        (Ok(_), Err(failure)) => none(&failure),
        (Ok(_), Ok(tokens)) => tokens,
    };
    let now = Timestamp::now().as_second();
    let rxgk: Vec<_> = tokens.iter().map(|token| rxgk_of(&clients, token)).collect();
    if given.has("json") {
        let told = tokens.iter().zip(&rxgk);
        let told: Value = told.map(|(token, rxgk)| as_json(token, rxgk.as_ref(), now)).collect();
        printer.say_json(&told);
        return ExitCode::from(printer.finish(status));
    }
    say!(printer, "\nTokens held by the Cache Manager:\n\n");
    let zone = TimeZone::system();
    for (token, rxgk) in tokens.iter().zip(&rxgk) {
        if rxgk.as_ref().is_none_or(|rxgk| rxgk.has_rxkad) {
            printer.say(&line(token, "rxkad", now, &zone));
        }
        if let Some(rxgk) = rxgk {
            printer.say(&rxgk.line(token, now, &zone));
        }
    }
    say!(printer, "   --End of list--\n");
    // An older client does not tell.
    let told = clients.all().iter().filter_map(|client| client.call(&control::GetUnstored {}).ok());
    let (files, bytes) = told.fold((0, 0), |(files, bytes), told| (files + told.files, bytes + told.bytes));
    if files > 0 {
        complain!(printer, "tokens: {}\n", waiting(files, bytes));
    }
    ExitCode::from(printer.finish(status))
}

/// The tokens of the first client, and those that only others have.
fn ask(clients: &Clients) -> Result<Vec<HeldToken>, Failure> {
    let mut tokens: Vec<HeldToken> = Vec::new();
    for client in clients.of_one_session() {
        let held = client.call(&control::ListTokens {})?.tokens.into_vec();
        let more = held.into_iter().filter(|held| tokens.iter().all(|token| token.cell != held.cell));
        tokens.extend(more.collect::<Vec<_>>());
    }
    Ok(tokens)
}

/// What there is to tell of a token of rxgk.
struct Rxgk {
    enctype: i32,
    level: Option<Level>,
    expires: AfsTime,
    /// A device has one of rxgk alone, and so has a user whose realm has no other service for the cell.
    has_rxkad: bool,
}

/// The caller's token of rxgk. An older client has none.
fn rxgk_of(clients: &Clients, token: &HeldToken) -> Option<Rxgk> {
    let question = control::GetRxgk { cell: token.cell.clone() };
    let (client, given) =
        clients.of_one_session().find_map(|client| Some((client, client.call(&question).ok()?.token)))?;
    let seconds = given.expiration / RxgkTime::SECOND;
    Some(Rxgk {
        enctype: given.enctype,
        level: Level::of_number(given.level),
        expires: AfsTime(u32::try_from(seconds).unwrap_or(u32::MAX)),
        has_rxkad: client.call(&control::GetToken { cell: token.cell.clone() }).is_ok(),
    })
}

impl Rxgk {
    fn enctype(&self) -> String {
        EncType(self.enctype).name().map_or_else(|| self.enctype.to_string(), str::to_owned)
    }

    fn level(&self) -> String {
        self.level.map_or_else(|| "unknown".to_owned(), |level| level.to_string())
    }

    /// A line like that of the other token, with level and enctype.
    fn line(&self, token: &HeldToken, now: i64, zone: &TimeZone) -> String {
        let told = line(&HeldToken { expires: self.expires, ..token.clone() }, "rxgk", now, zone);
        format!("{} ({}, {})\n", told.trim_end(), self.level(), self.enctype())
    }
}

/// Tells of data that are written and not stored, because their writer has no token meanwhile.
fn waiting(files: u32, bytes: u64) -> String {
    let s = if files == 1 { "" } else { "s" };
    format!(
        "{files} file{s} that you have written ({bytes} bytes) will be stored when you have a token again: run aklog"
    )
}

fn line(token: &HeldToken, class: &str, now: i64, zone: &TimeZone) -> String {
    let (holder, cell) = (harmless(&token.holder.to_string()), harmless(&token.cell.to_string()));
    let whose = match holder.as_str() {
        "" => format!("{class} Tokens"),
        id if id.starts_with("AFS ID") => format!("User's ({id}) {class} tokens"),
        id if id.starts_with("Unix UID") => {
            format!("{}Tokens", if class == "rxkad" { "Rxkad" } else { "Rxgk" })
        }
        name => format!("User {name}'s {class} tokens"),
    };
    let expires = i64::from(token.expires.0);
    let end = match Timestamp::from_second(expires) {
        Ok(time) if expires > now => {
            format!("[Expires {}]", time.to_zoned(zone.clone()).strftime("%b %e %H:%M"))
        }
        Ok(_) | Err(_) => "[>> Expired <<]".to_owned(),
    };
    format!("{whose} for {cell} {end}\n")
}

fn as_json(token: &HeldToken, rxgk: Option<&Rxgk>, now: i64) -> Value {
    let id = (token.id != ViceId::ANONYMOUS).then_some(token.id.0);
    json!({
        "cell": token.cell.to_string(),
        "holder": token.holder.to_string(),
        "id": id,
        "expires": token.expires.0,
        "is_expired": i64::from(token.expires.0) <= now,
        "rxgk": rxgk.map(|rxgk| {
            json!({ "level": rxgk.level(), "enctype": rxgk.enctype(), "expires": rxgk.expires.0 })
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::Name;

    #[test]
    fn what_waits_is_told_with_what_to_do() {
        let text =
            "1 file that you have written (5 bytes) will be stored when you have a token again: run aklog";
        assert_eq!(waiting(1, 5), text);
        assert!(waiting(2, 5).starts_with("2 files that "));
    }

    #[test]
    fn tokens_are_told_as_openafs_does() {
        for (holder, expires, text) in [
            (
                "AFS ID 1000",
                1_795_278_350,
                "User's (AFS ID 1000) rxkad tokens for lab.test [Expires Nov 21 16:25]\n",
            ),
            ("alice", 1_795_278_350, "User alice's rxkad tokens for lab.test [Expires Nov 21 16:25]\n"),
            ("", 1_795_278_350, "rxkad Tokens for lab.test [Expires Nov 21 16:25]\n"),
            ("Unix UID 5", 5, "RxkadTokens for lab.test [>> Expired <<]\n"),
        ] {
            let name = |text: &str| Name::try_from(text).unwrap();
            let token = HeldToken {
                cell: name("lab.test"),
                holder: name(holder),
                id: ViceId(1000),
                expires: AfsTime(expires),
            };
            assert_eq!(line(&token, "rxkad", 1_000_000_000, &TimeZone::UTC), text);
            if holder == "AFS ID 1000" {
                let rxgk = Rxgk {
                    enctype: 18,
                    level: Some(Level::Crypt),
                    expires: AfsTime(expires),
                    has_rxkad: true,
                };
                let want = "User's (AFS ID 1000) rxgk tokens for lab.test [Expires Nov 21 16:25] (crypt, aes256-cts-hmac-sha1-96)\n";
                assert_eq!(rxgk.line(&token, 1_000_000_000, &TimeZone::UTC), want);
            }
        }
    }
}
