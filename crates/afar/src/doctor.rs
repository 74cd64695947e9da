//! `afar doctor`: what can be checked beforehand of what the client and `afar up` need: FUSE, passthrough, buffers, ports, folders,
//! the clock, and whether the cells' servers answer. It changes nothing but that it mounts something empty in a folder of its own
//! for a moment.

use crate::classic::{Command, Opt};
use crate::mount_point::{self, OUR_KIND};
use crate::{dates, output};
use afs_config::{Cell, ClientFolder};
use afs_wire::vl::{ProbeServer, Vl};
use fuse_dev::{Features, Handler, MountOptions, Mounted, Offer, Reply, Request, Session, Settings, StateOf};
use rustix::io::Errno;
use rustix::process::geteuid;
use rx::{CallError, Endpoint, EndpointConfig, RpcError};
use rx_proto::config::CallLimits;
use rx_proto::ids::ServiceId;
use rx_proto::security::Null;
use rxgen::Interface;
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What the command does, as lists of commands and its help say it.
pub(crate) const ABOUT: &str = "checks whether this machine has what the client and 'afar up' need";

static COMMAND: Command = Command {
    name: "doctor",
    options: &[
        Opt::single("config", "folder with ThisCell and CellServDB, default /etc/openafs"),
        Opt::single("mount", "mount point to check, default that of 'afar up'"),
        Opt::single("bind", "address whose ports to check, default 127.0.0.1"),
        Opt::flag("all-cells", "ask the servers of all cells, not only of this one's"),
        Opt::flag("json", "print one JSON object"),
    ],
};

/// Receive buffers below this lose packets when a crowd writes (measured: 250 clients drop none with 16 MiB).
const BUFFER_BYTES: u64 = 16 << 20;

/// The time within which a server must answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Less free space than this in the cache's file system is hardly of use.
const FREE_BYTES: u64 = 1 << 30;

/// The time when this was written: before it, a clock is wrong. 2026-01-01.
const NOT_BEFORE: u32 = 1_767_225_600;

/// The grade of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Good,
    /// It works, but not as well as it could.
    Poor,
    /// It does not work.
    Bad,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Poor => "poor",
            Self::Bad => "BAD",
        }
    }
}

/// The result of looking at one thing.
#[derive(Debug)]
struct Finding {
    what: &'static str,
    grade: Grade,
    /// The finding, and what to do.
    text: String,
}

fn finding(what: &'static str, grade: Grade, text: impl Into<String>) -> Finding {
    Finding { what, grade, text: text.into() }
}

