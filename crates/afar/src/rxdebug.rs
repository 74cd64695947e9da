//! `rxdebug`: what an Rx endpoint, of whatever make, says of itself. Reads the options, asks, and chooses which
//! connections to show; how a question is asked is in `probe`, what is printed in `text` and `json`.

mod filter;
mod json;
mod probe;
mod text;

use crate::classic::{Command, Given, Misuse, Opt};
use crate::{output, ports};
use filter::Filter;
use probe::{Probe, ProbeError};
use rx_proto::debug::{DebugConnection, DebugKind, DebugPeer, DebugStats, DebugVersion, RxStatistics};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// The fileserver's: the port asked when none is named.
const DEFAULT_PORT: u16 = 7000;

/// Connections or peers asked for at most. A list has an end; a server that shows none must not hold us for ever.
const MAX_ENTRIES: i32 = 1 << 20;

static COMMAND: Command = Command {
    name: "rxdebug",
    options: &[
        Opt::single("servers", "server machine").required(),
        Opt::single("port", "IP port"),
        Opt::flag("nodally", "don't show dallying conns"),
        Opt::flag("allconnections", "show conns without an active call too"),
        Opt::flag("rxstats", "show Rx statistics"),
        Opt::flag("onlyserver", "only show conns in which the server serves"),
        Opt::flag("onlyclient", "only show conns in which the server calls"),
        Opt::single("onlyport", "show only <port>"),
        Opt::single("onlyhost", "show only <host>"),
        Opt::single("onlyauth", "show only <auth level>"),
        Opt::flag("version", "show the server's version text"),
        Opt::flag("noconns", "show no connections"),
        Opt::flag("peers", "show peers"),
        Opt::flag("long", "more of each peer"),
        Opt::flag("json", "write one JSON object").ours(),
    ],
};

/// Asks an Rx endpoint for its version, after at most so many questions with these waits.
pub(crate) fn version_of(server: SocketAddr, waits: &[Duration]) -> Result<String, String> {
    let mut probe = Probe::new(server, waits).map_err(|error| error.to_string())?;
    probe.version().map_err(|error| error.to_string())
}

/// The facts that the user wants to see.
struct Query {
    address: SocketAddr,
    wants_version: bool,
    wants_statistics: bool,
    wants_connections: bool,
    /// Connections without an active call too.
    wants_all: bool,
    wants_peers: bool,
    is_long: bool,
    is_json: bool,
    filter: Filter,
}

/// The answers of the server.
#[derive(Default)]
struct Facts {
    stats: DebugStats,
    /// The statistics, and the bytes of the answer.
    statistics: Option<(RxStatistics, usize)>,
    connections: Option<Vec<DebugConnection>>,
    /// Connections left out as all their calls dally.
    skipped: usize,
    peers: Option<Vec<DebugPeer>>,
    /// Questions the server does not know.
    unsupported: Vec<DebugKind>,
    /// The reason why there is no more than this.
    failure: Option<Failure>,
}

/// A question that got no answer, or none to be understood.
struct Failure {
    kind: DebugKind,
    error: ProbeError,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let given = match COMMAND.start("", args) {
        Ok(given) => given,
        Err(status) => return status,
    };
    let query = match Query::new(&given) {
        Ok(query) => query,
        Err(Refusal::Misuse(misuse)) => return misuse.report(),
        Err(Refusal::Value(sentence)) => return failed(&sentence),
    };
    let probe = match Probe::new(query.address, &probe::WAITS) {
        Ok(probe) => probe,
        Err(error) => return failed(&format!("cannot open a socket: {error}")),
    };
    if !query.is_json {
        let trying = format!("Trying {} (port {}):\n", query.address.ip(), query.address.port());
        if let Err(error) = output::write(&trying) {
            return output::finish(COMMAND.name, Err(error));
        }
    }
    if query.wants_version { show_version(probe, &query) } else { show_facts(probe, &query) }
}

fn show_version(mut probe: Probe, query: &Query) -> ExitCode {
    match probe.version() {
        Ok(version) => {
            let version = output::harmless(&version);
            let written = match query.is_json {
                true => output::write_json(&json::version(query.address, &version)),
                false => output::write(&format!("AFS version: {version}\n")),
            };
            output::finish(COMMAND.name, written)
        }
        Err(error) => {
            if !query.is_json {
                // Like OpenAFS's, for scripts that look for it.
                output::finish(
                    COMMAND.name,
                    output::write("get version call failed with code -1, errno 0\n"),
                );
            }
            failed(&format!("{}: version: {error}", query.address))
        }
    }
}

fn show_facts(mut probe: Probe, query: &Query) -> ExitCode {
    let facts = gather(&mut probe, query);
    for kind in &facts.unsupported {
        text::warn(*kind);
    }
    let written = match query.is_json {
        true => output::write_json(&json::facts(query, &facts)),
        false => output::write(&text::facts(query, &facts, SystemTime::now())),
    };
    let status = output::finish(COMMAND.name, written);
    match &facts.failure {
        None => status,
        Some(Failure { kind, error }) => {
            failed(&format!("{}: {}: {error}", query.address, kind.word().unwrap_or("question")))
        }
    }
}

fn failed(sentence: &str) -> ExitCode {
    eprintln!("{}: {sentence}", COMMAND.name);
    ExitCode::FAILURE
}

/// Asks all there is to ask, up to the first failure.
fn gather(probe: &mut Probe, query: &Query) -> Facts {
    let mut facts = Facts::default();
    facts.failure = gather_into(&mut facts, probe, query).err();
    facts
}

