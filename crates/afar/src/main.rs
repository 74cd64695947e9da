//! The program: the table of what it can do, and the choice among it by the name it was called by or by its first
//! argument. What each entry does, its options and its output are in the entry's own file.
//!
//! # What to open for a change
//!
//! - A command: the table in this file; each command has a module, [`doctor`] for example.
//! - A subcommand of a suite (in the code: a verb) and its options: the table in [`vos`], [`pts`], [`bos`], [`fs`]
//!   or [`afsio`], which has a module for each (for `fs`, for each topic). Tests:
//!   `crates/interop/tests/cells/suites.rs`.
//! - What could not be stored and was put aside: [`conflicts`].
//! - How classic options are read, messages about wrong ones, and help: [`classic`], [`suite`]; [`arguments`] for
//!   our own commands; [`numbers`] for ranges. Texts for error codes: [`codes`], and `src/vos/words.rs`.
//! - Which cell and servers a command asks, as which user: [`cell`], [`login`]. Tests: `tests/tokens.rs`.
//! - `aklog` and `klog`: [`aklog`], [`klog`], and [`kept_tokens`] for the folder of kept tokens. PAGs: [`pagsh`].
//!   Tests: `tests/kerberos.rs`, `tests/klog.rs`, `tests/pags/`.
//! - Machines that join a cell by invitation: [`invite`], [`join`], [`devices`]; the device's folder: [`joined`]; the user's home: [`home`], by calls: [`tree`];
//!   an administrator: [`administrators`]. Tests: `tests/join.rs`.
//! - `afar up`: [`up`], with a module for its cell, its state, its realm, `--machines`, and mounting again.
//!   docs/client.md.
//! - `afar mount`, `afsd` and fstab: [`mod@mount`] and the modules under it, [`mount_point`]; `src/mount/end.rs`
//!   says what happens when a mount ends that nobody has unmounted.
//! - `afar server` with `--check`: [`server`]. `afar top`: [`top`]. Traces and their plots: [`trace`], [`rxplot`],
//!   docs/seeing.md.
//! - Secrets, kept from other users and out of core dumps: [`private`]. SIGHUP: [`hangup`].
//! - The Debian packages: `Cargo.toml`, `scripts/deb.sh`, `packaging/`; `packaging/run` tests them.
//! - Tests on real mounts: `tests/mounted/` (a cell, and a proxy between client and server), `tests/rounds.rs` (two
//!   mounts), `tests/random_files.rs`, `tests/faults.rs`, `tests/crashes.rs`, `tests/cache_disk.rs`,
//!   `tests/rights.rs`, `tests/link.rs`; where the others are proved: docs/claims.md.
//! - Attacks on a cell: `tests/attacks/`, docs/security.md. Memory: `tests/memory.rs`. Full and failing disks:
//!   `tests/disk.rs`.
#![forbid(unsafe_code)]

mod administrators;
mod afsio;
mod aklog;
mod arguments;
mod bench;
mod bos;
mod cache_lock;
mod callback_wait;
mod calls;
mod cell;
mod cell_login;
mod celldb;
mod classic;
mod client_uuid;
mod cmdebug;
mod codes;
mod conflicts;
mod control_socket;
mod database_files;
mod dates;
mod devices;
mod doctor;
mod export;
mod fs;
mod fsck;
mod hangup;
mod home;
mod hosts;
mod import;
mod invite;
mod join;
mod joined;
mod kept_tokens;
mod key;
mod klog;
mod login;
mod metrics;
mod mount;
mod mount_point;
mod numbers;
mod output;
mod pagsh;
mod ports;
mod printer;
mod private;
mod progress;
mod pts;
mod runtime;
mod rxdebug;
mod rxperf;
mod rxplot;
mod server;
mod standard_input;
mod suite;
mod tokens;
mod top;
mod trace;
mod tree;
mod unlog;
mod up;
mod vos;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// Something the program does: a role or a suite of commands.
struct Entry {
    /// The name of the command, as `afar NAME` and, where a classic program has that name, in its stead.
    name: &'static str,
    /// True if the program answers to that name alone, through a link to it.
    is_classic: bool,
    /// The purpose of the command, in a few words.
    about: &'static str,
    /// Runs the command, with the arguments behind the name.
    run: fn(&[OsString]) -> ExitCode,
}