/// Runs the command with the arguments behind its name. The status is that of a failure if something does not work.
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let given = match COMMAND.start(ABOUT, args) {
        Ok(given) => given,
        Err(status) => return status,
    };
    if let Err(misuse) = given.check_text() {
        return misuse.report();
    }
    let bind = match given.word("bind").unwrap_or("127.0.0.1").parse::<Ipv4Addr>() {
        Ok(bind) => bind,
        Err(_) => {
            eprintln!("afar doctor: -bind takes an IPv4 address");
            return ExitCode::from(crate::classic::MISUSE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("afar doctor: no threads can be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let serves = runtime.block_on(answers_at(bind)).is_some();
    let mut findings = Vec::new();
    findings.extend(fuse());
    findings.push(mount_point_is_free(given.word("mount").map(Path::new)));
    findings.extend(locate());
    findings.push(buffers());
    findings.extend(ports(bind, serves));
    findings.push(space());
    findings.push(clock());
    let mut of_cells = runtime.block_on(cells(given.word("config"), given.has("all-cells")));
    if serves && !given.has("config") {
        // A user of 'afar up' needs no other cell.
        for finding in of_cells.iter_mut().filter(|finding| finding.grade == Grade::Bad) {
            finding.grade = Grade::Poor;
            finding.text.push_str(" (the cell that is served here does not need it)");
        }
    }
    findings.extend(of_cells);
    let written = output::finish(COMMAND.name, write(&findings, given.has("json")));
    match findings.iter().any(|finding| finding.grade == Grade::Bad) {
        true => ExitCode::FAILURE,
        false => written,
    }
}

fn write(findings: &[Finding], as_json: bool) -> io::Result<()> {
    if as_json {
        let list: Vec<_> = findings
            .iter()
            .map(|f| json!({ "what": f.what, "grade": f.grade.word().to_lowercase(), "text": f.text }))
            .collect();
        return output::write_json(&json!({ "findings": list }));
    }
    let lines = findings
        .iter()
        .map(|f| format!("{:<5}{:<13}{}\n", f.grade.word(), f.what, output::harmless(&f.text)));
    output::write(&lines.collect::<String>())
}

/// A file system in which there is nothing.
struct Nothing;

impl Handler for Nothing {
    fn handle(&self, _: Request<'_>, reply: Reply) {
        reply.error(Errno::NOENT.raw_os_error());
    }
}

/// Checks whether something can be mounted, and what the kernel offers.
fn fuse() -> Vec<Finding> {
    let offer = match try_mount() {
        Ok(offer) => offer,
        Err(error) => return vec![finding("fuse", Grade::Bad, error)],
    };
    let mut findings = vec![finding("fuse", Grade::Good, format!("protocol 7.{}", offer.minor))];
    let may = fuse_dev::mount::may_pass_through();
    findings.push(match (offer.offered.has(Features::PASSTHROUGH), may) {
        (true, true) => finding("passthrough", Grade::Good, "large cached files are read at the speed of the disk's file system"),
        (false, _) => finding(
            "passthrough",
            Grade::Poor,
            "this kernel has none (Linux 6.9 and newer have it): reads of cached files have three quarters of the speed",
        ),
        (true, false) => finding(
            "passthrough",
            Grade::Poor,
            "needs root (CAP_SYS_ADMIN): reads of cached files have three quarters of the speed",
        ),
    });
    if !geteuid().is_root() {
        let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
        let allows = conf.lines().any(|line| line.trim() == "user_allow_other");
        findings.push(match allows {
            true => finding("sharing", Grade::Good, "--allow-other lets other users use the mount"),
            false => finding(
                "sharing",
                Grade::Good,
                "only this user can use the mount; to let others use it, root adds user_allow_other to /etc/fuse.conf",
            ),
        });
    }
    findings
}

fn try_mount() -> Result<Offer, String> {
    let folder = std::env::temp_dir().join(format!("afar-doctor-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let options =
        MountOptions { source: "afar-doctor".to_owned(), kind: "afar".to_owned(), allow_other: false };
    let tried = Mounted::mount(&folder, &options).map_err(|error| error.to_string()).and_then(|mounted| {
        let settings = Settings {
            features: Features::PASSTHROUGH,
            write_max_bytes: 128 << 10,
            read_ahead_bytes: 0,
            background_max: 1,
            stack_depth: 1,
        };
        let session = Session::start(Arc::clone(mounted.device()), &settings, 1, |_, _| Arc::new(Nothing));
        let offer = session.as_ref().map(Session::offer).map_err(|error| error.to_string());
        mounted.unmount().map_err(|error| error.to_string())?;
        if let Ok(session) = session {
            session.wait().map_err(|error| error.to_string())?;
        }
        offer
    });
    // It is empty again, unless the mount could not be removed, which has been said then.
    let _ = fs::remove_dir(&folder);
    tried
}

fn mount_point_is_free(path: Option<&Path>) -> Finding {
    let what = "mount point";
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let path = match path {
        Some(path) => path.to_owned(),
        None => match mount_point::default_for(geteuid().is_root(), home.as_deref()) {
            Ok(path) => path,
            Err(error) => return finding(what, Grade::Bad, error),
        },
    };
    let shown = path.display();
    match fuse_dev::state_of(&path) {
        StateOf::Missing => finding(what, Grade::Good, format!("{shown} will be made")),
        StateOf::Folder { is_empty: true } => finding(what, Grade::Good, format!("{shown} is free")),
        StateOf::Folder { is_empty: false } => {
            finding(what, Grade::Bad, format!("{shown} is not empty: choose another with --mount"))
        }
        StateOf::NotAFolder => {
            finding(what, Grade::Bad, format!("{shown} is not a folder: choose another with --mount"))
        }
        StateOf::Mounted(mount) if mount.kind == OUR_KIND => {
            finding(what, Grade::Good, format!("{shown} is mounted by afar: {}", mount.source.display()))
        }
        StateOf::Mounted(mount) => finding(
            what,
            Grade::Poor,
            format!("{shown} is in use: {} is mounted there ({})", mount.source.display(), mount.kind),
        ),
        StateOf::Dead(_) => {
            finding(what, Grade::Good, format!("{shown} has a dead mount, which will be removed"))
        }
        StateOf::Hanging(_) => finding(
            what,
            Grade::Bad,
            format!("the file system that is mounted on {shown} does not answer: run 'umount -l {shown}'"),
        ),
        StateOf::Unreadable(error) => finding(what, Grade::Bad, format!("{shown}: {error}")),
    }
}

/// Checks whether `updatedb`, if it is there, leaves cells out: it would fetch all of them each night.
fn locate() -> Option<Finding> {
    let file = "/etc/updatedb.conf";
    let text = fs::read_to_string(file).ok()?;
    Some(match leaves_out(&text) {
        true => finding("locate", Grade::Good, format!("'updatedb' leaves cells out ({file})")),
        false => finding(
            "locate",
            Grade::Poor,
            format!("'updatedb' looks through all cells each night: add {OUR_KIND} to PRUNEFS in {file}"),
        ),
    })
}

/// True if a configuration of `updatedb` says that our kind of file system is to be left out.
fn leaves_out(text: &str) -> bool {
    let value =
        |line: &str| Some(line.trim().strip_prefix("PRUNEFS")?.trim().strip_prefix('=')?.trim().to_owned());
    text.lines()
        .filter_map(value)
        .any(|value| value.trim_matches('"').split_whitespace().any(|kind| kind == OUR_KIND))
}

fn buffers() -> Finding {
    let what = "buffers";
    let text = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    let max: u64 = text.trim().parse().unwrap_or(0);
    // CAP_NET_ADMIN, 12 in capability.h, may go beyond.
    if has_capability(12) {
        return finding(what, Grade::Good, "UDP buffers can be made as large as is useful");
    }
    if max >= BUFFER_BYTES {
        return finding(what, Grade::Good, format!("UDP buffers of up to {} MiB", max >> 20));
    }
    finding(
        what,
        Grade::Poor,
        format!(
            "UDP buffers can have at most {} KiB, so many clients at once will be slow: as root, run \
             'sysctl -w net.core.rmem_max={BUFFER_BYTES}'",
            max >> 10
        ),
    )
}

fn has_capability(bit: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> bit & 1 == 1)
}

/// The ports of servers and client; whether servers of AFS answer there is told.
fn ports(address: Ipv4Addr, serves: bool) -> Vec<Finding> {
    let taken = |wanted: &[u16]| -> Vec<String> {
        let is_taken = |port: &&u16| UdpSocket::bind(SocketAddr::from((address, **port))).is_err();
        wanted.iter().filter(is_taken).map(u16::to_string).collect()
    };
    let servers = taken(&[7000, 7002, 7003, 7005, 7007]);
    let of_servers = match servers.is_empty() {
        true => finding("ports", Grade::Good, format!("the ports of servers are free at {address}")),
        false if serves => finding(
            "ports",
            Grade::Good,
            format!("servers of a cell answer at {address}: more of them need another address (--bind)"),
        ),
        false => finding(
            "ports",
            Grade::Poor,
            format!(
                "{} at {address} already in use: stop the servers there, or choose another address with --bind",
                servers.join(", ")
            ),
        ),
    };
    let of_client = match taken(&[7001]).is_empty() {
        true => finding("client port", Grade::Good, format!("port 7001 is free at {address}")),
        false => finding(
            "client port",
            Grade::Good,
            format!(
                "port 7001 at {address} is in use: the client uses another (some firewalls allow only 7001)"
            ),
        ),
    };
    vec![of_servers, of_client]
}

fn space() -> Finding {
    let what = "space";
    let folder = match geteuid().is_root() {
        true => PathBuf::from("/var"),
        false => std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from),
    };
    match rustix::fs::statvfs(&folder) {
        Err(error) => finding(what, Grade::Poor, format!("{}: {error}", folder.display())),
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let text = format!("{} MiB are free in {}", free >> 20, folder.display());
            match free >= FREE_BYTES {
                true => finding(what, Grade::Good, text),
                false => finding(what, Grade::Poor, format!("{text}: little for a cache")),
            }
        }
    }
}

fn clock() -> Finding {
    let what = "clock";
    if dates::now() < NOT_BEFORE {
        return finding(
            what,
            Grade::Bad,
            "it is years behind: Kerberos tickets will fail, and files will get wrong times",
        );
    }
    let is_kept = |line: &str| line == "NTPSynchronized=yes";
    let asked = Process::new("timedatectl").arg("show").stdin(Stdio::null()).stderr(Stdio::null()).output();
    match asked {
        Ok(output) if output.status.success() => {
            match String::from_utf8_lossy(&output.stdout).lines().any(is_kept) {
                true => finding(what, Grade::Good, "NTP keeps it right"),
                false => finding(
                    what,
                    Grade::Poor,
                    "NTP does not keep it right, and Kerberos needs it within five minutes of the servers' clocks: run 'timedatectl set-ntp true'",
                ),
            }
        }
        _ => finding(
            what,
            Grade::Good,
            "it is plausible, but this machine does not say whether NTP keeps it right",
        ),
    }
}

/// Checks whether the database servers of the cells answer.
async fn cells(folder: Option<&str>, all: bool) -> Vec<Finding> {
    let what = "cells";
    let folder = folder.map_or_else(|| PathBuf::from("/etc/openafs"), PathBuf::from);
    let client = match ClientFolder::read(&folder) {
        Ok(client) => client,
        Err(error) if error.is_missing() => {
            let text =
                format!("{} has no ThisCell: 'afar mount' needs one, 'afar up' does not", folder.display());
            return vec![finding(what, Grade::Good, text)];
        }
        Err(error) => return vec![finding(what, Grade::Bad, error.to_string())],
    };
    let wanted: Vec<Cell> =
        client.cells.cells.iter().filter(|cell| all || cell.name == client.cell).cloned().collect();
    if wanted.is_empty() {
        let text = format!("CellServDB in {} has no servers of {}", folder.display(), client.cell);
        return vec![finding(what, Grade::Bad, text)];
    }
    ask_cells(&wanted).await.unwrap_or_else(|error| vec![finding(what, Grade::Bad, error)])
}

/// The time after which a database server at an address answers; `None` if none does.
async fn answers_at(address: Ipv4Addr) -> Option<Duration> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let endpoint = Endpoint::bind(any, EndpointConfig::default()).ok()?;
    let answered = ask(&endpoint, address).await;
    endpoint.shut_down();
    answered
}

async fn ask(endpoint: &Endpoint, address: Ipv4Addr) -> Option<Duration> {
    let to = SocketAddr::from((address, Vl::PORT));
    let connection = endpoint.connect(to, ServiceId(Vl::SERVICE_ID), Box::new(Null));
    connection.set_limits(CallLimits { dead: TIMEOUT, ..CallLimits::default() });
    let began = tokio::time::Instant::now();
    let asked = tokio::time::timeout(TIMEOUT, connection.rpc(&ProbeServer {})).await;
    // A server that refuses answers, too.
    let answers = matches!(asked, Ok(Ok(_) | Err(RpcError::Call { source: CallError::Aborted { .. }, .. })));
    answers.then(|| began.elapsed())
}

async fn ask_cells(cells: &[Cell]) -> Result<Vec<Finding>, String> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let endpoint = Endpoint::bind(any, EndpointConfig::default()).map_err(|error| error.to_string())?;
    let mut tasks = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        for server in &cell.servers {
            let (address, endpoint) = (server.address, endpoint.clone());
            tasks.push(tokio::spawn(async move { (number, address, ask(&endpoint, address).await) }));
        }
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.map_err(|error| error.to_string())?);
    }
    endpoint.shut_down();
    let of_cell = |(number, cell): (usize, &Cell)| {
        let of: Vec<_> = answers.iter().filter(|answer| answer.0 == number).collect();
        let silent: Vec<String> = of.iter().filter(|a| a.2.is_none()).map(|a| a.1.to_string()).collect();
        let fastest = of.iter().filter_map(|answer| answer.2).min();
        match fastest {
            None => finding(
                "cell",
                Grade::Bad,
                format!("{}: none of its {} database servers answers", cell.name, of.len()),
            ),
            Some(took) if silent.is_empty() => finding(
                "cell",
                Grade::Good,
                format!("{}: all servers answer, the first in {took:.1?}", cell.name),
            ),
            Some(took) => finding(
                "cell",
                Grade::Poor,
                format!("{}: no answer from {}; the first in {took:.1?}", cell.name, silent.join(", ")),
            ),
        }
    };
    Ok(cells.iter().enumerate().map(of_cell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_lab::real::folder::Folder;

    #[test]
    fn updatedb_that_looks_through_cells_is_found() {
        let debian = "PRUNE_BIND_MOUNTS=\"yes\"\nPRUNEFS=\"NFS afs autofs\"\n";
        assert!(!leaves_out(debian), "its afs is the kernel's");
        assert!(leaves_out(&debian.replace(" autofs", " autofs fuse.afar")));
        assert!(!leaves_out("# PRUNEFS = \"fuse.afar\"") && leaves_out(" PRUNEFS = \"fuse.afar\" "));
    }

    #[test]
    fn a_port_that_is_taken_is_found() {
        let address = Ipv4Addr::new(127, 91, 7, 3);
        assert!(ports(address, false).iter().all(|finding| finding.grade == Grade::Good));
        let _taken = UdpSocket::bind(SocketAddr::from((address, 7003))).unwrap();
        let found = ports(address, false);
        assert!(found[0].grade == Grade::Poor && found[0].text.starts_with("7003 at "), "{found:?}");
        assert_eq!(ports(address, true)[0].grade, Grade::Good, "servers of AFS are no strangers");
    }

    #[tokio::test]
    async fn a_folder_without_a_cell_is_no_fault_and_one_with_a_damaged_list_is() {
        let folder = Folder::new("doctor-test");
        let ask = || cells(folder.to_str(), false);
        assert_eq!(ask().await[0].grade, Grade::Good);
        fs::write(folder.join("ThisCell"), "a.test\n").unwrap();
        assert!(ask().await[0].text.contains("has no servers of a.test"));
    }
}
