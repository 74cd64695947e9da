//! The options of OpenAFS's servers, as the `parm` lines of a BosConfig have them: each is honoured, or accepted with a
//! note that says why it is not needed, or why it is not done (configuration notes 7).

use std::fmt;

use afs_config::{Bnode, Command};
use afs_wire::rights::Rights;

use super::{Config, Encryption, Query, Role, Sync};

/// A server of OpenAFS's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `fileserver`, `dafileserver`.
    FileServer,
    /// `volserver`, `davolserver`.
    VolServer,
    /// `vlserver`.
    VlServer,
    /// `ptserver`.
    PtServer,
    /// The salvagers: nothing here needs them.
    Salvager,
}

impl Program {
    /// The server of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "fileserver" | "dafileserver" => Self::FileServer,
            "volserver" | "davolserver" => Self::VolServer,
            "vlserver" => Self::VlServer,
            "ptserver" => Self::PtServer,
            "salvager" | "dasalvager" | "salvageserver" => Self::Salvager,
            _ => return None,
        })
    }

    /// The role that does its work here.
    pub const fn role(self) -> Option<Role> {
        match self {
            Self::FileServer => Some(Role::File),
            Self::VolServer => Some(Role::Vol),
            Self::VlServer => Some(Role::Vl),
            Self::PtServer => Some(Role::Pt),
            Self::Salvager => None,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::FileServer => 'f',
            Self::VolServer => 'v',
            Self::VlServer => 'l',
            Self::PtServer => 'p',
            Self::Salvager => 's',
        }
    }
}

/// An option that was accepted and does nothing, or not all that one may expect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The line of the BosConfig.
    pub line: usize,
    /// The option, or the program.
    pub option: String,
    /// The reason why it is not needed, or what is different.
    pub why: String,
    /// True if it does something.
    pub is_honoured: bool,
}

impl Note {
    /// What a bnode runs that is no server of ours.
    pub(super) fn of_bnode(bnode: &Bnode) -> Option<Self> {
        let name = &bnode.name;
        let of = |command: &Command, option: String, why: &str| {
            Some(Self { line: command.line, option, why: why.to_owned(), is_honoured: false })
        };
        // The second command of a cron bnode is its time.
        if let ("cron", [command, time, ..]) = (bnode.kind.as_str(), &bnode.commands[..]) {
            let words = |command: &Command| {
                [std::slice::from_ref(&command.program), &command.args[..]].concat().join(" ")
            };
            let option = format!("cron job {name} ('{}' at {})", words(command), words(time));
            return of(command, option, JOBS);
        }
        let command = bnode.commands.iter().find(|command| Program::parse(command.name()).is_none())?;
        of(command, format!("{} (bnode {name})", command.name()), NO_PART)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_honoured { "" } else { " does nothing here" };
        write!(f, "line {}: {}{what}: {}", self.line, self.option, self.why)
    }
}

/// An option that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParmError {
    /// The line of the BosConfig.
    pub line: usize,
    /// The problem, and what to do.
    pub what: String,
}

