//! Commands about which server is asked first: `getserverprefs`, `setserverprefs`.

use super::errors::{EINVAL, Failure};
use super::{FAILURE, Fs};
use crate::classic::Given;
use crate::hosts;
use crate::numbers::leading_number;
use crate::output::harmless;
use crate::printer::complain;
use crate::standard_input;
use afs_wire::control::{self, RankedServer, ServerKind};
use afs_wire::ids::HostAddr;
use serde_json::{Value, json};
use std::io::Read;
use std::{fs as files, io};

/// The largest rank: OpenAFS keeps 16 bits of them.
const RANK_MAX: u32 = 0xffff;

/// `fs getserverprefs`.
pub(super) fn show(fs: &Fs, given: &Given) -> u8 {
    let kind = if given.has("vlservers") { ServerKind::LOCATION } else { ServerKind::FILE };
    let servers = match fs.ask(&control::GetServerRanks { kind }) {
        Ok(reply) => reply.servers,
        Err(failure) => return fs.done(Err(failure)),
    };
    let name = |address: HostAddr| match given.has("numeric") {
        true => address.to_string(),
        false => harmless(&hosts::name_of(address.ip())),
    };
    let text: String = match given.has("json") {
        true => {
            let told: Value = servers
                .iter()
                .map(|server| json!({ "server": server.address.to_string(), "rank": server.rank }))
                .collect();
            format!("{told:#}\n")
        }
        false => servers.iter().map(|server| line(&name(server.address), server.rank)).collect(),
    };
    let Some(file) = given.value("file") else {
        fs.printer.say(&text);
        return 0;
    };
    match files::write(file, text) {
        Ok(()) => 0,
        Err(error) => {
            complain!(fs.printer, "{}: {}\n", file.display(), Failure::of_system(&error));
            FAILURE
        }
    }
}

fn line(name: &str, rank: u32) -> String {
    format!("{name:<50} {rank:>5}\n")
}

/// `fs setserverprefs`.
pub(super) fn set(fs: &Fs, given: &Given) -> u8 {
    if !rustix::process::geteuid().is_root() {
        complain!(fs.printer, "Permission denied: requires root access.\n");
        return FAILURE;
    }
    let mut status = 0;
    let mut words = Vec::new();
    if let Some(file) = given.value("file") {
        match files::read_to_string(file) {
            Ok(text) => words.push(text),
            Err(error) => {
                complain!(fs.printer, "{}: {}\n", file.display(), Failure::of_system(&error));
                status = FAILURE;
            }
        }
    }
    if given.has("stdin") {
        let mut text = String::new();
        match standard_input::get().and_then(|_| io::stdin().read_to_string(&mut text)) {
            Ok(_) => words.push(text),
            Err(error) => {
                complain!(fs.printer, "stdin: {}\n", Failure::of_system(&error));
                status = FAILURE;
            }
        }
    }
    let from_files: Vec<&str> = words.iter().flat_map(|text| text.split_ascii_whitespace()).collect();
    let servers: Vec<&str> = from_files.into_iter().chain(given.words("servers")).collect();
    for (kind, words) in [(ServerKind::FILE, servers), (ServerKind::LOCATION, given.words("vlservers"))] {
        let (ranked, unknown, beyond) = ranked(&words);
        for rank in &beyond {
            complain!(fs.printer, "fs: the rank {rank} is out of range: it may be from 0 to {RANK_MAX}\n");
            status = FAILURE;
        }
        for name in &unknown {
            complain!(fs.printer, "{name}: couldn't resolve name.\n");
            status = FAILURE;
        }
        if ranked.is_empty() {
            continue;
        }
        let sent = match ranked.try_into() {
            Ok(servers) => fs.ask(&control::SetServerRanks { kind, servers }).map(drop),
            Err(_) => Err(Failure::Errno(EINVAL)),
        };
        status = status.max(fs.done(sent));
    }
    status
}

/// Returns pairs of a server and a rank, the names whose addresses nobody knows, and the ranks that are none. A name without a rank
/// behind it is left out.
fn ranked<'a>(words: &[&'a str]) -> (Vec<RankedServer>, Vec<&'a str>, Vec<&'a str>) {
    let (mut ranked, mut unknown, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for pair in words.chunks_exact(2) {
        let &[name, rank] = pair else { continue };
        match hosts::find(name) {
            Some(address) => match u32::try_from(leading_number(rank)) {
                Ok(rank) if rank <= RANK_MAX => {
                    ranked.push(RankedServer { address: address.into(), rank });
                }
                Ok(_) | Err(_) => beyond.push(rank),
            },
            None => unknown.push(name),
        }
    }
    (ranked, unknown, beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_in_pairs() {
        let (ranked, unknown, beyond) = ranked(&[
            "10.0.0.1", "20000", "10.0.0.2", "x", "10.0.0.3", "65537", "10.0.0.5", "-1", "10.0.0.4",
        ]);
        let ranks: Vec<_> = ranked.iter().map(|server| (server.address.to_string(), server.rank)).collect();
        let expected = [("10.0.0.1", 20000), ("10.0.0.2", 0)];
        assert_eq!(beyond, ["65537", "-1"]);
        assert_eq!(ranks, expected.map(|(address, rank)| (address.to_owned(), rank)));
        assert!(unknown.is_empty());
    }

    #[test]
    fn a_line_has_the_columns_of_openafs() {
        assert_eq!(line("fs1.example.org", 20001), format!("fs1.example.org{} 20001\n", " ".repeat(35)));
        assert_eq!(line("a", 5), format!("a{}     5\n", " ".repeat(49)));
    }
}
