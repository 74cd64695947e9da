//! `afsio`: bytes between standard input or output and a file of a cell, without a mount: the table of its verbs and what they share,
//! the way to a cell. How a path is walked is in `path`, reading in `read`, writing in `write`, locks are in `lock`.
//!
//! Verbs, options and messages are those of OpenAFS 1.8.9's `afsio`; the help marks options that only afar has. The exit
//! status is 0 only on success. OpenAFS's is always 0.

mod lock;
mod path;
mod read;
mod write;

use crate::cell::{CLIENT_FOLDER, CellError, CellServers, SERVER_FOLDER};
use crate::classic::{Command, Given, Opt};
use crate::codes::Code;
use crate::hosts;
use crate::login::{all_tokens, first_superuser};
use crate::suite::{Suite, Verb};
use afs_client::config::LocalUser;
use afs_client::users::Holder;
use afs_client::{Client, Config, Error, User};
use afs_config::{Cell, CellName, CellServDb, ClientFolder, DbServer, ThisCell};
use afs_dns::{Service, SystemResolver};
use rx::{Runtime as _, TokioRuntime};
use rx_security::{KeySet, Level, Token};
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// How long servers that do not answer, and volumes that are busy, are waited for: a person sits before it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a MiB, as rates are told.
const MEBIBYTE: f64 = 1_048_576.0;

/// The options of a verb, and behind them those that all verbs have of ours.
macro_rules! options {
    ($( $option:expr ),* $(,)?) => { &[
        $( $option, )*
        Opt::list("servers", "database servers of the cell").ours(),
        Opt::single("config", "configuration folder; with -localauth, the servers' one, with the keys").ours(),
        Opt::flag("localauth", "call as a user of the cell, with a ticket made from its key").ours(),
        Opt::single("as", "user for -localauth").ours(),
        Opt::flag("noprogress", "no progress bar").ours(),
    ] };
}

const FILE: Opt = Opt::single("file", "AFS-filename").required().path();
const CELL: Opt = Opt::single("cell", "cellname");
const VERBOSE: Opt = Opt::flag("verbose", "");
const CLEAR: Opt = Opt::flag("clear", "");
const CRYPT: Opt = Opt::flag("crypt", "");
const MD5: Opt = Opt::flag("md5", "calculate md5 checksum");
const FORCE: Opt = Opt::flag("force", "overwrite existing file");
const REALM: Opt = Opt::single("realm", "REALMNAME");
const TO: Opt = Opt::single("to", "local file to write, instead of stdout").ours().path();
const FROM: Opt = Opt::single("from", "local file to read, instead of stdin").ours().path();

const FID: &str = "volume.vnode.uniquifier";
const FID_OF_LOCK: Opt = Opt::single("fid", FID).required();
const WAIT: Opt = Opt::single("waitseconds", "seconds to wait before giving up");
const READ_LOCK: Opt = Opt::flag("readlock", "read lock only");

