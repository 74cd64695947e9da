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
use afs_wire::ids::ViceId;
use jiff::Timestamp;
use jiff::tz::TimeZone;
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
    if given.has("json") {
        let told: Value = tokens.iter().map(|token| as_json(token, now)).collect();
        printer.say_json(&told);
        return ExitCode::from(printer.finish(status));
    }
    say!(printer, "\nTokens held by the Cache Manager:\n\n");
    let zone = TimeZone::system();
    tokens.iter().for_each(|token| printer.say(&line(token, now, &zone)));
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

/// Tells of data that are written and not stored, because their writer has no token meanwhile.
fn waiting(files: u32, bytes: u64) -> String {
    let s = if files == 1 { "" } else { "s" };
    format!(
        "{files} file{s} that you have written ({bytes} bytes) will be stored when you have a token again: run aklog"
    )
}

fn line(token: &HeldToken, now: i64, zone: &TimeZone) -> String {
    let (holder, cell) = (harmless(&token.holder.to_string()), harmless(&token.cell.to_string()));
    let whose = match holder.as_str() {
        "" => "rxkad Tokens".to_owned(),
        id if id.starts_with("AFS ID") => format!("User's ({id}) rxkad tokens"),
        id if id.starts_with("Unix UID") => "RxkadTokens".to_owned(),
        name => format!("User {name}'s rxkad tokens"),
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

fn as_json(token: &HeldToken, now: i64) -> Value {
    let id = (token.id != ViceId::ANONYMOUS).then_some(token.id.0);
    json!({
        "cell": token.cell.to_string(),
        "holder": token.holder.to_string(),
        "id": id,
        "expires": token.expires.0,
        "is_expired": i64::from(token.expires.0) <= now,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_wire::ids::{AfsTime, Name};

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
            assert_eq!(line(&token, 1_000_000_000, &TimeZone::UTC), text);
        }
    }
}
