//! The options of OpenAFS's `afsd`, each once: which are honoured, and why the others are not needed. What is not needed is taken
//! and said once in the log, so that the command lines of old startup scripts go on working.

use super::OURS;
use crate::classic::{Command, Given, Opt, Parsed};
use crate::numbers;
use std::ffi::OsString;
use std::path::PathBuf;

/// The effect of an option.
#[derive(Clone, Copy)]
enum Effect {
    /// Honoured; it takes a value.
    Honoured,
    /// Honoured: what it does.
    Flag(&'static str),
    /// It is not needed: why.
    Needless(&'static str),
}

use Effect::{Flag, Honoured, Needless};

/// Name, what its value is (empty: it takes none), effect.
type Row = (&'static str, &'static str, Effect);

/// The options, in the order in which `afsd` takes values without an option; only the mount point is taken so here.
const ROWS: [Row; 42] = [
    ("mountdir", "mount location", Honoured),
    ("blocks", "cache size in KiB", Honoured),
    ("files", "", Needless("each vnode has a file of its own in the cache")),
    ("rootvol", "name of the root volume", Honoured),
    ("stat", "number of vnodes whose status is kept", Honoured),
    ("memcache", "", Flag("keep no cache on the disk")),
    ("cachedir", "folder of the cache", Honoured),
    ("daemons", "", Needless("the client makes as many fetches and stores at once as the path can carry")),
    ("nosettime", "", Needless("the client never sets the clock")),
    ("settime", "", Needless("the client never sets the clock: NTP does that")),
    ("verbose", "", Needless("use --log")),
    ("rmtsys", "", Needless("other machines cannot make calls through this client")),
    ("debug", "", Needless("use --log")),
    ("chunksize", "", Needless("the client fetches and stores exact ranges, as large as the path can carry")),
    ("dcache", "", Needless("the index of the cache is on the disk")),
    ("volumes", "", Needless("the client remembers volumes as long as they are used")),
    ("biods", "", Needless("there is no kernel module")),
    ("prealloc", "", Needless("there is no kernel module")),
    ("confdir", "folder with ThisCell and CellServDB", Honoured),
    ("logfile", "", Needless("the log goes to stderr")),
    ("waitclose", "", Needless("close always waits for the store")),
    ("shutdown", "", Needless("SIGTERM ends the client")),
    ("enable_peer_stats", "", Needless("use --metrics")),
    ("enable_process_stats", "", Needless("use --metrics")),
    ("mem_alloc_sleep", "", Needless("there is no kernel module")),
    ("afsdb", "", Flag("ask the DNS for cells that CellServDB does not have; the default with -dynroot")),
    ("files_per_subdir", "", Needless("the cache arranges its folders in its own way")),
    ("dynroot", "", Flag("make the root from the cells that the client knows; the default")),
    ("dynroot-sparse", "", Flag("the same as -dynroot")),
    ("nodynroot", "", Flag("mount the volume of -rootvol as the root")),
    ("fakestat", "", Flag("show mount points without asking the servers of their volumes; always on")),
    ("fakestat-all", "", Flag("the same as -fakestat")),
    ("nomount", "", Needless("a client without a mount is of no use")),
    ("backuptree", "", Needless("mount backup volumes by name")),
    ("rxbind", "", Needless("the client listens on all addresses")),
    ("rxpck", "", Needless("the client allocates packets as it needs them")),
    ("splitcache", "", Needless("read-write and read-only data share the cache")),
    ("rxmaxmtu", "", Needless("the client finds out the size of packets")),
    ("rxmaxfrags", "", Needless("the client sends no jumbograms")),
    ("inumcalc", "", Needless("an inode number is made from volume and vnode")),
    ("volume-ttl", "", Needless("the client looks up a volume again when its server says so")),
    ("disable-dynamic-vcaches", "", Needless("-stat says how many vnodes the client keeps")),
];

/// Those of [`ROWS`] that take a value though it is not used.
const WITH_VALUE: [&str; 15] = [
    "files",
    "daemons",
    "chunksize",
    "dcache",
    "volumes",
    "biods",
    "prealloc",
    "logfile",
    "files_per_subdir",
    "rxpck",
    "splitcache",
    "rxmaxmtu",
    "rxmaxfrags",
    "inumcalc",
    "volume-ttl",
];

const COUNT: usize = ROWS.len() + OURS.len();

/// The whole table of `afar mount`.
pub(super) static OPTIONS: [Opt; COUNT] = options();

const fn options() -> [Opt; COUNT] {
    let mut options = [OURS[0]; COUNT];
    let mut at = 0;
    while at < ROWS.len() {
        let (name, value, effect) = ROWS[at];
        let takes_value = !value.is_empty() || is_in(name, &WITH_VALUE);
        options[at] = match (takes_value, effect) {
            (_, Effect::Flag(help)) => Opt::flag(name, help),
            (true, Effect::Needless(_)) => Opt::single(name, "ignored"),
            (false, Effect::Needless(_)) => Opt::flag(name, "ignored"),
            (_, Effect::Honoured) => Opt::single(name, value),
        };
        at += 1;
    }
    while at < COUNT {
        options[at] = OURS[at - ROWS.len()];
        at += 1;
    }
    options
}

const fn is_in(name: &str, names: &[&str]) -> bool {
    let mut at = 0;
    while at < names.len() {
        if is_same(name.as_bytes(), names[at].as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// `afsd`'s command line in a file of configuration.
static AFSD: Command = Command { name: "afsd", options: &OPTIONS };

/// The settings from `afsd`'s options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AfsdSettings {
    pub(super) mount: Option<PathBuf>,
    pub(super) cache: Option<PathBuf>,
    pub(super) cache_bytes: Option<u64>,
    /// `-memcache`: nothing is kept on the disk.
    pub(super) no_cache: bool,
    pub(super) dynroot: Option<bool>,
    pub(super) fakestat: Option<bool>,
    /// True if the DNS is asked for cells that no file knows.
    pub(super) afsdb: Option<bool>,
    pub(super) root_volume: Option<String>,
    pub(super) status_entries: Option<usize>,
    /// The notes about options that do nothing.
    pub(super) notes: Vec<String>,
}

impl AfsdSettings {
    /// Adds the options of a file.
    ///
    /// # Errors
    ///
    /// When one is not known, or its value makes no sense.
    pub(super) fn read_words(&mut self, words: &[String]) -> Result<(), String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        match AFSD.parse(&words).map_err(|misuse| misuse.to_string())? {
            Parsed::Run(given) => self.read(&given),
            Parsed::Help => Ok(()),
        }
    }

    /// Adds options; what was said before stays where they say nothing.
    ///
    /// # Errors
    ///
    /// When a value makes no sense.
    pub(super) fn read(&mut self, given: &Given) -> Result<(), String> {
        let number = |name: &'static str, max: u64| match given.word(name) {
            None => Ok(None),
            Some(text) => {
                numbers::parse(text, 0..=max).map(Some).map_err(|bad| format!("-{name} {text} {bad}"))
            }
        };
        let path = |name| given.word(name).map(PathBuf::from);
        self.mount = path("mountdir").or(self.mount.take());
        self.cache = path("cachedir").or(self.cache.take());
        if let Some(kib) = number("blocks", u64::MAX >> 10)? {
            self.cache_bytes = Some(kib << 10);
        }
        if let Some(entries) = number("stat", u64::MAX)? {
            self.status_entries = Some(usize::try_from(entries).unwrap_or(usize::MAX));
        }
        self.no_cache |= given.has("memcache");
        if given.has("dynroot") || given.has("dynroot-sparse") {
            self.dynroot = Some(true);
        }
        if given.has("nodynroot") {
            self.dynroot = Some(false);
        }
        if given.has("fakestat") || given.has("fakestat-all") {
            self.fakestat = Some(true);
        }
        if given.has("afsdb") {
            self.afsdb = Some(true);
        }
        if given.has("no-afsdb") {
            self.afsdb = Some(false);
        }
        if let Some(volume) = given.word("rootvol") {
            self.root_volume = Some(volume.to_owned());
        }
        for (name, _, effect) in ROWS {
            match effect {
                Needless(why) if given.has(name) => self.notes.push(format!("-{name} does nothing: {why}")),
                Needless(_) | Flag(_) | Honoured => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &str) -> Result<AfsdSettings, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut settings = AfsdSettings::default();
        settings.read_words(&words).map(|()| settings)
    }

    #[test]
    fn what_the_packages_of_distributions_give_is_understood() {
        // Debian's and Red Hat's scripts for large caches, and those of a site.
        let debian =
            settings("-chunksize 20 -fakestat -dynroot -stat 2000 -dcache 800 -daemons 5 -volumes 70")
                .unwrap();
        assert_eq!(
            (debian.dynroot, debian.fakestat, debian.status_entries),
            (Some(true), Some(true), Some(2000))
        );
        assert_eq!(debian.notes.len(), 4, "{:?}", debian.notes);
        let site = settings(
            "-mountdir /afs -confdir /etc/openafs -cachedir /var/cache/openafs -blocks 50000 -afsdb",
        )
        .unwrap();
        assert_eq!(site.mount, Some("/afs".into()));
        assert_eq!(site.cache_bytes, Some(50_000 << 10));
        assert_eq!((debian.afsdb, site.afsdb), (None, Some(true)));
        assert_eq!(settings("-afsdb --no-afsdb").unwrap().afsdb, Some(false));
        assert!(settings("-memcache -nodynroot").unwrap().no_cache);
        assert!(settings("/afs -rootvol root.test").unwrap().root_volume.is_some());
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        assert!(settings("-blocks many").unwrap_err().contains("-blocks many"));
        assert!(settings("-frobnicate").unwrap_err().contains("-frobnicate"));
    }

    #[test]
    fn every_option_is_in_the_documentation() {
        let guide = include_str!("../../../../docs/client.md");
        for (name, _, _) in ROWS {
            assert!(guide.contains(&format!("`-{name}`")), "docs/client.md does not name -{name}");
        }
    }
}