static SUITE: Suite = Suite {
    name: "afsio",
    misuse_status: |_| FAILURE,
    verbs: &[
        Verb {
            command: Command {
                name: "afsio append",
                options: options![FILE, CELL, VERBOSE, CLEAR, CRYPT, REALM, FROM],
            },
            about: "append to a file in AFS",
            aliases: &[],
            run: |given| run(given, Work::Append(Target::path(given))),
        },
        Verb {
            command: Command {
                name: "afsio fidappend",
                options: options![
                    Opt::single("vnode", FID).required(),
                    CELL,
                    VERBOSE,
                    CLEAR,
                    CRYPT,
                    REALM,
                    FROM
                ],
            },
            about: "append to a file in AFS",
            aliases: &[],
            run: |given| run(given, Work::Append(Target::fid(given, "vnode"))),
        },
        Verb {
            command: Command {
                name: "afsio fidlock",
                options: options![FID_OF_LOCK, CELL, VERBOSE, CLEAR, REALM, WAIT, READ_LOCK],
            },
            about: "lock by FID a file from AFS",
            aliases: &[],
            run: |given| run(given, Work::Lock(Target::fid(given, "fid"))),
        },
        Verb {
            command: Command {
                name: "afsio fidread",
                options: options![Opt::single("fid", FID).required(), CELL, VERBOSE, CLEAR, MD5, REALM, TO],
            },
            about: "read on a non AFS-client a file from AFS",
            aliases: &[],
            run: |given| run(given, Work::Read(Target::fid(given, "fid"))),
        },
        Verb {
            command: Command {
                name: "afsio fidunlock",
                options: options![FID_OF_LOCK, CELL, VERBOSE, CLEAR, REALM, WAIT],
            },
            about: "unlock by FID a file from AFS",
            aliases: &[],
            run: |given| run(given, Work::Unlock(Target::fid(given, "fid"))),
        },
        Verb {
            command: Command {
                name: "afsio fidwrite",
                options: options![
                    Opt::single("vnode", FID).required(),
                    CELL,
                    VERBOSE,
                    CLEAR,
                    CRYPT,
                    MD5,
                    FORCE,
                    REALM,
                    FROM
                ],
            },
            about: "write a file into AFS",
            aliases: &[],
            run: |given| run(given, Work::Write(Target::fid(given, "vnode"))),
        },
        Verb {
            command: Command {
                name: "afsio lock",
                options: options![FILE, CELL, VERBOSE, CLEAR, REALM, WAIT, READ_LOCK],
            },
            about: "lock a file in AFS",
            aliases: &[],
            run: |given| run(given, Work::Lock(Target::path(given))),
        },
        Verb {
            command: Command {
                name: "afsio read",
                options: options![FILE, CELL, VERBOSE, CLEAR, CRYPT, MD5, REALM, TO],
            },
            about: "read a file from AFS",
            aliases: &[],
            run: |given| run(given, Work::Read(Target::path(given))),
        },
        Verb {
            command: Command {
                name: "afsio unlock",
                options: options![FILE, CELL, VERBOSE, CLEAR, REALM, WAIT],
            },
            about: "unlock a file in AFS",
            aliases: &[],
            run: |given| run(given, Work::Unlock(Target::path(given))),
        },
        Verb {
            command: Command {
                name: "afsio write",
                options: options![
                    FILE,
                    CELL,
                    VERBOSE,
                    CLEAR,
                    CRYPT,
                    MD5,
                    FORCE,
                    Opt::single(
                        "synthesize",
                        "create data pattern of specified length instead reading from stdin"
                    ),
                    REALM,
                    FROM
                ],
            },
            about: "write a file into AFS",
            aliases: &[],
            run: |given| run(given, Work::Write(Target::path(given))),
        },
    ],
};

/// The exit status for whatever goes wrong.
const FAILURE: u8 = 1;

/// Runs the suite with the arguments behind its name.
pub(crate) fn start(args: &[OsString]) -> ExitCode {
    SUITE.run(args)
}

/// What is to be done.
enum Work {
    Read(Target),
    Write(Target),
    Append(Target),
    Lock(Target),
    Unlock(Target),
}

/// The file it is to be done with.
struct Target {
    file: OsString,
    is_fid: bool,
}

impl Target {
    fn path(given: &Given) -> Self {
        Self { file: given.value("file").unwrap_or_default().to_owned(), is_fid: false }
    }

    fn fid(given: &Given, option: &str) -> Self {
        Self { file: given.value(option).unwrap_or_default().to_owned(), is_fid: true }
    }

    /// For messages.
    fn shown(&self) -> String {
        self.file.to_string_lossy().into_owned()
    }

    /// The last component, which the checksum is told of.
    fn last(&self) -> String {
        let shown = self.shown();
        shown.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

/// What did not work: a code as OpenAFS's tool has it, and what was being done.
#[derive(Debug)]
struct AfsioError {
    code: Code,
    what: String,
}

impl AfsioError {
    fn new(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into() }
    }

    /// What the client says.
    fn of_client(error: &Error, what: impl Into<String>) -> Self {
        let what: String = what.into();
        let code = Code(error.errno().0);
        match error {
            // The words for the code say it all.
            Error::NoEntry { .. } | Error::Exists { .. } | Error::Gone { .. } => Self { code, what },
            error => Self { code, what: format!("{what}: {error}") },
        }
    }

    /// What the system says of a local file.
    fn of_system(error: &std::io::Error, what: impl Into<String>) -> Self {
        Self { code: Code(error.raw_os_error().unwrap_or(Code::EIO.0)), what: what.into() }
    }
}

/// The target is a symbolic link, which has no bytes to read or write. Only a fid leads to one: paths are followed.
fn is_link(target: &Target) -> AfsioError {
    AfsioError::new(Code::EINVAL, format!("{} is a symbolic link, not a file", target.shown()))
}

/// A verb under way.
struct Session {
    client: Client,
    user: User,
    /// The cell in which names without a cell are looked for.
    cell: String,
    is_verbose: bool,
    has_bar: bool,
    started: Instant,
}

impl Session {
    /// `-verbose`: that the file is found.
    fn tell_start(&self, opened: Instant) {
        if self.is_verbose {
            let seconds = opened.duration_since(self.started).as_secs_f64();
            eprintln!("Startup to find the file took {seconds:.3} sec.");
        }
    }