impl fmt::Display for ParmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// The effect of an option.
#[derive(Clone, Copy)]
enum Effect {
    /// It has no value, and sets this.
    Flag(fn(&mut Config)),
    /// It has a value, and sets this.
    Value(fn(&mut Config, &str) -> Result<(), &'static str>),
    /// It has two values, and sets this.
    Pair(fn(&mut Config, &str, &str) -> Result<(), &'static str>),
    /// It has one or more values, and each sets this.
    Values(fn(&mut Config, &str) -> Result<(), &'static str>),
    /// It has so many values, and is not needed.
    Needless(usize, &'static str),
    /// The same, with a value that may be missing.
    NeedlessOptional(&'static str),
}

use Effect::{Flag, Needless, NeedlessOptional, Pair, Value, Values};

/// The reasons why threads, packets and caches need no numbers.
const TASKS: &str = "calls are tasks, and as many run as file.max_calls says";
const PACKETS: &str = "memory for packets is taken as they come";
const CACHES: &str = "what is cached grows with the memory there is";
const LOGS: &str = "the log goes to stderr, where the journal takes it";
const JUMBO: &str = "packets grow by path MTU discovery; jumbograms are taken and not sent";
const STATISTICS: &str = "calls are counted always: see the setting metrics.bind";
const STATE: &str = "who holds callbacks is always kept, and never restored blindly";
const VOLUMES: &str = "all volumes are attached at the start, from a database";
const HANDLES: &str = "files are opened as they are needed";
const QUOTA: &str = "a quota is kept exactly";
const KEPT: &str = "the databases are kept in the state folder";
const AUDIT: &str = "its lines are JSON, with the fields timestamp, rpc, what, volume, name, caller, peer and code, and not those of OpenAFS: change \
                     what reads them";
const NO_PART: &str = "it is no part of afar: run it by other means if it is needed, or keep OpenAFS's bosserver, which can run 'afar server' too";
const JOBS: &str = "this server runs no jobs: let cron or a systemd timer run it, or keep OpenAFS's bosserver, which can run 'afar server' too";

/// Option, programs (f fileserver, v volserver, l vlserver, p ptserver), effect.
const OPTIONS: &[(&str, &str, Effect)] = &[
    ("-busyat", "f", Value(|c, v| number(v).map(|n| c.file.busy_at = n))),
    ("-cb", "f", Value(|c, v| number(v).map(|n| c.file.callbacks = c.file.callbacks.max(n)))),
    ("-sync", "fv", Value(|c, v| sync(v).map(|s| c.volumes.sync = s))),
    ("-udpsize", "fv", Value(|c, v| number(v).map(|n| udp_size(c, n)))),
    ("-rxmaxmtu", "fvlp", Value(|c, v| number(v).map(|n| c.transport.max_packet_bytes = n))),
    ("-rxbind", "fvlp", Flag(|c| c.transport.one_address = true)),
    ("-allow-dotted-principals", "fvlp", Flag(|c| c.security.allow_dotted_principals = true)),
    (
        "-realm",
        "f",
        Values(|c, v| {
            c.security.realms.push(v.to_owned());
            Ok(())
        }),
    ),
    (
        "-config",
        "fvlp",
        Value(|c, v| {
            c.server.config_dir = v.into();
            Ok(())
        }),
    ),
    (
        "-auditlog",
        "fvlp",
        Values(|c, v| {
            // Later versions of OpenAFS's take "INTERFACE:PATH[:OPTIONS]", and several of them.
            if let Some(path) = v.strip_prefix("file:").or_else(|| v.starts_with('/').then_some(v)) {
                c.audit.file = path.into();
                c.audit.enabled = true;
            }
            Ok(())
        }),
    ),
    ("-d", "fvlp", Value(|c, v| number(v).map(|n| c.log.filter = debug_level(n)))),
    ("-s2scrypt", "v", Value(|c, v| encryption(v).map(|when| c.vol.encryption = when))),
    ("-restricted_query", "v", Value(|c, v| query(v).map(|q| c.vol.restricted_query = q))),
    ("-restricted_query", "l", Value(|c, v| query(v).map(|q| c.databases.restricted_query = q))),
    (
        "-noauth",
        "lp",
        Needless(
            0,
            "it would let everyone change the databases, so it is not done: use -localauth for repairs",
        ),
    ),
    ("-restricted", "p", Flag(|c| c.databases.restricted = true)),
    ("-restrict_anonymous", "p", Flag(|c| c.databases.restrict_anonymous = true)),
    ("-groupdepth", "p", Value(|c, v| number(v).map(|n| c.databases.group_depth = n))),
    ("-depth", "p", Value(|c, v| number(v).map(|n| c.databases.group_depth = n))),
    ("-default_access", "p", Pair(default_access)),
    ("-readonly", "f", Flag(|c| c.file.read_only = true)),
    ("-admin-write", "f", Flag(|c| c.file.administrators_write = true)),
    ("-implicit", "f", Value(implicit)),
    ("-cve-2018-7168-enforce", "f", Flag(|c| c.file.old_access_lists = false)),
    ("-spare", "f", Needless(1, QUOTA)),
    ("-pctspare", "f", Needless(1, QUOTA)),
    (
        "-hr",
        "f",
        Needless(1, "groups of hosts are asked for anew after file.groups_seconds, which is sooner"),
    ),
    ("-p", "fvlp", Needless(1, TASKS)),
    ("-L", "f", Needless(0, TASKS)),
    ("-S", "f", Needless(0, TASKS)),
    ("-k", "f", Needless(1, TASKS)),
    ("-w", "f", Needless(1, TASKS)),
    ("-rxpck", "f", Needless(1, PACKETS)),
    ("-sendsize", "f", Needless(1, "data are sent as clients take them")),
    ("-b", "f", Needless(1, CACHES)),
    ("-l", "f", Needless(1, CACHES)),
    ("-s", "f", Needless(1, CACHES)),
    ("-vc", "f", Needless(1, CACHES)),
    ("-vhashsize", "f", Needless(1, CACHES)),
    ("-smallmem", "l", Needless(0, CACHES)),
    ("-nojumbo", "fvl", Needless(0, JUMBO)),
    ("-jumbo", "fvl", Needless(0, JUMBO)),
    ("-rxdbg", "f", Needless(0, "'afar rxdebug' shows the transport at work")),
    ("-rxdbge", "f", Needless(0, "'afar rxdebug' shows the transport at work")),
    ("-banner", "f", Needless(0, "the service manager says whether the server runs")),
    ("-novbc", "f", Needless(0, "without callbacks clients would see old data")),
    ("-nobusy", "f", Needless(0, VOLUMES)),
    (
        "-abortthreshold",
        "f",
        Needless(1, "clients take turns, so none needs to be slowed down for the others"),
    ),
    ("-enable_peer_stats", "fvlp", Needless(0, STATISTICS)),
    ("-enable_process_stats", "fvlp", Needless(0, STATISTICS)),
    ("-audit-interface", "fvlp", Needless(1, "the audit log is a file")),
    ("-log", "v", Needless(0, "the audit log has all of that")),
    ("-trace", "l", Needless(1, LOGS)),
    ("-syslog", "fvlp", NeedlessOptional(LOGS)),
    ("-mrafslogs", "f", Needless(0, LOGS)),
    ("-transarc-logs", "fvlp", Needless(0, LOGS)),
    ("-logfile", "fvlp", Needless(1, LOGS)),
    ("-saneacls", "f", Needless(0, "it does nothing in OpenAFS either")),
    ("-vhandle-setaside", "f", Needless(1, HANDLES)),
    ("-vhandle-max-cachesize", "f", Needless(1, HANDLES)),
    ("-vhandle-initial-cachesize", "f", Needless(1, HANDLES)),
    ("-vattachpar", "f", Needless(1, VOLUMES)),
    ("-m", "f", Needless(1, "the file system keeps its own reserve")),
    ("-lock", "f", Needless(0, "it is for IRIX")),
    ("-fs-state-dont-save", "f", Needless(0, STATE)),
    ("-fs-state-dont-restore", "f", Needless(0, STATE)),
    ("-fs-state-verify", "f", Needless(1, STATE)),
    ("-vlrudisable", "f", Needless(0, VOLUMES)),
    ("-vlruthresh", "f", Needless(1, VOLUMES)),
    ("-vlruinterval", "f", Needless(1, VOLUMES)),
    ("-vlrumax", "f", Needless(1, VOLUMES)),
    ("-unsafe-nosalvage", "f", Needless(0, "there is nothing to salvage after a crash")),
    (
        "-offline-timeout",
        "f",
        Needless(1, "a volume goes offline after the calls that use it, which are short"),
    ),
    ("-offline-shutdown-timeout", "f", Needless(1, "calls in progress are ended after a few seconds")),
    ("-preserve-vol-stats", "v", Needless(0, "volumes have no access statistics to keep")),
    ("-clear-vol-stats", "v", Needless(0, "volumes have no access statistics to clear")),
    ("-sleep", "v", Needless(1, "it does nothing in OpenAFS either")),
    ("-s2scrypt", "lp", Needless(1, "databases are not sent to other servers")),
    ("-help", "fvlp", Needless(0, "'afar server --help' shows what there is")),
    ("-database", "lp", Needless(1, KEPT)),
    ("-db", "lp", Needless(1, KEPT)),
];

/// Honours the options of a command line.
pub(super) fn apply(config: &mut Config, program: Program, command: &Command) -> Result<(), ParmError> {
    if program == Program::Salvager {
        let why = "volumes are consistent at every moment, so there is nothing to salvage";
        config.notes.push(Note {
            line: command.line,
            option: command.name().to_owned(),
            why: why.to_owned(),
            is_honoured: false,
        });
        return Ok(());
    }
    let failed = |what| Err(ParmError { line: command.line, what });
    let mut words = command.args.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let found = OPTIONS.iter().find(|(n, programs, _)| *n == name && programs.contains(program.letter()));
        let Some((_, _, effect)) = found else {
            return failed(format!("{} has no option {name}: correct or remove it", command.name()));
        };
        let note = |why: &str, is_honoured| Note {
            line: command.line,
            option: name.to_owned(),
            why: why.to_owned(),
            is_honoured,
        };
        let missing = || ParmError { line: command.line, what: format!("{name} needs a value") };
        match *effect {
            Flag(set) => set(config),
            Value(set) => {
                let value = inline.or_else(|| words.next()).ok_or_else(missing)?;
                if let Err(expected) = set(config, value) {
                    return failed(format!("{name} needs {expected}, not '{value}'"));
                }
            }
            Pair(set) => {
                let first = inline.or_else(|| words.next()).ok_or_else(missing)?;
                let second = words.next().ok_or_else(missing)?;
                if let Err(expected) = set(config, first, second) {
                    return failed(format!("{name} needs {expected}, not '{first} {second}'"));
                }
            }
            Values(set) => {
                let mut value = Some(inline.or_else(|| words.next()).ok_or_else(missing)?);
                while let Some(text) = value {
                    if let Err(expected) = set(config, text) {
                        return failed(format!("{name} needs {expected}, not '{text}'"));
                    }
                    value = words.next_if(|next| !next.starts_with('-'));
                }
                if name == "-auditlog" {
                    config.notes.push(note(AUDIT, true));
                }
            }
            Needless(values, why) => {
                for _ in usize::from(inline.is_some())..values {
                    words.next().ok_or_else(missing)?;
                }
                config.notes.push(note(why, false));
            }
            NeedlessOptional(why) => {
                words.next_if(|next| inline.is_none() && !next.starts_with('-'));
                config.notes.push(note(why, false));
            }
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "a number")
}

fn implicit(config: &mut Config, text: &str) -> Result<(), &'static str> {
    rights(text).ok_or("letters of rlidwkaABCDEFGH, or none, read, write or all")?;
    text.clone_into(&mut config.file.administrators_rights);
    Ok(())
}

/// Rights by their letters, or by one of the words that stand for several.
pub(super) fn rights(text: &str) -> Option<Rights> {
    match text {
        "" => None,
        "none" => Some(Rights::NONE),
        "read" => Rights::from_letters("rl"),
        "write" => Rights::from_letters("rlidwk"),
        "all" => Some(Rights::ALL),
        letters => Rights::from_letters(letters),
    }
}

fn default_access(config: &mut Config, users: &str, groups: &str) -> Result<(), &'static str> {
    if access_bits(users).is_none() || access_bits(groups).is_none() {
        return Err("two words of five letters or hyphens, as in 'S---- S-M--'");
    }
    (config.databases.user_access, config.databases.group_access) = (users.to_owned(), groups.to_owned());
    Ok(())
}

/// The bits of who may see and change an entry, from the five letters that `pts` shows (PTDB notes 3): a capital gives it to
/// anyone, a small letter to members.
pub(super) fn access_bits(text: &str) -> Option<u8> {
    const LETTERS: [&[(char, u8)]; 5] = [
        &[('S', 0x80), ('s', 0x40)],
        &[('O', 0x20)],
        &[('M', 0x10), ('m', 0x08)],
        &[('A', 0x04), ('a', 0x02)],
        &[('r', 0x01)],
    ];
    if text.chars().count() != LETTERS.len() {
        return None;
    }
    let bit = |(c, letters): (char, &&[(char, u8)])| match c {
        '-' => Some(0),
        c => letters.iter().find(|(letter, _)| *letter == c).map(|(_, bit)| *bit),
    };
    text.chars().zip(&LETTERS).map(bit).try_fold(0, |bits, bit| Some(bits | bit?))
}

fn sync(text: &str) -> Result<Sync, &'static str> {
    match text {
        "always" => Ok(Sync::Always),
        // Less than that costs nothing here, so nobody has to do without.
        "onclose" | "delayed" | "never" | "none" => Ok(Sync::Interval),
        _ => Err("always, onclose or never"),
    }
}

fn query(text: &str) -> Result<Query, &'static str> {
    match text {
        "anyuser" => Ok(Query::Anyuser),
        "admin" => Ok(Query::Admin),
        _ => Err("anyuser or admin"),
    }
}

fn encryption(text: &str) -> Result<Encryption, &'static str> {
    match text {
        "always" => Ok(Encryption::Always),
        "inherit" => Ok(Encryption::Inherit),
        "never" => Ok(Encryption::Never),
        _ => Err("always, inherit or never"),
    }
}