/// All entries, in the order in which the help shows them.
const ENTRIES: &[Entry] = &[
    Entry {
        name: "up",
        is_classic: false,
        about: "runs a whole cell on this machine: its servers, and a client that mounts it",
        run: up::run,
    },
    Entry { name: "mount", is_classic: false, about: mount::ABOUT, run: mount::run },
    Entry { name: "doctor", is_classic: false, about: doctor::ABOUT, run: doctor::run },
    Entry {
        name: "server",
        is_classic: false,
        about: "runs this machine's servers: files, volumes, the cell's databases",
        run: server::run,
    },
    Entry {
        name: "afsio",
        is_classic: true,
        about: "reads and writes files of a cell without a mount",
        run: afsio::start,
    },
    Entry {
        name: "aklog",
        is_classic: true,
        about: "gets tokens for cells with your Kerberos tickets",
        run: aklog::run,
    },
    Entry {
        name: "bos",
        is_classic: true,
        about: "manages the server processes of a machine: status, superusers, logs, restarts",
        run: bos::start,
    },
    Entry {
        name: "cmdebug",
        is_classic: true,
        about: "shows the state of a client: its cache, locks and cells",
        run: cmdebug::run,
    },
    Entry {
        name: "fs",
        is_classic: true,
        about: "shows and changes files, volumes and servers through this machine's client",
        run: fs::start,
    },
    Entry { name: "conflicts", is_classic: false, about: conflicts::ABOUT, run: conflicts::run },
    Entry { name: "invite", is_classic: false, about: invite::ABOUT, run: invite::run },
    Entry { name: "join", is_classic: false, about: join::ABOUT_JOIN, run: join::run },
    Entry { name: "leave", is_classic: false, about: join::ABOUT_LEAVE, run: join::run_leave },
    Entry { name: "devices", is_classic: false, about: devices::ABOUT, run: devices::run },
    Entry {
        name: "key",
        is_classic: false,
        about: "lists, adds and removes keys of a cell's servers",
        run: key::start,
    },
    Entry {
        name: "klog",
        is_classic: true,
        about: "gets a token for a cell with your password",
        run: klog::run,
    },
    Entry {
        name: "klog.krb5",
        is_classic: true,
        about: "another name for klog",
        run: |args| klog::run_as("klog.krb5", args),
    },
    Entry { name: "pagsh", is_classic: true, about: "starts a shell with its own tokens", run: pagsh::run },
    Entry { name: "pts", is_classic: true, about: "manages the users and groups of a cell", run: pts::start },
    Entry {
        name: "celldb",
        is_classic: false,
        about: "copies the cell's databases from a file to etcd, or back",
        run: celldb::run,
    },
    Entry { name: "fsck", is_classic: false, about: fsck::ABOUT, run: fsck::run },
    Entry {
        name: "import",
        is_classic: false,
        about: "fills a cell's databases from OpenAFS's database files, or from running servers",
        run: import::run,
    },
    Entry {
        name: "export",
        is_classic: false,
        about: "writes the cell's databases as files for OpenAFS's servers",
        run: export::run,
    },
    Entry {
        name: "rxdebug",
        is_classic: true,
        about: "shows the state of an Rx endpoint: statistics, connections, peers, version",
        run: rxdebug::run,
    },
    Entry {
        name: "rxperf",
        is_classic: true,
        about: "measures the speed of an Rx transport, as server or client",
        run: rxperf::run,
    },
    Entry { name: "rxplot", is_classic: false, about: rxplot::ABOUT, run: rxplot::run },
    Entry {
        name: "bench",
        is_classic: false,
        about: "measures your own mounts and network links, and compares them",
        run: bench::run,
    },
    Entry {
        name: "top",
        is_classic: false,
        about: "shows what servers are doing now, by volume, user, client and procedure, and which calls wait",
        run: top::run,
    },
    Entry { name: "tokens", is_classic: true, about: "shows your tokens", run: tokens::run },
    Entry { name: "unlog", is_classic: true, about: "discards tokens", run: unlog::run },
    Entry { name: "vos", is_classic: true, about: "manages the volumes of a cell", run: vos::start },
];

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().collect();
    let (called, rest) =
        args.split_first().map_or((OsStr::new("afar"), &[][..]), |(c, r)| (c.as_os_str(), r));
    let name = Path::new(called).file_name().unwrap_or(called);
    if name == mount::helper::NAME {
        pagsh::give_up_privilege();
        return mount::helper::run(rest);
    }
    let classic = ENTRIES.iter().find(|e| e.is_classic && name == e.name);
    let entry =
        classic.or_else(|| ENTRIES.iter().find(|e| rest.first().is_some_and(|first| first == e.name)));
    if entry.is_none_or(|entry| entry.name != "pagsh") {
        pagsh::give_up_privilege();
    }
    if let Some(entry) = classic {
        return (entry.run)(rest);
    }
    let Some((first, rest)) = rest.split_first() else {
        eprint!("{}", help());
        return ExitCode::from(classic::MISUSE);
    };
    if let Some(entry) = entry {
        return (entry.run)(rest);
    }
    match first.to_str() {
        Some("help" | "-help" | "--help" | "-h") => output::print(&help()),
        Some("version" | "-version" | "--version" | "-V") => {
            output::print(&format!("afar {}\n", env!("CARGO_PKG_VERSION")))
        }
        _ => {
            eprintln!("afar: there is no command '{}'; 'afar help' lists all commands", first.display());
            ExitCode::from(classic::MISUSE)
        }
    }
}

fn help() -> String {
    let mut text = String::from("Usage: afar COMMAND ...; 'afar COMMAND -help' lists its options\n\n");
    for entry in ENTRIES {
        text += &format!("  {:<10} {}\n", entry.name, entry.about);
    }
    let classic: Vec<_> = ENTRIES.iter().filter(|e| e.is_classic).map(|e| e.name).collect();
    text += &format!(
        "\nThrough a link with one of these names, afar runs that command: {}\n",
        classic.join(", ")
    );
    text
}