    /// `-verbose`: how fast it was.
    fn tell_rate(&self, opened: Instant, bytes: u64, kind: &str) {
        if self.is_verbose {
            let seconds = opened.elapsed().as_secs_f64();
            let rate = if seconds > 0.0 { bytes as f64 / seconds / MEBIBYTE } else { 0.0 };
            eprintln!("Transfer of {bytes} bytes took {seconds:.3} sec.");
            eprintln!("Total data rate = {rate:.03} MB/sec. for {kind}");
        }
    }
}

fn run(given: &Given, work: Work) -> u8 {
    match try_run(given, work) {
        Ok(()) => 0,
        Err(AfsioError { code, what }) => {
            eprintln!("afsio: {code} ({what})");
            FAILURE
        }
    }
}

fn try_run(given: &Given, work: Work) -> Result<(), AfsioError> {
    let started = Instant::now();
    let mut config = config(given).map_err(|what| AfsioError::new(Code::EINVAL, what))?;
    let cell = config.cell.to_string();
    let tokens = if given.has("localauth") { Vec::new() } else { tokens() };
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| AfsioError::of_system(&error, "starting threads"))?;
    runtime.block_on(async {
        // A path may lead to a cell that only the DNS knows.
        let seed = TokioRuntime::current().seed();
        let seed = seed.map_err(|error| AfsioError::of_system(&error, "getting random numbers"))?;
        config.dns = Some(Arc::new(SystemResolver::new(seed)));
        let client = Client::start(config)
            .await
            .map_err(|error| AfsioError::of_client(&error, "starting the client"))?;
        let user = User::of(rustix::process::getuid().as_raw());
        for (cell, name, token) in tokens {
            // One for a cell that this client does not know is of no use here.
            let _ = client.log_in(user, &cell, Holder { name, id: None }, token, false);
        }
        let session = Session {
            client: client.clone(),
            user,
            cell,
            is_verbose: given.has("verbose"),
            has_bar: !given.has("noprogress"),
            started,
        };
        let done = tokio::select! {
            done = session.work(given, &work) => done,
            _ = tokio::signal::ctrl_c() => Err(AfsioError::new(Code::EINTR, "interrupted")),
        };
        // Servers are told that this client is gone, so that none waits for it later.
        client.shut_down().await;
        done
    })
}

/// What the caller has to show, by cells. Without a token, the calls are anonymous, which may be enough.
fn tokens() -> Vec<(String, String, Token)> {
    all_tokens().unwrap_or_else(|missing| {
        missing.explain("afsio");
        Vec::new()
    })
}

impl Session {
    async fn work(&self, given: &Given, work: &Work) -> Result<(), AfsioError> {
        match work {
            Work::Read(target) => {
                let to = given.value("to").map(PathBuf::from);
                self.read(target, to.as_deref(), given.has("md5")).await
            }
            Work::Write(target) => {
                let wanted = if target.is_fid { None } else { given.word("synthesize") };
                let synthesize = wanted.map(parse_length).transpose()?;
                let order = write::Order {
                    from: given.value("from").map(PathBuf::from),
                    synthesize,
                    is_forced: given.has("force"),
                    has_md5: given.has("md5"),
                };
                self.write(target, order).await
            }
            Work::Append(target) => {
                let order = write::Order {
                    from: given.value("from").map(PathBuf::from),
                    synthesize: None,
                    is_forced: false,
                    has_md5: false,
                };
                self.append(target, order).await
            }
            Work::Lock(target) => self.lock(target, &lock::Order::new(given)?).await,
            Work::Unlock(target) => {
                lock::patience(given)?;
                self.unlock(target).await
            }
        }
    }
}

fn parse_length(text: &str) -> Result<u64, AfsioError> {
    let invalid = || AfsioError::new(Code::EINVAL, format!("invalid value for synthesize length {text}"));
    // A file of more has no length that fits into a signed number, as system calls have them.
    text.trim().parse().ok().filter(|length| *length <= i64::MAX.unsigned_abs()).ok_or_else(invalid)
}