/// A buffer smaller than what is taken anyway would be a step back.
fn udp_size(config: &mut Config, bytes: u32) {
    const TAKEN_ANYWAY: u64 = 16 << 20;
    if u64::from(bytes) > TAKEN_ANYWAY.max(config.transport.receive_buffer_bytes) {
        config.transport.receive_buffer_bytes = u64::from(bytes);
    }
}

/// OpenAFS's levels are 0, 1, 5, 25 and 125.
fn debug_level(level: u32) -> String {
    match level {
        0..5 => "info",
        5..125 => "debug",
        125.. => "trace",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, args: &str) -> Result<Config, ParmError> {
        let mut config = Config::default();
        let args = args.split_whitespace().map(str::to_owned).collect();
        let command = Command { program: format!("/usr/lib/openafs/{program}"), args, line: 7 };
        apply(&mut config, Program::parse(program).unwrap(), &command)?;
        Ok(config)
    }

    /// The line of a large site, which openafs-info has.
    #[test]
    fn a_tuned_file_server_is_understood_in_full() {
        let config = run(
            "dafileserver",
            "-p 23 -busyat 600 -rxpck 400 -s 1200 -l 1200 -cb 65535 -b 240 -vc 1200 -sendsize 4000000 -udpsize 4000000",
        )
        .unwrap();
        assert_eq!(config.file.busy_at, 600);
        assert_eq!(config.file.callbacks, 1_000_000, "more is kept than it asks for");
        assert_eq!(config.transport.receive_buffer_bytes, 0, "more is taken than it asks for");
        let notes: Vec<_> = config.notes.iter().map(|n| n.option.as_str()).collect();
        assert_eq!(notes, ["-p", "-rxpck", "-s", "-l", "-b", "-vc", "-sendsize"]);
        assert!(config.notes[0].to_string().starts_with("line 7: -p does nothing here: calls are tasks"));
    }

    #[test]
    fn what_can_be_honoured_is() {
        let config = run(
            "fileserver",
            "-sync=always -pctspare 5 -rxmaxmtu 1400 -d 125 \
             -auditlog /var/log/a -udpsize 33554432 -syslog -syslog 8 -rxbind -realm A.TEST B.TEST -L",
        )
        .unwrap();
        assert!(config.transport.one_address);
        assert_eq!((config.volumes.sync, config.transport.max_packet_bytes), (Sync::Always, 1400));
        assert_eq!((config.log.filter.as_str(), config.audit.file.to_str()), ("trace", Some("/var/log/a")));
        assert_eq!(config.transport.receive_buffer_bytes, 32 << 20);
        assert_eq!(config.security.realms, ["A.TEST", "B.TEST"]);
        let file = run("dafileserver", "-admin-write -readonly -implicit=rlk").unwrap().file;
        assert!(file.read_only && file.administrators_write && file.old_access_lists);
        assert_eq!(file.administrators_rights, "rlk");
        let audit = run("ptserver", "-auditlog sysvmq:/q file:/var/log/a -p 3").unwrap().audit;
        assert_eq!(audit.file.to_str(), Some("/var/log/a"));
        let databases =
            run("ptserver", "-restricted -depth 3 -default_access s-Ma- S----").unwrap().databases;
        assert!(databases.restricted && !databases.restrict_anonymous);
        assert_eq!((databases.group_depth, databases.user_access.as_str()), (3, "s-Ma-"));
        assert_eq!(access_bits("s-Ma-"), Some(0x52));
        assert_eq!(run("davolserver", "-restricted_query admin").unwrap().vol.restricted_query, Query::Admin);
        let encryption =
            |args| run("davolserver", args).map(|config| (config.vol.encryption, config.notes.len()));
        assert_eq!(encryption("-s2scrypt inherit"), Ok((Encryption::Inherit, 0)));
        assert_eq!(encryption("-s2scrypt never"), Ok((Encryption::Never, 0)));
        assert_eq!(encryption(""), Ok((Encryption::Always, 0)));
        assert!(encryption("-s2scrypt perhaps").unwrap_err().what.contains("always, inherit or never"));
        assert_eq!(
            run("vlserver", "-restricted_query admin").unwrap().databases.restricted_query,
            Query::Admin
        );
    }

    #[test]
    fn the_form_of_the_audit_log_is_told() {
        let notes = run("fileserver", "-auditlog /var/log/a").unwrap().notes;
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.to_string().starts_with("line 7: -auditlog: its lines are JSON"), "{note}");
    }

    #[test]
    fn a_job_and_a_foreign_program_are_told_by_their_names() {
        let command = |text: &str, line| {
            let mut words = text.split(' ').map(str::to_owned);
            Command { program: words.next().unwrap(), args: words.collect(), line }
        };
        let bnode = |kind: &str, name: &str, commands| Bnode {
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_enabled: true,
            notifier: None,
            commands,
        };
        let job = bnode(
            "cron",
            "backup",
            vec![command("/usr/bin/vos backupsys -localauth", 3), command("05:30", 4)],
        );
        let said = Note::of_bnode(&job).unwrap().to_string();
        assert!(
            said.starts_with(
                "line 3: cron job backup ('/usr/bin/vos backupsys -localauth' at 05:30) does nothing here"
            ),
            "{said}"
        );
        assert!(said.contains("systemd timer") && said.contains("bosserver"), "{said}");
        let other = bnode("simple", "upserver", vec![command("/usr/lib/openafs/upserver /etc/openafs", 5)]);
        let said = Note::of_bnode(&other).unwrap().to_string();
        assert!(said.starts_with("line 5: upserver (bnode upserver) does nothing here"), "{said}");
        let ours = bnode("simple", "vl", vec![command("/usr/lib/openafs/vlserver", 6)]);
        assert_eq!(Note::of_bnode(&ours), None);
    }

    #[test]
    fn what_is_not_done_is_explained() {
        let notes = run("vlserver", "-noauth").unwrap().notes;
        assert!(notes[0].to_string().contains("so it is not done: use -localauth"), "{}", notes[0]);
    }

    #[test]
    fn rights_are_letters_or_a_word() {
        let check = |text, expected: Option<u32>| assert_eq!(rights(text), expected.map(Rights), "{text}");
        check("la", Some(0x48));
        check("none", Some(0));
        check("read", Some(0x9));
        check("write", Some(0x3f));
        check("all", Some(0x7f));
        check("A", Some(0x0100_0000));
        check("", None);
        check("rx", None);
    }

    #[test]
    fn what_cannot_be_is_an_error_that_says_why() {
        let check = |program: &str, args: &str, expected: &str| {
            let error = run(program, args).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        check("fileserver", "-busy 3", "line 7: fileserver has no option -busy: correct");
        check("fileserver", "-busyat", "line 7: -busyat needs a value");
        check("fileserver", "-p", "line 7: -p needs a value");
        check("fileserver", "-busyat x", "line 7: -busyat needs a number, not 'x'");
        check("fileserver", "-implicit x", "line 7: -implicit needs letters of rlidwka");
        check("fileserver", "-sync soon", "line 7: -sync needs always, onclose or never");
        check("ptserver", "-default_access S----", "line 7: -default_access needs a value");
        check("ptserver", "-default_access S---- X----", "line 7: -default_access needs two words of five");
        check("volserver", "-busyat 3", "line 7: volserver has no option -busyat");
    }
}