fn gather_into(facts: &mut Facts, probe: &mut Probe, query: &Query) -> Result<(), Failure> {
    let fail = |kind| move |error| Failure { kind, error };
    facts.stats = probe.ask(DebugKind::STATS, 0, DebugStats::parse).map_err(fail(DebugKind::STATS))?;
    let version = facts.stats.version;
    if query.wants_statistics {
        let kind = DebugKind::RX_STATISTICS;
        let read = |body: &[u8]| Ok((RxStatistics::parse(body)?, body.len()));
        let is_known = version.has(DebugVersion::RX_STATISTICS);
        match if is_known { probe.ask(kind, 0, read) } else { Err(ProbeError::NotSupported) } {
            Err(ProbeError::NotSupported) => facts.unsupported.push(kind),
            answer => facts.statistics = Some(answer.map_err(fail(kind))?),
        }
    }
    if query.wants_connections {
        gather_connections(facts, probe, query)?;
    }
    if query.wants_peers {
        let kind = DebugKind::PEER;
        let shown = facts.peers.get_or_insert_default();
        let mut index = 0;
        while version.has(DebugVersion::PEERS) {
            if index == MAX_ENTRIES {
                return Err(Failure { kind, error: ProbeError::Endless });
            }
            let peer = match probe.ask(kind, index, DebugPeer::parse) {
                Err(ProbeError::NotSupported) => break,
                answer => answer.map_err(fail(kind))?,
            };
            if peer.is_end() {
                return Ok(());
            }
            if query.filter.shows_peer(&peer) {
                shown.push(peer);
            }
            index += 1;
        }
        if index == 0 {
            facts.peers = None;
            facts.unsupported.push(kind);
        }
    }
    Ok(())
}

fn gather_connections(facts: &mut Facts, probe: &mut Probe, query: &Query) -> Result<(), Failure> {
    let version = facts.stats.version;
    let mut kind = if query.wants_all { DebugKind::ANY_CONNECTION } else { DebugKind::CONNECTION };
    let shown = facts.connections.get_or_insert_default();
    let mut index = 0;
    loop {
        if index == MAX_ENTRIES {
            return Err(Failure { kind, error: ProbeError::Endless });
        }
        let is_known = kind == DebugKind::CONNECTION || version.has(DebugVersion::ANY_CONNECTION);
        let read = |body: &[u8]| DebugConnection::parse(body, version);
        let connection =
            match if is_known { probe.ask(kind, index, read) } else { Err(ProbeError::NotSupported) } {
                Err(ProbeError::NotSupported) if kind == DebugKind::ANY_CONNECTION => {
                    facts.unsupported.push(kind);
                    kind = DebugKind::CONNECTION;
                    continue;
                }
                answer => answer.map_err(|error| Failure { kind, error })?,
            };
        if connection.is_end() {
            return Ok(());
        }
        if query.filter.skips_as_dallying(&connection) {
            facts.skipped += 1;
        } else if query.filter.shows_connection(&connection) {
            shown.push(connection);
        }
        index += 1;
    }
}

/// The reason why there is no query.
#[derive(Debug)]
enum Refusal {
    Misuse(Misuse),
    Value(String),
}

impl From<Misuse> for Refusal {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse)
    }
}

impl Query {
    fn new(given: &Given) -> Result<Self, Refusal> {
        let port = |name| given.text(name)?.map(ports::parse).transpose().map_err(Refusal::Value);
        let filter = Filter {
            skips_dallying: given.has("nodally"),
            only_server: given.has("onlyserver"),
            only_client: given.has("onlyclient"),
            only_port: port("onlyport")?,
            only_host: given.text("onlyhost")?.map(find_ipv4).transpose().map_err(Refusal::Value)?,
            only_auth: given
                .text("onlyauth")?
                .map(filter::Auth::parse)
                .transpose()
                .map_err(Refusal::Value)?,
        };
        let server = given.text("servers")?.unwrap_or_default();
        let address = find(server).map_err(Refusal::Value)?;
        Ok(Self {
            address: SocketAddr::new(address, port("port")?.unwrap_or(DEFAULT_PORT)),
            wants_version: given.has("version"),
            wants_statistics: given.has("rxstats"),
            wants_connections: !given.has("noconns"),
            wants_all: given.has("allconnections"),
            wants_peers: given.has("peers"),
            is_long: given.has("long"),
            is_json: given.has("json"),
            filter,
        })
    }
}

/// The addresses of a host, by name or as they are. An IPv6 address may stand in brackets.
fn resolve(host: &str) -> Result<Vec<IpAddr>, String> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let found = (bare, DEFAULT_PORT).to_socket_addrs();
    found
        .map(|all| all.map(|a| a.ip()).collect())
        .map_err(|error| format!("host '{host}' not found: {error}"))
}

/// The address to ask: IPv4 before IPv6, as most servers know no other.
fn find(host: &str) -> Result<IpAddr, String> {
    let all = resolve(host)?;
    let found = all.iter().find(|a| a.is_ipv4()).or(all.first());
    found.copied().ok_or_else(|| format!("host '{host}' has no address"))
}

/// The address by which a host is named in answers: there is place for IPv4 only.
fn find_ipv4(host: &str) -> Result<Ipv4Addr, String> {
    let found = resolve(host)?.into_iter().find_map(|a| match a {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    found.ok_or_else(|| format!("host '{host}' has no IPv4 address, and servers tell no others"))
}

#[cfg(test)]
mod tests;
