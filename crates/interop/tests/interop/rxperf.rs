//! `afar rxperf` against the rxperf of `oafs-peer`, in both directions: all four commands, with the bytes that they count. The
//! magic word at the end of a reply is checked by both clients.

use afs_lab::real::folder::Folder;
use std::process::Command;
use std::sync::Arc;

use afar_interop::lab::Lab;
use afar_interop::process::{self, Server};
use afar_interop::suite::{Case, Verdict, Weight};
use serde_json::Value;

use crate::sides::{TIMEOUT, failed};

/// What to call for, and how many bytes that are in both directions together.
const CALLS: &[(&str, &[&str], u64)] = &[
    ("send", &["-c", "send", "-b", "3000000"], 3_000_000),
    ("recv", &["-c", "recv", "-b", "3000000"], 3_000_000),
    ("rpc", &["-c", "rpc", "-S", "200000", "-R", "300000", "-T", "4"], 2_000_000),
    ("small_rpcs", &["-c", "rpc", "-S", "8", "-R", "16", "-T", "500"], 12_000),
    ("nothing", &["-c", "rpc", "-S", "0", "-R", "0", "-T", "3"], 0),
    ("eight_at_once", &["-c", "recv", "-b", "500000", "-t", "8", "-T", "2"], 8_000_000),
    ("odd_sizes", &["-c", "rpc", "-S", "99999", "-R", "77777", "-w", "1001", "-r", "999"], 177_776),
];

/// For the file command: words, and their bytes.
const LIST: (&str, u64) = ("1000,50000,1,0,2000,70000", 4 * (1000 + 50_000 + 1 + 2000 + 70_000));

/// All cases of this module.
pub(crate) fn cases(lab: &Arc<Lab>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (who, ours_calls) in [("our_client", true), ("stock_client", false)] {
        for &(name, arguments, bytes) in CALLS {
            let lab = Arc::clone(lab);
            cases.push(Case::new(format!("rxperf/{who}/{name}"), Weight::Busy, move || {
                check(&lab, ours_calls, &arguments.iter().map(ToString::to_string).collect::<Vec<_>>(), bytes)
            }));
        }
        let lab = Arc::clone(lab);
        cases.push(Case::new(format!("rxperf/{who}/file"), Weight::Busy, move || {
            check_file(&lab, ours_calls)
        }));
    }
    cases
}

fn check_file(lab: &Lab, ours_calls: bool) -> Verdict {
    let (list, bytes) = LIST;
    if !ours_calls {
        return check(lab, false, &["-c", "file", "--list", list].map(str::to_owned), bytes);
    }
    let folder = Folder::new("rxperf");
    let path = folder.write("list", list).display().to_string();
    check(lab, true, &["-c".to_owned(), "file".to_owned(), "-f".to_owned(), path], bytes)
}

fn check(lab: &Lab, ours_calls: bool, arguments: &[String], bytes: u64) -> Verdict {
    let peer = || lab.oafs_peer().map(Command::new);
    let (mut server, mut client) =
        (if ours_calls { peer()? } else { lab.afar()? }, if ours_calls { lab.afar()? } else { peer()? });
    if ours_calls {
        server.args(["rxperf-server", "-p", "0", "--until-eof"]);
        client.args(["rxperf", "client"]);
    } else {
        server.args(["rxperf", "server", "-p", "0"]);
        client.arg("rxperf-client");
    }
    let server = Server::start(&mut server)?;
    client.args(["-s", "127.0.0.1", "-p", &server.port().to_string(), "--json"]).args(arguments);
    if !ours_calls && arguments.iter().any(|argument| argument == "-t") {
        // A stock connection carries four.
        client.args(["--connections", "2"]);
    }
    let finished = process::run(&mut client, TIMEOUT)?;
    let json: Value = serde_json::from_str(&finished.stdout).unwrap_or_default();
    let option = |name: &str| {
        let value = arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
        value.and_then(|value| value.parse().ok()).unwrap_or(1u64)
    };
    let calls = option("-T") * option("-t");
    let is_right = json["bytes"] == bytes && json["calls"] == calls && json["seconds"].as_f64() > Some(0.0);
    if finished.status != Some(0) || !is_right {
        return failed(format!("{finished:?}, expected {bytes} bytes in {calls} calls"));
    }
    Ok(())
}