/// The cell, its servers, and as whom: from a folder of configuration, or from the command line alone.
fn config(given: &Given) -> Result<Config, String> {
    let is_local = given.has("localauth");
    let default = if is_local { SERVER_FOLDER } else { CLIENT_FOLDER };
    let folder = PathBuf::from(given.word("config").unwrap_or(default));
    let mut config = match given.words("servers")[..] {
        [] => of_folder(&folder, given.word("cell"))?,
        ref servers => of_servers(&folder, given.word("cell"), servers)?,
    };
    // A port of its own: 7001 is for the mount of this machine, if there is one.
    config.bind = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    config.patience = TIMEOUT;
    config.fakestat = false;
    // As there: encrypted, unless it is not wanted.
    config.level = if given.has("clear") { Level::Clear } else { Level::Crypt };
    if is_local {
        let keys = KeySet::load(&folder)
            .map_err(|error| format!("no key of the cell in {}: {error}", folder.display()))?;
        let (uid, cell) = (rustix::process::getuid().as_raw(), config.cell.clone());
        let name = given.word("as").map_or_else(|| first_superuser(&folder), |name| Ok(name.to_owned()));
        let name = name.map_err(|error| format!("{error}; name the user with -as"))?;
        config.keys = vec![(cell.clone(), keys)];
        config.users = vec![LocalUser { uid, cell, name }];
    } else if given.has("as") {
        return Err("-as works only with -localauth".to_owned());
    }
    Ok(config)
}

fn of_folder(folder: &Path, cell: Option<&str>) -> Result<Config, String> {
    let files = ClientFolder::read(folder).map_err(|error| {
        format!("no cell: {error}. Give its name with -cell and its database servers with -servers")
    })?;
    let mut config = Config::of_folder(files);
    if let Some(wanted) = cell {
        let aliased = config.aliases.aliases.iter().find(|a| a.alias.eq_ignore_ascii_case(wanted));
        let name = aliased.map_or(wanted, |alias| alias.cell.as_str()).to_ascii_lowercase();
        config.cell = match config.cells.find(&name) {
            Some(found) => found.name.clone(),
            None => {
                let found = of_dns(name).map_err(|error| {
                    error.explain("afsio");
                    let file = folder.join("CellServDB");
                    format!(
                        "cell {wanted} is neither in {} nor in the DNS; give its database servers with -servers",
                        file.display()
                    )
                })?;
                let name = found.name.clone();
                config.cells.cells.push(found);
                name
            }
        };
    }
    Ok(config)
}

fn of_dns(name: String) -> Result<Cell, CellError> {
    let CellServers { name, servers } = CellServers::ask_dns(name, Service::Location)?;
    let server = |socket: SocketAddrV4| DbServer { address: *socket.ip(), name: None, is_clone: false };
    let name = CellName::new(&name).ok_or(CellError::Unknown { cell: name, silent: None })?;
    Ok(Cell { name, linked: None, comment: None, servers: servers.into_iter().map(server).collect() })
}

fn of_servers(folder: &Path, cell: Option<&str>, servers: &[&str]) -> Result<Config, String> {
    let name: CellName = match cell {
        Some(cell) => CellName::new(cell).ok_or_else(|| format!("'{cell}' is not a valid cell name"))?,
        None => {
            ThisCell::read(&folder.join("ThisCell"))
                .map_err(|error| format!("-servers needs the name of the cell: {error}. Give it with -cell"))?
                .0
        }
    };
    let server = |host: &&str| -> Result<DbServer, String> {
        let address = hosts::find(host).ok_or_else(|| format!("can't resolve address for host {host}"))?;
        Ok(DbServer { address, name: None, is_clone: false })
    };
    let servers = servers.iter().map(server).collect::<Result<_, _>>()?;
    let cells = vec![Cell { name: name.clone(), linked: None, comment: None, servers }];
    Ok(Config::new(name, CellServDb { cells }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classic::Parsed;

    fn given(args: &[&str]) -> Given {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        let read = SUITE.verbs.iter().find(|verb| verb.command.name == "afsio read").expect("in the table");
        match read.command.parse(&args) {
            Ok(Parsed::Run(given)) => given,
            other => panic!("{args:?}: {other:?}"),
        }
    }

    #[test]
    fn a_cell_needs_no_files_if_its_servers_are_named() {
        let given = given(&["/afs/a.test/f", "-cell", "A.test", "-servers", "192.0.2.1", "192.0.2.2"]);
        let config = config(&given).unwrap();
        assert_eq!(config.cell.as_str(), "a.test");
        let addresses: Vec<_> = config.cells.cells[0].servers.iter().map(|server| server.address).collect();
        assert_eq!(addresses, [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)]);
        assert_eq!(config.bind.port(), 0, "7001 is for a mount");
        assert!(config.cache.is_none());
    }

    #[test]
    fn what_is_missing_is_told() {
        for (args, word) in [
            (&["f", "-config", "/nonexistent"][..], "-servers"),
            (&["f", "-config", "/nonexistent", "-servers", "192.0.2.1"], "-cell"),
            (&["f", "-cell", "a.test", "-servers", "192.0.2.1", "-as", "x"], "-localauth"),
            (
                &["f", "-cell", "a.test", "-servers", "192.0.2.1", "-localauth", "-config", "/nonexistent"],
                "no key",
            ),
        ] {
            let error = config(&given(args)).unwrap_err();
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }
}
